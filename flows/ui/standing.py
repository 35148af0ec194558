"""Where jobs stand, slot by slot, from what was decided for them and what their markets then gave."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from flows.frames import rows_of
from flows.jobfile import slot_job
from flows.markets import Followed, read_histories
from flows.records import StoredJob, allocations_of
from flows.ui.reading import Reading
from optimization.held import NOTHING, held, held_so_far
from optimization.job import Job, Progress
from optimization.market import market_window
from optimization.plan import Allocation
from optimization.progress import finished
from optimization.replay import see
from warehouse.errors import SlackwaterError
from warehouse.history import History, Market
from warehouse.store import read_rows

Decisions = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A job at slot ``slot`` (the one its newest decision is for, or its end).

    ``done`` has the work done at the start of each slot so far and now, shape (k + 1,); ``held`` what was held in them, shape (k,);
    k is less than ``slot`` once the work is finished. ``now`` is its progress at the end of these. ``decided`` is by slot.
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
    on_demand_usd: float

    @property
    def is_finished(self) -> bool:
        """The work is done."""
        return finished(self.now.done, self.job.workload)

    @property
    def finished_at(self) -> pd.Timestamp | None:
        """End of the slot in which the work was done, None while it is not."""
        return self.start + len(self.held) * self.step if self.is_finished else None

    @property
    def slots_ahead(self) -> float:
        """Slots ahead of uniform progress, negative when behind: (z - Zexp) / (L / d)."""
        expected = min(1.0, self.slot / self.job.deadline_slots)
        return (self.now.done / self.job.workload - expected) * self.job.deadline_slots


def read_decisions(reading: Reading, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Decisions by job and slot as the command line prints them, with the run that made them."""
    found: dict[str, list[dict[str, Any]]] = {}
    table = read_rows(reading.store, "decisions", where={"job": list(names)}, order_by=["job", "slot"])
    for row in rows_of(table):
        found.setdefault(row["job"], []).append(json.loads(row["details"]) | {"run": row["run"]})
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
    for name, (job, followed) in asked.items():
        history = histories[followed]
        try:
            found[name] = history if isinstance(history, str) else _standing(job, history, decided[name])
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


def _standing(stored: StoredJob, history: History, rows: Sequence[Mapping[str, Any]]) -> Standing:
    job = slot_job(stored.request, step=history.step, on_demand_usd=history.on_demand_usd)
    grid = pd.date_range(stored.start, periods=job.deadline_slots, freq=history.step)
    table = history.frame.reindex(grid)
    price, available = (table[name].to_numpy(dtype=float) for name in ("price_usd", "available"))
    window = market_window(
        price, available, on_demand_usd=history.on_demand_usd, slot_hours=history.slot_hours
    )
    slot = round((history.known_at - stored.start) / history.step)
    slot = max(0, min(slot, job.deadline_slots))
    decided = {
        round((when - stored.start) / history.step): allocation
        for when, allocation in allocations_of(rows).items()
    }
    now, views = held_so_far(job, see(job, window, [None] * len(grid)), decided, slots=slot)
    return Standing(
        job=job,
        start=stored.start,
        step=history.step,
        slot=slot,
        done=(*(view.progress.done for view in views), now.done),
        held=tuple(held(job, decided.get(view.slot, NOTHING), view.available) for view in views),
        now=now,
        decided=decided,
        price=price,
        available=available,
        on_demand_usd=history.on_demand_usd,
    )
