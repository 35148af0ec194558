"""Sections of the answer of ``fill``: choice and reasons, throughput H(n), costs of the runners-up, and replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from slackwater.flows.command import Answer
from slackwater.flows.ledger.fields import HINDSIGHT
from slackwater.flows.show.blocks import Block, Column, Figure, Fold, Notes, Section, numbers
from slackwater.flows.show.charts import Axis, dots, lines, stacks
from slackwater.flows.show.formats import percent, plural, usd, utc, whole
from slackwater.warehouse.history import UNOBSERVED

#: Printed for a market whose availability was not observed.
NOT_OBSERVED = (
    "Availability was not observed: spot costs and the risk of missing the deadline assume that it changes as in "
    "measured markets."
)
SPEED = Column(heading="tokens/s", format=whole)
FORM_COLUMNS: dict[str, Column | str] = {
    "form": "form", "throughput": "throughput", "cost_usd": "cost $", "cost_p10_usd": "10 %", "cost_p90_usd": "90 %",
    "finish": "finish, UTC", "late_probability": "risk of missing the deadline", "instances": "instances",
}  # fmt: skip
WIDTH_COLUMNS: dict[str, Column | str] = {
    "instances": "instances", "number_gpus": "GPUs", "tokens_per_second": SPEED, "low": "low", "high": "high",
    "rounds": "rounds a step", "round_samples": "samples a round",
}  # fmt: skip
LOSER_COLUMNS: dict[str, Column | str] = {
    "label": "configuration", "market": "market", "tokens_per_second": SPEED, "on_demand_usd": "on-demand $",
    "expected_cost_usd": "expected $",
    "expected_finish": "finish, UTC", "late_probability_low": "risk at the low end", "why": "why it lost",
}  # fmt: skip
SCORE_COLUMNS: dict[str, Column | str] = {
    "label": "what", "policy": "policy", "cost_usd": "cost $", "finish": "finish, UTC", "on_time": "on time",
    "spot_share": "spot share", "expected_cost_usd": "expected $",
}  # fmt: skip


def widths_words(chosen: Mapping[str, Any]) -> str:
    """Return the allowed number of instances as text."""
    low, high = chosen["n_min"], chosen["n_max"]
    return f"{low} to {high} instances" if low < high else f"{high} instance{'s' if high > 1 else ''}"


def form_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows for on-demand only and for the spot forecast, at the median and the ends of the throughput interval."""
    rows = []
    for form, name in (("on_demand", "on-demand alone"), ("spot", "spot forecast")):
        rows += [{"form": name, "throughput": end, **row} for end, row in answer[form].items()]
    return rows


