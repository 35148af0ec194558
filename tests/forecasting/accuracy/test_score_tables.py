"""The tables of a backtest compared with slow implementations: the scores of `slackwater.forecasting.accuracy.losses`,
and explicit sums (M6.5).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from make import make_history
from rolling_kit import (
    DAILY,
    DAY,
    HALF_HOUR,
    LAST,
    a_rolling,
    a_series,
    accuracy_by,
    binary,
    blocks_of,
    every,
)
from series_kit import DATA, real_histories, wandering

from slackwater.forecasting.accuracy.intervals import block_interval
from slackwater.forecasting.accuracy.losses import conditional_frequencies, diebold_mariano, score
from slackwater.forecasting.accuracy.tables import (
    CLASS_COLUMNS,
    DAILY_COLUMNS,
    POOLED_COLUMNS,
    REASON_COLUMNS,
    RELIABILITY_COLUMNS,
    SCORE_COLUMNS,
    SPAN_COLUMNS,
    accuracy_of,
    tally,
    yardstick_of,
)
from slackwater.forecasting.origins import backtest, second_half
from slackwater.forecasting.predictor import Panel
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.series import series_of
from slackwater.warehouse.errors import ForecastError

MODELS = {name: make_predictor(name) for name in ("last_value", "markov", "seasonal_naive")}


@pytest.fixture(scope="module")
def rolling():
    panels = [
        Panel(series=(a_series(700), binary(a_series(500, zone="b", seed=1, later=90)))),
        Panel(series=(a_series(700, variable="price"),)),
        Panel(series=(a_series(1500, zone="long", seed=5, source="other"),)),
    ]
    return a_rolling(panels, MODELS, horizon=4)


@pytest.fixture(scope="module")
def blocks(rolling):
    """Return all forecasts, computed once: scoring does not change them."""
    return blocks_of(rolling)


def scored(rolling, blocks):
    tallies = (tally(block, rolling) for block in blocks)
    return accuracy_of(rolling, tallies, default="markov")


@pytest.fixture(scope="module")
def accuracy(rolling, blocks):
    return scored(rolling, blocks)


def test_the_tables_have_the_columns_they_are_said_to_have(accuracy):
    wanted = {
        "scores": SCORE_COLUMNS, "pooled": POOLED_COLUMNS, "spans": SPAN_COLUMNS, "reliability": RELIABILITY_COLUMNS,
        "daily": DAILY_COLUMNS, "reasons": REASON_COLUMNS,
        "classes": CLASS_COLUMNS,
    }  # fmt: skip
    for name, columns in wanted.items():
        table = getattr(accuracy, name)
        assert tuple(table.columns) == columns, name
        assert len(table), name
        assert not np.isinf(table.select_dtypes("number").to_numpy(dtype=float)).any()
    assert accuracy.models == tuple(MODELS)
    assert (accuracy.default, accuracy.step) == ("markov", HALF_HOUR)


def test_a_backtest_of_histories_is_scored_alike():
    """The other interface: forecasts as values, and means over a window of them."""
    whole = wandering(700)
    panels = [Panel(series=(series_of(whole, variable),)) for variable in ("count", "price")]
    fast = accuracy_by(a_rolling(panels, MODELS, horizon=4)).scores.set_index(["variable", "model", "step"])
    origins = list(whole.slots[349:699])
    made = [
        one
        for name in MODELS
        for own in backtest([whole], name, origins=origins, horizon=4, timetable=DAILY).values()
        for one in own
    ]
    slow = score(made, whole).set_index(["variable", "model", "step"])
    columns = [c for c in slow.columns if c in fast.columns and c != "market"]
    assert {"mae", "rmse", "mase", "pinball", "skill_pinball", "brier", "coverage_80", "scale"} <= set(
        columns
    )
    assert len(fast) == len(slow) == 24
    for column in columns:
        wanted, got = (table.loc[slow.index, column].to_numpy(dtype=float) for table in (slow, fast))
        assert got == pytest.approx(wanted, rel=1e-12, nan_ok=True), column


def test_days_add_up_to_the_scores(accuracy):
    keys = ["variable", "model", "market"]
    daily = accuracy.daily.assign(total=accuracy.daily["pinball"] * accuracy.daily["n"])
    days = daily.groupby(keys)[["n", "total"]].sum()
    whole = accuracy.scores.assign(total=accuracy.scores["pinball"] * accuracy.scores["n"])
    whole = whole.groupby(keys)[["n", "total"]].sum()
    assert days["n"].equals(whole["n"])
    assert days["total"].to_numpy() == pytest.approx(whole["total"].to_numpy())


def test_spans_are_the_first_and_last_origins_of_every_series(rolling, accuracy):
    found = [
        (series.source, series.time(int(origins[0])), series.time(int(origins[-1])))
        for panel, own in zip(rolling.panels, rolling.origins, strict=True)
        for series, origins in zip(panel.series, own, strict=True)
        if origins.size
    ]
    assert [tuple(row) for row in accuracy.spans.itertuples(index=False)] == found


def test_days_are_those_of_the_origins(rolling, accuracy):
    series, places = rolling.panels[1].series[0], rolling.origins[1][0]
    origins = series.times(places)
    rows = accuracy.daily[(accuracy.daily["variable"] == "price") & (accuracy.daily["model"] == "markov")]
    assert rows["day"].tolist() == sorted(set(origins.floor("D")))


def test_the_test_of_equal_accuracy_is_that_of_the_losses_in_order(rolling, blocks, accuracy):
    found = {}
    for model in ("last_value", "markov"):
        tallies = [tally(b, rolling) for b in blocks if b.model == model and (b.panel, b.which) == (0, 0)]
        found[model] = np.concatenate([t.losses for t in sorted(tallies, key=lambda t: t.places[0])])[
            :, 2, 0
        ].astype(float)
    known = ~np.isnan(found["markov"])
    wanted = diebold_mariano(found["markov"][known], found["last_value"][known], 3)
    row = accuracy.scores.query("variable == 'count' and model == 'markov' and step == 3")
    row = row[row["market"].str.contains("/ra/")].iloc[0]
    assert (row["dm"], row["dm_p"]) == pytest.approx(wanted)
    assert np.isnan(accuracy.scores.query("model == 'last_value'")["dm"]).all()


def test_the_interval_of_a_skill_takes_days_as_blocks(rolling, accuracy):
    rows = accuracy.scores.query("variable == 'count' and model == 'markov'")
    rows = rows[rows["skill_low"].notna()]
    assert len(rows)
    assert (rows["skill_low"] < rows["skill_pinball"]).all()
    assert (rows["skill_high"] > rows["skill_pinball"]).all()
    assert accuracy.scores.query("model == 'last_value'")["skill_low"].isna().all()


def test_the_interval_of_a_skill_holds_as_often_as_it_says():
    """Days that differ in size and in skill: for many such histories about 95 % of intervals contain the true skill, 0.2."""
    rng = np.random.default_rng(3)
    floor = rng.gamma(2.0, 1.0, size=(14, 2000))
    loss = floor * (0.8 + 0.3 * rng.standard_normal((14, 2000)))
    low, high = block_interval(loss, floor)
    assert 0.91 < np.mean((low < 0.2) & (high > 0.2)) < 0.98
    still = np.vstack([loss, np.zeros((30, 2000))]), np.vstack([floor, np.zeros((30, 2000))])
    assert np.allclose(block_interval(*still), (low, high))


def test_one_day_with_a_loss_has_no_interval():
    low, high = block_interval(np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[2.0, 0.0], [0.0, 0.0]]))
    assert np.isnan(low).all()
    assert np.isnan(high).all()


def test_the_brier_floor_is_last_values_conditional_frequency(rolling, accuracy):
    """By hand on the 0/1 series: P(1 | last value) is estimated before the first origin and not updated."""
    series, origins = rolling.panels[0].series[1], rolling.origins[0][1]
    table = conditional_frequencies(series.values[: origins[0] + 1], 1, 20)
    for step in (1, 4):
        errors = []
        for origin in origins:
            place = origin + step
            if place < len(series) and not np.isnan(series.values[place]):
                age = origin - series.newest[origin]
                chance = table[min(age + step, 8) - 1, 0, int(series.values[series.newest[origin]])]
                errors.append((chance - series.values[place]) ** 2)
        rows = accuracy.scores[
            accuracy.scores["market"].str.contains("/rb/") & (accuracy.scores["step"] == step)
        ]
        assert len(rows) == 3
        for _, row in rows.iterrows():
            assert row["skill_brier"] == pytest.approx(1 - row["brier"] / np.mean(errors))


def test_pooled_skill_weighs_markets_by_capacity_and_origins(accuracy):
    scores = accuracy.scores
    assert set(scores.query("variable == 'count'")["scale"]) == {8.0, 1.0}
    for variable, step in (("count", 1), ("count", 4), ("price", 2)):
        rows = scores[(scores["variable"] == variable) & (scores["step"] == step)]
        mine, floor = (rows[rows["model"] == m].set_index("market") for m in ("markov", "last_value"))
        loss = sum(r["pinball"] * r["n"] / r["scale"] for _, r in mine.iterrows())
        base = sum(r["pinball"] * r["n"] / r["scale"] for _, r in floor.iterrows())
        pooled = accuracy.pooled.query("variable == @variable and step == @step and model == 'markov'").iloc[
            0
        ]
        assert pooled["skill_pinball"] == pytest.approx(1 - loss / base)
        assert pooled["mae"] == pytest.approx(np.average(mine["mae"], weights=mine["n"]))
        assert pooled["median_skill_pinball"] == pytest.approx(mine["skill_pinball"].median())
        assert pooled["share_worse"] == pytest.approx((mine["skill_pinball"] < 0).mean())
        assert pooled["n"] == mine["n"].sum()
        assert pooled["markets"] == len(mine)
    assert (accuracy.pooled.query("model == 'last_value'")["skill_pinball"] == 0).all()


def test_prices_are_scaled_by_their_training_mean(rolling, accuracy):
    series, origins = rolling.panels[1].series[0], rolling.origins[1][0]
    scale = accuracy.scores.query("variable == 'price'")["scale"]
    assert scale.to_numpy() == pytest.approx(np.nanmean(series.values[: origins[0] + 1]))
    assert (
        accuracy.scores.query("variable == 'price'")[["brier", "skill_brier", "absent"]].isna().all(axis=None)
    )


def test_reliability_is_of_shares(accuracy):
    table = accuracy.reliability
    assert table["observed"].between(0, 1).all()
    levels = table[table["variable"] == "price"]
    assert levels.groupby("model")["observed"].is_monotonic_increasing.all()
    prices = accuracy.scores.query("variable == 'price' and model == 'markov'")
    assert set(levels[levels["model"] == "markov"]["n"]) == {prices["n"].sum()}
    bins = table[table["variable"] == "count"]
    assert bins["predicted"].between(0, 1).all()
    assert (
        not bins.assign(bin=(bins["predicted"] * 10).astype(int).clip(upper=9))
        .duplicated(["model", "bin"])
        .any()
    )
    counts = accuracy.scores.query("variable == 'count' and model == 'markov'")
    assert bins[bins["model"] == "markov"]["n"].sum() == (counts["n"] * counts["capacity"]).sum()


def test_reasons_are_counted_and_their_numbers_masked(accuracy):
    rows = accuracy.reasons
    assert not rows["reason"].str.contains(r"\d").any()
    naive = rows[
        (rows["model"] == "seasonal_naive")
        & rows["market"].str.contains("/ra/")
        & (rows["variable"] == "count")
    ]
    scores = accuracy.scores.query("model == 'seasonal_naive' and variable == 'count' and step == 1")
    share = scores[scores["market"].str.contains("/ra/")]["fallback_share"].iloc[0]
    assert 0 < share < 1
    assert naive["n"].sum() == pytest.approx(share * 350, abs=12)


def test_flat_series_have_no_skill_and_no_scaled_error_but_a_row():
    flat = series_of(make_history(np.full(300, 0.9), np.zeros(300), capacity=4), "price")
    table = accuracy_by(a_rolling([Panel(series=(flat,))], MODELS)).scores
    assert (table["mae"] == 0).all()
    assert table[["mase", "skill_pinball", "skill_mae", "dm_p"]].isna().all(axis=None)
    assert (table["n"] == [150, 149, 148] * 3).all()


def test_a_floor_that_erred_by_rounding_only_gives_no_skill():
    """0.9 and the float below it: last value's loss consists of rounding errors, which are no scale for other errors."""
    values = np.where(np.arange(300) % 7 == 0, np.nextafter(0.9, 0.0), 0.9)
    near = series_of(make_history(values, np.zeros(300), capacity=4), "price")
    accuracy = accuracy_by(a_rolling([Panel(series=(near,))], MODELS))
    assert accuracy.scores["pinball"].between(0, 1e-15, inclusive="right").any()
    for table in (accuracy.scores, accuracy.pooled, accuracy.classes):
        assert table[["skill_pinball", "skill_mae"]].isna().all(axis=None)


