"""The public "Can't Be Late" benchmark on a single instance: rules, policies, and tables of backward induction (M4.6).

This module has the setting, the Markov chain of a market, the traces, and the scoreboard.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import pandas as pd

from slackwater.studies.single_kernel import (
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
from slackwater.studies.trials.comparison import resampled
from slackwater.warehouse.errors import MarketError, PolicyError, SettingsError

# ---
# A setting of the single-instance benchmark: work, deadline, restart overhead, prices, all in whole minutes (M4.3, M4.6).


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Work to do by a deadline on a single instance, spot or on-demand, with an overhead for every start.

    Times are whole minutes, so that the slack (time left minus work left) lies on an exact grid whose step is their greatest
    common divisor (the *tick*). Prices are USD per hour; a slot with an instance is billed in full. Raises `SettingsError`
    if a time is not positive, the deadline is not a whole number of slots, on-demand alone cannot meet it, or spot is not cheaper
    than on-demand.

    With ``loses_last_slot`` the last slot of a spot instance that is lost does no work, as in the public simulators; without it
    the slot counts in full, as in the paper (M7).

    >>> Setting(deadline_minutes=52 * 60, overhead_minutes=12).tick
    2
    """

    work_minutes: int = 48 * 60
    deadline_minutes: int
    overhead_minutes: int
    slot_minutes: int = 10
    spot_usd_per_hour: float = 0.9731
    on_demand_usd_per_hour: float = 3.06
    loses_last_slot: bool = True

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
        """Setting in ticks."""
        hours = self.slot_minutes / 60
        return Ticks(
            work=self.work_minutes // self.tick,
            slot=self.slot_minutes // self.tick,
            overhead=self.overhead_minutes // self.tick,
            spot_usd=self.spot_usd_per_hour * hours,
            on_demand_usd=self.on_demand_usd_per_hour * hours,
            loses_last=self.loses_last_slot,
        )

    @property
    def slack(self) -> int:
        """Time to the deadline minus work, in ticks."""
        return (self.deadline_minutes - self.work_minutes) // self.tick

    def slots_for(self, minutes: int) -> int:
        """Return the number of whole slots that contain ``minutes``."""
        return -(-minutes // self.slot_minutes)

    @property
    def on_demand_only_usd(self) -> float:
        """Cost of work plus one overhead on on-demand, in whole slots: OD of the score."""
        return self.slots_for(self.work_minutes + self.overhead_minutes) * self.ticks.on_demand_usd

    @property
    def spot_only_usd(self) -> float:
        """Cost of work plus one overhead on a spot instance that is never lost, in whole slots: the least cost of any run."""
        return self.slots_for(self.work_minutes + self.overhead_minutes) * self.ticks.spot_usd

    def score(self, cost_usd: float) -> float:
        """Return 100 (OD - cost) / (OD - spot-only): 0 is on-demand throughout, 100 an uninterrupted spot run."""
        return 100.0 * (self.on_demand_only_usd - cost_usd) / (self.on_demand_only_usd - self.spot_only_usd)


# ---
# Markov chain of a single-instance market: up or down, time in that state, and recent share of up slots (M4.6, ours).
#
# Stay times are not memoryless: an up run that has lasted hours is far more likely to last another slot than a run that has
# just begun. So the state has the *age* of the current run in growing bins, and the *share* of up slots in the last day.

#: First slot of every age bin, roughly a factor of 1.5 apart; a run is 1 slot old when it begins.
AGES: Final = (1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 63, 95, 144, 216)
#: Limits between the bins of the recent share of up slots.
SHARES: Final = (0.4, 0.7)
#: Pseudo-slots of half availability in the share of a market, for few observations.
BLANK_SLOTS: Final = 6
#: Pseudo-slots that shrink a flip rate with few observations to that of its age, and that rate to the rate of all ages.
SHRINK_SLOTS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Markov chain of a market: state k is up or down and moves to ``to[start[k]:start[k + 1]]`` with probability ``chance``.

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
    """State of a market after each slot: (up or down, bin of the share, bin of the age).

    ``ages`` are the first slots of the age bins, ``shares`` the limits of the share bins (empty: the share is not used),
    ``window`` the slots over which the share is computed. Raises `SettingsError` if the bins do not ascend.
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
        """Return the state after every slot, shape (slots,) int64; entry t depends only on ``up[: t + 1]`` (M4.9)."""
        age = np.searchsorted(self.ages, run_ages(up), side="right") - 1
        share = np.searchsorted(self.shares, recent_share(up, self.window))
        return np.asarray((up.astype(np.int64) * (len(self.shares) + 1) + share) * len(self.ages) + age)


def run_ages(up: np.ndarray) -> np.ndarray:
    """Return the length so far of the current up or down run in slots, from 1.

    >>> run_ages(np.array([True, True, False, True]))
    array([1, 2, 1, 1])
    """
    begins = np.ones(up.size, dtype=bool)
    begins[1:] = up[1:] != up[:-1]
    at = np.arange(up.size)
    return at - np.maximum.accumulate(np.where(begins, at, 0)) + 1


def recent_share(up: np.ndarray, window: int) -> np.ndarray:
    """Return the share of up slots in the last ``window`` slots, shrunk to one half by `BLANK_SLOTS` pseudo-slots."""
    total = np.concatenate([[0.0], np.cumsum(up)])
    after = np.arange(1, up.size + 1)
    before = np.maximum(0, after - window)
    seen = after - before
    return np.asarray((total[after] - total[before] + 0.5 * BLANK_SLOTS) / (seen + BLANK_SLOTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Probabilities of a slot: ``flip`` (2, shares, ages), and of a share that ``rises`` or ``falls`` by a bin, (2, shares) each.

    The first index is down or up.
    """

    flip: np.ndarray
    rises: np.ndarray
    falls: np.ndarray


def estimate(states: MarketStates, traces: Sequence[np.ndarray]) -> Rates:
    """Estimate the rates of ``states`` from pooled 0/1 traces, with flip rates of few observations shrunk (M4.6).

    Raises `PolicyError` if there is no move to learn from.
    """
    shape = (2, len(states.shares) + 1, len(states.ages))
    seen, flips = np.zeros(shape), np.zeros(shape)
    rises, falls = np.zeros(shape[:2]), np.zeros(shape[:2])
    for up in traces:
        side, share, age = np.unravel_index(states.code(up), shape)
        before = (side[:-1], share[:-1], age[:-1])
        np.add.at(seen, before, 1.0)
        np.add.at(flips, before, side[1:] != side[:-1])
        np.add.at(rises, before[:2], share[1:] > share[:-1])
        np.add.at(falls, before[:2], share[1:] < share[:-1])
    if not seen.any():
        raise PolicyError("no two slots in a row to learn from", expected="traces of several slots")
    overall = (flips.sum(axis=(1, 2)) + 0.5) / (seen.sum(axis=(1, 2)) + 1.0)
    by_age = flips.sum(axis=1) + SHRINK_SLOTS * overall[:, None]
    by_age /= seen.sum(axis=1) + SHRINK_SLOTS
    slots = seen.sum(axis=2) + 1.0
    return Rates(
        flip=(flips + SHRINK_SLOTS * by_age[:, None]) / (seen + SHRINK_SLOTS),
        rises=rises / slots,
        falls=falls / slots,
    )


def chain_of(states: MarketStates, rates: Rates) -> Chain:
    """Return the chain of ``rates``: a run flips, or it grows older at the pace of its age bin and its share moves by a bin."""
    shape = rates.flip.shape
    rows = np.zeros((states.count, states.count))
    for k in range(states.count):
        up, share, age = np.unravel_index(k, shape)
        flip, last = rates.flip[up, share, age], age + 1 == shape[2]
        older = 0.0 if last else 1.0 / (states.ages[age + 1] - states.ages[age])
        rows[k, np.ravel_multi_index((1 - up, share, 0), shape)] += flip
        rises, falls = rates.rises[up, share], rates.falls[up, share]
        for moved, chance in ((1, rises), (-1, falls), (0, 1.0 - rises - falls)):
            to = min(max(share + moved, 0), shape[1] - 1)
            rows[k, np.ravel_multi_index((up, to, age), shape)] += (1 - flip) * chance * (1 - older)
            if not last:
                rows[k, np.ravel_multi_index((up, to, age + 1), shape)] += (1 - flip) * chance * older
    source, to_state = np.nonzero(rows)
    start = np.searchsorted(source, np.arange(states.count + 1))
    return Chain(
        up=np.arange(states.count) >= states.count // 2,
        start=start,
        to=np.ascontiguousarray(to_state),
        chance=rows[source, to_state],
    )


# ---
# Up-or-down traces of single instances on the slot grid, and their split into training and test parts (M1.3).

KEYS = ["source", "provider", "region", "zone", "instance_type"]
#: Limits of the share of time up between low, medium and high availability (ours; the public benchmark gives no limits).
LOW_BELOW, HIGH_FROM = 0.5, 0.8
#: Number of nominal gaps after which an observation is stale (M1.3).
STALE_GAPS = 3
#: Kinds of counts that show a launch would have succeeded; listed offers do not.
LAUNCHABLE = ("probe", "held")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Availability of a single instance by slot: ``up`` (slots,) bool, ``start`` of slot 0 in UTC.

    A slot without a fresh observation counts as down, because a launch could not be planned on it; ``gaps`` counts these slots.
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
    """Return the traces of every series that probes a single instance and lasts ``least_hours``, by name.

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
    """Return a series by sample and hold: the last observation at or before a slot's start, down if it is stale (M1.3)."""
    rows = rows.drop_duplicates("timestamp", keep="last").sort_values("timestamp")
    times = pd.DatetimeIndex(rows["timestamp"]).as_unit("s").asi8
    step = 60 * slot_minutes
    first = -(-int(times[0]) // step)
    grid = np.arange(first, int(times[-1]) // step + 1, dtype=np.int64) * step
    last = np.searchsorted(times, grid, side="right") - 1
    gap = float(rows["gap_seconds"].astype("float64").median())
    if np.isnan(gap):  # not stated: use the measured gap
        gap = float(np.median(np.diff(times))) if times.size > 1 else 0.0
    oldest = max(STALE_GAPS * gap, step)
    stale = grid - times[last] > oldest
    up = (rows["available"].to_numpy(dtype=float)[last] >= 1) & ~stale
    start = pd.Timestamp(first * step, unit="s", tz="UTC")
    return Trace(name=name, start=start, slot_minutes=slot_minutes, up=up, gaps=int(stale.sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Training and test traces; ``label`` names both parts."""

    label: str
    train: tuple[Trace, ...]
    test: tuple[Trace, ...]


def splits(traces: Sequence[Trace]) -> list[Split]:
    """Return a split for every year, tested with tables trained on all other years.

    With only one year, the second half of each trace is tested with tables trained on the first. No test data are used for
    training. If years are split, a later year may train tables for an earlier year: a transfer test in both directions, not a
    backtest.
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
    """Return the first (0) or second (1) half of a trace."""
    cut = trace.up.size // 2
    later = pd.Timedelta(minutes=trace.slot_minutes * cut)
    if which == 0:
        return replace(trace, up=trace.up[:cut])
    return replace(trace, start=trace.start + later, up=trace.up[cut:])


# ---
# Rules of the single-instance benchmark: the passage of a slot, and the cost of a sequence of choices.
#
# In each slot: observe whether spot is up -> a spot instance is lost if it is down, and the slot that has just passed does no work
# -> choose nothing, spot or on-demand -> pay for the whole slot -> a start owes the full overhead, which delays work and continues
# into the next slots. The remaining overhead of an instance ends with the instance: the next start owes the full overhead again.
#
# The policies of the single-instance scoreboard: on-demand only, greedy, uniform progress, and tables of backward induction.


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Simulated job: ``actions`` (slots used,) int8, its cost, and the slots used.

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
    """Simulate a sequence of choices and return its run: the only place where a run is scored.

    ``up`` (slots,) is bool, ``actions`` (slots,) int8. Both cover the slots to the deadline; slots after the finish are ignored.
    Raises `PolicyError` for a wrong shape, an unknown action, or spot where it is down.
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
    """Policy that chooses the instance in each slot of a run without future information (M4.9)."""

    @property
    def name(self) -> str:
        """Name in tables."""
        ...

    def actions(self, setting: Setting, up: np.ndarray) -> np.ndarray:
        """Return actions (slots,) int8; entry t depends only on ``up[: t + 1]``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleOnDemandOnly:
    """Policy M4.1: on-demand until the work is done."""

    name: str = "OD-only"

    def actions(self, setting: Setting, up: np.ndarray) -> np.ndarray:
        """Return on-demand for every slot."""
        return np.full(up.size, ON_DEMAND, dtype=np.int8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """Policy M4.2: spot whenever it is up, on-demand to the end as soon as waiting could miss the deadline."""

    name: str = "MSU"

    def actions(self, setting: Setting, up: np.ndarray) -> np.ndarray:
        """Return the actions of `greedy`."""
        return np.asarray(greedy(setting.ticks, up))


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleUniformProgress:
    """Policy M4.3 in its single-cluster form; without ``hysteresis`` it leaves on-demand for spot at once."""

    name: str = "UP"
    hysteresis: bool = True

    def actions(self, setting: Setting, up: np.ndarray) -> np.ndarray:
        """Return the actions of `uniform_progress`."""
        return np.asarray(uniform_progress(setting.ticks, up, self.hysteresis))


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePolicy:
    """Policy M4.6 on a single instance (ours): the best action of every state of a learned chain, by exact backward induction.

    ``action`` (slots + 1, states, holdings, slack + 1) serves its deadline and every earlier deadline with the same work, overhead
    and prices. ``kept``: table of the same shape that is followed once a lost spot instance has kept the work of its last slot.
    """

    name: str
    setting: Setting
    states: MarketStates
    action: np.ndarray
    expected_cost_usd: np.ndarray
    kept: np.ndarray | None = None

    def actions(self, setting: Setting, up: np.ndarray) -> np.ndarray:
        """Return the table's actions along the run.

        Raises `PolicyError` for other work, overhead or prices than the table's, or a later deadline.
        """
        same = setting.ticks._replace(loses_last=True) == self.setting.ticks._replace(loses_last=True)
        if not same or setting.slots > self.setting.slots:
            raise PolicyError(
                f"a table for {self.setting}", expected=f"one that covers {setting}", remedy="make it anew"
            )
        then = self.action if self.kept is None else self.kept
        return np.asarray(follow(setting.ticks, self.action, then, self.states.code(up), up))


def make_table(
    name: str, setting: Setting, states: MarketStates, chain: Chain, *, guard: bool = False
) -> TablePolicy:
    """Solve a setting exactly on a chain: least expected cost among the policies that meet the deadline on every path.

    With ``guard``, policies may use spot, and wait, only where the exact guard of M4.3 holds. ``expected_cost_usd`` (states,) is
    the expected cost from each state without an instance, in the setting's first slot. Raises `PolicyError` unless the chain has
    as many states as ``states``.
    """
    if chain.up.size != states.count:
        raise PolicyError(f"a chain of {chain.up.size} states", expected=f"{states.count}")
    rows = (chain.start, chain.to, chain.chance)
    action, value = induct(setting.ticks, setting.slots, setting.slack, guard, chain.up, rows)
    return TablePolicy(
        name=name, setting=setting, states=states, action=action, expected_cost_usd=value[:, 0, -1]
    )


def make_tables(name: str, setting: Setting, states: MarketStates, chain: Chain) -> TablePolicy:
    """Return the guarded policy that expects to lose the last slot of a spot run until a loss has kept it."""
    lost, kept = (
        make_table(name, replace(setting, loses_last_slot=loses), states, chain, guard=True)
        for loses in (True, False)
    )
    return replace(lost, kept=kept.action)


def run(policy: SinglePolicy, setting: Setting, trace: np.ndarray, start: int) -> Run:
    """Run a job of a policy on ``trace`` from slot ``start``; raises `PolicyError` if the trace ends before its deadline."""
    stop = start + setting.slots
    if start < 0 or stop > trace.size:
        raise PolicyError(f"slots {start} to {stop} of a trace of {trace.size}", expected="a start inside it")
    up = trace[start:stop]
    return settle(setting, up, policy.actions(setting, up))


def optimum(setting: Setting, up: np.ndarray) -> Run:
    """Return the cheapest run if the whole trace is known, under the same rules; it never misses the deadline (M4.7).

    ``up`` is bool, shape (slots,). The result is exact, because the slack is on the setting's tick grid.
    """
    action = induct_known(setting.ticks, setting.slack, up)
    return settle(
        setting, up, np.asarray(follow(setting.ticks, action, action, np.zeros(up.size, dtype=np.int64), up))
    )


# ---
# The scoreboard of the single-instance benchmark: policies learned on some traces, scored run by run on others (M4.6, M7).
#
# Every run is a window of a test trace; all policies and the optimum use the same windows, for paired comparison.

#: The public benchmark's settings.
DEADLINE_HOURS: Final = (52, 70)
OVERHEAD_MINUTES: Final = (3, 12)
#: Published policy from which the gap is measured, its form without hysteresis, and our table without the guard of M4.3, which
#: assumes that the last slot of a run is kept.
PUBLISHED: Final = "UP"
EAGER: Final = "UP, no hysteresis"
PLAIN: Final = "stochastic, no guard"
#: The same with the guard.
NAIVE: Final = "stochastic, last slot kept"
#: Our default: guarded, and it expects to lose the last slot of a run until a loss has kept it.
DEFAULT: Final = "stochastic"
#: Tables that show the contribution of each state variable: names and market states.
LEARNED: Final = {
    "stochastic, two states": MarketStates(ages=(1,), shares=()),
    "stochastic, share only": MarketStates(ages=(1,)),
    "stochastic, age only": MarketStates(shares=()),
    DEFAULT: MarketStates(),
}
#: Gaps smaller than this (USD) have no meaningful share.
NARROW_USD: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Position of a run: a trace and the slot in which the job starts."""

    trace: Trace
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Costs of all policies on the same runs of a setting: ``cost`` and ``missed`` (runs, policies), ``best`` (runs,).

    ``block`` (runs,) numbers groups of runs with little overlap between them; the bootstrap draws whole blocks.
    """

    split: Split
    setting: Setting
    names: tuple[str, ...]
    windows: tuple[Window, ...]
    cost: np.ndarray
    missed: np.ndarray
    best: np.ndarray
    block: np.ndarray

    def of(self, name: str) -> np.ndarray:
        """Return the costs of a policy, shape (runs,)."""
        return np.asarray(self.cost[:, self.names.index(name)])

    def among(self, availability: str) -> Scores:
        """Return the runs on traces of a class of availability."""
        kept = np.array([w.trace.availability == availability for w in self.windows])
        return replace(
            self,
            windows=tuple(w for w, k in zip(self.windows, kept, strict=True) if k),
            cost=self.cost[kept], missed=self.missed[kept], best=self.best[kept], block=self.block[kept],
        )  # fmt: skip

    def gap_closed(self, name: str, *, start: str = PUBLISHED) -> float:
        """Return (cost of ``start`` - cost) / (cost of ``start`` - optimum), of means; NaN where there is no gap."""
        wide = float(self.of(start).mean() - self.best.mean())
        return float(self.of(start).mean() - self.of(name).mean()) / wide if wide > NARROW_USD else np.nan

    def gap_interval(
        self, name: str, *, rng: np.random.Generator, start: str = PUBLISHED
    ) -> tuple[float, float]:
        """Return the 95 % interval of `gap_closed` by a paired bootstrap over blocks of runs; NaN where there is no gap."""
        first = self.of(start)
        table = np.stack([first - self.of(name), first - self.best], axis=1)
        draws = resampled(table, blocks=self.block, rng=rng)
        wide = np.where(draws.means[:, 1] > NARROW_USD, draws.means[:, 1], np.nan)
        low, high = draws.interval(draws.means[:, 0] / wide)
        return float(low), float(high)


def mean_gap_interval(
    scores: Sequence[Scores], name: str, *, rng: np.random.Generator, start: str = PUBLISHED
) -> tuple[float, float]:
    """Return the 95 % interval of the mean of `Scores.gap_closed` over settings.

    Runs of all settings are resampled together by block. A block is a test trace and an interval, as long as the longest deadline,
    in which the run starts.
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


def settings(slot_minutes: int = 10, *, loses_last_slot: bool = True) -> list[Setting]:
    """Return the four settings, in order of overhead and deadline."""
    return [
        Setting(
            deadline_minutes=60 * hours,
            overhead_minutes=minutes,
            slot_minutes=slot_minutes,
            loses_last_slot=loses_last_slot,
        )
        for minutes in OVERHEAD_MINUTES
        for hours in DEADLINE_HOURS
    ]


def windows(traces: Sequence[Trace], setting: Setting, *, every_hours: int) -> list[Window]:
    """Return runs that start every ``every_hours`` hours in each trace and end inside it."""
    every = max(1, 60 * every_hours // setting.slot_minutes)
    return [
        Window(trace=trace, start=start)
        for trace in traces
        for start in range(0, trace.up.size - setting.slots + 1, every)
    ]


def learned_policies(split: Split, setting: Setting) -> Iterator[SinglePolicy]:
    """Yield the tables of a setting, learned from the training traces only.

    At most four tables are in memory at a time; a table takes up to 150 MB.
    """
    for name, states in LEARNED.items():
        chain = chain_of(states, estimate(states, [trace.up for trace in split.train]))
        tables = make_tables(name, setting, states, chain)
        yield tables
        if name == DEFAULT:
            if tables.kept is not None:
                yield replace(tables, name=NAIVE, action=tables.kept)
            yield make_table(PLAIN, replace(setting, loses_last_slot=False), states, chain)


def score_split(
    split: Split, *, every_hours: int, told: Callable[[str], None] = lambda _: None
) -> list[Scores]:
    """Score every policy in every setting, with and without the last slot of a run, on the test traces of a split.

    A table for each overhead serves both deadlines. ``told`` receives progress messages. Test traces shorter than a deadline are
    not scored with it.
    """
    found: list[Scores] = []
    for overhead in OVERHEAD_MINUTES:
        chosen = [
            s
            for loses in (True, False)
            for s in settings(loses_last_slot=loses)
            if s.overhead_minutes == overhead
        ]
        places = {s: windows(split.test, s, every_hours=every_hours) for s in chosen}
        costs: dict[Setting, list[np.ndarray]] = {s: [] for s in chosen}
        missed: dict[Setting, list[np.ndarray]] = {s: [] for s in chosen}
        names: list[str] = []
        fixed: list[SinglePolicy] = [SingleOnDemandOnly(), Greedy(), SingleUniformProgress()]
        fixed.append(SingleUniformProgress(name=EAGER, hysteresis=False))
        longest = max(chosen, key=lambda s: s.slots)
        told(f"{split.label}, overhead {overhead} min")
        for policy in itertools.chain(fixed, learned_policies(split, longest)):
            names.append(policy.name)
            for setting in chosen:
                runs = [run(policy, setting, w.trace.up, w.start) for w in places[setting]]
                costs[setting].append(np.array([r.cost_usd for r in runs]))
                missed[setting].append(np.array([r.missed for r in runs]))
        for setting in chosen:
            if places[setting]:
                found.append(
                    Scores(
                        split=split, setting=setting, names=tuple(names), windows=tuple(places[setting]),
                        cost=np.stack(costs[setting], axis=1), missed=np.stack(missed[setting], axis=1),
                        best=least_costs(setting, places[setting]), block=blocks_of(setting, places[setting]),
                    )
                )  # fmt: skip
    return found


def least_costs(setting: Setting, places: Sequence[Window]) -> np.ndarray:
    """Return the costs of the optimum, shape (runs,)."""
    return np.array(
        [optimum(setting, w.trace.up[w.start : w.start + setting.slots]).cost_usd for w in places]
    )


def blocks_of(setting: Setting, places: Sequence[Window]) -> np.ndarray:
    """Return the number of each run's block: the trace and the interval, as long as the deadline, in which the run starts."""
    keys = [(w.trace.name, w.start // setting.slots) for w in places]
    order = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return np.array([order[key] for key in keys])
