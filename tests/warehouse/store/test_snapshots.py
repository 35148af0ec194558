"""Readers block no process, never wait, and see complete turns only, however the writer ends."""

import os
import shutil
import signal
import threading
import time

import duckdb
import pytest
from storeprocess import let_go, run_python, writer

from slackwater.warehouse.errors import DamagedStoreError, SettingsError, StoreError, StoreLockedError
from slackwater.warehouse.store.connection import (
    CURRENT,
    is_current,
    newest_snapshot,
    open_reader,
    open_store,
    renew_reader,
    snapshot_folder,
)
from slackwater.warehouse.store.files import _is_stopped, try_lock
from slackwater.warehouse.store.schema import MIGRATIONS, migrate

INSERT = "INSERT INTO markets VALUES ({}, 'aws', 'r', 'z', 'x')"


def numbers(path):
    with open_reader(path) as reader:
        return [row[0] for row in reader.execute("SELECT mid FROM markets ORDER BY mid")]


def add(path, number):
    with open_store(path) as store:
        store.execute(INSERT.format(number))


def only_snapshot(path):
    names = {found.name for found in snapshot_folder(path).iterdir()}
    (found,) = names - {CURRENT}
    return found


def test_a_reader_sees_what_the_last_writer_left(path):
    add(path, 1)
    assert numbers(path) == [1]
    add(path, 2)
    assert numbers(path) == [1, 2]
    assert only_snapshot(path).startswith("000000003-")  # once with the file, then once for each writer


def test_one_path_always_names_the_newest_snapshot(path):
    link = snapshot_folder(path) / CURRENT
    for number in (1, 2):
        add(path, number)
        assert os.readlink(link) == only_snapshot(path)
        with duckdb.connect(str(link), read_only=True) as other:
            assert other.sql("SELECT count(*) FROM markets").fetchall() == [(number,)]
            add(path, 10 + number)  # a program that has it open keeps its state and holds nobody up
            assert other.sql("SELECT count(*) FROM markets").fetchall() == [(number,)]
        with open_store(path) as store:
            store.execute(f"DELETE FROM markets WHERE mid = {10 + number}")


def test_nothing_written_is_nothing_published(path):
    add(path, 1)
    before = only_snapshot(path)
    for _ in range(3):
        open_store(path).close()
        numbers(path)
    assert only_snapshot(path) == before


def test_readers_neither_wait_nor_see_half_a_turn_nor_hold_a_writer_up(path):
    add(path, 1)
    with open_reader(path) as early, writer(path, INSERT.format(2)) as other:
        assert numbers(path) == [1]  # committed by the other writer, whose turn is not over
        let_go(other)
        assert early.execute("SELECT count(*) FROM markets") == [
            (1,)
        ]  # its snapshot is unlinked but still readable
        assert numbers(path) == [1, 2]  # the same process sees the new snapshot
        assert early.execute("SELECT count(*) FROM markets") == [(1,)]


def test_a_reader_in_the_writers_own_process(path):
    with open_store(path) as store:
        store.execute(INSERT.format(1))
        assert numbers(path) == []
    assert numbers(path) == [1]
    with open_store(path) as store:
        store.execute(INSERT.format(2))
        assert numbers(path) == [1]
    assert numbers(path) == [1, 2]


#: A reader that is stopped once it has copied the file, and continued by a signal.
STOPPED = """
    import os, signal, sys
    from slackwater.warehouse.store import connection
    copy = connection.copy_synced
    def stopped(*words, **more):
        connection.copy_synced = copy
        copy(*words, **more)
        os.kill(os.getpid(), signal.SIGSTOP)
    connection.copy_synced = stopped
    with connection.open_reader(sys.argv[1]) as store:
        print([mid for mid, in store.execute("SELECT mid FROM markets ORDER BY mid")], flush=True)
"""


