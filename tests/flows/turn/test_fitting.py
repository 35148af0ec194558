"""Fits of a turn: stored and restored, with the same forecasts as without storage, on any runner and after a kill (M6.4)."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from make import make_turn
from test_killed_turn import run_through, start
from test_turn import AT, dump, panel_settings, scramble_after, tidy_tables

from slackwater.flows.config import Settings
from slackwater.flows.following import FollowedMarket
from slackwater.flows.histories import read_all
from slackwater.flows.turn.estimates import (
    ESTIMATION_SETTINGS,
    panel_name,
    prepare,
    read_estimations,
    stored_name,
    timetable_of,
)
from slackwater.flows.turn.forecast import forecasts_of
from slackwater.flows.turn.results import Results, write
from slackwater.flows.turn.work import find_work
from slackwater.forecasting.origins import TIMETABLE, Cohort
from slackwater.forecasting.predictor import NEVER_SEEN
from slackwater.forecasting.series import series_of, slot_at
from slackwater.optimization.fan import in_turn
from slackwater.warehouse.history import Market
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_store

STEP = pd.Timedelta("30min")
#: Trees are fast on little data; `markov` represents models fitted market by market.
MODELS = ("combined", "markov")


@pytest.fixture(scope="module")
def settings() -> Settings:
    return Settings(
        models=MODELS, planner="combined", measured_origins=3, horizon=4, planning_horizon=6, max_markets=3,
        history_days=4,
    )  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    tidy_tables(folder, AT - pd.Timedelta(days=5), AT + pd.Timedelta(days=1))
    return folder


def ingested(db: Path, data: Path) -> None:
    from slackwater.warehouse.observations import ingest

    with open_store(db) as store:
        ingest(store, "tabular", data, imported_at=AT)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory, data) -> Path:
    """Return a warehouse with only the record; tests store fits in a copy."""
    db = tmp_path_factory.mktemp("warehouse") / "w.duckdb"
    ingested(db, data)
    return db


class Recorder:
    """Fan that counts its calls by function."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def __call__(self, function, calls):
        name = function.__name__
        self.calls[name] = self.calls.get(name, 0) + len(calls)
        return in_turn(function, calls)


def forecasts_at(db: Path, settings: Settings, origins, *, at=AT, save=True, say=lambda _: None, fan=None):
    """Return forecasts of the followed markets at ``origins``, computed as of ``at``, and the calls of the fan by function."""
    fan = fan or Recorder()
    with open_store(db) as store:
        turn = make_turn(store, at, settings, fan=fan, say=say)
        markets = find_work(turn, [], scored=()).markets
        start = timetable_of(settings).start(origins[0])
        histories = dict(zip(markets, read_all(turn, [(one, start) for one in markets]), strict=True))
        missing = {one: {model: list(origins) for model in settings.models} for one in markets}
        prepared = prepare(turn, read_estimations(turn, histories, missing))
        made = {
            (one.key, forecast.predictor, forecast.issued_at): forecast
            for one in markets
            for forecast in forecasts_of(histories[one], prepared.batches[one], settings=settings)
        }
        if save:
            write(store, Results(unreadable=prepared.unreadable, estimates=prepared.estimates))
    return made, getattr(fan, "calls", {})


def equal(a, b, *, exactly=True):
    assert a.keys() == b.keys()
    assert a
    for key in a:
        for name in ("price", "price_mean", "count", "count_mean"):
            tolerance = 0.0 if exactly else 1e-9
            np.testing.assert_allclose(
                getattr(a[key], name), getattr(b[key], name), rtol=tolerance, atol=tolerance, err_msg=str(key)
            )
        for name in ("newest_row", "capacity", "price_fallback", "count_fallback"):
            assert getattr(a[key], name) == getattr(b[key], name), (key, name)


@pytest.fixture
def copy(warehouse, tmp_path) -> Path:
    return Path(shutil.copy(warehouse, tmp_path / "w.duckdb"))


#: The two slots of most forecasts in this module.
ORIGINS = (AT - STEP, AT)


@pytest.fixture(scope="module")
def estimated(warehouse, settings, tmp_path_factory):
    """Return a warehouse with stored fits for the forecasts at `ORIGINS`, the forecasts, and the calls by function."""
    db = Path(shutil.copy(warehouse, tmp_path_factory.mktemp("estimated") / "w.duckdb"))
    return db, *forecasts_at(db, settings, ORIGINS)


