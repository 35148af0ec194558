"""Reports of a job from the progress of its trainer, with the boot and restart that were measured (M12.9)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from slackwater.flows.acting.ledger import LaunchLedger, ledger_file
from slackwater.flows.acting.progress import TrainerProgress
from slackwater.flows.ledger.jobs import find_job
from slackwater.flows.ledger.reports import Report, every_report, save_report
from slackwater.flows.show.formats import percent, utc
from slackwater.warehouse.store.connection import open_store


def report_progress(db: Path, job: str, found: TrainerProgress, now: datetime) -> dict[str, Any]:
    """Store the progress saved by the newest checkpoint as a report of the job, and return it with a sentence.

    Measured minutes are reported once for each process of the trainer. Raises `JobError` where the
    report contradicts an earlier one.
    """
    at = pd.Timestamp(found.at if found.is_finished else found.reported_at).floor("us")
    with open_store(db) as store:
        stored = find_job(store, job)
        report = Report(
            job=job,
            reported_at=max(at, stored.request.starts),
            known_at=max(at, pd.Timestamp(now), stored.request.starts),
            progress=None if found.is_finished else found.saved_share * stored.request.workload.amount,
            finished=found.is_finished,
            note="from the trainer's checkpoints",
        )
        if not found.is_finished:
            same = [one for one in every_report(store, [job]) if one.reported_at == report.reported_at]
            measured: dict[str, Any] = {**(same[-1].measured if same else {}), **_measured(db, job, found)}
            report = replace(report, **measured)
        _, added = save_report(store, report, stored)
    text = (
        f"{job} has finished: all {found.max_steps:,} steps are done."
        if found.is_finished
        else f"{job}: {percent(found.saved_share)} saved at {utc(found.saved_at)} "
        f"(step {found.saved_step:,} of {found.max_steps:,}); {found.loss_words(now)}."
    )
    return {
        "job": job,
        "added": added,
        "reported_at": report.reported_at,
        "step": found.step,
        "saved_step": found.saved_step,
        "max_steps": found.max_steps,
        "saved_share": found.saved_share,
        "finished": found.is_finished,
        **report.measured,
        "told": text,
    }


def _measured(db: Path, job: str, found: TrainerProgress) -> dict[str, float]:
    """Return the measured minutes of the present process: restart, checkpoints, and the boot of its instances."""
    measured: dict[str, float] = {}
    if found.restart_minutes is not None:
        measured["restart_minutes"] = round(found.restart_minutes, 3)
    if found.checkpoint_minutes is not None:
        measured["checkpoint_minutes"] = round(found.checkpoint_minutes, 3)
    if found.started_at is not None and ledger_file(db).exists():
        launches = LaunchLedger(ledger_file(db), read_only=True).job(job)
        granted = [
            instance.since for instance in launches.instances.values() if instance.since <= found.started_at
        ]
        if granted:
            minutes = (found.started_at - max(granted)).total_seconds() / 60.0
            measured["boot_minutes"] = round(minutes, 3)
    return measured
