"""Restarts longer than a slot, for slots from 3 minutes to a day: no reachable deadline is missed (M2.4, M4.2)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import make_job, make_view, make_window

from slackwater.optimization import Job
from slackwater.optimization.job.definition import Linear, RateTable, infeasible_by, on_demand_to_go
from slackwater.optimization.job.request import mu_from_overhead
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.policies.pace import fastest_size, pace, soonest_size
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import replay
from slackwater.studies.audit import audit_outcome
from slackwater.studies.trials.scenarios import on_demand_only_cost
from slackwater.warehouse.errors import JobError

NAMES = (
    "OD-only",
    "MSU",
    "UP",
    "UP-single",
    "UP-single(0.7)",
    "AHANP(0.5)",
    "AHAP(3,1,0.9)",
    "AHAP(2,2,0.5)",
)
DAY_MINUTES = 24 * 60
DIPPING = RateTable(rates=(1.0, 2.2, 1.4, 3.0))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Job, MarketWindow]:
    """Draw a job that on-demand instances can just finish, or finish with slack, and an arbitrary market."""
    d, n_max = draw(st.integers(1, 14)), draw(st.integers(1, 4))
    slot_hours = draw(st.sampled_from([3, 5, 10, 30, 60, DAY_MINUTES])) / 60.0
    share = st.floats(-5.0, 1.0)
    job = make_job(
        name="long",
        workload=1.0,
        deadline_slots=d,
        n_min=draw(st.integers(1, n_max)),
        n_max=n_max,
        throughput=draw(st.sampled_from([Linear(), Linear(alpha=1.0, beta=0.5), DIPPING])),
        mu_up=draw(share),
        mu_down=draw(share),
        value=draw(st.floats(0.0, 500.0)),
    )
    reach = pace(job, slot_hours).reach[d][0]
    # If restarts are too long to do any work by d, the job cannot finish, but it must still run to its end. The
    # same holds if the reachable work is too small to take a share of it.
    workload = reach * draw(st.sampled_from([1.0, 0.99, 0.7, 0.3])) if reach > 0 else 0.0
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    count = np.clip(rng.integers(0, n_max + 1) + rng.integers(-3, 4, d).cumsum(), 0, n_max).astype(float)
    price = rng.uniform(0.1, 1.2, d)
    price[rng.random(d) < 0.1] = np.nan
    return replace(job, workload=workload or slot_hours), make_window(price, count, slot_hours=slot_hours)


def check(case: tuple[Job, MarketWindow]) -> None:
    """Check that every policy meets each deadline reachable at the start, and that its outcome adds up."""
    job, market = case
    in_reach = pace(job, market.slot_hours).reach[job.deadline_slots][0] >= job.workload
    for name in NAMES:
        outcome = replay(policy_named(name), job, market)
        audit_outcome(job, market, outcome)
        if in_reach:
            assert outcome.on_time, f"{name}: {outcome.progress} of {job.workload}"
    assert on_demand_only_cost(job, market) > 0.0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cases())
def test_no_deadline_in_reach_is_missed(case):
    check(case)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, derandomize=True)
@given(cases())
def test_no_deadline_in_reach_is_missed_long(case):
    check(case)


@pytest.mark.parametrize("throughput", [Linear(), Linear(beta=2.0), DIPPING])
@pytest.mark.parametrize(
    ("mu_up", "mu_down"), [(0.6, 0.9), (-0.5, 1.0), (-2.2, 0.4), (1.0, -3.0), (-4.0, -4.0)]
)
def test_the_reach_is_the_best_of_all_sequences(throughput, mu_up, mu_down):
    job = make_job(
        workload=9,
        deadline_slots=4,
        n_min=2,
        n_max=4,
        throughput=throughput,
        mu_up=mu_up,
        mu_down=mu_down,
        value=1,
    )
    numbers = pace(job, 0.5)
    for k, before in product(range(5), range(5)):
        best, firsts = -np.inf, set()
        for chosen in product((0, 2, 3, 4), repeat=k):
            work = sum(
                job.efficiency(n, held) * throughput.rate(n) * 0.5
                for n, held in zip(chosen, (before, *chosen), strict=False)
            )
            if work > best + 1e-9:
                best, firsts = work, set()
            if work > best - 1e-9:
                firsts.add(chosen[:1])
        assert numbers.reach[k][before] == pytest.approx(best)
        if k:
            assert (numbers.fastest[k][before],) in firsts


def view(job, slot, **progress):
    return make_view(job, slot=slot, price=1.0, available=0, **progress)


def test_behind_a_restart_of_three_slots_is_begun_in_time():
    """12 work in 12 slots; starting n takes 2.5 slots, so after k slots n (k - 2.5) is done."""
    job = make_job(workload=12, deadline_slots=12, n_max=4, mu_up=-1.5, value=99)
    # At slot 2 nothing is done. n = 4 reaches the line k + 2 after k = 4 slots; no size reaches it sooner, and
    # n = 3 only after 5.
    assert soonest_size(view(job, 2), 3.0) == 4
    market = make_window(1.0, 0, slots=12)
    outcome = replay(policy_named("UP"), job, market)
    assert outcome.on_time
    # MSU-trim waits: 4 (k - 2.5) >= 12 needs 6 slots, the last six; 2 instances are enough in the final slot.
    waited = replay(policy_named("MSU-trim"), job, market)
    assert [held.on_demand for held in waited.allocations] == [0] * 6 + [4] * 5 + [2]
    assert waited.progress == pytest.approx(12.0)


def test_out_of_reach_the_size_that_finishes_first_is_started_all_the_same():
    job = make_job(workload=6, deadline_slots=4, n_max=4, mu_up=-5.0, value=99, gamma=4.0)
    # In 4 slots a start that takes 6 gains nothing. Started now, 3 or 4 instances finish in 8 slots; waiting
    # until d would take 12.
    assert pace(job, 1.0).reach[4][0] == 0.0
    assert fastest_size(view(job, 0)) == 3
    market = make_window(1.0, 0, slots=4)
    outcome = replay(policy_named("OD-only"), job, market)
    assert outcome.progress == pytest.approx(3 * (-5.0 + 3))
    assert outcome.finish_slots == 8
    assert infeasible_by(job, slot_hours=1.0) == 0


def test_progress_that_is_owed_is_finished_on_demand():
    job = make_job(workload=6, deadline_slots=4, n_min=2, n_max=2, mu_up=-1.0, value=99, gamma=4.0)
    to_go = on_demand_to_go(job, done=-2.0, n_previous=2, slot=4, on_demand_usd=1.0, slot_hours=1.0)
    assert (to_go.n, to_go.slots) == (2, 4)
    started = on_demand_to_go(job, done=0.0, n_previous=0, slot=4, on_demand_usd=1.0, slot_hours=1.0)
    assert started.slots == 5


def test_shares_that_are_no_shares_are_refused():
    job = make_job(workload=6, deadline_slots=4, n_min=2, n_max=2, value=9)
    for wrong in (1.01, float("nan"), float("-inf")):
        with pytest.raises(JobError, match="at most 1"):
            replace(job, mu_up=wrong)
        with pytest.raises(JobError, match="at most 1"):
            replace(job, mu_down=wrong)
    assert replace(job, mu_up=mu_from_overhead(24.0, 0.05)).mu_up == pytest.approx(-479.0)
