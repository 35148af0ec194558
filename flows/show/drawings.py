"""What matplotlib drawings share: line styles, bands, ticks and gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    pass

#: (lower level, upper level, colour) of the bands, widest first, by position among the 19 quantile levels.
BANDS: Final = ((0, 18, "band90"), (1, 17, "band80"), (4, 14, "band50"))
#: Colour, dash and marker of the lines of several series, in this order; a tenth series begins again.
LINES: Final = (
    ("series1", "-", "o"),
    ("series2", (0, (5, 2)), "s"),
    ("series3", (0, (2, 1.5)), "^"),
    ("series4", (0, (6, 2, 1, 2)), "D"),
    ("series5", "-", "v"),
    ("series6", (0, (3, 1)), "P"),
    ("series7", (0, (1, 1)), "X"),
    ("series8", (0, (8, 2)), "<"),
)
_TICK_HOURS: Final = (0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 720)


def gap_runs(missing: np.ndarray) -> list[tuple[int, int]]:
    """Runs of True as half-open ranges.

    >>> gap_runs(np.array([True, False, True, True]))
    [(0, 1), (2, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], missing.astype(int), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def hour_ticks(zero: pd.Timestamp, low: float, high: float) -> tuple[list[float], list[str]]:
    """At most five ticks at round UTC times between ``low`` and ``high`` hours from ``zero``; midnights carry the date.

    >>> hour_ticks(pd.Timestamp("2026-05-04T01:00Z"), -8, 8)[1]
    ['18:00', '4 May', '06:00']
    """
    every = next((h for h in _TICK_HOURS if (high - low) / h <= 5), _TICK_HOURS[-1])
    spacing = pd.Timedelta(hours=every)
    start = (zero + pd.Timedelta(hours=low)).normalize()
    times = pd.date_range(start, zero + pd.Timedelta(hours=high), freq=spacing)
    ticks = [(t - zero) / pd.Timedelta(hours=1) for t in times]
    labels = [f"{t.day} {t:%b}" if t == t.normalize() else f"{t:%H:%M}" for t in times]
    edge = high - 0.04 * (high - low)  # a label further right would be cut off
    inside = [i for i, tick in enumerate(ticks) if low <= tick <= edge]
    return [ticks[i] for i in inside], [labels[i] for i in inside]


def whole_ticks(first: int, last: int) -> list[int]:
    """At most twelve whole numbers from ``first`` to ``last``, round ones when not all of them fit.

    >>> whole_ticks(1, 1), whole_ticks(1, 24)
    ([1], [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24])
    """
    every = next(n * 10**k for k in range(9) for n in (1, 2, 5) if (last - first + 1) / (n * 10**k) <= 12)
    return [n for n in range(first, last + 1) if n % every == 0]


def line_swatch(style: int) -> dict[str, str]:
    """Colour property and SVG dash pattern of a line style, for the legends."""
    if style < 0:
        return {"colour": "ink", "dash": "", "width": "3"}
    colour, dash, _ = LINES[style % len(LINES)]
    pattern = " ".join(str(2 * v) for v in dash[1]) if isinstance(dash, tuple) else ""
    return {"colour": colour, "dash": pattern, "width": "2"}
