"""ARIMA with a daily cycle if the clock is real: order by AICc, gaps by a Kalman filter, spread of past errors (M6.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from numba.extending import register_jitable
from scipy.optimize import minimize

from slackwater.forecasting.predictor import (
    ByVariable,
    FallsBack,
    FittedSeriesModel,
    Outlook,
    each_alone,
    join_reasons,
    mix_outlooks,
    stored,
)
from slackwater.forecasting.predictors.distributions import MIN_ERRORS, ahead
from slackwater.forecasting.predictors.last_value import FittedLastValue, LastValue, is_stale
from slackwater.forecasting.quantiles import LEVELS
from slackwater.forecasting.series import Series

#: Half-life of past errors in days, and its minimum in slots.
HALF_LIFE_DAYS = 1.5
LEAST_HALF_LIFE = 48
_LEAST_WEIGHT = 0.01  # Errors with a smaller weight by age are left out
#: Minimal weight of an error from a different situation, so that a first visit to a level has a spread.
_ELSEWHERE = 0.01
#: Scale of similarity: a share of the capacity for forecasts of counts, a relative difference for those of prices.
_ALIKE = 1.0 / 16.0
MOST_COUNTED = 128  # Counts with a larger capacity get quantiles without a full distribution

Function = TypeVar("Function", bound=Callable[..., Any])
#: No entry for C pointers: it is never used, and would be compiled for every function.
_OPTIONS: dict[str, Any] = {"no_cfunc_wrapper": True}


def _compile_cached(function: Function) -> Function:
    """Compile a function on its first call, and cache it on disk; others are only compiled into their callers."""
    compiled: Any = numba.njit(cache=True, **_OPTIONS)(function)
    kept: Function = compiled
    return kept


class _Past(NamedTuple):
    """Past forecasts and their errors, as a named tuple because compiled functions accept it.

    ``places`` (m, 2): the newest observed slot of each origin and its age. ``point`` and ``errors`` (slots, steps): forecasts and
    errors; ``likeness`` of the same shape: the forecasts on the scale of similarity. ``runs`` (slots,): log of the slots since the
    last change. ``upper`` (m,): the bound at each origin. ``weight`` (reach,): the weight of an error by age.
    """

    places: np.ndarray
    point: np.ndarray
    errors: np.ndarray
    likeness: np.ndarray
    runs: np.ndarray
    upper: np.ndarray
    weight: np.ndarray


def spread_around(series: Series, point: np.ndarray, origins: np.ndarray, horizon: int) -> Outlook:
    """Forecast the ``horizon`` slots after each origin by ``point`` and the errors known there; a reason states too few errors.

    ``point`` (slots, s) are the forecasts 1..s slots after every slot, with s at least the horizon plus the largest age of a newest
    value; they are clipped to 0 and the bound known at their slot. Reads no slot after an origin.
    """
    values, upper = series.values, series.upper[origins]
    point = np.clip(point, 0.0, series.upper[:, None])
    past = _Past(
        places=np.column_stack([series.newest[origins], series.age(origins)]),
        point=point,
        errors=np.where(np.isnan(values)[:, None], np.nan, ahead(values, point.shape[1]) - point),
        likeness=_likeness(series, point),
        # A copy: of a read-only array numba would compile the function again.
        runs=np.log(time_since_change(np.array(values))),
        upper=upper,
        weight=_ages(series.step.total_seconds() / 86400.0),
    )
    distribution = None
    if series.variable == "count" and upper.max() <= MOST_COUNTED:
        distribution, seen = _distributions(past, horizon)
        quantiles = _distribution_quantiles(distribution, LEVELS)
        mean = distribution @ np.arange(distribution.shape[2])
    else:
        quantiles, mean, seen = _quantiles(past, horizon, LEVELS)
    reasons = tuple(
        "" if n >= MIN_ERRORS else f"spread from {n} past errors, {MIN_ERRORS} are needed" for n in seen
    )
    return Outlook(quantiles=quantiles, mean=mean, reasons=reasons, distribution=distribution)


def _ages(step_days: float) -> np.ndarray:
    """Return the weight of an error after 0, 1, ... slots of ``step_days`` days, until `_LEAST_WEIGHT`."""
    kept = 0.5 ** (1.0 / max(LEAST_HALF_LIFE, HALF_LIFE_DAYS / step_days))
    return np.asarray(kept ** np.arange(int(np.ceil(np.log(_LEAST_WEIGHT) / np.log(kept)))))


def _likeness(series: Series, point: np.ndarray) -> np.ndarray:
    """Return forecasts on the scale of comparison, in units of `_ALIKE`: shares of the capacity, or log prices."""
    if series.variable == "count":
        return np.asarray(point / (_ALIKE * np.maximum(series.upper[:, None], 1.0)))
    positive = point[point > 0]
    least = positive.min() if positive.size else 1.0
    return np.asarray(np.log(np.maximum(point, least)) / _ALIKE)


@_compile_cached
def time_since_change(values: np.ndarray) -> np.ndarray:
    """Return the slots since the value last changed (slots,), 1 for the first of a run; it continues over gaps."""
    out = np.ones(values.size)
    newest = np.nan
    for t in range(values.size):
        same = np.isnan(values[t]) or np.isnan(newest) or values[t] == newest
        out[t] = out[t - 1] + 1.0 if same and t > 0 else 1.0
        if not np.isnan(values[t]):
            newest = values[t]
    return out


@register_jitable(**_OPTIONS)
def _errors_of(past: _Past, o: int, k: int, weights: np.ndarray, corrected: np.ndarray) -> int:
    """Compute past errors and weights for origin ``o`` and step ``k`` (from 0); return the number of errors.

    ``corrected`` (reach,) is filled with forecast plus past error of that step, newest first, and ``weights`` (reach,) with the
    weights, 0 where an error is missing. Without any error the forecast itself has weight 1. This is not a generator because
    numba cannot compile callers of a generator loaded from its cache.
    """
    place, count = past.places[o, 0], 0
    step = past.places[o, 1] + k + 1
    centre, like, run = past.point[place, step - 1], past.likeness[place, step - 1], past.runs[place]
    for i in range(weights.size):
        t = place - step - i
        if t < 0 or np.isnan(past.errors[t, step - 1]):
            weights[i] = 0.0
            continue
        apart = np.abs(past.likeness[t, step - 1] - like) + np.abs(past.runs[t] - run)
        weights[i] = past.weight[i] * (_ELSEWHERE + (1.0 - _ELSEWHERE) * np.exp(-apart))
        corrected[i] = centre + past.errors[t, step - 1]
        count += 1
    if count == 0:
        weights[0], corrected[0] = 1.0, centre
    return count


@_compile_cached
def _distributions(past: _Past, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Return distributions (m, h, n) of forecast plus error, rounded within 0 and ``upper``, and the number of errors at step 1."""
    m, most, reach = past.places.shape[0], int(past.upper.max()), past.weight.size
    distribution, seen = np.zeros((m, horizon, most + 1)), np.zeros(m, dtype=np.int64)
    weights, made = np.empty(reach), np.empty(reach)
    for o in range(m):
        for k in range(horizon):
            count = _errors_of(past, o, k, weights, made)
            if k == 0:
                seen[o] = count
            for i in range(reach):
                if weights[i] > 0.0:
                    distribution[o, k, int(min(max(np.floor(made[i] + 0.5), 0.0), past.upper[o]))] += weights[
                        i
                    ]
            total = weights.sum()
            for number in range(most + 1):
                distribution[o, k, number] /= total
    return distribution, seen


