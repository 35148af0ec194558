"""ARIMA: small orders by exact likelihood and AICc, a daily cycle where it pays, all origins from one filter pass (M6.2).

The model is statsmodels' SARIMAX (`FittedArima.as_statsmodels`). Its likelihood and filter are compiled in `forecasting.kalman`,
which fits the whole grid in a tenth of a second, not many seconds. The spread comes from past errors (`forecasting.past_errors`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from forecasting.arma import Arma, best_order, differenced, estimated, random_walk
from forecasting.kalman import expected_ahead, filtered_states
from forecasting.past_errors import spread_around
from forecasting.predictors.last_value import FittedLastValue, LastValue, is_stale
from forecasting.residuals import ahead
from forecasting.seasonality import daily_cycle, daily_terms
from forecasting.series import Series
from forecasting.univariate import FallsBack, FittedVariable, Outlook, UnivariatePredictor, mixed

#: Only the newest so many slots are estimated on.
LONGEST_TRAINING = 1000
#: Fewer observed values than this are too few to choose an order from.
SHORTEST_TRAINING = 60
#: Why last value answers though ARIMA could.
STRANGE = "newest value is far outside the training part"
#: An order is held against the random walk over so many steps ahead.
JUDGED_STEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Arima:
    """Model of one variable: the ARIMA of least AICc if it was nearer than the random walk in the training part, else that (ours).

    Shocks here are nothing like Gaussian: a few jumps settle the likelihood, and an order that is best by it may be further
    from every ordinary slot than the last value is. The random walk is an ARIMA too, and what such series mostly are.
    """

    def fit(self, series: Series) -> FittedVariable:
        """Estimate on the newest `LONGEST_TRAINING` slots; flat, short or not estimable falls back to last value."""
        simpler = LastValue().fit(series)
        recent = series.part(max(0, len(series) - LONGEST_TRAINING), len(series))
        seen = recent.observed
        if seen.size < SHORTEST_TRAINING:
            return FallsBack(simpler=simpler, reason=f"{seen.size} values, {SHORTEST_TRAINING} are needed")
        if np.ptp(seen) == 0:
            return FallsBack(simpler=simpler, reason="flat series")
        found = _with_cycle(recent, best_order(recent.values))
        walk = random_walk(recent.values)
        usable = [one for one in (found, walk) if one is not None]
        if not usable:
            return FallsBack(simpler=simpler, reason="no order could be estimated")
        low, high = float(seen.min()), float(seen.max())
        return FittedArima(
            arma=_nearest(recent, usable), simpler=simpler, known=(2 * low - high, 2 * high - low)
        )


def _with_cycle(series: Series, plain: Arma | None) -> Arma | None:
    """The same order with a daily cycle, estimated together, if there is a clock, two days of it, and the AICc is less."""
    if plain is None or daily_cycle(series) is None:
        return plain
    terms = daily_terms(series, np.arange(len(series)))[:, 1:]
    p, d, q = plain.order
    cyclic = estimated(differenced(series.values, terms, d), p, q, plain)
    return cyclic if cyclic is not None and cyclic.aicc < plain.aicc else plain


def _nearest(series: Series, candidates: list[Arma]) -> Arma:
    """The last candidate unless the first has the smaller absolute error, mean over steps of its ratio to the other's."""
    if len(candidates) == 1:
        return candidates[0]
    actual = ahead(series.values, JUDGED_STEPS)
    every = np.arange(len(series))
    top = series.upper[:, None]
    own, other = (
        np.nanmean(np.abs(actual - np.clip(expected(one, series, every, JUDGED_STEPS), 0.0, top)), axis=0)
        for one in candidates
    )
    better = own[other > 0] / other[other > 0]
    return candidates[0] if better.size and better.mean() < 1 else candidates[1]


def expected(arma: Arma, series: Series, places: np.ndarray, steps: int) -> np.ndarray:
    """Expected values 1..``steps`` slots after slots (indices), from one filter pass, shape (places, steps).

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
    # Differences begin at the second slot; nothing is known of them at the first.
    states = filtered_states(np.append(np.nan, np.diff(level)), arma.phi, arma.theta)
    changes = np.cumsum(expected_ahead(states[places], arma.phi, steps), axis=1)
    return np.asarray(level[places][:, None] + changes + _cycle(arma, series, after))


def _cycle(arma: Arma, series: Series, places: np.ndarray) -> np.ndarray:
    """The daily cycle at slots, the shape of ``places``; 0 where the model has none."""
    weights = arma.weights[1 - arma.d :]
    return daily_terms(series, places)[..., 1:] @ weights if weights.size else np.zeros(places.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedArima:
    """The estimated ARIMA, and last value where it cannot be used.

    ``known`` is the training part's range, doubled: a shock beyond it says nothing the estimated coefficients were made for (ours).
    """

    arma: Arma
    simpler: FittedLastValue
    known: tuple[float, float]

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast from the newest observed slot of each origin; an origin whose newest value is stale or strange falls back."""
        last = series.last(origins)
        stale = is_stale(series, series.age(origins))
        strange = (last < self.known[0]) | (last > self.known[1])
        odd = stale | strange
        # An origin that falls back is computed as of its newest value, so that its age does not lengthen the horizon of all.
        own = self._own(series, np.where(odd, series.newest[origins], origins), horizon)
        if not odd.any():
            return own
        simpler = self.simpler.outlook(series, origins, horizon)
        labels = tuple(
            "; ".join(part for part in (STRANGE if new else "", why) if part)
            for new, why in zip(strange, simpler.reasons, strict=True)
        )
        return mixed(own, replace(simpler, reasons=labels), odd)

    def _own(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        steps = int(series.age(origins).max()) + horizon
        point = expected(self.arma, series, np.arange(len(series)), steps)
        spread = spread_around(series, point, origins, horizon)
        return Outlook(quantiles=spread.quantiles, mean=spread.mean, reasons=spread.reasons, law=spread.law)

    def as_statsmodels(self, series: Series) -> Any:
        """The same model of the same series as statsmodels' results, for its summary, tests and intervals; imports statsmodels."""
        from statsmodels.tsa.statespace.sarimax import SARIMAX

        p, d, q = self.arma.order
        terms = np.zeros((len(series), 0))
        if self.arma.weights.size > 1 - d:
            terms = daily_terms(series, np.arange(len(series)))[:, 1:]
        data = differenced(series.values, terms, d).table
        model = SARIMAX(
            data[:, 0], exog=data[:, 1:] if data.shape[1] > 1 else None, order=(p, 0, q), trend="n"
        )
        return model.smooth(
            np.concatenate([self.arma.weights, self.arma.phi, self.arma.theta, [self.arma.variance]])
        )


def arima() -> UnivariatePredictor:
    """The ARIMA predictor."""
    return UnivariatePredictor(name="arima", price=Arima(), count=Arima())
