"""One belief: marginals, transitions and sampled futures that are mutually consistent (M6.9)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_past, make_record, make_window, present_of

from slackwater.forecasting.quantiles import LEVELS, count_distribution
from slackwater.optimization import Progress
from slackwater.optimization.market.belief import (
    COMMON_HOURS,
    COMMON_SHARE,
    FINE_COUNTS,
    MOST_STATES,
    Belief,
    Forgetting,
    MarketPaths,
    Now,
    count_states,
    make_belief,
    price_distribution,
    split_by_common_factor,
    tilt,
)
from slackwater.optimization.market.window import (
    Past,
    PointForecast,
    Quantiles,
    Record,
    certain,
    of_quantiles,
)
from slackwater.optimization.policies.contract import belief_of
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.ahead import simulate_ahead
from slackwater.optimization.replay.run import SlotMarket, see

NAN = float("nan")
HORIZON, PATHS = 12, 20_000
#: Capacities: few counts, the largest number of counts with separate states, and many more.
CAPACITIES = [1, 4, 16, FINE_COUNTS, 200]
every_capacity = pytest.mark.parametrize("capacity", CAPACITIES)


def history(seed: int, capacity: int = 16, slots: int = 120) -> Past:
    """Return persistent counts and prices; prices exceed on-demand (1 USD) now and then."""
    rng = np.random.default_rng(seed)
    counts = np.repeat(rng.integers(0, capacity + 1, slots // 4), 4).astype(float)
    price = np.clip(0.6 + 0.05 * rng.normal(size=slots).cumsum(), 0.1, 1.2)
    peers = np.repeat(rng.integers(0, capacity + 1, (2, slots // 3)), 3, axis=1).astype(float)
    return make_past(price=price, available=counts, peers=peers)


def forecast(seed: int, capacity: int = 16, horizon: int = HORIZON) -> PointForecast:
    """Return quantiles of all kinds: wide, narrow, at a bound, with tied prices, and above on-demand."""
    rng = np.random.default_rng(1000 + seed)
    middle = rng.integers(0, capacity + 1, (horizon, 1))
    spread = rng.choice([0, 1, capacity], (horizon, 1))
    count = np.clip(middle + np.round(spread * rng.normal(size=(horizon, 19))), 0, capacity)
    price = np.clip(rng.uniform(0.2, 1.1, (horizon, 1)) + 0.1 * rng.normal(size=(horizon, 19)), 0.05, 1.0)
    price[rng.random(horizon) < 0.2] = 0.4
    return of_quantiles(
        Quantiles(price=np.sort(price, axis=1), count=np.sort(count, axis=1), capacity=capacity)
    )


def believe(past: Past, told: PointForecast | None, **changes: float) -> Belief:
    seen = {"price": past.price[-1], "available": past.available[-1]} | changes
    now = Now(slot=0, slot_hours=0.5, on_demand_usd=1.0, **seen)
    return make_belief(past, told, now=now, forgetting=Forgetting())


def marginals(now: np.ndarray, transitions: np.ndarray) -> np.ndarray:
    found = []
    for step in transitions:
        now = now @ step
        found.append(now)
    return np.array(found)


class TestMarginals:
    @every_capacity
    @pytest.mark.parametrize("seed", range(6))
    def test_those_of_the_horizon_are_the_forecasts(self, seed, capacity):
        told = forecast(seed, capacity)
        belief = believe(history(seed, capacity), told)
        distribution = count_distribution(told.quantiles.count, capacity)
        counts = belief.counts.count
        got = marginals(belief.count_now, belief.count_transitions(HORIZON))
        np.testing.assert_allclose(got, np.add.reduceat(distribution, counts, axis=1), atol=1e-6)
        for ahead, n in [(1, 1), (5, capacity), (HORIZON, max(1, capacity // 2))]:
            assert belief.chance_of_spot(n, ahead) == pytest.approx(
                distribution[ahead - 1, n:].sum(), abs=1e-12
            )
        got = marginals(belief.price_now, belief.price_transitions(HORIZON))
        np.testing.assert_allclose(got, price_distribution(told.quantiles.price, belief.prices), atol=1e-6)

    @every_capacity
    @pytest.mark.parametrize("n_max", [1, 7, 16, 64])
    def test_a_job_that_tells_fewer_counts_apart_has_the_same(self, n_max, capacity):
        told = forecast(3, capacity)
        belief = believe(history(3, capacity), told)
        counts, onward = belief.for_size(n_max, HORIZON + 4)
        assert len(counts.count) <= MOST_STATES
        assert counts.count[0] == 0
        assert counts.count[-1] <= n_max
        np.testing.assert_allclose(onward.sum(axis=2), 1.0)
        np.testing.assert_allclose(onward[-1].sum(axis=1), 1.0)
        start = np.add.reduceat(belief.count_now, np.searchsorted(belief.counts.count, counts.count))
        distribution = count_distribution(told.quantiles.count, capacity)
        got = marginals(start, onward)[:HORIZON]
        np.testing.assert_allclose(got, np.add.reduceat(distribution, counts.count, axis=1), atol=1e-6)

    @pytest.mark.parametrize("taken", [1, 3, 40])
    def test_counts_that_others_take_first_are_those_that_stay(self, taken):
        belief = believe(history(3, 16), forecast(3, 16))
        counts, onward = belief.for_size(16, HORIZON, taken)
        assert counts.count[-1] == max(0, belief.counts.count[-1] - taken)
        whole = marginals(belief.count_now, belief.count_transitions(HORIZON))
        left = np.maximum(belief.counts.count - taken, 0)
        at = np.searchsorted(counts.count, left, side="right") - 1
        start = np.bincount(at, belief.count_now, minlength=len(counts.count))
        got = marginals(start, onward)
        want = np.stack([np.bincount(at, row, minlength=len(counts.count)) for row in whole])
        np.testing.assert_allclose(got, want, atol=1e-6)

    def test_two_counts_that_others_take_of_are_not_those_that_are_there(self):
        belief = believe(history(3, 16), forecast(3, 16))
        half = np.full((2, 2), 0.5)
        chain = replace(belief.counts, count=np.array([0, 16]), transition=half)
        belief = replace(belief, counts=chain, count_now=half[0], count_steps=np.stack([half] * HORIZON))
        assert belief.for_size(16, 3, 4)[0].count.tolist() == [0, 12]

    def test_every_price_is_in_the_state_that_it_counts_as(self):
        belief = believe(history(1), forecast(1))
        price = np.random.default_rng(0).uniform(0.05, 1.3, 500)
        place = np.searchsorted(belief.prices.edges(), price, side="right")
        np.testing.assert_array_equal(place, belief.prices.indices(price))

    def test_a_certain_forecast_leaves_nothing_open(self):
        price, count = np.array([0.3, 0.9, 0.3]), np.array([0, 16, 3])
        belief = believe(history(2), certain(price, count))
        assert [belief.chance_of_spot(n, k) for n, k in [(1, 1), (16, 2), (3, 3), (4, 3)]] == [0, 1, 1, 0]
        paths = belief.sample(3, paths=5, rng=np.random.default_rng(0))
        prices, counts = paths.price, paths.count
        assert (counts == count).all()
        assert (prices == price).all()


class TestTransitions:
    @every_capacity
    @pytest.mark.parametrize("seed", range(4))
    def test_they_are_stochastic_and_beyond_the_horizon_those_of_the_chains(self, seed, capacity):
        belief = believe(history(seed, capacity), forecast(seed, capacity))
        for found, chain in (
            (belief.count_transitions(HORIZON + 3), belief.counts),
            (belief.price_transitions(HORIZON + 3), belief.prices),
        ):
            assert (found >= 0).all()
            np.testing.assert_allclose(found.sum(axis=2), 1.0, atol=1e-12)
            np.testing.assert_array_equal(found[HORIZON:], np.stack([chain.transition] * 3))
        np.testing.assert_array_equal(belief.count_transitions(5), belief.count_transitions(HORIZON)[:5])

    def test_what_the_chain_says_already_changes_nothing(self):
        rng = np.random.default_rng(0)
        onward = rng.dirichlet(np.ones(5), size=5)
        now = np.eye(5)[2]
        distribution = marginals(now, np.stack([onward] * 6))
        np.testing.assert_allclose(
            tilt(onward, now, distribution, 30, 1e-12), np.stack([onward] * 6), atol=1e-9
        )

    def test_factors_are_the_same_for_every_row(self):
        """Odds between two states change by the same factor in every row."""
        belief = believe(history(0), forecast(0))
        ratio = belief.count_steps[4] / belief.counts.transition
        odds = ratio / ratio[:, :1]
        np.testing.assert_allclose(odds, np.tile(odds[:1], (len(odds), 1)), rtol=1e-4)

    @pytest.mark.parametrize("rounds", [1, 30])
    def test_what_no_factors_reach_is_moved(self, rounds):
        """A chain that never leaves its state, and a forecast in which it does."""
        distribution = np.array([[0.2, 0.5, 0.3], [0.0, 0.0, 1.0]])
        steps = tilt(np.eye(3), np.array([1.0, 0.0, 0.0]), distribution, rounds, 1e-9)
        np.testing.assert_allclose(marginals(np.array([1.0, 0.0, 0.0]), steps), distribution, atol=1e-12)
        np.testing.assert_allclose(steps.sum(axis=2), 1.0)
        assert (steps >= 0).all()


class TestWithoutAForecast:
    @pytest.mark.parametrize(
        "told", [None, PointForecast(price=np.full(4, 0.3), available=np.full(4, 9))], ids=["none", "a point"]
    )
    def test_the_chains_are_believed(self, told):
        past = history(4)
        belief = believe(past, told)
        assert belief.horizon == 0
        here = belief.counts.transition[belief.counts.index(past.available[-1])]
        assert belief.chance_of_spot(3) == pytest.approx(here[3:].sum())
        paths = belief.sample(6, paths=400, rng=np.random.default_rng(1))
        prices, counts = paths.price, paths.count
        assert prices.shape == counts.shape == (400, 6)
        assert np.isin(prices, belief.prices.level_usd).all()

    def test_nothing_seen_is_borne(self):
        empty = make_past(price=np.full(3, NAN), available=np.full(3, NAN))
        belief = believe(empty, None)
        assert belief.count_now.sum() == pytest.approx(1.0)
        assert np.isfinite(belief.sample(4, paths=3, rng=np.random.default_rng(0)).price).all()


class TestGaps:
    def test_the_state_of_a_gap_is_the_last_one_seen_moved_on(self):
        past = history(5)
        gone = replace(past, available=np.append(past.available[:-2], [NAN, NAN]))
        belief = believe(gone, None)
        row = np.linalg.matrix_power(belief.counts.transition, 2)[int(past.available[-3])]
        np.testing.assert_allclose(belief.count_now, row)
        assert believe(gone, None, available=past.available[-1]).count_now.max() == 1.0

    def test_marginals_hold_in_a_gap_too(self):
        told, past = forecast(5), history(5)
        belief = believe(replace(past, available=np.append(past.available[:-1], NAN)), told)
        got = marginals(belief.count_now, belief.count_transitions(HORIZON))
        np.testing.assert_allclose(got, count_distribution(told.quantiles.count, 16), atol=1e-6)


class TestFutures:
    @pytest.mark.parametrize("capacity", [4, 16, 200])
    def test_shares_of_paths_are_the_marginals(self, capacity):
        told = forecast(6, capacity)
        belief = believe(history(6, capacity), told)
        slots = HORIZON + 6
        paths = belief.sample(slots, paths=PATHS, rng=np.random.default_rng(2))
        prices, counts = paths.price, paths.count
        assert counts.min() >= 0
        assert counts.max() <= capacity
        close = 4 * np.sqrt(0.25 / PATHS)
        for k in range(slots):
            for n in belief.counts.count[1:] if k >= HORIZON else range(1, capacity + 1):
                share = float((counts[:, k] >= n).mean())
                assert share == pytest.approx(belief.chance_of_spot(int(n), k + 1), abs=close)
        for k in range(HORIZON):
            distribution = price_distribution(told.quantiles.price, belief.prices)[k]
            got = np.bincount(belief.prices.indices(prices[:, k]), minlength=len(distribution)) / PATHS
            np.testing.assert_allclose(got, distribution, atol=close)
            upto = (prices[:, k, None] <= told.quantiles.price[k] + 1e-12).mean(axis=0)
            assert (upto >= LEVELS - close).all()

    def test_a_sticky_market_has_sticky_paths(self):
        """The marginals do not show it: half of the paths at either bound, and a count that never changed in the record."""
        slots = 200
        still = make_past(
            price=np.full(slots, 0.4), available=np.full(slots, 8.0), peers=np.zeros((2, slots))
        )
        count = np.tile(np.repeat([0.0, 8.0], [10, 9]), (HORIZON, 1))
        told = of_quantiles(Quantiles(price=np.full((HORIZON, 19), 0.4), count=count, capacity=8, tail=0.0))
        counts = believe(still, told).sample(HORIZON, paths=2000, rng=np.random.default_rng(3)).count
        assert (np.diff(counts, axis=1) != 0).mean() < 0.1
        assert 0.4 < (counts[:, -1] == 8).mean() < 0.6

    def test_the_same_seed_gives_the_same_paths(self):
        belief = believe(history(7), forecast(7))
        one, two = (belief.sample(5, paths=9, rng=np.random.default_rng(4)) for _ in range(2))
        assert np.array_equal(one.price, two.price)
        assert np.array_equal(one.count, two.count)


MANY = 10


class TestDrawn:
    """Draws from a belief as transitions are observed and as the sampled future has few or many instances."""

    @pytest.mark.parametrize("seed", range(4))
    def test_together_they_say_what_the_belief_says_of_every_slot(self, seed):
        belief = believe(history(seed), forecast(seed))
        drawn = list(belief.draw(MANY, np.random.default_rng(seed)))
        assert len(drawn) == MANY
        assert np.mean([one.count_distribution for one in drawn], axis=0) == pytest.approx(
            belief.count_distribution, abs=1e-6
        )
        for one in drawn:
            assert one.count_distribution.sum(axis=1) == pytest.approx(1.0)
            assert one.count_marginals(HORIZON) == pytest.approx(one.count_distribution, abs=1e-6)
            assert one.count_steps.sum(axis=2) == pytest.approx(1.0)
            assert np.abs(one.counts.transition - belief.counts.transition).max() > 0.01
            assert one.prices is belief.prices

    def test_rows_are_spread_about_the_belief_by_what_they_rest_on(self):
        belief = believe(history(1), None)
        drawn = np.array([one.counts.transition for one in belief.draw(800, np.random.default_rng(3))])
        rows, weight = belief.counts.transition, belief.counts.weight
        assert weight is not None
        assert weight.min() >= Forgetting().toward_peers
        assert drawn.sum(axis=2) == pytest.approx(1.0)
        assert drawn.mean(axis=0) == pytest.approx(rows, abs=0.02)
        # Variance of a Dirichlet distribution: p (1 - p) / (weight + 1).
        assert drawn.var(axis=0) == pytest.approx(rows * (1.0 - rows) / (weight[:, None] + 1.0), abs=0.004)

    def test_a_chain_that_is_certain_turns_into_nothing_else(self):
        belief = believe(history(2), None)
        certain = replace(belief, counts=replace(belief.counts, weight=None))
        for one in certain.draw(3, np.random.default_rng(0)):
            assert one.counts.transition is certain.counts.transition

    @pytest.mark.parametrize("seed", range(3))
    def test_futures_differ_more_as_a_whole_than_slot_by_slot(self, seed):
        even = np.tile(np.linspace(0, 16, 19), (HORIZON, 1))
        told = of_quantiles(Quantiles(price=np.full((HORIZON, 19), 0.4), count=even, capacity=16))
        belief = believe(history(seed), told)
        rng = np.random.default_rng(seed)
        alone = belief.sample(HORIZON, paths=4000, rng=rng).count
        parts = [one.sample(HORIZON, paths=400, rng=rng).count for one in belief.draw(MANY, rng)]
        drawn = np.concatenate(parts)
        assert drawn.mean(axis=0) == pytest.approx(alone.mean(axis=0), abs=0.5)
        assert drawn.std(axis=0)[2:] == pytest.approx(alone.std(axis=0)[2:], rel=0.1)
        assert drawn.sum(axis=1).std() > 1.1 * alone.sum(axis=1).std()
        sums = [part.sum() for part in parts]
        assert np.corrcoef(np.arange(MANY), sums)[0, 1] > 0.9


class TestInCommon:
    """Split of a distribution into those of futures with few and with many instances."""

    HOURS = np.array([0.5, 6.0, 48.0])

    def distribution(self, capacity: int, seed: int = 0) -> np.ndarray:
        drawn = np.random.default_rng(seed).dirichlet(np.full(capacity + 1, 0.5), len(self.HOURS))
        drawn[:, 1:-1:3] = 0.0
        return drawn / drawn.sum(axis=1, keepdims=True)

    @every_capacity
    def test_the_parts_are_the_law_together_and_ordered(self, capacity):
        distribution = self.distribution(capacity)
        parts = split_by_common_factor(distribution, self.HOURS, MANY)
        assert parts.mean(axis=0) == pytest.approx(distribution, abs=1e-6)
        assert parts.sum(axis=2) == pytest.approx(1.0)
        assert (parts >= 0.0).all()
        assert (parts[:, distribution == 0.0] <= 1e-9).all()
        upto = np.cumsum(parts, axis=2)
        assert (np.diff(upto, axis=0) <= 1e-9).all(), "a later part has a smaller count more often"

    def test_the_share_in_common_comes_up_with_the_hours(self):
        fair = np.full((3, 2), 0.5)
        parts = split_by_common_factor(fair, self.HOURS, 2000)
        # Two fair binary values with a common normal factor are both 1 with probability 1/4 + asin(part) / 2 pi.
        both = (parts[:, :, 1] ** 2).mean(axis=0)
        part = COMMON_SHARE * (1.0 - np.exp(-self.HOURS / COMMON_HOURS))
        assert both == pytest.approx(0.25 + np.arcsin(part) / (2.0 * np.pi), abs=1e-3)

    def test_a_single_part_is_the_law_and_nothing_has_no_parts(self):
        distribution = self.distribution(5)
        assert split_by_common_factor(distribution, self.HOURS, 1)[0] == pytest.approx(distribution, abs=1e-9)
        assert split_by_common_factor(np.zeros((0, 6)), np.zeros(0), 4).shape == (4, 0, 6)


def test_counts_are_told_apart_up_to_a_point():
    assert count_states(16).tolist() == list(range(17))
    for capacity in (FINE_COUNTS, FINE_COUNTS + 1, 1024):
        states = count_states(capacity)
        assert states[:FINE_COUNTS].tolist() == list(range(FINE_COUNTS))
        assert states[-1] == capacity
        assert (np.diff(states) > 0).all()
        assert len(states) < 50


JOB = make_job(workload=30, deadline_slots=14, mu_up=0.9, value=60)
BEFORE = 40


def recorded(seed: int) -> tuple[Record, list[PointForecast | None]]:
    past = history(seed, 8, BEFORE + 20)
    record = make_record(past.price, past.available, first=BEFORE, slot_hours=0.5, peers=past.peers)
    return record, [forecast(slot, 8) if slot % 3 else None for slot in range(14)]


def seen_of(record: Record, told: list[PointForecast | None], *, kept: bool = True) -> SlotMarket:
    market = make_window(
        record.price[BEFORE : BEFORE + 14], record.available[BEFORE : BEFORE + 14], slot_hours=0.5
    )
    return see(JOB, market, told, record if kept else None)


def same(one: Belief, two: Belief) -> bool:
    arrays = ("count_now", "price_now", "count_steps", "price_steps", "count_distribution", "price_quantiles")
    return (
        all(np.array_equal(getattr(one, name), getattr(two, name)) for name in arrays)
        and np.array_equal(one.counts.transition, two.counts.transition)
        and np.array_equal(one.prices.level_usd, two.prices.level_usd)
    )


class TestInReplays:
    @pytest.mark.parametrize("with_record", [True, False])
    def test_a_scrambled_future_changes_nothing(self, with_record):
        """M4.9, including forecasts issued later."""
        record, told = recorded(8)
        rng = np.random.default_rng(0)
        for slot in (0, 4, 9):
            known = BEFORE + slot + 1
            price, available, peers = record.price.copy(), record.available.copy(), record.peers.copy()
            price[known:], available[known:] = rng.uniform(0.1, 1.3, len(price) - known), 3.0
            peers[:, known:] = 1.0
            other = replace(record, price=price, available=available, peers=peers)
            later = [*told[: slot + 1], *[forecast(99 + k, 8) for k in range(13 - slot)]]
            worlds = [seen_of(*world, kept=with_record) for world in ((record, told), (other, later))]
            beliefs = [seen.view(JOB, Progress(), slot).belief(Forgetting()) for seen in worlds]
            assert same(*beliefs)

    def test_a_look_ahead_goes_by_the_belief_it_began_with(self):
        seen = seen_of(*recorded(9))
        view = seen.view(JOB, Progress(), 4)
        policy, met = policy_named("Stochastic"), []

        class Noting:
            name = "noting"
            forgetting = policy.forgetting

            def start(self, job):
                return None

            def decide(self, state, at):
                met.append((at.slot, at.belief(self.forgetting)))
                return policy.decide(state, at)

            def explain(self, state, at, allocation):
                return ""

        futures = MarketPaths(price=np.full((3, 9), 0.5), count=np.full((3, 9), 2))
        simulate_ahead(present_of(Noting(), view), [futures], rng=np.random.default_rng(0))
        assert {slot for slot, _ in met} == set(range(4, 14))
        assert {id(belief) for _, belief in met} == {id(view.belief(policy.forgetting))}

    def test_a_policy_that_plans_by_a_belief_is_judged_by_the_same(self):
        view = seen_of(*recorded(10)).view(JOB, Progress(), 5)
        other = policy_named("Stochastic(3)")
        assert belief_of(other, view) is view.belief(other.forgetting)
        assert belief_of(policy_named("UP"), view) is view.belief(Forgetting())
        assert belief_of(other, view).chance_of_spot(2) == belief_of(policy_named("UP"), view).chance_of_spot(
            2
        )
