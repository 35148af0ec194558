"""Seconds to replay jobs of 48 half-hour slots in the world of M12, and the ratio to replays in the slot model.

Both are CPU times of the same jobs and policies in one process, after compilation. The market is read every 10 minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.replay import JOBS, N_MAX, SIMULATIONS, SINGLE, case, cpu_of
from slackwater.optimization.job.definition import InstanceTimes
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.pool import load_pool, policy_named
from slackwater.optimization.world.replay import (
    Launcher,
    WorldCase,
    market_readings,
    replay_world_batch,
)

#: Rounds of which the median counts.
ROUNDS = 5


def world_case(seed: int) -> WorldCase:
    """Return a case of the slot model with counts every 10 minutes; boot 2, restart 4, checkpoints every 10 minutes."""
    known = case(seed)
    counts = known.window.available[:, None] + np.random.default_rng(seed).integers(
        -1, 2, (len(known.window), 2)
    )
    times = InstanceTimes(boot=120.0, restart=240.0, checkpoint=600.0)
    return WorldCase(
        case=replace(known, job=replace(known.job, times=times)),
        readings=market_readings(known.window, np.clip(counts, 0, N_MAX).astype(float)),
    )


def run() -> dict[str, object]:
    """Measure single policies and the pool."""
    cases = [world_case(seed) for seed in range(JOBS)]
    names = [*SINGLE, "Stochastic(24)"]
    found = {
        name: measure(cases[:5] if name == "Stochastic(24)" else cases, [policy_named(name)])
        for name in names
    }
    return {f"{SIMULATIONS}_jobs": found, "pool": measure(cases[:1], load_pool())}


def measure(cases: list[WorldCase], policies: list[Policy[object]]) -> dict[str, float]:
    """Return CPU seconds for `SIMULATIONS` jobs in the slot model, and the ratios of the launchers to it."""
    slots = partial(cpu_of, [case.case for case in cases], policies)
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
    replay_world_batch(cases, policies, launcher=launcher)
    return time.process_time() - begun
