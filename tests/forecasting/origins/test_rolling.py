"""The backtest engine: timetable, what a model is shown, units, and no peeking into the future (M6.4, M6.5)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rolling_kit import (
    DAY,
    HALF_HOUR,
    LAST,
    Watching,
    a_rolling,
    a_series,
    blocks_of,
    registered,
    scrambled,
)
from series_kit import history

from forecasting.forecast import Forecast
from forecasting.origins.backtest import issued
from forecasting.origins.rolling import (
    NO_NUMBER,
    REFIT,
    Rolling,
    fit_slots,
    forecast_unit,
    panel_models,
    second_half,
    units_of,
)
from forecasting.predictor import EachAlone, Outlook, Panel
from forecasting.predictors import PREDICTORS
from forecasting.predictors.last_value import LastValue
from forecasting.series import series_of
from warehouse.errors import ForecastError, SettingsError
from warehouse.issued.vintages import read_forecasts, write_forecasts
from warehouse.store.connection import open_store


def same(one: Outlook, other: Outlook) -> bool:
    laws = (one.law is None and other.law is None) or np.array_equal(one.law, other.law)
    return (
        np.array_equal(one.quantiles, other.quantiles)
        and np.array_equal(one.mean, other.mean)
        and one.reasons == other.reasons
        and laws
    )


def by_origin(blocks):
    return {
        (b.model, b.panel, b.which, int(o)): (b.outlook.quantiles[i], b.outlook.mean[i], b.outlook.reasons[i])
        for b in blocks
        for i, o in enumerate(b.origins)
    }


def test_the_usual_test_part_is_the_second_half_from_its_first_known_slot():
    part = second_half(a_series(11, gaps=0))
    assert part.start == 4
    assert part.origins.tolist() == [4, 5, 6, 7, 8, 9]
    late = series_of(history([np.nan] * 11, [np.nan] * 7 + [1, 2, 3, 4]), "count")
    assert second_half(late).origins.tolist() == [7, 8, 9]
    assert second_half(late.part(0, 0)).origins.size == 0
    assert second_half(late.part(0, 1)).origins.size == 0


def test_since_moves_the_origins_but_not_the_training_part():
    series = a_series(40, gaps=0)
    first = pd.Timestamp(0, tz="UTC") + (series.first_slot + 30) * HALF_HOUR
    for since, origin in ((first, 30), (first - HALF_HOUR / 2, 30), (first - 20 * HALF_HOUR, 19)):
        part = second_half(series, since)
        assert (part.start, part.origins[0], part.origins[-1]) == (19, origin, 38)
    assert second_half(series, first + DAY).origins.size == 0


def test_estimations_stand_at_multiples_of_the_cadence_since_the_epoch():
    series = a_series(400, gaps=0)
    part = second_half(series)
    slots = fit_slots(series, part, DAY)
    absolute = series.first_slot + part.origins
    assert (slots <= absolute).all()
    assert (slots % 48 == 0).all()
    assert (absolute - slots < 48).all()


def test_an_early_estimation_is_replaced_by_the_one_at_the_test_start():
    series = a_series(100, gaps=0)
    part = second_half(series)
    start = series.first_slot + part.start
    slots = fit_slots(series, part, pd.Timedelta(days=7))
    multiple = start // 336 * 336
    early = 2 * (multiple - series.first_slot + 1) < part.start + 1
    assert early, "the case is not the one that is meant"
    assert set(slots[absolute_before(series, part, multiple + 336)]) == {start}
    assert (fit_slots(series, part, None) == start).all()


def absolute_before(series, part, slot):
    return series.first_slot + part.origins < slot


def test_every_origin_of_every_model_is_in_one_unit():
    panels = [
        Panel(series=(a_series(300), a_series(260, zone="b", later=20))),
        Panel(series=(a_series(200, source="x"),)),
    ]
    rolling = a_rolling(panels, {"last_value": LAST, "other": {"price": Watching([]), "count": Watching([])}})
    found = sorted(
        (unit.model, unit.panel, which, int(origin))
        for unit in units_of(rolling)
        for which, origins in unit.origins
        for origin in origins
    )
    wanted = sorted(
        (model, i, j, int(origin))
        for model in rolling.models
        for i, parts in enumerate(rolling.parts)
        for j, part in enumerate(parts)
        for origin in part.origins
    )
    assert found == wanted
    assert [u.panel for u in units_of(rolling)] == sorted(u.panel for u in units_of(rolling))


def test_a_model_is_shown_the_panel_up_to_its_fit_and_to_its_last_origin_and_no_more():
    shown: list = []
    panel = Panel(series=(a_series(300), a_series(300, zone="b", seed=1)))
    rolling = a_rolling(
        [panel], {"last_value": LAST, "watching": {"price": Watching(shown), "count": Watching(shown)}}
    )
    fits = {u.fit_slot for u in units_of(rolling) if u.model == "watching"}
    blocks_of(rolling)
    assert {entry[1] for entry in shown if entry[0] == "fit"} == fits
    assert len(fits) > 2
    assert all(entry[1] == entry[2] for entry in shown if entry[0] == "outlook")


def test_last_value_is_estimated_once_at_each_test_start():
    panel = Panel(series=(a_series(300), a_series(260, zone="b", later=20)))
    rolling = a_rolling([panel], {"last_value": LAST})
    starts = {s.first_slot + p.start for s, p in zip(panel.series, rolling.parts[0], strict=True)}
    assert {u.fit_slot for u in units_of(rolling)} == starts
    for block in blocks_of(rolling):
        series = panel.series[block.which]
        alone = LastValue().fit(series.part(0, rolling.parts[0][block.which].start + 1))
        plain = alone.outlook(series, block.origins, 3)
        assert block.outlook.mean == pytest.approx(np.clip(plain.mean, 0, series.upper[0]))


@pytest.mark.parametrize("variable", ["count", "price"])
@pytest.mark.parametrize("name", sorted(PREDICTORS))
def test_no_registered_model_reads_the_future(name, variable):
    """Scramble everything after an origin, the forecasts up to it stay; over two fits, so estimations are tried too (M4.9)."""
    panel = Panel(
        series=(
            a_series(420, variable=variable),
            a_series(400, variable=variable, zone="b", seed=3, later=15),
            a_series(420, variable=variable, zone="c", seed=4, gaps=0.3),
        )
    )
    models = {"last_value": LAST, name: registered(name)}
    every = {"count": DAY, "price": DAY}
    whole = a_rolling([panel], models, refit=every)
    cut = panel.series[0].first_slot + 300
    other = replace_panel(whole, scrambled(panel, cut, np.random.default_rng(5)))
    before, after = (
        {key: value for key, value in by_origin(_of(name, rolling, cut)).items() if _slot(panel, key) <= cut}
        for rolling in (whole, other)
    )
    assert before.keys() == after.keys()
    assert len(before) > 150
    for key, (quantiles, mean, reason) in before.items():
        assert np.array_equal(quantiles, after[key][0]), key
        assert np.array_equal(mean, after[key][1]), key
        assert reason == after[key][2]


def _of(name, rolling, cut):
    units = [u for u in units_of(rolling) if u.model == name and u.fit_slot <= cut]
    assert len({u.fit_slot for u in units}) >= 2
    return [block for unit in units for block in forecast_unit(unit, rolling)]


def _slot(panel, key):
    return panel.series[key[2]].first_slot + key[3]


def replace_panel(rolling, panel):
    return Rolling(
        panels=(panel,),
        parts=rolling.parts,
        models=rolling.models,
        horizon=rolling.horizon,
        refit=rolling.refit,
    )


def test_forecasts_from_many_origins_are_those_made_one_by_one():
    panel = Panel(series=(a_series(260), a_series(260, zone="b", seed=2)))
    rolling = a_rolling([panel], {"last_value": LAST, "markov": registered("markov")})
    for unit in units_of(rolling)[::3]:
        for block, (which, origins) in zip(forecast_unit(unit, rolling), unit.origins, strict=True):
            for i in range(0, origins.size, 7):
                alone = replace(unit, origins=((which, origins[i : i + 1]),))
                (one,) = forecast_unit(alone, rolling)
                assert one.outlook.quantiles[0] == pytest.approx(block.outlook.quantiles[i])


def test_what_a_model_alone_answers_does_not_depend_on_its_neighbours():
    both = Panel(series=(a_series(260), a_series(260, zone="b", seed=2)))
    models = {"last_value": LAST, "markov": registered("markov")}
    together = by_origin(blocks_of(a_rolling([both], models)))
    alone = by_origin(blocks_of(a_rolling([Panel(series=both.series[:1])], models)))
    assert alone
    for key, value in alone.items():
        assert np.array_equal(value[0], together[key][0])


class Broken:
    """A model whose answer has no number at every second origin, or has a shape that is none."""

    def __init__(self, shape_too: bool = False) -> None:
        self.shape_too = shape_too

    def fit(self, panel):
        return self

    def outlook(self, panel, which, origins, horizon):
        quantiles = np.ones((origins.size, horizon + self.shape_too, 19))
        quantiles[origins % 2 == 0] = np.nan
        return Outlook(quantiles=quantiles, mean=quantiles[:, :, 0], reasons=("",) * origins.size)


def test_last_value_answers_where_a_model_gives_no_number_and_it_says_so():
    panel = Panel(series=(a_series(200, gaps=0),))
    models = {"last_value": LAST, "broken": {"price": Broken(), "count": Broken()}}
    for block in blocks_of(a_rolling([panel], models)):
        if block.model == "broken":
            even = block.origins % 2 == 0
            assert np.isfinite(block.outlook.quantiles).all()
            assert [why == NO_NUMBER for why in block.outlook.reasons] == even.tolist()
            assert block.outlook.mean[even, 0] == pytest.approx(panel.series[0].values[block.origins[even]])


def test_an_answer_of_a_wrong_shape_is_refused_with_its_model():
    panel = Panel(series=(a_series(200, gaps=0),))
    models = {"last_value": LAST, "broken": {"price": Broken(True), "count": Broken(True)}}
    with pytest.raises(ForecastError, match="broken on aws"):
        blocks_of(a_rolling([panel], models))


def test_settings_out_of_range_are_refused():
    panel = Panel(series=(a_series(60),))
    with pytest.raises(SettingsError, match="horizon 0"):
        a_rolling([panel], {"last_value": LAST}, horizon=0)
    with pytest.raises(SettingsError, match="positive cadence"):
        a_rolling([panel], {"last_value": LAST}, refit={"count": pd.Timedelta(0), "price": DAY})
    with pytest.raises(SettingsError, match="one per series"):
        Rolling(panels=(panel,), parts=((),), models={"last_value": LAST}, refit=REFIT)
    with pytest.raises(SettingsError, match="no_such_model"):
        panel_models("no_such_model")
    assert isinstance(panel_models("last_value")["count"], EachAlone)


def test_blocks_become_forecasts_that_the_warehouse_keeps_and_gives_back():
    count, price = a_series(120), a_series(120, variable="price", seed=3)
    other = a_series(120, zone="b", source="elsewhere")
    rolling = a_rolling(
        [Panel(series=(count,)), Panel(series=(price,)), Panel(series=(other,))], {"last_value": LAST}
    )
    made = issued(blocks_of(rolling), rolling)
    assert {source: len(found) for source, found in made.items()} == {"lab": 60, "elsewhere": 60}
    assert all(f.backfilled for f in made["lab"])
    assert {f.price_fallback for f in made["elsewhere"]} == {"no observed value"}
    blocks = {b.panel: b for b in blocks_of(rolling)}
    assert np.array_equal(made["lab"][7].count, blocks[0].outlook.quantiles[7])
    assert np.array_equal(made["lab"][7].price, blocks[1].outlook.quantiles[7])
    with open_store(":memory:") as store:
        assert write_forecasts(store, made["lab"], source="lab").added == 60
        assert write_forecasts(store, made["lab"], source="lab").repeated == 60
        back = read_forecasts(store, Forecast, market=count.market, source="lab", model="last_value")
    assert len(back) == 60
    assert all(np.array_equal(a.count, b.count) for a, b in zip(back, made["lab"], strict=True))
    assert back[3].newest_row == made["lab"][3].newest_row
