"""The Pyomo model with HiGHS compared with enumeration and the label solver; every way a solve can end (M3.1, M3.2, M3.4)."""

import threading
from dataclasses import replace

import numpy as np
import pyomo.environ as pyo
import pytest
from make import make_job, make_window
from window_cases import OWING, SHARES, by_enumeration, flat_problem, programs, random_problem, random_table

from slackwater.optimization.job.definition import Amdahl, Linear
from slackwater.optimization.window.audit import audit_plan
from slackwater.optimization.window.plan import EndRule, ExpectedToGo, HorizonProblem, PlanStatus
from slackwater.optimization.window.solver import (
    Limits,
    horizon_model,
    plan_problem,
    possible_endings,
    relative_gap,
    solve,
)
from slackwater.optimization.window.twin import solve_window
from slackwater.warehouse.errors import JobError, SettingsError

RULES = list(EndRule)
EXACT = Limits(seconds=60.0, relative_gap=1e-9)


def hard_problem(end_rule=EndRule.ON_DEMAND_TO_GO):
    """Return a problem with w = 12, N_max = 16 that is not solved at the root."""
    job = make_job(
        name="hard",
        workload=130.0,
        deadline_slots=30,
        n_max=16,
        throughput=Amdahl(parallel=0.93, scale=1.1),
        mu_up=0.6,
        mu_down=0.95,
        value=300.0,
    )
    rng = np.random.default_rng(0)
    window = make_window(rng.uniform(0.2, 0.8, 12), rng.integers(0, 17, 12))
    return HorizonProblem(
        job=job,
        slot=10,
        done=40.0,
        n_previous=5,
        window=window,
        end_rule=end_rule,
        expected=random_table(rng, job),
    )


def same_as_twin(case, plan):
    twin = solve_window(case)
    assert plan.status is PlanStatus.OPTIMAL, case
    scale = case.job.value + twin.cost_usd + 1e-9
    assert plan.objective == pytest.approx(twin.objective, rel=1e-6, abs=1e-7 * scale), case
    assert (
        plan.end_progress == pytest.approx(twin.end_progress, rel=1e-6) or case.end_rule is not EndRule.TARGET
    )
    audit_plan(case, plan)


@pytest.mark.parametrize("mus", [SHARES, OWING])
@pytest.mark.parametrize("end_rule", RULES)
def test_equals_enumeration_on_tiny_programs(end_rule, mus):
    for case in programs(15, seed=21, end_rule=end_rule, w=3, n_max=3, mus=mus):
        plan = plan_problem(case, EXACT)
        objective, progress = by_enumeration(case)
        assert plan.status is PlanStatus.OPTIMAL
        assert plan.objective == pytest.approx(objective, rel=1e-6, abs=1e-7 * (case.job.value + 1)), case
        if progress is not None:
            assert plan.end_progress == pytest.approx(progress, rel=1e-8, abs=1e-8 * case.job.workload)
        audit_plan(case, plan)


def test_nothing_is_held_at_a_loss_where_the_future_is_flat():
    """Expected value to go of 0, n_min = n_max = 2, value 0.3: 0 is correct, and -0.2 was once called optimal at "gap 0"."""
    rng = np.random.default_rng(31)
    for _ in range(25):
        case = flat_problem(rng)
        plan = plan_problem(case, EXACT)
        same_as_twin(case, plan)
        assert plan.objective >= 0.0


@pytest.mark.parametrize("end_rule", RULES)
def test_equals_the_twin_on_medium_programs(end_rule):
    for case in programs(8, seed=22, end_rule=end_rule, w=5, n_max=8):
        same_as_twin(case, plan_problem(case, EXACT))


@pytest.mark.parametrize("end_rule", RULES)
def test_equals_the_twin_where_a_slot_may_owe_progress(end_rule):
    for case in programs(6, seed=27, end_rule=end_rule, w=5, n_max=6, mus=OWING):
        same_as_twin(case, plan_problem(case, EXACT))


