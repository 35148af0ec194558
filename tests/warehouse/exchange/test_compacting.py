"""Compaction to a smaller file with the same rows, which replaces the old file atomically."""

import shutil

import pandas as pd
import pytest
from storekit import DAY, HOUR, T0, price_row, prices
from storeprocess import writer

from slackwater.warehouse.errors import DamagedStoreError, SettingsError, StoreError, StoreLockedError
from slackwater.warehouse.exchange import compact
from slackwater.warehouse.issued import FittedState, load_fitted, read_rows, save_fitted
from slackwater.warehouse.observations import append
from slackwater.warehouse.store.connection import open_reader, open_store
from slackwater.warehouse.store.retention import Retention
from slackwater.warehouse.store.schema import TABLES


@pytest.fixture
def path(tmp_path):
    return tmp_path / "w.duckdb"


def state(day):
    at = T0 + day * DAY
    return FittedState(
        predictor="p", variable="price", panel="m", step=HOUR, fitted_at=at, known_at=at, state="x" * 200_000
    )


@pytest.fixture(scope="module")
def fill(tmp_path_factory):
    """Return a function that copies a warehouse with some days of fitted models to a path; the original is created once."""
    made = {}

    def filled(path, days=30):
        if days not in made:
            made[days] = tmp_path_factory.mktemp("filled")
            with open_store(made[days] / path.name) as store:
                rows = (price_row(T0 + k * HOUR, 1.0 + k % 7, k) for k in range(500))
                append(store, prices(*rows), source="t")
                for day in range(days):
                    save_fitted(store, [state(day)])
        shutil.copytree(made[days], path.parent, dirs_exist_ok=True)

    return filled


def rows(path, skip=()):
    with open_reader(path) as store:
        return {name: store.execute(f"SELECT * FROM {name}") for name in TABLES if name not in skip}


def names(path):
    return sorted(p.name for p in path.parent.iterdir())


def test_the_same_rows_in_a_smaller_file(path, fill):
    fill(path)
    before, there = rows(path), names(path)
    with open_reader(path) as reader:
        done = compact(open_store(path))
        assert len(read_rows(reader, "fitted")) == 30  # a reader opened earlier still has its snapshot
    assert done.dropped.fitted == 15
    assert done.bytes_after == path.stat().st_size < done.bytes_before
    after = rows(path)
    assert after.pop("fitted") == before.pop("fitted")[15:]
    assert after == before
    assert names(path) == there
    with open_store(path) as store:  # and the file still works as a warehouse
        save_fitted(store, [state(31)])
        known = {"predictor": "p", "step": HOUR, "panels": ["m"], "known_at": T0 + 99 * DAY}
        assert len(load_fitted(store, fitted_at=T0 + 31 * DAY, **known)) == 1
        assert len(load_fitted(store, fitted_at=T0 + 15 * DAY, **known)) == 1
        assert load_fitted(store, fitted_at=T0 + 14 * DAY, **known) == {}


@pytest.mark.parametrize(("keep", "kept"), [(0, 1), (3, 4), (500, 5)])
def test_how_much_is_kept(path, fill, keep, kept):
    fill(path, days=5)
    assert (
        compact(open_store(path), keep=Retention(fitted=pd.Timedelta(days=keep))).dropped.fitted == 5 - kept
    )
    assert len(rows(path)["fitted"]) == kept
    with open_store(path) as store, pytest.raises(SettingsError):
        compact(store, keep=Retention(fitted=-DAY))


def test_constraints_and_defaults_are_kept(path, fill):
    fill(path, days=2)
    compact(open_store(path))
    with open_store(path) as store:
        store.execute(
            "INSERT INTO runs (run, logical_at, stage, status) VALUES ('r', '2026-01-01', 's', 'done')"
        )
        assert read_rows(store, "runs")["made"].tolist() == ["live"]
        with pytest.raises(StoreError, match="NOT NULL"):
            store.execute("INSERT INTO markets VALUES (NULL, 'a', 'b', 'c', 'd')")
        with pytest.raises(StoreError, match="CHECK"):
            store.execute("INSERT INTO series VALUES (1, 1, 'a', 'b', 'c')")


def test_not_under_the_feet_of_another(path, fill):
    fill(path, days=2)
    with writer(path), pytest.raises(StoreLockedError):
        compact(open_store(path, wait=0))
    with open_store(path), open_store(path) as second, pytest.raises(StoreLockedError, match="this process"):
        compact(second)
    compact(open_store(path))


@pytest.mark.parametrize("where", ["sync_file", "_compare"])
def test_a_failure_leaves_the_file_as_it_was(path, fill, monkeypatch, where):
    fill(path, days=2)
    before, there = rows(path), names(path)
    error = OSError(28, "No space left on device") if where == "sync_file" else DamagedStoreError("differs")

    def fail(*_):
        raise error

    monkeypatch.setattr(f"slackwater.warehouse.exchange.{where}", fail)
    with open_store(path) as store, pytest.raises(StoreError, match=r"No space left|differs"):
        compact(store)
    assert rows(path) == before
    assert names(path) == there


def test_a_copy_that_lost_rows_is_noticed(path, fill, monkeypatch):
    fill(path, days=2)
    before = rows(path)
    from slackwater.warehouse.store.connection import Store

    execute = Store.execute

    def losing(self, sql, parameters=()):
        found = execute(self, sql, parameters)
        if sql.startswith("COPY FROM"):
            execute(self, "DELETE FROM compacted.price WHERE price_usd > 5")
        return found

    monkeypatch.setattr(Store, "execute", losing)
    with open_store(path) as store, pytest.raises(DamagedStoreError, match="table price"):
        compact(store)
    monkeypatch.undo()
    assert rows(path) == before
