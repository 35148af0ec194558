"""E1's scenario grid: jobs of every shape on joins of count series with price paths, drawn by a seed (M7)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from optimization.job.definition import Job
from optimization.job.throughput import Linear
from optimization.market.window import MarketWindow, PointForecast, Record, market_window, record_of
from optimization.replay.ledger import on_demand_only_cost
from optimization.trials.tapes import Part, Tape, starts
from warehouse.errors import MarketError, SettingsError

#: The value of a job in units of its on-demand-only cost, and its decay (M7).
VALUE_FACTOR, GAMMA = 1.5, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of the grid: deadline d in slots, load L / (d H(N_max) Delta), and the job's shape."""

    deadline_slots: int
    load: float
    mu_up: float
    n_max: int
    mu_down: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The axes of E1; ``cells`` is their product, deadlines outermost."""

    deadlines: tuple[int, ...] = (10, 20, 48)
    loads: tuple[float, ...] = (0.3, 0.5, 0.7)
    mu_ups: tuple[float, ...] = (0.9, 0.6)
    n_maxes: tuple[int, ...] = (4, 8, 16)
    mu_down: float = 0.95

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells."""
        return tuple(
            Cell(deadline_slots=d, load=load, mu_up=mu_up, n_max=n_max, mu_down=self.mu_down)
            for d, load, mu_up, n_max in itertools.product(
                self.deadlines, self.loads, self.mu_ups, self.n_maxes
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A cell on one join: the job begins in slot ``count_start`` of the count series and ``path_start`` of the price path.

    ``synthetic`` is False where both are the same market's in the same source, taken at the same time: a measured pair.
    """

    name: str
    cell: Cell
    counts: Tape
    path: Tape
    count_start: int
    path_start: int
    synthetic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A job on its slots of market, with everything that was known in each of them.

    ``forecasts[t]`` was issued in slot t; None holds the present. ``record`` is the whole history before the job and the
    job's own slots. ``unit`` is what OD-only pays for the job, USD: utilities are given in units of it.
    """

    draw: Draw
    job: Job
    window: MarketWindow
    record: Record
    unit: float
    forecasts: tuple[PointForecast | None, ...] | None = None

    @property
    def at(self) -> pd.Timestamp:
        """Start of the job's first slot on the clock of the count series."""
        return self.draw.counts.time(self.draw.count_start)


def draw_scenarios(
    counts: Sequence[Tape],
    paths: Sequence[Tape],
    *,
    grid: Grid,
    part: Part,
    per_cell: int,
    rng: np.random.Generator,
) -> list[Draw]:
    """``per_cell`` draws for each cell; among those of one N_max all joins are used about equally often.

    A count series serves a cell if its probe can see N_max instances; a cell that no join serves has no draw. The draws are
    shuffled, so that jobs of all cells come in mixed order. Raises `MarketError` if no cell has a join.
    """
    if per_cell < 1:
        raise SettingsError(f"{per_cell} jobs a cell", expected="at least one")
    used: Counter[tuple[int, str, str]] = Counter()
    draws: list[Draw] = []
    for cell in grid.cells:
        joins = _joins(counts, paths, cell, part)
        for _ in range(per_cell if joins else 0):
            ties = rng.random(len(joins)).tolist()
            chosen = min(zip(joins, ties, strict=True), key=lambda item: (used[item[0].key(cell)], item[1]))[
                0
            ]
            used[chosen.key(cell)] += 1
            draws.append(chosen.draw(cell, rng))
    if not draws:
        raise MarketError(
            f"{len(counts)} count series that see up to {max((t.bound for t in counts), default=0):.0f} instances and {len(paths)} "
            f"price paths: no join serves a cell of N_max {', '.join(map(str, grid.n_maxes))}",
            expected=f"counts and prices whose {part} half holds {min(grid.deadlines)} slots with few gaps",
            remedy="give a folder with longer or wider series",
        )
    order = rng.permutation(len(draws))
    return [replace(draws[i], name=f"{part}-{n + 1:04d}") for n, i in enumerate(order)]


def scenario_of(
    draw: Draw, *, peers: np.ndarray, forecasts: Sequence[PointForecast | None] | None = None
) -> Scenario:
    """The job, its market and its record; ``peers`` (m, slots) are the counts of `peers_of` the draw's count series.

    L = load d H(N_max) Delta with H(n) = n; v = 1.5 x the cost of OD-only (M7).
    """
    cell, step = draw.cell, draw.counts.step
    hours = step / pd.Timedelta(hours=1)
    i, d = draw.count_start, cell.deadline_slots
    price = np.full(i + d, np.nan)
    back = min(i, draw.path_start)
    price[i - back :] = draw.path.values[draw.path_start - back : draw.path_start + d]
    count = draw.counts.values[: i + d]
    window = market_window(price[i:], count[i:], on_demand_usd=draw.path.bound, slot_hours=hours)
    job = Job(
        name=draw.name,
        workload=cell.load * d * cell.n_max * hours,
        deadline_slots=d,
        n_min=1,
        n_max=cell.n_max,
        throughput=Linear(),
        mu_up=cell.mu_up,
        mu_down=cell.mu_down,
        value=cell.load * d * cell.n_max * hours * draw.path.bound,
        gamma=GAMMA,
    )
    unit = on_demand_only_cost(job, window)
    first = draw.counts.first
    hour = (first - first.floor("D")) / pd.Timedelta(hours=1) if draw.counts.real_clock else None
    record = record_of(price, count, first=i, slot_hours=hours, peers=peers[:, : i + d], hour=hour)
    return Scenario(
        draw=draw,
        job=replace(job, value=VALUE_FACTOR * unit),
        window=window,
        record=record,
        unit=unit,
        forecasts=None if forecasts is None else tuple(forecasts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Join:
    """A count series with a price path, and where jobs may begin on it; on a measured pair both begin at one time."""

    counts: Tape
    path: Tape
    count_starts: np.ndarray
    path_starts: np.ndarray
    measured: bool

    def key(self, cell: Cell) -> tuple[int, str, str]:
        return cell.n_max, self.counts.label, self.path.label

    def draw(self, cell: Cell, rng: np.random.Generator) -> Draw:
        i = int(rng.integers(len(self.count_starts)))
        j = i if self.measured else int(rng.integers(len(self.path_starts)))
        return Draw(
            name="",
            cell=cell,
            counts=self.counts,
            path=self.path,
            count_start=int(self.count_starts[i]),
            path_start=int(self.path_starts[j]),
            synthetic=not self.measured,
        )


def _joins(counts: Sequence[Tape], paths: Sequence[Tape], cell: Cell, part: Part) -> list[_Join]:
    """Every join of the cell on which a job can begin, in the order of the series."""
    d = cell.deadline_slots
    of_counts = [(tape, starts(tape, d, part)) for tape in counts if tape.bound >= cell.n_max]
    of_paths = [(path, starts(path, d, part)) for path in paths]
    joins = [
        _join(tape, path, at, begins)
        for tape, at in of_counts
        for path, begins in of_paths
        if len(at) and len(begins)
    ]
    return [join for join in joins if len(join.count_starts)]


def _join(tape: Tape, path: Tape, at: np.ndarray, begins: np.ndarray) -> _Join:
    """One join; where the two are one market's in one source and times agree they are a measured pair, else synthetic."""
    if (tape.market, tape.source) == (path.market, path.source):
        shift = int((tape.first - path.first) // tape.step)
        both = np.intersect1d(at + shift, begins)
        if len(both):
            return _Join(counts=tape, path=path, count_starts=both - shift, path_starts=both, measured=True)
    return _Join(counts=tape, path=path, count_starts=at, path_starts=begins, measured=False)