@pytest.mark.slow
@pytest.mark.parametrize("mus", [SHARES, OWING])
@pytest.mark.parametrize("end_rule", RULES)
def test_equals_the_twin_on_thousands(end_rule, mus):
    for case in programs(500, seed=23, end_rule=end_rule, w=4, n_max=6, mus=mus):
        same_as_twin(case, plan_problem(case, EXACT))


@pytest.mark.slow
@pytest.mark.parametrize("end_rule", RULES)
def test_equals_the_twin_up_to_twelve_slots_and_sixteen_instances(end_rule):
    """A solver that runs out of time must not contradict the label solver: its bracket contains the exact objective."""
    for case in programs(120, seed=28, end_rule=end_rule, w=12, n_max=16):
        plan = plan_problem(case, Limits(seconds=20.0, relative_gap=1e-9))
        if plan.status is PlanStatus.OPTIMAL:
            same_as_twin(case, plan)
            continue
        twin, slack = solve_window(case), 1e-6 * (1 + case.job.value)
        low, high = sorted((plan.objective, plan.bound))
        assert plan.status is PlanStatus.TIME_LIMIT
        assert low - slack <= twin.objective <= high + slack


@pytest.mark.parametrize("end_rule", RULES)
def test_a_finished_job_needs_no_solver(end_rule):
    case = replace(hard_problem(end_rule), done=131.0)
    plan = plan_problem(case)
    assert (plan.status, plan.cost_usd, plan.seconds) == (PlanStatus.OPTIMAL, 0.0, 0.0)
    audit_plan(case, plan)


def test_the_ending_is_bounded_from_both_sides():
    case = hard_problem()
    endings = possible_endings(case)
    assert endings
    assert all(worth > 0 for worth in endings.values())
    wide = possible_endings(replace(case, window=case.window.cut(0, 1)))
    assert {k for j, k in wide if j == 16}.isdisjoint({1, 2})


def test_stops_at_a_node_limit_with_an_incumbent_and_a_bound():
    case = hard_problem()
    best = solve_window(case)
    plan = plan_problem(case, Limits(nodes=1))
    assert plan.status is PlanStatus.TIME_LIMIT
    assert plan.objective <= best.objective + 1e-9 <= plan.bound + 1e-6
    assert plan.gap == pytest.approx((plan.bound - plan.objective) / plan.bound)
    audit_plan(case, plan)


@pytest.mark.parametrize("end_rule", RULES)
def test_without_an_incumbent_there_is_no_plan(end_rule):
    plan = plan_problem(hard_problem(end_rule), Limits(seconds=1e-9))
    assert plan.status is PlanStatus.NO_INCUMBENT
    assert plan.allocations == ()
    assert np.isnan(plan.objective)
    audit_plan(hard_problem(end_rule), plan)


def small_model():
    m = pyo.ConcreteModel()
    m.x = pyo.Var(domain=pyo.Integers, bounds=(0, 10))
    m.y = pyo.Var(domain=pyo.Integers, bounds=(0, 10))
    m.limit = pyo.Constraint(expr=2 * m.x + 3 * m.y <= 12.5)
    m.most = pyo.Objective(expr=3 * m.x + 4 * m.y, sense=pyo.maximize)
    return m


def test_optimal_leaves_the_answer_in_the_model():
    m = small_model()
    solution = solve(m, Limits())
    assert solution.status is PlanStatus.OPTIMAL
    assert solution.objective == pytest.approx(18.0)
    assert solution.gap == pytest.approx(0.0, abs=1e-6)
    assert pyo.value(m.x) == pytest.approx(6.0)


def test_infeasible_is_a_status():
    m = small_model()
    m.more = pyo.Constraint(expr=m.x + m.y >= 30)
    solution = solve(m, Limits())
    assert solution.status is PlanStatus.INFEASIBLE
    assert solution.objective is None
    assert solution.gap == float("inf")


def test_unbounded_is_a_solver_error_not_an_exception():
    m = pyo.ConcreteModel()
    m.x = pyo.Var(domain=pyo.NonNegativeIntegers)
    m.most = pyo.Objective(expr=m.x, sense=pyo.maximize)
    solution = solve(m, Limits())
    assert solution.status is PlanStatus.ERROR


