"""Planning window whose length depends on the forecast quality (M10)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import make_job, make_window

from slackwater.optimization import PointForecast, Progress
from slackwater.optimization.policies.pace import step
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import replay, see
from slackwater.optimization.replay.score import perfect_forecasts
from slackwater.studies.policies.uncertain_window import UncertainWindow, balanced_window
from slackwater.studies.replays import replay_pool
from slackwater.warehouse.errors import SettingsError

SLOTS = 14
JOB = make_job(deadline_slots=SLOTS, mu_up=0.8, mu_down=0.95, value=70)


def market(seed: int):
    rng = np.random.default_rng(seed)
    return make_window(rng.uniform(0.2, 0.8, SLOTS), rng.integers(0, 9, SLOTS))


def wrong(seed: int, window) -> list[PointForecast]:
    rng = np.random.default_rng(seed)
    return [
        PointForecast(price=rng.uniform(0.2, 0.8, 5), available=8 - f.available)
        for f in perfect_forecasts(window, 5)
    ]


def widths(policy: UncertainWindow, window, forecasts) -> list[int]:
    seen, state, progress, found = see(JOB, window, forecasts), policy.start(JOB), Progress(), []
    for slot in range(SLOTS):
        view = seen.view(JOB, progress, slot)
        allocation, state = policy.decide(state, view)
        found.append(state.width)
        progress = step(progress, allocation, view)
        if progress.done >= JOB.workload:
            break
    return found


@settings(deadline=None, max_examples=80)
@given(
    errors=st.lists(st.floats(0.0, 10.0), min_size=7, max_size=7),
    change=st.floats(0.0, 10.0),
    most=st.integers(1, 8),
)
def test_the_window_is_the_best_of_all_by_trying_them(errors, change, most):
    chosen = balanced_window(tuple(errors), change, most)
    per_slot = [(change + sum(errors[: size - 1])) / size for size in range(1, most + 1)]
    assert 1 <= chosen <= most
    assert per_slot[chosen - 1] <= min(per_slot) + 1e-12


def test_perfect_forecasts_are_used_to_the_end_and_wrong_ones_are_not():
    window = market(0)
    policy = UncertainWindow(most=5, sigma=0.9)
    assert set(widths(policy, window, perfect_forecasts(window, 5))) == {5}
    late = widths(policy, window, wrong(1, window))[4:]
    assert max(late) < 5
    assert min(late) == 1


def test_where_a_change_costs_nothing_any_error_shortens_the_window():
    window, policy = market(2), UncertainWindow(most=5, sigma=0.9)
    view = see(JOB, window, wrong(3, window)).view(replace(JOB, mu_up=1.0), Progress(), 0)
    _, state = policy.decide(policy.start(view.job), view)
    later = see(JOB, window, wrong(3, window)).view(view.job, Progress(), 1)
    _, state = policy.decide(state, later)
    assert state.width == 1


def test_a_window_of_one_slot_is_ahap_of_one_slot():
    for seed in range(4):
        window = market(seed)
        made = replay(UncertainWindow(most=1, sigma=0.7), JOB, window, forecasts=wrong(seed, window))
        plain = replay(policy_named("AHAP(1,1,0.7,expected)"), JOB, window, forecasts=wrong(seed, window))
        assert made.allocations == plain.allocations


def test_with_perfect_forecasts_it_is_ahap_of_the_whole_window():
    for seed in range(3):
        window = market(seed)
        right = perfect_forecasts(window, 5)
        names = ("AHAP(4,1,0.9,expected)", "AHAP(4,4,0.9,last,expected)")
        for bind, name in zip((False, True), names, strict=True):
            made = replay(UncertainWindow(most=4, sigma=0.9, bind=bind), JOB, window, forecasts=right)
            assert made.allocations == replay(policy_named(name), JOB, window, forecasts=right).allocations


def test_a_plan_that_binds_is_followed_for_its_window():
    window, policy = market(5), UncertainWindow(most=3, sigma=0.9, bind=True)
    seen, state, progress = see(JOB, window, perfect_forecasts(window, 5)), policy.start(JOB), Progress()
    made = []
    for slot in range(6):
        view = seen.view(JOB, progress, slot)
        allocation, state = policy.decide(state, view)
        made.append(state.plan.plans[-1][0])
        progress = step(progress, allocation, view)
    assert made == [0, 0, 0, 3, 3, 3]


def test_shared_plans_change_nothing():
    window = market(6)
    policies = [
        UncertainWindow(most=3, sigma=0.9),
        UncertainWindow(most=3, sigma=0.9, bind=True),
        policy_named("AHAP(3,1,0.9,expected)"),
    ]
    together = replay_pool(policies, JOB, window, forecasts=wrong(6, window))
    assert together == [replay(p, JOB, window, forecasts=wrong(6, window)) for p in policies]


@pytest.mark.parametrize("terms", [{"most": 0}, {"sigma": 0.0}, {"sigma": 1.2}])
def test_what_is_no_policy_is_refused(terms):
    with pytest.raises(SettingsError):
        UncertainWindow(**{"most": 3, "sigma": 0.9, **terms})
