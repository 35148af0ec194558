"""Joint programs: exact against enumeration and against each other, never worse than one by one, audited (M3.4, M3.5, M3.6)."""

from dataclasses import replace

import numpy as np
import pytest
from joint_cases import best_by_enumeration, contended, random_joint
from joint_program import plan_exactly
from window_cases import OWING, SHARES, random_problem

from optimization.fleet.audit import audit_joint
from optimization.fleet.prices import (
    QUICK,
    THOROUGH,
    Order,
    improved,
    plan_apart,
    plan_jointly,
    plan_one_by_one,
    ranked,
)
from optimization.fleet.problem import Ending, JointJob, JointProblem, Place, Team, spot_used, validate_joint
from optimization.fleet.search import EXACT, Search
from optimization.job.definition import Job, Linear
from optimization.market.window import market_window
from optimization.window.plan import Allocation, EndRule, PlanStatus
from optimization.window.twin import solve_window
from warehouse.errors import AuditError, JobError, MarketError


def scale(problem):
    return sum(job.priority * job.job.value for job in problem.jobs)


def one_job(problem):
    where = "zone" if problem.n_previous else None
    job = JointJob(
        name="job", runs={"zone": problem.job}, slot=problem.slot, done=problem.done,
        n_previous=problem.n_previous, market_previous=where,
    )  # fmt: skip
    return JointProblem(markets={"zone": problem.window}, jobs=(job,))


def two_on_one_market(counts=(4, 4), **changes):
    """Two alike jobs of which each would take all four spot instances."""
    window = market_window(np.full(2, 0.2), np.array(counts), on_demand_usd=1.0, slot_hours=1.0)
    run = Job(
        name="a", workload=8, deadline_slots=2, n_min=1, n_max=4, throughput=Linear(), value=20.0, gamma=2.0
    )
    jobs = tuple(JointJob(name=name, runs={"zone": run}, **changes) for name in ("a", "b"))
    return JointProblem(markets={"zone": window}, jobs=jobs)


def test_one_job_on_one_market_is_the_horizon_program():
    rng, asked = np.random.default_rng(1), 0
    for case in range(150):
        problem = random_problem(
            rng, w=int(rng.integers(1, 7)), n_max=int(rng.integers(1, 7)),
            end_rule=EndRule.ON_DEMAND_TO_GO, mus=SHARES if case % 2 else OWING,
        )  # fmt: skip
        if not problem.job.resumable or problem.done >= problem.job.workload:
            continue
        asked += 1
        searching = Search(one_job(problem), width=EXACT)
        found = searching.within(0, searching.available, np.inf)
        assert found.worth == pytest.approx(solve_window(problem).objective, abs=1e-8 * problem.job.value)
        assert found.route.utility_usd == pytest.approx(found.worth, abs=1e-8 * problem.job.value)
        assert searching.bound(0, searching.no_toll, 1.0) >= found.worth - 1e-9 * problem.job.value
    assert asked > 100


@pytest.mark.parametrize("caps", [False, True])
def test_the_exact_program_is_the_best_of_all_plans(caps):
    rng = np.random.default_rng(2)
    for _ in range(12):
        problem = random_joint(rng, jobs=2, markets=2, w=2, n_max=2, caps=caps)
        plan = plan_exactly(problem)
        audit_joint(problem, plan)
        assert plan.status is PlanStatus.OPTIMAL
        assert plan.objective == pytest.approx(best_by_enumeration(problem), abs=1e-6 * scale(problem))


@pytest.mark.parametrize("caps", [False, True])
def test_prices_come_to_the_exact_plan_and_never_below_one_by_one(caps):
    rng, gaps = np.random.default_rng(3), []
    for _ in range(8):
        problem = random_joint(rng, jobs=4, markets=2, w=4, n_max=3, caps=caps)
        exact, plan = plan_exactly(problem), plan_jointly(problem, THOROUGH)
        audit_joint(problem, plan)
        tolerance = 1e-6 * scale(problem)
        assert plan.objective <= exact.bound + tolerance
        assert plan.bound >= exact.objective - tolerance
        searching = Search(problem, cells=THOROUGH.cells, width=EXACT)
        for order in Order:
            alone = plan_one_by_one(problem, order, searching=searching)
            audit_joint(problem, alone)
            assert plan.objective >= alone.objective - 1e-9 * scale(problem)
        gaps.append((exact.objective - plan.objective) / scale(problem))
    assert np.mean(np.array(gaps) > 1e-6) <= 0.2
    assert max(gaps) < 0.02


