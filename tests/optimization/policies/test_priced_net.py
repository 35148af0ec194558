"""Least net of belief-based policies: it applies where finishing pays its on-demand cost (M4)."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import make_job, make_record, make_view, make_window, present_of
from moving_twin import ExactProgram

from slackwater.optimization import Allocation, Job, Progress, View
from slackwater.optimization.job.definition import Amdahl, Linear
from slackwater.optimization.job.markets import even_moving
from slackwater.optimization.market.belief import Forgetting
from slackwater.optimization.moving.definition import MarketsJob
from slackwater.optimization.policies.pace import (
    LETS_GO,
    always_worth_finishing,
    cheapest_split,
    deadline_in_reach,
    keeps_deadline,
    least_net,
    pace,
    priced_net,
    worth_finishing,
)
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.policies.stochastic import Stochastic, tables_in_force
from slackwater.optimization.replay.ahead import look_ahead, simulate_ahead
from slackwater.optimization.replay.run import replay, see

#: Value of the job relative to its on-demand cost: 1 USD per instance-hour in every slot, slots of an hour.
WORTH = 0.45


def a_job(worth: float = WORTH, **other) -> Job:
    job = make_job(**{"workload": 24.0, "deadline_slots": 12, "n_max": 4, "mu_up": 0.9, **other})
    return replace(job, value=worth * job.workload)


def chain_of(stay: float, n_max: int = 4) -> np.ndarray:
    """Return a chain of 0 or n_max instances, each state lasting about 1 / (1 - stay) slots."""
    chain = np.zeros((n_max + 1, n_max + 1))
    for now in range(n_max + 1):
        chain[now, now if now in (0, n_max) else 0] = stay
        chain[now, 0 if now else n_max] += 1.0 - stay
    return chain


def walk(chain: np.ndarray, slots: int, rng: np.random.Generator) -> np.ndarray:
    counts = np.zeros(slots)
    for t in range(1, slots):
        counts[t] = rng.choice(len(chain), p=chain[int(counts[t - 1])])
    return counts


def market(counts: np.ndarray, price: float = 0.3, *, slots: int = 12):
    """Return the last slots of a record with a constant price, and the record."""
    first = len(counts) - slots
    window = make_window(np.full(slots, price), counts[first:])
    return window, make_record(
        np.full(len(counts), price), counts, first=first, peers=np.empty((0, len(counts)))
    )


class TestWhatIsNotWorthItsPriceIsLetGo:
    def test_a_job_is_not_finished_at_a_loss_where_spot_is_scarce(self):
        job, (window, record) = a_job(), market(np.zeros(72))
        assert replay(policy_named("Stochastic"), job, window, record=record).utility_usd == 0.0
        # Policies from the literature follow their papers.
        for name in ("UP", "MSU-trim", "AHANP(0.9)", "AHAP(3,1,0.9)"):
            outcome = replay(policy_named(name), job, window, record=record)
            assert outcome.on_time, name
            assert outcome.utility_usd < -0.4 * job.workload, name

    def test_it_is_finished_where_spot_is_there(self):
        job, (window, record) = a_job(), market(np.full(72, 4.0))
        outcome = replay(policy_named("Stochastic"), job, window, record=record)
        assert outcome.on_time
        assert outcome.utility_usd == pytest.approx((WORTH - 0.3) * job.workload, abs=0.5)

    def test_what_is_sunk_does_not_count(self):
        """Spot disappears for good after most of the work: finishing pays, although the whole job would not."""
        job, counts = a_job(), np.concatenate([np.full(65, 4.0), np.zeros(7)])
        window, record = market(counts)
        outcome = replay(policy_named("Stochastic"), job, window, record=record)
        assert outcome.on_time
        assert sum(held.on_demand for held in outcome.allocations) > 0

    @pytest.mark.parametrize("stay", [0.6, 0.95])
    def test_a_job_that_must_finish_is_never_late(self, stay):
        rng = np.random.default_rng(5)
        for _ in range(10):
            window, record = market(walk(chain_of(stay), 72, rng))
            job = replace(a_job(), must_finish=True)
            assert replay(policy_named("Stochastic"), job, window, record=record).on_time

    def test_in_a_gap_it_waits(self):
        job = a_job()
        view = make_view(job, slot=6, price=1.0, available=0, observed=False)
        assert deadline_in_reach(replace(view, progress=Progress(done=1.0)))
        for slack in (Progress(), Progress(done=1.0)):
            assert policy_named("Stochastic").decide(None, replace(view, progress=slack))[0].total == 0
        dear = replace(view, job=replace(job, value=30.0), progress=Progress(done=1.0))
        assert policy_named("Stochastic").decide(None, dear)[0] == Allocation(4, 0)

    def test_the_guard_asks_the_price_too(self):
        job = a_job(n_min=4)
        view = make_view(job, slot=6, price=0.3, available=0)
        guard = policy_named("Stochastic(24,guard)")
        assert guard.decide(None, replace(view, progress=Progress(done=1.0)))[0].total == 0
        dear = replace(view, job=replace(job, value=30.0), progress=Progress(done=1.0))
        assert guard.decide(None, dear)[0] == Allocation(4, 0)

    def test_it_says_that_it_lets_go(self):
        window, record = market(np.zeros(72))
        view = see(a_job(), window, None, record).view(a_job(), Progress(done=2.0), 6)
        policy = policy_named("Stochastic")
        assert deadline_in_reach(view)
        assert LETS_GO in policy.explain(None, view, Allocation(0, 0))
        assert LETS_GO not in policy.explain(None, replace(view, slot=5), Allocation(0, 0))


# ---
# Expected utility from the exact program on the true chain: never lower with the priced net than with the
# unconditional net.


@st.composite
def games(draw: st.DrawFn):
    """Draw (job, chain, price): a job valued at 0.2 to 1.5 times its on-demand cost, on counts that follow a chain."""
    n_max, slots = draw(st.integers(1, 2)), draw(st.integers(2, 5))
    throughput = draw(st.sampled_from([Linear(), Amdahl(parallel=0.6)]))
    job = make_job(
        workload=1.0,
        deadline_slots=slots,
        n_max=n_max,
        throughput=throughput,
        mu_up=draw(st.sampled_from([1.0, 0.9, 0.5, -0.5])),
        mu_down=draw(st.sampled_from([1.0, 0.9])),
        value=0.0,
    )
    load = draw(st.sampled_from([0.3, 0.6, 1.0]))
    workload = max(0.2, pace(job, 1.0).reach[slots][0] * load)
    value = draw(st.floats(0.2, 1.5)) * workload / throughput.rate(1)
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    chain = rng.dirichlet(np.full(n_max + 1, 0.5), n_max + 1)
    return replace(job, workload=workload, value=value), chain, draw(st.sampled_from([0.1, 0.4, 0.8]))


def program_of(job: Job, chain: np.ndarray, price: float) -> ExactProgram:
    alone = MarketsJob(runs=(job,), moving=even_moving(1, taken=0.0, usd=0.0), home=0)

    def distribution(slot, state):
        return tuple((float(p), ((price, n),)) for n, p in enumerate(chain[state[0][1]]))

    return ExactProgram(alone, (1.0,), 1.0, distribution)


def view_of(job: Job, slot: int, done: float, before: int, there: tuple[float, int]) -> View:
    return make_view(job, done=done, n_previous=before, slot=slot, price=there[0], available=there[1])


def under(net, job: Job, program: ExactProgram, states: list | None = None):
    """Return the exact program's choices with ``net`` applied."""

    def choose(slot, done, place, before, state):
        view = view_of(job, slot, done, before, state[0])
        wish = cheapest_split(view, program.choice(slot, done, place, before, state)[1])
        n = net(view, wish).total
        if states is not None:
            states.append((slot, done, before, state, n))
        return (0, n) if n else (None, 0)

    return choose


