"""Live solves: the MILP's plan when it is proved in time, the exact twin's otherwise."""

import numpy as np
import pytest

from optimization.job.definition import Job
from optimization.job.throughput import Linear
from optimization.market.window import market_window
from optimization.window.live import LiveSolver
from optimization.window.plan import EndRule, HorizonProblem
from optimization.window.twin import solve_window


def _problem() -> HorizonProblem:
    rng = np.random.default_rng(5)
    window = market_window(
        rng.uniform(0.2, 0.9, 5), rng.integers(0, 17, 5), on_demand_usd=1.0, slot_hours=0.5
    )
    job = Job(
        name="j", workload=60, deadline_slots=20, n_min=1, n_max=16, throughput=Linear(beta=0.5),
        mu_up=0.8, mu_down=0.9, value=80,
    )  # fmt: skip
    return HorizonProblem(
        job=job, slot=4, done=9.3, n_previous=3, window=window, end_rule=EndRule.ON_DEMAND_TO_GO
    )


def test_the_milp_answers_and_agrees_with_the_twin():
    solver = LiveSolver(seconds=30)
    plan = solver(_problem())
    assert plan.objective == pytest.approx(solve_window(_problem()).objective, abs=1e-6)
    assert "optimal" in solver.summary()


def test_without_time_the_twin_answers_and_the_note_says_so():
    solver = LiveSolver(seconds=1e-6)
    plan = solver(_problem())
    assert plan.objective == pytest.approx(solve_window(_problem()).objective)
    assert "twin instead" in solver.summary()
    assert solver.summary().count(" s") == 0
