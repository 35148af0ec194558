"""The drawings of the renting page: each function takes plain values and gives one inline ``<svg>``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure
from flows.show.drawings import LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


from flows.renting.rent import widths_text
from flows.show.blocks import Block, Notes, Page, Section, Table, figures, study, study_page


def rent_blocks(answer: Mapping[str, Any]) -> list[Block]:
    """The answer as tables and sentences."""
    blocks: list[Block] = []
    from flows.renting.rent import widths_text

    loss = f"delay, {answer['loss_unit']} per hour"
    blocks.append(Table(
        f"Widths for {answer['budget']:g} {answer['unit']}",
        [{**row, "width": widths_text(row)} for row in answer["types"]],
        {
            "type": "type", "rate_per_hour": "jobs per hour", "load_gpus": "load, GPUs", "width": "GPUs a job",
            "response_hours": "response, h", "gpus": "GPUs held", "spend": answer["unit"], "loss_per_hour": loss,
        },
    ))  # fmt: skip
    blocks.append(Notes(sentences(answer)))
    blocks.append(Table(
        "Beside others (simulated: Poisson arrivals, exponential sizes)",
        answer["baselines"],
        {
            "policy": "policy", "response_hours": "response, h", "simulated_response_hours": "simulated",
            "response_error": "+-", "gpus": "GPUs", "simulated_gpus": "simulated", "loss_per_hour": loss, "note": "note",
        },
    ))  # fmt: skip
    blocks.append(
        Table(
            "At other arrival rates",
            [row for row in answer["sensitivity"] if row["arrivals_of"] == "all types"],
            {"factor": "arrivals, times", "response_hours": "response, h", "loss_per_hour": loss},
        )
    )
    blocks.append(
        Table(
            "Percent more for one percent more arrivals",
            answer["elasticity"],
            {"arrivals_of": "arrivals of", "response": "response", "loss": "delay"},
        )
    )
    if "html" in answer:
        blocks.append(f"Page: {answer['html']}")
    return blocks


def sentences(answer: Mapping[str, Any]) -> list[str]:
    """What the figures mean, in words."""
    unit, market = answer["unit"], answer["market"]
    lines = [
        f"A job takes {answer['response_hours']:.3g} h on the mean, and {answer['gpus']:.4g} GPUs are held; "
        f"{answer['spend']:.4g} of {answer['budget']:g} {unit} is spent."
        + ("" if answer["multiplier"] > 0 else " More budget would be of no use.")
    ]
    if answer["mixed"]:
        lines.append(
            f"{answer['mixed']} mixes two widths: a job that arrives gets either by chance, as the table says."
        )
    saved = answer["hours_saved_by_one_more_gpu"]
    what = (
        f"and {answer['loss_saved_by_one_more_gpu']:.3g} USD per hour of delay"
        if answer["loss_unit"] == "USD"
        else ""
    )
    lines.append(
        f"One more GPU would save {saved:.3g} h a job {what}".rstrip()
        + f"; the multiplier is {answer['multiplier']:.4g}: what the last {unit_words(unit)} of budget saves per hour, "
        f"in {answer['loss_unit']}."
    )
    if market:
        lines += _market_sentences(answer, market)
    return lines + list(answer["notes"])


def _market_sentences(answer: Mapping[str, Any], market: Mapping[str, Any]) -> list[str]:
    lines = [
        f"In {market['market']} at {market['at']} a GPU-hour of work is forecast to cost {market['usd_per_gpu_hour']:.3g} USD "
        f"({market['list_usd_per_gpu_hour']:.3g} on demand): {market['spot_share']:.0%} of {market['fleet_gpus']:.3g} GPUs on spot "
        f"over {market['horizon_hours']:g} h, {market['lost_to_restarts']:.1%} more time for restarts."
    ]
    listed = market["at_list_price"]
    lines.append(
        f"At list price the same budget gives {listed['response_hours']:.3g} h a job on {listed['gpus']:.3g} GPUs."
        if listed["response_hours"] is not None
        else f"At list price: {listed['note']}."
    )
    if market["assumptions"]:
        lines.append("Synthetic, because assumed: " + "; ".join(market["assumptions"]) + ".")
    return lines


def unit_words(unit: str) -> str:
    """One unit of a budget.

    >>> unit_words("GPUs"), unit_words("USD per hour")
    ('GPU', 'USD per hour')
    """
    return "GPU" if unit == "GPUs" else unit


def draw_frontier(answer: Mapping[str, Any], key: str, *, name: str, label: str) -> str:
    """Budget against ``key`` (response_hours or loss_per_hour) of the optimum and of equal widths; baselines are marks."""
    rows = answer["frontier"]
    budget = np.array([row["budget"] for row in rows])
    with house_style():
        figure = new_figure(640, 300)
        axes = figure.add_axes((0.1, 0.17, 0.88, 0.72))
        for k, (what, column) in enumerate(
            (("fixed widths, optimal", key), ("equal widths", f"equal_widths_{key}"))
        ):
            values = np.array([row.get(column, np.nan) for row in rows], dtype=float)
            colour, dash, _ = LINES[k]
            axes.plot(budget, values, color=PALETTE[colour], linestyle=dash, linewidth=2, label=what)
        axes.axvline(answer["least_budget"], color=PALETTE["muted"], linewidth=1, linestyle=(0, (1, 2)))
        axes.annotate(
            " load", (answer["least_budget"], 0.99), xycoords=("data", "axes fraction"), va="top",
            color=PALETTE["muted"],
        )  # fmt: skip
        axes.plot(
            [answer["budget"]],
            [answer[key]],
            "o",
            color=PALETTE["series1"],
            markersize=8,
            label="this budget",
        )
        if key == "response_hours":
            _draw_clusters(axes, answer)
        axes.set_yscale("log")
        _plain_log(axes)
        axes.set_xlim(min(float(budget.min()), answer["least_budget"]) * 0.97, float(budget.max()) * 1.02)
        axes.set_xlabel(f"budget, {answer['unit']}", color=PALETTE["muted"])
        axes.text(0, 1.04, f"{label} (logarithmic)", transform=axes.transAxes, color=PALETTE["muted"])
        axes.legend(loc="upper right", frameon=False, fontsize=10)
        return inline_svg(figure, name=name, label=f"Budget against {label}")


def _draw_clusters(axes: Axes, answer: Mapping[str, Any]) -> None:
    """The simulated clusters of a fixed size, at the budget they are paid from."""
    marks = (("FIFO", "s", "series4"), ("equal sharing", "D", "series3"))
    for row in answer["baselines"]:
        for what, marker, colour in marks:
            if row["policy"].endswith(what) and row.get("simulated_response_hours") is not None:
                axes.plot(
                    [answer["budget"]], [row["simulated_response_hours"]], marker, color=PALETTE[colour],
                    markersize=7, linestyle="", label=row["policy"],
                )  # fmt: skip


def _plain_log(axes: Axes) -> None:
    """Plain numbers at round values of a logarithmic axis, however little of a decade it shows."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    wide = high / low > 30
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if wide else (1.0, 2.0, 3.0, 5.0, 7.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, axis="y", which="major")


