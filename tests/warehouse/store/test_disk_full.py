"""Disk full: a clear error, no partial writes, and normal operation once there is room."""

import os
import subprocess

import pytest
from forms_kit import quick_first
from storeprocess import run_python

from slackwater.warehouse.store.connection import open_reader, open_store

BIG = "INSERT INTO assumptions SELECT 'm{0}', 's', md5((range + {0})::VARCHAR) || md5((7 * range)::VARCHAR) FROM range(200000)"


#: Runs in a separate process that cannot make files larger than the warehouse plus a megabyte.
LIMITED = """
    import os, resource, sys
    from slackwater.warehouse.errors import StoreError
    from slackwater.warehouse.store.connection import open_store
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
    """Check, with room, that the transaction is stored wholly or not at all, and can be made."""
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
    assert len(os.listdir(path.with_name("w.duckdb.read"))) == 2  # the snapshot and the link to it


@pytest.mark.parametrize("room", quick_first([100_000, 3_000_000]))
def test_a_file_that_may_not_grow(path, room):
    """The room ends early or late in the transaction."""
    process = run_python(LIMITED, path, BIG.format(0), ROOM=str(room))
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "Error" in out
    assert "warehouse" in out
    with open_reader(path) as store:
        assert counts(store) == (1, 0), "what could not be published is not seen"
    try_again(path)


def test_room_for_the_log_but_not_for_the_file_is_told(path):
    """Committed rows stay in the log, invisible to readers: closing the warehouse reports this."""
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
    from slackwater.warehouse.errors import StoreError
    from slackwater.warehouse.store.connection import open_store
    try:
        with open_store(sys.argv[1]) as store, store.transaction():
            store.execute("INSERT INTO markets VALUES (2, 'aws', 'r', 'z', 'x')")
            store.execute(sys.argv[2])
    except StoreError as error:
        print(type(error).__name__, error, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [5, 8, 16, 24])  # 4 cannot hold a new warehouse and its two snapshots
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
