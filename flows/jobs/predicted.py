"""Reported progress compared with the predicted progress for the same time, to check the throughput model H(n)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.ledger.decisions import JobLedger, allocations_of
from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.ledger.open_job import OpenJob, as_reported
from slackwater.flows.ledger.reports import Report, counting, every_report, report_row, work_said
from slackwater.flows.ledger.throughput import measured_rows
from slackwater.flows.places import markets_of
from slackwater.flows.turn.context import Turn
from slackwater.flows.turn.opening import open_jobs
from slackwater.warehouse.errors import MarketError
from slackwater.warehouse.store.connection import Store


def reports_shown(
    store: Store, stored: StoredJob, decisions: Sequence[Mapping[str, Any]], settings: Settings
) -> list[dict[str, Any]]:
    """Return the reports of a job in force, each with the progress ``predicted`` for its time (ours).

    The prediction continues from the report before, or from the job's start, with the decisions, the observed
    market and H(n) of the job file; ``off`` is reported minus predicted. Both are None beyond the market's
    record, or without reported progress. All are in the unit of the job's workload. For a job with a
    configuration, ``throughput`` has the measured and predicted throughput.
    """
    reports = counting(every_report(store, [stored.request.name]))
    if not reports:
        return []
    decided = allocations_of(decisions)
    ledger = JobLedger(decisions={stored.request.name: [dict(row) for row in decisions]}, reports={})
    opened = _opened_until(store, stored, ledger, reports, settings)
    throughput = measured_rows(stored, decided, reports)
    rows = []
    for k, report in enumerate(reports):
        done = work_said(report, stored.request.workload.amount)
        predicted = None
        if opened is not None and done is not None:
            predicted = predicted_work(opened, report.reported_at, reports[:k])
        off = None if done is None or predicted is None else done - predicted
        measured = {} if throughput[k] is None else {"throughput": throughput[k]}
        rows.append(report_row(report, stored) | {"predicted": predicted, "off": off} | measured)
    return rows


def _opened_until(
    store: Store, stored: StoredJob, ledger: JobLedger, reports: Sequence[Report], settings: Settings
) -> OpenJob | None:
    """Return the job on its market's record up to the newest report; None without a record, and for a multi-market job."""
    if stored.request.may_move:
        return None
    settings = settings.model_copy(update={"step_minutes": int(stored.step / pd.Timedelta(minutes=1))})
    at = max(stored.start, min(reports[-1].reported_at.floor(stored.step), stored.deadline - stored.step))
    turn = Turn(store=store, at=at, settings=settings, run_id="reports", own_end=True)
    try:
        places = markets_of(turn, stored.request)
    except MarketError:
        return None
    if places[0].at < stored.start:
        return None
    (found,) = open_jobs(turn, [(stored, places)], ledger=ledger)
    return None if isinstance(found, Exception) else found


def predicted_work(opened: OpenJob, at: pd.Timestamp, reports: Sequence[Report]) -> float | None:
    """Return the work done by ``at`` by decisions and ``reports``, in the job's unit; None beyond the market's record."""
    request, live = opened.request, opened.live
    reported = as_reported(reports, request, live.run, start=live.start, step=live.step)
    done = live.work_by(at, reported)
    return None if done is None else done / live.run.workload * request.workload.amount
