"""Costs of moves between the markets of a job (M11.2) (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from slackwater.optimization.job.request import JobRequest, MovingTerms
from slackwater.warehouse.documents import read_data
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.history import Market


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moving:
    """Cost of a move (M11.2).

    ``taken`` is the share of a slot lost in addition to the restart; ``usd`` (M, M) is the cost
    from the market of the row to that of the column.
    """

    taken: float
    usd: np.ndarray

    def __post_init__(self) -> None:
        usd = np.array(self.usd, dtype=float)
        if not 0 <= self.taken < np.inf:
            raise JobError(f"a move takes {self.taken} slots", expected="a finite share of a slot >= 0")
        if usd.ndim != 2 or usd.shape[0] != usd.shape[1] or not (np.isfinite(usd).all() and (usd >= 0).all()):
            raise JobError(
                f"costs of moves of shape {usd.shape}",
                expected="finite USD >= 0, a row and a column for each market",
            )
        usd.flags.writeable = False
        object.__setattr__(self, "usd", usd)


def even_moving(markets: int, *, taken: float, usd: float) -> Moving:
    """Return moves of equal cost between any two of ``markets``."""
    return Moving(taken=taken, usd=usd * (1.0 - np.eye(markets)))


def egress_usd_per_gb(a: Market, b: Market) -> float:
    """Return the list price of moving a GB from market ``a`` to market ``b``, USD; 0 inside a zone."""
    known = read_data("slackwater.optimization", "egress")
    prices = known.get(a.provider, known["other"])
    if a.provider != b.provider:
        return float(prices["leaving"])
    if a.region != b.region:
        return float(prices["between_regions"])
    return float(prices["in_region"]) if a.zone != b.zone else 0.0


def moves(terms: MovingTerms | None, markets: Sequence[Market], *, step: pd.Timedelta) -> Moving:
    """Return time and cost of the moves between markets (M11.2); without terms a move takes no more than a restart."""
    terms = terms or MovingTerms.model_validate({})
    return Moving(taken=pd.Timedelta(minutes=terms.takes_minutes) / step, usd=_usd(terms, markets))


def _usd(terms: MovingTerms | None, markets: Sequence[Market]) -> np.ndarray:
    """Return the cost of a move from each market to each, USD."""
    terms = terms or MovingTerms.model_validate({})
    given = terms.egress_usd_per_gb
    usd = np.zeros((len(markets), len(markets)))
    for i, a in enumerate(markets):
        for j, b in enumerate(markets):
            if i != j:
                per_gb = egress_usd_per_gb(a, b) if given is None else given
                usd[i, j] = terms.usd + terms.checkpoint_gb * per_gb
    return usd


def most_expensive_move(request: JobRequest, markets: Sequence[Market]) -> float:
    """Return the cost of the most expensive move between two of the markets, USD."""
    return float(_usd(request.moving, markets).max())
