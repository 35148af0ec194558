"""Measures of predictability compared with known cases, and with slow implementations (M6.7)."""

from __future__ import annotations

import numpy as np
import pytest
from make import make_history
from series_kit import DATA, real_histories, wandering

from slackwater.forecasting.diagnosis.predictability import (
    PREDICTABILITY,
    autocorrelation,
    holm,
    information,
    predictability,
    seasonal_strength,
    stillness,
)
from slackwater.forecasting.series import series_of

NAN = float("nan")


def slow_autocorrelation(values, lag):
    seen = [v for v in values if not np.isnan(v)]
    mean = sum(seen) / len(seen)
    variance = sum((v - mean) ** 2 for v in seen) / len(seen)
    pairs = [
        (a - mean) * (b - mean)
        for a, b in zip(values, values[lag:], strict=False)
        if not (np.isnan(a) or np.isnan(b))
    ]
    return sum(pairs) / len(pairs) / variance


def test_autocorrelation_equals_the_obvious_one_with_gaps():
    values = wandering(200, seed=3).available
    found = autocorrelation(values, [1, 2, 7])
    np.testing.assert_allclose(found, [slow_autocorrelation(values, k) for k in (1, 2, 7)], rtol=1e-12)


@pytest.mark.parametrize("values", [np.full(100, 3.0), np.full(100, np.nan), np.zeros(0), np.arange(10.0)])
def test_what_has_no_autocorrelation_has_none(values):
    assert np.isnan(autocorrelation(values, [1, 4])).all()


def test_autocorrelation_of_a_first_order_process():
    rng = np.random.default_rng(0)
    x = np.zeros(20_000)
    for t in range(1, len(x)):
        x[t] = 0.8 * x[t - 1] + rng.normal()
    np.testing.assert_allclose(autocorrelation(x, [1, 3]), [0.8, 0.8**3], atol=0.03)


def test_a_cycle_is_strong_and_noise_is_about_one_over_its_periods():
    rng = np.random.default_rng(1)
    t = np.arange(48 * 14)
    wave = 3 * np.sin(2 * np.pi * t / 48)
    assert seasonal_strength(wave + 0.1 * rng.normal(size=t.size), 48) > 0.98
    noise = [seasonal_strength(rng.normal(size=t.size), 48) for _ in range(5)]
    assert np.mean(noise) == pytest.approx(1 / 14, abs=0.03)


def test_the_quick_decomposition_gives_the_strength_of_the_whole_one():
    from statsmodels.tsa.seasonal import STL

    rng = np.random.default_rng(12)
    t = np.arange(48 * 12)
    values = 0.2 * np.cumsum(rng.normal(size=t.size)) + np.sin(2 * np.pi * t / 48) + rng.normal(size=t.size)
    whole = STL(values, period=48, seasonal=241, seasonal_deg=0).fit()
    slow = 1 - whole.resid.var() / (whole.seasonal + whole.resid).var()
    assert seasonal_strength(values, 48) == pytest.approx(slow, abs=1e-3)


def test_a_trend_is_no_cycle():
    t = np.arange(48 * 10)
    rng = np.random.default_rng(2)
    assert seasonal_strength(0.1 * t + rng.normal(size=t.size), 48) < 0.25


def test_gaps_do_not_hide_a_cycle():
    rng = np.random.default_rng(3)
    t = np.arange(48 * 10)
    wave = np.sin(2 * np.pi * t / 48) + 0.3 * rng.normal(size=t.size)
    holed = np.where(rng.random(t.size) < 0.15, np.nan, wave)
    assert seasonal_strength(holed, 48) == pytest.approx(seasonal_strength(wave, 48), abs=0.05)


@pytest.mark.parametrize(
    "values",
    [
        np.full(48 * 9, 0.918),
        np.full(48 * 9, np.nan),
        np.sin(np.arange(100.0)),
        np.where(np.arange(480) % 3 == 0, 1.0, np.nan),
    ],
    ids=["flat", "nothing", "short", "mostly gaps"],
)
def test_strength_is_undefined_where_it_is(values):
    assert np.isnan(seasonal_strength(values, 48))
    assert np.isnan(seasonal_strength(np.sin(np.arange(500.0)), 0))


