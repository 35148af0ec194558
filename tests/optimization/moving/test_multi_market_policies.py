"""Multi-market policies: exact program, hindsight, deadlines, information limits and audit (M11)."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from make import make_multi_job, make_window
from moving_audit import audit_moved
from moving_markets import ON_DEMAND, a_job, case_of, grounds, made, random_markets, replayed
from moving_twin import ExactProgram
from moving_walk import walk

from slackwater.optimization.job.definition import Allocation, InstanceTimes, Linear, Progress, is_finished
from slackwater.optimization.job.markets import Moving, even_moving
from slackwater.optimization.market.belief import Belief, CountChain, PriceChain
from slackwater.optimization.moving.adapter import InOneMarket, stochastic_at_the_start
from slackwater.optimization.moving.definition import IDLE, NOTHING, MarketsJob, Placement, step
from slackwater.optimization.moving.hindsight import hindsight_over_markets
from slackwater.optimization.moving.policies import GreedySpot, MeanField
from slackwater.optimization.moving.sight import Grounds
from slackwater.optimization.moving.world_tables import make_world_tables
from slackwater.optimization.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from slackwater.optimization.policies.contract import Running
from slackwater.optimization.policies.pace import keeps_deadline
from slackwater.optimization.policies.stochastic import Stochastic
from slackwater.optimization.replay.score import hindsight
from slackwater.studies.policies.several_markets import DeadlinePressure, Failover, OneStep
from slackwater.warehouse.errors import AuditError, JobError, MarketError, PolicyError

MULTI_MARKET_POLICIES = [
    MeanField(), OneStep(), stochastic_at_the_start(), Failover(), Failover(fullest=True), GreedySpot(), DeadlinePressure(),
    InOneMarket(policy=UniformProgress(), market=1),
]  # fmt: skip


@pytest.mark.parametrize("mover", MULTI_MARKET_POLICIES, ids=lambda mover: mover.name)
@pytest.mark.parametrize("home", [None, 0])
def test_every_mover_is_on_time_and_never_better_than_the_bound(mover, home):
    for seed in range(4):
        job = make_multi_job(a_job(load=(0.3, 0.7)[seed % 2]), home=home)
        windows, records = random_markets(seed, 8, 3)
        outcome = replayed(mover, job, windows, records=records)
        assert outcome.on_time


@pytest.mark.parametrize(
    "policy", [UniformProgress(), MaximalSpot(trim=True), OnDemandOnly()], ids=lambda p: p.name
)
def test_one_market_is_the_replay_of_one_market(policy):
    job = a_job()
    windows, records = random_markets(3, 8, 3, markets=1)
    one_market = make_multi_job(job, 1, home=0)
    alone = replayed(InOneMarket(policy=policy, market=0), one_market, windows, records=records)
    assert replace(alone, policy=policy.name) == replayed(policy, one_market, windows, records=records)
    over = hindsight_over_markets(make_multi_job(job, 1, home=0), windows)
    assert over.utility_usd == pytest.approx(hindsight(job, windows[0]).low, abs=1e-6)


@pytest.mark.parametrize("home", [None, 0])
def test_the_mean_field_on_one_market_is_the_plan_of_one_market(home):
    for seed, load, stay in [(19, 0.5, 0.8), (13, 0.5, 0.9), (0, 0.3, 0.8), (2, 0.7, 0.8)]:
        job = make_multi_job(a_job(load=load, d=12, n_max=6), 1, home=home)
        windows, records = random_markets(seed, 12, 6, markets=1, stay=stay)
        alone, moved = (
            replayed(policy, job, windows, records=records) for policy in (Stochastic(), MeanField())
        )
        assert replace(moved, policy=alone.policy) == alone


@pytest.mark.parametrize(("price", "left", "moves"), [(2.6, 1.0, False), (0.3, 9.0, True)])
def test_on_demand_is_left_for_spot_of_another_market_only_where_the_rest_pays_the_restart(
    price, left, moves
):
    times = InstanceTimes(boot=120.0, restart=1500.0, checkpoint=0.0)
    job = make_multi_job(
        replace(a_job(d=12, n_max=3, load=0.5), times=times, must_finish=True), 2, taken=0.2, usd=0.0, home=0
    )
    counts = np.zeros((2, 72))
    counts[1] = 3.0
    windows, records = made(np.full((2, 72), price), counts, 60)
    progress = Progress(done=job.job.workload - left, n_previous=3, place=0)
    view = grounds(job, windows, records).view(progress, 4)
    held = Running(held=Allocation(3, 0), pending_hours=0.0, saved=progress.done, gap_hours=1.0, guarded=True)
    wish, _ = MeanField().decide(None, view.in_world(held, 0))
    assert wish.market == int(moves)
    assert (wish.allocation.spot > 0) == moves


@pytest.mark.parametrize("mover", [Failover(), Failover(fullest=True)], ids=lambda mover: mover.name)
@pytest.mark.parametrize("mu", [0.9, 0.6, 0.0])
def test_failover_over_one_market_is_uniform_progress_but_for_its_net(mover, mu):
    up, compared, on_demand = UniformProgress(), 0, 0
    for seed in range(60):
        job = make_multi_job(
            a_job(d=12, load=(0.3, 0.5, 0.7)[seed % 3], n_max=(1, 3)[seed % 2], mu=mu), 1, home=0
        )
        windows, _ = random_markets(seed, 12, 3, markets=1, stay=0.6)
        ground, progress, held = grounds(job, windows), job.begin(), 0
        for slot in range(12):
            if is_finished(progress.done, job.job.workload):
                break
            view = ground.view(progress, slot)
            wish, after = mover.decide(held, view)
            if keeps_deadline(view.views[0], up._wish(held, view.views[0]).total):
                assert (wish.allocation, after) == up.decide(held, view.views[0])
                compared += 1
                on_demand += wish.allocation.on_demand > 0
            progress, held = step(view, wish), after
    assert compared > 100
    assert on_demand > 30


@pytest.mark.parametrize("mover", [Failover(), Failover(fullest=True)], ids=lambda mover: mover.name)
def test_failover_leaves_on_demand_for_spot_of_some_market_and_never_for_nothing(mover):
    d, before = 16, 40
    counts = np.zeros((3, before + d))
    counts[0, before : before + 2] = 3.0  # ahead of uniform progress, then no spot in any market
    counts[1, before + 9 :] = 3.0
    windows, records = made(np.ones((3, before + d)), counts, before)
    job = make_multi_job(a_job(d=d, load=0.5), home=0)
    outcome = replayed(mover, job, windows, records=records)
    first = next(t for t, held in enumerate(outcome.allocations) if held.on_demand)
    # Ahead again after its first on-demand slot, it keeps its instances in every slot without spot and then
    # moves to the spot.
    assert all(outcome.allocations[t].on_demand for t in range(first, 9))
    assert (outcome.places[9], outcome.allocations[9].on_demand) == (1, 0)


@pytest.mark.parametrize("mover", [Failover(), Failover(fullest=True)], ids=lambda mover: mover.name)
def test_failover_that_no_size_brings_back_in_one_slot_runs_at_once(mover):
    d, before = 10, 40
    counts = np.zeros((3, before + d))
    counts[0, before] = 3.0
    windows, records = made(np.ones((3, before + d)), counts, before)
    job = make_multi_job(a_job(d=d, load=0.7), home=0)
    # Three on spot, then one slot ahead of uniform progress without any: 2.7 of 4.2 done, and no size does 3.6 more.
    outcome = replayed(mover, job, windows, records=records)
    assert outcome.allocations[:3] == (Allocation(0, 3), NOTHING, Allocation(3, 0))


def test_more_markets_are_never_worse_in_hindsight():
    job = a_job(d=7)
    windows, _ = random_markets(1, 7, 3)
    worth = [
        hindsight_over_markets(make_multi_job(job, k, home=0), windows[:k]).utility_usd for k in (1, 2, 3)
    ]
    assert worth[0] <= worth[1] + 1e-9
    assert worth[1] <= worth[2] + 1e-9


# ---
# The exact program.


def known_belief(chain, on_demand, price, now):
    """Return a correct belief: counts 0..S-1 follow ``chain``, the price is constant."""
    size = len(chain)
    share = np.zeros(size)
    share[now] = 1.0
    return Belief(
        slot=0, slot_hours=1.0, on_demand_usd=on_demand,
        counts=CountChain(count=np.arange(size), transition=chain),
        prices=PriceChain(level_usd=np.array([price]), transition=np.ones((1, 1)), dear=False),
        count_now=share, price_now=np.ones(1), count_steps=np.empty((0, size, size)), price_steps=np.empty((0, 1, 1)),
        count_distribution=np.empty((0, size)), price_quantiles=np.empty((0, 19)),
    )  # fmt: skip


def by_tables(job, chains, prices):
    """Return the mean-field policy's choice in any state, from tables computed in that slot with correct beliefs."""
    memo = {}

    def choose(slot, done, place, before, state):
        key = (slot, tuple(available for _, available in state))
        if key not in memo:
            beliefs = [
                replace(known_belief(chain, ON_DEMAND[m], prices[m], state[m][1]), slot=slot)
                for m, chain in enumerate(chains)
            ]
            memo[key] = make_world_tables(job, beliefs, keep=1, guarded=False, gap=1.0)
        windows = [
            make_window(price, available, on_demand_usd=ON_DEMAND[m], slots=20)
            for m, (price, available) in enumerate(state)
        ]
        at = job.nowhere if place is None else place
        view = grounds(job, windows).view(Progress(done=done, n_previous=before, place=at), slot)
        held = Running(held=NOTHING, pending_hours=0.0, saved=done, gap_hours=1.0, guarded=False)
        wish = memo[key].options(view.in_world(held, at)).best()[0]
        return wish.market, wish.allocation.total

    return choose


