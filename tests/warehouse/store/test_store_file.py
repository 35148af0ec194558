"""The warehouse as a file: access rights, refused files, and kills that leave complete imports or none."""

import json
import os
import time
from pathlib import Path

import duckdb
import pytest
from forms_kit import quick_first
from storekit import HOUR, T0, count_row, counts, price_row, prices, tables
from storeprocess import run_python

from slackwater.warehouse.documents import read_sql
from slackwater.warehouse.errors import (
    DamagedStoreError,
    SchemaError,
    SettingsError,
    StoreError,
    StoreLockedError,
)
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.observations import append
from slackwater.warehouse.store.connection import open_reader, open_store
from slackwater.warehouse.store.schema import MIGRATIONS, applied_steps, migrate, pending_steps


def fill(path, rows=50):
    with open_store(path) as store:
        append(store, prices(*(price_row(T0 + k * HOUR, 1.0 + k, k) for k in range(rows))), source="t")
        append(store, counts(*(count_row(T0 + k * HOUR, k % 16, k) for k in range(rows))), source="t")
        return tables(store)


def test_what_was_written_is_there_when_opened_again(path):
    written = fill(path)
    with open_store(path) as store:
        assert tables(store) == written
    with open_store(str(path), read_only=True) as store:
        assert tables(store) == written


def test_a_process_uses_as_many_threads_as_it_is_told(path, monkeypatch):
    monkeypatch.setenv("SLACKWATER_THREADS", "3")
    with open_store(path) as store:
        assert store.execute("SELECT current_setting('threads')") == [(3,)]
    for bad in ("0", "two", "-1"):
        monkeypatch.setenv("SLACKWATER_THREADS", bad)
        with pytest.raises(SettingsError, match=f"SLACKWATER_THREADS='{bad}'"):
            open_store(path)


def test_a_new_warehouse_has_all_steps_or_none(path, monkeypatch):
    def torn(package, name):
        return "CREATE TABLE half (" if name == MIGRATIONS[-1] else read_sql(package, name)

    with duckdb.connect(str(path)) as connection:
        monkeypatch.setattr("slackwater.warehouse.store.schema.read_sql", torn)
        with pytest.raises(duckdb.ParserException):
            migrate(connection)
        assert connection.execute("SELECT table_name FROM duckdb_tables()").fetchall() == []
        monkeypatch.undo()
        assert migrate(connection) == list(MIGRATIONS)


def test_the_tables_that_other_tests_create_at_once_are_those_of_the_steps(whole_schema):
    facts = (
        "SELECT table_name, sql FROM duckdb_tables()",
        "SELECT * EXCLUDE (table_oid) FROM duckdb_columns() WHERE NOT internal",
        "SELECT table_name, constraint_type, constraint_text, constraint_column_names FROM duckdb_constraints()",
        "FROM schema_steps",
    )
    with duckdb.connect(":memory:") as plain, duckdb.connect(":memory:") as at_once:
        migrate(plain)
        at_once.execute(whole_schema)
        for fact in facts:
            found = plain.execute(f"SELECT * FROM ({fact}) ORDER BY ALL").fetchall()
            assert found
            assert at_once.execute(f"SELECT * FROM ({fact}) ORDER BY ALL").fetchall() == found


def test_a_missing_warehouse_is_not_made_for_reading(path):
    with pytest.raises(StoreError, match="no warehouse at"):
        open_store(path, read_only=True)
    assert not path.exists()
    with pytest.raises(StoreError, match="no folder"):
        open_store(path / "deeper" / "w.duckdb")
    with pytest.raises(StoreError, match="is a folder"):
        open_store(path.parent)


@pytest.mark.parametrize("content", [b"", b"not a database", b"\0" * 20_000], ids=["empty", "text", "zeros"])
def test_another_file_is_refused_and_left_as_it_is(path, content):
    path.write_bytes(content)
    with pytest.raises(DamagedStoreError, match="never rebuilt"):
        open_store(path)
    assert path.read_bytes() == content


