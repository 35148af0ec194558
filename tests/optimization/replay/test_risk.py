"""Simulation over sampled futures: the same replay, from the policy's current state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_record, make_window, present_of

from slackwater.optimization import Job, PointForecast, Progress
from slackwater.optimization.belief.archetypes import archetypes
from slackwater.optimization.belief.launches import Launches
from slackwater.optimization.market.belief import MarketPaths
from slackwater.optimization.moving.definition import in_one_market
from slackwater.optimization.policies.contract import belief_of
from slackwater.optimization.policies.pace import worth_finishing
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay import ahead as ahead_module
from slackwater.optimization.replay.ahead import beliefs_on_paths, look_ahead, progress_of, simulate_ahead
from slackwater.optimization.replay.run import see
from slackwater.optimization.replay.score import perfect_forecasts
from slackwater.optimization.world.paths import later_readings
from slackwater.optimization.world.simulation import Readings
from slackwater.warehouse.errors import MarketError

JOB = make_job(workload=30, deadline_slots=12, n_max=6, mu_up=0.9, value=70)


def market(seed: int):
    rng = np.random.default_rng(seed)
    price = np.clip(0.5 + 0.1 * rng.normal(size=12).cumsum(), 0.2, 1.2)
    return make_window(price, rng.integers(0, 7, 12))


class Halfway:
    """Generator whose counts change in the middle between two slots, on every path alike."""

    def uniform(self, low, high, shape):
        return np.full(shape, (low + high) / 2)


def ahead(policy, view, prices, counts):
    """Return the expected outcome of a policy from a view on, over given paths."""
    return simulate_ahead(present_of(policy, view), [MarketPaths(price=prices, count=counts)], rng=Halfway())


@pytest.mark.parametrize("name", ["MSU", "UP", "AHANP(0.6)", "AHAP(3,2,0.8)", "OD-only", "Stochastic"])
def test_one_path_is_the_run_of_the_policy_in_the_world_under_the_guard(name):
    """Cost and finish are those of a run that is decided slot by slot beside the code under test."""
    policy, window = policy_named(name), market(2)
    view = see(JOB, window, perfect_forecasts(window, 5)).view(JOB, Progress(), 0)
    prices, counts = window.price[None, 1:], window.available[None, 1:]
    expected = ahead(policy, view, prices, counts)
    now, hour = present_of(policy, view), 3600.0
    times, available, price = later_readings(
        now.run, hour, [MarketPaths(price=prices, count=counts)], Halfway()
    )[0, :, 0]
    run = now.run.copy([Readings(times=times, available=available, price=price)])
    state = policy.decide(policy.start(JOB), view)[1]
    run.decide(now.target.allocation)
    seen = see(JOB, window, [view.forecast, *[None] * 11])
    beliefs = replace(view.market_beliefs(), held=belief_of(policy, view))
    for slot in range(1, 12):
        run.advance(slot * hour)
        if run.is_finished:
            break
        # What the policy learns from the market stays as it was in the view.
        shown = replace(seen.view(JOB, progress_of(in_one_market(JOB), run), slot), beliefs=beliefs)
        planned = now.planner.view.running
        if planned is not None:
            running = run.running(next_at=(slot + 1) * hour, guarded=planned.guarded)
            shown = replace(shown, running=running)
        wish, state = policy.decide(state, shown)
        _, safe = run.guarded_in(0, wish, next_at=(slot + 1) * hour, deadline=12 * hour)
        is_safe = run.is_safe(safe, next_at=(slot + 1) * hour, deadline=12 * hour)
        run.decide(safe if is_safe and worth_finishing(shown) else wish)
    run.advance(12 * hour)
    assert run.is_finished
    assert expected.cost_usd == pytest.approx(run.paid_usd, rel=1e-9)
    assert expected.finish_slots == pytest.approx(run.finish / hour, rel=1e-9)
    assert expected.late_probability == 0.0


def first_view(job: Job, **changes):
    window = make_window(0.5, 3, slots=12)
    return see(job, window, [changes.get("forecast")] + [None] * 11).view(job, Progress(), 0)


def test_the_mean_is_over_paths():
    view = first_view(JOB)
    rng = np.random.default_rng(0)
    prices, counts = rng.uniform(0.2, 0.9, (20, 11)), rng.integers(0, 7, (20, 11))
    policy = policy_named("UP")
    together = ahead(policy, view, prices, counts)
    alone = [ahead(policy, view, prices[i : i + 1], counts[i : i + 1]) for i in range(20)]
    assert together.paths == 20
    assert together.cost_usd == pytest.approx(np.mean([one.cost_usd for one in alone]))
    assert together.finish.tolist() == [one.finish_slots for one in alone]
    assert together.cost_p10_usd <= together.cost_usd <= together.cost_p90_usd
    assert together.late_probability == 0.0, "the safety net promises it"


def test_what_cannot_be_met_is_late_and_what_cannot_pay_is_given_up():
    late = make_job(workload=75, deadline_slots=12, n_max=6, value=400)
    flat = np.full((3, 11), 0.5), np.full((3, 11), 6)
    policy = policy_named("MSU")
    expected = ahead(policy, first_view(late), *flat)
    assert expected.late_probability == 1.0
    assert expected.given_up_probability == 0.0
    assert 12 < expected.finish_slots < 18
    poor = make_job(workload=75, deadline_slots=12, n_max=6, value=0.5)
    hopeless = ahead(policy, first_view(poor), *flat)
    assert hopeless.given_up_probability == hopeless.late_probability == 1.0
    assert hopeless.finish_slots == poor.late_limit
    assert np.isnan(hopeless.finish).all()


def test_the_forecast_at_hand_is_read_shifted():
    forecast = PointForecast(price=np.array([0.3, 0.4, 0.5]), available=np.array([1, 2, 3]))
    read = []

    class Watching:
        name = "watching"

        def start(self, job):
            return None

        def decide(self, state, view):
            read.append(None if view.forecast is None else view.forecast.available.tolist())
            return policy_named("MSU").decide(None, view)

        def explain(self, state, view, allocation):
            return ""

    flat = np.full((1, 11), 0.5), np.full((1, 11), 3)
    ahead(Watching(), first_view(JOB, forecast=forecast), *flat)
    assert read[1:6] == [[1, 2, 3], [2, 3], [3], None, None]


def test_the_last_slot_has_no_future():
    view = first_view(make_job(workload=3, deadline_slots=1, n_max=6, value=9))
    expected = ahead(policy_named("MSU"), view, np.empty((1, 0)), np.empty((1, 0)))
    # Spot could be lost in the slot, and nothing would be left to make up for it.
    assert (expected.cost_usd, expected.finish_slots) == pytest.approx((3.0, 1.0))
    assert expected.late_probability == 0.0


def test_paths_of_a_wrong_shape_are_refused():
    view = first_view(JOB)
    for prices, counts in [((3, 10), (3, 10)), ((3, 11), (2, 11)), ((0, 11), (0, 11)), ((11,), (11,))]:
        with pytest.raises(MarketError, match="at least 11"):
            ahead(policy_named("MSU"), view, np.ones(prices), np.ones(counts))


def learned_view(slot: int = 0):
    """Return a view after 60 slots of record, with three peers."""
    rng = np.random.default_rng(8)
    price = np.clip(0.5 + 0.05 * rng.normal(size=72).cumsum(), 0.2, 0.9)
    count = np.repeat(rng.integers(0, 7, 18), 4).astype(float)
    peers = np.repeat(rng.integers(0, 7, (3, 24)), 3, axis=1).astype(float)
    window = make_window(price[60:], count[60:])
    end = 60 + slot + 1
    record = make_record(price[:end], count[:end], first=60, peers=peers[:, :end], hour=23.0)
    return see(JOB, window, None, record).view(JOB, Progress(), slot)


def futures(paths: int, slots: int):
    rng = np.random.default_rng(1)
    return rng.uniform(0.2, 0.9, (paths, slots)), rng.integers(0, 7, (paths, slots))


@pytest.mark.parametrize("name", ["Stochastic", "AHAP(3,1,0.9,expected)"])
def test_what_was_learned_by_now_is_held_on_every_path_alike(name):
    """The mean over paths equals the mean of single paths: no path learns from another path."""
    policy = policy_named(name)
    prices, counts = futures(8, 11)
    together = ahead(policy, learned_view(), prices, counts)
    alone = [ahead(policy, learned_view(), prices[i : i + 1], counts[i : i + 1]) for i in reversed(range(8))]
    assert together.cost_usd == pytest.approx(np.mean([one.cost_usd for one in alone]), rel=1e-12)
    assert together.finish.tolist() == [one.finish[0] for one in reversed(alone)]


def test_a_look_ahead_makes_its_tables_once():
    """Besides the tables of the present slot it computes sets that last to the deadline, no more for many
    paths than for one path.
    """
    policy, made = policy_named("Stochastic"), []
    for paths in (1, 40):
        view = learned_view(slot=2)
        present_of(policy, view)
        live = dict(view.tables)
        ahead(policy, view, *futures(paths, 9))
        assert all(view.tables[key] is tables for key, tables in live.items())
        made.append(len(view.tables) - len(live))
    assert made == [1, 1]


def test_a_record_held_still_knows_no_more_as_time_goes_on():
    view = learned_view(slot=3)
    end = len(view.past.price)
    still = make_record(
        view.past.price,
        view.past.available,
        first=end - 4,
        peers=view.past.peers,
        hour=(view.past.hour - end + 1) % 24,
        still=True,
    )
    assert [still.until(t).age for t in (1, 3, 4, 9)] == [0, 0, 1, 6]
    assert [len(still.until(t).price) for t in (1, 3, 4, 9)] == [end - 2, end, end, end]
    assert still.until(3).hour == view.past.hour
    assert still.until(9).hour == (view.past.hour + 6) % 24
    assert still.until(9).peers.shape == (3, end)


def test_the_present_slot_of_a_look_ahead_is_decided_as_it_is_live():
    policy, seen = policy_named("Stochastic"), []

    class Noting:
        name = "noting"

        def start(self, job):
            return policy.start(job)

        def decide(self, state, view):
            allocation, state = policy.decide(state, view)
            seen.append((view.slot, allocation, view.past.age))
            return allocation, state

        def explain(self, state, view, allocation):
            return ""

    view = learned_view(slot=2)
    live, _ = policy.decide(policy.start(JOB), view)
    ahead(Noting(), view, *futures(3, 9))
    present = [entry for entry in seen if entry[0] == 2]
    assert present == [(2, live, 0)] * 2
    assert {age for slot, _, age in seen} == {slot - 2 for slot, _, _ in seen}


def stochastic_view(rng: np.random.Generator, job: Job, at: int, progress: Progress):
    """Return a slot of a job with a record of 60 slots before it."""
    slots = 60 + job.deadline_slots
    price = np.clip(0.4 + 0.05 * rng.normal(size=slots).cumsum(), 0.2, 1.3)
    count = np.clip(4 + rng.integers(-1, 2, slots).cumsum(), 0, 9).astype(float)
    record = make_record(price, count, first=60, slot_hours=0.5, peers=count[None, ::-1].copy())
    window = make_window(price[60 : 60 + job.deadline_slots], count[60:], slot_hours=0.5)
    return see(job, window, None, record).view(job, progress, at)


@pytest.mark.parametrize("case", range(12))
def test_many_futures_decided_together_end_as_one_by_one(case):
    """The stochastic policy decides once per slot for all paths: costs and finishes are equal to the bit,
    with the net in force.
    """
    rng = np.random.default_rng(case)
    n_max = int(rng.integers(3, 11))
    job = make_job(
        workload=float(rng.uniform(0.4, 0.9) * n_max * 7),
        deadline_slots=14,
        n_min=int(rng.integers(1, 3)),
        n_max=n_max,
        mu_up=float(rng.choice([0.9, 0.6, -0.4])),
        mu_down=0.95,
        value=float(rng.uniform(1.0, 2.0) * n_max * 7),
    )
    at = int(rng.integers(0, 13))
    progress = Progress(done=float(at / 14 * job.workload), n_previous=int(rng.integers(0, n_max + 1)))
    view = stochastic_view(rng, job, at, progress)
    later = 13 - at
    prices, counts = rng.uniform(0.2, 1.2, (40, later)), rng.integers(0, 10, (40, later))
    policy = policy_named("Stochastic(24)")
    together = ahead(policy, view, prices, counts)

    class OneByOne:
        """The same policy without its joint decision over paths."""

        name, start, decide, explain = policy.name, policy.start, policy.decide, policy.explain
        plans_in_world = True

    alone = ahead(OneByOne(), view, prices, counts)
    assert np.array_equal(together.finish, alone.finish, equal_nan=True)
    for term in ("cost_usd", "cost_p10_usd", "cost_p90_usd", "utility_usd", "late_probability"):
        assert getattr(together, term) == getattr(alone, term), term


def on_prices_alone(workload: float, slots: int = 24):
    """Return a decision of a job with a soft deadline for which availability is not observed."""
    job = make_job(workload=workload, deadline_slots=slots, n_max=4, value=40.0)
    window = replace(make_window(np.full(slots, 0.25), np.full(slots, 4)), availability_observed=False)
    launches = Launches.of(4, (), slots, archetypes(4, window.slot_hours))
    view = see(job, window, None, None, launches).view(job, Progress(), 0)
    return present_of(policy_named("Stochastic"), view)


def test_a_policy_believes_in_the_market_that_its_counts_show():
    now = on_prices_alone(48.0)
    variants = list(now.beliefs[0].draw(10, np.random.default_rng(1)))
    likely, right = np.zeros((2, 101))
    for k, market in enumerate(variants):
        which = beliefs_on_paths(variants, market.sample(101, paths=50, rng=np.random.default_rng(k)))
        likely += (which < 10).mean(axis=0) / 10
        right += (which == k).mean(axis=0) / 10
    assert likely[0] < 0.1
    assert likely[[10, 20, 40, 100]] == pytest.approx(np.sort(likely[[10, 20, 40, 100]]))
    assert likely[100] > 0.4
    assert (
        right[20:] > likely[20:] / 3
    ).all()  # a third is more than ten markets by chance; markets turn into others


@pytest.mark.parametrize("workload", [48.0, 60.0])
def test_a_market_that_must_be_learned_is_worth_less_than_a_known_market(monkeypatch, workload):
    """On the same paths. A job on prices alone is given up less often than if it knew where spot does not come."""
    now = on_prices_alone(workload)
    learned = look_ahead(now, paths=400, rng=np.random.default_rng(3))

    def each_in_its_market(variants, sampled):
        return np.repeat(np.arange(10), 40)[:, None].repeat(sampled.count.shape[1], axis=1)

    monkeypatch.setattr(ahead_module, "beliefs_on_paths", each_in_its_market)
    known = look_ahead(now, paths=400, rng=np.random.default_rng(3))
    assert learned.utility_usd < known.utility_usd
    assert learned.late_probability < known.late_probability - 0.05
    assert learned.cost_usd > 1.2 * known.cost_usd
