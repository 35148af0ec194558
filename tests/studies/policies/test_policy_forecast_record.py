"""Forecast errors as a policy measures them on its own job (M6.5, M10)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_record, make_window

from slackwater.optimization import PointForecast, Progress
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.replay.run import see
from slackwater.optimization.replay.score import perfect_forecasts
from slackwater.studies.policies.forecast_record import (
    MEMORY,
    PRIOR_WEIGHT,
    Errors,
    ForecastRecord,
    noted,
    usd_per_slot,
)

STEPS, SLOTS = 3, 12
JOB = make_job(workload=60, deadline_slots=SLOTS, value=90)


def market(seed: int) -> MarketWindow:
    rng = np.random.default_rng(seed)
    return make_window(rng.uniform(0.2, 0.9, SLOTS), rng.integers(0, 11, SLOTS), slot_hours=0.5)


def walked(window, forecasts, record=None) -> list[ForecastRecord]:
    seen, state, states = see(JOB, window, forecasts, record), ForecastRecord(), []
    for slot in range(SLOTS):
        state = noted(state, seen.view(JOB, Progress(), slot), STEPS)
        states.append(state)
    return states


def test_perfect_forecasts_have_no_error_and_holding_has():
    window = market(0)
    last = walked(window, perfect_forecasts(window, STEPS))[-1]
    assert last.forecast.price == pytest.approx((0.0,) * STEPS, abs=1e-15)
    assert last.forecast.count == (0.0,) * STEPS
    assert all(error > 0 for error in last.held.price + last.held.count)


def test_errors_are_discounted_means_by_an_obvious_twin():
    window, rng = market(1), np.random.default_rng(2)
    forecasts = [
        PointForecast(price=rng.uniform(0.2, 0.9, 2), available=rng.integers(0, 11, 2)) for _ in range(SLOTS)
    ]
    last = walked(window, forecasts)[-1]
    most = JOB.n_max
    for k in range(1, STEPS + 1):
        at = min(k, 2) - 1  # the last step of a forecast extends to later slots
        price = [abs(forecasts[t - k].price[at] - window.price[t]) for t in range(k, SLOTS)]
        count = [
            abs(min(forecasts[t - k].available[at], most) - min(window.available[t], most))
            for t in range(k, SLOTS)
        ]
        held = [abs(window.price[t - k] - window.price[t]) for t in range(k, SLOTS)]
        weight = MEMORY ** np.arange(len(price))[::-1]
        assert last.forecast.price[k - 1] == pytest.approx(np.average(price, weights=weight))
        assert last.forecast.count[k - 1] == pytest.approx(np.average(count, weights=weight))
        assert last.held.price[k - 1] == pytest.approx(np.average(held, weights=weight))
        assert last.forecast.weight[k - 1] == pytest.approx(weight.sum())


def test_without_a_forecast_the_present_is_what_is_said():
    last = walked(market(3), None)[-1]
    assert last.forecast == last.held


def test_a_gap_scores_nothing_and_is_no_ground_for_a_forecast():
    window = market(4)
    seen = see(JOB, window, perfect_forecasts(window, STEPS))
    before = noted(ForecastRecord(), seen.view(JOB, Progress(), 0), STEPS)
    gap = replace(seen.view(JOB, Progress(), 1), observed=False, available=0, price=1.0)
    after = noted(before, gap, STEPS)
    assert (after.forecast, after.held) == (before.forecast, before.held)
    assert [slot for slot, _ in after.issued] == [0]


def test_the_record_before_the_job_is_where_both_begin():
    window = market(5)
    before = np.array([0.0, 4.0, 0.0, 4.0, np.nan, 4.0])
    record = make_record(
        np.concatenate([np.full(6, 0.5), window.price]),
        np.concatenate([before, window.available]),
        first=6,
        slot_hours=0.5,
    )
    first = walked(window, None, record)[0]
    assert first.forecast == first.held
    assert first.forecast.weight == (PRIOR_WEIGHT,) * STEPS
    now = min(window.available[0], 8)
    assert first.forecast.count[0] == pytest.approx(np.mean([4, 4, 4, abs(now - 4)]))


def test_errors_cost_what_they_miss():
    view = see(JOB, make_window(0.25, 4, slot_hours=0.5, slots=SLOTS), None).view(JOB, Progress(), 0)
    errors = Errors(price=(0.1, 0.0), count=(0.0, 2.0), weight=(1.0, 1.0))
    assert usd_per_slot(errors, view) == pytest.approx((0.1 * 4 * 0.5, 2.0 * 0.75 * 0.5))
