"""Reported progress beside the progress that was predicted for the same time: how far off the model of H(n) was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from flows.config import Settings
from flows.jobs.record import record_start
from flows.jobs.reports import Report, counting, every_report, report_row, work_said
from flows.ledger.records import StoredJob, allocations_of
from flows.requests.measured_runs import measured_rows
from flows.turn.decide import OpenJob, open_job
from flows.turn.markets import find_market, read_history
from optimization.job.definition import Progress
from optimization.policies.pace import slot_gain
from optimization.replay.standing import NOTHING, held
from warehouse.errors import MarketError
from warehouse.store.connection import Store


def reports_shown(
    store: Store, stored: StoredJob, decisions: Sequence[Mapping[str, Any]], settings: Settings
) -> list[dict[str, Any]]:
    """The reports of a job that count by now, each with the progress ``predicted`` for its time (ours).

    The prediction goes on from the report before it, or from the job's start, by what was decided, what the market gave and H(n) of
    the job file; ``off`` is reported minus predicted. Both are None where the market's record does not reach, or nothing is said of
    progress. All in the unit of the job's workload. A job that was filled has its ``throughput`` beside it, measured and predicted.
    """
    reports = counting(every_report(store, [stored.request.name]))
    if not reports:
        return []
    running = _open_until(store, stored, decisions, reports, settings)
    amount = stored.request.workload.amount
    throughput = measured_rows(stored, decisions, reports)
    rows = []
    for k, report in enumerate(reports):
        done = work_said(report, amount)
        predicted = None
        if running is not None and done is not None:
            predicted = predicted_work(running, report.reported_at, reports[:k])
        off = None if done is None or predicted is None else done - predicted
        told = {} if throughput[k] is None else {"throughput": throughput[k]}
        rows.append(report_row(report, stored) | {"predicted": predicted, "off": off} | told)
    return rows


def _open_until(
    store: Store,
    stored: StoredJob,
    decisions: Sequence[Mapping[str, Any]],
    reports: Sequence[Report],
    settings: Settings,
) -> OpenJob | None:
    """The job on its market's record up to the newest report, None where there is no record of it."""
    request = stored.request
    settings = settings.model_copy(update={"step_minutes": int(stored.step / pd.Timedelta(minutes=1))})
    text = f"{request.market}@{request.source}" if request.source else str(request.market)
    at = max(stored.start, min(reports[-1].reported_at.floor(stored.step), stored.deadline - stored.step))
    try:
        followed = find_market(store, text, at=at, settings=settings, own_end=True)
        if followed.at < stored.start:
            return None
        history = read_history(store, followed, settings=settings, start=record_start(stored.start))
    except MarketError:
        return None
    return open_job(request, history, decided=allocations_of(decisions), forecasts=[])


def predicted_work(running: OpenJob, at: pd.Timestamp, reports: Sequence[Report]) -> float | None:
    """Work done by ``at`` as reckoned from the decisions and ``reports``, in the unit of the job's workload.

    None beyond the market's record. Within a slot the work grows evenly.
    """
    place = (at - running.start) / running.history.step
    slot = min(int(place + 1e-9), running.job.deadline_slots)
    share = max(0.0, place - slot)
    if slot > running.slot + (share == 0.0):
        return None
    progress, _ = running.standing(slot, reports)
    done = min(
        running.job.workload,
        progress.done + share * _gain(running, progress, slot) if share else progress.done,
    )
    return done / running.job.workload * running.request.workload.amount


def _gain(running: OpenJob, progress: Progress, slot: int) -> float:
    """Work of a whole slot on what could be held of its decision."""
    view = running.seen.view(running.job, progress, slot)
    return slot_gain(view, held(running.job, running.decided.get(slot, NOTHING), view.available).total)