def old_net(view: View, wish: Allocation) -> Allocation:
    return least_net(view, wish) if deadline_in_reach(view) else wish


def expected(case) -> tuple[float, float, float]:
    """Return the expected utility with the unconditional net, with the priced net, and without a net."""
    job, chain, price = case
    program, start = program_of(job, chain, price), ((price, 0),)
    with_old, with_priced = [], []
    old = program.worth_of(under(old_net, job, program, with_old), start, 0)
    new = program.worth_of(under(priced_net, job, program, with_priced), start, 0)
    best = program.value(0, 0.0, 0, 0, start)
    assert old - 1e-9 <= new <= best + 1e-9
    if always_worth_finishing(job, 1.0, 1.0):
        assert with_old == with_priced
        assert new == old
    if job.must_finish:
        assert with_old == with_priced
    return old, new, best


@settings(max_examples=60, deadline=None, derandomize=True)
@given(games(), st.booleans())
def test_expected_utility_is_never_less_than_with_a_net_that_always_stands(case, must):
    expected((replace(case[0], must_finish=must), *case[1:]))


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, derandomize=True)
@given(games())
def test_expected_utility_is_never_less_than_with_a_net_that_always_stands_long(case):
    expected(case)


def test_it_gains_what_the_net_had_cost():
    """A job valued at 0.45 of its on-demand cost on intermittent spot: most of the loss is recovered."""
    job = replace(a_job(deadline_slots=6, n_max=2, workload=6.0), mu_up=1.0)
    old, new, best = expected((job, chain_of(0.7, 2), 0.3))
    assert old < -0.3
    assert 0.0 < new <= best


