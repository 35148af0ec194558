"""Fill a fine-tuning request from a warehouse: markets, knowledge, the answer and job file, the replay."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from slackwater.flows.following import (
    FollowedMarket,
    counted_or_priced,
    followed_row,
    is_counted_lately,
    step_of,
    taken_at,
    why_unusable,
)
from slackwater.flows.histories import read_all
from slackwater.flows.ledger.decisions import allocations_of, decisions_of
from slackwater.flows.ledger.fields import BASELINES, decision_row, saving, slots_after
from slackwater.flows.ledger.jobs import stored_jobs
from slackwater.flows.ledger.open_job import OpenJob
from slackwater.flows.ledger.reports import reports_by_job
from slackwater.flows.ledger.rounds import outcome_values
from slackwater.flows.ledger.throughput import MeasuredRun, measured_run, stretches
from slackwater.flows.places import market_of
from slackwater.flows.plans.answers import held_in
from slackwater.flows.show.formats import utc
from slackwater.flows.turn.context import Turn, peers_of
from slackwater.flows.turn.decide import effort_of
from slackwater.flows.turn.forecast import forecasts_of, ready
from slackwater.flows.turn.opening import read_records
from slackwater.flows.turn.pool import deciding_policy
from slackwater.forecasting.configurations.model import (
    ConfigurationModel,
    fit_configurations,
    load_configurations,
)
from slackwater.forecasting.configurations.runs import runs_frame
from slackwater.optimization.job.request import JobRequest, first_slot
from slackwater.optimization.job.units import GpuType
from slackwater.optimization.market.recent import RECENT_PERIOD
from slackwater.optimization.policies.baselines import OnDemandOnly
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.ahead import ExpectedOutcome
from slackwater.optimization.replay.decision import record_start
from slackwater.optimization.replay.score import EndedJob, ScoredJob, replay_ended, score_job
from slackwater.optimization.requests import choice as filling
from slackwater.optimization.requests.candidates import (
    NO_GPU,
    Candidate,
    Knowledge,
    Offer,
    OnDemand,
    cheapest_offers,
    filled_of,
    model_name_of,
    moving_terms,
    offer_of,
    rated_gpu,
    with_rates,
)
from slackwater.optimization.requests.choice import (
    RULES,
    MarketNow,
    MisjudgingPolicy,
    PlannedCandidate,
    RunnerUp,
)
from slackwater.optimization.requests.request import CompletedRequest
from slackwater.optimization.window.plan import Outcome
from slackwater.warehouse.errors import InputError, MarketError
from slackwater.warehouse.history import Market
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.store.connection import Store


def followed_of(offer: Offer) -> FollowedMarket:
    """Return the market of an offer as turns follow it."""
    return FollowedMarket(market=offer.market, source=offer.source, at=offer.at)


def offers_of(turn: Turn, *, named: Sequence[str], gpu_model: str | None, left_out: list[str]) -> list[Offer]:
    """Return the offers at the turn's time: the markets ``named``, else all markets with known GPUs.

    Reasons for leaving out markets are appended to ``left_out``. Without ``named`` only the `EACH_KIND` cheapest recent offers
    of every kind (GPU model and GPUs per instance) are returned. Raises `MarketError` if none is left.
    """
    found = _complete_request(turn, named, left_out) if named else _usable_markets(turn, left_out)
    if gpu_model is not None:
        others = sorted({gpu.gpu_model for gpu in found.values() if gpu.gpu_model != gpu_model})
        found = {name: gpu for name, gpu in found.items() if gpu.gpu_model == gpu_model}
        if not found:
            raise MarketError(
                f"no market with {gpu_model} is observed at {utc(turn.at)}",
                expected=f"one of {', '.join(others)}" if others else "a market with a known GPU",
                remedy="leave gpu_model out, or name markets; `slackwater markets` lists them",
            )
    offers = _offers(turn, found, left_out)
    kept = offers if named else cheapest_offers(offers, left_out)
    if not kept:
        reasons = f": {'; '.join(left_out[:3])}" if left_out else ""
        raise MarketError(
            f"no market with a known GPU has a record at {utc(turn.at)}{reasons}",
            expected="a market of an instance type whose GPU is known",
            remedy="ingest one, or choose another --at; `slackwater catalogue` lists the instance types",
        )
    return kept


def _complete_request(turn: Turn, named: Sequence[str], left_out: list[str]) -> dict[FollowedMarket, GpuType]:
    found = {}
    for text in named:
        followed = market_of(turn, text)
        gpu = rated_gpu(followed.market)
        if gpu is None:
            left_out.append(f"{followed.key}: {NO_GPU}")
        else:
            found[followed] = gpu
    return found


def _usable_markets(turn: Turn, left_out: list[str]) -> dict[FollowedMarket, GpuType]:
    """Return the markets with a known GPU and a long and recent record; without new counts, those with prices (M11.1)."""
    found, step = {}, step_of(turn.settings)
    rated = [
        (row, market, gpu)
        for row in turn.market_rows()
        for market in (Market.parse(str(row["market"])),)
        for gpu in (rated_gpu(market),)
        if gpu is not None
    ]
    if not any(is_counted_lately(row, step, taken_at(row, turn)) for row, _, _ in rated):
        usable = counted_or_priced([row for row, _, _ in rated], turn, step, turn.at)
        priced = {(row["market"], row["source"]) for row in usable}
        return {
            FollowedMarket(market=market, source=str(row["source"]), at=turn.at): gpu
            for row, market, gpu in rated
            if (row["market"], row["source"]) in priced
        }
    for row, market, gpu in rated:
        if not row["has_counts"]:
            left_out.append(f"{market.key}@{row['source']}: prices only, and other markets have counts")
            continue
        if why := why_unusable(row, turn, step):
            left_out.append(f"{market.key}@{row['source']}: {why}")
        else:
            found[followed_row(row, turn)] = gpu
    return found


def _offers(turn: Turn, found: Mapping[FollowedMarket, GpuType], left_out: list[str]) -> list[Offer]:
    offers = []
    for followed in found:
        try:
            (history,) = read_all(turn, [(followed, followed.at - RECENT_PERIOD)])
        except MarketError as error:
            left_out.append(f"{followed.key}: {error}")
            continue
        if not history.on_demand.sold:
            left_out.append(
                f"{followed.key}: nothing is sold on demand there, so no deadline can be promised"
            )
            continue
        offers.append(offer_of(history))
    return offers


def markets_now(turn: Turn, offers: Sequence[Offer]) -> dict[str, MarketNow]:
    """Return histories, forecasts and peers of the offers' markets, as known at the time of each offer."""
    origins = {followed_of(offer): [offer.at] for offer in offers}
    histories, prepared = ready(turn, origins, [turn.settings.planner])
    peers = peers_of(turn, list(origins), start=min(record_start(own[0]) for own in origins.values()))
    return {
        origin.key: MarketNow(
            history=histories[origin],
            forecasts=forecasts_of(histories[origin], prepared.batches[origin], settings=turn.settings),
            peers=peers[origin],
        )
        for origin in origins
    }


