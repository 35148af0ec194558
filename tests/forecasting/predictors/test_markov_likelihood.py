"""The fast likelihood of many chains compared with the slow version that reads whole transition matrices."""

import numpy as np
import pytest

from slackwater.forecasting.predictors.markov import FittedMarkovChain, log_likelihoods


def slow(values: np.ndarray, chain: FittedMarkovChain) -> float:
    total = 0.0
    for slot, counts in chain._counts(values):
        if slot + 1 < len(values) and not np.isnan(values[slot : slot + 2]).any():
            total += np.log(chain._matrix(counts)[int(values[slot]), int(values[slot + 1])])
    return float(total)


@pytest.mark.parametrize("seed", range(4))
def test_one_pass_equals_reading_the_matrices(seed):
    rng = np.random.default_rng(seed)
    values = np.clip(np.cumsum(rng.integers(-2, 3, 120)), 0, 8).astype(float)
    values[rng.random(120) < 0.1] = np.nan
    chains = [
        FittedMarkovChain(states=9, forget=forget, prior=prior, simpler=None)
        for forget in (0.9, 0.99)
        for prior in (1.0, 4.0)
    ]
    np.testing.assert_allclose(log_likelihoods(values, chains), [slow(values, c) for c in chains], rtol=1e-12)
