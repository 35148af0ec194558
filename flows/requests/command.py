"""What ``fill`` does: open the warehouse, fill the request, write the job, replay it if asked, print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.command.answer import print_json, print_table, say_to_stderr
from flows.command.context import logical_time, warehouse_for
from flows.config import read_settings
from flows.requests.file import completed, read_tuning_request
from flows.requests.fill import answer_of, configuration_model, fill, write_job_file
from flows.requests.score import run_filled, score_answer
from flows.turn.context import Turn
from flows.turn.markets import step_of
from flows.turn.whole import deciding_policy
from optimization.policies.pool import policy_named
from warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class FillOptions:
    """The options of ``fill``."""

    configurations: Path | None
    data: Path | None
    db: Path
    at: str | None
    policy: str | None
    plans: int
    run: bool
    out: Path | None
    html: Path | None
    settings: Path | None


def fill_command(file: Path, options: FillOptions, *, as_json: bool) -> None:
    """``slackwater fill``: choose what a request leaves open, and with ``--run`` replay and score what was chosen."""
    answer = fill_answer(file, options)
    if options.html is not None:
        from flows.requests.page import write_fill_page

        answer["html"] = str(write_fill_page(answer, options.html))
    if as_json:
        print_json(answer)
    else:
        print_filled(answer)


def fill_answer(file: Path, options: FillOptions) -> dict[str, Any]:
    """The answer of ``fill`` as plain values; writes the job file if one is asked for."""
    if options.run and options.at is None:
        raise SettingsError(
            "--run without --at",
            expected="a time whose deadline lies inside the record",
            remedy="give --at TIME",
        )
    settings = read_settings(options.settings)
    step, asked = step_of(settings), completed(read_tuning_request(file))
    model, source = configuration_model(
        options.configurations, options.data, seed=settings.seed, say=say_to_stderr
    )
    with warehouse_for(options.db, options.data, say=say_to_stderr) as store:
        when, own_end = logical_time(store, options.at)
        turn = Turn(
            store=store,
            at=when.floor(step),
            settings=settings,
            run_id="fill",
            own_end=own_end,
            say=say_to_stderr,
        )
        filled = fill(turn, asked, model, policy=options.policy, plans=options.plans)
        answer = answer_of(replace(filled, source=source), step)
        if options.run:
            say_to_stderr("replay to the deadline")
            policy = policy_named(options.policy) if options.policy else deciding_policy(turn)[0]
            answer["score"] = score_answer(run_filled(turn, filled, policy), filled, step)
    if options.out is not None:
        label = filled.winner.candidate.named
        notes = [f"Filled from {file.name}: {label}.", *(f"Assumed: {one}." for one in answer["assumed"])]
        write_job_file(filled.winner.candidate.request, options.out, notes=notes)
        answer["job_file"] = str(options.out)
    return answer


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


def print_filled(answer: Mapping[str, Any]) -> None:
    """The answer for people."""
    chosen, speed = answer["configuration"], answer["tokens_per_second"]
    print(
        f"{chosen['number_gpus']} x {chosen['gpu_model']} ({widths_told(chosen)} of "
        f"{chosen['gpus_per_instance']}), batch {chosen['batch_size']}, {chosen['torch_dtype']} on "
        f"{chosen['market']}@{chosen['source']}"
    )
    print(
        f"{speed['median']:.0f} tokens/s at the widest, 90 % interval {speed['low']:.0f} to "
        f"{speed['high']:.0f}; deadline {answer['deadline']}"
    )
    print(f"rule: {answer['rule']}")
    for kind in ("assumed", "outside", "synthetic"):
        for text in answer[kind]:
            print(f"{kind}: {text}")
    print_table("H(n): tokens per second that count", answer["widths"], WIDTH_COLUMNS)
    print_table("Cost and finish", form_rows(answer), FORM_COLUMNS)
    print_table("Runners-up", answer["runners_up"], LOSER_COLUMNS)
    for name, heading in (("rejected", "cannot run"), ("left_out", "left out")):
        for text in answer[name][:5]:
            print(f"{heading}: {text}")
        if len(answer[name]) > 5:
            print(f"{heading}: {len(answer[name]) - 5} more, see --json")
    if "score" in answer:
        score = answer["score"]
        print_table(
            f"Replayed from {score['from']:%Y-%m-%d %H:%M} UTC to the deadline",
            score_rows(score),
            SCORE_COLUMNS,
        )
        best = score["hindsight"]["cost_usd"]
        told = f", at best {best:.2f} USD with hindsight" if best is not None else ""
        print(
            f"on-demand only costs {score['on_demand_only_usd']:.2f} USD{told}; saved {score['saved_share']:.0%}"
        )
    for name in ("job_file", "html"):
        if name in answer:
            print(f"written: {answer[name]}")
