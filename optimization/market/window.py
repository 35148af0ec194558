"""What the optimizer sees of a market: prices and counts per slot, observed or forecast (M1.1, M3.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from forecasting.quantiles import LEVELS, TAIL, Forecast
from optimization.job.definition import ROUNDING_USD, Job, Progress, guard_usd
from warehouse.errors import MarketError
from warehouse.history import AVAILABLE, NOT_SOLD, OBSERVED, PRICE, History, OnDemandOrigin


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketWindow:
    """Consecutive slots of one market.

    ``price`` (USD per instance-hour) and ``available`` (instances) have shape (slots,). ``observed`` is False in a gap
    (M1.3); there, ``available`` must be 0: an unknown count gives no right to spot (ours). ``on_demand`` says where the on-demand
    price comes from; where nothing is sold on demand the price is one that no value pays (`plan_price`).
    ``availability_observed`` is False where every count is assumed. ``quoted`` (slots,) are the prices in the market where the
    job's price ceiling changed ``price`` (`SpotCeiling`); None where there is no ceiling.
    """

    price: np.ndarray
    available: np.ndarray
    on_demand_usd: float
    slot_hours: float
    observed: np.ndarray
    on_demand: OnDemandOrigin = OBSERVED
    availability_observed: bool = True
    quoted: np.ndarray | None = None

    def __len__(self) -> int:
        return int(self.price.shape[0])

    def cut(self, start: int, stop: int) -> MarketWindow:
        """Slots start..stop-1."""
        return MarketWindow(
            price=self.price[start:stop],
            available=self.available[start:stop],
            on_demand_usd=self.on_demand_usd,
            slot_hours=self.slot_hours,
            observed=self.observed[start:stop],
            on_demand=self.on_demand,
            availability_observed=self.availability_observed,
            quoted=None if self.quoted is None else self.quoted[start:stop],
        )


#: Where nothing is sold on demand, an instance on demand costs so many times the value of the job a slot.
PROHIBITIVE = 2.0


def plan_price(history: History, value: float) -> float:
    """The on-demand price to plan with, USD per instance-hour; where nothing is sold on demand a price that no value pays.

    It lies above every spot price too, and stays finite: ``value`` is that of the job, USD.
    """
    if history.on_demand.sold:
        return history.on_demand_usd
    return max(PROHIBITIVE * value / history.slot_hours, 10.0 * history.on_demand_usd)


@dataclass(frozen=True, slots=True)
class SpotCeiling:
    """The highest price, ``usd``, at which a job runs spot; applied to all prices that its plans read (M2.10).

    A price above the ceiling becomes the on-demand price: nobody runs spot at it (M3.2). The change is monotone, so a quantile of
    the changed price is the changed quantile, and plans, value tables, sampled futures and hindsight agree.
    """

    usd: float
    on_demand_usd: float

    def price(self, price: np.ndarray) -> np.ndarray:
        """Return spot prices with the ceiling applied; NaN stays NaN."""
        return np.where(price > self.usd, np.maximum(price, self.on_demand_usd), price)

    def history(self, history: History) -> History:
        """Return the history with the ceiling applied to its prices."""
        if math.isinf(self.usd):
            return history
        return replace(history, frame=history.frame.assign(**{PRICE: self.price(history.price)}))

    def forecast(self, forecast: PointForecast) -> PointForecast:
        """Return the forecast with the ceiling applied to its prices."""
        if math.isinf(self.usd):
            return forecast
        told = forecast.quantiles
        return PointForecast(
            price=self.price(forecast.price),
            available=forecast.available,
            quantiles=None if told is None else replace(told, price=self.price(told.price)),
        )

    def window(self, rows: pd.DataFrame, history: History, value: float) -> MarketWindow:
        """Return the window of the slots ``rows`` of a history for a job of this value, with the ceiling applied."""
        if math.isinf(self.usd):
            return window_of(rows, history, value)
        taken = window_of(
            rows.assign(**{PRICE: self.price(rows[PRICE].to_numpy(dtype=float))}), history, value
        )
        return replace(taken, quoted=rows[PRICE].to_numpy(dtype=float))


#: Where the budget of a job does not pay for finishing on demand.
BEYOND_BUDGET = OnDemandOrigin(kind=NOT_SOLD, words="the budget does not pay for finishing on demand")


def payable(history: History, job: Job, progress: Progress, *, slot: int) -> History:
    """Return the history, without on-demand where the budget does not pay for finishing on demand from ``slot`` on (M2.10)."""
    if math.isinf(job.budget_usd) or not history.on_demand.sold:
        return history
    guard = guard_usd(
        job,
        progress,
        left=job.deadline_slots - slot,
        on_demand_usd=history.on_demand_usd,
        slot_hours=history.slot_hours,
    )
    if progress.cost_usd + guard <= job.budget_usd + ROUNDING_USD:
        return history
    return replace(history, on_demand=BEYOND_BUDGET)


def spot_ceiling(job: Job, history: History) -> SpotCeiling:
    """Return the ceiling of a job on the market of a history."""
    return SpotCeiling(job.max_spot_usd, plan_price(history, job.value))


def window_of(rows: pd.DataFrame, history: History, value: float) -> MarketWindow:
    """The slots ``rows`` of a history as a job of this value plans with them."""
    return market_window(
        rows[PRICE].to_numpy(dtype=float),
        rows[AVAILABLE].to_numpy(dtype=float),
        on_demand_usd=plan_price(history, value),
        slot_hours=history.slot_hours,
        on_demand=history.on_demand,
        availability_observed=history.availability_observed,
    )


def market_window(
    price: np.ndarray,
    available: np.ndarray,
    *,
    on_demand_usd: float,
    slot_hours: float,
    on_demand: OnDemandOrigin = OBSERVED,
    availability_observed: bool = True,
) -> MarketWindow:
    """Build a window from arrays with NaN in gaps: a gap has no spot (count 0) and is priced at on-demand (ours)."""
    price = np.asarray(price, dtype=float)
    count = np.asarray(available, dtype=float)
    observed = ~(np.isnan(price) | np.isnan(count))
    return MarketWindow(
        price=np.where(observed, price, on_demand_usd),
        available=np.where(observed, count, 0).astype(np.int64),
        on_demand_usd=float(on_demand_usd),
        slot_hours=float(slot_hours),
        observed=observed,
        on_demand=on_demand,
        availability_observed=availability_observed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What was observed up to the present slot, the last element of every array (M1.2, M4.9).

    ``age`` is above 0 in a look ahead only: so many slots ago the last element was, and nothing later is known.
    ``price`` and ``available`` have shape (k,), NaN in gaps. ``peers`` (m, k) are the counts of m other markets of the same
    kind on the same slots, NaN where unknown. ``hour`` is the UTC hour of the day at which the present slot begins, None where
    the source has no real clock times.
    """

    price: np.ndarray
    available: np.ndarray
    peers: np.ndarray
    hour: float | None = None
    age: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The longer record that a job's window was cut from, for policies that learn from what came before the job (M4.6).

    Arrays as in `Past`, over all k slots; the job's slot 0 is element ``first`` and ``hour`` is that of element 0. They reach at
    least to the last slot of the job that will be asked for: `until` raises `MarketError` where they do not, unless the record is
    held ``still``: then every later slot knows what its last one knew.
    """

    price: np.ndarray
    available: np.ndarray
    peers: np.ndarray
    first: int
    slot_hours: float
    hour: float | None = None
    still: bool = False

    def until(self, slot: int) -> Past:
        """The record as known in the job's slot ``slot``: nothing after it."""
        present = self.first + slot
        end = min(present + 1, len(self.price)) if self.still else present + 1
        if self.first < 0 or end > len(self.price):
            raise MarketError(
                f"a record of {len(self.price)} slots has no slot {slot} of a job that begins at {self.first}",
                expected="a record that covers the job",
            )
        hour = None if self.hour is None else (self.hour + present * self.slot_hours) % 24.0
        return Past(
            price=self.price[:end],
            available=self.available[:end],
            peers=self.peers[:, :end],
            hour=hour,
            age=present + 1 - end,
        )


