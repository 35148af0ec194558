"""One instance, up or down: rules of the public "Can't Be Late" benchmark, its policies, tables of backward induction (M4.6).

In this file: a setting, the chain of a market, traces, and the scoreboard.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import pandas as pd

from optimization.trials.comparison import resampled
from studies.single_kernel import (
    ON_DEMAND,
    SPOT,
    Ticks,
    follow,
    greedy,
    induct,
    induct_known,
    play,
    uniform_progress,
)
from warehouse.errors import MarketError, PolicyError, SettingsError

# ---
# A setting of the single-instance benchmark: work, deadline, restart overhead, prices, all in whole minutes (M4.3, M4.6).


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Work to do by a deadline on one instance, spot or on-demand, where every start costs an overhead.

    Times are whole minutes, so that the slack (time left minus work left) lives on an exact grid whose step is their greatest
    common divisor (the *tick*). Prices are USD per hour; a slot with an instance is billed whole. Raises `SettingsError`
    if a time is not positive, the deadline is no whole number of slots, or on-demand alone cannot meet it.

    Where a start ``loses_its_slot`` it does no work in it and owes the overhead after it, which the policies do not know: they see
    the work that was done (a stricter account than the benchmark's, M7).

    >>> Setting(deadline_minutes=52 * 60, overhead_minutes=12).tick
    2
    """

    work_minutes: int = 48 * 60
    deadline_minutes: int
    overhead_minutes: int
    slot_minutes: int = 10
    spot_usd_per_hour: float = 0.9731
    on_demand_usd_per_hour: float = 3.06
    loses_its_slot: bool = False

    def __post_init__(self) -> None:
        if min(self.work_minutes, self.slot_minutes, self.deadline_minutes) <= 0 or self.overhead_minutes < 0:
            raise SettingsError(f"times {self}", expected="positive minutes and an overhead of at least 0")
        if self.deadline_minutes % self.slot_minutes:
            raise SettingsError(
                f"a deadline of {self.deadline_minutes} min",
                expected=f"whole slots of {self.slot_minutes} min",
            )
        if self.slots_for(self.work_minutes + self.overhead_minutes) > self.slots:
            raise SettingsError(
                f"{self.work_minutes} min of work and {self.overhead_minutes} min of overhead",
                expected=f"what on-demand can do in {self.deadline_minutes} min",
                remedy="give a later deadline",
            )
        if not 0 < self.spot_usd_per_hour < self.on_demand_usd_per_hour:
            raise SettingsError(
                f"spot {self.spot_usd_per_hour}, on-demand {self.on_demand_usd_per_hour} USD/h",
                expected="0 < spot < on-demand",
            )

    @property
    def tick(self) -> int:
        """Minutes of the exact grid: the greatest common divisor of slot, overhead and work."""
        return math.gcd(self.slot_minutes, self.overhead_minutes, self.work_minutes)

    @property
    def slots(self) -> int:
        """Slots until the deadline."""
        return self.deadline_minutes // self.slot_minutes

    @property
    def ticks(self) -> Ticks:
        """The setting in ticks."""
        hours = self.slot_minutes / 60
        return Ticks(
            work=self.work_minutes // self.tick,
            slot=self.slot_minutes // self.tick,
            overhead=self.overhead_minutes // self.tick,
            spot_usd=self.spot_usd_per_hour * hours,
            on_demand_usd=self.on_demand_usd_per_hour * hours,
            lost=self.slot_minutes // self.tick if self.loses_its_slot else 0,
        )

    @property
    def slack(self) -> int:
        """Time to the deadline minus work, in ticks."""
        return (self.deadline_minutes - self.work_minutes) // self.tick

    def slots_for(self, minutes: int) -> int:
        """Whole slots that hold ``minutes``."""
        return -(-minutes // self.slot_minutes)

    @property
    def on_demand_only_usd(self) -> float:
        """Bill of work plus one overhead, on on-demand, in whole slots: OD of the score."""
        return self.slots_for(self.work_minutes + self.overhead_minutes) * self.ticks.on_demand_usd

    @property
    def spot_only_usd(self) -> float:
        """Bill of work plus one overhead on a spot instance that is never lost, in whole slots: the least any run can cost."""
        return self.slots_for(self.work_minutes + self.overhead_minutes) * self.ticks.spot_usd

    def score(self, cost_usd: float) -> float:
        """100 (OD - cost) / (OD - spot-only): 0 is on-demand throughout, 100 one uninterrupted spot run."""
        return 100.0 * (self.on_demand_only_usd - cost_usd) / (self.on_demand_only_usd - self.spot_only_usd)


# ---
# What a single-instance market shows as a Markov chain: up or down, how long already, and how often lately (M4.6, ours).
#
# Stay times are not memoryless: an up run that has lasted hours is far likelier to last another slot than one that has just
# begun. So the state holds the *age* of the current run in bins that grow, and the *share* of the last day that was up.

#: First slot of every age bin, roughly a factor of 1.5 apart; a run is 1 slot old when it begins.
AGES: Final = (1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 63, 95, 144, 216)
#: Limits between the bins of the share that was up.
SHARES: Final = (0.2, 0.4, 0.6, 0.8)
#: Pseudo-slots of half availability that the share of a market begins with, while little of it has been seen.
BLANK_SLOTS: Final = 6
#: Pseudo-slots by which a thin row is drawn to the flip rate of its age, and that to the rate of all ages.
SHRINK_SLOTS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A Markov chain of what a market shows: state k is up or down and moves to ``to[start[k]:start[k + 1]]`` with ``chance``.

    ``up`` (K,) bool, ``start`` (K + 1,) int64, ``to`` int64 and ``chance`` float: the rows of a sparse stochastic matrix. Raises
    `PolicyError` if a row does not sum to 1.
    """

    up: np.ndarray
    start: np.ndarray
    to: np.ndarray
    chance: np.ndarray

    def __post_init__(self) -> None:
        sums = np.add.reduceat(self.chance, self.start[:-1])
        if self.start.size != self.up.size + 1 or np.abs(sums - 1).max() > 1e-9 or self.chance.min() < 0:
            raise PolicyError(
                f"transition rows that sum to {sums.min():.6f}..{sums.max():.6f}", expected="1 in every row"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketStates:
    """Which state a market is in after each slot: (up or down, bin of the share, bin of the age).

    ``ages`` are the first slots of the age bins, ``shares`` the limits of the share bins (none: the share is not
    looked at), ``window`` the slots over which the share is taken. Raises `SettingsError` if the bins do not ascend.
    """

    ages: tuple[int, ...] = AGES
    shares: tuple[float, ...] = SHARES
    window: int = 144

    def __post_init__(self) -> None:
        if self.ages[:1] != (1,) or list(self.ages) != sorted(set(self.ages)):
            raise SettingsError(f"age bins {self.ages}", expected="ascending slots from 1")
        if list(self.shares) != sorted(set(self.shares)) or self.window < 1:
            raise SettingsError(
                f"share bins {self.shares} over {self.window} slots", expected="ascending limits"
            )

    @property
    def count(self) -> int:
        """Number of states."""
        return 2 * (len(self.shares) + 1) * len(self.ages)

    def code(self, up: np.ndarray) -> np.ndarray:
        """State after every slot, shape (slots,) int64; entry t looks at ``up[: t + 1]`` only (M4.9)."""
        age = np.searchsorted(self.ages, run_ages(up), side="right") - 1
        share = np.searchsorted(self.shares, recent_share(up, self.window))
        return np.asarray((up.astype(np.int64) * (len(self.shares) + 1) + share) * len(self.ages) + age)


def run_ages(up: np.ndarray) -> np.ndarray:
    """Slots that the current up or down run has lasted, from 1.

    >>> run_ages(np.array([True, True, False, True]))
    array([1, 2, 1, 1])
    """
    begins = np.ones(up.size, dtype=bool)
    begins[1:] = up[1:] != up[:-1]
    at = np.arange(up.size)
    return at - np.maximum.accumulate(np.where(begins, at, 0)) + 1


def recent_share(up: np.ndarray, window: int) -> np.ndarray:
    """Share of the last ``window`` slots that were up, drawn to one half while fewer than `BLANK_SLOTS` are seen."""
    total = np.concatenate([[0.0], np.cumsum(up)])
    after = np.arange(1, up.size + 1)
    before = np.maximum(0, after - window)
    seen = after - before
    return np.asarray((total[after] - total[before] + 0.5 * BLANK_SLOTS) / (seen + BLANK_SLOTS))


def estimate(states: MarketStates, traces: Sequence[np.ndarray]) -> Chain:
    """The chain of ``states`` pooled over 0/1 traces, thin rows shrunk (M4.6).

    A row is the observed moves plus `SHRINK_SLOTS` of what its age alone says: a flip at the pooled rate of that age (itself
    shrunk to the rate of all ages), else staying in its share and growing older at the pace of its bin.
    Raises `PolicyError` if there is no move to learn from.
    """
    moves = np.zeros((states.count, states.count))
    for up in traces:
        code = states.code(up)
        np.add.at(moves, (code[:-1], code[1:]), 1.0)
    if not moves.any():
        raise PolicyError("no two slots in a row to learn from", expected="traces of several slots")
    rows = moves + SHRINK_SLOTS * prior_rows(states, moves)
    rows /= rows.sum(axis=1, keepdims=True)
    source, to = np.nonzero(rows)
    start = np.searchsorted(source, np.arange(states.count + 1))
    per_side = states.count // 2
    return Chain(up=np.arange(states.count) >= per_side, start=start, to=to, chance=rows[source, to])


def prior_rows(states: MarketStates, moves: np.ndarray) -> np.ndarray:
    """Rows (K, K) in which only the age sets the chance of a flip."""
    ages, shares = len(states.ages), len(states.shares) + 1
    shape = (2, shares, ages)
    side = np.arange(states.count) // (shares * ages)
    flipped = np.where(side[:, None] != side[None, :], moves, 0.0).sum(axis=1).reshape(shape)
    seen = moves.sum(axis=1).reshape(shape)
    overall = (flipped.sum(axis=(1, 2)) + 0.5) / (seen.sum(axis=(1, 2)) + 1.0)
    by_age = flipped.sum(axis=1) + SHRINK_SLOTS * overall[:, None]
    by_age /= seen.sum(axis=1) + SHRINK_SLOTS
    rows = np.zeros((states.count, states.count))
    for k in range(states.count):
        up, share, age = np.unravel_index(k, shape)
        flip = by_age[up, age]
        last = age + 1 == ages
        older = 0.0 if last else 1.0 / (states.ages[age + 1] - states.ages[age])
        rows[k, np.ravel_multi_index((1 - up, share, 0), shape)] = flip
        rows[k, k] += (1 - flip) * (1 - older)
        if not last:
            rows[k, k + 1] = (1 - flip) * older
    return rows


# ---
# Up-or-down traces of single instances on the slot grid, and their split into training and test parts (M1.3).

KEYS = ["source", "provider", "region", "zone", "instance_type"]
#: Shares of time up that part low, medium and high availability (ours; the public benchmark names classes, not limits).
LOW_BELOW, HIGH_FROM = 0.5, 0.8
#: Nominal gaps after which an observation no longer says anything (M1.3).
STALE_GAPS = 3
#: Kinds of counts that say a launch would have worked; listed offers do not.
LAUNCHABLE = ("probe", "held")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Whether one instance could be had, slot by slot: ``up`` (slots,) bool, ``start`` of slot 0 in UTC.

    A slot without a fresh observation counts as down: nobody could have launched on it knowingly; ``gaps`` counts those.
    """

    name: str
    start: pd.Timestamp
    slot_minutes: int
    up: np.ndarray
    gaps: int = 0

    @property
    def year(self) -> int:
        """Year of the first slot."""
        return int(self.start.year)

    @property
    def share(self) -> float:
        """Share of slots that are up."""
        return float(self.up.mean())

    @property
    def availability(self) -> str:
        """Class by share of time up: low, medium or high."""
        if self.share < LOW_BELOW:
            return "low"
        return "high" if self.share >= HIGH_FROM else "medium"


def single_traces(frame: pd.DataFrame, *, slot_minutes: int, least_hours: float) -> list[Trace]:
    """Traces of every series that probes one instance and lasts ``least_hours``, by name.

    ``frame`` is the tidy availability table. Raises `MarketError` if a column is missing or no series fits.
    """
    needed = [*KEYS, "timestamp", "available", "capacity_probed", "gap_seconds", "kind"]
    missing = [column for column in needed if column not in frame.columns]
    if missing:
        raise MarketError(f"an availability table without {missing}", expected=f"columns {needed}")
    launch = frame["kind"].isin(LAUNCHABLE) & frame["available"].notna()
    single = frame[launch & (frame["capacity_probed"] == 1).fillna(False)]
    traces = []
    for key, rows in single.groupby(KEYS, sort=True, dropna=False):
        found = slotted(rows, name="/".join(str(part) for part in key), slot_minutes=slot_minutes)
        if found.up.size * slot_minutes >= least_hours * 60:
            traces.append(found)
    if not traces:
        raise MarketError(
            f"{single.groupby(KEYS, dropna=False).ngroups} series that probe a single instance, none of {least_hours:g} h",
            expected="at least one with capacity_probed = 1 that is long enough",
            remedy="give a folder with longer single-instance availability",
        )
    return traces


def slotted(rows: pd.DataFrame, *, name: str, slot_minutes: int) -> Trace:
    """One series by sample and hold: a slot shows the last observation at or before its start, down if that is stale (M1.3)."""
    rows = rows.drop_duplicates("timestamp", keep="last").sort_values("timestamp")
    times = pd.DatetimeIndex(rows["timestamp"]).as_unit("s").asi8
    step = 60 * slot_minutes
    first = -(-int(times[0]) // step)
    grid = np.arange(first, int(times[-1]) // step + 1, dtype=np.int64) * step
    last = np.searchsorted(times, grid, side="right") - 1
    gap = float(rows["gap_seconds"].astype("float64").median())
    if np.isnan(gap):  # not stated: what was measured
        gap = float(np.median(np.diff(times))) if times.size > 1 else 0.0
    oldest = max(STALE_GAPS * gap, step)
    stale = grid - times[last] > oldest
    up = (rows["available"].to_numpy(dtype=float)[last] >= 1) & ~stale
    start = pd.Timestamp(first * step, unit="s", tz="UTC")
    return Trace(name=name, start=start, slot_minutes=slot_minutes, up=up, gaps=int(stale.sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What is learned from and what is scored: ``label`` says which is which."""

    label: str
    train: tuple[Trace, ...]
    test: tuple[Trace, ...]


def splits(traces: Sequence[Trace]) -> list[Split]:
    """Every year tested with tables trained on all other years; with one year only, its second half with its first.

    Nothing of the test part is learned from. Where years are split a later year may teach an earlier one: two directions
    of one transfer test, not a backtest.
    """
    years = sorted({trace.year for trace in traces})
    if len(years) > 1:
        return [
            Split(
                label=f"{'+'.join(str(y) for y in years if y != year)} -> {year}",
                train=tuple(t for t in traces if t.year != year),
                test=tuple(t for t in traces if t.year == year),
            )
            for year in years
        ]
    halves = [(half(trace, 0), half(trace, 1)) for trace in traces]
    return [
        Split(
            label=f"{years[0]}, first half -> second half",
            train=tuple(a for a, _ in halves),
            test=tuple(b for _, b in halves),
        )
    ]


def half(trace: Trace, which: int) -> Trace:
    """The first (0) or second (1) half of a trace."""
    cut = trace.up.size // 2
    later = pd.Timedelta(minutes=trace.slot_minutes * cut)
    if which == 0:
        return replace(trace, up=trace.up[:cut])
    return replace(trace, start=trace.start + later, up=trace.up[cut:])


# ---
# The rules of the single-instance benchmark: how a slot passes, and what a sequence of choices costs.
#
# A slot goes: see whether spot is up -> a spot instance is lost if it is not -> choose nothing, spot or on-demand -> pay the whole
# slot -> a start owes the full overhead, which eats time before work does and is carried past the slot. What an instance still owes
# when it is given up or lost is lost with it: the next start owes the full overhead again.
#
# The policies of the single-instance scoreboard: on-demand only, greedy, uniform progress, and tables of backward induction.


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One job that ran its course: ``actions`` (slots used,) int8, its bill, and the slots it used.

    ``slots_used`` is None for a missed deadline; ``starts`` counts the overheads begun.
    """

    actions: np.ndarray
    cost_usd: float
    slots_used: int | None
    starts: int

    @property
    def missed(self) -> bool:
        """True if work was left at the deadline."""
        return self.slots_used is None


def settle(setting: Setting, up: np.ndarray, actions: np.ndarray) -> Run:
    """What a sequence of choices does and costs: the only place where a run is scored.

    ``up`` (slots,) is bool, ``actions`` (slots,) int8; both cover the slots to the deadline, and those after the finish are not
    looked at. Raises `PolicyError` for a wrong shape, an unknown action, or spot where it is down.
    """
    if up.shape != (setting.slots,) or actions.shape != (setting.slots,):
        raise PolicyError(
            f"{up.shape} slots seen and {actions.shape} actions", expected=f"({setting.slots},) of both"
        )
    if actions.min() < 0 or actions.max() > ON_DEMAND:
        raise PolicyError(f"actions {np.unique(actions)}", expected="0 (none), 1 (spot) or 2 (on-demand)")
    used, starts, wrong = play(setting.ticks, up, actions)
    if wrong >= 0:
        raise PolicyError(f"spot chosen in slot {wrong}, where it is down", expected="none or on-demand")
    taken = actions[: used if used >= 0 else setting.slots]
    spot, on_demand = int((taken == SPOT).sum()), int((taken == ON_DEMAND).sum())
    cost = spot * setting.ticks.spot_usd + on_demand * setting.ticks.on_demand_usd
    return Run(actions=taken, cost_usd=cost, slots_used=used if used >= 0 else None, starts=starts)


class SinglePolicy(Protocol):
    """What to hold in each slot of one run; never looks ahead (M4.9)."""

    @property
    def name(self) -> str:
        """Name in tables."""
        ...

    def actions(self, setting: Setting, before: np.ndarray, up: np.ndarray) -> np.ndarray:
        """Actions (slots,) int8; entry t depends on ``before`` (slots seen before the job) and ``up[: t + 1]`` only."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleOnDemandOnly:
    """M4.1: on-demand until the work is done."""

    name: str = "OD-only"

    def actions(self, setting: Setting, before: np.ndarray, up: np.ndarray) -> np.ndarray:
        """On-demand in every slot."""
        return np.full(up.size, ON_DEMAND, dtype=np.int8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """M4.2: spot whenever it is up, on-demand to the end once waiting could miss, or with ``guard`` where the guard fails."""

    name: str = "MSU"
    guard: bool = False

    def actions(self, setting: Setting, before: np.ndarray, up: np.ndarray) -> np.ndarray:
        """See `kernels.greedy`."""
        return np.asarray(greedy(setting.ticks, up, self.guard))


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleUniformProgress:
    """M4.3, single-cluster form; without ``hysteresis`` it leaves on-demand for spot at once; ``guard`` as in M4.3."""

    name: str = "UP"
    hysteresis: bool = True
    guard: bool = False

    def actions(self, setting: Setting, before: np.ndarray, up: np.ndarray) -> np.ndarray:
        """See `kernels.uniform_progress`."""
        return np.asarray(uniform_progress(setting.ticks, up, self.hysteresis, self.guard))


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePolicy:
    """M4.6 on one instance (ours): the best action of every state of a learned chain, by exact backward induction.

    ``action`` (slots + 1, states, holdings, slack + 1) serves its own deadline and every earlier one with the same work, overhead
    and prices. ``remember`` says whether the slots before the job are looked at. Where there is a ``guarded`` one (of the same
    shape), it is followed until a start has been seen to do the work that its overhead leaves, and on if it does less (M4.3).
    """

    name: str
    setting: Setting
    states: MarketStates
    action: np.ndarray
    expected_cost_usd: np.ndarray
    remember: bool = True
    guarded: np.ndarray | None = None

    def actions(self, setting: Setting, before: np.ndarray, up: np.ndarray) -> np.ndarray:
        """Read the table along the run; raises `PolicyError` if made for other work, overhead or prices, or a nearer deadline."""
        if setting.ticks._replace(lost=0) != self.setting.ticks or setting.slots > self.setting.slots:
            raise PolicyError(
                f"a table for {self.setting}", expected=f"one that covers {setting}", remedy="make it anew"
            )
        seen = np.concatenate([before, up]) if self.remember else up
        first = self.action if self.guarded is None else self.guarded
        return np.asarray(follow(setting.ticks, first, self.action, self.states.code(seen)[-up.size :], up))


def make_table(
    name: str, setting: Setting, states: MarketStates, chain: Chain, *, guard: bool = False
) -> TablePolicy:
    """Solve a setting exactly on a chain: least expected bill among the policies that meet the deadline on every path.

    With ``guard`` among those that take spot, and wait, only where the guard of M4.3 holds.

    ``expected_cost_usd`` (states,) is the bill to expect from each state with nothing held, in the setting's first slot.
    Raises `PolicyError` if the chain has not one state per state of ``states``.
    """
    if chain.up.size != states.count:
        raise PolicyError(f"a chain of {chain.up.size} states", expected=f"{states.count}")
    rows = (chain.start, chain.to, chain.chance)
    action, value = induct(setting.ticks, setting.slots, setting.slack, guard, chain.up, rows)
    return TablePolicy(
        name=name, setting=setting, states=states, action=action, expected_cost_usd=value[:, 0, -1]
    )


def run(policy: SinglePolicy, setting: Setting, trace: np.ndarray, start: int) -> Run:
    """One job of a policy on ``trace`` from slot ``start``; raises `PolicyError` if the trace ends before its deadline."""
    stop = start + setting.slots
    if start < 0 or stop > trace.size:
        raise PolicyError(f"slots {start} to {stop} of a trace of {trace.size}", expected="a start inside it")
    up = trace[start:stop]
    return settle(setting, up, policy.actions(setting, trace[:start], up))


def optimum(setting: Setting, up: np.ndarray) -> Run:
    """The cheapest run when the whole trace is known, under the same rules; it never misses (M4.7).

    ``up`` is bool, shape (slots,). Exact, because the slack has the setting's own tick.
    """
    action = induct_known(setting.ticks, setting.slack, up)
    return settle(
        setting, up, np.asarray(follow(setting.ticks, action, action, np.zeros(up.size, dtype=np.int64), up))
    )


# ---
# The scoreboard of the single-instance benchmark: policies learned on some traces, scored run by run on others (M4.6, M7).
#
# Every run is a window of a test trace; all policies and the optimum see the same windows, so that they are compared pairwise.

#: The public benchmark's settings.
DEADLINE_HOURS: Final = (52, 70)
OVERHEAD_MINUTES: Final = (3, 12)
#: The published policy that the gap is measured from, its eager form, and our table without the guard of M4.3.
PUBLISHED: Final = "UP"
EAGER: Final = "UP, no hysteresis"
PLAIN: Final = "stochastic"
#: What each state variable adds: names of the tables and the market states they know.
LEARNED: Final = {
    "stochastic, two states": MarketStates(ages=(1,), shares=()),
    "stochastic, share only": MarketStates(ages=(1,)),
    "stochastic, age only": MarketStates(shares=()),
    PLAIN: MarketStates(),
}
BLANK: Final = "stochastic, blank start"
#: The same with the guard of M4.3.
GUARDED: Final = "stochastic, guarded"
#: Our default: with the guard until a start has been seen to keep its slot, and on where it does not.
DEFAULT: Final = "stochastic, guarded at first"
#: Gaps narrower than this (USD) have no meaningful share.
NARROW_USD: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One run's place: a trace and the slot the job starts in."""

    trace: Trace
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Bills of all policies on the same runs of one setting: ``cost`` (runs, policies), ``missed`` likewise, ``best`` (runs,).

    ``missed_strict`` are the misses where every start loses its slot (`Setting.loses_its_slot`; in the product's replay a change
    of kind is a start too). ``block`` (runs,) numbers runs that overlap little; the bootstrap draws whole blocks.
    """

    split: Split
    setting: Setting
    names: tuple[str, ...]
    windows: tuple[Window, ...]
    cost: np.ndarray
    missed: np.ndarray
    missed_strict: np.ndarray
    best: np.ndarray
    block: np.ndarray

    def of(self, name: str) -> np.ndarray:
        """Bills of one policy, shape (runs,)."""
        return np.asarray(self.cost[:, self.names.index(name)])

    def among(self, availability: str) -> Scores:
        """The runs on traces of one class of availability."""
        kept = np.array([w.trace.availability == availability for w in self.windows])
        return replace(
            self,
            windows=tuple(w for w, k in zip(self.windows, kept, strict=True) if k),
            cost=self.cost[kept], missed=self.missed[kept], missed_strict=self.missed_strict[kept],
            best=self.best[kept], block=self.block[kept],
        )  # fmt: skip

    def gap_closed(self, name: str, *, start: str = PUBLISHED) -> float:
        """(cost of ``start`` - cost) / (cost of ``start`` - optimum), of means; NaN where there is no gap."""
        wide = float(self.of(start).mean() - self.best.mean())
        return float(self.of(start).mean() - self.of(name).mean()) / wide if wide > NARROW_USD else np.nan

    def gap_interval(
        self, name: str, *, rng: np.random.Generator, start: str = PUBLISHED
    ) -> tuple[float, float]:
        """95 % interval of `gap_closed` by a paired bootstrap over blocks of runs; NaN where there is no gap."""
        first = self.of(start)
        table = np.stack([first - self.of(name), first - self.best], axis=1)
        draws = resampled(table, blocks=self.block, rng=rng)
        wide = np.where(draws.means[:, 1] > NARROW_USD, draws.means[:, 1], np.nan)
        low, high = draws.interval(draws.means[:, 0] / wide)
        return float(low), float(high)


def mean_gap_interval(
    scores: Sequence[Scores], name: str, *, rng: np.random.Generator, start: str = PUBLISHED
) -> tuple[float, float]:
    """95 % interval of the mean of `Scores.gap_closed` over settings.

    Runs of all settings are drawn together by their block: the test trace, and which stretch of the longest deadline the run
    starts in.
    """
    longest = max(s.setting.slots for s in scores)
    table = np.zeros((sum(len(s.windows) for s in scores), 2 * len(scores)))
    blocks, row = [], 0
    for k, s in enumerate(scores):
        own, first = slice(row, row + len(s.windows)), s.of(start)
        table[own, 2 * k], table[own, 2 * k + 1] = first - s.of(name), first - s.best
        blocks += [(s.split.label, w.trace.name, w.start // longest) for w in s.windows]
        row = own.stop
    draws = resampled(table, blocks=blocks, rng=rng)
    narrow = NARROW_USD * np.array([len(s.windows) for s in scores]) / len(table)
    wide = np.where(draws.means[:, 1::2] > narrow, draws.means[:, 1::2], np.nan)
    low, high = draws.interval(np.nanmean(draws.means[:, ::2] / wide, axis=1))
    return float(low), float(high)


def settings(slot_minutes: int = 10) -> list[Setting]:
    """The four settings, in order of overhead and deadline."""
    return [
        Setting(deadline_minutes=60 * hours, overhead_minutes=minutes, slot_minutes=slot_minutes)
        for minutes in OVERHEAD_MINUTES
        for hours in DEADLINE_HOURS
    ]


def windows(traces: Sequence[Trace], setting: Setting, *, every_hours: int) -> list[Window]:
    """Runs that start every so many hours in each trace and end inside it."""
    every = max(1, 60 * every_hours // setting.slot_minutes)
    return [
        Window(trace=trace, start=start)
        for trace in traces
        for start in range(0, trace.up.size - setting.slots + 1, every)
    ]


def learned_policies(split: Split, setting: Setting) -> Iterator[SinglePolicy]:
    """The tables of a setting, no more than two at a time (one takes up to 250 MB), learned from the training traces only."""
    for name, states in LEARNED.items():
        chain = estimate(states, [trace.up for trace in split.train])
        table = make_table(name, setting, states, chain)
        yield table
        if name == PLAIN:
            yield replace(table, name=BLANK, remember=False)
            guarded = make_table(GUARDED, setting, states, chain, guard=True)
            yield guarded
            yield replace(table, name=DEFAULT, guarded=guarded.action)


def score_split(
    split: Split, *, every_hours: int, told: Callable[[str], None] = lambda _: None
) -> list[Scores]:
    """Score every policy in every setting on the test traces of a split.

    One table per overhead serves both deadlines. ``told`` hears what is being done. Test traces too short for a deadline are not
    scored with it.
    """
    found: list[Scores] = []
    for overhead in OVERHEAD_MINUTES:
        chosen = [s for s in settings() if s.overhead_minutes == overhead]
        places = {s: windows(split.test, s, every_hours=every_hours) for s in chosen}
        costs: dict[Setting, list[np.ndarray]] = {s: [] for s in chosen}
        missed: dict[Setting, list[np.ndarray]] = {s: [] for s in chosen}
        strict: dict[Setting, list[np.ndarray]] = {s: [] for s in chosen}
        names: list[str] = []
        fixed: list[SinglePolicy] = [SingleOnDemandOnly(), Greedy(), SingleUniformProgress()]
        fixed += [
            SingleUniformProgress(name=EAGER, hysteresis=False),
            SingleUniformProgress(name=f"{PUBLISHED}, guarded", guard=True),
        ]
        longest = max(chosen, key=lambda s: s.slots)
        told(f"{split.label}, overhead {overhead} min")
        for policy in itertools.chain(fixed, learned_policies(split, longest)):
            names.append(policy.name)
            for setting in chosen:
                runs = [run(policy, setting, w.trace.up, w.start) for w in places[setting]]
                costs[setting].append(np.array([r.cost_usd for r in runs]))
                missed[setting].append(np.array([r.missed for r in runs]))
                other = replace(setting, loses_its_slot=True)
                strict[setting].append(
                    np.array([run(policy, other, w.trace.up, w.start).missed for w in places[setting]])
                )
        for setting in chosen:
            if places[setting]:
                found.append(
                    Scores(
                        split=split, setting=setting, names=tuple(names), windows=tuple(places[setting]),
                        cost=np.stack(costs[setting], axis=1), missed=np.stack(missed[setting], axis=1),
                        missed_strict=np.stack(strict[setting], axis=1),
                        best=least_costs(setting, places[setting]), block=blocks_of(setting, places[setting]),
                    )
                )  # fmt: skip
    return found


def least_costs(setting: Setting, places: Sequence[Window]) -> np.ndarray:
    """Bills of the optimum, shape (runs,)."""
    return np.array(
        [optimum(setting, w.trace.up[w.start : w.start + setting.slots]).cost_usd for w in places]
    )


def blocks_of(setting: Setting, places: Sequence[Window]) -> np.ndarray:
    """Number of each run's block: the trace and which stretch of one deadline's length the run starts in."""
    keys = [(w.trace.name, w.start // setting.slots) for w in places]
    order = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return np.array([order[key] for key in keys])
