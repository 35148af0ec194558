"""Streams of jobs that compete for the counts of known markets, planned slot after slot (M2.4-M2.6, M3.6; ours)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from optimization.fleet.problem import JointJob, JointPlan, JointProblem, Place
from optimization.job.definition import Job, Linear, Progress, finished, on_demand_to_go
from optimization.market.window import market_window
from warehouse.errors import MarketError

#: Jobs of a stream: deadlines in slots, sizes, loads (share of d N_max), priorities and their chances (as in E1's grid).
DEADLINES, SIZES, LOADS = (8, 12, 20), (4, 8, 16), (0.3, 0.7)
PRIORITIES, CHANCES = (1.0, 2.0, 4.0), (0.6, 0.3, 0.1)
#: Value in units of the on-demand-only cost, decay, efficiencies (M7).
VALUE_FACTOR, GAMMA, MU_UP, MU_DOWN = 1.5, 1.5, 0.9, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Markets on common slots: counts and prices (slots,), NaN counts in gaps, and what was forecast in each slot.

    ``ahead[market][t]`` holds the counts forecast in slot t for t+1, t+2, ..., shape (h,); without it the present is held.
    Prices are held at the present one. ``synthetic`` says whether counts and prices are of different markets.
    """

    name: str
    counts: Mapping[str, np.ndarray]
    prices: Mapping[str, np.ndarray]
    on_demand_usd: Mapping[str, float]
    slot_hours: float
    synthetic: bool
    ahead: Mapping[str, Mapping[int, np.ndarray]] | None = None

    @property
    def slots(self) -> int:
        """Slots of the record."""
        return len(next(iter(self.counts.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """A job of a stream: it begins in slot ``at`` and may use the markets of ``runs``; ``unit`` is its OD-only cost, USD."""

    at: int
    name: str
    runs: Mapping[str, Job]
    priority: float
    unit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one job of a stream ended: what it paid, what it was worth, whether by its deadline."""

    name: str
    priority: float
    unit: float
    cost_usd: float
    value_usd: float
    on_time: bool

    @property
    def utility(self) -> float:
        """(V - cost) in units of the on-demand-only cost."""
        return (self.value_usd - self.cost_usd) / self.unit


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRun:
    """A stream under one planner: its jobs as they ended, gaps of the plans made, spot instances asked for and not there."""

    ended: tuple[Ended, ...]
    gaps: tuple[float, ...]
    refused: int
    held: int


@dataclass(frozen=True, slots=True)
class Running:
    """A job under way."""

    arrival: StreamJob
    progress: Progress
    market: str | None


Planner = Callable[[JointProblem], JointPlan]


def draw_stream(
    world: World, *, first: int, slots: int, scarcity: float, markets_each: int, rng: np.random.Generator
) -> list[StreamJob]:
    """Poisson arrivals in slots first..first+slots-1 whose work is ``scarcity`` times what the mean counts of the world could do.

    H(n) = n; every job may use ``markets_each`` markets drawn at random. Raises `MarketError` if the world ends before its jobs
    can.
    """
    if first + slots + max(DEADLINES) > world.slots or first < 0:
        raise MarketError(
            f"a stream of slots {first}..{first + slots - 1} in a record of {world.slots} slots",
            expected=f"{max(DEADLINES)} more slots after its last arrival",
        )
    keys = sorted(world.counts)
    supply = sum(float(np.nanmean(world.counts[key])) for key in keys)
    each = float(np.mean(DEADLINES) * np.mean(SIZES) * np.mean(LOADS))
    arrivals: list[StreamJob] = []
    for t in range(first, first + slots):
        for _ in range(int(rng.poisson(scarcity * supply / each))):
            allowed = [keys[i] for i in sorted(rng.permutation(len(keys))[:markets_each])]
            arrivals.append(_arrival(world, f"job-{len(arrivals) + 1:03d}", t, allowed, rng))
    return arrivals


def _arrival(world: World, name: str, at: int, allowed: Sequence[str], rng: np.random.Generator) -> StreamJob:
    d, n_max = int(rng.choice(DEADLINES)), int(rng.choice(SIZES))
    work = float(rng.uniform(*LOADS)) * d * n_max * world.slot_hours
    unit = work * min(world.on_demand_usd[key] for key in allowed)
    job = Job(
        name=name, workload=work, deadline_slots=d, n_min=1, n_max=n_max, throughput=Linear(),
        mu_up=MU_UP, mu_down=MU_DOWN, value=VALUE_FACTOR * unit, gamma=GAMMA,
    )  # fmt: skip
    priority = float(rng.choice(PRIORITIES, p=CHANCES))
    return StreamJob(at=at, name=name, runs=dict.fromkeys(allowed, job), priority=priority, unit=unit)


def run_stream(
    world: World, arrivals: Sequence[StreamJob], planner: Planner, *, window: int, move_hours: float = 0.0
) -> StreamRun:
    """Plan all running jobs in every slot, take the first slot of the plan, and see what is there (M2.4).

    Where plans together ask for more spot than there is, who came first is served first. A job open at its deadline ends on demand
    in the best of its markets (M2.6).
    """
    running: list[Running] = []
    ended: list[Ended] = []
    gaps: list[float] = []
    refused = held = 0
    for t in range(min((one.at for one in arrivals), default=0), world.slots):
        running += [Running(one, Progress(), None) for one in arrivals if one.at == t]
        if not running:
            if all(one.at < t for one in arrivals):
                break
            continue
        problem = problem_at(world, running, t, window=window, move_hours=move_hours)
        plan = planner(problem)
        if np.isfinite(plan.gap):
            gaps.append(plan.gap)
        left = {key: int(window_of.available[0]) for key, window_of in problem.markets.items()}
        after = []
        for one, route in zip(running, plan.routes, strict=True):
            place = route.places[0]
            got, missed = _granted(one, place, left)
            refused, held = refused + missed, held + got[1]
            after.append(_stepped(world, one, place.market, got, t, move_hours))
        running = []
        for one in after:
            end = _end_of(world, one, t + 1)
            if end is None:
                running.append(one)
            else:
                ended.append(end)
    return StreamRun(
        ended=tuple(sorted(ended, key=lambda end: end.name)), gaps=tuple(gaps), refused=refused, held=held
    )


def problem_at(
    world: World, running: Sequence[Running], t: int, *, window: int, move_hours: float
) -> JointProblem:
    """The joint program of slot t: this slot as observed, later ones as forecast in it; nothing of the record after t is read."""
    windows = {}
    for key, counts in world.counts.items():
        price, now = float(world.prices[key][t]), float(counts[t])
        later = np.full(window - 1, now)
        if world.ahead is not None and t in world.ahead[key]:
            told = world.ahead[key][t]
            later = np.floor(told[np.minimum(np.arange(window - 1), len(told) - 1)] + 1e-9)
        windows[key] = market_window(
            np.full(window, price),
            np.concatenate([[now], later]),
            on_demand_usd=world.on_demand_usd[key],
            slot_hours=world.slot_hours,
        )
    jobs = tuple(
        JointJob(
            name=one.arrival.name,
            runs=one.arrival.runs,
            slot=t - one.arrival.at,
            done=one.progress.done,
            n_previous=one.progress.n_previous,
            market_previous=one.market,
            priority=one.arrival.priority,
            move_hours=move_hours,
        )
        for one in running
    )
    return JointProblem(markets=windows, jobs=jobs)


def _granted(one: Running, place: Place, left: dict[str, int]) -> tuple[tuple[int, int], int]:
    """(on-demand, spot) that a job gets of its place, and the spot instances it does not get."""
    if place.market is None:
        return (0, 0), 0
    spot = min(place.allocation.spot, left[place.market])
    left[place.market] -= spot
    missed = place.allocation.spot - spot
    if place.allocation.on_demand + spot < one.arrival.runs[place.market].n_min:
        return (0, 0), missed
    return (place.allocation.on_demand, spot), missed


def _stepped(
    world: World, one: Running, market: str | None, got: tuple[int, int], t: int, move_hours: float
) -> Running:
    """Pay for slot t, then make its progress (M2.4)."""
    n = sum(got)
    if market is None or n == 0:
        return replace(one, progress=replace(one.progress, n_previous=0), market=None)
    run, hours = one.arrival.runs[market], world.slot_hours
    joint = JointJob(name=one.arrival.name, runs=one.arrival.runs, move_hours=move_hours)
    mu = joint.efficiency(market, n, (one.market, one.progress.n_previous), hours)
    paid = (got[0] * world.on_demand_usd[market] + got[1] * float(world.prices[market][t])) * hours
    progress = Progress(
        done=one.progress.done + mu * run.throughput.rate(n) * hours,
        n_previous=n,
        cost_usd=one.progress.cost_usd + paid,
    )
    return Running(one.arrival, progress, market)


def _end_of(world: World, one: Running, t: int) -> Ended | None:
    """How a job ends at the start of slot t, None if it goes on."""
    arrival, progress, job = one.arrival, one.progress, one.arrival.runs[min(one.arrival.runs)]
    slot = t - arrival.at
    done = finished(progress.done, job.workload)
    if not done and slot < job.deadline_slots:
        return None
    value, after = job.completion_value(slot) if done else 0.0, 0.0
    if not done:
        options = []
        for market, run in sorted(arrival.runs.items()):
            dear = world.on_demand_usd[market]
            to_go = on_demand_to_go(
                run,
                done=progress.done,
                n_previous=progress.n_previous if market == one.market else 0,
                slot=slot,
                on_demand_usd=dear,
                slot_hours=world.slot_hours,
            )
            paid = to_go.n * to_go.slots * dear * world.slot_hours
            options.append((to_go.value_usd, paid))
        best, after = max(options)
        value = best + after
    return Ended(
        name=arrival.name,
        priority=arrival.priority,
        unit=arrival.unit,
        cost_usd=progress.cost_usd + after,
        value_usd=value,
        on_time=done,
    )


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index of utilities, those below 0 counted as 0: (sum u)^2 / (n sum u^2); 1 is alike, 1/n all for one.

    >>> jain([1.0, 1.0, 0.0, 0.0])
    0.5
    """
    u = np.maximum(np.asarray(values, dtype=float), 0.0)
    square = float((u * u).sum())
    return float(u.sum()) ** 2 / (len(u) * square) if square > 0 else 1.0
