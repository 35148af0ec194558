"""The drawings of the report on the cluster: each function takes plain values and gives one inline ``<svg>``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure
from flows.show.drawings import LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


from typing import Any

from flows.show.blocks import Page, Section, figures, study, study_page


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line with intervals: ``y``, ``low`` and ``high`` by ``x``; ``style`` indexes `flows.show.drawings.LINES`."""

    label: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    style: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What the two axes of a panel say; ``ticks`` on x and ``ends`` of y where given."""

    x: str
    y: str
    ticks: Sequence[float] = ()
    ends: tuple[float, float] | None = None


def draw_panels(
    panels: Mapping[str, Sequence[Series]], axis: Axis, *, levels: Mapping[str, float], name: str, label: str
) -> str:
    """Panels side by side on one scale, a title each; ``levels`` (by title) are dashed lines, such as a published figure."""
    with house_style():
        figure = new_figure(820, 370)
        width = 0.91 / len(panels)
        drawn: Axes | None = None
        for k, (title, series) in enumerate(panels.items()):
            axes = figure.add_axes((0.075 + k * width, 0.24, 0.88 * width, 0.62), sharey=drawn)
            drawn = axes
            for line in series:
                _draw_series(axes, line)
            if title in levels:
                axes.axhline(levels[title], color=PALETTE["ink"], linewidth=1.4, linestyle=(0, (4, 2)))
            if axis.ends is not None:
                axes.set_ylim(*axis.ends)
            if axis.ticks:
                axes.set_xticks(list(axis.ticks), [f"{tick:g}" for tick in axis.ticks])
            axes.set_xlabel(axis.x, color=PALETTE["muted"])
            axes.tick_params(labelleft=k == 0)
            axes.set_title(title, loc="left", fontsize=11.5, color=PALETTE["ink"])
        figure.text(0.012, 0.955, axis.y, color=PALETTE["muted"])
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="lower center", ncols=min(3, len(labels)), fontsize=10.5, frameon=False
        )
        return inline_svg(figure, name=name, label=label)


def _draw_series(axes: Axes, line: Series) -> None:
    colour, dash, marker = LINES[line.style % len(LINES)]
    axes.vlines(line.x, line.low, line.high, color=PALETTE[colour], linewidth=1.4, alpha=0.55)
    axes.plot(
        line.x, line.y, color=PALETTE[colour], linestyle=dash, marker=marker, markersize=5, label=line.label
    )


def draw_badness(panels: Mapping[str, Sequence[Series]], *, levels: Mapping[str, float], name: str) -> str:
    """Reduction against how bad the default is; the thin curve is what an empty cluster would give, 1 - 1/slowdown."""
    with house_style():
        figure = new_figure(820, 370)
        width = 0.91 / len(panels)
        drawn: Axes | None = None
        for k, (title, series) in enumerate(panels.items()):
            axes = figure.add_axes((0.075 + k * width, 0.24, 0.88 * width, 0.62), sharey=drawn)
            drawn = axes
            right = max(float(line.x.max()) for line in series)
            grid = np.linspace(1.0, 1.08 * right, 80)
            axes.plot(
                grid,
                100 * (1 - 1 / grid),
                color=PALETTE["muted"],
                linewidth=1.1,
                label="empty cluster",
            )
            for line in series:
                _draw_series(axes, line)
            axes.axhline(levels[title], color=PALETTE["ink"], linewidth=1.4, linestyle=(0, (4, 2)))
            axes.set_ylim(0, 100)
            axes.set_xlim(1, 1.08 * right)
            axes.tick_params(labelleft=k == 0)
            axes.set_xlabel("time of the default over that of the predicted pick", color=PALETTE["muted"])
            axes.set_title(title, loc="left", fontsize=11.5, color=PALETTE["ink"])
        figure.text(0.012, 0.955, "reduction of mean completion time, %", color=PALETTE["muted"])
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=10.5, frameon=False)
        return inline_svg(figure, name=name, label="Reduction against how bad the default is")


# ---
# The report of the experiment on a cluster: reductions beside the poster's, how far they hang on the default, and job order.

#: Kinds of knowledge as they are called in the page, and the style of their lines.
KINDS = {"batch only": ("batch", 2), "predicted": ("batch and GPUs", 0), "oracle": ("oracle", 1)}
SYNTHETIC = (
    "Whether a configuration that was not measured runs is the label of a published classifier; job sizes, arrivals and the "
    "users' habits are drawn."
)


def cluster_page(answer: Mapping[str, Any]) -> Page:
    """The page of an answer of ``experiment cluster``."""
    c, w = answer["cluster"], answer["workload"]
    with house_style():
        return study_page(
            title="Configuration knowledge on a shared cluster (M9.5)",
            about=(
                ("A quick look, not a result. " if answer["fast"] else "")
                + f"{answer['streams']} Poisson streams of {answer['jobs']} fine-tuning jobs, seed {answer['seed']}, on "
                f"{c['nodes']} nodes of {c['gpus_per_node']} A100-80GB, rates measured ({answer['data']}). The tokens of a job "
                f"are lognormal (median {w['median_tokens'] / 1e6:g} million, sigma {w['sigma']:g}). Load is the GPU time that "
                "the jobs need with default configurations over what there is. Intervals are 95 %, by Student's t over paired "
                "streams."
            ),
            synthetic=SYNTHETIC,
            synthetic_label="Partly synthetic.",
            sections=[
                _reductions(answer),
                _badness(answer),
                _users(answer),
                _times(answer),
                _variants(answer),
                _order(answer),
            ],
            notes=answer["notes"],
        )


def _series(rows: Sequence[Mapping[str, Any]], label: str, style: int, *, x: str, y: str, of: str) -> Series:
    band = np.array([row[of] for row in rows], dtype=float)
    return Series(
        label=label, style=style, x=np.array([row[x] for row in rows]), y=100 * np.array([row[y] for row in rows]),
        low=100 * band[:, 0], high=100 * band[:, 1],
    )  # fmt: skip


def _reductions(answer: Mapping[str, Any]) -> Section:
    panels: dict[str, list[Series]] = {}
    levels: dict[str, float] = {}
    for scheduler, own in answer["headline"].items():
        title = f"{scheduler} (poster: {own['poster']:.0%}, dashed)"
        rows = [r for r in answer["reductions"] if r["scheduler"] == scheduler]
        levels[title] = 100 * own["poster"]
        panels[title] = [
            _series(
                rows,
                f"{label} predicted" if kind != "oracle" else label,
                style,
                x="load",
                y=key,
                of=f"{key}_interval",
            )
            for kind, (label, style) in KINDS.items()
            if (key := kind.replace(" ", "_")) in rows[0]
        ]
    loads = sorted({row["load"] for row in answer["reductions"]})
    columns = {
        "scheduler": "Scheduler", "load": "Load", "batch_only": "Batch predicted", "predicted": "Batch and GPUs predicted",
        "interval": "95 %", "oracle": "Oracle", "poster": "Poster", "default_utilisation": "GPUs held by default",
        "default_keeps_up": "Default keeps up",
    }  # fmt: skip
    return study(
        anchor="reductions",
        heading="Reduction of mean completion time",
        sentences=answer["claims"],
        figure=draw_panels(
            panels, Axis(x="load", y="reduction against default configurations, %", ticks=loads, ends=(0, 100)), levels=levels,
            name="reductions", label="Reduction of mean completion time by load",
        ),
        table=figures(
            columns=columns, digits=3,
            rows=[{**r, "interval": _percent(r["predicted_interval"])} for r in answer["reductions"]],
        ),
        unfold="Numbers",
    )  # fmt: skip


def _percent(interval: Sequence[float]) -> str:
    return f"{interval[0]:.0%} to {interval[1]:.0%}"


def _badness(answer: Mapping[str, Any]) -> Section:
    panels: dict[str, list[Series]] = {}
    levels: dict[str, float] = {}
    shown = sorted(
        {r["load"] for r in answer["sensitivity"] if r["default"] != answer["defaults"][0]["default"]}
    )
    for scheduler, own in answer["headline"].items():
        title = f"{scheduler} (poster: {own['poster']:.0%}, dashed)"
        levels[title] = 100 * own["poster"]
        panels[title] = []
        for style, load in enumerate(shown):
            rows = [r for r in answer["sensitivity"] if r["scheduler"] == scheduler and r["load"] == load]
            rows = sorted(rows, key=lambda r: r["slowdown"])
            panels[title].append(
                _series(rows, f"load {load:g}", style, x="slowdown", y="predicted", of="predicted_interval")
            )
    columns = {
        "default": "Default", "slowdown": "Times the predicted pick's time", "scheduler": "Scheduler", "load": "Load",
        "predicted": "Reduction", "interval": "95 %", "poster": "Poster", "default_keeps_up": "Default keeps up",
    }  # fmt: skip
    return study(
        anchor="defaults",
        heading="How bad the default has to be",
        sentences=[
            "Nobody says what the poster's default is. Six kinds of users are tried (the next table), each at loads of their "
            "own; a dot is one kind of user. The thin curve is what an empty cluster would give, 1 - 1/x; above it the rest is due "
            "to shorter queues.",
        ],
        figure=draw_badness(panels, levels=levels, name="badness"),
        table=figures(
            columns=columns, digits=3,
            rows=[{**r, "interval": _percent(r["predicted_interval"])} for r in answer["sensitivity"]],
        ),
        unfold="Numbers",
    )  # fmt: skip


def _users(answer: Mapping[str, Any]) -> Section:
    columns = {
        "default": "Users", "batch": "Samples a step", "slowdown": "Times the predicted pick's time",
        "free": "Once Sia sets the GPUs",
        "failures": "Failures a job", "hours": "GPU-hours a job", "saturation": "GPUs that FIFO keeps busy",
    }  # fmt: skip
    rows = [{**d, "free": d["slowdown_free"], "hours": d["gpu_seconds"] / 3600} for d in answer["defaults"]]
    return study(
        anchor="users",
        heading="What unknowing users do",
        sentences=[
            "Those of the first row are the headline's. GPUs are asked for as often as they were measured (1, 2, 4, 8), but for "
            "the last two rows. What FIFO keeps busy is the share of GPU time held while jobs always wait: more load piles up."
        ],
        table=figures(columns=columns, rows=rows, digits=2),
    )


def _times(answer: Mapping[str, Any]) -> Section:
    hours = ("mean_s", "waiting_s", "p50_s", "p99_s", "makespan_s")
    rows = [
        {**r, **{key: r[key] / 3600 for key in hours}}
        for r in sorted(answer["runs"], key=lambda r: (r["load"], r["scheduler"]))
    ]
    columns = {
        "load": "Load", "scheduler": "Scheduler", "knowledge": "Configurations", "mean_s": "Mean, h", "waiting_s": "Waiting, h",
        "p50_s": "Median, h", "p99_s": "99 %, h", "makespan_s": "Makespan, h", "utilisation": "GPUs held",
        "restarts": "Restarts a job", "failed_starts": "Failed starts a job", "gpu_hours": "GPU-hours",
    }  # fmt: skip
    return study(
        anchor="times",
        heading="Completion times and what else was measured",
        sentences=[
            "Means over the streams; GPUs held are the share of GPU time held until the last job came."
        ],
        table=figures(columns=columns, rows=rows, digits=2),
    )


def _variants(answer: Mapping[str, Any]) -> Section:
    columns = {
        "variant": "What differs", "scheduler": "Scheduler", "load": "Load", "predicted": "Reduction", "interval": "95 %",
        "poster": "Poster",
    }  # fmt: skip
    return study(
        anchor="assumptions",
        heading="Other assumptions",
        sentences=["The users of the headline; what is not named is as above."],
        table=figures(
            columns=columns, digits=3,
            rows=[{**r, "interval": _percent(r["predicted_interval"])} for r in answer["variants"]],
        ),
    )  # fmt: skip


def _order(answer: Mapping[str, Any]) -> Section:
    own = answer["order"]
    machine = [
        Series(
            label=f"error {error:g}", style=style, x=np.array([r["share"] for r in rows]), y=np.array([r["ratio"] for r in rows]),
            low=np.array([r["interval"][0] for r in rows]), high=np.array([r["interval"][1] for r in rows]),
        )
        for style, error in enumerate(sorted({r["error"] for r in own["machine"]}))
        if (rows := [r for r in own["machine"] if r["error"] == error])
    ]  # fmt: skip
    ends = {r["error"]: r["ratio"] for r in own["machine"] if r["share"] == 1.0}
    first, last = own["cluster"][0], own["cluster"][-1]
    columns = {
        "share": "Share predicted", "ratio_to_fifo": "Mean over FIFO's", "interval": "95 %", "p99_h": "99 %, h",
        "restarts": "Restarts a job",
    }  # fmt: skip
    return study(
        anchor="order",
        heading="Job order when only some sizes are predicted (M10)",
        sentences=[
            "Unpredicted jobs share in round robin, predicted ones run shortest first once the others have had as much; a job "
            "that outlives its prediction joins the round robin. The setting is that of non-clairvoyant scheduling with partial "
            "predictions (2024), the rule is ours. The drawing: 50 jobs at once on one machine, lognormal sizes, mean completion "
            f"time over the best possible. With no prediction it is {own['machine'][0]['ratio']:.2f}; with all predicted "
            + ", ".join(f"{ratio:.2f} at error {error:g}" for error, ratio in ends.items())
            + " (the sigma of the predictions' logarithm).",
            f"The table: the same rule in rounds of 300 s on the cluster, {own['load']:.0%} loaded by jobs with predicted "
            f"configurations. Against FIFO the mean changes by {first['ratio_to_fifo'] - 1:+.0%} with no job's size known and by "
            f"{last['ratio_to_fifo'] - 1:+.0%} with all of them, the predicted times being as wrong as the throughput model.",
        ],
        figure=draw_panels(
            {"one machine": machine},
            Axis(x="share of jobs whose size is predicted", y="mean completion time over the best possible"),
            levels={}, name="order", label="Mean completion time by share of predicted jobs",
        ),
        table=figures(
            columns=columns, digits=3,
            rows=[
                {**r, "interval": f"{r['interval'][0]:.2f} to {r['interval'][1]:.2f}", "p99_h": r["p99_s"] / 3600}
                for r in own["cluster"]
            ],
        ),
    )  # fmt: skip
