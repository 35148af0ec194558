"""ARIMA compared with statsmodels, and with known properties of synthetic series (M6.2)."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from make import make_history
from series_kit import wandering
from standing import standing
from statsmodels.tsa.arima_process import arma_generate_sample
from statsmodels.tsa.statespace.sarimax import SARIMAX

from slackwater.forecasting.predictors.arima import (
    STRANGE,
    FittedArima,
    best_order,
    coefficients,
    daily_terms,
    difference,
    estimate_order,
    expected_ahead,
    expected_values,
    filtered_states,
    log_likelihood,
    moments,
    random_walk,
    regress_moments,
    solve_linear,
    stationary_covariance,
)
from slackwater.forecasting.series import series_of

NAN = float("nan")
ORDERS = [(1, 0, 0), (2, 0, 1), (0, 0, 2), (2, 0, 2), (0, 1, 1), (1, 1, 0), (2, 1, 2)]


def walk_with_gaps(n=400, seed=0, gaps=0.05):
    rng = np.random.default_rng(seed)
    values = 3 + 0.3 * np.cumsum(rng.normal(size=n))
    values[rng.random(n) < gaps] = NAN
    return values


@pytest.mark.parametrize("order", ORDERS)
def test_likelihood_states_and_forecasts_are_those_of_statsmodels(order):
    """With gaps and a mean; the coefficients are random stationary, invertible values."""
    p, d, q = order
    rng = np.random.default_rng(sum(order))
    phi, theta = coefficients(rng.normal(size=p)), -coefficients(rng.normal(size=q))
    values = np.diff(walk_with_gaps(), n=d)
    regressors = np.ones((values.size, 1 - d))
    table, scored = np.column_stack([values, regressors]), np.isfinite(values)
    weights, squares = regress_moments(moments(table, scored, phi, theta)[0])
    model = SARIMAX(
        values, exog=None if d else regressors, order=(p, 0, q), trend="n", concentrate_scale=True
    )
    theirs = model.loglike(np.concatenate([weights, phi, theta]))
    assert log_likelihood(table, scored, phi, theta) == pytest.approx(theirs, abs=1e-6, rel=1e-9)
    centred = values - regressors @ weights
    reference = SARIMAX(centred, order=(p, 0, q), trend="n")
    result = reference.smooth(np.concatenate([phi, theta, [squares / scored.sum()]]))
    states = filtered_states(centred, phi, theta)
    assert states == pytest.approx(result.filtered_state.T, abs=1e-8)
    assert expected_ahead(states[-1:], phi, 12)[0] == pytest.approx(result.forecast(12), abs=1e-8)


def test_small_systems_are_solved_as_by_lapack_and_singular_systems_are_refused():
    rng = np.random.default_rng(3)
    for n in range(1, 10):
        system, right = rng.normal(size=(n, n)), rng.normal(size=n)
        system[0, 0] = 0.0 if n > 1 else 2.0  # a pivot must be found
        assert solve_linear(system.copy(), right.copy()) == pytest.approx(
            np.linalg.solve(system, right), rel=1e-9
        )
    with pytest.raises(np.linalg.LinAlgError):
        solve_linear(np.array([[1.0, 2.0], [2.0, 4.0]]), np.ones(2))


def test_the_state_begins_at_its_stationary_covariance():
    phi, theta = np.array([0.5, 0.3]), np.array([0.4])
    covariance = stationary_covariance(phi, theta)
    transition, loading = np.array([[0.5, 1.0], [0.3, 0.0]]), np.array([[1.0], [0.4]])
    assert covariance == pytest.approx(transition @ covariance @ transition.T + loading @ loading.T)


def test_no_search_of_statsmodels_finds_a_likelier_fit():
    """Compares the optimum of each order with statsmodels' maximum likelihood, on a series with gaps."""
    values = walk_with_gaps(300, seed=3)
    for p, d, q in ((1, 0, 0), (1, 0, 1), (0, 1, 1), (2, 1, 1)):
        data = difference(values, np.zeros((values.size, 0)), d)
        data = replace(data, scored=np.isfinite(data.table[:, 0]))  # theirs scores every observed slot
        ours = estimate_order(data, p, q)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exog = data.table[:, 1:] if d == 0 else None
            theirs = SARIMAX(data.table[:, 0], exog=exog, order=(p, 0, q), trend="n").fit(disp=0, maxiter=200)
        k, n = p + q + 1 + (1 - d), int(data.scored.sum())
        reached = (2 * k + 2 * k * (k + 1) / (n - k - 1) - ours.aicc) / 2
        assert reached >= theirs.llf - 1e-4