def test_information_of_known_chains():
    rng = np.random.default_rng(4)
    coin = rng.integers(0, 2, 5000).astype(float)
    bits, told = information(coin)
    assert bits == pytest.approx(1.0, abs=0.01)
    assert told == pytest.approx(0.0, abs=0.005)
    turn = np.arange(5000) % 4 * 1.0
    bits, told = information(turn)
    assert (bits, told) == (pytest.approx(2.0, abs=0.01), pytest.approx(1.0, abs=0.01))
    # A chain that stays with 0.9 has one-step entropy h(0.1) = 0.469 bits of 1.
    stays = np.cumsum(rng.random(40_000) < 0.1) % 2 * 1.0
    assert information(stays)[1] == pytest.approx(1 - 0.469, abs=0.02)
    # Two steps: it is in the same state with 0.82, h(0.18) = 0.680.
    assert information(stays, 2)[1] == pytest.approx(1 - 0.680, abs=0.02)


def test_noise_of_many_states_tells_nothing_after_the_correction():
    rng = np.random.default_rng(5)
    told = [information(rng.integers(0, 17, 700).astype(float))[1] for _ in range(20)]
    assert np.mean(told) < 0.03


def test_many_distinct_prices_are_binned():
    rng = np.random.default_rng(6)
    walk = np.cumsum(rng.normal(size=3000))
    bits, told = information(walk)
    assert bits == pytest.approx(4.0, abs=0.05)
    assert told > 0.7
    assert information(np.full(100, 2.0)) == (0.0, pytest.approx(NAN, nan_ok=True))


def test_stillness_counts_what_it_says():
    series = series_of(make_history([2.0] * 8, [0, 0, 4, NAN, 4, 4, 2, 0], capacity=4), "count")
    still = stillness(series)
    assert still.at_zero == pytest.approx(3 / 7)
    assert still.at_cap == pytest.approx(3 / 7)
    assert still.unchanged == pytest.approx(2 / 5)
    assert still.changes_per_day == pytest.approx(3 / 5 * 48)
    price = stillness(series_of(make_history([2.0, 3.06, 3.06, NAN], [1, 1, 1, 1]), "price"))
    assert price.at_cap == pytest.approx(2 / 3)


def test_the_table_has_a_row_a_series_and_its_columns():
    a = wandering(48 * 15, seed=7)
    series = [series_of(a, "count"), series_of(a, "price")]
    table = predictability(series)
    assert tuple(table.columns) == PREDICTABILITY
    assert table["slots"].tolist() == [720, 720]
    assert np.isfinite(table[["acf_day", "strength_daily"]].to_numpy()).all()
    assert table[["acf_1", "acf_2"]].to_numpy()[0] == pytest.approx(autocorrelation(series[0].values, [1, 2]))
    assert table.loc[0, "told_1"] == information(series[0].values)[1]


def test_a_clockless_series_has_no_day():
    table = predictability([series_of(wandering(48 * 20, seed=9, real_clock=False), "count")])
    assert table[["acf_day", "acf_week", "strength_daily", "strength_weekly"]].isna().all(axis=None)
    assert table[["acf_1", "acf_2"]].notna().all(axis=None)


@pytest.mark.parametrize("slots", [0, 1, 2, 30])
def test_short_series_are_rows_of_nothing_known(slots):
    table = predictability([series_of(make_history([1.0] * slots, [3] * slots), "count")])
    assert len(table) == 1
    assert table[["acf_1", "told_1", "strength_daily"]].isna().all(axis=None)


def test_holm():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, NAN]), [0.03, 0.06, 0.06, NAN])
    assert holm([]).size == 0
    # A family of nulls is called significant no more often than the level.
    rng = np.random.default_rng(10)
    wrong = np.mean([(holm(rng.random(12)) < 0.05).any() for _ in range(2000)])
    assert wrong == pytest.approx(0.05, abs=0.015)


@pytest.mark.skipif(not (DATA / "availability.parquet").exists(), reason=f"no data folder at {DATA}")
def test_real_zones_persist_more_at_one_slot_than_at_a_day():
    series = [series_of(one, "count") for one in real_histories("artifact:h100").values()]
    whole = predictability(series)
    assert (whole["at_cap"] + whole["at_zero"]).median() > 0.5
    moving = whole[[one.observed.std() > 1 for one in series]]
    assert (moving["acf_1"] > moving["acf_day"]).all()
