"""Interfaces of predictors, and the text form in which fitted models are stored between turns (M6.1, M6.2, M6.4)."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import Any, Protocol, TypeVar

import numpy as np
import pandas as pd

from slackwater.forecasting.quantiles import Variable
from slackwater.forecasting.series import Series
from slackwater.warehouse.errors import ForecastError

# ---
# Serialization of fitted models to JSON text, so that a turn between two refits restores a model without estimation (M6.4).
#
# A fitted model is a tree of frozen dataclasses over arrays, numbers and strings. The text holds this tree by field names,
# with every float exact. A class in the tree must be registered with `stored` under a permanent name, which stays the same
# when the class moves or is renamed. Reading creates instances of registered classes only, so the text cannot call
# other code. A text whose fields differ from those of the present class is rejected; the model must then be estimated again.

C = TypeVar("C", bound=type)

#: Arrays with more elements are written as base64 of their bytes.
_LONG = 64
_PLAIN = (str, bool, int, float, type(None))
_BY_NAME: dict[str, type] = {}
_NAMES: dict[type, str] = {}


def stored(name: str) -> Callable[[C], C]:
    """Register a dataclass as part of stored fitted models under a permanent ``name``.

    A class defined again under the same qualified name (a reloaded module) replaces the first. Raises `ForecastError` if
    another class has the name.
    """

    def mark(kind: C) -> C:
        other = _BY_NAME.get(name)
        if other is not None and (other.__module__, other.__qualname__) != (
            kind.__module__,
            kind.__qualname__,
        ):
            raise ForecastError(
                f"{kind.__qualname__} of {kind.__module__} is to be stored as {name!r}, which is "
                f"{other.__qualname__} of {other.__module__}",
                expected="a name of its own",
            )
        _BY_NAME[name] = kind
        _NAMES[kind] = name
        return kind

    return mark


def state_text(fitted: Any) -> str:
    """Return a fitted model as text, preceded by its SHA-256; equal models give equal texts.

    Raises `ForecastError` if the model contains a value that cannot be written, such as an instance of a class that is not
    registered with `stored`.
    """
    text = json.dumps(_as_plain(fitted), separators=(",", ":"))
    return f"{_digest(text)}:{text}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def restore_model(text: str) -> Any:
    """Return the fitted model written by `state_text`; the module of its predictor must have been imported.

    Raises `ForecastError` if the checksum does not match, before the content is parsed: LightGBM ends the process on a
    corrupted model. Raises it too if the text does not match the present classes.
    """
    digest, _, content = text.partition(":")
    if digest != _digest(content):
        raise ForecastError(
            "a stored forecaster whose SHA-256 differs",
            expected="the text as it was written",
            remedy="estimate again",
        )
    try:
        return _read_value(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError, ImportError, RecursionError) as error:
        raise ForecastError(
            f"a stored forecaster that cannot be read ({error})",
            expected="one written by this version",
            remedy="estimate again",
        ) from error


def _as_plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return _as_plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, tuple | list):
        return {type(value).__name__: [_as_plain(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_as_plain(key), _as_plain(item)] for key, item in value.items()]}
    if isinstance(value, pd.Timedelta):
        return {"timedelta_ns": int(value.value)}
    if type(value) in _NAMES and is_dataclass(value):
        names = [field.name for field in fields(value) if field.init]
        return {
            "stored": _NAMES[type(value)],
            "fields": {name: _as_plain(getattr(value, name)) for name in names},
        }
    if type(value).__name__ == "Booster":
        return {"booster": value.model_to_string()}
    raise ForecastError(
        f"a {type(value).__qualname__} in a fitted model",
        expected="dataclasses marked with `slackwater.forecasting.predictor.stored`, arrays, numbers",
    )


def _array(value: np.ndarray) -> dict[str, Any]:
    shape, kind = list(value.shape), value.dtype.str
    if value.dtype.hasobject:
        raise ForecastError(f"an array of {value.dtype} in a fitted model", expected="an array of numbers")
    if value.size <= _LONG and value.dtype.kind == "f" and np.isfinite(value).all():
        return {"array": value.ravel().tolist(), "shape": shape, "dtype": kind}
    encoded = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
    return {"bytes": encoded, "shape": shape, "dtype": kind}


def _read_value(given: Any) -> Any:
    if isinstance(given, _PLAIN):
        return given
    for name, read in _READERS.items():
        if name in given:
            return read(given)
    raise ValueError(f"no reader for {sorted(given)}")


def _read_object(given: dict[str, Any]) -> Any:
    name = str(given["stored"])
    if name not in _BY_NAME:
        raise ValueError(f"no class is stored as {name!r}")
    return _BY_NAME[name](**{field: _read_value(value) for field, value in given["fields"].items()})


def _read_array(given: dict[str, Any]) -> np.ndarray:
    return np.array(given["array"], dtype=given["dtype"]).reshape(given["shape"])


def _read_bytes(given: dict[str, Any]) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(given["bytes"]), dtype=given["dtype"])
    return flat.reshape(given["shape"]).copy()


def _read_booster(given: dict[str, Any]) -> Any:
    from lightgbm import Booster  # deferred: the other models do not need LightGBM

    return Booster(model_str=given["booster"])


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "stored": _read_object,
    "array": _read_array,
    "bytes": _read_bytes,
    "tuple": lambda given: tuple(_read_value(item) for item in given["tuple"]),
    "list": lambda given: [_read_value(item) for item in given["list"]],
    "dict": lambda given: {_read_value(key): _read_value(item) for key, item in given["dict"]},
    "float": lambda given: float(given["float"]),
    "timedelta_ns": lambda given: pd.Timedelta(given["timedelta_ns"], unit="ns"),
    "booster": _read_booster,
}


# ---
# Interfaces of predictors: a panel of series in, an `Outlook` of any of them out, and no other input (M6.1, M6.2, M6.4).
#
# A panel holds a variable of several markets. Its series share variable and step but may begin and end at different times;
# slot numbers since the epoch align them. Cutting a panel at a slot cuts every series there, so a predictor that gets a
# cut panel cannot know more. `slackwater.forecasting.origins` decides when a panel is passed to a predictor; it also handles gaps,
# histories without a value, bounds and crossing quantiles in one place.

#: Fallback reason for a market that was not in the panel when the model was estimated.
NEVER_SEEN = "market was not there when the model was estimated"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Series of the same variable and step with distinct keys; raises `ForecastError` otherwise."""

    series: tuple[Series, ...]

    def __post_init__(self) -> None:
        kinds = {(series.variable, series.step) for series in self.series}
        if len(kinds) > 1 or len(self.places) < len(self.series):
            raise ForecastError(
                f"panel of {len(self.series)} series: {len(kinds)} kinds (variable, step), {len(self.places)} names",
                expected="one variable and one step, and no market of a source twice",
            )

    @cached_property
    def places(self) -> dict[str, int]:
        """Index of the series of each key."""
        return {own.key: i for i, own in enumerate(self.series)}

    @property
    def variable(self) -> Variable:
        """Variable of all series; raises `ForecastError` for an empty panel."""
        if not self.series:
            raise ForecastError("a panel of no series", expected="at least one")
        return self.series[0].variable

    def __len__(self) -> int:
        return len(self.series)

    def until(self, slot: int) -> Panel:
        """Cut every series after a slot, given by its number since the epoch; series that begin later become empty."""
        return Panel(series=tuple(series.until(slot) for series in self.series))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Forecasts of a model at each of m origins.

    ``quantiles`` has shape (m, h, 19), ``mean`` (m, h); ``reasons`` holds the fallback reason of each origin ("" = no
    fallback). ``distribution`` (m, h, n), if the model provides it, is the full distribution of a count on 0..n-1.
    """

    quantiles: np.ndarray
    mean: np.ndarray
    reasons: tuple[str, ...]
    distribution: np.ndarray | None = None


class FittedPredictor(Protocol):
    """Predictor with estimated parameters: a frozen dataclass registered with `slackwater.forecasting.predictor.stored`."""

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast series ``which`` of ``panel`` for 1..``horizon`` slots after each origin.

        Origins are ascending indices into that series, each with an observed value at or before it. The forecast of an origin
        must not read any slot after it, of any series. Never fails: a simpler model replaces this model where it cannot
        forecast, with a reason.
        """
        ...