@pytest.mark.parametrize("written", [True, False])
def test_a_reader_that_is_stopped_while_it_makes_the_first_snapshot_blocks_no_writer(path, written):
    add(path, 1)
    shutil.rmtree(snapshot_folder(path))
    process = run_python(STOPPED, path)
    while not _is_stopped(process.pid):
        time.sleep(0.01)
    if written:
        with open_store(path, wait=0) as store:
            store.execute(INSERT.format(2))
    assert numbers(path) == [1, 2][: 1 + written]
    os.kill(process.pid, signal.SIGCONT)
    said, error = process.communicate()
    assert (said.strip(), error) == (f"{[1, 2][: 1 + written]}", "")
    assert not list(snapshot_folder(path).glob("*.part"))
    assert is_current(newest_snapshot(path), path)


def test_a_reader_may_not_write(path):
    add(path, 1)
    with open_reader(path) as reader, pytest.raises(StoreError, match="read-only"):
        reader.execute(INSERT.format(2))


def test_a_killed_writer_is_not_read_until_the_next_one_has_closed(path):
    add(path, 1)
    with writer(path, INSERT.format(2)):
        pass
    assert path.with_name("w.duckdb.wal").stat().st_size > 0
    assert numbers(path) == [1]
    assert numbers(path) == [1]
    open_store(path).close()  # finds the committed row in the log
    assert numbers(path) == [1, 2]


def test_a_writer_killed_in_the_first_turn_leaves_an_empty_warehouse_to_read(path):
    with writer(path, INSERT.format(1)):
        assert numbers(path) == []
    assert numbers(path) == []
    open_store(path).close()
    assert numbers(path) == [1]


def stopped_turn(path, number, error):
    with open_store(path) as store:
        store.execute(INSERT.format(number))
        raise error


def test_an_error_ends_a_turn_and_an_interrupt_does_not(path):
    add(path, 1)
    with pytest.raises(KeyError):
        stopped_turn(path, 2, KeyError())
    assert numbers(path) == [1, 2]
    with pytest.raises(KeyboardInterrupt):
        stopped_turn(path, 3, KeyboardInterrupt())
    assert numbers(path) == [1, 2]
    open_store(path).close()
    assert numbers(path) == [1, 2, 3]


def old_file(path, number=1):
    """Create a warehouse of the version before locks and snapshots."""
    with duckdb.connect(str(path)) as connection:
        migrate(connection)
        connection.execute(INSERT.format(number))


def test_a_file_without_snapshot_gets_one_from_its_first_reader(path):
    old_file(path)
    assert numbers(path) == [1]
    assert only_snapshot(path).startswith("000000001-")
    assert numbers(path) == [1]
    assert only_snapshot(path).startswith("000000001-")


def test_a_file_without_snapshot_whose_writer_was_killed_is_read_with_its_log(path):
    code = """
        import os, sys, duckdb
        from slackwater.warehouse.store.schema import migrate
        connection = duckdb.connect(sys.argv[1])
        migrate(connection)
        connection.execute(sys.argv[2])
        os._exit(1)
    """
    run_python(code, path, INSERT.format(7)).communicate()
    assert path.with_name("w.duckdb.wal").exists()
    assert numbers(path) == [7]
    assert not path.with_name("w.duckdb.wal").exists()


def test_a_file_without_snapshot_gets_one_before_a_writer_begins(path):
    old_file(path)
    with open_store(path) as store:
        store.execute(INSERT.format(2))
        assert numbers(path) == [1]


def test_a_file_put_in_the_place_of_another_is_noticed(path, tmp_path):
    add(path, 1)
    old_file(tmp_path / "other.duckdb", 5)
    os.replace(tmp_path / "other.duckdb", path)
    assert numbers(path) == [5]


@pytest.mark.usefixtures("created")
def test_a_file_that_is_begun_anew_shows_nothing_of_the_old_one(path):
    add(path, 1)
    with writer(path):
        pass  # killed: the next writer must not treat its snapshot as the last complete turn
    path.unlink()
    path.with_name("w.duckdb.wal").unlink(missing_ok=True)
    with open_store(path):
        assert numbers(path) == []


def test_a_snapshot_that_goes_while_it_is_opened_is_looked_up_again(path, monkeypatch):
    add(path, 1)
    gone = snapshot_folder(path) / "000000000-1-1.duckdb"
    found = iter([gone, gone, newest_snapshot(path).path])
    monkeypatch.setattr("slackwater.warehouse.store.connection.readable_snapshot", lambda *_: next(found))
    assert numbers(path) == [1]


