"""A job's price ceiling, hourly limit and budget hold in every plan, and in hindsight (M2.10)."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from forms_kit import quick_first
from make import make_history, make_multi_job
from moving_markets import a_job, made, random_markets, replayed
from numpy.testing import assert_array_equal
from series_kit import wandering

from slackwater.forecasting.quantiles import LEVELS
from slackwater.optimization.job.definition import Progress, guard_usd
from slackwater.optimization.job.request import hourly_note, parse_request, slot_job
from slackwater.optimization.market.window import Quantiles, of_quantiles, spot_ceiling
from slackwater.optimization.moving.policies import GreedySpot, MeanField
from slackwater.optimization.policies.pace import spot_is_cheaper
from slackwater.optimization.policies.pool import load_pool, policy_named
from slackwater.optimization.replay import ahead
from slackwater.optimization.replay.decision import Effort, LiveJob, decide, live_job
from slackwater.optimization.replay.run import NewestReading, replay, see
from slackwater.optimization.replay.score import ended_job, hindsight, perfect_forecasts
from slackwater.studies.audit import audit_outcome
from slackwater.studies.policies import published_policies
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.history import OnDemandOrigin

BEFORE, SLOTS, CEILING = 100, 12, 1.02
POLICIES = [
    *(policy for policy in [*load_pool(), *published_policies()] if policy.name.split("(")[0] not in ("AHAP", "RHIG", "Window")),
    *map(policy_named, ["AHAP(3,1,0.5)", "AHAP(5,3,0.9,expected)", "RHIG(3,0.9)", "Window(3,0.5,bind)", "UP", "MSU"]),
]  # fmt: skip
JOBS = [a_job(d=SLOTS, load=0.4), a_job(d=SLOTS, load=0.5, n_min=2, must_finish=True)]


def a_market(seed):
    """Return a market whose prices move around the ceiling."""
    while True:
        market = wandering(BEFORE + SLOTS, seed=seed)
        above = market.price[BEFORE:] > CEILING
        if 2 <= above.sum() <= SLOTS - 2:
            return market
        seed += 100


def ended(job, market):
    (case,) = ended_job(job, market.slots[BEFORE], market).cases
    return replace(case, forecasts=list(perfect_forecasts(case.window, 6)))


def without_spot(market):
    """Return the market with no spot where the price is above the ceiling."""
    counts = market.frame["available"]
    bare = counts.mask((market.price > CEILING) & counts.notna(), 0.0)
    return replace(market, frame=market.frame.assign(available=bare))


def test_every_price_that_a_plan_reads_has_the_ceiling():
    """History, window and forecast with its quantiles change alike: else a plan counts on spot that its job never runs."""
    market, job = a_market(0), replace(JOBS[0], max_spot_usd=CEILING)
    ceiling = spot_ceiling(job, market)
    capped = np.where(market.price > CEILING, np.maximum(market.price, market.on_demand_usd), market.price)
    assert np.nanmax(capped) > np.nanmax(market.price)
    assert_array_equal(ceiling.history(market).price, capped)
    rows = market.frame.iloc[BEFORE:]
    assert_array_equal(ceiling.window(rows, market, job.value).price, capped[BEFORE:])
    levels = np.tile(market.price[BEFORE:, None], (1, LEVELS.size))
    issued = of_quantiles(Quantiles(price=levels, count=np.ones_like(levels), capacity=1))
    changed = ceiling.forecast(issued)
    assert_array_equal(changed.price, capped[BEFORE:])
    assert_array_equal(changed.quantiles.price[:, 0], capped[BEFORE:])


@pytest.mark.parametrize("price", [CEILING / 2, CEILING, CEILING + 0.01, 50.0])
def test_a_reading_within_a_slot_has_the_ceiling_too(price):
    market, job = a_market(0), replace(JOBS[0], max_spot_usd=CEILING)
    own = ended(job, market)
    slot = int(np.flatnonzero(own.window.observed)[0])
    seen = see(own.job, own.window, None).view(job, Progress(), slot, NewestReading(price, 3, 0.25))
    assert seen.quoted == price
    assert seen.price == spot_ceiling(job, market).price(np.array(price))
    assert spot_is_cheaper(seen) == (price <= CEILING)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_no_policy_runs_spot_above_the_ceiling(policy):
    for seed, job in enumerate(JOBS):
        own = ended(replace(job, max_spot_usd=CEILING), a_market(seed))
        outcome = replay(policy, own.job, own.window, forecasts=own.forecasts, record=own.record)
        audit_outcome(own.job, own.window, outcome)
        above = own.window.quoted > CEILING
        assert above.any()
        assert not any(held.spot for held, dear in zip(outcome.allocations, above, strict=False) if dear)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("terms", [{"max_spot_usd": 3.0}, {"budget_usd": 1e6}], ids=["price", "budget"])
def test_a_ceiling_that_nothing_reaches_changes_nothing(policy, terms):
    job, market = JOBS[1], a_market(3)
    outcomes = [
        replay(policy, own.job, own.window, forecasts=own.forecasts, record=own.record)
        for own in (ended(job, market), ended(replace(job, **terms), market))
    ]
    assert outcomes[0].allocations == outcomes[1].allocations
    assert outcomes[0].cost_usd == outcomes[1].cost_usd


@pytest.mark.parametrize("job", JOBS, ids=["value", "must finish"])
def test_hindsight_and_rules_see_a_market_without_spot_there(job):
    for seed in range(6):
        market = a_market(seed)
        capped, bare = ended(replace(job, max_spot_usd=CEILING), market), ended(job, without_spot(market))
        assert hindsight(capped.job, capped.window).cost_usd == pytest.approx(
            hindsight(job, bare.window).cost_usd
        )
        best = hindsight(job, ended(job, market).window)
        assert hindsight(capped.job, capped.window).low <= best.high + 1e-9
        for name in ("UP", "MSU", "OD-only"):
            outcomes = [replay(policy_named(name), own.job, own.window) for own in (capped, bare)]
            assert outcomes[0].allocations == outcomes[1].allocations


def test_a_decision_says_that_spot_is_above_the_ceiling_and_expects_to_pay_no_such_price():
    market = a_market(0)
    place = BEFORE + int(np.flatnonzero(market.price[BEFORE:] > CEILING)[0])
    now = market.slots[place]
    known = replace(market, frame=market.frame.iloc[: place + 1], known_at=now)
    assert known.available[-1] > 0
    decisions = {}
    for usd in (math.inf, CEILING, 0.5):
        job = replace(JOBS[1], max_spot_usd=usd)
        live = live_job(job, now, known, decided={})
        (seen,) = live.seen
        assert seen.quoted is None if math.isinf(usd) else seen.quoted[0] == known.price[-1]
        decisions[usd] = decide(
            live, policy_named("Stochastic"), Effort(solver_seconds=5.0, risk_paths=200, seed=1)
        )
    assert decisions[math.inf].allocation.spot
    assert decisions[CEILING].allocation.spot == decisions[0.5].allocation.spot == 0
    assert "above the job's highest of 1.02" in decisions[CEILING].reason
    costs = [decisions[usd].expected.cost_usd for usd in (math.inf, CEILING, 0.5)]
    assert costs == sorted(costs)
    # With a ceiling below every price there is no usable spot: expectations equal those with spot above on-demand.
    dear = live_job(JOBS[1], now, replace(known, frame=known.frame.assign(price_usd=5.0)), decided={})
    alone = decide(dear, policy_named("Stochastic"), Effort(solver_seconds=5.0, risk_paths=200, seed=1))
    assert costs[2] == pytest.approx(alone.expected.cost_usd)


def placed(terms):
    return parse_request({**REQUEST, **terms}, "t").with_place(
        at=pd.Timestamp("2026-01-01T00:00Z"), market="p/r/z/t", source="s"
    )


REQUEST = {
    "name": "j", "market": "p/r/z/t",  "deadline_in": "10h", "n_max": 8,
    "workload": {"amount": 10, "unit": "instance_hours"}, "throughput": {"form": "linear"},
    "checkpoint": {"resumable": True, "overhead_minutes": 3},
}  # fmt: skip


@pytest.mark.parametrize(
    ("terms", "sold", "most"),
    [
        ({"max_hourly_usd": 6.13}, True, 2),
        ({"max_hourly_usd": 6.12}, True, 2),
        ({"max_hourly_usd": 100.0}, True, 8),
        ({"max_hourly_usd": 6.11, "max_spot_usd": 1.0}, True, 1),
        ({"max_hourly_usd": 6.0, "max_spot_usd": 1.5}, False, 4),
    ],
)
def test_the_cost_of_an_hour_bounds_the_instances(terms, sold, most):
    job = slot_job(placed(terms), step=pd.Timedelta("30min"), on_demand_usd=3.06, sold=sold)
    assert job.n_max == most
    origin = OnDemandOrigin(kind="observed" if sold else "not sold")
    history = make_history(on_demand_usd=3.06, on_demand=origin)
    note = hourly_note(placed(terms), job, history)
    assert (f"pays for {most} of 8 instances at ${3.06 if sold else 1.5:.2f} an hour" in note) == (most < 8)
    assert hourly_note(placed({}), job, history) == ""


@pytest.mark.parametrize(
    ("terms", "sold", "why"),
    [
        (
            {"max_hourly_usd": 3.0},
            True,
            r"max_hourly_usd 3.00 pays for 0 instances, 3.06 USD an hour each on demand",
        ),
        ({"max_hourly_usd": 5.0, "n_min": 2}, True, "at least 6.12, for 2"),
        ({"max_hourly_usd": 5.0}, False, "no highest spot price"),
        ({"max_spot_usd": 0}, True, "max_spot_usd"),
        ({"max_spot_usd": math.nan}, True, "max_spot_usd"),
        ({"max_hourly_usd": math.inf}, True, "max_hourly_usd"),
        ({"max_spot_usd": -1.0}, True, "max_spot_usd"),
    ],
)
def test_ceilings_that_cannot_be_kept_are_refused(terms, sold, why):
    with pytest.raises(JobError, match=why):
        slot_job(placed(terms), step=pd.Timedelta("30min"), on_demand_usd=3.06, sold=sold)


# ---
# The budget of a whole job.


TO_PAY = [a_job(d=SLOTS, load=0.2), a_job(d=SLOTS, load=0.25, n_min=2, must_finish=True)]


def alone_usd(job, market):
    return guard_usd(
        job, Progress(), left=job.deadline_slots, on_demand_usd=market.on_demand_usd, slot_hours=0.5
    )


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("share", quick_first([1.0, 0.15, 0.6], 2))
def test_no_policy_pays_more_than_the_budget(policy, share):
    for seed, job in enumerate(TO_PAY):
        market = a_market(seed)
        budget = share * alone_usd(job, market)
        own = ended(replace(job, budget_usd=budget), market)
        assert own.window.on_demand.sold is (share >= 1)
        outcome = replay(policy, own.job, own.window, forecasts=own.forecasts, record=own.record)
        assert outcome.cost_usd <= budget + 1e-5
        if share >= 1:  # the guard is funded in every slot, so the job is done by its deadline
            assert outcome.on_time
        else:
            assert not any(held.on_demand for held in outcome.allocations)


def test_the_guard_of_a_budget_by_hand():
    """8 instance-slots of work left, no overheads: on demand 8 instance-slots of half an hour at 3.06 USD."""
    job = replace(a_job(d=4, n_max=4, load=0.5, mu=1.0), mu_down=1.0, workload=4.0)
    assert alone_usd(job, wandering(8, seed=1)) == pytest.approx(8 * 0.5 * 3.06)
    late = Progress(done=1.0, cost_usd=0.0)
    ever = guard_usd(
        job, late, left=1, on_demand_usd=3.06, slot_hours=0.5
    )  # 4 instances do 2.0 a slot: out of reach
    assert ever == pytest.approx(6 * 0.5 * 3.06)
    assert guard_usd(job, replace(late, done=4.0), left=0, on_demand_usd=3.06, slot_hours=0.5) == 0.0


@pytest.mark.parametrize("mover", [MeanField(), GreedySpot()], ids=lambda mover: mover.name)
@pytest.mark.parametrize("share", [1.0, 0.4])
def test_no_mover_pays_more_than_the_budget(mover, share):
    for seed in range(3):
        job = a_job(d=10, load=0.5, must_finish=True)
        windows, records = random_markets(seed, 10, 3)
        budget = share * guard_usd(job, Progress(), left=10, on_demand_usd=3.2, slot_hours=1.0) + 3.0
        outcome = replayed(mover, make_multi_job(replace(job, budget_usd=budget)), windows, records=records)
        assert outcome.cost_usd <= budget + 1e-5


def test_the_chance_of_passing_the_budget_counts_as_late():
    market = a_market(0)
    now = market.slots[BEFORE]
    known = replace(market, frame=market.frame.iloc[: BEFORE + 1], known_at=now)
    effort = Effort(solver_seconds=5.0, risk_paths=200, seed=1)
    job = TO_PAY[1]
    free = decide(live_job(job, now, known, decided={}), policy_named("Stochastic"), effort)
    assert (free.expected.over_budget_probability, free.expected.late_probability) == (0.0, 0.0)
    # Below the guard, above the cost of half of the futures.
    budget = 0.5 * (free.expected.cost_usd + alone_usd(job, market))
    live = live_job(replace(job, budget_usd=budget), now, known, decided={})
    assert not live.seen[0].on_demand.sold
    made = decide(live, policy_named("Stochastic"), effort).expected
    assert 0.0 < made.late_probability < 1.0
    assert made.over_budget_probability <= made.late_probability


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_where_on_demand_is_beyond_the_budget_it_is_why_work_is_left(share):
    """On demand the work would be done, so a job that ends unfinished, for want of spot too, lacks money."""
    market = a_market(0)
    now = market.slots[BEFORE]
    known = replace(market, frame=market.frame.iloc[: BEFORE + 1], known_at=now)
    job = replace(TO_PAY[1], budget_usd=share * alone_usd(TO_PAY[1], market))
    effort = Effort(solver_seconds=5.0, risk_paths=100, seed=1)
    made = decide(live_job(job, now, known, decided={}), policy_named("Stochastic"), effort).expected
    assert made.given_up_probability > 0.0
    assert made.over_budget_probability == made.given_up_probability == made.late_probability


def test_no_sampled_path_of_several_markets_costs_more_than_the_budget(monkeypatch):
    """Spot that is often lost and dear restarts: without the budget some paths cost more than on-demand."""
    ends = []
    outcome_of = ahead.outcome_of
    monkeypatch.setattr(
        ahead, "outcome_of", lambda job, **found: ends.append(found) or outcome_of(job, **found)
    )
    job = replace(a_job(d=10, load=0.5, n_max=4), mu_up=0.4, mu_down=0.8, value=1e4)
    windows, records = random_markets(0, 10, 2, markets=2)
    least = guard_usd(job, Progress(), left=10, on_demand_usd=3.0, slot_hours=1.0)
    for share in (10.0, 1.0):
        budget = share * least
        multi = make_multi_job(replace(job, budget_usd=budget), 2)
        seen = [
            see(run, window, None, record)
            for run, window, record in zip(multi.runs, windows, records, strict=True)
        ]
        live = LiveJob(
            job=multi, start=pd.Timestamp("2026-01-01", tz="UTC"), step=pd.Timedelta("1h"), slot=0, seen=tuple(seen),
            decided={}, names=("a", "b"),
        )  # fmt: skip
        made = decide(live, MeanField(), Effort(solver_seconds=1.0, risk_paths=200, seed=3)).expected
        (found,) = ends
        ends.clear()
        assert found["cost"].max() <= budget + 1e-5
        assert (made.over_budget_probability > 0.0) == (share <= 1.0)
        assert (found["cost"].max() > least) == (share > 1.0)  # the budget is of consequence


def test_a_slot_that_finishes_the_job_is_paid_up_to_its_end():
    """4 hours on demand at $3 for a budget of $12.00 and no more: paid in whole slots it would be $12 and a started slot."""
    job = replace(
        a_job(d=8, n_max=1, load=0.5, mu=1.0), workload=3.5, mu_down=1.0, value=1e4, budget_usd=12.0
    )
    windows, records = made(np.full((1, 68), 5.0), np.zeros((1, 68)), 60)
    seen = see(job, windows[0], None, records[0])
    live = LiveJob(
        job=make_multi_job(job, 1), start=pd.Timestamp("2026-01-01", tz="UTC"), step=pd.Timedelta("1h"), slot=0,
        seen=(seen,), decided={}, names=("a",),
    )  # fmt: skip
    found = decide(live, policy_named("OD-only"), Effort(solver_seconds=1.0, risk_paths=20, seed=3)).expected
    assert (found.cost_usd, found.late_probability) == (pytest.approx(10.5), 0.0)
    assert found.uses_spot is False
