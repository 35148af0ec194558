"""Progress of a running job from its decisions (M2.4)."""

import numpy as np
import pytest

from optimization.held import held_so_far
from optimization.job import Job
from optimization.market import market_window
from optimization.plan import Allocation
from optimization.replay import see
from optimization.throughput import Linear


def _job(**changes):
    terms = {
        "name": "j", "workload": 100.0, "deadline_slots": 6, "n_min": 2, "n_max": 8,
        "throughput": Linear(), "mu_up": 0.8, "mu_down": 0.9, "value": 50.0,
    }  # fmt: skip
    return Job(**{**terms, **changes})


def _held(job, price, available, decided, slots):
    """The market is known for the first slots only, as in a live turn; the rest of the job's slots are gaps."""
    unknown = [np.nan] * (job.deadline_slots - len(price))
    window = market_window(
        np.array([*price, *unknown]), np.array([*available, *unknown]), on_demand_usd=2.0, slot_hours=0.5
    )
    return held_so_far(job, see(job, window, None), decided, slots=slots)


def test_pays_and_progresses_slot_by_slot():
    decided = {0: Allocation(1, 3), 1: Allocation(0, 4), 2: Allocation(0, 2)}
    progress, views = _held(_job(), [0.5, 0.5, 1.0], [8, 8, 8], decided, 3)
    assert [view.progress.n_previous for view in views] == [0, 4, 4]
    assert progress.done == pytest.approx(0.8 * 2 + 2 + 0.9 * 1)
    assert progress.cost_usd == pytest.approx(0.5 * ((2 + 1.5) + 2.0 + 2.0))
    assert progress.n_previous == 2


def test_spot_that_is_not_there_is_neither_held_nor_paid():
    progress, _ = _held(_job(), [0.5], [3], {0: Allocation(0, 6)}, 1)
    assert progress.n_previous == 3
    assert progress.cost_usd == pytest.approx(0.5 * 3 * 0.5)


def test_below_n_min_nothing_runs():
    progress, _ = _held(_job(), [0.5], [1], {0: Allocation(0, 6)}, 1)
    assert progress == type(progress)()


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
    assert progress.cost_usd == pytest.approx(0.5 * 4 * 0.5)
