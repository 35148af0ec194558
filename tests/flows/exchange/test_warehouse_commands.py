"""Commands on the whole warehouse: export and import, compaction, and the preview of a backfill."""

import shutil

import pandas as pd
import pytest
from command_kit import call
from test_turn import AT, tidy_tables

from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_reader


@pytest.fixture(scope="module")
def ingested(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    tidy_tables(folder, AT - pd.Timedelta(days=1), AT)
    assert call("ingest", "tabular", folder, "--db", folder / "w.duckdb").code == 0
    return folder / "w.duckdb"


@pytest.fixture
def warehouse(ingested, tmp_path):
    return shutil.copy(ingested, tmp_path / "w.duckdb")


def rows(db, table):
    with open_reader(db) as store:
        return len(read_rows(store, table))


def test_out_and_in_again_is_the_same_and_twice_adds_nothing(warehouse, tmp_path):
    told = call("export", tmp_path / "out", "--db", warehouse, "--json").value
    other = tmp_path / "other.duckdb"
    assert {table["table"] for table in told["tables"]} >= {"price", "availability", "imports"}
    for _ in range(2):
        assert call("import", tmp_path / "out", "--db", other)[0] == 0
        for table in ("price", "availability", "markets", "series", "imports"):
            assert rows(other, table) == rows(warehouse, table) > 0


def test_a_rewritten_file_holds_the_same(warehouse):
    before = {table: rows(warehouse, table) for table in ("price", "availability", "series")}
    assert call("compact", "--db", warehouse)[0] == 0
    assert {table: rows(warehouse, table) for table in before} == before


def test_the_preview_of_a_backfill_does_nothing(warehouse, tmp_path):
    words = ("backfill", "--from", "2026-03-10T04:00Z", "--to", "2026-03-10T05:00Z", "--dry-run", "--db")
    told = call(*words, warehouse, "--json").value
    assert [slot["todo"] for slot in told["slots"]] == [["ingest", "forecast", "allocate", "score"]] * 3
    assert rows(warehouse, "runs") == 0
    told = call(*words, tmp_path / "nowhere.duckdb", "--json").value
    assert len(told["slots"]) == 3
    assert not (tmp_path / "nowhere.duckdb").exists()


def test_a_backfill_that_cannot_be_is_refused(warehouse):
    code, _, err = call(
        "backfill", "--from", "2026-03-11", "--to", "2026-03-10", "--dry-run", "--db", warehouse
    )
    assert code == 2
    assert "--from at or before --to" in err