def joint(chains, prices):
    def distribution(slot, state):
        rows = [chain[available] for chain, (_, available) in zip(chains, state, strict=True)]
        for there in itertools.product(*(range(len(row)) for row in rows)):
            share = float(np.prod([row[i] for row, i in zip(rows, there, strict=True)]))
            yield share, tuple((price, i) for price, i in zip(prices, there, strict=True))

    return lambda slot, state: tuple(distribution(slot, state))


def up_or_down(rng):
    return [
        np.array([[1 - (u := rng.uniform(0.1, 0.4)), u], [(w := rng.uniform(0.05, 0.4)), 1 - w]])
        for _ in range(2)
    ]


#: Cost of a move in each slot, the last for all later slots: cheap where it pays to wait for it.
BY_SLOT = (0.6, 0.05, 0.6, 0.6, 0.0, 1.5)


@pytest.mark.parametrize(
    "usd", [pytest.param(0.1, id="even", marks=pytest.mark.slow), pytest.param(BY_SLOT, id="by_slot")]
)
def test_the_mean_field_is_as_good_as_the_exact_program_on_markets_that_are_up_or_down(usd):
    """Where instances start, restart and move at once and the work fills slots, the world is the slot model."""
    rng = np.random.default_rng(4)
    gap, room = 0.0, 0.0
    for home in (None, 0, 1, 0):
        one = replace(a_job(d=7, n_max=1, load=4 / 7, mu=1.0), mu_down=1.0)
        job = make_multi_job(one, 2, taken=0.0, usd=usd, home=home)
        chains, prices = up_or_down(rng), rng.uniform(0.6, 1.4, 2)
        exact = ExactProgram(job, ON_DEMAND, 1.0, joint(chains, prices))
        start = tuple((float(price), int(rng.integers(2))) for price in prices)
        best = exact.value(0, 0.0, home, 0, start)
        follow = exact.worth_of(by_tables(job, chains, prices), start, home)
        dear = exact.worth_of(lambda *_: (1, 1), start, home)
        assert follow <= best + 1e-6
        gap, room = gap + best - follow, room + best - dear
    assert gap <= 0.01 * room


