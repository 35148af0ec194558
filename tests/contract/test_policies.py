"""Contract of the policies in the pool (M2.3, M4.9, the safety net, purity)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from make import make_job, make_record, make_view, make_window

from slackwater.optimization import Allocation, EndRule, Job, PointForecast, Progress
from slackwater.optimization.job.definition import Amdahl, Linear, Power, RateTable, Throughput
from slackwater.optimization.market.window import MarketWindow, Record
from slackwater.optimization.policies import POLICIES
from slackwater.optimization.policies.committed_horizon import Ahap
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.pace import always_worth_finishing, pace, step
from slackwater.optimization.policies.pool import load_pool, policy_named
from slackwater.optimization.policies.stochastic import Stochastic
from slackwater.optimization.replay.run import replay, see
from slackwater.studies.policies.ada_switch import AdaSwitch
from slackwater.studies.policies.uncertain_window import UncertainWindow
from slackwater.warehouse.errors import JobError

#: Every family and both ends of each parameter, with the plug-ins of the studies (M10); AHAP and these are sampled.
POLICIES_UNDER_TEST: list[Policy[Any]] = [
    *(policy for policy in load_pool() if policy.name.split("(")[0] != "AHAP"),
    *map(policy_named, ["AdaSwitch(2,0)", "RHIG(3,0.9)", "Window(3,0.5,bind)", "Trust(0.75)", "ROSS(0)"]),
    policy_named("UP-single"),
    policy_named("UP-single(0.3)"),
    policy_named("UP-single(guard)"),
    policy_named("Stochastic(24,guard)"),
    policy_named("Stochastic(3)"),
    *(policy_named(f"AHAP({omega},{v},{sigma})") for omega, v, sigma in
      [(1, 1, 0.3), (1, 1, 0.9), (3, 1, 0.5), (3, 2, 0.7), (3, 3, 0.9), (5, 1, 0.9), (5, 3, 0.3), (5, 5, 0.6)]),
    policy_named("AHAP(3,2,0.7,last)"),
    policy_named("AHAP(5,5,0.9,last,target)"),
    policy_named("AHAP(5,1,0.9,expected)"),
    policy_named("AHAP(3,3,0.9,last,expected)"),
    Ahap(omega=4, commitment=2, sigma=0.7, end_rule=EndRule.TARGET),
    Ahap(omega=4, commitment=2, sigma=0.7, end_rule=EndRule.ON_DEMAND_TO_GO),
]  # fmt: skip
every_policy = pytest.mark.parametrize("policy", POLICIES_UNDER_TEST, ids=lambda p: repr(p)[:70])

THROUGHPUTS: list[Throughput] = [
    Linear(alpha=1.0, beta=0.25),
    Amdahl(parallel=0.95),
    Power(exponent=0.9, scale=2.0),
    RateTable(rates=(1.0, 2.1, 2.9, 3.9, 3.5, 4.4, 5.0, 4.9)),
]


def random_job(rng: np.random.Generator, *, load: float | None = None) -> Job:
    """Return a job of up to 14 slots; ``load``: its work relative to the fastest on-demand progress by d."""
    n_max = int(rng.integers(1, 9))
    slots = int(rng.choice([1, 2, 3, 6, 10, 14]))
    job = make_job(
        name="random",
        workload=1.0,
        deadline_slots=slots,
        n_min=int(rng.integers(1, n_max + 1)),
        n_max=n_max,
        throughput=THROUGHPUTS[int(rng.integers(len(THROUGHPUTS)))],
        mu_up=float(rng.choice([1.0, 0.9, 0.6, 0.0, -0.7, -2.5])),
        mu_down=float(rng.choice([1.0, 0.95, 0.5, -0.4])),
        value=float(rng.uniform(0.0, 40.0)),
        gamma=float(rng.choice([1.2, 1.5, 2.0])),
    )
    most = pace(job, 0.5).reach[slots][0]
    share = float(rng.uniform(0.05, 1.3)) if load is None else load
    return replace(job, workload=max(most, 0.1) * share)


def random_market(rng: np.random.Generator, slots: int, n_max: int) -> MarketWindow:
    """Return sticky counts and prices that exceed on-demand now and then, with gaps and with constant or empty stretches."""
    kind = int(rng.integers(5))
    price = np.clip(0.6 + 0.15 * rng.normal(size=slots).cumsum(), 0.1, 1.5)
    count = np.clip(rng.integers(0, n_max + 1) + rng.integers(-2, 3, size=slots).cumsum(), 0, n_max).astype(
        float
    )
    if kind == 0:
        count[:] = 0
    elif kind == 1:
        price[:] = 0.3
    elif kind == 2:
        price[:] = 1.1
    elif kind == 3:
        count = rng.integers(0, 2 * n_max + 1, size=slots).astype(float)
    price[rng.random(slots) < 0.1] = np.nan
    return make_window(price, count, slot_hours=0.5)


def random_forecasts(rng: np.random.Generator, slots: int, n_max: int) -> list[PointForecast | None]:
    """Return forecasts unlike the market, of different lengths, some missing."""
    forecasts: list[PointForecast | None] = []
    for _ in range(slots):
        horizon = int(rng.integers(0, 6))
        issued = PointForecast(
            price=rng.uniform(0.1, 1.4, horizon), available=rng.integers(0, n_max + 3, horizon)
        )
        forecasts.append(issued if rng.random() < 0.8 else None)
    return forecasts


def random_record(rng: np.random.Generator, market: MarketWindow, n_max: int) -> Record:
    """Return the market's record before the job, up to about forty slots or none, and up to two peers."""
    before, peers = int(rng.integers(0, 40)), int(rng.integers(0, 3))
    counts = rng.integers(0, n_max + 2, (1 + peers, before + len(market))).astype(float)
    price = rng.uniform(0.1, 1.3, before + len(market))
    counts[0, before:], price[before:] = market.available, market.price
    counts[rng.random(counts.shape) < 0.1] = np.nan
    price[before:][~market.observed] = counts[0, before:][~market.observed] = np.nan
    return make_record(price, counts[0], first=before, slot_hours=0.5, peers=counts[1:])


