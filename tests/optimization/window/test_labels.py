"""The exact label solver compared with plain enumeration, and properties of every optimum (M3.2, M3.3)."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_window
from window_cases import OWING, SHARES, by_enumeration, end_worth, programs, random_problem

import slackwater.optimization.window.twin as labels
from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.kernels.labels import end_value, least_loss, optimistic_at, priced_at, solve
from slackwater.optimization.kernels.labels import slot_costs as kernel_costs
from slackwater.optimization.window.audit import audit_plan
from slackwater.optimization.window.plan import (
    EndRule,
    ExpectedToGo,
    HorizonProblem,
    PlanStatus,
    sizes,
    slot_costs,
    slot_gains,
    worth,
)
from slackwater.optimization.window.twin import solve_window, terms_of
from slackwater.warehouse.errors import JobError, MarketError

RULES = list(EndRule)
WORTHS = [EndRule.ON_DEMAND_TO_GO, EndRule.EXPECTED_TO_GO]
JOB = make_job(workload=20, n_max=4, mu_up=0.9, mu_down=0.95, value=40)


def problem(end_rule=EndRule.ON_DEMAND_TO_GO, **changes):
    made = HorizonProblem(
        job=JOB,
        slot=5,
        done=9.0,
        n_previous=2,
        window=make_window([0.3, 0.4, 1.2], [4, 1, 4]),
        end_rule=end_rule,
        expected=ExpectedToGo(work=np.array([0.0, 12.0, 20.0]), value_usd=np.outer([0, 20, 38], [1.0] * 5)),
    )
    return replace(made, **changes)


def agrees(case, plan):
    objective, progress = by_enumeration(case)
    scale = case.job.value + abs(objective) + 1e-9
    assert plan.objective == pytest.approx(objective, abs=1e-8 * scale, rel=1e-8), case
    if progress is not None:
        assert plan.end_progress == pytest.approx(progress, abs=2e-9 * case.job.workload), case
    audit_plan(case, plan)


@pytest.mark.parametrize("end_rule", RULES)
def test_equals_enumeration_where_the_restart_depends_on_the_size(end_rule):
    rng = np.random.default_rng(12)
    for case in programs(100, seed=12, end_rule=end_rule, w=3, n_max=3):
        shares = rng.choice([1.0, 0.9, 0.4, -0.5], (2, case.job.n_max + 1)).tolist()
        job = replace(case.job, mu_up=tuple(shares[0]), mu_down=tuple(shares[1]))
        agrees(replace(case, job=job), solve_window(replace(case, job=job)))


@pytest.mark.parametrize("mus", [SHARES, OWING])
@pytest.mark.parametrize("end_rule", RULES)
def test_equals_enumeration_on_tiny_programs(end_rule, mus):
    for case in programs(200, seed=11, end_rule=end_rule, w=3, n_max=3, mus=mus):
        agrees(case, solve_window(case))


@pytest.mark.slow
@pytest.mark.parametrize("mus", [SHARES, OWING])
@pytest.mark.parametrize("end_rule", RULES)
def test_equals_enumeration_on_thousands(end_rule, mus):
    for case in programs(3000, seed=12, end_rule=end_rule, w=3, n_max=3, mus=mus):
        agrees(case, solve_window(case))


@pytest.mark.parametrize("mus", [SHARES, OWING])
@pytest.mark.parametrize("end_rule", WORTHS)
def test_kernel_end_value_is_the_end_rule(end_rule, mus):
    rng = np.random.default_rng(3)
    for _ in range(200):
        case = random_problem(rng, w=2, n_max=6, end_rule=end_rule, mus=mus)
        terms, job = terms_of(case), case.job
        z, j = float(rng.uniform(-0.5, 1.01)) * job.workload, int(rng.integers(0, len(sizes(job))))
        told = end_worth(case, z, int(sizes(job)[j]), case.slot + 2)
        assert end_value(terms, terms.line, z, j) == pytest.approx(told, rel=1e-9, abs=1e-9)


def test_kernel_slot_costs_are_those_of_the_model():
    for case in programs(50, seed=9, end_rule=EndRule.TARGET, w=6, n_max=8):
        made = kernel_costs(terms_of(case), case.window.price, case.window.available)
        assert made == pytest.approx(slot_costs(case.job, case.window), rel=1e-15)


@pytest.mark.parametrize("mus", [SHARES, OWING])
@pytest.mark.parametrize("end_rule", WORTHS)
def test_optimistic_bound_is_never_below_what_a_sequence_gets(end_rule, mus):
    rng = np.random.default_rng(4)
    for _ in range(150):
        case = random_problem(rng, w=4, n_max=5, end_rule=end_rule, mus=mus)
        job, cost, terms = case.job, slot_costs(case.job, case.window), terms_of(case)
        curves, gains = (
            least_loss(terms, cost, terms.line - case.done),
            slot_gains(job, case.window.slot_hours),
        )
        chosen = rng.integers(0, gains.size, 4)
        z, before, paid = case.done, case.n_previous, [0.0]
        states = []
        for i, j in enumerate(chosen):
            states.append((i, z))
            n = int(terms.sizes[j])
            z += job.efficiency(n, before) * gains[j]
            before = n
            paid.append(paid[-1] + cost[i, j])
        total = end_worth(case, z, before, case.slot + 4)
        for i, at in states:
            if at < terms.line:
                rest, got = terms.line - at, total - (paid[-1] - paid[i]) - 1e-9 * (1 + job.value)
                assert optimistic_at(terms, curves, i, rest) >= got
                if i > 0:
                    assert max(priced_at(curves, i, chosen[i - 1], rest), curves.floor_usd) >= got


@pytest.mark.parametrize("end_rule", RULES)
@pytest.mark.parametrize("done", [20.0, 20.0 * (1 - 1e-12), 23.0])
def test_a_finished_job_holds_and_pays_nothing(end_rule, done):
    plan = solve_window(problem(end_rule, done=done))
    assert plan.allocations == (Allocation(0, 0),) * 3
    assert plan.cost_usd == 0.0
    assert plan.objective == (40.0 if end_rule in WORTHS else 0.0)
    audit_plan(problem(end_rule, done=done), plan)


def test_finishing_within_the_window_gets_the_full_value_and_pays_nothing_after():
    case = problem(done=17.0, window=make_window([0.3, 0.1, 0.2], [4, 4, 4]), n_previous=3)
    plan = solve_window(case)
    # Waiting a slot and then using spot at 0.1: with mu_up 0.9 four instances do 3.6 of the 3 units left.
    assert plan.allocations == (Allocation(0, 0), Allocation(0, 4), Allocation(0, 0))
    assert plan.objective == pytest.approx(40 - 0.4)


def test_a_job_worth_nothing_is_given_up():
    case = problem(job=replace(JOB, value=0.0))
    assert solve_window(case).allocations == (Allocation(0, 0),) * 3
    assert solve_window(case).objective == 0.0


def test_no_progress_possible_costs_nothing():
    stuck = replace(JOB, mu_up=0.0, n_max=1)
    case = problem(EndRule.TARGET, job=stuck, n_previous=0, window=make_window([0.3], [1]), done=2.0)
    plan = solve_window(case)
    assert plan.allocations == (Allocation(0, 0),)
    assert (plan.cost_usd, plan.end_progress) == (0.0, 2.0)


def test_refuses_a_window_past_the_deadline():
    with pytest.raises(JobError, match="cut the window"):
        solve_window(problem(slot=8))


def test_refuses_spot_for_a_job_that_cannot_resume():
    once = replace(JOB, resumable=False)
    with pytest.raises(JobError, match="resume"):
        solve_window(problem(job=once))
    on_demand = solve_window(problem(job=once, window=make_window([1.2, 1.2, 1.2], [4, 4, 4])))
    assert sum(a.spot for a in on_demand.allocations) == 0


@pytest.mark.parametrize(
    "bad",
    [
        make_window([], []),
        replace(make_window([0.3, 0.4], [1, 1]), price=np.array([0.3, np.nan])),
        replace(make_window([0.3, 0.4], [1, 1]), price=np.array([0.3, -0.1])),
        replace(make_window([0.3, 0.4], [1, 1]), available=np.array([1, -1])),
        replace(make_window([0.3, 0.4], [1, 1]), available=np.array([1])),
    ],
)
def test_refuses_a_malformed_window(bad):
    with pytest.raises(MarketError):
        solve_window(problem(window=bad))


def test_arrays_of_any_kind_are_read_alike_and_compiled_once():
    plain = problem(window=make_window([0.5, 0.25, 1.25], [4, 1, 4]))
    known = len(solve.signatures)
    narrow = plain.window.price.astype(np.float32)
    narrow.flags.writeable = False
    other = replace(plain.window, price=narrow, available=plain.window.available.astype(np.int32)[::1])
    assert solve_window(replace(plain, window=other)) == solve_window(plain)
    for end_rule in RULES:
        solve_window(problem(end_rule))
    assert len(solve.signatures) == max(known, 1)


@pytest.mark.parametrize("end_rule", RULES)
def test_out_of_labels_says_so_and_keeps_a_true_bound(end_rule, monkeypatch):
    rng = np.random.default_rng(8)
    seen = 0
    for _ in range(30):
        case = random_problem(rng, w=8, n_max=8, end_rule=end_rule)
        best = solve_window(case)
        monkeypatch.setattr(labels, "LABEL_LIMIT", 15)
        plan = solve_window(case)
        monkeypatch.undo()
        audit_plan(case, plan)
        if plan.status is PlanStatus.OPTIMAL:
            assert plan.objective == pytest.approx(best.objective)
            continue
        seen += 1
        slack = 1e-9 * (1 + case.job.value)
        sign = 1 if end_rule in WORTHS else -1
        assert sign * plan.objective <= sign * best.objective + slack <= sign * plan.bound + 2 * slack
    assert seen > 5


@pytest.mark.parametrize("end_rule", RULES)
@pytest.mark.parametrize("spot", [[3, 3, 2], [0, 0, 0], [4, 1, 3], [2, 2, 2]])
def test_of_plans_worth_the_same_it_is_the_one_that_pays_least_and_then_earliest(end_rule, spot):
    """On-demand costs the same in every slot, so when to buy it is a tie that rounding must not settle."""
    job = replace(JOB, workload=30, deadline_slots=12, value=32.0)
    table = ExpectedToGo(work=np.array([0.0, 15.0, 30.0]), value_usd=np.outer([0, 15, 30], [1.0] * 5))
    for done in (0.0, 1.35, 9.0):
        case = problem(
            end_rule, job=job, slot=4, done=done, window=make_window([0.3, 0.3, 0.3], spot), expected=table
        )
        plan, held = solve_window(case), sizes(job)
        every = [worth(case, chosen) for chosen in itertools.product(held.tolist(), repeat=3)]
        if end_rule is EndRule.TARGET:
            reach = max(one.end_progress for one in every)
            every = [one for one in every if one.end_progress >= reach - 1e-9 * job.workload]
            best = min(one.objective for one in every)
        else:
            best = max(one.objective for one in every)
        paid = {
            one.allocations: [1.0 * a.on_demand + 0.3 * a.spot for a in one.allocations]
            for one in every
            if abs(one.objective - best) < 1e-9
        }

        def weighed(allocations, paid=paid):
            return sum(usd * (1 + i / 3) for i, usd in enumerate(paid[allocations])) + sum(paid[allocations])

        assert plan.allocations in paid
        assert weighed(plan.allocations) == pytest.approx(min(map(weighed, paid)), abs=1e-9)


def test_a_tie_is_settled_by_later_slots_and_not_by_rounding():
    """In this window the last bit of a sum decided whether the job bought on demand or waited for later spot."""
    job = make_job(name="tie", deadline_slots=20, mu_up=0.9, mu_down=0.95, value=41.4375)
    market = make_window(0.195, np.array([3, 3, 2, 3, 3]), on_demand_usd=0.65, slot_hours=0.5)
    plan = solve_window(
        HorizonProblem(job=job, slot=1, done=1.35, n_previous=3, window=market, end_rule=WORTHS[0])
    )
    assert plan.objective == pytest.approx(19.2725)
    assert plan.cost_usd < 2.0
    assert sum(one.on_demand for one in plan.allocations) <= 1
