"""Seconds to replay jobs of 48 half-hour slots in the world of M12, and the ratio to replays in the slot model.

All are CPU times of the same jobs in one process, after compilation. The market is read every 10 minutes.
*Runs* take all spot under the guard at every slot, without a policy, in 1 or 3 markets; their ratio is to replays of MSU in the
slot model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.replay import JOBS, N_MAX, SIMULATIONS, SINGLE, SLOTS, case, cpu_of
from slackwater.optimization.job.definition import Allocation, InstanceTimes
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.pool import load_pool, policy_named
from slackwater.optimization.world.readings import market_readings
from slackwater.optimization.world.replay import Launcher, WorldCase, replay_in_world
from slackwater.optimization.world.simulation import WorldMarkets, WorldRun
from slackwater.optimization.world.terms import world_terms

#: Seconds of a slot.
SLOT = 1800.0
#: Rounds of which the median counts.
ROUNDS = 5


def world_case(seed: int) -> WorldCase:
    """Return a case of the slot model with counts every 10 minutes; boot 2, restart 4, checkpoints every 10 minutes."""
    known = case(seed)
    counts = known.window.available[:, None] + np.random.default_rng(seed).integers(
        -1, 2, (len(known.window), 2)
    )
    times = InstanceTimes(boot=120.0, restart=240.0, checkpoint=600.0)
    return WorldCase.of(
        replace(known, job=replace(known.job, times=times)),
        market_readings(known.window, np.clip(counts, 0, N_MAX).astype(float)),
    )


def run() -> dict[str, object]:
    """Measure single policies and the pool."""
    cases = [world_case(seed) for seed in range(JOBS)]
    names = [*SINGLE, "Stochastic(24)"]
    found = {
        name: measure(cases[:5] if name == "Stochastic(24)" else cases, [policy_named(name)])
        for name in names
    }
    return {
        f"{SIMULATIONS}_jobs": found,
        "pool": measure(cases[:1], load_pool()),
        "runs": measure_runs(cases),
    }


def measure_runs(cases: list[WorldCase]) -> dict[str, float]:
    """Return CPU seconds of runs without a policy for `SIMULATIONS` jobs, and their ratios to MSU in the slot model."""
    base = median(partial(cpu_of, [case.cases[0] for case in cases], [policy_named("MSU")]))
    seconds = {markets: median(partial(cpu_of_runs, cases, markets)) for markets in (1, 3)}
    scale = SIMULATIONS / len(cases)
    return {
        **{f"markets_{m}_seconds": round(found * scale, 2) for m, found in seconds.items()},
        **{f"markets_{m}_ratio": round(found / base, 2) for m, found in seconds.items()},
    }


def cpu_of_runs(cases: list[WorldCase], markets: int) -> float:
    """Return the CPU seconds of runs in equal markets."""
    begun = time.process_time()
    for known in cases:
        terms = (world_terms(known.job.job, on_demand_usd=1.0, slot_hours=SLOT / 3600.0),) * markets
        places = WorldMarkets(terms=terms, transfer=300.0, move_usd=np.ones((markets, markets)), home=0)
        run = WorldRun(places, known.readings * markets)
        for slot in range(1, SLOTS + 1):
            wish = Allocation(0, min(run.available, N_MAX))
            run.follow(wish, until=slot * SLOT, deadline=SLOTS * SLOT)
            if run.is_finished:
                break
    return time.process_time() - begun


def measure(cases: list[WorldCase], policies: list[Policy[object]]) -> dict[str, float]:
    """Return CPU seconds for `SIMULATIONS` jobs in the slot model, and the ratios of the launchers to it."""
    slots = partial(cpu_of, [case.cases[0] for case in cases], policies)
    world = {launcher: partial(cpu_in_world, cases, policies, launcher) for launcher in Launcher}
    base = median(slots)
    return {
        "slot_model_seconds": round(base / len(cases) * SIMULATIONS, 2),
        **{f"world_{name}_ratio": round(median(run) / base, 2) for name, run in world.items()},
    }


def median(measured: Callable[[], float]) -> float:
    """Return the median of some rounds after a first one."""
    measured()
    return float(np.median([measured() for _ in range(ROUNDS)]))


def cpu_in_world(cases: list[WorldCase], policies: list[Policy[object]], launcher: Launcher) -> float:
    """Return the CPU seconds of a batch in the world."""
    begun = time.process_time()
    for replayed in cases:
        replay_in_world(policies, replayed, launcher=launcher)
    return time.process_time() - begun
