"""The horizon program of M3.1 in Pyomo, read from top to bottom: variables, one function per constraint family, objectives.

Sizes are numbered j = 0..J: s_0 = 0 and s_1..s_J = n_min..n_max. In slot i = 0..w-1 the job runs on size j for one of three
reasons, each a binary: scaled up to it, kept it, scaled down to it. Their sum is the choice "n = s_j", so any throughput is a
coefficient (M2.2) and the product of a size and its efficiency (M2.4) is linear without a big constant.

What links two slots is a *ladder*: whoever leaves a size upwards climbs rung by rung to a larger one, whoever leaves
downwards descends. With 7 columns a size and slot it is as tight as one arc per change n -> n' (J^2 of them), because what
a slot yields depends on where one arrives and in which direction only.

Measured side by side on 20 programs of w = 5, N_max = 16 (five throughputs, gap 1e-6, a busy machine), median and sum of solve
seconds: ladder 0.42 and 17.0, n-indexed choice with big constants for the direction 0.50 and 18.2, one arc per change 0.55
and 22.2; on four programs of w = 12 the ladder proved all and both others left one open after 15 s.

With on-demand to go (M3.3b) slot w is the ending: the size n = s_j and the number of slots k that on-demand runs after the window.
With expected to go (M3.3c) the last slot's size picks a column of the table, and a binary picks the concave piece of that column
in which the progress lies; inside a piece the points' weights need no binary, because more worth is what is sought.

Money is in units of ``unit_usd``, work in units of the workload, so that the solver's tolerances mean the same for every job.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyomo.environ as pyo

from optimization.job.definition import TOLERANCE
from optimization.kernels.rules import after_growing, after_shrinking, least_efficiency, slots_needed
from optimization.window.plan import EndRule, HorizonProblem, concave_pieces, sizes, slot_costs, slot_gains
from warehouse.errors import JobError

#: Share of the workload that counts as all of it: between 1 and what `finished` accepts, so that neither side's rounding matters.
WHOLE = 1.0 - TOLERANCE / 2.0


def horizon_model(problem: HorizonProblem) -> pyo.ConcreteModel:
    """The program of M3.1 with the end rule of ``problem`` (M3.3).

    On-demand to go, expected to go: objective ``worth`` (maximise). Target: objective ``progress`` (maximise) is active;
    `require_progress` then fixes what was reached and activates ``paid`` (minimise). Objectives are in units of
    ``unit_usd`` or of the workload.
    """
    m = pyo.ConcreteModel(name="horizon")
    m.problem = problem
    add_data(m, problem)
    add_choice(m)
    m.one_size = pyo.Constraint(m.STAGES, rule=one_size)
    m.leaving = pyo.Constraint(m.CHANGES, m.SIZES, rule=leaving)
    m.climbing = pyo.Constraint(m.CHANGES, m.SIZES, rule=climbing)
    m.arriving_up = pyo.Constraint(m.CHANGES, m.SIZES, rule=arriving_up)
    m.descending = pyo.Constraint(m.CHANGES, m.SIZES, rule=descending)
    m.arriving_down = pyo.Constraint(m.CHANGES, m.SIZES, rule=arriving_down)
    fix_first_slot(m, problem)
    if problem.end_rule is EndRule.ON_DEMAND_TO_GO:
        add_ending(m, problem)
    elif problem.end_rule is EndRule.EXPECTED_TO_GO:
        add_table(m, problem)
    else:
        add_target(m)
    return m


def require_progress(m: pyo.ConcreteModel, progress: float) -> None:
    """Second solve of the target rule: at least ``progress`` work units, now at the least cost (M3.3a)."""
    m.enough = pyo.Constraint(expr=m.done >= progress / m.workload - TOLERANCE / 2.0)
    m.progress.deactivate()
    m.paid.activate()


def chosen_sizes(m: pyo.ConcreteModel) -> list[int]:
    """The sizes n per slot that the variables hold."""
    return [int(m.size[max(m.SIZES, key=lambda j: pyo.value(m.run[i, j]))]) for i in m.SLOTS]


def add_data(m: pyo.ConcreteModel, problem: HorizonProblem) -> None:
    """Index sets and numbers: ``gain[j]`` in workloads, ``cost[i, j]`` in units of money for the cheapest split (M3.2)."""
    job, window = problem.job, problem.window
    to_go = problem.end_rule is EndRule.ON_DEMAND_TO_GO
    m.workload = job.workload
    m.unit_usd = max(job.value, job.n_max * len(window) * window.on_demand_usd * window.slot_hours)
    m.size = sizes(job)
    m.gain = slot_gains(job, window.slot_hours) / job.workload
    m.cost = slot_costs(job, window) / m.unit_usd
    m.top = len(m.size) - 1
    m.SLOTS = pyo.RangeSet(0, len(window) - 1)
    m.STAGES = pyo.RangeSet(0, len(window) if to_go else len(window) - 1)
    m.CHANGES = pyo.RangeSet(1, m.STAGES.last())
    m.SIZES = pyo.RangeSet(0, m.top)


def add_choice(m: pyo.ConcreteModel) -> None:
    """Binaries for why a stage runs on a size; flows of the ladder between two stages; work and payment they add up to."""
    restart = m.problem.job.restart
    growing = [after_growing(restart, int(n)) for n in m.size]
    shrinking = [after_shrinking(restart, int(n)) for n in m.size]
    m.up = pyo.Var(m.STAGES, m.SIZES, domain=pyo.Binary)
    m.kept = pyo.Var(m.STAGES, m.SIZES, domain=pyo.Binary)
    m.down = pyo.Var(m.STAGES, m.SIZES, domain=pyo.Binary)
    m.run = pyo.Expression(m.STAGES, m.SIZES, rule=lambda m, i, j: m.up[i, j] + m.kept[i, j] + m.down[i, j])
    for name in ("leave_up", "leave_down", "climb", "descend"):
        m.add_component(name, pyo.Var(m.CHANGES, m.SIZES, bounds=(0.0, 1.0)))
    m.work = pyo.Expression(
        m.STAGES,
        rule=lambda m, i: sum(
            m.gain[j] * (growing[j] * m.up[i, j] + m.kept[i, j] + shrinking[j] * m.down[i, j])
            for j in m.SIZES
            if j
        ),
    )
    m.done = pyo.Expression(expr=m.problem.done / m.workload + sum(m.work[i] for i in m.SLOTS))
    m.spent = pyo.Expression(expr=sum(m.cost[i, j] * m.run[i, j] for i in m.SLOTS for j in m.SIZES if j))


def one_size(m: Any, i: int) -> Any:
    """sum_j run(i, j) = 1."""
    return sum(m.run[i, j] for j in m.SIZES) == 1


def leaving(m: Any, i: int, j: int) -> Any:
    """run(i-1, j) = kept(i, j) + leave_up(i, j) + leave_down(i, j)."""
    return m.run[i - 1, j] == m.kept[i, j] + m.leave_up[i, j] + m.leave_down[i, j]


def climbing(m: Any, i: int, j: int) -> Any:
    """climb(i, j) = climb(i, j-1) + leave_up(i, j) - up(i, j), and nobody climbs past the top."""
    below = m.climb[i, j - 1] if j > 0 else 0.0
    above = m.climb[i, j] if j < m.top else 0.0
    return above == below + m.leave_up[i, j] - m.up[i, j]


def arriving_up(m: Any, i: int, j: int) -> Any:
    """up(i, j) <= climb(i, j-1): one scales up to a size from below it."""
    return m.up[i, j] <= (m.climb[i, j - 1] if j > 0 else 0.0)


def descending(m: Any, i: int, j: int) -> Any:
    """descend(i, j) = descend(i, j+1) + leave_down(i, j) - down(i, j), and nobody descends past the bottom."""
    above = m.descend[i, j + 1] if j < m.top else 0.0
    below = m.descend[i, j] if j > 0 else 0.0
    return below == above + m.leave_down[i, j] - m.down[i, j]


def arriving_down(m: Any, i: int, j: int) -> Any:
    """down(i, j) <= descend(i, j+1): one scales down to a size from above it."""
    return m.down[i, j] <= (m.descend[i, j + 1] if j < m.top else 0.0)


def fix_first_slot(m: pyo.ConcreteModel, problem: HorizonProblem) -> None:
    """Slot 0 compares with ``n_previous``: each size has one possible reason (M2.4)."""
    for j in m.SIZES:
        n = int(m.size[j])
        if n <= problem.n_previous:
            m.up[0, j].fix(0)
        if n != problem.n_previous:
            m.kept[0, j].fix(0)
        if n >= problem.n_previous:
            m.down[0, j].fix(0)


def add_target(m: pyo.ConcreteModel) -> None:
    """Most progress first, least cost second (M3.3a).

    Progress is not capped at the target here: a longest path through the ladder needs no branching, a capped one does.
    """
    m.progress = pyo.Objective(expr=m.done, sense=pyo.maximize)
    m.paid = pyo.Objective(expr=m.spent, sense=pyo.minimize)
    m.paid.deactivate()


def add_ending(m: pyo.ConcreteModel, problem: HorizonProblem) -> None:
    """The ending of M3.3b: finish in the window for v, or k more slots on s_j for V(t + w + k) - k s_j p_o Delta, or give up for 0.

    Size 0 in stage w is finishing or giving up. Work: z_end + mu H(s_j) Delta + (k - 1) H(s_j) Delta >= L unless given up.
    """
    endings = possible_endings(problem)
    last = m.STAGES.last()
    m.ENDINGS = pyo.Set(initialize=list(endings), dimen=2, ordered=True)
    m.ending = pyo.Var(m.ENDINGS, domain=pyo.Binary)
    m.finish = pyo.Var(domain=pyo.Binary)
    of_size: dict[int, list[Any]] = {j: [] for j in m.SIZES}
    for j, k in m.ENDINGS:
        of_size[j].append(m.ending[j, k])
    m.one_ending = pyo.Constraint(
        pyo.RangeSet(1, m.top), rule=lambda m, j: sum(of_size[j], 0.0) == m.run[last, j]
    )
    m.finish_or_give_up = pyo.Constraint(expr=m.finish <= m.run[last, 0])
    later = sum(((k - 1) * m.gain[j] * m.ending[j, k] for j, k in m.ENDINGS), 0.0)
    ended = m.finish + sum(m.run[last, j] for j in m.SIZES if j)
    m.all_done = pyo.Constraint(expr=m.done + m.work[last] + later >= WHOLE * ended)
    value = sum((endings[j, k] / m.unit_usd * m.ending[j, k] for j, k in m.ENDINGS), 0.0)
    finished_value = problem.job.completion_value(problem.slot + len(problem.window)) / m.unit_usd
    m.worth = pyo.Objective(expr=finished_value * m.finish + value - m.spent, sense=pyo.maximize)


def add_table(m: pyo.ConcreteModel, problem: HorizonProblem) -> None:
    """The ending of M3.3c: finish in the window for v, or W(z_end, n_end) from one concave piece of the column of n_end.

    piece(j, p) chooses column and piece, weight(j, p, b) are the shares of its points: z_end >= sum work(b) weight(j, p, b), or
    z_end >= L where no piece is chosen.
    """
    if problem.expected is None:
        raise JobError("a program that ends on expected to go, without its table")
    last, low = m.STAGES.last(), least_progress(problem)
    points = {
        (j, p, b): point
        for j in m.SIZES
        for p, piece in enumerate(concave_pieces(problem.expected, j, low=low, high=most_progress(problem)))
        for b, point in enumerate(piece)
    }
    m.PIECES = pyo.Set(initialize=sorted({(j, p) for j, p, _ in points}), dimen=2, ordered=True)
    m.POINTS = pyo.Set(initialize=list(points), dimen=3, ordered=True)
    m.piece = pyo.Var(m.PIECES, domain=pyo.Binary)
    m.weight = pyo.Var(m.POINTS, bounds=(0.0, 1.0))
    of_size: dict[int, list[Any]] = {j: [] for j in m.SIZES}
    of_piece: dict[tuple[int, int], list[Any]] = {piece: [] for piece in m.PIECES}
    for j, p in m.PIECES:
        of_size[j].append(m.piece[j, p])
    for j, p, b in m.POINTS:
        of_piece[j, p].append(m.weight[j, p, b])
    m.column = pyo.Constraint(m.SIZES, rule=lambda m, j: sum(of_size[j], 0.0) <= m.run[last, j])
    m.inside = pyo.Constraint(m.PIECES, rule=lambda m, j, p: sum(of_piece[j, p]) == m.piece[j, p])
    m.finish = pyo.Expression(expr=1.0 - sum(m.piece[j, p] for j, p in m.PIECES))
    reached = sum(points[at][0] / m.workload * m.weight[at] for at in m.POINTS)
    m.all_done = pyo.Constraint(expr=m.done >= reached + WHOLE * m.finish)
    worth = sum(points[at][1] / m.unit_usd * m.weight[at] for at in m.POINTS)
    finished_value = problem.job.completion_value(problem.slot + len(problem.window)) / m.unit_usd
    m.worth = pyo.Objective(expr=finished_value * m.finish + worth - m.spent, sense=pyo.maximize)


def least_progress(problem: HorizonProblem) -> float:
    """Work units the window cannot end below: every slot owes the most it can (efficiencies below 0)."""
    job, window = problem.job, problem.window
    gain = slot_gains(job, window.slot_hours).tolist()
    owed = min(least_efficiency(job.restart, n) * g for n, g in zip(sizes(job).tolist(), gain, strict=True))
    return float(problem.done + len(window) * owed)


def most_progress(problem: HorizonProblem) -> float:
    """Work units the window cannot end above: every slot at full efficiency on the best size."""
    gain = slot_gains(problem.job, problem.window.slot_hours)
    return problem.done + len(problem.window) * float(np.max(gain))


def possible_endings(problem: HorizonProblem) -> dict[tuple[int, int], float]:
    """V(t + w + k) - k s_j p_o Delta in USD by (j, k), for those k that can be the slots needed and whose worth is positive.

    The window ends between `least_progress` and `most_progress`, and that bounds k from both sides.
    """
    job, window, end = problem.job, problem.window, problem.slot + len(problem.window)
    size, gain = sizes(job), slot_gains(job, window.slot_hours)
    most_left = job.workload - least_progress(problem)
    least_left = job.workload - most_progress(problem) - TOLERANCE * job.workload
    endings = {}
    for j in range(1, len(size)):
        n, g = int(size[j]), float(gain[j])
        first = least_efficiency(job.restart, n) * g
        for k in range(slots_needed(least_left, g, g), slots_needed(most_left, first, g) + 1):
            worth = job.completion_value(end + k) - k * n * window.on_demand_usd * window.slot_hours
            if worth > 0.0:
                endings[j, k] = worth
    return endings
