"""Allocation of scarce spot instances among competing jobs, and the resulting decisions (M3.7)."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from make import make_multi_job
from moving_markets import a_job, made, random_markets

from slackwater.optimization.fleet.competition import (
    Claim,
    Need,
    Trajectory,
    come_first,
    contender,
    decide_all,
    decide_trajectory,
    in_order,
    share_out,
    taken_later,
)
from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.moving.definition import Placement, in_one_market, placement
from slackwater.optimization.moving.policies import MeanField
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.decision import Effort, LiveJob, UndecidedJob
from slackwater.optimization.replay.run import see

EFFORT = Effort(solver_seconds=1.0, risk_paths=12, seed=3)
START, STEP = pd.Timestamp("2026-01-01T00:00Z"), pd.Timedelta("1h")
POLICIES = ("Stochastic", "UP", "MSU", "AHANP(0.7)", "AHAP(3,1,0.9)", "AHAP(3,2,0.9,expected)")


def random_contender(rng, name, there):
    """Return a job whose value increases with its spot instances, in one market or in any market."""
    own = sorted(there) if rng.random() < 0.4 else [str(rng.choice(sorted(there)))]
    nothing = float(rng.uniform(0, 50))
    found = [Claim(None, 0, nothing)]
    for market in own:
        usd = nothing + np.cumsum(
            rng.exponential(3.0, there[market] + 1) * (rng.random(there[market] + 1) < 0.8)
        )
        found += [Claim(market, k, float(usd[k - 1])) for k in range(1, there[market] + 1)]
    best = max(found, key=lambda one: one.value_usd)
    return contender(name, int(rng.integers(-1, 4)), (best.market, best.spot), found)


def spot_by_market(claims):
    used = {}
    for one in claims:
        if one.market is not None:
            used[one.market] = used.get(one.market, 0) + one.spot
    return used


def worth(claims):
    return sum(one.value_usd for one in claims)


@pytest.mark.parametrize("seed", range(40))
def test_never_more_is_promised_than_there_is_and_never_worth_less_than_by_slack(seed):
    rng = np.random.default_rng(seed)
    there = {f"m{i}": int(rng.integers(0, 7)) for i in range(int(rng.integers(1, 4)))}
    jobs = [random_contender(rng, f"j{i}", there) for i in range(int(rng.integers(1, 7)))]
    shares = share_out(jobs, there)
    assert all(used <= there[market] for market, used in spot_by_market(shares.claims).items())
    by_slack = in_order(sorted(jobs, key=lambda one: (one.slack, one.job)), there)
    assert worth(shares.claims) >= worth(by_slack) - 1e-9
    # The shares do not depend on the order of the jobs.
    order = rng.permutation(len(jobs))
    again = share_out([jobs[j] for j in order], there)
    assert [again.claims[k] for k in np.argsort(order)] == list(shares.claims)
    assert again.prices == shares.prices
    # Jobs in other markets change nothing, even if those jobs are short of spot themselves.
    far = {f"far-{market}": count for market, count in there.items()}
    others = [
        replace(one, job=f"far-{one.job}", wish=moved(one.wish), claims=tuple(map(moved, one.claims)))
        for one in jobs[:-1]
    ]
    assert share_out([*others, *jobs], there | far).claims[len(others) :] == shares.claims
    # No job is short of instances that are left over.
    left = {market: there[market] - spot_by_market(shares.claims).get(market, 0) for market in there}
    for one, claim in zip(jobs, shares.claims, strict=True):
        back = {**left, claim.market: left[claim.market] + claim.spot} if claim.market else left
        assert all(
            c.value_usd <= claim.value_usd for c in one.claims if not c.market or c.spot <= back[c.market]
        )


def moved(claim):
    return replace(claim, market=None if claim.market is None else f"far-{claim.market}")


@pytest.mark.parametrize("seed", range(15))
def test_it_is_the_best_way_to_share_one_market(seed):
    rng = np.random.default_rng(100 + seed)
    there = {"m": 5}
    jobs = [random_contender(rng, f"j{i}", there) for i in range(4)]
    best = max(
        worth(claims) for claims in product(*(one.claims for one in jobs)) if sum(c.spot for c in claims) <= 5
    )
    assert worth(share_out(jobs, there).claims) == pytest.approx(best)


def test_where_there_is_enough_everyone_has_its_wish_also_where_less_is_worth_more():
    greedy = contender("a", 3, ("m", 4), [Claim(None, 0, 1.0), Claim("m", 2, 9.0), Claim("m", 4, 5.0)])
    other = contender("b", 0, ("m", 2), [Claim(None, 0, 0.0), Claim("m", 2, 3.0)])
    assert [one.spot for one in share_out([greedy, other], {"m": 6}).claims] == [4, 2]
    short = share_out([greedy, other], {"m": 4})
    assert [one.spot for one in short.claims] == [2, 2]
    assert not short.prices  # same result when ordered by slack


def test_the_price_is_what_one_more_would_be_worth():
    worths = [Claim(None, 0, 0.0), Claim("m", 1, 5.0), Claim("m", 2, 9.0), Claim("m", 3, 12.0)]
    first = contender("a", 0, ("m", 3), worths)
    second = contender("b", 1, ("m", 3), [Claim(one.market, one.spot, 1.1 * one.value_usd) for one in worths])
    shares = share_out([first, second], {"m": 4})
    assert [one.spot for one in shares.claims] == [2, 2]
    assert shares.prices == {"m": pytest.approx(3.3)}


# ---
# Decisions.


def live_at(job, window, record, slot=0, decided=None):
    return among(in_one_market(job), [window], [record], ("m",), slot, decided)


def among(job, windows, records, names, slot=0, decided=None):
    """Return a job at a slot on the markets of ``windows``."""
    seen = [see(run, w, None, r) for run, w, r in zip(job.runs, windows, records, strict=True)]
    return LiveJob(
        job=job, start=START, step=STEP, slot=slot, seen=tuple(seen), decided=decided or {}, names=names
    )


def jobs_on(seed, names, *, load=(0.4, 0.9), count=3, d=6):
    """Return jobs of several sizes on one random market, at their first slot."""
    rng = np.random.default_rng(seed)
    (window, *_), (record, *_) = random_markets(seed, d, count, before=40)
    jobs = [
        replace(a_job(d=d, n_max=int(rng.integers(2, 5)), load=float(rng.uniform(*load))), name=name)
        for name in names
    ]
    return [(job, window, record) for job in jobs]


def course(live, policy="Stochastic", market="m"):
    return trajectory([live], [policy_named(policy)], (market,))


def trajectory(slots, policies, names):
    markets = (tuple(names),) * len(slots)
    return Trajectory(slots=tuple(slots), policies=tuple(policies), keys=markets, markets=markets)


def same(a, b):
    """Return whether two results are equal to the last bit, ignoring solver times."""
    return re.sub(r"solver='[^']*'", "", repr(a)) == re.sub(r"solver='[^']*'", "", repr(b))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_decisions_never_hold_more_spot_together_than_there_is(seed):
    rng = np.random.default_rng(seed)
    lives = [live_at(*one) for one in jobs_on(seed, [f"j{i}" for i in range(4)])]
    policies = [POLICIES[int(rng.integers(len(POLICIES)))] for _ in lives]
    there = lives[0].seen[0].available[0]
    taken = int(rng.integers(0, 2))
    found = decide_all(
        [course(live, policy) for live, policy in zip(lives, policies, strict=True)],
        EFFORT,
        promised={(START, "m"): taken},
    )
    spot = [one.allocation.spot for (one,) in found]
    assert sum(spot) <= max(0, there - taken)
    alone = [
        decide_trajectory(course(live, policy), EFFORT)[0]
        for live, policy in zip(lives, policies, strict=True)
    ]
    for (one,), was, live in zip(found, alone, lives, strict=True):
        n = one.allocation.total
        assert n == 0 or live.run.n_min <= n <= live.run.n_max
        short = one.allocation.spot < was.allocation.spot
        assert short or same(one, was)
        assert one.reason.split("; ")[-1].startswith("gets ") == (not same(one, was))
    # The order of the jobs does not matter.
    turned = decide_all(
        [course(live, policy) for live, policy in zip(lives[::-1], policies[::-1], strict=True)],
        EFFORT,
        promised={(START, "m"): taken},
    )
    assert same(turned[::-1], found)


def test_alone_or_with_enough_for_all_it_is_the_decision_of_a_job_by_itself():
    lives = [live_at(*one) for one in jobs_on(5, ["a", "b"])]
    alone = [decide_trajectory(course(live), EFFORT) for live in lives]
    assert same(decide_all([course(lives[0])], EFFORT), alone[:1])
    assert same(decide_all([course(lives[0]), course(lives[1], market="other")], EFFORT), alone)
    windows, records = made(np.full((1, 46), 1.0), np.full((1, 46), 20.0), 40)
    plenty = [live_at(live.run, windows[0], records[0]) for live in lives]
    assert all(live.seen[0].available[0] == 20 for live in plenty)
    assert same(
        decide_all([course(live) for live in plenty], EFFORT),
        [decide_trajectory(course(live), EFFORT) for live in plenty],
    )


def test_of_two_jobs_the_one_that_is_short_of_slack_gets_the_spot():
    windows, records = made(np.full((1, 52), 0.5), np.full((1, 52), 2.0), 40)
    idle = replace(a_job(d=12, n_max=2, load=0.3), name="a-idle")
    urgent = replace(a_job(d=12, n_max=2, load=0.8), name="urgent")
    lives = [live_at(job, windows[0], records[0]) for job in (idle, urgent)]
    (patient,), (pressed,) = decide_all([course(live) for live in lives], EFFORT)
    assert pressed.allocation == Allocation(0, 2)
    assert patient.allocation.spot == 0
    assert patient.allocation.on_demand == 0  # this job can wait
    assert "gets 0 of 2 spot instances" in patient.reason
    assert not pressed.reason.split("; ")[-1].startswith("gets ")


def test_a_mover_goes_to_its_second_best_market_where_a_job_of_one_market_takes_the_first():
    counts = np.zeros((3, 48))
    counts[2], counts[1] = 3.0, 3.0
    prices = np.array([[1.0], [1.1], [0.6]]).repeat(48, axis=1)
    windows, records = made(prices, counts, 40)
    job = make_multi_job(a_job(d=8, n_max=3, load=0.8))
    names = ("m0", "m1", "m2")

    def moving():
        return trajectory([among(job, windows, records, names)], [MeanField()], names)

    ((free,),) = decide_all([moving()], EFFORT)
    assert free.market == 2
    urgent = replace(a_job(d=8, n_max=3, load=1.0), name="urgent")
    fixed = course(live_at(urgent, windows[2], records[2]), market="m2")
    (mover,), (other,) = decide_all([moving(), fixed], EFFORT)
    assert other.allocation == Allocation(0, 3)
    assert mover.market == 1
    assert mover.allocation.spot
    # It does not request spot that it would have to give up to the other job in the next slot.
    assert mover.reason.split("; ")[-1] == "jobs with less slack need 3 in m2 in later slots"
    assert mover.expected.late_probability == 0.0


def test_of_movers_that_could_wait_for_one_cheap_market_the_others_go_to_the_next():
    counts, prices = np.full((2, 52), 60.0), np.array([[1.2], [1.0]]).repeat(52, axis=1)
    counts[1] = 3.0
    windows, records = made(prices, counts, 40)
    jobs = [make_multi_job(replace(a_job(d=12, n_max=3, load=0.75), name=f"j{i}"), 2) for i in range(8)]

    def moving(job):
        return trajectory([among(job, windows, records, ("m0", "m1"))], [MeanField()], ("m0", "m1"))

    found = [one for (one,) in decide_all([moving(job) for job in jobs], EFFORT)]
    # The other jobs do not wait for the market, as each would if it ignored its competitors in the next slot.
    assert [(one.market, one.allocation.spot) for one in found] == [(1, 3)] + [(0, 3)] * 7
    # The expected outcome of a job accounts for it too: later the job gets the remaining spot.
    alone = [one for (one,) in (decide_trajectory(moving(job), EFFORT) for job in jobs)]
    assert all(one.market == 1 and one.allocation.spot == 3 for one in alone)
    assert sum(one.expected.cost_usd for one in found) > sum(one.expected.cost_usd for one in alone)
    # Reordering the jobs does not change the decisions; a single multi-market job decides as without competition.
    assert same([[one] for one in found[::-1]], decide_all([moving(job) for job in jobs[::-1]], EFFORT))
    assert same(decide_all([moving(jobs[0])], EFFORT), [[alone[0]]])


def test_jobs_come_first_to_the_cheapest_of_their_markets_and_then_to_the_next():
    def need(job, slack, *markets, slots=10):
        return Need(job=job, slack=slack, slots=slots, markets=markets)

    there = {"a": 6, "b": 100}
    movers = [need(f"j{i}", 5, ("a", 4), ("b", 4)) for i in range(10)]
    assert come_first(movers, there, 10) == {"a": 40, "b": 34}
    assert come_first(movers[::-1], there, 10) == {"a": 40, "b": 34}
    # A job with half as many slots left needs half of it, averaged over those slots.
    assert come_first([need("x", 0, ("a", 4), slots=5)], there, 10) == {"a": 2, "b": 0}
    assert come_first([need("x", 0, ("a", 4), slots=20)], there, 10) == {"a": 4, "b": 0}
    # If it needs fewer instances in the next market, the missing fraction of each need counts.
    assert come_first([need("x", 0, ("a", 12), ("b", 4))], there, 10) == {"a": 12, "b": 2}
    # Each job leaves to jobs with less slack the instances they need; equal slack is ordered by name.
    later = taken_later([need("p", 3, ("a", 2)), need("q", 1, ("a", 3)), need("o", 3, ("b", 5))], there)
    assert later == [{"a": 3, "b": 5}, {"a": 0, "b": 0}, {"a": 3, "b": 0}]


class Raising:
    """Policy that raises an error instead of deciding."""

    name = "raising"

    def start(self, job):
        return None

    def decide(self, state, view):
        raise ZeroDivisionError("no number")

    def explain(self, state, view, allocation):
        return ""


def test_a_policy_that_raises_costs_its_own_job_only():
    lives = [live_at(*one) for one in jobs_on(7, ["a", "b", "c"])]
    bad = trajectory([lives[1]], [Raising()], ("m",))
    (a,), (b,), (c,) = decide_all([course(lives[0]), bad, course(lives[2])], EFFORT)
    assert b == UndecidedJob(job="b", slot=0, why="ZeroDivisionError: no number")
    assert same([[a], [c]], decide_all([course(lives[0]), course(lives[2])], EFFORT))
    # Also when the job is alone.
    assert decide_all([bad], EFFORT) == [[b]]


class Greedy(Raising):
    """Policy that runs more spot instances than its share."""

    def decide(self, state, view):
        return Allocation(0, view.count), None


def test_a_policy_that_takes_more_than_is_left_to_it_has_no_decision():
    lives = [live_at(*one) for one in jobs_on(9, ["a", "b"], count=2)]
    grasping = trajectory([lives[1]], [Greedy()], ("m",))
    (_,), (b,) = decide_all([course(lives[0]), grasping], EFFORT, promised={(START, "m"): 1})
    assert isinstance(b, UndecidedJob)
    assert "PolicyError" not in b.why
    assert "spot" in b.why


def stretch(seed, names, slots):
    """Return jobs on a market at several slots, as a live turn sees them: later slots are unknown."""
    found = {}
    for job, window, record in jobs_on(seed, names, d=6):
        lives = []
        for slot in range(slots):
            hidden = replace(window, observed=np.arange(len(window.price)) <= slot)
            lives.append(live_at(job, hidden, record, slot))
        found[job.name] = lives
    return found


def one_by_one(lives, slots, policy):
    decided = {name: {} for name in lives}
    made_of = {name: [] for name in lives}
    for slot in range(slots):
        now = {name: replace(own[slot], decided=dict(decided[name])) for name, own in lives.items()}
        found = decide_all([course(live, policy) for live in now.values()], EFFORT)
        for name, (decision,) in zip(now, found, strict=True):
            made_of[name].append(decision)
            if decision is not None:
                decided[name][slot] = placement(decision.market, decision.allocation)
    return list(made_of.values())


@pytest.mark.parametrize("policy", ["Stochastic", "UP"])
def test_slots_decided_together_are_those_decided_one_by_one(policy):
    lives = stretch(12, ["a", "b", "c"], 4)
    courses = [trajectory(own, [policy_named(policy)] * 4, ("m",)) for own in lives.values()]
    together = decide_all(courses, EFFORT)
    assert same(together, one_by_one(lives, 4, policy))


def test_what_comes_after_the_slot_does_not_matter():
    rng = np.random.default_rng(4)
    for job_of in ("Stochastic", "AHAP(3,1,0.9)"):
        before, after = [], []
        for job, window, record in jobs_on(21, ["a", "b", "c"]):
            later = np.arange(len(window.price)) > 1
            scrambled = replace(
                window,
                price=np.where(later, rng.uniform(0.2, 2.9, len(later)), window.price),
                available=np.where(later, rng.integers(0, 9, len(later)), window.available),
            )
            cut = record.first + 2
            price, available = record.price.copy(), record.available.copy()
            price[cut:], available[cut:] = rng.uniform(0.2, 2.9, len(price) - cut), 7.0
            before.append(course(live_at(job, window, record, 1), job_of))
            after.append(
                course(live_at(job, scrambled, replace(record, price=price, available=available), 1), job_of)
            )
        assert same(decide_all(before, EFFORT), decide_all(after, EFFORT))


def test_a_mover_that_was_somewhere_unknown_is_not_decided():
    windows, records = made(np.full((2, 48), 1.0), np.full((2, 48), 2.0), 40)
    job = make_multi_job(a_job(d=8, n_max=2, load=0.85), 2)
    moving = Trajectory(
        slots=(
            among(job, windows, records, ("a", "b")),
            among(job, windows, records, ("x", "y"), 1, {0: Placement(0, Allocation(0, 1))}),
        ),
        policies=(MeanField(), MeanField()),
        keys=(("a", "b"), ("x", "y")),
        markets=(("a", "b"), ("x", "y")),
    )
    first, second = decide_trajectory(moving, EFFORT)
    assert first.allocation.total
    assert second is None