def scrambled(rng: np.random.Generator, record: Record, last: int) -> Record:
    """Return the record with everything after the job's slot ``last`` replaced."""
    known = record.first + last + 1
    later = len(record.price) - known
    price, available, peers = record.price.copy(), record.available.copy(), record.peers.copy()
    price[known:] = rng.uniform(0.05, 2.0, later)
    available[known:] = rng.integers(0, 12, later)
    peers[:, known:] = rng.integers(0, 12, (len(peers), later))
    return replace(record, price=price, available=available, peers=peers)


def decisions(
    policy: Policy[Any], job: Job, market: MarketWindow, forecasts: Any, record: Record | None = None
) -> list[Allocation]:
    return list(replay(policy, job, market, forecasts=forecasts, record=record).allocations)


@dataclass(frozen=True)
class Case:
    """The common inputs on which every policy is tested."""

    job: Job
    market: MarketWindow
    forecasts: list[PointForecast | None] | None
    record: Record | None


@cache
def case(seed: int, *, load: bool) -> Case:
    """Return the case of a seed, drawn once; with ``load`` on-demand alone can do the job, at times only just."""
    rng = np.random.default_rng(seed)
    job = random_job(rng, load=float(rng.choice([0.2, 0.5, 0.8, 0.95, 1.0])) if load else None)
    market = random_market(rng, job.deadline_slots, job.n_max)
    for array in (market.price, market.available, market.observed):
        array.setflags(write=False)
    forecasts = random_forecasts(rng, job.deadline_slots, job.n_max) if seed % 3 else None
    record = random_record(rng, market, job.n_max) if seed % 2 else None
    return Case(job=job, market=market, forecasts=forecasts, record=record)


#: Policies that compute value tables in every slot: tested on fewer cases.
TABLED = ("Stochastic", "AdaSwitch", "Window")


