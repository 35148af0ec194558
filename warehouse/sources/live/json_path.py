"""Paths into JSON: names and list positions joined by dots, ``data.items.0.price``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def at_path(value: Any, path: str) -> Any:
    """What stands at a dotted path, None if there is nothing.

    >>> at_path({"a": [{"b": 5}]}, "a.0.b"), at_path({"a": 1}, "a.b"), at_path([1], "")
    (5, None, [1])
    """
    for name in path.split(".") if path else ():
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
