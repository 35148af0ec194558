"""Joint sample paths from a forecast's quantiles, for the chance of being late."""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter
from scipy.special import ndtr

from forecasting.quantiles import LEVELS, Forecast
from warehouse.errors import SettingsError


def sample_paths(
    forecast: Forecast, *, n: int, rng: np.random.Generator, rank_persistence: float = 0.9
) -> tuple[np.ndarray, np.ndarray]:
    """Draw ``n`` paths of price and count, shapes (n, horizon), counts as integers.

    The quantiles say how likely a value is in each slot, not how slots hang together. Ranks do here (ours): a
    Gaussian copula whose normal scores follow z(k) = r z(k-1) + sqrt(1 - r^2) e(k), r = ``rank_persistence`` per slot, price and
    count drawn independently. A rank becomes a value by linear interpolation between the quantiles; tails are held at
    q05 and q95, so nothing rarer than that is ever drawn. Counts are rounded, which makes the share of paths with at least
    n instances converge to `Forecast.probability_at_least`. Raises `SettingsError` unless n >= 1 and 0 <= r <= 1.
    """
    if n < 1 or not 0.0 <= rank_persistence <= 1.0:
        raise SettingsError(
            f"{n} paths with rank persistence {rank_persistence}",
            expected="at least one path and a persistence from 0 to 1",
        )
    shape = (n, forecast.horizon)
    price = _values(forecast.price, _ranks(shape, rng, rank_persistence))
    count = _values(forecast.count, _ranks(shape, rng, rank_persistence))
    return price, np.floor(count + 0.5).astype(np.int64)


def _ranks(shape: tuple[int, int], rng: np.random.Generator, persistence: float) -> np.ndarray:
    """Uniform ranks of shape (paths, slots), an AR(1) in normal scores along the slots."""
    scores = rng.standard_normal(shape)
    scores[:, 1:] *= np.sqrt(1.0 - persistence**2)
    return np.asarray(ndtr(lfilter([1.0], [1.0, -persistence], scores, axis=1)))


def _values(quantiles: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Values at the ranks, slot by slot, shape of ``ranks``."""
    out = np.empty(ranks.shape)
    for k in range(ranks.shape[1]):
        out[:, k] = np.interp(ranks[:, k], LEVELS, quantiles[k])
    return out