def test_aicc_is_written_out():
    values = np.array([1.0, 1.5, 1.2, 1.9, 2.4, 2.2, 2.6, 2.5])
    steps = np.diff(values)
    variance = np.mean(steps**2)
    walk = random_walk(values)
    likelihood = -0.5 * 7 * (np.log(2 * np.pi * variance) + 1)
    assert walk.order == (0, 1, 0)
    assert walk.variance == pytest.approx(variance)
    assert walk.aicc == pytest.approx(-2 * likelihood + 2 * 1 + 2 * 1 * 2 / (7 - 1 - 1))


def test_an_autoregression_near_one_and_a_random_walk_are_compared_on_the_same_slots():
    """d = 0 is scored given the first value: as phi nears 1 its likelihood nears that of d = 1, at any level."""
    values = walk_with_gaps(200, seed=1) + 100
    nothing = np.zeros((values.size, 0))
    level, steps = difference(values, nothing, 0), difference(values, nothing, 1)
    assert level.scored.sum() == steps.scored.sum() == np.isfinite(np.diff(values)).sum()
    close = log_likelihood(level.table, level.scored, np.array([0.999999]), np.zeros(0))
    # The mean of an autoregression close to a random walk acts as a drift.
    drifting = np.column_stack([steps.table, np.ones(steps.scored.size)])
    walk = log_likelihood(drifting, steps.scored, np.zeros(0), np.zeros(0))
    assert close == pytest.approx(walk, abs=0.01)


@pytest.mark.parametrize(
    ("ar", "ma", "d", "order"),
    [([0.7], [], 0, (1, 0, 0)), ([], [0.7], 0, (0, 0, 1)), ([], [-0.6], 1, (0, 1, 1)), ([0.6], [], 1, (1, 1, 0))],
)  # fmt: skip
def test_the_order_of_a_long_series_is_found_and_its_coefficients(ar, ma, d, order):
    sample = arma_generate_sample(
        np.r_[1, -np.array(ar)], np.r_[1, ma], 1500, distrvs=np.random.default_rng(2).standard_normal
    )
    values = np.cumsum(sample) if d else sample + 5
    found = best_order(values)
    true = estimate_order(difference(values, np.zeros((values.size, 0)), d), order[0], order[2])
    assert found.aicc <= true.aicc < found.aicc + 4
    assert np.append(true.phi, true.theta) == pytest.approx(np.append(ar, ma), abs=0.06)
    wrong = estimate_order(difference(values, np.zeros((values.size, 0)), d), 0, 0)
    assert wrong.aicc > found.aicc + 100


def test_no_order_for_a_series_without_two_neighbours():
    values = np.full(200, NAN)
    values[::2] = np.arange(100) % 7
    assert best_order(values) is None
    assert random_walk(values) is None


def daily_wave(days=12, seed=0):
    rng = np.random.default_rng(seed)
    hour = np.arange(48 * days) % 48 / 48
    return 5 + 2 * np.sin(2 * np.pi * hour) + 0.2 * rng.normal(size=hour.size)


def test_a_daily_cycle_is_taken_where_the_clock_is_real_and_it_pays():
    with_clock = standing("arima", make_history(daily_wave(), [1] * 576))
    assert with_clock.price.arma.weights.size > 1
    point = with_clock.forecast(horizon=48).price_mean
    wave = 5 + 2 * np.sin(2 * np.pi * np.arange(48) / 48)
    assert np.abs(point - wave).max() < 0.6
    no_clock = standing("arima", make_history(daily_wave(), [1] * 576, real_clock=False))
    assert no_clock.price.arma.weights.size <= 1
    noise = 5 + np.random.default_rng(1).normal(size=576)
    assert standing("arima", make_history(noise, [1] * 576)).price.arma.weights.size <= 1


def as_statsmodels(fitted, series):
    """Return the fitted model of a series as results of statsmodels."""
    p, d, q = fitted.arma.order
    terms = np.zeros((len(series), 0))
    if fitted.arma.weights.size > 1 - d:
        terms = daily_terms(series, np.arange(len(series)))[:, 1:]
    data = difference(series.values, terms, d).table
    model = SARIMAX(data[:, 0], exog=data[:, 1:] if data.shape[1] > 1 else None, order=(p, 0, q), trend="n")
    return model.smooth(
        np.concatenate([fitted.arma.weights, fitted.arma.phi, fitted.arma.theta, [fitted.arma.variance]])
    )


def test_the_model_as_statsmodels_tells_the_same_forecast():
    """With the cycle among the regressors."""
    whole = make_history(daily_wave(8), [1] * 384)
    fitted, series = standing("arima", whole).price, series_of(whole, "price")
    assert fitted.arma.weights.size > 1
    d = fitted.arma.d
    ours = expected_values(fitted.arma, series, np.array([383]), 12)[0]
    terms = daily_terms(series, np.arange(383, 396))[:, 1:]
    exog = np.column_stack([np.ones(12), terms[1:]]) if d == 0 else np.diff(terms, axis=0)
    theirs = as_statsmodels(fitted, series).forecast(12, exog=exog)
    assert ours == pytest.approx(theirs if d == 0 else series.values[-1] + np.cumsum(theirs), abs=1e-7)


