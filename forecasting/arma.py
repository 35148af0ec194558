"""ARIMA orders by exact maximum likelihood and AICc: a small grid, each order started from a smaller one's optimum (M6.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from forecasting.kalman import coefficients, descent, explained, moments

#: Autoregressive and moving-average terms are tried up to this many each.
MOST_TERMS = 2
#: Steps of the optimiser per order; a few dozen are the rule.
_STEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Arma:
    """ARIMA(p, d, q) with regressors: ``phi`` (p,), ``theta`` (q,), ``weights`` of the regressors, ``variance`` of the shocks.

    ``aicc`` is of the values whose predecessor was observed too, given the first one: comparable for d = 0 and d = 1.
    ``partial`` (p + q,) are the unbounded numbers the coefficients were searched in.
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
        """(p, d, q)."""
        return self.phi.size, self.d, self.theta.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Differenced:
    """What is estimated on, differenced ``d`` times.

    ``table`` (rows, 1 + regressors) has the values in its first column; ``scored`` (rows,) tells the rows of the likelihood.
    """

    d: int
    table: np.ndarray
    scored: np.ndarray


def differenced(values: np.ndarray, cycle: np.ndarray, d: int) -> Differenced:
    """Values (slots,) with gaps and the terms of a cycle (slots, c), differenced ``d`` in (0, 1) times.

    With d = 0 a constant joins the terms. The row of a slot after a gap is not scored, whatever d is.
    """
    seen = ~np.isnan(values)
    after_seen = np.append(False, seen[:-1] & seen[1:])
    if d == 1:
        return Differenced(
            d=1, table=np.column_stack([np.diff(values), np.diff(cycle, axis=0)]), scored=after_seen[1:]
        )
    table = np.column_stack([values, np.ones(values.size), cycle])
    return Differenced(d=0, table=table, scored=after_seen)


def best_order(values: np.ndarray) -> Arma | None:
    """The ARIMA(p, d, q) with p, q <= 2 and d <= 1 of least AICc; None if none could be estimated."""
    nothing = np.zeros((values.size, 0))
    tried: list[Arma] = []
    for d in (0, 1):
        data = differenced(values, nothing, d)
        found: dict[tuple[int, int], Arma] = {}
        for p in range(MOST_TERMS + 1):
            for q in range(MOST_TERMS + 1):
                smaller = [found[o] for o in ((p - 1, q), (p, q - 1)) if o in found]
                fitted = estimated(data, p, q, min(smaller, key=lambda one: one.aicc, default=None))
                if fitted is not None:
                    found[p, q] = fitted
        tried += found.values()
    return min(tried, key=lambda one: one.aicc, default=None)


def random_walk(values: np.ndarray) -> Arma | None:
    """ARIMA(0, 1, 0); None where no two neighbouring values differ."""
    return estimated(differenced(values, np.zeros((values.size, 0)), 1), 0, 0)


def estimated(data: Differenced, p: int, q: int, near: Arma | None = None) -> Arma | None:
    """Maximum likelihood of one order from the optimum of a smaller (or the same) one; None where it is not finite."""
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
        weights, squares = explained(crossed)
    except np.linalg.LinAlgError:  # regressors that the scored rows cannot tell apart
        return None
    if not (squares > 0 and np.isfinite(start).all()):
        return None
    likelihood = -0.5 * (n * (np.log(2 * np.pi * squares / n) + 1) + logs)
    aicc = -2 * likelihood + 2 * k + 2 * k * (k + 1) / (n - k - 1)
    return Arma(
        d=data.d, phi=phi, theta=theta, weights=weights, variance=squares / n, aicc=float(aicc), partial=start
    )
