"""Stored decisions of jobs, their documents for other programs, and their revisions within slots."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pandas as pd

from slackwater.flows.ledger.fields import DECISION, whole_row
from slackwater.flows.ledger.reports import Report, every_report
from slackwater.flows.show.formats import plain, rows_of
from slackwater.optimization.job.definition import Allocation
from slackwater.warehouse.documents import read_object
from slackwater.warehouse.errors import InputError
from slackwater.warehouse.history import Market
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import moment

Row = dict[str, Any]  # A decision as plain values


def save_decisions(store: Store, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Store decisions, each with its run; a decision issued before for the same job and slot is not changed."""
    if not rows:
        return
    own = [name for name, field in DECISION.items() if field.column]
    table = [
        {name: row[name] for name in own}
        | {"slot": pd.Timestamp(row["slot"]), "run": run, "details": json.dumps(row)}
        for run, row in rows
    ]
    write_rows(store, "decisions", pd.DataFrame(table))


def stored_decisions(
    store: Store, where: Mapping[str, object], *, order_by: Sequence[str] = ()
) -> list[tuple[str, dict[str, Any]]]:
    """Return the decisions that `read_rows` finds, each with its run; unknown fields are None, unreadable rows left out."""
    rows = read_rows(store, "decisions", where=where, order_by=order_by)
    found = []
    for row in rows_of(rows):
        details = read_object(row["details"])
        if details:
            slot = pd.Timestamp(row["slot"]).isoformat()
            own = {name: row[name] for name in ("job", "policy", "on_demand", "spot")}
            found.append((row["run"], whole_row(details | own | {"slot": slot})))
    return found


def decisions_of(store: Store, job: str) -> list[dict[str, Any]]:
    """Return every decision for a job, by slot, as plain values."""
    return decisions_by_job(store, [job])[job]


