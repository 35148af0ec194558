"""Markets that a turn follows: which, from which source, at what time each is taken, and whether it is too old (M1.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.show.formats import age, utc
from slackwater.warehouse.amounts import duration
from slackwater.warehouse.catalogue import OnDemandTerms
from slackwater.warehouse.columns import RATINGS_ALONE
from slackwater.warehouse.history import History, Market
from slackwater.warehouse.store.connection import Store

if TYPE_CHECKING:
    from slackwater.optimization.job.request import JobRequest


LEAST_SPAN = pd.Timedelta(days=3)  # Least history of a market that is followed although no job names it
#: Kinds of counts in order of preference: launch tests, instances held, and listed offers, which
#: are no launch tests; with the most markets followed of each, if the total is at most their sum.
KINDS = {"probe": 20, "held": 2, "offers": 2}
#: Longest time from the newest count, or three slots if longer, in which counts less often than once a slot are those of a
#: market (M11.1): from older values nothing is forecast (M6.2).
COUNTS_HOLD = pd.Timedelta(hours=6)
#: Longest time from the last price of a market to a slot in which a job compares it with other markets.
PRICE_HOLDS = pd.Timedelta(days=7)
#: Age of the newest turn from which a warehouse without feeds is an archive.
ARCHIVE_AGE = pd.Timedelta(days=30)


class MarketListing(Protocol):
    """Markets known at a time; with ``own_end`` each is taken at the end of its own record, if that is earlier than ``at``."""

    @property
    def at(self) -> pd.Timestamp:
        """Time at which markets are taken."""

    @property
    def settings(self) -> Settings:
        """Settings of slots and sources."""

    @property
    def own_end(self) -> bool:
        """Whether markets are taken at the ends of their records."""

    def market_rows(self) -> list[dict[str, Any]]:
        """Return the markets known at ``at``, as rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedMarket:
    """A market of one source, read at ``at``; the ``on_demand`` terms of a job do not count in comparisons."""

    market: Market
    source: str
    at: pd.Timestamp
    on_demand: tuple[OnDemandTerms, ...] = field(default=(), compare=False)

    def for_job(self, request: JobRequest) -> FollowedMarket:
        """Return the same market with the on-demand terms of a job."""
        from slackwater.optimization.job.request import (
            on_demand_terms,  # imports stay light: `ingest` needs no jobs
        )

        return replace(self, on_demand=on_demand_terms(request))

    @property
    def key(self) -> str:
        """``market@source``, the name on the command line and in tables."""
        return f"{self.market.key}@{self.source}"


def parse_market(text: str) -> tuple[Market, str | None]:
    """Parse ``provider/region/zone/instance_type[@source]``; raises `MarketError`."""
    key, _, source = text.partition("@")
    return Market.parse(key), source or None


def step_of(settings: Settings) -> pd.Timedelta:
    """Return the slot length of the settings."""
    return pd.Timedelta(minutes=settings.step_minutes)


def live_for(settings: Settings) -> pd.Timedelta:
    """Return how long after its newest observation a record counts as live: 2 hours, at least two slots (ours)."""
    return max(pd.Timedelta(hours=2), 2 * step_of(settings))


def present_of(store: Store, settings: Settings, *, clock: pd.Timestamp) -> pd.Timestamp:
    """Return the time at which jobs and markets are shown if none is given: ``clock``, or the newest turn of an archive.

    An archive has no feeds, and its newest turn is more than `ARCHIVE_AGE` away from ``clock`` (ours).
    """
    if settings.feeds or store.execute("SELECT 1 FROM fetches LIMIT 1"):
        return clock
    ((newest,),) = store.execute("SELECT epoch_us(max(logical_at)) FROM runs")
    turn = clock if newest is None else pd.Timestamp(newest, unit="us", tz="UTC")
    return turn if abs(clock - turn) > ARCHIVE_AGE else clock