def test_readers_and_a_busy_writer_side_by_side(path):
    """Every reader sees a complete turn: both of its rows or none."""
    add(path, 0)
    seen, failures, over = [], [], threading.Event()

    def read():
        while not over.is_set():
            try:
                seen.append(numbers(path))
            except StoreError as error:
                failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    for turn in range(1, 11):
        with open_store(path) as store:
            store.execute(INSERT.format(2 * turn - 1))
            store.execute(INSERT.format(2 * turn))
    over.set()
    for thread in readers:
        thread.join()
    assert failures == []
    assert len(seen) > 2
    assert all(one == list(range(len(one))) and len(one) % 2 == 1 for one in seen)


def test_parts_of_a_killed_publication_are_swept(path):
    add(path, 1)
    part = snapshot_folder(path) / "000000009.part"
    part.write_bytes(b"half")
    assert numbers(path) == [1]
    add(path, 2)
    assert not part.exists()
    assert numbers(path) == [1, 2]


def test_without_snapshots_there_is_one_file(path, monkeypatch):
    monkeypatch.setenv("SLACKWATER_SNAPSHOTS", "off")
    add(path, 1)
    assert numbers(path) == [1]
    assert not snapshot_folder(path).exists()
    with writer(path), pytest.raises(StoreLockedError):
        open_reader(path)
    open_store(path).close()
    monkeypatch.setenv("SLACKWATER_SNAPSHOTS", "on")
    monkeypatch.setenv("SLACKWATER_LOCK_WAIT", "0.05")
    with writer(path, SLACKWATER_SNAPSHOTS="off"), pytest.raises(StoreLockedError, match="publishes nothing"):
        open_reader(path)
    open_store(path).close()
    assert numbers(path) == [1]
    monkeypatch.setenv("SLACKWATER_SNAPSHOTS", "perhaps")
    with pytest.raises(SettingsError, match="on or off"):
        open_reader(path)


def test_a_snapshot_that_is_out_of_date_without_a_writer_is_made_again(path, monkeypatch):
    add(path, 1)
    monkeypatch.setenv("SLACKWATER_SNAPSHOTS", "off")
    add(path, 2)
    monkeypatch.delenv("SLACKWATER_SNAPSHOTS")
    assert numbers(path) == [1, 2]


def test_a_damaged_snapshot_is_said_to_be_one(path):
    add(path, 1)
    snapshot = newest_snapshot(path).path
    content = bytearray(snapshot.read_bytes())
    content[4096:4196] = bytes(100)
    content[8192:8292] = bytes(100)
    snapshot.write_bytes(content)
    with pytest.raises(DamagedStoreError, match=r"w\.duckdb"):
        open_reader(path)
    shutil.rmtree(snapshot_folder(path))
    assert numbers(path) == [1]


def test_a_reader_does_not_upgrade_a_file(path):
    with duckdb.connect(str(path)) as connection:
        migrate(connection, MIGRATIONS[:4])
    with pytest.raises(StoreError, match="open it once for writing"):
        open_reader(path)
    open_store(path).close()
    assert numbers(path) == []


def test_in_memory_and_missing(path):
    with open_reader(":memory:") as reader:
        assert reader.execute("SELECT count(*) FROM markets") == [(0,)]
    with pytest.raises(StoreError, match="no warehouse at"):
        open_reader(path)
    assert list(path.parent.iterdir()) == []


def test_a_reader_that_finds_the_lock_taken_by_a_reader_uses_what_there_is(path, tmp_path):
    add(path, 1)
    old_file(tmp_path / "other.duckdb", 5)
    os.replace(tmp_path / "other.duckdb", path)
    lock = try_lock(path)
    try:
        assert numbers(path) == [1]
    finally:
        lock.give_back()
    assert numbers(path) == [5]


def test_a_reader_that_reads_again_keeps_its_snapshot_until_there_is_a_newer_one(path):
    add(path, 1)
    first = open_reader(path)
    assert renew_reader(first, path) is first
    add(path, 2)
    with renew_reader(first, path) as second:
        assert second.execute("SELECT count(*) FROM markets") == [(2,)]
    with pytest.raises(StoreError):
        first.execute("SELECT 1")
