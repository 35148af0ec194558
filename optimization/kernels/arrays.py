"""Loops in place of NumPy functions that take long to compile.

numba compiles a copy between slices with its error text about shapes, and `np.searchsorted` and
`np.interp` with conversions for every kind of argument: two fifths of the time of `induct_held`.
The sort of `np.argsort` takes two seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba.typed import List

from slackwater.optimization.kernels.compiling import kernel, part


@part
def copy_between(source: np.ndarray, out: np.ndarray, low: int, high: int) -> None:
    """Copy the entries [low, high) of an array with one axis to the same places of another."""
    for h in range(np.uint64(low), np.uint64(high)):
        out[h] = source[h]


@part
def copy_row(source: np.ndarray, i: int, out: np.ndarray, k: int, low: int, high: int) -> None:
    """Copy the entries [low, high) of row ``i`` to row ``k`` of another array: slices of both would count references."""
    for h in range(np.uint64(low), np.uint64(high)):
        out[k, h] = source[i, h]


@part
def first_from(ascending: np.ndarray, size: int, least: float) -> int:
    """Return the first place among the first ``size`` of ascending entries that is at least ``least``, else ``size``."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < least:
            low = middle + 1
        else:
            high = middle
    return low


@part
def place_of(ascending: np.ndarray, value: float) -> int:
    """Return the first place of an ascending array whose entry is at least ``value``, the size if there is none."""
    return first_from(ascending, ascending.size, value)


@part
def interpolate(ascending: np.ndarray, values: np.ndarray, at: float) -> float:
    """Return `np.interp` of one place: between the values at the two nearest entries, at the ends the value of the end."""
    k = place_of(ascending, at)
    if k == ascending.size:
        return float(values[k - 1])
    if k == 0 or ascending[k] == at:
        return float(values[k])
    slope = (values[k] - values[k - 1]) / (ascending[k] - ascending[k - 1])
    return float(slope * (at - ascending[k - 1]) + values[k - 1])


@part
def sort_order(x: np.ndarray) -> np.ndarray:
    """Return the stable sorting order of a few numbers; compiles in a fraction of the time of numpy's sort."""
    order = np.empty(x.size, np.int64)
    for i in range(x.size):
        k = i
        while k > 0 and x[order[k - 1]] > x[i]:
            order[k] = order[k - 1]
            k -= 1
        order[k] = i
    return order


# ---
# Typed lists, built by kernels: a list built by Python makes numba compile the list methods again in every process, which
# takes a second for a few item types; list operations inside a kernel are stored on disk with it.


def typed_list(items: Sequence[Any]) -> List:
    """Return the items, at least one and all of the same type, as a typed list."""
    found: List = _list_of(items[0])
    for item in items[1:]:
        _append(found, item)
    return found


@kernel
def _list_of(first: Any) -> List:
    found = List()
    found.append(first)
    return found


@kernel
def _append(items: List, item: Any) -> None:
    items.append(item)