# ---
# Knowledge of configurations, the answer, and the job file.
#
# The knowledge comes from a fitted file or the measured runs of a folder (M9.2), and from reports of jobs (M9.4).

#: Fitted model read from the working folder, if it exists.
CONFIGURATIONS_FILE = "configurations.zip"
RUNS = "ft_throughput.csv"


def configuration_model(
    file: Path | None, data: Path | None, *, seed: int, say: Callable[[str], None]
) -> tuple[ConfigurationModel, str]:
    """Return the model and its source: ``file``, a fit on ``data``, or `CONFIGURATIONS_FILE`; else raises `InputError`."""
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
        remedy="`slackwater fit-configurations DATA` writes one",
    )


def measured_runs(store: Store, *, known_at: pd.Timestamp) -> list[MeasuredRun]:
    """Return all runs measured by the reports known at a time, by job and time; later reports are not read (M1.2)."""
    jobs = {job.request.name: job for job in stored_jobs(store) if job.request.configuration is not None}
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
    """Return the model updated with the reported runs, or the model itself without runs."""
    return model.with_runs(runs_frame([run.run() for run in runs])) if runs else model


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledRequest(filling.Filled):
    """Request filled at ``at`` from a warehouse.

    ``left_out``: markets left out, with reasons; ``policy_because``: why the policy was chosen; ``measured``: number of runs
    measured by reports; ``source``: source of the knowledge of configurations; ``markets``: patterns or requested names of
    all markets with the winner's instances (M9.4), empty if there is only the winner's market.
    """

    at: pd.Timestamp
    left_out: tuple[str, ...]
    policy_because: str
    measured: int
    source: str = ""
    markets: tuple[str, ...] = ()

    @property
    def job(self) -> JobRequest:
        """The winner's job; a multi-market job with the winner's market as home if several markets have its instances."""
        candidate = self.winner.candidate
        if not self.markets:
            return candidate.request
        return candidate.request.model_copy(
            update={"markets": self.markets, "moving": moving_terms(candidate.terms)}
        )


