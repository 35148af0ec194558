"""Simulation of one job in the renter's world (M12): time in seconds, decisions at any time, one or several markets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from slackwater.optimization.job.definition import Allocation, InstanceTimes
from slackwater.optimization.kernels import paths as steps
from slackwater.optimization.kernels import world
from slackwater.optimization.kernels.rules import Value, move_table, value_at
from slackwater.optimization.policies.contract import Running
from slackwater.warehouse.errors import JobError

SECOND_TOLERANCE = 1e-6  # Seconds by which sums of many seconds may exceed a deadline that is met exactly
#: USD by which an ending must be better than an earlier one: rounding errors do not break a tie.
ENDING_TOLERANCE_USD = 1e-9
NOTHING = Allocation(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldTerms(InstanceTimes):
    """A job in the world: work, speed, and the times that its instances take.

    ``rates`` is H(0..n_max) in work units per hour, 0 below n_min. ``sold``: on-demand is sold in
    the market (M1.1).
    """

    rates: tuple[float, ...]
    workload: float
    on_demand_usd: float
    sold: bool = True

    def __post_init__(self) -> None:
        for name in ("boot", "restart", "checkpoint", "on_demand_wait"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise JobError(f"{name} of {getattr(self, name)} seconds", expected="0 or more")
        if len(self.rates) < 2 or self.rates[0] != 0.0 or not all(0.0 <= h < math.inf for h in self.rates):
            raise JobError(f"rates {self.rates}", expected="H(0) = 0, then finite rates of 0 or more")

    @property
    def n_max(self) -> int:
        """Largest number of instances."""
        return len(self.rates) - 1

    @property
    def fastest(self) -> int:
        """Least number of instances with the highest rate."""
        return self.rates.index(max(self.rates))

    def numbers(self) -> tuple[float, ...]:
        """Return the terms as the kernels read them."""
        return (
            self.boot,
            self.checkpoint,
            self.on_demand_wait,
            self.notice_saves,
            self.on_demand_usd,
            self.workload,
            self.sold,
            max(self.rates),
            self.fastest,
            self.n_max,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorldMarkets:
    """A job in its M >= 1 markets, with the moves between them (M12.8).

    ``transfer`` is the time in seconds that the checkpoint takes to another market, ``move_usd`` (M, M) the
    cost of a move from the market of the row, or (S, M, M) by slots of ``slot_seconds``. ``home`` is the
    market of the checkpoint at the start; None: none, and the first start is free. A single market is its
    home. ``arrays`` are rates, terms, restarts and costs of moves as the kernels read them.
    """

    terms: tuple[WorldTerms, ...]
    transfer: float = 0.0
    move_usd: np.ndarray
    slot_seconds: float = math.inf
    home: int | None = None
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        count = len(self.terms)
        if not count or len({job_terms.workload for job_terms in self.terms}) > 1:
            raise JobError(f"terms of {count} markets", expected="one or more markets, with one workload")
        usd = np.array(self.move_usd, dtype=float)
        if usd.shape[-2:] != (count, count) or not (usd >= 0.0).all() or not 0.0 <= self.transfer < math.inf:
            raise JobError(
                f"moves of {self.transfer} seconds and USD of shape {usd.shape}",
                expected=f"0 or more, {count} by {count}",
            )
        object.__setattr__(self, "move_usd", usd)
        if count == 1:
            object.__setattr__(self, "home", 0)
        if self.home is not None and not 0 <= self.home < count:
            raise JobError(f"home {self.home}", expected=f"None or a market in 0..{count - 1}")
        rates, restarts = np.zeros((2, count, 1 + max(job_terms.n_max for job_terms in self.terms)))
        for m, job_terms in enumerate(self.terms):
            rates[m, : 1 + job_terms.n_max] = job_terms.rates
            restarts[m, : 1 + job_terms.n_max] = [
                job_terms.restart_seconds(n) for n in range(1 + job_terms.n_max)
            ]
        rows = [(*job_terms.numbers(), self.transfer, self.slot_seconds) for job_terms in self.terms]
        object.__setattr__(self, "arrays", (rates, np.array(rows), restarts, move_table(usd)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Readings of a spot market: times in seconds, ascending, available instances and USD per instance-hour.

    Arrays of shape (readings,). Each reading holds until the next; before the first there is no spot.
    ``table`` has the three as rows.
    """

    times: np.ndarray
    available: np.ndarray
    price: np.ndarray
    table: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shapes = {np.shape(self.times), np.shape(self.available), np.shape(self.price)}
        if len(shapes) != 1 or len(np.shape(self.times)) != 1:
            raise JobError(f"readings of shapes {sorted(shapes)}", expected="one time, count and price each")
        if (np.diff(self.times) <= 0).any():
            raise JobError("times of readings do not ascend", expected="each later than the one before")
        for name, kind in (("times", float), ("available", np.int64), ("price", float)):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=kind))
        object.__setattr__(self, "table", np.array((self.times, self.available, self.price)))


