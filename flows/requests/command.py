"""``fill``. What computes is loaded when the command is called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from flows.command import Answer, Session, option
from flows.command.progress import say
from flows.show.blocks import Block, Table


def fill(
    request: Annotated[Path, option("Request file (TOML), as in examples/requests/.", metavar="REQUEST")],
    /,
    *,
    configurations: Annotated[
        Path | None,
        option(
            "Fitted configuration knowledge (default: fitted on DIR/finetune, else configurations.zip).",
            metavar="FILE",
        ),
    ] = None,
    policy: Annotated[
        str | None, option("Policy to plan with (default: the leader of the selection).")
    ] = None,
    plans: Annotated[int, option("Configurations to plan on forecasts.", least=1, most=24)] = 6,
    run: Annotated[bool, option("Replay the chosen job to its deadline and score it; needs --at.")] = False,
    out: Annotated[Path | None, option("Where the job file goes.", metavar="JOB.toml")] = None,
    session: Session = Session(),
) -> Answer:
    """Fill a fine-tuning request: GPUs, batch and market for the least cost or time that meets its deadline.

    The job that it becomes goes into a file with --out.
    """
    from dataclasses import replace

    from flows.requests.fill import answer_of, configuration_model, write_job_file
    from flows.requests.fill import fill as fill_request
    from flows.requests.page import fill_page
    from flows.requests.score import run_filled, score_answer
    from flows.turn.context import Turn
    from flows.turn.markets import step_of
    from flows.turn.work import deciding_policy
    from optimization.policies.pool import policy_named
    from optimization.requests.request import completed, read_tuning_request
    from warehouse.errors import SettingsError

    if run and session.at is None:
        raise SettingsError(
            "--run without --at",
            expected="a time whose deadline lies inside the record",
            remedy="give --at TIME",
        )
    config = session.config
    step, asked = step_of(config), completed(read_tuning_request(request))
    model, source = configuration_model(configurations, session.data, seed=config.seed, say=say)
    with session.market_data() as store:
        at, own_end = session.moment(store)
        turn = Turn(store=store, at=at.floor(step), settings=config, run_id="fill", own_end=own_end, say=say)
        filled = fill_request(turn, asked, model, policy=policy, plans=plans)
        value = answer_of(replace(filled, source=source), step)
        if run:
            say("replay to the deadline")
            planner = policy_named(policy) if policy else deciding_policy(turn)[0]
            value["score"] = score_answer(run_filled(turn, filled, planner), filled, step)
    if out is not None:
        label = filled.winner.candidate.named
        notes = [f"Filled from {request.name}: {label}.", *(f"Assumed: {text}." for text in value["assumed"])]
        write_job_file(filled.winner.candidate.request, out, notes=notes)
        value["job_file"] = str(out)
    if session.html is not None:
        value["html"] = str(session.html)
    return Answer(
        title=f"Request {request.name}",
        value=value,
        blocks=filled_blocks(value),
        page=lambda: fill_page(value),
    )


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