def present_note(present: pd.Timestamp, clock: pd.Timestamp) -> str:
    """Return why a time of `present_of` is not that of the clock; "" if it is."""
    if present == clock:
        return ""
    return (
        f"as at the newest turn, {utc(present)}, as the data are old and no live feed is configured; "
        "--at gives another time"
    )


def slot_to_read(
    last: pd.Timestamp,
    at: pd.Timestamp,
    step: pd.Timedelta,
    *,
    own_end: bool,
    first: pd.Timestamp | None = None,
) -> pd.Timestamp:
    """Return the slot at which a market is read: the turn's, or with ``own_end`` the last slot of its record if earlier.

    Of a record that began within its last slot (``first``) it is the next slot, the first with an observation.
    """
    if not own_end:
        return at.floor(step)
    slot = last.floor(step)
    return slot + step if first is not None and slot < first <= at else min(at, slot)


def followed_row(row: Mapping[str, Any], listing: MarketListing) -> FollowedMarket:
    """Return the market of a row of the listing, at the time at which it is taken."""
    last, step = pd.Timestamp(row["last_observed"]), step_of(listing.settings)
    first = pd.Timestamp(row["first_observed"])
    at = slot_to_read(last, listing.at, step, own_end=listing.own_end, first=first)
    return FollowedMarket(market=Market.parse(str(row["market"])), source=str(row["source"]), at=at)


def choose_markets(listing: MarketListing, *, most: int) -> list[tuple[FollowedMarket, int, pd.Timestamp]]:
    """Return the markets to follow when no job names them, most informative first (ours).

    Each has its capacity and first observation. A market qualifies with counts at least once a slot,
    `LEAST_SPAN` of history, and recent observations at its time. Launch tests come before instances held, and
    those before offers; within a kind larger capacity, a measured price and the name decide. `KINDS` caps
    each kind; if ``most`` exceeds the sum of the caps, the remaining places go to the next markets of any
    kind. Counts whose source states no kind are treated as launch tests.
    """
    step = step_of(listing.settings)
    rows = [
        row for row in listing.market_rows() if row["has_counts"] and not why_unusable(row, listing, step)
    ]
    rows.sort(key=_ranking_key)
    left = dict(KINDS)
    first: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    for row in rows:
        kind = _kind_of(row)
        if len(first) < most and left.get(kind, 0) > 0:
            left[kind] -= 1
            first.append(row)
        elif kind in left:
            rest.append(row)
    beyond = most - len(first) if most > sum(KINDS.values()) else 0
    return [
        (followed_row(row, listing), int(row["capacity"]), pd.Timestamp(row["first_observed"]))
        for row in [*first, *rest[:beyond]]
    ]


def _kind_of(row: Mapping[str, Any]) -> str:
    """Return the kind of a listing's counts; a launch test where none is stated (ours)."""
    return row["kind"] if isinstance(row["kind"], str) and row["kind"] else "probe"


def why_not_followed(listing: MarketListing, *, most: int) -> dict[str, str]:
    """Return by ``market@source`` why a turn does not follow a market that no job names; "" for followed markets."""
    step = step_of(listing.settings)
    chosen = {followed.key for followed, _, _ in choose_markets(listing, most=most)}
    found = {}
    for row in listing.market_rows():
        key = f"{row['market']}@{row['source']}"
        found[key] = "" if key in chosen else _why_not(row, listing, step)
    return found


def _why_not(row: Mapping[str, Any], listing: MarketListing, step: pd.Timedelta) -> str:
    kind = _kind_of(row)
    if not row["has_counts"] and row["count_rows"]:
        return RATINGS_ALONE
    if not row["has_counts"]:
        return "prices only: availability is unknown"
    if kind not in KINDS:
        return f"counts of kind {kind}, which is none of {', '.join(KINDS)}"
    return (
        why_unusable(row, listing, step)
        or f"more markets of kind {kind} than the {KINDS[kind]} that are followed"
    )


