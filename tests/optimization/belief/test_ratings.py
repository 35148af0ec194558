"""Ratings by the provider: the belief moves the right way, within bounds, and own launches soon outweigh it (M13.3)."""

import numpy as np
import pytest

from slackwater.optimization.belief.archetypes import ALL, NONE, archetypes
from slackwater.optimization.belief.launches import UNKNOWN, Launch, Launches
from slackwater.optimization.belief.mixture import Mixture
from slackwater.optimization.belief.ratings import BANDS, SlotRatings, band_factors, state_likelihood

KNOWN = archetypes(4, 0.5)


def chances(*states, ahead=0, **ratings):
    """Return the probabilities of none, part and all of a request, now or ``ahead`` slots later."""
    mixture = Mixture.of(KNOWN, np.array(states), ratings=SlotRatings(slot=0, **ratings) if ratings else None)
    share = mixture.present
    for step in mixture.steps(ahead) if ahead else ():
        share = share @ step
    return share


@pytest.mark.parametrize("ahead", [0, 24])
def test_a_higher_score_makes_all_of_a_request_likelier_and_none_certain(ahead):
    granted = [chances(UNKNOWN, ahead=ahead, score=score)[ALL] for score in range(1, 11)]
    assert granted == sorted(granted)
    assert granted[0] < chances(UNKNOWN, ahead=ahead)[ALL] - 0.1 < granted[9] - 0.1
    assert granted[4] == pytest.approx(chances(UNKNOWN, ahead=ahead)[ALL])  # 5 of 10 states nothing
    assert 0.05 < granted[0] < granted[9] < 0.95
    if not ahead:  # as stated in M13.3
        assert [granted[0], granted[4], granted[8]] == pytest.approx([0.09, 0.62, 0.94], abs=0.005)
    assert np.array([state_likelihood(score) for score in range(11)]).min() == 0.1


def test_a_score_is_evidence_of_the_market_too_for_a_request_that_is_granted():
    low, high = (
        Mixture.of(KNOWN, np.array([UNKNOWN]), ratings=SlotRatings(slot=0, score=score)).steps(12)[
            :, ALL, ALL
        ]
        for score in (1, 9)
    )
    assert (high > low).all()


def test_an_old_score_counts_less():
    plain = chances(UNKNOWN, ahead=24)[ALL]
    effects = [plain - chances(UNKNOWN, ahead=24, score=1, slots_ago=age)[ALL] for age in (0, 12, 24, 48)]
    assert effects == sorted(effects, reverse=True)
    assert effects[-1] > 0.0


def test_own_launches_soon_outweigh_a_score_and_a_band():
    tries = [ALL] * 6
    for ratings in ({"score": 1}, {"score": 10}, {"band": 0}, {"band": 4}, {"score": 1, "band": 4}):
        assert chances(*tries, UNKNOWN, **ratings) == pytest.approx(chances(*tries, UNKNOWN), abs=0.02)
    before, after = (
        abs(chances(*own, UNKNOWN, score=1) - chances(*own, UNKNOWN)).max() for own in ([], [ALL])
    )
    assert after < before / 2


def test_a_band_prefers_the_archetypes_with_such_losses_by_at_most_a_factor_of_four():
    running = KNOWN.share[:, :, ALL]
    lost = (running * (1 - KNOWN.chain[:, :, ALL, ALL])).sum(axis=1) / np.maximum(running.sum(axis=1), 1e-12)
    means = []
    for band in range(len(BANDS)):
        factors = band_factors(KNOWN, band)
        assert set(factors) <= {0.5, 1.0, 2.0}
        weight = KNOWN.weight * factors
        means.append(lost @ weight / weight.sum())
    assert means == sorted(means)
    assert chances(UNKNOWN, ahead=24, band=0)[ALL] > chances(UNKNOWN, ahead=24, band=4)[ALL]


def test_a_score_counts_until_an_own_launch_or_a_count_and_no_rating_before_it_was_known():
    ratings = SlotRatings(slot=6, score=3, slots_ago=2, band=1)

    def rated(slot, *launches, counts=None):
        known = Launches.of(4, launches, 12, KNOWN, counts=counts, ratings=ratings)
        return known.ratings_at(slot)

    assert rated(5) is None
    assert rated(6, Launch(slot=3, state=NONE)) == ratings
    assert rated(8) == SlotRatings(slot=8, score=3, slots_ago=4, band=1)
    assert rated(6, Launch(slot=4, state=NONE)) == SlotRatings(slot=6, slots_ago=2, band=1)
    counts = np.full(12, np.nan)
    counts[6] = 4.0
    assert rated(6, counts=counts) is None  # the count of the slot was read
    assert rated(7, counts=counts) == SlotRatings(slot=7, slots_ago=3, band=1)


def test_without_ratings_the_belief_is_the_same_to_the_last_bit():
    for states in ([UNKNOWN], [ALL, NONE, UNKNOWN], [ALL]):
        plain, none = (
            Mixture.of(KNOWN, np.array(states), ratings=own) for own in (None, SlotRatings(slot=0))
        )
        assert (plain.weight == none.weight).all()
        assert (plain.now == none.now).all()