@every_policy
def test_legal_on_anything(policy):
    """The replay itself rejects violations of M2.3; no market, forecast or workload may cause any."""
    for seed in range(10 if policy.name.startswith(TABLED) else 25):
        given = case(seed, load=False)
        market = given.market
        outcome = replay(policy, given.job, market, forecasts=given.forecasts, record=given.record)
        for slot, held in enumerate(outcome.allocations):
            if market.price[slot] >= market.on_demand_usd or not market.observed[slot]:
                assert held.spot == 0, "spot as dear as on-demand, or not observed, is never bought"


def promised(policy: Policy[Any], job: Job) -> Job:
    """Return the job with the deadline promise of ``policy``.

    Where the price may argue against finishing, the job gets a hard deadline (M4).
    """
    priced = isinstance(policy, Stochastic)
    return replace(job, must_finish=priced and not always_worth_finishing(job, 1.0, 0.5))


@every_policy
def test_the_deadline_is_met_whenever_on_demand_alone_could(policy):
    """The promise of the safety net, at loads up to exactly the capacity of on-demand (M4.2, M4.3; M4.4, M4.5 ours)."""
    for seed in range(40):
        given = case(1000 + seed, load=True)
        job = given.job
        if pace(job, 0.5).reach[job.deadline_slots][0] < job.workload:
            continue
        outcome = replay(
            policy, promised(policy, job), given.market, forecasts=given.forecasts, record=given.record
        )
        assert outcome.on_time, f"seed {seed}: {outcome.progress} of {job.workload}"


@pytest.mark.slow
@every_policy
def test_the_deadline_is_met_on_a_thousand_markets(policy):
    """The long form: more jobs, loads up to exactly the capacity of on-demand."""
    for seed in range(1000):
        rng = np.random.default_rng(50_000 + seed)
        job = random_job(rng, load=float(rng.choice([0.3, 0.7, 0.95, 1.0])))
        if pace(job, 0.5).reach[job.deadline_slots][0] < job.workload:
            continue
        market = random_market(rng, job.deadline_slots, job.n_max)
        forecasts = random_forecasts(rng, job.deadline_slots, job.n_max)
        record = random_record(rng, market, job.n_max) if seed % 2 else None
        outcome = replay(policy, promised(policy, job), market, forecasts=forecasts, record=record)
        assert outcome.on_time, f"seed {seed}: {outcome.progress} of {job.workload}"


@every_policy
def test_the_same_state_and_view_give_the_same_answer(policy):
    rng = np.random.default_rng(11)
    job = random_job(rng, load=0.6)
    job = replace(job, deadline_slots=8)
    market = random_market(np.random.default_rng(5), 8, job.n_max)
    seen = see(job, market, random_forecasts(rng, 8, job.n_max))
    state, progress = policy.start(job), Progress()
    for slot in range(8):
        view = seen.view(job, progress, slot)
        before = repr(state)
        first, second = policy.decide(state, view), policy.decide(state, view)
        assert first == second
        assert repr(state) == before, "a state is never changed in place"
        assert hash(state) == hash(state), "a state is a plain immutable value"
        progress, state = step(progress, first[0], view), first[1]


@every_policy
def test_nothing_later_is_seen(policy):
    """Scrambling slots, forecasts and the record after t changes no decision up to t (M4.9)."""
    for seed in range(5):
        rng = np.random.default_rng(2000 + seed)
        job = replace(random_job(rng, load=0.7), deadline_slots=10)
        market = random_market(rng, 10, job.n_max)
        forecasts = random_forecasts(rng, 10, job.n_max)
        record = random_record(rng, market, job.n_max) if seed % 2 else None
        original = decisions(policy, job, market, forecasts, record)
        for last in (0, 3, 7):
            price, count = market.price.copy(), market.available.copy()
            price[last + 1 :] = rng.uniform(0.05, 2.0, 9 - last)
            count[last + 1 :] = rng.integers(0, job.n_max + 4, 9 - last)
            other = replace(market, price=price, available=count, observed=np.full(10, True))
            other = replace(
                other, observed=np.concatenate([market.observed[: last + 1], other.observed[last + 1 :]])
            )
            later = random_forecasts(rng, 10, job.n_max)
            after = scrambled(rng, record, last) if record is not None else None
            changed = decisions(policy, job, other, [*forecasts[: last + 1], *later[last + 1 :]], after)
            assert changed[: last + 1] == original[: last + 1]


