"""The joint horizon program in Pyomo: exact, for a few jobs (M3.6; ours).

As in `optimization.window.solver`, a binary says for what reason job j runs on size s of market m in slot i: begun from nothing,
scaled up, kept, scaled down, or moved from another market. Their sum is the choice "n = s in m", so any throughput and any
efficiency is a coefficient. The stage after a job's window is its ending on on-demand (M3.3b), which pays for k more slots.

A reason is open only to who comes from there. For sizes of one market, with run(i-1, .) the slot before:

    sum_{s' <= s} up(i, s') + sum_{s' < s} kept(i, s') <= sum_{s' < s} run(i-1, s')

and so for the others: whoever ends at s or below by climbing, or below s by keeping, came from below s. Whole numbers make these
exact, and summing over sizes makes them tighter than one row for each pair. Jobs meet in two families only: the counts of a market
and the money of a team. Money is in units of ``unit_usd``, work in units of each job's workload.
"""

from __future__ import annotations

from typing import Any

import pyomo.environ as pyo

from optimization.fleet.prices import joint_plan, weighted_utility
from optimization.fleet.problem import (
    NO_ENDING,
    NOWHERE,
    Ending,
    JointJob,
    JointPlan,
    JointProblem,
    Place,
    Route,
    validate_joint,
)
from optimization.job.definition import Job, finished
from optimization.kernels.rules import after_growing, after_moving, after_shrinking, slots_needed
from optimization.window.plan import Allocation, PlanStatus
from optimization.window.solver import WHOLE, Limits, Solution, in_usd, solve

REASONS = ("begun", "up", "kept", "down", "moved")
#: Relative difference between the solver's objective and the routes' own beyond which the solve counts as an error.
TRUST = 1e-6


def plan_exactly(problem: JointProblem, limits: Limits | None = None) -> JointPlan:
    """The joint plan by the Pyomo model and HiGHS (M3.4): status, objective of its own routes, the solver's bound.

    Without an incumbent there are no routes and the objective is NaN. Raises what `validate_joint` raises.
    """
    validate_joint(problem)
    model = joint_model(problem)
    solution = in_usd(solve(model, limits or Limits()), model.unit_usd)
    if solution.objective is None:
        return _unanswered(solution, solution.status)
    routes = [route_of(model, problem, j) for j in range(len(problem.jobs))]
    found = weighted_utility(problem, routes)
    if abs(found - solution.objective) > TRUST * max(
        abs(found), abs(solution.objective), 1e-3 * model.unit_usd
    ):
        return _unanswered(solution, PlanStatus.ERROR)
    bound = found if solution.bound is None else solution.bound
    plan = joint_plan(problem, "joint (exact)", routes, bound=bound)
    return JointPlan(
        method=plan.method, routes=plan.routes, status=solution.status, objective=found, bound=plan.bound,
        gap=plan.gap, seconds=solution.seconds,
    )  # fmt: skip


def _unanswered(solution: Solution, status: PlanStatus) -> JointPlan:
    nan = float("nan")
    bound = nan if solution.bound is None else solution.bound
    return JointPlan(
        method="joint (exact)", routes=(), status=status, objective=nan, bound=bound, gap=float("inf"),
        seconds=solution.seconds,
    )  # fmt: skip


def joint_model(problem: JointProblem) -> pyo.ConcreteModel:
    """The program, read from top to bottom: variables, one function per constraint family, the objective."""
    m = pyo.ConcreteModel(name="joint")
    m.problem = problem
    add_data(m, problem)
    add_choice(m)
    m.one_place = pyo.Constraint(m.STAGES, rule=one_place)
    m.beginning = pyo.Constraint(m.STAGES, rule=beginning)
    m.moving = pyo.Constraint(m.CHANGES, rule=moving)
    m.climbing = pyo.Constraint(m.STATES, rule=climbing)
    m.keeping = pyo.Constraint(m.STATES, rule=keeping)
    m.descending = pyo.Constraint(m.STATES, rule=descending)
    m.held_spot = pyo.Constraint(m.SPOTS, rule=held_spot)
    add_endings(m)
    add_money(m)
    m.counts = pyo.Constraint(pyo.RangeSet(0, problem.slots - 1), sorted(problem.markets), rule=counts)
    m.job_caps = pyo.Constraint(m.JOBS, rule=job_cap)
    m.team_caps = pyo.Constraint(sorted(problem.teams), rule=team_cap)
    m.worth = pyo.Objective(expr=sum(worth_of(m, j) for j in m.JOBS), sense=pyo.maximize)
    return m


