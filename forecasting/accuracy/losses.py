"""Losses of forecasts as functions of arrays, and their means over windows of origins (M6.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numba import njit
from scipy.special import stdtr

from slackwater.forecasting.origins import Timetable
from slackwater.forecasting.predictors import FLOOR
from slackwater.forecasting.quantiles import LEVELS, MOST_COUNT, Forecast, Variable, count_distribution
from slackwater.forecasting.series import Series, series_of, slot_at
from slackwater.warehouse.errors import ForecastError
from slackwater.warehouse.history import History

#: Central intervals: per cent -> indices of their ends in `LEVELS`.
ENDS = {50: (4, 14), 80: (1, 17), 90: (0, 18)}
#: Relative tolerance for prices, which are sums of floats: an exact forecast must cover its value.
_SLACK = 1e-9
#: Maximal number of values in an array of a calculation: 128 MB of floats.
_MOST_NUMBERS = 1 << 24
_STEP = 0.05
#: Probability masses below this count as zero: sums of probabilities have about this precision.
_NO_MASS = 1e-12


def pinball(quantiles: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Return the mean over the levels a of max(a (y - q), (a - 1)(y - q)); approximately half the CRPS."""
    error = actual[..., None] - quantiles
    # Elementwise, because the last bits of a matrix product depend on the number of forecasts scored at once.
    return np.asarray(np.maximum(LEVELS * error, (LEVELS - 1.0) * error).mean(axis=-1))


def covered_closed(quantiles: np.ndarray, actual: np.ndarray, percent: int) -> np.ndarray:
    """Return 1 where the actual value is in the closed central interval of the quantiles, else 0; NaN in gaps.

    For distributions with point masses its mean is above ``percent`` by construction: see `coverage_probability`.
    """
    low, high = ENDS[percent]
    slack = _SLACK * np.maximum(1.0, np.abs(actual))
    inside = (actual >= quantiles[..., low] - slack) & (actual <= quantiles[..., high] + slack)
    return np.where(np.isnan(actual), np.nan, inside)


def width(quantiles: np.ndarray, percent: int) -> np.ndarray:
    """Return the width of the central interval."""
    low, high = ENDS[percent]
    return np.asarray(quantiles[..., high] - quantiles[..., low])


def chances(quantiles: np.ndarray, capacity: int) -> np.ndarray:
    """Return the probabilities of "at least n", n = 1..capacity or `MOST_COUNT`, (m, h, n), as `probability_at_least`."""
    return np.asarray(1.0 - np.cumsum(count_distribution(quantiles, capacity), axis=-1)[..., :-1])


