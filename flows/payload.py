"""Work for another process as bytes; nothing of the program is imported, so that a Dask scheduler stays responsive."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any


def pack_calls(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> bytes:
    """Return a function and the keyword arguments of its calls as bytes."""
    return pickle.dumps((function, list(calls)), protocol=pickle.HIGHEST_PROTOCOL)


def run_packed(work: bytes) -> bytes:
    """Make the calls in order and return their results as bytes."""
    function, calls = pickle.loads(work)
    return pickle.dumps([function(**call) for call in calls], protocol=pickle.HIGHEST_PROTOCOL)


def results_of(packed: bytes) -> list[Any]:
    """Return the results of `run_packed`."""
    return list(pickle.loads(packed))