def test_a_database_of_someone_else_is_refused_and_left_as_it_is(path):
    with duckdb.connect(str(path)) as other:
        other.execute("CREATE TABLE recipes (name VARCHAR)")
    with pytest.raises(DamagedStoreError, match="recipes"):
        open_store(path)
    with duckdb.connect(str(path)) as other:
        assert other.execute("SELECT table_name FROM duckdb_tables()").fetchall() == [("recipes",)]


@pytest.mark.parametrize("where", quick_first([12, 4096 + 20]))
def test_a_damaged_file_is_said_to_be_damaged(path, where):
    fill(path)
    content = bytearray(path.read_bytes())
    content[where : where + 16] = bytes(byte ^ 0xFF for byte in content[where : where + 16])
    path.write_bytes(content)
    with pytest.raises(DamagedStoreError, match="restore it from a copy"), open_store(path) as store:
        tables(store)


def test_a_flipped_block_of_data_is_noticed_when_it_is_read(path):
    """Every block has a checksum: data altered on disk is never returned."""
    written = fill(path, rows=3000)
    content = path.read_bytes()
    noticed = 0
    for block in range(12288, len(content), 262144):
        bad = bytearray(content)
        bad[block + 1000] ^= 0xFF
        path.write_bytes(bad)
        try:
            with open_store(path, read_only=True) as store:
                assert tables(store) == written
        except DamagedStoreError:
            noticed += 1
    assert noticed >= 1


def test_a_newer_schema_is_refused(path):
    open_store(path).close()
    with duckdb.connect(str(path)) as other:
        other.execute("INSERT INTO schema_steps VALUES (99, '0099_from_the_future')")
    for read_only in (False, True):
        with pytest.raises(SchemaError, match=r"w\.duckdb.*0099_from_the_future.*newer version"):
            open_store(path, read_only=read_only)


def test_an_old_file_is_brought_up_to_date_with_its_rows(path):
    with duckdb.connect(str(path)) as old:
        migrate(old, MIGRATIONS[:1])
        old.execute("INSERT INTO markets VALUES (1, 'aws', 'r', 'z', 'p3.2xlarge')")
        old.execute("INSERT INTO series VALUES (1, 1, 'lab', 'price', 'Linux/UNIX')")
        old.execute(
            "INSERT INTO price VALUES (1, '2023-03-01 00:00:00+00', '2023-03-01 00:00:00+00', 1.5, NULL, 1)"
        )
    with pytest.raises(StoreError, match="open it once for writing"):
        open_store(path, read_only=True)
    with open_store(path) as store:
        assert list_markets(store)["market"].tolist() == ["aws/r/z/p3.2xlarge"]
        names = [row[0] for row in store.execute("SELECT name FROM schema_steps ORDER BY position")]
        assert names == list(MIGRATIONS)
    open_store(path, read_only=True).close()


def test_a_migration_that_fails_leaves_no_trace(path):
    with duckdb.connect(str(path)) as connection:
        migrate(connection, MIGRATIONS[:1])
        connection.execute("CREATE TABLE jobs (name VARCHAR)")  # conflicts with a later step
        with pytest.raises(duckdb.CatalogException):
            migrate(connection)
        assert applied_steps(connection) == list(MIGRATIONS[:2])
        assert not connection.execute(
            "SELECT 1 FROM duckdb_tables() WHERE table_name = 'decisions'"
        ).fetchall()


def test_steps_out_of_order_are_refused():
    with pytest.raises(SchemaError):
        pending_steps([MIGRATIONS[1], MIGRATIONS[0]])
    assert pending_steps([]) == list(MIGRATIONS)


def test_the_same_process_with_other_settings_is_told_so(path):
    with open_store(path), pytest.raises(StoreLockedError, match="open in this process"):
        open_store(path, read_only=True)


def test_times_without_a_zone_are_refused(path):
    import pandas as pd

    with open_store(path) as store, pytest.raises(SettingsError, match="time zone"):
        list_markets(store, known_at=pd.Timestamp("2023-01-01"))