@pytest.mark.slow
def test_the_gap_to_the_joint_optimum_over_hundreds_of_programs():
    rng, gaps, gains = np.random.default_rng(4), [], 0
    for case in range(200):
        problem = random_joint(rng, jobs=int(rng.integers(3, 7)), markets=2, w=3, n_max=3, caps=case % 3 == 0)
        problem = contended(rng, problem)
        exact, plan = plan_exactly(problem), plan_jointly(problem, THOROUGH)
        audit_joint(problem, plan)
        audit_joint(problem, exact)
        tolerance = 1e-6 * scale(problem)
        assert plan.objective - tolerance <= exact.objective <= plan.bound + tolerance
        alone = max(plan_one_by_one(problem, order).objective for order in Order)
        gains += exact.objective > alone + tolerance
        gaps.append((exact.objective - plan.objective) / scale(problem))
    assert np.mean(np.array(gaps) > 1e-6) < 0.05
    assert max(gaps) < 0.1  # few routes, whole numbers: the price of a cap may leave something over
    assert gains > 15  # the programs are such that planning together matters


def test_more_effort_buys_a_smaller_gap_and_no_worse_plan():
    problem = random_joint(np.random.default_rng(8), jobs=12, markets=3, w=5, n_max=4)
    quick, thorough = plan_jointly(problem, QUICK), plan_jointly(problem, replace(THOROUGH, width=200))
    assert thorough.gap <= quick.gap
    assert thorough.objective >= quick.objective - 1e-3 * scale(problem)
    assert quick.bound >= thorough.objective
    assert plan_jointly(problem, QUICK).objective == quick.objective


def scarce_spot(seed):
    """Three jobs that are each worth finishing and all want the same cheap spot."""
    rng = np.random.default_rng(seed)
    return contended(rng, random_joint(rng, jobs=3, markets=2, w=3, n_max=3, caps=True))


def best_one_by_one(problem):
    return max(plan_one_by_one(problem, order).objective for order in Order)


def test_planning_together_gains_and_the_bound_holds_what_was_not_found():
    gains = scarce_spot(0)
    plan = plan_jointly(gains, QUICK)
    assert plan.objective > best_one_by_one(gains) + 0.01 * scale(gains)
    misses = scarce_spot(32)
    plan, exact = plan_jointly(misses, QUICK), plan_exactly(misses)
    assert plan.objective < exact.objective - 0.01 * scale(misses)
    assert plan.bound >= exact.objective


def test_where_planning_again_finds_less_the_best_plan_one_by_one_is_kept():
    problem = scarce_spot(69)
    plan = plan_jointly(problem, replace(QUICK, whole_jobs=0))
    assert plan.objective == pytest.approx(best_one_by_one(problem))


def test_what_is_scarce_has_a_price_and_what_is_not_has_none():
    scarce = plan_jointly(two_on_one_market(), THOROUGH)
    assert scarce.objective == pytest.approx(scarce.bound)
    # One more instance saves a USD less the spot price in either slot.
    assert scarce.prices["zone"] == pytest.approx([0.8, 0.8])
    plenty = plan_jointly(two_on_one_market(counts=(8, 9)), THOROUGH)
    assert plenty.prices["zone"] == pytest.approx([0.0, 0.0])
    assert plenty.objective == pytest.approx(2 * (20 - 8 * 0.2))
    assert scarce.objective == pytest.approx(2 * 20 - 8 * 0.2 - 8 * 1.0)


def test_priority_decides_who_gets_the_spot():
    problem = two_on_one_market()
    favoured = replace(problem, jobs=(problem.jobs[0], replace(problem.jobs[1], priority=3.0)))
    plan = plan_jointly(favoured, THOROUGH)
    assert [sum(place.allocation.spot for place in route.places) for route in plan.routes] == [0, 8]
    assert plan_exactly(favoured).objective == pytest.approx(plan.objective)
    assert ranked(favoured, Order.PRIORITY) == [1, 0]


def test_caps_bind_jobs_and_teams_with_what_was_spent_and_the_ending():
    capped = two_on_one_market(cap_usd=5.0, spent_usd=3.5)
    plan = plan_jointly(capped, THOROUGH)
    assert all(route.spent_usd <= 1.5 + 1e-9 for route in plan.routes)
    assert plan.objective == pytest.approx(plan_exactly(capped).objective)
    team = replace(two_on_one_market(team="red"), teams={"red": Team(cap_usd=2.0, spent_usd=0.4)})
    plan = plan_jointly(team, THOROUGH)
    # 1.6 USD is what eight spot instance-hours cost: one job is done, the other is given up.
    assert sorted(route.utility_usd for route in plan.routes) == pytest.approx([0.0, 18.4])
    assert sum(route.spent_usd for route in plan.routes) <= 1.6 + 1e-9
    assert plan_exactly(team).objective == pytest.approx(plan.objective)


