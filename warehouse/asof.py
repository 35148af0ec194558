"""Histories of markets on a slot grid, as known at a given time (M1.2, M1.3), and readers for many times."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pandas as pd

from slackwater.warehouse.amounts import LARGEST_COUNT, plural
from slackwater.warehouse.catalogue import (
    Conventions,
    OnDemandTerms,
    known_conventions,
    list_price,
    planning_item,
    product_rank,
    terms_for,
    unplanned_words,
)
from slackwater.warehouse.documents import read_sql
from slackwater.warehouse.errors import MarketError, SettingsError
from slackwater.warehouse.history import (
    AVAILABLE,
    GAPS_UNTIL_STALE,
    NOT_SOLD,
    OBSERVED,
    PRICE,
    READ_SLOTS,
    ROW_KNOWN_AT,
    UNKNOWN,
    UNOBSERVED,
    History,
    Market,
    OnDemandOrigin,
)
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import microseconds, moment, utc_index

#: On-change prices repeat about every 24 h when they do not change (M1.3).
PRICE_MAX_AGE = pd.Timedelta(hours=36)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotGrid:
    """Slots ``first_us`` (None: first observation), + ``step_us``, ... ``last_us`` since the epoch, as known at ``known_at``."""

    first_us: int | None
    last_us: int
    step_us: int
    known_at: dt.datetime

    def whole(self) -> SlotGrid:
        """Return the same grid, starting at the first observation."""
        return replace(self, first_us=None)

    def price_age(self) -> int:
        """Return the age in microseconds beyond which a price is a gap."""
        return max(microseconds(PRICE_MAX_AGE, "max_age"), self.step_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSeries:
    """Summary of a series as known at a given time; times in microseconds since the epoch.

    ``latest_us``: newest observation at or before the grid's last slot. ``single``: only one
    distinct value, never repeated within the maximal age of a price. ``nominal_us``: stated gap,
    else the median gap. ``capacity``: largest stated capacity. ``newest``: value at ``latest_us``;
    ``at_least``: it is a count that reached the probe's limit, so that more instances may have been
    available. ``form`` of counts: probe, held, offers, "" if not stated.
    """

    sid: int
    source: str
    kind: str
    product: str
    first_us: int
    latest_us: int | None
    single: bool
    highest: float
    newest: float | None
    on_demand_usd: float | None
    capacity: int | None
    capacity_stated: bool
    nominal_us: float | None
    at_least: bool
    form: str

    def age(self, grid: SlotGrid) -> int:
        """Return the age in microseconds beyond which a value of this series is a gap."""
        if self.kind == "price":
            return grid.price_age()
        return max(int(GAPS_UNTIL_STALE * (self.nominal_us or 0)), grid.step_us)

    def fresh(self, grid: SlotGrid) -> bool:
        """Return whether the newest value is no gap at the grid's last slot."""
        return self.latest_us is not None and grid.last_us - self.latest_us <= self.age(grid)

    def reaches(self, grid: SlotGrid) -> bool:
        """Return whether the series has a value in any slot of the grid."""
        if self.latest_us is None:
            return False
        return grid.first_us is None or self.latest_us >= grid.first_us - self.age(grid)


def known_series(store: Store, requests: Sequence[tuple[Market, SlotGrid]]) -> list[list[KnownSeries]]:
    """Return, for each market, all series known at its grid's time, sorted by kind, source and product.

    Runs a single query; the grids must share ``known_at`` and the maximal age of prices.
    """
    if not requests:
        return []
    markets = [market for market, _ in requests]
    rows = store.execute(
        *_of_series(
            "series_known",
            markets,
            last_us=[grid.last_us for _, grid in requests],
            known_at=requests[0][1].known_at,
            repeat_us=requests[0][1].price_age(),
        )
    )
    series_of_requests: list[list[KnownSeries]] = [[] for _ in requests]
    for place, *row in rows:
        series_of_requests[place].append(KnownSeries(**dict(zip(KnownSeries.__slots__, row, strict=True))))
    return series_of_requests


def _of_series(
    name: str, markets: Sequence[Market], *, last_us: Sequence[int], **columns: object
) -> tuple[str, dict[str, object]]:
    """Return a statement on the newest known versions of all series of some markets, and its parameters."""
    return read_sql(__package__, "series_versions") + read_sql(__package__, name), {
        "provider": [market.provider for market in markets],
        "region": [market.region for market in markets],
        "zone": [market.zone for market in markets],
        "instance_type": [market.instance_type for market in markets],
        "last_us": last_us,
        **columns,
    }


def trust_rank(source: str, trust: Sequence[str]) -> tuple[int, str]:
    """Return a sort key: the position of the first matching pattern (unlisted sources last), then the label."""
    ranks = (position for position, pattern in enumerate(trust) if fnmatchcase(source, pattern))
    return next(ranks, len(trust)), source


def pick_series(
    known: Sequence[KnownSeries], kind: str, grid: SlotGrid, *, preferred: str | None, trust: Sequence[str]
) -> KnownSeries | None:
    """Return the series used for a variable (``kind``), None if there is none.

    It is the series of the preferred source if that has any, else of the most trusted source that
    has a value in the grid. Without a preferred source, a source that does not reach the grid is
    used as a last resort: it yields gaps. Within a source the product used for planning is taken;
    sources without such a product are ignored.
    """
    past: dict[str, list[KnownSeries]] = {}
    for series in known:
        if series.kind == kind and series.latest_us is not None:
            past.setdefault(series.source, []).append(series)
    planned_series = (pick_product(of_source) for of_source in past.values())
    candidates = {series.source: series for series in planned_series if series is not None}
    if preferred in candidates:
        return candidates[preferred]
    reaching = [series for series in candidates.values() if series.reaches(grid)]
    others = reaching or (list(candidates.values()) if preferred is None else [])
    return min(others, key=lambda series: trust_rank(series.source, trust), default=None)