def add_data(m: pyo.ConcreteModel, problem: JointProblem) -> None:
    """Index sets: jobs j, stages (j, i) with i = w_j the ending, changes (j, i, market), states (j, i, market, n)."""
    jobs = problem.jobs
    m.JOBS = pyo.RangeSet(0, len(jobs) - 1)
    m.last = [problem.window(job) for job in jobs]
    m.sizes = {
        (j, key): range(run.n_min, run.n_max + 1)
        for j, job in enumerate(jobs)
        for key, run in sorted(job.runs.items())
    }
    m.keys = [sorted(job.runs) for job in jobs]
    m.unit_usd = max(sum(job.priority * job.job.value for job in jobs), 1e-9)
    m.STAGES = pyo.Set(
        initialize=[(j, i) for j in m.JOBS for i in range(m.last[j] + 1)], dimen=2, ordered=True
    )
    m.CHANGES = pyo.Set(
        initialize=[(j, i, key) for j, i in m.STAGES for key in m.keys[j]], dimen=3, ordered=True
    )
    m.STATES = pyo.Set(
        initialize=[(j, i, key, n) for j, i, key in m.CHANGES for n in m.sizes[j, key]], dimen=4, ordered=True
    )
    m.SPOTS = pyo.Set(
        initialize=[
            (j, i, key)
            for j, i, key in m.CHANGES
            if i < m.last[j] and jobs[j].job.resumable and saving(problem, i, key) > 0
        ],
        dimen=3,
        ordered=True,
    )


def add_choice(m: pyo.ConcreteModel) -> None:
    """Binaries for the reason of a state, spot instances in use, and the work they add up to."""
    for reason in REASONS:
        m.add_component(reason, pyo.Var(m.STATES, domain=pyo.Binary))
    m.none = pyo.Var(m.STAGES, domain=pyo.Binary)
    m.spot = pyo.Var(m.SPOTS, domain=pyo.NonNegativeIntegers)
    m.run = pyo.Expression(
        m.STATES, rule=lambda m, j, i, key, n: sum(m.component(reason)[j, i, key, n] for reason in REASONS)
    )
    m.work = pyo.Expression(m.STAGES, rule=work)
    m.done = pyo.Expression(
        m.JOBS,
        rule=lambda m, j: (
            m.problem.jobs[j].done / m.problem.jobs[j].job.workload
            + sum(m.work[j, i] for i in range(m.last[j]))
        ),
    )


def work(m: Any, j: int, i: int) -> Any:
    """sum over states of mu(reason) H(n) Delta, in workloads."""
    job, hours = m.problem.jobs[j], m.problem.slot_hours
    terms = []
    for key in m.keys[j]:
        run = job.runs[key]
        for n in m.sizes[j, key]:
            gain = run.throughput.rate(n) * hours / run.workload
            grown, shrunk, _, moved = shares(job, run, n, hours)
            mus = zip(REASONS, (grown, grown, 1.0, shrunk, moved), strict=True)
            terms += [gain * mu * m.component(reason)[j, i, key, n] for reason, mu in mus]
    return sum(terms)


def shares(job: JointJob, run: Job, n: int, hours: float) -> tuple[float, float, float, float]:
    """mu of a slot on ``n`` instances grown to, shrunk to, kept and moved to (M2.4, M3.6)."""
    restart = run.restart
    grown, shrunk = after_growing(restart, n), after_shrinking(restart, n)
    return grown, shrunk, 1.0, after_moving(restart, n, job.move_hours / hours)


def before(m: Any, j: int, i: int, key: str, low: float = 0, high: float = float("inf")) -> Any:
    """Whether job j held low < n < high instances of a market in the slot before stage i: a sum of binaries, or known."""
    if i == 0:
        job = m.problem.jobs[j]
        return float(job.market_previous == key and low < job.n_previous < high)
    return sum((m.run[j, i - 1, key, n] for n in m.sizes[j, key] if low < n < high), 0.0)


