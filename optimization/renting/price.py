"""Effective price of a GPU-hour on a market with spot, outlooks of its slots, and the cost of delay (M8.6) (ours).

With share = E[min(A, N)] / N of counts A, and nu losses per spot GPU and hour,

    paid(N) = share min(p_s, p_o) + (1 - share) p_o    per GPU-hour rented
    price(N) = paid(N) (1 + share nu overhead)         per GPU-hour of work

N paid(N) grows with N, so that a budget of B USD per hour pays for the unique N with N paid(N) = B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from scipy.optimize import brentq

from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.renting.speedup import Exponential, SizeDistribution
from slackwater.warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceOutlook:
    """Expected market in the slots ahead.

    ``count`` and ``weight`` have shape (h, m): values of the count and their probabilities, each
    row of which sums to 1. ``price`` (h,) is the mean of the spot price, capped at on-demand;
    ``loss_rate`` is the number of losses per spot GPU and hour.
    """

    count: np.ndarray
    weight: np.ndarray
    price: np.ndarray
    on_demand_usd: float
    loss_rate: float

    def expected_spot(self, gpus: float) -> np.ndarray:
        """Return E[min(A, gpus)] per slot ahead, shape (h,)."""
        return np.asarray((np.clip(self.count, 0.0, gpus) * self.weight).sum(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePrice:
    """Price of a GPU-hour of work in USD for a fleet of ``gpus``, with its components.

    ``paid_usd`` is the price of a rented GPU-hour, with or without work; ``lost`` is the extra time
    of a job for restarts, as a share of the time without restarts.
    """

    usd_per_gpu_hour: float
    paid_usd: float
    gpus: float
    spot_share: float
    spot_usd: float
    on_demand_usd: float
    lost: float


def forecast_outlook(
    forecast: Forecast, *, on_demand_usd: float, loss_rate: float, gpus_per_instance: int = 1
) -> PriceOutlook:
    """Return the outlook of a forecast: its 19 count quantiles as equally likely values, and its mean price (M6.1).

    The forecast and ``on_demand_usd`` refer to instances of ``gpus_per_instance`` GPUs, the outlook
    to GPUs (M8.6).
    """
    count = forecast.quantiles("count") * gpus_per_instance
    return PriceOutlook(
        count=count,
        weight=np.full(count.shape, 1.0 / count.shape[1]),
        price=np.minimum(forecast.quantiles("price"), on_demand_usd).mean(axis=1) / gpus_per_instance,
        on_demand_usd=on_demand_usd / gpus_per_instance,
        loss_rate=loss_rate,
    )


def effective_price(outlook: PriceOutlook, gpus: float, *, overhead_hours: float) -> EffectivePrice:
    """Return the mean price of a GPU-hour of work for a fleet; raises `SettingsError` for invalid fleet or overhead."""
    if not 0.0 < gpus < np.inf or not 0.0 <= overhead_hours < np.inf:
        raise SettingsError(
            f"a fleet of {gpus} GPUs and an overhead of {overhead_hours} h", expected="positive numbers"
        )
    spot = outlook.expected_spot(gpus) / gpus
    share = float(spot.mean())
    paid = float((spot * outlook.price + (1.0 - spot) * outlook.on_demand_usd).mean())
    lost = share * outlook.loss_rate * overhead_hours
    return EffectivePrice(
        usd_per_gpu_hour=paid * (1.0 + lost),
        paid_usd=paid,
        gpus=gpus,
        spot_share=share,
        spot_usd=float((spot * outlook.price).sum() / spot.sum()) if share > 0 else float("nan"),
        on_demand_usd=outlook.on_demand_usd,
        lost=lost,
    )


def affordable(outlook: PriceOutlook, budget_usd: float, *, overhead_hours: float) -> EffectivePrice:
    """Return the price at the fleet N with N paid(N) = ``budget_usd`` per hour; raises `SettingsError` unless positive."""
    if not 0.0 < budget_usd < np.inf:
        raise SettingsError(f"a budget of {budget_usd} USD per hour", expected="a positive number")

    def over(gpus: float) -> float:
        price = effective_price(outlook, gpus, overhead_hours=overhead_hours)
        return gpus * price.paid_usd - budget_usd

    return effective_price(
        outlook, _root(over, budget_usd / outlook.on_demand_usd), overhead_hours=overhead_hours
    )


def _root(over: Callable[[float], float], start: float) -> float:
    """Return the zero of an increasing function, from a first guess."""
    low = high = start
    while over(low) > 0:
        low /= 2.0
    while over(high) < 0:
        high *= 2.0
    return float(brentq(over, low, high, xtol=1e-9)) if low < high else low


def loss_rate(available: np.ndarray, gpus: float, *, slot_hours: float) -> float:
    """Return losses per spot GPU and hour for a fleet of up to ``gpus``, from counts (k,), NaN in gaps.

    sum of (min(A_t, N) - min(A_t+1, N))+ over sum of min(A_t, N) times the slot; 0 if no spot was observed.
    """
    held = np.minimum(np.asarray(available, dtype=float), gpus)
    before, after = held[:-1], held[1:]
    known = np.isfinite(before) & np.isfinite(after)
    hours = float(before[known].sum()) * slot_hours
    return float(np.maximum(before[known] - after[known], 0.0).sum()) / hours if hours > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedDelay:
    """Cost of ``price`` for every hour of response time, in hours (M8.2) or with ``in_usd`` in USD."""

    price: float = 1.0
    in_usd: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.price < float("inf"):
            raise SettingsError(f"a price of delay of {self.price} an hour", expected="a positive number")

    @property
    def linear_price(self) -> float | None:
        """Price per hour."""
        return self.price

    def expected_loss(self, mean_hours: np.ndarray) -> np.ndarray:
        """Return price x hours."""
        return self.price * np.asarray(mean_hours, dtype=float)

    def cost(self, hours: np.ndarray) -> np.ndarray:
        """Return price x hours."""
        return self.price * np.asarray(hours, dtype=float)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineDelay:
    """Value lost by M2.5: none up to d = ``deadline_hours``, all of ``value_usd`` from gamma d on, linear between.

    A job of type i at width k has T = X_i / s_i(k), so that with m = E[T] and X = E[X] Y

        E[loss] = v / ((gamma - 1) d) * integral from d to gamma d of P(m Y > t) dt.

    Its derivative in m is the price of delay at that width. The loss is not convex in m (a job that
    is far too late has no value left to lose), so widths are taken from the lower convex hull, as
    for measured speedups (M8.3).
    """

    in_usd: ClassVar[bool] = True
    linear_price: ClassVar[float | None] = None

    deadline_hours: float
    value_usd: float
    gamma: float = 1.5
    size_distribution: SizeDistribution = field(default_factory=Exponential)

    def __post_init__(self) -> None:
        if not self.deadline_hours > 0 or not self.value_usd > 0 or not self.gamma > 1:
            raise SettingsError(
                f"a deadline of {self.deadline_hours} h, a value of {self.value_usd} USD, a decay of {self.gamma}",
                expected="a positive deadline and value, and a decay above 1",
            )

    def expected_loss(self, mean_hours: np.ndarray) -> np.ndarray:
        """Return the expected loss in USD at these mean response times."""
        d, end = self.deadline_hours, self.gamma * self.deadline_hours
        means = np.asarray(mean_hours, dtype=float)
        late = np.array([m * self.size_distribution.mean_between(d / m, end / m) for m in means.ravel()])
        return np.asarray(self.value_usd / (end - d) * late.reshape(means.shape))

    def cost(self, hours: np.ndarray) -> np.ndarray:
        """Return the value lost by jobs that took ``hours``, USD."""
        d = self.deadline_hours
        late = (np.asarray(hours, dtype=float) - d) / ((self.gamma - 1.0) * d)
        return self.value_usd * np.clip(late, 0.0, 1.0)


Delay = PricedDelay | DeadlineDelay  # Cost of the response time of a job, in USD or in hours