def test_a_model_the_solver_cannot_take_is_a_solver_error_not_an_exception():
    m = small_model()
    m.curved = pyo.Constraint(expr=m.x**3 <= 2)
    solution = solve(m, Limits())
    assert solution.status is PlanStatus.ERROR


def test_a_solver_that_contradicts_the_plan_is_an_error(monkeypatch):
    import slackwater.optimization.window.solver as solver

    honest = solver.solve
    monkeypatch.setattr(
        solver,
        "solve",
        lambda m, limits: replace(honest(m, limits), objective=honest(m, limits).objective * 1.01),
    )
    plan = plan_problem(programs(1, seed=24, end_rule=EndRule.ON_DEMAND_TO_GO, w=3, n_max=3)[0])
    assert plan.status is PlanStatus.ERROR
    assert plan.allocations == ()


def test_a_bound_passed_by_rounding_is_met(monkeypatch):
    """Without rounding up, the bound of a program of value 0 was -2.5e-10 units of money, below the plan's 0."""
    import slackwater.optimization.window.solver as solver

    honest = solver.solve
    monkeypatch.setattr(
        solver, "solve", lambda m, limits: replace(honest(m, limits), bound=honest(m, limits).bound - 1e-10)
    )
    case = hard_problem()
    worthless = replace(
        case,
        job=replace(case.job, value=0.0),
        window=case.window.cut(0, 2),
        end_rule=EndRule.EXPECTED_TO_GO,
        expected=ExpectedToGo(work=np.zeros(1), value_usd=np.zeros((1, 17))),
    )
    plan = plan_problem(worthless)
    assert (plan.status, plan.objective, plan.bound) == (PlanStatus.OPTIMAL, 0.0, 0.0)
    audit_plan(worthless, plan)


def test_solves_from_several_threads():
    case = programs(1, seed=25, end_rule=EndRule.ON_DEMAND_TO_GO, w=3, n_max=4)[0]
    plans = []
    threads = [threading.Thread(target=lambda: plans.append(plan_problem(case))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {plan.objective for plan in plans} == {plan_problem(case).objective}


def test_relative_gap():
    assert relative_gap(0.0, 0.0) == 0.0
    assert relative_gap(None, 1.0) == float("inf")
    assert relative_gap(-1.0, 1.0) == 2.0


@pytest.mark.parametrize("bad", [{"seconds": 0.0}, {"relative_gap": -1.0}, {"nodes": -1}])
def test_limits_that_make_no_sense_are_refused(bad):
    with pytest.raises(SettingsError):
        Limits(**bad)


def test_refuses_what_the_twin_refuses():
    case = hard_problem()
    with pytest.raises(JobError):
        plan_problem(replace(case, slot=25))
    with pytest.raises(JobError, match="resume"):
        plan_problem(replace(case, job=replace(case.job, resumable=False)))


def test_the_ladder_links_sizes_as_one_arc_per_change_would():
    """With fixed sizes the relaxed model yields exactly the work of M2.4, as maximum and as minimum.

    It cannot misstate the cause of a change of size.
    """
    rng = np.random.default_rng(26)
    for _ in range(5):
        case = random_problem(rng, w=4, n_max=5, end_rule=EndRule.TARGET)
        job = replace(case.job, throughput=Linear(), workload=1e3, mu_up=0.6, mu_down=0.5)
        case = replace(case, job=job, done=0.0)
        model = horizon_model(case)
        chosen = rng.integers(0, len(model.size), 4)
        chosen = chosen[: len(case.window)]
        for i, j in enumerate(chosen):
            model.add_component(f"fix{i}", pyo.Constraint(expr=model.run[i, int(j)] == 1))
        pyo.TransformationFactory("core.relax_integer_vars").apply_to(model)
        z, before = 0.0, case.n_previous
        for j in chosen:
            n = int(model.size[j])
            z += job.efficiency(n, before) * n * case.window.slot_hours if n else 0.0
            before = n
        for sense in (pyo.maximize, pyo.minimize):
            model.progress.sense = sense
            assert solve(model, Limits()).objective == pytest.approx(z / 1e3, abs=1e-9)
