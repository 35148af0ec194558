"""The warehouse for `slackwater act`: jobs with their decisions, prices, evidence, and the simulated world of a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slackwater.flows.acting.account import MarketPrices
from slackwater.flows.acting.contract import KINDS, Instance, alive_at, count_by_kind
from slackwater.flows.acting.drivers.simulated import JobWorld
from slackwater.flows.acting.ledger import Evidence, InstanceEntry, JobLaunches, ReturnEntry, RevisionEntry
from slackwater.flows.acting.loop import NewEvidence
from slackwater.flows.acting.revising import revision_of
from slackwater.flows.acting.targets import ActiveJob, LastStart, SlotDecision
from slackwater.flows.config import Settings
from slackwater.flows.ledger.decisions import Row, decided_markets, key_of, newest_decisions, save_revisions
from slackwater.flows.ledger.jobs import StoredJob, find_job, stored_jobs
from slackwater.flows.ledger.open_job import OpenJob
from slackwater.flows.ledger.reports import (
    MOMENT,
    MOST_HELD,
    Report,
    counting,
    every_report,
    reports_of,
    save_report,
)
from slackwater.flows.places import markets_of
from slackwater.flows.turn.context import Turn, run_id_of
from slackwater.flows.turn.opening import open_placed_job
from slackwater.optimization.job.times import MEASURABLE
from slackwater.optimization.replay.decision import RAISED
from slackwater.warehouse.errors import JobError, StoreLockedError, why_raised
from slackwater.warehouse.history import History
from slackwater.warehouse.store.connection import Store, open_reader, open_store, renew_reader

SECONDS_PER_HOUR = 3600.0


@dataclass(slots=True)
class _CachedValues:
    """Values that stay the same while ``state`` does."""

    state: object = None
    values: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def get(self, state: object, name: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        if state != self.state:
            self.state, self.values = state, {}
        if name not in self.values:
            self.values[name] = make()
        return self.values[name]


class ActingWarehouse:
    """The warehouse of `slackwater act`; each call reads its newest snapshot.

    With ``examples`` example jobs are included, which is for simulated clouds only. A pass over an
    unchanged warehouse reads almost nothing: the snapshot stays open, the state of a job is cached
    until the slot or the snapshot changes, and its markets until the slot, its terms or the
    observations change.
    """

    def __init__(self, db: Path, settings: Settings, *, examples: bool = False) -> None:
        self._db = db
        self._origins = ("user", "example") if examples else ("user",)
        self._settings = settings
        self._reader: Store | None = None
        self._rows, self._decided = _CachedValues(), _CachedValues()
        self._markets: dict[str, _CachedValues] = {}

    def _read(self, name: tuple[Any, ...], read: Callable[[Store], Any]) -> Any:
        """Return the result of ``read`` on the present snapshot, stored by ``name`` until there is a newer snapshot."""
        with self._reading() as store:
            return self._rows.get(store.snapshot or object(), name, lambda: read(store))

    @contextmanager
    def _reading(self) -> Iterator[Store]:
        """Yield a reader of the present state; a snapshot stays open until there is a newer snapshot."""
        store = open_reader(self._db) if self._reader is None else renew_reader(self._reader, self._db)
        self._reader = None if store.snapshot is None else store
        try:
            yield store
        finally:
            if self._reader is None:
                store.close()

    def jobs(self, names: Collection[str], now: datetime) -> list[ActiveJob]:
        """Return the jobs that are open at a time and those named, with their newest decisions."""
        at = pd.Timestamp(now)
        with self._reading() as store:
            jobs = [
                job
                for job in stored_jobs(store, known_at=at)
                if job.request.name in names
                or (job.origin in self._origins and job.start <= at < job.request.ends)
            ]
            found = tuple(job.request.name for job in jobs)
            if not found:
                return []
            minute = at.floor("min")  # decisions begin on whole minutes
            rows, markets, reports = self._decided.get(
                (store.snapshot or object(), minute, found),
                (),
                lambda: (
                    newest_decisions(store, found, at=minute),
                    decided_markets(store, found, at=minute),
                    every_report(store, found),
                ),
            )
        return [
            _acted_job(
                job,
                rows.get(job.request.name),
                markets[job.request.name],
                counting((report for report in reports if report.job == job.request.name), known_at=at),
            )
            for job in jobs
        ]

    def last_start(self, job: str, slot: datetime) -> LastStart | None:
        """Return the latest start of on-demand that meets a job's deadline from its state at a slot; None if no on-demand is sold.

        The work counted is that of the last checkpoint at the start of the slot.
        """
        found: LastStart | None = self._read(("last", job, slot), lambda _: self._last_start(job, slot))
        return found

    def _last_start(self, job: str, slot: datetime) -> LastStart | None:
        state = self._open_job(job, pd.Timestamp(slot))
        run = state.live.reached().run
        starts = []
        for m, terms in enumerate(run.markets.terms):
            if terms.sold:
                moved = 0.0 if run.place in (None, m) else run.markets.transfer
                rest = (terms.workload - run.saved) / max(terms.rates) * SECONDS_PER_HOUR
                starts.append((terms.new_seconds(terms.fastest) + rest + moved, m))
        if not starts:
            return None
        seconds, m = min(starts)
        rates = run.markets.terms[m].rates
        return LastStart(
            at=(state.live.deadline - pd.Timedelta(seconds=math.ceil(seconds))).to_pydatetime(),
            market=state.places[m],
            on_demand=rates.index(max(rates)),
        )

    def revise(self, job: ActiveJob, launches: JobLaunches, now: datetime) -> Row | str:
        """Return a decision for the rest of the slot after a loss of spot (M12.15), or why there is none."""
        try:
            with self._reading() as store:
                return revision_of(store, self._settings, job, launches, pd.Timestamp(now))
        except RAISED as error:
            return f"not decided again: {why_raised(error)}"

    def prices(self, job: str, markets: Collection[str], now: datetime) -> Mapping[str, MarketPrices]:
        """Return the prices of the markets of a job since its start, as far as they are known."""
        if not markets:
            return {}
        return {
            history.market.key: _prices(history)
            for history in self._open_now(job, now).histories
            if history.market.key in markets
        }

    def record(self, found: Sequence[NewEvidence], now: datetime) -> Mapping[str, Sequence[str]] | None:
        """Store changes of the instances of jobs as reports; return the refusals by job, None while another process writes."""
        try:
            with open_store(self._db, wait=0.0) as store:
                return {item.job: _record(store, item, now) for item in found}
        except StoreLockedError:
            return None

    def world_of(self, job: str, now: datetime) -> JobWorld:
        """Return the simulated world of a job: its markets as recorded by a time."""
        live = self._open_now(job, now).live
        return JobWorld(
            start=live.start.to_pydatetime(),
            names=self._open_now(job, now).places,
            markets=live.markets,
            readings=tuple(live.readings()),
        )

    def _open_now(self, job: str, now: datetime) -> OpenJob:
        """Return a job in its markets, as recorded until the next slot: its reading, and the counts read before it."""
        slot = self._slot(now)
        until = slot + pd.Timedelta(minutes=self._settings.step_minutes)
        state = self._read(("markets", job), lambda store: _state_of_markets(store, job))
        found: OpenJob = self._markets.setdefault(job, _CachedValues()).get(
            (state, slot), (), lambda: self._open_job(job, until)
        )
        return found

    def _open_job(self, job: str, slot: pd.Timestamp) -> OpenJob:
        with self._reading() as store:
            stored = find_job(store, job, known_at=slot)
            at = min(max(slot, stored.start), stored.deadline)
            turn = Turn(store=store, at=at, settings=self._settings, run_id=run_id_of(at, "act"))
            return open_placed_job(turn, (stored, markets_of(turn, stored.request)))

    def _slot(self, now: datetime) -> pd.Timestamp:
        return pd.Timestamp(now).floor(pd.Timedelta(minutes=self._settings.step_minutes))


def _state_of_markets(store: Store, job: str) -> tuple[Any, ...]:
    """Return a value that changes with the observations, the terms of a job and its measured times."""
    measured = ", ".join(MEASURABLE)
    tables = ("price", "availability", "series")
    (found,) = store.execute(
        f"SELECT {', '.join(f'(SELECT count(*) FROM {table})' for table in tables)}, "
        "(SELECT count(*) FROM terms WHERE job = $job), "
        f"(SELECT count(*) FROM reports WHERE job = $job AND coalesce({measured}) IS NOT NULL)",
        {"job": job},
    )
    return found


def _acted_job(
    job: StoredJob, row: Mapping[str, Any] | None, markets: Sequence[str], reports: Sequence[Report]
) -> ActiveJob:
    ended = next((report for report in reports if report.ends), None)
    home = [job.request.market] if job.request.market is not None else []
    return ActiveJob(
        name=job.request.name,
        deadline=job.request.ends.to_pydatetime(),
        step=job.step.to_pytimedelta(),
        budget_usd=job.request.budget_usd,
        markets=tuple(dict.fromkeys([*home, *markets])),
        ended="" if ended is None else "finished" if ended.finished else "withdrawn",
        decision=None if row is None else _decision(row),
    )


def _decision(row: Mapping[str, Any]) -> SlotDecision:
    return SlotDecision(
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


@dataclass(frozen=True, slots=True)
class _Change:
    """An instance that was granted or ended (``word``, such as "lost") at a time; ``left`` spot instances are held afterwards."""

    at: pd.Timestamp
    word: str
    instance: Instance
    left: int


def evidence(new: NewEvidence, now: datetime) -> list[Report]:
    """Return the reports of a job's own launches (M13.1): of each time of a grant or an end, and of the newest entry.

    A change has the time that its driver states, after the newest evidence and at most that of the
    newest entry. A report is of a single market and time, so they follow each other by a microsecond:
    losses in other markets, then the instances that run.
    """
    job, entries, launches = new.job, new.entries, new.launches
    at = pd.Timestamp(max((entry.at for entry in entries), default=now)).floor("us")
    changes = _changes(entries, launches, at)
    refused = [entry.refused for entry in entries if isinstance(entry, ReturnEntry) and entry.refused]
    found: list[Report] = []
    for when in sorted({change.at for change in changes if change.at < at}):
        changed = [change for change in changes if change.at == when]
        held = alive_at(launches.instances.values(), when)
        market = held[-1].market if held else changed[-1].instance.market
        found += _reports(job, when, changed, held, market)
    changed = [change for change in changes if change.at == at]
    is_taken_over = launches.last is None and bool(launches.held)
    requested = None if is_taken_over else _spot_requested(launches)
    place = _market_now(launches, changed)
    found += _reports(job, at, changed, launches.held, place, asked=requested, refused=refused)
    return [
        replace(report, known_at=max(report.reported_at, pd.Timestamp(now).floor("us"))) for report in found
    ]


def _changes(entries: Sequence[Evidence], launches: JobLaunches, at: pd.Timestamp) -> list[_Change]:
    """Return the instances that were granted or ended in some entries, with times after the newest evidence and at most ``at``.

    A driver that launches within a pass states a time after that of the pass, so a grant is known by the instance.
    """
    after = launches.recorded_at
    least = pd.Timestamp.min.tz_localize("UTC") if after is None else pd.Timestamp(after) + MOMENT
    found: dict[tuple[str, str], _Change] = {}
    for entry in (entry for entry in entries if isinstance(entry, InstanceEntry)):
        for instance in entry.instances:
            times = {} if instance.id in launches.recorded_ids else {"granted": instance.since}
            times |= {} if instance.ended is None else {str(instance.end): instance.ended}
            for word, when in times.items():
                change = _Change(min(at, max(least, pd.Timestamp(when))), word, instance, entry.spot_left)
                found.setdefault((instance.id, word), change)
    return list(found.values())


def _spot_requested(launches: JobLaunches) -> int:
    """Return the spot requested by the newest order; 0, which is no evidence, if its call failed before all was granted."""
    requested = launches.spot_requested
    is_granted = count_by_kind(launches.held)["spot"] >= requested
    return 0 if launches.has_failed and not is_granted else requested


def _market_now(launches: JobLaunches, changes: Sequence[_Change]) -> str | None:
    """Return the market of the present instances, of the spot requested, or of the newest loss."""
    if launches.held:
        return launches.held[-1].market
    if launches.last is not None and launches.spot_requested:
        return launches.last.order.market
    return next((change.instance.market for change in reversed(changes) if _is_lost_spot(change)), None)


def _is_lost_spot(change: _Change) -> bool:
    return change.word == "lost" and change.instance.kind == "spot"


def _reports(
    job: str,
    at: pd.Timestamp,
    changes: Sequence[_Change],
    held: Sequence[Instance],
    market: str | None,
    *,
    asked: int | None = None,
    refused: Sequence[str] = (),
) -> list[Report]:
    """Return the reports of a time: losses in other markets than ``market``, then the instances that are held."""
    lost: dict[str, list[_Change]] = {}
    for change in filter(_is_lost_spot, changes):
        lost.setdefault(change.instance.market, []).append(change)
    lost_here = [instance.instance for instance in lost.pop(market or "", [])]
    moments = [at + k * MOMENT for k in range(len(lost) + 1)]
    counts, spot = count_by_kind(held), [instance for instance in held if instance.kind == "spot"]
    whole = asked and counts["spot"] >= asked
    launched = bool(held) and all(pd.Timestamp(instance.since) >= at for instance in held)
    return [
        Report(
            job=job,
            reported_at=when,
            known_at=when,
            spot=losses[-1].left,
            market=there,
            note=f"lost {len(losses)} spot",
            lost=len(losses),
            held_minutes=_minutes_held([loss.instance for loss in losses], at),
        )
        for when, (there, losses) in zip(moments, lost.items(), strict=False)
    ] + [
        Report(
            job=job,
            reported_at=moments[-1],
            known_at=moments[-1],
            on_demand=counts["on_demand"],
            spot=counts["spot"],
            market=market,
            note=describe_changes(changes, refused),
            asked=asked,
            granted=None if asked is None else min(asked, counts["spot"]),
            lost=len(lost_here) or None,
            held_minutes=_minutes_held([*spot, *lost_here], at)
            if whole or lost_here
            else 0.0
            if launched
            else None,
        )
    ]


def _minutes_held(instances: Sequence[Instance], at: pd.Timestamp) -> float:
    """Return for how many minutes the newest of some instances was held, up to a time."""
    newest = max((instance.since for instance in instances), default=at)
    return min(MOST_HELD, max(0.0, round((at - newest) / pd.Timedelta(minutes=1), 3)))


def describe_changes(changes: Sequence[_Change], refused: Sequence[str]) -> str:
    """Return the outcome of orders in words.

    >>> describe_changes([], ["no capacity", "no capacity"])
    'refused: no capacity'
    """
    parts = []
    for word in ("granted", "lost", "stopped", "finished"):
        kinds = [change.instance.kind for change in changes if change.word == word]
        shown = [f"{n} {kind.replace('_', '-')}" for kind in KINDS if (n := kinds.count(kind))]
        parts += [f"{word} {' and '.join(shown)}"] if shown else []
    return "; ".join([*parts, *(f"refused: {why}" for why in dict.fromkeys(refused))])


def _record(store: Store, new: NewEvidence, now: datetime) -> list[str]:
    """Store the evidence of a job; return why parts of it are refused."""
    try:
        stored = find_job(store, new.job)
    except JobError as error:
        return [str(error)]
    save_revisions(store, [entry.row for entry in new.entries if isinstance(entry, RevisionEntry)])
    return [why for report in evidence(new, now) if (why := _save(store, stored, report))]


def _save(store: Store, stored: StoredJob, report: Report) -> str:
    """Store a report; return why it is refused, "" if it is not.

    Another report of the same time stays: the new report is dated a microsecond later.
    """
    request = stored.request
    if not request.may_move:
        report = replace(report, market=None)
    taken = {earlier.reported_at: earlier for earlier in reports_of(store, report.job)}
    while (same := taken.get(report.reported_at)) is not None and same.says() != report.says():
        report = replace(report, reported_at=report.reported_at + MOMENT)
    report = replace(report, known_at=max(report.reported_at, report.known_at))
    try:
        save_report(store, report, stored, is_listed=True)
    except JobError as error:
        return f"{report.note or 'running instances'}: {error}"
    return ""
