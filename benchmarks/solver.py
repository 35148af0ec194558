"""The Pyomo model with HiGHS against its exact twin on the same programs, side by side: read the ratios.

Programs as in M7's E1: N_max 16, half-hour slots, deadline 3 w, three loads, mu_up 0.9 or 0.6, counts that wander and
prices flat or moving. ``hindsight`` is the twin over a whole job of 48 slots.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from optimization.hindsight import hindsight
from optimization.job import Job
from optimization.labels import solve_window
from optimization.market import MarketWindow, market_window
from optimization.plan import EndRule, HorizonProblem
from optimization.solver import Limits, plan_problem
from optimization.throughput import Amdahl, Linear, Power, Throughput

N_MAX, SLOT_HOURS = 16, 0.5
THROUGHPUTS: dict[str, Throughput] = {
    "linear": Linear(),
    "amdahl": Amdahl(parallel=0.93, scale=1.1),
    "power": Power(exponent=0.87, scale=1.3),
}
LIMITS = Limits(seconds=30.0)


def wandering_window(rng: np.random.Generator, slots: int) -> MarketWindow:
    count = np.clip(np.cumsum(rng.integers(-5, 6, slots)) + N_MAX // 2, 0, N_MAX)
    price = np.round(rng.uniform(0.2, 0.8, slots), 4)
    if rng.random() < 0.5:
        price[:] = price[0]
    return market_window(price, count, on_demand_usd=1.0, slot_hours=SLOT_HOURS)


def some_job(rng: np.random.Generator, throughput: Throughput, deadline_slots: int) -> Job:
    share = float(rng.choice([0.3, 0.5, 0.7]))
    workload = share * deadline_slots * throughput.rate(N_MAX) * SLOT_HOURS
    return Job(
        name="benchmark",
        workload=workload,
        deadline_slots=deadline_slots,
        n_min=1,
        n_max=N_MAX,
        throughput=throughput,
        mu_up=float(rng.choice([0.9, 0.6])),
        mu_down=0.95,
        value=1.5 * share * deadline_slots * N_MAX * SLOT_HOURS,
    )


def some_problem(
    rng: np.random.Generator, throughput: Throughput, w: int, end_rule: EndRule
) -> HorizonProblem:
    d = 3 * w
    job, slot = some_job(rng, throughput, d), int(rng.integers(0, d - w + 1))
    return HorizonProblem(
        job=job,
        slot=slot,
        done=job.workload * slot / d * float(rng.uniform(0.6, 1.2)),
        n_previous=int(rng.integers(0, N_MAX + 1)),
        window=wandering_window(rng, w),
        end_rule=end_rule,
    )


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    answer = call()
    return time.perf_counter() - begin, answer


def side_by_side(w: int, end_rule: EndRule, count: int) -> dict[str, object]:
    rng = np.random.default_rng(w)
    milp, twin, differ, proved = [], [], 0.0, 0
    for i in range(count):
        throughput = list(THROUGHPUTS.values())[i % len(THROUGHPUTS)]
        problem = some_problem(rng, throughput, w, end_rule)
        taken, plan = seconds_of(lambda problem=problem: plan_problem(problem, LIMITS))
        milp.append(taken)
        taken, exact = seconds_of(lambda problem=problem: solve_window(problem))
        twin.append(taken)
        if plan.gap <= LIMITS.relative_gap:
            proved += 1
            differ = max(differ, abs(plan.objective - exact.objective) / max(1e-9, abs(exact.objective)))
    return {
        "programs": count,
        "milp_median_s": round(statistics.median(milp), 4),
        "milp_max_s": round(max(milp), 3),
        "milp_proved": proved,
        "twin_median_ms": round(1e3 * statistics.median(twin), 3),
        "twin_max_ms": round(1e3 * max(twin), 3),
        "median_ratio": round(statistics.median(a / b for a, b in zip(milp, twin, strict=True)), 1),
        "largest_relative_difference": differ,
    }


def whole_jobs(count: int) -> dict[str, object]:
    rng = np.random.default_rng(48)
    taken = []
    for i in range(count):
        job = some_job(rng, list(THROUGHPUTS.values())[i % len(THROUGHPUTS)], 48)
        taken.append(seconds_of(lambda job=job: hindsight(job, wandering_window(rng, 48)))[0])
    return {
        "jobs": count,
        "median_ms": round(1e3 * statistics.median(taken), 1),
        "max_ms": round(1e3 * max(taken), 1),
    }


def run() -> dict:
    warm = np.random.default_rng(0)
    for end_rule in EndRule:
        problem = some_problem(warm, Linear(), 2, end_rule)
        solve_window(problem)
        plan_problem(problem)
    results: dict[str, object] = {}
    for w, count in ((5, 24), (12, 6)):
        for end_rule in EndRule:
            results[f"w={w} {end_rule.value}"] = side_by_side(w, end_rule, count)
    results["hindsight d=48"] = whole_jobs(12)
    return results
