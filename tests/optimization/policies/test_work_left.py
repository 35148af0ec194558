"""Value tables for a range of work left have the values of tables for any work left, where the job can get (M4.12)."""

from dataclasses import replace

import numpy as np
import pytest
from make import make_multi_job
from moving_markets import a_job, random_markets

from slackwater.optimization.job.definition import InstanceTimes
from slackwater.optimization.market.belief import Forgetting
from slackwater.optimization.moving.sight import Grounds
from slackwater.optimization.policies.grids import band
from slackwater.optimization.policies.holding import WorkLeft, make_held_tables

SLOTS, SLOT = 10, 4


@pytest.mark.parametrize("minutes", [0.0, 10.0, 45.0, 90.0])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("elapsed", [0.0, 0.4])
def test_values_in_reach_do_not_depend_on_the_range(minutes, share, elapsed):
    """Also where a restart is longer than a slot of an hour, and the work left may grow."""
    times = InstanceTimes(boot=600.0, restart=60.0 * minutes, checkpoint=600.0)
    job = replace(a_job(d=SLOTS, n_max=3), times=times)
    windows, records = random_markets(5, SLOTS, 3, markets=1)
    several = make_multi_job(job, 1)
    (view,) = Grounds(several, windows, records=records).view(several.begin(), SLOT).views
    belief, left = view.belief(Forgetting()), share * job.workload
    terms = {"keep": SLOTS - SLOT, "guarded": True, "gap": 1.0}
    whole = make_held_tables(job, times, belief, **terms)
    at = WorkLeft(at=SLOT + elapsed, least=left, most=left + 0.05 * job.workload)
    tables = make_held_tables(job, times, belief, left=at, **terms)
    game, computed = tables.game, 0
    gain, high = float(game.gain.max()) / game.step, band(job, game)[1]
    for i in range(SLOTS - SLOT):
        first = max(0, int(np.floor(at.least / game.step - (i + 1 - elapsed) * gain)))
        end = min(int(np.ceil(at.most / game.step)) + 1, int(high[i + 1]))
        np.testing.assert_array_equal(tables.after[i, ..., first:end], whole.after[i, ..., first:end])
        computed += max(0, end - first)
    assert computed > 0
    assert whole.left is None
    assert whole.covers(at)


@pytest.mark.parametrize("minutes", [10.0, 45.0, 90.0, 150.0])
def test_the_first_slot_is_the_same_whether_later_slots_are_stored(minutes):
    """Of slots that are not stored only the values that the slot before reads are filled: a long restart adds work left."""
    times = InstanceTimes(boot=600.0, restart=60.0 * minutes, checkpoint=600.0)
    job = replace(a_job(d=SLOTS, n_max=3), times=times)
    windows, records = random_markets(5, SLOTS, 3, markets=1)
    several = make_multi_job(job, 1)
    (view,) = Grounds(several, windows, records=records).view(several.begin(), SLOT).views
    belief, terms = view.belief(Forgetting()), {"guarded": True, "gap": 1.0}
    whole, first = (make_held_tables(job, times, belief, keep=keep, **terms) for keep in (SLOTS, 1))
    np.testing.assert_array_equal(first.after[0], whole.after[0])


def test_tables_cover_what_becomes_of_the_job_and_nothing_else():
    first = WorkLeft(at=2.0, least=6.0, most=8.0)
    later = {
        WorkLeft(at=2.0, least=6.0, most=8.0): True,
        WorkLeft(at=3.0, least=4.0, most=4.5): True,
        WorkLeft(at=2.5, least=4.9, most=8.0): False,  # more than a slot's work in half a slot
        WorkLeft(at=3.0, least=6.0, most=8.1): False,
        WorkLeft(at=1.0, least=6.0, most=8.0): False,  # earlier
    }
    for own, expected in later.items():
        assert first.reaches(own, gain=2.0, slack=1e-9) is expected, own
