"""CPU time of the Pyomo model with HiGHS, compared with its exact twin on the same programs: compare ratios.

Programs as in M7's E1: N_max 16, half-hour slots, deadline 3 w, three loads, mu_up 0.9 or 0.6, random-walk availability and
constant or varying prices; for expected-to-go a table of 24 points that is neither concave nor convex. ``forms`` are alternative
formulations of the same model, ``hindsight`` is the twin over a whole job of 48 slots, ``cold start`` the first program of a
process without compiled code on disk.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.milp_forms import EXPECTED_FORMS, FORMS
from slackwater.optimization.job.definition import Amdahl, Job, Linear, Power, Throughput
from slackwater.optimization.market.window import MarketWindow, market_window
from slackwater.optimization.replay.score import hindsight
from slackwater.optimization.window.plan import EndRule, ExpectedToGo, HorizonProblem, PlanStatus, target
from slackwater.optimization.window.solver import Limits, plan_problem, require_progress, solve
from slackwater.optimization.window.twin import solve_window

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


def some_table(rng: np.random.Generator, job: Job) -> ExpectedToGo:
    work, columns = np.linspace(0.0, job.workload, 24), N_MAX + 1
    rise = (1.0 - 0.02 * np.abs(np.arange(columns) - rng.integers(0, columns)))[None, :]
    value = job.value * (0.2 + 0.7 * np.sqrt(work / job.workload))[:, None] * rise
    value += 0.01 * job.value * rng.random(value.shape)
    return ExpectedToGo(work=work, value_usd=np.maximum.accumulate(value, axis=0))


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
        expected=some_table(rng, job) if end_rule is EndRule.EXPECTED_TO_GO else None,
    )


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return CPU seconds and result of a call; both solvers run in this process, on a single thread."""
    begin = time.process_time()
    answer = call()
    return time.process_time() - begin, answer


def side_by_side(w: int, end_rule: EndRule, count: int) -> dict[str, object]:
    """Compare CPU time of model and twin on the same programs; the time of the twin is the mean of five calls."""
    rng = np.random.default_rng(w)
    milp, twin, differ, proved = [], [], 0.0, 0
    for i in range(count):
        throughput = list(THROUGHPUTS.values())[i % len(THROUGHPUTS)]
        problem = some_problem(rng, throughput, w, end_rule)
        taken, plan = seconds_of(lambda problem=problem: plan_problem(problem, LIMITS))
        milp.append(taken)
        tries = [seconds_of(lambda problem=problem: solve_window(problem)) for _ in range(5)]
        twin.append(statistics.mean(taken for taken, _ in tries))
        exact = tries[0][1]
        if plan.gap <= LIMITS.relative_gap:
            proved += 1
            size = max(1e-9, abs(exact.objective), abs(exact.cost_usd))
            differ = max(differ, abs(plan.objective - exact.objective) / size)
    ratios = [a / b for a, b in zip(milp, twin, strict=True)]
    return {
        "programs": count,
        "milp_median_s": round(statistics.median(milp), 4),
        "milp_max_s": round(max(milp), 3),
        "milp_proved": proved,
        "twin_median_ms": round(1e3 * statistics.median(twin), 3),
        "twin_max_ms": round(1e3 * max(twin), 3),
        "median_ratio": round(statistics.median(ratios)),
        "ratio_of_medians": round(statistics.median(milp) / statistics.median(twin)),
        "least_ratio": round(min(ratios)),
        "largest_relative_difference": differ,
    }


def forms(w: int, end_rule: EndRule, count: int, limits: Limits) -> dict[str, object]:
    """Measure HiGHS alone on the same programs in several formulations, in rotating order."""
    rng = np.random.default_rng(100 + w)
    ways = list((EXPECTED_FORMS if end_rule is EndRule.EXPECTED_TO_GO else FORMS).items())
    seconds: dict[str, list[float]] = {name: [] for name, _ in ways}
    proved = dict.fromkeys(seconds, 0)
    for i in range(count):
        problem = some_problem(rng, list(THROUGHPUTS.values())[i % len(THROUGHPUTS)], w, end_rule)
        best = []
        for name, form in ways[i % len(ways) :] + ways[: i % len(ways)]:
            model = form(problem)
            solution = solve(model, limits)
            taken = solution.seconds
            if end_rule is EndRule.TARGET and solution.objective is not None:
                require_progress(model, min(solution.objective * problem.job.workload, target(problem)))
                solution = solve(model, limits)
                taken += solution.seconds
            seconds[name].append(taken)
            if solution.status is PlanStatus.OPTIMAL and solution.objective is not None:
                proved[name] += 1
                best.append(solution.objective)
        if best and max(best) - min(best) > 1e-5 * max(1.0, abs(best[0])):
            raise RuntimeError(f"forms disagree on program {i} of w = {w}, {end_rule}: {best}")
    return {
        name: {"median_s": round(statistics.median(s), 3), "sum_s": round(sum(s), 1), "proved": proved[name]}
        for name, s in seconds.items()
    }


def whole_jobs(count: int) -> dict[str, object]:
    rng = np.random.default_rng(48)
    taken, width = [], 0.0
    for i in range(count):
        job = some_job(rng, list(THROUGHPUTS.values())[i % len(THROUGHPUTS)], 48)
        seconds, bracket = seconds_of(lambda job=job: hindsight(job, wandering_window(rng, 48)))
        taken.append(seconds)
        width = max(width, (bracket.high - bracket.low) / max(1e-9, abs(bracket.low)))
    return {
        "jobs": count,
        "median_ms": round(1e3 * statistics.median(taken), 1),
        "max_ms": round(1e3 * max(taken), 1),
        "widest_relative_bracket": width,
    }


def cold_start() -> dict[str, object]:
    """Measure seconds to the first plan of a new process without imports: when compiling, and with compiled code on disk."""
    script = (
        "import time, numpy as np; from benchmarks.solver import *; "
        "p = some_problem(np.random.default_rng(1), Linear(), 5, EndRule.ON_DEMAND_TO_GO); "
        "b = time.perf_counter(); solve_window(p); print(time.perf_counter() - b)"
    )
    with tempfile.TemporaryDirectory() as folder:
        told = [
            subprocess.run(
                [sys.executable, "-c", script],
                env=os.environ | {"NUMBA_CACHE_DIR": folder},
                capture_output=True,
                text=True,
                check=True,
            )
            for _ in range(2)
        ]
    return dict(zip(("compiling_s", "from_disk_s"), (round(float(t.stdout), 2) for t in told), strict=True))


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
    for end_rule in EndRule:
        results[f"forms w=5 {end_rule.value}"] = forms(5, end_rule, 6, Limits(seconds=15.0))
    results["hindsight d=48"] = whole_jobs(12)
    results["cold start"] = cold_start()
    return results
