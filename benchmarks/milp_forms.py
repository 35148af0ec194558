"""Alternative formulations of the horizon program (M3.1), for comparison with the model of `slackwater.optimization.window.solver`.

They differ in the constraints that link two slots (`arcs`, `direction`), or in the segments of an expected-to-go column
(`segments`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pyomo.environ as pyo

import slackwater.optimization.window.solver as program
from slackwater.optimization.kernels.rules import after_growing, after_shrinking
from slackwater.optimization.window.plan import ExpectedToGo, HorizonProblem, Point, concave_pieces
from slackwater.optimization.window.solver import add_data, add_end, horizon_model, one_size

Form = Callable[[HorizonProblem], pyo.ConcreteModel]


def arcs(problem: HorizonProblem) -> pyo.ConcreteModel:
    """Model with a binary per stage and change n -> n'."""
    m, job = begun(problem), problem.job
    m.change = pyo.Var(m.STAGES, m.SIZES, m.SIZES, domain=pyo.Binary)
    # n_previous may not be among the sizes: arcs of the first slot start at 0, with the efficiency of n_previous.
    for p in m.SIZES:
        for j in m.SIZES:
            if p != 0:
                m.change[0, p, j].fix(0)
    m.run = pyo.Expression(m.STAGES, m.SIZES, rule=lambda m, i, j: sum(m.change[i, p, j] for p in m.SIZES))
    m.flow = pyo.Constraint(
        m.CHANGES, m.SIZES, rule=lambda m, i, p: m.run[i - 1, p] == sum(m.change[i, p, j] for j in m.SIZES)
    )

    def share(i: int, p: int, j: int) -> float:
        before = int(m.size[p]) if i else problem.n_previous
        return job.efficiency(int(m.size[j]), before) * float(m.gain[j])

    m.work = pyo.Expression(
        m.STAGES,
        rule=lambda m, i: sum(share(i, p, j) * m.change[i, p, j] for p in m.SIZES for j in m.SIZES if j),
    )
    return ended(m, problem)


def direction(problem: HorizonProblem) -> pyo.ConcreteModel:
    """Model with a choice of n per stage, binaries for growing and shrinking, and big-M constraints for the lost work."""
    m, job = begun(problem), problem.job
    m.run = pyo.Var(m.STAGES, m.SIZES, domain=pyo.Binary)
    m.up = pyo.Var(m.STAGES, domain=pyo.Binary)
    m.down = pyo.Var(m.STAGES, domain=pyo.Binary)
    m.work = pyo.Var(m.STAGES)
    n = {i: sum(int(m.size[j]) * m.run[i, j] for j in m.SIZES) for i in m.STAGES}
    full = {i: sum(float(m.gain[j]) * m.run[i, j] for j in m.SIZES if j) for i in m.STAGES}
    before = {i: n[i - 1] if i else problem.n_previous for i in m.STAGES}
    most = max(job.n_max, problem.n_previous)
    m.rises = pyo.Constraint(m.STAGES, rule=lambda m, i: n[i] - before[i] <= most * m.up[i])
    m.falls = pyo.Constraint(m.STAGES, rule=lambda m, i: before[i] - n[i] <= most * m.down[i])
    m.whole = pyo.Constraint(m.STAGES, rule=lambda m, i: m.work[i] <= full[i])
    for name, rule, flag in (("lost_up", after_growing, m.up), ("lost_down", after_shrinking, m.down)):
        mu = {j: rule(job.restart, int(m.size[j])) for j in m.SIZES if j}
        kept = {i: sum(mu[j] * float(m.gain[j]) * m.run[i, j] for j in mu) for i in m.STAGES}
        most_lost = max((1 - mu[j]) * float(m.gain[j]) for j in mu)
        lost = pyo.Constraint(
            m.STAGES,
            rule=lambda m, i, kept=kept, most=most_lost, flag=flag: (
                m.work[i] <= kept[i] + most * (1 - flag[i])
            ),
        )
        m.add_component(name, lost)
    return ended(m, problem)


def segments(problem: HorizonProblem) -> pyo.ConcreteModel:
    """Model of `slackwater.optimization.window.solver`, but with a binary for every segment of an expected-to-go column."""

    def cut(table: ExpectedToGo, column: int, *, low: float, high: float) -> list[list[Point]]:
        pieces = concave_pieces(table, column, low=low, high=high)
        return [[a, b] for piece in pieces for a, b in itertools.pairwise(piece)] or pieces

    with mock.patch.object(program, "concave_pieces", cut):
        return horizon_model(problem)


def begun(problem: HorizonProblem) -> pyo.ConcreteModel:
    m = pyo.ConcreteModel(name="horizon")
    m.problem = problem
    add_data(m, problem)
    return m


def ended(m: pyo.ConcreteModel, problem: HorizonProblem) -> Any:
    m.one_size = pyo.Constraint(m.STAGES, rule=one_size)
    m.done = pyo.Expression(expr=problem.done / m.workload + sum(m.work[i] for i in m.SLOTS))
    m.spent = pyo.Expression(expr=sum(m.cost[i, j] * m.run[i, j] for i in m.SLOTS for j in m.SIZES if j))
    add_end(m, problem)
    return m


FORMS: dict[str, Form] = {"ladder": horizon_model, "arcs": arcs, "direction": direction}
EXPECTED_FORMS: dict[str, Form] = {**FORMS, "segments": segments}
