"""Every fast measure compared with a slow implementation (M6.5)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.forecasting.accuracy.losses import (
    brier,
    chances,
    conditional_frequencies,
    coverage_probability,
    covered_closed,
    diebold_mariano,
    pinball,
    shares_below,
    transform_span,
    width,
)
from slackwater.forecasting.quantiles import LEVELS

SEEDS = st.integers(0, 10_000)


def a_case(seed, *, whole):
    """Return quantiles (6, 4, 19) and actual values (6, 4), with ties, flat forecasts and gaps."""
    rng = np.random.default_rng(seed)
    quantiles = np.sort(rng.uniform(0, 8, (6, 4, 19)), axis=-1)
    quantiles[0] = quantiles[0, :, :1]
    if whole:
        quantiles = np.floor(quantiles)
    actual = rng.uniform(-1, 9, (6, 4))
    actual = (
        np.floor(np.abs(actual)) if whole else np.where(rng.random((6, 4)) < 0.3, quantiles[..., 7], actual)
    )
    actual[rng.random((6, 4)) < 0.2] = np.nan
    return quantiles, actual


def each(actual):
    return ((i, k, actual[i, k]) for i in range(actual.shape[0]) for k in range(actual.shape[1]))


@given(SEEDS, st.booleans())
@settings(max_examples=40, deadline=None)
def test_pinball_coverage_and_width(seed, whole):
    quantiles, actual = a_case(seed, whole=whole)
    loss, inside = pinball(quantiles, actual), {p: covered_closed(quantiles, actual, p) for p in (50, 80, 90)}
    for i, k, y in each(actual):
        if np.isnan(y):
            assert np.isnan(loss[i, k])
            assert all(np.isnan(table[i, k]) for table in inside.values())
            continue
        q = quantiles[i, k]
        assert loss[i, k] == pytest.approx(
            np.mean([a * (y - v) if y >= v else (1 - a) * (v - y) for a, v in zip(LEVELS, q, strict=True)])
        )
        for percent in (50, 80, 90):
            low, high = (
                np.flatnonzero(np.isclose(LEVELS, 0.5 + sign * percent / 200))[0] for sign in (-1, 1)
            )
            assert inside[percent][i, k] == float(q[low] <= y <= q[high])
            assert width(quantiles, percent)[i, k] == pytest.approx(q[high] - q[low])


def test_a_price_that_is_forecast_exactly_is_in_its_interval_whatever_its_last_bit():
    y = np.array([[0.1 + 0.2]])
    for level, closed, share in ((0.3, 1, 0.5), (0.3001, 0, 0.0)):
        flat = np.full((1, 1, 19), level)
        assert covered_closed(flat, y, 50) == closed
        assert coverage_probability(transform_span(flat, y), y, 50) == pytest.approx(share)


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_chances_and_brier_from_quantiles(seed):
    quantiles, actual = a_case(seed, whole=True)
    chance = chances(quantiles, 9)
    score = brier(chance, actual)
    for i, k, y in each(actual):
        slow = chance[i, k]
        told = [1.0 - np.interp(n - 0.5, quantiles[i, k], LEVELS, left=0.0, right=1.0) for n in range(1, 10)]
        assert slow == pytest.approx(told, abs=0.05), "the outermost levels leave 5 % open on each side"
        assert (np.diff(slow) <= 1e-12).all()
        if np.isnan(y):
            assert np.isnan(score[i, k])
        else:
            assert score[i, k] == pytest.approx(
                np.mean([(slow[n - 1] - (y >= n)) ** 2 for n in range(1, 10)])
            )


def test_without_a_capacity_there_is_no_brier_score():
    assert np.isnan(brier(chances(np.zeros((2, 3, 19)), 0), np.zeros((2, 3)))).all()


@given(SEEDS, st.booleans())
@settings(max_examples=40, deadline=None)
def test_shares_below_without_ties_are_the_plain_ones(seed, whole):
    quantiles, actual = a_case(seed, whole=whole)
    shares = shares_below(transform_span(quantiles, actual), actual)
    for i, k, y in each(actual):
        if np.isnan(y):
            assert np.isnan(shares[i, k]).all()
        elif not np.isclose(quantiles[i, k], y).any():
            assert shares[i, k] == pytest.approx((y <= quantiles[i, k]).astype(float))
        assert np.isnan(y) or (np.diff(shares[i, k]) >= 0).all()


def test_a_flat_price_forecast_exactly_is_calibrated_at_every_level():
    y = np.array([[0.9]])
    span = transform_span(np.full((1, 1, 19), 0.9), y)
    assert shares_below(span, y)[0, 0] == pytest.approx(LEVELS)
    for percent in (50, 80, 90):
        assert coverage_probability(span, y, percent) == pytest.approx(percent / 100)


def slow_transform(quantiles, y, draws):
    """Return draws of the transform from 19 quantiles, case by case; every level of a tie has mass 5 %, half to either side."""
    tied = [a for a, q in zip(LEVELS, quantiles, strict=True) if abs(q - y) < 1e-9]
    if not tied:
        lower = [a for a, q in zip(LEVELS, quantiles, strict=True) if q < y]
        return np.full(draws.size, (max(lower) if lower else 0.0) + 0.025)
    first = 0.0 if tied[0] == LEVELS[0] else tied[0] - 0.025
    last = 1.0 if tied[-1] == LEVELS[-1] else tied[-1] + 0.025
    return first + draws * (last - first)


@given(SEEDS, st.booleans())
@settings(max_examples=40, deadline=None)
def test_coverage_from_quantiles_is_the_expected_one_of_the_randomised_transform(seed, whole):
    quantiles, actual = a_case(seed, whole=whole)
    span = transform_span(quantiles, actual)
    draws = (np.arange(2000) + 0.5) / 2000
    for percent in (50, 80, 90):
        inside = coverage_probability(span, actual, percent)
        closed = covered_closed(quantiles, actual, percent)
        for i, k, y in each(actual):
            if np.isnan(y):
                assert np.isnan(inside[i, k])
                continue
            slow = (np.abs(slow_transform(quantiles[i, k], y, draws) - 0.5) <= percent / 200).mean()
            assert inside[i, k] == pytest.approx(slow, abs=2e-3)
            assert inside[i, k] <= closed[i, k] + 1e-12
            if not np.isclose(quantiles[i, k], y).any():
                assert inside[i, k] == closed[i, k]


def drawn_from(distribution, rng, size):
    """Return quantiles at `LEVELS` of a distribution given by its quantile function, and samples: (size, 1, 19) and (size, 1)."""
    return np.broadcast_to(distribution(LEVELS), (size, 1, 19)), distribution(rng.random((size, 1)))


def test_a_continuous_law_has_its_usual_coverage():
    quantiles, actual = drawn_from(lambda a: np.log(a / (1 - a)), np.random.default_rng(4), 20_000)
    span = transform_span(quantiles, actual)
    for percent in (50, 80, 90):
        inside = coverage_probability(span, actual, percent)
        assert (inside == covered_closed(quantiles, actual, percent)).all()
        assert inside.mean() == pytest.approx(percent / 100, abs=0.01)


def test_point_masses_of_right_laws_do_not_lift_coverage():
    """A constant or moving price, with point masses of any size: coverage is P, while the closed interval covers more."""
    rng = np.random.default_rng(5)
    kept, closed = {50: [], 80: [], 90: []}, {50: [], 80: [], 90: []}
    for _ in range(400):
        first, last = np.sort(np.clip(rng.uniform(-0.5, 1.5, 2), 0.0, 1.0))

        def distribution(a, first=first, last=last):
            return np.where(a < first, a - first, np.where(a > last, a - last, 0.0))

        quantiles, actual = drawn_from(distribution, rng, 200)
        span = transform_span(quantiles, actual)
        for percent in kept:
            kept[percent].append(coverage_probability(span, actual, percent).mean())
            closed[percent].append(covered_closed(quantiles, actual, percent).mean())
    for percent in kept:
        assert np.mean(kept[percent]) == pytest.approx(percent / 100, abs=0.01)
        assert np.mean(closed[percent]) > percent / 100 + 0.02


def test_a_count_that_hardly_ever_leaves_its_cap_is_covered_as_often_as_said():
    """The closed 80 % interval [16, 16] covers 97 of 100 values; the randomised interval 78, since 15 had no quantile."""
    actual = np.where(np.arange(1000) < 30, 15.0, 16.0)[:, None]
    quantiles = np.broadcast_to(np.full(19, 16.0), (1000, 1, 19))
    assert covered_closed(quantiles, actual, 80).mean() == 0.97
    for percent in (50, 80, 90):
        from_quantiles = coverage_probability(transform_span(quantiles, actual), actual, percent).mean()
        assert from_quantiles == pytest.approx(percent / 100 * 0.97)


@given(SEEDS)
@settings(max_examples=30, deadline=None)
def test_conditional_frequencies_by_counting(seed):
    rng = np.random.default_rng(seed)
    values = np.floor(rng.uniform(0, 4, 30)).astype(float)
    values[rng.random(30) < 0.2] = np.nan
    table = conditional_frequencies(values, 5, 40)
    for k in (1, 2, 7, 29, 30, 40):
        for n in range(1, 6):
            for state in (0, 1):
                pairs = (
                    [
                        (a, b)
                        for a, b in zip(values[:-k], values[k:], strict=True)
                        if not np.isnan(a) and not np.isnan(b) and int(a >= n) == state
                    ]
                    if k < 30
                    else []
                )
                wanted = np.mean([b >= n for _, b in pairs]) if pairs else state
                assert table[k - 1, n - 1, state] == pytest.approx(wanted)


def slow_diebold_mariano(loss, floor, step):
    """Compute equations 8 and 9 of Harvey, Leybourne and Newbold (1997) directly."""
    d = [b - a for a, b in zip(loss, floor, strict=True)]
    n, mean = len(d), sum(d) / len(d)
    gamma = [sum((d[t] - mean) * (d[t - k] - mean) for t in range(k, n)) / n for k in range(step)]
    variance = (gamma[0] + 2 * sum(gamma[1:])) / n
    return mean / variance**0.5 * ((n + 1 - 2 * step + step * (step - 1) / n) / n) ** 0.5


@given(SEEDS, st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_diebold_mariano(seed, step):
    rng = np.random.default_rng(seed)
    shocks = rng.normal(size=220)
    d = np.convolve(shocks, np.ones(step), mode="valid")[:200] + 0.2
    loss = rng.uniform(1, 2, 200)
    statistic, p = diebold_mariano(loss, loss + d, step)
    assert statistic == pytest.approx(slow_diebold_mariano(loss, loss + d, step), rel=1e-6)
    assert 0 <= p <= 1
    assert diebold_mariano(loss + d, loss, step) == pytest.approx((-statistic, p))


def test_diebold_mariano_has_its_size_under_the_null():
    """Errors of equal accuracy with the overlap of 4-step forecasts: about one test in twenty rejects at 5 %."""
    rng = np.random.default_rng(1)
    found = [
        diebold_mariano(np.zeros(150), np.convolve(rng.normal(size=153), np.ones(4), mode="valid"), 4)[1]
        < 0.05
        for _ in range(1500)
    ]
    assert 0.03 < np.mean(found) < 0.11


def test_diebold_mariano_says_nothing_about_equal_losses():
    same = np.arange(10.0)
    for loss, floor in ((same, same), (same, same + 1), (same[:1], same[1:2]), (same[:0], same[:0])):
        assert np.isnan(diebold_mariano(loss, floor, 3)).all()


def test_a_negative_long_run_variance_is_replaced_by_bartletts():
    alternating = np.tile([1.0, -1.0], 20) + 0.1
    statistic, p = diebold_mariano(np.zeros(40), alternating, 2)
    assert np.isfinite(statistic)
    assert 0 <= p <= 1
