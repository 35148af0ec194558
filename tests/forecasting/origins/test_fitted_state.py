"""A restored forecaster equals the written forecaster (M6.4)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
from forms_kit import quick_first
from make import make_history
from predictors_kit import registered
from series_kit import wandering

from slackwater.forecasting.predictor import EachAlone, Panel, restore_model, state_text
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.predictors.arima import Arima, FittedArima
from slackwater.forecasting.predictors.last_value import LastValue
from slackwater.forecasting.series import series_of
from slackwater.warehouse.errors import ForecastError


def same(one, other):
    assert np.array_equal(one.quantiles, other.quantiles)
    assert np.array_equal(one.mean, other.mean)
    assert one.reasons == other.reasons
    assert (one.distribution is None) == (other.distribution is None)
    assert one.distribution is None or np.array_equal(one.distribution, other.distribution)


def panel_of(variable):
    kinds = [wandering(300, seed=seed) for seed in (1, 2)]
    kinds.append(make_history([0.9] * 300, [4] * 300, capacity=8))
    named = [replace(one, source=f"s{i}") for i, one in enumerate(kinds)]
    return Panel(series=tuple(series_of(one, variable) for one in named))


@pytest.mark.parametrize("variable", quick_first(["price", "count"]))
@pytest.mark.parametrize("name", registered())
def test_every_predictor_forecasts_the_same_after_it_was_restored(name, variable):
    panel = panel_of(variable)
    fitted = make_predictor(name).fit(panel.until(panel.series[0].first_slot + 249))
    text = state_text(fitted)
    assert text == state_text(restore_model(text)), "what is read is what was written"
    for which in range(len(panel)):
        origins = np.array([249, 270, 299])
        same(fitted.outlook(panel, which, origins, 6), restore_model(text).outlook(panel, which, origins, 6))


def test_a_state_is_plain_json_with_the_numbers_in_it():
    series = series_of(wandering(300), "count")
    fitted = Arima().fit(series)
    assert isinstance(fitted, FittedArima)

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    digest, text = state_text(fitted).split(":", 1)
    assert digest == hashlib.sha256(text.encode()).hexdigest()
    tree = json.loads(text, parse_constant=refuse)
    assert tree["stored"] == "arima.fitted"
    arma = tree["fields"]["arma"]["fields"]
    assert arma["d"] == fitted.arma.d
    assert arma["phi"]["array"] == fitted.arma.phi.tolist()


def test_a_market_that_was_not_there_is_answered_after_restoring_too():
    panel = panel_of("count")
    fitted = EachAlone(model=LastValue()).fit(Panel(series=panel.series[:1]))
    again = restore_model(state_text(fitted))
    told = fitted.outlook(panel, 1, np.array([100]), 3)
    same(told, again.outlook(panel, 1, np.array([100]), 3))
    past = LastValue().fit(panel.series[1].part(0, 101)).outlook(panel.series[1], np.array([100]), 3)
    assert np.array_equal(told.quantiles, past.quantiles), "by its past up to and with the origin"


def test_odd_numbers_and_spans_come_back():
    @dataclass(frozen=True)
    class Elsewhere:
        x: int = 1

    values = (
        float("nan"),
        float("inf"),
        1,
        0.1,
        True,
        None,
        "x",
        pd.Timedelta(minutes=30),
        [1, (2,)],
        {("a", 1): 2},
    )
    back = restore_model(state_text(values))
    assert np.isnan(back[0])
    assert back[1:] == values[1:]
    for array in (np.array([1.0, np.nan]), np.arange(1000.0).reshape(10, 100), np.array([], dtype=np.int64)):
        again = restore_model(state_text(array))
        assert np.array_equal(again, array, equal_nan=True)
        assert (again.shape, again.dtype) == (array.shape, array.dtype)
    for wrong in (object(), np.array([object()]), Elsewhere()):
        with pytest.raises(ForecastError, match="in a fitted model"):
            state_text(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        '{"class":"os:system","fields":{}}',
        '{"class":"slackwater.forecasting.predictors.last_value:FittedLastValue","fields":{}}',
        '{"stored":"last_value.fitted","fields":{"other":1}}',
        '{"stored":"gone","fields":{}}',
        '{"unknown":1}',
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(text):
    with pytest.raises(ForecastError, match="estimate again"):
        restore_model(text)
