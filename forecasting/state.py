"""Estimated forecasters as JSON text and back, so that between two refits a turn restores instead of estimating (M6.4).

A fitted model is a tree of frozen dataclasses over arrays, numbers and words. That tree is what is written, by the
fields' names, every float exactly. A class that may stand in it is marked with `stored` under a name of its own, which
stays when the class moves or is renamed; only marked classes are made again on reading, so the text cannot call
anything else. A text of other fields than the class has now is refused: estimate again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from warehouse.errors import ForecastError

C = TypeVar("C", bound=type)

#: Arrays of more elements than this are written as base64 of their bytes.
_LONG = 64
_PLAIN = (str, bool, int, float, type(None))
_BY_NAME: dict[str, type] = {}
_NAMES: dict[type, str] = {}


def stored(name: str) -> Callable[[C], C]:
    """Mark a dataclass as part of a fitted model, kept in warehouses under ``name``: choose it once, it stays.

    A class that is defined again under the same qualified name (a module loaded anew) takes the place of the first.
    Raises `ForecastError` where another class has the name.
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
    """A fitted model as text; the same model gives the same text.

    Raises `ForecastError` if it holds something that cannot be written, such as a class that is not `stored`.
    """
    return json.dumps(_written(fitted), separators=(",", ":"))


def restored(text: str) -> Any:
    """The fitted model that `state_text` wrote; the module of its predictor must have been imported.

    Raises `ForecastError` if it does not fit the classes there are now.
    """
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
    if type(value) in _NAMES and is_dataclass(value):
        names = [field.name for field in fields(value) if field.init]
        return {
            "stored": _NAMES[type(value)],
            "fields": {name: _written(getattr(value, name)) for name in names},
        }
    if type(value).__name__ == "Booster":
        return {"booster": value.model_to_string()}
    raise ForecastError(
        f"a {type(value).__qualname__} in a fitted model",
        expected="dataclasses marked with `forecasting.state.stored`, arrays, numbers",
    )


def _array(value: np.ndarray) -> dict[str, Any]:
    shape, kind = list(value.shape), value.dtype.str
    if value.dtype.hasobject:
        raise ForecastError(f"an array of {value.dtype} in a fitted model", expected="an array of numbers")
    if value.size <= _LONG and value.dtype.kind == "f" and np.isfinite(value).all():
        return {"array": value.ravel().tolist(), "shape": shape, "dtype": kind}
    encoded = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
    return {"bytes": encoded, "shape": shape, "dtype": kind}


def _read(given: Any) -> Any:
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
    return _BY_NAME[name](**{field: _read(value) for field, value in given["fields"].items()})


def _refuse_module(given: dict[str, Any]) -> Any:
    raise ValueError(f"written by an earlier version, which named the module of {given['class']}")


def _read_array(given: dict[str, Any]) -> np.ndarray:
    return np.array(given["array"], dtype=given["dtype"]).reshape(given["shape"])


def _read_bytes(given: dict[str, Any]) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(given["bytes"]), dtype=given["dtype"])
    return flat.reshape(given["shape"]).copy()


def _read_booster(given: dict[str, Any]) -> Any:
    from lightgbm import Booster  # here: the other models do not need it

    return Booster(model_str=given["booster"])


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "stored": _read_object,
    "class": _refuse_module,
    "array": _read_array,
    "bytes": _read_bytes,
    "tuple": lambda given: tuple(_read(item) for item in given["tuple"]),
    "list": lambda given: [_read(item) for item in given["list"]],
    "dict": lambda given: {_read(key): _read(item) for key, item in given["dict"]},
    "float": lambda given: float(given["float"]),
    "timedelta_ns": lambda given: pd.Timedelta(given["timedelta_ns"], unit="ns"),
    "booster": _read_booster,
}
