"""Properties of the optimum of every horizon program, for every solver (M3.1-M3.3)."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import make_window
from window_cases import OWING, SHARES, random_problem

from slackwater.optimization.job.definition import RateTable, is_finished
from slackwater.optimization.window.plan import EndRule, HorizonProblem
from slackwater.optimization.window.twin import solve_window

RULES = st.sampled_from(list(EndRule))
QUICK = settings(max_examples=70, deadline=None)


@st.composite
def cases(draw, rules=RULES, w=6, n_max=6):
    """Draw a random program with the market drawn by hypothesis, so that a failure shrinks to few slots and simple prices."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    slots = draw(st.integers(1, w))
    case = random_problem(
        rng, w=slots, n_max=n_max, end_rule=draw(rules), mus=draw(st.sampled_from([SHARES, OWING]))
    )
    shares = st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.99, 1.0, 1.4])
    price = draw(st.lists(shares, min_size=slots, max_size=slots))
    count = draw(st.lists(st.integers(0, n_max + 1), min_size=slots, max_size=slots))
    usd, hours = case.window.on_demand_usd, case.window.slot_hours
    market = make_window(np.array(price) * usd, np.array(count), on_demand_usd=usd, slot_hours=hours)
    return replace(case, window=market)


def slack_of(case):
    return 1e-9 * (1 + case.job.value + case.job.n_max * len(case.window) * case.window.on_demand_usd)


def not_worse(case, before, after):
    if case.end_rule is EndRule.TARGET:
        assert after.end_progress == pytest.approx(before.end_progress, abs=2e-9 * case.job.workload)
        assert after.objective <= before.objective + slack_of(case)
    else:
        assert after.objective >= before.objective - slack_of(case)


@QUICK
@given(cases(), st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_more_spot_never_costs_more(case, more):
    counts = case.window.available + np.array(more[: len(case.window)])
    richer = replace(case, window=replace(case.window, available=counts))
    not_worse(case, solve_window(case), solve_window(richer))


@QUICK
@given(cases(), st.floats(0.0, 1.0))
def test_cheaper_spot_never_costs_more(case, share):
    cheaper = replace(case, window=replace(case.window, price=case.window.price * share))
    not_worse(case, solve_window(case), solve_window(cheaper))


@QUICK
@given(cases(), st.floats(1e-3, 1e3))
def test_money_has_no_natural_unit(case, unit):
    market = replace(
        case.window, price=case.window.price * unit, on_demand_usd=case.window.on_demand_usd * unit
    )
    table = case.expected and replace(case.expected, value_usd=case.expected.value_usd * unit)
    scaled = replace(case, job=replace(case.job, value=case.job.value * unit), window=market, expected=table)
    assert solve_window(scaled).objective == pytest.approx(
        unit * solve_window(case).objective, rel=1e-8, abs=unit * slack_of(case)
    )


@QUICK
@given(cases(), st.floats(1e-3, 1e3))
def test_work_has_no_natural_unit(case, unit):
    job = case.job
    faster = RateTable(rates=tuple(unit * job.throughput.rate(n) for n in range(1, job.n_max + 1)))
    table = case.expected and replace(case.expected, work=case.expected.work * unit)
    scaled = replace(
        case,
        job=replace(job, workload=job.workload * unit, throughput=faster),
        done=case.done * unit,
        expected=table,
    )
    before, after = solve_window(case), solve_window(scaled)
    assert after.objective == pytest.approx(before.objective, rel=1e-7, abs=slack_of(case))
    assert after.end_progress == pytest.approx(
        unit * before.end_progress, abs=1e-7 * unit * job.workload
    ) or (case.end_rule is not EndRule.TARGET)


@QUICK
@given(cases())
def test_prices_nobody_can_pay_do_not_matter(case):
    none = replace(case.window, available=case.window.available * 0)
    assert solve_window(replace(case, window=none)) == solve_window(
        replace(case, window=replace(none, price=none.price * 0.5))
    )


@QUICK
@given(cases(rules=st.just(EndRule.ON_DEMAND_TO_GO)))
def test_a_longer_window_is_never_worth_less_with_on_demand_to_go(case):
    """The objective over w + 1 known slots is at least that over w.

    After the shorter window n is constant on demand. The longer window may use that n in its last slot, at no
    more than the on-demand price, and continue at full efficiency. (The result of a policy that replans each
    slot need not grow with w.)
    """
    worth = [
        solve_window(replace(case, window=case.window.cut(0, w))).objective
        for w in range(1, len(case.window) + 1)
    ]
    assert np.all(np.diff(worth) >= -slack_of(case))


@QUICK
@given(cases(rules=st.just(EndRule.ON_DEMAND_TO_GO)), st.integers(1, 3))
def test_planning_anew_each_slot_reaches_at_least_the_first_plan(case, w):
    """Each new program can follow the previous plan (known slots, on-demand to go): value minus cost paid never falls."""
    job, paid, worth = case.job, 0.0, []
    done, before = case.done, case.n_previous
    for i in range(len(case.window)):
        if is_finished(done, job.workload):
            worth.append(job.value - paid)
            continue
        problem = HorizonProblem(
            job=job,
            slot=case.slot + i,
            done=done,
            n_previous=before,
            window=case.window.cut(i, i + w),
            end_rule=case.end_rule,
        )
        plan = solve_window(problem)
        worth.append(plan.objective - paid)
        held = plan.allocations[0]
        spent = held.on_demand * case.window.on_demand_usd + held.spot * float(case.window.price[i])
        paid += spent * case.window.slot_hours
        done += job.efficiency(held.total, before) * job.throughput.rate(held.total) * case.window.slot_hours
        before = held.total
    assert np.all(np.diff(worth) >= -slack_of(case))