def test_moving_costs_a_restart_the_overhead_and_its_price():
    here = market_window(np.array([0.2, 0.2]), np.array([2, 0]), on_demand_usd=1.0, slot_hours=1.0)
    there = market_window(np.array([0.2, 0.2]), np.array([0, 2]), on_demand_usd=1.0, slot_hours=1.0)
    run = Job(
        name="a", workload=3.6, deadline_slots=2, n_min=1, n_max=2, throughput=Linear(), mu_up=0.9, value=9.0
    )
    free = JointProblem(
        markets={"here": here, "there": there}, jobs=(JointJob(name="a", runs={"here": run, "there": run}),)
    )
    plan = plan_jointly(free, THOROUGH)
    assert [place.market for place in plan.routes[0].places] == ["here", "there"]
    assert plan.objective == pytest.approx(9.0 - 0.8)
    for dear in (replace(free.jobs[0], move_usd=2.0), replace(free.jobs[0], move_hours=0.5)):
        stays = plan_jointly(replace(free, jobs=(dear,)), THOROUGH)
        assert len({place.market for place in stays.routes[0].places} - {None}) == 1
        assert stays.objective == pytest.approx(plan_exactly(replace(free, jobs=(dear,))).objective)
        assert stays.objective < plan.objective


def test_apart_the_jobs_ask_for_more_than_there_is():
    problem = two_on_one_market()
    apart = plan_apart(problem)
    assert spot_used(problem, apart.routes)["zone"].tolist() == [8, 8]
    with pytest.raises(AuditError, match=r"8 spot instances.*at most the 4"):
        audit_joint(problem, apart)


def test_planning_again_never_loses():
    rng = np.random.default_rng(11)
    for _ in range(10):
        problem = random_joint(rng, jobs=5, markets=2, w=3, caps=True)
        searching = Search(problem)
        first = plan_one_by_one(problem, Order.ARRIVAL, searching=searching)
        again = improved(searching, first.routes, sweeps=3)
        worth = sum(j.priority * r.utility_usd for j, r in zip(problem.jobs, again, strict=True))
        assert worth >= first.objective - 1e-9 * scale(problem)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda r: replace(r, paid_usd=r.paid_usd + 1.0), "paid in the window"),
        (lambda r: replace(r, end_progress=r.end_progress / 2), "progress"),
        (lambda r: replace(r, value_usd=r.value_usd + 1.0), "value"),
        (lambda r: replace(r, places=r.places[:1]), "1 slots"),
        (lambda r: replace(r, places=(Place("zone", Allocation(0, 5)), *r.places[1:])), "5"),
        (lambda r: replace(r, places=(Place("nowhere", Allocation(1, 0)), *r.places[1:])), "in nowhere"),
        (lambda r: replace(r, ending=Ending("zone", 4, 1)), "after the finish"),
    ],
)
def test_the_audit_finds_what_does_not_add_up(damage, said):
    problem = two_on_one_market()
    plan = plan_jointly(problem, THOROUGH)
    audit_joint(problem, plan)
    with pytest.raises(AuditError, match=said):
        audit_joint(problem, replace(plan, routes=(damage(plan.routes[0]), plan.routes[1])))


def test_the_audit_wants_an_objective_within_its_bound():
    problem = two_on_one_market()
    plan = plan_jointly(problem, THOROUGH)
    with pytest.raises(AuditError, match="objective"):
        audit_joint(problem, replace(plan, objective=plan.objective + 1.0))
    with pytest.raises(AuditError, match="at most its bound"):
        audit_joint(problem, replace(plan, bound=plan.objective - 1.0))


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda p: replace(p, jobs=()), MarketError, "0 jobs"),
        (lambda p: replace(p, jobs=(p.jobs[0], p.jobs[0])), JobError, "two jobs"),
        (lambda p: replace(p, jobs=(replace(p.jobs[0], runs={}),)), JobError, "no market"),
        (lambda p: replace(p, jobs=(replace(p.jobs[0], runs={"x": p.jobs[0].job}),)), JobError, "x"),
        (lambda p: replace(p, jobs=(replace(p.jobs[0], slot=2),)), JobError, "slot 2"),
        (lambda p: replace(p, jobs=(replace(p.jobs[0], n_previous=2),)), JobError, "2 instances before"),
        (lambda p: replace(p, jobs=(replace(p.jobs[0], done=8.0),)), JobError, "unfinished"),
        (lambda p: replace(p, jobs=(replace(p.jobs[0], team="blue"),)), JobError, "blue"),
        (lambda p: replace(p, jobs=(replace(p.jobs[0], priority=0.0),)), JobError, "priority"),
        (lambda p: replace(p, teams={"red": Team(cap_usd=-1.0)}), JobError, "red"),
        (
            lambda p: replace(p, markets={**p.markets, "b": p.markets["zone"].cut(0, 1)}),
            MarketError,
            "1 slots",
        ),
    ],
)
def test_a_program_that_makes_no_sense_is_refused_in_words(change, error, said):
    with pytest.raises(error, match=said):
        validate_joint(change(two_on_one_market()))


def test_the_same_work_in_all_markets_is_asked_for():
    problem = two_on_one_market()
    job = problem.jobs[0]
    markets = {**problem.markets, "b": problem.markets["zone"]}
    other = replace(job, runs={"zone": job.job, "b": replace(job.job, workload=9)})
    with pytest.raises(JobError, match="another workload in zone"):
        validate_joint(replace(problem, markets=markets, jobs=(other,)))
