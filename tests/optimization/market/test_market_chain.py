"""Markov chains of instance counts and spot prices compared with cases computed by hand (M4.6)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import make_past

from slackwater.optimization.market.belief import (
    LEVEL_WIDTH,
    MOST_STATES,
    CountChain,
    Forgetting,
    count_chain,
    even_levels,
    price_chain,
    weighted_transitions,
)
from slackwater.optimization.market.window import Past

NAN = float("nan")
#: Half-lives of one slot, for slots of an hour.
BRIEF = Forgetting(own_hours=1.0, peer_hours=1.0, price_hours=1.0)


def past(counts, *, price=None, peers=()) -> Past:
    seen = np.asarray(counts, dtype=float)
    paid = np.full(len(seen), 0.4) if price is None else np.asarray(price, dtype=float)
    others = np.asarray(peers, dtype=float).reshape(-1, len(seen))
    return make_past(price=paid, available=seen, peers=others)


def chain_of(seen: Past, n_max: int, **changes) -> CountChain:
    return count_chain(
        seen,
        even_levels(n_max),
        slot_hours=1.0,
        forgetting=Forgetting(**{"own_hours": 1.0, "peer_hours": 1.0} | changes),
    )


def prices_of(price, now: float, **changes):
    seen = past(np.zeros(len(price)), price=price)
    return price_chain(
        seen, now, 1.0, slot_hours=1.0, forgetting=Forgetting(**{"price_hours": 1.0} | changes)
    )


class TestForgotten:
    def test_each_half_life_halves_a_transition(self):
        counted = weighted_transitions(np.array([[0, 1, 1, 0]]), 2, 1.0)
        np.testing.assert_allclose(counted, [[0.0, 0.25], [1.0, 0.5]])

    def test_the_newest_transition_weighs_one_whatever_the_half_life(self):
        np.testing.assert_allclose(
            weighted_transitions(np.array([[2, 0]]), 3, 7.0), [[0, 0, 0], [0, 0, 0], [1, 0, 0]]
        )

    def test_an_unknown_slot_takes_both_transitions_around_it_away_and_ages_stay(self):
        counted = weighted_transitions(np.array([[0, 1, -1, 1, 0]]), 2, 1.0)
        np.testing.assert_allclose(counted, [[0.0, 0.125], [1.0, 0.0]])

    def test_rows_add_up(self):
        counted = weighted_transitions(np.array([[0, 1, 1], [1, 1, 0], [-1, -1, -1]]), 2, 1.0)
        np.testing.assert_allclose(counted, [[0.0, 0.5], [1.0, 1.5]])

    @pytest.mark.parametrize("shape", [(1, 1), (0, 5), (0, 0), (3, 1)])
    def test_without_transitions_nothing_is_counted(self, shape):
        np.testing.assert_array_equal(
            weighted_transitions(np.zeros(shape, dtype=int), 3, 2.0), np.zeros((3, 3))
        )

    def test_it_is_the_plain_sum_over_transitions(self):
        rng = np.random.default_rng(4)
        states, plain = rng.integers(-1, 4, (3, 40)), np.zeros((4, 4))
        for row in states:
            for t in range(39):
                if row[t] >= 0 and row[t + 1] >= 0:
                    plain[row[t], row[t + 1]] += 0.5 ** ((38 - t) / 5.5)
        np.testing.assert_allclose(weighted_transitions(states, 4, 5.5), plain)


class TestCounts:
    def test_by_hand(self):
        """Own transitions 0 -> 1 (one half-life old: 0.5) and 1 -> 1 (now: 1), no peers.

        Stayed (1 + 4) / (1.5 + 5) = 10/13, visits (0.5, 2) / 2.5, so the prior's rows are (10.6, 2.4) / 13
        and (0.6, 12.4) / 13. With prior weight 4: (42.4, 16.1) / 58.5 and (2.4, 62.6) / 65. Own transitions
        again with weight 8: as below.
        """
        found = chain_of(past([0, 1, 1]), 1)
        assert found.count.tolist() == [0, 1]
        np.testing.assert_allclose(found.transition[0], np.array([339.2, 158.05]) / 497.25)
        np.testing.assert_allclose(found.transition[1], np.array([19.2, 565.8]) / 585.0)

    def test_one_slot_of_history_stays_put_with_four_fifths(self):
        """No transitions: stay with probability 4/5, the rest spread evenly over the states."""
        np.testing.assert_allclose(chain_of(past([2]), 2).transition, 0.8 * np.eye(3) + 0.2 / 3.0)

    def test_by_hand_with_a_peer(self):
        """The peer's 0 -> 1 counts in the pooled row only; without own transitions the pooled row decides alone."""
        found = chain_of(past([NAN, NAN], peers=[[0, 1]]), 1)
        stayed, visits = 4.0 / 6.0, np.array([0.5, 1.5]) / 2.0
        prior = (1 - stayed) * visits + stayed * np.array([1.0, 0.0])
        np.testing.assert_allclose(found.transition[0], (np.array([0.0, 1.0]) + 4.0 * prior) / 5.0)

    def test_own_transitions_outweigh_those_of_peers(self):
        own, peer = [0, 1] * 30, [0, 0] * 30
        alone = chain_of(past(own), 1, own_hours=1e6, peer_hours=1e6)
        among = chain_of(past(own, peers=[peer] * 3), 1, own_hours=1e6, peer_hours=1e6)
        others = chain_of(past([NAN] * 60, peers=[peer] * 3), 1, own_hours=1e6, peer_hours=1e6)
        assert alone.transition[0, 0] < among.transition[0, 0] < 0.25 < others.transition[0, 0]
        assert others.transition[0, 0] > 0.95

    def test_what_is_long_ago_is_forgotten(self):
        """A hundred volatile slots, then a hundred calm slots: a half-life of half a day remembers the calm only."""
        seen = past([0, 1] * 50 + [1] * 100)
        brief, long = (chain_of(seen, 1, own_hours=hours).transition[1, 1] for hours in (12.0, 1e6))
        assert brief > 0.95
        assert long < 0.75

    def test_half_lives_are_hours_not_slots(self):
        seen = past([0, 2, 1, 1, 0, 2, 2, 1])
        halves = count_chain(
            seen, even_levels(2), slot_hours=0.5, forgetting=Forgetting(own_hours=3.0, peer_hours=3.0)
        )
        hours = count_chain(
            seen, even_levels(2), slot_hours=1.0, forgetting=Forgetting(own_hours=6.0, peer_hours=6.0)
        )
        np.testing.assert_allclose(halves.transition, hours.transition)

    def test_gaps_are_never_counted(self):
        """No transition into, out of or across a gap is counted; a peer without observations counts as no peer."""
        nothing = chain_of(past([1]), 1).transition
        np.testing.assert_allclose(chain_of(past([1, NAN, 0, NAN, 1]), 1).transition, nothing)
        np.testing.assert_allclose(chain_of(past([NAN] * 4, peers=[[0, NAN, NAN, 1]]), 1).transition, nothing)
        seen = [0, 1, 1, 0, 1]
        np.testing.assert_array_equal(
            chain_of(past(seen, peers=[[NAN] * 5]), 1).transition, chain_of(past(seen), 1).transition
        )

    def test_more_than_n_max_is_n_max(self):
        seen, capped = [9, 3, 0, 4, 12], [3, 3, 0, 3, 3]
        np.testing.assert_array_equal(
            chain_of(past(seen, peers=[seen]), 3).transition,
            chain_of(past(capped, peers=[capped]), 3).transition,
        )

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(
        st.integers(0, 2**32 - 1),
        st.integers(1, 70),
        st.integers(1, 30),
        st.integers(0, 3),
        st.floats(0.05, 24.0),
    )
    def test_rows_are_probabilities_and_every_move_is_possible(self, seed, n_max, slots, peers, slot_hours):
        rng = np.random.default_rng(seed)
        counts = rng.integers(0, n_max + 5, (peers + 1, slots)).astype(float)
        counts[rng.random(counts.shape) < 0.3] = NAN
        found = count_chain(
            past(counts[0], peers=counts[1:]),
            even_levels(n_max),
            slot_hours=slot_hours,
            forgetting=Forgetting(),
        )
        size = len(found.count)
        assert found.transition.shape == (size, size)
        assert size <= MOST_STATES
        np.testing.assert_allclose(found.transition.sum(axis=1), 1.0)
        assert (found.transition > 0).all()


