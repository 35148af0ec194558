"""Time and cost of moves between the markets of a job: stated here, read by `kernels.rules.move_usd` (M11.2) (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from slackwater.optimization.job.request import JobRequest, MovingTerms
from slackwater.optimization.kernels.rules import move_table
from slackwater.warehouse.documents import read_data
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.history import Market


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moving:
    """Time and cost of a move (M11.2).

    ``taken`` is the share of a slot lost in addition to the restart; ``usd`` is the cost from the
    market of the row to that of the column: (S, M, M) for a move in each slot of the job, the last
    row for all later slots, or (M, M) for all slots. ``table`` are the costs as of `move_usd`.
    """

    taken: float
    usd: np.ndarray
    table: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        usd = np.array(self.usd, dtype=float, ndmin=3)
        if not 0 <= self.taken < np.inf:
            raise JobError(f"a move takes {self.taken} slots", expected="a finite share of a slot >= 0")
        square = usd.ndim == 3 and len(usd) > 0 and usd.shape[1] == usd.shape[2]
        if not square or not (np.isfinite(usd).all() and (usd >= 0).all()):
            raise JobError(
                f"costs of moves of shape {usd.shape}",
                expected="finite USD >= 0, a row and a column for each market, for each slot or for all",
            )
        table = move_table(usd)
        for name, array in (("usd", usd), ("table", table)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @property
    def markets(self) -> int:
        """Number of markets."""
        return int(self.usd.shape[1])

    @property
    def most_usd(self) -> float:
        """Cost of the most expensive move."""
        return float(self.usd.max())


def even_moving(markets: int, *, taken: float, usd: float | Sequence[float]) -> Moving:
    """Return moves of equal cost between any two of ``markets``, in each slot or in all."""
    return Moving(taken=taken, usd=np.reshape(usd, (-1, 1, 1)) * (1.0 - np.eye(markets)))


def egress_usd_per_gb(a: Market, b: Market) -> float:
    """Return the list price of moving a GB from market ``a`` to market ``b``, USD; 0 inside a zone."""
    known = read_data("slackwater.optimization", "egress")
    prices = known.get(a.provider, known["other"])
    if a.provider != b.provider:
        return float(prices["leaving"])
    if a.region != b.region:
        return float(prices["between_regions"])
    return float(prices["in_region"]) if a.zone != b.zone else 0.0


def moves(request: JobRequest, markets: Sequence[Market], *, step: pd.Timedelta) -> Moving:
    """Return the moves of a placed request between markets (M11.2); without terms a move takes no more than a restart."""
    terms = request.moving or MovingTerms.model_validate({})
    given = terms.egress_usd_per_gb
    usd = np.zeros((len(markets), len(markets)))
    for i, a in enumerate(markets):
        for j, b in enumerate(markets):
            if i != j:
                per_gb = egress_usd_per_gb(a, b) if given is None else given
                usd[i, j] = terms.usd + terms.checkpoint_gb * per_gb
    return Moving(taken=pd.Timedelta(minutes=terms.takes_minutes) / step, usd=usd)