def carried_over(n=300, seed=0, gaps=0.0):
    """Return a price with moving-average changes, so part of the next is known; without a clock, hence without a cycle."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(0, 0.01, n)
    price = 5 + np.cumsum(steps + 0.6 * np.concatenate([[0], steps[:-1]]))
    price[rng.random(n) < gaps] = NAN
    return make_history(price, [1] * n, real_clock=False)


def test_arima_equals_statsmodels_own_forecast_from_every_origin():
    """Compares all origins of one filter pass with an undifferenced statsmodels model per origin."""
    whole = carried_over()
    fitted = standing("arima", whole.until(whole.slots[199])).price
    p, d, q = fitted.arma.order
    assert d == 1
    assert p + q > 0
    series, origins = series_of(whole, "price"), [200, 250, 299]
    points = expected_values(fitted.arma, series, np.array(origins), 12)
    for origin, point in zip(origins, points, strict=True):
        model = SARIMAX(series.values[: origin + 1], order=(p, d, q), trend="n", simple_differencing=False)
        theirs = model.filter(np.concatenate([fitted.arma.phi, fitted.arma.theta, [1.0]])).forecast(12)
        assert point == pytest.approx(theirs, abs=2e-4)


def test_arima_beats_last_value_where_changes_carry_over():
    whole = carried_over(n=900, seed=3)
    origins = list(whole.slots[600:898])
    error = {}
    for name in ("arima", "last_value"):
        fitted = standing(name, whole.until(whole.slots[599]))
        made = fitted.forecast_many(whole, origins, horizon=1)
        error[name] = np.abs([f.price_mean[0] for f in made] - whole.price[601:899]).mean()
    assert error["arima"] < 0.95 * error["last_value"]


def test_an_order_that_was_further_off_than_the_last_value_is_not_used():
    """Jumps away and back dominate the likelihood; in all other slots the price is constant."""
    price = np.full(600, 1.0)
    price[50::50] = 3.0
    whole = make_history(price, [1] * 600)
    assert best_order(price[:400]).order != (0, 1, 0)
    fitted = standing("arima", whole.until(whole.slots[399]))
    assert fitted.price.arma.order == (0, 1, 0)
    assert (
        fitted.extend(whole.until(whole.slots[440])).forecast(horizon=3).median("price").tolist() == [1.0] * 3
    )


def test_arima_goes_on_from_the_newest_value_over_a_short_gap():
    whole = carried_over(gaps=0.1, seed=4)
    frame = whole.frame.copy()
    frame.iloc[-3:, 0] = NAN
    gap = replace(whole, frame=frame)
    fitted = standing("arima", whole.until(whole.slots[250]))
    over = fitted.extend(gap).forecast(horizon=4)
    before = fitted.extend(gap.until(gap.slots[-4])).forecast(horizon=7)
    assert over.price_fallback == ""
    assert over.price == pytest.approx(before.price[3:])


def test_arima_falls_back_on_flat_and_short_with_the_reason():
    flat = standing("arima", make_history([0.9] * 200, [4] * 200)).forecast(horizon=2)
    assert flat.price_fallback == flat.count_fallback == "flat series"
    short = standing("arima", wandering(50, gaps=0.0)).forecast(horizon=2)
    assert short.price_fallback.startswith("50 values, 60 are needed")


def test_arima_leaves_strange_and_stale_values_to_last_value():
    whole = carried_over(400)
    fitted = standing("arima", whole.until(whole.slots[299]))
    frame = whole.frame.copy()
    frame.iloc[350, 0] = 100.0
    frame.iloc[360:390, 0] = NAN
    odd = replace(whole, frame=frame, on_demand_usd=200.0)
    made = fitted.forecast_many(odd, list(odd.slots[[340, 350, 385]]), horizon=3)
    assert made[0].price_fallback == ""
    assert made[1].price_fallback == STRANGE
    assert made[1].median("price").tolist() == [100.0] * 3
    assert "slots old" in made[2].price_fallback


def test_the_arima_of_a_wandering_series_is_an_arima():
    """Guard: the tests above would be vacuous if the fixtures fell back."""
    fitted = standing("arima", wandering(300))
    assert isinstance(fitted.price, FittedArima)
    assert isinstance(fitted.count, FittedArima)
    distribution = fitted.count.outlook(
        series_of(wandering(300), "count"), np.array([290, 299]), 12
    ).distribution
    assert distribution.shape == (2, 12, 9)
    assert distribution.sum(axis=2) == pytest.approx(1)
