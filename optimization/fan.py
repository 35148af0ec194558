"""Calls of independent computations: one after the other, or by an executor that has the same form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: ``fan(function, calls)`` returns the results of ``function(**call)`` for every call in order,
#: possibly computed in parallel.
Fan = Callable[[Callable[..., Any], Sequence[dict[str, Any]]], list[Any]]


def in_turn(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
    """Make the calls one after the other: the sequential `Fan`."""
    return [function(**call) for call in calls]