INGEST = """
    import sys
    from pathlib import Path
    from storekit import JsonSource, OPTIONS
    from slackwater.warehouse.observations import ingest_file
    from slackwater.warehouse.store.connection import open_store

    class Slow(JsonSource):
        def read(self, path, options):
            for number, found in enumerate(super().read(path, options)):
                print("batch", number, flush=True)
                yield found
            print("read", flush=True)

    with open_store(sys.argv[1]) as store:
        for path in sorted(Path(sys.argv[2]).glob("*.json")):
            done = ingest_file(store, Slow(chunk=500), path, options=OPTIONS)
            print("done", path.name, done.added, flush=True)
"""


def make_files(folder):
    for number in range(2):
        rows = [price_row(T0 + (2000 * number + k) * HOUR, 1.0 + k % 7, k) for k in range(2000)]
        rows[3]["price_usd"] = -1.0
        found = [count_row(T0 + (2000 * number + k) * HOUR, k % 17, k) for k in range(1000)]
        text = [{**row, "observed_at": row["observed_at"].isoformat()} for row in rows + found]
        content = {"price": text[:2000], "availability": text[2000:]}
        (folder / f"{number}.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("line", "delay"),
    [
        pytest.param("batch 2", 0, marks=pytest.mark.slow),
        ("read", 0),
        pytest.param("read", 0.01, marks=pytest.mark.slow),
        pytest.param("read", 0.03, marks=pytest.mark.slow),
        pytest.param("done 0.json", 0, marks=pytest.mark.slow),
        pytest.param("done 0.json", 0.05, marks=pytest.mark.slow),
        pytest.param("done 1.json", 0, marks=pytest.mark.slow),
    ],
)
def test_a_killed_ingest_leaves_whole_files_and_the_rerun_completes_it(
    tmp_path, expected_tables, line, delay
):
    folder, expected = expected_tables
    path = tmp_path / "w.duckdb"
    process = run_python(INGEST, path, folder)
    try:
        for printed in process.stdout:
            if printed.startswith(line):
                break
        time.sleep(delay)  # the kill may fall anywhere in the merge: every outcome must hold
    finally:
        process.kill()
        process.wait()
    with open_store(path) as store:
        assert len(tables(store)["price"]) in (0, 1999, 3998)
        assert len(tables(store)["availability"]) in (0, 1000, 2000)
    rerun = run_python(INGEST, path, folder)
    rerun.communicate()
    assert rerun.returncode == 0
    with open_store(path) as store:
        assert tables(store) == expected
    assert sorted(p.name for p in Path(tmp_path).iterdir()) == ["w.duckdb", "w.duckdb.lock", "w.duckdb.read"]
    assert len(list((tmp_path / "w.duckdb.read").iterdir())) == 2  # the snapshot and the link to it


@pytest.fixture(scope="module")
def expected_tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    make_files(folder)
    process = run_python(INGEST, folder / "w.duckdb", folder)
    process.communicate()
    assert process.returncode == 0
    with open_store(folder / "w.duckdb") as store:
        return folder, tables(store)


OF_OTHERS = {
    "sqlite": b"SQLite format 3\x00" + bytes(84),
    "parquet": b"PAR1" + bytes(96),
    "text": b"some notes\n",
    "short": b"\x01",
}


@pytest.mark.parametrize("kind", OF_OTHERS)
def test_a_file_of_another_program_is_refused_and_stays(tmp_path, kind):
    file = tmp_path / "w.duckdb"
    file.write_bytes(OF_OTHERS[kind])
    for opening in (open_store, open_reader):
        with pytest.raises(
            DamagedStoreError, match=r"damaged or no warehouse: (an SQLite|not a DuckDB) file"
        ):
            opening(file)
    assert file.read_bytes() == OF_OTHERS[kind]


def test_a_name_that_duckdb_would_take_for_a_place_elsewhere_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("md:x", "postgres:host=x", "sqlite:x"):
        with open_store(name):
            pass
        assert (tmp_path / name).is_file()


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "w.duckdb")
    for opening in (open_store, open_reader):
        with pytest.raises(StoreError, match="a device or a pipe"):
            opening(tmp_path / "w.duckdb")
