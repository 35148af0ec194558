"""The loop of `slackwater act`: one pass brings every job to its target, and stores the changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from slackwater.flows.acting.account import MarketPrices, paid_usd
from slackwater.flows.acting.contract import (
    Driver,
    DriverError,
    Instance,
    Order,
    count_by_kind,
    lacking,
    staying,
    surplus,
)
from slackwater.flows.acting.ledger import (
    Evidence,
    EvidenceEntry,
    InstanceEntry,
    JobLaunches,
    LaunchLedger,
    OrderEntry,
    ReturnEntry,
    RevisionEntry,
)
from slackwater.flows.acting.targets import (
    ActiveJob,
    LastStart,
    Limits,
    SlotDecision,
    Target,
    last_market,
    order_for,
    period_of,
    same_target,
    target_of,
)
from slackwater.warehouse.errors import SlackwaterError, StoreError


class WarehouseAccess(Protocol):
    """Interface of the warehouse for acting."""

    def jobs(self, names: Collection[str], now: datetime) -> Sequence[ActiveJob]:
        """Return the jobs that are open at a time and those named, with their newest decisions."""

    def last_start(self, job: str, slot: datetime) -> LastStart | None:
        """Return the latest start of on-demand that meets a job's deadline from its state at a slot; None if none is sold."""

    def revise(self, job: ActiveJob, launches: JobLaunches, now: datetime) -> Mapping[str, Any] | str:
        """Return a decision for the rest of the slot after the loss of spot under ``job.decision``, or why there is none.

        All its fields are plain values (`slackwater.flows.ledger.decisions.REVISED` included).
        """

    def prices(self, job: str, markets: Collection[str], now: datetime) -> Mapping[str, MarketPrices]:
        """Return the prices of markets of a job, as far as they are known."""

    def record(self, evidence: Sequence[NewEvidence], now: datetime) -> Mapping[str, Sequence[str]] | None:
        """Store the evidence of jobs; return by job why parts are refused for good, or None if the warehouse is locked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvidence:
    """Entries of a job that the warehouse does not have; without entries its instances have not changed."""

    job: str
    entries: tuple[Evidence, ...]
    launches: JobLaunches


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPass:
    """Result of a pass for a job; ``commands`` are filled by a dry run, ``error`` if the driver failed.

    ``paid_usd`` is None if the prices of its markets cannot be read. ``note``: why there is no decision
    for the rest of the slot after a loss. ``waits_since`` is the time of the oldest evidence that the
    warehouse does not have yet, ``left_out`` the evidence that it refused.
    """

    job: str
    driver: str
    target: Target
    held: tuple[Instance, ...]
    paid_usd: float | None
    lost: int = 0
    order: Order | None = None
    settled: bool = True
    refused: str = ""
    note: str = ""
    error: str = ""
    commands: tuple[str, ...] = ()
    waits_since: datetime | None = None
    left_out: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing runs for the job and nothing will, and the warehouse has all its evidence."""
        ended = self.target.final and not self.held and self.settled
        return ended and self.waits_since is None and not self.error