def fill(
    turn: Turn,
    completed_request: CompletedRequest,
    model: ConfigurationModel,
    *,
    policy: str | None = None,
    plans: int = filling.PLANS,
) -> FilledRequest:
    """Fill a request at the turn's time from markets, forecasts and reports known then (M1.2).

    Raises `JobError` if no configuration can run, is in time or is within the budget; `MarketError` if no market has a
    known GPU.
    """
    request = completed_request.request
    model_name_of(completed_request)  # raises for an unknown model before anything is read
    left_out: list[str] = []
    offers = offers_of(turn, named=request.markets, gpu_model=request.gpu_model, left_out=left_out)
    runs = measured_runs(turn.store, known_at=turn.at)
    by, why = (policy_named(policy), "asked for") if policy else deciding_policy(turn)
    filled = filling.fill_offers(
        completed_request,
        offers,
        Knowledge(model=with_measured(model, runs)),
        by,
        step=step_of(turn.settings),
        markets=lambda finalists: markets_now(turn, finalists),
        effort=effort_of(turn.settings),
        plans=plans,
    )
    markets = _markets_alike(turn, request.markets, filled.winner.candidate.offer)
    own = {name: getattr(filled, name) for name in filling.Filled.__slots__}
    if markets:
        moves = moving_terms(filled.winner.candidate.terms)
        own["assumed"] = (
            *filled.assumed,
            f"markets = {json.dumps(list(markets))}: the job may move among them; without this and [moving] it stays",
            f"[moving]: a checkpoint of {moves.checkpoint_gb:g} GB, sent at {moves.bandwidth_gb_per_minute:g} GB a minute",
        )
    return FilledRequest(
        **own, markets=markets, at=turn.at, left_out=tuple(left_out), policy_because=why, measured=len(runs)
    )


def _markets_alike(turn: Turn, named: Sequence[str], offer: Offer) -> tuple[str, ...]:
    """Return requested names or patterns of the markets with the instances of an offer; empty if it is the only market."""
    found = _complete_request(turn, named, []) if named else _usable_markets(turn, [])
    alike = {
        other.market.key: other.market
        for other in found
        if other.market.instance_type == offer.market.instance_type
    }
    if len(alike) < 2:
        return ()
    return (
        tuple(alike)
        if named
        else tuple(sorted({f"{market.provider}/*/*/{market.instance_type}" for market in alike.values()}))
    )


