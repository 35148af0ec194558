"""Cost of the multi-region strategy without a past on windows like those of SkyNomad's Figure 9b, compared with the optimum.

40 h of work in 60 h on one V100 in three regions, in steps of 10 minutes, with measured availability and prices; a restart of 12
minutes, 50 GB of egress, probes for nothing. A window begins where the last one ends. The strategy was chosen on the even windows;
the figures are of the odd windows.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))
sys.path.insert(0, str(ROOT / "tests" / "kits"))

from multi_region_strategy import Action, MultiRegionStrategy, Observation  # noqa: E402
from open_data import DATA  # noqa: E402

SOURCE, TICK, STEP, WORK, RATIO, RESTART, DEMAND = "andylizf/skynomad-artifact:v100", 2, 10, 40, 1.5, 12, 3.06
STEPS, HOURS = int(WORK * 60 * RATIO) // STEP, STEP / 60
EAST, WEST = ("us-east-1a", "us-east-1c", "us-east-1f"), ("us-west-2a", "us-west-2c")


@dataclass
class SkyNomadLike:
    """The published rule in short: value of progress by the rate of the work left, lifetimes by survival, on-demand when behind."""

    regions: list[str]
    egress: float
    hours: dict[str, float] = field(default_factory=dict)
    losses: dict[str, int] = field(default_factory=dict)
    last: tuple[str | None, str | None] = (None, None)
    step: int = -1

    def act(self, seen: Observation) -> Action:
        """Return the action of highest net value an hour."""
        if seen.step != self.step:
            region, holding = self.last
            if holding == "spot" and region is not None:
                self.hours[region] = self.hours.get(region, 0.0) + HOURS
                if seen.holding != "spot":
                    self.losses[region] = self.losses.get(region, 0) + 1
            self.step, self.last = seen.step, (seen.region, seen.holding)
        left, rest = (STEPS - seen.step) * HOURS, WORK - seen.done_hours
        kind = seen.holding
        if left - 2 * HOURS >= rest + RESTART / 60 - 1e-9:
            value = DEMAND * min(1.0, (rest + RESTART / 60) / (left - RESTART / 60))

            def worth(region: str) -> float:
                life = (self.hours.get(region, 0.0) + 2.0) / (self.losses.get(region, 0) + 1)
                if (region, "spot") == (seen.region, kind):
                    return value - seen.spot_usd[region]
                fee = 0.0 if seen.region in (None, region) else self.egress
                return value * (1 - RESTART / 60 / life) - seen.spot_usd[region] - fee / life

            for region in sorted(self.regions, key=worth, reverse=True):
                if (region, "spot") == (seen.region, kind):
                    return Action(kind="stay", region=region)
                if region not in seen.available and worth(region) > 0:
                    return Action(kind="try", region=region)
            if kind is None and seen.done_hours >= WORK * seen.step / STEPS - 1e-9:
                return Action(kind="stay", region=seen.region)
        if kind == "on_demand":
            return Action(kind="stay", region=seen.region)
        return Action(kind="on_demand", region=seen.region or self.regions[0])


@dataclass
class Simple:
    """Greedy: cheapest spot until it is lost, on-demand when it must; with ``pace`` also behind uniform progress (UP)."""

    pace: bool

    def act(self, seen: Observation) -> Action:
        """Return the action of the rule."""
        left, rest = (STEPS - seen.step) * HOURS, WORK - seen.done_hours + RESTART / 60
        forced = left - 2 * HOURS < rest - 1e-9
        if seen.holding == "spot" and not forced:
            return Action(kind="stay", region=seen.region)
        unseen = [name for name in seen.spot_usd if name not in seen.available]
        if unseen and not forced:
            return Action(kind="try", region=min(unseen, key=seen.spot_usd.__getitem__))
        if seen.holding == "on_demand":
            return Action(kind="stay", region=seen.region)
        if forced or (self.pace and seen.done_hours < WORK * seen.step / STEPS - 1e-9):
            return Action(kind="on_demand", region=seen.region or next(iter(seen.spot_usd)))
        return Action(kind="stay", region=seen.region)


def simulate(
    strategy: Any, regions: list[str], up: np.ndarray, price: np.ndarray, egress: float, loses: bool
) -> tuple[float, bool]:
    """Return the cost, and whether work was left; with ``loses`` the step before a loss does no work."""
    done = usd = owed = did = 0.0
    region: str | None = None
    holding: Any = None
    for t in range(STEPS):
        m = regions.index(region) if region else 0
        known = {region: bool(up[m, t])} if region and holding == "spot" else {}
        if holding == "spot" and not up[m, t]:
            done, holding = done - did * loses, None
        if done >= WORK - 1e-9:
            return usd, False
        spot = dict(zip(regions, price[:, t].tolist(), strict=True))
        before = (region, holding)
        while True:
            action = strategy.act(
                Observation(
                    step=t,
                    done_hours=done,
                    region=region,
                    holding=holding,
                    spot_usd=spot,
                    available=dict(known),
                )
            )
            if action.kind != "try" or up[regions.index(action.region), t]:
                break
            known[action.region] = False
        if action.kind in ("try", "on_demand"):
            usd += egress if region not in (None, action.region) else 0.0
            region, holding = action.region, "spot" if action.kind == "try" else "on_demand"
            owed = RESTART / 60 if (region, holding) != before else owed
        did = 0.0
        if holding and region:
            usd += HOURS * (spot[region] if holding == "spot" else DEMAND)
            eaten = min(owed, HOURS)
            owed, did = owed - eaten, HOURS - eaten
            done += did
    return usd, done < WORK - 1e-9


@numba.njit  # type: ignore[untyped-decorator]
def optimum(up: np.ndarray, price: np.ndarray, egress: float, loses: bool) -> float:
    """Return the least cost if all is known, by induction over (region, instance and steps run, slack)."""
    slot, over, work = STEP // TICK, RESTART // TICK, WORK * 60 // TICK
    regions, n = up.shape
    levels = (over + slot - 1) // slot
    owed = np.maximum(over - slot * np.arange(levels + 1), 0)
    value = np.zeros((regions, 1 + 2 * levels, n * slot - work + 1))
    for left in range(1, n + 1):
        t, ahead = n - left, value.copy()
        for r in range(regions):
            for h in range(1 + 2 * levels):
                for x in range(value.shape[2]):
                    if x >= left * slot:
                        value[r, h, x] = 0.0
                        continue
                    best = ahead[r, 0, x - slot] if x >= slot else np.inf
                    for q in range(regions):
                        fee = egress if q != r else 0.0
                        run = h - levels if q == r and h > levels else 0
                        eaten = min(owed[run], slot)
                        if x >= eaten:
                            cost = fee + DEMAND * HOURS + ahead[q, levels + min(run + 1, levels), x - eaten]
                            best = min(best, cost)
                        if not up[q, t]:
                            continue
                        run = h if q == r and 0 < h <= levels else 0
                        eaten = min(owed[run], slot)
                        to = min(run + 1, levels)
                        if t + 1 < n and not up[q, t + 1]:
                            eaten, to = slot if loses else eaten, 0
                        if x >= eaten:
                            best = min(best, fee + price[q, t] * HOURS + ahead[q, to, x - eaten])
                    value[r, h, x] = best
    return float(value[:, 0, -1].min())


def series() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return availability and price of each zone at every step of the measured time."""
    found = {}
    tables = [pd.read_parquet(DATA / f"{name}.parquet") for name in ("availability", "prices")]
    counts, prices = (table[table.source == SOURCE] for table in tables)
    grid = pd.date_range(counts.timestamp.min().ceil("10min"), counts.timestamp.max(), freq="10min")
    for zone, rows in counts.groupby("zone"):
        values = []
        for frame, column in ((rows, "available"), (prices[prices.zone == zone], "spot_price_usd_per_hour")):
            frame = frame.sort_values("timestamp")
            at = np.searchsorted(frame.timestamp.values, grid.values, side="right") - 1
            values.append(frame[column].to_numpy()[np.maximum(at, 0)])
        found[str(zone)] = (values[0] >= 1, values[1].astype(float))
    return found