@pytest.fixture
def estimated_copy(estimated, tmp_path) -> Path:
    return Path(shutil.copy(estimated[0], tmp_path / "w.duckdb"))


def test_stored_estimations_give_the_same_forecasts_and_spare_the_work(estimated, estimated_copy, settings):
    _, first, before = estimated
    again, after = forecasts_at(estimated_copy, settings, ORIGINS)
    equal(first, again)
    assert before["estimate"] > 0
    assert after.get("estimate", 0) == 0
    with open_store(estimated_copy) as store:
        rows = read_rows(store, "fitted")
    panels = rows[rows["predictor"] == stored_name("combined", settings)]
    assert len(panels) == 2, "one estimation of price and one of count for all three markets"
    assert len(rows[rows["predictor"] == stored_name("markov", settings)]) == 2 * 3
    assert set(rows["fitted_at"]) == {AT.floor("24h")}
    assert (rows["known_at"] == rows["fitted_at"]).all()


@pytest.mark.slow
def test_a_forecast_made_later_is_the_one_that_would_have_been_made_then(copy, warehouse, settings):
    """Compare live turns, slot by slot, with forecasts computed at a later time by new fits."""
    live = {}
    for at in ORIGINS:
        live |= forecasts_at(copy, settings, [at], at=at)[0]
    late, _ = forecasts_at(warehouse, settings, ORIGINS, at=AT + 3 * STEP, save=False)
    equal(live, late, exactly=False)


@pytest.mark.slow  # the quick forms: a scrambled future of every predictor in its contract, and of a turn
def test_neither_a_markets_future_nor_its_peers_is_seen(tmp_path, settings, warehouse):
    folder = tmp_path / "scrambled"
    folder.mkdir()
    tidy_tables(folder, AT - pd.Timedelta(days=5), AT + pd.Timedelta(days=1))
    scramble_after(folder, AT)
    other = tmp_path / "other.duckdb"
    ingested(other, folder)
    # the histories contain the scrambled rows, but all origins except the last are earlier
    later = AT + 6 * STEP
    true, changed = (
        forecasts_at(db, settings, [*ORIGINS, later], at=later, save=False)[0] for db in (warehouse, other)
    )
    equal(*({key: one for key, one in made.items() if key[-1] <= AT} for made in (true, changed)))
    assert any((changed[key].count_mean != true[key].count_mean).any() for key in true if key[-1] == later)


def test_fits_depend_on_every_setting_that_the_timetable_reads():
    """Otherwise a fit of the old timetable would be used under the new."""
    read = set()

    class Watched(Settings):
        def __getattribute__(self, name):
            read.add(name)
            return super().__getattribute__(name)

    timetable_of(Watched())
    assert read & {*Settings.model_fields} <= {*ESTIMATION_SETTINGS}


@pytest.mark.slow
def test_other_settings_and_other_markets_use_other_estimations(copy, settings):
    forecasts_at(copy, settings, [AT])
    for other in (
        settings.model_copy(update={"history_days": 3.0}),
        settings.model_copy(update={"refit_hours": 48.0}),
        settings.model_copy(update={"assumed_spot_share": 0.5}),
    ):
        assert stored_name("combined", other) != stored_name("combined", settings)
        assert forecasts_at(copy, other, [AT])[1]["estimate"] > 0
    fewer = settings.model_copy(update={"max_markets": 2})
    with open_store(copy) as store:
        store.execute("DELETE FROM jobs")  # the example jobs of earlier turns are in three markets
    assert forecasts_at(copy, fewer, [AT])[1]["estimate"] == 1, (
        "the panel anew, of single markets those there are"
    )