class Model(Protocol):
    """Model with its settings before estimation, for a single variable or for either."""

    def fit(self, panel: Panel) -> FittedPredictor:
        """Estimate on all of ``panel``, whose series may be empty or all gaps; never fails, falls back with a reason."""
        ...


class Predictor(Model, Protocol):
    """Named model of price and of count, each estimated from a panel of that variable.

    This is the only interface of a forecaster: turns, backfills, experiments and the accuracy report accept any object that
    satisfies it.
    """

    @property
    def name(self) -> str:
        """Name under which its forecasts are stored."""

    @property
    def pooled(self) -> bool:
        """Whether it is estimated on all markets of a source together; otherwise each panel holds a single series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByVariable:
    """Predictor with a separate model for each variable."""

    name: str
    price: Model
    count: Model
    pooled: bool

    def fit(self, panel: Panel) -> FittedPredictor:
        """Estimate the model of the panel's variable."""
        return (self.price if panel.variable == "price" else self.count).fit(panel)


# ---
# Adapters: models of single series as models of a panel.


class FittedSeriesModel(Protocol):
    """Model of a single series with estimated parameters."""

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast a single series as `FittedPredictor.outlook` does."""
        ...


class SeriesModel(Protocol):
    """Model of a single series before estimation."""

    def fit(self, series: Series) -> FittedSeriesModel:
        """Estimate on the whole series, which may be empty; never fails, falls back with a reason."""
        ...


def each_alone(name: str, *, price: SeriesModel, count: SeriesModel) -> ByVariable:
    """Return a predictor that estimates and forecasts every market separately."""
    return ByVariable(name=name, price=EachAlone(model=price), count=EachAlone(model=count), pooled=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EachAlone:
    """Panel model that estimates a model of single series on each market separately."""

    model: SeriesModel

    def fit(self, panel: Panel) -> FittedEachAlone:
        """Estimate the model on every series."""
        return FittedEachAlone(
            model=self.model, fitted={series.key: self.model.fit(series) for series in panel.series}
        )


@stored("each_alone")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEachAlone:
    """Fitted models by series key; ``model`` is estimated on the short past of markets that appear after the fit."""

    model: SeriesModel
    fitted: dict[str, FittedSeriesModel]

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast with the fitted model of the series.

        A series without a fitted model gets a model estimated on its past at each origin, with the reason `NEVER_SEEN`.
        """
        series = panel.series[which]
        own = self.fitted.get(series.key)
        if own is not None:
            return own.outlook(series, origins, horizon)
        parts = []
        for origin in origins:
            young = self.model.fit(series.part(0, int(origin) + 1))
            parts.append(
                FallsBack(simpler=young, reason=NEVER_SEEN).outlook(series, np.array([origin]), horizon)
            )
        return join_outlooks(parts)