@_compile_cached
def _distribution_quantiles(distribution: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the smallest number whose cumulative probability reaches each level, shape (m, h, levels)."""
    out = np.empty((distribution.shape[0], distribution.shape[1], levels.size))
    for o in range(distribution.shape[0]):
        for k in range(distribution.shape[1]):
            number, reached = 0, distribution[o, k, 0]
            for j in range(levels.size):
                while reached < levels[j] - 1e-9 and number < distribution.shape[2] - 1:
                    number += 1
                    reached += distribution[o, k, number]
                out[o, k, j] = number
    return out


@_compile_cached
def _quantiles(past: _Past, horizon: int, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return quantiles (m, h, levels) and mean (m, h) of forecast plus error in 0..``upper``, and the errors at step 1."""
    m, reach = past.places.shape[0], past.weight.size
    out, mean = np.empty((m, horizon, levels.size)), np.zeros((m, horizon))
    seen = np.zeros(m, dtype=np.int64)
    weights, made = np.empty(reach), np.empty(reach)
    for o in range(m):
        for k in range(horizon):
            count = _errors_of(past, o, k, weights, made)
            if k == 0:
                seen[o] = count
            total = weights.sum()
            for i in range(reach):
                made[i] = min(max(made[i], 0.0), past.upper[o]) if weights[i] > 0.0 else np.inf
                mean[o, k] += weights[i] * made[i] / total if weights[i] > 0.0 else 0.0
            order = np.argsort(made)
            place, reached = 0, weights[order[0]] / total
            for j in range(levels.size):
                while reached < levels[j] - 1e-9 and place < count - 1:
                    place += 1
                    reached += weights[order[place]] / total
                out[o, k, j] = made[order[place]]
    return out, mean, seen


# ---
# Daily cycle: a few sine and cosine terms fitted by least squares, for sources with a real clock.

HARMONICS = 2  # Harmonics of the day; two can represent one or two peaks a day


def daily_terms(series: Series, places: np.ndarray) -> np.ndarray:
    """Return level and Fourier terms of the time of day at slots, shape (*places, 1 + 2 HARMONICS)."""
    phase = 2 * np.pi * ((places + series.first_slot) % series.slots_per_day) / series.slots_per_day
    terms = [np.ones(places.shape)]
    for k in range(1, HARMONICS + 1):
        terms += [np.sin(k * phase), np.cos(k * phase)]
    return np.stack(terms, axis=-1)


def _has_cycle(series: Series) -> bool:
    """Return whether a cycle can be estimated: with a clock, eight slots a day and two days, and terms that are not collinear."""
    seen = np.flatnonzero(~np.isnan(series.values))
    if series.slots_per_day < 8 or seen.size < 2 * series.slots_per_day:
        return False
    terms = daily_terms(series, seen)
    return bool(np.linalg.matrix_rank(terms) == terms.shape[1])


# ---
# Kalman filter of an ARMA process in Harvey's form, compiled: exact likelihood with gaps, states, forecasts (M6.2).
#
# The state-space form is that of statsmodels' SARIMAX with stationary initialisation; the numbers agree with it to 1e-8 (tested).
# State of size m = max(p, q + 1), transition T x = phi x_0 + x shifted up, shocks R = (1, theta), observation x_0, unit variance.
# Compiled functions call only functions of this module: numba's disk cache does not notice a change in another module.

_CONVERGED = 1e-12  # The covariance has converged when every element is this close to the steady state R R'
#: Partial autocorrelations stay within this, so that the covariance of the state is finite.
_FARTHEST = 1.0 - 1e-7
_STEP = 1e-6  # Step of the finite differences of a gradient
_WORST = 1e10  # Objective where the likelihood does not exist: finite, so that the optimiser can turn back


@_compile_cached
def coefficients(partial: np.ndarray) -> np.ndarray:
    """Convert unbounded numbers into coefficients of a stationary autoregression, shape (k,).

    x / sqrt(1 + x^2), bounded just below 1, are its partial autocorrelations (Monahan 1984; Durbin-Levinson). A zero at the end
    adds a zero coefficient.
    """
    out = np.zeros(partial.size)
    for k in range(partial.size):
        r = _FARTHEST * partial[k] / np.sqrt(1.0 + partial[k] * partial[k])
        before = out[:k].copy()
        for i in range(k):
            out[i] = before[i] - r * before[k - 1 - i]
        out[k] = r
    return out


@register_jitable(**_OPTIONS)
def _padded_system(phi: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first column of T and the loadings R of the shocks, both of the state's size."""
    m = max(phi.size, theta.size + 1)
    first, loading = np.zeros(m), np.zeros(m)
    # Assign element by element, here and below: slice assignment makes numba compile the message of the shape-mismatch error, which
    # takes longer than compiling most of these functions.
    for i in range(phi.size):
        first[i] = phi[i]
    loading[0] = 1.0
    for i in range(theta.size):
        loading[i + 1] = theta[i]
    return first, loading


@register_jitable(**_OPTIONS)
def solve_linear(system: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve a linear system of a few unknowns by elimination with partial pivoting; raises `LinAlgError` if it is singular.

    Both arguments are changed. numba takes ten times as long to compile `np.linalg.solve`.
    """
    n = right.size
    for k in range(n):
        pivot = k
        for i in range(k + 1, n):
            if np.abs(system[i, k]) > np.abs(system[pivot, k]):
                pivot = i
        if not np.abs(system[pivot, k]) > 0.0:
            raise np.linalg.LinAlgError("singular matrix")
        for j in range(k, n):
            system[k, j], system[pivot, j] = system[pivot, j], system[k, j]
        right[k], right[pivot] = right[pivot], right[k]
        for i in range(k + 1, n):
            share = system[i, k] / system[k, k]
            right[i] -= share * right[k]
            for j in range(k, n):
                system[i, j] -= share * system[k, j]
    for k in range(n - 1, -1, -1):
        for j in range(k + 1, n):
            right[k] -= system[k, j] * right[j]
        right[k] /= system[k, k]
    return right


@register_jitable(**_OPTIONS)
def stationary_covariance(phi: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return the P that solves P = T P T' + R R', the covariance of the state before any observation, shape (m, m)."""
    first, loading = _padded_system(phi, theta)
    m = first.size
    transition = np.zeros((m, m))
    for i in range(m):
        transition[i, 0] = first[i]
    for i in range(m - 1):
        transition[i, i + 1] += 1.0
    system = np.eye(m * m)
    right = np.zeros(m * m)
    for i in range(m):
        for j in range(m):
            right[i * m + j] = loading[i] * loading[j]
            for k in range(m):
                for el in range(m):
                    system[i * m + j, k * m + el] -= transition[i, k] * transition[j, el]
    return solve_linear(system, right).reshape((m, m))


@register_jitable(**_OPTIONS)
def _at_start(phi: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return `stationary_covariance` with a border of zeros, shape (m + 1, m + 1)."""
    inner = stationary_covariance(phi, theta)
    m = inner.shape[0]
    out = np.zeros((m + 1, m + 1))
    for i in range(m):
        for j in range(m):
            out[i, j] = inner[i, j]
    return out


@register_jitable(**_OPTIONS)
def _predict_covariance(
    covariance: np.ndarray, first: np.ndarray, loading: np.ndarray, moved: np.ndarray
) -> None:
    """Replace ``covariance`` by T P T' + R R'; it and the work space ``moved`` have a border of zeros, shape (m + 1, m + 1)."""
    m = first.size
    for i in range(m):
        for j in range(i + 1):
            value = first[i] * (covariance[0, 0] * first[j] + covariance[0, j + 1])
            value += covariance[i + 1, 0] * first[j] + covariance[i + 1, j + 1] + loading[i] * loading[j]
            moved[i, j] = value
    for i in range(m):
        for j in range(i + 1):
            covariance[i, j] = covariance[j, i] = moved[i, j]


@register_jitable(**_OPTIONS)
def _correct_covariance(covariance: np.ndarray, gain: np.ndarray) -> None:
    """Replace ``covariance`` by P - K K' F, its value after an observation, with the gain K = P Z' / F of shape (m,)."""
    m, variance = gain.size, covariance[0, 0]
    for i in range(m):
        for j in range(m):
            covariance[i, j] -= gain[i] * gain[j] * variance


@register_jitable(**_OPTIONS)
def _at_rest(covariance: np.ndarray, loading: np.ndarray) -> bool:
    """Return whether the covariance before an observation has converged to R R'."""
    if np.abs(covariance[0, 0] - 1.0) > _CONVERGED:
        return False
    for i in range(loading.size):
        for j in range(i + 1):
            if np.abs(covariance[i, j] - loading[i] * loading[j]) > _CONVERGED:
                return False
    return True


@register_jitable(**_OPTIONS)
def _shift_state(state: np.ndarray, first: np.ndarray) -> None:
    """Replace ``state`` (m,) by T state."""
    m, head = first.size, state[0]
    for i in range(m - 1):
        state[i] = first[i] * head + state[i + 1]
    state[m - 1] = first[m - 1] * head


@_compile_cached
def moments(
    table: np.ndarray, scored: np.ndarray, phi: np.ndarray, theta: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return sums over the scored rows of v v' / F, shape (columns, columns), and of log F.

    v are the one-step errors of all columns and F their variance. ``table`` (rows, columns) is filtered column by column with
    the same gains; a row whose first column is NaN is a gap.
    """
    first, loading = _padded_system(phi, theta)
    m, columns = first.size, table.shape[1]
    covariance, space = _at_start(phi, theta), np.zeros((m + 1, m + 1))
    gain, states = np.empty(m), np.zeros((columns, m))
    error, crossed, logs = np.zeros(columns), np.zeros((columns, columns)), 0.0
    steady = False
    for t in range(table.shape[0]):
        gap = np.isnan(table[t, 0])
        variance = 1.0 if steady else covariance[0, 0]
        if not steady:
            for i in range(m):
                gain[i] = covariance[i, 0] / variance
        for c in range(columns):
            error[c] = 0.0 if gap else table[t, c] - states[c, 0]
            for i in range(m):
                states[c, i] += gain[i] * error[c]
            _shift_state(states[c], first)
        if scored[t]:
            logs += 0.0 if steady else np.log(variance)
            for a in range(columns):
                for b in range(a + 1):
                    crossed[a, b] += error[a] * error[b] / variance
        if steady and not gap:
            continue
        if not gap:
            _correct_covariance(covariance, gain)
        _predict_covariance(covariance, first, loading, space)
        steady = not gap and _at_rest(covariance, loading)
        if steady:
            for i in range(m):
                gain[i] = loading[i]
                for j in range(m):
                    covariance[i, j] = loading[i] * loading[j]
    for a in range(columns):
        for b in range(a):
            crossed[b, a] = crossed[a, b]
    return crossed, logs


@_compile_cached
def regress_moments(crossed: np.ndarray) -> tuple[np.ndarray, float]:
    """Regress the first column on the others by their `moments`; return weights (columns - 1,) and the residual sum of squares."""
    right = crossed[1:, 0].copy()
    if right.size == 0:
        return right, crossed[0, 0]
    weights = solve_linear(crossed[1:, 1:].copy(), right.copy())
    return weights, crossed[0, 0] - np.dot(weights, right)


@register_jitable(**_OPTIONS)
def log_likelihood(table: np.ndarray, scored: np.ndarray, phi: np.ndarray, theta: np.ndarray) -> float:
    """Return the Gaussian log-likelihood of the first column regressed on the others, at its optimum; -inf if undefined."""
    if not (np.isfinite(phi).all() and np.isfinite(theta).all()):
        return -np.inf
    crossed, logs = moments(table, scored, phi, theta)
    _, squares = regress_moments(crossed)
    n = scored.sum()
    if not squares > 0.0:
        return -np.inf
    return float(-0.5 * (n * (np.log(2.0 * np.pi * squares / n) + 1.0) + logs))


@_compile_cached
def descent(partial: np.ndarray, p: int, table: np.ndarray, scored: np.ndarray) -> tuple[float, np.ndarray]:
    """Return minus the mean log-likelihood and its gradient; ``partial`` gives ``p`` phi, then theta (`coefficients`)."""
    n = scored.sum()
    slope = np.empty(partial.size)
    here = -log_likelihood(table, scored, coefficients(partial[:p]), -coefficients(partial[p:])) / n
    if not np.isfinite(here):
        return _WORST, np.zeros(partial.size)
    for i in range(partial.size):
        moved = partial.copy()
        moved[i] += _STEP
        there = -log_likelihood(table, scored, coefficients(moved[:p]), -coefficients(moved[p:])) / n
        slope[i] = (there - here) / _STEP if np.isfinite(there) else 0.0
    return here, slope


@_compile_cached
def filtered_states(values: np.ndarray, phi: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return the expected state at each row given the rows up to it, shape (rows, m); a NaN is a gap."""
    first, loading = _padded_system(phi, theta)
    m = first.size
    covariance, space = _at_start(phi, theta), np.zeros((m + 1, m + 1))
    state, out = np.zeros(m), np.empty((values.size, m))
    for t in range(values.size):
        if not np.isnan(values[t]):
            gain = covariance[:m, 0] / covariance[0, 0]
            state += gain * (values[t] - state[0])
            _correct_covariance(covariance, gain)
        for i in range(m):
            out[t, i] = state[i]
        _shift_state(state, first)
        _predict_covariance(covariance, first, loading, space)
    return out


@_compile_cached
def expected_ahead(states: np.ndarray, phi: np.ndarray, steps: int) -> np.ndarray:
    """Return Z T^k a for k = 1..steps from every state, shape (states, steps)."""
    first = np.zeros(states.shape[1])
    for i in range(phi.size):
        first[i] = phi[i]
    out = np.empty((states.shape[0], steps))
    for row in range(states.shape[0]):
        state = states[row].copy()
        for k in range(steps):
            _shift_state(state, first)
            out[row, k] = state[0]
    return out


# ---
# ARIMA orders by exact maximum likelihood and AICc: a small grid, each order started from a smaller order's optimum (M6.2).

MOST_TERMS = 2  # Maximal number of autoregressive and of moving-average terms
_STEPS = 100  # Maximal number of optimiser iterations per order; a few dozen are typical


@stored("arima.arma")
@dataclass(frozen=True, slots=True, kw_only=True)
class Arma:
    """ARIMA(p, d, q) with regressors: ``phi`` (p,), ``theta`` (q,), ``weights`` of the regressors, ``variance`` of the shocks.

    ``aicc`` covers the values whose predecessor was observed, conditional on the first value, so it is comparable for d = 0 and
    d = 1. ``partial`` (p + q,) are the unbounded parameters of the optimiser.
    """

    d: int
    phi: np.ndarray
    theta: np.ndarray
    weights: np.ndarray
    variance: float
    aicc: float
    partial: np.ndarray

    @property
    def order(self) -> tuple[int, int, int]:
        """The order (p, d, q)."""
        return self.phi.size, self.d, self.theta.size


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferencedSeries:
    """Data differenced ``d`` times: ``table`` (rows, 1 + regressors), values first; ``scored`` (rows,) count."""

    d: int
    table: np.ndarray
    scored: np.ndarray


def difference(values: np.ndarray, cycle: np.ndarray, d: int) -> DifferencedSeries:
    """Difference values (slots,) with gaps and the terms of a cycle (slots, c) ``d`` in (0, 1) times.

    With d = 0 a constant is added to the terms. The row of a slot after a gap is not scored, for either d.
    """
    seen = ~np.isnan(values)
    after_seen = np.append(False, seen[:-1] & seen[1:])
    if d == 1:
        return DifferencedSeries(
            d=1, table=np.column_stack([np.diff(values), np.diff(cycle, axis=0)]), scored=after_seen[1:]
        )
    table = np.column_stack([values, np.ones(values.size), cycle])
    return DifferencedSeries(d=0, table=table, scored=after_seen)


def best_order(values: np.ndarray) -> Arma | None:
    """Return the ARIMA(p, d, q) with p, q <= 2 and d <= 1 of minimal AICc; None if none could be estimated."""
    nothing = np.zeros((values.size, 0))
    orders: list[Arma] = []
    for d in (0, 1):
        data = difference(values, nothing, d)
        by_order: dict[tuple[int, int], Arma] = {}
        for p in range(MOST_TERMS + 1):
            for q in range(MOST_TERMS + 1):
                smaller = [by_order[o] for o in ((p - 1, q), (p, q - 1)) if o in by_order]
                fitted = estimate_order(
                    data, p, q, min(smaller, key=lambda candidate: candidate.aicc, default=None)
                )
                if fitted is not None:
                    by_order[p, q] = fitted
        orders += by_order.values()
    return min(orders, key=lambda candidate: candidate.aicc, default=None)


def random_walk(values: np.ndarray) -> Arma | None:
    """Fit ARIMA(0, 1, 0); None where no two neighbouring values differ."""
    return estimate_order(difference(values, np.zeros((values.size, 0)), 1), 0, 0)


def estimate_order(data: DifferencedSeries, p: int, q: int, near: Arma | None = None) -> Arma | None:
    """Fit an order by maximum likelihood from the optimum of a smaller (or the same) order; None if the result is not finite."""
    n, k = int(data.scored.sum()), p + q + data.table.shape[1]
    if n <= k + 1:
        return None
    start = np.zeros(p + q)
    if near is not None:
        known_p = near.phi.size
        start[:known_p] = near.partial[:known_p]
        start[p : p + near.theta.size] = near.partial[known_p:]
    try:
        if start.size:
            found = minimize(
                descent, start, args=(p, data.table, data.scored), jac=True, method="BFGS", options={"maxiter": _STEPS}
            )  # fmt: skip
            start = found.x
        phi, theta = coefficients(start[:p]), -coefficients(start[p:])
        crossed, logs = moments(data.table, data.scored, phi, theta)
        weights, squares = regress_moments(crossed)
    except np.linalg.LinAlgError:  # collinear regressors in the scored rows
        return None
    if not (squares > 0 and np.isfinite(start).all()):
        return None
    likelihood = -0.5 * (n * (np.log(2 * np.pi * squares / n) + 1) + logs)
    aicc = -2 * likelihood + 2 * k + 2 * k * (k + 1) / (n - k - 1)
    return Arma(
        d=data.d, phi=phi, theta=theta, weights=weights, variance=squares / n, aicc=float(aicc), partial=start
    )


# ---
# ARIMA: small orders by exact likelihood and AICc, a daily cycle if it lowers the AICc, all origins from a single filter pass
# (M6.2).
#
# The model is that of statsmodels' SARIMAX, which is slower (decision 53). The spread comes from past errors (`spread_around`).

LONGEST_TRAINING = 1000  # Maximal number of newest slots used for estimation
SHORTEST_TRAINING = 60  # Minimal number of observed values for choosing an order
#: Fallback reason for a newest value outside `FittedArima.known`.
STRANGE = "newest value is far outside the training part"
JUDGED_STEPS = 12  # Number of steps ahead in the comparison of an order with the random walk


@stored("arima.model")
@dataclass(frozen=True, slots=True, kw_only=True)
class Arima:
    """Model of a variable: the ARIMA of minimal AICc, or the random walk if its training error is smaller (ours).

    Shocks are far from Gaussian: a few jumps dominate the likelihood, and the order that maximizes it may be less accurate at
    ordinary slots than last value. The random walk is also an ARIMA, and fits most of these series.
    """

    def fit(self, series: Series) -> FittedSeriesModel:
        """Estimate on the newest `LONGEST_TRAINING` slots; a flat, short or not estimable series falls back to last value."""
        simpler = LastValue().fit(series)
        recent = series.part(max(0, len(series) - LONGEST_TRAINING), len(series))
        seen = recent.observed
        if seen.size < SHORTEST_TRAINING:
            return FallsBack(simpler=simpler, reason=f"{seen.size} values, {SHORTEST_TRAINING} are needed")
        if np.ptp(seen) == 0:
            return FallsBack(simpler=simpler, reason="flat series")
        found = _with_cycle(recent, best_order(recent.values))
        walk = random_walk(recent.values)
        usable = [candidate for candidate in (found, walk) if candidate is not None]
        if not usable:
            return FallsBack(simpler=simpler, reason="no order could be estimated")
        low, high = float(seen.min()), float(seen.max())
        return FittedArima(
            arma=_nearest(recent, usable), simpler=simpler, known=(2 * low - high, 2 * high - low)
        )


def _with_cycle(series: Series, plain: Arma | None) -> Arma | None:
    """Return the same order with a daily cycle, estimated jointly, if it can be estimated and the AICc is lower."""
    if plain is None or not _has_cycle(series):
        return plain
    terms = daily_terms(series, np.arange(len(series)))[:, 1:]
    p, d, q = plain.order
    cyclic = estimate_order(difference(series.values, terms, d), p, q, plain)
    return cyclic if cyclic is not None and cyclic.aicc < plain.aicc else plain


def _nearest(series: Series, candidates: list[Arma]) -> Arma:
    """Return the first candidate if its absolute error relative to the other's, averaged over steps, is below 1; else the last."""
    if len(candidates) == 1:
        return candidates[0]
    actual = ahead(series.values, JUDGED_STEPS)
    every = np.arange(len(series))
    top = series.upper[:, None]
    own, other = (
        np.nanmean(
            np.abs(actual - np.clip(expected_values(candidate, series, every, JUDGED_STEPS), 0.0, top)),
            axis=0,
        )
        for candidate in candidates
    )
    better = own[other > 0] / other[other > 0]
    return candidates[0] if better.size and better.mean() < 1 else candidates[1]


def expected_values(arma: Arma, series: Series, places: np.ndarray, steps: int) -> np.ndarray:
    """Return expected values 1..``steps`` slots after slots (indices), from a single filter pass, shape (places, steps).

    With d = 1 it is y(t) + sum of Z T^k a(t|t), NaN after a gap; with d = 0 the mean + Z T^k a(t|t).
    """
    after = places[:, None] + np.arange(1, steps + 1)
    level = series.values - _cycle(arma, series, np.arange(len(series)))
    if arma.d == 0:
        mean = arma.weights[0]
        states = filtered_states(level - mean, arma.phi, arma.theta)
        return np.asarray(
            mean + expected_ahead(states[places], arma.phi, steps) + _cycle(arma, series, after)
        )
    # Differences begin at the second slot; the first slot has none.
    states = filtered_states(np.append(np.nan, np.diff(level)), arma.phi, arma.theta)
    changes = np.cumsum(expected_ahead(states[places], arma.phi, steps), axis=1)
    return np.asarray(level[places][:, None] + changes + _cycle(arma, series, after))


def _cycle(arma: Arma, series: Series, places: np.ndarray) -> np.ndarray:
    """Return the daily cycle at slots, the shape of ``places``; 0 if the model has none."""
    weights = arma.weights[1 - arma.d :]
    return daily_terms(series, places)[..., 1:] @ weights if weights.size else np.zeros(places.shape)


@stored("arima.fitted")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedArima:
    """Fitted ARIMA, with last value as fallback.

    ``known`` is the range of the training part, extended by its width on both sides; outside it the estimated coefficients are not
    used (ours).
    """

    arma: Arma
    simpler: FittedLastValue
    known: tuple[float, float]

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast from the newest observed slot of each origin; an origin with a stale or out-of-range newest value falls back."""
        last = series.last(origins)
        stale = is_stale(series, series.age(origins))
        out_of_range = (last < self.known[0]) | (last > self.known[1])
        falls_back = stale | out_of_range
        # Origins that fall back are computed as of their newest value, so that their age does not lengthen the horizon of all
        # origins.
        fitted = self._fitted_outlook(series, np.where(falls_back, series.newest[origins], origins), horizon)
        if not falls_back.any():
            return fitted
        simpler = self.simpler.outlook(series, origins, horizon)
        labels = join_reasons((STRANGE if new else "" for new in out_of_range), simpler.reasons)
        return mix_outlooks(fitted, replace(simpler, reasons=labels), falls_back)

    def _fitted_outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        steps = int(series.age(origins).max()) + horizon
        point = expected_values(self.arma, series, np.arange(len(series)), steps)
        return spread_around(series, point, origins, horizon)


def arima() -> ByVariable:
    """Return the ARIMA predictor."""
    return each_alone("arima", price=Arima(), count=Arima())
