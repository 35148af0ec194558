"""Estimating again where drift was found: when it happens, and that nothing later is known there (M6.4)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from series_kit import history

from forecasting.diagnosis.drift import early_fits
from forecasting.origins.rolling import Rolling, fit_slots, forecast_unit, panel_models, second_half, units_of
from forecasting.predictor import Panel
from forecasting.series import series_of
from warehouse.errors import SettingsError

DAY = 48
WEEK = {"count": pd.Timedelta(days=70), "price": pd.Timedelta(days=70)}


@pytest.fixture(scope="module")
def panel():
    """Two weeks of which the last five days are another regime, beside a market that never changes."""
    rng = np.random.default_rng(0)
    calm = rng.integers(0, 3, 14 * DAY).astype(float)
    shifted = np.concatenate([calm[: 9 * DAY], 6 + rng.integers(0, 3, 5 * DAY)])
    series = [series_of(history(np.ones(14 * DAY), x, capacity=8), "count") for x in (shifted, calm)]
    return Panel(series=(series[0], replace(series[1], source="other")))


def rolling_of(panel, early):
    return Rolling(
        panels=(panel,), parts=(tuple(second_half(one) for one in panel.series),),
        models={name: panel_models(name) for name in ("last_value", "markov")}, horizon=3, refit=WEEK, early=early,
    )  # fmt: skip


def test_origins_after_the_mark_use_the_estimation_in_its_slot(panel):
    (early,) = early_fits([panel])
    assert len(early) == 1
    series = panel.series[0]
    part = second_half(series)
    plain, with_marks = fit_slots(series, part, WEEK["count"]), fit_slots(series, part, WEEK["count"], early)
    at = series.first_slot + part.origins
    np.testing.assert_array_equal(with_marks[at < early[0]], plain[at < early[0]])
    assert (with_marks[at >= early[0]] == early[0]).all()
    assert 9 * DAY < early[0] - series.first_slot < 11 * DAY
    assert (fit_slots(series, part, None, early) == series.first_slot + part.start).all()


def test_an_early_slot_never_takes_the_place_of_a_later_estimation(panel):
    series = panel.series[0]
    part = second_half(series)
    daily = pd.Timedelta(days=1)
    found = fit_slots(series, part, daily, [series.first_slot + 7 * DAY + 5, series.first_slot + 8 * DAY + 7])
    at = series.first_slot + part.origins
    assert (found >= fit_slots(series, part, daily)).all()
    assert (found <= at).all()


def test_the_engine_estimates_there_and_last_value_does_not(panel):
    early = early_fits([panel])
    units = units_of(rolling_of(panel, early))
    of = {name: {unit.fit_slot for unit in units if unit.model == name} for name in ("last_value", "markov")}
    assert early[0][0] in of["markov"]
    assert early[0][0] not in of["last_value"]
    every = sorted(int(o) for u in units if u.model == "markov" for w, at in u.origins if w == 0 for o in at)
    assert every == second_half(panel.series[0]).origins.tolist()


def test_forecasts_up_to_a_slot_do_not_know_what_comes_after(panel):
    cut = 12 * DAY
    first = panel.series[0].first_slot
    scrambled = Panel(
        series=tuple(
            replace(one, values=np.where(np.arange(len(one)) > cut, 0.0, one.values)) for one in panel.series
        )
    )
    made = []
    for own in (panel, scrambled):
        rolling = rolling_of(own, early_fits([own]))
        blocks = [b for unit in units_of(rolling) for b in forecast_unit(unit, rolling)]
        made.append(
            {
                (b.model, b.which, int(o)): b.outlook.quantiles[i]
                for b in blocks
                for i, o in enumerate(b.origins)
                if o <= cut
            }
        )
        assert [slot for slot in early_fits([own])[0] if slot <= first + cut] == list(early_fits([panel])[0])
    assert made[0].keys() == made[1].keys()
    for key, quantiles in made[0].items():
        np.testing.assert_array_equal(quantiles, made[1][key])


def test_early_slots_of_other_panels_are_refused(panel):
    with pytest.raises(SettingsError, match="early estimations for 2 of 1 panels"):
        rolling_of(panel, ((), ()))
