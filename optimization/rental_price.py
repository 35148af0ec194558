"""What a GPU costs in a market whose spot instances come and go: the effective price of a GPU-hour (M8.6) (ours).

A fleet of N GPUs has as many as there are on spot and the rest on demand (M3.2), and an hour of overhead is paid, without work,
whenever a GPU that was on spot is lost. With share = E[min(A, N)] / N of counts A, and nu losses per spot GPU and hour,

    paid(N) = share min(p_s, p_o) + (1 - share) p_o    per GPU-hour held
    price(N) = paid(N) (1 + share nu overhead)         per GPU-hour of work

N paid(N) grows with N, so that a budget of B USD per hour holds the one N with N paid(N) = B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from forecasting.forecast import Forecast
from warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is expected of a market in the slots ahead.

    ``count`` and ``weight`` have shape (h, m): values of the count and their probabilities, each row of which sums to 1;
    ``price`` (h,) is the mean of the spot price, capped at on-demand; ``loss_rate`` the losses per spot GPU and hour.
    """

    count: np.ndarray
    weight: np.ndarray
    price: np.ndarray
    on_demand_usd: float
    loss_rate: float

    def expected_spot(self, gpus: float, held: float = 0.0) -> np.ndarray:
        """E[min(max(A - held, 0), gpus)] per slot ahead, shape (h,): spot left for ``gpus`` beside ``held`` older ones."""
        return np.asarray((np.clip(self.count - held, 0.0, gpus) * self.weight).sum(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePrice:
    """Price of a GPU-hour of work in USD for a fleet of ``gpus``, and what it is made of.

    ``paid_usd`` is the price of a GPU-hour held, work or not; ``lost`` is the extra time a job takes for restarts, as a share of
    the time without.
    """

    usd_per_gpu_hour: float
    paid_usd: float
    gpus: float
    spot_share: float
    spot_usd: float
    on_demand_usd: float
    lost: float


def forecast_outlook(forecast: Forecast, *, on_demand_usd: float, loss_rate: float) -> Outlook:
    """The outlook of a forecast: its 19 count quantiles as equally likely values, and its mean price (M6.1)."""
    count = forecast.quantiles("count")
    return Outlook(
        count=count,
        weight=np.full(count.shape, 1.0 / count.shape[1]),
        price=np.minimum(forecast.quantiles("price"), on_demand_usd).mean(axis=1),
        on_demand_usd=on_demand_usd,
        loss_rate=loss_rate,
    )


def effective_price(outlook: Outlook, gpus: float, *, overhead_hours: float) -> EffectivePrice:
    """The price of a GPU-hour of work for a fleet of ``gpus``, mean over the slots ahead.

    Raises `SettingsError` for a fleet or an overhead that is no number above (at least) 0.
    """
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


def affordable(outlook: Outlook, budget_usd: float, *, overhead_hours: float) -> EffectivePrice:
    """The price at the fleet that ``budget_usd`` per hour holds: N paid(N) = budget.

    Raises `SettingsError` for a budget that is no positive number.
    """
    if not 0.0 < budget_usd < np.inf:
        raise SettingsError(f"a budget of {budget_usd} USD per hour", expected="a positive number")

    def over(gpus: float) -> float:
        price = effective_price(outlook, gpus, overhead_hours=overhead_hours)
        return gpus * price.paid_usd - budget_usd

    return effective_price(
        outlook, _root(over, budget_usd / outlook.on_demand_usd), overhead_hours=overhead_hours
    )


def _root(over: Callable[[float], float], start: float) -> float:
    """Where a growing function is 0, from a first guess."""
    low = high = start
    while over(low) > 0:
        low /= 2.0
    while over(high) < 0:
        high *= 2.0
    return float(brentq(over, low, high, xtol=1e-9)) if low < high else low


def loss_rate(available: np.ndarray, gpus: float, *, slot_hours: float) -> float:
    """Losses per spot GPU and hour for a fleet that takes up to ``gpus`` of what is there, from counts (k,), NaN in gaps.

    sum of (min(A_t, N) - min(A_t+1, N))+ over sum of min(A_t, N) times the slot; 0 where no spot was seen.
    """
    held = np.minimum(np.asarray(available, dtype=float), gpus)
    before, after = held[:-1], held[1:]
    known = np.isfinite(before) & np.isfinite(after)
    hours = float(before[known].sum()) * slot_hours
    return float(np.maximum(before[known] - after[known], 0.0).sum()) / hours if hours > 0 else 0.0
