"""Competing single-market and multi-market jobs, replayed slot by slot on the open H100 zones: alone and together (M3.7).

*Alone*: each job is decided without regard to the others, and spot already taken by earlier jobs is refused. *Together*: as turns
decide. Costs are payments plus lost value of all jobs, relative to their cost on on-demand only; intervals resample the days of
the starts.

``python -m benchmarks.competition [CASE ...] [--fast] [--earlier]`` measures the named cases or all, on the later or the earlier
half of the record, and prints a line of JSON for each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slackwater.optimization.fleet.competition import Entry, SlotResult, Trajectory, decide_all, decide_one
from slackwater.optimization.job.definition import Allocation, Job, Linear
from slackwater.optimization.job.markets import even_moving
from slackwater.optimization.kernels.world import HOUR
from slackwater.optimization.market.window import market_window, record_of
from slackwater.optimization.moving.definition import IDLE, MarketsJob, Placement, placement
from slackwater.optimization.moving.policies import MeanField
from slackwater.optimization.policies.stochastic import Stochastic
from slackwater.optimization.replay.decision import Decision, Effort, LiveJob
from slackwater.optimization.replay.run import see
from slackwater.optimization.replay.score import on_demand_only_in_world
from slackwater.optimization.world.simulation import SECOND_TOLERANCE
from slackwater.studies.experiments.markets import MU_DOWN, MU_UP, TAKEN, TIMES, USD, measured_worlds
from slackwater.studies.experiments.material import World
from slackwater.studies.trials.comparison import resampled
from slackwater.studies.trials.scenarios import GAMMA, VALUE_FACTOR, WARM_SLOTS

DEADLINES, SIZES, LOADS = (12, 16, 24), (4, 8, 16), (0.3, 0.8)
#: Slots within which all jobs of a start begin.
SPREAD = 4
FAST_STARTS, SEED = 2, 5
POLICY = Stochastic()
#: A single risk path, since expected costs do not affect decisions.
EFFORT = Effort(solver_seconds=1.0, risk_paths=1, seed=0)
STEP = pd.Timedelta("30min")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Numbers of single-market jobs, multi-market jobs, zones, and starts in each half."""

    fixed: int
    movers: int
    zones: int
    starts: int


