"""Seconds to replay jobs of 48 half-hour slots with up to 16 instances: the whole pool, single policies, and cold starts.

*Warm* is CPU time on a single core after compilation. *Cold* is wall time of a new process that replays the pool once: with
compiled code in numba's cache on disk, and with an empty cache, so that everything is compiled first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import numpy as np

from slackwater.optimization.job.definition import Job, Linear, Progress
from slackwater.optimization.market.belief import MarketPaths
from slackwater.optimization.market.window import MarketWindow, market_window, record_of
from slackwater.optimization.moving.definition import MarketsView, in_one_market, placement
from slackwater.optimization.policies.contract import belief_of
from slackwater.optimization.policies.pool import load_pool, policy_named
from slackwater.optimization.replay.ahead import PolicyPlan, PresentJob, simulate_ahead
from slackwater.optimization.replay.run import Case, PlanMemo, see
from slackwater.optimization.replay.score import perfect_forecasts
from slackwater.optimization.world.simulation import Readings, WorldRun
from slackwater.optimization.world.terms import world_markets
from slackwater.studies.replays import replay_batch, replay_pool

SLOTS, N_MAX, ROUNDS, PATHS, JOBS = 48, 16, 5, 100, 50
#: Slots of history before the job, for policies that learn from it.
HISTORY = 336
SINGLE = ("OD-only", "MSU", "UP", "AHANP(0.9)", "AHAP(5,1,0.9)", "AHAP(5,5,0.9,last)", "AHAP(5,5,0.9)")
#: Number of jobs that the figures of single policies are scaled to.
SIMULATIONS = 2500


def case(seed: int) -> Case:
    """Return a case with random walks of availability and price, perfect forecasts for 5 slots and a week of record."""
    rng = np.random.default_rng(seed)
    price = np.clip(0.5 + 0.05 * rng.normal(size=SLOTS).cumsum(), 0.2, 1.1)
    count = np.clip(N_MAX // 2 + rng.integers(-3, 4, SLOTS).cumsum(), 0, N_MAX).astype(float)
    before = np.clip(N_MAX // 2 + rng.integers(-3, 4, HISTORY).cumsum(), 0, N_MAX).astype(float)
    window = market_window(price, count, on_demand_usd=1.0, slot_hours=0.5)
    record = record_of(
        np.concatenate([np.full(HISTORY, 0.5), price]), np.concatenate([before, count]),
        first=HISTORY, slot_hours=0.5, hour=0.0,
    )  # fmt: skip
    return Case(
        job=replace(job(), name=f"benchmark-{seed}"),
        window=window,
        forecasts=perfect_forecasts(window, 5),
        record=record,
    )


def market(seed: int) -> MarketWindow:
    """Return the market of a case."""
    return case(seed).window


def job() -> Job:
    """Return a job with half the work that N_MAX instances can do by the deadline."""
    return Job(
        name="benchmark", workload=0.5 * SLOTS * N_MAX * 0.5, deadline_slots=SLOTS, n_min=1, n_max=N_MAX,
        throughput=Linear(), mu_up=0.9, mu_down=0.95, value=1.5 * 0.5 * SLOTS * N_MAX * 0.5,
    )  # fmt: skip


def run() -> dict[str, object]:
    """Measure the pool, single policies, batches and cold starts."""
    pool = load_pool()
    replay_batch([case(0)], pool)
    seconds = [cpu_of([case(seed)], pool) for seed in range(1, ROUNDS + 1)]
    return {
        "slots": SLOTS,
        "n_max": N_MAX,
        "policies": len(pool),
        "programs_solved": programs(),
        "pool_seconds_median": round(float(np.median(seconds)), 3),
        "pool_seconds_worst": round(max(seconds), 3),
        f"seconds_for_{SIMULATIONS}_jobs": single(),
        "look_ahead_seconds": round(look_ahead(), 3),
        "cold_seconds": {"compiled_before": cold(empty=False), "nothing_compiled": cold(empty=True)},
    }


def cpu_of(cases: list[Case], policies: list[object]) -> float:
    """Return the CPU seconds of a batch in this process."""
    begun = time.process_time()
    replay_batch(cases, policies)  # type: ignore[arg-type]
    return time.process_time() - begun


def single() -> dict[str, float]:
    """Return CPU seconds of single policies for `SIMULATIONS` jobs, scaled from `JOBS` jobs."""
    cases = [case(seed) for seed in range(JOBS)]
    return {name: round(cpu_of(cases, [policy_named(name)]) / JOBS * SIMULATIONS, 2) for name in SINGLE}


def programs() -> int:
    """Return the number of distinct horizon programs in a replay of the pool."""
    chosen, memo = case(1), PlanMemo()
    replay_pool(
        load_pool(), chosen.job, chosen.window, forecasts=chosen.forecasts, record=chosen.record, memo=memo
    )
    return len(memo.plans)


def look_ahead() -> float:
    """Return seconds of AHAP(3,1,0.9) over 100 sampled paths of the 24 slots before the deadline."""
    chosen, work, slot = case(1), job(), SLOTS - 24
    rng = np.random.default_rng(0)
    later = SLOTS - slot - 1
    prices, counts = rng.uniform(0.2, 1.0, (PATHS, later)), rng.integers(0, N_MAX + 1, (PATHS, later))
    view = see(work, chosen.window, chosen.forecasts).view(work, Progress(done=0.5 * work.workload), slot)
    policy = policy_named("AHAP(3,1,0.9)")
    now = slot * view.slot_hours * 3600.0
    there = Readings(
        times=np.array([now]), available=np.array([view.available]), price=np.array([view.price])
    )
    job_in_market = in_one_market(work)
    markets = world_markets(job_in_market, on_demand_usd=[view.on_demand_usd], slot_hours=view.slot_hours)
    run = WorldRun(markets, (there,), now)
    run.report(now, work=view.progress.done)
    target, _ = policy.decide(policy.start(work), view)
    present = PresentJob(
        view=MarketsView(job=job_in_market, progress=view.progress, slot=slot, views=(view,)),
        run=run,
        beliefs=[belief_of(policy, view)],
        planner=PolicyPlan(policy=policy, state=policy.start(work), view=view, job=job_in_market),
        target=placement(0, target),
    )
    begun = time.perf_counter()
    simulate_ahead(present, [MarketPaths(price=prices, count=counts)], rng=rng)
    return time.perf_counter() - begun


def cold(*, empty: bool) -> float:
    """Return wall seconds of a new process that replays the pool once, including imports."""
    code = "from benchmarks.replay import case; from slackwater.studies.replays import replay_batch; "
    code += (
        "from slackwater.optimization.policies.pool import load_pool; replay_batch([case(0)], load_pool())"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ) | ({"NUMBA_CACHE_DIR": folder} if empty else {})
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        return round(time.perf_counter() - begun, 2)
