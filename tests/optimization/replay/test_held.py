"""Progress of a running job from its decisions, in the world (M12)."""

import numpy as np
import pandas as pd
import pytest
from make import make_job, make_window

from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.moving.definition import in_one_market, placement
from slackwater.optimization.replay.decision import LiveJob, ReportedState
from slackwater.optimization.replay.run import see


def _job(**changes):
    terms = {"workload": 100.0, "deadline_slots": 6, "n_min": 2, "mu_up": 0.8, "mu_down": 0.9, "value": 50.0}
    return make_job(**(terms | changes))


def _held(job, price, available, decided, slots):
    """Return progress on a market known for its first slots only, as in a live turn; the job's later slots are gaps."""
    unknown = [np.nan] * (job.deadline_slots - len(price))
    window = make_window(
        np.array([*price, *unknown]), np.array([*available, *unknown]), on_demand_usd=2.0, slot_hours=0.5
    )
    return _so_far(job, window, decided, slots)


def test_pays_and_progresses_slot_by_slot():
    decided = {0: Allocation(1, 3), 1: Allocation(0, 4), 2: Allocation(0, 2)}
    progress, views = _held(_job(), [0.5, 0.5, 1.0, 1.0], [8] * 4, decided, 3)
    assert [view.progress.n_previous for view in views] == [0, 4, 4]
    # Every change of the group restarts it for .1 h, the exchange of on-demand for spot included.
    assert progress.done == pytest.approx(0.4 * 4 + 0.4 * 4 + 0.4 * 2)
    assert progress.cost_usd == pytest.approx(0.5 * ((2 + 1.5) + 2.0 + 2.0))
    assert progress.n_previous == 2


def test_spot_that_is_not_there_is_neither_held_nor_paid():
    progress, _ = _held(_job(), [0.5, 0.5], [3, 3], {0: Allocation(0, 6)}, 1)
    assert progress.n_previous == 3
    assert progress.cost_usd == pytest.approx(0.5 * 3 * 0.5)


def test_below_n_min_nothing_works_but_what_was_granted_is_paid():
    progress, _ = _held(_job(), [0.5], [1], {0: Allocation(0, 6)}, 1)
    assert (progress.done, progress.n_previous) == (0.0, 0)
    assert progress.cost_usd == pytest.approx(0.5 * 1 * 0.5)


def test_a_gap_gives_no_spot_and_a_missing_decision_holds_nothing():
    decided = {0: Allocation(0, 4), 1: Allocation(0, 4)}
    progress, _ = _held(_job(), [0.5, np.nan, 0.5], [8, 8, 8], decided, 3)
    assert progress.done == pytest.approx(0.8 * 2)
    assert progress.n_previous == 0


def test_nothing_is_paid_after_the_finish():
    job = _job(workload=1.0)
    decided = dict.fromkeys(range(3), Allocation(0, 4))
    progress, views = _held(job, [0.5] * 3, [8] * 3, decided, 3)
    assert len(views) == 1
    assert progress.done == pytest.approx(1.0)
    assert progress.cost_usd == pytest.approx((0.1 + 1.0 / 4) * 4 * 0.5), "to the second of the finish"


def test_a_report_takes_the_place_of_what_was_reckoned():
    decided = {slot: Allocation(4, 0) for slot in range(4)}
    reported = [ReportedState(slot=2, done=1.5, size=6), ReportedState(slot=3, size=4, early=0.5)]
    job = _job()
    progress, views = _reported(job, decided, reported, 4)
    assert [view.progress.n_previous for view in views] == [0, 4, 6, 4]
    assert [view.progress.done for view in views] == pytest.approx([0, 1.6, 1.5, 1.5 + 0.4 * 4])
    assert progress.done == pytest.approx(1.5 + 0.4 * 4 + 2)
    assert _reported(job, decided, reported, 1) == _reported(job, decided, [], 1)
    paid = [_reported(job, decided, one, 4)[0].cost_usd for one in (reported, [])]
    assert paid[0] == paid[1]


def test_a_report_early_in_the_slot_is_carried_to_its_end_at_the_size_then_held():
    progress, _ = _reported(_job(), {}, [ReportedState(slot=1, done=3.0, size=8, early=0.25)], 1)
    assert progress.done == pytest.approx(3.0 + 0.25 * 0.5 * 8)
    bounded, _ = _reported(_job(), {}, [ReportedState(slot=1, done=3.0, size=80, early=0.25)], 1)
    assert bounded == progress
    below, _ = _reported(_job(), {}, [ReportedState(slot=1, done=3.0, size=1, early=0.25)], 1)
    assert (below.done, below.n_previous) == (3.0, 0)


def test_a_finish_that_was_reckoned_is_taken_back_by_a_report():
    job, decided = _job(workload=4.0), dict.fromkeys(range(3), Allocation(4, 0))
    reckoned, views = _reported(job, decided, [], 4)
    assert (reckoned.done, len(views)) == (4.0, 3)
    taken_back, views = _reported(job, decided, [ReportedState(slot=4, done=3.0)], 4)
    assert (taken_back.done, len(views)) == (3.0, 3)
    ended, views = _reported(job, decided, [ReportedState(slot=1, done=4.0)], 4)
    assert (ended.done, len(views)) == (4.0, 1)


@pytest.mark.parametrize(
    ("reported", "share"),
    [
        ([], 1.0),
        ([ReportedState(slot=2, done=1.6)], 1.0),
        # 4 of 10 units more than the two slots of 4 instances do: they would have been as fast on demand.
        ([ReportedState(slot=2, done=1.6 + 2.0 + 4.0)], 0.6),
        ([ReportedState(slot=1, done=1.6 + 1.0), ReportedState(slot=2, done=1.6 + 2.0 + 4.0)], 0.6),
        # Less than they do, made up for or not.
        ([ReportedState(slot=1, done=0.0), ReportedState(slot=2, done=1.6 + 2.0)], 1.0),
        ([ReportedState(slot=2, done=0.5)], 1.0),
    ],
)
def test_on_demand_only_is_for_the_work_as_it_turned_out(reported, share):
    job, decided = _job(workload=10.0), dict.fromkeys(range(2), Allocation(4, 0))
    assert _reported(job, decided, [], 2)[0].done == pytest.approx(1.6 + 2.0)
    whole, own = (_live(job, _unknown(job), decided, 2, given).on_demand_only_usd for given in ([], reported))
    assert own == pytest.approx(share * whole)


def _unknown(job):
    unknown = [np.nan] * job.deadline_slots
    return make_window(np.array(unknown), np.array(unknown), on_demand_usd=2.0, slot_hours=0.5)


def _reported(job, decided, reported, slots):
    return _so_far(job, _unknown(job), decided, slots, reported)


def _live(job, window, decided, slots, reported=()):
    return LiveJob(
        job=in_one_market(job),
        start=pd.Timestamp("2026-01-01T00:00Z"),
        step=pd.Timedelta("30min"),
        slot=slots,
        seen=(see(job, window, None),),
        decided={slot: placement(0, allocation) for slot, allocation in decided.items()},
        reported=tuple(reported),
    )


def _so_far(job, window, decided, slots, reported=()):
    live = _live(job, window, decided, slots, reported)
    reached = live.reached()
    progress, before = reached.progress, reached.earlier
    return progress, [live.view(at, slot).views[0] for slot, at in before.items()]
