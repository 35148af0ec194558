"""How far the next changes of a price carry it, given the last ones: a kernel law over the changes of a panel (M6.2).

Today's spot prices mostly go on the way they went, at about the pace they had; auction prices jump and come back. Either is
learned from what followed past changes of like relative size, direction and streak (ours).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forecasting.price_features import PriceState
from forecasting.series import Series

#: Points that a law of sizes is kept as.
POINTS = 25
#: Nodes of the log of the last change's size, in recent ones, and the width of the kernel around them.
NODES = np.array([-4.0, -2.5, -1.5, -0.75, 0.0, 0.75, 1.5])
BANDWIDTH = 0.7
#: What a past change counts that differs in a bit of its `situation`, and what one of any size counts.
UNLIKE = {1: 0.7, 2: 0.15, 4: 0.3}
ANY_SIZE = 0.02
#: Changes of a market that are learned from at most.
MOST_SUCCESSORS = 3000
#: Exponents of the last change in the unit are kept at most this, and drawn to 0 by so much squared spread.
_GAMMA = 0.9
_RIDGE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLaw:
    """Where so many more changes lead, counted in the direction of the last change.

    The unit is size^(1 - gamma) |last|^gamma. ``points`` (8, len(`NODES`), `POINTS`) are quantiles at equidistant levels
    for each `situation` and node of log(|last| / size), between which they are interpolated.
    """

    gamma: float
    points: np.ndarray

    def at(self, last: np.ndarray, size: np.ndarray, told: np.ndarray) -> np.ndarray:
        """Quantiles of the change of the logarithm after each last change (n,), size (n,) and situation (n,); shape (n, POINTS).

        They ascend after a rise and descend after a fall.
        """
        x = np.clip(np.log(np.abs(last) / size), NODES[0], NODES[-1])
        right = np.clip(np.searchsorted(NODES, x), 1, NODES.size - 1)
        share = ((x - NODES[right - 1]) / (NODES[right] - NODES[right - 1]))[:, None]
        points = (1 - share) * self.points[told, right - 1] + share * self.points[told, right]
        unit = np.sign(last) * size * np.exp(self.gamma * x)
        return np.asarray(unit[:, None] * points)

    def state(self) -> dict[str, Any]:
        """What `restore` needs, for JSON."""
        return {"gamma": self.gamma, "points": self.points.tolist()}

    @staticmethod
    def restore(state: dict[str, Any]) -> SizeLaw:
        """The law whose `state` this is."""
        return SizeLaw(gamma=state["gamma"], points=np.array(state["points"]))


def situation(state: PriceState, places: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """For the changes of these numbers, seen from these slots, 0 to 7.

    1 after a rise, plus 2 if the change before it went the same way, plus 4 if the price stands off the day's median, to the
    side of the last change, by more than a recent change.
    """
    by = np.append(state.by, 0.0)
    rose = by[places] > 0
    onwards = (places > 0) & (np.sign(by[places]) == np.sign(by[np.maximum(places - 1, 0)]))
    off = np.sign(by[places]) * (state.level[slots] - state.usual[slots]) > state.size[slots]
    return np.asarray(rose + 2 * onwards + 4 * off, dtype=int)


@dataclass(frozen=True, slots=True, kw_only=True)
class Successors:
    """Past changes: log of their size in recent ones, situation, weight, and where the next few led in that unit; shapes (n,)."""

    x: np.ndarray
    told: np.ndarray
    weight: np.ndarray
    after: np.ndarray


def successors(
    markets: Sequence[tuple[Series, PriceState]], changes: int, end: int, half_life: float
) -> Successors | None:
    """What came ``changes`` changes after every change of the markets, None if there was none.

    Weights halve every ``half_life`` slots before slot number ``end``.
    """
    parts = []
    for one, state in markets:
        i = np.arange(1, state.when.size - changes)[-MOST_SUCCESSORS:]
        if not i.size:
            continue
        path = np.concatenate([[0.0], np.cumsum(state.by)])
        unit = state.size[state.when[i]]
        parts.append(
            (
                np.log(np.abs(state.by[i]) / unit),
                situation(state, i, state.when[i]),
                np.exp2(-(end - one.first_slot - state.when[i]) / half_life),
                np.sign(state.by[i]) * (path[i + 1 + changes] - path[i + 1]) / unit,
            )
        )
    if not parts:
        return None
    x, told, weight, after = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Successors(x=np.clip(x, NODES[0], NODES[-1]), told=told, weight=weight, after=after)


def size_law(seen: Successors) -> SizeLaw:
    """Weighted quantiles around every node and situation; gamma by least squares of the log sizes."""
    moved = np.log(np.clip(np.abs(seen.after), 1e-3, 1e2))
    w, x = seen.weight, seen.x
    mx, my = np.average(x, weights=w), np.average(moved, weights=w)
    slope = float((w * (x - mx) * (moved - my)).sum() / ((w * (x - mx) ** 2).sum() + _RIDGE))
    gamma = min(max(slope, 0.0), _GAMMA)
    scaled = seen.after * np.exp(-gamma * x)
    order = np.argsort(scaled)
    near = np.exp(-0.5 * ((x[order][:, None] - NODES) / BANDWIDTH) ** 2) + ANY_SIZE
    levels = (np.arange(POINTS) + 0.5) / POINTS
    points = np.empty((8, NODES.size, POINTS))
    for told in range(8):
        other = seen.told[order] ^ told
        alike = w[order] * np.prod(
            [np.where(other & bit, counts, 1.0) for bit, counts in UNLIKE.items()], axis=0
        )
        for j in range(NODES.size):
            weight = alike * near[:, j]
            share = (np.cumsum(weight) - 0.5 * weight) / weight.sum()
            points[told, j] = np.interp(levels, share, scaled[order])
    return SizeLaw(gamma=gamma, points=points)