@dataclass(slots=True, kw_only=True)
class ActLoop:
    """The loop of a process on a warehouse: its ledger, and the driver of each job, None for a job that is left alone.

    ``world`` is the warehouse. ``clock`` returns the time after a call of a driver, which may take minutes;
    it is None in simulated time, in which calls take no time.
    """

    world: WarehouseAccess
    ledger: LaunchLedger
    driver_of: Callable[[str], Driver | None]
    limits: Limits
    only: frozenset[str] = frozenset()
    clock: Callable[[], datetime] | None = None
    #: By open job the key of its decision in force, or that of a slot without a decision.
    _periods: dict[str, str] = field(default_factory=dict)

    def run_pass(self, now: datetime, *, dry: bool = False) -> list[JobPass]:
        """Bring every job to its target at a time, and return the result of each.

        A dry run lists instances and calls nothing else; its ledger is read-only.
        """
        if not dry:
            # Apart from the evidence of this pass, so that a repetition adds nothing.
            self._try_record(now, every_slot=False)
        passes: dict[str, JobPass] = {}
        lost: list[tuple[ActiveJob, Driver]] = []
        for job, driver in self._jobs_to_act_on({*self.ledger.busy(), *self.only}, now):
            done = self._try(job, driver, self._time_now(now), dry, waits=not dry)
            if done is None:
                lost.append((job, driver))
            else:
                passes[job.name] = done
        for job, driver in lost:  # after all others, which do not wait for their decisions
            note = self._revise(job, self._time_now(now))
            if (again := self._try(job, driver, self._time_now(now), dry)) is not None:
                passes[job.name] = replace(again, note=note or again.note)
        return self._with_evidence(list(passes.values()), self._time_now(now), dry)

    def _jobs_to_act_on(self, names: Collection[str], now: datetime) -> Iterator[tuple[ActiveJob, Driver]]:
        """Yield the open jobs and those named that have a driver, with their drivers."""
        for job in self.world.jobs(names, now):
            driver = self.driver_of(job.name)
            if driver is not None and (not self.only or job.name in self.only):
                yield job, driver

    def _time_now(self, now: datetime) -> datetime:
        """Return the present time in a pass that began at ``now``."""
        return now if self.clock is None else max(now, self.clock())

    def _with_evidence(self, passes: Sequence[JobPass], now: datetime, dry: bool) -> list[JobPass]:
        """Store the evidence of passes, and return them with the evidence that waits or is left out."""
        error = "" if dry else self._try_record(now)
        found = []
        for job_pass in passes:
            launches = self.ledger.job(job_pass.job)
            waits = min((entry.at for entry in launches.unrecorded), default=None)
            why = "; ".join(text for text in (job_pass.error, error if waits else "") if text)
            found.append(replace(job_pass, error=why, waits_since=waits, left_out=tuple(launches.left_out)))
        return found

    def _try_record(self, now: datetime, *, every_slot: bool = True) -> str:
        """Store the evidence of all jobs; return why the warehouse cannot be written, to try again in the next pass."""
        try:
            self.record(now, every_slot=every_slot)
        except StoreError as error:
            return f"evidence is not stored yet: {error}"
        return ""

    def _try(
        self, job: ActiveJob, driver: Driver, now: datetime, dry: bool, *, waits: bool = False
    ) -> JobPass | None:
        """Bring a job to its target; None if it ``waits`` for a decision on the rest of its slot.

        An error of a job is stated in its result and does not stop other jobs.
        """
        try:
            self._observe(self._with_revision(job), driver, now)
            if waits and self._can_be_revised(job, now):
                return None
            return self._act_on(job, driver, now, dry)
        except SlackwaterError as error:
            return self._note_failure(job, driver, now, error)

    def _can_be_revised(self, job: ActiveJob, now: datetime) -> bool:
        """Return whether spot was lost under the decision in force, with more than a pass left in its slot."""
        current = self._with_revision(job).decision
        return (
            current is not None
            and not job.ended
            and now < job.deadline
            and current.key in self.ledger.job(job.name).losses
            and now + self.limits.every < current.valid_until
        )

    def _with_revision(self, job: ActiveJob) -> ActiveJob:
        """Return a job with the newest revision of its decision."""
        if job.decision is None:
            return job
        return replace(job, decision=job.decision.with_revision(self.ledger.job(job.name).revision))

    def _revise(self, job: ActiveJob, now: datetime) -> str:
        """Store a decision for the rest of the slot; return why there is none, "" if there is."""
        row = self.world.revise(self._with_revision(job), self.ledger.job(job.name), now)
        if isinstance(row, str) or job.decision is None:
            return str(row)
        try:
            self._store_revision(job.name, job.decision, row, now)
        except StoreError as error:
            return str(error)
        return ""

    def _store_revision(self, job: str, before: SlotDecision, row: Mapping[str, Any], now: datetime) -> None:
        launches = self.ledger.job(job)
        known = (
            launches.revision
            if launches.revision is not None and launches.revision.of == before.key
            else None
        )
        number = 1 if known is None else int(known.key.rpartition("-r")[2]) + 1
        self.ledger.add(
            RevisionEntry(at=now, job=job, of=before.key, key=f"{before.key}-r{number}", row=dict(row))
        )

    def record(self, now: datetime, *, every_slot: bool = True) -> None:
        """Store the evidence of all jobs in the warehouse; while the warehouse is locked, the evidence waits.

        There is evidence after every change and, with ``every_slot``, once in each slot of an open job, also if
        nothing runs: a decision that is issued after its slot was not run.
        """
        evidence: list[NewEvidence] = []
        keys: dict[str, str] = {}
        for name, launches in self.ledger.jobs.items():
            if self.only and name not in self.only:
                continue
            key = "" if launches.last is None else launches.last.order.key
            keys[name] = self._periods.get(name, key)
            is_due = (launches.held or name in self._periods) and keys[name] != launches.recorded_key
            if launches.unrecorded or (every_slot and is_due):
                evidence.append(NewEvidence(job=name, entries=tuple(launches.unrecorded), launches=launches))
        refused = self.world.record(evidence, now) if evidence else None
        if refused is None:
            return
        for report in evidence:
            newest = max((entry.at for entry in report.entries), default=now)
            why = tuple(refused.get(report.job, ()))
            self.ledger.add(EvidenceEntry(at=newest, job=report.job, key=keys[report.job], refused=why))

    def stop(self, names: Collection[str], now: datetime, why: str, *, dry: bool = False) -> list[JobPass]:
        """Stop all instances of jobs, and store the evidence."""
        found = []
        for name in names:
            driver = self.driver_of(name)
            if driver is None:
                continue
            market = last_market(self.ledger.job(name))
            target = Target(market=market, on_demand=0, spot=0, why=why, final=True)
            job = ActiveJob(name=name, deadline=now, step=timedelta(hours=1))
            try:
                self._observe(job, driver, now)
                found.append(self._bring(job, driver, target, now, dry))
            except SlackwaterError as error:
                found.append(self._note_failure(job, driver, now, error))
        return self._with_evidence(found, self._time_now(now), dry)

    def adopt(self, now: datetime) -> list[JobPass]:
        """Add the listed instances that the ledger lacks to it, and change nothing else."""
        found = []
        for job, driver in self._jobs_to_act_on(self.ledger.busy(), now):
            try:
                self._observe(job, driver, now)
                why = "taken over" if self.ledger.job(job.name).held else "nothing is listed"
                found.append(self._result(job, driver, self._present_target(job.name, why), now))
            except SlackwaterError as error:
                found.append(self._note_failure(job, driver, now, error))
        return self._with_evidence(found, self._time_now(now), False)

    def _present_target(self, job: str, why: str) -> Target:
        launches = self.ledger.job(job)
        market = launches.held[-1].market if launches.held else last_market(launches)
        held = count_by_kind(launches.held)
        return Target(market=market, on_demand=held["on_demand"], spot=held["spot"], why=why)

    def _act_on(self, job: ActiveJob, driver: Driver, now: datetime, dry: bool) -> JobPass:
        job, launches = self._with_revision(job), self.ledger.job(job.name)
        self._periods.pop(job.name, None)
        if not job.ended and now < job.deadline and (period := period_of(job, now)):
            self._periods[job.name] = period

        def prices() -> Mapping[str, MarketPrices]:
            return self.world.prices(job.name, launches.markets | set(job.markets), now)

        target = target_of(
            job,
            launches,
            now,
            self.limits,
            spent_usd=lambda: paid_usd(launches.instances.values(), prices(), now),
            usd_per_hour=lambda counts, market: (
                prices()[market].rate(counts, now) if market in prices() else 0.0
            ),
            last_start=lambda slot: self.world.last_start(job.name, slot),
        )
        return self._bring(job, driver, target, now, dry)

    def _observe(self, job: ActiveJob, driver: Driver, now: datetime) -> None:
        """Add the differences between the listed instances and those of the ledger to the ledger."""
        launches = self.ledger.job(job.name)
        markets = launches.markets | set(job.markets)
        if not markets:
            return
        listed = driver.listed(job.name, markets, now)
        now = self._time_now(now)
        changed = changes(launches, listed, now, driver.settle_seconds)
        if changed:
            key = _key_in_force(job, launches, changed)
            kept = launches.instances | {instance.id: instance for instance in changed}
            left = count_by_kind(staying(kept.values()))["spot"]
            self.ledger.add(
                InstanceEntry(at=now, job=job.name, key=key, instances=tuple(changed), spot_left=left)
            )

    def _bring(self, job: ActiveJob, driver: Driver, target: Target, now: datetime, dry: bool) -> JobPass:
        launches = self.ledger.job(job.name)
        on_demand, spot = driver.fitted(target.on_demand, target.spot)
        target = replace(target, on_demand=on_demand, spot=spot)
        order, commands = order_for(job, launches, target, now), tuple[str, ...]()
        needed = self._needs_order(launches, driver, order, now)
        if needed and dry:
            commands = tuple(driver.commands(order, launches.held))
        elif needed:
            self._call(driver, order, target, now)
            now = self._time_now(now)
            self._observe(job, driver, now)
        result = self._result(job, driver, target, now)
        return replace(result, order=order if needed else None, commands=commands)

    def _result(self, job: ActiveJob, driver: Driver, target: Target, now: datetime) -> JobPass:
        launches, paid = self.ledger.job(job.name), self._paid(job.name, now)
        return JobPass(
            job=job.name,
            driver=driver.name,
            target=target,
            held=tuple(launches.held),
            paid_usd=None if isinstance(paid, str) else paid,
            lost=sum(instance.end == "lost" for instance in launches.instances.values()),
            settled=launches.is_settled(now, driver.settle_seconds),
            refused=launches.refused,
            note=paid if isinstance(paid, str) else "",
        )

    def _paid(self, job: str, now: datetime) -> float | str:
        """Return the USD paid for a job so far, or why the prices of its markets cannot be read."""
        launches = self.ledger.job(job)
        try:
            return paid_usd(launches.instances.values(), self.world.prices(job, launches.markets, now), now)
        except SlackwaterError as error:
            return f"cost unknown: {error}"

    def _call(self, driver: Driver, order: Order, target: Target, now: datetime) -> None:
        """Store the order, call the driver, and store the outcome."""
        self.ledger.add(OrderEntry(at=now, job=order.job, driver=driver.name, order=order, why=target.why))
        brought = driver.bring(order, now)
        now = self._time_now(now)
        launches = self.ledger.job(order.job)
        if new := tuple(instance for instance in brought.launched if instance.id not in launches.instances):
            left = count_by_kind(staying([*launches.held, *new]))["spot"]
            self.ledger.add(
                InstanceEntry(at=now, job=order.job, key=order.key, instances=new, spot_left=left)
            )
        self.ledger.add(
            ReturnEntry(
                at=now, job=order.job, token=order.token, refused=brought.refused, error=brought.error
            )
        )
        if brought.error:
            raise DriverError(brought.error)

    def _needs_order(self, launches: JobLaunches, driver: Driver, order: Order, now: datetime) -> bool:
        """Return whether the driver must be called for an order.

        An order whose call was interrupted is repeated; another order waits until the instances of
        the interrupted call are listed. An order that was granted in part is repeated after the driver's
        ``retry_seconds``.
        """
        last = launches.last
        if last is not None and not launches.answered:
            if order.token == last.order.token:
                return True
            if not launches.is_settled(now, driver.settle_seconds):
                return False
        if (
            last is not None
            and not same_target(last.order, order)
            and any(lacking(last.order, launches.held).values())
        ):
            return True  # the driver may still request the missing instances
        if not any(lacking(order, launches.held).values()):
            return bool(surplus(order, launches.held))
        if last is None or surplus(order, launches.held) or not same_target(last.order, order):
            return True
        return (now - last.at).total_seconds() >= driver.retry_seconds

    def _note_failure(self, job: ActiveJob, driver: Driver, now: datetime, error: SlackwaterError) -> JobPass:
        why = "the driver failed" if isinstance(error, DriverError) else "nothing was changed"
        return replace(self._result(job, driver, self._present_target(job.name, why), now), error=str(error))


