"""The orders in which the selection meets the same jobs: as they came, and through switches of regime (M5.4, E3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimization.job.definition import Job
from optimization.job.throughput import rates
from optimization.market.window import MarketWindow
from warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order of the jobs, as places, and the number of rounds after each of which the market changes."""

    places: np.ndarray
    cuts: tuple[int, ...]


def abundance(job: Job, window: MarketWindow) -> float:
    """How often spot below on-demand's price alone could do the job's work by d, changes of size left aside."""
    usable = np.where(window.price < window.on_demand_usd, window.available, 0)
    sizes = np.minimum(usable, job.n_max).astype(int)
    hourly = rates(job.throughput, job.n_max)
    return float(hourly[np.where(sizes >= job.n_min, sizes, 0)].sum() * window.slot_hours / job.workload)


def switch_order(kinds: Sequence[float] | np.ndarray) -> Order:
    """First the jobs of kind above the median, then the others, each half in its own order (E3's regime switch).

    Raises `SettingsError` if all are of one kind.
    """
    values = np.asarray(kinds, dtype=float)
    above = values > np.median(values) if len(values) else np.zeros(0, dtype=bool)
    if not above.any():
        raise SettingsError(
            f"{len(values)} jobs, all on markets of one kind",
            expected="jobs of two kinds",
            remedy="use more series or more jobs",
        )
    return Order(places=np.argsort(~above, kind="stable"), cuts=(int(above.sum()),))


def hostile_order(utilities: np.ndarray) -> Order:
    """First the jobs on which the best policy beats a certain other, then all on which that one beats the best.

    The other is the one that adds most to the best, so that the switch is worth as much as a switch between
    two policies can be, and all that was learned before it speaks against it. Without such a policy the order
    stays and there is no cut. ``utilities`` has shape (K, M).
    """
    values = np.asarray(utilities, dtype=float)
    best = values[:, [int(values.sum(axis=0).argmax())]]
    other = values[:, [int(np.maximum(values, best).sum(axis=0).argmax())]]
    behind = (other > best)[:, 0]
    cut = int((~behind).sum())
    return Order(places=np.argsort(behind, kind="stable"), cuts=(cut,) if 0 < cut < len(values) else ())


def orders_of(raw_utilities: np.ndarray, kinds: Sequence[float] | np.ndarray) -> dict[str, Order]:
    """The orders in which E3 plays the same jobs: as they came, through a switch of market, and the hostile one."""
    return {
        "random_order": Order(places=np.arange(len(raw_utilities)), cuts=()),
        "regime_switch": switch_order(kinds),
        "hostile_switch": hostile_order(raw_utilities),
    }