def join_reasons(first: Iterable[str], then: Iterable[str]) -> tuple[str, ...]:
    """Return the reasons of each origin from two models in one text, "" without any."""
    return tuple("; ".join(filter(None, both)) for both in zip(first, then, strict=True))


def join_outlooks(parts: Sequence[Outlook]) -> Outlook:
    """Return the forecasts of several outlooks one after another, without their `Outlook.distribution`."""
    return Outlook(
        quantiles=np.concatenate([part.quantiles for part in parts]),
        mean=np.concatenate([part.mean for part in parts]),
        reasons=tuple(reason for part in parts for reason in part.reasons),
    )


@stored("falls_back")
@dataclass(frozen=True, slots=True, kw_only=True)
class FallsBack:
    """Simpler model that replaces another, with the reason."""

    simpler: FittedSeriesModel
    reason: str

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast with the simpler model, under ``reason`` and the simpler model's own reason, if any."""
        given = self.simpler.outlook(series, origins, horizon)
        return replace(given, reasons=join_reasons(repeat(self.reason, origins.size), given.reasons))


def bound_quantiles(
    quantiles: np.ndarray, mean: np.ndarray, series: Series, origins: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return quantiles and mean within 0 and the bound known at the origin, without crossing, integers for counts (M6.3)."""
    upper = series.upper[origins]
    if series.variable == "count":
        quantiles = np.floor(
            quantiles + 0.5 + 1e-9
        )  # round halves up, also when they are a rounding error short
    quantiles = np.maximum.accumulate(quantiles, axis=2)
    return np.clip(quantiles, 0.0, upper[:, None, None]), np.clip(mean, 0.0, upper[:, None])


def mix_outlooks(own: Outlook, other: Outlook, use_other: np.ndarray) -> Outlook:
    """Return ``other`` where ``use_other`` (m,), else ``own``, with reasons; ``distribution`` if both have it in one shape."""
    distribution = None
    if (
        own.distribution is not None
        and other.distribution is not None
        and own.distribution.shape == other.distribution.shape
    ):
        distribution = np.where(use_other[:, None, None], other.distribution, own.distribution)
    return Outlook(
        distribution=distribution,
        quantiles=np.where(use_other[:, None, None], other.quantiles, own.quantiles),
        mean=np.where(use_other[:, None], other.mean, own.mean),
        reasons=tuple(
            o if use else a for a, o, use in zip(own.reasons, other.reasons, use_other, strict=True)
        ),
    )
