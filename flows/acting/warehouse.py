"""The warehouse as `slackwater act` uses it: jobs with their decisions, prices, evidence, and the simulated world of a job."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slackwater.flows.acting.account import MarketPrices
from slackwater.flows.acting.contract import count_by_kind
from slackwater.flows.acting.drivers.simulated import JobWorld
from slackwater.flows.acting.ledger import Answered, Evidence, JobLaunches, Revised, Seen
from slackwater.flows.acting.loop import NewEvidence
from slackwater.flows.acting.revising import revision_of
from slackwater.flows.acting.targets import ActedDecision, ActedJob, LastStart
from slackwater.flows.config import Settings
from slackwater.flows.delivery import key_of
from slackwater.flows.ledger.decisions import Row, decisions_by_job, save_revisions
from slackwater.flows.ledger.jobs import StoredJob, find_job, stored_jobs
from slackwater.flows.ledger.open_job import OpenJob
from slackwater.flows.ledger.reports import MOST_HELD, Report, reports_by_job, save_report
from slackwater.flows.turn.context import Turn, run_id_of
from slackwater.flows.turn.markets.places import markets_of
from slackwater.flows.turn.opening import opened
from slackwater.optimization.replay.decision import RAISED
from slackwater.warehouse.errors import JobError, StoreLockedError, why_raised
from slackwater.warehouse.history import History
from slackwater.warehouse.store.connection import Store, newest_snapshot, open_reader, open_store

SECONDS_PER_HOUR = 3600.0


class ActedWarehouse:
    """A warehouse that is acted on; each call reads its newest snapshot.

    ``examples``: example jobs are acted on as well, which is for simulated clouds only. Values that
    stay the same within a slot are kept until the slot or the snapshot changes.
    """

    def __init__(self, db: Path, settings: Settings, *, examples: bool = False) -> None:
        self._db = db
        self._origins = ("user", "example") if examples else ("user",)
        self._settings = settings
        self._kept: dict[tuple[Any, ...], Any] = {}
        self._kept_of: object = None

    def jobs(self, names: Collection[str], now: datetime) -> list[ActedJob]:
        """Return the jobs that are open at a time and those named, with their newest decisions."""
        at = pd.Timestamp(now)
        with open_reader(self._db) as store:
            jobs = [
                job
                for job in stored_jobs(store, known_at=at)
                if job.request.name in names
                or (job.origin in self._origins and job.start <= at < job.request.ends)
            ]
            found = [job.request.name for job in jobs]
            rows, reports = decisions_by_job(store, found), reports_by_job(store, found, known_at=at)
        return [_acted(job, rows[job.request.name], reports[job.request.name], at) for job in jobs]

    def last_start(self, job: str, slot: datetime) -> LastStart | None:
        """Return until when on-demand alone meets the deadline of a job from its state at a slot; None if nothing is sold there.

        The work counted is that of the last checkpoint at the start of the slot.
        """
        found: LastStart | None = self._keep(("last", job, slot), lambda: self._last_start(job, slot))
        return found

    def _last_start(self, job: str, slot: datetime) -> LastStart | None:
        state = self._open(job, slot)
        run = state.live.world()
        best: tuple[float, int] | None = None
        for m, terms in enumerate(run.markets.terms):
            if terms.sold:
                moved = 0.0 if run.place in (None, m) else run.markets.transfer
                rest = (terms.workload - run.saved) / max(terms.rates) * SECONDS_PER_HOUR
                seconds = terms.new_seconds(terms.fastest) + rest + moved
                best = min(best or (seconds, m), (seconds, m))
        if best is None:
            return None
        rates = run.markets.terms[best[1]].rates
        return LastStart(
            at=(state.live.deadline - pd.Timedelta(seconds=math.ceil(best[0]))).to_pydatetime(),
            market=state.places[best[1]],
            on_demand=rates.index(max(rates)),
        )

    def revise(self, job: ActedJob, launches: JobLaunches, now: datetime) -> Row | str:
        """Return a decision for the rest of the slot after a loss of spot (M12.15), or why there is none."""
        try:
            with open_reader(self._db) as store:
                return revision_of(store, self._settings, job, launches, pd.Timestamp(now))
        except RAISED as error:
            return f"not decided again: {why_raised(error)}"

    def prices(self, job: str, markets: Collection[str], now: datetime) -> Mapping[str, MarketPrices]:
        """Return the prices of the markets of a job since its start, as far as they are known."""
        if not markets:
            return {}
        return {
            history.market.key: _prices(history)
            for history in self._open(job, now).histories
            if history.market.key in markets
        }

    def record(self, found: Sequence[NewEvidence], now: datetime) -> bool:
        """Store what became of the instances of jobs as reports; return False while another process writes."""
        try:
            with open_store(self._db, wait=0.0) as store:
                for one in found:
                    at = pd.Timestamp(max([now, *(entry.at for entry in one.entries)])).floor("us")
                    save_revisions(store, [entry.row for entry in one.entries if isinstance(entry, Revised)])
                    report = evidence(one.job, at, one.entries, one.launches)
                    _save(store, find_job(store, one.job), report)
        except StoreLockedError:
            return False
        return True

    def world_of(self, job: str, now: datetime) -> JobWorld:
        """Return the simulated world of a job: its markets as recorded by a time."""
        slot = self._slot(now)
        until = slot + pd.Timedelta(minutes=self._settings.step_minutes)
        # Until the next slot: its reading, and the counts read before it. The run stops at ``now``.
        state: OpenJob = self._keep(("world", job, slot), lambda: self._opened(job, until))
        live = state.live
        return JobWorld(
            start=live.start.to_pydatetime(),
            names=state.places,
            markets=live.markets,
            readings=tuple(live.readings()),
        )

    def _open(self, job: str, now: datetime) -> OpenJob:
        found: OpenJob = self._keep(
            ("open", job, self._slot(now)), lambda: self._opened(job, self._slot(now))
        )
        return found

    def _opened(self, job: str, slot: pd.Timestamp) -> OpenJob:
        with open_reader(self._db) as store:
            stored = find_job(store, job, known_at=slot)
            at = min(max(slot, stored.start), stored.deadline)
            turn = Turn(store=store, at=at, settings=self._settings, run_id=run_id_of(at, "act"))
            return opened(turn, (stored, markets_of(turn, stored.request)))

    def _slot(self, now: datetime) -> pd.Timestamp:
        return pd.Timestamp(now).floor(pd.Timedelta(minutes=self._settings.step_minutes))

    def _keep(self, name: tuple[Any, ...], make: Any) -> Any:
        snapshot = newest_snapshot(self._db)
        if snapshot != self._kept_of:
            self._kept, self._kept_of = {}, snapshot
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]


def _acted(
    job: StoredJob, rows: Sequence[Mapping[str, Any]], reports: Sequence[Report], at: pd.Timestamp
) -> ActedJob:
    begun = [row for row in rows if pd.Timestamp(row["slot"]) <= at]
    ended = next((report for report in reports if report.ends), None)
    own = [job.request.market] if job.request.market is not None else []
    return ActedJob(
        name=job.request.name,
        deadline=job.request.ends.to_pydatetime(),
        step=job.step.to_pytimedelta(),
        budget_usd=job.request.budget_usd,
        markets=tuple(dict.fromkeys([*own, *(str(row["market"]) for row in begun)])),
        ended="" if ended is None else "finished" if ended.finished else "withdrawn",
        decision=_decision(begun[-1]) if begun else None,
    )


def _decision(row: Mapping[str, Any]) -> ActedDecision:
    return ActedDecision(
        key=key_of(row),
        market=str(row["market"]),
        slot=pd.Timestamp(row["slot"]).to_pydatetime(),
        valid_until=pd.Timestamp(row["slot_end"]).to_pydatetime(),
        on_demand=int(row["on_demand"]),
        spot=int(row["spot"]),
        standby_on_demand=None if row["standby_on_demand"] is None else int(row["standby_on_demand"]),
        standby_spot=int(row["standby_spot"] or 0),
        standby_market=None if row["standby_market"] is None else str(row["standby_market"]),
        guarded=bool(row["guarded"]),
    )


def _prices(history: History) -> MarketPrices:
    known = np.isfinite(history.price)
    return MarketPrices(
        on_demand_usd=history.on_demand_usd,
        spot_times=np.array([slot.timestamp() for slot in history.slots[known]]),
        spot_usd=history.price[known],
    )


def evidence(job: str, at: pd.Timestamp, entries: Sequence[Evidence], launches: JobLaunches) -> Report:
    """Return the report of a job's own launches at a time (M13.1)."""
    held = count_by_kind(launches.held)
    spot = [one for one in launches.held if one.kind == "spot"]
    lost = [one for entry in entries if isinstance(entry, Seen) for one in entry.lost if one.kind == "spot"]
    asked = launches.last.order.spot if launches.last is not None else 0
    newest = max((one.since for one in (*spot, *lost)), default=None)
    minutes = 0.0 if newest is None else (at - newest) / pd.Timedelta(minutes=1)
    whole = asked and held["spot"] >= asked
    return Report(
        job=job,
        reported_at=at,
        known_at=at,
        on_demand=held["on_demand"],
        spot=held["spot"],
        market=launches.held[-1].market if launches.held else None,
        note=told(entries),
        asked=asked or None,
        granted=min(asked, held["spot"]) if asked else None,
        lost=len(lost) or None,
        held_minutes=min(MOST_HELD, round(minutes, 3)) if whole or lost else None,
    )


