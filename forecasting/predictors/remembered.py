"""Estimations that more than one predictor is made of: made once for a panel in a process (ours)."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from forecasting.predictor import Panel
from forecasting.series import Series

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
