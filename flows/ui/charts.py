"""Parts of drawings as SVG text: scales, ticks, steps, bands. Colours are classes of the style sheet; every text is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np
import pandas as pd

from flows.show.drawings import hour_ticks

#: Drawings are made twice, for a wide window and for a phone, so that their letters are never scaled; in CSS pixels.
WIDE, NARROW = 920, 380
#: Room for the numbers of the y axis, and to the right of the drawing.
LEFT: Final = 46
RIGHT: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values from ``low`` to ``high`` onto pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """A time axis in hours from ``zero``."""

    zero: pd.Timestamp
    scale: Scale

    def hours(self, time: pd.Timestamp) -> float:
        """Hours from zero."""
        return float((time - self.zero) / pd.Timedelta(hours=1))

    def at(self, time: pd.Timestamp) -> float:
        """The pixel of a time."""
        return self.scale.at(self.hours(time))


def times_axis(first: pd.Timestamp, last: pd.Timestamp, *, width: int) -> Times:
    """A time axis over the whole width of a drawing."""
    hours = float((last - first) / pd.Timedelta(hours=1))
    return Times(zero=first, scale=Scale(low=0.0, high=hours or 1.0, start=LEFT, end=width - RIGHT))


def nice_ticks(high: float, *, most: int = 4, whole: bool = False) -> list[float]:
    """Round numbers from 0 to ``high``, at most ``most`` of them above 0.

    >>> nice_ticks(3.06), nice_ticks(16, whole=True), nice_ticks(0.3)
    ([0.0, 1.0, 2.0, 3.0], [0.0, 5.0, 10.0, 15.0], [0.0, 0.1, 0.2, 0.3])
    """
    if not high > 0 or not math.isfinite(high):
        return [0.0]
    power = math.floor(math.log10(high)) - 1
    sizes = [m * 10.0**p for p in range(power, power + 4) for m in (1, 2, 5)]
    size = next(s for s in sizes if high / s <= most + 1e-9 and (not whole or s >= 1))
    return [round(k * size, 10) for k in range(int(high / size + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """A tick's number without needless zeros.

    >>> tick_text(2.0), tick_text(0.25)
    ('2', '0.25')
    """
    return f"{value:g}"


def px(value: float) -> str:
    """A pixel with one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def y_axis(scale: Scale, ticks: Iterable[float], *, right: float, suffix: str = "") -> str:
    """Grid lines with their numbers."""
    parts = []
    for tick in ticks:
        y = px(scale.at(tick))
        parts.append(f'<line class="grid-line" x1="{LEFT}" x2="{px(right)}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y}" dy="0.35em" text-anchor="end">{tick_text(tick)}{suffix}</text>'
        )
    return "".join(parts)


def x_axis(times: Times, *, top: float, bottom: float) -> str:
    """Ticks at round UTC times."""
    ticks, labels = hour_ticks(times.zero, times.scale.low, times.scale.high)
    parts = [
        f'<line class="axis" x1="{LEFT}" x2="{px(times.scale.end)}" y1="{px(bottom)}" y2="{px(bottom)}"/>'
    ]
    for tick, label in zip(ticks, labels, strict=True):
        x = px(times.scale.at(tick))
        parts.append(f'<line class="grid-line" x1="{x}" x2="{x}" y1="{px(top)}" y2="{px(bottom + 4)}"/>')
        parts.append(
            f'<text class="tick" x="{x}" y="{px(bottom + 18)}" text-anchor="middle">{escape(label)}</text>'
        )
    return "".join(parts)


def steps(edges: Sequence[float], values: np.ndarray, scale: Scale) -> str:
    """Path data of values held from one edge (pixel) to the next; NaN lifts the pen."""
    parts: list[str] = []
    drawn = False
    for k, value in enumerate(values):
        if np.isnan(value):
            drawn = False
            continue
        y = px(scale.at(float(value)))
        parts.append(f"{'L' if drawn else 'M'}{px(edges[k])} {y}H{px(edges[k + 1])}")
        drawn = True
    return "".join(parts)


def band(edges: Sequence[float], low: np.ndarray, high: np.ndarray, scale: Scale) -> str:
    """Path data of the area between two stepped lines."""
    upper = [f"{px(edges[k + i])} {px(scale.at(float(v)))}" for k, v in enumerate(high) for i in (0, 1)]
    lower = [f"{px(edges[k + i])} {px(scale.at(float(v)))}" for k, v in enumerate(low) for i in (0, 1)]
    return "M" + "L".join(upper + lower[::-1]) + "Z"


def label(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "note") -> str:
    """A line of text."""
    return f'<text class="{kind}" x="{px(x)}" y="{px(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def gaps(edges: Sequence[float], missing: np.ndarray, *, top: float, bottom: float) -> str:
    """Boxes over slots that were not observed."""
    from flows.show.drawings import gap_runs

    return "".join(
        f'<rect class="gap-box" x="{px(edges[a])}" width="{px(edges[b] - edges[a])}" y="{px(top)}" height="{px(bottom - top)}"/>'
        for a, b in gap_runs(missing)
    )


def drawing(body: str, *, width: int, height: int, title: str, desc: str) -> str:
    """An ``<svg>`` with a name and a description for those who cannot see it; ids are unique by title and width."""
    key = f"d{abs(hash_of(title)) % 10**8}-{width}"
    kind = "narrow" if width <= NARROW else "wide-draw"
    return (
        f'<svg class="draw {kind}" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{key}-t {key}-d">'
        f'<title id="{key}-t">{escape(title)}</title><desc id="{key}-d">{escape(desc)}</desc>{body}</svg>'
    )


def hash_of(text: str) -> int:
    """A number that is the same for the same text in every process."""
    import zlib

    return zlib.crc32(text.encode())
