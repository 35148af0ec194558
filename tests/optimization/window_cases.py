"""Random horizon programs, and their optimum by plain enumeration of every (on-demand, spot) in every slot."""

import itertools

import numpy as np

from optimization.job import Job
from optimization.market import market_window
from optimization.plan import EndRule, HorizonProblem
from optimization.throughput import Amdahl, Linear, Power, Table

NEAR = 1e-9


def random_throughput(rng, n_max):
    kind = rng.integers(5)
    if kind == 0:
        return Linear(alpha=1.0, beta=0.25)
    if kind == 1:
        return Linear(alpha=float(rng.uniform(0.5, 2)))
    if kind == 2:
        return Amdahl(parallel=float(rng.uniform(0.5, 0.99)), scale=1.3)
    if kind == 3:
        return Power(exponent=float(rng.uniform(0.6, 1.0)))
    # Measured rates may fall where more instances get in each other's way.
    return Table(rates=tuple(rng.uniform(0.3, 3.0, n_max).tolist()))


def random_window(rng, w, n_max, on_demand_usd=1.0, slot_hours=1.0):
    price = np.round(rng.uniform(0.1, 1.3, w), 3) * on_demand_usd
    if rng.random() < 0.4:
        price[:] = price[0]
    price[rng.random(w) < 0.1] = 0.0
    price[rng.random(w) < 0.1] = on_demand_usd
    count = rng.integers(0, n_max + 2, w).astype(float)
    count[rng.random(w) < 0.15] = np.nan
    return market_window(price, count, on_demand_usd=on_demand_usd, slot_hours=slot_hours)


def random_problem(rng, *, w, n_max, end_rule):
    d = w + int(rng.integers(0, 5))
    n_min = int(rng.integers(1, min(3, n_max) + 1))
    throughput = random_throughput(rng, n_max)
    slot_hours, on_demand_usd = float(rng.choice([0.25, 0.5, 1.0])), float(rng.choice([1.0, 3.06]))
    workload = float(rng.uniform(0.1, 1.1)) * d * throughput.rate(n_max) * slot_hours
    alone = workload / throughput.rate(n_max) * n_max * on_demand_usd
    job = Job(
        name="random",
        workload=workload,
        deadline_slots=d,
        n_min=n_min,
        n_max=n_max,
        throughput=throughput,
        mu_up=float(rng.choice([1.0, 0.9, 0.6, 0.0])),
        mu_down=float(rng.choice([1.0, 0.95, 0.5])),
        value=float(rng.choice([0.0, 0.7, 1.5, 4.0])) * alone,
        gamma=float(rng.choice([1.05, 1.25, 1.5, 2.0])),
    )
    return HorizonProblem(
        job=job,
        slot=int(rng.integers(0, d - w + 1)),
        done=float(rng.choice([0.0, rng.uniform(0, 1), rng.uniform(0.8, 1.02)])) * workload,
        n_previous=int(rng.integers(0, n_max + 1)),
        window=random_window(rng, w, n_max, on_demand_usd, slot_hours),
        end_rule=end_rule,
    )


def programs(count, *, seed, end_rule, w, n_max):
    """``count`` programs with 1..w slots and sizes up to 1..n_max."""
    rng = np.random.default_rng(seed)
    return [
        random_problem(
            rng, w=int(rng.integers(1, w + 1)), n_max=int(rng.integers(1, n_max + 1)), end_rule=end_rule
        )
        for _ in range(count)
    ]


def allowed(job, available):
    """Every (n_o, n_s) of M2.3."""
    return [
        (n_o, n_s)
        for n_s in range(min(available, job.n_max) + 1)
        for n_o in range(job.n_max - n_s + 1)
        if n_o + n_s == 0 or n_o + n_s >= job.n_min
    ]


def to_go(job, done, before, slot, on_demand_usd, slot_hours):
    """M2.6 stepped slot by slot."""
    best = 0.0
    for n in range(job.n_min, job.n_max + 1):
        z, held, t, cost = done, before, slot, 0.0
        while z < job.workload * (1 - NEAR) and t < job.late_limit:
            z += job.efficiency(n, held) * job.throughput.rate(n) * slot_hours
            cost += n * on_demand_usd * slot_hours
            held, t = n, t + 1
        if z >= job.workload * (1 - NEAR):
            best = max(best, job.completion_value(t) - cost)
    return best


def by_enumeration(problem):
    """(objective, end progress): every decision tried, paid and followed as M2.4 and M3.3 say."""
    job, window = problem.job, problem.window
    hours, full = window.slot_hours, problem.job.workload * (1 - NEAR)
    ends = []
    for decisions in itertools.product(*(allowed(job, int(a)) for a in window.available)):
        z, before, cost, slot = problem.done, problem.n_previous, 0.0, problem.slot
        for (n_o, n_s), price in zip(decisions, window.price, strict=True):
            if z >= full:
                break
            n = n_o + n_s
            cost += (n_o * window.on_demand_usd + n_s * float(price)) * hours
            if n:
                z += job.efficiency(n, before) * job.throughput.rate(n) * hours
            before, slot = n, slot + 1
        ends.append((z, before, cost, slot))
    if problem.end_rule is EndRule.TARGET:
        goal = job.workload * min(1.0, (problem.slot + len(window)) / job.deadline_slots)
        most = max(min(z, goal) for z, *_ in ends)
        return min(c for z, _, c, _ in ends if z >= most - NEAR * job.workload), most
    worth = [
        (job.completion_value(slot) if z >= full else to_go(job, z, n, slot, window.on_demand_usd, hours)) - c
        for z, n, c, slot in ends
    ]
    return max(worth), None
