"""The completeness map drawn: one row a market, one cell a slot, told apart by shape as well as by colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd

from flows.ui.charts import NARROW, RIGHT, WIDE, drawing, label, px

#: Slots in a drawing at most, and the height of a row.
MOST_SLOTS: Final = {WIDE: 96, NARROW: 24}
ROW: Final = 24
#: State -> class of the cell; "not due" is left empty.
CLASSES: Final = {
    "done": "cell-done", "fallback": "cell-fallback", "stale": "cell-stale", "failed": "cell-failed",
    "missing": "cell-missing",
}  # fmt: skip
_LEFT: Final = {WIDE: 250, NARROW: 8}


def draw_map(rows: Sequence[Mapping[str, Any]], slots: Sequence[pd.Timestamp], *, stage: str) -> str:
    """Both sizes of the map of one stage; each of ``rows`` has ``name`` and ``states``, one a slot of ``slots``."""
    if not rows or not slots:
        return ""
    return "".join(_draw(rows, slots, stage, width) for width in (WIDE, NARROW))


def _draw(rows: Sequence[Mapping[str, Any]], slots: Sequence[pd.Timestamp], stage: str, width: int) -> str:
    shown = slots[-MOST_SLOTS[width] :]
    left = _LEFT[width]
    cell = min((width - left - RIGHT) / len(shown), 28.0)
    step = ROW + (16 if width == NARROW else 0)
    body = [_hours(shown, left, cell)]
    for k, row in enumerate(rows):
        top = 26 + k * step
        if width == NARROW:
            body.append(label(left, top + 11, _short(row["name"], 54), kind="row-name"))
            top += 16
        else:
            body.append(label(left - 8, top + 15, _short(row["name"], 38), anchor="end", kind="row-name"))
        states = row["states"][-len(shown) :]
        for i, state in enumerate(states):
            if state in CLASSES:
                body.append(_cell(state, left + i * cell, top + 3, cell, ROW - 6))
    height = 30 + len(rows) * step
    wrong = sum(
        state in ("failed", "missing", "stale") for row in rows for state in row["states"][-len(shown) :]
    )
    return drawing(
        "".join(body),
        width=width,
        height=height,
        title=f"Completeness of {stage}, {len(rows)} markets, {len(shown)} slots",
        desc=f"{wrong} of these slots failed, are missing or stale; the table below lists them.",
    )


def _cell(state: str, x: float, y: float, width: float, height: float) -> str:
    """A filled box when done; with a stroke through it, a cross or hollow when not: no state by colour alone."""
    w = max(width - 1.5, 1.0)
    box = f'<rect class="{CLASSES[state]}" x="{px(x)}" y="{px(y)}" width="{px(w)}" height="{px(height)}" rx="1.5"/>'
    if state == "failed":
        cross = f"M{px(x)} {px(y)}l{px(w)} {px(height)}M{px(x + w)} {px(y)}l{px(-w)} {px(height)}"
        return box + f'<path class="cell-cross" d="{cross}"/>'
    if state == "fallback":
        return box + f'<path class="cell-dash" d="M{px(x)} {px(y + height / 2)}h{px(w)}"/>'
    if state == "stale":
        return box + f'<path class="cell-slash" d="M{px(x)} {px(y + height)}l{px(w)} {px(-height)}"/>'
    return box


def _hours(slots: Sequence[pd.Timestamp], left: float, cell: float) -> str:
    """The time over the first slot of every so many."""
    every = max(1, int(-(-64 // cell)))
    parts = []
    for i in range(0, len(slots), every):
        time = slots[i]
        if (len(slots) - i) * cell < 40:
            continue
        text = f"{time.day} {time:%b}" if time == time.normalize() else f"{time:%H:%M}"
        parts.append(label(left + i * cell, 14, text, kind="tick"))
    return "".join(parts)


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else "…" + name[-(most - 1) :]
