"""Value tables in the world have the same first slot whether later slots are stored or not (M4.12)."""

from dataclasses import replace

import numpy as np
import pytest
from make import make_multi_job
from moving_markets import a_job, grounds, random_markets

from slackwater.optimization.job.definition import InstanceTimes
from slackwater.optimization.market.belief import Forgetting
from slackwater.optimization.policies.holding import make_held_tables

SLOTS, SLOT = 10, 4


@pytest.mark.parametrize("minutes", [10.0, 45.0, 90.0, 150.0])
def test_the_first_slot_is_the_same_whether_later_slots_are_stored(minutes):
    """Slots that are not stored are filled only where the slot before reads them; a long restart reads more work left."""
    times = InstanceTimes(boot=600.0, restart=60.0 * minutes, checkpoint=600.0)
    job = replace(a_job(d=SLOTS, n_max=3), times=times)
    windows, records = random_markets(5, SLOTS, 3, markets=1)
    several = make_multi_job(job, 1)
    (view,) = grounds(several, windows, records).view(several.begin(), SLOT).views
    belief, terms = view.belief(Forgetting()), {"guarded": True, "gap": 1.0}
    whole, first = (make_held_tables(job, times, belief, keep=keep, **terms) for keep in (SLOTS, 1))
    np.testing.assert_array_equal(first.after[0], whole.after[0])
