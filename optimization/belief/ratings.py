"""Ratings of a market by its provider as weak evidence of availability: placement score and interruption band (M13.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from slackwater.optimization.belief.archetypes import ALL, Archetypes

#: Interruption bands: the share of instances that the provider interrupted within a month.
BANDS: Final = ("less than 5 %", "5 to 10 %", "10 to 15 %", "15 to 20 %", "more than 20 %")
#: Bounds of the likelihood of a state, so that no score is certain.
LEAST_LIKELY, MOST_LIKELY = 0.1, 0.9
#: Factors of archetypes whose losses are in the band, in an adjacent band, and in any other band.
BAND_FACTORS: Final = (2.0, 1.0, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRatings:
    """Ratings known in a job's ``slot``: ``score`` (1 to 10), ``slots_ago`` slots old, and ``band`` (0 to 4), None if unknown."""

    slot: int
    score: int | None = None
    slots_ago: int = 0
    band: int | None = None

    def words(self) -> list[str]:
        """Return the ratings in words."""
        score = [] if self.score is None else [f"placement score {self.score} of 10"]
        return score + ([] if self.band is None else [f"interruptions of {BANDS[self.band]} a month"])


def state_likelihood(score: int) -> np.ndarray:
    """Return the likelihood of a placement score if none, part or all of a request is available, shape (3,).

    >>> state_likelihood(3).tolist(), state_likelihood(10).tolist()
    ([0.7, 0.5, 0.3], [0.1, 0.5, 0.9])
    """
    return np.clip([1.0 - score / 10.0, 0.5, score / 10.0], LEAST_LIKELY, MOST_LIKELY)


def rating_factors(archetypes: Archetypes, ratings: SlotRatings, fade: float) -> np.ndarray:
    """Return the factor of each archetype's weight, shape (A,): that of the band, times the mean likelihood of the score.

    The likelihood is averaged over the archetype's share of time in each state, and raised to the power ``fade``.
    """
    factors = np.ones(len(archetypes))
    if ratings.band is not None:
        factors *= band_factors(archetypes, ratings.band)
    if ratings.score is not None:
        likelihood = archetypes.share.sum(axis=1) @ state_likelihood(ratings.score)
        factors *= likelihood**fade
    return factors


def band_factors(archetypes: Archetypes, band: int) -> np.ndarray:
    """Return the factor of each archetype's weight for an interruption band, shape (A,).

    A band stands for a fifth of the archetypes by weight, ordered by the chance that a request whose
    instances all run loses some of them in a slot.
    """
    running = archetypes.share[:, :, ALL]
    lost = (running * (1.0 - archetypes.chain[:, :, ALL, ALL])).sum(axis=1)
    order = np.argsort(lost / np.maximum(running.sum(axis=1), 1e-12), kind="stable")
    weight = archetypes.weight[order]
    fifth = np.empty(len(order), dtype=np.int64)
    fifth[order] = (len(BANDS) * (np.cumsum(weight) - weight / 2.0)).astype(np.int64)
    return np.array(BAND_FACTORS)[np.minimum(np.abs(fifth - band), len(BAND_FACTORS) - 1)]