def one_place(m: Any, j: int, i: int) -> Any:
    """none(j, i) + sum run(j, i, ., .) = 1."""
    return m.none[j, i] + sum(m.run[j, i, key, n] for key in m.keys[j] for n in m.sizes[j, key]) == 1


def beginning(m: Any, j: int, i: int) -> Any:
    """sum begun(j, i, ., .) <= none(j, i-1)."""
    held_nothing = float(m.problem.jobs[j].n_previous == 0) if i == 0 else m.none[j, i - 1]
    return sum(m.begun[j, i, key, n] for key in m.keys[j] for n in m.sizes[j, key]) <= held_nothing


def moving(m: Any, j: int, i: int, key: str) -> Any:
    """sum_n moved(j, i, m, n) <= sum_{m' != m} run(j, i-1, m', .)."""
    others = sum((before(m, j, i, other) for other in m.keys[j] if other != key), 0.0)
    job = m.problem.jobs[j]
    if i == 0 and job.n_previous > 0 and job.market_previous not in job.runs:
        others = 1.0
    return sum(m.moved[j, i, key, n] for n in m.sizes[j, key]) <= others


def climbing(m: Any, j: int, i: int, key: str, n: int) -> Any:
    """sum_{s <= n} up + sum_{s < n} kept <= sum_{s < n} run(i-1)."""
    ups = sum(m.up[j, i, key, s] for s in m.sizes[j, key] if s <= n)
    kept = sum(m.kept[j, i, key, s] for s in m.sizes[j, key] if s < n)
    return ups + kept <= before(m, j, i, key, high=n)


def keeping(m: Any, j: int, i: int, key: str, n: int) -> Any:
    """kept(i, n) <= run(i-1, n)."""
    return m.kept[j, i, key, n] <= before(m, j, i, key, low=n - 0.5, high=n + 0.5)


def descending(m: Any, j: int, i: int, key: str, n: int) -> Any:
    """sum_{s >= n} down + sum_{s > n} kept <= sum_{s > n} run(i-1)."""
    downs = sum(m.down[j, i, key, s] for s in m.sizes[j, key] if s >= n)
    kept = sum(m.kept[j, i, key, s] for s in m.sizes[j, key] if s > n)
    return downs + kept <= before(m, j, i, key, low=n)


def held_spot(m: Any, j: int, i: int, key: str) -> Any:
    """spot(j, i, m) <= sum_n min(n, available) run(j, i, m, n)."""
    there = int(m.problem.markets[key].available[i])
    return m.spot[j, i, key] <= sum(min(n, there) * m.run[j, i, key, n] for n in m.sizes[j, key])


def add_endings(m: pyo.ConcreteModel) -> None:
    """ending(j, m, n, k): k slots of n on demand after the window; the work must be done unless it is given up (M3.3b)."""
    options = {
        (j, key, n, k): worth
        for j in m.JOBS
        for (key, n, k), worth in possible_endings(m.problem, m.problem.jobs[j]).items()
    }
    m.value_of = options
    m.ENDINGS = pyo.Set(initialize=list(options), dimen=4, ordered=True)
    m.ending = pyo.Var(m.ENDINGS, domain=pyo.Binary)
    m.finish = pyo.Var(m.JOBS, domain=pyo.Binary)
    of_state: dict[tuple[int, str, int], list[Any]] = {}
    of_job: dict[int, list[Any]] = {j: [] for j in m.JOBS}
    for j, key, n, k in m.ENDINGS:
        of_state.setdefault((j, key, n), []).append(m.ending[j, key, n, k])
        run = m.problem.jobs[j].runs[key]
        gain = run.throughput.rate(n) * m.problem.slot_hours / run.workload
        of_job[j].append((k - 1) * gain * m.ending[j, key, n, k])
    final = [(j, key, n) for j in m.JOBS for key in m.keys[j] for n in m.sizes[j, key]]
    m.one_ending = pyo.Constraint(
        pyo.Set(initialize=final, dimen=3, ordered=True),
        rule=lambda m, j, key, n: sum(of_state.get((j, key, n), []), 0.0) == m.run[j, m.last[j], key, n],
    )
    m.finish_or_give_up = pyo.Constraint(m.JOBS, rule=lambda m, j: m.finish[j] <= m.none[j, m.last[j]])
    # The tolerance of "all" stands alone: as a coefficient, 1 - 5e-10, it has made HiGHS 1.15 call a worse plan optimal.
    ended = {j: m.finish[j] + 1.0 - m.none[j, m.last[j]] for j in m.JOBS}
    m.all_done = pyo.Constraint(
        m.JOBS,
        rule=lambda m, j: (
            m.done[j] + m.work[j, m.last[j]] + sum(of_job[j], 0.0) + (1.0 - WHOLE)
            >= ended[j] - most_owed(m.problem, m.problem.jobs[j]) * (1.0 - ended[j])
        ),
    )


