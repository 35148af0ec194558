"""Jobs with hard deadlines in several markets of the world (M11.6, M12), for ``slackwater experiment world``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.executor import fan_out
from slackwater.flows.show.blocks import Section, numbers
from slackwater.optimization.job.markets import even_moving
from slackwater.optimization.market.window import market_window, record_of
from slackwater.optimization.moving.adapter import InOneMarket
from slackwater.optimization.moving.definition import MarketsJob, MultiMarketPolicy
from slackwater.optimization.moving.policies import GreedySpot, MeanField
from slackwater.optimization.policies.reserve import Reserve
from slackwater.optimization.policies.stochastic import Stochastic
from slackwater.optimization.replay.run import Case
from slackwater.optimization.replay.score import on_demand_only_in_world
from slackwater.optimization.world.readings import market_readings, readings_inside
from slackwater.optimization.world.replay import Launcher, WorldCase, replay_in_world
from slackwater.studies.experiments.material import World
from slackwater.studies.experiments.world_jobs import DEADLINES, FORMS, LOADS, RECORD_SLOTS, TIMES, hard_job
from slackwater.studies.policies.several_markets import Failover
from slackwater.studies.trials.comparison import resampled

#: Policies by the names of the report: greedy first, the plan last.
MARKET_POLICIES: Final[dict[str, MultiMarketPolicy[Any]]] = {
    "Greedy": GreedySpot(),
    "UP": Failover(),
    "Reserve, one market": InOneMarket(policy=Reserve()),
    "Plan, one market": InOneMarket(policy=Stochastic()),
    "Plan": MeanField(),
}
#: Transfers of a checkpoint in hours, with the cost of a move in on-demand instance-hours.
MOVES: Final = ((0.05, 0.0), (0.25, 1.0))
#: Prices of all markets in units of on-demand; otherwise those of the record.
RECORDED: Final = "recorded"
PRICES: Final = (RECORDED, "0.25")
#: Hours between the starts of jobs, and slots of record before the first.
EVERY_HOURS, FAST_EVERY_HOURS, FIRST_SLOTS = 24, 96, 96
#: The plan was developed on every third day, which is left out.
DEVELOPED_DAYS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """A job in the zones ``zones`` of a world: its first slot and number of slots, and its kind by names.

    A move takes ``transfer_hours`` and costs ``move`` on-demand instance-hours. ``located``: the data
    are in the first zone.
    """

    world: World
    first: int
    slots: int
    zones: tuple[str, ...]
    form: str
    price: str
    times: str
    load: float
    transfer_hours: float
    move: float
    located: bool
    n_max: int

    @property
    def day(self) -> int:
        """Day of the record in which the job begins."""
        return int(self.first * self.world.slot_hours // 24)


def trips_of(worlds: Sequence[World], *, every_hours: int, rng: np.random.Generator) -> list[Trip]:
    """Return jobs of every kind at a random start in each interval; zones, loads and moves are drawn."""
    found = [trip for world in worlds for trip in _trips(world, every_hours, rng)]
    return [trip for trip in found if trip.day % DEVELOPED_DAYS]


def _trips(world: World, every_hours: int, rng: np.random.Generator) -> Iterator[Trip]:
    names = list(world.counts)
    n_max = min(8, int(max(np.nanmax(counts) for counts in world.counts.values())))
    kinds = list(itertools.product(FORMS if n_max > 1 else ["linear"], PRICES, TIMES))
    every = round(every_hours / world.slot_hours)
    turn = 0
    for begin in range(FIRST_SLOTS, world.slots - max(DEADLINES), every):
        first = begin + int(rng.integers(every))
        if first + max(DEADLINES) > world.slots:
            continue
        for form, price, times in kinds:
            many = min((2, 3, len(names))[turn % 3], len(names))
            zones = tuple(sorted(rng.choice(names, many, replace=False).tolist()))
            transfer, move = MOVES[int(rng.integers(len(MOVES)))]
            load = LOADS[int(rng.integers(len(LOADS)))]
            yield Trip(
                world=world, first=first, slots=DEADLINES[turn // 3 % 2], zones=zones, form=form, price=price, times=times,
                load=load, transfer_hours=transfer, move=move, located=bool(rng.integers(2)), n_max=n_max,
            )  # fmt: skip
            turn += 1


def trip_case(trip: Trip) -> tuple[WorldCase, float]:
    """Return the job of a trip with its markets, and its unit of cost: OD-only in the cheapest market, USD."""
    world, hours = trip.world, trip.world.slot_hours
    begin, end = max(0, trip.first - RECORD_SLOTS), trip.first + trip.slots
    known, constant = slice(begin, end), trip.price != RECORDED
    dear = [1.0 if constant else world.on_demand_usd[zone] for zone in trip.zones]
    counts = [np.asarray(world.counts[zone][known], dtype=float) for zone in trip.zones]
    prices = [
        np.full(end - begin, float(trip.price)) if constant else np.asarray(world.prices[zone][known], float)
        for zone in trip.zones
    ]
    job = hard_job(
        trip.form, trip.times, load=trip.load, slots=trip.slots, n_max=trip.n_max, hours=hours, on_demand_usd=max(dear)
    )  # fmt: skip
    first, cases, readings = trip.first - begin, [], []
    for m, (zone, price, count, usd) in enumerate(zip(trip.zones, prices, counts, dear, strict=True)):
        window = market_window(price[first:], count[first:], on_demand_usd=usd, slot_hours=hours)
        peers = np.delete(np.array(counts), m, axis=0)
        within = world.within.get(zone)
        read = None if within is None else within[known]
        record = record_of(price, count, first=first, slot_hours=hours, peers=peers, within=read)
        cases.append(Case(job=job, window=window, record=record))
        readings.append(market_readings(window, readings_inside(within, trip.first, trip.slots)))
    markets = MarketsJob(
        runs=(job,) * len(cases),
        moving=even_moving(len(cases), taken=trip.transfer_hours / hours, usd=trip.move * min(dear)),
        home=0 if trip.located else None,
    )
    unit = min(on_demand_only_in_world(job, case.window)[1] for case in cases)
    return WorldCase(job=markets, cases=tuple(cases), readings=tuple(readings)), unit


def replay_trip(trip: Trip, policies: tuple[MultiMarketPolicy[Any], ...]) -> np.ndarray:
    """Return cost in units of OD-only, and whether it is late, of every policy under the guard: (policies, 2)."""
    case, unit = trip_case(trip)
    outcomes = replay_in_world(policies, case, launcher=Launcher.SLOTS)
    return np.array([[one.total_cost_usd / unit, float(not one.on_time)] for one in outcomes])


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketRuns:
    """Results of jobs in several markets: ``jobs`` has world, block and kind, ``cost`` and ``late`` are (jobs, policies)."""

    jobs: pd.DataFrame
    cost: np.ndarray
    late: np.ndarray

    def among(self, keep: np.ndarray) -> MarketRuns:
        """Return the jobs where ``keep`` is True."""
        return replace(
            self, jobs=self.jobs[keep].reset_index(drop=True), cost=self.cost[keep], late=self.late[keep]
        )


def run_markets(trips: Sequence[Trip], *, processes: int = 1, tell: Any = None) -> MarketRuns:
    """Replay `MARKET_POLICIES` on every job."""
    policies = tuple(MARKET_POLICIES.values())
    table = np.array(list(fan_out(replay_trip, trips, policies, processes=processes, progress=tell)))
    rows = [
        {
            "world": trip.world.name,
            "block": f"{trip.world.name} {trip.day}",
            "form": trip.form,
            "price": trip.price,
            "times": trip.times,
            "load": trip.load,
            "markets": len(trip.zones),
        }
        for trip in trips
    ]
    return MarketRuns(jobs=pd.DataFrame(rows), cost=table[..., 0], late=table[..., 1])


def market_rows(runs: MarketRuns, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return costs, and how much the plan is cheaper than each policy: of all jobs, and by kind, world, load and markets."""
    rows = [{"jobs_of": "all"} | _row(runs, rng)]
    for columns in (["form", "price", "times"], ["world"], ["load"], ["markets"]):
        for key, group in runs.jobs.groupby(columns, sort=False):
            words = ", ".join(_words(column, value) for column, value in zip(columns, key, strict=True))
            rows.append({"jobs_of": words} | _row(runs.among(runs.jobs.index.isin(group.index)), rng))
    return rows


