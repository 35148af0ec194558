"""Levels of evidence of spot availability, from prices only to a count in every slot (M13.1)."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from slackwater.optimization.belief.ratings import SlotRatings
from slackwater.warehouse.amounts import duration, plural

#: Levels: prices only; own launches; ratings by the provider; counts in some slots; counts in every slot.
PRICES, LAUNCHES, SCORES, PROBES, COUNTS = range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence of availability behind a decision: its level, ratings, own launches, counts and measured markets.

    ``counts`` is the number of counts before the slot, the newest ``count_age_hours`` old (None: no
    count). At the level `COUNTS` it is the number of slots with a count if they are too few to learn
    from, else 0.

    >>> str(Evidence(level=LAUNCHES, launches=3, markets=32))
    'availability not observed, assumed from 3 own launches and 32 measured markets'
    >>> str(Evidence(level=COUNTS, counts=1, markets=32))
    'availability observed in 1 slot, later slots assumed from 32 measured markets'
    >>> str(Evidence(level=PROBES, counts=40, count_age_hours=6.0, markets=32))
    'availability not observed for 6 h, assumed from 40 counts and 32 measured markets'
    >>> str(Evidence(level=SCORES, ratings=SlotRatings(slot=0, score=3, band=1), markets=32))
    'availability not observed, assumed from placement score 3 of 10, interruptions of 5 to 10 % a month and 32 measured markets'
    """

    level: int
    launches: int = 0
    counts: int = 0
    count_age_hours: float | None = None
    markets: int = 0
    ratings: SlotRatings | None = None

    @property
    def is_assumed(self) -> bool:
        """Whether availability is assumed from measured markets."""
        return self.markets > 0

    @property
    def is_known(self) -> bool:
        """Whether anything is known or assumed of the availability in the slot."""
        return self.level == COUNTS or self.is_assumed

    def __str__(self) -> str:
        if self.level == COUNTS:
            few = f" in {plural(self.counts, 'slot')}, later slots assumed from {plural(self.markets, 'measured market')}"
            return f"availability observed{few if self.counts else ''}"
        if not self.is_known:
            return "no recent count of available instances"
        parts = [] if self.ratings is None else self.ratings.words()
        parts += [
            f"{number} {singular if number == 1 else plural_form}"
            for number, singular, plural_form in (
                (self.counts, "count", "counts"),
                (self.launches, "own launch", "own launches"),
                (self.markets, "measured market", "measured markets"),
            )
            if number
        ]
        age = (
            ""
            if self.count_age_hours is None
            else f" for {duration(pd.Timedelta(hours=self.count_age_hours))}"
        )
        words = " and ".join([part for part in (", ".join(parts[:-1]), *parts[-1:]) if part])
        return f"availability not observed{age}, assumed from {words}"
