"""The page of ``slackwater rent --html``: widths, the frontier of budget against response time, arrivals, baselines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.experiments.page import Page, Section, Table, write_page
from flows.inline_svg import house_style
from flows.rent import widths_text
from flows.rent_command import sentences, unit_words
from flows.rent_plots import draw_frontier, draw_sensitivity

MEANS = "Response time is the mean over all jobs: more of a type that is quicker than the others lowers it."


def write_rent_page(answer: Mapping[str, Any], path: Path) -> Path:
    """Write the page of an answer of ``rent``; returns ``path``."""
    market = answer["market"]
    synthetic = "; ".join(market["assumptions"]) if market else ""
    with house_style():
        page = Page(
            title=f"Renting for {answer['budget']:g} {answer['unit']}",
            about=(
                f"{len(answer['types'])} types of jobs of {answer['types_file']}, {answer['jobs_per_hour']:.3g} jobs an hour, "
                f"a load of {answer['load_gpus']:.4g} GPUs. Every job gets its GPUs at once and keeps them to its end."
            ),
            synthetic=f"Assumed, not measured: {synthetic}." if synthetic else "",
            sections=[_widths(answer), _frontier(answer), _arrivals(answer), _others(answer)],
            notes=[] if market else answer["notes"],
        )
        return write_page(page, path)


def _widths(answer: Mapping[str, Any]) -> Section:
    return Section(
        anchor="widths",
        heading="Widths",
        sentences=sentences(answer),
        table=Table(
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
    return Section(
        anchor="frontier",
        heading="Budget against response time",
        sentences=[least]
        + (["Widths minimise the cost of delay, not the mean response time of all jobs alike."] if money else []),
        drawing=drawing,
        table=Table(
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
    return Section(
        anchor="arrivals",
        heading="If more jobs come, or fewer",
        sentences=[*lines, MEANS] if lines else ["The budget is so near to the load that one percent more arrivals would not fit."],
        drawing=draw_sensitivity(answer["sensitivity"], name="sensitivity"),
        table=Table(
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
    return Section(
        anchor="others",
        heading="Beside others",
        sentences=[
            "Simulated with Poisson arrivals and exponential sizes, beside the closed form where there is one; "
            "errors are one standard error. A cluster of a fixed size is paid for whole, busy or not."
        ],
        table=Table(
            columns={
                "policy": "Policy", "response_hours": "Response, h", "simulated_response_hours": "Simulated",
                "response_error": "Error", "gpus": "GPUs", "simulated_gpus": "Simulated", "gpus_error": "Error",
                "loss_per_hour": f"Delay, {answer['loss_unit']} per hour", "note": "Note",
            },
            rows=answer["baselines"],
            digits=3,
        ),
    )  # fmt: skip
