"""The page of a filled request: what was chosen and why, H(n), the costs of the others, and how it came out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from flows.experiments.page import Page, Section, Table, write_page
from flows.fill_command import (
    FORM_COLUMNS,
    LOSER_COLUMNS,
    SCORE_COLUMNS,
    WIDTH_COLUMNS,
    form_rows,
    score_rows,
    widths_told,
)
from flows.fill_plots import draw_costs, draw_held, draw_widths


def write_fill_page(answer: Mapping[str, Any], path: Path) -> Path:
    """Write the page of an answer of ``fill``; raises `InputError` if it cannot be written."""
    return write_page(fill_page(answer), path)


def fill_page(answer: Mapping[str, Any]) -> Page:
    """The page, with what the replay made of it where there was one."""
    chosen, job = answer["configuration"], answer["job"]
    sections = [_chosen(answer), _throughput(answer), _costs(answer)]
    if "score" in answer:
        sections.append(_replayed(answer))
    refused = [*answer["rejected"], *answer["left_out"]]
    if refused:
        rows = [{"what": text} for text in refused]
        sections.append(
            Section(
                anchor="refused",
                heading="What could not run or was left out",
                sentences=[f"{len(rows)} configurations and markets."],
                table=Table(columns={"what": "what, and why"}, rows=rows),
                unfold="all of them",
            )
        )
    return Page(
        title=f"Filled: {job['name']}",
        about=f"{chosen['model']}, {chosen['method']}, {answer['tokens']:.4g} tokens by {_minute(answer['deadline'])}, "
        f"taken at {_minute(answer['at'])}",
        sections=sections,
        notes=[*answer["synthetic"], f"knowledge: {answer['knowledge']}", f"rule: {answer['rule']}"],
    )


def _minute(time: Any) -> str:
    return f"{pd.Timestamp(time):%Y-%m-%d %H:%M} UTC".replace(" ", "\N{NO-BREAK SPACE}")


def _chosen(answer: Mapping[str, Any]) -> Section:
    chosen, speed = answer["configuration"], answer["tokens_per_second"]
    return Section(
        anchor="chosen",
        heading="What was chosen",
        sentences=[
            f"{chosen['number_gpus']} x {chosen['gpu_model']}: {widths_told(chosen)} of "
            f"{chosen['gpus_per_instance']} on {chosen['market']}, batch {chosen['batch_size']}, {chosen['torch_dtype']}.",
            f"{speed['median']:.0f} tokens/s on all of them, 90 % interval {speed['low']:.0f} to {speed['high']:.0f}.",
            *(f"Assumed: {text}." for text in answer["assumed"]),
            *(f"Outside the measurements: {text}" for text in answer["outside"]),
        ],
        table=Table(columns=FORM_COLUMNS, rows=[_timed(row) for row in form_rows(answer)], digits=2),
    )


def _timed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _minute(value) if isinstance(value, pd.Timestamp) else value for key, value in row.items()}


def _throughput(answer: Mapping[str, Any]) -> Section:
    return Section(
        anchor="throughput",
        heading="H(n): how fast it trains",
        sentences=[
            "Line: median. Bars: the 90 % interval of the prediction. The samples of a step stay the same for every n."
        ],
        drawing=draw_widths(answer["widths"]),
        table=Table(columns=WIDTH_COLUMNS, rows=answer["widths"], digits=0),
        unfold="the figures",
    )


def _costs(answer: Mapping[str, Any]) -> Section:
    score = answer.get("score")
    ran = score["runners_up"] if score else []
    paid = {(row["label"], row["market"]): row["cost_usd"] for row in ran}
    spot = answer["spot"]["median"]
    chosen = answer["configuration"]
    first = {
        "label": f"chosen: {chosen['number_gpus']} x {chosen['gpu_model']}",
        "expected": spot["cost_usd"],
        "p10": spot["cost_p10_usd"],
        "p90": spot["cost_p90_usd"],
        "on_demand": answer["on_demand"]["median"]["cost_usd"],
        "paid": score["outcome"]["cost_usd"] if score else None,
    }
    others = [
        {
            "label": row["label"].partition(", batch")[0],
            "expected": row["expected_cost_usd"],
            "p10": row["expected_cost_p10_usd"],
            "p90": row["expected_cost_p90_usd"],
            "on_demand": row["on_demand_usd"],
            "paid": paid.get((row["label"], row["market"])),
        }
        for row in answer["runners_up"]
    ]
    crosses = " Crosses: what the replay cost." if score else ""
    return Section(
        anchor="costs",
        heading="The others, and why they lost",
        sentences=[
            "Dots: expected cost on the spot forecast, bars: 10 to 90 % of the sampled futures. "
            f"Diamonds: on-demand alone.{crosses}"
        ],
        drawing=draw_costs([first, *others]),
        table=Table(columns=LOSER_COLUMNS, rows=[_timed(row) for row in answer["runners_up"]], digits=2),
    )


def _replayed(answer: Mapping[str, Any]) -> Section:
    score = answer["score"]
    slots = score["allocations"]
    step = pd.Timedelta(minutes=answer["decision"]["step_minutes"])
    best = score["hindsight"]["cost_usd"]
    return Section(
        anchor="replay",
        heading="How it came out",
        sentences=[
            f"It cost {score['outcome']['cost_usd']:.2f} USD where {score['expected_cost_usd']:.2f} "
            "were expected; on-demand only costs "
            f"{score['on_demand_only_usd']:.2f}"
            + (f", at best {best:.2f} with hindsight." if best is not None else "."),
            "Blue: spot instances held, orange: on-demand ones, line: what the market had (cut off at the top).",
        ],
        drawing=draw_held(slots, step=step) if slots else "",
        table=Table(columns=SCORE_COLUMNS, rows=[_timed(row) for row in score_rows(score)], digits=2),
    )