def score_rows(score: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows of the replay: the job as filled, baselines, the job at both ends of its throughput, and runners-up."""
    rows = [
        {"label": "as filled" if k == 0 else "baseline", **row} for k, row in enumerate(score["policies"])
    ]
    rows[0]["expected_cost_usd"] = score["expected_cost_usd"]
    rows += [
        {"label": f"throughput really at the {end} end", **score[f"at_{end}"]} for end in ("low", "high")
    ]
    return [*rows, *score["runners_up"]]


def fill_report(answer: Mapping[str, Any]) -> Answer:
    """Return the answer of ``fill`` with its sections; includes the replay, if there was a replay."""
    chosen = answer["configuration"]
    refused = [*answer["rejected"], *answer["left_out"]]
    written = f"The job is in {answer['job_file']}." if "job_file" in answer else ""
    return Answer(
        title=f"Filled: {answer['job']['name']}",
        about=(
            f"{chosen['model']}, {chosen['method']}, {answer['tokens']:.4g} tokens by {utc(answer['deadline'])}, "
            f"taken at {utc(answer['at'])}"
        ),
        value=answer,
        blocks=[
            _chosen_section(answer),
            _throughput(answer),
            _costs(answer),
            *([_replay_section(answer)] if "score" in answer else []),
            *([_refused_section(refused)] if refused else []),
        ],
        notes=[
            *answer["synthetic"],
            f"knowledge: {answer['knowledge']}",
            f"rule: {answer['rule']}",
            *([written] if written else []),
        ],
    )


def _refused_section(texts: Sequence[str]) -> Section:
    """Return the section on rejected configurations and markets; the first five entries are not folded."""
    blocks: list[Block] = [f"{len(texts)} configurations and markets.", Notes(texts[:5])]
    if texts[5:]:
        blocks.append(Fold(f"{len(texts) - 5} more", [Notes(texts[5:])]))
    return Section("What could not run or was left out", blocks, "refused")


def _chosen_section(answer: Mapping[str, Any]) -> Section:
    chosen, speed = answer["configuration"], answer["tokens_per_second"]
    return Section(
        "Chosen configuration",
        [
            f"{chosen['number_gpus']} x {chosen['gpu_model']}: {widths_words(chosen)} of "
            f"{plural(chosen['gpus_per_instance'], 'GPU')} on {chosen['market']}, batch {chosen['batch_size']}, "
            f"{chosen['torch_dtype']}.",
            f"{speed['median']:.0f} tokens/s on all of them, 90 % interval {speed['low']:.0f} to {speed['high']:.0f}.",
            *(f"Assumed: {text}." for text in answer["assumed"]),
            *(f"Outside the measurements: {text}" for text in answer["outside"]),
            *([NOT_OBSERVED] if any(text.startswith(UNOBSERVED) for text in answer["synthetic"]) else []),
            numbers(FORM_COLUMNS, form_rows(answer), digits=2),
        ],
        "chosen",
    )


def _throughput(answer: Mapping[str, Any]) -> Section:
    widths = answer["widths"]
    rows = [
        {
            "x": w["instances"],
            "y": w["tokens_per_second"],
            "low": w["low"],
            "high": w["high"],
            "series": "median",
        }
        for w in widths
    ]
    counts = [w["instances"] for w in widths]

    def draw() -> list[dict[str, Any]]:
        x = Axis(title="instances held", at=counts, format="d", low=counts[0] - 0.5, high=counts[-1] + 0.5)
        return [lines(rows, ["median"], spans=True, x=x, y=Axis(title="tokens per second that count", low=0))]

    return Section(
        "H(n): how fast it trains",
        [
            "The samples of a step stay the same for every n.",
            Figure(
                specs=draw,
                label="Predicted tokens per second by number of instances",
                width=560,
                captions=["Line: median. Bars: the 90 % interval of the prediction."],
            ),
            Fold("the figures", [numbers(WIDTH_COLUMNS, widths, digits=0)], printed=True),
        ],
        "throughput",
    )


def _costs(answer: Mapping[str, Any]) -> Section:
    return Section(
        "The others, and why they lost",
        [_costs_figure(answer), numbers(LOSER_COLUMNS, answer["runners_up"], digits=2)],
        "costs",
    )


def _costs_figure(answer: Mapping[str, Any]) -> Figure:
    """Plot by configuration the expected cost with its 10 to 90 % range, the cost on on-demand only, and the replayed cost."""
    score, spot, chosen = answer.get("score"), answer["spot"]["median"], answer["configuration"]
    paid = {(row["label"], row["market"]): row["cost_usd"] for row in (score["runners_up"] if score else [])}
    kinds = {"expected": "median", "on-demand alone": "on-demand"} | ({"replayed": "ink"} if score else {})
    costs = [
        (
            f"chosen: {chosen['number_gpus']} x {chosen['gpu_model']}",
            (spot["cost_usd"], spot["cost_p10_usd"], spot["cost_p90_usd"]),
            answer["on_demand"]["median"]["cost_usd"],
            score["outcome"]["cost_usd"] if score else None,
        )
    ]
    for place, row in enumerate(answer["runners_up"], start=1):
        expected = (row["expected_cost_usd"], row["expected_cost_p10_usd"], row["expected_cost_p90_usd"])
        label = f"{place}. {row['label'].partition(', batch')[0]}".replace(" (", "\n(")
        costs.append((label, expected, row["on_demand_usd"], paid.get((row["label"], row["market"]))))
    rows = []
    for label, (expected, low, high), alone, replayed in costs:
        rows.append({"label": label, "value": expected, "low": low, "high": high, "kind": "expected"})
        rows.append({"label": label, "value": alone, "kind": "on-demand alone"})
        rows.append({"label": label, "value": replayed, "kind": "replayed"})
    known = [row for row in rows if row["value"] is not None]

    labels = [cost[0] for cost in costs]
    caption = (
        "Dots: expected cost on the spot forecast, bars: 10 to 90 % of the sampled futures. Squares: on-demand alone."
        + (" Triangles: what the replay cost." if score else "")
    )
    return Figure(
        specs=lambda: [
            dots(known, labels, x=Axis(title="USD"), kinds=kinds, spans=True, height=36 * len(costs))
        ],
        label="Cost of each configuration",
        captions=[caption],
        width=720,
    )


def _replay_section(answer: Mapping[str, Any]) -> Section:
    score = answer["score"]
    figures = (
        [_held_figure(score["allocations"], answer["decision"]["step_minutes"])]
        if score["allocations"]
        else []
    )
    return Section(
        "Simulated outcome",
        [
            f"It cost {usd(score['outcome']['cost_usd'])} USD where {usd(score['expected_cost_usd'])} were expected; "
            + _compared_words(score)
            + f"the {HINDSIGHT} costs {usd(score['hindsight']['cost_usd'])}.",
            *figures,
            numbers(SCORE_COLUMNS, score_rows(score), digits=2),
        ],
        "replay",
    )


def _compared_words(score: Mapping[str, Any]) -> str:
    """Return the comparison of a replay with on-demand only; a job that was given up has no saving."""
    given_up = "the job was given up; " if score["outcome"]["finish"] is None else ""
    if score["on_demand_only_usd"] is None:
        return f"{given_up}no on-demand price is known; "
    saved = given_up or f"saved {percent(score['saved_share'])}; "
    return f"on-demand only costs {usd(score['on_demand_only_usd'])}, {saved}"


def _held_figure(slots: Sequence[Mapping[str, Any]], minutes: float) -> Figure:
    step = pd.Timedelta(minutes=minutes)
    rows = [
        {"x": slot["slot"], "x2": slot["slot"] + step, "spot": slot["spot"], "on-demand": slot["on_demand"]}
        for slot in slots
    ]
    top = 1.3 * max(slot["spot"] + slot["on_demand"] for slot in slots) + 1
    there = [
        {"x": slot["slot"], "y": None if slot["available"] is None else min(slot["available"], top)}
        for slot in slots
    ]
    there.append({"x": rows[-1]["x2"], "y": there[-1]["y"]})

    colours = {"spot": "band50", "on-demand": "on-demand"}
    y = Axis(title="instances", low=0, high=top, whole=True)
    caption = (
        "Blue: spot instances, orange: on-demand instances, line: available instances (cut off at the top)."
    )
    return Figure(
        specs=lambda: [stacks(rows, colours, over=there, x=Axis(title="UTC"), y=y)],
        label="Instances in every slot",
        captions=[caption],
        width=720,
    )
