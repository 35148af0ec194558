"""What every source owes of every market, and what it did: newest observation, when the next is expected, how late it is (M1.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from flows.config import Settings
from warehouse.asof.choosing import KnownSeries, SlotGrid, known_series, pick_product
from warehouse.history import Market
from warehouse.issued.records import read_rows
from warehouse.sources.contract import known_conventions
from warehouse.store.connection import Store
from warehouse.times import microseconds, moment

COLUMNS: Final = (
    "market",
    "source",
    "kind",
    "newest",
    "age",
    "every",
    "expected_by",
    "late_by",
    "max_age",
    "stale",
)
_ZERO: Final = pd.Timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One market's counts or prices at one source: what is known of them, and after how long the newest is a gap (M1.3).

    ``kind`` is "count" or "price", ``sid`` the series (of several products the one that answers). ``every`` is the nominal gap of
    counts, None of prices, which are stored when they change. ``newest`` is the newest observation, None before the first.
    A ``constant`` price is a list price said once: it holds until another is said, as histories take it.
    """

    market: str
    source: str
    kind: str
    sid: int
    max_age: pd.Timedelta
    every: pd.Timedelta | None
    newest: pd.Timestamp | None
    probed: bool = False
    constant: bool = False

    @property
    def subject(self) -> str:
        """``market@source``."""
        return f"{self.market}@{self.source}"


def promises_of(
    store: Store, markets: Iterable[tuple[str, str]], *, at: pd.Timestamp, step: pd.Timedelta
) -> tuple[Promise, ...]:
    """What the sources owe of some markets (key, source), from the gaps they stated or kept until ``at``; one query."""
    pairs = list(markets)
    grid = SlotGrid(
        first_us=None,
        last_us=microseconds(at, "at"),
        step_us=microseconds(step, "step"),
        known_at=moment(at, "at"),
        max_age_us=None,
    )
    asked = [(Market.parse(market), grid) for market, _ in pairs]
    found = []
    for (market, source), known in zip(pairs, known_series(store, asked), strict=True):
        for kind in ("availability", "price"):
            own = [one for one in known if one.source == source and one.kind == kind]
            if own:
                one = pick_product(own)
                found.append(_promise(market, one, grid, probed=known_conventions().probed_price(source)))
    return tuple(found)


def _promise(market: str, one: KnownSeries, grid: SlotGrid, *, probed: bool) -> Promise:
    counts = one.kind == "availability"
    return Promise(
        market=market,
        source=one.source,
        kind="count" if counts else "price",
        sid=one.sid,
        max_age=pd.Timedelta(one.age(grid), unit="us"),
        every=pd.Timedelta(one.nominal_us, unit="us") if counts and one.nominal_us else None,
        newest=None if one.latest_us is None else pd.Timestamp(one.latest_us, unit="us", tz="UTC"),
        probed=probed,
        constant=not counts and one.single,
    )


def freshness(promises: Sequence[Promise], *, at: pd.Timestamp) -> pd.DataFrame:
    """A row for every promise, `COLUMNS`: how old the newest observation is at ``at``, and how late the next one.

    Counts are expected a nominal gap after the newest, prices within their maximal age. A price that is read at every probe
    is as fresh as its source's counts. ``late_by`` is 0 where nothing is late.
    """
    counts = {one.subject: one for one in promises if one.kind == "count"}
    rows = []
    for one in promises:
        newest, every, limit = one.newest, one.every, one.max_age
        mate = counts.get(one.subject)
        if one.kind == "price" and one.probed and mate is not None and mate.newest is not None:
            every, limit = mate.every, mate.max_age
            newest = mate.newest if newest is None else max(newest, mate.newest)
        expected = None if newest is None or one.constant else newest + (every or limit)
        rows.append(
            {
                "market": one.market,
                "source": one.source,
                "kind": one.kind,
                "newest": newest,
                "age": None if newest is None else at - newest,
                "every": every,
                "expected_by": expected,
                "late_by": None if expected is None else max(at - expected, _ZERO),
                "max_age": limit,
                "stale": expected is not None and newest is not None and at - newest > limit,
            }
        )
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    for name in ("newest", "expected_by"):
        frame[name] = pd.to_datetime(frame[name], utc=True)
    for name in ("age", "every", "late_by", "max_age"):
        frame[name] = pd.to_timedelta(frame[name])
    return frame


FEED_COLUMNS: Final = (
    "feed", "fetched", "status", "failing", "failing_since", "added", "rejected", "reason", "every", "expected_by", "late_by",
)  # fmt: skip


def feed_freshness(store: Store, settings: Settings, *, at: pd.Timestamp) -> pd.DataFrame:
    """The last fetch of each live feed until ``at``, `FEED_COLUMNS`, and how late the next is by the feed's own schedule.

    ``failing``: how many of its fetches in a row, the last one included, were not complete; ``failing_since`` the first of them.
    """
    fetched = read_rows(store, "fetches", order_by=["logical_at"])
    fetched = fetched[fetched["logical_at"] <= at]
    every = {feed.name: pd.Timedelta(feed.every) for feed in settings.feeds}
    rows = [
        _feed_row(name, fetched[fetched["feed"] == name], every.get(name), at)
        for name in sorted({*fetched["feed"], *every})
    ]
    return pd.DataFrame(rows, columns=list(FEED_COLUMNS))


def _feed_row(name: str, own: pd.DataFrame, every: pd.Timedelta | None, at: pd.Timestamp) -> dict[str, Any]:
    if own.empty:
        unknown = {
            "fetched": None,
            "failing": 0,
            "failing_since": None,
            "added": 0,
            "rejected": 0,
            "reason": "",
        }
        return {
            "feed": name,
            "status": "never fetched",
            "every": every,
            "expected_by": None,
            "late_by": None,
        } | unknown
    last = own.iloc[-1]
    done = own["status"].eq("done").to_numpy(dtype=bool)
    failing = int(done[::-1].argmax()) if done.any() else len(own)
    expected = None if every is None else last["logical_at"] + every
    return {
        "feed": name,
        "fetched": last["logical_at"],
        "status": last["status"],
        "failing": failing,
        "failing_since": own["logical_at"].iloc[-failing] if failing else None,
        "added": int(last["added"]),
        "rejected": int(last["rejected"]),
        "reason": last["reason"],
        "every": every,
        "expected_by": expected,
        "late_by": None if expected is None else max(at - expected, _ZERO),
    }
