"""The hindsight bracket: attained by its allocations, above every policy, valid when it does not close (M4.7)."""

from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_window

import slackwater.optimization.window.twin as labels
from slackwater.optimization.job.definition import Amdahl, Linear, Power
from slackwater.optimization.policies.contract import View
from slackwater.optimization.replay.run import replay
from slackwater.optimization.replay.score import hindsight
from slackwater.optimization.window.plan import EndRule, HorizonProblem
from slackwater.optimization.window.solver import Limits, plan_problem
from slackwater.studies.audit import audit_outcome
from slackwater.warehouse.errors import MarketError


class Follow:
    """Policy that follows given allocations."""

    name = "follow"

    def __init__(self, allocations):
        self.allocations = allocations

    def start(self, job):
        return 0

    def decide(self, state, view: View):
        return self.allocations[view.slot], state

    def explain(self, state, view, allocation):
        return "told so"


def case(seed, d=20, n_max=8, throughput=None):
    rng = np.random.default_rng(seed)
    throughput = throughput or Linear(beta=0.25)
    workload = float(rng.choice([0.3, 0.5, 0.7, 1.2])) * d * throughput.rate(n_max) * 0.5
    job = make_job(
        workload=workload,
        deadline_slots=d,
        n_max=n_max,
        throughput=throughput,
        mu_up=float(rng.choice([0.9, 0.6])),
        mu_down=0.95,
        value=float(rng.choice([0.8, 1.5])) * workload / throughput.rate(n_max) * n_max * 2.0,
    )
    count = np.clip(np.cumsum(rng.integers(-3, 4, d)) + 4, 0, n_max).astype(float)
    count[rng.random(d) < 0.05] = np.nan
    price = np.round(rng.uniform(0.5, 1.5, d), 2)
    return job, make_window(price, count, on_demand_usd=2.0, slot_hours=0.5)


@pytest.mark.parametrize("seed", range(12))
def test_its_allocations_achieve_low_when_replayed(seed):
    job, window = case(seed, throughput=Amdahl(parallel=0.9) if seed % 2 else None)
    bracket = hindsight(job, window)
    assert bracket.high <= bracket.low
    outcome = replay(Follow(bracket.allocations), job, window)
    assert outcome.utility_usd == pytest.approx(bracket.low, abs=1e-6)
    assert outcome.allocations == bracket.allocations
    audit_outcome(job, window, outcome)


def test_no_policy_of_the_pool_beats_it():
    from slackwater.optimization.policies.baselines import OnDemandOnly

    for seed in range(6):
        job, window = case(seed)
        assert replay(OnDemandOnly(), job, window).utility_usd <= hindsight(job, window).high + 1e-6


@pytest.mark.parametrize("overhead", [{}, {"mu_up": -1.5, "mu_down": -0.5}])
def test_equals_the_pyomo_model_on_short_jobs(overhead):
    for seed in range(5):
        job, window = case(20 + seed, d=6, n_max=5)
        job = replace(job, **overhead)
        plan = plan_problem(
            HorizonProblem(
                job=job, slot=0, done=0.0, n_previous=0, window=window, end_rule=EndRule.ON_DEMAND_TO_GO
            ),
            Limits(seconds=60.0, relative_gap=1e-9),
        )
        assert hindsight(job, window).low == pytest.approx(plan.objective, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("overhead", [{}, {"mu_up": 0.0}, {"mu_up": -2.0, "mu_down": -1.0}])
@pytest.mark.parametrize("throughput", [Linear(), Amdahl(parallel=0.93), Power(exponent=0.87)])
def test_closes_on_two_days_of_half_hours_with_sixteen_instances(throughput, overhead):
    job, window = case(30, d=48, n_max=16, throughput=throughput)
    job = replace(job, **overhead)
    bracket = hindsight(job, window)
    assert bracket.high <= bracket.low
    outcome = replay(Follow(bracket.allocations), job, window)
    assert outcome.utility_usd == pytest.approx(bracket.low, abs=1e-6)


def test_a_longer_market_is_cut_at_the_deadline():
    job, window = case(3)
    padded = make_window(
        np.append(window.price, 0.01), np.append(window.available, 8), on_demand_usd=2.0, slot_hours=0.5
    )
    assert hindsight(job, padded) == hindsight(job, window)


def test_a_shorter_market_is_refused():
    job, window = case(3)
    with pytest.raises(MarketError, match="at least d"):
        hindsight(job, window.cut(0, 19))


def test_a_job_that_cannot_resume_is_bounded_without_spot():
    job, window = case(5)
    once = hindsight(replace(job, resumable=False), window)
    assert all(a.spot == 0 for a in once.allocations)
    assert once.low < hindsight(job, window).low


def test_an_open_bracket_holds_the_optimum(monkeypatch):
    job, window = case(4)
    best = hindsight(job, window)
    monkeypatch.setattr(labels, "LABEL_LIMIT", 500)
    bracket = hindsight(job, window)
    assert bracket.high > bracket.low
    assert bracket.low <= best.low + 1e-9 <= bracket.high + 2e-9
    assert replay(Follow(bracket.allocations), job, window).utility_usd == pytest.approx(
        bracket.low, abs=1e-6
    )
