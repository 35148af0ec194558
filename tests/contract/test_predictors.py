"""Contract of the predictors (M1.2, M6.1-M6.4).

A new entry in `PREDICTORS` is included automatically; `others_drift` and the models of other libraries stand for
third-party predictors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from adapted_models import ADAPTED, adapted_models
from drift_predictor import drift
from hypothesis import given, settings
from hypothesis import strategies as st
from make import HALF_HOUR, START, make_history
from predictors_kit import installed, registered
from series_kit import wandering
from standing import standing as stand

from slackwater.forecasting.predictor import restore_model, state_text
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.quantiles import LEVELS
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT

NAMES = [*registered(), "others_drift", *adapted_models()]
#: Predictors that are in no registry.
OTHERS = {"others_drift": drift, **{name: make for name, (make, _) in ADAPTED.items()}}
NAN = float("nan")


def standing(name, history):
    """Return the predictor of that name, fitted on a history."""
    return stand(OTHERS[name]() if name in OTHERS else make_predictor(name), history)


ODD = {
    "nothing at all": make_history([], []),
    "one point": make_history([1.0], [3]),
    "two points": make_history([1.0, 1.1], [3, 4]),
    "one gap": make_history([NAN], [NAN], capacity=4),
    "all gaps": make_history([NAN] * 100, [NAN] * 100, capacity=4),
    "price only": make_history(1.0 + 0.01 * np.arange(200), [NAN] * 200, capacity=4),
    "count only": make_history([NAN] * 200, np.arange(200) % 5),
    "flat": make_history([0.918] * 300, [4] * 300),
    "all zero": make_history([0.0] * 300, [0] * 300, capacity=16),
    "capacity zero": make_history([1.0] * 300, [0] * 300, capacity=0),
    "short": wandering(30),
    "shorter than a day": wandering(40),
    "mostly gaps": wandering(400, gaps=0.9),
    "ends in a long gap": make_history([1.0, 1.1, 1.2] * 60 + [NAN] * 40, [0, 4, 2] * 60 + [NAN] * 40),
    "one observation, then gaps": make_history([1.0] + [NAN] * 200, [3] + [NAN] * 200),
    "begins in a long gap": make_history([NAN] * 200 + [1.0, 1.1, 1.2] * 40, [NAN] * 200 + [0, 4, 2] * 40),
    "alternating": make_history([1.0, 2.0] * 200, [0, 16] * 200),
    "no clock, capacity not stated": wandering(300, real_clock=False, capacity_stated=False),
    "above on-demand": make_history(np.linspace(1.0, 30.0, 200), [1] * 200),
    "step up at the end": make_history([1.0] * 199 + [2.0], [0] * 199 + [4]),
    "many instances": make_history([1.0] * 300, 200 + np.arange(300) % 50),
    "daily slots": wandering(70, step=pd.Timedelta(days=1)),
    "slots that do not divide a day": wandering(300, step=pd.Timedelta(minutes=50)),
}  # fmt: skip


@cache
def odd(name, case):
    """Return the predictor of that name on an odd history; fitted once, as no test changes it."""
    return standing(name, ODD[case])


def same(a, b, *, tolerance=1e-9):
    """Assert that two forecasts are the same in every field, numbers up to a rounding error."""
    for name in (
        "market",
        "issued_at",
        "step",
        "predictor",
        "newest_row",
        "capacity",
        "price_fallback",
        "count_fallback",
    ):
        assert getattr(a, name) == getattr(b, name), name
    for name in ("price", "price_mean", "count", "count_mean"):
        np.testing.assert_allclose(
            getattr(a, name), getattr(b, name), atol=tolerance, rtol=tolerance, err_msg=name
        )


def check(forecast, past, horizon):
    """Check a forecast beyond the validation of `Forecast` itself (crossing, negative, above capacity)."""
    assert forecast.horizon == horizon
    assert forecast.market == past.market
    assert forecast.step == past.step
    assert forecast.issued_at == (past.slots[-1] if len(past.slots) else past.known_at)
    assert forecast.capacity == past.capacity
    assert (forecast.count == np.floor(forecast.count)).all()
    assert (forecast.count_mean >= 0).all()
    assert (forecast.count_mean <= past.capacity).all()
    dearest = np.nanmax(np.append(past.price, past.on_demand_usd))
    assert (forecast.price <= dearest + 1e-9).all()
    assert (forecast.price_mean >= 0).all()
    assert (forecast.price_mean <= dearest + 1e-9).all()


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def fitted(name):
    """Return every predictor fitted on the first 400 of 640 slots with gaps (M6.4)."""
    whole = wandering(640)
    return standing(name, whole.until(whole.slots[399])), whole


#: Cases of whole histories that give what other cases give; they are in the long form.
LONG = {
    "alternating",
    "above on-demand",
    "step up at the end",
    "many instances",
    "shorter than a day",
    "all zero",
    "mostly gaps",
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.replace(" ", "-"), marks=[pytest.mark.slow] if case in LONG else [])
        for case in ODD
    ],
)
def test_any_history_gives_a_forecast(name, case):
    fitted = odd(name, case)
    assert fitted.name == name
    for horizon in (1, 48):
        forecast = fitted.forecast(horizon=horizon)
        assert forecast.predictor == name
        check(forecast, ODD[case], horizon)


def test_nothing_observed_is_priced_at_on_demand_and_says_so(name):
    """Without observations: on-demand price, no instances, and the reason, for each variable separately."""
    for case, blind in (
        ("nothing at all", "pc"),
        ("all gaps", "pc"),
        ("price only", "c"),
        ("count only", "p"),
    ):
        forecast = odd(name, case).forecast(horizon=5)
        if "p" in blind:
            assert (forecast.price == 3.06).all()
            assert (forecast.price_mean == 3.06).all()
            assert forecast.price_fallback == "no observed value"
        else:
            assert forecast.price_fallback != "no observed value"
        if "c" in blind:
            assert (forecast.count == 0).all()
            assert (forecast.count_mean == 0).all()
            assert forecast.count_fallback == "no observed value"
        else:
            assert forecast.count_fallback != "no observed value"


def test_an_old_value_is_labelled(name):
    """The newest value is 40 slots (20 hours) old: no predictor may present it as current."""
    forecast = odd(name, "ends in a long gap").forecast(horizon=3)
    assert forecast.newest_row == ODD["ends in a long gap"].slots[179]
    if name == "seasonal_naive":  # it looks a day back, where there are values
        return
    assert forecast.price_fallback
    assert forecast.count_fallback


def test_a_well_observed_history_needs_no_fallback(fitted):
    """A label that is always present carries no information."""
    model, _ = fitted
    assert model.forecast(horizon=12).fallback == ""


def test_forecast_many_equals_one_by_one(fitted):
    """M6.4: one pass over all origins equals extending step by step."""
    model, whole = fitted
    origins = list(whole.slots[[0, 1, 47, 300, 399, 400, 639]])
    made = model.forecast_many(whole, origins, horizon=48)
    assert [forecast.issued_at for forecast in made] == origins
    for origin, forecast in zip(origins, made, strict=True):
        same(forecast, model.extend(whole.until(origin)).forecast(horizon=48))


def test_origins_may_come_in_any_order_and_repeat(fitted):
    model, whole = fitted
    order = [600, 450, 600]
    made = model.forecast_many(whole, list(whole.slots[order]), horizon=4)
    alone = {
        place: model.forecast_many(whole, [whole.slots[place]], horizon=4)[0] for place in sorted(set(order))
    }
    for place, forecast in zip(order, made, strict=True):
        same(forecast, alone[place])
    assert model.forecast_many(whole, [], horizon=4) == []


def scrambled(whole, place, seed):
    """Return the history with everything after a slot replaced by noise."""
    rng = np.random.default_rng(seed)
    frame = whole.frame.copy()
    after = len(frame) - place - 1
    if after:
        frame.iloc[place + 1 :, frame.columns.get_loc(PRICE)] = rng.uniform(0, 50, after)
        frame.iloc[place + 1 :, frame.columns.get_loc(AVAILABLE)] = rng.integers(0, whole.capacity + 1, after)
    return replace(whole, frame=frame)


def test_a_scrambled_future_changes_nothing(fitted):
    """M1.2: later values do not affect the forecast at an origin, in one pass as in single forecasts."""
    model, whole = fitted
    origins = list(whole.slots[380:560:20])
    truth = model.forecast_many(whole, origins, horizon=24)
    for place, seed in ((400, 1), (500, 2)):
        noisy = model.forecast_many(scrambled(whole, place, seed), origins, horizon=24)
        reached = whole.slots[place]
        for before, after in zip(truth, noisy, strict=True):
            if before.issued_at <= reached:
                same(before, after)
        assert any(
            not np.array_equal(a.count, b.count)
            for a, b in zip(truth, noisy, strict=True)
            if a.issued_at > reached
        ), "the scramble changed nothing at all: the test would not notice a leak"


def test_fit_sees_no_future_and_fitting_twice_gives_the_same(name):
    """M1.2: fitting on `until(T)` of two histories that differ after T gives the same model, to the bit."""
    whole = wandering(420, seed=5)
    at = whole.slots[299]
    first = standing(name, whole.until(at))
    second = standing(name, scrambled(whole, 299, 9).until(at))
    same(first.forecast(horizon=24), second.forecast(horizon=24), tolerance=0)


def test_extend_moves_on_without_estimating_again(fitted):
    """M6.4: the state moves, the fitted object is unchanged, and two extensions equal a single extension."""
    model, whole = fitted
    before = model.forecast(horizon=6)
    leap = model.extend(whole.until(whole.slots[520]))
    same(model.forecast(horizon=6), before)
    assert leap.forecast(horizon=6).issued_at == whole.slots[520]
    twice = model.extend(whole.until(whole.slots[450])).extend(whole.until(whole.slots[520]))
    same(twice.forecast(horizon=6), leap.forecast(horizon=6), tolerance=0)


def test_what_was_learned_late_is_not_known_early(fitted):
    """M1.2: rows of the past that became known after an origin are gaps to it."""
    model, whole = fitted
    frame = whole.frame.copy()
    late = np.arange(500, 510)
    frame.iloc[late, frame.columns.get_loc(ROW_KNOWN_AT)] = whole.slots[560]
    held_back = replace(whole, frame=frame)
    origins = list(whole.slots[[480, 505, 559, 560]])
    made = model.forecast_many(held_back, origins, horizon=6)
    for origin, forecast in zip(origins, made, strict=True):
        same(forecast, model.extend(held_back.until(origin)).forecast(horizon=6))
    other = scrambled(whole, 499, 4).frame
    frame.iloc[late] = other.iloc[late].assign(known_at=whole.slots[560])
    changed = model.forecast_many(replace(whole, frame=frame), origins, horizon=6)
    for origin, a, b in zip(origins, made, changed, strict=True):
        if origin < whole.slots[560]:
            same(a, b)


def test_a_capacity_nobody_stated_is_not_learned_from_the_future(name):
    """M1.2, M6.3: a forecast is bounded by the largest count so far, not by the largest count ever."""
    count = [1, 2, 1, 0] * 60 + [9, 8, 9, 7] * 30
    whole = make_history([1.0] * 360, count, capacity_stated=False)
    model = standing(name, whole.until(whole.slots[200]))
    early, late = model.forecast_many(whole, [whole.slots[220], whole.slots[300]], horizon=12)
    assert early.capacity == 2
    assert early.count.max() <= 2
    assert late.capacity == 9
    same(late, model.extend(whole.until(whole.slots[300])).forecast(horizon=12))
    if name not in ADAPTED:  # models of other libraries go beyond what they have seen by rules of their own
        assert late.median("count")[0] >= 7, "a count never seen in training is answered by the last value"


def test_a_model_of_nothing_can_meet_a_market_later(name):
    """Fitted on an empty history, extended to a real one: a labelled forecast around the newest value."""
    whole = wandering(200, seed=3, gaps=0.0)
    forecast = odd(name, "nothing at all").extend(whole).forecast(horizon=12)
    check(forecast, whole, 12)
    assert forecast.count_fallback
    assert forecast.median("count")[0] == whole.available[-1]


def test_origins_between_slots_and_before_all(fitted):
    """An origin between two slots uses the earlier slot; an origin before all slots has no data."""
    model, whole = fitted
    between, before = whole.slots[450] + HALF_HOUR / 3, START - HALF_HOUR
    first, second = model.forecast_many(whole, [between, before], horizon=3)
    same(first, model.extend(whole.until(between)).forecast(horizon=3))
    assert first.issued_at == whole.slots[450]
    assert second.price_fallback == "no observed value"


values = st.one_of(st.none(), st.integers(0, 5))


WHOLE = [*installed(), "others_drift"]


@pytest.mark.parametrize(
    ("names", "examples"),
    [pytest.param(WHOLE, 10, id="short"), pytest.param(WHOLE, 25, id="long", marks=pytest.mark.slow)],
)
def test_arbitrary_short_histories(names, examples):
    @settings(max_examples=examples, deadline=None)
    @given(
        data=st.lists(st.tuples(values, values), min_size=1, max_size=70),
        horizon=st.integers(1, 30),
        split=st.floats(0, 1),
    )
    def short_histories(data, horizon, split):
        """With any gaps, every predictor stays within bounds, and one pass equals single forecasts."""
        price, count = (
            np.array([NAN if v is None else v for v in column], dtype=float)
            for column in zip(*data, strict=True)
        )
        whole = make_history(price, count, capacity=5)
        cut = whole.slots[int(split * (len(data) - 1))]
        for each in names:
            model = standing(each, whole.until(cut))
            (forecast,) = model.forecast_many(whole, [whole.slots[-1]], horizon=horizon)
            check(forecast, whole, horizon)
            same(forecast, model.extend(whole).forecast(horizon=horizon))

    short_histories()


def test_an_unknown_predictor_is_refused_by_name():
    with pytest.raises(SettingsError, match=r"predictor 'prophet'.*last_value"):
        make_predictor("prophet")


def test_what_was_estimated_can_be_kept_and_read(fitted):
    """M6.4: between two refits a turn restores the stored fit instead of estimating."""
    model, whole = fitted
    again = replace(
        model, fits={variable: restore_model(state_text(one)) for variable, one in model.fits.items()}
    )
    same(again.extend(whole).forecast(horizon=6), model.extend(whole).forecast(horizon=6), tolerance=0)


def test_every_level_is_there(fitted):
    assert fitted[0].forecast(horizon=2).price.shape == (2, LEVELS.size)
