"""Old forecasts and measured errors are thinned; figures of accuracy and forecasts of replayed jobs do not change."""

import numpy as np
import pandas as pd
import pytest
from make import make_turn
from past_jobs import past_jobs
from test_turn import AT

from slackwater.flows.config import Settings
from slackwater.flows.ledger.errors import ACCURACY_COLUMNS, save_accuracy
from slackwater.flows.ledger.jobs import save_jobs
from slackwater.flows.turn import retention
from slackwater.flows.turn.report.recent_errors import errors_of, measured_window, recent_rows
from slackwater.flows.turn.retention import retention_of
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_store
from slackwater.warehouse.store.retention import thin

STEP, DAYS = pd.Timedelta("30min"), 100
MODELS = ("last_value", "default")


def measured(rng) -> pd.DataFrame:
    """Return errors of two models in two markets at two lead times."""
    rows = [
        {name: float(rng.uniform(0.1, 1.0)) for name in ACCURACY_COLUMNS[5:]}
        | {"market": market, "source": "s", "model": model, "variable": "count", "step": step, "n": 30, "scale": 1.0}
        for market in ("a/r/z/x", "a/r/z/y") for model in MODELS for step in (1, 4)
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def errors():
    """Return errors every eight hours for a hundred days, with their times."""
    rng = np.random.default_rng(1)
    return [(at, measured(rng)) for at in pd.date_range(end=AT, periods=3 * DAYS, freq="8h")]


@pytest.fixture
def store(errors):
    """Return a warehouse with these errors, forecasts at the same times, and two old jobs."""
    times = [at for at, _ in errors]
    with open_store(":memory:") as store:
        save_accuracy(store, errors)
        store.execute(
            "INSERT INTO vintages SELECT row_number() OVER (), market, 's', model, made, 1800, made, 2, 4, '', '', FALSE FROM "
            "generate_series($first::TIMESTAMPTZ, $last::TIMESTAMPTZ, INTERVAL 8 HOUR) AS t(made), "
            "unnest(['a/r/z/x', 'a/r/z/y']) AS m(market), unnest(['last_value', 'default']) AS n(model)",
            {"first": times[0].isoformat(), "last": AT.isoformat()},
        )
        store.execute(
            "INSERT INTO forecasts SELECT vid, 'count', step, 1"
            + ", 1" * 19
            + " FROM vintages, unnest([1, 2]) AS s(step)"
        )
        save_jobs(
            store, past_jobs(2, before=AT - pd.Timedelta(days=90)), origin="user", at=times[0], step=STEP
        )
        yield store


def test_figures_of_accuracy_do_not_change_and_most_rows_go(store):
    turn = make_turn(store, AT, Settings(planner="default"))
    window = measured_window(turn.settings)
    before = errors_of(recent_rows(store, AT, window=window))
    thinned = thin(store, retention_of(turn))
    assert errors_of(recent_rows(store, AT, window=window)) == before
    assert len(before) > 0
    # Of the forty old days, one of three measurements stays.
    rows = read_rows(store, "accuracy")
    assert thinned.accuracy == 3 * DAYS * 8 - len(rows) > 75 * 8
    newest = rows.groupby(rows["measured_at"].dt.floor("D"))["measured_at"].max()
    assert len(newest) == rows["measured_at"].dt.floor("D").nunique() >= DAYS
    # A second time nothing is left to drop.
    assert thin(store, retention_of(turn)) == type(thinned)()


def test_forecasts_of_replayed_jobs_of_each_day_and_of_late_stay(store, monkeypatch):
    turn = make_turn(store, AT, Settings(planner="default"))
    keep = retention_of(turn)
    assert len(keep.spans) == 2
    thin(store, keep)
    rows = read_rows(store, "vintages")
    old = rows[rows["issued_at"] < AT - pd.Timedelta(days=60)]
    assert (
        rows[rows["issued_at"] >= AT - pd.Timedelta(days=60)].groupby(["market", "model"]).size() == 181
    ).all()
    first, last = min(span[0] for span in keep.spans), max(span[1] for span in keep.spans)
    during = old[(old["issued_at"] >= first) & (old["issued_at"] <= last)]
    assert len(during[during["model"] == "default"]) > len(during[during["model"] == "last_value"])
    assert (
        old[old["model"] == "last_value"].groupby(["market", old["issued_at"].dt.floor("D")]).size() == 1
    ).all()
    ((orphans,),) = store.execute("SELECT count(*) FROM forecasts ANTI JOIN vintages USING (vid)")
    assert (orphans, len(read_rows(store, "forecasts"))) == (0, 2 * len(rows))
    monkeypatch.setattr(
        retention, "REPLAYED_JOBS", 0
    )  # no job is replayed again: it has no round yet, so it stays
    assert len(retention_of(turn).spans) == 2


def test_ages_that_accuracy_reads_are_kept_whatever_the_settings(store):
    turn = make_turn(store, AT, Settings(retention={"accuracy_days": 0, "forecasts_days": 0}))
    assert retention_of(turn).accuracy > pd.Timedelta(days=14)
