"""Typed lists for kernels, built by kernels.

Building a typed list from Python makes numba compile the list methods again in every process, which
takes a second for a few item types. List operations inside a kernel are stored on disk with the
kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba.typed import List

from slackwater.optimization.kernels.compiling import kernel


def typed_list(items: Sequence[Any]) -> List:
    """Return the items, at least one and all of the same type, as a typed list."""
    made: List = _begun(items[0])
    for item in items[1:]:
        _append(made, item)
    return made


@kernel
def _begun(first: Any) -> List:
    made = List()
    made.append(first)
    return made


@kernel
def _append(made: List, item: Any) -> None:
    made.append(item)