def run() -> dict[str, object]:
    zones, found = series(), {}
    for loses, half in itertools.product((True, False), ("chosen on", "reported")):
        costs: dict[str, list[float]] = {}
        late = 0
        for east, west in itertools.product(EAST, WEST):
            regions = [east, "us-east-2a", west]
            ups, prices = (np.array([zones[z][i] for z in regions]) for i in (0, 1))
            for k in range(half == "reported", ups.shape[1] // STEPS, 2):
                up, price = (a[:, k * STEPS : (k + 1) * STEPS] for a in (ups, prices))
                policies: dict[str, Callable[[], Any]] = {
                    "strategy": lambda r=regions: MultiRegionStrategy(
                        dict.fromkeys(r, DEMAND), work_hours=WORK, deadline_hours=WORK * RATIO,
                        step_hours=HOURS, restart_hours=RESTART / 60, egress_usd=1.0, probes=0, free_tries=True,
                    ),
                    "SkyNomad-like": lambda r=regions: SkyNomadLike(r, 1.0),
                    "greedy": lambda: Simple(pace=False), "UP": lambda: Simple(pace=True),
                }  # fmt: skip
                costs.setdefault("optimum", []).append(optimum(up, price, 1.0, loses))
                for name, make in policies.items():
                    usd, missed = simulate(make(), regions, up, price, 1.0, loses)
                    costs.setdefault(name, []).append(usd)
                    late += missed
        best = np.mean(costs["optimum"])
        found[f"{half}, last step {'lost' if loses else 'kept'}"] = {
            "windows": len(costs["optimum"]), "late": late,
            **{name: [round(float(np.mean(v)), 2), round(float(np.mean(v) / best), 3)] for name, v in costs.items()},
        }  # fmt: skip
    return found
