"""Where jobs stand, slot by slot, from what was decided for them and what their markets then gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from flows.ledger.jobs import StoredJob
from flows.ledger.records import allocations_of, stored_decisions
from flows.ledger.reports import Report, counting, open_job, reports_by_job
from flows.turn.markets import Followed, read_histories
from flows.ui.reading import Reading
from optimization.job.definition import Job, Progress
from optimization.job.progress import finished
from optimization.replay.standing import NOTHING, held
from optimization.window.plan import Allocation
from warehouse.errors import SlackwaterError
from warehouse.history import History, Market

Decisions = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A job at slot ``slot`` (the one its newest decision is for, or its end).

    ``done`` has the work done at the start of slots 0..``slot``, ``held`` what was held in those before ``slot``, ``now`` the
    progress at its start. ``decided`` is by slot. ``reported_at`` is when somebody last said how far the job is, None if it is
    reckoned from the decisions alone.
    """

    job: Job
    start: pd.Timestamp
    step: pd.Timedelta
    slot: int
    done: tuple[float, ...]
    held: tuple[Allocation, ...]
    now: Progress
    decided: Mapping[int, Allocation]
    price: np.ndarray
    available: np.ndarray
    reported_at: pd.Timestamp | None

    @property
    def is_finished(self) -> bool:
        """The work is done."""
        return finished(self.now.done, self.job.workload)

    @property
    def finished_at(self) -> pd.Timestamp | None:
        """End of the slot in which the work was done, None while it is not."""
        if not self.is_finished:
            return None
        first = next(k for k, done in enumerate(self.done) if finished(done, self.job.workload))
        return self.start + first * self.step

    @property
    def slots_ahead(self) -> float:
        """Slots ahead of uniform progress, negative when behind: (z - Zexp) / (L / d)."""
        expected = min(1.0, self.slot / self.job.deadline_slots)
        return (self.now.done / self.job.workload - expected) * self.job.deadline_slots


def read_decisions(reading: Reading, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Decisions by job and slot as the command line prints them, with the run that made them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run, row in stored_decisions(reading.store, {"job": list(names)}, order_by=["job", "slot"]):
        found.setdefault(row["job"], []).append(row | {"run": run})
    return found


def standings(reading: Reading, jobs: Sequence[StoredJob], decided: Decisions) -> dict[str, Standing | str]:
    """The standing of each job that anything was decided for; a sentence where its market cannot be read."""
    asked: dict[str, tuple[StoredJob, Followed]] = {}
    found: dict[str, Standing | str] = {}
    for job in jobs:
        rows = decided.get(job.request.name, ())
        if not rows:
            continue
        try:
            asked[job.request.name] = (job, _market_of(reading, job, rows[-1]))
        except SlackwaterError as error:
            found[job.request.name] = str(error)
    histories = _histories(reading, list(asked.values()))
    reports = reports_by_job(reading.store, list(asked))
    for name, (job, followed) in asked.items():
        history = histories[followed]
        try:
            found[name] = (
                history
                if isinstance(history, str)
                else _standing(job, history, decided[name], counting(reports[name], known_at=followed.at))
            )
        except SlackwaterError as error:  # a job that does not fit the present settings
            found[name] = str(error)
    return found


def _market_of(reading: Reading, job: StoredJob, newest: Mapping[str, Any]) -> Followed:
    """Where a job runs, taken at its newest decision, at the slot after it when a later turn made none (it may have finished
    there), or at its deadline when the newest turn is past that."""
    slot = pd.Timestamp(newest["slot"])
    if reading.at is not None and reading.at >= job.deadline:
        slot = job.deadline
    elif reading.at is not None and reading.at > slot and newest["run"] != reading.run:
        slot += reading.step
    return Followed(
        market=Market.parse(str(job.request.market)),
        source=job.request.source or str(newest["source"]),
        at=min(slot, job.deadline),
    )


def _histories(
    reading: Reading, asked: Sequence[tuple[StoredJob, Followed]]
) -> dict[Followed, History | str]:
    """Histories from each job's first slot on, by one read; one by one where a market of them has none."""
    starts: dict[Followed, pd.Timestamp] = {}
    for job, followed in asked:
        starts[followed] = min(job.start, starts.get(followed, job.start))
    try:
        return dict(read_histories(reading.store, starts, settings=reading.settings))
    except SlackwaterError:
        found: dict[Followed, History | str] = {}
        for followed, start in starts.items():
            try:
                found |= read_histories(reading.store, {followed: start}, settings=reading.settings)
            except SlackwaterError as error:
                found[followed] = str(error)
        return found


def _standing(
    stored: StoredJob, history: History, rows: Sequence[Mapping[str, Any]], reports: Sequence[Report]
) -> Standing:
    running = open_job(stored.request, history, decided=allocations_of(rows), forecasts=[], reports=reports)
    live = running.live
    job, slot, decided = live.job, min(live.slot, live.job.deadline_slots), live.decided
    now, views = live.standing(slot)
    done = np.full(slot + 1, np.nan)
    had: list[Allocation] = [NOTHING] * slot
    for view in views:
        done[view.slot] = view.progress.done
        had[view.slot] = held(job, decided.get(view.slot, NOTHING), view.available)
    done[slot] = now.done
    table = history.frame.reindex(pd.date_range(stored.start, periods=job.deadline_slots, freq=history.step))
    return Standing(
        job=job,
        start=stored.start,
        step=history.step,
        slot=slot,
        # a slot without a view is one in which the work was finished
        done=tuple(np.where(np.isnan(done), job.workload, done).tolist()),
        held=tuple(had),
        now=now,
        decided=decided,
        price=table["price_usd"].to_numpy(dtype=float),
        available=table["available"].to_numpy(dtype=float),
        reported_at=None if running.progress_report is None else running.progress_report.reported_at,
    )