@pytest.mark.parametrize(
    ("state", "words"),
    [
        pytest.param("sha256(content) || ':' || content", "fellows", id="another version"),
        pytest.param(
            "repeat('0', 64) || ':' || content",
            "SHA-256 differs",
            id="changed in the file",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_estimation_that_cannot_be_read_is_made_again_and_said(
    estimated, estimated_copy, settings, state, words
):
    copy, first = estimated_copy, {key: made for key, made in estimated[1].items() if key[-1] == AT}
    with open_store(copy) as store:
        store.execute(
            f"UPDATE fitted SET state = {state} FROM (SELECT replace(substr(state, 66), '\"members\"', '\"fellows\"') "
            "AS content, panel AS own FROM fitted WHERE variable = 'count' AND predictor = $1) "
            "WHERE variable = 'count' AND predictor = $1 AND panel = own",
            [stored_name("combined", settings)],
        )
    said: list[str] = []
    again, counts = forecasts_at(copy, settings, [AT], say=said.append)
    equal(first, again)
    assert counts["estimate"] == 1
    assert any("estimated again" in text and words in text for text in said)
    assert forecasts_at(copy, settings, [AT])[1].get("estimate", 0) == 0, "what was made is kept in its place"


@pytest.mark.slow  # the quick form: a series that was never seen has that reason, in test_count_models.py
def test_a_market_that_came_after_the_estimation_is_labelled(tmp_path, settings, data):
    """The new market is forecast at once with the fit of the other markets; its reason says so until the next fit."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    fit = AT.floor("24h")
    folder = tmp_path / "young"
    folder.mkdir()
    zone = sorted(set(pq.read_table(data / "availability.parquet")["zone"].to_pylist()))[0]
    for name in ("prices", "availability"):
        table = pq.read_table(data / f"{name}.parquet")
        old = pc.less_equal(table["timestamp"], pc.cast(fit.to_pydatetime(), table["timestamp"].type))
        keep = pc.invert(pc.and_(pc.equal(table["zone"], zone), old))
        pq.write_table(table.filter(keep), folder / f"{name}.parquet")
    db = tmp_path / "w.duckdb"
    ingested(db, folder)
    with open_store(db) as store:
        turn = make_turn(store, AT, settings)
        rows = read_rows(store, "markets")
        keys = [
            "/".join(map(str, row))
            for row in rows[["provider", "region", "zone", "instance_type"]].to_numpy()
        ]
        source = str(read_rows(store, "series")["source"].iloc[0])
        markets = [FollowedMarket(market=Market.parse(key), source=source, at=AT) for key in keys]
        start = timetable_of(settings).start(AT)
        histories = dict(zip(markets, read_all(turn, [(one, start) for one in markets]), strict=True))
        prepared = prepare(
            turn, read_estimations(turn, histories, {one: {"combined": [AT]} for one in markets})
        )
    made = {one: forecasts_of(histories[one], prepared.batches[one], settings=settings)[0] for one in markets}
    young = {one for one in markets if one.market.zone == zone}
    assert young
    for one, forecast in made.items():
        assert (forecast.count_fallback == NEVER_SEEN) == (one in young), one.key


def test_the_age_of_a_panel_is_that_of_its_oldest_market(warehouse, settings):
    with open_store(warehouse) as store:
        turn = make_turn(store, AT, settings)
        markets = find_work(turn, [], scored=()).markets
        begins = {one: AT - pd.Timedelta(hours=3 + 40 * i) for i, one in enumerate(markets)}
        histories = dict(zip(begins, read_all(turn, list(begins.items())), strict=True))
    own, cadence = [histories[one] for one in markets], timetable_of(settings).count
    series = tuple(series_of(one, "count") for one in own)
    now = slot_at(AT, STEP)
    together, young = Cohort(series=series, cadence=cadence), Cohort(series=series[:1], cadence=cadence)
    assert together.fit_slots(np.array([now])).tolist() == [slot_at(AT.floor("24h"), STEP)]
    assert young.fit_slots(np.array([now - 1, now])).tolist() == [now - 1, now]
    assert panel_name(own[::-1]) == panel_name(own)


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory) -> Path:
    return panel_settings(tmp_path_factory.mktemp("settings"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, settings_file):
    db = tmp_path_factory.mktemp("whole") / "w.duckdb"
    run_through(db, settings_file)
    return dump(db)


@pytest.mark.slow
def test_a_turn_killed_while_it_estimates_ends_with_the_same_tables(tmp_path, settings_file, whole):
    db = tmp_path / "w.duckdb"
    process = start(db, settings_file)
    for line in process.stdout:
        if line.startswith("estimate"):
            os.kill(process.pid, signal.SIGKILL)
            break
    process.wait()
    assert process.returncode == -signal.SIGKILL
    with open_store(db) as store:
        assert read_rows(store, "fitted").empty
    run_through(db, settings_file)
    assert dump(db) == whole


def test_what_experiments_and_the_library_forecast_by_is_the_timetable_of_turns():
    assert timetable_of(Settings()) == TIMETABLE