@settings(max_examples=60, deadline=None, derandomize=True)
@given(games())
def test_a_job_is_always_worth_finishing_where_no_state_in_reach_says_otherwise(case):
    job = case[0]
    if job.mu_up < 0.0:
        return  # keeping running instances then reaches further than any fresh start
    numbers = pace(job, 1.0)
    found = all(
        worth_finishing(view_of(job, slot, job.workload - rest, 0, (1.0, 0)))
        for slot in range(job.deadline_slots)
        for rest in np.linspace(0.0, min(job.workload, numbers.reach[job.deadline_slots - slot][0]), 9)[1:]
    )
    assert found == always_worth_finishing(job, 1.0, 1.0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(games(), st.integers(0, 4), st.floats(0.0, 0.9), st.integers(0, 2))
def test_worth_finishing_is_what_the_plain_ending_says(case, slot, share, before):
    job = case[0]
    slot, before = min(slot, job.deadline_slots - 1), min(before, job.n_max)
    plain = program_of(*case).ending(slot, share * job.workload, 0, before)
    assert worth_finishing(view_of(job, slot, share * job.workload, before, (1.0, 0))) == (plain > 0.0)


# ---
# Sampled futures of such a job: the same decisions together as separately, and probabilities between 0
# and 1.


def flickering(seed: int, worth: float = WORTH, slot: int = 0, done: float = 0.0):
    job = a_job(worth)
    window, record = market(walk(chain_of(0.85), 252, np.random.default_rng(seed)))
    return see(job, window, None, record).view(job, Progress(done=done), slot)


@pytest.mark.parametrize("worth", [0.3, WORTH, 0.8])
def test_many_futures_at_once_are_each_by_itself(worth, monkeypatch):
    """Includes paths that miss the deadline deliberately: no path is decided separately, and none differs."""
    policy = Stochastic()
    for seed in range(3):
        view = flickering(seed, worth)
        paths = view.belief(Forgetting()).sample(11, paths=40, rng=np.random.default_rng(seed))
        asked = []
        with monkeypatch.context() as patch:
            together = Stochastic.decide_together

            def noting(self, state, view, paths, together=together, asked=asked):
                asked.append(together(self, state, view, paths))
                return asked[-1]

            patch.setattr(Stochastic, "decide_together", noting)
            at_once = simulate_ahead(present_of(policy, view), [paths], rng=np.random.default_rng(0))
            assert asked
            assert all(sizes is not None for sizes in asked)
            patch.setattr(Stochastic, "decide_together", lambda self, state, view, paths: None)
            one_by_one = simulate_ahead(present_of(policy, view), [paths], rng=np.random.default_rng(0))
        assert at_once.finish.tolist() == pytest.approx(one_by_one.finish.tolist(), nan_ok=True)
        assert at_once.utility_usd == pytest.approx(one_by_one.utility_usd, rel=1e-12)


@pytest.mark.slow
def test_chances_of_being_late_have_shades_and_are_right_where_the_belief_is():
    """Compares probabilities predicted at the first slot with outcomes, for jobs on the very chain of the belief."""
    said, late, rng, jobs = [], [], np.random.default_rng(17), 60
    policy, job, chain = Stochastic(half_life_hours=72.0), a_job(), chain_of(0.85)
    for seed in range(jobs):
        window, record = market(walk(chain, 412, rng))
        view = see(job, window, None, record).view(job, Progress(), 0)
        said.append(
            look_ahead(present_of(policy, view), paths=60, rng=np.random.default_rng(seed)).late_probability
        )
        late.append(not replay(policy, job, window, record=record).on_time)
    shades = [p for p in said if 0.05 < p < 0.95]
    assert len(shades) > jobs / 3
    assert np.mean(said) == pytest.approx(
        np.mean(late), abs=3 * np.sqrt(np.mean(late) * np.mean(~np.array(late)) / jobs)
    )


def test_a_short_memory_says_more_often_that_it_may_change_its_mind():
    """A policy with few observed transitions may give up a deadline after the next ones; nothing is sampled
    for hard deadlines.
    """
    said: dict[bool, list[float]] = {False: [], True: []}
    policy, rng, job = Stochastic(half_life_hours=6.0), np.random.default_rng(5), a_job(0.7)
    for seed in range(12):
        window, record = market(walk(chain_of(0.93), 412, rng))
        view = see(job, window, None, record).view(job, Progress(), 0)
        rng_of = np.random.default_rng(seed)
        futures = view.belief(policy.forgetting).sample(11, paths=60, rng=rng_of)
        now = present_of(policy, view)
        held = simulate_ahead(now, [futures], rng=copy.deepcopy(rng_of)).late_probability
        expected = look_ahead(now, paths=60, rng=np.random.default_rng(seed))
        assert expected.paths == 60
        said[held < 0.02].append(expected.late_probability - held)
        sure = replace(view, job=replace(job, must_finish=True))
        one, other = (
            look_ahead(present_of(policy, sure), paths=60, rng=np.random.default_rng(seed)),
            simulate_ahead(present_of(policy, sure), [futures], rng=rng_of),
        )
        assert (one.cost_usd, one.late_probability) == (other.cost_usd, other.late_probability)
    assert len(said[True]) >= 3
    assert np.mean(said[True]) > 0.01


def test_tables_of_a_job_that_may_be_let_go_are_for_every_amount_of_work():
    """Banded tables would force the job to meet its deadline."""
    for worth, anywhere in ((WORTH, True), (1.5, False)):
        view = flickering(1, worth)
        tables_in_force(view, Forgetting())
        assert [key[-1] for key in view.tables] == [anywhere]


def test_the_net_takes_the_least_size_that_keeps_the_deadline():
    """Where it applies, it equals the least net (M4)."""
    job = a_job(1.5)
    view = view_of(job, 6, 2.0, 0, (0.3, 0))
    assert not keeps_deadline(view, 0)
    assert priced_net(view, Allocation(0, 0)) == least_net(view, Allocation(0, 0)) == Allocation(3, 0)
