"""Deliberately perturbed forecasts (M6.8)."""

import numpy as np
import pytest

from slackwater.studies.experiments.perturbation import (
    SIZES,
    Growth,
    Law,
    draw_noise,
    perturbed_count,
    perturbed_price,
)
from slackwater.warehouse.errors import SettingsError


def noise(growth=Growth.FIXED, distribution=Law.UNIFORM, slots=4000, steps=9, seed=0):
    return draw_noise(slots, steps, growth=growth, distribution=distribution, rng=np.random.default_rng(seed))


@pytest.mark.parametrize("distribution", Law)
def test_both_laws_have_the_same_median_error(distribution):
    drawn = noise(distribution=distribution)
    for errors in (drawn.price, drawn.count):
        np.testing.assert_allclose(np.median(np.abs(errors), axis=0), 0.5, atol=0.04)
        assert np.abs(np.median(errors)) < 0.02
    assert np.corrcoef(drawn.price.ravel(), drawn.count.ravel())[0, 1] == pytest.approx(0.0, abs=0.05)


def test_tails():
    assert np.abs(noise().price).max() <= 1.0
    heavy = np.abs(noise(distribution=Law.HEAVY).price)
    assert (
        heavy > 2.0
    ).mean() > 0.01  # t with 2.5 degrees of freedom, scaled to a median of 1/2, exceeds this 5 % of the time
    assert (heavy > 2.0).mean() < 0.12


@pytest.mark.parametrize("distribution", Law)
def test_growing_errors_grow_with_the_root_of_the_step(distribution):
    drawn = np.median(np.abs(noise(growth=Growth.GROWING, distribution=distribution).price), axis=0)
    np.testing.assert_allclose(drawn, 0.5 * np.sqrt(np.arange(1, 10)), rtol=0.08)


def test_sizes_scale_the_same_errors():
    drawn = noise(slots=50, steps=3)
    price = np.full((50, 3), 0.5)
    small, large = (
        perturbed_price(price, drawn.price, size=size, on_demand_usd=1.0) - 0.5 for size in (0.1, 0.3)
    )
    np.testing.assert_allclose(large, 3 * small)
    assert SIZES == (0.0, 0.1, 0.3, 0.5, 1.0)


@pytest.mark.parametrize("distribution", Law)
@pytest.mark.parametrize("size", SIZES)
def test_what_comes_out_could_have_been_forecast(distribution, size):
    drawn = noise(growth=Growth.GROWING, distribution=distribution, slots=300)
    price = perturbed_price(np.full((300, 9), 1.2), drawn.price, size=size, on_demand_usd=3.0)
    count = perturbed_count(np.full((300, 9), 5), drawn.count, size=size, capacity=16)
    assert price.min() >= 0.03
    assert price.max() <= 3.0
    assert count.dtype == np.int64
    assert 0 <= count.min() <= count.max() <= 16
    if size == 0.0:
        assert (price == 1.2).all()
        assert (count == 5).all()
    else:
        assert len(np.unique(count)) > 1
        assert price.std() > 0


def test_no_error_leaves_even_what_is_out_of_bounds():
    price = np.array([4.0])  # auction prices did exceed on-demand
    assert perturbed_price(price, np.array([1.0]), size=0.0, on_demand_usd=3.0)[0] == 4.0
    assert perturbed_price(price, np.array([1.0]), size=0.1, on_demand_usd=3.0)[0] == 3.0


def test_seeds_and_mistakes():
    np.testing.assert_array_equal(noise(seed=1).price, noise(seed=1).price)
    assert not np.array_equal(noise(seed=1).price, noise(seed=2).price)
    with pytest.raises(SettingsError, match="error size"):
        perturbed_price(np.array([1.0]), np.array([0.0]), size=-0.1, on_demand_usd=1.0)
    with pytest.raises(SettingsError, match="at least one"):
        draw_noise(0, 3, growth=Growth.FIXED, distribution=Law.UNIFORM, rng=np.random.default_rng(0))