def test_classes_are_pooled_scores_of_their_markets(accuracy):
    scores, classes = accuracy.scores, accuracy.classes
    kinds = scores.groupby(["variable", "market"])["class"].agg(["nunique", "first"])
    assert (kinds["nunique"] == 1).all()
    assert kinds["first"].tolist() == ["2-15", "0/1", "2-15", "moving"]
    for (variable, kind), own in scores.groupby(["variable", "class"]):
        rows = classes[(classes["variable"] == variable) & (classes["class"] == kind)]
        assert (rows["markets"] == own["market"].nunique()).all()
        if (rows["markets"] == 1).all():
            for name in ("n", "mae", "skill_pinball", "skill_brier", "coverage_80", "coverage_80_closed"):
                both = rows.merge(own, on=["model", "step"], suffixes=("", "_own"))
                assert both[name].to_numpy(dtype=float) == pytest.approx(
                    both[f"{name}_own"].to_numpy(dtype=float), nan_ok=True
                )
    whole = classes.groupby(["variable", "model", "step"])["n"].sum()
    assert whole.equals(accuracy.pooled.set_index(["variable", "model", "step"])["n"].sort_index())
    assert list(dict.fromkeys(classes[classes["variable"] == "count"]["class"])) == ["0/1", "2-15"]