class Targets(NamedTuple):
    """Targets on many paths: market, on-demand and spot instances, arrays of shape (paths,)."""

    market: np.ndarray
    on_demand: np.ndarray
    spot: np.ndarray


class Standing(NamedTuple):
    """State of a run at a decision: instances held or requested, the newest reading, work done and USD paid."""

    held: int
    available: int
    price: float
    work: float
    paid_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldEnd:
    """End of a run: its finish in seconds (None: given up), USD paid, USD of it paid after the deadline, and its value."""

    finish: float | None
    paid_usd: float
    late_usd: float
    value_usd: float

    @property
    def utility_usd(self) -> float:
        """Value less all money paid."""
        return self.value_usd - self.paid_usd


def value_in_world(worth: Value, finish: float, deadline: float, slot: float) -> float:
    """Return V in USD of a finish in seconds; ``worth`` counts slots of ``slot`` seconds, ``deadline`` of them end at d (M2.5)."""
    late = finish - deadline
    return value_at(worth, worth.deadline + (late / slot if late > SECOND_TOLERANCE else 0.0))


def _as_paths(target: world.Target) -> steps.TargetArrays:
    """Return a target as that of a single path."""
    market, on_demand, spot = np.array(target, dtype=np.int64)[:, None]
    return market, on_demand, spot


