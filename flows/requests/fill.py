"""Fill a fine-tuning request from a warehouse: what is known of configurations, the answer, and the job file (M9).

What is known comes from a fitted file, or from the measured runs of a folder (M9.2), and from what jobs reported (M9.4).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from flows.ledger.fields import decision_row
from flows.ledger.jobs import stored_jobs
from flows.ledger.measured import MeasuredRun, measured_run, stretches
from flows.ledger.records import allocations_of, decisions_of
from flows.ledger.reports import OpenJob, reports_by_job
from flows.requests.offers import markets_now, offers_of
from flows.turn.context import Turn
from flows.turn.decide import effort_of
from flows.turn.markets import step_of
from flows.turn.work import deciding_policy
from forecasting.configurations.model import ConfigurationModel, fit_configurations, load_configurations
from forecasting.configurations.runs import runs_frame
from optimization.job.request import JobRequest
from optimization.policies.contract import Policy
from optimization.policies.pool import policy_named
from optimization.replay.decision import Expected
from optimization.requests import choice as filling
from optimization.requests.candidates import Candidate, Knowledge, OnDemand, model_name_of
from optimization.requests.choice import RULES, Loser, Planned
from optimization.requests.request import Completed
from warehouse.errors import InputError
from warehouse.store.connection import Store

if TYPE_CHECKING:
    from flows.schemas.forms import (
        Configuration,
        Expectation,
        OnDemandAlone,
        RunnerUp,
        Validity,
        Verdict,
        Width,
    )

#: Read from the working folder when it is there.
CONFIGURATIONS_FILE = "configurations.zip"
RUNS = "ft_throughput.csv"


def configuration_model(
    file: Path | None, data: Path | None, *, seed: int, say: Callable[[str], None]
) -> tuple[ConfigurationModel, str]:
    """The model and where it comes from: ``file``, else fitted on ``data``, else `CONFIGURATIONS_FILE` of the working
    folder.

    Raises `InputError` where there is none of them.
    """
    if file is not None:
        return load_configurations(file), str(file)
    for folder in (data / "finetune", data) if data is not None else ():
        if (folder / RUNS).is_file():
            say(f"fit configurations on {folder}")
            return fit_configurations(folder, seed=seed), f"fitted on {folder}"
    own = Path(CONFIGURATIONS_FILE)
    if own.is_file():
        return load_configurations(own), str(own)
    raise InputError(
        "no configuration knowledge: neither --configurations nor measured runs below --data",
        expected=f"a fitted file, a folder with {RUNS}, or {CONFIGURATIONS_FILE} in the working folder",
        remedy="`slackwater fit-configurations DATA` makes one",
    )


def measured_runs(store: Store, *, known_at: pd.Timestamp) -> list[MeasuredRun]:
    """Every run that the reports known at a time show, by job and time; reports learned later are not read (M1.2)."""
    jobs = {one.request.name: one for one in stored_jobs(store) if one.request.configuration is not None}
    if not jobs:
        return []
    found = []
    for name, reports in reports_by_job(store, list(jobs), known_at=known_at).items():
        decided = allocations_of(decisions_of(store, name) if reports else [])
        for stretch in stretches(reports):
            run = measured_run(jobs[name], decided, stretch)
            if isinstance(run, MeasuredRun):
                found.append(run)
    return found


def with_measured(model: ConfigurationModel, runs: Sequence[MeasuredRun]) -> ConfigurationModel:
    """The model with the runs of reports fed back; itself if there are none."""
    return model.with_runs(runs_frame([run.run() for run in runs])) if runs else model


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled(filling.Filled):
    """A request filled at ``at`` from a warehouse: beside it the markets left out, who decides and why, and where what is
    known of configurations comes from.
    """

    at: pd.Timestamp
    left_out: tuple[str, ...]
    policy_because: str
    measured: int
    source: str = ""


def fill(
    turn: Turn,
    asked: Completed,
    model: ConfigurationModel,
    *,
    policy: str | None = None,
    plans: int = filling.PLANS,
) -> Filled:
    """Fill a request at the turn's time from markets, forecasts and reports known then (M1.2).

    Raises `JobError` where nothing can run, nothing is in time or nothing is within the budget; `MarketError` where no
    market has a known GPU.
    """
    request = asked.request
    model_name_of(asked)  # an unknown model is told before anything is read
    left_out: list[str] = []
    offers = offers_of(turn, asked=request.markets, gpu_model=request.gpu_model, left_out=left_out)
    runs = measured_runs(turn.store, known_at=turn.at)
    by, why = _policy(turn, policy)
    filled = filling.fill_offers(
        asked,
        offers,
        Knowledge(model=with_measured(model, runs)),
        by,
        step=step_of(turn.settings),
        markets=lambda finalists: markets_now(turn, finalists),
        effort=effort_of(turn.settings),
        plans=plans,
    )
    return Filled(
        **{name: getattr(filled, name) for name in filling.Filled.__slots__},
        at=turn.at,
        left_out=tuple(left_out),
        policy_because=why,
        measured=len(runs),
    )


def _policy(turn: Turn, name: str | None) -> tuple[Policy[Any], str]:
    return (policy_named(name), "asked for") if name else deciding_policy(turn)


def answer_of(filled: Filled, step: pd.Timedelta) -> dict[str, Any]:
    """The filled request as plain values."""
    winner, asked = filled.winner, filled.asked
    candidate = winner.candidate
    widest = candidate.widths[-1]
    request = candidate.request
    return {
        "request": asked.request.model_dump(mode="json", exclude_none=True),
        "at": candidate.offer.at,
        "deadline": request.ends,
        "rule": RULES[asked.request.objective],
        "assumed": list(filled.assumed),
        "outside": list(dict.fromkeys(text for width in candidate.widths for text in width.outside)),
        "knowledge": filled.source,
        "measured_runs": filled.measured,
        "configuration": _configuration(candidate),
        "tokens": asked.tokens,
        "tokens_per_second": {
            "median": widest.tokens_per_second,
            "low": widest.low,
            "high": widest.high,
        },
        "validity": _validity(filled.knowledge, candidate),
        "widths": [_width_row(candidate, n) for n in range(len(candidate.widths))],
        **forms(winner, step),
        "policy": winner.decision.policy,
        "policy_because": filled.policy_because,
        "decision": decision_row(
            OpenJob(request=request, history=winner.history, live=winner.live), winner.decision
        ),
        "runners_up": [loser_row(one, step) for one in filled.losers],
        "rejected": list(filled.rejected),
        "left_out": list(filled.left_out),
        "synthetic": _synthetic(winner),
        "job": request.model_dump(mode="json", exclude_none=True),
    }


def _synthetic(winner: Planned) -> list[str]:
    """What of the market was assumed or made up."""
    simulated = winner.history.market.provider == "simulated"
    return [*(["the market is SIMULATED"] if simulated else []), *winner.history.assumptions]


def _configuration(candidate: Candidate) -> Configuration:
    terms, offer = candidate.terms, candidate.offer
    return {
        "model": terms.model_name,
        "method": terms.method,
        "tokens_per_sample": terms.tokens_per_sample,
        "gpu_model": terms.gpu_model,
        "number_gpus": candidate.gpus,
        "gpus_per_instance": terms.gpus,
        "n_min": candidate.widths[0].instances,
        "n_max": candidate.widths[-1].instances,
        "batch_size": terms.batch_size,
        "torch_dtype": terms.torch_dtype,
        "market": offer.market.key,
        "source": offer.source,
        "on_demand_usd_per_hour": candidate.offer.on_demand_usd,
        "spot_usd_per_hour": candidate.offer.spot_usd,
    }


def _validity(knowledge: Knowledge, candidate: Candidate) -> Validity:
    """The verdict on the narrowest width, where memory is scarcest, and on the widest."""
    rows: dict[str, Verdict] = {}
    for name, width in (("narrowest", candidate.widths[0]), ("widest", candidate.widths[-1])):
        if width.configuration is not None:
            verdict = knowledge.validity(width.configuration)
            rows[name] = {
                "instances": width.instances,
                "p_valid": verdict.p_valid,
                "decided_by": verdict.decided_by,
                "memory_gb": verdict.memory_gb,
                "limit_gb": verdict.limit_gb,
                "reason": verdict.reason,
            }
    return cast("Validity", rows)


def _width_row(candidate: Candidate, place: int) -> Width:
    width = candidate.widths[place]
    return {
        "instances": width.instances,
        "number_gpus": width.instances * candidate.terms.gpus,
        "tokens_per_second": width.tokens_per_second,
        "low": width.low,
        "high": width.high,
        "low_share": width.low / width.tokens_per_second,
        "high_share": width.high / width.tokens_per_second,
        "p_valid": width.p_valid,
        "rounds": width.rounds,
        "round_samples": width.configuration.batch_size if width.configuration else 0,
    }


def forms(planned: Planned, step: pd.Timedelta) -> dict[str, Any]:
    """Cost and finish on on-demand alone and on the current spot forecast, at the median and at both ends."""
    start, screened = planned.live.start, planned.screened
    return {
        "on_demand": {
            "median": _alone_row(screened.alone, start, step),
            "low": _alone_row(screened.alone_low, start, step),
        },
        "spot": {
            "median": _expected_row(planned.expected, start, step),
            "low": _expected_row(planned.low, start, step),
            "high": _expected_row(planned.high, start, step),
        },
    }


def _alone_row(alone: OnDemand, start: pd.Timestamp, step: pd.Timedelta) -> OnDemandAlone:
    return {
        "instances": alone.instances,
        "cost_usd": alone.cost_usd,
        "finish": start + alone.slots * step,
        "late_slots": alone.late_by,
    }


def _expected_row(expected: Expected, start: pd.Timestamp, step: pd.Timedelta) -> Expectation:
    return {
        "cost_usd": expected.cost_usd,
        "cost_p10_usd": expected.cost_p10_usd,
        "cost_p90_usd": expected.cost_p90_usd,
        "finish": (start + expected.finish_slots * step).floor("s"),
        "late_probability": expected.late_probability,
    }


def loser_row(loser: Loser, step: pd.Timedelta) -> RunnerUp:
    """A runner-up as plain values."""
    candidate = loser.screened.candidate
    widest, planned = candidate.widths[-1], loser.planned
    return {
        "configuration": _configuration(candidate),
        "label": candidate.label,
        "market": candidate.offer.key,
        "tokens_per_second": widest.tokens_per_second,
        "low": widest.low,
        "high": widest.high,
        "planned": planned is not None,
        "on_demand_usd": loser.screened.alone.cost_usd,
        "expected_cost_usd": planned.expected.cost_usd if planned else None,
        "expected_cost_p10_usd": planned.expected.cost_p10_usd if planned else None,
        "expected_cost_p90_usd": planned.expected.cost_p90_usd if planned else None,
        "expected_finish": (planned.live.start + planned.expected.finish_slots * step).floor("s")
        if planned
        else None,
        "late_probability_low": planned.low.late_probability if planned else None,
        "why": loser.why,
    }


def write_job_file(request: JobRequest, path: Path, *, notes: Sequence[str]) -> None:
    """Write a placed request as the TOML file that ``job add`` takes (M9.4); ``notes`` become comments at its head.

    Raises `InputError` if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(job_text(request, notes=notes), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"job file {path}: {error.strerror}",
            expected="a writable file",
            remedy="choose another with --out",
        ) from error


def job_text(request: JobRequest, *, notes: Sequence[str] = ()) -> str:
    """A request as TOML; `optimization.job.request.read_request` reads the same request back."""
    values = request.model_dump(mode="json", exclude_none=True)
    for name, moment in (("start", request.start), ("deadline", request.deadline)):
        if moment is not None:
            values[name] = moment
    lines = [f"# {' '.join(note.split())}" for note in notes]
    lines += _pairs({key: value for key, value in values.items() if not isinstance(value, Mapping)})
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{key}]", *_pairs(value)]
    return "\n".join(lines) + "\n"


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_literal(value)}" for key, value in values.items()]


def _literal(value: Any) -> str:
    """A TOML literal; texts are JSON's, whose escapes TOML shares, but for the delete sign."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(one) for one in value)}]"
    return str(value.isoformat())
