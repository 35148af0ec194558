"""A command that reads a warehouse of an older version migrates it and writes a backup."""

import duckdb
import pytest
from command_kit import call
from forms_kit import quick_first

from slackwater.warehouse.store.schema import MIGRATIONS, migrate


@pytest.mark.parametrize("words", quick_first([["job", "list"], ["status"], ["markets"]]))
def test_a_reading_command_brings_an_older_warehouse_up_to_date(tmp_path, words):
    path = tmp_path / "w.duckdb"
    with duckdb.connect(str(path)) as old:
        migrate(old, MIGRATIONS[:-1])
        old.execute("INSERT INTO markets VALUES (1, 'aws', 'r', 'z', 'x')")
    first = call(*words, "--db", path)
    assert "lacks the schema step" not in first.err
    assert (tmp_path / f"w.duckdb.backup-{MIGRATIONS[-2]}").is_file()
    second = call(*words, "--db", path)
    assert (first.code, first.out) == (second.code, second.out)