def brier(chance: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Return the mean over n of (P(at least n) - [y >= n])^2 from probabilities (m, h, capacity); NaN for capacity 0."""
    if chance.shape[-1] == 0:
        return np.full(actual.shape, np.nan)
    n = np.arange(1, chance.shape[-1] + 1)
    error = np.square(chance - (actual[..., None] >= n)).mean(axis=-1)
    return np.where(np.isnan(actual), np.nan, error)


def transform_span(quantiles: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return F(y-) and F(y), between which the randomised probability integral transform of y is uniform (Brockwell 2007).

    Only the quantile levels are known (ours). Between two quantiles, and beyond the outermost, both values are the middle of
    the two levels, which is sufficient for all measures here. A value tied with the quantiles of some levels gets the mass from
    half a level below the first to half a level above the last, because the ends of its mass lie anywhere in between; from 0 if
    q05 is among them, up to 1 if q95 is.
    """
    slack = _SLACK * np.maximum(1.0, np.abs(actual))
    below = (quantiles < (actual - slack)[..., None]).sum(axis=-1)
    upto = (quantiles <= (actual + slack)[..., None]).sum(axis=-1)
    tied = upto > below
    low = np.where(tied & (below == 0), 0.0, _STEP * (below + 0.5))
    return low, np.where(tied & (upto == LEVELS.size), 1.0, _STEP * (upto + 0.5))


def coverage_probability(span: tuple[np.ndarray, np.ndarray], actual: np.ndarray, percent: int) -> np.ndarray:
    """Return the probability that the randomised transform of y lies in the central interval of levels.

    This is the coverage attainable by distributions with point masses (Brockwell 2007; Czado, Gneiting and Held 2009), in
    expectation, so that nothing is drawn. ``span`` is the result of `transform_span`; the return value is the share of it
    within [(1 - P) / 2, (1 + P) / 2]. If y follows the forecast distribution, its mean is P for any distribution. For a
    continuous distribution it is 1 inside the interval and 0 outside. A count that is 16 with probability 0.97 is inside the
    closed interval [16, 16] of 80 % in 97 of 100 cases, and inside this interval in 80.
    """
    low, high = span
    first, last = (1.0 - percent / 100) / 2.0, (1.0 + percent / 100) / 2.0
    width = high - low
    overlap = np.minimum(high, last) - np.maximum(low, first)
    at_a_point = (low >= first - _SLACK) & (low <= last + _SLACK)
    share = np.where(width > _NO_MASS, overlap / np.where(width > _NO_MASS, width, 1.0), at_a_point)
    return np.where(np.isnan(actual), np.nan, np.clip(share, 0.0, 1.0))


def shares_below(span: tuple[np.ndarray, np.ndarray], actual: np.ndarray) -> np.ndarray:
    """Return P(randomised transform of y <= a) for each level a (see `transform_span`), shape (m, h, 19)."""
    low, high = span[0][..., None], span[1][..., None]
    width = high - low
    share = np.where(
        width > _NO_MASS, (LEVELS - low) / np.where(width > _NO_MASS, width, 1.0), low <= LEVELS + _SLACK
    )
    return np.where(np.isnan(actual)[..., None], np.nan, np.clip(share, 0.0, 1.0))


def conditional_frequencies(values: np.ndarray, capacity: int, steps: int) -> np.ndarray:
    """Return P(y(t+k) >= n | [y(t) >= n]) as frequencies over the observed pairs of ``values``, shape (steps, n, 2).

    n = 1..capacity, at most `MOST_COUNT`. The last axis is the state [y(t) >= n] = 0 or 1. A state without observed pairs k slots
    apart is assumed to persist.
    """
    n = np.arange(1, min(capacity, MOST_COUNT) + 1)
    chunk = max(1, _MOST_NUMBERS // max(1, values.size))
    parts = [_frequencies(values, part, steps) for part in np.split(n, range(chunk, n.size, chunk))]
    return np.concatenate(parts, axis=1)


def _frequencies(values: np.ndarray, n: np.ndarray, steps: int) -> np.ndarray:
    """Compute `conditional_frequencies` for some counts ``n``."""
    out = np.empty((steps, n.size, 2))
    out[...] = np.array([0.0, 1.0])
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
    """Return statistic and two-sided p value of the test of equal accuracy at one step ahead; positive if ``loss`` is smaller.

    Diebold and Mariano (1995) with the correction of Harvey, Leybourne and Newbold (1997): the mean of d = floor - loss over
    origins in order, its long-run variance from step - 1 autocovariances, Student's t with n - 1 degrees of freedom. If that
    variance is not positive, Bartlett weights are used. NaN if the losses are equal, or for fewer than two origins.
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
    return statistic, float(2.0 * stdtr(n - 1, -abs(statistic)))


# ---
# Cover error: the error of a path of counts in which an instance at the wrong time is not two errors (M6.5, M10).
#
# "A universal error measure for input predictions" (Bernardini, Lindermayr, Marchetti-Spaccamela, Megow, Stougie and Sweering,
# 2022) covers predicted and actual requests at minimal cost: absent and unpredicted requests have a cost, and the others are
# matched at their distance. Here a request is an instance in a slot, the distance is time, and an absent or unpredicted
# instance costs 1; absent plus unpredicted, slot by slot, is the same measure with infinite distances. If a market returns at
# eleven, a forecast of a return at ten is then closer than a forecast of no return (ours: the cost of a slot of distance).

#: Cost of matching instances one slot apart: a distance of four slots costs as much as absent and unpredicted.
SLOT_DISTANCE = 0.5


def cover_errors(predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Return the increase of a path's cover error by each further slot, shape (m, h); negative where a match is found later.

    ``predicted`` (m, h) holds integer counts, ``actual`` the same with NaN in gaps, which match nothing. Row sums are the cover
    error of the whole path, between |sum predicted - sum actual| and absent plus unpredicted.

    With e_t = predicted - actual and f_t the instances carried from slot t to t + 1 (negative: backwards), it is the minimum over
    integer f with f_h = 0 of sum_t |e_t + f_{t-1} - f_t| + SLOT_DISTANCE |f_t|: a dynamic program over f, for all rows at once.
    """
    error = np.where(np.isnan(actual), 0.0, predicted - np.nan_to_num(actual)).round().astype(np.int64)
    rows, steps = error.shape
    # Carrying an instance further costs as much as two errors, so at most the instances of three slots are carried.
    reach = max(1, (int(2.0 / SLOT_DISTANCE) - 1) * int(np.abs(error).max(initial=0)))
    carried = np.arange(-reach, reach + 1)
    value = np.where(carried == 0, 0.0, np.inf) + np.zeros((rows, 1))
    total = np.zeros((rows, steps))
    for t in range(steps):
        place = np.arange(carried.size) - error[:, t, None]
        inside = (place >= 0) & (place < carried.size)
        moved = np.where(inside, np.take_along_axis(value, place.clip(0, carried.size - 1), axis=1), np.inf)
        # min over f' of moved(f') + |f - f'|, by a forward and a backward sweep.
        up = np.minimum.accumulate(moved - carried, axis=1) + carried
        down = np.minimum.accumulate((moved + carried)[:, ::-1], axis=1)[:, ::-1] - carried
        value = np.minimum(up, down)
        total[:, t] = value[:, reach]
        value = value + SLOT_DISTANCE * np.abs(carried)
    return np.diff(total, axis=1, prepend=0.0)


# ---
# Losses of forecasts, and their means over windows of origins, compared with last value (M6.5).
#
# `losses_of` converts arrays of forecasts and actual values into losses; all tables of turns, of the report and of stored
# forecasts are sums of these. Absolute errors use the median, squared errors the mean. A slot whose actual value is a gap is not
# scored.

#: Per cent of the central intervals that are scored.
PERCENTS = (50, 80, 90)
KEYS = ["market", "variable", "model", "step"]
#: Losses of an origin and step, in this order.
LOSSES = (
    "mae", "mse", "pinball", *(f"coverage_{p}" for p in PERCENTS), *(f"width_{p}" for p in PERCENTS),
    "brier", "absent", "unpredicted", "fallback_share",
)  # fmt: skip
REPORTED = (*LOSSES, "cover", *(f"coverage_{p}_closed" for p in PERCENTS))
_MEDIAN = LEVELS.size // 2


def losses_of(
    quantiles: np.ndarray,
    mean: np.ndarray,
    fell_back: np.ndarray,
    actual: np.ndarray,
    capacity: np.ndarray | None,
    names: Sequence[str] = LOSSES,
) -> np.ndarray:
    """Return losses of m forecasts by name, shape (m, h, names); NaN where the actual value is a gap or the loss is undefined.

    ``quantiles`` (m, h, 19) and ``mean`` (m, h) are the forecasts; ``fell_back`` (m,) marks forecasts of a fallback model;
    ``actual`` (m, h) has NaN in gaps; ``capacity`` (m,) is the bound of each forecast of a count, None for prices.
    """
    median = quantiles[..., _MEDIAN]
    span = transform_span(quantiles, actual)
    undefined = np.full(actual.shape, np.nan)
    computed: dict[str, Callable[[], np.ndarray]] = {
        "mae": lambda: np.abs(actual - median),
        "mse": lambda: np.square(actual - mean),
        "pinball": lambda: pinball(quantiles, actual),
        **{f"coverage_{p}": partial(coverage_probability, span, actual, p) for p in PERCENTS},
        **{f"coverage_{p}_closed": partial(covered_closed, quantiles, actual, p) for p in PERCENTS},
        **{f"width_{p}": partial(width, quantiles, p) for p in PERCENTS},
        "fallback_share": lambda: np.broadcast_to(fell_back.astype(float)[:, None], actual.shape),
    }
    if capacity is not None:
        whole = np.floor(median + 1e-9)
        computed |= {
            "brier": lambda: brier_by_capacity(quantiles, actual, capacity),
            "absent": lambda: np.maximum(whole - actual, 0.0),
            "unpredicted": lambda: np.maximum(actual - whole, 0.0),
            "cover": lambda: cover_errors(whole, actual),
        }
    out = np.stack([computed[name]() if name in computed else undefined for name in names], axis=-1)
    out[np.isnan(actual)] = np.nan
    return out


def brier_by_capacity(quantiles: np.ndarray, actual: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Return the mean Brier score of "at least n", n = 1..capacity of each forecast, in batches; NaN for capacity 0."""
    out = np.full(actual.shape, np.nan)
    for most in np.unique(capacity[capacity > 0]):
        of_it = np.flatnonzero(capacity == most)
        chunk = max(1, _MOST_NUMBERS // max(1, actual.shape[1] * min(int(most), MOST_COUNT)))
        for part in np.split(of_it, range(chunk, of_it.size, chunk)):
            out[part] = brier(chances(quantiles[part], int(most)), actual[part])
    return out


def actual_after(series: Series, origins: np.ndarray, horizon: int) -> np.ndarray:
    """Return the values 1..horizon slots after each origin (index), shape (m, h), NaN in gaps and outside the series."""
    places = origins[:, None] + np.arange(1, horizon + 1)
    inside = (places >= 0) & (places < len(series))
    return np.where(inside, series.values[np.where(inside, places, 0)] if len(series) else np.nan, np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Units of the errors of a series, known at its first origin, from the look-back before it.

    ``change``: the mean |y(t) - y(t-1)|, NaN if it is 0 or there is no pair. ``unit``: the divisor of pooled losses, the
    capacity (at least 1) or the mean price, NaN if no price was observed. ``capacity``: the largest possible count, 0 for
    prices. ``changes_a_day``: number of changes per day.
    """

    change: float
    unit: float
    capacity: int
    changes_a_day: float


def scale_of(series: Series, first: int, start: int) -> Scale:
    """Compute the scale of a series whose first origin is slot ``first`` and whose look-back begins at slot ``start``."""
    past = series.since(start).as_of(first)
    changes = np.abs(np.diff(past.values))
    changes = changes[~np.isnan(changes)]
    change = float(changes.mean()) if changes.size else np.nan
    days = changes.size * (series.step / pd.Timedelta(days=1))
    counts = series.variable == "count"
    capacity = int(past.upper[-1]) if counts and len(past) else 0
    seen = past.observed
    return Scale(
        change=change if change > 0 else np.nan,
        unit=float(max(capacity, 1)) if counts else float(seen.mean()) if seen.size else np.nan,
        capacity=capacity,
        changes_a_day=float(np.count_nonzero(changes) / days) if days else 0.0,
    )


def score(forecasts: Sequence[Forecast], actual: History, *, horizon: int | None = None) -> pd.DataFrame:
    """Return accuracy by market, variable, model and step: n, the means of `LOSSES`, rmse, mase, and skill over last value.

    Steps beyond ``horizon`` are left out if it is given. ``skill_mae`` and ``skill_pinball`` are 1 - loss / loss of last value over
    the origins both forecast; NaN if last value is not among the forecasts or never erred. ``mase`` is scaled by the last-value
    error before the first origin. ``fallback_share`` is the share of forecasts of a fallback model. Undefined values are NaN, never
    infinite. Raises `ForecastError` on a forecast of another market or step.
    """
    for forecast in forecasts:
        if forecast.market != actual.market or forecast.step != actual.step:
            raise ForecastError(
                f"forecast of {forecast.market.key} every {forecast.step} scored on {actual.market.key} every {actual.step}",
                expected="forecasts of the history's own market and step",
            )
    if not forecasts:
        return pd.DataFrame(columns=SCORE_COLUMNS)
    issued = [forecast.issued_at for forecast in forecasts]
    reach = min(max(forecast.horizon for forecast in forecasts), horizon or np.iinfo(int).max)
    end = max(issued) + (reach + 1) * actual.step
    windows = Windows(presents=(end,), origins=int((end - min(issued)) // actual.step), horizon=reach)
    return window_scores(forecasts, actual, windows).drop(columns="measured_at")


SCORE_COLUMNS = [
    *KEYS, "n", "mae", "rmse", "mase", "pinball", "skill_mae", "skill_pinball",
    *(f"coverage_{p}" for p in PERCENTS), *(f"width_{p}" for p in PERCENTS),
    "brier", "absent", "unpredicted", "fallback_share", "scale",
]  # fmt: skip


@njit(cache=True, nogil=True)
def window_sums(losses: np.ndarray, ends: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sums and counts, (ends, steps, losses), of the known elements of ``losses`` (origins, steps, losses), NaN if missing.

    Window i has the origins ``ends[i] - width`` to ``ends[i] - 1``; step k (from 0) of origin o is known if o + k + 1 <= ends[i].
    """
    steps, kinds = losses.shape[1], losses.shape[2]
    sums = np.zeros((ends.size, steps, kinds))
    counts = np.zeros((ends.size, steps, kinds), dtype=np.int64)
    for i in range(ends.size):
        for origin in range(max(0, ends[i] - width), ends[i]):
            for k in range(min(steps, ends[i] - origin)):
                for kind in range(kinds):
                    value = losses[origin, k, kind]
                    if not np.isnan(value):
                        sums[i, k, kind] += value
                        counts[i, k, kind] += 1
    return sums, counts


# ---
# Accuracy as known at each of many slots: means over moving windows of origins. Every loss is computed once, from its own
# forecast only, and sums follow the order of the origins: the scores of a window do not depend, to the bit, on the other windows.

#: Quantities averaged over the origins of a window, in the order of the last axis of the losses.
_MEANS = (*LOSSES, "mae_floor", "pinball_floor", "mae_common", "pinball_common")
_PLACE = {name: i for i, name in enumerate(_MEANS)}
_VARIABLES: tuple[Variable, ...] = ("count", "price")


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Windows that end before each of the ``presents`` (slots): the ``origins`` slots before it, ``horizon`` steps ahead.

    Errors are scaled by the look-back of ``timetable`` before the first origin of a window, or by all data before it without a
    timetable.
    """

    presents: tuple[pd.Timestamp, ...]
    origins: int
    horizon: int
    timetable: Timetable | None = None

    def start(self, series: Series, origin: int) -> int:
        """Return the first slot of the data that scales the errors of a window with this first origin."""
        if self.timetable is None:
            return series.first_slot
        return int(self.timetable.of(series.variable).start(np.array([origin]), series.step)[0])


def window_scores(forecasts: Sequence[Forecast], actual: History, windows: Windows) -> pd.DataFrame:
    """Return the columns of `score` with ``measured_at``: accuracy of the forecasts in each window, as known at its present.

    A pair of forecast and value counts from the slot of the value on. Forecasts are of one market; duplicates count once.
    """
    nothing = pd.DataFrame(columns=["measured_at", *SCORE_COLUMNS])
    if not windows.origins or not forecasts:
        return nothing
    by_model: dict[str, list[Forecast]] = {}
    for forecast in forecasts:
        by_model.setdefault(forecast.predictor, []).append(forecast)
    grid = _origins_grid(actual, windows)
    issued = {name: _by_origin(by_model[name], grid) for name in sorted(by_model)}
    ends = np.asarray((pd.DatetimeIndex(list(windows.presents)) - grid[0]) // actual.step, dtype=np.int64)
    parts = []
    first = int((grid[0] - actual.slots[0]) // actual.step) if len(actual.slots) else 0
    for rank, variable in enumerate(_VARIABLES):
        series = series_of(actual, variable)
        truth = actual_after(series, first + np.arange(len(grid)), windows.horizon)
        losses = {name: _losses(own, truth, variable) for name, own in issued.items()}
        for place, own in enumerate(losses.values()):
            if FLOOR in losses:
                _add_floor_losses(own, losses[FLOOR])
            parts.append(_window_means(own, ends, windows.origins, variable=rank, model=place))
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return _table(columns, issued, actual, windows)


def _origins_grid(actual: History, windows: Windows) -> pd.DatetimeIndex:
    """Return every slot of any window, ascending."""
    first = min(windows.presents) - windows.origins * actual.step
    return pd.date_range(first, max(windows.presents) - actual.step, freq=actual.step)


def _by_origin(forecasts: Sequence[Forecast], grid: pd.DatetimeIndex) -> dict[int, Forecast]:
    places = grid.get_indexer(pd.DatetimeIndex([forecast.issued_at for forecast in forecasts]))
    return {int(place): issued for place, issued in zip(places, forecasts, strict=True) if place >= 0}


def _losses(issued: dict[int, Forecast], truth: np.ndarray, variable: Variable) -> np.ndarray:
    """Return all losses of the grid's origins and steps, shape (*truth.shape, `_MEANS`); NaN where missing."""
    out = np.full((*truth.shape, len(_MEANS)), np.nan)
    places = sorted(issued)
    if not places:
        return out
    own = [issued[place] for place in places]
    reach = min(truth.shape[1], *(forecast.horizon for forecast in own))
    reasons = [
        forecast.price_fallback if variable == "price" else forecast.count_fallback for forecast in own
    ]
    out[places, :reach, : len(LOSSES)] = losses_of(
        np.stack([forecast.quantiles(variable)[:reach] for forecast in own]),
        np.stack([forecast.mean(variable)[:reach] for forecast in own]),
        np.array([reason != "" for reason in reasons]),
        truth[places, :reach],
        np.array([forecast.capacity for forecast in own]) if variable == "count" else None,
    )
    return out


def _add_floor_losses(losses: np.ndarray, floor: np.ndarray) -> None:
    """Add last value's losses where a model has a loss, and the model's losses where last value has a loss, in place."""
    for loss in ("mae", "pinball"):
        base = floor[..., _PLACE[loss]]
        losses[..., _PLACE[f"{loss}_floor"]] = np.where(np.isnan(losses[..., _PLACE[loss]]), np.nan, base)
        losses[..., _PLACE[f"{loss}_common"]] = np.where(np.isnan(base), np.nan, losses[..., _PLACE[loss]])


def _window_means(losses: np.ndarray, ends: np.ndarray, width: int, **place: int) -> dict[str, np.ndarray]:
    """Return the columns of a row for each window and step with known losses of a variable and model, which ``place`` numbers."""
    sums, counts = window_sums(losses, ends, width)
    window, step = np.nonzero(counts[..., _PLACE["mae"]])
    n = counts[window, step]
    with np.errstate(invalid="ignore"):
        means = sums[window, step] / np.where(n > 0, n, np.nan)
    columns = {"window": window, "step": step + 1, "n": n[:, _PLACE["mae"]]}
    columns |= {name: np.full(window.size, number) for name, number in place.items()}
    return columns | {name: means[:, i] for name, i in _PLACE.items()}


def _table(
    columns: dict[str, np.ndarray], issued: dict[str, dict[int, Forecast]], actual: History, windows: Windows
) -> pd.DataFrame:
    """Build the rows by window, variable, model and step, with the measures derived from their means."""
    order = np.lexsort((columns["step"], columns["model"], columns["variable"], columns["window"]))
    own = {name: values[order] for name, values in columns.items()}
    scale = _scales(issued, actual, windows)
    with np.errstate(invalid="ignore", divide="ignore"):
        skills = {
            f"skill_{loss}": np.where(
                own[f"{loss}_floor"] > 0, 1.0 - own[f"{loss}_common"] / own[f"{loss}_floor"], np.nan
            )
            for loss in ("mae", "pinball")
        }
        own["mase"] = own["mae"] / scale[own["window"], own["variable"], 0]
        own["scale"] = scale[own["window"], own["variable"], 1]
    presents = pd.DatetimeIndex(list(windows.presents))
    table = pd.DataFrame(
        own
        | skills
        | {
            "rmse": np.sqrt(own["mse"]),
            "measured_at": presents[own["window"]],
            "market": actual.market.key,
            "variable": np.array(_VARIABLES, dtype=object)[own["variable"]],
            "model": np.array(list(issued), dtype=object)[own["model"]],
        }
    )
    return table[["measured_at", *SCORE_COLUMNS]]


def _scales(issued: dict[str, dict[int, Forecast]], actual: History, windows: Windows) -> np.ndarray:
    """Return `Scale.change` and `Scale.unit` by window and variable, as known at the first origin of any model's forecasts."""
    grid = _origins_grid(actual, windows)
    there = np.array(sorted({place for own in issued.values() for place in own}), dtype=np.int64)
    scale = np.full((len(windows.presents), len(_VARIABLES), 2), np.nan)
    series = [series_of(actual, variable) for variable in _VARIABLES]
    found: dict[int, list[tuple[float, float]]] = {}
    for i, present in enumerate(windows.presents):
        low = present - windows.origins * actual.step
        start = int(np.searchsorted(there, (low - grid[0]) // actual.step))
        if start < there.size:
            origin = grid[there[start]]
            first = slot_at(origin, actual.step)
            if first not in found:
                scales = [
                    scale_of(market_series, first, windows.start(market_series, first))
                    for market_series in series
                ]
                found[first] = [(scale.change, scale.unit) for scale in scales]
            scale[i] = found[first]
    return scale
