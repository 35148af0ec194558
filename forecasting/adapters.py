"""Models of statsforecast, mlforecast and scikit-learn as predictors (M6.2, M6.4).

A library's model receives the values of a market up to an origin and nothing else, so no forecast
can read a later slot. Gaps are filled with the last value. The libraries are not imported here: the
caller brings a model object.

Between turns a predictor is stored with the values it was estimated on, and estimated again from them when it
is needed. With ``pickled`` the estimated model is stored as bytes instead, which saves that time. **Reading
such bytes executes code**: whoever can write to the warehouse can then run code as the user of the turn. It
is therefore off unless the caller sets it, and bytes of a predictor without it are refused.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import pandas as pd

from slackwater.forecasting.predictor import (
    NEVER_SEEN,
    FallsBack,
    Outlook,
    Panel,
    join_outlooks,
    join_reasons,
    stored,
)
from slackwater.forecasting.predictors.distributions import ErrorQuantiles, error_quantiles
from slackwater.forecasting.predictors.last_value import LastValue, stale_reasons
from slackwater.forecasting.quantiles import LEVELS
from slackwater.forecasting.series import Series
from slackwater.warehouse.errors import ForecastError, SettingsError

FEWEST_SLOTS = 48  # A series with fewer slots is forecast by last value (ours)
#: Errors are measured on the last quarter of a series, from at most so many origins and steps ahead.
ERROR_ORIGINS, ERROR_STEPS = 24, 48
#: Errors of a library on data that it cannot use.
UNUSABLE = (ValueError, ArithmeticError, LookupError, RuntimeError)


@stored("adapters.past")
@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Values of a market from ``first_slot`` (since the epoch), gaps filled by the last; ``slots_per_day`` 0: no clock."""

    key: str
    values: np.ndarray
    first_slot: int
    step: pd.Timedelta
    slots_per_day: int

    def until(self, place: int) -> Past:
        """Return the values up to and including index ``place``."""
        return replace(self, values=self.values[: place + 1])

    @property
    def slots(self) -> np.ndarray:
        """Numbers of the slots since the epoch."""
        return self.first_slot + np.arange(self.values.size)


def past_of(series: Series) -> Past:
    """Return the values of a series from the first observed value on, gaps filled."""
    seen = np.flatnonzero(series.newest >= 0)
    start = int(seen[0]) if seen.size else len(series)
    return Past(
        key=series.key,
        values=series.values[series.newest[start:]],
        first_slot=series.first_slot + start,
        step=series.step,
        slots_per_day=series.slots_per_day,
    )


class Library(Protocol):
    """How a library estimates and forecasts."""

    @property
    def pooled(self) -> bool:
        """Whether a model is estimated on all markets of a source together."""

    @property
    def gives_quantiles(self) -> bool:
        """Whether the forecasts are quantiles; otherwise the spread is that of past errors."""

    def fit(self, pasts: Sequence[Past]) -> Any:
        """Estimate a copy of the model; may raise any error of `UNUSABLE`."""

    def forecast(self, fitted: Any, pasts: Sequence[Past], horizon: int) -> np.ndarray:
        """Forecast 1..``horizon`` slots after each past: shape (pasts, horizon), or (pasts, horizon, 19) for quantiles."""


def from_statsforecast(
    model: Any, *, name: str, intervals: Literal["model", "errors"] = "model", pickled: bool = False
) -> AdaptedPredictor:
    """Return the predictor of a model of statsforecast, such as ``AutoARIMA(season_length=48)``, for each market alone.

    The quantiles are the prediction intervals of the model, or with ``intervals="errors"`` the points with
    the quantiles of past errors. Between refits `forward` applies the estimated parameters to new values; a
    model without it is estimated at each origin. ``pickled``: see the module.
    """
    if intervals not in ("model", "errors"):
        raise SettingsError(f"intervals {intervals!r} of {name}", expected="model or errors")
    return remember_predictor(
        name, StatsForecastModel(model=model, gives_quantiles=intervals == "model"), pickled
    )


