"""Random joint programs, and their optimum by plain enumeration of every job's routes."""

import itertools
from dataclasses import replace

import numpy as np
from window_cases import OWING, SHARES, random_throughput

from optimization.fleet.problem import Ending, JointJob, JointProblem, Team
from optimization.job.definition import Job, finished, needed
from optimization.kernels.rules import slots_needed
from optimization.market.window import market_window


def random_markets(rng, markets, w):
    made = {}
    for m in range(markets):
        dear = float(rng.choice([1.0, 1.0, 1.4]))
        price = np.round(rng.uniform(0.1, 1.2, w), 3) * dear
        count = rng.integers(0, 4, w).astype(float)
        count[rng.random(w) < 0.1] = np.nan
        made[f"zone-{m}"] = market_window(price, count, on_demand_usd=dear, slot_hours=1.0)
    return made


def random_joint(rng, *, jobs, markets, w, n_max=3, caps=False, same_throughput=False):
    """Jobs of every kind: running, moved, late, owing progress, unable to resume, with caps if asked for."""
    windows = random_markets(rng, markets, w)
    teams = {"red": Team(cap_usd=float(rng.uniform(0.5, 8.0)), spent_usd=0.5)} if caps else {}
    made = [random_joint_job(rng, f"job-{j}", windows, w, n_max, bool(teams)) for j in range(jobs)]
    return JointProblem(markets=windows, jobs=tuple(made), teams=teams)


def contended(rng, problem):
    """The same jobs on cheap spot of which there is little, each worth finishing: who gets what matters."""
    markets = {
        key: market_window(
            np.round(rng.uniform(0.1, 0.4, problem.slots), 3) * window.on_demand_usd,
            rng.integers(1, 4, problem.slots).astype(float),
            on_demand_usd=window.on_demand_usd,
            slot_hours=1.0,
        )
        for key, window in problem.markets.items()
    }
    jobs = []
    for job in problem.jobs:
        value = float(rng.uniform(1.0, 2.0)) * job.job.workload
        jobs.append(replace(job, runs={key: replace(run, value=value) for key, run in job.runs.items()}))
    return replace(problem, markets=markets, jobs=tuple(jobs))


def random_joint_job(rng, name, windows, w, n_max, with_team):
    d = int(rng.integers(1, w + 4))
    slot = int(rng.integers(0, d))
    top = int(rng.integers(1, n_max + 1))
    workload = float(rng.uniform(0.5, top * d))
    resumable = bool(rng.random() < 0.9)
    value = float(rng.uniform(0.3, 2.5)) * workload
    allowed = [key for key in windows if rng.random() < 0.8] or [min(windows)]
    ups, downs = OWING if rng.random() < 0.15 else SHARES
    runs = {
        key: Job(
            name=name,
            workload=workload,
            deadline_slots=d,
            n_min=int(rng.integers(1, top + 1)),
            n_max=top,
            throughput=random_throughput(rng, top),
            mu_up=float(rng.choice(ups)),
            mu_down=float(rng.choice(downs)),
            value=value,
            gamma=1.5,
            resumable=resumable,
        )
        for key in allowed
    }
    n_before = int(rng.integers(0, top + 2)) if rng.random() < 0.6 else 0
    return JointJob(
        name=name,
        runs=runs,
        slot=slot,
        done=float(rng.choice([0.0, 0.3, 0.7])) * workload,
        n_previous=n_before,
        market_previous=str(rng.choice(sorted(windows))) if n_before else None,
        priority=float(rng.choice([1.0, 1.0, 3.0])),
        team="red" if with_team and rng.random() < 0.6 else None,
        cap_usd=float(rng.uniform(0.2, 4.0)) if with_team and rng.random() < 0.4 else np.inf,
        spent_usd=0.1 if with_team else 0.0,
        move_hours=float(rng.choice([0.0, 0.2])),
        move_usd=float(rng.choice([0.0, 0.15])),
    )


def every_route(problem, job):
    """(weighted utility, paid, spot by (slot, market)) of every route of a job, by plain walking."""
    w = problem.window(job)
    options = [(None, 0, 0)]
    for key, run in job.runs.items():
        most = int(problem.markets[key].available.max()) if run.resumable else 0
        options += [(key, n, s) for n in range(run.n_min, run.n_max + 1) for s in range(min(n, most) + 1)]
    for places in itertools.product(options, repeat=w):
        walked = walk(problem, job, places)
        if walked is not None:
            yield from endings(problem, job, *walked)


def walk(problem, job, places):
    done, before, paid, spots = job.done, (job.market_previous, job.n_previous), 0.0, {}
    for i, (key, n, s) in enumerate(places):
        if key is None:
            before = (None, 0)
            continue
        window = problem.markets[key]
        if finished(done, job.job.workload) or s > window.available[i]:
            return None
        paid += ((n - s) * window.on_demand_usd + s * window.price[i]) * window.slot_hours
        paid += job.move_usd if before[1] and before[0] != key else 0.0
        gain = job.runs[key].throughput.rate(n) * window.slot_hours
        done += job.efficiency(key, n, before, window.slot_hours) * gain
        before = (key, n)
        if s:
            spots[i, key] = s
    return done, before, paid, spots


def endings(problem, job, done, before, paid, spots):
    w, run = problem.window(job), job.job
    if finished(done, run.workload):
        yield job.priority * (run.value - paid), paid, spots, Ending(None, 0, 0)
        return
    yield -job.priority * paid, paid, spots, Ending(None, 0, 0)
    for key, own in job.runs.items():
        window = problem.markets[key]
        for n in range(own.n_min, own.n_max + 1):
            gain = own.throughput.rate(n) * window.slot_hours
            k = slots_needed(
                needed(run.workload) - done, job.efficiency(key, n, before, window.slot_hours) * gain, gain
            )
            cost = k * n * window.on_demand_usd * window.slot_hours
            cost += job.move_usd if before[1] and before[0] != key else 0.0
            value = run.completion_value(job.slot + w + k)
            counted = cost if w == run.deadline_slots - job.slot else 0.0
            yield job.priority * (value - cost - paid), paid + counted, spots, Ending(key, n, k)


def best_by_enumeration(problem):
    """The worth of the best joint plan: all combinations of all routes, dominated ones left out."""
    fronts = []
    for job in problem.jobs:
        best = {}
        for worth, paid, spots, _ in every_route(problem, job):
            if paid > job.left_usd + 1e-9:
                continue
            key = (tuple(sorted(spots.items())), round(paid, 9) if job.team else 0.0)
            if worth > best.get(key, (-np.inf,))[0]:
                best[key] = (worth, paid if job.team else 0.0, spots)
        fronts.append(list(best.values()))
    top = -np.inf
    for chosen in itertools.product(*fronts):
        worth = sum(one[0] for one in chosen)
        if worth > top and fits(problem, chosen):
            top = worth
    return top


def fits(problem, chosen):
    used = {}
    for _, _, spots in chosen:
        for at, s in spots.items():
            used[at] = used.get(at, 0) + s
    if any(s > problem.markets[key].available[i] for (i, key), s in used.items()):
        return False
    paid = sum(one[1] for one in chosen)
    return not problem.teams or paid <= problem.teams["red"].left_usd + 1e-9
