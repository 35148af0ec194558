"""Planning many jobs together by prices: 200 jobs, 10 markets, windows of 5, 8 and 12 slots, and what each part takes.

The instances are random (seeded): they measure speed and gaps of the method, nothing of real markets.
"""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np

from optimization.fleet.audit import audit_joint
from optimization.fleet.prices import QUICK, Order, plan_jointly, plan_one_by_one
from optimization.fleet.problem import JointJob, JointProblem
from optimization.fleet.search import Search
from optimization.job.definition import Job, Linear
from optimization.market.window import market_window

JOBS, MARKETS, WINDOWS, SEED = 200, 10, (5, 8, 12), 0


def crowd(jobs: int, markets: int, slots: int, *, seed: int) -> JointProblem:
    """A random joint program: jobs of up to 16 instances, every market allowed, another speed in each, three priorities."""
    rng = np.random.default_rng(seed)
    windows = {}
    for m in range(markets):
        dear = float(rng.choice([3.0, 4.0, 11.0]))
        count = np.clip(np.cumsum(rng.integers(-2, 3, slots)) + rng.integers(0, 17), 0, 16)
        price = np.full(slots, dear * rng.uniform(0.2, 0.5))
        windows[f"zone-{m}"] = market_window(price, count, on_demand_usd=dear, slot_hours=0.5)
    made = []
    for j in range(jobs):
        d, n_max = int(rng.integers(slots, 48)), int(rng.choice([4, 8, 16]))
        work = float(rng.uniform(0.3, 0.7)) * d * n_max * 0.5
        runs = {
            key: Job(
                name=f"job-{j}", workload=work, deadline_slots=d, n_min=1, n_max=n_max,
                throughput=Linear(alpha=float(rng.uniform(0.7, 1.5))), mu_up=0.9, mu_down=0.95, value=6.0 * work,
            )
            for key in windows
        }  # fmt: skip
        slot = int(rng.integers(0, d)) if rng.random() < 0.5 else 0
        made.append(
            JointJob(name=f"job-{j}", runs=runs, slot=slot, priority=float(rng.choice([1.0, 2.0, 4.0])))
        )
    return JointProblem(markets=windows, jobs=tuple(made))


def run() -> dict[str, object]:
    """Seconds of each part, the gap, and the gain over planning one by one."""
    plan_jointly(crowd(3, 2, 3, seed=1), QUICK)  # compile
    return {f"w={slots}": _measured(crowd(JOBS, MARKETS, slots, seed=SEED)) for slots in WINDOWS}


def _measured(problem: JointProblem) -> dict[str, object]:
    marks: list[tuple[str, float, float]] = []

    def tell(part: str) -> None:
        marks.append((part.split(",")[0], time.perf_counter(), time.process_time()))

    tell("set up")
    plan = plan_jointly(problem, QUICK, tell=tell)
    tell("end")
    audit_joint(problem, plan)
    parts: dict[str, float] = {}
    for (part, begin, _), (_, end, _) in pairwise(marks):
        parts[part] = round(parts.get(part, 0.0) + end - begin, 2)
    searching = Search(problem, cells=QUICK.cells, width=QUICK.width)
    gains = {
        str(order): round(
            plan.objective / plan_one_by_one(problem, order, searching=searching).objective - 1.0, 4
        )
        for order in Order
    }
    return {
        "jobs": len(problem.jobs),
        "markets": len(problem.markets),
        "seconds": round(marks[-1][1] - marks[0][1], 2),
        "cpu_seconds": round(marks[-1][2] - marks[0][2], 2),
        "parts_seconds": parts,
        "gap_to_bound": round(plan.gap, 4),
        "gain_over_one_by_one": gains,
    }
