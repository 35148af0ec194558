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


_ELSEWHERE: list[Fan] = []


def use_elsewhere(fan: Fan) -> None:
    """Set the executor outside of this machine on which replays run from now on."""
    _ELSEWHERE[:] = [fan]


def elsewhere() -> Fan | None:
    """Return the executor of `use_elsewhere`; None if replays run on this machine."""
    return _ELSEWHERE[0] if _ELSEWHERE else None
