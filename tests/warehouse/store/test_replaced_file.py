"""A writer whose file is replaced, several names of one file, and one file under two machines."""

import json
import os
import shutil

import pytest
from storeprocess import let_go, writer

from slackwater.warehouse.errors import StoreError, StoreLockedError
from slackwater.warehouse.exchange import compact
from slackwater.warehouse.store import files
from slackwater.warehouse.store.connection import open_reader, open_store
from slackwater.warehouse.store.files import FREE, lock_path, network_file_system

INSERT = "INSERT INTO markets VALUES ({}, 'aws', 'r', 'z', 'x')"
REPLACED = "was replaced or removed while this process wrote"


def mids(path):
    with open_reader(path) as store:
        return [row[0] for row in store.execute("SELECT mid FROM markets ORDER BY mid")]


def made(path, mid):
    with open_store(path) as store:
        store.execute(INSERT.format(mid))
    return path


@pytest.fixture
def path(tmp_path):
    return made(tmp_path / "w.duckdb", 1)


@pytest.fixture
def spare(path, tmp_path):
    """Return another warehouse, without its lock and snapshots."""
    (tmp_path / "spare").mkdir()
    return shutil.copyfile(made(tmp_path / "spare" / "w.duckdb", 77), tmp_path / "spare.duckdb")


def moved_onto(path, spare):
    os.replace(spare, path)


def removed(path, _spare):
    path.unlink()


@pytest.mark.parametrize(
    ("taken", "snapshots"),
    [
        (moved_onto, "on"),
        (removed, "off"),
        pytest.param(moved_onto, "off", marks=pytest.mark.slow),
        pytest.param(removed, "on", marks=pytest.mark.slow),
    ],
)
def test_a_writer_fails_at_its_next_commit_and_when_it_closes(path, spare, taken, snapshots, monkeypatch):
    monkeypatch.setenv("SLACKWATER_SNAPSHOTS", snapshots)
    store = open_store(path)
    with store.transaction():
        store.execute(INSERT.format(2))
    taken(path, spare)
    with pytest.raises(StoreError, match=REPLACED), store.transaction():
        store.execute(INSERT.format(3))
    with pytest.raises(StoreError, match=REPLACED):
        store.close()


def test_what_was_written_without_a_transaction_is_missed_when_the_file_is_closed(path, spare):
    store = open_store(path)
    os.replace(spare, path)
    store.execute(INSERT.format(2))
    with pytest.raises(StoreError, match=REPLACED):
        store.close()


def test_the_file_that_took_the_place_is_whole_and_read_and_written_afterwards(path, spare):
    store = open_store(path)
    store.execute(INSERT.format(2))
    os.replace(spare, path)
    with pytest.raises(StoreError, match=REPLACED):
        store.close()
    assert lock_path(path).read_bytes() == FREE
    assert not path.with_name("w.duckdb.wal").exists()
    assert mids(path) == [77]
    made(path, 78)
    assert mids(path) == [77, 78]


def test_another_process_ends_with_an_error_not_with_success(path, spare):
    with writer(path, INSERT.format(2)) as other:
        os.replace(spare, path)
        _, said = other.communicate("\n", timeout=60)
        assert other.returncode == 1
        assert REPLACED in said


def test_compacting_replaces_the_file_itself_and_that_is_no_fault(path):
    with open_store(path) as store:
        compact(store)
    assert mids(path) == [1]


# ---
# Several names of one file.


@pytest.fixture
def link(path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    name = tmp_path / "elsewhere" / "link.duckdb"
    name.symlink_to(path)
    return name


def test_a_symbolic_link_has_lock_log_and_snapshots_of_the_file_it_leads_to(path, link):
    made(link, 2)
    assert mids(link) == mids(path) == [1, 2]
    with open_store(link) as store:
        store.execute(INSERT.format(3))
        assert path.with_name("w.duckdb.wal").exists()
        compact(store)
    assert link.is_symlink()
    assert mids(path) == [1, 2, 3]
    assert os.listdir(link.parent) == ["link.duckdb"]


def test_a_writer_by_the_one_name_keeps_out_one_by_the_other(path, link):
    with writer(link), pytest.raises(StoreLockedError, match="held by PID"):
        open_store(path, wait=0)
    with writer(path), pytest.raises(StoreLockedError, match="held by PID"):
        open_store(link, wait=0)


def test_a_link_to_a_file_that_is_not_there_makes_that_file(tmp_path):
    link = tmp_path / "link.duckdb"
    (tmp_path / "real").mkdir()
    link.symlink_to(tmp_path / "real" / "w.duckdb")
    with writer(link, INSERT.format(5)) as other:
        let_go(other)
    assert mids(tmp_path / "real" / "w.duckdb") == [5]


# ---
# One file under two machines.


def mounts(tmp_path, monkeypatch, *lines):
    """Simulate these mounts: folder and type."""
    table = tmp_path / "mountinfo"
    table.write_text(
        "".join(
            f"{place} 1 0:{place} / {folder} rw,relatime shared:1 - {kind} server:/export rw\n"
            for place, (folder, kind) in enumerate([("/", "ext4"), *lines])
        )
    )
    monkeypatch.setattr(files, "MOUNTS", table)


def test_the_file_system_is_the_one_mounted_deepest(tmp_path, monkeypatch):
    assert network_file_system(tmp_path) == ""
    mounts(tmp_path, monkeypatch, ("/mnt", "nfs4"), ("/mnt/local", "xfs"), (r"/mnt/with\040space", "cifs"))
    assert network_file_system(tmp_path) == ""
    for folder, kind in {
        "/mnt/a/b": "nfs4", "/mnt": "nfs4", "/mnt/local/a": "", "/mntb": "", "/mnt/with space/a": "cifs", "/": "",
    }.items():  # fmt: skip
        assert network_file_system(folder) == kind, folder


def signed_elsewhere(path):
    text = json.dumps({"pid": 4711, "command": "slackwater backfill", "host": "the-other-machine"})
    lock_path(path).write_text(text)
    return text


def test_on_a_network_drive_a_file_that_another_host_has_not_set_free_is_refused(path, tmp_path, monkeypatch):
    mounts(tmp_path, monkeypatch, (tmp_path, "nfs4"))
    text, before = signed_elsewhere(path), path.read_bytes()
    with pytest.raises(StoreLockedError, match=r"network drive \(nfs4\).*PID 4711 .* on the-other-machine"):
        open_store(path)
    assert lock_path(path).read_text() == text
    assert path.read_bytes() == before
    lock_path(path).write_bytes(b"")  # as the error advises
    made(path, 2)
    assert lock_path(path).read_bytes() == FREE


def test_elsewhere_such_a_name_is_of_a_container_that_has_ended(path):
    signed_elsewhere(path)
    made(path, 2)
    assert mids(path) == [1, 2]