class WorldRun:
    """One job in the world, from the start of its first second; mutable: `advance` and `decide` in turn.

    A decision without a market stays in the market of the instances.
    """

    __slots__ = ("_amounts", "_batches", "_counts", "_markets", "_run", "markets", "readings")
    _run: world.StateArrays
    _markets: world.MarketArrays
    _counts: np.ndarray

    def __init__(self, markets: WorldMarkets, readings: Sequence[Readings], start: float = 0.0) -> None:
        self.markets, self.readings = markets, tuple(readings)
        if len(self.readings) != len(markets.terms):
            raise JobError(
                f"readings of {len(self.readings)} markets", expected=f"{len(markets.terms)}, one for each"
            )
        self._amounts = np.zeros(world.AMOUNTS)
        self._amounts[[world.NOW, world.FINISH, world.FORMED_AT]] = start, math.inf, -1.0
        self._amounts[world.ARRIVES] = -math.inf
        self._counts = np.zeros(world.COUNTS, dtype=np.int64)
        tables = [reading.table for reading in self.readings]
        table = tables[0] if len(tables) == 1 else np.hstack(tables)
        first = np.array([0, *accumulate(reading.shape[1] for reading in tables)])
        self._batches = np.zeros((2, markets.arrays[0].shape[1] - 1, 3))  # every batch has an instance
        self._run = (self._amounts, self._counts, self._batches)
        self._markets = (table, first, *markets.arrays)
        here = markets.home or 0
        self._counts[world.HERE] = here
        self._counts[world.READING] = first[here]
        self._counts[world.PLACE] = -1 if markets.home is None else here
        self.advance(start)

    def copy(self, readings: Sequence[Readings] | None = None) -> WorldRun:
        """Return an independent run in the same state; ``readings`` replace those of all markets, the first are present."""
        other = WorldRun.__new__(WorldRun)
        other.markets, other.readings = self.markets, self.readings
        amounts, counts, batches = (array.copy() for array in self._run)
        other._amounts, other._counts, other._batches = amounts, counts, batches
        other._run, other._markets = (amounts, counts, batches), self._markets
        if readings is not None:
            other.readings = tuple(readings)
            first = np.array([0, *accumulate(reading.table.shape[1] for reading in other.readings)])
            table = np.hstack([reading.table for reading in other.readings])
            other._markets = (table, first, *self._markets[2:])
            counts[world.READING] = first[self.market] + 1
        return other

    @property
    def arrays(self) -> tuple[world.State, world.Markets]:
        """The arrays of the run as the kernels read them: those of its state are shared, not copied."""
        return world.State(*self._run), world.Markets(*self._markets)

    def report(
        self, at: float, *, work: float | None = None, size: int | None = None, market: int | None = None
    ) -> None:
        """Take over work, number of instances and market as reported at a time in seconds, in place of the computed ones.

        Of fewer instances, spot is lost first. Reported instances are up. At most one checkpoint of
        the reported work is not saved. A job that had finished runs on if less work is reported.
        """
        held = self.held
        size = held.total if size is None else size
        if market is not None and market != self.market:
            self._counts[[world.HERE, world.PLACE]] = market
            times = self.readings[market].times
            self._counts[world.READING] = self._markets[1][market] + np.searchsorted(times, at, "right")
            self._counts[world.AVAILABLE], self._amounts[world.PRICE] = self.reading_of(market)
            self._set_members(0, size)
        elif size != held.total:
            on_demand = min(held.on_demand, size)
            self._set_members(on_demand, size - on_demand)
        if work is None:
            return
        if self.is_finished and work < self.terms.workload:
            self._amounts[[world.NOW, world.FINISH]] = at, math.inf
            self._set_members(0, 0)
        rate = self.terms.rates[min(self.working.total, self.terms.n_max)]
        self._amounts[world.WORK] = min(work, self.terms.workload)
        self._amounts[world.SAVED] = max(
            0.0, self._amounts[world.WORK] - rate * self.terms.checkpoint / world.HOUR
        )
        if work >= self.terms.workload:
            self._amounts[world.FINISH] = self.now

    def _set_members(self, on_demand: int, spot: int) -> None:
        batches = self._batches
        for kind, size in ((world.ON_DEMAND, on_demand), (world.SPOT, spot)):
            self._counts[world.BATCHES + kind] = size > 0
            self._counts[world.TARGET + kind] = size
            batches[kind, 0] = -size, self.now, self.now

    def advance(self, until: float) -> None:
        """Let time pass up to ``until`` seconds, or up to the finish; the readings of that second are applied."""
        if not self.is_finished:
            self._step((-1, 0, 0), float(until))

    def decide(self, target: Allocation, market: int | None = None) -> None:
        """Aim at an allocation from now on, in a market; raises `JobError` beyond its n_max.

        In another market than that of the instances these end at once (M12.8). A target of no
        instances stays where it is.
        """
        to = self.market if market is None else market
        if not 0 <= to < len(self.readings):
            raise JobError(f"market {to}", expected=f"0 to {len(self.readings) - 1}")
        n_max = self.markets.terms[to].n_max
        if not 0 <= target.total <= n_max or min(target.on_demand, target.spot) < 0:
            raise JobError(f"a target of {target}", expected=f"0 to {n_max} instances")
        if not self.is_finished:
            self._step((to, target.on_demand, target.spot), -math.inf)

    def _step(self, target: world.Target, until: float) -> None:
        """Aim at a target, then let time pass (`kernels.paths.step_paths`)."""
        steps.step_paths(*self._as_path, _as_paths(target), until, np.empty((1, 4)))

    def _guard(self, target: world.Target, next_at: float, deadline: float) -> tuple[list[int], list[bool]]:
        """Return the target of the guard, and whether the given and the returned are safe (`kernels.paths.guard_paths`)."""
        targets = _as_paths(target)
        guarded = steps.guard_paths(*self._as_path, targets, float(next_at), deadline + SECOND_TOLERANCE)
        return [int(part[0]) for part in targets], guarded[0].tolist()

    @property
    def _as_path(self) -> tuple[world.StateArrays, world.MarketArrays]:
        """State and markets as the kernels read those of a single path."""
        amounts, counts, batches = self._run
        table, first, rates, terms, restarts, moves = self._markets
        return (amounts[None], counts[None], batches[None]), (
            table[None],
            first,
            rates,
            terms,
            restarts,
            moves,
        )

    def guarded_in(
        self, market: int, wish: Allocation, *, next_at: float, deadline: float
    ) -> tuple[int, Allocation]:
        """Return the wished target if on-demand can still meet the deadline after any loss of spot, else a safe one (M12.7).

        ``next_at`` is the latest time of the next decision, ``deadline`` in seconds. A job whose start
        satisfied the guard and whose targets all passed it is never late, on any readings, provided that
        on-demand is granted after ``on_demand_wait``. Where nothing is sold on demand the wish is returned.
        """
        (to, *found), _ = self._guard((market, wish.on_demand, wish.spot), next_at, deadline)
        return to, Allocation(*found)

    def is_safe(
        self, target: Allocation, *, next_at: float, deadline: float, market: int | None = None
    ) -> bool:
        """Return whether on-demand still meets the deadline after any loss of spot until ``next_at`` (M12.7)."""
        to = self.market if market is None else market
        return self._guard((to, target.on_demand, target.spot), next_at, deadline)[1][0]

    @property
    def standing(self) -> Standing:
        """State of the run at a decision."""
        return Standing(self.held.total, self.available, self.price, self.work, self.paid_usd)

    def follow(
        self, wish: Allocation, *, until: float, deadline: float = math.inf, market: int = 0
    ) -> tuple[int, Allocation, Standing]:
        """Guard a wish in a market, decide it, and advance to the next decision at ``until``, all in one step.

        Return market and allocation of the target, and the state of the run at ``until``. Without a
        safe target (M12.7), or without a ``deadline``, the wish is the target.
        """
        (to, on_demand, spot), state = world.follow(
            self._run, self._markets, (market, wish.on_demand, wish.spot), until, deadline + SECOND_TOLERANCE
        )
        return to, Allocation(on_demand, spot), Standing(*state)

    def end(self, worth: Value, *, deadline: float, slot: float, must_finish: bool) -> WorldEnd:
        """End the run at its deadline, or after it on on-demand, and return its result (M12.6).

        ``worth`` is the value of the job in slots of ``slot`` seconds, ``deadline`` in seconds. A
        job that is not done has the constant on-demand size and market with the best value less
        money, if that is positive or the job ``must_finish``. The run is mutated.
        """
        self.advance(deadline)
        before = self.paid_usd
        if not self.is_finished:
            best = self._best_ending(worth, deadline, slot, must_finish)
            self.decide(NOTHING) if best is None else self.decide(best[1], best[0])
            self.advance(math.inf if best is not None else self.now)
        value = 0.0 if self.finish is None else value_in_world(worth, self.finish, deadline, slot)
        return WorldEnd(
            finish=self.finish, paid_usd=self.paid_usd, late_usd=self.paid_usd - before, value_usd=value
        )

    def _best_ending(
        self, worth: Value, deadline: float, slot: float, must_finish: bool
    ) -> tuple[int, Allocation] | None:
        """Return market and size of the best ending on on-demand; ties: the present market, then the least size."""
        best, ending = -math.inf if must_finish else 0.0, None
        present, count = self.market, len(self.readings)
        for m in ((present + i) % count for i in range(count)):
            terms = self.markets.terms[m]
            for n in range(1, terms.n_max + 1) if terms.sold else ():
                if terms.rates[n] <= 0.0:
                    continue
                run, target = self.copy(), Allocation(n, 0)
                run.decide(target, m)
                run.advance(math.inf)
                usd = value_in_world(worth, run.now, deadline, slot) - (run.paid_usd - self.paid_usd)
                if usd > best + ENDING_TOLERANCE_USD:
                    best, ending = usd, (m, target)
        return ending

    @property
    def terms(self) -> WorldTerms:
        """Terms of the job in the market of its instances."""
        return self.markets.terms[self.market]

    @property
    def market(self) -> int:
        """Market of the instances."""
        return int(self._counts[world.HERE])

    @property
    def place(self) -> int | None:
        """Market of the checkpoint, None before the first group forms without a home."""
        place = int(self._counts[world.PLACE])
        return None if place < 0 else place

    @property
    def moves(self) -> int:
        """Number of moves."""
        return int(self._counts[world.MOVES])

    @property
    def moving_usd(self) -> float:
        """USD paid for moves."""
        return float(self._amounts[world.PAID_MOVES])

    @property
    def paid_usd(self) -> float:
        """USD paid for instances and moves."""
        return float(self._amounts[world.PAID : world.PAID + 2].sum()) + self.moving_usd

    def reading_of(self, market: int) -> tuple[int, float]:
        """Return available spot instances and spot price of a market by its newest reading; (0, NaN) before the first."""
        readings = self.readings[market]
        r = int(np.searchsorted(readings.times, self.now, side="right"))
        return (int(readings.available[r - 1]), float(readings.price[r - 1])) if r else (0, math.nan)

    @property
    def now(self) -> float:
        """Present time in seconds, the finish if the job has finished."""
        return float(self._amounts[world.NOW])

    @property
    def is_finished(self) -> bool:
        """Whether the work is done."""
        return bool(self._amounts[world.FINISH] < math.inf)

    @property
    def finish(self) -> float | None:
        """Time of the finish in seconds, None if the job has not finished."""
        return float(self._amounts[world.FINISH]) if self.is_finished else None

    @property
    def work(self) -> float:
        """Work done, the workload if the job has finished."""
        return self.terms.workload if self.is_finished else float(self._amounts[world.WORK])

    @property
    def saved(self) -> float:
        """Work that a loss in this second would leave."""
        return float(self._amounts[world.WORK if self.terms.notice_saves else world.SAVED])

    @property
    def available(self) -> int:
        """Available spot instances by the newest reading."""
        return int(self._counts[world.AVAILABLE])

    @property
    def price(self) -> float:
        """Spot price of the newest reading, USD per instance-hour."""
        return float(self._amounts[world.PRICE])

    @property
    def held(self) -> Allocation:
        """Instances that are held or requested, booting ones included."""
        spot, on_demand = (int(np.abs(self._sizes(kind)).sum()) for kind in (world.SPOT, world.ON_DEMAND))
        return Allocation(on_demand, spot)

    @property
    def working(self) -> Allocation:
        """Instances of the group: up, and joined."""
        spot, on_demand = (
            int(-np.minimum(self._sizes(kind), 0.0).sum()) for kind in (world.SPOT, world.ON_DEMAND)
        )
        return Allocation(on_demand, spot)

    @property
    def works_at(self) -> float:
        """Time in seconds at which the group has restarted; in the past if it works."""
        return float(self._amounts[world.WORKS_AT])

    @property
    def pending(self) -> float:
        """Seconds until all held or requested instances work, if none is lost."""
        state = self._batches
        used = np.arange(state.shape[1]) < self._counts[world.BATCHES : world.BATCHES + 2, None]
        booting = used & (state[..., world.SIZE] > 0.0)
        works_at = self.works_at
        if booting.any():
            works_at = float(state[..., world.UP][booting].max())
            works_at += self.terms.restart_seconds(self.held.total)
        return max(0.0, works_at - self.now)

    def running(self, *, next_at: float, guarded: bool) -> Running:
        """Return the instances as a policy reads them, which decides again at ``next_at`` seconds at the latest."""
        return Running(
            held=self.held,
            pending_hours=self.pending / world.HOUR,
            saved=self.saved,
            gap_hours=(next_at - self.now) / world.HOUR,
            guarded=guarded,
        )

    @property
    def paid(self) -> tuple[float, float]:
        """USD paid for on-demand and for spot."""
        return float(self._amounts[world.PAID + world.ON_DEMAND]), float(
            self._amounts[world.PAID + world.SPOT]
        )

    @property
    def instance_seconds(self) -> tuple[float, float]:
        """Instance-seconds of on-demand and of spot."""
        first, second = world.SECONDS + world.ON_DEMAND, world.SECONDS + world.SPOT
        return float(self._amounts[first]), float(self._amounts[second])

    @property
    def lost_work(self) -> float:
        """Work lost with instances."""
        return float(self._amounts[world.LOST_WORK])

    @property
    def lost_instances(self) -> int:
        """Spot instances lost, booting ones included."""
        return int(self._counts[world.LOST])

    @property
    def restarts(self) -> int:
        """Number of times that the group formed."""
        return int(self._counts[world.FORMED])

    def _sizes(self, kind: int) -> np.ndarray:
        sizes: np.ndarray = self._batches[kind, : self._counts[world.BATCHES + kind], world.SIZE]
        return sizes