def decisions_by_job(store: Store, jobs: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the `decisions_of` several jobs, read with one statement."""
    found: dict[str, list[dict[str, Any]]] = {job: [] for job in jobs}
    for _, row in stored_decisions(store, {"job": list(jobs)}):
        found[row["job"]].append(row)
    return {job: sorted(own, key=lambda row: str(row["slot"])) for job, own in found.items()}


def newest_decisions(store: Store, jobs: Sequence[str], *, at: pd.Timestamp) -> dict[str, dict[str, Any]]:
    """Return by job the decision of its newest slot that has begun at a time."""
    newest = store.execute(
        "SELECT epoch_us(max(slot)) FROM decisions WHERE list_contains($jobs, job) AND slot <= $at GROUP BY job",
        {"jobs": list(jobs), "at": moment(at, "at")},
    )
    slots = [moment(pd.Timestamp(us, unit="us", tz="UTC"), "slot") for us in sorted({us for (us,) in newest})]
    rows = stored_decisions(store, {"job": list(jobs), "slot": slots}, order_by=["slot"]) if slots else []
    return {row["job"]: row for _, row in rows}


def decided_markets(store: Store, jobs: Sequence[str], *, at: pd.Timestamp) -> dict[str, list[str]]:
    """Return by job the markets of its decisions for slots that have begun at a time."""
    rows = store.execute(
        "SELECT job, market FROM job_decisions WHERE list_contains($jobs, job) AND slot <= $at "
        "AND market IS NOT NULL GROUP BY ALL ORDER BY min(slot), market",
        {"jobs": list(jobs), "at": moment(at, "at")},
    )
    return {job: [market for name, market in rows if name == job] for job in jobs}


def allocations_of(decisions: Iterable[Mapping[str, Any]]) -> dict[pd.Timestamp, Allocation]:
    """Return the decided allocations by slot."""
    return {
        pd.Timestamp(row["slot"]): Allocation(int(row["on_demand"]), int(row["spot"])) for row in decisions
    }


def placements_of(
    decisions: Iterable[Mapping[str, Any]],
) -> dict[pd.Timestamp, tuple[str | None, Allocation]]:
    """Return the decisions of a job by slot: the market (None: no instances) and the allocation."""
    return {
        slot: (str(row["market"]) if allocation.total else None, allocation)
        for row in decisions
        for slot, allocation in allocations_of([row]).items()
    }


def in_force(
    decided: Mapping[pd.Timestamp, tuple[str | None, Allocation]],
    revisions: Sequence[Mapping[str, Any]],
    slot: pd.Timestamp,
    at: pd.Timestamp,
) -> tuple[str | None, Allocation]:
    """Return market and allocation in force before a time within a slot: of its newest revision, else of its decision."""
    for row in reversed(revisions):
        if pd.Timestamp(row["slot"]) == slot and pd.Timestamp(row["revised_at"]) < at:
            return str(row["market"]), Allocation(int(row["on_demand"]), int(row["spot"]))
    return decided.get(slot, (None, Allocation(0, 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLedger:
    """Every decision, revision and report of some jobs, by job name."""

    decisions: Mapping[str, Sequence[dict[str, Any]]]
    reports: Mapping[str, Sequence[Report]]
    revisions: Mapping[str, Sequence[dict[str, Any]]] = field(default_factory=dict)


def read_ledger(store: Store, names: Iterable[str]) -> JobLedger:
    """Read the decisions, their revisions and the reports of some jobs."""
    job_names = list(dict.fromkeys(names))
    reports: dict[str, list[Report]] = {name: [] for name in job_names}
    for report in every_report(store, job_names):
        reports[report.job].append(report)
    return JobLedger(
        decisions=decisions_by_job(store, job_names),
        reports=reports,
        revisions=revisions_by_job(store, job_names),
    )


# ---
# Revisions: decisions for the rest of a slot after a loss of spot (M12.15).

REVISION_COLUMNS = (
    "revised_at",
    "lost_at",
    "spot_left",
)  # Columns of a revision beside those of its decision


def save_revisions(store: Store, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store revisions; a revision that is stored already is not changed."""
    own = ("job", "slot", *REVISION_COLUMNS, "policy", "market", "on_demand", "spot", "reason")
    times = ("slot", "revised_at", "lost_at")
    table = [
        {name: pd.Timestamp(row[name]) if name in times else row[name] for name in own}
        | {"details": json.dumps(row)}
        for row in rows
    ]
    if table:
        write_rows(store, "revisions", pd.DataFrame(table))


def revisions_by_job(store: Store, jobs: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the revisions of jobs by the time at which they were made, as plain values."""
    found: dict[str, list[dict[str, Any]]] = {job: [] for job in jobs}
    rows = read_rows(store, "revisions", where={"job": list(jobs)}, order_by=["job", "revised_at"])
    for row in rows_of(rows):
        times = {name: pd.Timestamp(row[name]).isoformat() for name in ("slot", "revised_at", "lost_at")}
        own = {name: row[name] for name in ("job", "policy", "market", "on_demand", "spot", "spot_left")}
        found[row["job"]].append(whole_row((read_object(row["details"]) or {}) | own | times))
    return found


# ---
# The decision document: a decision for other programs, in the stable form ``slackwater.decision/2``.

#: Name and version of the form; the version increases when a key is removed or changes its type, not when a key is added.
SCHEMA = "slackwater.decision/2"
#: First part of the text that keys are hashed from: the same in every version of the form, so that upgrades change no key.
_KEY_PREFIX = "slackwater.decision/1"


def document(decision: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a decision, as computed or as stored: the keys of `DECISION`, then its other keys.

    ``key`` is the same for the same job, market, source and slot, so that receivers can ignore duplicates. Keys that only
    ``plan`` computes are null unless the decision has them. Raises `InputError` for a decision that was stored by an older
    version and lacks a required key.
    """
    row = whole_row(decision)
    if lacking := [
        name
        for name, value in row.items()
        if value is None and name in DECISION and not DECISION[name].nullable
    ]:
        raise InputError(
            f"the decision for job {row['job']!r} at {row['slot']} was issued by an older version: it has no {lacking[0]}",
            expected="a decision with every key of its schema",
            remedy="`slackwater plan` decides afresh",
        )
    market = Market.parse(str(row["market"]))
    added = {
        "schema": SCHEMA,
        "program": "slackwater",
        "version": program_version(),
        "key": key_of(row),
        "market_parts": {
            "provider": market.provider,
            "region": market.region,
            "zone": market.zone,
            "instance_type": market.instance_type,
        },
        "valid_until": row["slot_end"],
        **dict.fromkeys(("issued_at", "expired", "alone", "decided_with")),
    }
    whole: dict[str, Any] = plain({name: (added | row)[name] for name in DECISION} | row)
    return whole


def key_of(decision: Mapping[str, Any]) -> str:
    """Return the idempotency key of a decision: 32 hexadecimal digits that depend only on job, market, source and slot."""
    parts = [str(decision[name]) for name in ("job", "market", "source")]
    parts.append(pd.Timestamp(decision["slot"]).tz_convert("UTC").isoformat())
    return hashlib.sha256(json.dumps([_KEY_PREFIX, *parts]).encode()).hexdigest()[:32]


@cache
def program_version() -> str:
    """Return the installed version, "unknown" if the package is not installed."""
    try:
        return version("slackwater")
    except PackageNotFoundError:
        return "unknown"
