"""Value tables for a job's work left have the values of tables for any work left, where the job can get (M4.12)."""

from dataclasses import replace

import numpy as np
import pytest
from make import make_multi_job
from moving_markets import a_job, grounds, random_markets

from slackwater.optimization.job.definition import Amdahl, InstanceTimes, Linear
from slackwater.optimization.market.belief import Forgetting
from slackwater.optimization.policies.holding import WorkLeft, make_held_tables

SLOTS, SLOT, N_MAX, WORKLOAD = 10, 4, 5, 25.0
SPEEDS = [Linear(), Amdahl(parallel=0.93)]


def tables_of(minutes, speed, left, **terms):
    """Return the tables of a job with hourly slots whose groups restart in ``minutes``."""
    times = InstanceTimes(boot=600.0, restart=60.0 * minutes, checkpoint=600.0, on_demand_wait=240.0)
    job = replace(a_job(d=SLOTS, n_max=N_MAX), times=times, throughput=speed)
    windows, records = random_markets(5, SLOTS, N_MAX, markets=1)
    several = make_multi_job(job, 1)
    (view,) = grounds(several, windows, records).view(several.begin(), SLOT).views
    shared = {"keep": SLOTS - SLOT, "guarded": True, "gap": 1.0} | terms
    return make_held_tables(job, times, view.belief(Forgetting()), left=left, **shared)


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("minutes", [0.0, 7.0, 45.0, 90.0])
@pytest.mark.parametrize("guarded", [True, False])
def test_values_in_reach_are_those_for_any_work_left(speed, minutes, guarded):
    """Also where a slot's work lies between two steps, and where a restart longer than a slot adds work."""
    for slot, rest, elapsed in [(4, 2.0, 0.0), (4, 12.0, 0.4), (4, 20.0, 0.9), (6, 8.0, 0.2)]:
        left = WorkLeft(slot, rest, 1.5, 1.0 - elapsed, 0.3)
        terms = {"guarded": guarded, "ahead": rest < WORKLOAD - (slot + elapsed) * speed.rate(N_MAX)}
        whole, tables = (tables_of(minutes, speed, known, **terms) for known in (None, left))
        low, high = tables.reach
        for i in range(slot - SLOT, SLOTS - SLOT):
            own, other = (each.after[i, ..., low[i + 1] : high[i + 1]] for each in (tables, whole))
            np.testing.assert_array_equal(own, other)
            assert own.size > 0


def test_narrow_tables_leave_values_out():
    """So that the comparison above is of a range: points beyond it are filled."""
    left = WorkLeft(4, 8.0, 0.5, 1.0, 0.0)
    whole, tables = tables_of(7.0, Linear(), None), tables_of(7.0, Linear(), left)
    low, high = tables.reach
    assert (tables.after[0, ..., : low[1]] != whole.after[0, ..., : low[1]]).any()
    assert (tables.after[0, ..., high[1] :] != whole.after[0, ..., high[1] :]).any()


def test_tables_cover_what_becomes_of_the_job_and_nothing_else():
    tables = tables_of(7.0, Linear(), WorkLeft(4, 8.0, 0.5, 1.0, 0.0))
    later = {
        WorkLeft(4, 8.0, 0.5, 1.0, 0.0): True,
        WorkLeft(4, 8.5, 0.0, 0.7, 0.0): True,  # unsaved work was lost
        WorkLeft(4, 6.0, 0.0, 0.5, 0.0): True,
        WorkLeft(5, 3.0, 0.5, 1.0, 0.0): True,
        WorkLeft(4, 6.0, 0.0, 1.0, 0.0): False,  # more than the work of a slot
        WorkLeft(4, 9.0, 0.0, 1.0, 0.0): False,
        WorkLeft(4, 8.0, 0.5, 1.0, 2.0): False,  # a group that works later than a new group would
        None: False,
    }
    for left, covered in later.items():
        assert tables.covers(left) is covered, left
    assert all(tables_of(7.0, Linear(), None).covers(left) for left in later)
