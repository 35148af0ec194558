"""The scoreboard of the single-instance benchmark: policies learned on some traces, scored run by run on others (M4.6, M7).

Every run is a window of a test trace; all policies and the optimum see the same windows, so that they are compared pairwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from optimization.single_instance.policies import (
    Greedy,
    OnDemandOnly,
    SinglePolicy,
    UniformProgress,
    make_table,
    optimum,
    run,
)
from optimization.single_instance.setting import Setting
from optimization.single_instance.states import MarketStates, estimate
from optimization.single_instance.traces import Split, Trace
from optimization.trials.comparison import interval, resampled_means

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
