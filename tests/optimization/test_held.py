"""Progress of a running job from its decisions (M2.4)."""

import numpy as np
import pytest

from optimization.held import held_so_far
from optimization.job import Job
from optimization.market import market_window
from optimization.plan import Allocation
from optimization.throughput import Linear


def _job(**changes):
    terms = {
        "name": "j", "workload": 100.0, "deadline_slots": 6, "n_min": 2, "n_max": 8,
        "throughput": Linear(), "mu_up": 0.8, "mu_down": 0.9, "value": 50.0,
    }  # fmt: skip
    return Job(**{**terms, **changes})


def _window(price, available):
    return market_window(np.array(price), np.array(available), on_demand_usd=2.0, slot_hours=0.5)


def test_pays_and_progresses_slot_by_slot():
    window = _window([0.5, 0.5, 1.0], [8, 8, 8])
    decided = {0: Allocation(1, 3), 1: Allocation(0, 4), 2: Allocation(0, 2)}
    progress = held_so_far(_job(), window, decided, slots=3)
    assert progress.done == pytest.approx(0.8 * 2 + 2 + 0.9 * 1)
    assert progress.cost_usd == pytest.approx(0.5 * ((2 + 1.5) + 2.0 + 2.0))
    assert progress.n_previous == 2


def test_spot_that_is_not_there_is_neither_held_nor_paid():
    progress = held_so_far(_job(), _window([0.5], [3]), {0: Allocation(0, 6)}, slots=1)
    assert progress.n_previous == 3
    assert progress.cost_usd == pytest.approx(0.5 * 3 * 0.5)


def test_below_n_min_nothing_runs():
    progress = held_so_far(_job(), _window([0.5], [1]), {0: Allocation(0, 6)}, slots=1)
    assert progress == type(progress)()


def test_a_gap_gives_no_spot_and_a_missing_decision_holds_nothing():
    window = _window([0.5, np.nan, 0.5], [8, 8, 8])
    progress = held_so_far(_job(), window, {0: Allocation(0, 4), 1: Allocation(0, 4)}, slots=3)
    assert progress.done == pytest.approx(0.8 * 2)
    assert progress.n_previous == 0


def test_nothing_is_paid_after_the_finish():
    job = _job(workload=1.0)
    window = _window([0.5] * 3, [8] * 3)
    progress = held_so_far(job, window, dict.fromkeys(range(3), Allocation(0, 4)), slots=3)
    assert progress.done == pytest.approx(1.0)
    assert progress.cost_usd == pytest.approx(0.5 * 4 * 0.5)
