"""Turns, backfills, experiments and the accuracy report issue identical forecasts and scores (M6.4, M6.5)."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
from test_turn import AT, POOL, one_turn, tidy_tables
from tidy_folder import write_tidy

from slackwater.flows.accuracy.series import (
    MeasuredSeries,
    SeriesChoice,
    accuracy_of_vintages,
    measured_panels,
)
from slackwater.flows.accuracy.units import BacktestPlan, run_course
from slackwater.flows.backfill.run import Backfill, SlotRange, backfill
from slackwater.flows.config import Settings
from slackwater.flows.turn.estimates import timetable_of
from slackwater.forecasting.origins import Rolling, forecast_blocks, units_of
from slackwater.forecasting.predictor import Panel
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.quantiles import Forecast
from slackwater.forecasting.series import slot_at
from slackwater.studies.experiments.predictors import replay_forecasters
from slackwater.studies.trials.scenarios import Grid
from slackwater.warehouse import plugins
from slackwater.warehouse.issued import VintageQuery, read_rows, read_vintages
from slackwater.warehouse.store.connection import open_store

STEP = pd.Timedelta("30min")
MODELS = ("last_value", "markov", "smoothing")
PRESENTS = [AT, AT + STEP]
ORIGINS = 6


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Settings:
    pool = tmp_path_factory.mktemp("pool") / "pool.toml"
    pool.write_text(POOL)
    return Settings(
        models=MODELS, planner="smoothing", measured_origins=ORIGINS, horizon=4, planning_horizon=4, max_markets=3,
        history_days=3, refit_hours=4, price_refit_hours=6, risk_paths=10, pool=pool,
    )  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    tidy_tables(folder, AT - pd.Timedelta(days=5), AT + pd.Timedelta(hours=6))
    return folder


@pytest.fixture(scope="module")
def db(tmp_path_factory, settings, data):
    """Return a warehouse after two turns: the first fits the models, the second reuses the fits."""
    path = tmp_path_factory.mktemp("turns") / "w.duckdb"
    for at in PRESENTS:
        one_turn(path, settings, at=at, data=data)
    return path


def followed(store, settings) -> MeasuredSeries:
    """Return the measured series of the report, restricted to the markets followed by the turns."""
    measured = measured_panels(store, settings, SeriesChoice())
    errors = read_rows(store, "accuracy")
    keys = set(errors["market"] + "@" + errors["source"])
    panels = [tuple(one for one in panel.series if one.key in keys) for panel in measured.panels]
    assert {len(own) for own in panels} == {3}
    return MeasuredSeries(panels=tuple(Panel(series=own) for own in panels), origins=(), notes=())


def rolling_of(measured: MeasuredSeries, settings: Settings, slots) -> Rolling:
    """Return a backtest of the measured series from the given slots, as the report builds it."""
    return Rolling(
        panels=measured.panels,
        origins=tuple(
            tuple(np.array([slot_at(at, STEP) - one.first_slot for at in slots]) for one in panel.series)
            for panel in measured.panels
        ),
        predictors={name: make_predictor(name) for name in settings.models},
        timetable=timetable_of(settings),
        horizon=settings.horizon,
    )


@pytest.mark.slow
def test_the_report_forecasts_what_turns_have_issued(db, settings):
    """Compare every quantile, the mean and the fallback reason, over several fits of both variables."""
    slots = list(pd.date_range(AT - ORIGINS * STEP, PRESENTS[-1], freq=STEP))
    with open_store(db) as store:
        measured = followed(store, settings)
        series = [one for panel in measured.panels for one in panel.series]
        query = VintageQuery(
            markets={(one.market, one.source): None for one in series}, models=MODELS,
            start=slots[0], end=slots[-1], step=STEP,
        )  # fmt: skip
        stored = read_vintages(store, Forecast, query)
    rolling, compared = rolling_of(measured, settings, slots), 0
    assert len({(unit.panel, unit.fit_slot) for unit in units_of(rolling)}) >= 4
    for unit in units_of(rolling):
        for block in forecast_blocks(unit, rolling):
            one = rolling.panels[block.panel].series[block.which]
            issued = {f.issued_at: f for f in stored[one.market.key, one.source, block.model]}
            for i, origin in enumerate(block.origins):
                then = issued[one.time(int(origin))]
                np.testing.assert_array_equal(block.outlook.quantiles[i], then.quantiles(one.variable)[:4])
                np.testing.assert_array_equal(block.outlook.mean[i], then.mean(one.variable)[:4])
                reason = then.price_fallback if one.variable == "price" else then.count_fallback
                assert block.outlook.reasons[i] == reason
                compared += 1
    assert compared == 2 * 3 * len(MODELS) * len(slots)


def test_the_report_the_stored_vintages_and_the_turn_are_scored_alike(db, settings):
    window = list(pd.date_range(end=PRESENTS[-1] - STEP, periods=ORIGINS, freq=STEP))
    with open_store(db) as store:
        measured = followed(store, settings)
        present = slot_at(PRESENTS[-1], STEP)
        measured = replace(measured, panels=tuple(panel.until(present) for panel in measured.panels))
        rolling = rolling_of(measured, settings, window)
        report = run_course(BacktestPlan(rolling=rolling, default="markov"))
        # Without the last slot: the last origin of the stored forecasts is the present, which has no observed target yet.
        stored = accuracy_of_vintages(
            store,
            measured,
            MODELS,
            horizon=4,
            timetable=timetable_of(settings),
            default="markov",
            since=window[0],
        )
        rows = read_rows(store, "accuracy", where={"measured_at": PRESENTS[-1]})
    keys = ["variable", "model", "market", "step"]
    ours, theirs = (one.scores.set_index(keys).sort_index() for one in (report, stored))
    numbers = [name for name in ours.columns if name not in ("class", "source")]
    pd.testing.assert_frame_equal(ours[numbers], theirs[numbers], rtol=1e-12)
    pd.testing.assert_frame_equal(report.pooled, stored.pooled, rtol=1e-12)
    turn = rows.assign(market=rows["market"] + "@" + rows["source"]).set_index(keys).sort_index()
    assert len(turn) == len(ours)
    for name in ("n", "mae", "rmse", "mase", "pinball", "skill_mae", "skill_pinball", "coverage_80", "brier"):
        wanted, got = turn[name].to_numpy(dtype=float), ours.loc[turn.index, name].to_numpy(dtype=float)
        assert got == pytest.approx(wanted, rel=1e-9, nan_ok=True), name


@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
def test_a_predictor_of_the_studies_goes_into_turns_by_name(tmp_path, settings, data):
    """The first turn fits the model, the second restores it."""
    own = settings.model_copy(
        update={"models": ("last_value", "dva"), "refit_hours": 24, "price_refit_hours": 24}
    )
    db, kept = tmp_path / "w.duckdb", []
    for at in (AT, AT + STEP):
        result = one_turn(db, own, at=at, data=data)
        assert {row["model"] for row in result.accuracy} == {"last_value", "dva"}
        with open_store(db) as store:
            rows = read_rows(store, "fitted")
        kept.append(sorted(rows.loc[rows["predictor"].str.startswith("dva"), "state"]))
    assert kept[0]
    assert kept[0] == kept[1]


@pytest.mark.slow  # the quick form: the predictors of an installed package, in test_plugin_package.py
def test_a_predictor_that_somebody_else_wrote_goes_everywhere(monkeypatch, tmp_path, settings, data):
    """A predictor of an entry point works in a turn, a backfill, both accuracy reports and an experiment."""
    monkeypatch.setattr(plugins, "list_plugins", lambda group: {"others_drift": "drift_predictor:drift"})
    own = settings.model_copy(update={"models": ("last_value", "others_drift"), "planner": "others_drift"})
    db = tmp_path / "w.duckdb"
    result = one_turn(db, own, at=AT, data=data)
    assert {row["model"] for row in result.accuracy} == {"last_value", "others_drift"}
    assert "others_drift" in {row.split(":")[0] for row in _stored(db)}
    slot_range = SlotRange(
        start=AT - 2 * STEP, end=AT - STEP, step=STEP, stages=("ingest", "forecast", "allocate", "score")
    )
    outcomes = backfill(Backfill(db=db, slot_range=slot_range, settings=own, data=data, workers=1))
    assert {became for one in outcomes for became in one.became.values()} == {"made"}
    with open_store(db) as store:
        measured = measured_panels(store, own, SeriesChoice())
        rolling = replace(rolling_of(measured, own, [AT - STEP, AT]))
        report = run_course(BacktestPlan(rolling=rolling, default="others_drift"))
        stored = accuracy_of_vintages(
            store, measured, own.models, horizon=4, timetable=timetable_of(own), default="others_drift"
        )
    for accuracy in (report, stored):
        assert set(accuracy.scores["model"]) == {"last_value", "others_drift"}
    rounds = replay_forecasters(
        write_tidy(tmp_path / "tidy", days=4), ("last_value", "others_drift"), seed=1, per_cell=1,
        grid=Grid(deadlines=(10,), loads=(0.5,), mu_ups=(0.9,), n_maxes=(4,)),
    )  # fmt: skip
    assert rounds.arms[:2] == ("last_value", "others_drift")


def _stored(db) -> list[str]:
    with open_store(db) as store:
        return list(read_rows(store, "fitted")["predictor"])
