"""The drawings of a filled request: H(n) with its interval, the configurations' costs, and what was held slot by slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from flows.show.blocks import Block, Page, Section, Table, figures, study, study_page
from flows.show.drawing import PALETTE, house_style, inline_svg, new_figure
from flows.show.drawings import hour_ticks, whole_ticks

FORM_COLUMNS = {
    "form": "form", "throughput": "throughput", "cost_usd": "cost $", "cost_p10_usd": "10 %", "cost_p90_usd": "90 %",
    "finish": "finish", "late_probability": "P(late)", "instances": "instances",
}  # fmt: skip
WIDTH_COLUMNS = {
    "instances": "instances", "number_gpus": "GPUs", "tokens_per_second": "tokens/s", "low": "low", "high": "high",
    "rounds": "rounds a step", "round_samples": "samples a round",
}  # fmt: skip
LOSER_COLUMNS = {
    "label": "configuration", "market": "market", "tokens_per_second": "tokens/s", "on_demand_usd": "on-demand $",
    "expected_cost_usd": "expected $",
    "expected_finish": "finish", "late_probability_low": "P(late | low)", "why": "why it lost",
}  # fmt: skip
SCORE_COLUMNS = {
    "label": "what", "policy": "policy", "cost_usd": "cost $", "finish": "finish", "on_time": "on time",
    "spot_share": "spot share", "expected_cost_usd": "expected $",
}  # fmt: skip


def widths_told(chosen: Mapping[str, Any]) -> str:
    """How many instances may be held, in words."""
    low, high = chosen["n_min"], chosen["n_max"]
    return f"{low} to {high} instances" if low < high else f"{high} instance{'s' if high > 1 else ''}"


def form_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """On-demand alone and the current spot forecast, each end of the interval a row."""
    rows = []
    for form, name in (("on_demand", "on-demand alone"), ("spot", "spot forecast")):
        rows += [{"form": name, "throughput": end, **row} for end, row in answer[form].items()]
    return rows


def score_rows(score: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was made of the job, at both ends of its throughput too, and of the runners-up."""
    rows = [
        {"label": "as filled" if k == 0 else "baseline", **row} for k, row in enumerate(score["policies"])
    ]
    rows[0]["expected_cost_usd"] = score["expected_cost_usd"]
    rows += [
        {"label": f"throughput really at the {end} end", **score[f"at_{end}"]} for end in ("low", "high")
    ]
    return [*rows, *score["runners_up"]]


def filled_blocks(answer: Mapping[str, Any]) -> list[Block]:
    """The answer for people."""
    blocks: list[Block] = []
    chosen, speed = answer["configuration"], answer["tokens_per_second"]
    blocks.append(
        f"{chosen['number_gpus']} x {chosen['gpu_model']} ({widths_told(chosen)} of "
        f"{chosen['gpus_per_instance']}), batch {chosen['batch_size']}, {chosen['torch_dtype']} on "
        f"{chosen['market']}@{chosen['source']}"
    )
    blocks.append(
        f"{speed['median']:.0f} tokens/s at the widest, 90 % interval {speed['low']:.0f} to "
        f"{speed['high']:.0f}; deadline {answer['deadline']}"
    )
    blocks.append(f"rule: {answer['rule']}")
    for kind in ("assumed", "outside", "synthetic"):
        for text in answer[kind]:
            blocks.append(f"{kind}: {text}")
    blocks.append(Table("H(n): tokens per second that count", answer["widths"], WIDTH_COLUMNS))
    blocks.append(Table("Cost and finish", form_rows(answer), FORM_COLUMNS))
    blocks.append(Table("Runners-up", answer["runners_up"], LOSER_COLUMNS))
    for name, heading in (("rejected", "cannot run"), ("left_out", "left out")):
        for text in answer[name][:5]:
            blocks.append(f"{heading}: {text}")
        if len(answer[name]) > 5:
            blocks.append(f"{heading}: {len(answer[name]) - 5} more, see --json")
    if "score" in answer:
        score = answer["score"]
        blocks.append(
            Table(
                f"Replayed from {score['from']:%Y-%m-%d %H:%M} UTC to the deadline",
                score_rows(score),
                SCORE_COLUMNS,
            )
        )
        best = score["hindsight"]["cost_usd"]
        told = f", at best {best:.2f} USD with hindsight" if best is not None else ""
        blocks.append(
            f"on-demand only costs {score['on_demand_only_usd']:.2f} USD{told}; saved {score['saved_share']:.0%}"
        )
    for name in ("job_file", "html"):
        if name in answer:
            blocks.append(f"written: {answer[name]}")
    return blocks


