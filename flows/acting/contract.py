"""The contract of drivers: they launch, list and stop instances, and repeat an order without a double launch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict

from slackwater.warehouse.errors import SlackwaterError

Kind = Literal["on_demand", "spot"]
KINDS: tuple[Kind, ...] = ("on_demand", "spot")
#: Why an instance ended: lost to the provider, stopped by an order, or with the finish of its job.
End = Literal["lost", "stopped", "finished"]
#: Tags of every instance, and the variables of tasks that cannot be tagged.
JOB_TAG, KEY_TAG, TOKEN_TAG = "slackwater:job", "slackwater:key", "slackwater:token"


class DriverError(SlackwaterError):
    """A call of a driver that failed; the next pass repeats it."""


class FrozenModel(BaseModel):
    """A value that is stored as JSON and never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Instance(FrozenModel):
    """An instance that the driver launched for a job.

    ``key`` is the decision that it was launched for, "" where the provider has no tags. ``since`` is
    the time of its grant, from which it is paid. ``ended`` is the time of its end and ``end`` the
    reason, as far as the provider states them; None while it is held. ``leaving`` is the time of the
    provider's notice that it will reclaim the instance, which is still held and paid.
    """

    id: str
    job: str
    key: str
    market: str
    kind: Kind
    since: datetime
    ended: datetime | None = None
    end: End | None = None
    leaving: datetime | None = None


class Order(FrozenModel):
    """The instances that a job should have, all in one market.

    ``token`` names the order and derives from the ``key`` of its decision. ``valid_until`` is the
    end of the decision's slot, None for an order without a decision in force. ``elsewhere`` are the
    other markets in which the job may have instances. ``missing`` are the instances to launch by kind, as
    the ledger had them when the order was first sent: a repeated order states the same, whatever the
    provider lists by then. None: those that the provider does not list.
    """

    job: str
    token: str
    key: str
    market: str
    on_demand: int
    spot: int
    valid_until: datetime | None = None
    elsewhere: tuple[str, ...] = ()
    missing: dict[Kind, int] | None = None

    @property
    def total(self) -> int:
        """Number of instances."""
        return self.on_demand + self.spot

    def count(self, kind: Kind) -> int:
        """Return the number of instances of a kind."""
        return self.spot if kind == "spot" else self.on_demand

    @property
    def markets(self) -> tuple[str, ...]:
        """The markets in which the job has or may have instances."""
        return tuple(market for market in (self.market, *self.elsewhere) if market)

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the instances that this order launches."""
        return {JOB_TAG: self.job[:256], KEY_TAG: self.key, TOKEN_TAG: self.token}


class Brought(FrozenModel):
    """Outcome of a call: the instances that it launched, and why others were not granted ("": all were).

    ``error``: a reason other than capacity, such as a missing permission. The outcome is stored, and the
    pass of the job fails.
    """

    launched: tuple[Instance, ...] = ()
    refused: str = ""
    error: str = ""


class Driver(Protocol):
    """A place where instances are launched: a cloud, a cluster, or a script.

    Drivers hold no state of their own: instances carry the tags of their order, and the ledger of
    launches has the rest.
    """

    #: Name of the driver in messages and in the ledger.
    name: str
    #: Seconds within which every instance is listed after its launch.
    settle_seconds: float
    #: Seconds after which instances that were not granted are requested again; infinity: the provider keeps the request.
    retry_seconds: float

    def fitted(self, on_demand: int, spot: int) -> tuple[int, int]:
        """Return the on-demand and spot instances that the driver runs for a decision, which may differ from the decided numbers.

        The total is the same, with no fewer on-demand instances, so that the deadline is still met.
        """
        return on_demand, spot

    def listed(self, job: str, markets: Collection[str], now: datetime) -> Sequence[Instance]:
        """Return the instances of a job in ``markets``: all that are held, and those that ended as long as the provider lists them.

        A provider that lists instances everywhere may ignore ``markets``. Raises `DriverError`.
        """

    def bring(self, order: Order, now: datetime) -> Brought:
        """Bring the instances of a job to an order, and return what was launched and refused.

        Instances above the order end, the newest first; those of another market end before the
        launch. The same order again never leads to more instances than it states, even if the first
        call was interrupted at any moment. Raises `DriverError` if the call failed as a whole.
        """

    def commands(self, order: Order, held: Sequence[Instance]) -> list[str]:
        """Return the calls that `bring` would make, as commands or requests for a person to read; makes none."""


def workload_name(job: str, market: str, kind: Kind) -> str:
    """Return the name of the cluster or workload of a kind of a job in a market: valid everywhere, the same at every call.

    >>> workload_name("Llama 8B", "aws/us-east-1/us-east-1a/p4d.24xlarge", "spot")
    'llama-8b-spot-2e7efe'
    """
    readable = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")[:20].strip("-")
    mark = hashlib.sha256(f"{job}\n{market}".encode()).hexdigest()[:6]
    return f"{readable or 'job'}-{'spot' if kind == 'spot' else 'od'}-{mark}"


def alive(instances: Collection[Instance]) -> list[Instance]:
    """Return the instances that are held, oldest first."""
    return sorted(
        (instance for instance in instances if instance.ended is None),
        key=lambda instance: (instance.since, instance.id),
    )


def staying(instances: Collection[Instance]) -> list[Instance]:
    """Return the instances that are held without a notice of their end, oldest first."""
    return [instance for instance in alive(instances) if instance.leaving is None]


def alive_at(instances: Collection[Instance], at: datetime) -> list[Instance]:
    """Return the instances that were held at a time, as they were then, oldest first."""
    known = [instance for instance in instances if instance.since <= at]
    later = {"ended": None, "end": None}
    return alive(
        [
            entry if entry.ended is None or entry.ended <= at else entry.model_copy(update=later)
            for entry in known
        ]
    )


def count_by_kind(instances: Collection[Instance], market: str | None = None) -> dict[Kind, int]:
    """Return the number of held instances by kind, in all markets or in one."""
    found = [
        instance.kind
        for instance in instances
        if instance.ended is None and market in (None, instance.market)
    ]
    return {kind: found.count(kind) for kind in KINDS}


def surplus(order: Order, held: Collection[Instance]) -> list[Instance]:
    """Return the instances to stop for an order: those of other markets, and the newest of each kind above its number.

    An instance with a notice is not stopped, so that it can save its work, unless the order is empty.
    """
    ours = staying(held) if order.total else alive(held)
    elsewhere = [instance for instance in ours if instance.market != order.market]
    here = [instance for instance in ours if instance.market == order.market]
    over = [
        instance for kind in KINDS for instance in [i for i in here if i.kind == kind][order.count(kind) :]
    ]
    return elsewhere + over


def lacking(order: Order, held: Collection[Instance]) -> dict[Kind, int]:
    """Return the number of missing instances of an order by kind."""
    here = count_by_kind(staying(held), order.market)
    return {kind: max(0, order.count(kind) - here[kind]) for kind in KINDS}


def count_words(counts: Mapping[Kind, int]) -> str:
    """Return a number of instances by kind in words.

    >>> count_words({"on_demand": 2, "spot": 1}), count_words({"on_demand": 0, "spot": 0})
    ('2 on-demand and 1 spot', 'nothing')
    """
    texts = [f"{n} {kind.replace('_', '-')}" for kind, n in counts.items() if n]
    return " and ".join(texts) or "nothing"
