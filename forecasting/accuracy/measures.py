"""Accuracy of arrays of forecasts: each measure a plain function of quantiles, mean or chances and the actual values (M6.5).

Shapes: ``actual`` (m, h), NaN in gaps; ``quantiles`` (m, h, 19) at `LEVELS`, not crossing: they are all that a stored
forecast says. Results are (m, h) unless said; NaN where the actual value is a gap.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import t as student

from forecasting.quantiles import LEVELS, count_law

#: Central intervals: per cent -> places of their ends in `LEVELS`.
ENDS = {50: (4, 14), 80: (1, 17), 90: (0, 18)}
#: Prices are sums of floats: a value that was forecast exactly must not fall out of its own interval.
_SLACK = 1e-9
_STEP = 0.05
#: Less mass than this is none: sums of chances are exact to about so much.
_NO_MASS = 1e-12


def pinball(quantiles: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Mean over the levels a of max(a (y - q), (a - 1)(y - q)); half the CRPS, approximately."""
    error = actual[..., None] - quantiles
    # By elements, not by a matrix product, whose last bits depend on how many forecasts are measured at once.
    return np.asarray(np.maximum(LEVELS * error, (LEVELS - 1.0) * error).mean(axis=-1))


def covered_closed(quantiles: np.ndarray, actual: np.ndarray, percent: int) -> np.ndarray:
    """1 where the actual value is in the closed central interval of the quantiles, else 0.

    Where the law has point masses this is above ``percent`` by construction: see `covered`.
    """
    low, high = ENDS[percent]
    slack = _SLACK * np.maximum(1.0, np.abs(actual))
    inside = (actual >= quantiles[..., low] - slack) & (actual <= quantiles[..., high] + slack)
    return np.where(np.isnan(actual), np.nan, inside)


def width(quantiles: np.ndarray, percent: int) -> np.ndarray:
    """Width of the central interval."""
    low, high = ENDS[percent]
    return np.asarray(quantiles[..., high] - quantiles[..., low])


def chances(quantiles: np.ndarray, capacity: int) -> np.ndarray:
    """Chance of "at least n" for n = 1..capacity, shape (m, h, capacity).

    As `Forecast.probability_at_least`.
    """
    return np.asarray(1.0 - np.cumsum(count_law(quantiles, capacity), axis=-1)[..., :-1])