def _words(column: str, value: Any) -> str:
    if column == "price":
        return "prices of the record" if value == RECORDED else f"spot at {value}"
    known = {"load": f"load {value}", "times": f"{value} restarts", "markets": f"{value} markets"}
    return known.get(column, str(value))


def _row(runs: MarketRuns, rng: np.random.Generator) -> dict[str, Any]:
    names, mean = list(MARKET_POLICIES), runs.cost.mean(axis=0)
    draws = resampled(runs.cost, blocks=runs.jobs["block"].to_numpy(), rng=rng)
    low, high = draws.interval(draws.means - draws.means[:, -1:])
    return {
        "jobs": len(runs.cost),
        "blocks": draws.blocks,
        "late": int(runs.late.sum()),
        "cost": dict(zip(names, mean.tolist(), strict=True)),
        "plan_cheaper_than": {
            name: {"mean": float(mean[k] - mean[-1]), "interval": [float(low[k]), float(high[k])]}
            for k, name in enumerate(names[:-1])
        },
    }


def markets_section(rows: Sequence[dict[str, Any]]) -> Section:
    """Return the section of the report."""
    shown = [
        {
            "jobs_of": row["jobs_of"],
            **row["cost"],
            **{
                f"{name} {key}": value
                for name in ("Greedy", "Plan, one market")
                for key, value in zip(
                    ("gain", "from", "to"),
                    (row["plan_cheaper_than"][name]["mean"], *row["plan_cheaper_than"][name]["interval"]),
                    strict=True,
                )
            },
            "jobs": row["jobs"],
        }
        for row in rows
    ]
    columns = {"jobs_of": "Jobs", **{name: name for name in MARKET_POLICIES}} | {
        "Greedy gain": "Greedy less plan",
        "Greedy from": "95 % from",
        "Greedy to": "to",
        "Plan, one market gain": "One market less plan",
        "Plan, one market from": "95 % from ",
        "Plan, one market to": "to ",
        "jobs": "Number",
    }
    return Section(
        "Several markets",
        [
            "Jobs that may run in several zones and move, all policies under the exact guard, decisions at slots. The plan is "
            "MeanField. Policies in one market choose it at the start. Every third day of each record, on which the plan was "
            "developed, is left out; blocks are worlds and days.",
            numbers(columns, shown, digits=3),
        ],
        "several-markets",
    )
