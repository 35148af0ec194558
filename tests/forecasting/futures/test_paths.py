"""Sample paths keep the forecast's own chances slot by slot, and hang together between slots."""

from __future__ import annotations

import numpy as np
import pytest
from series_kit import MARKET, START, wandering
from standing import standing

from forecasting.futures.paths import sample_paths
from forecasting.quantiles import LEVELS, Forecast
from warehouse.errors import SettingsError


@pytest.fixture(scope="module")
def forecast():
    return standing("markov", wandering(400)).forecast(horizon=6)


def test_shapes_types_and_bounds(forecast):
    price, count = sample_paths(forecast, n=50, rng=np.random.default_rng(0))
    assert price.shape == count.shape == (50, 6)
    assert count.dtype == np.int64
    assert (price >= forecast.price[:, 0]).all()
    assert (price <= forecast.price[:, -1]).all()
    assert (count >= forecast.count[:, 0]).all()
    assert (count <= forecast.count[:, -1]).all()


def test_the_same_generator_gives_the_same_paths(forecast):
    one, two, other = (sample_paths(forecast, n=20, rng=np.random.default_rng(s)) for s in (1, 1, 2))
    assert (one[0] == two[0]).all()
    assert (one[1] == two[1]).all()
    assert (one[1] != other[1]).any()


@pytest.mark.parametrize("persistence", [0.0, 0.9, 1.0])
def test_shares_of_paths_are_the_forecast_chances(forecast, persistence):
    """Whatever the ranks do between slots, each slot alone has the forecast's distribution (four standard errors)."""
    _, count = sample_paths(forecast, n=20_000, rng=np.random.default_rng(3), rank_persistence=persistence)
    for step in (1, 3, 6):
        for n in range(1, forecast.capacity + 1):
            # Tails are held at q05 and q95: chances below 5 % or above 95 % are drawn as 0 or 1.
            chance = forecast.probability_at_least(n, step)
            share = float((count[:, step - 1] >= n).mean())
            expected = 0.0 if chance == 0 or n > forecast.count[step - 1, -1] else chance
            assert share == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(20_000) + 1e-9)


def test_ranks_persist_as_told():
    """A uniform price in every slot: the rank correlation of neighbours follows the persistence."""
    price = np.tile(LEVELS, (12, 1))
    flat = Forecast(
        market=MARKET, issued_at=START, step=wandering(2).step, predictor="m", newest_row=START, price=price,
        price_mean=price.mean(axis=1), count=np.zeros((12, 19)), count_mean=np.zeros(12), capacity=0,
    )  # fmt: skip
    for persistence in (0.0, 0.5, 0.9, 1.0):
        drawn, count = sample_paths(flat, n=5000, rng=np.random.default_rng(4), rank_persistence=persistence)
        # Rank correlation of a Gaussian copula (Pearson 1907); four standard errors, a little lost to the held tails.
        expected = 6 / np.pi * np.arcsin(persistence / 2)
        found = np.corrcoef(drawn[:, 4], drawn[:, 5])[0, 1]
        assert found == pytest.approx(expected, abs=4 / np.sqrt(5000))
        # Steady state: the last slot spreads as the first does.
        assert drawn[:, -1].std() == pytest.approx(drawn[:, 0].std(), rel=0.05)
        assert (count == 0).all()


def test_refusals(forecast):
    rng = np.random.default_rng(0)
    for n, persistence in ((0, 0.9), (5, 1.1), (5, -0.1)):
        with pytest.raises(SettingsError, match="paths with rank persistence"):
            sample_paths(forecast, n=n, rng=rng, rank_persistence=persistence)
