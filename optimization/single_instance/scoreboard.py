"""The rules of the single-instance benchmark: how a slot passes, and what a sequence of choices costs.

A slot goes: see whether spot is up -> a spot instance is lost if it is not -> choose nothing, spot or on-demand -> pay the whole
slot -> a start owes the full overhead, which eats time before work does and is carried past the slot. What an instance still owes
when it is given up or lost is lost with it: the next start owes the full overhead again.

The policies of the single-instance scoreboard: on-demand only, greedy, uniform progress, and tables of backward induction.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from optimization.kernels.single import (
    ON_DEMAND,
    SPOT,
    follow,
    greedy,
    induct,
    induct_known,
    play,
    uniform_progress,
)
from optimization.single_instance.setting import Setting
from optimization.single_instance.states import Chain, MarketStates, estimate
from optimization.single_instance.traces import Split, Trace
from optimization.trials.comparison import interval, resampled_means
from warehouse.errors import PolicyError


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
class OnDemandOnly:
    """M4.1: on-demand until the work is done."""

    name: str = "OD-only"

    def actions(self, setting: Setting, before: np.ndarray, up: np.ndarray) -> np.ndarray:
        """On-demand in every slot."""
        return np.full(up.size, ON_DEMAND, dtype=np.int8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """M4.2: spot whenever it is up, on-demand to the end once waiting could miss."""

    name: str = "MSU"

    def actions(self, setting: Setting, before: np.ndarray, up: np.ndarray) -> np.ndarray:
        """See `kernels.greedy`."""
        return np.asarray(greedy(setting.ticks, up))


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformProgress:
    """M4.3, single-cluster form; without ``hysteresis`` it leaves on-demand for spot at once."""

    name: str = "UP"
    hysteresis: bool = True

    def actions(self, setting: Setting, before: np.ndarray, up: np.ndarray) -> np.ndarray:
        """See `kernels.uniform_progress`."""
        return np.asarray(uniform_progress(setting.ticks, up, self.hysteresis))


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePolicy:
    """M4.6 on one instance (ours): the best action of every state of a learned chain, by exact backward induction.

    ``action`` (slots + 1, states, holdings, slack + 1) serves its own deadline and every earlier one with the same work, overhead
    and prices. ``remember`` says whether the slots before the job are looked at.
    """

    name: str
    setting: Setting
    states: MarketStates
    action: np.ndarray
    expected_cost_usd: np.ndarray
    remember: bool = True

    def actions(self, setting: Setting, before: np.ndarray, up: np.ndarray) -> np.ndarray:
        """Read the table along the run; raises `PolicyError` if made for other work, overhead or prices, or a nearer deadline."""
        if setting.ticks != self.setting.ticks or setting.slots > self.setting.slots:
            raise PolicyError(
                f"a table for {self.setting}", expected=f"one that covers {setting}", remedy="make it anew"
            )
        seen = np.concatenate([before, up]) if self.remember else up
        return np.asarray(follow(setting.ticks, self.action, self.states.code(seen)[-up.size :], up))


def make_table(name: str, setting: Setting, states: MarketStates, chain: Chain) -> TablePolicy:
    """Solve a setting exactly on a chain: least expected bill among the policies that meet the deadline on every path.

    ``expected_cost_usd`` (states,) is the bill to expect from each state with nothing held, in the setting's first slot.
    Raises `PolicyError` if the chain has not one state per state of ``states``.
    """
    if chain.up.size != states.count:
        raise PolicyError(f"a chain of {chain.up.size} states", expected=f"{states.count}")
    rows = (chain.start, chain.to, chain.chance)
    action, value = induct(setting.ticks, setting.slots, setting.slack, chain.up, rows)
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
        setting, up, np.asarray(follow(setting.ticks, action, np.zeros(up.size, dtype=np.int64), up))
    )


# ---
# The scoreboard of the single-instance benchmark: policies learned on some traces, scored run by run on others (M4.6, M7).
#
# Every run is a window of a test trace; all policies and the optimum see the same windows, so that they are compared pairwise.

#: The public benchmark's settings.
DEADLINE_HOURS: Final = (52, 70)
OVERHEAD_MINUTES: Final = (3, 12)
#: The published policy that the gap is measured from, its eager form, and our default.
PUBLISHED: Final = "UP"
EAGER: Final = "UP, no hysteresis"
DEFAULT: Final = "stochastic"
#: What each state variable adds: names of the tables and the market states they know.
LEARNED: Final = {
    "stochastic, two states": MarketStates(ages=(1,), shares=()),
    "stochastic, share only": MarketStates(ages=(1,)),
    "stochastic, age only": MarketStates(shares=()),
    DEFAULT: MarketStates(),
}
BLANK: Final = "stochastic, blank start"
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

    ``block`` (runs,) numbers runs that overlap little; the bootstrap draws whole blocks.
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
        """Bills of one policy, shape (runs,)."""
        return np.asarray(self.cost[:, self.names.index(name)])

    def among(self, availability: str) -> Scores:
        """The runs on traces of one class of availability."""
        kept = np.array([w.trace.availability == availability for w in self.windows])
        return replace(
            self,
            windows=tuple(w for w, k in zip(self.windows, kept, strict=True) if k),
            cost=self.cost[kept], missed=self.missed[kept], best=self.best[kept], block=self.block[kept],
        )  # fmt: skip

    def gap_closed(self, name: str, *, start: str = PUBLISHED) -> float:
        """(cost of ``start`` - cost) / (cost of ``start`` - optimum), of means; NaN where there is no gap."""
        wide = float(self.of(start).mean() - self.best.mean())
        return float(self.of(start).mean() - self.of(name).mean()) / wide if wide > NARROW_USD else np.nan

    def gap_interval(self, name: str, *, rng: np.random.Generator) -> tuple[float, float]:
        """95 % interval of `gap_closed` by a paired bootstrap over blocks of runs; NaN where there is no gap."""
        blocks = np.unique(self.block, return_inverse=True)[1]
        start = self.of(PUBLISHED)
        sums = np.zeros((int(blocks.max()) + 1, 2))
        np.add.at(sums, blocks, np.stack([start - self.of(name), start - self.best], axis=1))
        drawn = resampled_means(sums, rng=rng)
        wide = np.where(drawn[:, 1] > NARROW_USD / len(self.windows), drawn[:, 1], np.nan)
        low, high = interval(drawn[:, 0] / wide)
        return float(low), float(high)


def settings() -> list[Setting]:
    """The four settings, in order of overhead and deadline."""
    return [
        Setting(deadline_minutes=60 * hours, overhead_minutes=minutes)
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
    """The tables of a setting, one at a time (one takes up to 250 MB), learned from the training traces only."""
    for name, states in LEARNED.items():
        chain = estimate(states, [trace.up for trace in split.train])
        table = make_table(name, setting, states, chain)
        yield table
        if name == DEFAULT:
            yield replace(table, name=BLANK, remember=False)


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
        names: list[str] = []
        fixed: list[SinglePolicy] = [OnDemandOnly(), Greedy(), UniformProgress()]
        fixed.append(UniformProgress(name=EAGER, hysteresis=False))
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
    """Bills of the optimum, shape (runs,)."""
    return np.array(
        [optimum(setting, w.trace.up[w.start : w.start + setting.slots]).cost_usd for w in places]
    )


def blocks_of(setting: Setting, places: Sequence[Window]) -> np.ndarray:
    """Number of each run's block: the trace and which stretch of one deadline's length the run starts in."""
    keys = [(w.trace.name, w.start // setting.slots) for w in places]
    order = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return np.array([order[key] for key in keys])