@pytest.mark.parametrize("usd", [0.5, BY_SLOT], ids=["even", "by_slot"])
def test_the_exact_program_on_known_paths_is_hindsight(usd):
    job = make_multi_job(a_job(d=5, n_max=2, load=0.5), 2, home=1, usd=usd)
    windows, _ = random_markets(8, 5, 2, markets=2)

    def shown(slot):
        return tuple((float(w.price[slot]), int(w.available[slot])) for w in windows)

    exact = ExactProgram(job, ON_DEMAND, 1.0, lambda slot, state: ((1.0, shown(min(slot + 1, 4))),))
    assert exact.value(0, 0.0, 1, 0, shown(0)) == pytest.approx(
        hindsight_over_markets(job, windows).utility_usd, abs=1e-6
    )


# ---
# Information that a multi-market policy may use, and faults that it must survive.


@pytest.mark.parametrize("mover", MULTI_MARKET_POLICIES, ids=lambda mover: mover.name)
def test_nothing_of_later_slots_is_seen(mover):
    job, before, cut = make_multi_job(a_job(), home=0), 60, 4
    windows, records = random_markets(11, 8, 3)
    prices = np.array([record.price for record in records])
    counts = np.array([record.available for record in records])
    rng = np.random.default_rng(0)
    counts[:, before + cut + 1 :] = rng.permutation(counts[:, before + cut + 1 :], axis=1)
    counts[:, before + cut + 1 :] = 3 - counts[:, before + cut + 1 :]
    prices[:, before + cut + 1 :] *= 1.7
    other, records_then = made(prices, counts, before)
    one = replayed(mover, job, windows, records=records)
    two = replayed(mover, job, other, records=records_then)
    assert one.places[: cut + 1] == two.places[: cut + 1]
    assert one.allocations[: cut + 1] == two.allocations[: cut + 1]


@pytest.mark.parametrize("mover", MULTI_MARKET_POLICIES, ids=lambda mover: mover.name)
def test_a_home_without_spot_prices_above_on_demand_and_a_market_that_vanishes(mover):
    d, before = 8, 40
    job = make_multi_job(a_job(d=d), home=0)
    counts = np.full((3, before + d), 3.0)
    prices = np.full((3, before + d), 1.0)
    counts[0] = 0.0
    prices[1] = 5.0
    counts[2, before + 3 :] = np.nan
    prices[2, before + 3 :] = np.nan
    windows, records = made(prices, counts, before)
    outcome = replayed(mover, job, windows, records=records)
    assert outcome.on_time
    assert not any(
        a.spot for a, place in zip(outcome.allocations, outcome.places, strict=True) if place in (0, 1)
    )


