"""Random horizon programs, and their optimum by plain enumeration of every (on-demand, spot) in every slot."""

import itertools

import numpy as np
from make import make_job, make_window

from slackwater.optimization.job.definition import Amdahl, Linear, Power, RateTable
from slackwater.optimization.window.plan import EndRule, ExpectedToGo, HorizonProblem

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
    # Measured rates may fall where additional instances slow each other down.
    return RateTable(rates=tuple(rng.uniform(0.3, 3.0, n_max).tolist()))


def random_window(rng, w, n_max, on_demand_usd=1.0, slot_hours=1.0):
    price = np.round(rng.uniform(0.1, 1.3, w), 3) * on_demand_usd
    if rng.random() < 0.4:
        price[:] = price[0]
    price[rng.random(w) < 0.1] = 0.0
    price[rng.random(w) < 0.1] = on_demand_usd
    count = rng.integers(0, n_max + 2, w).astype(float)
    count[rng.random(w) < 0.15] = np.nan
    return make_window(price, count, on_demand_usd=on_demand_usd, slot_hours=slot_hours)


def random_table(rng, job):
    """Return a table of expected value to go that rises with work, by jumps and slopes, concave or not,
    different for every size.
    """
    k, columns = int(rng.integers(1, 30)), job.n_max - job.n_min + 2
    low = -float(rng.choice([0.0, 0.3])) * job.workload
    work = np.unique(np.concatenate([[low], rng.uniform(low, job.workload, k), [job.workload]]))
    steps = rng.exponential(size=(work.size, columns)) * (rng.random((work.size, columns)) < 0.7)
    if rng.random() < 0.5:
        steps = -np.sort(-steps, axis=0)
    rise = np.cumsum(steps, axis=0)
    top = job.value * rng.uniform(0.3, 1.0, columns)
    value = rise / np.maximum(rise[-1], 1e-9) * top - float(rng.choice([0.0, 0.2])) * job.value
    return ExpectedToGo(work=work, value_usd=value)


def flat_problem(rng):
    """Return a job of low value with an expected value to go of 0, whatever is done and running."""
    w, n = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    d, n_max = w + int(rng.integers(0, 5)), n if rng.random() < 0.6 else n + 1
    job = make_job(
        name="flat",
        workload=float(rng.uniform(0.5, 6.0)),
        deadline_slots=d,
        n_min=n,
        n_max=n_max,
        mu_up=float(rng.choice([1.0, 0.9, 0.6])),
        mu_down=float(rng.choice([1.0, 0.95])),
        value=float(rng.choice([0.0, 0.1, 0.3, 1.0, 5.0])),
    )
    window = make_window(np.round(rng.uniform(0.1, 1.3, w), 2), rng.integers(0, n + 2, w), slot_hours=0.5)
    return HorizonProblem(
        job=job, slot=int(rng.integers(0, d - w + 1)), done=float(rng.choice([0.0, 0.3])) * job.workload,
        n_previous=int(rng.integers(0, n + 1)), window=window, end_rule=EndRule.EXPECTED_TO_GO,
        expected=ExpectedToGo(work=np.zeros(1), value_usd=np.zeros((1, n_max - n + 2))),
    )  # fmt: skip


#: Efficiencies of a change: shares of a slot, and below 0 where a change takes longer than a slot.
SHARES = ([1.0, 0.9, 0.6, 0.0], [1.0, 0.95, 0.5])
OWING = ([-0.2, -1.0, -3.5, -7.9], [0.9, -0.5, -2.0])


def random_problem(rng, *, w, n_max, end_rule, mus=SHARES):
    d = w + int(rng.integers(0, 5))
    n_min = int(rng.integers(1, min(3, n_max) + 1))
    throughput = random_throughput(rng, n_max)
    slot_hours, on_demand_usd = float(rng.choice([0.25, 0.5, 1.0])), float(rng.choice([1.0, 3.06]))
    workload = float(rng.uniform(0.1, 1.1)) * d * throughput.rate(n_max) * slot_hours
    alone = workload / throughput.rate(n_max) * n_max * on_demand_usd
    job = make_job(
        name="random",
        workload=workload,
        deadline_slots=d,
        n_min=n_min,
        n_max=n_max,
        throughput=throughput,
        mu_up=float(rng.choice(mus[0])),
        mu_down=float(rng.choice(mus[1])),
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
        expected=random_table(rng, job) if end_rule is EndRule.EXPECTED_TO_GO else None,
    )


def programs(count, *, seed, end_rule, w, n_max, mus=SHARES):
    """Return ``count`` programs with 1..w slots and sizes up to 1..n_max."""
    rng = np.random.default_rng(seed)
    return [
        random_problem(
            rng,
            w=int(rng.integers(1, w + 1)),
            n_max=int(rng.integers(1, n_max + 1)),
            end_rule=end_rule,
            mus=mus,
        )
        for _ in range(count)
    ]


def allowed(job, available):
    """Return every (n_o, n_s) of M2.3."""
    return [
        (n_o, n_s)
        for n_s in range(min(available, job.n_max) + 1)
        for n_o in range(job.n_max - n_s + 1)
        if n_o + n_s == 0 or n_o + n_s >= job.n_min
    ]


def to_go(job, done, before, slot, on_demand_usd, slot_hours):
    """Return the value of M2.6, computed slot by slot."""
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
    """Return (objective, end progress) by trying all decisions under M2.4 and M3.3."""
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
    return max(end_worth(problem, z, n, slot) - c for z, n, c, slot in ends), None


def end_worth(problem, z, n, slot):
    """Return W of M3.3 (b) or (c)."""
    job, window = problem.job, problem.window
    if z >= job.workload * (1 - NEAR):
        return job.completion_value(slot)
    if problem.end_rule is EndRule.ON_DEMAND_TO_GO:
        return to_go(job, z, n, slot, window.on_demand_usd, window.slot_hours)
    column = 0 if n == 0 else n - job.n_min + 1
    return np.interp(z, problem.expected.work, problem.expected.value_usd[:, column])
