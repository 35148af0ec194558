"""Models of other libraries as predictors: what they see, their spread, their fallbacks, and what is stored (M6.2, M6.4)."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from make import make_history
from series_kit import wandering
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, Ridge

from slackwater.forecasting import forecast
from slackwater.forecasting.adapters import FEWEST_SLOTS, from_mlforecast, from_sklearn, from_statsforecast
from slackwater.forecasting.predictor import NEVER_SEEN, Panel, restore_model, state_text
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.series import series_of
from slackwater.warehouse.errors import ForecastError, SettingsError

HORIZON = 6


def panel_of(*histories, variable="price"):
    return Panel(
        series=tuple(
            replace(series_of(one, variable), source=f"s{i}" if i else "") for i, one in enumerate(histories)
        )
    )


def outlook(fitted, panel, origins=(200, 399), which=0):
    return fitted.outlook(panel, which, np.array(origins), HORIZON)


SEEN: list[np.ndarray] = []


class Spy(LinearRegression):
    """Regressor that remembers every input."""

    def predict(self, rows):
        SEEN.append(rows.copy())
        return super().predict(rows)


def test_a_straight_line_is_continued_without_spread():
    line = panel_of(make_history(1.0 + 0.001 * np.arange(400), np.zeros(400)))
    given = outlook(from_sklearn(LinearRegression(), name="line").fit(line), line, [300, 399])
    expected = np.array([1.3, 1.399])[:, None] + 0.001 * np.arange(1, HORIZON + 1)
    np.testing.assert_allclose(given.mean, expected, atol=1e-9)
    np.testing.assert_allclose(given.quantiles, given.mean[:, :, None].repeat(19, axis=2), atol=1e-9)
    assert given.reasons == ("", "")


def test_the_spread_is_that_of_past_errors_by_step():
    rng = np.random.default_rng(3)
    walk = panel_of(make_history(5.0 + np.cumsum(rng.choice([-0.01, 0.01], 600)), np.zeros(600)))
    given = outlook(
        from_sklearn(DummyRegressor(strategy="constant", constant=0.0), name="still").fit(walk), walk, [599]
    )
    width = given.quantiles[0, :, -1] - given.quantiles[0, :, 0]
    assert width[0] == pytest.approx(0.02)
    assert width[-1] > 1.5 * width[0]


def test_a_model_sees_the_values_up_to_the_origin_only():
    whole = panel_of(wandering(400))
    fitted = from_sklearn(Spy(), name="spy").fit(Panel(series=(whole.series[0].part(0, 300),)))
    SEEN.clear()
    given = outlook(fitted, whole, [300, 320])
    values = whole.series[0].values.copy()
    values[321:] = 99.0
    changed = Panel(series=(replace(whole.series[0], values=values),))
    seen = SEEN.copy()
    SEEN.clear()
    again = outlook(fitted, changed, [300, 320])
    np.testing.assert_array_equal(given.quantiles, again.quantiles)
    for before, after in zip(seen, SEEN, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("pickled", [False, True])
def test_a_stored_state_forecasts_the_same(pickled):
    panel = panel_of(wandering(400), wandering(400, seed=1))
    forest = RandomForestRegressor(n_estimators=5, random_state=1)
    fitted = from_sklearn(forest, name="forest", pickled=pickled).fit(panel)
    text = state_text(fitted)
    assert bool(fitted.blob.size) is pickled
    assert bool(fitted.pasts) is not pickled
    np.testing.assert_array_equal(
        outlook(restore_model(text), panel).quantiles, outlook(fitted, panel).quantiles
    )
    assert not hasattr(forest, "estimators_"), "the caller's object is left alone"


def test_bytes_are_not_read_unless_the_caller_allows_it():
    panel = panel_of(wandering(400))
    text = state_text(from_sklearn(Ridge(), name="opted", pickled=True).fit(panel))
    from_sklearn(Ridge(), name="opted")
    with pytest.raises(ForecastError, match="run code when they are read"):
        restore_model(text)
    with pytest.raises(ForecastError, match="created before the fit is read"):
        restore_model(_of_nobody(panel))


def _of_nobody(panel):
    """Return the state of a predictor that nobody made in this process."""
    from slackwater.forecasting import adapters

    text = state_text(from_sklearn(Ridge(), name="nobody").fit(panel))
    del adapters._ADAPTED["nobody"]
    return text


def test_last_value_replaces_what_cannot_be_estimated():
    short = panel_of(wandering(FEWEST_SLOTS - 10, gaps=0.0))
    given = outlook(from_sklearn(Ridge(), name="short").fit(short), short, [20])
    np.testing.assert_array_equal(given.mean, short.series[0].last(np.array([20]))[0])
    assert given.reasons[0].startswith(f"fewer than {FEWEST_SLOTS} slots")
    whole = panel_of(wandering(400))
    wrong = from_sklearn(Ridge(alpha=-1.0), name="wrong").fit(whole)
    assert "wrong cannot be estimated" in outlook(wrong, whole).reasons[0]


def test_a_market_that_was_not_there_is_forecast_by_last_value():
    panel = panel_of(wandering(400), wandering(400, seed=1))
    fitted = from_sklearn(Ridge(), name="one").fit(Panel(series=panel.series[:1]))
    assert outlook(fitted, panel, which=1).reasons[0].startswith(NEVER_SEEN)
    assert outlook(fitted, panel).reasons == ("", "")


def test_wrong_arguments_say_what_is_expected():
    with pytest.raises(SettingsError, match="lags"):
        from_sklearn(Ridge(), name="none", lags=0)
    with pytest.raises(SettingsError, match="intervals"):
        from_statsforecast(object(), name="odd", intervals="both")


def test_intervals_of_statsforecast_are_the_quantiles():
    models = pytest.importorskip("statsforecast.models", reason="statsforecast asks for an older pandas")
    panel = panel_of(wandering(400, gaps=0.0))
    values = panel.series[0].values
    given = outlook(from_statsforecast(models.AutoETS(season_length=1), name="own").fit(panel), panel, [399])
    own = models.AutoETS(season_length=1).fit(values).forward(y=values, h=HORIZON, level=[90, 50])
    for place, name in ((0, "lo-90"), (4, "lo-50"), (9, "mean"), (14, "hi-50"), (18, "hi-90")):
        np.testing.assert_allclose(given.quantiles[0, :, place], own[name])
    naive = from_statsforecast(models.SeasonalNaive(season_length=48), name="naive", intervals="errors")
    np.testing.assert_allclose(outlook(naive.fit(panel), panel, [399]).mean[0], values[352:358])


def test_an_mlforecast_has_one_model_and_slots_or_times():
    mlforecast = pytest.importorskip("mlforecast", reason="mlforecast brings a tuner of parameters")
    panel = panel_of(wandering(400), wandering(400, seed=1))
    by = {
        freq: from_mlforecast(
            mlforecast.MLForecast(models=[Ridge()], freq=freq, lags=[1, 2]), name=f"every {freq}"
        )
        for freq in (1, "30min")
    }
    given = [outlook(one.fit(panel), panel) for one in by.values()]
    np.testing.assert_allclose(given[0].quantiles, given[1].quantiles)
    with pytest.raises(SettingsError, match="2 models"):
        from_mlforecast(
            mlforecast.MLForecast(models=[Ridge(), LinearRegression()], freq=1, lags=[1]), name="two"
        )


def test_the_page_has_a_predictor_that_works(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "other-libraries.md"
    (tmp_path / "my_models.py").write_text(page.read_text().split("```python\n")[1].split("```")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    given = forecast(wandering(200), make_predictor("my_models:ridge"), horizon=3)
    sys.modules.pop("my_models")
    assert (given.predictor, given.price_fallback) == ("my_models:ridge", "")
