"""``slackwater experiment markets``: E6, a job that may run in any of many markets and may move between them (M11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slackwater.flows.command import Answer, progress, say
from slackwater.flows.config import Settings
from slackwater.flows.executor import fan_out
from slackwater.flows.show.blocks import Figure, Figures, Fold, Notes, Section, numbers
from slackwater.flows.show.charts import Axis, dots, lines
from slackwater.forecasting.accuracy.intervals import EVEN, TOO_FEW, interval_words, verdict
from slackwater.optimization.job.definition import InstanceTimes, Job, Linear
from slackwater.optimization.job.markets import even_moving
from slackwater.optimization.market.window import (
    PointForecast,
    Quantiles,
    market_window,
    of_quantiles,
    record_of,
)
from slackwater.optimization.moving.adapter import InOneMarket, best_alone
from slackwater.optimization.moving.definition import MarketsJob, MultiMarketPolicy
from slackwater.optimization.moving.policies import GreedySpot, MeanField
from slackwater.optimization.moving.sight import Grounds
from slackwater.optimization.policies.baselines import MaximalSpot, UniformProgress
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.stochastic import Stochastic
from slackwater.optimization.replay.run import Case
from slackwater.optimization.replay.score import on_demand_only_in_world
from slackwater.optimization.world.audit import audit_in_world
from slackwater.optimization.world.readings import market_readings, readings_inside
from slackwater.optimization.world.replay import Launcher, WorldCase, WorldOutcome, replay_in_world
from slackwater.optimization.world.simulation import Readings
from slackwater.studies.experiments.charts import heat
from slackwater.studies.experiments.material import World, issued_quantiles, read_worlds
from slackwater.studies.experiments.pool import FAST_PLANNER
from slackwater.studies.experiments.study import StudyOptions, quick_look
from slackwater.studies.policies.several_markets import DeadlinePressure, Failover, OneStep
from slackwater.studies.trials.comparison import headroom_captured, resampled
from slackwater.studies.trials.scenarios import GAMMA, VALUE_FACTOR, Tape
from slackwater.studies.world_bound import bound_in_world
from slackwater.warehouse.errors import MarketError

#: Parameters of every job: slots to its deadline, times of instances, what they take of a slot of half an hour, and the
#: share of a slot that a move takes at the centre. Loads and sizes alternate over the jobs.
DEADLINE, TIMES, TAKEN = 20, InstanceTimes(boot=120.0, restart=240.0, checkpoint=600.0), 0.3
MU_UP, MU_DOWN = 1.0 - (TIMES.boot + TIMES.restart) / 1800.0, 1.0 - TIMES.restart / 1800.0
LOADS, SIZES = (0.3, 0.5, 0.7), (4, 8, 16)
#: Shares of a slot that a move takes, and its cost in USD in worlds with many instances per market or with a single instance; the
#: middle values are the centre.
TAKES = (0.1, 0.3, 1.0)
USD, SINGLE_USD = (0.0, 2.0, 10.0), (0.0, 0.1, 2.0)
#: Numbers of markets that a job may run in, in addition to all of them.
FEW_MARKETS = (1, 2, 4)
#: Start times in worlds with many instances per market, in worlds with a single instance (small jobs), and with ``--fast``.
STARTS, SINGLE_STARTS, FAST_STARTS = 72, 144, 3
#: With fewer markets there is little choice.
LEAST_MARKETS = 3

MEAN_FIELD, ONE_STEP = "MeanField", "OneStep"
#: Cost that no policy in the world can undercut (M12.14); no policy reaches it.
BOUND = "bound over markets"
#: As run by turns: with the forecasts that would have been issued in each slot.
FORECASTING = "MeanField, with forecasts"
START, HOME = "Stochastic, best market at the start", "Stochastic, at home"
ONE_MARKET = "bound, the best one market"
RULES = (Failover(), Failover(fullest=True), GreedySpot(), DeadlinePressure())
MULTI_MARKET_POLICIES: tuple[MultiMarketPolicy[Any], ...] = (MeanField(), OneStep(), *RULES)
#: Policies run in every cell; the others run at the centre only.
EVERYWHERE = (BOUND, START, *(mover.name for mover in MULTI_MARKET_POLICIES))
SINGLES: dict[str, Policy[Any]] = {
    "UP": UniformProgress(),
    "MSU-trim": MaximalSpot(trim=True),
    "Stochastic": Stochastic(),
}
CENTRE, MOVES, SMALL, MARKETS, PLACE = "centre", "moves", "N_max 1", "markets", "place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """Variation of the centre: ``value`` names it on its ``axis``; ``markets`` is the number of markets (0: all)."""

    axis: str
    value: str
    usd: float
    taken: float = TAKEN
    markets: int = 0
    located: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnJob:
    """Job drawn for a world: first slot, size and load, home market, and a random order of the markets.

    ``varied``: the job runs in all cells, not only at the centre.
    """

    world: int
    name: str
    first: int
    n_max: int
    load: float
    home: int
    order: tuple[int, ...]
    varied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Worlds and cells of the experiment, shared by all jobs; ``small`` are the cells for jobs of a single instance.

    ``ahead`` maps, for each world, a zone's name and a slot of the second half to the forecast issued in that slot.
    """

    worlds: tuple[World, ...]
    cells: tuple[tuple[Variation, ...], ...]
    small: tuple[tuple[Variation, ...], ...]
    ahead: tuple[Mapping[str, Mapping[int, PointForecast]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverRun:
    """Result of a policy on a job in a cell.

    ``cost`` is the payment plus the loss of value, in units of the on-demand-only cost.
    """

    world: int
    axis: str
    value: str
    first: int
    n_max: int
    load: float
    varied: bool
    mover: str
    cost: float
    late: bool
    moves: float


def markets_study(
    study: StudyOptions, *, processes: int | None = None, many: int | None = None, forecasts: bool = True
) -> Answer:
    """Run E6 on a folder; ``many`` start times in each world (None: `STARTS` or `SINGLE_STARTS`)."""
    say(f"read {study.data}")
    worlds, notes = measured_worlds(study.data)
    design = design_of([world for world, _ in worlds], fast=study.fast)
    drawn = [
        draw for w in range(len(worlds)) for draw in draws_of(design.worlds[w], w, seed=study.seed, fast=study.fast, many=many)
    ]  # fmt: skip
    if forecasts:
        design = replace(design, ahead=_forecasts(worlds, drawn, FAST_PLANNER if study.fast else None))
    with progress("jobs", lines=True) as tell:
        found = list(fan_out(run_draw, drawn, design, processes=study.workers(processes), progress=tell))
    runs = pd.DataFrame([run for runs in found for run in runs])
    return markets_report(
        markets_answer(runs, worlds, notes, data=str(study.data), seed=study.seed, fast=study.fast)
    )


def measured_worlds(folder: Path) -> tuple[list[tuple[World, list[Tape]]], list[str]]:
    """Return the worlds of a folder with measured prices, and notes on the omitted worlds; `MarketError` if there is none."""
    read = read_worlds(folder, least_capacity=1)
    kept = [
        (world, zones) for world, zones in read if not world.synthetic and len(world.counts) >= LEAST_MARKETS
    ]
    if not kept:
        raise MarketError(
            f"{folder}: {len(read)} instance types probed in zones at the same time, none in {LEAST_MARKETS} zones with prices",
            expected=f"counts and prices of at least {LEAST_MARKETS} zones of one source",
            remedy="give a folder with more zones",
        )
    left = [
        f"{world.name}, {zones[0].source}: left out, "
        + ("no prices of its own" if world.synthetic else f"fewer than {LEAST_MARKETS} zones")
        for world, zones in read
        if all(world is not other for other, _ in kept)
    ]
    return kept, left


def _forecasts(
    worlds: Sequence[tuple[World, list[Tape]]], drawn: Sequence[DrawnJob], planner: str | None
) -> tuple[dict[str, dict[int, PointForecast]], ...]:
    """Return `forecasts_of` for every world, in the slots in which its jobs run."""
    with progress("series forecast", lines=True) as tell:
        return tuple(
            forecasts_of(world, zones, slots_of(drawn, w), planner=planner, progress=tell)
            for w, (world, zones) in enumerate(worlds)
        )


def slots_of(drawn: Sequence[DrawnJob], world: int) -> list[int]:
    """Return the slots in which the drawn jobs of a world run, ascending."""
    firsts = {draw.first for draw in drawn if draw.world == world}
    return sorted({first + k for first in firsts for k in range(DEADLINE)})


def forecasts_of(
    world: World,
    zones: Sequence[Tape],
    slots: Sequence[int],
    *,
    planner: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, dict[int, PointForecast]]:
    """Return the forecasts that turns would have issued for each zone in the given slots.

    ``planner`` is the model; None uses the planner of the settings.
    """
    settings = Settings.model_validate({})
    name = planner or settings.planner
    prices = [
        replace(
            zone, variable="price", values=np.asarray(world.prices[zone.market.zone], dtype=float),
            bound=world.on_demand_usd[zone.market.zone], within=None,
        )
        for zone in zones
    ]  # fmt: skip
    made: list[dict[str, dict[int, np.ndarray]]] = []
    total, done = 2 * len(zones) * len(slots), 0

    def told(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    for panel in (list(zones), prices):
        asked = {tape.label: slots for tape in panel}
        made.append(issued_quantiles(panel, asked, planner=name, settings=settings, progress=told))
    counts, usd = made
    return {
        zone.market.zone: {
            slot: of_quantiles(
                Quantiles(
                    price=usd[zone.label][slot], count=counts[zone.label][slot], capacity=int(zone.bound)
                )
            )
            for slot in slots
        }
        for zone in zones
    }


def usd_of(world: World) -> tuple[float, ...]:
    """Return the costs of a move in a world, USD."""
    return USD if capacity(world) > 1 else SINGLE_USD


def capacity(world: World) -> int:
    """Return the largest number of instances observed in a market of the world."""
    return int(max(np.nanmax(counts) for counts in world.counts.values()))


def sizes_of(world: World) -> tuple[int, ...]:
    """Return the values of N_max for the world's jobs: at most the largest number of instances observed."""
    most = capacity(world)
    return tuple(n for n in SIZES if n <= most) or (most,)


def design_of(worlds: Sequence[World], *, fast: bool) -> Design:
    """Return the cells of each world: each varies one parameter of the centre."""
    cells, small = [], []
    for world in worlds:
        usd, several = usd_of(world), capacity(world) > 1
        middle = usd[1]
        own = [Variation(axis=CENTRE, value="", usd=middle)]
        own += [
            Variation(axis=MOVES, value=move_name(taken, each), taken=taken, usd=each)
            for taken in TAKES
            for each in usd
            if (taken, each) != (TAKEN, middle) and (not fast or (taken, each) == (TAKES[-1], usd[-1]))
        ]
        own += [
            Variation(axis=MARKETS, value=str(k), usd=middle, markets=k)
            for k in (FEW_MARKETS[1:2] if fast else FEW_MARKETS)
            if k < len(world.counts)
        ]
        own.append(Variation(axis=PLACE, value="located", usd=middle, located=True))
        cells.append(tuple(own))
        small.append(
            tuple(
                Variation(axis=SMALL, value=move_name(TAKEN, each), usd=each)
                for each in (usd[:1] if fast else usd)
            )
            if several
            else ()
        )
    return Design(worlds=tuple(worlds), cells=tuple(cells), small=tuple(small))


def move_name(taken: float, usd: float) -> str:
    """Return the name of a cell, such as ``0.3 slots, $2``."""
    return f"{taken:g} slots, ${usd:g}"


def draws_of(world: World, number: int, *, seed: int, fast: bool, many: int | None = None) -> list[DrawnJob]:
    """Return jobs that begin in the second half: one start time is drawn in each of equally long intervals.

    Every start has a job of each size at the centre; sizes, loads and homes alternate. Raises `MarketError` if there are fewer
    slots than start times.
    """
    rng = np.random.default_rng([seed, 6, number])
    sizes, zones = sizes_of(world), len(world.counts)
    half, last = world.slots // 2, world.slots - DEADLINE + 1
    many = many or (FAST_STARTS if fast else STARTS if capacity(world) > 1 else SINGLE_STARTS)
    if last - half < many:
        raise MarketError(
            f"{world.name}: {last - half} slots to begin in", expected=f"at least {many} in the later half"
        )
    edges = np.linspace(half, last, many + 1).astype(int)
    drawn = []
    for q in range(many):
        first, order = int(rng.integers(edges[q], edges[q + 1])), tuple(rng.permutation(zones).tolist())
        for j, n_max in enumerate(sizes):
            varied = j == q % len(sizes)
            if fast and not varied:
                continue
            own = DrawnJob(
                world=number, name=f"{world.name} {first} {n_max}", first=first, n_max=n_max,
                load=LOADS[(q // len(sizes) + j) % len(LOADS)], home=(q + q // zones) % zones, order=order,
                varied=varied,
            )  # fmt: skip
            drawn.append(own)
            if varied and capacity(world) > 1:
                drawn.append(replace(own, n_max=1, name=f"{world.name} {first} 1"))
    return drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Job for all markets of its world, with its case and readings in each, and its unit of cost, USD."""

    cases: tuple[Case, ...]
    readings: tuple[Readings, ...]
    unit: float
    #: Mean saving of spot in a market before the start, relative to the cheapest on-demand price, USD per slot.
    saved_usd: tuple[float, ...]

    def of(self, chosen: Sequence[int]) -> Scene:
        """Return the scene restricted to some of the markets."""
        own = [self.cases[m] for m in chosen]
        counts = np.array([one.record.available for one in own if one.record is not None])
        return replace(
            self,
            cases=tuple(
                replace(one, record=replace(one.record, peers=np.delete(counts, k, axis=0)))
                for k, one in enumerate(own)
                if one.record is not None
            ),
            readings=tuple(self.readings[m] for m in chosen),
            saved_usd=tuple(self.saved_usd[m] for m in chosen),
        )

    def movable(self, cell: Variation, home: int) -> WorldCase:
        """Return the multi-market job with the cell's costs of moves."""
        job = MarketsJob(
            runs=tuple(one.job for one in self.cases),
            moving=even_moving(len(self.cases), taken=cell.taken, usd=cell.usd),
            home=home if cell.located else None,
        )
        return WorldCase(job=job, cases=self.cases, readings=self.readings)


def scene_of(world: World, draw: DrawnJob) -> Scene:
    """Return the scene of a drawn job; L = load d H(N_max) Delta with H(n) = n, v = 1.5 x the cheapest on-demand-only cost (M7)."""
    i, end, hours = draw.first, draw.first + DEADLINE, world.slot_hours
    prices = [np.asarray(world.prices[zone][:end], dtype=float) for zone in world.counts]
    counts = [np.asarray(world.counts[zone][:end], dtype=float) for zone in world.counts]
    read = [world.within[zone][:end] if zone in world.within else None for zone in world.counts]
    dear = [world.on_demand_usd[zone] for zone in world.counts]
    windows = tuple(
        market_window(price[i:], count[i:], on_demand_usd=usd, slot_hours=hours)
        for price, count, usd in zip(prices, counts, dear, strict=True)
    )
    workload = draw.load * DEADLINE * draw.n_max * hours
    job = Job(
        name=draw.name, workload=workload, deadline_slots=DEADLINE, n_min=1, n_max=draw.n_max, throughput=Linear(),
        mu_up=MU_UP, mu_down=MU_DOWN, value=workload * min(dear), gamma=GAMMA, times=TIMES,
    )  # fmt: skip
    unit = min(on_demand_only_in_world(job, window)[1] for window in windows)
    job = replace(job, value=VALUE_FACTOR * unit)
    records = tuple(
        record_of(
            price,
            count,
            first=i,
            slot_hours=hours,
            peers=np.array(counts[:m] + counts[m + 1 :]),
            within=within,
        )
        for m, (price, count, within) in enumerate(zip(prices, counts, read, strict=True))
    )
    saved = tuple(
        float(np.nanmean(np.minimum(count[:i], draw.n_max) * np.maximum(min(dear) - price[:i], 0.0)) * hours)
        for price, count in zip(prices, counts, strict=True)
    )
    return Scene(
        cases=tuple(
            Case(job=job, window=window, record=record)
            for window, record in zip(windows, records, strict=True)
        ),
        readings=tuple(
            market_readings(window, readings_inside(world.within.get(zone), i, DEADLINE))
            for zone, window in zip(world.counts, windows, strict=True)
        ),
        unit=unit,
        saved_usd=saved,
    )


def run_draw(draw: DrawnJob, design: Design) -> list[MoverRun]:
    """Run every policy in every cell on a job in the world; all outcomes are audited (M12.13)."""
    whole = scene_of(design.worlds[draw.world], draw)
    cells = (
        design.small[draw.world] if draw.n_max == 1 and design.small[draw.world] else design.cells[draw.world]
    )
    at_home = whole.movable(cells[0], draw.home)
    shared = Grounds(at_home.job, at_home.cases)
    found: list[MoverRun] = []
    for cell in cells if draw.varied else cells[:1]:
        scene, grounds = whole, shared
        if cell.markets:
            scene = whole.of(sorted(draw.order[: cell.markets]))
            few = scene.movable(cell, 0)
            grounds = Grounds(few.job, few.cases)
        case = scene.movable(cell, draw.home)
        grounds = grounds.of(case.job)
        told = partial(
            MoverRun, world=draw.world, axis=cell.axis, value=cell.value, first=draw.first, n_max=draw.n_max, load=draw.load,
            varied=draw.varied,
        )  # fmt: skip
        found.append(_bound(BOUND, case, scene.unit, told))
        at_start = best_alone(grounds.view(case.job.begin(), 0))
        for name, outcome in outcomes_of(case, cell, grounds, draw, at_start):
            found.append(_run(name, case, outcome, scene.unit, told))
        if cell.axis == CENTRE:
            found += _singles(case, scene, grounds, told, at_start)
            if design.ahead:
                zones = design.ahead[draw.world]
                known = replace(
                    case,
                    cases=tuple(
                        replace(one, forecasts=[zones[zone][draw.first + t] for t in range(DEADLINE)])
                        for zone, one in zip(design.worlds[draw.world].counts, case.cases, strict=True)
                    ),
                )
                (outcome,) = replay_in_world([MeanField()], known, launcher=Launcher.SLOTS)
                found.append(_run(FORECASTING, case, outcome, scene.unit, told))
    return found


def _run(name: str, case: WorldCase, outcome: WorldOutcome, unit: float, told: Any) -> MoverRun:
    """Return the audited run of a policy."""
    audit_in_world(case, outcome)
    cost = (case.job.job.value - outcome.utility_usd) / unit
    run: MoverRun = told(mover=name, cost=cost, late=not outcome.on_time, moves=outcome.moves)
    return run


def _bound(name: str, case: WorldCase, unit: float, told: Any) -> MoverRun:
    """Return the bound of a job as a run."""
    cost = (case.job.job.value - bound_in_world(case).utility_usd) / unit
    run: MoverRun = told(mover=name, cost=cost, late=False, moves=0)
    return run


def outcomes_of(
    case: WorldCase, cell: Variation, grounds: Grounds, draw: DrawnJob, at_start: int
) -> Iterator[tuple[str, WorldOutcome]]:
    """Return the outcome of each policy for a job in a cell."""
    alone = {START: InOneMarket(policy=SINGLES["Stochastic"], market=at_start)}
    if cell.located:
        alone[HOME] = InOneMarket(policy=SINGLES["Stochastic"], market=draw.home)
    movers: dict[str, MultiMarketPolicy[Any]] = alone | {mover.name: mover for mover in MULTI_MARKET_POLICIES}
    replayed = replay_in_world(list(movers.values()), case, launcher=Launcher.SLOTS, grounds=grounds)
    yield from zip(movers, replayed, strict=True)


def _singles(case: WorldCase, scene: Scene, grounds: Grounds, told: Any, at_start: int) -> list[MoverRun]:
    """Return the runs of every policy on single markets: the mean over markets, and the markets that could have been chosen."""
    found = []
    chosen = {
        "best market by the past": int(np.argmax(scene.saved_usd)),
        "best market at the start": at_start,
    }
    for name, policy in SINGLES.items():
        each = [InOneMarket(policy=policy, market=m) for m in range(len(scene.cases))]
        runs = [
            _run(name, case, outcome, scene.unit, told)
            for outcome in replay_in_world(each, case, launcher=Launcher.SLOTS, grounds=grounds)
        ]
        mean, late = float(np.mean([run.cost for run in runs])), any(run.late for run in runs)
        found.append(told(mover=f"{name}, mean over markets", cost=mean, late=late, moves=0))
        found += [
            replace(runs[m], mover=f"{name}, {how}", moves=0)
            for how, m in chosen.items()
            if m is not None and f"{name}, {how}" != START
        ]
    alone = [
        _bound(ONE_MARKET, WorldCase.of(one, own), scene.unit, told)
        for one, own in zip(scene.cases, scene.readings, strict=True)
    ]
    return [*found, min(alone, key=lambda run: run.cost)]


# Aggregation of the runs: a row for each policy in each cell.


def markets_answer(
    runs: pd.DataFrame,
    worlds: Sequence[tuple[World, Sequence[Tape]]],
    notes: Sequence[str],
    *,
    data: str,
    seed: int,
    fast: bool,
) -> dict[str, Any]:
    """Return the object of ``experiment markets --json``; costs in units of the cheapest on-demand-only cost."""
    told = [
        _world_answer(runs[runs["world"] == w], world, zones, seed=seed)
        for w, (world, zones) in enumerate(worlds)
    ]
    return {
        "data": data, "seed": seed, "fast": fast, "worlds": told,
        "findings": [sentence for one in told for sentence in findings(one)],
        "notes": [
            *notes,
            "A cost is what a job paid and, where it was late, what it lost of its value, in units of what on-demand alone "
            "costs in the world's cheapest on-demand zone (OD-only). Markets are believed by chains of the counts and prices "
            "before each slot; no forecast is read but by the mover that says so.",
            "Intervals are 95 %, by a bootstrap that draws whole days of start times, all movers together: jobs of one start and "
            "of neighbouring ones share slots. Jobs that begin late on a day reach into the next one. The days are few: the "
            "percentiles are set further out for it, as Student's t is.",
            "An idle job keeps its place, and where a job is located its data are at home at first: leaving costs the move.",
        ],
    }  # fmt: skip


def _world_answer(runs: pd.DataFrame, world: World, zones: Sequence[Tape], *, seed: int) -> dict[str, Any]:
    half, day = world.slots // 2, round(24.0 / world.slot_hours)
    runs = runs.assign(block=(runs["first"] - half) // day)
    centre, usd = runs[runs["axis"] == CENTRE], usd_of(world)
    varied = centre[centre["varied"] & centre["mover"].isin(EVERYWHERE)]
    rows = partial(mover_rows, seed=seed)
    axes: dict[str, list[tuple[str, pd.DataFrame]]] = {
        MOVES: [(move_name(TAKEN, usd[1]), varied)], MARKETS: [(str(len(world.counts)), varied)],
        PLACE: [("free", varied)], SMALL: [],
    }  # fmt: skip
    for (axis, value), own in runs[runs["axis"] != CENTRE].groupby(["axis", "value"], sort=False):
        axes[str(axis)].append((str(value), own))
    return {
        "name": world.name,
        "source": zones[0].source,
        "markets": list(world.counts),
        "capacity": capacity(world),
        "from": str(zones[0].time(half)),
        "until": str(zones[0].time(world.slots - 1)),
        "slot_hours": world.slot_hours,
        "constant_prices": bool(all(np.ptp(prices) == 0.0 for prices in world.prices.values())),
        "jobs": len(centre.groupby(["first", "n_max"])),
        "starts": int(centre["first"].nunique()),
        "days": int(centre["block"].nunique()),
        "deadline_slots": DEADLINE, "loads": list(LOADS), "sizes": list(sizes_of(world)), "mu_up": MU_UP, "mu_down": MU_DOWN,
        "takes": list(TAKES), "usd": list(usd), "move": {"taken": TAKEN, "usd": usd[1]},
        "movers": rows(centre),
        "by_size": [row for n, own in centre.groupby("n_max") for row in rows(own, value=str(n))],
        "by_load": [row for load, own in centre.groupby("load") for row in rows(own, value=f"{load:g}")],
        "cells": {
            axis: [row for value, own in ordered(axis, given) for row in rows(own, value=value)]
            for axis, given in axes.items()
        },
    }  # fmt: skip


def ordered(axis: str, given: list[tuple[str, pd.DataFrame]]) -> list[tuple[str, pd.DataFrame]]:
    """Return the cells of an axis in their display order."""
    return sorted(given, key=lambda one: int(one[0])) if axis == MARKETS else given


def mover_rows(runs: pd.DataFrame, *, seed: int, value: str = "") -> list[dict[str, Any]]:
    """Return a row for each policy, cheapest first: its cost with the interval, and the comparison with staying in one market.

    The reference is the stochastic policy in the market that is best at the start, or at home if the job is located. A row has
    the policy's extra cost over that reference, and the share it captures of the headroom up to the bound over markets.
    """
    table = runs.pivot(index=["first", "n_max"], columns="mover", values="cost")
    blocks = runs.drop_duplicates(["first", "n_max"]).set_index(["first", "n_max"])["block"].loc[table.index]
    names = list(table.columns)
    base = names.index(HOME if HOME in names else START)
    best = names.index(BOUND)
    costs = table.to_numpy(dtype=float)
    draws = resampled(costs, blocks=blocks.to_numpy(), rng=np.random.default_rng([seed, 7]))
    samples = draws.means
    mean = costs.mean(axis=0)
    low, high = draws.interval()
    over_low, over_high = draws.interval(samples - samples[:, [base]])
    # Costs are negative utilities.
    captured = headroom_captured(-mean, -mean[base], -mean[best])
    captured_low, captured_high = draws.interval(
        headroom_captured(-samples, -samples[:, [base]], -samples[:, [best]])
    )
    mine = names.index(MEAN_FIELD) if MEAN_FIELD in names else base
    mine_low, mine_high = draws.interval(samples - samples[:, [mine]])
    own = runs.groupby("mover")
    late, moves = own["late"].sum(), own["moves"].mean()
    return [
        {
            "value": value, "mover": names[i], "jobs": len(table), "cost": float(mean[i]),
            "low": float(low[i]), "high": float(high[i]), "over": names[base],
            "dearer": float(mean[i] - mean[base]), "dearer_low": float(over_low[i]), "dearer_high": float(over_high[i]),
            "over_mean_field": float(mean[i] - mean[mine]),
            "over_mean_field_low": float(mine_low[i]), "over_mean_field_high": float(mine_high[i]),
            "captured": float(captured[i]), "captured_low": float(captured_low[i]), "captured_high": float(captured_high[i]),
            "late": int(late[names[i]]), "moves": float(moves[names[i]]),
        }
        for i in np.argsort(mean, kind="stable")
    ]  # fmt: skip


def row_of(rows: Sequence[Mapping[str, Any]], mover: str, value: str | None = None) -> Mapping[str, Any]:
    """Return the row of a policy, in a cell if ``value`` is given."""
    return next(row for row in rows if row["mover"] == mover and value in (None, row["value"]))


def findings(world: Mapping[str, Any]) -> list[str]:
    """Return sentences computed from the results of a world, favourable or not."""
    name, cells = world["name"], world["cells"]
    mine, best = row_of(world["movers"], MEAN_FIELD), row_of(world["movers"], BOUND)
    start = row_of(world["movers"], START)
    others = [
        row for row in world["movers"] if row["mover"] not in (MEAN_FIELD, FORECASTING, BOUND, ONE_MARKET)
    ]
    second = others[0]
    said = [
        f"{name}: MeanField pays {mine['cost']:.4f} of on-demand only, the bound over markets {best['cost']:.4f}, the "
        f"stochastic policy in the market that is best at the start {start['cost']:.4f}; of the way from there to the bound it "
        f"goes {_captured(mine)}. The next best is {second['mover']}: {second['cost']:.4f}, {_captured(second)}."
    ]
    told = [row for row in world["movers"] if row["mover"] == FORECASTING]
    said += [
        f"{name}: with the forecasts that turns would have issued MeanField pays {row['cost']:.4f}, {_captured(row)} of the way: "
        f"beside MeanField without them {row['over_mean_field']:+.4f} ({interval_words(low, high, '+.4f')})."
        for row in told
        for low, high in [(row["over_mean_field_low"], row["over_mean_field_high"])]
    ]
    one = row_of(world["movers"], ONE_MARKET)
    if np.isfinite(one["captured"]):
        room = (
            "the room is in choosing the market, and leaving it where that went wrong, more than in following the counts."
            if one["captured"] > 0.5
            else "most of the room is in moving."
        )
        said.append(
            f"{name}: whoever had known which one market to stay in would have paid {one['cost']:.4f}, {_captured(one)} of the "
            f"way: {room}"
        )
    if len(world["sizes"]) > 1:
        each = [f"{n}: {_captured(row_of(world['by_size'], MEAN_FIELD, str(n)))}" for n in world["sizes"]]
        said.append(f"{name}, captured by N_max: {'; '.join(each)}.")
    located = row_of(cells[PLACE], MEAN_FIELD, "located")
    home, seer = row_of(cells[PLACE], HOME, "located"), row_of(cells[PLACE], BOUND, "located")
    said.append(
        f"{name}, a job whose data are in one market at first: staying there costs {home['cost']:.4f}, MeanField "
        f"{located['cost']:.4f}, bound {seer['cost']:.4f}: {_captured(located)} of the way."
    )
    worst = max(
        (row for row in (*cells[MOVES], *cells[SMALL]) if row["mover"] == MEAN_FIELD),
        key=lambda row: row["dearer"],
    )
    small = ", N_max 1" if worst in cells[SMALL] else ""
    said.append(
        f"{name}, by costs of moves: MeanField does worst beside staying where it is best at the start at {worst['value']}{small}: "
        f"{worst['dearer']:+.4f} ({interval_words(worst['dearer_low'], worst['dearer_high'], '+.4f')}) of on-demand only."
    )
    said += _losses(world)
    late = {
        mover: sum(row["late"] for row in _all_rows(world) if row["mover"] == mover)
        for mover in dict.fromkeys(row["mover"] for row in _all_rows(world))
    }
    missed = [f"{mover} {n}" for mover, n in late.items() if n]
    said.append(f"{name}, runs that missed their deadline: {', '.join(missed) or 'none'}.")
    return said


def _all_rows(world: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows of the centre and of every other cell, without repeating the centre."""
    again = {
        (MOVES, move_name(world["move"]["taken"], world["move"]["usd"])), (MARKETS, str(len(world["markets"]))),
        (PLACE, "free"),
    }  # fmt: skip
    return [
        *world["movers"],
        *(row for axis, rows in world["cells"].items() for row in rows if (axis, row["value"]) not in again),
    ]


def _losses(world: Mapping[str, Any]) -> list[str]:
    """Return sentences on the cells where a feasible policy is cheaper than MeanField in the mean, and whether significantly."""
    cells = [("load", world["by_load"]), ("N_max", world["by_size"])]
    cells += list(world["cells"].items())
    told: dict[bool, list[str]] = {True: [], False: []}
    for axis, rows in cells:
        for value in dict.fromkeys(row["value"] for row in rows):
            here = [row for row in rows if row["value"] == value and row["mover"] not in (BOUND, ONE_MARKET)]
            first, mine = here[0], row_of(here, MEAN_FIELD)
            if first["over_mean_field"] < -5e-5:
                beyond = verdict(first["over_mean_field_low"], first["over_mean_field_high"]) not in (
                    EVEN,
                    TOO_FEW,
                )
                told[beyond].append(
                    f"{axis} {value} ({first['mover']} {first['cost']:.4f}, MeanField {mine['cost']:.4f})"
                )
    name = world["name"]
    said = [f"{name}: MeanField is beaten at {'; '.join(told[True])}."] if told[True] else []
    if told[False]:
        said.append(
            f"{name}: not decided, though cheaper in the mean than MeanField: {'; '.join(told[False])}."
        )
    return said or [f"{name}: in no cell was anything but the bound cheaper than MeanField."]


def _captured(row: Mapping[str, Any]) -> str:
    if not np.isfinite(row["captured"]):
        return "nothing to capture"
    return f"{row['captured']:.2f} ({interval_words(row['captured_low'], row['captured_high'], '.2f')})"


# Report.

_WORDS = {
    "mover": "Mover", "jobs": "Jobs", "cost": "Cost", "low": "95 % from", "high": "to", "captured": "Captured",
    "captured_low": "from", "captured_high": "to ", "late": "Late", "moves": "Moves",
}  # fmt: skip
_DEARER = {"dearer": "Dearer than staying", "dearer_low": "95 % from ", "dearer_high": "to  "}
#: Series of the chart by number of markets.
DRAWN = (MEAN_FIELD, ONE_STEP, START, "UP, failover", BOUND)


def markets_report(answer: Mapping[str, Any]) -> Answer:
    """Return the report: findings, then for each world the costs by policy and the headroom captured by cell."""
    sections = [Section("Findings", [Notes(answer["findings"])], "findings")]
    for number, world in enumerate(answer["worlds"]):
        sections += _world_sections(world, f"world-{number}")
    return Answer(
        title="One job, many markets (E6)",
        about=(
            f"Jobs drawn with seed {answer['seed']} from the later half of the records of {answer['data']}; costs are in units "
            f"of what on-demand alone costs in the cheapest zone{quick_look(answer)}."
        ),
        value=answer,
        blocks=sections,
        notes=answer["notes"],
    )


def _world_sections(world: Mapping[str, Any], anchor: str) -> list[Section]:
    cells, move = world["cells"], world["move"]
    kind = (
        "each zone's price is one constant of a catalogue"
        if world["constant_prices"]
        else "prices as measured"
    )
    names = {
        MOVES: "costs of moves", SMALL: "costs of moves, N_max 1", MARKETS: "number of markets", PLACE: "where data are at first",
    }  # fmt: skip
    words = _WORDS | _DEARER
    return [
        Section(
            f"{world['name']}: cost by mover",
            [
                f"{world['jobs']} jobs at {world['starts']} start times on {world['days']} days from {world['from'][:10]}; counts "
                f"measured (0..{world['capacity']}), {kind}. {world['deadline_slots']} slots of {60 * world['slot_hours']:g} "
                f"minutes, a move takes {move['taken']:g} slots beside the restart and costs ${move['usd']:g}; the first start is "
                "free. Captured is the share of the way from the stochastic policy in the market that is best at the start to "
                "the bound over markets.",
                _movers_figure(world),
                Fold("Numbers", [numbers(words, world["movers"])], printed=True),
                Fold(
                    "By N_max and load",
                    [
                        numbers({"value": "N_max"} | words, world["by_size"], title="By N_max"),
                        numbers({"value": "Load"} | words, world["by_load"], title="By load"),
                    ],
                ),
            ],
            anchor,
        ),
        Section(
            f"{world['name']}: one thing varied",
            [
                "Each cell changes one thing of the centre, on the jobs that all cells have.",
                Figures([_moves_figure(world), _few_figure(world)]),
                *(
                    Fold(f"By {names[axis]}", [numbers({"value": "Cell"} | words, rows)], printed=True)
                    for axis, rows in cells.items()
                    if rows
                ),
            ],
            f"{anchor}-cells",
        ),
    ]


def _movers_figure(world: Mapping[str, Any]) -> Figure:
    rows = [
        {"label": row["mover"], "value": row["cost"], "low": row["low"], "high": row["high"], "kind": ""}
        for row in world["movers"]
    ]
    spec = dots(
        rows, [row["label"] for row in rows], x=Axis(title="cost, on-demand only = 1", zero=False), spans=True,
        bound=row_of(world["movers"], BOUND)["cost"],
    )  # fmt: skip
    return Figure(
        specs=[spec], label=f"Cost by mover with 95 % intervals: {world['name']}",
        captions=["Bars are 95 % intervals over days; the line is the bound over markets."],
    )  # fmt: skip


def _moves_figure(world: Mapping[str, Any]) -> Figure:
    """Return the heat map of MeanField's captured headroom by duration and cost of a move."""
    rows = world["cells"][MOVES]
    given = {row["value"]: row["captured"] for row in rows if row["mover"] == MEAN_FIELD}
    spec = heat(
        [
            {"x": f"${usd:g}", "y": f"{taken:g} slots", "z": given.get(move_name(taken, usd), float("nan"))}
            for taken in world["takes"]
            for usd in world["usd"]
        ],
        x=Axis(title="a move costs"), y=Axis(title="a move takes"), value="captured",
    )  # fmt: skip
    return Figure(
        specs=[spec], title="Captured by MeanField", width=0,
        label=f"Share of the headroom that MeanField captures by costs of moves: {world['name']}",
    )  # fmt: skip


def _few_figure(world: Mapping[str, Any]) -> Figure:
    rows = world["cells"][MARKETS]
    points = [
        {"x": int(row["value"]), "y": row["cost"], "series": row["mover"]}
        for row in rows
        if row["mover"] in DRAWN
    ]
    spec = lines(
        points, DRAWN, reference=BOUND, y=Axis(title="cost", zero=False),
        x=Axis(title="markets", at=sorted({p["x"] for p in points}), zero=False, format="d"),
    )  # fmt: skip
    return Figure(
        specs=[spec], title="Cost by number of markets", width=0,
        label=f"Cost by the number of markets a job may run in: {world['name']}",
    )  # fmt: skip
