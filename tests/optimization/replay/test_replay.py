"""Replay: order within a slot, invalid input, continuing a job, and pools with shared plans (M2.3-M2.6)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from forms_kit import quick_first
from make import make_job, make_record, make_window

from slackwater.optimization import Allocation, Job, PointForecast, View
from slackwater.optimization.job.definition import Linear
from slackwater.optimization.market.window import MarketWindow, Quantiles
from slackwater.optimization.policies.pool import load_pool, policy_named
from slackwater.optimization.replay.run import (
    Case,
    PlanMemo,
    catch_up,
    in_force,
    replay,
    see,
    with_shared_plans,
)
from slackwater.optimization.replay.score import hindsight, perfect_forecasts
from slackwater.studies.audit import audit_outcome
from slackwater.studies.replays import replay_pool
from slackwater.warehouse.errors import JobError, MarketError, PolicyError


@dataclass
class Scripted:
    """Policy that answers slot t with ``answers[t]`` and records its views."""

    answers: list[Any]
    name: str = "Scripted"

    def __post_init__(self):
        self.views: list[View] = []

    def start(self, job: Job) -> None:
        return None

    def decide(self, state: None, view: View) -> tuple[Allocation, None]:
        self.views.append(view)
        return self.answers[view.slot], None

    def explain(self, state: None, view: View, allocation: Allocation) -> str:
        return ""


JOB = make_job(workload=10, deadline_slots=4, n_min=2, n_max=4, mu_up=0.5, mu_down=0.8, gamma=2.0)


def flat(slots: int, price: float = 0.4, count: float = 4) -> MarketWindow:
    return make_window(price, count, slots=slots)


def random_market(seed: int, slots: int, n_max: int) -> MarketWindow:
    rng = np.random.default_rng(seed)
    price = np.clip(0.5 + 0.15 * rng.normal(size=slots).cumsum(), 0.2, 1.2)
    count = np.clip(n_max // 2 + rng.integers(-3, 4, size=slots).cumsum(), 0, n_max).astype(float)
    price[rng.random(slots) < 0.05] = np.nan
    return make_window(price, count, slot_hours=0.5)


def test_order_inside_a_slot():
    policy = Scripted([Allocation(0, 2), Allocation(2, 2), Allocation(0, 3), Allocation(0, 3)])
    outcome = replay(policy, JOB, flat(4))
    # work: 0.5 x 2, then 0.5 x 4, then 0.8 x 3, then 3: 8.4 of 10 at d; 1.6 left take n = 2 at 0.8: one slot
    assert outcome.progress == pytest.approx(8.4)
    assert outcome.cost_usd == pytest.approx(2 * 0.4 + 2 * 1.0 + 2 * 0.4 + 3 * 0.4 + 3 * 0.4)
    assert [view.progress.done for view in policy.views] == pytest.approx([0, 1, 3, 5.4])
    assert [view.progress.n_previous for view in policy.views] == [0, 2, 4, 3]
    assert [view.progress.cost_usd for view in policy.views] == pytest.approx([0, 0.8, 3.6, 4.8])
    assert (outcome.finished_slot, outcome.finish_slots, outcome.on_time) == (None, 5, False)
    assert outcome.termination_cost_usd == pytest.approx(2.0)
    assert outcome.value_usd == pytest.approx(100 * (8 - 5) / 4)
    assert outcome.spot_share == pytest.approx(10 / 12)


def test_a_finished_job_stops_and_is_not_paid_further():
    outcome = replay(Scripted([Allocation(0, 4)] * 9), replace(JOB, workload=6.0), flat(9))
    assert (outcome.finished_slot, outcome.finish_slots) == (2, 2)
    assert outcome.allocations == (Allocation(0, 4), Allocation(0, 4))
    assert outcome.progress == 6.0
    assert outcome.value_usd == 100


def test_giving_up_keeps_the_sunk_cost():
    outcome = replay(Scripted([Allocation(0, 2)] * 4), replace(JOB, value=0.5), flat(4))
    assert outcome.finish_slots is None
    assert outcome.value_usd == outcome.termination_cost_usd == 0.0
    assert outcome.utility_usd == pytest.approx(-3.2)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (Allocation(1, 0), "0 or 2..4"),
        (Allocation(5, 0), "0 or 2..4"),
        (Allocation(0, 5), "spot within 0..4"),
        (Allocation(3, -1), "spot within 0..4"),
        (Allocation(-1, 3), "on-demand >= 0"),
        (Allocation(2.0, 0), "whole numbers"),  # type: ignore[arg-type]
        (Allocation(0, np.float64(2.5)), "whole numbers"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_held_is_refused(answer, what):
    with pytest.raises(PolicyError, match=what):
        replay(Scripted([answer] * 4), JOB, flat(4))


def test_spot_is_refused_to_a_job_that_cannot_resume():
    with pytest.raises(JobError, match="resume"):
        replay(Scripted([Allocation(2, 0), Allocation(2, 1)]), replace(JOB, resumable=False), flat(4))


def test_a_gap_teaches_beliefs_nothing():
    """Policies see the on-demand price and no spot in a gap; beliefs learn neither, as nobody observed them."""
    market = make_window([0.4, np.nan, 0.4, 0.4], [4, 2, np.nan, 4])
    seen = see(JOB, market, None)
    assert seen.observed == (True, False, False, True)
    for known in (seen.beliefs.price, seen.beliefs.available):
        assert np.isnan(known).tolist() == [False, True, True, False]


def test_numpy_integers_are_whole_numbers():
    answer = Allocation(np.int64(1), np.int32(2))  # type: ignore[arg-type]
    outcome = replay(Scripted([answer] * 4), JOB, flat(4))
    assert type(outcome.allocations[0].spot) is int


def test_a_short_market_is_refused():
    with pytest.raises(MarketError, match="4 slots"):
        replay(Scripted([]), JOB, flat(3))
    with pytest.raises(MarketError, match="for each of 4 slots"):
        replay(Scripted([]), JOB, flat(4), forecasts=[None])


def test_a_longer_market_is_cut_at_the_deadline():
    policy = Scripted([Allocation(0, 0)] * 9)
    replay(policy, JOB, flat(9))
    assert len(policy.views) == JOB.deadline_slots


def test_forecasts_reach_the_slot_they_speak_of():
    said = np.arange(3.0)[:, None] * np.ones(19)
    first = PointForecast(
        price=np.array([0.1, 0.2, 0.3]), available=np.array([1, 2, 3]),
        quantiles=Quantiles(price=0.1 + said / 10, count=1 + said, capacity=4),
    )  # fmt: skip
    second = PointForecast(price=np.array([0.9]), available=np.array([9]))
    policy = Scripted([Allocation(0, 0)] * 4)
    replay(policy, JOB, flat(4), forecasts=[first, None, second, None])
    given = [view.forecast for view in policy.views]
    assert given[0] is first
    assert given[1].price.tolist() == [0.2, 0.3]
    assert given[1].available.tolist() == [2, 3]
    assert given[1].quantiles.price[:, 0].tolist() == [0.2, pytest.approx(0.3)]
    assert given[1].quantiles.count[:, 0].tolist() == [2, 3]
    assert given[2] is second
    assert given[3] is None
    assert in_force(None, 2) == (None, None)


POOL = [p for p in load_pool() if not p.name.startswith("AHAP") or p.sigma in (0.5, 0.9)]


@pytest.mark.parametrize("seed", quick_first(range(3)))
def test_the_pool_equals_one_by_one(seed):
    n_max = (5, 1, 4)[seed]
    job = make_job(
        workload=0.4 * 10 * n_max, deadline_slots=14, n_max=n_max, mu_up=0.8, mu_down=0.95, value=12.0 * n_max
    )
    market = random_market(seed, 14, n_max)
    forecasts = list(perfect_forecasts(market, 3))
    forecasts[4] = None
    together = replay_pool(POOL, job, market, forecasts=forecasts)
    alone = [replay(policy, job, market, forecasts=forecasts) for policy in POOL]
    assert together == alone


def test_the_memo_asks_the_solver_once_a_program():
    asked = []

    def counting(problem):
        asked.append(problem)
        return PlanMemo()(problem)

    memo = PlanMemo(solve=counting)
    market = random_market(5, 14, 5)
    job = make_job(workload=20, deadline_slots=14, n_max=5, value=40)
    same = [with_shared_plans(policy_named("AHAP(3,1,0.9)"), memo) for _ in range(2)]
    outcomes = [replay(policy, job, market) for policy in same]
    assert outcomes[0] == outcomes[1]
    assert len(asked) == len(memo.plans) <= len(outcomes[0].allocations)


def test_the_memo_keeps_the_tables_of_one_job_on_one_market_only():
    rng = np.random.default_rng(2)
    count = np.repeat(rng.integers(0, 6, 16), 2).astype(float)
    price = rng.uniform(0.2, 0.8, 32)
    record = make_record(price, count, first=20)
    market = make_window(price[20:], count[20:])
    dearer = replace(market, on_demand_usd=2.0)
    job = make_job(workload=20, deadline_slots=12, n_max=5, value=60)
    pool = [policy_named(name) for name in ("Stochastic", "AHAP(3,1,0.9,expected)")]
    memo = PlanMemo()
    for one, window in ((job, market), (job, dearer), (replace(job, workload=15.0), dearer), (job, market)):
        alone = [replay(policy, one, window, record=record) for policy in pool]
        assert replay_pool(pool, one, window, record=record, memo=memo) == alone
    (seen,) = memo.slot_markets([Case(job=job, window=market, record=record)])
    kept = seen.tables
    assert kept
    before = dict(kept)
    assert replay_pool(pool[:1], job, market, record=record, memo=memo) == alone[:1]
    (again,) = memo.slot_markets([Case(job=job, window=market, record=record)])
    assert again.tables is kept
    assert kept == before
    told = [None] * 12
    assert memo.slot_markets([Case(job=job, window=market, forecasts=told, record=record)])[0].tables == {}, (
        "other forecasts, other beliefs"
    )
    assert memo.slot_markets([Case(job=job, window=market, forecasts=told)])[0].tables == {}


def test_catching_up_gives_the_state_of_the_run():
    market = random_market(8, 12, 6)
    job = make_job(workload=30, deadline_slots=12, n_max=6, mu_up=0.9, value=60)
    policy = policy_named("AHAP(3,2,0.7)")
    states, views = [policy.start(job)], []

    class Watched:
        name = "watched"

        def start(self, job):
            return policy.start(job)

        def decide(self, state, view):
            views.append(view)
            allocation, after = policy.decide(state, view)
            states.append(after)
            return allocation, after

        def explain(self, state, view, allocation):
            return ""

    replay(Watched(), job, market)
    assert len(views) > 4
    for slot in range(len(views)):
        assert catch_up(policy, job, views[:slot]) == states[slot]


@pytest.mark.parametrize("seed", range(4))
def test_outcomes_pass_the_audit_and_stay_below_hindsight(seed):
    """Cost, progress and utility are recomputed independently of the replay (M3.5), and the bound of M4.7 holds."""
    n_max = (3, 6, 1, 5)[seed]
    job = make_job(
        workload=(0.3, 0.5, 0.4, 0.9)[seed] * 6 * n_max,
        deadline_slots=12,
        n_max=n_max,
        throughput=Linear(alpha=1.0, beta=0.25),
        mu_up=0.6,
        mu_down=0.95,
        value=9.0 * n_max,
    )
    market = random_market(seed + 20, 12, n_max)
    best = hindsight(job, market)
    for outcome in replay_pool(POOL, job, market, forecasts=perfect_forecasts(market, 5)):
        audit_outcome(job, market, outcome)
        assert outcome.utility_usd <= best.high + 1e-6
