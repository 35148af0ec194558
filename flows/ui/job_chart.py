"""A job drawn over its slots: work done against uniform progress above, instances held and available below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from flows.ui.charts import (
    LEFT,
    NARROW,
    RIGHT,
    WIDE,
    Scale,
    Times,
    drawing,
    label,
    nice_ticks,
    px,
    steps,
    times_axis,
    x_axis,
    y_axis,
)


def draw_job(data: Mapping[str, Any], *, step: pd.Timedelta) -> str:
    """Both sizes of the drawing of one job, from the plain values of `flows.ui.jobs.job_data`; "" before its first slot."""
    if not data["slots"]:
        return ""
    return "".join(_draw(data, step, width) for width in (WIDE, NARROW))


def _draw(data: Mapping[str, Any], step: pd.Timedelta, width: int) -> str:
    slots, job = data["slots"], data["job"]
    start, end = pd.Timestamp(slots[0]["slot"]), pd.Timestamp(job["deadline"])
    times = times_axis(start, end, width=width)
    work = Scale(low=0.0, high=1.0, start=150, end=28)
    most = max([1, job["n_max"], *(_count(row["available"]) for row in slots)])
    count = Scale(low=0.0, high=float(most), start=300, end=206)
    body = [
        label(LEFT, 14, "work done, % of the workload"),
        y_axis(work, (0, 0.5, 1.0), right=width - RIGHT).replace(">0.5<", ">50<").replace(">1<", ">100<"),
        x_axis(times, top=28, bottom=300),
        label(LEFT, 192, "instances"),
        y_axis(count, nice_ticks(most, whole=True), right=width - RIGHT),
        _bars(slots, step, times, count),
        _available(slots, step, times, count),
        _progress(slots, times, work, end),
    ]
    desc = (
        f"{100 * slots[-1]['share_done']:.0f} % of the work was done when the slot at {slots[-1]['slot']} began; "
        f"uniform progress would be {100 * slots[-1]['share_expected']:.0f} %. The table below has every slot."
    )
    return drawing(
        "".join(body), width=width, height=326, title=f"Progress and instances of job {job['job']}", desc=desc
    )


def _count(value: float | None) -> int:
    return 0 if value is None else int(value)


def _progress(slots: Sequence[Mapping[str, Any]], times: Times, work: Scale, end: pd.Timestamp) -> str:
    points = [
        f"{px(times.at(pd.Timestamp(row['slot'])))} {px(work.at(max(0.0, min(1.0, row['share_done']))))}"
        for row in slots
    ]
    x, y = points[-1].split(" ")
    uniform = f"M{px(times.scale.start)} {px(work.start)}L{px(times.at(end))} {px(work.end)}"
    now = f'<line class="now-line" x1="{x}" x2="{x}" y1="22" y2="300"/>'
    return (
        f'<path class="uniform-line" d="{uniform}"/>{now}'
        f'<path class="done-line" d="M{"L".join(points)}"/><circle class="done-dot" cx="{x}" cy="{y}" r="4.5"/>'
    )


def _bars(slots: Sequence[Mapping[str, Any]], step: pd.Timedelta, times: Times, count: Scale) -> str:
    """Held instances as filled bars, on-demand below spot; the slot that is decided but not over as an outline."""
    parts = []
    for row in slots:
        begin = pd.Timestamp(row["slot"])
        x, right = times.at(begin), times.at(begin + step)
        held = row["held_spot"] is not None
        on_demand, spot = (
            row[f"{'held' if held else 'decided'}_{kind}"] or 0 for kind in ("on_demand", "spot")
        )
        for kind, low, high in (("od", 0, on_demand), ("spot", on_demand, on_demand + spot)):
            if high > low:
                top, bottom = count.at(high), count.at(low)
                parts.append(
                    f'<rect class="bar-{kind}{"" if held else " planned"}" x="{px(x + 0.5)}" width="{px(max(right - x - 1, 1))}" '
                    f'y="{px(top)}" height="{px(bottom - top)}"/>'
                )
    return "".join(parts)


def _available(slots: Sequence[Mapping[str, Any]], step: pd.Timedelta, times: Times, count: Scale) -> str:
    edges = [times.at(pd.Timestamp(slots[0]["slot"]) + k * step) for k in range(len(slots) + 1)]
    values = np.array(
        [np.nan if row["available"] is None else row["available"] for row in slots], dtype=float
    )
    return f'<path class="available-line" d="{steps(edges, values, count)}"/>'
