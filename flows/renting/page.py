"""Sections of the answer of ``rent``: widths, budget against response time, baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from slackwater.flows.command import Answer
from slackwater.flows.renting.rent import widths_text
from slackwater.flows.show.blocks import Banner, Column, Figure, Fold, Notes, Section, numbers
from slackwater.flows.show.charts import Axis, lines
from slackwater.flows.show.formats import decimals, join_words, percent, plural, price, usd, utc
from slackwater.warehouse.history import UNOBSERVED


def rent_report(answer: Mapping[str, Any]) -> Answer:
    """Return the answer of ``rent`` with its sections."""
    market = answer["market"]
    synthetic = "; ".join(market["assumptions"]) if market else ""
    return Answer(
        title=f"Renting for {answer['budget']:g} {answer['unit']}",
        about=(
            f"{_headline(answer)} {plural(len(answer['types']), 'type')} of jobs in {answer['types_file']} arrive at "
            f"{answer['jobs_per_hour']:.3g} jobs an hour, a mean load of {answer['load_gpus']:.4g} GPUs. Every job gets its GPUs "
            "at once and keeps them until it ends."
        ),
        value=answer,
        banner=Banner("Synthetic.", f"Assumed, not measured: {synthetic}.") if synthetic else None,
        blocks=[_widths(answer), _frontier(answer), _others(answer)],
    )


MOST_NAMED = 5  # Types named in the first sentence; the table has all


def _headline(answer: Mapping[str, Any]) -> str:
    """Return how many GPUs to rent for a job of each type, and the result."""
    types, unit = answer["types"], answer["unit"]
    named = [f"{widths_text(row)} for each {row['type']}" for row in types[:MOST_NAMED]]
    if more := len(types) - MOST_NAMED if len(types) > MOST_NAMED else 0:
        named.append(f"those in the table for {plural(more, 'other type')}")
    used = "in use on average" if unit == "GPUs" else f"spent, on {answer['gpus']:.4g} GPUs on average"
    return (
        f"Rent these GPUs: {join_words(named)}. A job then takes {answer['response_hours']:.3g} h on average; "
        f"{answer['spend']:.4g} of {answer['budget']:g} {unit} are {used}."
        + ("" if answer["multiplier"] > 0 else " A larger budget would not help.")
    )


def _delay(answer: Mapping[str, Any]) -> Column:
    """Return the column for the cost of delay per hour, in USD or in hours of response time."""
    unit = answer["loss_unit"]
    return Column(heading="Delay", unit=f"{unit} per hour", format=usd if unit == "USD" else decimals(3))


def _widths(answer: Mapping[str, Any]) -> Section:
    table = numbers(
        {
            "type": "Type", "rate_per_hour": "Jobs per hour", "load_gpus": "Load, GPUs", "width": "GPUs a job",
            "response_hours": "Response, h", "gpus": "GPUs held", "spend": f"Spend, {answer['unit']}",
            "loss_per_hour": _delay(answer),
        },
        [{**row, "width": widths_text(row)} for row in answer["types"]],
        digits=3,
    )  # fmt: skip
    return Section("GPUs of a job", [table, Notes(sentences(answer))], "widths")


def sentences(answer: Mapping[str, Any]) -> list[str]:
    """Return sentences that explain the figures."""
    unit, market = answer["unit"], answer["market"]
    lines: list[str] = []
    if answer["mixed"]:
        lines.append(
            f"{answer['mixed']} mixes two widths: each job gets one of them at random, with the probabilities in the table."
        )
    saved = answer["hours_saved_by_one_more_gpu"]
    what = (
        f"and {usd(answer['loss_saved_by_one_more_gpu'])} USD per hour of delay"
        if answer["loss_unit"] == "USD"
        else ""
    )
    lines.append(
        f"One more GPU would save {saved:.3g} h a job {what}".rstrip()
        + f"; the multiplier is {answer['multiplier']:.4g}: what the last {unit_words(unit)} of budget saves per hour, "
        f"in {answer['loss_unit']}."
    )
    if market:
        lines += _market_sentences(market)
    return lines + list(answer["notes"])


def _market_sentences(market: Mapping[str, Any]) -> list[str]:
    cost = price(market["usd_per_gpu_hour"])
    is_assumed = any(UNOBSERVED in text for text in market["assumptions"])
    lines = [
        f"In {market['market']} at {utc(market['at'])} a GPU-hour of work is forecast to cost {cost} USD "
        f"({price(market['list_usd_per_gpu_hour'])} on demand; {plural(market['gpus_per_instance'], 'GPU')} an instance): "
        f"{percent(market['spot_share'])} of "
        f"{market['fleet_gpus']:.3g} GPUs on spot "
        f"over {market['horizon_hours']:g} h, {percent(market['lost_to_restarts'])} more time for restarts"
        f"{'; availability assumed' if is_assumed else ''}."
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
    """Return the unit of a budget in the singular.

    >>> unit_words("GPUs"), unit_words("USD per hour")
    ('GPU', 'USD per hour')
    """
    return "GPU" if unit == "GPUs" else unit


def _frontier(answer: Mapping[str, Any]) -> Section:
    money = answer["loss_unit"] == "USD"
    drawn = [("response_hours", "mean response time, hours")]
    if money:
        drawn.append(("loss_per_hour", "cost of delay, USD per hour"))
    table = numbers(
        {
            "budget": f"Budget, {answer['unit']}", "response_hours": "Response, h",
            "equal_widths_response_hours": "At equal widths, h", "loss_per_hour": _delay(answer),
            "equal_widths_loss_per_hour": replace(_delay(answer), heading="At equal widths"),
        },
        answer["frontier"],
        digits=3,
    )  # fmt: skip
    return Section(
        "Budget against response time",
        [
            f"Below {answer['least_budget']:.4g} {answer['unit']} the load is not covered, however few GPUs a job gets. The curve "
            f"is convex where delay is minimised: each further {unit_words(answer['unit'])} saves less than the one before.",
            *(
                [
                    "The GPUs of a job minimise the cost of delay, not the mean response time of all jobs alike."
                ]
                if money
                else []
            ),
            *(
                Figure(
                    specs=partial(_frontier_specs, answer, key, label),
                    label=f"Budget against {label}",
                    width=720,
                )
                for key, label in drawn
            ),
            Fold("All budgets", [table]),
        ],
        "frontier",
    )


def _frontier_specs(answer: Mapping[str, Any], key: str, label: str) -> list[Mapping[str, Any]]:
    """Plot ``key`` by budget for the optimum and for equal widths, with marks for this budget and simulated fixed clusters."""
    budgets = [row["budget"] for row in answer["frontier"]]
    rows: list[dict[str, Any]] = [
        {"x": row["budget"], "y": row.get(column), "series": name, "point": False}
        for name, column in (("fixed widths, optimal", key), ("equal widths", f"equal_widths_{key}"))
        for row in answer["frontier"]
    ]
    rows.append({"x": answer["budget"], "y": answer[key], "series": "this budget"})
    if key == "response_hours":
        rows += [
            {"x": answer["budget"], "y": row["simulated_response_hours"], "series": row["policy"]}
            for row in answer["baselines"]
            if row["policy"].endswith(("FIFO", "equal sharing"))
            and row.get("simulated_response_hours") is not None
        ]
    margin = 0.02 * (max(budgets) - min(budgets))
    x = Axis(
        title=f"budget, {answer['unit']}",
        low=min(*budgets, answer["least_budget"]) - margin,
        high=max(budgets) + margin,
    )
    y = _log_axis(f"{label} (logarithmic)", [row["y"] for row in rows])
    load = [{"x": answer["least_budget"], "text": "load"}]
    return [lines(rows, list(dict.fromkeys(row["series"] for row in rows)), x=x, y=y, marks=load, height=260)]


def _log_axis(title: str, values: Sequence[float | None]) -> Axis:
    known = [value for value in values if value is not None and value == value]
    return Axis(title=title, low=0.9 * min(known), high=1.1 * max(known), log=True, format="~g")


def _others(answer: Mapping[str, Any]) -> Section:
    table = numbers(
        {
            "policy": "Policy", "response_hours": "Response, h", "simulated_response_hours": "Simulated, h",
            "response_error": "Error, h", "gpus": "GPUs", "simulated_gpus": "Simulated, GPUs", "gpus_error": "Error, GPUs",
            "loss_per_hour": _delay(answer), "note": "Note",
        },
        answer["baselines"],
        digits=3,
    )  # fmt: skip
    return Section(
        "Compared with other allocations",
        [
            "Simulated with Poisson arrivals and exponential sizes, next to the closed form where there is one; "
            "errors are one standard error. A cluster of a fixed size is paid for at all times, busy or not.",
            table,
        ],
        "others",
    )
