"""Seconds to replay the whole pool on one job of 48 half-hour slots with up to 16 instances: cold, warm, and a look ahead."""

from __future__ import annotations

import time

import numpy as np

from optimization.job import Job, Progress
from optimization.ledger import perfect_forecasts
from optimization.market import MarketWindow, market_window
from optimization.pool import load_pool, policy_named
from optimization.replay import PlanMemo, replay_pool, see
from optimization.risk import simulate_ahead
from optimization.throughput import Linear

SLOTS, N_MAX, ROUNDS, PATHS = 48, 16, 5, 100


def market(seed: int) -> MarketWindow:
    """A sticky count and a wandering price, so that the policies' paths part."""
    rng = np.random.default_rng(seed)
    price = np.clip(0.5 + 0.05 * rng.normal(size=SLOTS).cumsum(), 0.2, 1.1)
    count = np.clip(N_MAX // 2 + rng.integers(-3, 4, SLOTS).cumsum(), 0, N_MAX)
    return market_window(price, count, on_demand_usd=1.0, slot_hours=0.5)


def job() -> Job:
    """Half of what N_MAX instances can do by the deadline."""
    return Job(
        name="benchmark", workload=0.5 * SLOTS * N_MAX * 0.5, deadline_slots=SLOTS, n_min=1, n_max=N_MAX,
        throughput=Linear(), mu_up=0.9, mu_down=0.95, value=1.5 * 0.5 * SLOTS * N_MAX * 0.5,
    )  # fmt: skip


def run() -> dict[str, object]:
    """Cold (first pool of the process, compiled code loaded), warm per market, programs solved, and 100 paths ahead."""
    started = time.perf_counter()
    pool, work = load_pool(), job()
    seconds = []
    for seed in range(ROUNDS + 1):
        window = market(seed)
        forecasts = perfect_forecasts(window, 5)
        begun = time.perf_counter() if seed else started
        replay_pool(pool, work, window, forecasts=forecasts)
        seconds.append(time.perf_counter() - begun)
    return {
        "policies": len(pool),
        "slots": SLOTS,
        "n_max": N_MAX,
        "cold_seconds": round(seconds[0], 3),
        "warm_seconds_median": round(float(np.median(seconds[1:])), 3),
        "warm_seconds_worst": round(max(seconds[1:]), 3),
        "programs_solved": programs(),
        "look_ahead_seconds": round(look_ahead(), 3),
    }


def programs() -> int:
    """Distinct horizon programs of one pool replay."""
    window, memo = market(1), PlanMemo()
    pool = [policy.with_solver(memo) for policy in load_pool() if hasattr(policy, "with_solver")]
    replay_pool(pool, job(), window, forecasts=perfect_forecasts(window, 5), memo=memo)
    return len(memo.plans)


def look_ahead() -> float:
    """Seconds for AHAP(3,1,0.9) over 100 sampled paths of the 24 slots before the deadline."""
    window, work, slot = market(1), job(), SLOTS - 24
    rng = np.random.default_rng(0)
    later = SLOTS - slot - 1
    prices, counts = rng.uniform(0.2, 1.0, (PATHS, later)), rng.integers(0, N_MAX + 1, (PATHS, later))
    view = see(work, window, perfect_forecasts(window, 5)).view(
        work, Progress(done=0.5 * work.workload), slot
    )
    policy = policy_named("AHAP(3,1,0.9)")
    begun = time.perf_counter()
    simulate_ahead(policy, policy.start(work), view, prices, counts)
    return time.perf_counter() - begun
