"""The Kalman filter of an ARMA process in Harvey's form, compiled: exact likelihood with gaps, states, forecasts (M6.2).

The state-space form is that of statsmodels' SARIMAX with stationary initialisation; the numbers agree with it to 1e-8 (tested).
State of size m = max(p, q + 1), transition T x = phi x_0 + x shifted up, shocks R = (1, theta), observation x_0, unit variance.
Compiled functions call only those of their own file: numba's cache on disk does not notice a change in another one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

#: The covariance is taken for converged when every element is this close to the one at rest, R R'.
_CONVERGED = 1e-12
#: Partial autocorrelations stay within this, so that the covariance of the state is finite.
_FARTHEST = 1.0 - 1e-7
#: Step of the differences behind a gradient.
_STEP = 1e-6
#: What a search is told where there is no likelihood: finite, so that it can turn back.
_WORST = 1e10


@njit(cache=True)
def coefficients(partial: np.ndarray) -> np.ndarray:
    """Coefficients of a stationary autoregression from unbounded numbers, shape (k,).

    x / sqrt(1 + x^2), just short of 1, are its partial autocorrelations (Monahan 1984; Durbin-Levinson). A zero at the end adds
    a zero coefficient.
    """
    out = np.zeros(partial.size)
    for k in range(partial.size):
        r = _FARTHEST * partial[k] / np.sqrt(1.0 + partial[k] * partial[k])
        before = out[:k].copy()
        for i in range(k):
            out[i] = before[i] - r * before[k - 1 - i]
        out[k] = r
    return out


@njit(cache=True)
def _padded(phi: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first column of T and the shocks' loadings R, both of the state's size."""
    m = max(phi.size, theta.size + 1)
    first, loading = np.zeros(m), np.zeros(m)
    first[: phi.size] = phi
    loading[0] = 1.0
    loading[1 : theta.size + 1] = theta
    return first, loading


