"""Files that are not a complete warehouse: a clear error, and the file stays unchanged."""

import os
import shutil
import struct

import duckdb
import pytest
from storekit import HOUR, T0, price_row, prices, tables
from storeprocess import writer

from slackwater.warehouse.errors import DamagedStoreError, SchemaError, StoreError
from slackwater.warehouse.observations import append
from slackwater.warehouse.store.connection import open_reader, open_store
from slackwater.warehouse.store.files import lock_path

INSERT = "INSERT INTO markets VALUES ({}, 'aws', 'r', 'z', 'x')"


def wal(path):
    return path.with_name(f"{path.name}.wal")


def add(path, number):
    with open_store(path) as store:
        store.execute(INSERT.format(number))


def numbers(opened):
    with opened as store:
        return [row[0] for row in store.execute("SELECT mid FROM markets ORDER BY mid")]


def killed_writer(path, number):
    """Leave a row in the log, like a writer killed after its commit."""
    with writer(path, INSERT.format(number)):
        pass
    assert wal(path).stat().st_size > 0


def test_what_a_killed_writer_committed_is_replayed(path):
    add(path, 1)
    killed_writer(path, 2)
    assert numbers(open_store(path)) == [1, 2]
    assert not wal(path).exists()


def test_a_log_that_breaks_off_gives_what_was_whole(path):
    add(path, 1)
    killed_writer(path, 2)
    size = wal(path).stat().st_size
    os.truncate(wal(path), size - 5)
    assert numbers(open_store(path)) == [1]


def test_a_log_with_a_flipped_byte_is_refused_and_kept(path):
    add(path, 1)
    killed_writer(path, 2)
    content = bytearray(wal(path).read_bytes())
    content[len(content) // 2] ^= 0xFF
    wal(path).write_bytes(content)
    with pytest.raises(DamagedStoreError, match="WAL"):
        open_store(path)
    assert wal(path).read_bytes() == content
    assert numbers(open_reader(path)) == [1]


def test_a_log_without_its_file_is_not_thrown_away(path):
    add(path, 1)
    killed_writer(path, 2)
    kept, log = path.rename(path.with_name("kept")), wal(path).read_bytes()
    for opener in (open_store, open_reader):
        with pytest.raises(DamagedStoreError, match=r"missing, but its log w\.duckdb\.wal"):
            opener(path)
    assert not path.exists()
    assert wal(path).read_bytes() == log
    kept.rename(path)
    assert numbers(open_store(path)) == [1, 2]


def test_a_log_of_another_file_is_not_replayed(path, tmp_path):
    """DuckDB itself replays it without an error."""
    other = tmp_path / "other.duckdb"
    for one in (path, other):
        add(one, 1)
    killed_writer(other, 2)
    before, log = path.read_bytes(), wal(other).read_bytes()
    shutil.copy(wal(other), wal(path))
    for _ in range(2):
        with pytest.raises(DamagedStoreError, match="that its last writer did not leave"):
            open_store(path)
    assert path.read_bytes() == before
    assert wal(path).read_bytes() == log
    assert numbers(open_reader(path)) == [1]
    wal(path).unlink()
    assert numbers(open_store(path)) == [1]


def test_an_empty_log_is_nothing(path):
    add(path, 1)
    wal(path).write_bytes(b"")
    assert numbers(open_store(path)) == [1]


def newer_storage(content):
    """Return the file as a later DuckDB would write it: another storage version with a valid checksum."""
    content = bytearray(content)
    struct.pack_into("<Q", content, 12, 200)
    checksum = 5381
    for (word,) in struct.iter_unpack("<Q", content[8:4096]):
        checksum ^= (word * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    struct.pack_into("<Q", content, 0, checksum)
    return bytes(content)


def test_a_file_of_a_newer_duckdb(path):
    add(path, 1)
    path.write_bytes(newer_storage(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(SchemaError, match=r"version number 200.*another DuckDB release: upgrade"):
        open_store(path)
    assert path.read_bytes() == before


def random_bytes(content):
    return bytes((7 * place) % 251 for place in range(20_000))


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Create a warehouse with rows of several blocks, to be copied."""
    path = tmp_path_factory.mktemp("filled") / "w.duckdb"
    with open_store(path) as store:
        append(store, prices(*(price_row(T0 + k * HOUR, 1.0 + k, k) for k in range(3000))), source="t")
    return path


@pytest.mark.usefixtures("created")
@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"",
        random_bytes,
        lambda content: content[:100],
        lambda content: content[:4096],
        lambda content: content[: len(content) // 2],
        lambda content: bytes(12288) + content[12288:],
    ],
    ids=["zero length", "random bytes", "part of a header", "one header", "half", "without headers"],
)
def test_readers_and_writers_say_what_is_wrong_and_change_nothing(path, filled, change):
    shutil.copy(lock_path(filled), lock_path(path))
    damaged = change(filled.read_bytes())
    path.write_bytes(damaged)
    for opener in (open_store, open_reader):
        with pytest.raises(DamagedStoreError, match="never rebuilt"), opener(path) as store:
            tables(store)
    assert path.read_bytes()[: len(damaged)] == damaged or len(damaged) > 4096
    assert path.stat().st_size >= len(damaged)


def test_a_database_of_somebody_else_is_not_read_either(path):
    with duckdb.connect(str(path)) as other:
        other.execute("CREATE TABLE recipes (name VARCHAR)")
    before = path.read_bytes()
    for opener in (open_store, open_reader):
        with pytest.raises(DamagedStoreError, match="recipes"):
            opener(path)
    assert path.read_bytes() == before


def test_a_damaged_file_still_has_its_last_snapshot(path):
    """Readers continue with the published snapshot until the file is restored."""
    add(path, 1)
    path.write_bytes(b"gone")
    with pytest.raises(StoreError):
        open_store(path)
    assert lock_path(path).exists()
