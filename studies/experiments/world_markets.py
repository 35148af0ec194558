"""Jobs with hard deadlines in several markets of the world between decisions (M11, M12), for ``experiment world``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.optimization.job.definition import Amdahl, InstanceTimes, Job, Linear, Throughput
from slackwater.optimization.job.request import must_finish_value
from slackwater.optimization.market.window import market_window, record_of
from slackwater.optimization.moving.costs import even_moving
from slackwater.optimization.moving.definition import MarketsJob, MultiMarketPolicy
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.replay.run import Case, PlanMemo
from slackwater.optimization.replay.score import on_demand_only_in_world
from slackwater.optimization.world.readings import market_readings, readings_inside
from slackwater.optimization.world.replay import Launcher, WorldCase, replay_in_world
from slackwater.studies.experiments.material import World, read_worlds

TIMES: Final = {
    "short": InstanceTimes(boot=120.0, restart=240.0, checkpoint=600.0),
    "long": InstanceTimes(boot=120.0, restart=900.0, checkpoint=3600.0),
}
FORMS: Final[dict[str, Throughput]] = {"linear": Linear(), "Amdahl 0.95": Amdahl(parallel=0.95)}
LOADS: Final = (0.3, 0.5, 0.7, 0.9)
DEADLINES: Final = (20, 48)
#: Transfers of a checkpoint in hours, and costs of a move in on-demand instance-hours, in turn.
MOVES: Final = ((0.05, 0.0), (0.25, 1.0))
RECORDED: Final = "recorded"
PRICES: Final = (RECORDED, "0.25")
RECORD_SLOTS, EVERY_HOURS = 480, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """A job in several markets of a world: its first slot, and its kind by names."""

    world: int
    first: int
    slots: int
    zones: tuple[str, ...]
    form: str
    price: str
    times: str
    load: float
    taken_hours: float
    move: float
    located: bool
    n_max: int
    day: int


def trips(worlds: Sequence[World], *, rng: np.random.Generator, every_hours: float = EVERY_HOURS) -> list[Trip]:
    found = []
    for w, world in enumerate(worlds):
        names = list(world.counts)
        most = int(max(np.nanmax(c) for c in world.counts.values()))
        n_max = min(8, most)
        gap = round(every_hours / world.slot_hours)
        k = 0
        for begin in range(round(48 / world.slot_hours), world.slots - max(DEADLINES), gap):
            first = begin + int(rng.integers(gap))
            if first + max(DEADLINES) > world.slots:
                continue
            for form in FORMS if n_max > 1 else ("linear",):
                for price in PRICES:
                    for times in TIMES:
                        many = (2, 3, len(names))[k % 3]
                        zones = tuple(sorted(rng.choice(names, min(many, len(names)), replace=False).tolist()))
                        taken, move = MOVES[int(rng.integers(2))]
                        found.append(
                            Trip(
                                world=w, first=first, slots=DEADLINES[(k // 3) % 2], zones=zones, form=form,
                                price=price, times=times, load=LOADS[int(rng.integers(4))], taken_hours=taken,
                                move=move, located=bool(rng.integers(2)), n_max=n_max,
                                day=int(first * world.slot_hours // 24),
                            )
                        )  # fmt: skip
                        k += 1
    return found


def trip_case(world: World, trip: Trip) -> tuple[WorldCase, float]:
    i, end, hours = trip.first, trip.first + trip.slots, world.slot_hours
    low = max(0, i - RECORD_SLOTS)
    times, throughput = TIMES[trip.times], FORMS[trip.form]
    dear = [world.on_demand_usd[zone] for zone in trip.zones]
    if trip.price != RECORDED:
        dear = [1.0] * len(dear)
    counts = [np.asarray(world.counts[zone][low:end], dtype=float) for zone in trip.zones]
    prices = [
        np.asarray(world.prices[zone][low:end], dtype=float)
        if trip.price == RECORDED
        else np.full(end - low, float(trip.price))
        for zone in trip.zones
    ]
    job = Job(
        name="trip", workload=trip.load * trip.slots * throughput.rate(trip.n_max) * hours, deadline_slots=trip.slots,
        n_min=1, n_max=trip.n_max, throughput=throughput, mu_up=1.0 - (times.boot + times.restart) / (hours * 3600.0),
        mu_down=1.0 - times.restart / (hours * 3600.0), value=0.0, must_finish=True, times=times,
    )  # fmt: skip
    job = replace(job, value=must_finish_value(job, on_demand_usd=max(dear), slot_hours=hours))
    cases, readings = [], []
    for m, zone in enumerate(trip.zones):
        window = market_window(prices[m][i - low :], counts[m][i - low :], on_demand_usd=dear[m], slot_hours=hours)
        record = record_of(
            prices[m], counts[m], first=i - low, slot_hours=hours,
            peers=np.array(counts[:m] + counts[m + 1 :]).reshape(-1, end - low),
        )  # fmt: skip
        cases.append(Case(job=job, window=window, record=record))
        readings.append(market_readings(window, readings_inside(world.within.get(zone), i, trip.slots)))
    moving = even_moving(len(cases), taken=trip.taken_hours / hours, usd=trip.move * min(dear))
    markets = MarketsJob(runs=(job,) * len(cases), moving=moving, home=0 if trip.located else None)
    unit = min(on_demand_only_in_world(job, case.window)[1] for case in cases)
    return WorldCase(job=markets, cases=tuple(cases), readings=tuple(readings)), unit