def from_mlforecast(model: Any, *, name: str, pickled: bool = False) -> AdaptedPredictor:
    """Return the predictor of an ``MLForecast`` with a single model, estimated on all markets of a source together.

    Times are slot numbers if the ``freq`` of the model is a whole number, else UTC without a zone.
    The quantiles are the points with the quantiles of past errors. ``pickled``: see the module.
    """
    if len(model.models) != 1:
        raise SettingsError(f"{len(model.models)} models in the MLForecast of {name}", expected="one")
    return remember_predictor(name, MlForecastModel(model=model), pickled)


def from_sklearn(model: Any, *, name: str, lags: int = 12, pickled: bool = False) -> AdaptedPredictor:
    """Return the predictor of a regressor of scikit-learn, estimated on all markets of a source together.

    The regressor predicts the change to the next slot from the newest value, its differences from the
    ``lags`` values before it, and the time of day as sine and cosine; its predictions are the inputs of later
    steps. The quantiles are the points with the quantiles of past errors. Set ``random_state`` of a random
    model, so that equal data give equal forecasts. ``pickled``: see the module.
    """
    if lags < 1:
        raise SettingsError(f"{lags} lags of {name}", expected="at least one")
    return remember_predictor(name, SklearnModel(model=model, lags=lags), pickled)


#: Predictors made in this process, by name: their stored states hold no model object.
_ADAPTED: dict[str, AdaptedPredictor] = {}


def remember_predictor(name: str, library: Library, pickled: bool) -> AdaptedPredictor:
    """Return the predictor and remember it, so that its stored states can be read."""
    _ADAPTED[name] = AdaptedPredictor(name=name, library=library, pickled=pickled)
    return _ADAPTED[name]


@dataclass(frozen=True, kw_only=True)
class AdaptedPredictor:
    """Predictor of price and of count by the model of a library."""

    name: str
    library: Library
    pickled: bool = False

    @property
    def pooled(self) -> bool:
        """Whether it is estimated on all markets of a source together."""
        return self.library.pooled

    def fit(self, panel: Panel) -> FittedAdapter:
        """Estimate on every series that is long enough; last value replaces a model that cannot be estimated."""
        pasts = [past_of(series) for series in panel.series]
        long = tuple(past for past in pasts if past.values.size >= FEWEST_SLOTS)
        if not long:
            return FittedAdapter(adapter=self.name, reason=f"fewer than {FEWEST_SLOTS} slots")
        try:
            errors = {} if self.library.gives_quantiles else past_errors(self.library, long, panel)
            model = self.library.fit(long)
        except UNUSABLE as error:
            return FittedAdapter(adapter=self.name, reason=f"{self.name} cannot be estimated: {error}")
        fitted = FittedAdapter(
            adapter=self.name,
            keys=tuple(past.key for past in long),
            errors=errors,
            pasts=() if self.pickled else long,
            blob=np.frombuffer(pickle.dumps(model) if self.pickled else b"", dtype=np.uint8),
        )
        vars(fitted)["model"] = model
        return fitted


