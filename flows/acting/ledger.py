"""The ledger of launches: a file next to the warehouse with each order before its call and each outcome after it.

A turn may hold the warehouse for minutes, and an order cannot wait for it. The file has a JSON
object a line, and is flushed to the disk before `act` continues: after a kill at any moment it states
every launch that may have taken place.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from slackwater.flows.acting.contract import FrozenModel, Instance, Order, alive
from slackwater.warehouse.errors import StoreError


class OrderEntry(FrozenModel):
    """An order, stored before the call of its driver."""

    event: Literal["ordered"] = "ordered"
    at: datetime
    job: str
    driver: str
    order: Order
    why: str


class ReturnEntry(FrozenModel):
    """The return of the call for an order; ``refused``: why instances were not granted, ``error``: as in `Brought`."""

    event: Literal["answered"] = "answered"
    at: datetime
    job: str
    token: str
    refused: str = ""
    error: str = ""


class InstanceEntry(FrozenModel):
    """A change of the instances of a job: those that are new or ended since the last entry.

    An instance changes with its provider's notice and with its end. ``key`` is the decision in force,
    ``spot_left`` the number of spot instances that are still held, without those that have a notice.
    """

    event: Literal["seen"] = "seen"
    at: datetime
    job: str
    key: str
    instances: tuple[Instance, ...]
    spot_left: int

    @property
    def lost(self) -> list[Instance]:
        """The instances that the provider reclaimed."""
        return [instance for instance in self.instances if instance.end == "lost"]


class RevisionEntry(FrozenModel):
    """A decision for the rest of a slot after a loss of spot, stored before it is acted on.

    ``of`` is the decision of the slot, ``key`` names the revision, and ``row`` has all its fields.
    """

    event: Literal["revised"] = "revised"
    at: datetime
    job: str
    of: str
    key: str
    row: dict[str, Any]


class EvidenceEntry(FrozenModel):
    """The warehouse has the evidence of a job up to ``at``, under the decision ``key``, except the ``refused`` parts."""

    event: Literal["recorded"] = "recorded"
    at: datetime
    job: str
    key: str = ""
    refused: tuple[str, ...] = ()


#: Entries that become evidence in the warehouse, and all entries.
Evidence = OrderEntry | ReturnEntry | InstanceEntry | RevisionEntry
AnyEntry = Evidence | EvidenceEntry
_ENTRY: TypeAdapter[AnyEntry] = TypeAdapter(Annotated[AnyEntry, Field(discriminator="event")])


@dataclass(frozen=True, slots=True)
class SpotLoss:
    """The newest loss of spot under a decision, or notice of it: its time and market, and the spot instances that are left."""

    at: datetime
    market: str
    left: int


@dataclass(slots=True, kw_only=True)
class JobLaunches:
    """The launches of a job, from all entries so far.

    ``last`` is the newest order, ``answered`` whether its call returned. ``orders`` counts them by
    decision. ``losses`` has the newest loss of spot under each decision, ``revision`` is the newest
    decision for the rest of a slot, and ``ordered`` are the orders of the newest slot.
    ``unrecorded`` are the entries that the warehouse does not have as evidence, ``recorded_at`` and
    ``recorded_key`` are the time and the decision of the newest evidence, ``recorded_ids`` the instances that it names.
    ``left_out`` states the evidence that the warehouse refused.
    """

    last: OrderEntry | None = None
    answered: bool = True
    refused: str = ""
    error: str = ""
    orders: Counter[str] = field(default_factory=Counter)
    markets: set[str] = field(default_factory=set)
    instances: dict[str, Instance] = field(default_factory=dict)
    losses: dict[str, SpotLoss] = field(default_factory=dict)
    revision: RevisionEntry | None = None
    ordered: list[OrderEntry] = field(default_factory=list)
    unrecorded: list[Evidence] = field(default_factory=list)
    recorded_at: datetime | None = None
    recorded_key: str = ""
    recorded_ids: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)

    @property
    def held(self) -> list[Instance]:
        """The instances that were held at the last entry."""
        return alive(self.instances.values())

    @property
    def spot_requested(self) -> int:
        """Spot instances of the newest order."""
        return 0 if self.last is None else self.last.order.spot

    @property
    def has_failed(self) -> bool:
        """Whether the call of the newest order failed, for all or for some of its instances."""
        return self.last is not None and (not self.answered or bool(self.error))

    def is_settled(self, now: datetime, seconds: float) -> bool:
        """Return whether all instances that were launched are listed, ``seconds`` after an order without an outcome."""
        if self.answered or self.last is None:
            return True
        return (now - self.last.at).total_seconds() >= seconds

    def has_lost_all(self, key: str) -> bool:
        """Return whether all spot was lost under a decision."""
        return key in self.losses and self.losses[key].left == 0

    def add(self, entry: AnyEntry) -> None:
        """Update the state with an entry."""
        if isinstance(entry, OrderEntry):
            self.last, self.answered, self.refused, self.error = entry, False, "", ""
            until = entry.order.valid_until
            self.ordered = [
                *(earlier for earlier in self.ordered if earlier.order.valid_until == until),
                entry,
            ]
            self.orders[entry.order.key] += 1
            self.markets |= {entry.order.market} - {""}
        elif isinstance(entry, ReturnEntry):
            self.answered = self.answered or self.last is None or entry.token == self.last.order.token
            self.refused, self.error = entry.refused, entry.error
        elif isinstance(entry, InstanceEntry):
            losses = self._losses_in(entry)
            self.instances |= {instance.id: instance for instance in entry.instances}
            self.markets |= {instance.market for instance in entry.instances}
            if losses:
                self.losses[entry.key] = max(losses, key=lambda loss: loss.at)
        elif isinstance(entry, RevisionEntry):
            self.revision = entry
        if isinstance(entry, EvidenceEntry):
            for earlier in self.unrecorded:
                if isinstance(earlier, InstanceEntry) and earlier.at <= entry.at:
                    self.recorded_ids |= {instance.id for instance in earlier.instances}
            self.unrecorded = [earlier for earlier in self.unrecorded if earlier.at > entry.at]
            self.recorded_at, self.recorded_key = entry.at, entry.key
            self.left_out += [why for why in entry.refused if why not in self.left_out]
        else:
            self.unrecorded.append(entry)

    def _losses_in(self, entry: InstanceEntry) -> list[SpotLoss]:
        """Return the losses of spot in an entry; a loss counts at its notice, and not again at its end."""
        noticed = {name for name, instance in self.instances.items() if instance.leaving is not None}
        return [
            SpotLoss(instance.leaving or instance.ended or entry.at, instance.market, entry.spot_left)
            for instance in entry.instances
            if instance.kind == "spot" and instance.id not in noticed
            if instance.end == "lost" or (instance.leaving is not None and instance.ended is None)
        ]


def ledger_file(db: Path) -> Path:
    """Return the path of the ledger of launches of a warehouse."""
    return db.with_name(f"{db.stem}.launches.jsonl")


class LaunchLedger(AbstractContextManager["LaunchLedger"]):
    """The ledger, open for one process; raises `StoreError` if another process acts on the same warehouse.

    Opened read-only it does not exclude other processes.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.jobs: dict[str, JobLaunches] = {}
        self._read_only = read_only
        if read_only:
            content = path.read_bytes() if path.exists() else b""
        else:
            self._file = self._lock(path)
            self._file.seek(0)
            content = self._file.read()
            if (whole := content.rfind(b"\n") + 1) < len(content):
                self._file.truncate(whole)
        for entry in self._entries(content):
            self.job(entry.job).add(entry)

    @staticmethod
    def _lock(path: Path) -> FileIO:
        try:
            file = path.open("a+b", buffering=0)
        except OSError as error:
            raise StoreError(f"ledger of launches {path}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise StoreError(
                f"another `slackwater act` has the ledger {path}",
                expected="one process that acts on a warehouse",
                remedy="stop it first, or let it act on these jobs as well",
            ) from error
        return file

    def _entries(self, content: bytes) -> Iterable[AnyEntry]:
        """Return the entries; a torn last line is left out, as its writer was killed before it went on."""
        entries = []
        for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
            try:
                entries.append(_ENTRY.validate_json(line))
            except ValidationError as error:
                raise StoreError(
                    f"ledger of launches {self.path}, line {number}: {error.errors()[0]['msg']}",
                    expected="an entry of this or an older version",
                    remedy="stop the running instances with `slackwater act --down` of the version that wrote it",
                ) from error
        return entries

    def add(self, entry: AnyEntry) -> None:
        """Append an entry; on return it is on the disk. A ledger opened read-only keeps it in memory only.

        Raises `StoreError` if it cannot be written; the ledger is then as it was.
        """
        if not self._read_only:
            self._append(_ENTRY.dump_json(entry) + b"\n")
        self.job(entry.job).add(entry)

    def _append(self, line: bytes) -> None:
        size = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(size)
            raise StoreError(
                f"ledger of launches {self.path}: {error.strerror}",
                expected="room for a line: the ledger has every order before it is sent",
                remedy="make room on the disk; the next look continues",
            ) from error

    def job(self, name: str) -> JobLaunches:
        """Return the launches of a job, empty if it is new."""
        return self.jobs.setdefault(name, JobLaunches())

    def busy(self) -> Collection[str]:
        """Return the jobs with instances, with an order whose outcome is unknown, or with evidence that is not stored yet."""
        return [
            name
            for name, launches in self.jobs.items()
            if launches.held or not launches.answered or launches.unrecorded
        ]

    def close(self) -> None:
        """Close the file and let other processes act."""
        if not self._read_only:
            self._file.close()

    def __exit__(self, *_: object) -> None:
        """Close the ledger."""
        self.close()