def why_unusable(row: Mapping[str, Any], listing: MarketListing, step: pd.Timedelta) -> str:
    """Return why the record of a market with counts is too coarse, too short or too old; "" for a usable record."""
    first, last = pd.Timestamp(row["first_counted"]), pd.Timestamp(row["last_counted"])
    if (gap := _gap_of(row, step)) > step:
        return f"counted every {duration(gap)}, which is longer than a slot of {duration(step)}"
    if last - first < LEAST_SPAN:
        return f"{duration(last - first)} of counts, less than {duration(LEAST_SPAN)}"
    if not listing.own_end and not _is_counted(row, step, listing.at):
        return f"the last count is of {utc(last)}, too old at {utc(listing.at)}"
    return ""


def _is_counted(row: Mapping[str, Any], step: pd.Timedelta, at: pd.Timestamp) -> bool:
    """Return whether a row of the listing has counts that are not stale at a time (M1.3)."""
    age = at - pd.Timestamp(row["last_counted"])
    return bool(row["has_counts"]) and age <= 3 * max(_gap_of(row, step), step)


def is_counted_lately(row: Mapping[str, Any], step: pd.Timedelta, at: pd.Timestamp) -> bool:
    """Return whether the newest count of a row of the listing says more of a time than measured markets do (M11.1)."""
    age = at - pd.Timestamp(row["last_counted"])
    return _is_counted(row, step, at) and age <= max(COUNTS_HOLD, 3 * step)


def taken_at(row: Mapping[str, Any], listing: MarketListing) -> pd.Timestamp:
    """Return the time of a listing, or the end of the record of a row that is taken there."""
    return pd.Timestamp(row["last_observed"]) if listing.own_end else listing.at


def _gap_of(row: Mapping[str, Any], step: pd.Timedelta) -> pd.Timedelta:
    """Return the nominal gap of a row's counts, a slot where none is known."""
    return pd.Timedelta(seconds=float(row["gap_seconds"])) if row["gap_seconds"] > 0 else step


def counted_or_priced(
    rows: Sequence[dict[str, Any]], listing: MarketListing, step: pd.Timedelta, at: pd.Timestamp
) -> list[dict[str, Any]]:
    """Return the rows with counts at least once a slot; else those counted less often; else those with a price (M11.1).

    They are never mixed: an assumed availability would always look better than an observed
    availability. It is assumed where counts are stale too, so such a market is one of those with a price, and
    displaces none. A price holds until the next observed change, at most for `PRICE_HOLDS`.
    """
    counted = [
        row for row in rows if is_counted_lately(row, step, taken_at(row, listing) if listing.own_end else at)
    ]
    often = [row for row in counted if _gap_of(row, step) <= step]
    return (
        often
        or counted
        or [
            row
            for row in rows
            if row["has_price"] and (listing.own_end or at - pd.Timestamp(row["last_priced"]) <= PRICE_HOLDS)
        ]
    )


def _ranking_key(row: dict[str, Any]) -> tuple[int, int, bool, str, str]:
    """Return a sort key: kind, larger capacity, a measured price, name."""
    kinds = list(KINDS)
    kind = _kind_of(row)
    rank = kinds.index(kind) if kind in kinds else len(kinds)
    return rank, -int(row["capacity"]), not row["has_price"], str(row["market"]), str(row["source"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Test whether the newest observation of a market exceeds its maximal age (M1.3) at the slot to decide.

    ``clock``: present time, used instead of the slot if later, for markets that are read at the end
    of their records.
    """

    clock: pd.Timestamp | None = None

    def stale(self, history: History, slot: pd.Timestamp) -> str | None:
        """Return a note that a market's newest count (or price, without counts) is too old for a slot, else None."""
        name, seen, limit = "count", history.newest_count, history.count_max_age
        if seen is None:
            name, seen, limit = "price", history.newest_price, history.price_max_age
        at = slot if self.clock is None else max(slot, self.clock)
        if seen is None or limit is None or at - seen <= limit:
            return None
        what = "this slot" if at == slot else "now: this slot is long over"
        return (
            f"the newest {name} of {history.market.key} is from {utc(seen)}, {age(at - seen)} before {what}"
        )
