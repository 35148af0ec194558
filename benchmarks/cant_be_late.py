"""Seconds per table, run and optimum of the single-instance scoreboard in each of its settings, and of the cold start."""

from __future__ import annotations

import time

import numpy as np

from slackwater.studies.single_instance import MarketStates, chain_of, estimate, make_table, optimum, settings
from slackwater.studies.single_instance import run as run_job

RUNS = 20


def trace(seed: int, slots: int) -> np.ndarray:
    """Return a market trace that changes state about every twenty slots."""
    return np.logical_xor.accumulate(np.random.default_rng(seed).random(slots) < 0.05)


def run_setting(setting, chain) -> dict[str, float]:
    """Return medians over `RUNS` runs after compilation."""
    begun = time.perf_counter()
    table = make_table("stochastic", setting, MarketStates(), chain)
    solved = time.perf_counter()
    seconds: dict[str, list[float]] = {"run": [], "optimum": []}
    for seed in range(RUNS):
        up = trace(seed, setting.slots)
        for name, act in (
            ("run", lambda up=up: run_job(table, setting, up, 0)),
            ("optimum", lambda up=up: optimum(setting, up)),
        ):
            start = time.perf_counter()
            act()
            seconds[name].append(time.perf_counter() - start)
    return {
        "table_seconds": round(solved - begun, 3),
        "table_megabytes": round(table.action.nbytes / 1e6),
        **{f"{name}_milliseconds": round(1e3 * float(np.median(v)), 3) for name, v in seconds.items()},
    }


def run() -> dict[str, object]:
    chain = chain_of(MarketStates(), estimate(MarketStates(), [trace(99, 10_000)]))
    cold = time.perf_counter()
    run_setting(settings()[0], chain)
    found: dict[str, object] = {
        "states": MarketStates().count,
        "cold_seconds": round(time.perf_counter() - cold, 2),
    }
    for setting in settings():
        name = f"{setting.deadline_minutes // 60} h, {setting.overhead_minutes} min"
        found[name] = run_setting(setting, chain)
    return found
