"""E1's scenario grid: jobs of every shape on pairings of availability series with price paths, drawn by a seed (M1.3, M7)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from slackwater.forecasting.quantiles import Variable
from slackwater.optimization.job.definition import Job, Linear
from slackwater.optimization.market.window import (
    MarketWindow,
    PointForecast,
    Record,
    market_window,
    record_of,
)
from slackwater.optimization.policies.baselines import OnDemandOnly
from slackwater.optimization.replay.run import replay
from slackwater.optimization.replay.score import unit_window
from slackwater.studies.trials.comparison import day_blocks
from slackwater.warehouse.errors import MarketError, SettingsError
from slackwater.warehouse.history import Market

Part = Literal["train", "test"]
#: Slots of the training half before its first job, which provide data to learn from (ours).
WARM_SLOTS = 48
#: Share of a job's slots that may be gaps; a start with more gaps is not drawn (ours).
MOST_GAPS = 0.05
#: Maximum number of stored readings between two slots.
MOST_WITHIN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """Trace of a variable of a market on a regular grid, NaN in gaps (M1.3), shape (slots,).

    An availability series contains instances and ``bound`` is the largest count its probe can observe; a price path contains USD
    per instance-hour and ``bound`` is its on-demand price. ``first`` is the start of slot 0; ``product`` names the product that
    the price applies to. ``within`` (slots, m), if given, contains counts probed between the start of the previous slot and
    that of the slot, oldest first, NaN where there was none.
    """

    variable: Variable
    market: Market
    source: str
    product: str = ""
    values: np.ndarray
    bound: float
    first: pd.Timestamp
    step: pd.Timedelta
    real_clock: bool
    within: np.ndarray | None = None

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def label(self) -> str:
        """``market@source``, with the product if there is one."""
        return f"{self.market.key}@{self.source}" + (f" ({self.product})" if self.product else "")

    @property
    def kind(self) -> tuple[str, str]:
        """Source and instance type, which peers share."""
        return self.source, self.market.instance_type

    @property
    def half(self) -> int:
        """First slot of the test part: each series is split in the middle of its time."""
        return len(self) // 2

    def time(self, slot: int) -> pd.Timestamp:
        """Return the start of a slot."""
        return self.first + slot * self.step

    def changes(self) -> int:
        """Return the number of changes between successive observed values in the first half."""
        seen = self.values[: self.half]
        seen = seen[np.isfinite(seen)]
        return int(np.count_nonzero(np.diff(seen)))


def sample_and_hold(
    times: np.ndarray, values: np.ndarray, grid: np.ndarray, *, max_age: np.timedelta64
) -> np.ndarray:
    """Return the last of ``values`` observed at or before each slot of ``grid``, NaN if it is older than ``max_age`` (M1.3).

    ``times`` (n,) ascending and ``grid`` (slots,) are datetime64 of the same unit; the result has shape (slots,).
    """
    place = np.searchsorted(times, grid, side="right") - 1
    known = place >= 0
    place = np.maximum(place, 0)
    fresh = known & (grid - times[place] <= max_age)
    return np.where(fresh, np.asarray(values, dtype=float)[place], np.nan)


def held_within(
    times: np.ndarray, values: np.ndarray, grid: np.ndarray, *, gap: np.timedelta64
) -> np.ndarray:
    """Return the counts probed between the previous slot's start and each slot's start, evenly spaced, oldest first, (slots, m).

    m is the number of probes every ``gap`` in a slot of the regular ``grid``, not counting the probe at its start, at most
    `MOST_WITHIN`. A reading older than one and a half gaps is NaN.
    """
    step = grid[1] - grid[0] if len(grid) > 1 else gap
    m = min(max(round(step / gap) - 1, 0), MOST_WITHIN)
    age = gap + gap // 2
    columns = [
        sample_and_hold(times, values, grid - step * (m - j) // (m + 1), max_age=age) for j in range(m)
    ]
    return np.column_stack(columns) if columns else np.zeros((len(grid), 0))


def aligned(tape: Tape, other: Tape) -> np.ndarray:
    """Return ``other`` on the slots of ``tape``, NaN outside its record, shape (slots of tape,)."""
    shift = int((other.first - tape.first) // tape.step)
    out = np.full(len(tape), np.nan)
    begin, end = max(0, shift), min(len(tape), shift + len(other))
    if begin < end:
        out[begin:end] = other.values[begin - shift : end - shift]
    return out


def peers_of(tape: Tape, tapes: Sequence[Tape]) -> np.ndarray:
    """Return the other traces of the same kind on the slots of ``tape``, shape (peers, slots)."""
    others = [aligned(tape, other) for other in tapes if other.kind == tape.kind and other is not tape]
    return np.array(others) if others else np.empty((0, len(tape)))


def starts(tape: Tape, slots: int, part: Part) -> np.ndarray:
    """Return the slots at which a job of ``slots`` slots may begin, ascending.

    The job must lie in the part: the second half for "test"; the first half for "train", after `WARM_SLOTS` if it is long enough.
    At most `MOST_GAPS` of the job's slots may be gaps.
    """
    low, high = (tape.half, len(tape)) if part == "test" else (0, tape.half)
    if part == "train":
        low = max(0, min(WARM_SLOTS, high - slots))
    if high - low < slots:
        return np.empty(0, dtype=np.int64)
    gaps = np.concatenate([[0], np.cumsum(np.isnan(tape.values))])
    at = np.arange(low, high - slots + 1)
    return np.asarray(at[gaps[at + slots] - gaps[at] <= MOST_GAPS * slots])


def moving_paths(paths: Sequence[Tape], *, most: int) -> list[Tape]:
    """Return at most ``most`` paths of each source, so that many constant paths do not outweigh the others (ours).

    Instance types alternate; within a type the paths with most changes in their first half come first, then by label. The
    types are ordered by their path with most changes. Raises `SettingsError` if ``most`` is below 1.
    """
    if most < 1:
        raise SettingsError(f"{most} paths a source", expected="at least one")
    chosen: list[Tape] = []
    for source in sorted({path.source for path in paths}):
        types: dict[str, list[Tape]] = {}
        ranked = sorted(
            (path for path in paths if path.source == source), key=lambda path: (-path.changes(), path.label)
        )
        for path in ranked:
            types.setdefault(path.kind[1], []).append(path)
        rounds = max(len(group) for group in types.values())
        turns = [group[i] for i in range(rounds) for group in types.values() if i < len(group)]
        chosen += turns[:most]
    return chosen


# ---
# E1's scenario grid: jobs of every shape on pairings of availability series with price paths, drawn by a seed (M7).

#: Value of a job in units of its on-demand-only cost, and its decay (M7).
VALUE_FACTOR, GAMMA = 1.5, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Cell of the grid: deadline d in slots, load L / (d H(N_max) Delta), and the job's shape."""

    deadline_slots: int
    load: float
    mu_up: float
    n_max: int
    mu_down: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Axes of E1; ``cells`` is their product, with deadlines as the outermost axis."""

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
    """Cell on a pairing: the job begins in slot ``count_start`` of the availability series and ``path_start`` of the price path.

    ``synthetic`` is False for a measured pair: both series belong to the same market and source at the same time.
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
    """Job on its slots of market, with all information known in each slot.

    ``forecasts[t]`` was issued in slot t; None assumes that present values persist. ``record`` is the history before the job and
    the job's slots. ``unit`` is the cost of OD-only for the job, USD: utilities are given in units of it.
    """

    draw: Draw
    job: Job
    window: MarketWindow
    record: Record
    unit: float
    forecasts: tuple[PointForecast | None, ...] | None = None

    @property
    def at(self) -> pd.Timestamp:
        """Start of the job's first slot on the clock of the availability series."""
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
    """Draw ``per_cell`` jobs for each cell; for each N_max all pairings are used about equally often.

    An availability series fits a cell if its probe can observe N_max instances; a cell without a pairing has no draw. The draws
    are shuffled, so that jobs of all cells come in mixed order. Raises `SettingsError` if ``per_cell`` is below 1 and
    `MarketError` if no cell has a pairing.
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
    """Return the job, its market and its record; ``peers`` (m, slots) are the result of `peers_of` for the availability series.

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


def blocks_of(scenarios: Sequence[Scenario]) -> np.ndarray:
    """Return the blocks for resampling these jobs: availability series and day of the start, shape (jobs,)."""
    return day_blocks((one.draw.counts.label for one in scenarios), (one.at for one in scenarios))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Join:
    """Availability series with a price path and the slots where jobs may begin; in a measured pair both begin at the same time."""

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
    """Return every pairing of the cell on which a job can begin, in the order of the series."""
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
    """Return a pairing: measured if market and source are the same and common start times exist, else synthetic."""
    if (tape.market, tape.source) == (path.market, path.source):
        shift = int((tape.first - path.first) // tape.step)
        both = np.intersect1d(at + shift, begins)
        if len(both):
            return _Join(counts=tape, path=path, count_starts=both - shift, path_starts=both, measured=True)
    return _Join(counts=tape, path=path, count_starts=at, path_starts=begins, measured=False)


def on_demand_only_cost(job: Job, window: MarketWindow) -> float:
    """Return the total cost in USD of OD-only for the job in the slot model, also after d.

    Where nothing is sold on demand, it is the cost at the on-demand price of `unit_window`.
    """
    return replay(OnDemandOnly(), job, unit_window(window)).total_cost_usd
