"""The backtest engine: timetable, inputs of models, units, and no look-ahead (M6.4, M6.5)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from make import make_history
from predictors_kit import registered
from rolling_kit import DAY, HALF_HOUR, LAST, Watching, a_rolling, a_series, blocks_of, every, scrambled

from slackwater.forecasting.origins import NO_NUMBER, Cohort, Rolling, forecast_blocks, second_half, units_of
from slackwater.forecasting.predictor import EachAlone, Outlook, Panel, bound_quantiles
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.predictors.last_value import LastValue
from slackwater.forecasting.series import series_of
from slackwater.warehouse.errors import ForecastError, SettingsError


def by_origin(blocks):
    return {
        (b.model, b.panel, b.which, int(o)): (b.outlook.quantiles[i], b.outlook.mean[i], b.outlook.reasons[i])
        for b in blocks
        for i, o in enumerate(b.origins)
    }


def test_the_usual_origins_are_the_second_half_from_its_first_known_slot():
    assert second_half(a_series(11, gaps=0)).tolist() == [4, 5, 6, 7, 8, 9]
    late = series_of(make_history([np.nan] * 11, [np.nan] * 7 + [1, 2, 3, 4]), "count")
    assert second_half(late).tolist() == [7, 8, 9]
    assert second_half(late.part(0, 0)).size == 0
    assert second_half(late.part(0, 1)).size == 0


def test_since_moves_the_origins():
    series = a_series(40, gaps=0)
    first = series.time(30)
    for since, origin in ((first, 30), (first - HALF_HOUR / 2, 30), (first - 20 * HALF_HOUR, 19)):
        origins = second_half(series, since)
        assert (origins[0], origins[-1]) == (origin, 38)
    assert second_half(series, first + DAY).size == 0


def test_estimations_stand_at_multiples_of_the_cadence_since_the_epoch():
    series = a_series(400, gaps=0)
    absolute = series.first_slot + second_half(series)
    slots = Cohort(series=(series,), cadence=every(DAY).count).fit_slots(absolute)
    assert (slots <= absolute).all()
    assert (slots % 48 == 0).all()
    assert (absolute - slots < 48).all()


def test_a_young_market_is_estimated_more_often():
    """With a cadence of 48 slots, and data from slot 960 on: refit at every origin, then every 12 slots, then every 48."""
    origins = np.array([960, 971, 972, 983, 984, 1007, 1008, 1055, 1056])
    slots = every(DAY).count.fit_slots(origins, np.arange(960, 1100), HALF_HOUR)
    assert slots.tolist() == [960, 971, 972, 972, 984, 996, 1008, 1008, 1056]


def test_the_lookback_counts_from_a_refit_time_within_the_slot():
    cadence = every(pd.Timedelta("45min"), lookback=pd.Timedelta("60min")).count
    # Slot 103 begins after 3,090 minutes; the refit time in it is 3,105, and the first slot after 3,045 is slot 102.
    assert cadence.start(np.array([103]), HALF_HOUR).tolist() == [102]


def test_each_variable_has_a_cadence_of_its_own():
    table = replace(every(DAY), price=every(DAY / 2).price)
    panels = [Panel(series=(a_series(300),)), Panel(series=(a_series(300, variable="price"),))]
    units = units_of(a_rolling(panels, {"last_value": LAST}, timetable=table))
    assert {u.fit_slot % 48 for u in units if u.panel == 0} == {0}
    assert {u.fit_slot % 48 for u in units if u.panel == 1} == {0, 24}


def test_nothing_before_the_lookback_is_read():
    """A series with an earlier start gives the same forecasts."""
    long = a_series(500, gaps=0)
    short = long.since(long.first_slot + 100)
    for name in ("last_value", "markov", "smoothing"):
        made = []
        for series in (long, short):
            table = every(DAY, lookback=3 * DAY)
            rolling = a_rolling([Panel(series=(series,))], {name: make_predictor(name)}, timetable=table)
            rolling = replace(
                rolling, origins=((np.arange(400, 450) + long.first_slot - series.first_slot,),)
            )
            made.append(np.concatenate([block.outlook.quantiles for block in blocks_of(rolling)]))
        assert np.array_equal(*made)


def test_every_origin_of_every_model_is_in_one_unit():
    panels = [
        Panel(series=(a_series(300), a_series(260, zone="b", later=20))),
        Panel(series=(a_series(200, source="x"),)),
    ]
    rolling = a_rolling(panels, {"last_value": LAST, "other": Watching([])})
    found = sorted(
        (unit.model, unit.panel, which, int(origin))
        for unit in units_of(rolling)
        for which, origins in unit.origins
        for origin in origins
    )
    wanted = sorted(
        (model, i, j, int(origin))
        for model in rolling.models
        for i, own in enumerate(rolling.origins)
        for j, origins in enumerate(own)
        for origin in origins
    )
    assert found == wanted
    assert [u.panel for u in units_of(rolling)] == sorted(u.panel for u in units_of(rolling))


def test_a_model_is_shown_the_panel_up_to_its_fit_and_to_its_last_origin_and_no_more():
    shown: list = []
    first, second = a_series(300), a_series(300, zone="b", seed=1, gaps=0)
    slots = second.first_slot + np.arange(300)
    late = second.first_slot + 200
    second = replace(second, learned=np.where(slots == late, slots + 40, slots))
    rolling = a_rolling([Panel(series=(first, second))], {"last_value": LAST, "watching": Watching(shown)})
    fits = {u.fit_slot for u in units_of(rolling) if u.model == "watching"}
    blocks_of(rolling)
    assert {entry[1] for entry in shown if entry[0] == "fit"} == fits
    assert len(fits) > 2
    outlooks = [entry for entry in shown if entry[0] == "outlook"]
    assert all(entry[1] == entry[2] for entry in outlooks)
    # Rows that a market learned late are invisible to its neighbour: earlier origins are forecast in the same call.
    beside = [panel.series[1] for *_, panel in outlooks if panel.series[0].key == first.key]
    values = [one.values[late - one.first_slot] for one in beside if one.end > late]
    assert values
    assert np.isnan(values).all()


def test_what_was_learned_late_is_estimated_on_from_then_on_and_seen_by_no_peer():
    """The row of slot 4 was learned in slot 7."""
    on_time = make_history([1.0] * 10, [3] * 10)
    known = on_time.slots.to_series(index=on_time.slots)
    known.iloc[4] = on_time.slots[7]
    series = series_of(make_history([1.0] * 10, [3] * 10, known_at=known), "count")
    cohort = Cohort(series=(series,), cadence=every(DAY).count)

    class Shown(Watching):
        def fit(self, panel):
            self.shown.append(panel.series[0].values)
            return super().fit(panel)

    for at, gaps in ((6, [4]), (7, [])):
        watching = Shown([])
        basis = cohort.basis(watching, series.first_slot + at)
        assert np.flatnonzero(np.isnan(watching.shown[0])).tolist() == gaps
        assert np.flatnonzero(np.isnan(basis.peers[0].values)).tolist() == [4]


@pytest.mark.parametrize("variable", ["count", pytest.param("price", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    # the quick form of the combination: its members here, and a scrambled future in test_predictors.py
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "combined" else name for name in registered()],
)
def test_no_registered_model_reads_the_future(name, variable):
    """Scrambling everything after an origin changes no forecast up to it; two fits, so estimation is covered too (M4.9)."""
    panel = Panel(
        series=(
            a_series(420, variable=variable, later=32),
            a_series(400, variable=variable, zone="b", seed=3, later=47),
            a_series(420, variable=variable, zone="c", seed=4, gaps=0.3, later=32),
        )
    )
    models = {"last_value": LAST, name: make_predictor(name)}
    whole = a_rolling([panel], models)
    cut = panel.series[0].first_slot + 264  # soon after the second estimation, at 256
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
    return [block for unit in units for block in forecast_blocks(unit, rolling)]


def _slot(panel, key):
    return panel.series[key[2]].first_slot + key[3]


def replace_panel(rolling, panel):
    return Rolling(
        panels=(panel,),
        origins=rolling.origins,
        predictors=rolling.predictors,
        horizon=rolling.horizon,
        timetable=rolling.timetable,
    )


def test_forecasts_from_many_origins_are_those_made_one_by_one():
    panel = Panel(series=(a_series(260), a_series(260, zone="b", seed=2)))
    rolling = a_rolling([panel], {"last_value": LAST, "markov": make_predictor("markov")})
    for unit in units_of(rolling)[::3]:
        for block, (which, origins) in zip(forecast_blocks(unit, rolling), unit.origins, strict=True):
            for i in range(0, origins.size, 7):
                alone = replace(unit, origins=((which, origins[i : i + 1]),))
                (one,) = forecast_blocks(alone, rolling)
                assert one.outlook.quantiles[0] == pytest.approx(block.outlook.quantiles[i])


def test_what_a_model_alone_answers_does_not_depend_on_its_neighbours():
    both = Panel(series=(a_series(260), a_series(260, zone="b", seed=2)))
    models = {"last_value": LAST, "markov": make_predictor("markov")}
    together = by_origin(blocks_of(a_rolling([both], models)))
    alone = by_origin(blocks_of(a_rolling([Panel(series=both.series[:1])], models)))
    assert alone
    for key, value in alone.items():
        assert np.array_equal(value[0], together[key][0])


class Broken:
    """A predictor with NaN at every second origin, or with a forecast of an invalid shape."""

    name, pooled = "broken", True

    def __init__(self, shape_too: bool = False) -> None:
        self.shape_too = shape_too

    def fit(self, panel):
        return self

    def outlook(self, panel, which, origins, horizon):
        quantiles = np.ones((origins.size, horizon + self.shape_too, 19))
        quantiles[origins % 2 == 0] = np.nan
        return Outlook(quantiles=quantiles, mean=quantiles[:, :, 0], reasons=("",) * origins.size)


def test_last_value_answers_where_a_model_gives_no_number_and_it_says_so():
    series = a_series(200, gaps=0)
    rolling = a_rolling([Panel(series=(series,))], {"broken": Broken()})
    for unit in units_of(rolling):
        (block,) = forecast_blocks(unit, rolling)
        told, even = block.outlook, block.origins % 2 == 0
        assert np.isfinite(told.quantiles).all()
        assert [why == NO_NUMBER for why in told.reasons] == even.tolist()
        known = LastValue().fit(series.until(unit.fit_slot)).outlook(series, block.origins, 3)
        own, mean = bound_quantiles(known.quantiles, known.mean, series, block.origins)
        assert np.array_equal(told.quantiles[even], own[even]), "as estimated with the others"
        assert np.array_equal(told.mean[even], mean[even])


def test_an_answer_of_a_wrong_shape_is_refused_with_its_model():
    panel = Panel(series=(a_series(200, gaps=0),))
    models = {"last_value": LAST, "broken": Broken(True)}
    with pytest.raises(ForecastError, match="broken on aws"):
        blocks_of(a_rolling([panel], models))


def test_settings_out_of_range_are_refused():
    panel = Panel(series=(a_series(60),))
    with pytest.raises(SettingsError, match="horizon 0"):
        a_rolling([panel], {"last_value": LAST}, horizon=0)
    with pytest.raises(SettingsError, match="positive durations"):
        every(pd.Timedelta(0))
    with pytest.raises(SettingsError, match="do not match the panels"):
        Rolling(panels=(panel,), origins=((),), predictors={"last_value": LAST}, timetable=every(DAY))
    assert isinstance(make_predictor("last_value").count, EachAlone)