@every_policy
def test_a_finished_job_holds_nothing(policy):
    job = make_job(workload=10, deadline_slots=6, n_min=2, n_max=4, value=50)
    view = make_view(job, done=10.0, n_previous=3, slot=3, price=0.3)
    state = policy.start(job)
    allocation, _ = policy.decide(state, view)
    assert allocation == Allocation(0, 0)
    assert "finished" in policy.explain(state, view, allocation)


@every_policy
def test_a_gap_is_bridged_by_the_safety_net_only(policy):
    """No spot in an unobserved slot, and on-demand only if waiting would put d out of reach (ours)."""
    if policy.name == "OD-only":
        pytest.skip("holds its constant number whatever is observed")
    job = make_job(workload=16, deadline_slots=8, n_max=4, mu_up=0.5, value=90)
    slot = (
        1 if policy.name == "UP-single(guard)" else 2
    )  # the guard is a net that needs a slot and a restart more
    view = make_view(job, n_previous=2, slot=slot, price=1.0, available=0, observed=False)
    state = policy.start(job)
    assert policy.decide(state, view)[0] == Allocation(0, 0)
    assert "not observed" in policy.explain(state, view, Allocation(0, 0))
    pressed = replace(view, slot=4, progress=Progress(done=1.5, n_previous=2))
    held, _ = policy.decide(state, pressed)
    assert held.spot == 0
    assert held.on_demand > 0


@every_policy
def test_hopeless_jobs_are_still_worked_on(policy):
    """More work than possible by gamma d: no crash, and the best effort of M2.7 within the promise."""
    job = make_job(workload=1e6, deadline_slots=5, n_max=4, value=1e9)
    market = make_window([0.4, np.nan, 0.4, 1.2, 0.4], [2, 2, 0, 4, 4])
    outcome = replay(policy, job, market)
    assert outcome.finish_slots is None
    assert outcome.value_usd == 0.0
    if not isinstance(
        policy, Ahap | Stochastic | AdaSwitch | UncertainWindow
    ):  # they value the promise, which is nothing
        assert [held.total for held in outcome.allocations] == [4] * 5


@every_policy
def test_a_job_that_cannot_resume_gets_no_spot(policy):
    job = make_job(workload=8, deadline_slots=4, n_max=4, value=9, resumable=False)
    market = make_window(0.4, 4, slots=4)
    if policy.name == "OD-only":
        assert replay(policy, job, market).spot_share == 0.0
        return
    with pytest.raises(JobError, match="checkpoint"):
        replay(policy, job, market)


@every_policy
def test_reasons_carry_the_slots_numbers(policy):
    """One line, short enough to read, with a number in it, for every slot of a varied run."""
    for seed in (3, 4):
        rng = np.random.default_rng(seed)
        job = replace(random_job(rng, load=0.7), deadline_slots=10)
        seen = see(job, random_market(rng, 10, job.n_max), None)
        state, progress = policy.start(job), Progress()
        for slot in range(10):
            view = seen.view(job, progress, slot)
            allocation, after = policy.decide(state, view)
            reason = policy.explain(state, view, allocation)
            assert "\n" not in reason
            assert 10 < len(reason) < 240
            assert any(sign.isdigit() for sign in reason) or "finished" in reason
            progress, state = step(progress, allocation, view), after


def test_every_family_is_under_test():
    names = {policy.name.split("(")[0] for policy in POLICIES_UNDER_TEST}
    assert names >= set(POLICIES)
