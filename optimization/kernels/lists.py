"""Typed lists, as kernels take them, made by kernels.

numba compiles what makes and fills a list from Python anew in every process, a second for a handful of kinds; what a kernel does
with one is kept on disk with the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba.typed import List

from optimization.kernels.compiling import kernel


def listed(items: Sequence[Any]) -> List:
    """The items, at least one and all of one type, as a typed list."""
    made: List = _begun(items[0])
    for one in items[1:]:
        _appended(made, one)
    return made


@kernel
def _begun(first: Any) -> List:
    made = List()
    made.append(first)
    return made


@kernel
def _appended(made: List, one: Any) -> None:
    made.append(one)
