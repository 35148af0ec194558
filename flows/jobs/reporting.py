"""Reports on running jobs, as given on a command line or by HTTP: one check, one record, one answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd

from slackwater.flows.command import parsed_time
from slackwater.flows.config import Settings
from slackwater.flows.following import parse_market
from slackwater.flows.jobs.command import GivenReport
from slackwater.flows.ledger.decisions import decisions_of, in_force, placements_of, revisions_by_job
from slackwater.flows.ledger.jobs import StoredJob, find_job
from slackwater.flows.ledger.reports import (
    Report,
    counting,
    differences,
    elsewhere,
    every_report,
    report_row,
    save_report,
    slot_of_report,
    with_advised,
)
from slackwater.flows.ledger.throughput import measured_rows
from slackwater.flows.places import places_of
from slackwater.flows.turn.context import Turn
from slackwater.optimization.job.request import JobRequest
from slackwater.warehouse.errors import JobError, MarketError, SettingsError
from slackwater.warehouse.store.connection import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """A stored report, its job, and its answer as plain values."""

    report: Report
    stored: StoredJob
    value: dict[str, Any]


def write_report(
    store: Store, settings: Settings, name: str, given: GivenReport, *, clock: pd.Timestamp
) -> WrittenReport:
    """Store a report on a job; without a time it is of ``clock``.

    Raises `SettingsError` for a time in the future, `JobError` for an unknown job or an invalid
    value, `MarketError` for a market that is not of the job.
    """
    when = parsed_time(given.at, "--at") or clock.floor("s")
    known = parsed_time(given.known_at, "--known-at") or when
    if known > clock + pd.Timedelta(days=1):
        raise SettingsError(
            f"--known-at {known.isoformat()}" if given.known_at else f"--at {known.isoformat()}",
            expected=f"a time that is not in the future (now {clock:%Y-%m-%d %H:%M} UTC)",
        )
    stored = find_job(store, name)
    values = asdict(given) | {"job": name, "reported_at": when, "known_at": known}
    del values["at"]
    progress = {key: values.pop(key) for key in ("progress", "progress_share", "tokens")}
    report = Report(progress=_work_done(stored.request, **progress), **values)
    if given.market is not None and stored.request.may_move:
        report = replace(report, market=_place_named(store, given.market, stored, settings, when))
    placed = placements_of(decisions_of(store, name))
    slot = slot_of_report(report, stored)
    if slot in placed:
        placed[slot] = in_force(placed, revisions_by_job(store, [name])[name], slot, when)
    decided = {at: allocation for at, (_, allocation) in placed.items()}
    kept, added = save_report(store, with_advised(report, stored, decided), stored)
    warnings = [*differences(kept, stored, decided), *elsewhere(kept, stored, placed)]
    reports = counting(every_report(store, [name]))
    measured = measured_rows(stored, decided, reports)[reports.index(kept)] if kept in reports else None
    value = report_row(kept, stored) | {"added": added, "warnings": warnings}
    if measured is not None:
        value["throughput"] = measured
    return WrittenReport(report=kept, stored=stored, value=value)


def _place_named(store: Store, text: str, stored: StoredJob, settings: Settings, at: pd.Timestamp) -> str:
    """Return a market of the job by name, as in decisions; raises `MarketError` for any other market."""
    turn = Turn(store=store, at=at.floor(stored.step), settings=settings, run_id="report")
    names = [place.market.key for place in places_of(turn, stored.request)]
    key = parse_market(text)[0].key
    if key not in names:
        raise MarketError(
            f"job {stored.request.name!r} does not run in {key}",
            expected=f"one of its markets: {', '.join(names)}",
            remedy="give one of these markets as --market",
        )
    return key


def _work_done(request: JobRequest, **values: float | None) -> float | None:
    """Return the progress in the job's unit; raises `JobError` for two values, or a unit that the job does not use."""
    given = {name: value for name, value in values.items() if value is not None}
    if len(given) > 1:
        options = " and ".join("--" + name.replace("_", "-") for name in given)
        raise JobError(f"progress given as {options}", expected="a single option")
    if "tokens" in given and request.workload.unit != "tokens":
        raise JobError(
            f"job {request.name!r} counts its work in {request.workload.unit}, not in tokens",
            remedy="use --progress or --progress-share",
        )
    share = given.get("progress_share")
    if share is None:
        return next(iter(given.values()), None)
    if not 0.0 <= share <= 1.0:
        raise JobError(f"a progress share of {share:g}", expected="0 to 1")
    return share * request.workload.amount
