"""Driver of a simulated cloud (M12): instances are granted and lost as in the market's record, and cost nothing.

The orders of each job are stored in a file next to the warehouse; the state of the cloud is the
simulation of these orders.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from slackwater.flows.acting.contract import Brought, Driver, Instance, Kind, Order
from slackwater.flows.acting.drivers import DriverOptions, Place, read_options
from slackwater.flows.delivery import folder_name
from slackwater.optimization.kernels import world as kernels
from slackwater.optimization.window.plan import Allocation
from slackwater.optimization.world.simulation import Readings, WorldMarkets, WorldRun

_KINDS: tuple[tuple[Kind, int], ...] = (("spot", kernels.SPOT), ("on_demand", kernels.ON_DEMAND))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWorld:
    """The simulated world of a job: its markets by name, with their readings in seconds from ``start``."""

    start: datetime
    names: tuple[str, ...]
    markets: WorldMarkets
    readings: tuple[Readings, ...]


@dataclass(frozen=True, slots=True)
class _StoredOrder:
    """An order as stored: its time in seconds, and its target."""

    at: float
    token: str
    key: str
    market: str
    on_demand: int
    spot: int


class SimulatedDriver(Driver):
    """Driver of a simulated cloud."""

    name = "simulated"
    settle_seconds = 0.0
    retry_seconds = math.inf  # missing spot instances stay requested, as in M12.2

    def __init__(
        self, folder: Path, world_of: Callable[[str, datetime], JobWorld], *, on_demand_wait: float = 0.0
    ) -> None:
        self._folder = folder
        self._recorded = world_of
        self._wait = on_demand_wait

    def _world_of(self, job: str, now: datetime) -> JobWorld:
        """Return the world of a job with the wait of this cloud in place of the longest wait that the job states."""
        world = self._recorded(job, now)
        terms = tuple(replace(term, on_demand_wait=self._wait) for term in world.markets.terms)
        return replace(world, markets=replace(world.markets, terms=terms))

    def listed(self, job: str, markets: Collection[str], now: datetime) -> Sequence[Instance]:
        """Return all instances of a job so far."""
        world = self._world_of(job, now)
        return list(_instances(job, world, self._stored_orders(job), _seconds(world, now)))

    def bring(self, order: Order, now: datetime) -> Brought:
        """Store the order as the target of the job from now on; a repeated order changes nothing."""
        world = self._world_of(order.job, now)
        orders = self._stored_orders(order.job)
        if any(stored.token == order.token for stored in orders):
            return Brought()
        if order.total and order.market not in world.names:
            return Brought(refused=f"{order.market} is not a market of the job")
        stored = _StoredOrder(
            _seconds(world, now), order.token, order.key, order.market, order.on_demand, order.spot
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._file(order.job).open("a", encoding="utf-8") as file:
            file.write(json.dumps([getattr(stored, name) for name in stored.__dataclass_fields__]) + "\n")
            file.flush()
            os.fsync(file.fileno())
        missing = order.spot - run_of(world, [*orders, stored], stored.at).held.spot
        return Brought(
            refused=f"{missing} of {order.spot} spot instances are not available" if missing > 0 else ""
        )

    def commands(self, order: Order, held: Sequence[Instance]) -> list[str]:
        """Return the target in words."""
        return [
            f"simulate {order.on_demand} on-demand and {order.spot} spot in {order.market or 'no market'}"
        ]

    def run(self, job: str, now: datetime) -> WorldRun:
        """Return the simulated run of a job at a time."""
        world = self._world_of(job, now)
        return run_of(world, self._stored_orders(job), _seconds(world, now))

    def _file(self, job: str) -> Path:
        return self._folder / f"{folder_name(job)}.jsonl"

    def _stored_orders(self, job: str) -> list[_StoredOrder]:
        file = self._file(job)
        if not file.exists():
            return []
        whole = file.read_text(encoding="utf-8").split("\n")[:-1]  # a kill may cut the last line
        return [_StoredOrder(*json.loads(line)) for line in whole if line]


def _seconds(world: JobWorld, now: datetime) -> float:
    return max(0.0, (now - world.start).total_seconds())


def run_of(world: JobWorld, orders: Sequence[_StoredOrder], until: float) -> WorldRun:
    """Return the run of a job under its orders up to a second."""
    run = WorldRun(world.markets, world.readings)
    for stored in orders:
        run.advance(stored.at)
        _apply_order(run, world, stored)
    run.advance(until)
    return run


def _apply_order(run: WorldRun, world: JobWorld, stored: _StoredOrder) -> None:
    place = world.names.index(stored.market) if stored.market in world.names else None
    run.decide(Allocation(stored.on_demand, stored.spot), place)


def _instances(job: str, world: JobWorld, orders: Sequence[_StoredOrder], until: float) -> Iterator[Instance]:
    """Yield every instance of a run, with its grant, its end and the reason.

    The run stops at every reading and order, because instances end only there and at the finish.
    """
    run = WorldRun(world.markets, world.readings)
    times = {float(t) for readings in world.readings for t in readings.times if 0.0 < t <= until}
    stops = sorted(times | {stored.at for stored in orders} | {until})
    held: dict[str, Instance] = {}
    key, pending = "", list(orders)
    for second in stops:
        run.advance(second)
        ended = "finished" if run.is_finished else "lost"
        at = world.start + timedelta(seconds=run.now)
        held, ended_now = _instances_now(job, world, run, held, key)
        yield from (instance.model_copy(update={"ended": at, "end": ended}) for instance in ended_now)
        while pending and pending[0].at <= second:
            stored = pending.pop(0)
            _apply_order(run, world, stored)
            key = stored.key
            held, ended_now = _instances_now(job, world, run, held, key)
            yield from (instance.model_copy(update={"ended": at, "end": "stopped"}) for instance in ended_now)
    yield from held.values()


def _instances_now(
    job: str, world: JobWorld, run: WorldRun, held: Mapping[str, Instance], key: str
) -> tuple[dict[str, Instance], list[Instance]]:
    """Return the instances of a run by id, and those of ``held`` that have ended.

    The simulator ends the newest instances first, so the number in its batch identifies an instance.
    """
    market = world.names[run.market]
    now: dict[str, Instance] = {}
    counts, batches = run.arrays[0].counts, run.arrays[0].batches
    for kind, row in () if run.is_finished else _KINDS:
        granted = batches[row, : int(counts[kernels.BATCHES + row])]
        granted = granted[granted[:, kernels.GRANTED] <= run.now]  # else requested, and not granted yet
        numbers = Counter[float]()
        for second in np.repeat(granted[:, kernels.GRANTED], np.abs(granted[:, kernels.SIZE]).astype(int)):
            numbers[second] += 1
            name = f"{job}:{market}:{kind}:{second:.3f}:{numbers[second]}"
            now[name] = held.get(name) or Instance(
                id=name,
                job=job,
                key=key,
                market=market,
                kind=kind,
                since=world.start + timedelta(seconds=float(second)),
            )
    return now, [instance for name, instance in held.items() if name not in now]


class Options(DriverOptions):
    """Options of the driver."""

    on_demand_wait_seconds: float = Field(
        0.0, ge=0, le=86_400, description="seconds until on-demand is granted"
    )


def create(options: Mapping[str, Any], place: Place) -> SimulatedDriver:
    """Create the driver from its options."""
    wait = read_options(Options, options, place).on_demand_wait_seconds
    folder = place.db.with_name(f"{place.db.stem}.simulated")
    return SimulatedDriver(folder, place.world_of, on_demand_wait=wait)