def most_owed(problem: JointProblem, job: JointJob) -> float:
    """Workloads by which progress can lie below 0 at the end: a change that lasts longer than a slot owes some (M2.4)."""
    hours, owed = problem.slot_hours, 0.0
    for run in job.runs.values():
        for n in range(run.n_min, run.n_max + 1):
            gain = run.throughput.rate(n) * hours / run.workload
            owed = max(owed, -gain * min(shares(job, run, n, hours)))
    return max(0.0, -job.done / job.job.workload) + problem.slots * owed


def add_money(m: pyo.ConcreteModel) -> None:
    """paid(j): on-demand for all, less the saving of those on spot, plus moves; later(j): the ending; counted(j): by caps."""
    m.later = pyo.Expression(m.JOBS, rule=later)
    m.paid = pyo.Expression(m.JOBS, rule=paid)
    m.counted = pyo.Expression(
        m.JOBS,
        rule=lambda m, j: m.paid[j] + (m.later[j] if m.problem.reaches_deadline(m.problem.jobs[j]) else 0.0),
    )


def paid(m: Any, j: int) -> Any:
    """USD of one job in its window, moves included."""
    problem, job = m.problem, m.problem.jobs[j]
    terms = []
    for i in range(m.last[j]):
        for key in m.keys[j]:
            slot_usd = problem.markets[key].on_demand_usd * problem.slot_hours
            terms += [n * slot_usd * m.run[j, i, key, n] for n in m.sizes[j, key]]
            if job.move_usd:
                terms += [job.move_usd * m.moved[j, i, key, n] for n in m.sizes[j, key]]
            if (j, i, key) in m.SPOTS:
                terms.append(-saving(problem, i, key) * m.spot[j, i, key])
    return sum(terms)


def later(m: Any, j: int) -> Any:
    """USD of one job after its window: k slots on demand, and a move if there is one."""
    hours, job = m.problem.slot_hours, m.problem.jobs[j]
    terms = [
        k * n * m.problem.markets[key].on_demand_usd * hours * m.ending[jj, key, n, k]
        for jj, key, n, k in m.ENDINGS
        if jj == j
    ]
    if job.move_usd:
        terms += [job.move_usd * m.moved[j, m.last[j], key, n] for key in m.keys[j] for n in m.sizes[j, key]]
    return sum(terms, 0.0)


def counts(m: Any, i: int, key: str) -> Any:
    """sum_j spot(j, i, m) <= available(i, m)."""
    held = [m.spot[at] for at in m.SPOTS if at[1] == i and at[2] == key]
    return sum(held) <= int(m.problem.markets[key].available[i]) if held else pyo.Constraint.Skip


def job_cap(m: Any, j: int) -> Any:
    """counted(j) <= what is left of the job's cap."""
    left = m.problem.jobs[j].left_usd
    return m.counted[j] / m.unit_usd <= left / m.unit_usd if left < float("inf") else pyo.Constraint.Skip


def team_cap(m: Any, name: str) -> Any:
    """sum over the team's jobs of counted(j) <= what is left of the team's cap."""
    members = [m.counted[j] for j in m.JOBS if m.problem.jobs[j].team == name]
    return (
        sum(members) / m.unit_usd <= m.problem.teams[name].left_usd / m.unit_usd
        if members
        else pyo.Constraint.Skip
    )