def draw_sensitivity(rows: Sequence[Mapping[str, Any]], *, name: str) -> str:
    """Response time in units of that at the rates given, by arrival rate, one line a type and one for all."""
    scopes = list(dict.fromkeys(row["arrivals_of"] for row in rows))
    with house_style():
        figure = new_figure(640, 280)
        axes = figure.add_axes((0.1, 0.18, 0.6, 0.7))
        for k, scope in enumerate(scopes):
            own = [row for row in rows if row["arrivals_of"] == scope and row["response_hours"] is not None]
            here = next((row["response_hours"] for row in own if row["factor"] == 1.0), None)
            if here is None:
                continue
            colour, dash, marker = LINES[k % len(LINES)]
            axes.plot(
                [row["factor"] for row in own], [row["response_hours"] / here for row in own], color=PALETTE[colour],
                linestyle=dash, marker=marker, markersize=5, label=scope if len(scope) <= 24 else scope[:23] + "…",
            )  # fmt: skip
        axes.set_yscale("log")
        _plain_log(axes)
        axes.set_xticks(sorted({row["factor"] for row in rows}))
        axes.set_xlabel("arrivals, times those given", color=PALETTE["muted"])
        axes.text(
            0, 1.04, "response time, times that of today (logarithmic)", transform=axes.transAxes,
            color=PALETTE["muted"],
        )  # fmt: skip
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.02), frameon=False, fontsize=10)
        return inline_svg(figure, name=name, label="Response time by arrival rate")


# ---
# The page of ``slackwater rent --html``: widths, the frontier of budget against response time, arrivals, baselines.

MEANS = "Response time is the mean over all jobs: more of a type that is quicker than the others lowers it."


