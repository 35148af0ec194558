"""Change of a job's terms: the requested terms, the time they take effect, and whether the deadline can be met (M2.9)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from pydantic import ValidationError

from slackwater.flows.config import Settings
from slackwater.flows.histories import read_all
from slackwater.flows.ledger.decisions import JobLedger, read_ledger
from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.places import markets_of
from slackwater.flows.show.formats import utc
from slackwater.flows.turn.context import Turn
from slackwater.flows.turn.opening import open_placed_job
from slackwater.optimization.job.definition import Job, Progress, is_finished
from slackwater.optimization.job.request import (
    JobRequest,
    TermChange,
    check_slots,
    shortfall_words,
    slot_job,
    term_changes,
)
from slackwater.optimization.job.units import named_market
from slackwater.optimization.moving.definition import job_in_markets
from slackwater.warehouse.errors import InputError, JobError
from slackwater.warehouse.store.connection import Store


def with_terms(request: JobRequest, terms: Mapping[str, Any]) -> JobRequest:
    """Return a placed request with new values of some keys (such as ``workload.amount``); raises `JobError` for invalid values."""
    values: dict[str, Any] = request.model_dump()
    for key, value in terms.items():
        table, _, name = key.rpartition(".")
        (values[table] if table else values)[name] = value
    try:
        return JobRequest.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise JobError(f"job {request.name!r}: {key} = {first['input']}: {first['msg']}") from error


def change_time(
    store: Store,
    stored: StoredJob,
    decided: Sequence[pd.Timestamp],
    at: tuple[pd.Timestamp, bool],
    settings: Settings,
) -> pd.Timestamp:
    """Return when a change becomes known: the slot of a given time, else the end of the record of the job's market.

    ``at`` is a time and whether it is the default, as from `slackwater.flows.command.QueryAt.moment`. A
    default time is no earlier than the newest of the ``decided`` slots and the time the current
    terms became known.
    """
    when, own_end = at
    if not own_end:
        return when.floor(stored.step)
    turn = Turn(store=store, at=when, settings=settings, run_id="change", own_end=True)
    return max([markets_of(turn, stored.request)[0].at, stored.known_at, *decided])


# ---
# The job under given terms, from its current state.


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderTerms:
    """A job in slots, its progress, and why it cannot meet its deadline; "" if it can."""

    job: Job
    progress: Progress
    shortfall: str


def under_terms(turn: Turn, job: StoredJob, ledger: JobLedger) -> UnderTerms:
    """Return a job at the turn's time with its decisions and reports; before its start with no work done.

    Raises `MarketError` if its market cannot be read, and `JobError` if a decision or report names
    another market.
    """
    request, places = job.request, markets_of(turn, job.request)
    if places[0].at < job.start:
        histories = read_all(turn, [(place, place.at) for place in places])
        runs = job_in_markets(request, histories).runs
        shortfalls = [shortfall_words(run, job.start, histories[0].step) for run in runs]
        return UnderTerms(
            job=runs[0], progress=Progress(), shortfall=shortfalls[0] if all(shortfalls) else ""
        )
    running = open_placed_job(turn, (job, places), ledger=ledger)
    progress = running.live.progress()
    there = running.in_market(progress.place)
    return UnderTerms(job=there.run, progress=progress, shortfall=running.live.shortfall(progress))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Result of a change of terms: the ``changes`` of single terms, and the first slot decided under them (``counts_from``).

    ``shortfall`` is why the job cannot meet its deadline, None if it can, and ``unknown`` why that
    is not known.
    """

    changes: tuple[TermChange, ...]
    counts_from: pd.Timestamp
    shortfall: str | None = None
    unknown: tuple[str, ...] = ()


def change_of(
    turn: Turn, stored: StoredJob, request: JobRequest, decisions: Sequence[Mapping[str, Any]]
) -> Change:
    """Return the result of other terms (``request``) at the turn's time, not stored; raises `JobError` for invalid terms."""
    # The price only sets the imputed value of a job with a hard deadline, so any price serves this check.
    check_slots(request, stored.step)
    if (market := named_market(request)) is not None:
        slot_job(request, step=stored.step, on_demand_usd=1.0, market=market)
    decided = {pd.Timestamp(row["slot"]) for row in decisions}
    slot = max(stored.start, turn.at)
    while slot in decided:
        slot += stored.step
    name = stored.request.name
    ledger = replace(turn.read(read_ledger, [name]), decisions={name: [dict(row) for row in decisions]})
    change = Change(changes=tuple(term_changes(stored.request, request)), counts_from=slot)
    try:
        jobs = (replace(stored, request=request), stored)
        found, before = (under_terms(turn, job, ledger) for job in jobs)
    except InputError as error:
        return replace(change, unknown=(f"whether it can be done in time is not known: {error}",))
    amount, unit = stored.request.workload.amount, request.workload.unit
    if request.workload.amount < amount and is_finished(found.progress.done, found.job.workload):
        raise JobError(
            f"job {request.name!r}: workload.amount = {request.workload.amount:g} {unit}",
            expected=f"more than the {before.progress.done / before.job.workload * amount:.4g} {unit} done by {utc(turn.at)}",
            remedy=f"if its work is done, say so: `slackwater job report {shlex.quote(request.name)} --finished`",
        )
    return replace(change, shortfall=found.shortfall or None)


def terms_rows(versions: Sequence[StoredJob]) -> list[dict[str, Any]]:
    """Return each version of a job's terms as plain values: when it became known, and its changes."""
    pairs = zip([*versions[:1], *versions], versions, strict=False)
    return [
        {"known_at": own.known_at, "changes": change_rows(term_changes(before.request, own.request))}
        for before, own in pairs
    ]


def change_rows(changes: Sequence[TermChange]) -> list[dict[str, Any]]:
    """Return changes of terms as plain values."""
    return [{"term": change.term, "before": change.before, "after": change.after} for change in changes]


def not_replayed(stored: StoredJob) -> list[str]:
    """Return a note that a job whose terms changed while it ran is not used for learning; nothing for other jobs."""
    if not stored.changed_under_way:
        return []
    return [
        f"its terms changed at {utc(stored.known_at)}, while it ran: no policy is replayed on it after its end, because a replay "
        "from its start would know the later terms, and the weights of the policies stay as they are"
    ]
