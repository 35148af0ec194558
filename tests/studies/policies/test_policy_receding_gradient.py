"""RHIG: receding-horizon inexact gradient steps on sufficiently accurate forecasts (M10)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_window

from slackwater.optimization import PointForecast, Progress
from slackwater.optimization.policies.pace import step
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import replay, see
from slackwater.optimization.replay.score import perfect_forecasts
from slackwater.studies.policies.forecast_record import ForecastRecord, noted
from slackwater.studies.policies.receding_gradient import LEAST_SMOOTHING, RecedingGradient, accurate_steps
from slackwater.warehouse.errors import SettingsError

SLOTS = 14
JOB = make_job(deadline_slots=SLOTS, mu_up=0.7, mu_down=0.95, value=70)


def market(seed: int, *, constant: bool = False):
    rng = np.random.default_rng(seed)
    price = np.full(SLOTS, 0.3) if constant else rng.uniform(0.2, 0.9, SLOTS)
    return make_window(price, rng.integers(0, 9, SLOTS))


def smoothed(x, before, dear, rho, beta) -> float:
    """Return stage costs plus squared switching costs; the slot after the last keeps the last size."""
    steps = np.diff([before, *x])
    return float(np.dot(np.array(dear) - rho, x) + beta / 2 * (steps**2).sum())


def test_every_step_lowers_the_smoothed_cost():
    """A step of 1 / (4 beta) on a curvature of 2 beta cannot overshoot, for any forecasts."""
    policy, lowered = RecedingGradient(horizon=4, sigma=1.0), 0
    for seed in range(20):
        window = market(seed)
        seen, state, progress = see(JOB, window, perfect_forecasts(window, 4)), policy.start(JOB), Progress()
        for slot in range(SLOTS - 5):
            view = seen.view(JOB, progress, slot)
            allocation, after = policy.decide(state, view)
            if after.sizes:
                ahead = view.window(len(after.sizes))
                room = np.where(ahead.price < 1.0, np.minimum(ahead.available, 8) / 8, 0.0)
                kept = state.sizes[slot - state.slot :] if state.sizes else ()
                begun = [min(kept[s], room[s]) if s < len(kept) else room[s] for s in range(len(room))]
                terms = (progress.n_previous / 8, ahead.price, 1.0, max(LEAST_SMOOTHING, 2 * (1 - JOB.mu_up)))
                cost = [smoothed(x, *terms) for x in (begun, after.sizes)]
                assert cost[1] <= cost[0] + 1e-12
                lowered += cost[1] < cost[0] - 1e-9
                assert all(0 <= x <= r + 1e-12 for x, r in zip(after.sizes, room, strict=True))
            progress, state = step(progress, allocation, view), after
            if progress.done >= JOB.workload:
                break
    assert lowered > 10


def test_repeated_steps_reach_the_smoothed_optimum():
    """Repeated on the same slots, the iterates converge where no small change of a single size helps."""
    window, policy = market(3), RecedingGradient(horizon=4, sigma=1.0)
    view = see(JOB, window, perfect_forecasts(window, 4)).view(JOB, Progress(done=4.0, n_previous=3), 2)
    state = policy.start(JOB)
    for _ in range(200):
        _, after = policy.decide(state, view)
        state = replace(after, record=ForecastRecord())
    ahead = view.window(len(state.sizes))
    room = np.where(ahead.price < 1.0, np.minimum(ahead.available, 8) / 8, 0.0)
    terms = (3 / 8, ahead.price, 1.0, 2 * (1 - JOB.mu_up))
    least = smoothed(state.sizes, *terms)
    for s in range(len(room)):
        for change in (-1e-3, 1e-3):
            moved = list(state.sizes)
            moved[s] = float(np.clip(moved[s] + change, 0.0, room[s]))
            assert smoothed(moved, *terms) >= least - 1e-9


def test_forecasts_are_believed_only_as_far_as_they_are_accurate():
    """Forecasts that are wrong from lead time two are used for one step; correct forecasts for all steps."""
    window = market(4)
    half = [
        PointForecast(price=f.price, available=np.concatenate([f.available[:1], 8 - f.available[1:]]))
        for f in perfect_forecasts(window, 4)
    ]
    for forecasts, steps in ((half, 1), (perfect_forecasts(window, 4), 4)):
        seen, record = see(JOB, window, forecasts), ForecastRecord()
        for slot in range(8):
            view = seen.view(JOB, Progress(), slot)
            record = noted(record, view, 4)
        assert accurate_steps(record, view, 4) == steps
    assert accurate_steps(ForecastRecord(), view, 4) == 0


def test_where_changes_cost_nothing_and_prices_stand_still_it_is_greedy():
    job = replace(JOB, mu_up=1.0, mu_down=1.0)
    for seed in range(10):
        window = market(seed, constant=True)
        made = replay(
            RecedingGradient(horizon=3, sigma=1.0), job, window, forecasts=perfect_forecasts(window, 3)
        )
        greedy = replay(policy_named("MSU-trim"), job, window)
        assert made.allocations == greedy.allocations


def test_a_change_that_does_not_pay_is_not_made():
    """Growing to 8 for one slot loses (1 - 0.25) of its work, more than it gains; over five slots it pays."""
    job = replace(JOB, mu_up=0.25, workload=60, deadline_slots=SLOTS)
    for later, size in ((3, 3), (8, 8)):
        window = make_window(0.5, [8] + [later] * (SLOTS - 1))
        view = see(job, window, perfect_forecasts(window, 5)).view(job, Progress(n_previous=3), 0)
        policy = RecedingGradient(horizon=5, sigma=1.0)
        assert policy.decide(policy.start(job), view)[0].spot == size


@pytest.mark.parametrize("terms", [{"horizon": 0}, {"sigma": 0.0}, {"sigma": 1.5}])
def test_what_is_no_policy_is_refused(terms):
    with pytest.raises(SettingsError):
        RecedingGradient(**{"horizon": 3, "sigma": 0.9, **terms})