def told(entries: Sequence[Evidence]) -> str:
    """Return what became of orders, in words.

    >>> told([Answered(at=datetime(2026, 1, 1), job="j", token="k-1", refused="no capacity")])
    'refused: no capacity'
    """
    changed = [one for entry in entries if isinstance(entry, Seen) for one in entry.instances]
    parts = []
    for word, chosen in (
        ("granted", [one for one in changed if one.ended is None]),
        *((end, [one for one in changed if one.end == end]) for end in ("lost", "stopped", "finished")),
    ):
        counts = {kind: sum(one.kind == kind for one in chosen) for kind in ("on_demand", "spot")}
        shown = [f"{n} {kind.replace('_', '-')}" for kind, n in counts.items() if n]
        parts += [f"{word} {' and '.join(shown)}"] if shown else []
    refused = [one.refused for one in entries if isinstance(one, Answered) and one.refused]
    return "; ".join([*parts, *(f"refused: {why}" for why in dict.fromkeys(refused))])


def _save(store: Store, stored: StoredJob, report: Report) -> None:
    """Store a report; instances before the start or after the deadline of a job are not evidence and are left out."""
    request = stored.request
    if not request.starts <= report.reported_at <= request.ends:
        return
    if not request.may_move:
        report = replace(report, market=None)
    with suppress(JobError):
        save_report(store, report, stored)
