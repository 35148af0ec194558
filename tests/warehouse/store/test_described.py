"""Views and comments are updated when a file is opened for writing, and only then."""

import duckdb
import pytest
from forms_kit import quick_first
from storeprocess import run_python

from slackwater.warehouse.store import schema
from slackwater.warehouse.store.connection import open_reader, open_store
from slackwater.warehouse.store.schema import MIGRATIONS, migrate

TEXT = "CREATE OR REPLACE VIEW cheap AS SELECT sid FROM price;\nCOMMENT ON COLUMN price.price_usd IS '{}';"


def views_of(path):
    with duckdb.connect(str(path), read_only=True) as connection:
        return {
            row[0]
            for row in connection.execute(
                "SELECT view_name FROM duckdb_views() WHERE NOT internal"
            ).fetchall()
        }


def comment_of(path):
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(
            "SELECT comment FROM duckdb_columns() WHERE table_name = 'price' AND column_name = 'price_usd'"
        ).fetchone()[0]


def test_an_older_warehouse_gets_them(path):
    with duckdb.connect(str(path)) as old:
        migrate(old, MIGRATIONS[:4])
        old.execute("INSERT INTO markets VALUES (1, 'aws', 'r', 'z', 'x')")
        old.execute("INSERT INTO series VALUES (1, 1, 'lab', 'price', '')")
        old.execute(
            "INSERT INTO price VALUES (1, '2026-01-01 00:00:00+00', '2026-01-01 00:00:00+00', 2.5, NULL, 1)"
        )
    with (
        open_store(path, say=lambda _: None) as store,
        open_reader(path) as reader,  # while the writer that updated them works
    ):
        for each in (store, reader):
            assert each.execute("SELECT market, price_usd FROM market_prices") == [("aws/r/z/x", 2.5)]
    assert comment_of(path) == "Spot price, USD per instance-hour."


def test_a_file_of_the_same_schema_without_them_needs_no_backup(path):
    with duckdb.connect(str(path)) as old:
        migrate(old)
        old.execute("INSERT INTO markets VALUES (1, 'aws', 'r', 'z', 'x')")
    said = []
    open_store(path, say=said.append).close()
    assert "market_prices" in views_of(path)
    assert said == []
    assert not list(path.parent.glob("*backup*"))


def test_opened_again_nothing_is_written(path):
    open_store(path).close()
    before = path.read_bytes()
    with open_store(path) as store:
        assert not schema.describe(store._connection)
    assert path.read_bytes() == before


def test_another_text_takes_the_place_of_the_old_one_and_leaves_what_is_not_ours(path, monkeypatch):
    open_store(path).close()
    ours = views_of(path)
    with duckdb.connect(str(path)) as analyst:
        analyst.execute("CREATE VIEW mine AS SELECT count(*) AS n FROM market_prices")
    read, text = schema.read_sql, TEXT.format("In pence.")
    monkeypatch.setattr(
        schema, "read_sql", lambda package, name: text if name == "described" else read(package, name)
    )
    open_store(path).close()
    assert views_of(path) == {"mine", "cheap", "described"}
    assert comment_of(path) == "In pence."
    text = TEXT.format("In cents.")
    open_store(path).close()
    assert comment_of(path) == "In cents."
    monkeypatch.undo()
    with open_store(path) as store:
        assert store.execute("FROM mine") == [(0,)]
    assert views_of(path) == ours | {"mine"}


KILLED = """
    import os, re, sys
    from slackwater.warehouse.store import schema
    class Dying:
        def findall(self, text):
            os.kill(os.getpid(), 9)
    if sys.argv[2] == "before":
        schema._VIEW = Dying()
    else:
        schema.sql_literal = lambda text: os.kill(os.getpid(), 9)
    from slackwater.warehouse.store.connection import open_store
    open_store(sys.argv[1])
"""


@pytest.mark.parametrize("when", quick_first(["within", "before"]))
def test_a_kill_in_the_middle_is_made_good_by_the_next_writer(path, when):
    with duckdb.connect(str(path)) as old:
        migrate(old)
        old.execute("INSERT INTO markets VALUES (1, 'aws', 'r', 'z', 'x')")
    process = run_python(KILLED, path, when)
    process.communicate()
    assert process.returncode == -9
    assert views_of(path) == set()
    with open_store(path, say=lambda _: None) as store:
        assert store.execute("SELECT count(*) FROM market_series") == [(0,)]
        assert store.execute("SELECT count(*) FROM markets") == [(1,)]
    assert "market_prices" in views_of(path)
