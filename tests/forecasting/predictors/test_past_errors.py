"""The spread from past errors compared with slow loops (M6.3)."""

from __future__ import annotations

import numpy as np
import pytest
from make import make_history
from series_kit import wandering

from slackwater.forecasting.predictors.arima import spread_around, time_since_change
from slackwater.forecasting.quantiles import LEVELS
from slackwater.forecasting.series import series_of

KEPT = 0.5 ** (1 / 72)  # half-hour slots: a day and a half is 72 of them


def slow_weights(series, point, here, step):
    """Return the weight of the error of every slot t, known at ``here``; 0 where there is none."""
    runs = time_since_change(np.array(series.values))
    top = np.maximum(series.upper, 1)
    out = np.zeros(len(series))
    for t in range(here - step + 1):
        if np.isnan(series.values[[t, t + step]]).any() or KEPT ** (here - step - t) < 0.01:
            continue
        if series.variable == "count":
            apart = abs(point[t, step - 1] / top[t] - point[here, step - 1] / top[here])
        else:
            apart = abs(np.log(point[t, step - 1] / point[here, step - 1]))
        longer, shorter = max(runs[t], runs[here]), min(runs[t], runs[here])
        like = np.exp(-16 * apart) * shorter / longer
        out[t] = KEPT ** (here - step - t) * (0.01 + 0.99 * like)
    return out


def slow_distribution(series, point, here, step):
    weights, distribution = slow_weights(series, point, here, step), np.zeros(int(series.upper[here]) + 1)
    for t in np.flatnonzero(weights):
        error = series.values[t + step] - point[t, step - 1]
        value = np.floor(point[here, step - 1] + error + 0.5)
        distribution[int(np.clip(value, 0, distribution.size - 1))] += weights[t]
    return distribution / distribution.sum()


def drawn(series, steps, seed=3):
    """Return perturbed last-value forecasts, which suffice here."""
    rng = np.random.default_rng(seed)
    point = np.repeat(series.values[:, None], steps, axis=1) + 0.3 * rng.normal(size=(len(series), steps))
    return np.clip(np.where(np.isnan(point), 0.0, point), 0.001, series.upper[:, None])


@pytest.mark.parametrize("stated", [True, False])
def test_laws_of_counts_equal_the_slow_ones(stated):
    series = series_of(wandering(260, seed=1, gaps=0.06, capacity_stated=stated), "count")
    point, origins = drawn(series, 10), np.array([120, 200, 259])
    made = spread_around(series, point, origins, 5)
    for o, origin in enumerate(origins):
        here, age = series.newest[origin], origin - series.newest[origin]
        for k in range(5):
            distribution = slow_distribution(series, point, here, age + k + 1)
            assert made.distribution[o, k, : distribution.size] == pytest.approx(distribution)
            cumulated = np.cumsum(distribution)
            least = [next(n for n in range(distribution.size) if cumulated[n] >= q - 1e-9) for q in LEVELS]
            assert made.quantiles[o, k].tolist() == least
            assert made.mean[o, k] == pytest.approx(distribution @ np.arange(distribution.size))


def test_quantiles_of_prices_equal_the_slow_ones():
    series = series_of(wandering(260, seed=2, gaps=0.06), "price")
    point, origins = drawn(series, 10), np.array([150, 259])
    made = spread_around(series, point, origins, 4)
    for o, origin in enumerate(origins):
        here, age = series.newest[origin], origin - series.newest[origin]
        for k in range(4):
            step = age + k + 1
            weights = slow_weights(series, point, here, step)
            used = np.flatnonzero(weights)
            values = point[here, step - 1] + series.values[used + step] - point[used, step - 1]
            values = np.clip(values, 0, series.upper[origin])
            order = np.argsort(values)
            reached = np.cumsum(weights[used][order]) / weights.sum()
            least = [values[order][np.flatnonzero(reached >= q - 1e-9)[0]] for q in LEVELS]
            assert made.quantiles[o, k] == pytest.approx(least)
            assert made.mean[o, k] == pytest.approx(values @ weights[used] / weights.sum())


def test_many_instances_get_quantiles_without_a_law():
    series = series_of(make_history([1.0] * 300, 200 + np.arange(300) % 50), "count")
    made = spread_around(series, np.repeat(series.values[:, None], 3, axis=1), np.array([299]), 3)
    assert made.distribution is None
    assert made.quantiles[0, 0].min() >= 200


def test_the_spread_reads_nothing_after_the_origin():
    """M1.2: forecasts and values of later slots have no influence."""
    for variable in ("count", "price"):
        series = series_of(wandering(200, gaps=0.05), variable)
        point = drawn(series, 8)
        for origin in (80, 150):
            whole = spread_around(series, point, np.array([origin]), 4)
            cut = spread_around(series.part(0, origin + 1), point[: origin + 1], np.array([origin]), 4)
            assert np.array_equal(whole.quantiles, cut.quantiles)
            assert whole.reasons == cut.reasons


def test_errors_too_few_are_said():
    series = series_of(wandering(200, gaps=0.0), "count")
    point = drawn(series, 4)
    assert spread_around(series, point, np.array([10, 100]), 4).reasons == (
        "spread from 10 past errors, 20 are needed",
        "",
    )
    first = spread_around(series, point, np.array([0]), 4)
    assert (first.quantiles == np.floor(point[0, :4] + 0.5)[None, :, None]).all()


def test_a_count_at_its_cap_gets_the_errors_made_there():
    """From 8 it falls to 0 every other time; from 0 it always goes to 8: a joint spread would be wrong for both."""
    rng = np.random.default_rng(0)
    count = [8]
    for _ in range(599):
        count.append(8 if count[-1] == 0 or rng.random() < 0.5 else 0)
    series = series_of(make_history([1.0] * 600, count), "count")
    at_cap, at_zero = (np.flatnonzero(series.values == v)[-3] for v in (8, 0))
    point = np.repeat(series.values[:, None], 1, axis=1)
    distribution = spread_around(series, point, np.array([at_cap, at_zero]), 1).distribution[:, 0]
    assert 0.3 < distribution[0, 8] < 0.7
    assert distribution[1, 8] > 0.95


def test_time_since_change_goes_on_over_gaps():
    nan = np.nan
    assert time_since_change(np.array([nan, 2, 2, nan, 2, 3, nan, 4])).tolist() == [1, 2, 3, 4, 5, 1, 2, 1]
