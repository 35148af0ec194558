"""A rehearsal of `slackwater act`: a job of the recorded past in a simulated cloud, on a copy of the warehouse.

Turns of a rehearsal report the progress of the simulated jobs and decide their slots as turns do,
without forecasts; passes, standby plans, revisions and evidence are those of `slackwater act`.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from slackwater.flows.acting.contract import KINDS, count_by_kind, count_words
from slackwater.flows.acting.drivers import DRIVERS, Place
from slackwater.flows.acting.drivers.simulated import SimulatedDriver
from slackwater.flows.acting.ledger import (
    Evidence,
    InstanceEntry,
    LaunchLedger,
    OrderEntry,
    RevisionEntry,
    ledger_file,
)
from slackwater.flows.acting.loop import ActLoop, NewEvidence
from slackwater.flows.acting.targets import Limits
from slackwater.flows.acting.warehouse import ActingWarehouse
from slackwater.flows.config import Settings
from slackwater.flows.following import step_of
from slackwater.flows.histories import read_history
from slackwater.flows.ledger.decisions import decisions_by_job, save_decisions
from slackwater.flows.ledger.headline import compared_words
from slackwater.flows.ledger.jobs import StoredJob, save_jobs, stored_jobs
from slackwater.flows.ledger.reports import Report, reports_of, save_report
from slackwater.flows.places import find_market, markets_of
from slackwater.flows.show.formats import usd
from slackwater.flows.turn.context import Turn, run_id_of
from slackwater.flows.turn.decide import decide_together, effort_of
from slackwater.flows.turn.opening import open_jobs
from slackwater.flows.turn.pool import read_pool
from slackwater.optimization.job.request import JobRequest
from slackwater.optimization.policies.contract import Policy
from slackwater.warehouse.store.connection import Store, newest_snapshot, open_reader, open_store

#: Slots of the rehearsed job, and the instances that a window must have before it loses them.
SLOTS, INSTANCES = 10, 4
#: Passes in a slot.
PASSES = 3


def simulated_cloud(db: Path, world: ActingWarehouse) -> SimulatedDriver:
    """Return the simulated cloud of a warehouse."""
    result = DRIVERS["simulated"]({}, Place(name="simulated", db=db, world_of=world.world_of))
    if not isinstance(result, SimulatedDriver):
        raise TypeError(f"{type(result).__name__} in place of a simulated driver")
    return result


def rehearse_turn(
    db: Path,
    settings: Settings,
    cloud: SimulatedDriver,
    at: pd.Timestamp,
    *,
    policy: Policy[Any] | None = None,
) -> None:
    """Report the progress of the open jobs of a simulated cloud and decide their slots; a repeat changes nothing.

    Without a ``policy`` the leading policies of the warehouse decide.
    """
    with open_store(db) as store, store.transaction():
        turn = Turn(store=store, at=at, settings=settings, run_id=run_id_of(at))
        jobs = [job for job in stored_jobs(store, known_at=at) if job.start <= at < job.deadline]
        rows = decisions_by_job(store, [job.request.name for job in jobs])
        lacking = []
        for job in jobs:
            issued = any(pd.Timestamp(row["slot"]) == at for row in rows[job.request.name])
            if not (issued or _report(store, job, cloud, at)):
                lacking.append((job, markets_of(turn, job.request)))
        if not lacking:
            return
        by = read_pool(turn).deciders([at])[0]
        if policy is not None:
            by = replace(by, in_one_market=(policy, "asked for"))
        opened = open_jobs(turn, lacking, forecasts={}, by=by)
        states = [(0, job) for job in opened if not isinstance(job, Exception)]
        issued_now = [row for own in rows.values() for row in own if pd.Timestamp(row["slot"]) == at]
        (result,) = decide_together(states, [issued_now], effort_of(settings), turn.fan)
        save_decisions(store, [(turn.run_id, row) for row in result.values() if not isinstance(row, str)])


def _report(store: Store, job: StoredJob, cloud: SimulatedDriver, at: pd.Timestamp) -> bool:
    """Report the progress of a simulated job; return whether it has ended."""
    name = job.request.name
    run = cloud.run(name, at.to_pydatetime())
    known = reports_of(store, name)
    if any(earlier.ends for earlier in known):
        return True
    progress = run.work / run.terms.workload * job.request.workload.amount
    progress = max([progress, *(earlier.progress or 0.0 for earlier in known)])
    same = next((earlier for earlier in known if earlier.reported_at == at), None)
    if same is None or same.progress is None:  # the instances that another report of this time states stay
        report = same or Report(job=name, reported_at=at, known_at=at)
        save_report(store, replace(report, progress=progress, finished=run.is_finished), job)
    return run.is_finished


def rehearse(db: Path, settings: Settings, at: pd.Timestamp) -> list[str]:
    """Rehearse acting on a job in the newest window before ``at`` in which an example's market loses all its spot within a slot.

    Returns its events and its bill as lines. Nothing of it is stored. Empty without an example job in a market with counts,
    and after the first turn.
    """
    snapshot = newest_snapshot(db)
    with open_reader(db) as store:
        ((turns,),) = store.execute("SELECT count(DISTINCT logical_at) FROM runs WHERE stage = 'allocate'")
    if turns > 1:
        return []
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "w.duckdb"
        shutil.copyfile(db if snapshot is None else snapshot.path, copy)
        found = _window(copy, settings, at)
        if found is None:
            return []
        _, start, market, source = found
        request = _request(market, source, start)
        with open_store(copy) as store:
            store.execute("DELETE FROM jobs")
            store.execute("DELETE FROM decisions")
            save_jobs(store, [request], origin="example", at=start, step=step_of(settings))
        return _rehearse(copy, settings, request, market)


def _request(market: str, source: str, start: pd.Timestamp) -> JobRequest:
    terms = {
        "name": "rehearsal",
        "deadline_in": "5h",
        "n_min": 1,
        "n_max": INSTANCES,
        "workload": {"amount": 12.0, "unit": "instance_hours"},
        "throughput": {"form": "linear"},
        "checkpoint": {"resumable": True},
    }
    return JobRequest.model_validate(terms).with_place(at=start, market=market, source=source)


def _window(db: Path, settings: Settings, at: pd.Timestamp) -> tuple[bool, pd.Timestamp, str, str] | None:
    """Return the newest window with a loss, from the record of two days: whether it is early, start, market and source."""
    found: list[tuple[bool, pd.Timestamp, str, str]] = []
    with open_reader(db) as store:
        jobs = [job for job in stored_jobs(store, known_at=at) if job.origin == "example" and job.start <= at]
        for job in jobs:
            if job.request.market is None:
                continue
            name = f"{job.request.market}@{job.request.source}"
            followed = find_market(store, name, at=at, settings=settings)
            history = read_history(store, followed, settings=settings, start=at - pd.Timedelta(days=2))
            if history.within is None or not history.availability_observed:
                continue
            counts, inside = history.available, history.within
            for k in range(2, len(counts) - SLOTS):
                if min(counts[k - 2 : k + 1]) >= INSTANCES and np.nanmin(inside[k + 1]) == 0:
                    early = inside[k + 1, 0] == 0  # with time left in the slot to decide again
                    start = history.slots[k - 2]
                    found.append((bool(early), start, job.request.market, str(job.request.source)))
    return max(found, default=None)


class _PastWarehouse(ActingWarehouse):
    """The warehouse of a rehearsal in the past: its markets are read once, and all evidence stays in memory."""

    def __init__(self, db: Path, settings: Settings, *, examples: bool = False) -> None:
        super().__init__(db, settings, examples=examples)
        self.entries: list[Evidence] = []

    def _slot(self, now: datetime) -> pd.Timestamp:
        return pd.Timestamp.max.tz_localize("UTC").floor("D")  # the end of the job

    def record(self, found: Sequence[NewEvidence], now: datetime) -> Mapping[str, Sequence[str]] | None:
        """Store evidence, and append its entries to ``entries``."""
        self.entries += [entry for result in found for entry in result.entries]
        return super().record(found, now)


def _rehearse(db: Path, settings: Settings, request: JobRequest, market: str) -> list[str]:
    """Act on a job to its end; return lines with the events and with the bill, compared with on-demand only."""
    step = step_of(settings)
    world = _PastWarehouse(db, settings, examples=True)
    cloud = simulated_cloud(db, world)
    every = (step / PASSES).to_pytimedelta()
    at, end = request.starts, request.ends
    with LaunchLedger(ledger_file(db)) as ledger:
        acting = ActLoop(
            world=world, ledger=ledger, driver_of=lambda _: cloud, limits=Limits(idle_slots=3, every=every)
        )
        while at <= end:
            if (at - request.starts) % step == pd.Timedelta(0) and at < end:
                rehearse_turn(db, settings, cloud, at)
            if all(job_pass.is_over for job_pass in acting.run_pass(at.to_pydatetime())):
                break
            at += every
        run = cloud.run(request.name, end.to_pydatetime())
        with open_reader(db) as store:
            rows = decisions_by_job(store, [request.name])[request.name]
    only = rows[0]["on_demand_only_usd"] if rows else None
    end_words, saved = "not finished", ""
    if run.finish is not None:
        end_words = f"finished at {request.starts + pd.Timedelta(seconds=run.finish):%H:%M}"
        saved = f", {compared_words(1.0 - run.paid_usd / only)} (${usd(only)})" if only else ""
    left = sum(count_by_kind(cloud.listed(request.name, [], end.to_pydatetime())).values())
    return [
        f"{request.starts:%Y-%m-%d %H:%M} UTC: a job for up to {INSTANCES} instances in {market}, due {end:%H:%M}",
        *(f"{when:%H:%M} {text}" for when, text in events_of(world.entries)),
        f"{end_words}; {left or 'no'} instances left; paid ${usd(run.paid_usd)}{saved}",
    ]


def events_of(entries: Sequence[Evidence]) -> list[tuple[datetime, str]]:
    """Return the events of instances in words, with their times: launched, lost, replaced, stopped."""
    found: list[tuple[datetime, str]] = []
    for entry in entries:
        if isinstance(entry, InstanceEntry):
            ends = (("lost", "lost"), ("stopped", "stopped"), ("finished:", "finished"), ("launched", None))
            for word, end in ends:
                if chosen := [instance for instance in entry.instances if instance.end == end]:
                    at = max(instance.ended or instance.since for instance in chosen)
                    counts = Counter(instance.kind for instance in chosen)
                    found.append((at, f"{word} {count_words({kind: counts[kind] for kind in KINDS})}"))
        elif isinstance(entry, RevisionEntry):
            counts_now = {kind: entry.row[kind] for kind in KINDS}
            found.append((entry.at, f"decided again for the rest of the slot: run {count_words(counts_now)}"))
        elif isinstance(entry, OrderEntry) and "standby" in entry.why:
            n = entry.order.on_demand
            words = f"{n} on-demand at once" if n else "wait for the next decision"
            found.append((entry.at, f"the standby plan of the decision: {words}"))
    return found
