"""Market data as the optimizer reads them: prices and counts per slot, observed or forecast (M1.1, M3.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from slackwater.forecasting.quantiles import LEVELS, TAIL, Forecast
from slackwater.optimization.job.definition import ROUNDING_USD, Job, Progress, guard_usd
from slackwater.warehouse.errors import MarketError
from slackwater.warehouse.history import AVAILABLE, NOT_SOLD, OBSERVED, PRICE, History, OnDemandOrigin


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketWindow:
    """Consecutive slots of a market.

    ``price`` (USD per instance-hour) and ``available`` (instances) have shape (slots,). ``observed`` is False
    in a gap (M1.3); ``available`` must be 0 there, since an unknown count permits no spot instances (ours).
    ``on_demand`` is the origin of the on-demand price; where nothing is sold on demand, the price is higher
    than any job can pay (`plan_price`). ``availability_observed`` is False where every count is assumed.
    ``quoted`` (slots,) are the market's prices before the job's price ceiling changed ``price``
    (`SpotCeiling`); None if there is no ceiling.
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
        """Return the window of the slots start..stop-1."""
        return replace(
            self,
            price=self.price[start:stop],
            available=self.available[start:stop],
            observed=self.observed[start:stop],
            quoted=None if self.quoted is None else self.quoted[start:stop],
        )


#: Where nothing is sold on demand, an on-demand instance-slot costs at least this multiple of the
#: job's value.
PROHIBITIVE = 2.0


def plan_price(history: History, value: float) -> float:
    """Return the on-demand price to plan with, USD; if none is sold, above every spot price and the job's value."""
    if history.on_demand.sold:
        return history.on_demand_usd
    return max(PROHIBITIVE * value / history.slot_hours, 10.0 * history.on_demand_usd)


@dataclass(frozen=True, slots=True)
class SpotCeiling:
    """The highest price, ``usd``, at which a job runs spot instances; applied to all prices that its plans read (M2.10).

    A price above the ceiling is raised to the on-demand price, at which no plan runs spot instances
    (M3.2). The change is monotone, so the quantiles of the changed price are the changed quantiles,
    and plans, value tables, sampled paths and the hindsight optimum are consistent.
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
        quantiles = forecast.quantiles
        return PointForecast(
            price=self.price(forecast.price),
            available=forecast.available,
            quantiles=None if quantiles is None else replace(quantiles, price=self.price(quantiles.price)),
        )

    def window(self, rows: pd.DataFrame, history: History, value: float) -> MarketWindow:
        """Return the window of the slots ``rows`` of a history for a job of this value (USD), with the ceiling applied."""
        if math.isinf(self.usd):
            return window_of(rows, history, value)
        window = window_of(
            rows.assign(**{PRICE: self.price(rows[PRICE].to_numpy(dtype=float))}), history, value
        )
        return replace(window, quoted=rows[PRICE].to_numpy(dtype=float))


#: Origin of the on-demand price if the budget of a job does not pay for finishing on demand.
BEYOND_BUDGET = OnDemandOrigin(kind=NOT_SOLD, words="the budget does not pay for finishing on demand")


def payable(history: History, job: Job, progress: Progress, *, slot: int) -> History:
    """Return the history, without on-demand if the budget does not pay for finishing on demand from ``slot`` on (M2.10)."""
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
    """Return the price ceiling of a job on the market of a history."""
    return SpotCeiling(job.max_spot_usd, plan_price(history, job.value))


def window_of(rows: pd.DataFrame, history: History, value: float) -> MarketWindow:
    """Return the window of the slots ``rows`` of a history, with the on-demand price for a job of this value (USD)."""
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
    """Observations up to the present slot, which is the last element of every array (M1.2, M4.9).

    ``age`` is the age of the last element in slots; it is above 0 only in a look-ahead, where nothing later
    is known. ``price`` and ``available`` have shape (k,), with NaN in gaps. ``peers`` (m, k) are the counts
    of m other markets of the same kind in the same slots, NaN where unknown. ``hour`` is the UTC hour of the
    day at which the present slot begins, None if the source has no real clock times. ``within`` (k, r) are the
    counts read between each slot and the slot before, evenly spaced and oldest first, None where none were stored.
    """

    price: np.ndarray
    available: np.ndarray
    peers: np.ndarray
    hour: float | None = None
    age: int = 0
    within: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The longer record from which a job's window is cut, for policies that learn from data before the job (M4.6).

    The arrays are as in `Past`, over all k slots. The job's slot 0 is element ``first``; ``hour`` is the UTC
    hour of element 0. The arrays must reach the last requested slot of the job, otherwise `until` raises
    `MarketError`; in a ``still`` record, slots after the end use the observations up to the end.
    """

    price: np.ndarray
    available: np.ndarray
    peers: np.ndarray
    first: int
    slot_hours: float
    hour: float | None = None
    still: bool = False
    within: np.ndarray | None = None
    _pasts: dict[int, Past] = field(default_factory=dict, init=False, repr=False, compare=False)

    def until(self, slot: int) -> Past:
        """Return the observations known in the job's slot ``slot``; raises `MarketError` for a slot that is not covered."""
        past = self._pasts.get(slot)
        if past is None:  # many policies of a replay read the same slot
            past = self._pasts[slot] = self._until(slot)
        return past

    def _until(self, slot: int) -> Past:
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
            within=None if self.within is None else self.within[:end],
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
    within: np.ndarray | None = None,
) -> Record:
    """Build a `Record` from arrays with NaN in gaps; raises `MarketError` if their shapes do not match."""
    price, available = np.asarray(price, dtype=float), np.asarray(available, dtype=float)
    others = np.empty((0, len(price))) if peers is None else np.asarray(peers, dtype=float)
    rows = len(price) if within is None else len(within)
    if available.shape != price.shape or others.ndim != 2 or {others.shape[1], rows} != {len(price)}:
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
        within=within,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Forecast quantiles of price and count for each slot ahead, at `LEVELS`.

    ``price`` (USD per instance-hour) and ``count`` have shape (h, 19). ``capacity`` is the largest
    possible count, ``tail`` the probability of counts beyond the outermost quantiles (`count_distribution`).
    """

    price: np.ndarray
    count: np.ndarray
    capacity: int
    tail: float = TAIL


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PointForecast:
    """The parts of a forecast that the optimizer reads: a price and a count per slot ahead for plans, quantiles for beliefs.

    Arrays have shape (h,); element 0 is slot t+1. Without ``quantiles`` the forecast has no
    probabilities (M6.9). Two forecasts are equal only if they are the same object.
    """

    price: np.ndarray
    available: np.ndarray
    quantiles: Quantiles | None = None


def point_forecast(forecast: Forecast) -> PointForecast:
    """Return the parts of an issued forecast that the optimizer reads."""
    return of_quantiles(Quantiles(price=forecast.price, count=forecast.count, capacity=forecast.capacity))


def of_quantiles(quantiles: Quantiles) -> PointForecast:
    """Return the median price and the median count rounded down: at least that many are available half the time (ours)."""
    middle = len(LEVELS) // 2
    return PointForecast(
        price=quantiles.price[:, middle].astype(float),
        available=whole_counts(quantiles.count[:, middle]),
        quantiles=quantiles,
    )


def certain(price: np.ndarray, available: np.ndarray) -> PointForecast:
    """Return a forecast without uncertainty, with each slot's price and count, shape (h,), at every level."""
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
    """Return median counts rounded down to whole instances; a rounding error below a whole number is corrected (ours)."""
    return np.floor(median + 1e-9).astype(np.int64)