@njit(cache=True)
def stationary_covariance(phi: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """P = T P T' + R R', the covariance of the state before anything is observed, shape (m, m)."""
    first, loading = _padded(phi, theta)
    m = first.size
    transition = np.zeros((m, m))
    transition[:, 0] = first
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
    return np.linalg.solve(system, right).reshape((m, m))


@njit(cache=True)
def _predicted(covariance: np.ndarray, first: np.ndarray, loading: np.ndarray, moved: np.ndarray) -> None:
    """``covariance`` becomes T P T' + R R'; it and the work space ``moved`` have a border of zeros, shape (m + 1, m + 1)."""
    m = first.size
    for i in range(m):
        for j in range(i + 1):
            value = first[i] * (covariance[0, 0] * first[j] + covariance[0, j + 1])
            value += covariance[i + 1, 0] * first[j] + covariance[i + 1, j + 1] + loading[i] * loading[j]
            moved[i, j] = value
    for i in range(m):
        for j in range(i + 1):
            covariance[i, j] = covariance[j, i] = moved[i, j]


@njit(cache=True)
def _corrected(covariance: np.ndarray, gain: np.ndarray) -> None:
    """``covariance`` becomes P - K K' F, that after an observation, with the gain K = P Z' / F of shape (m,)."""
    m, variance = gain.size, covariance[0, 0]
    for i in range(m):
        for j in range(m):
            covariance[i, j] -= gain[i] * gain[j] * variance


@njit(cache=True)
def _at_rest(covariance: np.ndarray, loading: np.ndarray) -> bool:
    """Whether the covariance before an observation has converged to R R'."""
    if np.abs(covariance[0, 0] - 1.0) > _CONVERGED:
        return False
    for i in range(loading.size):
        for j in range(i + 1):
            if np.abs(covariance[i, j] - loading[i] * loading[j]) > _CONVERGED:
                return False
    return True


@njit(cache=True)
def _shifted(state: np.ndarray, first: np.ndarray) -> None:
    """``state`` (m,) becomes T state."""
    m, head = first.size, state[0]
    for i in range(m - 1):
        state[i] = first[i] * head + state[i + 1]
    state[m - 1] = first[m - 1] * head


@njit(cache=True)
def moments(
    table: np.ndarray, scored: np.ndarray, phi: np.ndarray, theta: np.ndarray
) -> tuple[np.ndarray, float]:
    """Sums over the scored rows of v v' / F and of log F, where v are the one-step errors of every column and F their variance.

    ``table`` (rows, columns) is filtered column by column with the same gains; a row whose first column is NaN is a gap.
    Shapes (columns, columns) and ().
    """
    first, loading = _padded(phi, theta)
    m, columns = first.size, table.shape[1]
    covariance, space = np.zeros((m + 1, m + 1)), np.zeros((m + 1, m + 1))
    covariance[:m, :m] = stationary_covariance(phi, theta)
    gain, states = np.empty(m), np.zeros((columns, m))
    error, crossed, logs = np.zeros(columns), np.zeros((columns, columns)), 0.0
    steady = False
    for t in range(table.shape[0]):
        gap = np.isnan(table[t, 0])
        variance = 1.0 if steady else covariance[0, 0]
        if not steady:
            gain[:] = covariance[:m, 0] / variance
        for c in range(columns):
            error[c] = 0.0 if gap else table[t, c] - states[c, 0]
            for i in range(m):
                states[c, i] += gain[i] * error[c]
            _shifted(states[c], first)
        if scored[t]:
            logs += 0.0 if steady else np.log(variance)
            for a in range(columns):
                for b in range(a + 1):
                    crossed[a, b] += error[a] * error[b] / variance
        if steady and not gap:
            continue
        if not gap:
            _corrected(covariance, gain)
        _predicted(covariance, first, loading, space)
        steady = not gap and _at_rest(covariance, loading)
        if steady:
            gain[:] = loading
            for i in range(m):
                for j in range(m):
                    covariance[i, j] = loading[i] * loading[j]
    for a in range(columns):
        for b in range(a):
            crossed[b, a] = crossed[a, b]
    return crossed, logs


@njit(cache=True)
def explained(crossed: np.ndarray) -> tuple[np.ndarray, float]:
    """Least squares of the first column on the others by their `moments`: weights (columns - 1,) and the sum of squares left."""
    right = crossed[1:, 0].copy()
    if right.size == 0:
        return right, crossed[0, 0]
    weights = np.linalg.solve(crossed[1:, 1:].copy(), right)
    return weights, crossed[0, 0] - np.dot(weights, right)


@njit(cache=True)
def log_likelihood(table: np.ndarray, scored: np.ndarray, phi: np.ndarray, theta: np.ndarray) -> float:
    """Gaussian log-likelihood of the scored rows of the first column, regressed on the others, variance and weights at their best.

    -inf where the regression left nothing or a coefficient is not finite.
    """
    if not (np.isfinite(phi).all() and np.isfinite(theta).all()):
        return -np.inf
    crossed, logs = moments(table, scored, phi, theta)
    _, squares = explained(crossed)
    n = scored.sum()
    if not squares > 0.0:
        return -np.inf
    return float(-0.5 * (n * (np.log(2.0 * np.pi * squares / n) + 1.0) + logs))


@njit(cache=True)
def descent(partial: np.ndarray, p: int, table: np.ndarray, scored: np.ndarray) -> tuple[float, np.ndarray]:
    """Minus the mean log-likelihood and its slope; the first ``p`` of ``partial`` give phi, the rest theta (`coefficients`)."""
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


@njit(cache=True)
def filtered_states(values: np.ndarray, phi: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """The expected state at each row given it and those before, shape (rows, m); a NaN is a gap."""
    first, loading = _padded(phi, theta)
    m = first.size
    covariance, space = np.zeros((m + 1, m + 1)), np.zeros((m + 1, m + 1))
    covariance[:m, :m] = stationary_covariance(phi, theta)
    state, out = np.zeros(m), np.empty((values.size, m))
    for t in range(values.size):
        if not np.isnan(values[t]):
            gain = covariance[:m, 0] / covariance[0, 0]
            state += gain * (values[t] - state[0])
            _corrected(covariance, gain)
        out[t] = state
        _shifted(state, first)
        _predicted(covariance, first, loading, space)
    return out


@njit(cache=True)
def expected_ahead(states: np.ndarray, phi: np.ndarray, steps: int) -> np.ndarray:
    """Z T^k a for k = 1..steps from every state, shape (states, steps)."""
    first = np.zeros(states.shape[1])
    first[: phi.size] = phi
    out = np.empty((states.shape[0], steps))
    for row in range(states.shape[0]):
        state = states[row].copy()
        for k in range(steps):
            _shifted(state, first)
            out[row, k] = state[0]
    return out
