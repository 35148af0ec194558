"""A piecewise linear function as concave pieces, so that only the choice of a piece needs a binary (M3.3c)."""

from __future__ import annotations

import numpy as np

from optimization.plan import ExpectedToGo

Point = tuple[float, float]

#: Rise of slope, as a share of the steepest, that still counts as rounding of a straight line.
STRAIGHT = 1e-12


def concave_pieces(table: ExpectedToGo, column: int, *, low: float, high: float) -> list[list[Point]]:
    """One column of a table over progress ``low``..``high`` (work units), as its maximal concave pieces.

    Neighbouring pieces share a point; points are (work, USD), ascending; points inside a straight line are left out. A range of
    no width gives one piece of one point.
    """
    inner = (table.work > low) & (table.work < high)
    work = np.concatenate([[low], table.work[inner], [high] if high > low else []])
    usd = np.interp(work, table.work, table.value_usd[:, column])
    if work.size == 1:
        return [[(float(work[0]), float(usd[0]))]]
    slope = np.diff(usd) / np.diff(work)
    slack = STRAIGHT * float(np.max(np.abs(slope)))
    pieces: list[list[Point]] = [[(float(work[0]), float(usd[0]))]]
    for i in range(1, work.size):
        point = (float(work[i]), float(usd[i]))
        if i < slope.size and abs(slope[i] - slope[i - 1]) <= slack:
            continue
        pieces[-1].append(point)
        if i < slope.size and slope[i] > slope[i - 1]:
            pieces.append([point])
    return pieces