WIDE = 460


def draw_widths(widths: Sequence[Mapping[str, Any]]) -> str:
    """Predicted tokens per second by number of instances: the median and the 90 % interval."""
    n = np.array([row["instances"] for row in widths])
    median, low, high = (
        np.array([row[key] for row in widths]) for key in ("tokens_per_second", "low", "high")
    )
    with house_style():
        figure = new_figure(WIDE, 225)
        axes = figure.add_axes((0.14, 0.2, 0.84, 0.7))
        axes.errorbar(
            n, median, yerr=(median - low, high - median), fmt="none", ecolor=PALETTE["band50"], elinewidth=7
        )
        axes.plot(n, median, color=PALETTE["median"], marker="o", markersize=5)
        axes.set_ylim(0, 1.08 * float(high.max()))
        axes.set_xlim(n[0] - 0.5, n[-1] + 0.5)
        axes.set_xticks(whole_ticks(int(n[0]), int(n[-1])))
        axes.set_xlabel("instances held", color=PALETTE["muted"])
        axes.text(0, 1.04, "tokens per second that count", transform=axes.transAxes, color=PALETTE["muted"])
        return inline_svg(figure, name="widths", label="Predicted tokens per second by number of instances")


def draw_costs(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a configuration: expected cost with its 10 to 90 % range, on-demand alone, and what the replay cost.

    ``rows`` have label, expected, p10, p90, on_demand and paid, all but the label USD or None.
    """
    with house_style():
        height = 80 + 44 * len(rows)
        figure = new_figure(WIDE, height)
        axes = figure.add_axes((0.03, 40 / height, 0.94, 1 - 74 / height))
        for place, row in enumerate(rows):
            y = -place
            axes.text(0, y + 0.22, row["label"], fontsize=10.5, color=PALETTE["ink"], va="bottom")
            if row["expected"] is not None:
                axes.plot([row["p10"], row["p90"]], [y, y], color=PALETTE["band50"], linewidth=7, zorder=2)
                axes.plot(row["expected"], y, marker="o", color=PALETTE["median"], zorder=3)
            axes.plot(row["on_demand"], y, marker="D", color=PALETTE["on-demand"], zorder=3)
            if row["paid"] is not None:
                axes.plot(row["paid"], y, marker="X", markersize=9, color=PALETTE["ink"], zorder=4)
        axes.set_ylim(-len(rows) + 0.5, 0.8)
        axes.set_xlim(left=0)
        axes.set_yticks([])
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("USD", color=PALETTE["muted"])
        return inline_svg(figure, name="costs", label="Cost of each configuration")


def draw_held(slots: Sequence[Mapping[str, Any]], *, step: pd.Timedelta) -> str:
    """Instances held slot by slot, spot below and on-demand above it, with what the market had."""
    start = pd.Timestamp(slots[0]["slot"])
    hours = step / pd.Timedelta(hours=1)
    edges = np.arange(len(slots) + 1) * hours
    spot, alone = (np.array([row[key] for row in slots], dtype=float) for key in ("spot", "on_demand"))
    there = np.array([np.nan if row["available"] is None else row["available"] for row in slots], dtype=float)
    with house_style():
        figure = new_figure(WIDE, 240)
        axes = figure.add_axes((0.07, 0.16, 0.91, 0.72))
        axes.stairs(spot, edges, fill=True, color=PALETTE["band50"], linewidth=0)
        axes.stairs(spot + alone, edges, baseline=spot, fill=True, color=PALETTE["on-demand"], linewidth=0)
        top = float((spot + alone).max()) * 1.3 + 1
        shown = np.minimum(np.append(there, there[-1]), top)
        axes.plot(edges, shown, drawstyle="steps-post", color=PALETTE["ink"], linewidth=1.2)
        axes.set_ylim(0, top)
        axes.set_xlim(0, edges[-1])
        axes.set_xticks(*hour_ticks(start, 0.0, float(edges[-1])))
        axes.text(0, 1.04, "instances", transform=axes.transAxes, color=PALETTE["muted"])
        return inline_svg(figure, name="held", label="Instances held in every slot")


# ---
# The page of a filled request: what was chosen and why, H(n), the costs of the others, and how it came out.


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
            study(
                anchor="refused",
                heading="What could not run or was left out",
                sentences=[f"{len(rows)} configurations and markets."],
                table=figures(columns={"what": "what, and why"}, rows=rows),
                unfold="all of them",
            )
        )
    return study_page(
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
    return study(
        anchor="chosen",
        heading="What was chosen",
        sentences=[
            f"{chosen['number_gpus']} x {chosen['gpu_model']}: {widths_told(chosen)} of "
            f"{chosen['gpus_per_instance']} on {chosen['market']}, batch {chosen['batch_size']}, {chosen['torch_dtype']}.",
            f"{speed['median']:.0f} tokens/s on all of them, 90 % interval {speed['low']:.0f} to {speed['high']:.0f}.",
            *(f"Assumed: {text}." for text in answer["assumed"]),
            *(f"Outside the measurements: {text}" for text in answer["outside"]),
        ],
        table=figures(columns=FORM_COLUMNS, rows=[_timed(row) for row in form_rows(answer)], digits=2),
    )


def _timed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _minute(value) if isinstance(value, pd.Timestamp) else value for key, value in row.items()}


def _throughput(answer: Mapping[str, Any]) -> Section:
    return study(
        anchor="throughput",
        heading="H(n): how fast it trains",
        sentences=[
            "Line: median. Bars: the 90 % interval of the prediction. The samples of a step stay the same for every n."
        ],
        figure=draw_widths(answer["widths"]),
        table=figures(columns=WIDTH_COLUMNS, rows=answer["widths"], digits=0),
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
    return study(
        anchor="costs",
        heading="The others, and why they lost",
        sentences=[
            "Dots: expected cost on the spot forecast, bars: 10 to 90 % of the sampled futures. "
            f"Diamonds: on-demand alone.{crosses}"
        ],
        figure=draw_costs([first, *others]),
        table=figures(columns=LOSER_COLUMNS, rows=[_timed(row) for row in answer["runners_up"]], digits=2),
    )


def _replayed(answer: Mapping[str, Any]) -> Section:
    score = answer["score"]
    slots = score["allocations"]
    step = pd.Timedelta(minutes=answer["decision"]["step_minutes"])
    best = score["hindsight"]["cost_usd"]
    return study(
        anchor="replay",
        heading="How it came out",
        sentences=[
            f"It cost {score['outcome']['cost_usd']:.2f} USD where {score['expected_cost_usd']:.2f} "
            "were expected; on-demand only costs "
            f"{score['on_demand_only_usd']:.2f}"
            + (f", at best {best:.2f} with hindsight." if best is not None else "."),
            "Blue: spot instances held, orange: on-demand ones, line: what the market had (cut off at the top).",
        ],
        figure=draw_held(slots, step=step) if slots else "",
        table=figures(columns=SCORE_COLUMNS, rows=[_timed(row) for row in score_rows(score)], digits=2),
    )
