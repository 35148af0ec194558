"""No room left: a clear error, nothing half-written, and everything works again when there is room."""

import os
import subprocess

import pytest
from storeprocess import run_python

from warehouse.store.connection import open_reader, open_store

BIG = "INSERT INTO assumptions SELECT 'm{0}', 's', md5((range + {0})::VARCHAR) || md5((7 * range)::VARCHAR) FROM range(200000)"


@pytest.fixture(autouse=True, scope="module")
def new_warehouses():
    """Made as the program makes them: how large one is at first decides what a small disk holds."""


#: In a process of its own that may not make files larger than a megabyte more than the warehouse is.
LIMITED = """
    import os, resource, sys
    from warehouse.errors import StoreError
    from warehouse.store.connection import open_store
    path, statement = sys.argv[1:]
    limit = os.stat(path).st_size + int(os.environ["ROOM"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        with open_store(path) as store:
            with store.transaction():
                store.execute("INSERT INTO markets VALUES (2, 'aws', 'r', 'z', 'x')")
                store.execute(statement)
            print("committed", flush=True)
    except StoreError as error:
        print(type(error).__name__, error, flush=True)
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "w.duckdb"
    with open_store(path) as store:
        store.execute("INSERT INTO markets VALUES (1, 'aws', 'r', 'z', 'x')")
    return path


def whole(counted):
    return counted in ((1, 0), (2, 200_000))


def counts(store):
    return tuple(store.execute(f"SELECT count(*) FROM {name}")[0][0] for name in ("markets", "assumptions"))


def try_again(path):
    """With room: the transaction is there whole or not at all, and can be made."""
    with open_reader(path) as store:
        assert whole(counts(store))
    with open_store(path) as store:
        there = counts(store)
        assert whole(there)
        store.execute(BIG.format(1))
        assert counts(store) == (there[0], there[1] + 200_000)
    with open_reader(path) as store:
        assert counts(store) == (there[0], there[1] + 200_000)
    names = {"w.duckdb", "w.duckdb.lock", "w.duckdb.read"}
    assert {name for name in os.listdir(path.parent) if name.startswith("w.")} == names
    assert len(os.listdir(path.with_name("w.duckdb.read"))) == 1


@pytest.mark.parametrize("room", [100_000, 3_000_000])
def test_a_file_that_may_not_grow(path, room):
    """The room ends early in the transaction, or late."""
    process = run_python(LIMITED, path, BIG.format(0), ROOM=str(room))
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "Error" in out
    assert "warehouse" in out
    with open_reader(path) as store:
        assert counts(store) == (1, 0), "what could not be published is not seen"
    try_again(path)


def test_room_for_the_log_but_not_for_the_file_is_told(path):
    """What was committed is kept in the log, but readers cannot see it: whoever closes the warehouse is told so."""
    process = run_python(LIMITED, path, BIG.format(0).replace("200000", "2000"), ROOM="100000")
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.startswith("committed")
    assert "could not be brought up to date from its log" in out
    with open_reader(path) as store:
        assert counts(store) == (1, 0)
    open_store(path).close()
    with open_reader(path) as store:
        assert counts(store) == (2, 2000)


FILL = """
    import sys
    from warehouse.errors import StoreError
    from warehouse.store.connection import open_store
    try:
        with open_store(sys.argv[1]) as store, store.transaction():
            store.execute("INSERT INTO markets VALUES (2, 'aws', 'r', 'z', 'x')")
            store.execute(sys.argv[2])
    except StoreError as error:
        print(type(error).__name__, error, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [5, 8, 16, 24])  # 4 do not hold a new warehouse and its two snapshots
def test_a_disk_that_is_full(tmp_path, megabytes):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a file system")
    try:
        path = disk / "w.duckdb"
        with open_store(path) as store:
            store.execute("INSERT INTO markets VALUES (1, 'aws', 'r', 'z', 'x')")
        process = run_python(FILL, path, BIG.format(0))
        out, err = process.communicate()
        assert process.returncode == 0, err
        with open_reader(path) as store:
            assert counts(store) == ((1, 0) if out else (2, 200_000))
        assert "StoreError" in out or megabytes > 8
        subprocess.run(["mount", "-o", "remount,size=400m", str(disk)], check=True)
        try_again(path)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
