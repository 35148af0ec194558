"""An older warehouse is copied before its schema is migrated, and a kill in between loses nothing."""

import duckdb
import pytest
from forms_kit import quick_first
from storeprocess import run_python

from slackwater.warehouse.errors import StoreError
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_reader, open_store
from slackwater.warehouse.store.schema import MIGRATIONS, applied_steps, migrate

RUN = "INSERT INTO runs VALUES ('run-{}', '2026-01-01 00:00:00+00', 'ingest', 'done', '{{}}')"


def old_warehouse(path, runs=3):
    """Create a warehouse of the version before the ledger's ``made`` column."""
    with duckdb.connect(str(path)) as old:
        migrate(old, MIGRATIONS[:4])
        for number in range(runs):
            old.execute(RUN.format(number))
        old.execute("INSERT INTO markets VALUES (1, 'aws', 'r', 'z', 'x')")
    return path.read_bytes()


def backup(path, more=""):
    return path.with_name(f"w.duckdb.backup-{MIGRATIONS[3]}{more}")


def steps_of(path):
    with duckdb.connect(str(path), read_only=True) as connection:
        return applied_steps(connection)


def test_the_old_file_is_kept_and_said_to_be(path):
    before = old_warehouse(path)
    said = []
    with open_store(path, say=said.append) as store:
        assert read_rows(store, "runs")["made"].tolist() == ["live"] * 3
        assert store.execute("SELECT count(*) FROM markets") == [(1,)]
    assert backup(path).read_bytes() == before
    assert steps_of(backup(path)) == list(MIGRATIONS[:4])
    assert said == [
        f"warehouse {path}: schema brought from {MIGRATIONS[3]} to {MIGRATIONS[-1]}; as it was: {backup(path)}"
    ]
    with open_store(path, say=said.append):
        pass
    assert len(said) == 1


def test_readers_see_the_new_schema_while_the_writer_that_brought_it_works(path):
    old_warehouse(path)
    with pytest.raises(StoreError, match="open it once for writing"):
        open_reader(path)
    with open_store(path, say=lambda _: None), open_reader(path) as reader:
        assert read_rows(reader, "runs")["made"].tolist() == ["live"] * 3


def test_another_backup_is_never_overwritten(path):
    before = old_warehouse(path)
    backup(path).write_bytes(b"somebody's")
    backup(path, ".1").write_bytes(before[:-1] + b"?")
    open_store(path, say=lambda _: None).close()
    assert backup(path).read_bytes() == b"somebody's"
    assert backup(path, ".1").read_bytes() == before[:-1] + b"?"
    assert backup(path, ".2").read_bytes() == before


def test_the_same_backup_is_used_again(path):
    before = old_warehouse(path)
    backup(path).write_bytes(before)
    open_store(path, say=lambda _: None).close()
    assert not backup(path, ".1").exists()


def test_a_new_or_empty_warehouse_needs_no_backup(path):
    with duckdb.connect(str(path)) as old:
        migrate(old, MIGRATIONS[:2])
    said = []
    open_store(path, say=said.append).close()
    open_store(path.with_name("new.duckdb"), say=said.append).close()
    assert said == []
    assert not list(path.parent.glob("*backup*"))


KILLED = """
    import os, sys
    from slackwater.warehouse.store import schema as migrations
    read = migrations.read_sql
    def dying(package, name):
        if name == sys.argv[2]:
            os.kill(os.getpid(), 9)
        return read(package, name)
    migrations.read_sql = dying
    from slackwater.warehouse.store.connection import open_store
    open_store(sys.argv[1])
"""


@pytest.mark.parametrize("step", quick_first([MIGRATIONS[4], MIGRATIONS[6]]))
def test_a_kill_in_the_middle_is_made_good_by_the_next_writer(path, step):
    before = old_warehouse(path)
    process = run_python(KILLED, path, step)
    process.communicate()
    assert process.returncode == -9
    assert backup(path).read_bytes() == before
    with open_store(path, say=lambda _: None) as store:
        names = [row[0] for row in store.execute("SELECT name FROM schema_steps ORDER BY position")]
        assert names == list(MIGRATIONS)
        assert read_rows(store, "runs")["run"].tolist() == ["run-0", "run-1", "run-2"]
    assert backup(path).read_bytes() == before
    with open_reader(path) as reader:
        assert len(read_rows(reader, "runs")) == 3


def test_no_room_for_the_backup_changes_nothing(path, monkeypatch):
    before = old_warehouse(path)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("slackwater.warehouse.store.schema.copy_synced", full)
    with pytest.raises(StoreError, match=r"No space left.*nothing was changed"):
        open_store(path, say=lambda _: None)
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*backup*"))
    monkeypatch.undo()
    open_store(path, say=lambda _: None).close()
    assert backup(path).read_bytes() == before