def test_the_audit_trips_on_a_move_that_was_not_paid():
    job = make_multi_job(a_job(d=6, n_max=2), home=0)
    windows, _ = random_markets(2, 6, 2)
    held = [
        Placement(0, Allocation(1, 0)),
        Placement(1, Allocation(1, 0)),
        *[Placement(1, Allocation(2, 0))] * 3,
    ]
    outcome = walk(job, windows, held)
    audit_moved(job, windows, outcome)
    assert (outcome.moves, outcome.moving_usd) == (1, 0.5)
    for tampered in (
        {"places": (1, *outcome.places[1:])},
        {"cost_usd": outcome.cost_usd - 0.5},
        {"moves": 0},
        {"utility_usd": outcome.utility_usd + 0.5},
        {"allocations": (Allocation(2, 0), *outcome.allocations[1:])},
    ):
        with pytest.raises(AuditError):
            audit_moved(job, windows, replace(outcome, **tampered))


def test_an_idle_job_keeps_its_place_and_pays_for_leaving_it():
    job = make_multi_job(a_job(d=6, n_max=2), home=0)
    windows, _ = random_markets(2, 6, 2)
    outcome = walk(
        job, windows, [IDLE, IDLE, Placement(1, Allocation(2, 0)), *[Placement(1, Allocation(2, 0))] * 3]
    )
    assert outcome.moves == 1
    assert outcome.cost_usd == pytest.approx(0.5 + len(outcome.allocations[2:]) * 2 * ON_DEMAND[1])


def test_a_move_longer_than_a_slot_makes_no_progress():
    job = make_multi_job(a_job(d=6, n_max=2), home=0, taken=3.0)
    windows, _ = random_markets(2, 6, 2)
    view = grounds(job, windows).view(job.begin(), 0)
    assert view.work(1, 2) == 0.0
    assert view.work(0, 2) == pytest.approx(1.8)


def test_bad_statements_are_refused():
    job = a_job()
    with pytest.raises(JobError, match="workload"):
        MarketsJob(runs=(job, replace(job, workload=5.0)), moving=even_moving(2, taken=0, usd=0))
    with pytest.raises(JobError, match="home"):
        make_multi_job(job, 2, home=2)
    with pytest.raises(JobError, match="row and a column"):
        MarketsJob(runs=(job, job), moving=even_moving(3, taken=0, usd=0))
    with pytest.raises(JobError):
        Moving(taken=-1.0, usd=np.zeros((2, 2)))
    with pytest.raises(JobError):
        Moving(taken=0.0, usd=np.full((2, 2), np.nan))
    windows, _ = random_markets(2, 8, 3)
    with pytest.raises(MarketError):
        Grounds(make_multi_job(job, 2), case_of(make_multi_job(job, 3), windows).cases)
    with pytest.raises(MarketError):
        hindsight_over_markets(make_multi_job(replace(job, deadline_slots=20)), windows)
    for held in (
        Placement(0, Allocation(0, 99)),
        Placement(7, Allocation(1, 0)),
        Placement(0, Allocation(9, 0)),
        Placement(None, Allocation(1, 0)),
    ):
        with pytest.raises(PolicyError):
            walk(make_multi_job(job), windows, [held])


def test_costs_of_moves_may_differ_by_pair():
    usd = np.array([[0.0, 9.0, 0.1], [9.0, 0.0, 9.0], [0.1, 9.0, 0.0]])
    job = MarketsJob(runs=(a_job(),) * 3, moving=Moving(taken=0.2, usd=usd), home=0)
    counts = np.full((3, 48), 0.0)
    counts[1:] = 3.0
    windows, records = made(np.full((3, 48), 1.0), counts, 40)
    outcome = replayed(MeanField(), job, windows, records=records)
    assert set(outcome.places) <= {2, None}
    assert outcome.moving_usd == pytest.approx(0.1)


def test_throughput_may_differ_by_market():
    slow, fast = a_job(), replace(a_job(), throughput=Linear(alpha=2.0))
    job = MarketsJob(runs=(slow, fast), moving=even_moving(2, taken=0.3, usd=0.5), home=0)
    windows, records = made(np.full((2, 48), 1.0), np.full((2, 48), 3.0), 40)
    outcome = replayed(MeanField(), job, windows, records=records)
    assert 1 in outcome.places
    assert outcome.utility_usd == pytest.approx(hindsight_over_markets(job, windows).utility_usd, rel=0.02)