def answer_of(filled: FilledRequest, step: pd.Timedelta) -> dict[str, Any]:
    """Return the filled request as plain values."""
    winner, completed_request = filled.winner, filled.completed
    candidate = winner.candidate
    widest = candidate.widths[-1]
    request = candidate.request
    return {
        "request": completed_request.request.model_dump(mode="json", exclude_none=True),
        "at": candidate.offer.at,
        "deadline": request.ends,
        "rule": RULES[completed_request.request.objective],
        "assumed": list(filled.assumed),
        "outside": list(dict.fromkeys(text for width in candidate.widths for text in width.outside)),
        "knowledge": filled.source,
        "measured_runs": filled.measured,
        "configuration": _configuration(candidate),
        "tokens": completed_request.tokens,
        "tokens_per_second": {"median": widest.tokens_per_second, "low": widest.low, "high": widest.high},
        "validity": _validity(filled.knowledge, candidate),
        "widths": [_width_row(candidate, n) for n in range(len(candidate.widths))],
        **forms(winner, step),
        "policy": winner.decision.policy,
        "policy_because": filled.policy_because,
        "decision": decision_row(
            OpenJob(request=request, histories=(winner.history,), live=winner.live), winner.decision
        ),
        "runners_up": [runner_up_row(runner_up, step) for runner_up in filled.runners_up],
        "rejected": list(filled.rejected),
        "left_out": list(filled.left_out),
        "synthetic": _synthetic(winner),
        "job": filled.job.model_dump(mode="json", exclude_none=True),
    }


def _synthetic(winner: PlannedCandidate) -> list[str]:
    """Return which properties of the market are simulated or assumed."""
    simulated = winner.history.market.provider == "simulated"
    return [*(["the market is SIMULATED"] if simulated else []), *winner.history.assumptions]


def _configuration(candidate: Candidate) -> dict[str, Any]:
    terms, offer = candidate.terms, candidate.offer
    return {
        "model": terms.model_name,
        "method": terms.method,
        "tokens_per_sample": terms.tokens_per_sample,
        "gpu_model": terms.gpu_model,
        "number_gpus": candidate.gpus,
        "gpus_per_instance": terms.gpus_per_instance,
        "n_min": candidate.widths[0].instances,
        "n_max": candidate.widths[-1].instances,
        "batch_size": terms.batch_size,
        "torch_dtype": terms.torch_dtype,
        "market": offer.market.key,
        "source": offer.source,
        "on_demand_usd_per_hour": candidate.offer.on_demand_usd if candidate.offer.on_demand.known else None,
        "on_demand_from": str(candidate.offer.on_demand),
        "spot_usd_per_hour": candidate.offer.spot_usd,
    }


def _validity(knowledge: Knowledge, candidate: Candidate) -> dict[str, Any]:
    """Return the validity of the narrowest width, where memory is scarcest, and of the widest."""
    rows: dict[str, dict[str, Any]] = {}
    for name, width in (("narrowest", candidate.widths[0]), ("widest", candidate.widths[-1])):
        if width.configuration is not None:
            verdict = knowledge.validity(width.configuration)
            keys = ("p_valid", "decided_by", "memory_gb", "limit_gb", "reason")
            rows[name] = {"instances": width.instances} | {key: getattr(verdict, key) for key in keys}
    return rows


def _width_row(candidate: Candidate, place: int) -> dict[str, Any]:
    width = candidate.widths[place]
    return {
        "instances": width.instances,
        "number_gpus": width.instances * candidate.terms.gpus_per_instance,
        "tokens_per_second": width.tokens_per_second,
        "low": width.low,
        "high": width.high,
        "low_share": width.low / width.tokens_per_second,
        "high_share": width.high / width.tokens_per_second,
        "p_valid": width.p_valid,
        "rounds": width.rounds,
        "round_samples": width.round_samples,
    }


def forms(planned: PlannedCandidate, step: pd.Timedelta) -> dict[str, Any]:
    """Return cost and finish on on-demand only and on the current spot forecast, at the median and ends of the throughput."""
    start, screened = planned.live.start, planned.screened
    return {
        "on_demand": {
            "median": _alone_row(screened.alone, start, step),
            "low": _alone_row(screened.alone_low, start, step),
        },
        "spot": {
            "median": _expected_row(planned, planned.expected, step),
            "low": _expected_row(planned, planned.low, step),
            "high": _expected_row(planned, planned.high, step),
        },
    }


