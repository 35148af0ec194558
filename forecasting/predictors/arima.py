"""ARIMA by statsmodels: small orders chosen by AICc, a daily cycle by least squares, all origins from one filter pass (M6.2)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
from statsmodels.tsa.statespace.sarimax import SARIMAX

from forecasting.predictors.last_value import FittedLastValue, LastValue, is_stale
from forecasting.residuals import MAX_STEP, ErrorQuantiles, ahead, error_quantiles
from forecasting.seasonality import DailyCycle, daily_cycle, level_only
from forecasting.series import Series
from forecasting.univariate import FallsBack, FittedVariable, Outlook, UnivariatePredictor, mixed

Order = tuple[int, int, int]
#: The grid of orders (p, d, q). Small ones: the larger were slow, badly identified and no better. Differenced once: with
#: d = 0 forecasts are drawn back to the mean of the training part, which cost more than it gained where the level moves.
ORDERS: tuple[Order, ...] = ((0, 1, 1), (1, 1, 0), (1, 1, 1))
#: Only the newest so many slots are estimated on.
LONGEST_TRAINING = 1000
#: Fewer observed values than this are too few to choose an order from.
SHORTEST_TRAINING = 60
#: In-sample errors of the first slots tell of the filter's start, not of the model.
BURN_IN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Arima:
    """Model of one variable: the order of `ORDERS` with the least AICc, on the values less their daily cycle if that pays."""

    def fit(self, series: Series) -> FittedVariable:
        """Estimate on the newest `LONGEST_TRAINING` slots; flat, short or not converged falls back to last value."""
        simpler = LastValue().fit(series)
        recent = _newest_part(series)
        if recent.observed.size < SHORTEST_TRAINING:
            return FallsBack(
                simpler=simpler, reason=f"{recent.observed.size} values, {SHORTEST_TRAINING} are needed"
            )
        if np.ptp(recent.observed) == 0:
            return FallsBack(simpler=simpler, reason="flat series")
        level = level_only(recent)
        tried = [_estimate(recent, level, order) for order in ORDERS]
        best = min((t for t in tried if t is not None), key=lambda t: t.aicc, default=None)
        if best is None:
            return FallsBack(simpler=simpler, reason="no order converged")
        cycle = daily_cycle(recent)
        if cycle is not None:
            cyclic = _estimate(recent, cycle, best.order)
            best = cyclic if cyclic is not None and cyclic.aicc < best.aicc else best
        low, high = float(recent.observed.min()), float(recent.observed.max())
        fitted = FittedArima(
            chosen=best,
            spread=error_quantiles(np.zeros((0, 0))),
            simpler=simpler,
            known=(2 * low - high, 2 * high - low),
        )
        return replace(fitted, spread=error_quantiles(_errors(fitted, recent)))


def _newest_part(series: Series) -> Series:
    """The newest `LONGEST_TRAINING` slots as a series of its own."""
    cut = max(0, len(series) - LONGEST_TRAINING)
    values = series.values[cut:]
    newest = np.where(series.newest[cut:] >= cut, series.newest[cut:] - cut, -1)
    return replace(
        series, values=values, companion=series.companion[cut:], upper=series.upper[cut:], newest=newest,
        first_slot=series.first_slot + cut,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """An estimated order: ``parameters`` as statsmodels counts them without the variance, ``aicc`` on the slots after the first."""

    order: Order
    cycle: DailyCycle
    parameters: np.ndarray
    aicc: float


def _model(values: np.ndarray, order: Order, *, concentrate_scale: bool) -> SARIMAX:
    """The state-space model of values of mean zero; gaps are missing observations to the filter."""
    return SARIMAX(
        values, order=order, trend="n", simple_differencing=True, concentrate_scale=concentrate_scale,
    )  # fmt: skip


def _estimate(series: Series, cycle: DailyCycle, order: Order) -> Chosen | None:
    """Maximum likelihood for one order; None if it did not converge."""
    values = series.values - cycle.at(series, np.arange(len(series)))
    scale = float(np.nanstd(values))
    if not scale > 0:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # statsmodels' notes on starting values and convergence; the outcome is checked
        model = _model(values / scale, order, concentrate_scale=True)
        try:
            result = model.fit(disp=0, maxiter=50, cov_type="none", low_memory=True)
        except (np.linalg.LinAlgError, ValueError):
            return None
    if not (result.mle_retvals["converged"] and np.isfinite(result.llf)):
        return None
    seen = int(np.isfinite(values).sum()) - 1
    k = len(result.params) + 1 + cycle.parameters
    aicc = -2 * result.llf + 2 * k + 2 * k * (k + 1) / max(seen - k - 1, 1) + 2 * seen * np.log(scale)
    return Chosen(order=order, cycle=cycle, parameters=np.asarray(result.params), aicc=float(aicc))


def _filtered(chosen: Chosen, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One filter pass over the differences: states given past and present (slots, states), transition T and design Z."""
    # Expected values do not depend on the variance, so any will do.
    model = _model(values, chosen.order, concentrate_scale=False)
    model.update(np.append(chosen.parameters, 1.0))
    result = model.ssm.filter()
    states = np.asarray(result.filtered_state).T
    # Differences begin at the second slot; nothing is known of them at the first.
    states = np.vstack([np.zeros((1, states.shape[1])), states])
    return states, np.asarray(model.ssm["transition"]), np.asarray(model.ssm["design"])


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedArima:
    """The chosen order, the spread of its in-sample errors by step, and last value where it cannot be used.

    ``known`` is the training part's range, doubled: a shock beyond it says nothing the estimated coefficients were made for (ours).
    """

    chosen: Chosen
    spread: ErrorQuantiles
    simpler: FittedLastValue
    known: tuple[float, float]

    def point(self, series: Series, places: np.ndarray, steps: int) -> np.ndarray:
        """Expected values 1..steps slots after observed slots, shape (places, steps): y(t) + sum of Z T^k a(t|t)."""
        chosen = self.chosen
        slots = np.arange(len(series))
        values = series.values - chosen.cycle.at(series, slots)
        changes = np.zeros((places.size, steps))
        if len(series) > 1:
            states, transition, design = _filtered(chosen, values)
            state = states[places]
            for k in range(steps):
                state = state @ transition.T
                changes[:, k] = state @ design[0]
        level = values[places][:, None] + np.cumsum(changes, axis=1)
        return np.asarray(level + chosen.cycle.at(series, places[:, None] + np.arange(1, steps + 1)))

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast from the newest observed slot of each origin; an origin whose newest value is stale or strange falls back."""
        age, newest = series.age(origins), series.newest[origins]
        stale = is_stale(series, age)
        shown = np.where(stale, 0, age)
        steps = shown[:, None] + np.arange(1, horizon + 1)
        far = self.point(series, newest, int(shown.max()) + horizon)
        point = np.take_along_axis(far, steps - 1, axis=1)
        spread = self.spread.at(steps)
        own = Outlook(
            quantiles=point[:, :, None] + spread,
            mean=point,
            reasons=(self.spread.reason,) * origins.size,
        )
        last = series.last(origins)
        strange = (last < self.known[0]) | (last > self.known[1])
        if not (stale | strange).any():
            return own
        simpler = self.simpler.outlook(series, origins, horizon)
        labels = tuple(
            "; ".join(
                part for part in ("newest value is far outside the training part" if new else "", why) if part
            )
            for new, why in zip(strange, simpler.reasons, strict=True)
        )
        return mixed(own, replace(simpler, reasons=labels), stale | strange)


def _errors(fitted: FittedArima, series: Series) -> np.ndarray:
    """In-sample errors actual - forecast at steps 1..MAX_STEP from every observed slot after the burn-in."""
    seen = np.flatnonzero(~np.isnan(series.values))[BURN_IN:]
    point = fitted.point(series, seen, MAX_STEP)
    upper = np.nanmax(series.upper)
    return np.asarray(ahead(series.values, MAX_STEP)[seen] - np.clip(point, 0.0, upper))


def arima() -> UnivariatePredictor:
    """The ARIMA predictor."""
    return UnivariatePredictor(name="arima", price=Arima(), count=Arima())