def worth_of(m: Any, j: int) -> Any:
    """priority_j (v finish + V of the ending - paid - later), in units of money."""
    job = m.problem.jobs[j]
    value = job.job.value * m.finish[j] + sum(
        (m.value_of[at] * m.ending[at] for at in m.ENDINGS if at[0] == j), 0.0
    )
    return job.priority / m.unit_usd * (value - m.paid[j] - m.later[j])


def saving(problem: JointProblem, i: int, key: str) -> float:
    """USD that a spot instance saves over on-demand in a slot."""
    window = problem.markets[key]
    return float(window.on_demand_usd - window.price[i]) * window.slot_hours


def possible_endings(problem: JointProblem, job: JointJob) -> dict[tuple[str, int, int], float]:
    """V(T + k) in USD by (market, n, k) for those k that can be the slots needed and are worth their own cost."""
    hours, end, run = problem.slot_hours, job.slot + problem.window(job), job.job
    rates = {
        key: [own.throughput.rate(n) * hours for n in range(own.n_min, own.n_max + 1)]
        for key, own in job.runs.items()
    }
    best = max(max(gains) for gains in rates.values())
    most_left = run.workload * (1.0 + most_owed(problem, job)) - max(job.done, 0.0)
    least_left = run.workload * WHOLE - job.done - problem.window(job) * best
    endings = {}
    for key, own in sorted(job.runs.items()):
        price = problem.markets[key].on_demand_usd * hours
        for n, gain in zip(range(own.n_min, own.n_max + 1), rates[key], strict=True):
            low = slots_needed(least_left, gain, gain)
            for k in range(low, slots_needed(most_left, min(shares(job, own, n, hours)) * gain, gain) + 1):
                if run.completion_value(end + k) - k * n * price > 0.0:
                    endings[key, n, k] = run.completion_value(end + k)
    return endings


def route_of(m: Any, problem: JointProblem, j: int) -> Route:
    """The route that the variables of job ``j`` hold, with numbers of its own; nothing is held after the finish."""
    job, hours = problem.jobs[j], problem.slot_hours
    done, at, spent, places = job.done, (job.market_previous, job.n_previous), 0.0, []
    for i in range(m.last[j]):
        state = _chosen(m, j, i)
        if state is None or finished(done, job.job.workload):
            places.append(NOWHERE)
            at = (None, 0)
            continue
        key, n = state
        spot = round(pyo.value(m.spot[j, i, key])) if (j, i, key) in m.SPOTS else 0
        spent += n * problem.markets[key].on_demand_usd * hours - spot * saving(problem, i, key)
        spent += job.move_usd if job.moves(key, at) else 0.0
        done += job.efficiency(key, n, at, hours) * job.runs[key].throughput.rate(n) * hours
        places.append(Place(key, Allocation(n - spot, spot)))
        at = (key, n)
    ending, cost, value = NO_ENDING, 0.0, job.job.value if finished(done, job.job.workload) else 0.0
    final = _chosen(m, j, m.last[j])
    if final is not None and not finished(done, job.job.workload):
        key, n = final
        k = next(
            k
            for jj, kk, nn, k in m.ENDINGS
            if (jj, kk, nn) == (j, key, n) and pyo.value(m.ending[jj, kk, nn, k]) > 0.5
        )
        ending = Ending(key, n, k)
        cost = k * n * problem.markets[key].on_demand_usd * hours + (
            job.move_usd if job.moves(key, at) else 0.0
        )
        value = job.job.completion_value(job.slot + m.last[j] + k)
    return Route(
        job=job.name,
        places=tuple(places),
        ending=ending,
        paid_usd=spent,
        ending_usd=cost,
        capped_usd=spent + (cost if problem.reaches_deadline(job) else 0.0),
        value_usd=value,
        end_progress=min(done, job.job.workload),
    )


def _chosen(m: Any, j: int, i: int) -> tuple[str, int] | None:
    """The state of a stage, None for holding nothing."""
    if pyo.value(m.none[j, i]) > 0.5:
        return None
    return max(
        ((key, n) for key in m.keys[j] for n in m.sizes[j, key]),
        key=lambda state: pyo.value(m.run[j, i, state[0], state[1]]),
    )
