"""Conformal intervals: coverage is won where it was missing, and never by looking ahead (M6.6)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from series_kit import MARKET, history, wandering

from forecasting.diagnosis.calibration import SUFFIX, calibrate, calibration_report
from forecasting.forecast import LEVELS, Forecast
from forecasting.predictors import make_predictor
from warehouse.errors import ForecastError
from warehouse.history import PRICE

NORMAL = np.array([-1.6449, -1.2816, -1.0364, -0.8416, -0.6745, -0.5244, -0.3853, -0.2533, -0.1257])
NORMAL = np.concatenate([NORMAL, [0.0], -NORMAL[::-1]])


def noise_forecasts(actual, spread, *, first=0):
    """Forecasts of normal noise around 10 that believe in a standard deviation of ``spread``; the true one is 1."""
    quantiles = np.tile(10 + spread * NORMAL, (3, 1))
    return [
        Forecast(
            market=MARKET,
            issued_at=slot,
            step=actual.step,
            predictor="m",
            newest_row=slot,
            price=quantiles,
            price_mean=quantiles.mean(axis=1),
            count=np.full((3, LEVELS.size), 2.0),
            count_mean=np.full(3, 2.0),
            capacity=4,
        )
        for slot in actual.slots[first:-3]
    ]


@pytest.fixture(scope="module")
def noise():
    rng = np.random.default_rng(0)
    return history(rng.normal(10, 1, 600), [2] * 600, capacity=4)


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_coverage_comes_to_the_nominal_whether_intervals_were_too_narrow_or_too_wide(noise, spread):
    report = calibration_report(noise_forecasts(noise, spread), noise)
    price = report[report["variable"] == "price"]
    for percent in (50, 80, 90):
        after = price[f"coverage_{percent}_after"].to_numpy()
        assert after == pytest.approx(percent / 100, abs=0.06)
    if spread != 1.0:
        assert (abs(price["coverage_80_before"] - 0.8) > 0.15).all()
        assert (price["pinball_after"] < price["pinball_before"]).all()


def test_the_margin_is_the_conformal_quantile(noise):
    """One forecast by hand: the score at rank ceil((1 - a)(n + 1)) of the newest known ones."""
    forecasts = noise_forecasts(noise, 0.3)
    corrected = calibrate(forecasts, noise, window=100)
    i, step = 400, 2
    known = [j for j in range(i) if j + step <= i][-100:]
    truth = np.array([noise.price[j + step] for j in known])
    low, high = forecasts[i].price[step - 1, 1], forecasts[i].price[step - 1, 17]
    scores = np.sort(np.maximum(low - truth, truth - high))
    margin = scores[int(np.ceil(0.8 * 101)) - 1]
    assert corrected[i].price[step - 1, 1] == pytest.approx(low - margin)
    assert corrected[i].price[step - 1, 17] == pytest.approx(high + margin)


def test_nothing_known_after_an_origin_touches_its_forecast(noise):
    forecasts = noise_forecasts(noise, 0.3)[:300]
    frame = noise.frame.copy()
    frame.iloc[200:, frame.columns.get_loc(PRICE)] = 77.0
    truth, other = calibrate(forecasts, noise), calibrate(forecasts, replace(noise, frame=frame))
    for i in range(300):
        if i < 200:
            assert (truth[i].price == other[i].price).all()
    assert any((truth[i].price != other[i].price).any() for i in range(201, 300))


def test_medians_means_and_bounds_stay_and_the_name_tells():
    whole = wandering(400, gaps=0.05)
    fitted = make_predictor("markov").fit(whole.until(whole.slots[199]))
    forecasts = fitted.forecast_many(whole, list(whole.slots[199:380]), horizon=4)
    corrected = calibrate(forecasts, whole)
    for before, after in zip(forecasts, corrected, strict=True):
        assert after.predictor == "markov" + SUFFIX
        for variable in ("price", "count"):
            assert (after.median(variable) == before.median(variable)).all()
            assert (after.mean(variable) == before.mean(variable)).all()
        assert (after.count == np.floor(after.count)).all()
    assert all((a.price == b.price).all() for a, b in zip(forecasts[:25], corrected[:25], strict=True))


def test_a_mixture_is_refused(noise):
    forecasts = noise_forecasts(noise, 1.0)[:40]
    with pytest.raises(ForecastError, match="one kind, ascending"):
        calibrate(forecasts[::-1], noise)
    with pytest.raises(ForecastError, match="one kind, ascending"):
        calibrate([replace(forecasts[0], predictor="other"), *forecasts[1:]], noise)
    assert calibrate([], noise) == []
