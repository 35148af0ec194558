"""Scores of an ended job in one market: outcomes in the world, the unit, and hindsight in the slot model (M12.13)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from make import make_history, make_job, make_window

from slackwater.optimization.job.definition import InstanceTimes, Job
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.moving.definition import in_one_market
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.decision import Effort, decide, live_job
from slackwater.optimization.replay.run import Case
from slackwater.optimization.replay.score import (
    EndedJob,
    ended_job,
    hindsight,
    on_demand_only_in_world,
    perfect_forecasts,
    replay_ended,
    score_job,
)
from slackwater.optimization.world.audit import audit_in_world
from slackwater.optimization.world.readings import market_readings
from slackwater.optimization.world.replay import WorldCase
from slackwater.warehouse.errors import AuditError
from slackwater.warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT, History, Market

TIMES = InstanceTimes(boot=120.0, restart=240.0, checkpoint=600.0)
JOB = make_job(workload=12, deadline_slots=10, n_max=4, value=40, must_finish=True, times=TIMES)
WINDOW = make_window([0.25] * 10, [4, 4, 0, 2, 4, 4, 1, 4, 4, 4], slot_hours=0.5)
POLICIES = [policy_named(name) for name in ("OD-only", "MSU-trim", "UP", "Reserve(60)", "Stochastic(24)")]
START = pd.Timestamp("2026-03-01", tz="UTC")


def ended(job: Job = JOB, window: MarketWindow = WINDOW, within: np.ndarray | None = None) -> EndedJob:
    case = Case(job=job, window=window, forecasts=perfect_forecasts(window, 3))
    return EndedJob(job=in_one_market(job), start=START, cases=(case,), within=(within,))


def test_a_job_in_one_market_is_scored_in_the_world_and_no_hard_deadline_is_missed():
    lost = np.full((10, 2), np.nan)
    lost[[0, 4, 8], 1] = 0.0  # all spot is lost inside these slots
    calm, hostile = score_job(ended(), POLICIES), score_job(ended(within=lost), POLICIES)
    assert calm.model == hostile.model == "world"
    assert {row.model for row in hostile.ledger} == {"world"}
    assert all(row.on_time for row in hostile.ledger)
    for before, after in zip(calm.outcomes[1:], hostile.outcomes[1:], strict=True):
        assert after.lost_instances > before.lost_instances, "counts between slots take spot away"
    bracket = hindsight(JOB, WINDOW)
    assert (hostile.hindsight_low, hostile.hindsight_usd) == (bracket.low, bracket.cost_usd)
    assert [row.lost_to_forecast_error_usd for row in hostile.ledger] == [0.0] * 5, "forecasts were perfect"


@pytest.mark.parametrize(("workload", "deadline"), [(12.0, 10), (9.4, 8), (3.8, 2), (9.5, 10)])
def test_the_unit_is_the_cost_of_on_demand_only_in_the_world(workload, deadline):
    """The constant number includes boot and restart, and is paid to the second."""
    job = replace(JOB, workload=workload, deadline_slots=deadline)
    window = WINDOW.cut(0, deadline)
    scored = score_job(ended(job, window), POLICIES[:1])
    (row,), (outcome,) = scored.ledger, scored.outcomes
    size, unit = on_demand_only_in_world(job, window)
    assert row.on_demand_only_usd == unit
    assert outcome.total_cost_usd == pytest.approx(unit, abs=1e-6)
    assert {held.on_demand for held in outcome.allocations} == {size}
    assert unit == pytest.approx(size * (360.0 / 3600.0 + workload / size))
    assert row.on_time == (size * (deadline * 0.5 - 0.1) >= workload)


def test_a_gap_to_the_optimum_of_the_slot_model_may_be_negative():
    """The slot model pays for whole slots, the world to the second."""
    quick = replace(
        JOB, workload=1.1, n_min=1, n_max=1, times=InstanceTimes(boot=0.0, restart=0.0, checkpoint=0.0)
    )
    window = make_window([0.25] * 10, [4] * 10, slot_hours=1.0)
    scored = score_job(ended(quick, window), [policy_named("MSU")])
    (row,) = scored.ledger
    assert row.cost_usd == pytest.approx(1.1 * 0.25)
    assert scored.hindsight_usd == pytest.approx(2 * 0.25)
    assert row.gap_to_hindsight_usd == pytest.approx(-0.9 * 0.25)


def test_where_nothing_is_sold_on_demand_no_instance_is_paid_on_demand():
    window = replace(WINDOW, on_demand=replace(WINDOW.on_demand, kind="not sold"), on_demand_usd=1e6)
    for row, outcome in zip(
        (scored := score_job(ended(replace(JOB, must_finish=False), window), POLICIES)).ledger,
        scored.outcomes,
        strict=True,
    ):
        assert outcome.on_demand_usd == 0.0
        assert np.isfinite([row.utility, row.on_demand_only_usd]).all()


def test_counts_between_the_slots_of_a_history_are_those_inside_the_job():
    step = pd.Timedelta("30min")
    slots = pd.date_range(START - 3 * step, periods=15, freq=step)
    frame = pd.DataFrame({PRICE: 0.25, AVAILABLE: 4.0, ROW_KNOWN_AT: slots}, index=slots)
    within = np.full((15, 2), 4.0)
    within[4] = 0.0  # between slots 3 and 4: inside the first slot of the job
    history = History(
        market=Market.parse("gcp/r/z/x"), step=step, known_at=slots[-1], frame=frame, on_demand_usd=1.0,
        capacity=4, within=within,
    )  # fmt: skip
    found = ended_job(JOB, START, history)
    assert found.within[0].shape == (10, 2)
    assert found.within[0][0].tolist() == [0.0, 0.0]
    assert (found.within[0][1:] == 4.0).all()
    (outcome,) = replay_ended(found, [policy_named("MSU")])
    assert outcome.lost_instances == 4


@pytest.mark.parametrize("policy", ["MSU-trim", "Stochastic(24)"])
def test_losses_inside_past_slots_make_a_running_job_expect_a_higher_cost(policy):
    effort, usd = Effort(solver_seconds=1.0, risk_paths=400, seed=3), {}
    for count in (4.0, 0.0):  # read between slots that all start with 4 instances
        past = make_history(0.25, 4, slots=40, on_demand_usd=1.0, within=np.full((40, 2), count))
        live = live_job(JOB, past.slots[-1], past, decided={})
        usd[count] = decide(live, policy_named(policy), effort).expected.cost_usd
    assert usd[0.0] > 1.05 * usd[4.0]


def test_the_audit_finds_wrong_money_finish_value_and_utility():
    (outcome,) = replay_ended(ended(), [policy_named("UP")])
    assert outcome.finish is not None

    def audit(**changes: object) -> None:
        case = ended().cases[0]
        audit_in_world(WorldCase.of(case, market_readings(WINDOW)), replace(outcome, **changes))

    audit()
    for changes, told in (
        ({"cost_usd": outcome.cost_usd + 1.0}, "cost"),
        ({"on_demand_hours": outcome.on_demand_hours + 1.0}, "cost on demand"),
        ({"spot_hours": 2.0 * outcome.spot_hours + 1.0}, "cost on spot"),
        ({"finish": 6 * 3600.0}, "on time"),
        ({"finish_slots": outcome.finish_slots + 1}, "finish_slots"),
        ({"value_usd": 1.0}, "value"),
        ({"utility_usd": outcome.utility_usd + 1.0}, "utility"),
    ):
        with pytest.raises(AuditError, match=told):
            audit(**changes)


@pytest.mark.parametrize(
    ("gap", "noted"), [("10min", False), ("30min", False), ("60min", True), ("24h", True)]
)
def test_a_replay_names_counts_that_are_read_more_rarely_than_slots_begin(gap, noted):
    market = make_history()
    sparse = replace(market, count_max_age=max(3 * pd.Timedelta(gap), market.step))
    ended = ended_job(JOB, market.slots[0], sparse)
    assert [("counts are" in text) for text in ended.assumptions] == [True] * noted
