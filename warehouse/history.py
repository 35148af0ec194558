"""Market and its history on a slot grid: the form in which observations leave the warehouse (M1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pandas as pd

from slackwater.warehouse.amounts import duration
from slackwater.warehouse.errors import HistoryError, MarketError

PRICE = "price_usd"
AVAILABLE = "available"
ROW_KNOWN_AT = "known_at"


#: Zone of a market that covers a whole region, and region of a market that covers all regions.
WHOLE = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """Place where one instance type is rented: (provider, region, zone, instance type) (M1.1).

    >>> Market.parse("aws/us-west-2/us-west-2a/p3.2xlarge").zone
    'us-west-2a'
    """

    provider: str
    region: str
    zone: str
    instance_type: str

    @property
    def key(self) -> str:
        """Text ``provider/region/zone/instance_type``, the form used on the command line and in tables."""
        return f"{self.provider}/{self.region}/{self.zone}/{self.instance_type}"

    @property
    def place(self) -> str:
        """Zone as shown on screens; the region where a market covers all zones of it.

        >>> Market.parse("azure/eastus/all/Standard_NC24ads_A100_v4").place
        'eastus'
        """
        wider = self.region if self.region != WHOLE else "all regions"
        return wider if self.zone == WHOLE else self.zone

    @classmethod
    def parse(cls, text: str) -> Market:
        """Parse ``provider/region/zone/instance_type``; raises `MarketError` on any other form."""
        parts = text.strip().split("/")
        if len(parts) != 4 or not all(parts):
            raise MarketError(
                f"market {text!r}",
                expected="provider/region/zone/instance_type",
                remedy="`slackwater markets` lists the known ones",
            )
        return cls(provider=parts[0], region=parts[1], zone=parts[2], instance_type=parts[3])

    def __str__(self) -> str:
        return self.key


#: Prefix of the assumption used in place of an availability that was not observed.
UNOBSERVED = "counts not observed"
GAPS_UNTIL_STALE = 3  # A count is stale after this many of its source's nominal gaps (M1.3)
READ_SLOTS = 1.5  # Age in slots from which a count that still holds was not read for the slot (ours)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandOrigin:
    """Origin of the on-demand price of a history (M1.1).

    ``kind`` is "job", "settings", "observed", "elsewhere", "assumed", "catalogue",
    "unknown" or "not sold"; ``words`` adds place, date and source. A price of kind "unknown" or
    "not sold" is a stand-in used for plans only; no saving is computed from it.
    """

    kind: str
    words: str = ""

    @property
    def known(self) -> bool:
        """Whether the price is known, not a stand-in."""
        return self.kind not in (UNKNOWN, NOT_SOLD)

    @property
    def sold(self) -> bool:
        """Whether instances are sold on demand at all."""
        return self.kind != NOT_SOLD

    def __str__(self) -> str:
        return f"{self.kind}: {self.words}" if self.words else self.kind


#: Kinds of origin without a known price.
UNKNOWN, NOT_SOLD = "unknown", "not sold"
OBSERVED = OnDemandOrigin(kind="observed")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Price and number of available instances of a market on a regular slot grid, as known at a given time.

    ``frame`` has one row per slot [t, t + step), indexed by the slot's start (UTC, ascending,
    regular), with float columns ``price_usd`` (USD per instance-hour) and ``available`` (whole
    number of instances), and a column ``known_at`` (UTC: when the newest value used in the row
    became known). NaN marks a gap (M1.3); gaps are never filled. The value of a slot is the last
    observation at or before its start, so a slot is fully observed when it begins.

    ``capacity`` is the largest number of instances that the market can show: the limit of the probe
    (``capacity_stated``), else the largest count known so far. ``real_clock``: whether hour of day and
    weekday are meaningful. ``assumptions`` lists, in words, everything that was not measured (a constant
    price, another market's path, ...): a history with any assumption is synthetic and is shown as such.

    ``within`` (slots, m), if given, holds the counts read between a slot's start and the start of
    the slot before, oldest first, NaN where there is no reading: a probe every 10 minutes gives a
    half-hour slot m = 2 readings in addition to its value.

    ``count_is_read`` (slots,), if given, is False where the count of a slot is an older reading that
    still holds (M1.3); None: every known count was read for its slot.

    ``on_demand_usd`` is a stand-in if, according to ``on_demand``, no price is known or nothing is
    sold on demand.

    ``newest_count`` and ``newest_price`` are the times of the newest known observations (None: no
    observation, or not requested); ``count_max_age`` and ``price_max_age`` are the ages beyond
    which these are stale (M1.3), None: never stale. ``contradicted`` describes how other sources
    contradict the source in use (M1.5).
    """

    market: Market
    step: pd.Timedelta
    known_at: pd.Timestamp
    frame: pd.DataFrame
    on_demand_usd: float
    capacity: int
    capacity_stated: bool = True
    real_clock: bool = True
    source: str = ""
    assumptions: tuple[str, ...] = ()
    within: np.ndarray | None = None
    count_is_read: np.ndarray | None = None
    newest_count: pd.Timestamp | None = None
    newest_price: pd.Timestamp | None = None
    count_max_age: pd.Timedelta | None = None
    price_max_age: pd.Timedelta | None = None
    contradicted: tuple[str, ...] = ()
    on_demand: OnDemandOrigin = OBSERVED

    def __post_init__(self) -> None:
        validate_history(self)

    @property
    def price(self) -> np.ndarray:
        """Spot price per slot, USD per instance-hour, shape (slots,), NaN in gaps."""
        return self.frame[PRICE].to_numpy(dtype=float)

    @property
    def available(self) -> np.ndarray:
        """Available instances per slot, shape (slots,), NaN in gaps."""
        return self.frame[AVAILABLE].to_numpy(dtype=float)

    @property
    def slots(self) -> pd.DatetimeIndex:
        """Start of every slot, UTC."""
        return cast(pd.DatetimeIndex, self.frame.index)  # type checked by validate_history

    @property
    def availability_observed(self) -> bool:
        """Whether the availability was observed, not assumed."""
        return not any(text.startswith(UNOBSERVED) for text in self.assumptions)

    @property
    def synthetic(self) -> bool:
        """Whether any part of the history was assumed instead of measured."""
        return bool(self.assumptions)

    @property
    def on_demand_note(self) -> str | None:
        """Warning and remedy if the on-demand price is unknown or nothing is sold on demand; None otherwise."""
        if not self.on_demand.sold:
            return f"{self.market.key}: no on-demand here ({self.on_demand.words}): the deadline holds only while spot lasts"
        if not self.on_demand.known:
            return (
                f"{self.market.key}: on-demand price unknown, so no saving is stated and the plan assumes "
                f"{self.on_demand_usd:.2f} USD an instance-hour: "
                "state on_demand_usd in the job, or an [[on_demand]] entry in the settings"
            )
        return None

    @property
    def sparse_counts_note(self) -> str | None:
        """What a replay assumes where counts are read more rarely than slots begin; None where they are not."""
        longest = self.count_max_age
        if longest is None or longest <= GAPS_UNTIL_STALE * READ_SLOTS * self.step:
            return None
        return (
            f"{self.market.key}: counts are {duration(longest / GAPS_UNTIL_STALE)} apart, each taken to hold until the next "
            f"(at most {duration(longest)}); spot that came or went in between is not simulated"
        )

    @property
    def slot_hours(self) -> float:
        """Length of a slot in hours (Delta of M2.4)."""
        return self.step / pd.Timedelta(hours=1)

    def with_counts_read(self) -> History:
        """Return the history with gaps in place of counts that were read for an earlier slot."""
        if self.count_is_read is None:
            return self
        counts = np.where(self.count_is_read, self.available, np.nan)
        return replace(self, frame=self.frame.assign(**{AVAILABLE: counts}))

    def with_counts_assumed(self, count: int) -> History:
        """Return the history with ``count`` instances in slots with a price whose count was not read."""
        counts = self.with_counts_read().available
        unread = np.isnan(counts) & ~np.isnan(self.price)
        if not unread.any():
            return self
        return replace(self, frame=self.frame.assign(**{AVAILABLE: np.where(unread, count, counts)}))

    def until(self, at: pd.Timestamp) -> History:
        """Return the same history as known at ``at``: later slots are cut off, values learned later become gaps.

        The result can only lose information: a value that was revised after ``at`` becomes a gap, although
        the warehouse may still know the older value (read the warehouse as of ``at`` to get it).
        """
        if at >= self.known_at:
            return self
        frame = self.frame.loc[:at]
        late = frame[ROW_KNOWN_AT] > at
        if late.any():
            frame = frame.copy()
            frame.loc[late, [PRICE, AVAILABLE]] = np.nan
            frame.loc[late, ROW_KNOWN_AT] = pd.NaT
        counts = frame[AVAILABLE].to_numpy(dtype=float)
        # A capacity not stated by a probe is the largest observed count, which must not use later
        # observations.
        seen = int(np.nanmax(counts)) if np.isfinite(counts).any() else 0
        capacity = self.capacity if self.capacity_stated else seen
        within, read = self.within, self.count_is_read
        if within is not None:
            within = np.where(late.to_numpy(dtype=bool)[:, None], np.nan, within[: len(frame)])
        return replace(
            self,
            known_at=at,
            frame=frame,
            capacity=capacity,
            within=within,
            count_is_read=None if read is None else read[: len(frame)],
            newest_count=_unless_later(self.newest_count, at),
            newest_price=_unless_later(self.newest_price, at),
            contradicted=(),
        )


