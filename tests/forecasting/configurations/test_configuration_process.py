"""The Gaussian process of configurations compared with slow implementations (M9.2)."""

import numpy as np
import pytest

from slackwater.forecasting.configurations import throughput as process
from slackwater.forecasting.configurations.throughput import AXES, TERMS, Points, _block_factor, difficulty

THETA = process.initial_parameters()


def points(n, seed=0, models=3):
    rng = np.random.default_rng(seed)
    model = rng.integers(models, size=n).astype(str)
    gpu = rng.choice(["a", "b"], n)
    method = rng.choice(["full", "lora"], n)
    count = 2 ** rng.integers(3, size=n)
    x = rng.normal(size=(n, len(AXES)))
    group = np.array(["|".join(g) for g in zip(model, method, gpu, strict=True)])
    return Points(x=x, groups={"model": model, "gpu": gpu, "method": method, "count": count, "group": group})


def slow_covariance(theta, left, right):
    """Compute the sum of the terms pair by pair."""
    out = np.zeros((len(left.x), len(right.x)))
    for i in range(len(left.x)):
        for j in range(len(right.x)):
            at = len(TERMS) + 1
            for k, (_, names, axes, rough) in enumerate(TERMS):
                scale = np.exp(theta[at : at + len(axes)])
                at += len(axes)
                if any(left.groups[name][i] != right.groups[name][j] for name in names):
                    continue
                square = sum(
                    ((left.x[i, a] - right.x[j, a]) / s) ** 2 for a, s in zip(axes, scale, strict=True)
                )
                shape = (
                    (1 + np.sqrt(3 * square)) * np.exp(-np.sqrt(3 * square)) if rough else np.exp(-square / 2)
                )
                out[i, j] += np.exp(2 * theta[k]) * shape
    return out


def test_the_covariance_is_the_sum_of_its_terms():
    left, right = points(12, 1), points(9, 2)
    np.testing.assert_allclose(
        process.covariance(THETA, left, right), slow_covariance(THETA, left, right), rtol=1e-10
    )


def test_the_slope_of_the_evidence_is_its_numerical_one():
    p, residual = points(40), np.random.default_rng(5).normal(0, 0.2, 40)
    squares = [(p.x[:, [a]] - p.x[:, a]) ** 2 for a in range(len(AXES))]
    masks = {names: process.same_groups(p, p, names) for _, names, _, _ in TERMS}
    value = lambda t: process._evidence(t, squares, masks, residual)[0]  # noqa: E731
    slope = process._evidence(THETA, squares, masks, residual)[1]
    step = 1e-5 * np.eye(len(THETA))
    numerical = [(value(THETA + s) - value(THETA - s)) / 2e-5 for s in step]
    np.testing.assert_allclose(slope, numerical, atol=1e-4)


def test_left_out_errors_are_those_of_processes_without_the_row():
    p, residual = points(25), np.random.default_rng(6).normal(0, 0.2, 25)
    error, sd = process.condition(p, residual, THETA).left_out()
    for row in (0, 7, 24):
        others = np.delete(np.arange(25), row)
        mean, spread = process.condition(p.take(others), residual[others], THETA).predict(
            p.take(np.array([row]))
        )
        assert error[row] == pytest.approx(residual[row] - mean[0], abs=1e-9)
        assert sd[row] == pytest.approx(spread[0], rel=1e-9)


def test_block_errors_are_those_of_processes_without_the_block():
    p, residual = points(30, models=4), np.random.default_rng(8).normal(0, 0.3, 30)
    fitted = process.condition(p, residual, THETA)
    error, sd = fitted.left_out()
    scores = error / sd
    values, weights = [], []
    for name in np.unique(p.groups["model"]):
        rows, others = np.flatnonzero(p.groups["model"] == name), np.flatnonzero(p.groups["model"] != name)
        mean, spread = process.condition(p.take(others), residual[others], THETA).predict(p.take(rows))
        hard = difficulty(p.take(rows), p.take(others), scores[others])
        values.extend(np.abs(residual[rows] - mean) / (spread * hard))
        weights.extend([1 / len(rows) / 4] * len(rows))
    order = np.argsort(values)
    expected = np.array(values)[order][np.searchsorted(np.cumsum(np.array(weights)[order]), 0.9)]
    # The noise of a block's own rows is part of both.
    assert _block_factor(fitted, p.groups["model"], scores) == pytest.approx(expected, rel=1e-9)


def test_fitting_raises_the_evidence_and_seeing_a_row_lowers_its_spread():
    p, rng = points(60), np.random.default_rng(9)
    residual = 0.3 * np.sin(p.x[:, 0]) + rng.normal(0, 0.01, 60)
    before = process.condition(p, residual, THETA)
    after = process.fit(p, residual, theta=THETA, iterations=20)
    value = lambda q: 0.5 * residual @ q.weights + np.log(np.diag(q.factor)).sum()  # noqa: E731
    assert value(after) < value(before) - 5
    half = process.condition(p.take(np.arange(30)), residual[:30], after.theta)
    assert (after.predict(p)[1] <= half.predict(p)[1] + 1e-12).all()


def test_what_errs_nearby_widens_and_what_errs_far_away_does_not():
    p = points(50)
    scores = np.where(p.groups["gpu"] == "a", 4.0, 1.0)
    hard = difficulty(p, p, scores)
    assert hard[p.groups["gpu"] == "a"].min() > 1.0
    np.testing.assert_allclose(hard[p.groups["gpu"] == "b"], 1.0)