@stored("adapters.fitted")
@dataclass(frozen=True, kw_only=True)
class FittedAdapter:
    """Estimated model of a library for the markets ``keys``; without any, last value forecasts for ``reason``.

    ``errors``: quantiles of past errors by market, for models of points. A stored state has either
    the ``pasts`` of the estimation or the ``blob``, the pickled model. Raises `ForecastError` if the
    predictor was not made in this process, or for a pickle that it does not allow.
    """

    adapter: str
    keys: tuple[str, ...] = ()
    errors: dict[str, ErrorQuantiles] = field(default_factory=dict)
    pasts: tuple[Past, ...] = ()
    blob: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))
    reason: str = ""

    def __post_init__(self) -> None:
        if self.adapter not in _ADAPTED:
            raise ForecastError(
                f"a stored state of {self.adapter}", expected="a predictor created before the fit is read"
            )
        if self.blob.size and not _ADAPTED[self.adapter].pickled:
            raise ForecastError(
                f"a stored state of {self.adapter} as bytes, which run code when they are read",
                expected="a predictor created with pickled=True",
                remedy="estimate again",
            )

    @cached_property
    def model(self) -> Any:
        """The estimated model object, from its bytes or estimated again from the stored values."""
        return pickle.loads(self.blob.tobytes()) if self.blob.size else self._library.fit(self.pasts)

    @property
    def _library(self) -> Library:
        return _ADAPTED[self.adapter].library

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast a series from its values up to each origin; last value forecasts a market that was not estimated."""
        series = panel.series[which]
        if series.key not in self.keys:
            return _last_values(series, origins, horizon, self.reason or NEVER_SEEN)
        past = past_of(series)
        start = past.first_slot - series.first_slot
        try:
            given = self._library.forecast(
                self.model, [past.until(int(origin) - start) for origin in origins], horizon
            )
        except UNUSABLE as error:
            if len(origins) > 1:  # one past that the model cannot use changes no other forecast
                return join_outlooks(
                    [self.outlook(panel, which, origins[i : i + 1], horizon) for i in range(len(origins))]
                )
            return _last_values(series, origins, horizon, f"{self.adapter} cannot forecast: {error}")
        reasons = stale_reasons(series, origins)
        if given.ndim == 3:
            return Outlook(quantiles=given, mean=given[:, :, LEVELS.size // 2], reasons=reasons)
        errors = self.errors[series.key]
        steps = series.age(origins)[:, None] + np.arange(1, horizon + 1)
        return Outlook(
            quantiles=given[:, :, None] + errors.at(steps),
            mean=given,
            reasons=join_reasons(reasons, repeat(errors.reason, origins.size)),
        )


def _last_values(series: Series, origins: np.ndarray, horizon: int, reason: str) -> Outlook:
    """Forecast with last value, estimated on the past of each origin."""
    return join_outlooks(
        [
            FallsBack(simpler=LastValue().fit(series.part(0, int(origin) + 1)), reason=reason).outlook(
                series, np.array([origin]), horizon
            )
            for origin in origins
        ]
    )


def past_errors(library: Library, pasts: Sequence[Past], panel: Panel) -> dict[str, ErrorQuantiles]:
    """Return the quantiles of actual minus forecast by market, on the last quarter with a model estimated before it."""
    cuts = [past.values.size * 3 // 4 for past in pasts]
    model = library.fit([past.until(cut - 1) for past, cut in zip(pasts, cuts, strict=True)])
    found = {}
    for past, cut in zip(pasts, cuts, strict=True):
        size = past.values.size
        origins = np.unique(np.linspace(cut - 1, size - 2, min(ERROR_ORIGINS, size - cut)).astype(int))
        horizon = min(ERROR_STEPS, size - cut)
        points = library.forecast(model, [past.until(int(origin)) for origin in origins], horizon)
        series = panel.series[panel.places[past.key]]
        actual = np.full(size + horizon, np.nan)
        actual[:size] = series.values[-size:]
        places = origins[:, None] + np.arange(1, horizon + 1)
        found[past.key] = error_quantiles(actual[places] - points)
    return found


# ---
# The libraries.


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsForecastModel:
    """A model of statsforecast, estimated on each market."""

    pooled: ClassVar[bool] = False

    model: Any
    gives_quantiles: bool = True

    def fit(self, pasts: Sequence[Past]) -> dict[str, Any]:
        """Return an estimated copy for each market."""
        return {past.key: copy.deepcopy(self.model).fit(past.values) for past in pasts}

    def forecast(self, fitted: dict[str, Any], pasts: Sequence[Past], horizon: int) -> np.ndarray:
        """Return the points, or the quantiles from the intervals of 90, 80, ..., 10 % and the mean for the median."""
        given = [self._forecast(fitted[past.key], past.values, horizon) for past in pasts]
        if not self.gives_quantiles:
            return np.array([table["mean"] for table in given])
        low = [[table[f"lo-{level}"] for level in INTERVALS] for table in given]
        high = [[table[f"hi-{level}"] for level in reversed(INTERVALS)] for table in given]
        middle = [[table["mean"]] for table in given]
        return np.moveaxis(np.concatenate([low, middle, high], axis=1), 1, 2)

    def _forecast(self, model: Any, values: np.ndarray, horizon: int) -> dict[str, np.ndarray]:
        level = list(INTERVALS) if self.gives_quantiles else None
        apply = model.forward if hasattr(model, "forward") else copy.deepcopy(self.model).forecast
        found: dict[str, np.ndarray] = apply(y=values, h=horizon, level=level)
        return found


#: Coverage of the intervals between the quantiles of `LEVELS`, per cent, widest first.
INTERVALS = tuple(range(90, 0, -10))


@dataclass(frozen=True, slots=True, kw_only=True)
class MlForecastModel:
    """An ``MLForecast`` with a single model, estimated on all markets."""

    pooled: ClassVar[bool] = True
    gives_quantiles: ClassVar[bool] = False

    model: Any

    def fit(self, pasts: Sequence[Past]) -> Any:
        """Return an estimated copy."""
        return copy.deepcopy(self.model).fit(self._table(pasts), static_features=[])

    def forecast(self, fitted: Any, pasts: Sequence[Past], horizon: int) -> np.ndarray:
        """Return the points of all pasts, each as a series of its own."""
        given = fitted.predict(h=horizon, new_df=self._table(pasts))
        (column,) = [name for name in given.columns if name not in ("unique_id", "ds")]
        return np.asarray(given[column].to_numpy(dtype=float).reshape(len(pasts), horizon))

    def _table(self, pasts: Sequence[Past]) -> pd.DataFrame:
        slots = np.concatenate([past.slots for past in pasts])
        names = [f"{i:09d}" for i in range(len(pasts))]
        by_number = isinstance(self.model.freq, int)
        microseconds = pasts[0].step // pd.Timedelta(microseconds=1)
        return pd.DataFrame(
            {
                "unique_id": np.repeat(names, [past.values.size for past in pasts]),
                "ds": slots
                if by_number
                else np.datetime64(0, "us") + slots * np.timedelta64(microseconds, "us"),
                "y": np.concatenate([past.values for past in pasts]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SklearnModel:
    """A regressor of scikit-learn on the newest values, estimated on all markets."""

    pooled: ClassVar[bool] = True
    gives_quantiles: ClassVar[bool] = False

    model: Any
    lags: int

    def fit(self, pasts: Sequence[Past]) -> Any:
        """Return a copy estimated on every slot with ``lags`` slots before it."""
        rows, changes = [], []
        for past in pasts:
            windows = np.lib.stride_tricks.sliding_window_view(past.values, self.lags + 2)
            rows.append(self._rows(windows[:, :-1], past.slots[self.lags : -1], past.slots_per_day))
            changes.append(windows[:, -1] - windows[:, -2])
        return copy.deepcopy(self.model).fit(np.concatenate(rows), np.concatenate(changes))

    def forecast(self, fitted: Any, pasts: Sequence[Past], horizon: int) -> np.ndarray:
        """Return the points, each step with the step before it as the newest value."""
        width = self.lags + 1
        values = np.array([np.pad(past.values, (width, 0), mode="edge")[-width:] for past in pasts])
        slots = np.array([past.slots[-1] for past in pasts])
        for step in range(horizon):
            rows = self._rows(values[:, -width:], slots + step, pasts[0].slots_per_day)
            newest = values[:, -1] + np.asarray(fitted.predict(rows), dtype=float).reshape(len(pasts))
            values = np.column_stack([values, newest])
        return values[:, width:]

    def _rows(self, windows: np.ndarray, slots: np.ndarray, slots_per_day: int) -> np.ndarray:
        """Return the inputs (m, 3 + lags): newest value, its differences from those before, time of day."""
        newest = windows[:, -1:]
        angle = 2 * np.pi * (slots % slots_per_day) / slots_per_day if slots_per_day else np.zeros(slots.size)
        return np.column_stack([newest, newest - windows[:, :-1], np.sin(angle), np.cos(angle)])
