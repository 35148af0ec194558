"""Relative gain and headroom captured (M7)."""

import numpy as np
import pytest

from slackwater.studies.trials.comparison import (
    baseline_places,
    compare,
    headroom_captured,
    relative_gain,
    shown_baselines,
)
from slackwater.warehouse.errors import SettingsError

NAMES = ("OD-only", "MSU", "UP", "AHANP(0.3)", "AHANP(0.9)", "clever")


def table(jobs=200, seed=0):
    rng = np.random.default_rng(seed)
    level = rng.normal(0, 0.2, size=(jobs, 1))
    utility = level + np.array([0.5, 0.9, 0.95, 0.6, 0.93, 1.0]) + rng.normal(0, 0.01, size=(jobs, 6))
    return utility, utility.max(axis=1) + 0.02, utility.max(axis=1) + 0.05


def test_formulas():
    assert relative_gain(np.array(1.2), np.array(0.8)) == pytest.approx(0.5)
    assert relative_gain(np.array(-1.0), np.array(-2.0)) == pytest.approx(0.5)
    assert np.isnan(relative_gain(np.array(1.0), np.array(0.0)))
    assert headroom_captured(np.array(1.0), np.array(0.9), np.array(1.1)) == pytest.approx(0.5)
    assert headroom_captured(np.array(0.8), np.array(0.9), np.array(1.1)) == pytest.approx(-0.5)
    assert np.isnan(headroom_captured(np.array(0.9), np.array(0.9), np.array(0.9)))


def test_comparison_by_hand():
    utility, low, high = table()
    found = compare(NAMES, utility, hindsight_low=low, hindsight_high=high)
    mean = utility.mean(axis=0)
    assert found.best == "clever"
    assert found.baseline == "UP"
    assert found.hindsight == pytest.approx((low.mean(), high.mean()))
    assert found.headroom[5] == pytest.approx((mean[5] - mean[2]) / (high.mean() - mean[2]))
    assert found.headroom[2] == 0.0
    assert list(found.gain) == ["OD-only", "MSU", "UP", "AHANP(0.9)"]  # AHANP at its best sigma
    assert found.gain["MSU"][5] == pytest.approx((mean[5] - mean[1]) / abs(mean[1]))
    assert np.isnan(found.low).all()


def test_intervals_are_about_the_means_and_tighter_where_jobs_are_paired():
    utility, low, high = table()
    found = compare(
        NAMES,
        utility,
        hindsight_low=low,
        hindsight_high=high,
        blocks=np.arange(200),
        rng=np.random.default_rng(1),
    )
    assert ((found.low < found.mean) & (found.mean < found.high)).all()
    width = found.headroom_high[5] - found.headroom_low[5]
    assert found.headroom_low[5] < found.headroom[5] < found.headroom_high[5]
    # Jobs differ by 0.2, policies within a job by 0.01: unpaired, a headroom of 0.1 would have a wider interval
    # than its size.
    assert width < 0.1
    assert found.high[5] - found.low[5] > 0.03


def test_baselines_are_the_named_ones_and_every_ahanp():
    assert baseline_places(NAMES) == [0, 1, 2, 3, 4]
    assert shown_baselines(("UP", "AHANP(0.5)", "AHAP(1,1,0.9)"), np.array([1.0, 2.0, 3.0])) == [
        "UP",
        "AHANP(0.5)",
    ]
    with pytest.raises(SettingsError, match="without baselines"):
        baseline_places(["AHAP(1,1,0.9)"])
    utility, low, high = table(jobs=3)
    with pytest.raises(SettingsError, match="nobody"):
        compare(NAMES, utility, hindsight_low=low, hindsight_high=high).of("nobody")