def _unless_later(seen: pd.Timestamp | None, at: pd.Timestamp) -> pd.Timestamp | None:
    return None if seen is None or seen > at else seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratings:
    """Newest placement score of a market (1 to 10) with its time, and interruption band (0 to 4); None where not known."""

    score: int | None = None
    scored_at: pd.Timestamp | None = None
    band: int | None = None


def validate_history(history: History) -> None:
    """Check a history; raises `HistoryError` that describes the first violation of the contract."""
    frame, index = history.frame, history.frame.index
    key = history.market.key
    if not isinstance(index, pd.DatetimeIndex) or index.tz is None or str(index.tz) != "UTC":
        raise HistoryError(f"{key}: index of type {type(index).__name__}", expected="a UTC DatetimeIndex")
    columns = list(frame.columns)
    missing = [name for name in (PRICE, AVAILABLE, ROW_KNOWN_AT) if name not in columns]
    if missing:
        raise HistoryError(f"{key}: no column {missing}", expected=f"{PRICE}, {AVAILABLE}, {ROW_KNOWN_AT}")
    if history.step <= pd.Timedelta(0):
        raise HistoryError(f"{key}: step {history.step}", expected="a positive step")
    if len(index) > 1 and not (np.diff(index.asi8) == history.step / pd.Timedelta(1, unit=index.unit)).all():
        raise HistoryError(f"{key}: slots are not {history.step} apart", expected="a regular ascending grid")
    if len(index) and index[-1] > history.known_at:
        raise HistoryError(
            f"{key}: slot {index[-1]} after known_at {history.known_at}", expected="none later"
        )
    latest = frame[ROW_KNOWN_AT].max()
    if latest > history.known_at:
        raise HistoryError(f"{key}: a row learned at {latest}", expected=f"known_at <= {history.known_at}")
    price, count = history.price, history.available
    if (price < 0).any() or np.isinf(price).any():
        raise HistoryError(f"{key}: price {np.nanmin(price)}", expected="finite prices >= 0")
    counts = count[~np.isnan(count)]
    if (counts < 0).any() or (counts != np.floor(counts)).any() or (counts > history.capacity).any():
        raise HistoryError(
            f"{key}: counts outside 0..{history.capacity} or not whole", expected="bounded integers"
        )
    if history.within is not None and (history.within.ndim != 2 or len(history.within) != len(frame)):
        raise HistoryError(
            f"{key}: readings within slots of shape {history.within.shape}", expected="one row per slot"
        )
    if not history.on_demand_usd > 0:
        raise HistoryError(f"{key}: on-demand price {history.on_demand_usd}", expected="a positive price")


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedForecast:
    """Values of a forecast as they are stored; `slackwater.forecasting.quantiles.Forecast` describes and checks them."""

    market: Market
    issued_at: pd.Timestamp
    step: pd.Timedelta
    predictor: str
    newest_row: pd.Timestamp
    price: np.ndarray
    price_mean: np.ndarray
    count: np.ndarray
    count_mean: np.ndarray
    capacity: int
    price_fallback: str = ""
    count_fallback: str = ""
    backfilled: bool = False