def rent_page(answer: Mapping[str, Any]) -> Page:
    """The page of an answer of ``rent``."""
    market = answer["market"]
    synthetic = "; ".join(market["assumptions"]) if market else ""
    with house_style():
        return study_page(
            title=f"Renting for {answer['budget']:g} {answer['unit']}",
            about=(
                f"{len(answer['types'])} types of jobs of {answer['types_file']}, {answer['jobs_per_hour']:.3g} jobs an hour, "
                f"a load of {answer['load_gpus']:.4g} GPUs. Every job gets its GPUs at once and keeps them to its end."
            ),
            synthetic=f"Assumed, not measured: {synthetic}." if synthetic else "",
            sections=[_widths(answer), _frontier(answer), _arrivals(answer), _others(answer)],
            notes=[] if market else answer["notes"],
        )


def _widths(answer: Mapping[str, Any]) -> Section:
    return study(
        anchor="widths",
        heading="Widths",
        sentences=sentences(answer),
        table=figures(
            columns={
                "type": "Type", "rate_per_hour": "Jobs per hour", "load_gpus": "Load, GPUs", "width": "GPUs a job",
                "response_hours": "Response, h", "gpus": "GPUs held", "spend": f"Spend, {answer['unit']}",
                "loss_per_hour": f"Delay, {answer['loss_unit']} per hour",
            },
            rows=[{**row, "width": widths_text(row)} for row in answer["types"]],
            digits=3,
        ),
    )  # fmt: skip


def _frontier(answer: Mapping[str, Any]) -> Section:
    drawing = draw_frontier(answer, "response_hours", name="frontier", label="mean response time, hours")
    money = answer["loss_unit"] == "USD"
    if money:
        drawing += draw_frontier(answer, "loss_per_hour", name="loss", label="cost of delay, USD per hour")
    least = (
        f"Below {answer['least_budget']:.4g} {answer['unit']} the load is not covered, however narrow the widths. "
        f"The curve is convex where delay is minimised: each further {unit_words(answer['unit'])} saves less than the one before."
    )
    return study(
        anchor="frontier",
        heading="Budget against response time",
        sentences=[least]
        + (["Widths minimise the cost of delay, not the mean response time of all jobs alike."] if money else []),
        figure=drawing,
        table=figures(
            columns={
                "budget": f"Budget, {answer['unit']}", "response_hours": "Response, h",
                "equal_widths_response_hours": "At equal widths", "loss_per_hour": f"Delay, {answer['loss_unit']} per hour",
                "equal_widths_loss_per_hour": "At equal widths",
            },
            rows=answer["frontier"],
            digits=3,
        ),
        unfold="All budgets",
    )  # fmt: skip


def _arrivals(answer: Mapping[str, Any]) -> Section:
    lines = [
        f"One percent more arrivals of {row['arrivals_of']}: {row['response']:+.2f} % response time, {row['loss']:+.2f} % delay."
        for row in answer["elasticity"]
        if row["response"] == row["response"]
    ]
    return study(
        anchor="arrivals",
        heading="If more jobs come, or fewer",
        sentences=[*lines, MEANS] if lines else ["The budget is so near to the load that one percent more arrivals would not fit."],
        figure=draw_sensitivity(answer["sensitivity"], name="sensitivity"),
        table=figures(
            columns={
                "arrivals_of": "Arrivals of", "factor": "Times", "response_hours": "Response, h",
                "loss_per_hour": f"Delay, {answer['loss_unit']} per hour",
            },
            rows=answer["sensitivity"],
            digits=3,
        ),
        unfold="All rates (a dash: the budget does not cover the load)",
    )  # fmt: skip


def _others(answer: Mapping[str, Any]) -> Section:
    return study(
        anchor="others",
        heading="Beside others",
        sentences=[
            "Simulated with Poisson arrivals and exponential sizes, beside the closed form where there is one; "
            "errors are one standard error. A cluster of a fixed size is paid for whole, busy or not."
        ],
        table=figures(
            columns={
                "policy": "Policy", "response_hours": "Response, h", "simulated_response_hours": "Simulated",
                "response_error": "Error", "gpus": "GPUs", "simulated_gpus": "Simulated", "gpus_error": "Error",
                "loss_per_hour": f"Delay, {answer['loss_unit']} per hour", "note": "Note",
            },
            rows=answer["baselines"],
            digits=3,
        ),
    )  # fmt: skip
