"""The paired block bootstrap compared with closed forms, and the coverage of its intervals."""

import itertools

import numpy as np
import pandas as pd
import pytest

from slackwater.studies.trials.comparison import day_blocks, resampled
from slackwater.warehouse.errors import SettingsError


def alone(values):
    """Return one block per job."""
    return np.arange(len(values))


def test_standard_error_of_a_mean_is_the_closed_form():
    values = np.random.default_rng(0).normal(3.0, 2.0, size=(400, 1))
    draws = resampled(values, blocks=alone(values), rng=np.random.default_rng(1), repeats=8_000)
    assert draws.means.mean() == pytest.approx(values.mean(), abs=0.01)
    assert draws.means.std() == pytest.approx(values.std() / np.sqrt(400), rel=0.03)
    low, high = draws.interval()
    assert low[0] == pytest.approx(values.mean() - 1.97 * values.std() / 20, abs=0.02)
    assert high[0] == pytest.approx(values.mean() + 1.97 * values.std() / 20, abs=0.02)


def test_three_jobs_have_the_ten_means_of_enumeration():
    values = np.array([0.0, 1.0, 10.0])
    draws = resampled(values[:, None], blocks=alone(values), rng=np.random.default_rng(2), repeats=54_000)
    exact: dict[float, float] = {}
    for draw in itertools.product(values, repeat=3):
        mean = round(sum(draw) / 3, 9)
        exact[mean] = exact.get(mean, 0.0) + 1 / 27
    found, counts = np.unique(draws.means[:, 0].round(9), return_counts=True)
    assert found.tolist() == sorted(exact)
    np.testing.assert_allclose(counts / 54_000, [exact[m] for m in sorted(exact)], atol=0.008)


def test_jobs_of_a_block_are_drawn_together():
    """Two blocks of unequal size have three means: either alone, or all jobs."""
    values, blocks = np.array([[0.0], [0.0], [0.0], [8.0]]), ["b", "b", "b", "a"]
    draws = resampled(values, rng=np.random.default_rng(4), repeats=8_000, blocks=blocks)
    assert draws.blocks == 2
    found, counts = np.unique(draws.means[:, 0], return_counts=True)
    assert found.tolist() == [0.0, 2.0, 8.0]
    np.testing.assert_allclose(counts / 8_000, [0.25, 0.5, 0.25], atol=0.02)


def test_a_block_is_a_series_and_a_day():
    starts = pd.to_datetime(
        ["2025-01-01 00:00", "2025-01-01 23:30", "2025-01-02 00:00", "2025-01-01 12:00"], utc=True
    )
    found = day_blocks(["a", "a", "a", "b"], starts)
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_columns_are_resampled_together():
    rng = np.random.default_rng(3)
    job = rng.normal(0, 5, size=(200, 1))
    draws = resampled(np.hstack([job, job + 0.1]), blocks=alone(job), rng=rng, repeats=500)
    ahead = draws.means[:, 1] - draws.means[:, 0]
    np.testing.assert_allclose(ahead, 0.1, atol=1e-9)
    low, high = draws.interval(ahead)
    assert low == pytest.approx(0.1)
    assert high == pytest.approx(0.1)


def test_few_blocks_set_the_percentiles_further_out():
    """Student's t with 9 degrees of freedom for 10 blocks, and the divisor 9 in place of 10."""
    values = np.array([-3.1, -2.0, -1.3, -0.7, -0.2, 0.2, 0.7, 1.3, 2.0, 3.1])[:, None]
    draws = resampled(values, blocks=alone(values), rng=np.random.default_rng(5), repeats=100_000)
    low, high = draws.interval(level=0.9)
    half = 1.833 * values.std(ddof=1) / np.sqrt(10)  # t of 0.95 and the standard error of the mean
    assert (low[0], high[0]) == pytest.approx((-half, half), rel=0.03)
    assert half > 1.1 * 1.645 * values.std() / np.sqrt(10)  # width of plain percentiles
    once = resampled(values, blocks=["one"] * 10, rng=np.random.default_rng(5))
    assert np.isnan(once.interval()).all()


def days_of_jobs(rng, *, days, jobs, series=1):
    """Return utilities of mean 0: within a day jobs follow an AR(1) of 0.95, days an AR(1) of 0.2; a day has
    jobs / 4 to jobs jobs.
    """
    values, blocks = [], []
    for name in range(series):
        level = rng.normal()
        for day in range(days):
            level = 0.2 * level + np.sqrt(1 - 0.04) * rng.normal()
            noise = rng.normal()
            for _ in range(int(rng.integers(jobs // 4, jobs + 1))):
                noise = 0.95 * noise + np.sqrt(1 - 0.95**2) * rng.normal()
                values.append(level + noise)
                blocks.append((name, day))
    return np.array(values)[:, None], blocks


@pytest.mark.parametrize(
    ("days", "series"), [(8, 1), *(pytest.param(*more, marks=pytest.mark.slow) for more in ((25, 1), (8, 9)))]
)
def test_the_interval_covers_where_jobs_of_a_day_hang_together(days, series):
    """At least 90 % for a nominal 95 %; resampling single jobs as if independent falls far below."""
    rng = np.random.default_rng(6)
    inside = {"blocks": 0, "jobs": 0}
    runs = 150
    for _ in range(runs):
        values, blocks = days_of_jobs(rng, days=days, jobs=20, series=series)
        for name, drawn in (("blocks", blocks), ("jobs", alone(values))):
            low, high = resampled(values, blocks=drawn, rng=rng, repeats=300).interval()
            inside[name] += bool(low[0] <= 0.0 <= high[0])
    assert inside["blocks"] / runs >= 0.9
    assert inside["jobs"] / runs < 0.75


def test_what_is_no_number_is_not_averaged_away():
    rng = np.random.default_rng(0)
    with pytest.raises(SettingsError, match="1 of them not finite"):
        resampled(np.array([[1.0], [np.nan]]), blocks=[0, 1], rng=rng)
    with pytest.raises(SettingsError, match="at least one job"):
        resampled(np.empty((0, 2)), blocks=[], rng=rng)
    with pytest.raises(SettingsError, match="1 blocks for 2 jobs"):
        resampled(np.ones((2, 1)), blocks=[0], rng=rng)
    draws = resampled(np.array([[1.0, 2.0], [3.0, 5.0], [2.0, 4.0]]), blocks=[0, 1, 2], rng=rng)
    low, high = draws.interval(np.column_stack([np.full(2000, np.nan), draws.means[:, 1]]))
    assert np.isnan([low[0], high[0]]).all()
    assert low[1] < high[1]
