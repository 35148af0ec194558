"""Reports of a job from the progress of its trainer, with measured boot, restart and checkpoint times (M12.9)."""

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


def report_progress(db: Path, job: str, progress: TrainerProgress, now: datetime) -> dict[str, Any]:
    """Store the progress saved by the newest checkpoint as a report of the job, and return it with a sentence.

    Measured minutes are reported once for each process of the trainer. Raises `JobError` where the
    report contradicts an earlier one.
    """
    at = pd.Timestamp(progress.at if progress.is_finished else progress.reported_at).floor("us")
    with open_store(db) as store:
        stored = find_job(store, job)
        report = Report(
            job=job,
            reported_at=max(at, stored.request.starts),
            known_at=max(at, pd.Timestamp(now), stored.request.starts),
            progress=None if progress.is_finished else progress.saved_share * stored.request.workload.amount,
            finished=progress.is_finished,
            note="from the trainer's checkpoints",
        )
        if not progress.is_finished:
            same = [
                earlier for earlier in every_report(store, [job]) if earlier.reported_at == report.reported_at
            ]
            measured: dict[str, Any] = {
                **(same[-1].measured if same else {}),
                **_measured_minutes(db, job, progress),
            }
            report = replace(report, **measured)
        _, added = save_report(store, report, stored)
    text = (
        f"{job} has finished: all {progress.max_steps:,} steps are done."
        if progress.is_finished
        else f"{job}: {percent(progress.saved_share)} saved at {utc(progress.saved_at)} "
        f"(step {progress.saved_step:,} of {progress.max_steps:,}); {progress.loss_words(now)}."
    )
    return {
        "job": job,
        "added": added,
        "reported_at": report.reported_at,
        "step": progress.step,
        "saved_step": progress.saved_step,
        "max_steps": progress.max_steps,
        "saved_share": progress.saved_share,
        "finished": progress.is_finished,
        **report.measured,
        "told": text,
    }


def _measured_minutes(db: Path, job: str, progress: TrainerProgress) -> dict[str, float]:
    """Return the minutes measured in the present process: restart, between checkpoints, and boot of its instances."""
    measured: dict[str, float] = {}
    if progress.restart_minutes is not None:
        measured["restart_minutes"] = round(progress.restart_minutes, 3)
    if progress.checkpoint_minutes is not None:
        measured["checkpoint_minutes"] = round(progress.checkpoint_minutes, 3)
    if progress.started_at is not None and ledger_file(db).exists():
        launches = LaunchLedger(ledger_file(db), read_only=True).job(job)
        granted = [
            instance.since
            for instance in launches.instances.values()
            if instance.since <= progress.started_at
        ]
        if granted:
            minutes = (progress.started_at - max(granted)).total_seconds() / 60.0
            measured["boot_minutes"] = round(minutes, 3)
    return measured
