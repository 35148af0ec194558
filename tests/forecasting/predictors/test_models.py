"""Each model compared with its definition, by a slower or simpler method (M6.2)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from make import make_history
from series_kit import wandering
from standing import standing
from storeprocess import run_python

from slackwater.forecasting.predictor import bound_quantiles
from slackwater.forecasting.predictors import PREDICTORS
from slackwater.forecasting.predictors.distributions import (
    MAX_STEP,
    MIN_ERRORS,
    ahead,
    error_quantiles,
    quantiles_of,
    widest,
)
from slackwater.forecasting.predictors.last_value import is_stale
from slackwater.forecasting.predictors.lightgbm import FittedBoostedCount
from slackwater.forecasting.predictors.seasonal_naive import FittedSeasonalNaive
from slackwater.forecasting.quantiles import LEVELS

NAN = float("nan")


def test_importing_the_predictors_loads_no_heavy_library_and_making_them_no_jax():
    """Keeps the command line fast: statsmodels and lightgbm load with their models, and JAX with `dva` only."""
    code = (
        "import sys; import slackwater.forecasting.predictors, slackwater.forecasting.origins\n"
        "print([m for m in ('statsmodels', 'lightgbm', 'sklearn') if m in sys.modules])\n"
        "from slackwater.forecasting.predictors import PREDICTORS, make_predictor\n"
        "[make_predictor(n).fit for n in PREDICTORS]; import slackwater.flows.cli\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib')])"
    )
    out, said = run_python(code).communicate()
    assert out.split() == ["[]", "[]"], said


def test_last_value_spreads_by_past_changes_over_as_many_slots():
    whole = wandering(200, gaps=0.1, seed=8)
    forecast = standing("last_value", whole).forecast(horizon=5)
    values = whole.price
    newest = np.flatnonzero(~np.isnan(values))[-1]
    for k in range(1, 6):
        step = 199 - newest + k
        pairs = [values[t + step] - values[t] for t in range(200 - step)]
        past = np.quantile([p for p in pairs if not np.isnan(p)], LEVELS)
        expected = np.clip(values[newest] + past - past[9], 0, 3.06)
        assert forecast.price[k - 1] == pytest.approx(expected)
    assert (forecast.price_mean == values[newest]).all()


def test_steps_with_few_errors_take_the_widest_spread_known():
    rng = np.random.default_rng(0)
    errors = rng.normal(size=(60, 4)) * [1.0, 3.0, 2.0, 9.0]
    errors[MIN_ERRORS - 1 :, 3] = NAN
    table = error_quantiles(errors).table
    assert table.shape == (MAX_STEP, LEVELS.size)
    assert (table[3:] == table[1]).all()
    assert widest(table) == pytest.approx(np.quantile(errors[:, 1], LEVELS))
    assert error_quantiles(errors).at(np.array([1, 500]))[1] == pytest.approx(table[1])
    few = error_quantiles(errors[:3])
    assert few.errors == 3
    assert "3 past errors" in few.reason
    assert (error_quantiles(errors[:, :0]).table == 0).all()


def test_ahead_lines_up_the_future():
    assert np.array_equal(ahead(np.arange(4.0), 2), [[1, 2], [2, 3], [3, NAN], [NAN, NAN]], equal_nan=True)


def daily_pattern(days, *, noise=0.0, seed=0, **options):
    """Return a count that repeats every day of 48 slots."""
    rng = np.random.default_rng(seed)
    pattern = np.repeat([0, 3, 8, 5], 12).astype(float)
    count = np.tile(pattern, days)
    count = np.where(rng.random(count.size) < noise, rng.integers(0, 9, count.size), count)
    return make_history(1.0 + 0.1 * np.tile(pattern, days), count, capacity=8, **options), pattern


def test_seasonal_naive_repeats_the_newest_day_it_knows():
    whole, pattern = daily_pattern(5)
    short = replace(whole, frame=whole.frame.iloc[: 48 * 3 + 10], known_at=whole.slots[48 * 3 + 9])
    forecast = standing("seasonal_naive", short).forecast(horizon=48)
    assert (forecast.median("count") == np.roll(pattern, -10)).all()
    assert forecast.fallback == ""


def test_seasonal_naive_takes_the_week_where_the_week_repeats():
    rng = np.random.default_rng(1)
    week = rng.integers(0, 9, 7 * 48).astype(float)
    whole = make_history(np.tile(1 + week, 4), np.tile(week, 4), capacity=8)
    fitted = standing("seasonal_naive", whole)
    assert isinstance(fitted.count, FittedSeasonalNaive)
    assert fitted.count.season == 7 * 48
    assert (fitted.forecast(horizon=48).median("count") == week[:48]).all()
    drifting = make_history(1 + np.tile(week[:48], 28) + 0.1 * np.repeat(np.arange(28), 48), [1] * 1344)
    assert standing("seasonal_naive", drifting).price.season == 48


def test_seasonal_naive_says_why_it_cannot():
    unknown = standing("seasonal_naive", daily_pattern(5, real_clock=False)[0]).forecast(horizon=2)
    assert "time of day is unknown" in unknown.count_fallback
    short = standing("seasonal_naive", wandering(40)).forecast(horizon=2)
    assert "shorter than a day" in short.price_fallback
    whole, _ = daily_pattern(5)
    frame = whole.frame.copy()
    frame.iloc[-47:-45] = [NAN, NAN, pd.NaT]
    holed = standing("seasonal_naive", replace(whole, frame=frame)).forecast(horizon=4)
    assert "2 of 4 slots have no value a day before" in holed.count_fallback
    assert holed.median("count")[0] == whole.available[-48]
    assert holed.median("count")[1] == whole.available[-1]


def test_quantiles_of_a_law_are_the_least_values_that_reach_the_level():
    distribution = np.array([0.05, 0.45, 0.0, 0.5])
    assert quantiles_of(distribution).tolist() == [0] + [1] * 9 + [3] * 9
    assert quantiles_of(np.array([0.0, 0.0, 1.0])).tolist() == [2] * 19
    tenths = np.full(10, 0.1)  # cumulative sums of 0.1 fall a rounding error short
    assert quantiles_of(tenths)[[1, 3, 5]].tolist() == [0, 1, 2]


def test_boosting_learns_what_a_chain_cannot_say():
    """For two days 8 with single slots of 0, for two days 0 with single slots of 8.

    The chain knows the present value only; recent slots distinguish a blip from a change.
    """
    rng = np.random.default_rng(0)
    mostly = np.tile(np.repeat([0.0, 8.0], 96), 5)
    count = np.where(rng.random(mostly.size) < 0.15, 8 - mostly, mostly)
    whole = make_history([1.0] * count.size, count, capacity=8)
    loss = {}
    for name in ("markov", "lightgbm"):
        fitted = standing(name, whole.until(whole.slots[575]))
        made = fitted.forecast_many(whole, list(whole.slots[575:-1]), horizon=1)
        error = count[576:, None] - np.array([f.count[0] for f in made])
        loss[name] = np.maximum(LEVELS * error, (LEVELS - 1) * error).mean()
    assert isinstance(fitted.count, FittedBoostedCount)
    assert loss["lightgbm"] < 0.95 * loss["markov"]


def test_every_model_of_the_method_is_there():
    assert set(PREDICTORS) >= {"last_value", "seasonal_naive", "arima", "lightgbm", "markov"}


def test_quantiles_of_counts_are_rounded_half_up():
    """M6.3; a value a rounding error below a half counts as a half."""
    series = SimpleNamespace(variable="count", upper=np.array([4.0]))
    told = np.array([[[-1.0, 0.45, 0.5, 1.5 - 1e-12, 1.55, 3.4, 9.0]]])
    made, mean = bound_quantiles(told, np.array([[9.0]]), series, np.array([0]))
    assert made.tolist() == [[[0.0, 0.0, 1.0, 2.0, 2.0, 3.0, 4.0]]]
    assert mean.tolist() == [[4.0]]


def test_quantiles_do_not_cross():
    series = SimpleNamespace(variable="price", upper=np.array([4.0]))
    made, _ = bound_quantiles(np.array([[[1.0, 0.5, 2.0]]]), np.array([[1.0]]), series, np.array([0]))
    assert made.tolist() == [[[1.0, 1.0, 2.0]]]


def test_six_hours_old_is_the_present_and_older_is_not():
    hours = SimpleNamespace(step=pd.Timedelta(hours=1))
    assert is_stale(hours, np.array([0, 6, 7])).tolist() == [False, False, True]
    days = SimpleNamespace(step=pd.Timedelta(days=1))
    assert is_stale(days, np.array([0, 1, 2])).tolist() == [False, False, True], "at least one slot"
