"""Levels of evidence of spot availability, from prices only to a count in every slot (M13.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Levels: prices only; own launches; placement scores; counts now and then; counts in every slot.
PRICES, LAUNCHES, SCORES, PROBES, COUNTS = range(5)
#: What each level says in a sentence.
WORDS: Final = {
    PRICES: "availability not observed, assumed from {markets} measured markets",
    LAUNCHES: "availability not observed, assumed from {launches} and {markets} measured markets",
    SCORES: "availability not observed, assumed from placement scores, {launches} and {markets} measured markets",
    PROBES: "no recent count of available instances",
    COUNTS: "availability observed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence of availability behind a decision: its level, own launches and measured markets.

    >>> str(Evidence(level=LAUNCHES, launches=3, markets=32))
    'availability not observed, assumed from 3 own launches and 32 measured markets'
    """

    level: int
    launches: int = 0
    markets: int = 0

    def __str__(self) -> str:
        own = f"{self.launches} own launch{'' if self.launches == 1 else 'es'}"
        return WORDS[self.level].format(launches=own, markets=self.markets)