class TestCountLevels:
    @pytest.mark.parametrize("n_max", [1, 2, 8, 9])
    def test_small_sizes_are_all_told_apart(self, n_max):
        assert even_levels(n_max).tolist() == list(range(n_max + 1))

    @pytest.mark.parametrize("n_max", [10, 16, 21, 64, 1000])
    def test_large_ones_are_spread_with_both_ends(self, n_max):
        levels = even_levels(n_max)
        assert (levels[0], levels[-1], len(levels)) == (0, n_max, MOST_STATES)
        assert np.ptp(np.diff(levels)) <= 1

    def test_a_count_between_two_is_the_lower_one(self):
        """Rounding up would count on instances that are not available."""
        chain = chain_of(past([64, 0, 30]), 64)
        for available in range(70):
            level = chain.count[chain.index(available)]
            assert level <= available
            assert level == max(c for c in chain.count if c <= available)


class TestPrices:
    def test_a_flat_price_is_one_level_that_stays(self):
        found = prices_of([0.4] * 20, 0.4)
        np.testing.assert_array_equal(found.level_usd, [0.4])
        np.testing.assert_array_equal(found.transition, [[1.0]])
        assert not found.dear

    def test_by_hand(self):
        """0.2, 0.6, 0.6 at half-lives of a slot: 0 -> 1 is 0.5, 1 -> 1 is 1, plus 2 on the diagonal, 0.02 everywhere."""
        found = prices_of([0.2, 0.6, 0.6], 0.6, levels=2)
        # Quantiles at 1/4 and 3/4 of (0.2, 0.6, 0.6).
        np.testing.assert_allclose(found.level_usd, [0.4, 0.6])
        np.testing.assert_allclose(found.transition[0], np.array([2.02, 0.52]) / 2.54)
        np.testing.assert_allclose(found.transition[1], np.array([0.02, 3.02]) / 3.04)

    def test_a_gap_is_no_transition(self):
        with_gap, without = prices_of([0.2, NAN, 0.6], 0.6), prices_of([0.2, NAN, NAN, 0.6], 0.6)
        np.testing.assert_array_equal(with_gap.transition, without.transition)
        off_diagonal = with_gap.transition[~np.eye(len(with_gap.level_usd), dtype=bool)]
        assert off_diagonal.max() < 0.011  # 0.02 in a row that sums to slightly more than 2

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.floats(0.01, 1.6), st.integers(1, 6))
    def test_levels_are_few_apart_and_hold_the_present_price(self, seed, slots, now, most):
        rng = np.random.default_rng(seed)
        price = np.clip(0.5 + 0.2 * rng.normal(size=slots).cumsum(), 0.01, 1.5)
        price[rng.random(slots) < 0.2] = NAN
        price[-1] = now
        found = prices_of(price, now, levels=most)
        assert len(found.level_usd) <= most + found.dear
        assert (np.diff(found.level_usd) > 0).all()
        assert found.dear == bool((price[~np.isnan(price)] >= 1.0).any())
        np.testing.assert_allclose(found.transition.sum(axis=1), 1.0)
        assert (found.transition > 0).all()
        here = found.level_usd[found.index(now)]
        assert here == (now if now < 1.0 else 1.0)
        # All other levels differ by more than the minimum width, except the level moved to the present price.
        kept = [level for level in found.level_usd if level not in (here, 1.0)]
        assert all(b - a > LEVEL_WIDTH for a, b in pairwise(kept))

    def test_prices_at_or_above_on_demand_are_the_last_level(self):
        found = prices_of([0.4, 0.4, 1.0, 3.0, 0.4], 0.4)
        np.testing.assert_array_equal(found.level_usd, [0.4, 1.0])
        assert found.dear
        assert [found.index(p) for p in (0.1, 0.4, 0.97, 1.0, 8.0)] == [0, 0, 0, 1, 1]
        # 0.4 -> 0.4 is 1/8, 0.4 -> 1 is 1/4, 1 -> 1 is 1/2 and 1 -> 0.4 is 1.
        np.testing.assert_allclose(
            found.transition, [[2.145 / 2.415, 0.27 / 2.415], [1.02 / 3.54, 2.52 / 3.54]]
        )

    def test_a_price_just_below_on_demand_is_not_the_last_level(self):
        """The price is closest to on-demand, but spot is still useful there."""
        found = prices_of([0.4, 0.99, 1.2, 0.4], 0.4, levels=1)
        np.testing.assert_array_equal(found.level_usd, [0.4, 1.0])
        assert found.index(0.99) == 0
        # 0.4 -> 0.99 stays on the first level (1/4), 0.99 -> 1.2 leaves it (1/2).
        np.testing.assert_allclose(found.transition[0], np.array([2.27, 0.52]) / 2.79)

    def test_a_market_always_dear_has_on_demand_only(self):
        found = prices_of([1.3, 1.0, 2.0], 1.3)
        np.testing.assert_array_equal(found.level_usd, [1.0])
        np.testing.assert_array_equal(found.transition, [[1.0]])
        assert (found.index(1.3), found.index(0.2)) == (0, 0)

    def test_a_cheap_price_after_dear_ones_is_a_level_of_its_own(self):
        found = prices_of([1.3, 1.3, 1.3], 0.25)
        np.testing.assert_array_equal(found.level_usd, [0.25, 1.0])

    def test_nothing_known_but_the_present_price(self):
        found = prices_of([NAN, NAN], 0.25)
        np.testing.assert_array_equal(found.level_usd, [0.25])

    def test_prices_of_long_ago_make_no_levels(self):
        """Prices ten days old, for hourly slots and a half-life of half a day."""
        old, new = [0.9] * 20, [0.3] * 12
        np.testing.assert_array_equal(prices_of(old + new, 0.3, price_days=0.5).level_usd, [0.3])
        assert len(prices_of(old + new, 0.3, price_days=2.0).level_usd) > 1
