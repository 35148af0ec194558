"""The paired bootstrap against closed forms."""

import itertools

import numpy as np
import pytest

from optimization.trials.comparison import interval, resampled_means
from warehouse.errors import SettingsError


def test_standard_error_of_a_mean_is_the_closed_form():
    values = np.random.default_rng(0).normal(3.0, 2.0, size=(400, 1))
    samples = resampled_means(values, rng=np.random.default_rng(1), repeats=20_000)
    assert samples.mean() == pytest.approx(values.mean(), abs=0.01)
    assert samples.std() == pytest.approx(values.std() / np.sqrt(400), rel=0.03)
    low, high = interval(samples)
    assert low[0] == pytest.approx(values.mean() - 1.96 * values.std() / 20, abs=0.02)
    assert high[0] == pytest.approx(values.mean() + 1.96 * values.std() / 20, abs=0.02)


def test_three_jobs_have_the_ten_means_of_enumeration():
    values = np.array([0.0, 1.0, 10.0])
    samples = resampled_means(values[:, None], rng=np.random.default_rng(2), repeats=54_000)[:, 0].round(9)
    exact: dict[float, float] = {}
    for draw in itertools.product(values, repeat=3):
        mean = round(sum(draw) / 3, 9)
        exact[mean] = exact.get(mean, 0.0) + 1 / 27
    found, counts = np.unique(samples, return_counts=True)
    assert found.tolist() == sorted(exact)
    np.testing.assert_allclose(counts / len(samples), [exact[m] for m in sorted(exact)], atol=0.008)


def test_jobs_of_a_block_are_drawn_together():
    """Two blocks of unequal size have three means: either alone, or all jobs."""
    values, blocks = np.array([[0.0], [0.0], [0.0], [8.0]]), np.array([5, 5, 5, 2])
    samples = resampled_means(values, rng=np.random.default_rng(4), repeats=8_000, blocks=blocks)[:, 0]
    found, counts = np.unique(samples, return_counts=True)
    assert found.tolist() == [0.0, 2.0, 8.0]
    np.testing.assert_allclose(counts / 8_000, [0.25, 0.5, 0.25], atol=0.02)
    each = resampled_means(values, rng=np.random.default_rng(4), repeats=50, blocks=np.arange(4))
    np.testing.assert_array_equal(each, resampled_means(values, rng=np.random.default_rng(4), repeats=50))


def test_columns_are_resampled_together():
    rng = np.random.default_rng(3)
    job = rng.normal(0, 5, size=(200, 1))
    values = np.hstack([job, job + 0.1])
    samples = resampled_means(values, rng=rng, repeats=500)
    np.testing.assert_allclose(samples[:, 1] - samples[:, 0], 0.1, atol=1e-9)
    low, high = interval(samples[:, 1] - samples[:, 0])
    assert low == pytest.approx(0.1)
    assert high == pytest.approx(0.1)


def test_the_interval_covers_at_its_level():
    rng = np.random.default_rng(4)
    inside = 0
    for _ in range(300):
        low, high = interval(resampled_means(rng.normal(0, 1, size=(60, 1)), rng=rng, repeats=300), level=0.8)
        inside += bool(low[0] <= 0.0 <= high[0])
    assert 0.72 <= inside / 300 <= 0.87


def test_what_is_no_number_is_not_averaged_away():
    with pytest.raises(SettingsError, match="1 of them not finite"):
        resampled_means(np.array([[1.0], [np.nan]]), rng=np.random.default_rng(0))
    with pytest.raises(SettingsError, match="at least one job"):
        resampled_means(np.empty((0, 2)), rng=np.random.default_rng(0))
    low, high = interval(np.array([[np.nan, 1.0], [np.nan, 3.0]]))
    assert np.isnan([low[0], high[0]]).all()
    assert low[1] < high[1]
