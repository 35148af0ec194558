"""Estimated forecasters as JSON text and back, so that between two refits a turn restores instead of estimating (M6.4).

A fitted model is a tree of frozen dataclasses over arrays, numbers and words; that tree is what is written, by the fields'
names, every float exactly. Only classes of `forecasting` (and `Market`) are made again on reading, so the text cannot call anything
else. A text of other fields than the class has now is refused: estimate again.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd

from forecasting.predictor import Panel
from forecasting.series import Series
from warehouse.errors import ForecastError

#: Arrays of more elements than this are written as base64 of their bytes.
_LONG = 64
#: Where the classes of a state may come from.
_HOMES = ("forecasting.", "warehouse.history")
_PLAIN = (str, bool, int, float, type(None))


def state_text(fitted: Any) -> str:
    """A fitted model (any dataclass of this layer) as text; the same model gives the same text.

    Raises `ForecastError` if it holds something that cannot be written.
    """
    return json.dumps(_written(fitted), separators=(",", ":"))


def restored(text: str) -> Any:
    """The fitted model that `state_text` wrote; raises `ForecastError` if it does not fit the classes there are now."""
    try:
        return _read(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise ForecastError(
            f"a stored forecaster that cannot be read ({error})",
            expected="one written by this version",
            remedy="estimate again",
        ) from error


def _written(value: Any) -> Any:
    if isinstance(value, np.generic):
        return _written(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, tuple | list):
        return {type(value).__name__: [_written(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_written(key), _written(item)] for key, item in value.items()]}
    if isinstance(value, pd.Timedelta):
        return {"timedelta_ns": int(value.value)}
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init]
        return {
            "class": _name_of(type(value)),
            "fields": {name: _written(getattr(value, name)) for name in names},
        }
    if inspect.ismethod(value):
        return {"method": value.__name__, "of": _written(value.__self__)}
    if type(value).__name__ == "Booster":
        return {"booster": value.model_to_string()}
    raise ForecastError(
        f"a {type(value).__name__} in a fitted model", expected="dataclasses, arrays, numbers"
    )


def _array(value: np.ndarray) -> dict[str, Any]:
    shape, kind = list(value.shape), value.dtype.str
    if value.dtype.hasobject:
        raise ForecastError(f"an array of {value.dtype} in a fitted model", expected="an array of numbers")
    if value.size <= _LONG and value.dtype.kind == "f" and np.isfinite(value).all():
        return {"array": value.ravel().tolist(), "shape": shape, "dtype": kind}
    encoded = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
    return {"bytes": encoded, "shape": shape, "dtype": kind}


def _name_of(kind: type) -> str:
    if not kind.__module__.startswith(_HOMES):
        raise ForecastError(
            f"a {kind.__module__}.{kind.__qualname__} in a fitted model", expected="a class of forecasting"
        )
    return f"{kind.__module__}:{kind.__qualname__}"


def _read(given: Any) -> Any:
    if isinstance(given, _PLAIN):
        return given
    for name, read in _READERS.items():
        if name in given:
            return read(given)
    raise ValueError(f"no reader for {sorted(given)}")


def _read_object(given: dict[str, Any]) -> Any:
    module, _, name = str(given["class"]).partition(":")
    if not module.startswith(_HOMES):
        raise ValueError(f"a class of {module}")
    kind = getattr(import_module(module), name)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise ValueError(f"{name} is no dataclass")
    return kind(**{field: _read(value) for field, value in given["fields"].items()})


def _read_method(given: dict[str, Any]) -> Any:
    method = getattr(_read(given["of"]), given["method"])
    if not inspect.ismethod(method):
        raise ValueError(f"{given['method']} is no method")
    return method


def _read_array(given: dict[str, Any]) -> np.ndarray:
    return np.array(given["array"], dtype=given["dtype"]).reshape(given["shape"])


def _read_bytes(given: dict[str, Any]) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(given["bytes"]), dtype=given["dtype"])
    return flat.reshape(given["shape"]).copy()


def _read_booster(given: dict[str, Any]) -> Any:
    from lightgbm import Booster  # here: the other models do not need it

    return Booster(model_str=given["booster"])


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "class": _read_object,
    "array": _read_array,
    "bytes": _read_bytes,
    "tuple": lambda given: tuple(_read(item) for item in given["tuple"]),
    "list": lambda given: [_read(item) for item in given["list"]],
    "dict": lambda given: {_read(key): _read(item) for key, item in given["dict"]},
    "float": lambda given: float(given["float"]),
    "timedelta_ns": lambda given: pd.Timedelta(given["timedelta_ns"], unit="ns"),
    "method": _read_method,
    "booster": _read_booster,
}


# ---
# Estimations that more than one predictor is made of: made once for a panel in a process (ours).

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Remembered(Generic[T]):
    """The newest ``most`` results of one deterministic estimation, by the content of what it was made from.

    What is kept is handed out again as it is, so it must not be changed by who gets it.
    """

    most: int = 4
    _kept: OrderedDict[bytes, T] = field(default_factory=OrderedDict)

    def of(self, panel: Panel, make: Callable[[], T], *, beside: Iterable[np.ndarray] = ()) -> T:
        """The result for a panel, and the arrays ``beside`` it that count too: kept from before, or made now."""
        key = _digest(panel, beside)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make()
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)
        return found


def _digest(panel: Panel, beside: Iterable[np.ndarray]) -> bytes:
    digest = hashlib.blake2b(digest_size=20)
    for array in (*(one for series in panel.series for one in _parts(series)), *beside):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()


def _parts(series: Series) -> tuple[np.ndarray, ...]:
    """Everything that a series says, as arrays."""
    words = (
        series.variable, series.key, series.slots_per_day, series.first_slot, series.step.value, series.on_demand_usd,
        series.capacity_stated,
    )  # fmt: skip
    told = np.frombuffer(repr(words).encode(), dtype=np.uint8)
    return (told, series.values, series.companion, series.upper, series.newest, series.within)
