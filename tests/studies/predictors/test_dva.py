"""The diffusion variational autoencoder: windows by hand, no look-ahead, and gains from training and denoising (M6.2)."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from make import make_history
from series_kit import wandering

from slackwater.forecasting.predictor import NEVER_SEEN, Panel
from slackwater.forecasting.predictors import PREDICTORS, check_predictor, make_predictor
from slackwater.forecasting.predictors.last_value import LastValue
from slackwater.forecasting.quantiles import LEVELS
from slackwater.forecasting.series import series_of
from slackwater.studies.predictors.dva import (
    COLUMNS,
    GROWN,
    LENGTH,
    UNTAUGHT,
    DvaCount,
    DvaPrice,
    Training,
    distributions,
    lessons,
    targets_at,
    taught,
    units_at,
    windows_at,
)
from slackwater.warehouse.errors import SettingsError

NAN = float("nan")
with_jax = pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
LONG, SHORT = Training(epochs=100), Training(batches=60)


def loss(quantiles, truth):
    error = truth[..., None] - quantiles
    return np.nanmean(np.maximum(LEVELS * error, (LEVELS - 1) * error))


def tide(slots, seed=0):
    """Return a count of 8 by day and 0 by night, off by 1 now and then: last value is wrong twice a day, and late."""
    rng = np.random.default_rng(seed)
    count = np.where(np.arange(slots) % 24 < 12, 8.0, 0.0)
    return make_history(
        [1.0] * slots, np.clip(count + (rng.random(slots) < 0.1) * rng.choice([-1, 1], slots), 0, 8)
    )


def test_no_product_predictor_is_named_so_and_it_is_found_by_name():
    """`test_models.py` checks that nothing of the product loads JAX."""
    assert "dva" not in list(PREDICTORS)
    check_predictor("dva")


@pytest.mark.skipif(find_spec("jax") is not None, reason="jax is installed")
def test_without_jax_the_library_is_named():
    with pytest.raises(SettingsError, match=r"needs jax.*pip install jax"):
        make_predictor("dva")


def test_a_window_of_counts_by_hand():
    counts = [0, 4, NAN, 8, 8, 2]
    series = series_of(make_history([1.0] * 6, counts, capacity=8), "count")
    window = windows_at(series, np.array([4]))[0]
    assert window.shape == (LENGTH, 8)
    # The origin first, as distance from the middle of 0..8 in halves; a gap repeats the previous value, or the
    # origin's before the first.
    assert window[:7, 0].tolist() == [1.0, 1.0, 0.0, 0.0, -1.0, 1.0, 1.0]
    assert window[:7, 2].tolist() == [1, 1, 0, 1, 1, 0, 0], "what was observed"
    assert window[:4, 3].tolist() == [0, 1, 0, 1], "what had changed"
    assert targets_at(series, np.array([3]))[0, :3].tolist() == [0.0, -1.5, pytest.approx(NAN, nan_ok=True)]


def test_a_window_of_prices_is_in_recent_changes():
    prices = [1.0, 1.1, 1.1, 1.0, 1.1]
    series = series_of(make_history(prices, [1] * 5), "price")
    units = units_at(series, np.array([4]))
    assert units.unit[0] == pytest.approx(3 * np.log(1.1))
    assert windows_at(series, np.array([4]))[0, :5, 0] == pytest.approx([0, -1 / 3, 0, 0, -1 / 3], abs=1e-6)
    assert np.exp(units.back(units.of(np.log([[2.0, 0.5]]))))[0] == pytest.approx([2.0, 0.5])


@pytest.mark.parametrize("variable", ["count", "price"])
def test_a_window_reads_nothing_after_its_origin(variable):
    whole = wandering(200, seed=4)
    series = series_of(whole, variable)
    origins = np.arange(60, 150)
    cut = series.part(0, 120)
    early = origins[origins < 120]
    assert np.array_equal(windows_at(series, early), windows_at(cut, early))
    given = lessons(Panel(series=(cut,)), seed=0)
    unknown = np.isnan(targets_at(cut, np.array([118]))[0])
    assert unknown[1:].all(), "targets end with the panel"
    assert given.x.shape[1:] == (LENGTH, 8)


def test_laws_of_draws_are_laws_and_their_means_are_the_draws():
    drawn = np.random.default_rng(1).normal(4.0, 1.2, (2, 400, 3))
    distribution = distributions(drawn, 9)
    assert distribution.shape == (2, 3, 9)
    assert distribution.sum(axis=-1) == pytest.approx(np.ones((2, 3)))
    assert (distribution >= 0).all()
    assert distribution @ np.arange(9) == pytest.approx(drawn.mean(axis=1), abs=0.05)
    outside = distributions(np.full((1, 8, 1), 30.0), 5)[0, 0]
    assert outside[-1] == pytest.approx(1.0), "what is beyond is at the bound"


def test_too_little_is_answered_by_last_value_and_says_so():
    for whole in (wandering(60), make_history([1.0] * 300, [4] * 300, capacity=8)):
        series = series_of(whole, "count")
        fitted = DvaCount().fit(Panel(series=(series,)))
        given = fitted.outlook(Panel(series=(series,)), 0, np.array([50]), 4)
        simpler = LastValue().fit(series).outlook(series, np.array([50]), 4)
        assert given.reasons[0].startswith(UNTAUGHT)
        assert np.array_equal(given.quantiles, simpler.quantiles)


@pytest.fixture(scope="module")
def tidal():
    """Return a network trained on 500 slots of the tide, and the series with 300 slots more."""
    whole = series_of(tide(800), "count")
    return DvaCount(how=LONG).fit(Panel(series=(whole.part(0, 500),))), whole


@with_jax
def test_it_learns_what_last_value_cannot_know(tidal):
    fitted, whole = tidal
    origins = np.arange(500, 740)
    given = fitted.outlook(Panel(series=(whole,)), 0, origins, 12)
    truth = whole.values[origins[:, None] + np.arange(1, 13)]
    simpler = LastValue().fit(whole.part(0, 500)).outlook(whole, origins, 12)
    for step in (3, 7, 11):
        ours, theirs = (loss(one.quantiles[:, step], truth[:, step]) for one in (given, simpler))
        assert ours < 0.6 * theirs, step
    assert set(given.reasons) == {""}
    inside = (truth >= given.quantiles[:, :, 1]) & (truth <= given.quantiles[:, :, 17])
    assert inside.mean() > 0.75


@with_jax
def test_an_answer_does_not_depend_on_what_else_is_asked(tidal):
    fitted, whole = tidal
    panel, origins = Panel(series=(whole,)), np.arange(510, 560)
    many = fitted.outlook(panel, 0, origins, 60)
    for i in (0, 17, 49):
        one = fitted.outlook(panel, 0, origins[i : i + 1], 60)
        assert np.array_equal(one.distribution[0], many.distribution[i])
    assert np.array_equal(many.distribution[:, LENGTH - 1], many.distribution[:, 59]), (
        "later steps are answered like the last"
    )


@with_jax
def test_one_step_down_the_energy_is_nearer_to_what_came(tidal):
    """Denoising score matching: sampled paths move towards values that counts really take."""
    from slackwater.studies.predictors import dva_network

    fitted, whole = tidal
    origins = np.arange(500, 700)
    x = windows_at(whole, origins)
    cleaned, raw = (dva_network.draw_paths(fitted.params, x, seed=3, clean=clean) for clean in (True, False))
    truth = targets_at(whole, origins)[:, None, :]
    error = [np.nanmean((one - truth) ** 2) for one in (cleaned, raw)]
    assert error[0] < 0.9 * error[1]


@with_jax
def test_training_is_the_same_again_and_lowers_its_loss():
    from slackwater.studies.predictors import dva_network

    given = lessons(Panel(series=(series_of(tide(400), "count"),)), seed=1)
    known = np.isfinite(given.y)
    y = np.where(known, given.y, 0).astype(np.float32)
    begin = dva_network.fresh(1, length=LENGTH, columns=COLUMNS)
    made = [
        dva_network.trained(begin, given.x, y, known.astype(np.float32), batches=100, seed=2) for _ in "ab"
    ]
    assert all(np.array_equal(made[0][0][name], made[1][0][name]) for name in begin)
    losses = made[0][1]
    assert losses[-20:].mean() < losses[:20].mean() - 0.2


@with_jax
def test_the_target_keeps_more_of_itself_than_the_window():
    """The coupled diffusion: at every step after the first, the target diffuses more slowly."""
    from slackwater.studies.predictors import dva_network as network

    window, target = (network.kept(scale) for scale in (1.0, network.TARGET_SCALE))
    assert window[0] == target[0] == 1.0
    assert (np.diff(window) < 0).all()
    assert (target[1:] > window[1:]).all()
    beta = np.linspace(0.0, network.BETA_END, network.DIFFUSION)
    assert target[5] == pytest.approx(np.prod(1.0 - network.TARGET_SCALE * beta[:6]))


@with_jax
def test_a_market_that_came_later_and_one_that_grew_are_labelled(tidal):
    fitted, whole = tidal
    other = replace(whole, source="elsewhere")
    assert fitted.outlook(Panel(series=(other,)), 0, np.array([600]), 4).reasons == (NEVER_SEEN,)
    grown = replace(whole, upper=np.where(np.arange(800) < 600, 8.0, 20.0))
    reasons = fitted.outlook(Panel(series=(grown,)), 0, np.array([590, 610]), 4).reasons
    assert reasons == ("", GROWN)


@with_jax
def test_a_price_that_stands_still_is_forecast_to_stand_still():
    rng = np.random.default_rng(2)
    moving = 1.0 + 0.01 * np.cumsum(rng.choice([-1, 0, 0, 1], 500)).clip(-40, 80)
    # Only one price moves in the last three days.
    price = np.concatenate([moving, np.full(200, moving[-1])])
    series = series_of(make_history(price, [1] * 700), "price")
    panel = Panel(series=(series,))
    fitted = DvaPrice(how=SHORT).fit(panel.until(series.first_slot + 499))
    given = fitted.outlook(panel, 0, np.array([480, 699]), 6)
    assert (given.quantiles[0, :, -1] > given.quantiles[0, :, 0]).all()
    assert (given.quantiles[1] == price[-1]).all()
    assert taught(Panel(series=(series.part(520, 700),)), SHORT) == {}, "no lesson in what never moves"