CASES = {
    "2 of one zone on 1": Case(fixed=2, movers=0, zones=1, starts=40),
    "5 of one zone on 2": Case(fixed=5, movers=0, zones=2, starts=32),
    "20 of one zone on 9": Case(fixed=20, movers=0, zones=9, starts=16),
    "3 of one zone and 2 movers on 3": Case(fixed=3, movers=2, zones=3, starts=32),
    "5 movers on 3": Case(fixed=0, movers=5, zones=3, starts=24),
    "10 of one zone and 10 movers on 9": Case(fixed=10, movers=10, zones=9, starts=8),
    "20 movers on 9": Case(fixed=0, movers=20, zones=9, starts=8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """Job on its zones.

    ``live``: the job at its first slot as a policy sees it; ``first``: index of that slot in the world; ``unit``: its cost on
    on-demand only, USD.
    """

    first: int
    zones: tuple[str, ...]
    live: LiveJob
    job: MarketsJob
    unit: float

    def at(self, slot: int, held: Mapping[int, Placement]) -> LiveJob:
        """Return the job at a slot, after the allocations ``held``."""
        return replace(self.live, slot=slot, decided=dict(held))

    @property
    def policy(self) -> Any:
        """Policy that decides the job."""
        return POLICY if len(self.zones) == 1 else MeanField()

    def trajectory(self) -> Trajectory:
        """Return the trajectory of the job over all its slots."""
        slots = tuple(self.at(slot, {}) for slot in range(self.job.job.deadline_slots))
        zones = (self.zones,) * len(slots)
        return Trajectory(slots=slots, policies=(self.policy,) * len(slots), keys=zones, markets=zones)

    def outcome(self, held: Sequence[Placement]) -> tuple[float, bool]:
        """Return the sum of USD paid and value lost in the world, and whether the job was late."""
        live = self.at(self.job.job.deadline_slots, dict(enumerate(held)))
        hours = live.seen[0].slot_hours
        deadline = self.job.job.deadline_slots * hours * HOUR
        end = live.reached().run.end(
            self.job.job.worth, deadline=deadline, slot=hours * HOUR, must_finish=self.job.job.must_finish
        )
        late = end.finish is None or end.finish > deadline + SECOND_TOLERANCE
        return self.job.job.value - end.utility_usd, late


def entrant(world: World, zones: Sequence[str], first: int, name: str, rng: np.random.Generator) -> Entrant:
    """Draw a job on some zones of the world, with records up to the current slot and all other zones as peers."""
    d, n_max, hours = int(rng.choice(DEADLINES)), int(rng.choice(SIZES)), world.slot_hours
    end, dear = first + d, min(world.on_demand_usd[zone] for zone in zones)
    windows, records = [], []
    for zone in zones:
        price, count = world.prices[zone][:end], world.counts[zone][:end]
        peers = np.array([world.counts[other][:end] for other in world.counts if other != zone])
        windows.append(
            market_window(
                price[first:], count[first:], on_demand_usd=world.on_demand_usd[zone], slot_hours=hours
            )
        )
        records.append(record_of(price, count, first=first, slot_hours=hours, peers=peers))
    workload = float(rng.uniform(*LOADS)) * d * n_max * hours
    job = Job(
        name=name, workload=workload, deadline_slots=d, n_min=1, n_max=n_max, throughput=Linear(), mu_up=MU_UP, mu_down=MU_DOWN,
        value=workload * dear, gamma=GAMMA, times=TIMES,
    )  # fmt: skip
    unit = min(on_demand_only_in_world(job, window)[1] for window in windows)
    job = replace(job, value=VALUE_FACTOR * unit)
    start = pd.Timestamp("2026-01-01T00:00Z") + first * STEP
    movable = MarketsJob(
        runs=(job,) * len(zones),
        moving=even_moving(len(zones), taken=TAKEN, usd=USD[1]),
        home=0 if len(zones) == 1 else None,
    )
    seen = [see(job, window, None, record) for window, record in zip(windows, records, strict=True)]
    live = LiveJob(
        job=movable, start=start, step=STEP, slot=0, seen=tuple(seen), decided={}, names=tuple(zones)
    )
    return Entrant(first=first, zones=tuple(zones), live=live, job=movable, unit=unit)


def entrants(world: World, case: Case, first: int, rng: np.random.Generator) -> list[Entrant]:
    """Draw the jobs of a start and their zones; single-market jobs are assigned to the zones in rotation."""
    names = sorted(world.counts)
    zones = [names[i] for i in sorted(rng.permutation(len(names))[: case.zones])]
    found = []
    for j in range(case.fixed + case.movers):
        own = [zones[j % len(zones)]] if j < case.fixed else zones
        found.append(entrant(world, own, first + int(rng.integers(SPREAD)), f"job-{j:02d}", rng))
    return found


def together(jobs: Sequence[Entrant]) -> list[list[Placement]]:
    """Return the allocations of each job by slot, decided as in turns."""
    return [
        [_instances(one) for one in made if one is not None]
        for made in decide_all([job.trajectory() for job in jobs], EFFORT)
    ]


def alone(world: World, jobs: Sequence[Entrant]) -> tuple[list[list[Placement]], int, int]:
    """Return the allocations of each job, with spot granted in job order, and the refused and requested spot instances."""
    held: list[dict[int, Placement]] = [{} for _ in jobs]
    refused = asked = 0
    for t in range(
        min(job.first for job in jobs), max(job.first + job.job.job.deadline_slots for job in jobs)
    ):
        left = {zone: int(np.nan_to_num(counts[t])) for zone, counts in world.counts.items()}
        for job, own in zip(jobs, held, strict=True):
            slot = t - job.first
            live = job.at(slot, own) if 0 <= slot < job.job.job.deadline_slots else None
            if live is None or live.is_finished:
                continue
            wish = _instances(decide_one(Entry(live=live, markets=job.zones, policy=job.policy), EFFORT))
            got = 0
            if wish.market is not None:
                zone = job.zones[wish.market]
                got = min(wish.allocation.spot, left[zone])
                left[zone] -= got
            kept = Allocation(wish.allocation.on_demand, got)
            own[slot] = Placement(wish.market, kept) if kept.total else IDLE
            refused, asked = refused + wish.allocation.spot - got, asked + wish.allocation.spot
    return [[own[slot] for slot in sorted(own)] for own in held], refused, asked


def _instances(result: SlotResult) -> Placement:
    if not isinstance(result, Decision):
        raise ValueError(f"no decision: {result}")
    return placement(result.market, result.allocation)


def starts_of(world: World, many: int, *, earlier: bool) -> list[int]:
    """Return ``many`` start slots, evenly spaced over half of the record."""
    half, longest = world.slots // 2, max(DEADLINES) + SPREAD
    low, high = (WARM_SLOTS, half - longest) if earlier else (half, world.slots - longest)
    return [int(slot) for slot in np.linspace(low, high, many)]


def measured(world: World, name: str, *, fast: bool, earlier: bool) -> dict[str, Any]:
    """Measure a case: means over its starts, and the gain of deciding together with its 95 % interval."""
    case, number = CASES[name], list(CASES).index(name)
    rows, days, refused, asked, late = [], [], 0, 0, np.zeros(2, int)
    for first in starts_of(world, FAST_STARTS if fast else case.starts, earlier=earlier):
        jobs = entrants(world, case, first, np.random.default_rng([SEED, number, first]))
        apart, missed, wanted = alone(world, jobs)
        refused, asked = refused + missed, asked + wanted
        row = []
        for m, held in enumerate((apart, together(jobs))):
            ends = [job.outcome(own) for job, own in zip(jobs, held, strict=True)]
            row.append(sum(usd for usd, _ in ends) / sum(job.unit for job in jobs))
            late[m] += sum(was_late for _, was_late in ends)
        rows.append(row)
        days.append(first * STEP // pd.Timedelta("1D"))
    table = np.array(rows)
    drawn = resampled(table, blocks=days, rng=np.random.default_rng(SEED))
    low, high = drawn.interval(drawn.means[:, 1] - drawn.means[:, 0])
    return {
        "starts": len(rows),
        "jobs": len(rows) * (case.fixed + case.movers),
        "alone": round(float(table[:, 0].mean()), 4),
        "together": round(float(table[:, 1].mean()), 4),
        "together_less_alone": [round(float(x), 4) for x in ((table[:, 1] - table[:, 0]).mean(), low, high)],
        "late_alone": int(late[0]),
        "late_together": int(late[1]),
        "refused_alone": round(refused / max(1, asked), 3),
    }


def run(
    data: Path, names: Sequence[str] = (), *, fast: bool = False, earlier: bool = False
) -> dict[str, object]:
    """Return the figures of each case on the world with most zones."""
    ((world, _), *_), _ = measured_worlds(data)
    return {name: measured(world, name, fast=fast, earlier=earlier) for name in names or CASES}


def main(words: Sequence[str]) -> None:
    """Print the figures of the cases named on the command line."""
    names = [word for word in words if not word.startswith("--")]
    if unknown := [name for name in names if name not in CASES]:
        sys.exit(f"case {unknown[0]!r} is unknown: expected one of {', '.join(CASES)}")
    data = Path(os.environ.get("SLACKWATER_DATA", "../shared/data"))
    for name in names or CASES:
        found = run(data, [name], fast="--fast" in words, earlier="--earlier" in words)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
