"""Markets without on-demand: no policy, plan or hindsight runs on-demand instances there (M1.1, M2.3, M2.6)."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from make import make_history, make_multi_job, make_window, present_of
from moving_markets import a_job, random_markets, replayed

from slackwater.optimization.job.definition import Progress
from slackwater.optimization.market.belief import MarketPaths
from slackwater.optimization.market.window import plan_price
from slackwater.optimization.moving.adapter import InOneMarket, stochastic_at_the_start
from slackwater.optimization.moving.definition import MarketsJob, in_one_market
from slackwater.optimization.moving.policies import GreedySpot, MeanField
from slackwater.optimization.policies.baselines import UniformProgress
from slackwater.optimization.policies.committed_horizon import Ahap
from slackwater.optimization.policies.pool import load_pool, policy_named
from slackwater.optimization.policies.stochastic import Stochastic
from slackwater.optimization.replay.ahead import simulate_ahead
from slackwater.optimization.replay.decision import Effort, decide, live_job
from slackwater.optimization.replay.run import Case, replay, see
from slackwater.optimization.replay.score import EndedJob, hindsight, score_job
from slackwater.optimization.window.plan import EndRule
from slackwater.studies.audit import audit_outcome
from slackwater.studies.policies import published_policies
from slackwater.studies.policies.several_markets import DeadlinePressure, Failover, OneStep
from slackwater.warehouse.history import OnDemandOrigin

NOT_SOLD = OnDemandOrigin(kind="not sold", words="test")
JOBS = [
    a_job(d=12, load=0.4),
    a_job(d=12, load=0.4, n_min=2, must_finish=True),
    a_job(d=10, load=0.9, mu=0.7),
]
POOL = [
    policy
    for policy in [*load_pool(), *published_policies()]
    if policy.name.split("(")[0] not in ("AHAP", "RHIG", "Window")
]
POLICIES = [
    *POOL, *map(policy_named, ["AHAP(3,1,0.5)", "AHAP(5,3,0.9,expected)", "AHAP(5,5,0.9,last,target)", "RHIG(3,0.9)",
    "Window(3,0.5,bind)", "UP-single", "Stochastic(24,guard)", "MSU", "OD-only"]),
    Ahap(omega=4, commitment=2, sigma=0.7, end_rule=EndRule.ON_DEMAND_TO_GO),
]  # fmt: skip
MULTI_MARKET_POLICIES = [
    MeanField(), stochastic_at_the_start(), GreedySpot(), OneStep(), Failover(), Failover(fullest=True), DeadlinePressure(),
    InOneMarket(policy=UniformProgress(), market=1),
]  # fmt: skip


def unsold(window, job):
    usd = max(2.0 * job.value / window.slot_hours, 10.0 * float(window.price.max()))
    return make_window(
        np.where(window.observed, window.price, np.nan),
        np.where(window.observed, window.available, np.nan),
        on_demand_usd=usd,
        slot_hours=window.slot_hours,
        on_demand=NOT_SOLD,
    )


def a_market(seed, job, gaps=True):
    (window, *_), (record, *_) = random_markets(seed, job.deadline_slots, job.n_max)
    price, count = window.price.copy(), window.available.astype(float)
    if gaps:
        count[seed % job.deadline_slots] = np.nan
    shown = make_window(price, count, on_demand_usd=window.on_demand_usd, slot_hours=window.slot_hours)
    return unsold(shown, job), record


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_no_policy_holds_on_demand(policy):
    for seed, job in enumerate(JOBS):
        window, record = a_market(seed, job)
        outcome = replay(policy, job, window, record=record)
        audit_outcome(job, window, outcome)
        assert all(held.on_demand == 0 for held in outcome.allocations)
        assert all(held.total == 0 or held.total >= job.n_min for held in outcome.allocations)
        assert outcome.termination_cost_usd == 0.0
        # Bounded by the cost of all spot: the substitute price is never paid.
        assert outcome.cost_usd <= job.n_max * float(window.price[window.observed].sum()) * window.slot_hours
        assert np.isfinite(outcome.utility_usd)
        assert outcome.utility_usd <= hindsight(job, window).low + 1e-6


@pytest.mark.parametrize("job", JOBS, ids=["value", "must finish", "tight"])
def test_hindsight_holds_spot_alone_and_a_job_too_large_for_it_is_given_up(job):
    window, _ = a_market(1, job)
    bracket = hindsight(job, window)
    assert bracket.high <= bracket.low
    assert all(held.on_demand == 0 for held in bracket.allocations)
    empty = replace(window, available=np.zeros_like(window.available))
    assert hindsight(job, empty).low == 0.0
    outcome = replay(Stochastic(), job, empty)
    assert (outcome.cost_usd, outcome.finish_slots, outcome.on_time) == (0.0, None, False)


def test_spot_that_is_there_all_the_time_finishes_a_job_in_time():
    for job in JOBS:
        window, record = a_market(0, job, gaps=False)
        window = replace(window, available=np.full_like(window.available, job.n_max))
        for policy in POLICIES:
            if policy.name.startswith(("OD-only", "AHANP", "ROSS", "UP-single")):
                continue
            assert replay(policy, job, window, record=record).on_time, policy.name


def test_scores_are_finite_and_nothing_is_said_relative_to_on_demand():
    for seed, job in enumerate(JOBS):
        window, record = a_market(seed, job)
        case = Case(job=job, window=window, forecasts=[None] * job.deadline_slots, record=record)
        ended = EndedJob(
            job=in_one_market(job, sold=False), start=pd.Timestamp("2026-03-01", tz="UTC"), cases=(case,)
        )
        scored = score_job(ended, [Stochastic(), UniformProgress(), policy_named("OD-only")])
        assert not scored.on_demand_known
        for row in scored.ledger:
            assert np.isfinite(
                [row.utility, row.normalised, row.gap_to_hindsight, row.on_demand_only_usd]
            ).all()
            assert row.gap_to_hindsight_usd >= -1e-6
            assert 0.0 <= row.normalised <= 1.0


def test_the_futures_of_a_running_job_hold_spot_alone():
    rng = np.random.default_rng(1)
    for job in JOBS:
        window, record = a_market(2, job, gaps=False)
        view = see(job, window, None, record).view(job, Progress(), 0)
        prices = np.full((20, job.deadline_slots - 1), float(window.price[0]))
        counts = rng.integers(0, job.n_max + 1, prices.shape)
        for policy in (Stochastic(), UniformProgress(), policy_named("MSU")):
            expected = simulate_ahead(
                present_of(policy, view),
                [MarketPaths(price=prices, count=counts)],
                rng=np.random.default_rng(0),
            )
            assert expected.cost_p90_usd <= job.n_max * job.deadline_slots * float(window.price[0])


def a_history(origin):
    counts, hour = np.random.default_rng(0).integers(0, 4, 96), pd.Timedelta("1h")
    return make_history(1.0, counts, step=hour, on_demand_usd=3.3, on_demand=origin)


@pytest.mark.parametrize("name", ["Stochastic(24)", "UP", "AHAP(3,1,0.5)", "OD-only"])
def test_a_live_decision_and_the_plan_behind_it_hold_spot_alone(name):
    history = a_history(NOT_SOLD)
    for job in JOBS:
        live = live_job(job, history.slots[-4], history, decided={})
        assert live.on_demand_only_usd is None
        made = decide(live, policy_named(name), Effort(solver_seconds=5.0, risk_paths=20, seed=1))
        assert made.allocation.on_demand == 0
        assert all(held.on_demand == 0 for held in made.planned or ())
        assert np.isfinite(
            [made.expected.cost_usd, made.expected.finish_slots, made.expected.utility_usd]
        ).all()
        assert made.expected.cost_usd <= 3.0 * job.deadline_slots
        assert "of on-demand" not in made.reason


def test_the_price_to_plan_with_is_finite_and_above_any_value():
    assert plan_price(a_history(NOT_SOLD), 500.0) == 1000.0
    assert plan_price(a_history(NOT_SOLD), 0.0) == 33.0
    assert plan_price(a_history(OnDemandOrigin(kind="unknown")), 500.0) == 3.3


# One job, with a safety net in one market only.


def some_sold(job, windows, sold):
    return [
        window if is_sold else unsold(window, job.job) for window, is_sold in zip(windows, sold, strict=True)
    ]


def moving_job(job, sold, home):
    made = make_multi_job(job, home=home)
    return MarketsJob(runs=made.runs, moving=made.moving, home=made.home, sold=sold)


@pytest.mark.parametrize("mover", MULTI_MARKET_POLICIES, ids=lambda mover: mover.name)
@pytest.mark.parametrize(
    "sold", [(False, True, False), (False, False, False)], ids=["a net in one", "no net"]
)
def test_no_mover_holds_on_demand_where_it_is_not_sold(mover, sold):
    for seed in range(3):
        job = moving_job(
            a_job(load=(0.3, 0.6, 0.5)[seed], must_finish=seed == 2), sold, home=(0, None, 1)[seed]
        )
        windows, records = random_markets(seed, 8, 3)
        windows = some_sold(job, windows, sold)
        outcome = replayed(mover, job, windows, records=records)
        for held, m in zip(outcome.allocations, outcome.places, strict=True):
            assert held.on_demand == 0 or sold[m]
        assert outcome.ended_in is None or sold[outcome.ended_in]
        assert outcome.cost_usd < 8 * 3 * 4.0
        if any(sold):
            assert outcome.on_time  # the net is a move away, and every policy keeps it in reach


def test_scores_of_a_job_that_may_move_are_relative_to_the_market_with_a_net():
    sold = (False, True, False)
    job = moving_job(a_job(), sold, home=0)
    windows, records = random_markets(5, 8, 3)
    windows = some_sold(job, windows, sold)
    start = pd.Timestamp("2026-03-01", tz="UTC")
    cases = tuple(
        Case(job=job.job, window=window, forecasts=[None] * 8, record=record)
        for window, record in zip(windows, records, strict=True)
    )
    ended = EndedJob(job=job, start=start, cases=cases, names=("a", "b", "c"))
    scored = score_job(ended, MULTI_MARKET_POLICIES[:1], with_bounds=False)
    assert scored.on_demand_known
    assert scored.ledger[0].on_demand_only_usd == pytest.approx(
        job.job.workload * windows[1].on_demand_usd, rel=0.5
    )