def pick_product(series: Sequence[KnownSeries]) -> KnownSeries | None:
    """Return the series of the product used for planning (`slackwater.warehouse.catalogue`), None if there is none."""
    return planning_item(series, lambda known: known.product)


# ---
# Contradictions between the sources of a market (M1.5, ours).

PRICES_APART = 0.25  # Prices that differ by more than this share of the larger contradict each other
#: Counts that differ by at least this many instances, and by more than half of the larger,
#: contradict each other.
COUNTS_APART = 2


def contradictions(known: Sequence[KnownSeries], grid: SlotGrid, used: str) -> tuple[str, ...]:
    """Return a sentence for each source whose newest values contradict those of the source in use; stale values are ignored."""
    newest: dict[tuple[str, str], list[KnownSeries]] = {}
    for series in known:
        if series.fresh(grid):
            newest.setdefault((series.source, series.kind), []).append(series)
    planned = {place: pick_product(of_place) for place, of_place in newest.items()}
    sentences = []
    for source in sorted({series.source for series in known} - {used}):
        apart = []
        for kind in ("price", "availability"):
            mine, other = planned.get((used, kind)), planned.get((source, kind))
            if mine is not None and other is not None and _contradict(mine, other):
                apart.append((_value_words(mine), _value_words(other)))
        if apart:
            mine_told, other_told = (" and ".join(parts) for parts in zip(*apart, strict=True))
            sentences.append(f"{used}, which is used, has {mine_told}; {source} has {other_told}")
    return tuple(sentences)


def contradicting_sources(
    store: Store, at: pd.Timestamp, step: pd.Timedelta, trust: Sequence[str] = ()
) -> list[str]:
    """Return a sentence for each source that contradicts the most trusted fresh source of its market at a time (M1.5)."""
    rows = store.execute(
        "SELECT provider, region, zone, instance_type, list(DISTINCT source) FROM series JOIN markets USING (mid) "
        "GROUP BY ALL HAVING count(DISTINCT source) > 1 ORDER BY ALL"
    )
    last_us, step_us = microseconds(at, "time"), microseconds(step, "step")
    grid = SlotGrid(first_us=None, last_us=last_us, step_us=step_us, known_at=moment(at, "time"))
    markets = [Market(provider=p, region=r, zone=z, instance_type=t) for p, r, z, t, _ in rows]
    sentences = []
    for market, known in zip(
        markets, known_series(store, [(market, grid) for market in markets]), strict=True
    ):
        fresh = {series.source for series in known if series.fresh(grid)}
        if fresh:
            used = min(fresh, key=lambda source: trust_rank(source, trust))
            sentences += [f"{market.key}: {text}" for text in contradictions(known, grid, used)]
    return sentences


def _contradict(first: KnownSeries, other: KnownSeries) -> bool:
    if first.newest is None or other.newest is None:
        return False
    apart, largest = abs(first.newest - other.newest), max(first.newest, other.newest)
    if first.kind == "price":
        alike = first.product == other.product or "unspecified" in (first.product, other.product)
        return alike and apart > PRICES_APART * largest
    if first.form and other.form and first.form != other.form:
        return False
    fewer = min(first, other, key=lambda series: series.newest or 0.0)
    if fewer.at_least and fewer.newest:
        return False
    return (not fewer.newest and largest > 0) or (apart >= COUNTS_APART and apart > largest / 2)


def _value_words(series: KnownSeries) -> str:
    value = series.newest or 0.0
    at = utc_index(np.array([series.latest_us], dtype=np.int64))[0]
    what = f"{value:,.4g} USD" if series.kind == "price" else plural(int(value), "spot instance")
    return f"{what} ({at:%Y-%m-%d %H:%M} UTC)"


def require_source(
    store: Store, known: Sequence[KnownSeries], market: Market, source: str | None, grid: SlotGrid
) -> None:
    """Raise `MarketError` if the market, or the requested source of it, has no observation known at the grid's time."""
    sources = sorted({s.source for s in known})
    if source in sources or (source is None and sources):
        return
    later = not_known_yet(store, market, source, at=grid.known_at, step=pd.Timedelta(grid.step_us, unit="us"))
    if later is not None:
        raise later
    if not sources:
        raise MarketError(
            f"market {market.key} has no observations known by then",
            remedy="`slackwater markets` lists the known ones",
        )
    raise MarketError(
        f"source {source!r} knows nothing of {market.key}", expected=f"one of {', '.join(sources)}"
    )


def first_known_us(store: Store, market: Market, source: str | None) -> int | None:
    """Return when the first observation of a market (of a source) became known, in microseconds; None if there is none."""
    ((first_us,),) = store.execute(read_sql(__package__, "first_known"), {**asdict(market), "source": source})
    return None if first_us is None else int(first_us)