def test_markets_are_classed_by_what_was_known_at_their_test_start():
    counts = a_series(400)
    for capacity, kind in ((0, "0/1"), (1, "0/1"), (2, "2-15"), (15, "2-15"), (16, "16 and more")):
        stated = replace(counts, upper=np.full(400, float(capacity)))
        assert yardstick_of(stated, second_half(stated), DAILY).kind == kind
        unstated = replace(stated, capacity_stated=False)
        assert yardstick_of(unstated, second_half(unstated), DAILY).kind == "offers"
    for gap, kind in ((40, "moving"), (49, "still"), (1000, "still")):
        values = 1.0 + (np.arange(960) // gap % 2)
        values[480:] = np.arange(480)  # values after the test start have no influence
        price = series_of(make_history(values, np.zeros(960), capacity=4), "price")
        assert yardstick_of(price, second_half(price), DAILY).kind == kind


def test_tallies_in_any_order_of_units_give_the_same_numbers(rolling, blocks, accuracy):
    tallies = [tally(b, rolling) for b in blocks]
    rng = np.random.default_rng(0)
    mixed = []
    for panel in range(len(rolling.panels)):
        own = [t for t in tallies if t.panel == panel]
        mixed += [own[i] for i in rng.permutation(len(own))]
    again = accuracy_of(rolling, mixed, default="markov")
    pd.testing.assert_frame_equal(again.scores, accuracy.scores, rtol=1e-12)


def test_models_are_compared_over_the_origins_that_both_forecast_at(rolling, blocks):
    """A model added later: origins that it did not forecast count neither for it nor against it."""
    blocks = [b for b in blocks if b.panel == 2]
    late = [b for b in blocks if b.model != "markov" or b.origins[0] > 1000]
    assert len(late) < len(blocks)
    table = accuracy_of(rolling, [tally(b, rolling) for b in late], default="markov").scores
    row = table[(table["model"] == "markov") & (table["step"] == 2)].iloc[0]
    losses = {}
    for name in ("markov", "last_value"):
        told = np.full((1500, 4), np.nan)
        for block in late:
            if block.model == name:
                told[block.origins] = tally(block, rolling).losses[..., 0]
        losses[name] = told[:, 1]
    both = ~np.isnan(losses["markov"])
    assert row["n"] == both.sum()
    assert row["skill_pinball"] == pytest.approx(
        1 - losses["markov"][both].sum() / losses["last_value"][both].sum()
    )


def test_a_backtest_without_the_floor_is_refused(rolling):
    without = replace(rolling, predictors={"markov": MODELS["markov"]})
    with pytest.raises(ForecastError, match="last_value among them"):
        accuracy_of(without, [], default="markov")


def test_long_blocks_are_scored_in_pieces_alike(rolling, blocks, accuracy, monkeypatch):
    monkeypatch.setattr("slackwater.forecasting.accuracy.tables._CHUNK", 37)
    again = scored(rolling, blocks)
    pd.testing.assert_frame_equal(again.scores, accuracy.scores, rtol=1e-9)
    pd.testing.assert_frame_equal(again.daily, accuracy.daily, rtol=1e-9)


@pytest.mark.skipif(
    not (DATA / "availability.parquet").is_file(), reason="real histories are absent: set SLACKWATER_DATA"
)
@pytest.mark.slow  # the quick form: the same figures of the same histories, in test_real_series.py
def test_last_value_on_the_open_counts_is_the_measured_floor():
    """MAE 2.00/1.96/2.29/2.75/3.02 at 1/2/4/8/12 half hours, mean over 9 H100 zones and both 16-node V100 zones."""
    sources = ("skynomad-artifact:h100", "spot-traces:availability/16-node")
    panels = [
        Panel(series=tuple(series_of(h, "count") for h in real_histories(source).values()))
        for source in sources
    ]
    table = accuracy_by(
        a_rolling(panels, {"last_value": LAST}, horizon=12, timetable=every(DAY, lookback=14 * DAY))
    ).scores
    mean = table.groupby("step")["mae"].mean().loc[[1, 2, 4, 8, 12]]
    assert table["market"].nunique() == 11
    assert mean.to_numpy() == pytest.approx([2.00, 1.96, 2.29, 2.75, 3.02], abs=0.015)
    assert second_half(panels[0].series[0]).size > 340
