"""AdaSwitch: uses predictions while they perform well and the robust rule otherwise (M10)."""

from __future__ import annotations

import numpy as np
import pytest
from make import make_job, make_record, make_window

from slackwater.optimization import Allocation, PointForecast, Progress
from slackwater.optimization.job.definition import on_demand_to_go
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.policies.committed_horizon import Ahap
from slackwater.optimization.policies.pace import step
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import replay, see
from slackwater.optimization.replay.score import perfect_forecasts
from slackwater.studies.policies.ada_switch import ROBUST, AdaSwitch, worth_after
from slackwater.studies.replays import replay_pool
from slackwater.warehouse.errors import SettingsError

SLOTS, HISTORY = 16, 60
JOB = make_job(deadline_slots=SLOTS, mu_up=0.7, mu_down=0.95, value=70)


def sticky(seed: int) -> tuple[MarketWindow, object]:
    """Return a market with a week of record before it."""
    rng = np.random.default_rng(seed)
    count = np.clip(4 + rng.integers(-2, 3, HISTORY + SLOTS).cumsum(), 0, 8).astype(float)
    price = np.clip(0.4 + 0.05 * rng.normal(size=HISTORY + SLOTS).cumsum(), 0.2, 1.1)
    window = make_window(price[HISTORY:], count[HISTORY:])
    return window, make_record(price, count, first=HISTORY)


def opposite(window: MarketWindow) -> list[PointForecast]:
    """Return forecasts that predict few instances where many are available and many where few are."""
    return [
        PointForecast(price=f.price, available=8 - np.minimum(f.available, 8))
        for f in perfect_forecasts(window, 5)
    ]


def states(policy, window, forecasts, record):
    """Return each slot's view, its allocation and the state after it."""
    seen, state, progress = see(JOB, window, forecasts, record), policy.start(JOB), Progress()
    for slot in range(SLOTS):
        view = seen.view(JOB, progress, slot)
        allocation, state = policy.decide(state, view)
        progress = step(progress, allocation, view)
        yield view, allocation, state


def test_a_threshold_never_reached_leaves_the_predictions_in_force():
    for seed in range(2):
        window, record = sticky(seed)
        forecasts = opposite(window)
        made = replay(AdaSwitch(omega=3, theta=1.0), JOB, window, forecasts=forecasts, record=record)
        plain = replay(
            policy_named("AHAP(3,1,0.9,expected)"), JOB, window, forecasts=forecasts, record=record
        )
        assert made.allocations == plain.allocations


def test_the_first_rival_is_the_robust_policy_from_the_start():
    """Before the first switch the virtual run equals a replay of the robust policy."""
    window, record = sticky(1)
    for name in ROBUST:
        policy = AdaSwitch(omega=3, theta=1.0, robust=name)
        *_, (_, _, last) = states(policy, window, opposite(window), record)
        outcome = replay(ROBUST[name], JOB, window, record=record)
        assert last.predicting
        assert last.rival.progress.cost_usd == pytest.approx(outcome.cost_usd)
        assert last.rival.progress.done == pytest.approx(outcome.progress)


def test_the_lead_decides_and_both_ways():
    """The rule changes exactly where the lead passed the threshold in the previous slot; wrong forecasts cause both changes."""
    policy, away, back = AdaSwitch(omega=3, theta=0.01), 0, 0
    for seed in range(8):
        window, record = sticky(seed)
        lead, predicting = 0.0, True
        for _view, _, state in states(policy, window, opposite(window), record):
            expected = predicting != (lead > policy.theta * JOB.workload)
            if state.rival is not None:
                assert state.predicting == expected
                away += predicting and not state.predicting
                back += state.predicting and not predicting
                lead, predicting = state.rival.lead, state.predicting
    assert away > 0
    assert back > 0


def test_it_is_hurt_less_by_hostile_forecasts_and_follows_good_ones():
    """Compares mean utilities on markets with inverted forecasts and with correct forecasts."""
    rules = [AdaSwitch(omega=3, theta=0.02), policy_named("AHAP(3,1,0.9,expected)"), policy_named("MSU-trim")]
    wrong, right = [], []
    for seed in range(8):
        window, record = sticky(100 + seed)
        for table, forecasts in ((wrong, opposite(window)), (right, perfect_forecasts(window, 5))):
            made = replay_pool(rules, JOB, window, forecasts=forecasts, record=record)
            table.append([outcome.utility_usd for outcome in made])
    hostile, true = np.mean(wrong, axis=0), np.mean(right, axis=0)
    assert hostile[0] > hostile[1]
    assert true[0] > hostile[0]


def test_shared_plans_change_nothing():
    window, record = sticky(7)
    policies = [
        AdaSwitch(omega=3, theta=0.0),
        policy_named("AHAP(3,1,0.9,expected)"),
        AdaSwitch(omega=3, theta=0.0, robust="UP"),
    ]
    together = replay_pool(policies, JOB, window, forecasts=opposite(window), record=record)
    alone = [replay(p, JOB, window, forecasts=opposite(window), record=record) for p in policies]
    assert together == alone


def test_plans_on_paper_do_not_reach_the_live_solver():
    """Only the active rule calls it, so the plan shown to a user is the plan that is followed."""
    asked = []
    plain = Ahap(omega=2, commitment=1, sigma=0.9).solve

    def solve(problem):
        asked.append(problem)
        return plain(problem)

    policy, window, record = AdaSwitch(omega=3, theta=0.0).with_solver(solve), *sticky(3)
    quiet = 0
    for view, _, state in states(policy, window, opposite(window), record):
        mine = [problem for problem in asked if problem.slot == view.slot]
        assert len(mine) <= (1 if state.predicting else 0)
        assert all(problem.done == view.progress.done for problem in mine)
        quiet += not state.predicting
    assert quiet > 0


def test_the_end_is_worth_what_on_demand_leaves():
    window, record = sticky(2)
    view = see(JOB, window, None, record).view(JOB, Progress(done=20.0, n_previous=4), SLOTS - 1)
    after = step(view.progress, Allocation(4, 0), view)
    to_go = on_demand_to_go(JOB, done=after.done, n_previous=4, slot=SLOTS, on_demand_usd=1.0, slot_hours=1.0)
    assert worth_after(view, after) == to_go.value_usd
    assert worth_after(view, Progress(done=40.0)) == JOB.completion_value(SLOTS)


@pytest.mark.parametrize("wrong", [{"omega": 0}, {"theta": -0.1}, {"robust": "MSU"}])
def test_what_is_no_policy_is_refused(wrong):
    with pytest.raises(SettingsError):
        AdaSwitch(**{"omega": 3, "theta": 0.1, **wrong})