def brier(chance: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Mean over n of (P(at least n) - [y >= n])^2, from chances (m, h, capacity); NaN for capacity 0."""
    if chance.shape[-1] == 0:
        return np.full(actual.shape, np.nan)
    n = np.arange(1, chance.shape[-1] + 1)
    error = np.square(chance - (actual[..., None] >= n)).mean(axis=-1)
    return np.where(np.isnan(actual), np.nan, error)


def transform_span(quantiles: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """F(y-) and F(y): between which the randomised probability integral transform of y is uniform (Brockwell 2007).

    Only the levels are known (ours): between two quantiles, and beyond the outermost, both are the middle of the two
    levels, of which no measure here asks more. A value that ties with the quantiles of some levels holds the mass of those
    levels, from half a level below the first to half a level above the last, because the ends of its mass are anywhere in
    between; if q05 is among them from 0, if q95 is up to 1.
    """
    slack = _SLACK * np.maximum(1.0, np.abs(actual))
    below = (quantiles < (actual - slack)[..., None]).sum(axis=-1)
    upto = (quantiles <= (actual + slack)[..., None]).sum(axis=-1)
    tied = upto > below
    low = np.where(tied & (below == 0), 0.0, _STEP * (below + 0.5))
    return low, np.where(tied & (upto == LEVELS.size), 1.0, _STEP * (upto + 0.5))


def covered(span: tuple[np.ndarray, np.ndarray], actual: np.ndarray, percent: int) -> np.ndarray:
    """Chance that the randomised transform of y is in the central interval of levels: the coverage that laws with point
    masses can be held to (Brockwell 2007; Czado, Gneiting and Held 2009), in expectation, so that nothing is drawn.

    ``span`` is `transform_span`'s; the result is the share of it that lies within [(1 - P) / 2, (1 + P) / 2]. If y follows the
    law, its mean is P whatever the law. Of a continuous law it is 1 inside the interval and 0 outside. A count that
    sits at 16 with chance 0.97 is inside the closed interval [16, 16] of 80 % in 97 of 100 cases, and inside this one in 80.
    """
    low, high = span
    first, last = (1.0 - percent / 100) / 2.0, (1.0 + percent / 100) / 2.0
    width = high - low
    overlap = np.minimum(high, last) - np.maximum(low, first)
    at_a_point = (low >= first - _SLACK) & (low <= last + _SLACK)
    share = np.where(width > _NO_MASS, overlap / np.where(width > _NO_MASS, width, 1.0), at_a_point)
    return np.where(np.isnan(actual), np.nan, np.clip(share, 0.0, 1.0))


def shares_below(span: tuple[np.ndarray, np.ndarray], actual: np.ndarray) -> np.ndarray:
    """For each level a the chance that the randomised transform of y (see `transform_span`) is at most a, shape (m, h, 19)."""
    low, high = span[0][..., None], span[1][..., None]
    width = high - low
    share = np.where(
        width > _NO_MASS, (LEVELS - low) / np.where(width > _NO_MASS, width, 1.0), low <= LEVELS + _SLACK
    )
    return np.where(np.isnan(actual)[..., None], np.nan, np.clip(share, 0.0, 1.0))


def conditional_frequencies(values: np.ndarray, capacity: int, steps: int) -> np.ndarray:
    """P(y(t+k) >= n | [y(t) >= n]) counted over the observed pairs of ``values``, shape (steps, capacity, 2).

    The last axis is the state [y(t) >= n] = 0 or 1. A state that was never seen k slots before an observed one stays
    what it is.
    """
    out = np.empty((steps, capacity, 2))
    out[...] = np.array([0.0, 1.0])
    n = np.arange(1, capacity + 1)
    seen = ~np.isnan(values)
    above = seen[:, None] & (np.where(seen, values, -1.0)[:, None] >= n)
    for k in range(1, min(steps, values.size - 1) + 1):
        both = (seen[:-k] & seen[k:])[:, None]
        for state, now in enumerate((~above[:-k], above[:-k])):
            pairs = (both & now).sum(axis=0)
            hits = (both & now & above[k:]).sum(axis=0)
            out[k - 1, :, state] = np.where(pairs > 0, hits / np.maximum(pairs, 1), out[k - 1, :, state])
    return out


def diebold_mariano(loss: np.ndarray, floor: np.ndarray, step: int) -> tuple[float, float]:
    """Statistic and two-sided p value of equal accuracy at one step ahead; positive where ``loss`` is the smaller one.

    Diebold and Mariano (1995) with the correction of Harvey, Leybourne and Newbold (1997): the mean of d = floor -
    loss over origins in order, its long-run variance from step - 1 autocovariances, Student t with n - 1 degrees. If
    that variance is not positive, Bartlett's weights are used. NaN where the losses are the same, or for fewer than
    two origins.
    """
    d = floor - loss
    n = d.size
    if n < 2 or not np.ptp(d) > 0:
        return np.nan, np.nan
    lags = np.arange(1, min(step, n))
    centred = d - d.mean()
    own = float(centred @ centred) / n
    auto = np.array([float(centred[k:] @ centred[:-k]) / n for k in lags])
    variance = own + 2.0 * auto.sum()
    if variance <= 0:
        variance = own + 2.0 * float(((1.0 - lags / (lags.size + 1.0)) * auto).sum())
    if variance <= 0:
        return np.nan, np.nan
    small = np.sqrt(max(n + 1 - 2 * step + step * (step - 1) / n, 0.0) / n)
    statistic = float(small * d.mean() / np.sqrt(variance / n))
    return statistic, float(2.0 * student.sf(abs(statistic), df=n - 1))


# ---
# The error of a path of counts when an instance at the wrong time is not two errors (M6.5, M10).
#
# "A universal error measure for input predictions" (Bernardini, Lindermayr, Marchetti-Spaccamela, Megow, Stougie and Sweering,
# 2022) covers predicted and actual requests at least cost: what is absent and what is unpredicted is paid for, and the rest is
# matched at its distance. Here a request is an instance in a slot, the distance is time, and one absent or unpredicted
# costs 1; absent plus unpredicted, slot by slot, is the same measure with an endless distance. A forecast that says a market comes
# back at ten is then nearer to one that says eleven than to one that says never (ours: the price of a slot of distance).

#: Cost of matching an instance with one a slot away: four slots apart is as bad as absent and unpredicted.
SLOT_DISTANCE = 0.5


def cover_errors(predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """By how much each further slot raises the cover error of a path, shape (m, h); may be negative, where a match is found late.

    ``predicted`` (m, h) whole instances, ``actual`` the same with NaN in gaps, which match nothing. Row sums are the cover error
    of the whole path, between |sum predicted - sum actual| and absent plus unpredicted.

    With e_t = predicted - actual and f_t the instances carried from slot t to t + 1 (negative: backwards), it is min over
    whole f with f_h = 0 of sum_t |e_t + f_{t-1} - f_t| + SLOT_DISTANCE |f_t|: a dynamic program over f, for all rows at once.
    """
    error = np.where(np.isnan(actual), 0.0, predicted - np.nan_to_num(actual)).round().astype(np.int64)
    rows, steps = error.shape
    # Carried further than this an instance costs as much as two errors, so no more are under way than three slots hold.
    reach = max(1, (int(2.0 / SLOT_DISTANCE) - 1) * int(np.abs(error).max(initial=0)))
    carried = np.arange(-reach, reach + 1)
    value = np.where(carried == 0, 0.0, np.inf) + np.zeros((rows, 1))
    total = np.zeros((rows, steps))
    for t in range(steps):
        place = np.arange(carried.size) - error[:, t, None]
        inside = (place >= 0) & (place < carried.size)
        moved = np.where(inside, np.take_along_axis(value, place.clip(0, carried.size - 1), axis=1), np.inf)
        # min over f' of moved(f') + |f - f'|: one sweep up and one down.
        up = np.minimum.accumulate(moved - carried, axis=1) + carried
        down = np.minimum.accumulate((moved + carried)[:, ::-1], axis=1)[:, ::-1] - carried
        value = np.minimum(up, down)
        total[:, t] = value[:, reach]
        value = value + SLOT_DISTANCE * np.abs(carried)
    return np.diff(total, axis=1, prepend=0.0)
