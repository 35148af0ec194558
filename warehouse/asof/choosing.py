"""Which series of a market answers: sources by trust, products by preference, only from what is known (M1.2)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pandas as pd

from warehouse.errors import MarketError
from warehouse.history import Market
from warehouse.packaged import read_sql
from warehouse.store.connection import Store
from warehouse.times import microseconds

#: On-change prices repeat about every 24 h when they do not change (M1.3).
PRICE_MAX_AGE = pd.Timedelta(hours=36)
#: A count is stale after this many of its source's nominal gaps (M1.3).
GAPS_UNTIL_STALE = 3
#: Products preferred, after the one asked for and after the only one there is.
PREFERRED_PRODUCTS = ("Linux/UNIX", "per GPU, min over offers")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotGrid:
    """A slot grid in microseconds since the epoch: slots ``first_us``, + ``step_us``, ... ``last_us``, as known at ``known_at``.

    ``first_us`` None: from the first observation on. ``max_age_us`` None: the default of M1.3.
    """

    first_us: int | None
    last_us: int
    step_us: int
    known_at: dt.datetime
    max_age_us: int | None

    def price_age(self) -> int:
        """Age in microseconds beyond which a price is a gap."""
        return self.max_age_us or max(microseconds(PRICE_MAX_AGE, "max_age"), self.step_us)

    def count_age(self, nominal_us: float | None) -> int:
        """Age in microseconds beyond which a count is a gap."""
        return self.max_age_us or max(int(GAPS_UNTIL_STALE * (nominal_us or 0)), self.step_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSeries:
    """One series as known at one time; times in microseconds since the epoch.

    ``latest_us`` is the newest observation at or before the grid's last slot. ``single``: one distinct value, never repeated within
    the maximal age of a price. ``nominal_us``: the stated gap, else the median one. ``capacity`` is the largest stated.
    """

    sid: int
    source: str
    kind: str
    product: str
    first_us: int
    latest_us: int | None
    single: bool
    highest: float
    on_demand_usd: float | None
    capacity: int | None
    capacity_stated: bool
    nominal_us: float | None

    def age(self, grid: SlotGrid) -> int:
        """Age in microseconds beyond which a value of this series is a gap."""
        return grid.price_age() if self.kind == "price" else grid.count_age(self.nominal_us)

    def reaches(self, grid: SlotGrid) -> bool:
        """Whether it gives a value to any slot of the grid."""
        if self.latest_us is None:
            return False
        return grid.first_us is None or self.latest_us >= grid.first_us - self.age(grid)


def known_series(store: Store, asked: Sequence[tuple[Market, SlotGrid]]) -> list[list[KnownSeries]]:
    """For each market all series that are known at its grid's time, by kind, source and product; one query.

    The grids share the time they are known at and the age of prices.
    """
    if not asked:
        return []
    markets = [market for market, _ in asked]
    rows = store.execute(
        read_sql(__package__, "series_known"),
        {
            "provider": [market.provider for market in markets],
            "region": [market.region for market in markets],
            "zone": [market.zone for market in markets],
            "instance_type": [market.instance_type for market in markets],
            "last_us": [grid.last_us for _, grid in asked],
            "known_at": asked[0][1].known_at,
            "repeat_us": asked[0][1].price_age(),
        },
    )
    found: list[list[KnownSeries]] = [[] for _ in asked]
    for place, *row in rows:
        found[place].append(KnownSeries(**dict(zip(KnownSeries.__slots__, row, strict=True))))
    return found


def trust_rank(source: str, trust: Sequence[str]) -> tuple[int, str]:
    """Sort key: position of the first pattern that matches, unlisted sources last, then alphabetical."""
    ranks = (position for position, pattern in enumerate(trust) if fnmatchcase(source, pattern))
    return next(ranks, len(trust)), source


def pick_series(
    known: Sequence[KnownSeries], kind: str, grid: SlotGrid, *, preferred: str | None, trust: Sequence[str]
) -> KnownSeries | None:
    """The series that answers for one variable.

    It is of the preferred source if that has any, else of the most trusted source that reaches the grid. Without a
    preferred source, one that does not reach the grid is better than none: it answers with gaps.
    """
    past = [s for s in known if s.kind == kind and s.latest_us is not None]
    own = [s for s in past if s.source == preferred]
    if own:
        return pick_product(own)
    others = [s for s in past if s.reaches(grid)] or (past if preferred is None else [])
    if not others:
        return None
    best = min({s.source for s in others}, key=lambda source: trust_rank(source, trust))
    return pick_product([s for s in others if s.source == best])


def pick_product(series: Sequence[KnownSeries]) -> KnownSeries:
    """One of several products of one source: Linux/UNIX, then "per GPU, min over offers", then the first by name."""
    by_product = {s.product: s for s in series}
    for product in PREFERRED_PRODUCTS:
        if product in by_product:
            return by_product[product]
    return by_product[min(by_product)]


def require_source(known: Sequence[KnownSeries], market: Market, source: str | None) -> None:
    """Raise `MarketError` if the market has no observation known, or none of the source asked for."""
    sources = sorted({s.source for s in known})
    if not sources:
        raise MarketError(
            f"market {market.key} has no observations known by then",
            remedy="`slackwater markets` lists the known ones",
        )
    if source is not None and source not in sources:
        raise MarketError(
            f"source {source!r} knows nothing of {market.key}", expected=f"one of {', '.join(sources)}"
        )


def only_product(known: Sequence[KnownSeries], market: Market, product: str | None) -> list[KnownSeries]:
    """Leave out the prices of other products; raises `MarketError` if there is none of the one asked for."""
    if product is None:
        return list(known)
    products = sorted({s.product for s in known if s.kind == "price"})
    if product not in products:
        raise MarketError(
            f"product {product!r} of {market.key} has no price",
            expected=f"one of {', '.join(products) or 'none'}",
        )
    return [s for s in known if s.kind != "price" or s.product == product]