def record_of(
    price: np.ndarray,
    available: np.ndarray,
    *,
    first: int,
    slot_hours: float,
    peers: np.ndarray | None = None,
    hour: float | None = None,
    still: bool = False,
) -> Record:
    """Build a `Record` from arrays with NaN in gaps; raises `MarketError` if they do not match in length."""
    price, available = np.asarray(price, dtype=float), np.asarray(available, dtype=float)
    others = np.empty((0, len(price))) if peers is None else np.asarray(peers, dtype=float)
    if available.shape != price.shape or others.ndim != 2 or others.shape[1] != len(price):
        raise MarketError(
            f"a record of {price.shape} prices, {available.shape} counts and {others.shape} peers",
            expected="as many counts as prices, and peers of shape (markets, slots)",
        )
    return Record(
        price=price,
        available=available,
        peers=others,
        first=first,
        slot_hours=slot_hours,
        hour=hour,
        still=still,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """What a forecast says of each slot ahead: quantiles of price (USD per instance-hour) and count at `LEVELS`, shapes (h, 19),
    the largest count there can be, and the chance that it leaves to counts beyond the outermost quantiles (`count_law`)."""

    price: np.ndarray
    count: np.ndarray
    capacity: int
    tail: float = TAIL


@dataclass(frozen=True, slots=True, kw_only=True)
class PointForecast:
    """What is read of a forecast: one price and one count per slot ahead, shapes (h,), by plans, and its quantiles by beliefs.

    Element 0 is slot t+1. Without ``quantiles`` nothing is said of how likely anything is (M6.9).
    """

    price: np.ndarray
    available: np.ndarray
    quantiles: Quantiles | None = None


def point_forecast(forecast: Forecast) -> PointForecast:
    """What is read of an issued forecast."""
    return of_quantiles(Quantiles(price=forecast.price, count=forecast.count, capacity=forecast.capacity))


def of_quantiles(quantiles: Quantiles) -> PointForecast:
    """Median price and median count rounded down: half the time at least that many are there (ours)."""
    middle = len(LEVELS) // 2
    return PointForecast(
        price=quantiles.price[:, middle].astype(float),
        available=whole_counts(quantiles.count[:, middle]),
        quantiles=quantiles,
    )


def certain(price: np.ndarray, available: np.ndarray) -> PointForecast:
    """A forecast that leaves nothing open: each slot's price and count (h,) at every level."""
    shape = (len(price), len(LEVELS))
    return PointForecast(
        price=price,
        available=available,
        quantiles=Quantiles(
            price=np.broadcast_to(price[:, None], shape),
            count=np.broadcast_to(available[:, None], shape),
            capacity=int(max(1, available.max(initial=0))),
            tail=0.0,
        ),
    )


def whole_counts(median: np.ndarray) -> np.ndarray:
    """Median counts rounded down to whole instances; a rounding error short of a whole one is that one (ours)."""
    return np.floor(median + 1e-9).astype(np.int64)
