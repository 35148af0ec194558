"""The fast quantiles of all columns compared with numpy's, column by column."""

import numpy as np

from slackwater.forecasting.predictors.distributions import MIN_ERRORS, error_quantiles
from slackwater.forecasting.quantiles import LEVELS


def test_equal_to_numpy_column_by_column():
    rng = np.random.default_rng(2)
    errors = rng.normal(size=(200, 12))
    errors[rng.random(errors.shape) < 0.3] = np.nan
    errors[25:, 10] = np.nan
    table = error_quantiles(errors).table
    for step in range(12):
        known = errors[np.isfinite(errors[:, step]), step]
        if known.size >= MIN_ERRORS:
            np.testing.assert_allclose(table[step], np.quantile(known, LEVELS), rtol=1e-12, atol=1e-15)
