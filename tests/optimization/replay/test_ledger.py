"""The ledger per job, the leaderboard, and the cost of forecast error (M5.5)."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from make import make_job, make_window

from slackwater.optimization import PointForecast
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import Case, replay
from slackwater.optimization.replay.score import (
    leaderboard,
    ledger_row,
    perfect_forecasts,
    with_perfect_forecasts,
)
from slackwater.optimization.selection.contract import even_weights, update, utility_bounds
from slackwater.studies.replays import replay_pool
from slackwater.studies.trials.scenarios import on_demand_only_cost
from slackwater.warehouse.errors import SettingsError

JOB = make_job(workload=12, deadline_slots=6, n_max=4, value=30)
MARKET = make_window([0.5, 0.5, 0.3, 0.3, np.nan, 0.6], [1, 4, 4, 0, 4, 4])
BOUNDS = utility_bounds(JOB, on_demand_usd=1.0, slot_hours=1.0)
POLICIES = [policy_named(name) for name in ("OD-only", "MSU", "AHAP(3,1,0.9)")]


def test_the_unit_is_what_od_only_pays():
    assert on_demand_only_cost(JOB, MARKET) == pytest.approx(12.0)
    late = replace(JOB, workload=26.0, value=500.0)
    assert on_demand_only_cost(late, MARKET) == pytest.approx(24.0 + 2.0)


def test_perfect_forecasts_are_what_came():
    forecasts = perfect_forecasts(MARKET, 2)
    assert len(forecasts) == 6
    assert forecasts[0].price.tolist() == [0.5, 0.3]
    assert forecasts[3].available.tolist() == [0, 4]
    assert forecasts[3].price.tolist() == [1.0, 0.6]
    assert [len(forecast.price) for forecast in forecasts] == [2, 2, 2, 2, 1, 0]
    with pytest.raises(SettingsError):
        perfect_forecasts(MARKET, 0)


def test_rows_of_a_job():
    wrong = [PointForecast(price=np.full(3, 0.9), available=np.full(3, 0)) for _ in range(6)]
    issued = replay_pool(POLICIES, JOB, MARKET, forecasts=wrong)
    perfect = replay_pool(POLICIES, JOB, MARKET, forecasts=perfect_forecasts(MARKET, 3))
    rows = [
        ledger_row(outcome, unit=12.0, bounds=BOUNDS, hindsight_low=26.0, perfect_usd=best.utility_usd)
        for outcome, best in zip(issued, perfect, strict=True)
    ]
    assert [row.policy for row in rows] == [policy.name for policy in POLICIES]
    for row, outcome, best in zip(rows, issued, perfect, strict=True):
        assert row.utility_usd == outcome.utility_usd
        assert row.utility == pytest.approx(outcome.utility_usd / 12.0)
        assert row.cost_usd == pytest.approx(outcome.total_cost_usd)
        assert row.gap_to_hindsight_usd == pytest.approx(26.0 - outcome.utility_usd)
        assert row.gap_to_hindsight == pytest.approx((26.0 - outcome.utility_usd) / 12.0)
        assert row.lost_to_forecast_error_usd == pytest.approx(best.utility_usd - outcome.utility_usd)
        # bounds of M5.2: -4 x 9 slots = -36 below, 30 above
        assert row.normalised == pytest.approx((outcome.utility_usd + 36.0) / 66.0)
    assert rows[0].utility == pytest.approx(18.0 / 12.0)
    assert [row.lost_to_forecast_error_usd for row in rows[:2]] == [0.0, 0.0]
    assert rows[2].lost_to_forecast_error_usd > 0.0
    alone = ledger_row(issued[0], unit=12.0, bounds=BOUNDS, hindsight_low=17.0)
    assert np.isnan(alone.lost_to_forecast_error_usd)
    assert alone.gap_to_hindsight_usd == pytest.approx(-1.0), (
        "a low end that is not the optimum may be passed"
    )


def test_perfect_forecasts_reach_as_far_ahead_as_the_issued_and_stand_where_these_were_issued():
    brief = PointForecast(price=np.full(1, 0.9), available=np.full(1, 0))
    two = PointForecast(price=np.full(2, 0.9), available=np.full(2, 0))
    case = Case(job=JOB, window=MARKET, forecasts=[two, None, *[brief] * 4])
    right = with_perfect_forecasts(case)
    assert right is not None
    known = perfect_forecasts(MARKET, 2)
    for t, forecast in enumerate(right.forecasts):
        if t == 1:
            assert forecast is None
        else:
            assert forecast.price.tolist() == known[t].price.tolist()
            assert forecast.available.tolist() == known[t].available.tolist()
    assert with_perfect_forecasts(replace(case, forecasts=[None] * 6)) is None
    assert with_perfect_forecasts(replace(case, forecasts=None)) is None


def test_the_leaderboard_is_the_mean_per_policy():
    rows = []
    for i, workload in enumerate((8.0, 16.0, 30.0)):
        job = replace(JOB, name=f"j{i}", workload=workload)
        outcomes = [replay(policy, job, MARKET) for policy in POLICIES]
        unit = on_demand_only_cost(job, MARKET)
        bounds = utility_bounds(job, on_demand_usd=1.0, slot_hours=1.0)
        rows += [ledger_row(outcome, unit=unit, bounds=bounds, hindsight_low=25.0) for outcome in outcomes]
    weights = update(even_weights([p.name for p in POLICIES]), np.array([0.1, 0.9, 0.5]), rate=1.0)
    frame = pd.DataFrame(map(asdict, rows)).assign(hindsight_usd=np.nan)
    board = leaderboard(frame, weights)
    assert list(board.columns) == [
        "policy", "jobs", "mean_utility", "mean_utility_usd", "mean_cost_usd", "mean_on_demand_only_usd",
        "given_up", "mean_saved_usd", "saved_share", "mean_hindsight_usd", "on_time", "gap_to_hindsight", "weight",
    ]  # fmt: skip
    assert board["mean_utility"].is_monotonic_decreasing
    for line in board.itertuples():
        own = frame[frame["policy"] == line.policy]
        assert line.jobs == 3
        assert line.mean_utility == pytest.approx(np.mean(own["utility"]))
        assert line.mean_utility_usd == pytest.approx(np.mean(own["utility_usd"]))
        assert line.mean_cost_usd == pytest.approx(np.mean(own["cost_usd"]))
        assert line.mean_on_demand_only_usd == pytest.approx(np.mean(own["on_demand_only_usd"]))
        assert line.on_time == pytest.approx(np.mean(own["on_time"]))
        assert line.gap_to_hindsight == pytest.approx(np.mean(own["gap_to_hindsight"]))
        assert line.weight == pytest.approx(weights.probability[weights.names.index(line.policy)])
    assert 0.0 < board["on_time"].min() < 1.0
    assert leaderboard(frame)["weight"].isna().all()
    assert board["mean_hindsight_usd"].isna().all(), "it was not told"
    known = frame.assign(hindsight_usd=[1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, np.nan])
    told = leaderboard(known).set_index("policy")["mean_hindsight_usd"]
    assert told[[one.name for one in POLICIES]].tolist() == pytest.approx([1.0, 2.0, np.nan], nan_ok=True)


def test_a_job_that_was_given_up_has_no_saving():
    """Two jobs at $60 of $100, and a third that is given up at no cost: 40 % saved, not 60 %."""
    rows = pd.DataFrame(
        {
            "policy": "A", "utility": 0.1, "utility_usd": 1.0, "cost_usd": [60.0, 60.0, 0.0], "on_demand_only_usd": 100.0,
            "on_time": [True, True, False], "gap_to_hindsight": 0.0, "finish_slots": [1.0, 1.0, np.nan], "hindsight_usd": np.nan,
        }
    )  # fmt: skip
    (row,) = leaderboard(rows).to_dict("records")
    assert (row["jobs"], row["given_up"], row["mean_cost_usd"]) == (3, 1, 40.0)
    assert (row["mean_saved_usd"], row["saved_share"]) == pytest.approx((40.0, 0.4))
    (none,) = leaderboard(rows.assign(finish_slots=np.nan)).to_dict("records")
    assert np.isnan([none["mean_saved_usd"], none["saved_share"]]).all()
    assert none["mean_on_demand_only_usd"] == 100.0


def test_the_best_is_the_best_in_units_of_each_job():
    """One expensive job does not outweigh the cheap jobs."""
    rows = pd.DataFrame(
        {
            "policy": ["dear", "cheap", "dear", "cheap"], "utility": [0.7, 0.1, 0.1, 0.9], "utility_usd": [70.0, 10.0, 1.0, 9.0],
            "cost_usd": 1.0, "on_demand_only_usd": [100.0, 100.0, 10.0, 10.0], "on_time": True, "gap_to_hindsight": 0.0,
            "finish_slots": 1.0, "hindsight_usd": np.nan,
        }
    )  # fmt: skip
    assert leaderboard(rows)["policy"].tolist() == ["cheap", "dear"]
