"""Decisions of a turn for one job or for all open jobs at a time, without storing them (M2.4, M3.7)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from slackwater.flows.following import step_of
from slackwater.flows.ledger.decisions import JobLedger, Row, read_ledger
from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.ledger.open_job import OpenJob
from slackwater.flows.ledger.reports import Report, counting
from slackwater.flows.places import PlacedJob, placed_in
from slackwater.flows.plans.one_job import (
    PlannedJob,
    PlanQuery,
    ended_error,
    issued_row,
    require_running,
    sharing_note,
)
from slackwater.flows.query import NamedJob
from slackwater.flows.show.formats import plural, utc
from slackwater.flows.turn.context import Turn
from slackwater.flows.turn.decide import TurnDecisions, decide_together, effort_of, message_without_decision
from slackwater.flows.turn.opening import forecasts_in_force, open_jobs, open_placed_job
from slackwater.flows.turn.pool import policies_named, read_pool
from slackwater.flows.turn.work import sorted_jobs
from slackwater.optimization.fleet.competition import connected_groups
from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.job.request import JobRequest, run_on
from slackwater.warehouse.errors import JobError, PolicyError


def opened_to_decide(turn: Turn, named: NamedJob) -> OpenJob:
    """Return the state of a job with the forecasts for its decision; raises as `require_running` and `open_placed_job` do."""
    require_running(turn, named)
    forecasts, by = forecasts_in_force(turn, [named.placed]), read_pool(turn).deciders([turn.at])[0]
    return open_placed_job(turn, named.placed, forecasts=forecasts, by=by)


# ---
# Joint decisions of open jobs; decisions already issued for the slot are fixed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Redecision:
    """A job that is decided again even if a decision was issued, by the policy ``by`` (None: that of a turn)."""

    job: str
    by: str | None = None


def decide_open(
    turn: Turn, jobs: Sequence[PlacedJob], ledger: JobLedger, anew: Redecision | None = None
) -> tuple[dict[str, Row], dict[str, str]]:
    """Return the decision of each running job by name, and for each job without a decision the reason as text (M3.7).

    Decisions issued for the slot are fixed, except for the job ``anew``, which gets the spot that
    the others leave. A job whose work is done is in neither result.
    """
    issued: dict[str, Row] = {}
    lacking: list[PlacedJob] = []
    for job, markets in jobs:
        name = job.request.name
        row = issued_row(ledger, name, markets[0].at)
        if row is None or (anew is not None and anew.job == name):
            lacking.append((job, markets))
        else:
            issued[name] = row
    if not lacking:
        return issued, {}
    forecasts, by = forecasts_in_force(turn, lacking), read_pool(turn).deciders([turn.at])[0]
    why = dict[str, str]()
    running: list[tuple[int, OpenJob]] = []
    opened = open_jobs(turn, lacking, ledger=ledger, forecasts=forecasts, by=by)
    for (job, _), found in zip(lacking, opened, strict=True):
        is_anew = anew is not None and anew.job == job.request.name
        if isinstance(found, Exception):
            if is_anew:
                raise found
            why[job.request.name] = message_without_decision(job, found)
            continue
        if anew is not None and is_anew and anew.by is not None:
            policies = policies_named(turn, job.request, [anew.by])
            if len(policies) > 1:
                raise PolicyError(
                    f"{len(policies)} policies for one decision", expected="the name of a policy"
                )
            found = replace(found, policy=policies[0], because="asked for")
        running.append((0, found))
    result = decide_together(running, [list(issued.values())], effort_of(turn.settings), turn.fan)
    fresh = {name: row for own_rows in result for name, row in own_rows.items()}
    why |= {name: row for name, row in fresh.items() if isinstance(row, str)}
    return issued | {name: row for name, row in fresh.items() if not isinstance(row, str)}, why


def decisions_as_of(turn: Turn, requests: Sequence[JobRequest] = ()) -> TurnDecisions:
    """Return the decisions that a turn at this time would issue for the open jobs and for placed ``requests``, jointly."""
    left_out: list[str] = []
    known = turn.jobs()
    names = {job.request.name for job in known if job.start <= turn.at < job.deadline}
    new = {request.name: request for request in requests if request.name not in names}
    known = [job for job in known if job.request.name not in new]
    step = step_of(turn.settings)
    known += [
        StoredJob(request=request, origin="user", step=step, created_at=turn.at) for request in new.values()
    ]
    jobs = running_jobs(turn, known, left_out)
    rows, why = decide_open(turn, jobs, turn.read(read_ledger, [job.request.name for job, _ in jobs]))
    return TurnDecisions(
        rows=tuple(rows[name] for name in sorted(rows)),
        left_out=(*left_out, *(why[name] for name in sorted(why))),
    )


def running_jobs(turn: Turn, known: Sequence[StoredJob], left_out: list[str]) -> list[PlacedJob]:
    """Return the jobs that a turn would decide, with their markets; messages on others are appended to ``left_out``."""
    # Ended jobs are skipped; with each market read at its own end, a job ends only with its record.
    over = () if turn.own_end else {job.request.name for job in known if job.deadline <= turn.at}
    work = sorted_jobs(turn, known, [], left_out, over)
    return [(job, work.places.get(job.request.name, (followed,))) for job, followed in work.running]


def fleet_answer(turn: Turn, requests: Sequence[JobRequest]) -> dict[str, Any]:
    """Return the decisions of the open jobs, and of ``requests`` as if they started in this slot.

    Raises `JobError` if no job is open, `MarketError` for a request without a market. Stores nothing.
    """
    left_out: list[str] = []
    placed = [request for job in requests if (request := _place_request(turn, job, left_out)) is not None]
    decided = decisions_as_of(turn, placed)
    notes = [*left_out, *decided.left_out]
    if not decided.rows:
        raise JobError(
            f"no job is open at {utc(turn.at)}" + (f" ({notes[0]})" if notes else ""),
            expected="a job whose start is past and whose deadline is not",
            remedy="`slackwater job list` lists them; give --at TIME or --job FILE --market MARKET",
        )
    return {
        "slot": turn.at.isoformat(),
        "step_minutes": turn.settings.step_minutes,
        "decisions": list(decided.rows),
        "notes": list(dict.fromkeys(notes)),
    }


def _place_request(turn: Turn, request: JobRequest, left_out: list[str]) -> JobRequest | None:
    """Return the request with its market and start, or None with a note if it starts later."""
    if request.start is not None and pd.Timestamp(request.start) > turn.at:
        left_out.append(f"job {request.name} is left out: it starts at {request.start}")
        return None
    return placed_in(turn, request)[0]


def computed_plan(turn: Turn, named: NamedJob, query: PlanQuery, own: JobLedger) -> PlannedJob:
    """Return the decision of a running job under the options of ``query``, decided jointly unless ``alone``.

    ``own`` are the decisions and reports of the job. Nothing is stored. Raises `JobError` where the
    job has done its work or cannot be decided.
    """
    name, at = named.name, named.at
    issued = issued_row(own, name, at)
    left_out: list[str] = []
    group = [named.placed] if query.alone else _group(turn, named, left_out)
    others = [job.request.name for job, _ in group if job.request.name != name]
    ledger = turn.read(read_ledger, others)
    reports = list(own.reports.get(name, ()))
    if query.held is not None:
        reports.append(_stated_instances(named, query.held, own))
    ledger = JobLedger(
        decisions={**ledger.decisions, name: own.decisions.get(name, ())},
        reports={**ledger.reports, name: reports},
        revisions={**ledger.revisions, name: own.revisions.get(name, ())},
    )
    rows, why = decide_open(turn, group, ledger, Redecision(job=name, by=query.policy))
    if name in why:
        raise JobError(why[name])
    if name not in rows:
        raise ended_error(name, at, counting(reports, known_at=at))
    row = rows[name] | {
        "issued_at": None,
        "alone": query.alone,
        "decided_with": [] if query.alone else others,
    }
    of_turn = query.is_of_turn and named.is_stored and not named.is_elsewhere
    notes = (*sharing_note(named, others), *_option_notes(named, query, issued))
    return PlannedJob(row=row, is_of_turn=of_turn, notes=notes)


def _group(turn: Turn, named: NamedJob, left_out: list[str]) -> list[PlacedJob]:
    """Return the job and the open jobs decided jointly with it: jobs that share a market, directly or through other jobs."""
    own = replace(named.job, created_at=min(named.job.created_at, turn.at))
    known = [job for job in turn.jobs() if job.request.name != named.name]
    running = running_jobs(turn, [*known, own], left_out)
    others = [other for other in running if other[0].request.name != named.name]
    jobs = [named.placed, *others]
    return [
        jobs[k]
        for k in connected_groups([{(market.key, market.at) for market in markets} for _, markets in jobs])[0]
    ]


def _stated_instances(named: NamedJob, held: Allocation, ledger: JobLedger) -> Report:
    """Return the instances given on the command line as an unstored report for the start of the slot.

    It includes the progress reported for that time. Raises `JobError` if there are more instances
    than the job may hold, or if a multi-market job has no known market.
    """
    request, at, reports = named.job.request, named.at, ledger.reports.get(named.name, ())
    been = any(row["on_demand"] + row["spot"] for row in ledger.decisions.get(named.name, ()))
    been = been or any(report.market is not None for report in reports)
    if held.total and request.may_move and request.market is None and not been:
        raise JobError(
            f"{plural(held.total, 'instance')} held by job {named.name!r}, which is in none of its markets yet",
            expected="a job that is known to be in a market",
            remedy=f"say where: `slackwater job report {shlex.quote(named.name)} --market MARKET --spot N`",
        )
    most = max(run_on(request, place.market)[1] for place in named.markets)
    if held.total > most:
        raise JobError(
            f"{plural(held.total, 'instance')} held ({held.on_demand} on-demand, {held.spot} spot)",
            expected=f"at most {most}, the {'n_max' if request.gpus_max is None else 'gpus_max'} of job {named.name!r}",
            remedy="check --held-on-demand and --held-spot",
        )
    same = [stated for stated in counting(reports, known_at=at) if stated.reported_at == at]
    before = same[-1] if same else Report(job=named.name, reported_at=at, known_at=at)
    return replace(
        before, known_at=at, revision=before.revision + 1, on_demand=held.on_demand, spot=held.spot
    )


def _option_notes(named: NamedJob, query: PlanQuery, issued: Row | None) -> list[str]:
    """Return notes on how a decision under options differs from that of the turn, and on the issued decision."""
    found = []
    if query.alone:
        found.append(
            "planned alone, as if no other job wanted spot; "
            f"`slackwater plan {shlex.quote(named.name)}` is the decision of the turn"
            if named.is_stored
            else "planned alone, as if no other job wanted spot"
        )
    if query.held is not None:
        found.append(
            f"planned from {query.held.on_demand} on-demand and {query.held.spot} spot held, as given, for this slot only"
        )
    if issued is not None:
        found.append(
            f"the turn has issued {issued['on_demand']} on-demand and {issued['spot']} spot for this slot, which stays as it is"
        )
    return found