def not_known_yet(
    store: Store, market: Market, source: str | None, *, at: pd.Timestamp | dt.datetime, step: pd.Timedelta
) -> MarketError | None:
    """Return the error for a market first known after ``at``, with the first slot that can use it; None for other markets."""
    first_us = first_known_us(store, market, source)
    at_us, step_us = microseconds(pd.Timestamp(at), "time"), microseconds(step, "step")
    if first_us is None or -(-first_us // step_us) * step_us <= at_us:
        return None
    first, following = -(-first_us // step_us) * step_us, (at_us // step_us + 1) * step_us
    name = market.key if source is None else f"{market.key}@{source}"
    return MarketError(
        f"market {name} has no observations known by then ({_minute(at_us)}): the first became known at {_minute(first_us)}",
        expected=f"a time from {_minute(first)} on, the first slot that begins after it",
        remedy=f"an observation known by {_minute(following)}, when the next slot begins, is used from that slot on"
        if following < first
        else "",
    )


def _minute(at_us: int) -> str:
    return f"{pd.Timestamp(at_us, unit='us'):%Y-%m-%d %H:%M} UTC"


# ---
# Values of series on a slot grid, as known at a given time (M1.2, M1.3).

_Request = TypeVar("_Request", bound=Hashable)
NEVER = np.iinfo(np.int64).min  # Time at which gaps became known: the integer of NaT
MOST_WITHIN = 5  # Maximum number of readings used between two slots
WITHIN_GAPS = 1.5  # Maximal age of a reading between slots, in nominal gaps (ours)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPath:
    """Variable on the grid: values, and when each became known (microseconds; the integer of NaT in gaps)."""

    values: np.ndarray
    known_us: np.ndarray
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRequest:
    """A series on a grid; values older than ``age_us`` are gaps, except prices confirmed by readings of ``probe``."""

    series: KnownSeries
    grid: SlotGrid
    age_us: int
    probe: KnownSeries | None = None


def grid_paths(store: Store, requests: Sequence[SeriesRequest]) -> list[GridPath]:
    """Read several series of the same kind on grids with equal step and ``known_at``, in a single query."""
    if not requests:
        return []
    grids = [request.grid for request in requests]
    parameters: dict[str, object] = {
        "sid": [request.series.sid for request in requests],
        "first_us": [int(grid_slots(grid)[0]) for grid in grids],
        "last_us": [grid.last_us for grid in grids],
        "step_us": grids[0].step_us,
        "known_at": grids[0].known_at,
        "max_age_us": [request.age_us for request in requests],
    }
    price = requests[0].series.kind == "price"
    if price:
        parameters["probe_sid"] = [-1 if request.probe is None else request.probe.sid for request in requests]
        parameters["probe_age_us"] = [
            0 if request.probe is None else request.probe.age(request.grid) for request in requests
        ]
    columns = store.arrays(read_sql(__package__, "price_grid" if price else "count_grid"), parameters)
    ends = np.searchsorted(columns["place"], np.arange(len(requests) + 1))
    return [
        GridPath(values=columns["value"][a:b], known_us=columns["known_us"][a:b]) for a, b in pairwise(ends)
    ]


def requests_within(grid: SlotGrid, series: KnownSeries | None) -> list[SeriesRequest]:
    """Return the requests for the readings between slots, oldest first; none if the source reads about once per slot."""
    if series is None or grid.first_us is None or not series.nominal_us:
        return []
    m = round(min(grid.step_us / series.nominal_us, MOST_WITHIN + 1)) - 1
    backs = [grid.step_us * (m - j) // (m + 1) for j in range(m)]
    age_us = int(WITHIN_GAPS * series.nominal_us)
    return [
        SeriesRequest(
            series=series,
            grid=replace(grid, first_us=grid.first_us - back, last_us=grid.last_us - back),
            age_us=age_us,
        )
        for back in backs
    ]


def readings_within(grid: SlotGrid, paths: Sequence[GridPath]) -> np.ndarray | None:
    """Return the readings between slots, shape (slots, m), oldest first, of the `requests_within`; None without paths."""
    if not paths:
        return None
    slots = grid_slots(grid)
    return np.stack([np.where(path.known_us <= slots, path.values, np.nan) for path in paths], axis=1)


def grid_slots(grid: SlotGrid) -> np.ndarray:
    """Return the slots in microseconds since the epoch; raises `MarketError` for a grid without a first slot."""
    if grid.first_us is None:
        raise MarketError("a grid without a first slot")
    return np.arange(grid.first_us, grid.last_us + 1, grid.step_us, dtype=np.int64)


class Reader:
    """Cached queries of the store; create a reader per call, as its answers are valid only while the file is unchanged.

    `fetch_known` and `fetch_paths` read many series at once; anything else is read when needed.
    ``conventions``: properties of the sources that are not in their rows, by default those shipped
    with the package.
    """

    def __init__(self, store: Store, conventions: Conventions | None = None) -> None:
        self.store = store
        self.conventions = conventions or known_conventions()
        self._known: dict[tuple[Market, SlotGrid], list[KnownSeries]] = {}
        self._paths: dict[SeriesRequest, GridPath] = {}
        self._on_demand: dict[
            tuple[str, str, dt.datetime], list[tuple[int, str, str, str, str, float, int]]
        ] = {}

    def fetch_known(self, markets: Iterable[tuple[Market, SlotGrid]]) -> None:
        """Read the known series of several markets, wherever their grids begin."""
        unread = self._not_known(markets)
        for group in _group_requests(unread, lambda request: (request[1].known_at, request[1].price_age())):
            self._known |= zip(group, known_series(self.store, group), strict=True)

    def _not_known(self, markets: Iterable[tuple[Market, SlotGrid]]) -> list[tuple[Market, SlotGrid]]:
        pairs = dict.fromkeys((market, grid.whole()) for market, grid in markets)
        return [pair for pair in pairs if pair not in self._known]

    def series_of(self, market: Market, grid: SlotGrid) -> list[KnownSeries]:
        """Return all series of a market known at the grid's time."""
        self.fetch_known([(market, grid)])
        return self._known[market, grid.whole()]

    def fetch_paths(self, requests: Iterable[SeriesRequest]) -> None:
        """Read several series on their grids."""
        unread = [request for request in dict.fromkeys(requests) if request not in self._paths]
        for group in _group_requests(
            unread, lambda request: (request.series.kind, request.grid.step_us, request.grid.known_at)
        ):
            self._paths |= zip(group, grid_paths(self.store, group), strict=True)

    def path(self, request: SeriesRequest) -> GridPath:
        """Return a series on its grid."""
        self.fetch_paths([request])
        return self._paths[request]

    def on_demand(
        self, market: Market, known_at: dt.datetime
    ) -> list[tuple[int, str, str, str, str, float, int]]:
        """Return the latest on-demand prices stated for the instance type of a market (``on_demand.sql``)."""
        key = market.provider, market.instance_type, known_at
        if key not in self._on_demand:
            values = dict(zip(("provider", "instance_type", "known_at"), key, strict=True))
            self._on_demand[key] = self.store.execute(read_sql(__package__, "on_demand"), values)
        return self._on_demand[key]


def _group_requests(
    requests: Iterable[_Request], key: Callable[[_Request], Hashable]
) -> list[list[_Request]]:
    """Group requests that a single statement can answer."""
    groups: dict[Hashable, list[_Request]] = {}
    for request in requests:
        groups.setdefault(key(request), []).append(request)
    return list(groups.values())


# ---
# Assumptions in place of missing measurements; each is described in words wherever the result is shown.

#: Spot price as a share of on-demand: equal to the floor of AWS's V100 prices in 2021 and 2023.
USUAL_SPOT_SHARE = 0.30
#: Prefix of the assumption that a price which was read once, or never changed, still holds.
HELD_CONSTANT = "catalogue price held constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryAssumptions:
    """Assumptions allowed in `load_history`; without any, a variable that was not observed is an error.

    For a market without price: ``spot_share`` of the on-demand price. For a market without counts:
    ``always_available`` instances. If no on-demand price is known: ``on_demand_usd``, in USD per
    instance-hour.
    """

    spot_share: float | None = None
    always_available: int | None = None
    on_demand_usd: float | None = None

    def __post_init__(self) -> None:
        """Raise `SettingsError` on a value out of range."""
        if self.spot_share is not None and not 0 < self.spot_share <= 1:
            raise SettingsError(f"spot share {self.spot_share}", expected="a share of on-demand in (0, 1]")
        if self.always_available is not None and self.always_available < 1:
            raise SettingsError(f"always available {self.always_available}", expected="at least 1 instance")
        if self.on_demand_usd is not None and not 0 < self.on_demand_usd < float("inf"):
            raise SettingsError(f"on-demand price {self.on_demand_usd}", expected="USD per hour > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemand:
    """On-demand price of a market in USD per instance-hour, its origin, and the assumptions behind it in words."""

    usd: float
    origin: OnDemandOrigin
    assumed: tuple[str, ...] = ()


def _find_on_demand(reader: Reader, choice: _Choice) -> OnDemand:
    """Return the on-demand price of the market.

    The first available price is used, in this order (M1.1): the terms of the job and of the
    settings; the latest price stated in the market's series; elsewhere for the same provider and
    instance type; the assumed price; the catalogue. If there is none, or nothing is sold on demand,
    a stand-in is computed. Raises `MarketError` if there is no spot price to compute it from.
    """
    request, market = choice.request, choice.request.market
    stated = terms_for(market.key, request.on_demand)
    if stated is not None and stated.usd is not None:
        return OnDemand(usd=stated.usd, origin=OnDemandOrigin(kind=stated.stated_in))
    if stated is not None:
        return _stand_in(choice, OnDemandOrigin(kind=NOT_SOLD, words=stated.stated_in))
    if choice.price is not None and choice.price.series.on_demand_usd is not None:
        return OnDemand(usd=choice.price.series.on_demand_usd, origin=OBSERVED)
    elsewhere = _price_elsewhere(reader, choice)
    if elsewhere is not None:
        usd, place = elsewhere
        words = f"on-demand price {usd:g} USD taken from {place}"
        return OnDemand(usd=usd, origin=OnDemandOrigin(kind="elsewhere", words=place), assumed=(words,))
    given = request.assumptions.on_demand_usd
    if given is not None:
        words = f"on-demand price assumed to be {given:g} USD"
        return OnDemand(usd=given, origin=OnDemandOrigin(kind="assumed"), assumed=(words,))
    listed = list_price(market.provider, market.region, market.instance_type, choice.grid.known_at)
    if listed is None:
        return _stand_in(choice, OnDemandOrigin(kind=UNKNOWN))
    if listed.usd is None:
        return _stand_in(choice, OnDemandOrigin(kind=NOT_SOLD, words=listed.words))
    assumed = (f"on-demand price {listed.usd:g} USD: {listed.words}",) if listed.elsewhere else ()
    return OnDemand(
        usd=listed.usd, origin=OnDemandOrigin(kind="catalogue", words=listed.words), assumed=assumed
    )


def _stand_in(choice: _Choice, origin: OnDemandOrigin) -> OnDemand:
    """Return a price to plan with if none is known: newest spot price / usual share, at least the highest spot price."""
    share = choice.request.assumptions.spot_share or USUAL_SPOT_SHARE
    prices = None if choice.price is None else choice.price.series
    usd = 0.0 if prices is None else max((prices.newest or 0.0) / share, prices.highest)
    if not usd > 0:
        raise MarketError(
            f"{choice.request.market.key} has no on-demand price and no spot price: none observed, none in the catalogue",
            remedy="state on_demand_usd in the job, or an [[on_demand]] entry in the settings",
        )
    if not origin.sold:
        return OnDemand(usd=usd, origin=origin)
    words = f"{usd:g} USD assumed, the newest spot price / {share:g}"
    return OnDemand(
        usd=usd, origin=replace(origin, words=words), assumed=(f"on-demand price unknown: {words}",)
    )


def _price_elsewhere(reader: Reader, choice: _Choice) -> tuple[float, str] | None:
    """Return the best on-demand price of the type elsewhere, and its place: same region, same zone, trust, newest."""
    market, trust = choice.request.market, choice.request.trust
    ranked = []
    for _, region, zone, source, product, usd, at_us in reader.on_demand(market, choice.grid.known_at):
        rank = product_rank(product)
        if rank is not None:
            near = region != market.region, zone != market.zone
            newest = trust_rank(source, trust)[0], -at_us, source
            ranked.append(((*near, *newest, region, zone, rank, product), usd))
    if not ranked:
        return None
    (_, _, _, _, source, region, zone, _, _), usd = min(ranked)
    return usd, f"{market.provider}/{region}/{zone} ({source})"


# ---
# Histories of markets on a slot grid, as known at a given time (M1.2, M1.3).
#
# A request is answered in three steps: choose the series, read their values on the slots, and add assumptions,
# described in words, where nothing was measured.

#: No assumptions allowed.
NO_ASSUMPTIONS = HistoryAssumptions()
_FOREVER = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRequest:
    """Request for a history; the fields are the arguments of `load_history`."""

    market: Market
    end: pd.Timestamp
    step: pd.Timedelta
    known_at: pd.Timestamp
    start: pd.Timestamp | None = None
    source: str | None = None
    trust: Sequence[str] = ()
    assumptions: HistoryAssumptions = NO_ASSUMPTIONS
    within: bool = False
    on_demand: tuple[OnDemandTerms, ...] = ()

    def grid(self) -> SlotGrid:
        """Return the requested slots; raises `SettingsError` for an invalid step or time."""
        if self.step <= pd.Timedelta(0):
            raise SettingsError(f"step {self.step}", expected="a positive slot length")
        step_us = microseconds(self.step, "step")
        last_us = min(microseconds(self.end, "end"), microseconds(self.known_at, "known_at"))
        return SlotGrid(
            first_us=None
            if self.start is None
            else -(-microseconds(self.start, "start") // step_us) * step_us,
            last_us=last_us // step_us * step_us,
            step_us=step_us,
            known_at=moment(self.known_at, "known_at"),
        )


def load_history(
    store: Store,
    market: Market,
    *,
    end: pd.Timestamp,
    step: pd.Timedelta,
    known_at: pd.Timestamp,
    start: pd.Timestamp | None = None,
    source: str | None = None,
    trust: Sequence[str] = (),
    assumptions: HistoryAssumptions = NO_ASSUMPTIONS,
    within: bool = False,
    on_demand: Sequence[OnDemandTerms] = (),
) -> History:
    """Return price and count of a market from ``start`` to ``end`` (slots, both inclusive), using only rows known at ``known_at``.

    Slots are multiples of ``step`` since the epoch; none is later than min(end, known_at). ``start`` None:
    from the first observation of the counts, else of the price. The value of a slot is the newest known
    version of the last observation at or before its start (M1.3); if it is older than its maximal age the
    slot is a gap, NaN. Maximal ages: counts 3 nominal gaps, prices 36 h, at least one slot. A price that its
    source read at every probe (`Conventions`) holds while the probes continue; a price that never changed and
    was never repeated is assumed constant.

    ``source`` None: the source with counts in the range that comes first in ``trust`` (glob patterns for
    labels, most trusted first; unlisted sources last, alphabetical). The price is from the same source if it
    has any, else from the most trusted source that overlaps, which is recorded as an assumption; likewise the
    counts if the requested source has only prices. A variable never mixes two sources. Prices are of the
    product used for planning (`slackwater.warehouse.catalogue`). ``on_demand``: terms of a job or of
    settings, which take precedence over any observed or listed on-demand price (`find_on_demand`).

    ``within``: also return the counts read between slots (`History.within`) that were known by the
    slot's start: m = step / nominal gap - 1 evenly spaced readings, at most `MOST_WITHIN`; each is
    the last reading at or before its time, not older than `WITHIN_GAPS` nominal gaps.

    Raises `MarketError` for a market or source without known rows, an empty range, or a variable
    that was neither observed nor may be assumed (the error names the assumption that supplies it);
    `SettingsError` for an invalid step or time.
    """
    request = HistoryRequest(
        market=market, end=end, step=step, known_at=known_at, start=start, source=source, trust=trust,
        assumptions=assumptions, within=within, on_demand=tuple(on_demand),
    )  # fmt: skip
    return load_histories(store, [request])[0]


def load_histories(
    store: Store, requests: Sequence[HistoryRequest], *, reader: Reader | None = None
) -> list[History]:
    """Return the same histories as `load_history` for several requests, in their order, with a few statements for all.

    ``reader`` is used instead of a new reader: a `MovingReader` for many times. Raises the error of
    `load_history` for the first request that fails.
    """
    reader = Reader(store) if reader is None else reader
    asked = [(request, request.grid()) for request in requests]
    reader.fetch_known((request.market, grid) for request, grid in asked)
    chosen = [_choose(reader, request, grid) for request, grid in asked]
    reader.fetch_paths(path for choice in chosen for path in choice.paths())
    return [_history(reader, choice) for choice in chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """Answer of a request: its grid, all ``known`` series of the market, and the paths of the series in use.

    ``read``: the counts that were read for their slots, None if all that hold were; ``within``: those
    read between slots.
    """

    request: HistoryRequest
    grid: SlotGrid
    known: Sequence[KnownSeries]
    counts: SeriesRequest | None
    price: SeriesRequest | None
    read: SeriesRequest | None
    within: Sequence[SeriesRequest]

    def paths(self) -> list[SeriesRequest]:
        """Return all requests for paths."""
        return [path for path in (self.counts, self.read, *self.within, self.price) if path is not None]

    @property
    def unplanned(self) -> list[str]:
        """Products of a market that has prices, but none of a product used for planning."""
        return _unplanned(self.known, self.price)


def _choose(reader: Reader, request: HistoryRequest, grid: SlotGrid) -> _Choice:
    """Choose the series and the first slot of a history; raises `MarketError` if there are none."""
    known = reader.series_of(request.market, grid)
    require_source(reader.store, known, request.market, request.source, grid)
    counts = pick_series(known, "availability", grid, preferred=request.source, trust=request.trust)
    if counts is not None:
        _require_counts(request.market, counts)
        grid = _with_start(grid, counts)
    preferred = request.source or (counts.source if counts is not None else None)
    price = pick_series(known, "price", grid, preferred=preferred, trust=request.trust)
    grid = _from_first(reader.store, grid, request.market, counts or price, _unplanned(known, price))
    counts_path = None if counts is None else SeriesRequest(series=counts, grid=grid, age_us=counts.age(grid))
    read_us = int(READ_SLOTS * grid.step_us)
    return _Choice(
        request=request,
        grid=grid,
        known=known,
        counts=counts_path,
        price=None if price is None else _price_request(reader.conventions, grid, price, known),
        read=replace(counts_path, age_us=read_us) if counts_path and counts_path.age_us > read_us else None,
        within=requests_within(grid, counts) if request.within else [],
    )


def _unplanned(known: Sequence[KnownSeries], price: object) -> list[str]:
    return [] if price is not None else [series.product for series in known if series.kind == "price"]


def _history(reader: Reader, choice: _Choice) -> History:
    request, grid = choice.request, choice.grid
    counts, capacity, stated = _counts_of(reader, choice)
    price = _measured_price(reader, choice)
    on_demand = _find_on_demand(reader, choice)
    if price is None:
        price = _assumed_price(choice, on_demand.usd)
    used = {
        name: path.series
        for name, path in (("counts", choice.counts), ("price", choice.price))
        if path is not None
    }
    source = request.source or next(iter(used.values())).source
    joined = [
        f"{name} from another source: {series.source}"
        for name, series in used.items()
        if series.source != source
    ]
    return History(
        market=request.market,
        step=request.step,
        known_at=pd.Timestamp(request.known_at).tz_convert("UTC"),
        frame=_frame(grid, price, counts),
        on_demand_usd=on_demand.usd,
        on_demand=on_demand.origin,
        capacity=capacity,
        capacity_stated=stated,
        real_clock=all(reader.conventions.real_clock(series.source) for series in used.values()),
        source=source,
        assumptions=(*joined, *counts.words, *price.words, *on_demand.assumed),
        within=readings_within(grid, [reader.path(path) for path in choice.within]),
        count_is_read=None if choice.read is None else ~np.isnan(reader.path(choice.read).values),
        newest_count=_newest(used.get("counts")),
        newest_price=_newest(used.get("price")),
        count_max_age=_max_age(used.get("counts"), grid),
        price_max_age=_max_age(used.get("price"), grid),
        contradicted=tuple(
            f"{request.market.key}: {text}" for text in contradictions(choice.known, grid, source)
        ),
    )


def _max_age(series: KnownSeries | None, grid: SlotGrid) -> pd.Timedelta | None:
    """Return the age beyond which the newest value of a series is stale, None if it is never stale."""
    if series is None or (series.kind == "price" and series.single):
        return None
    return pd.Timedelta(series.age(grid), unit="us")


def _newest(series: KnownSeries | None) -> pd.Timestamp | None:
    """Return the time of the last known observation of a series."""
    if series is None or series.latest_us is None:
        return None
    return pd.Timestamp(series.latest_us, unit="us", tz="UTC")


def _require_counts(market: Market, series: KnownSeries) -> None:
    """Raise `MarketError` for a count too large for any market, which older versions accepted (M1.2)."""
    most = max(series.highest, series.capacity or 0)
    if most > LARGEST_COUNT:
        raise MarketError(
            f"{market.key} has a row of {series.source} with {most:,.0f} instances",
            expected=f"at most {LARGEST_COUNT:,}",
            remedy="`slackwater export DIR`, then `slackwater import DIR --db NEW.duckdb` leaves such rows out",
        )


def _with_start(grid: SlotGrid, series: KnownSeries) -> SlotGrid:
    """Return the grid, starting at the first slot at which the series has a value if no start was requested."""
    if grid.first_us is not None:
        return grid
    return replace(grid, first_us=-(-series.first_us // grid.step_us) * grid.step_us)


def _from_first(
    store: Store, grid: SlotGrid, market: Market, first: KnownSeries | None, unplanned: Sequence[str]
) -> SlotGrid:
    """Return the grid from the requested start, else from the first value of the series; raises `MarketError` without slots."""
    if first is None and unplanned:
        raise MarketError(
            f"{market.key} has no price that a job can be planned on ({unplanned_words(unplanned)}; jobs run on Linux)",
            expected="prices of Linux/UNIX",
            remedy="ingest the prices of Linux/UNIX, or state `--set product=Linux/UNIX` where the table leaves the product out",
        )
    if first is None:
        last = utc_index(np.array([grid.last_us], dtype=np.int64))[0]
        step = pd.Timedelta(grid.step_us, unit="us")
        later = not_known_yet(store, market, None, at=last, step=step)
        raise later or MarketError(
            f"{market.key} has no count and no price at {_minute(grid.last_us)}",
            expected="a range that ends later",
        )
    grid = _with_start(grid, first)
    if grid.first_us is None or grid.first_us > grid.last_us:
        raise MarketError(
            f"{market.key}: no slot between the requested start and end",
            expected="a start at or before the end and before the newest observation",
        )
    return grid


def _frame(grid: SlotGrid, price: GridPath, counts: GridPath) -> pd.DataFrame:
    known = utc_index(np.maximum(price.known_us, counts.known_us))
    return pd.DataFrame(
        {PRICE: price.values.astype(float), AVAILABLE: counts.values.astype(float), ROW_KNOWN_AT: known},
        index=_slots(grid),
    )


@lru_cache(maxsize=64)
def _slots(grid: SlotGrid) -> pd.DatetimeIndex:
    """Return the slots of a grid as an index; cached for all markets read on the same grid."""
    return utc_index(grid_slots(grid))


def _price_request(
    conventions: Conventions, grid: SlotGrid, series: KnownSeries, known: Sequence[KnownSeries]
) -> SeriesRequest:
    """Return the request for a price on the grid; a price read at every probe holds while the probes continue."""
    probes = (s for s in known if s.kind == "availability" and s.source == series.source)
    probe = next(probes, None) if conventions.probed_price(series.source) else None
    return SeriesRequest(series=series, grid=grid, age_us=series.age(grid), probe=probe)


def _constant(grid: SlotGrid, value: float, words: str) -> GridPath:
    size = len(grid_slots(grid))
    return GridPath(values=np.full(size, value), known_us=np.full(size, NEVER), words=(words,))


def _counts_of(reader: Reader, choice: _Choice) -> tuple[GridPath, int, bool]:
    """Return counts, capacity and whether a probe stated it; raises `MarketError` if there are none to use."""
    if choice.counts is not None:
        series, path = choice.counts.series, reader.path(choice.counts)
        if series.capacity_stated and series.capacity is not None and series.capacity >= 1:
            return path, series.capacity, True
        return path, max(1, int(series.highest)), False
    count = choice.request.assumptions.always_available
    if count is not None:
        assumed = _constant(choice.grid, count, f"{UNOBSERVED}: up to {count} instances assumed")
        return assumed, count, True
    raise MarketError(
        f"{choice.request.market.key} has a price but no counts",
        remedy="allow an assumption: always_available (instances that are always there)",
    )


def _measured_price(reader: Reader, choice: _Choice) -> GridPath | None:
    """Return the price of the market; None if it may be assumed, else raises `MarketError`.

    A price that never changed and was never repeated is assumed constant.
    """
    if choice.price is None:
        if choice.request.assumptions.spot_share is not None:
            return None
        lack = f"no price ({unplanned_words(choice.unplanned)})" if choice.unplanned else "no price"
        raise MarketError(
            f"{choice.request.market.key} has counts but {lack}",
            remedy="allow an assumption: spot_share (of the on-demand price)",
        )
    series, path = choice.price.series, reader.path(choice.price)
    if reader.conventions.probed_price(series.source) or not series.single:
        return path
    held = reader.path(replace(choice.price, age_us=_FOREVER))
    if np.array_equal(held.values, path.values, equal_nan=True):
        return path
    return replace(held, words=(f"{HELD_CONSTANT} at {series.highest:g} USD",))


def _assumed_price(choice: _Choice, on_demand: float) -> GridPath:
    """Return a constant price and its description."""
    products = choice.unplanned
    lack = f"Linux price not observed ({unplanned_words(products)})" if products else "price not observed"
    share = choice.request.assumptions.spot_share or 0.0
    usd = share * on_demand
    return _constant(choice.grid, usd, f"{lack}: constant {usd:g} USD, {share:.0%} of the on-demand price")


# ---
# Histories as known at each of many times, read once.
#
# A row is used from the time it was known (M1.2). If every row of a series was known by the first reading time at
# or after its observation, the rows known at any time are a prefix of those known at the last time; other series
# are read separately for each time.


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Reading times, ``step`` apart, from ``first`` to ``last`` (both included); most reads reach back to ``since``."""

    first: pd.Timestamp
    last: pd.Timestamp
    step: pd.Timedelta
    since: pd.Timestamp

    def __post_init__(self) -> None:
        """Raise `SettingsError` unless the step is positive and leads from the first time to the last."""
        if not self.step > pd.Timedelta(0) or self.last < self.first or (self.last - self.first) % self.step:
            raise SettingsError(
                f"times from {self.first} to {self.last} every {self.step}", expected="whole positive steps"
            )

    def times(self) -> pd.DatetimeIndex:
        """Return the times, ascending."""
        return pd.date_range(self.first, self.last, freq=self.step)


class MovingReader(Reader):
    """Reader for the times of a span, with the same answers as a new `Reader` at each of them.

    Rows ingested after its creation are not seen. Requests that do not fit the span (another time, a series
    with rows learned late) are answered by separate queries.
    """

    def __init__(self, store: Store, span: Span) -> None:
        super().__init__(store)
        self._span = span
        self._times = {moment(at, "time") for at in span.times()}
        self._bounds = {
            "first_us": microseconds(span.first, "first"),
            "last_us": microseconds(span.last, "last"),
            "step_us": microseconds(span.step, "step"),
        }
        late = store.execute(read_sql(__package__, "late_series"), self._bounds)
        self._late = {int(sid) for (sid,) in late}
        self._at_times: dict[tuple[Market, int], dict[int, list[KnownSeries]]] = {}
        self._long: dict[_PathKey, tuple[int, GridPath]] = {}

    def fetch_known(self, markets: Iterable[tuple[Market, SlotGrid]]) -> None:
        """Read the known series of several markets, for all times of the span at once."""
        unread = self._not_known(markets)
        fitting = [pair for pair in unread if self._fits(pair[1])]
        ages = {grid.price_age() for _, grid in fitting}
        for age in ages:
            lacking = {market for market, grid in fitting if grid.price_age() == age}
            self._fetch_times([market for market in lacking if (market, age) not in self._at_times], age)
        rest = []
        for market, grid in unread:
            found = self._at_times.get((market, grid.price_age())) if self._fits(grid) else None
            if found is None or any(row.sid in self._late for own in found.values() for row in own):
                rest.append((market, grid))
            else:
                self._known[market, grid] = found.get(grid.last_us, [])
        super().fetch_known(rest)

    def _fits(self, grid: SlotGrid) -> bool:
        """Return whether a grid ends at a time of the span and is read at that time."""
        return grid.known_at in self._times and grid.last_us == _us(grid.known_at)

    def _fetch_times(self, markets: Sequence[Market], age_us: int) -> None:
        if not markets:
            return
        rows = self.store.execute(
            *_of_series(
                "series_known_at",
                markets,
                last_us=[self._bounds["last_us"]] * len(markets),
                known_at=moment(self._span.last, "last"),
                repeat_us=age_us,
                times_us=[microseconds(at, "time") for at in self._span.times()],
            )
        )
        for market in markets:
            self._at_times[market, age_us] = {}
        for time_us, place, *row in rows:
            series = KnownSeries(**dict(zip(KnownSeries.__slots__, row, strict=True)))
            self._at_times[markets[place], age_us].setdefault(time_us, []).append(series)

    def fetch_paths(self, requests: Iterable[SeriesRequest]) -> None:
        """Read several series on their grids as slices of paths over the whole span."""
        unread = [request for request in dict.fromkeys(requests) if request not in self._paths]
        fitting = [request for request in unread if self._may_cut(request)]
        self._fetch_long(fitting)
        for request in fitting:
            begin, path = self._long[_path_key(request)]
            first = _first_us(request)
            a, b = (
                (slot - begin) // request.grid.step_us
                for slot in (first, request.grid.last_us + request.grid.step_us)
            )
            self._paths[request] = GridPath(values=path.values[a:b], known_us=path.known_us[a:b])
        super().fetch_paths(request for request in unread if request not in self._paths)

    def _may_cut(self, request: SeriesRequest) -> bool:
        """Return whether the requested path is a slice of the path known at the end of the span."""
        sids = {request.series.sid} | ({request.probe.sid} if request.probe is not None else set())
        return (
            request.grid.known_at in self._times
            and request.grid.last_us <= _us(request.grid.known_at)
            and request.grid.first_us is not None
            and not sids & self._late
        )

    def _fetch_long(self, requests: Sequence[SeriesRequest]) -> None:
        """Read the long paths that are missing or do not begin early enough."""
        wanted: dict[_PathKey, SeriesRequest] = {}
        for request in requests:
            key, first = _path_key(request), _first_us(request)
            if key in self._long and self._long[key][0] <= first:
                continue
            step = request.grid.step_us
            early = min(first, microseconds(self._span.since, "since") // step * step + first % step)
            if key in wanted:
                early = min(early, _first_us(wanted[key]))
            last_us, known_at = self._bounds["last_us"], moment(self._span.last, "last")
            end = last_us - (last_us - first) % step
            grid = replace(request.grid, first_us=early, last_us=end, known_at=known_at)
            wanted[key] = replace(request, grid=grid)
        for group in _group_requests(
            wanted.values(), lambda request: (request.series.kind, request.grid.step_us)
        ):
            for request, path in zip(group, grid_paths(self.store, group), strict=True):
                self._long[_path_key(request)] = (_first_us(request), path)


_PathKey = tuple[int, int, int, int, int, int]


def _path_key(request: SeriesRequest) -> _PathKey:
    """Return the cache key of a long path: series, step, phase of the grid, age, and the probe that confirms a price."""
    step = request.grid.step_us
    probe = request.probe
    return (
        request.series.sid,
        step,
        (request.grid.first_us or 0) % step,
        request.age_us,
        -1 if probe is None else probe.sid,
        0 if probe is None else probe.age(request.grid),
    )


def _first_us(request: SeriesRequest) -> int:
    """Return the first requested slot."""
    return int(grid_slots(request.grid)[0]) if request.grid.first_us is None else request.grid.first_us


def _us(at: dt.datetime) -> int:
    return microseconds(pd.Timestamp(at), "time")
