"""Recalibration of price quantiles by past transforms (M6.6)."""

from __future__ import annotations

import numpy as np
import pytest

from slackwater.forecasting.quantiles import LEVELS
from slackwater.studies.predictors.dva import PRICE_BINS, corrected_quantiles, price_transforms


def test_a_price_falls_between_or_on_its_quantiles():
    spread = np.linspace(1.0, 2.8, 19)
    for i, level in enumerate((0.5, 1.05, 2.75, 5.0)):
        share = price_transforms(spread, np.array(level))
        assert share.sum() == pytest.approx(1.0)
        assert np.flatnonzero(share).tolist() == [(0, 1, 18, 19)[i]]
    on_the_third = price_transforms(spread, np.array(spread[2]))
    assert on_the_third[[2, 3]] == pytest.approx([0.5, 0.5])
    still = price_transforms(np.full(19, 0.918), np.array(0.918))
    assert still == pytest.approx(np.full(PRICE_BINS, 1 / PRICE_BINS))
    assert price_transforms(spread, np.array(np.nan)).sum() == 0


def test_too_narrow_quantiles_are_widened_on_what_they_had_not_seen():
    rng = np.random.default_rng(0)
    came = rng.normal(2.0, 0.2, 4000)
    issued = np.tile(np.quantile(rng.normal(2.0, 0.1, 100_000), LEVELS), (4000, 1))
    past = price_transforms(issued[:2000], came[:2000]).sum(axis=0)
    after = corrected_quantiles(issued[2000:], np.tile(past, (2000, 1)))

    def covered(quantiles):
        return ((came[2000:] >= quantiles[:, 1]) & (came[2000:] <= quantiles[:, 17])).mean()

    assert covered(issued[2000:]) < 0.55
    assert covered(after) > 0.66
    assert (np.diff(after, axis=1) >= 0).all()
    assert after[:, 9] == pytest.approx(issued[2000:, 9])


def test_a_price_without_spread_stays_without():
    still = np.full((3, 19), 0.918)
    assert np.array_equal(corrected_quantiles(still, np.ones((3, PRICE_BINS)) * 50), still)