def _alone_row(alone: OnDemand, start: pd.Timestamp, step: pd.Timedelta) -> dict[str, Any]:
    return {
        "instances": alone.instances,
        "cost_usd": alone.cost_usd,
        "finish": start + alone.slots * step,
        "late_slots": alone.late_by,
    }


def _expected_row(planned: PlannedCandidate, expected: ExpectedOutcome, step: pd.Timedelta) -> dict[str, Any]:
    return {
        "cost_usd": expected.cost_usd,
        "cost_p10_usd": expected.cost_p10_usd,
        "cost_p90_usd": expected.cost_p90_usd,
        "finish": slots_after(planned.live.start, expected.finish_slots, step),
        "late_probability": expected.late_probability,
    }


def runner_up_row(runner_up: RunnerUp, step: pd.Timedelta) -> dict[str, Any]:
    """Return a runner-up as plain values."""
    candidate = runner_up.screened.candidate
    widest, planned = candidate.widths[-1], runner_up.planned
    expected = {} if planned is None else _expected_row(planned, planned.expected, step)
    return {
        "configuration": _configuration(candidate),
        "label": candidate.label,
        "market": candidate.offer.key,
        "tokens_per_second": widest.tokens_per_second,
        "low": widest.low,
        "high": widest.high,
        "planned": planned is not None,
        "on_demand_usd": runner_up.screened.alone.cost_usd if candidate.offer.on_demand.known else None,
        **{
            f"expected_{key}": expected.get(key)
            for key in ("cost_usd", "cost_p10_usd", "cost_p90_usd", "finish")
        },
        "late_probability_low": planned.low.late_probability if planned else None,
        "why": runner_up.why,
    }


def write_job_file(request: JobRequest, path: Path, *, notes: Sequence[str]) -> None:
    """Write a placed request as TOML for ``job add`` (M9.4), ``notes`` as comments; raises `InputError` if not writable."""
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
    """Return a request as TOML text; `slackwater.optimization.job.request.read_request` reads the same request back."""
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
    """Return a TOML literal; texts are written as in JSON, whose escapes TOML shares except for the delete character."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(element) for element in value)}]"
    return str(value.isoformat())


# ---
# Replay of a filled request on the market's record to its deadline, and its score (M9.4, M5.1, M5.5).


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRequest:
    """Replay of a filled request: the scored winner, and the runners-up.

    ``scored`` has the deciding policy first, then the baselines. ``low`` and ``high`` are the outcomes if the throughput is at
    that end of its interval. ``others`` has (runner-up, outcome of the deciding policy, outcome of on-demand only).
    """

    scored: ScoredJob
    low: Outcome
    high: Outcome
    others: tuple[tuple[PlannedCandidate, Outcome, Outcome], ...]


def run_filled(turn: Turn, filled: FilledRequest, policy: Policy[Any]) -> ReplayedRequest:
    """Replay the winner and every planned runner-up, with forecasts as they would have been issued in each slot (M5.1).

    Only this step reads data observed after the turn's time. Raises `MarketError` if a record ends before the deadline.
    """
    planned = [
        filled.winner,
        *(runner_up.planned for runner_up in filled.runners_up if runner_up.planned is not None),
    ]
    ended = _ended_jobs(turn, planned)
    names = [name for name in BASELINES if name != policy.name]
    scored = score_job(ended[0], [policy, *(policy_named(name) for name in names)])
    others = []
    for plan, its in zip(planned[1:], ended[1:], strict=True):
        decided, alone = replay_ended(its, [policy, OnDemandOnly()])
        others.append((plan, decided, alone))
    return ReplayedRequest(
        scored=scored,
        low=_replay_misjudged(ended[0], planned[0], policy, "low"),
        high=_replay_misjudged(ended[0], planned[0], policy, "high"),
        others=tuple(others),
    )


def _ended_jobs(turn: Turn, planned: Sequence[PlannedCandidate]) -> list[EndedJob]:
    """Return every planned job with its market's record to the deadline and the forecasts of each slot."""
    step, listed = step_of(turn.settings), list_markets(turn.store)
    ends = dict(
        zip(zip(listed["market"], listed["source"], strict=True), listed["last_observed"], strict=True)
    )
    slots: dict[FollowedMarket, list[pd.Timestamp]] = {}
    places: list[FollowedMarket] = []
    for plan in planned:
        followed, request = followed_of(plan.candidate.offer), plan.candidate.request
        first, last = first_slot(request, step), request.ends.floor(step) - step
        newest = ends[(followed.market.key, followed.source)]
        if newest < last - step:
            raise MarketError(
                f"the record of {followed.key} ends at {newest}, the job's last slot begins at {last}",
                expected="a record that covers the job",
                remedy="choose an earlier --at or a shorter deadline",
            )
        places.append(replace(followed, at=last))
        slots[places[-1]] = list(pd.date_range(first, last, freq=step))
    end = replace(turn, at=max(place.at for place in slots))
    records = read_records(end, slots, planner=turn.settings.planner)
    return [
        records.ended_job(plan.candidate.request, slots[place][0], [place])
        for plan, place in zip(planned, places, strict=True)
    ]


