"""Safety net of table-based multi-market policies: it applies where finishing pays its on-demand cost (M4, M11.6)."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import make_multi_job, make_window
from moving_markets import ON_DEMAND, a_job, grounds, made, random_markets, replayed
from moving_twin import ExactProgram

from slackwater.optimization import Allocation, Progress
from slackwater.optimization.moving.adapter import InOneMarket, stochastic_at_the_start
from slackwater.optimization.moving.definition import IDLE, Placement, net, priced_net
from slackwater.optimization.moving.policies import GreedySpot, MeanField
from slackwater.optimization.policies.baselines import UniformProgress
from slackwater.studies.policies.several_markets import DeadlinePressure, Failover, OneStep

PRICED = [MeanField(), OneStep(), stochastic_at_the_start()]
#: Cost of the work on demand in the most expensive market.
DEAREST = 3.2


def cheap_job(worth=0.45, must_finish=False, **other):
    job = a_job(**other)
    return replace(job, value=worth * job.workload * DEAREST, must_finish=must_finish)


@pytest.mark.parametrize("home", [None, 0])
@pytest.mark.parametrize("mover", PRICED, ids=lambda mover: mover.name)
def test_a_job_is_not_finished_at_a_loss_where_spot_is_scarce(mover, home):
    windows, records = made(np.full((3, 68), 1.0), np.zeros((3, 68)), 60)
    job = make_multi_job(cheap_job(), home=home)
    outcome = replayed(mover, job, windows, records=records)
    assert outcome.utility_usd == 0.0
    must = make_multi_job(cheap_job(must_finish=True), home=home)
    assert replayed(mover, must, windows, records=records).on_time


@pytest.mark.parametrize(
    "mover",
    [GreedySpot(), Failover(), DeadlinePressure(), InOneMarket(policy=UniformProgress(), market=1)],
    ids=lambda mover: mover.name,
)
def test_rules_of_others_keep_to_their_papers(mover):
    windows, records = made(np.full((3, 68), 1.0), np.zeros((3, 68)), 60)
    outcome = replayed(mover, make_multi_job(cheap_job(), home=0), windows, records=records)
    assert outcome.on_time
    assert outcome.utility_usd < 0.0


@pytest.mark.parametrize("mover", PRICED, ids=lambda mover: mover.name)
def test_what_must_finish_is_on_time_whatever_it_is_worth(mover):
    for seed in range(3):
        windows, records = random_markets(seed, 8, 3)
        job = make_multi_job(cheap_job(must_finish=True, load=(0.4, 0.8, 1.0)[seed] - 0.1), home=0)
        assert replayed(mover, job, windows, records=records).on_time


@st.composite
def games(draw: st.DrawFn):
    """Draw (job, chains, prices): a job valued at 0.2 to 1.5 times its on-demand cost, in two markets that are up or down."""
    d, worth = draw(st.integers(2, 5)), draw(st.floats(0.2, 1.5))
    job = make_multi_job(
        cheap_job(
            worth,
            d=d,
            n_max=1,
            load=draw(st.sampled_from([0.4, 0.7, 0.9])),
            mu=draw(st.sampled_from([1.0, 0.9])),
        ),
        2,
        taken=draw(st.sampled_from([0.0, 0.3])),
        usd=draw(st.sampled_from([0.0, 0.2])),
        home=draw(st.sampled_from([None, 0])),
    )
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    return job, [rng.dirichlet(np.full(2, 0.7), 2) for _ in range(2)], rng.uniform(0.3, 1.6, 2)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(games())
def test_expected_utility_is_never_less_than_with_a_net_that_always_stands(case):
    job, chains, prices = case

    def distribution(slot, state):
        rows = [chain[available] for chain, (_, available) in zip(chains, state, strict=True)]
        return tuple(
            (float(rows[0][i] * rows[1][k]), ((prices[0], i), (prices[1], k)))
            for i in range(2)
            for k in range(2)
        )

    program = ExactProgram(job, ON_DEMAND, 1.0, distribution)

    def under(promise):
        def choose(slot, done, place, before, state):
            windows = [
                make_window(usd, there, on_demand_usd=ON_DEMAND[m], slots=9)
                for m, (usd, there) in enumerate(state)
            ]
            at = job.nowhere if place is None else place
            view = grounds(job, windows).view(Progress(done=done, n_previous=before, place=at), slot)
            m, n = program.choice(slot, done, place, before, state)
            held = promise(view, IDLE if m is None else view.split(m, n))
            return held.market, held.allocation.total

        return choose

    def always(view, wish):
        return net(view, wish) if view.deadline_in_reach else wish

    start = tuple((float(usd), 0) for usd in prices)
    old, new = (program.worth_of(under(promise), start, job.home) for promise in (always, priced_net))
    assert old - 1e-9 <= new <= program.value(0, 0.0, job.home, 0, start) + 1e-9
    if grounds(job, [make_window(np.ones(9), np.zeros(9), on_demand_usd=usd) for usd in ON_DEMAND[:2]]).view(
        Progress(place=job.nowhere if job.home is None else job.home), 0
    ).never_let_go:  # fmt: skip
        assert new == old


def test_the_bound_stays_above_and_the_mean_gains():
    """On random markets: never above the bound, and on average better than the same policy with an unconditional net."""
    gained = []
    for seed in range(8):
        windows, records = random_markets(seed, 8, 3, stay=0.9)
        job, must = (make_multi_job(cheap_job(0.3, must_finish=must), home=0) for must in (False, True))
        free, held = (replayed(MeanField(), one, windows, records=records) for one in (job, must))
        gained.append(free.utility_usd - held.utility_usd)
    assert np.mean(gained) > 0.0


def test_a_way_that_is_let_go_holds_what_it_wished():
    windows, records = made(np.full((3, 68), 1.0), np.zeros((3, 68)), 60)
    job = make_multi_job(cheap_job(), home=0)
    view = grounds(job, windows, records).view(Progress(done=1.0, place=0), 4)
    assert view.deadline_in_reach
    assert not view.keeps_deadline(IDLE)
    assert priced_net(view, IDLE) == IDLE
    assert net(view, IDLE) != IDLE
    dear = grounds(make_multi_job(cheap_job(1.6), home=0), windows, records).view(
        Progress(done=1.0, place=0), 4
    )
    assert priced_net(dear, IDLE) == net(dear, IDLE) != IDLE
    wish = Placement(0, Allocation(3, 0))
    assert priced_net(view, wish) == wish
