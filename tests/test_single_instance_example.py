"""The strategy file for single-instance simulators, on a small simulator of this test with their interface."""

import enum
import math
import runpy
import sys
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from forms_kit import quick_first
from open_data import DATA

from slackwater.studies.single_instance import (
    MarketStates,
    Rates,
    Setting,
    chain_of,
    estimate,
    make_tables,
    run,
    single_traces,
)

FILE = Path(__file__).parents[1] / "examples" / "single_instance_strategy.py"


class ClusterType(enum.Enum):
    NONE, SPOT, ON_DEMAND = "none", "spot", "on-demand"


class Strategy:
    """Base class with the interface of the simulators: progress, restart overhead, and a net that may overrule the choice."""

    SUBCLASSES: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls):
        assert cls.NAME not in cls.SUBCLASSES
        cls.SUBCLASSES[cls.NAME] = cls

    def __init__(self, args):
        self.args = args
        self.deadline, self.task_duration = 3600.0 * args.deadline, 3600.0 * args.duration
        self.restart_overhead = 3600.0 * args.overhead
        self.remaining_restart_overhead, self.task_done_time = 0.0, []

    def step(self, kind, has_spot):
        """Return the choice, after the simulators' own net: running spot without overhead stays where nothing is to spare."""
        chosen = self._step(kind, has_spot)
        left = self.task_duration - sum(self.task_done_time)
        gaps = math.floor((self.deadline - self.env.elapsed_seconds) / self.env.gap_seconds + 1e-9)
        if left > 1e-3 and math.ceil((left + self.restart_overhead) / self.env.gap_seconds) >= gaps:
            runs = kind == ClusterType.SPOT and has_spot and self.remaining_restart_overhead < 1e-3
            chosen = ClusterType.SPOT if runs else ClusterType.ON_DEMAND
        return chosen


@pytest.fixture(scope="module")
def strategy_class():
    """Return the class that the simulator finds in the file."""
    modules = {name: ModuleType(name) for name in ("sky_spot", "sky_spot.strategies", "sky_spot.utils")}
    modules["sky_spot.strategies.strategy"] = strategy = ModuleType("sky_spot.strategies.strategy")
    strategy.Strategy, modules["sky_spot.utils"].ClusterType = Strategy, ClusterType
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        runpy.run_path(str(FILE))  # an evaluator loads it twice
        found = runpy.run_path(str(FILE))
    assert found["Solution"]().solve("spec.json") == {"program_path": str(FILE)}
    return found["SlackwaterStrategy"]


def simulate(found, setting, up, *, gap_minutes=10):
    """Return the cost in gaps of on-demand, and whether work was left at the deadline.

    The work of the gap before a loss does not count if the setting loses it. That of the gap that ends at the deadline counts.
    """
    parser = ArgumentParser()
    for name, hours in (
        ("duration", setting.work_minutes / 60),
        ("deadline", setting.deadline_minutes / 60),
        ("overhead", setting.overhead_minutes / 60),
    ):
        parser.add_argument(f"--{name}", type=float, default=hours)
    parser.parse_known_args = lambda found=parser.parse_known_args: found([])
    strategy = found._from_args(parser)
    gap = 60.0 * gap_minutes
    strategy.env = SimpleNamespace(gap_seconds=gap, elapsed_seconds=0.0)
    kind, usd = ClusterType.NONE, 0.0
    for t in range(up.size + 1):
        at_end = t == up.size
        lost = kind == ClusterType.SPOT and not at_end and not up[t]
        told = ClusterType.NONE if lost and setting.loses_last_slot else kind
        if t:
            worked = max(0.0, gap - strategy.remaining_restart_overhead) if told != ClusterType.NONE else 0.0
            strategy.remaining_restart_overhead = max(0.0, strategy.remaining_restart_overhead - gap)
            strategy.task_done_time.append(worked)
        if sum(strategy.task_done_time) >= strategy.task_duration - 1e-6 or at_end:
            break
        strategy.env.elapsed_seconds = t * gap
        chosen = strategy.step(told, bool(up[t]))
        assert chosen != ClusterType.SPOT or up[t]
        if chosen not in (ClusterType.NONE, ClusterType.NONE if lost else kind):
            strategy.remaining_restart_overhead = strategy.restart_overhead
        kind = chosen
        usd += {ClusterType.NONE: 0.0, ClusterType.SPOT: 0.318, ClusterType.ON_DEMAND: 1.0}[kind]
    return usd, sum(strategy.task_done_time) < strategy.task_duration - 1e-6


def setting_of(overhead: int, *, loses: bool = True, hours: int = 8) -> Setting:
    return Setting(
        work_minutes=60 * hours, deadline_minutes=60 * hours + 180, overhead_minutes=overhead,
        spot_usd_per_hour=0.318, on_demand_usd_per_hour=1.0, loses_last_slot=loses,
    )  # fmt: skip


def sticky(seed: int, slots: int, flips: float) -> np.ndarray:
    return np.logical_xor.accumulate(np.random.default_rng(seed).random(slots) < flips)


@pytest.mark.parametrize(
    ("overhead", "gap", "loses"),
    [
        pytest.param(overhead, gap, loses, marks=() if loses is (place % 2 == 0) else pytest.mark.slow)
        for place, (overhead, gap) in enumerate([(3, 10), (12, 10), (12, 5), (3, 60)])
        for loses in (True, False)
    ],
)
def test_no_deadline_is_missed(strategy_class, overhead, gap, loses):
    setting = setting_of(overhead, loses=loses)
    n = setting.deadline_minutes // gap
    at = np.arange(n)
    hostile = [np.zeros(n, bool), np.ones(n, bool), at % 2 == 0, at % 3 > 0]
    hostile += [at < dead for dead in range(1, n, 5)] + [at > born for born in range(1, n, 7)]
    hostile += [sticky(seed, n, p) for seed in range(5) for p in (0.02, 0.2, 0.6)]
    for up in hostile:
        usd, late = simulate(strategy_class, setting, up, gap_minutes=gap)
        assert not late
        assert usd <= n


@pytest.mark.parametrize("overhead", quick_first([12, 3, 25]))
@pytest.mark.parametrize("loses", [True, False])
def test_it_is_the_default_of_the_experiment(strategy_class, overhead, loses):
    """Both solve the same chain; where two choices are equally good they may differ."""
    example = runpy.run_path(str(FILE))
    rates = Rates(flip=example["FLIP"], rises=example["RISES"], falls=example["FALLS"])
    setting = setting_of(overhead)
    policy = make_tables("stochastic", setting, MarketStates(), chain_of(MarketStates(), rates))
    here = replace(setting, loses_last_slot=loses)
    for seed in range(20):
        up = sticky(seed, setting.slots, 0.1)
        expected = run(policy, here, up, 0).cost_usd / setting.ticks.on_demand_usd
        assert simulate(strategy_class, here, up)[0] == pytest.approx(expected, abs=1.01)


@pytest.mark.skipif(
    not (DATA / "availability.parquet").is_file(), reason=f"no open data at {DATA}; set SLACKWATER_DATA"
)
def test_its_rates_are_those_of_the_open_traces():
    table = pd.read_parquet(DATA / "availability.parquet")
    traces = single_traces(table, slot_minutes=10, least_hours=140)
    rates = estimate(MarketStates(), [trace.up for trace in traces])
    example = runpy.run_path(str(FILE))
    for name, values in (("FLIP", rates.flip), ("RISES", rates.rises), ("FALLS", rates.falls)):
        assert example[name] == pytest.approx(values, abs=6e-5), name