def _replay_misjudged(ended: EndedJob, planned: PlannedCandidate, policy: Policy[Any], bound: str) -> Outcome:
    """Replay the job with its true throughput at one end of the interval, while the policy assumes the median."""
    (case,) = ended.cases
    true = with_rates(case.job, filled_of(planned.candidate.request), bound)
    wrong = MisjudgingPolicy(policy=policy, believes=case.job)
    return replay_ended(replace(ended, cases=(replace(case, job=true),)), [wrong])[0]


def score_answer(ran: ReplayedRequest, filled: FilledRequest, step: pd.Timedelta) -> dict[str, Any]:
    """Return the scores as plain values; for jobs with a hard deadline, figures that depend on the imputed value are null."""
    ended, expected = ran.scored.ended, filled.winner.expected
    (window,) = ended.windows
    valued = not ended.run.must_finish
    known = {"valued": valued, "observed": ended.availability_observed}
    rows = [
        outcome_values(outcome, ended.start, step, **known)
        | {"gap_to_hindsight_usd": row.gap_to_hindsight_usd}
        for outcome, row in zip(ran.scored.outcomes, ran.scored.ledger, strict=True)
    ]
    first = rows[0]
    alone = ran.scored.ledger[0].on_demand_only_usd if ran.scored.on_demand_known else None
    return {
        "from": ended.start,
        "deadline": ended.start + ended.run.deadline_slots * step,
        "outcome": first,
        "on_demand_only_usd": alone,
        "saved_share": saving(first["cost_usd"], alone, is_finished=first["finish"] is not None)[
            "saved_share"
        ],
        "expected_cost_usd": expected.cost_usd,
        "expected_inside": expected.cost_p10_usd - 1e-9 <= first["cost_usd"] <= expected.cost_p90_usd + 1e-9,
        "policies": rows,
        "hindsight": {
            "low": ran.scored.hindsight_low if valued else None,
            "high": ran.scored.hindsight_high if valued else None,
            "cost_usd": ran.scored.hindsight_usd,
        },
        "at_low": outcome_values(ran.low, ended.start, step, **known),
        "at_high": outcome_values(ran.high, ended.start, step, **known),
        "runners_up": [
            {
                "label": replayed.candidate.label,
                "market": replayed.candidate.offer.key,
                "expected_cost_usd": replayed.expected.cost_usd,
                **outcome_values(
                    decided,
                    replayed.live.start,
                    step,
                    **known | {"observed": replayed.history.availability_observed},
                ),
                "on_demand_only_usd": other.total_cost_usd if replayed.live.seen[0].on_demand.known else None,
            }
            for replayed, decided, other in ran.others
        ],
        "regret_usd": first["cost_usd"]
        - min([first["cost_usd"], *(d.total_cost_usd for _, d, _ in ran.others)]),
        "gaps": int((~window.observed).sum()),
        "synthetic": list(ended.assumptions),
        "allocations": [
            held_in(window, t, ended.start + t * step, held)
            for t, held in enumerate(ran.scored.outcomes[0].allocations)
        ],
    }