def _key_in_force(job: ActiveJob, launches: JobLaunches, changed: Sequence[Instance]) -> str:
    """Return the key of the decision under which instances changed: a loss before its slot belongs to the previous decision."""
    before = "" if launches.last is None else launches.last.order.key
    times = [instance.ended or instance.leaving for instance in changed]
    if job.decision is None or any(at is not None and at <= job.decision.slot for at in times):
        return before
    return job.decision.key


def _has_changed(before: Instance, now: Instance) -> bool:
    """Return whether a held instance ended or has a notice by now."""
    ended, noticed = now.ended is not None, now.leaving is not None and before.leaving is None
    return before.ended is None and (ended or noticed)


def changes(
    launches: JobLaunches, listed: Sequence[Instance], now: datetime, settle_seconds: float
) -> list[Instance]:
    """Return the instances that are new, leaving or ended since the last entry, with the reason of the end.

    An instance that is no longer listed, or whose end has no stated reason, was stopped if the
    last order did not include it, else it was lost. A new instance may not be listed yet.
    """
    found = {instance.id for instance in listed}
    known = launches.instances
    changed = [
        instance
        for instance in listed
        if instance.id not in known or _has_changed(known[instance.id], instance)
    ]
    changed += [
        before.model_copy(update={"ended": now})
        for before in launches.held
        if before.id not in found and (now - before.since).total_seconds() >= settle_seconds
    ]
    stopped = (
        set()
        if launches.last is None
        else {instance.id for instance in surplus(launches.last.order, launches.held)}
    )
    return [
        instance.model_copy(update={"end": "stopped" if instance.id in stopped else "lost"})
        if instance.ended is not None and instance.end is None
        else instance
        for instance in changed
    ]
