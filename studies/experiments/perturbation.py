"""Forecasts perturbed by errors of known size, to measure the effect of forecast errors on plans (M6.8)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from slackwater.warehouse.errors import SettingsError

#: Error sizes of experiment E2 (M6.8).
SIZES = (0.0, 0.1, 0.3, 0.5, 1.0)
#: Degrees of freedom of the heavy-tailed error distribution (M6.8).
FREEDOM = 2.5
#: Median of |t| with `FREEDOM` degrees of freedom. Scaling by 0.5 / `_MEDIAN_T` gives both distributions the same median
#: absolute error, half of the size (ours).
_MEDIAN_T = 0.7850136829922992
#: Lower bound of a perturbed price, in units of the on-demand price (M6.8).
LEAST_PRICE = 0.01


class Growth(StrEnum):
    """Dependence of the error on the step ahead: constant, or growing with its square root (ours)."""

    FIXED = "fixed"
    GROWING = "growing"


class Law(StrEnum):
    """Distribution of the error: uniform on [-1, 1], or Student t."""

    UNIFORM = "uniform"
    HEAVY = "student_t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Errors of the forecasts of one job at size 1: ``price`` and ``count`` of shape (slots, steps ahead).

    The same noise serves every size, so that sizes are compared on the same errors.
    """

    price: np.ndarray
    count: np.ndarray


def draw_noise(
    slots: int, steps: int, *, growth: Growth, distribution: Law, rng: np.random.Generator
) -> Noise:
    """Draw independent errors for forecasts issued in each of ``slots`` slots for ``steps`` slots ahead (M6.8).

    Both distributions have median |error| 1/2 at step 1; growing errors are scaled by sqrt(k) at step k. Raises
    `SettingsError` for fewer than one slot or step.
    """
    if slots < 1 or steps < 1:
        raise SettingsError(f"noise for {slots} slots, {steps} steps ahead", expected="at least one of each")
    shape = (2, slots, steps)
    drawn = (
        rng.uniform(-1.0, 1.0, shape)
        if distribution is Law.UNIFORM
        else rng.standard_t(FREEDOM, shape) * (0.5 / _MEDIAN_T)
    )
    scale = np.sqrt(np.arange(1, steps + 1)) if growth is Growth.GROWING else np.ones(steps)
    return Noise(price=drawn[0] * scale, count=drawn[1] * scale)


def perturbed_price(price: np.ndarray, noise: np.ndarray, *, size: float, on_demand_usd: float) -> np.ndarray:
    """Return p + size x p_o x noise, clipped to [0.01 p_o, p_o], in the shape of ``price`` and ``noise`` (M6.8).

    At size 0 the price is returned unchanged.
    """
    if size == 0.0:
        return np.asarray(price, dtype=float)
    wrong = np.asarray(price, dtype=float) + _checked(size) * on_demand_usd * noise
    return np.asarray(np.clip(wrong, LEAST_PRICE * on_demand_usd, on_demand_usd))


def perturbed_count(count: np.ndarray, noise: np.ndarray, *, size: float, capacity: int) -> np.ndarray:
    """Return n + size x capacity x noise, rounded and clipped to 0..capacity (M6.8), as integers.

    At size 0 the count is returned unchanged. The error is in units of the capacity, not of the count, so that a count of
    0 is perturbed as well (ours).
    """
    if size == 0.0:
        return np.asarray(count, dtype=np.int64)
    wrong = np.asarray(count, dtype=float) + _checked(size) * capacity * noise
    return np.asarray(np.clip(np.rint(wrong), 0, capacity), dtype=np.int64)


def _checked(size: float) -> float:
    if not size >= 0.0:
        raise SettingsError(f"error size {size}", expected="a size >= 0")
    return size
