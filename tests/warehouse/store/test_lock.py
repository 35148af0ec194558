"""One writer at a time: who waits, for how long, with which message, and release by a dead holder."""

import json
import multiprocessing
import os
import threading
import time

import duckdb
import pytest
from forms_kit import quick_first
from storeprocess import let_go, run_python, writer

from slackwater.warehouse.errors import SettingsError, StoreError, StoreLockedError
from slackwater.warehouse.store.connection import open_reader, open_store
from slackwater.warehouse.store.files import (
    FREE,
    LOCKS,
    Patience,
    default_wait,
    lock_path,
    present_holder,
    read_holder,
    take_lock,
    try_lock,
)


def market_rows(store):
    return store.execute("SELECT mid FROM markets ORDER BY mid")


WAIT = """
    import sys
    from slackwater.warehouse.store.connection import open_store
    open_store(sys.argv[1], wait=60, say=lambda _: print("waits", flush=True))
"""
INSERT = "INSERT INTO markets VALUES ({}, 'aws', 'r', 'z', 'x')"


def test_a_second_writer_fails_at_once_with_the_holders_name(path):
    said = []
    with writer(path) as other:
        holder = rf"held by PID {other.pid} \(python -c\) since 20.*UTC"
        with pytest.raises(StoreLockedError, match=str(other.pid)):
            open_store(path, read_only=True, wait=0, say=said.append)
        with pytest.raises(StoreLockedError, match=holder) as caught:
            open_store(path, wait=0, say=said.append)
    assert "SLACKWATER_LOCK_WAIT" in caught.value.remedy
    assert said == []


def test_a_second_writer_waits_says_so_once_and_goes_on(path):
    said = []
    with writer(path, INSERT.format(1)) as other:
        release = threading.Timer(0.5, let_go, args=(other,))
        release.start()
        with open_store(path, wait=60, say=said.append) as store:
            assert market_rows(store) == [(1,)]
        release.join()
    (line,) = said
    assert line.startswith(f"waiting for PID {other.pid} (python -c) since ")
    assert line.endswith(f" to finish with {path}")


def test_the_holder_can_see_that_somebody_waits(path):
    with open_store(path) as store:
        assert not store.is_waited_for()
        other = run_python(WAIT, path)
        assert other.stdout.readline() == "waits\n"
        assert store.is_waited_for()
        other.kill()
        other.wait()
        assert not store.is_waited_for(), "who waits goes with his process"
    with open_store(":memory:") as store:
        assert not store.is_waited_for()


def test_a_wait_has_a_bound(path):
    said = []
    with writer(path), pytest.raises(StoreLockedError, match="SLACKWATER_LOCK_WAIT"):
        open_store(path, wait=0.05, say=said.append)
    assert len(said) == 1


def test_a_killed_holder_holds_nothing_and_is_not_named(path):
    with writer(path) as other:
        assert read_holder(path).pid == other.pid
    assert read_holder(path).pid == other.pid  # its record is still there
    assert present_holder(path) == "another process"
    open_store(path, wait=0).close()
    assert lock_path(path).read_bytes() == FREE


@pytest.mark.parametrize(
    "content", quick_first([b"\xff\xfe", b'{"pid": "x"}', b"", b"{", b"[]", b'{"pid": 1}'], 2)
)
def test_a_lock_file_with_nonsense_confuses_nobody(path, content):
    open_store(path).close()
    lock_path(path).write_bytes(content)
    assert present_holder(path) == "another process"
    open_store(path, wait=0).close()
    assert lock_path(path).read_bytes() == FREE


def test_a_holder_on_another_machine_is_named_with_it(path):
    lock_path(path).write_text(json.dumps({"pid": 1, "command": "slackwater run", "host": "elsewhere"}))
    assert present_holder(path).startswith("PID 1 (slackwater run) on elsewhere since ")


def test_stores_of_one_process_share_the_right_to_write(path):
    first = open_store(path, wait=0)
    second = open_store(path, wait=0)
    first.execute(INSERT.format(1))
    assert market_rows(second) == [(1,)]
    first.close()
    probe = run_python(
        "import sys; from slackwater.warehouse.store.connection import open_store; open_store(sys.argv[1], wait=0)",
        path,
    )
    assert "StoreLockedError" in probe.communicate()[1]  # the second lock still holds it
    second.execute(INSERT.format(2))
    second.close()
    second.close()  # closing again does nothing
    with open_reader(path) as reader:
        assert market_rows(reader) == [(1,), (2,)]


def test_threads_of_one_process_open_and_close_as_they_like(path):
    open_store(path).close()
    failures = []

    def work(k):
        try:
            for step in range(5):
                with open_store(path, wait=0) as store:
                    store.execute(INSERT.format(10 * k + step))
        except (StoreError, OSError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with open_reader(path) as reader:
        assert market_rows(reader) == [(10 * k + step,) for k in range(4) for step in range(5)]
    assert lock_path(path).read_bytes() == FREE


def _hold(ready, done):
    ready.set()
    done.wait(30)


def test_a_forked_worker_does_not_keep_the_lock(path):
    """Process pools fork while the warehouse is open; a child that outlives the writer must not block others."""
    fork = multiprocessing.get_context("fork")
    ready, done = fork.Event(), fork.Event()
    lock = try_lock(path)
    child = fork.Process(target=_hold, args=(ready, done))
    child.start()
    try:
        assert ready.wait(30)
        assert run_lock_probe(path) == "held"  # the lock is ours whether or not the child continues
        lock.release(finished=True)
        assert run_lock_probe(path) == "free"
    finally:
        done.set()
        child.join()


def run_lock_probe(path):
    code = """
        import sys
        from pathlib import Path
        from slackwater.warehouse.store.files import try_lock
        print("held" if try_lock(Path(sys.argv[1])) is None else "free")
    """
    return run_python(code, path).communicate()[0].strip()


def test_a_failed_open_lets_go_and_leaves_the_lock_file_as_it_was(path):
    path.write_bytes(bytes(8) + b"DUCK, but no database")
    for _ in range(2):
        with pytest.raises(StoreError):
            open_store(path, wait=0)
        assert lock_path(path).read_bytes() == b""
    assert run_lock_probe(path) == "free"


def test_a_reader_of_the_file_itself_is_waited_for(path):
    """Another DuckDB program ignores our lock; we wait for its own lock within the same bound."""
    open_store(path).close()
    code = """
        import sys, duckdb
        with duckdb.connect(sys.argv[1], read_only=True):
            print("open", flush=True)
            sys.stdin.readline()
    """
    other = run_python(code, path)
    try:
        assert other.stdout.readline() == "open\n"
        said = []
        with pytest.raises(StoreLockedError, match=str(other.pid)):
            open_store(path, wait=0.05, say=said.append)
        assert len(said) == 1
        assert str(other.pid) in said[0]
        let_go(other)
        open_store(path, wait=0).close()
    finally:
        other.kill()
        other.communicate()


def test_the_lock_of_duckdb_itself_is_not_lost_by_publishing(path):
    """Closing any descriptor of a file releases a process's locks on it: another program must not get in meanwhile."""
    with open_store(path) as store:
        store.execute(INSERT.format(1))
    with open_store(path):
        open_reader(path).close()
        probe = run_python("import sys, duckdb; duckdb.connect(sys.argv[1])", path)
        assert "Could not set lock" in probe.communicate()[1]


def test_the_bound_is_read_from_the_environment(monkeypatch):
    monkeypatch.delenv("SLACKWATER_LOCK_WAIT", raising=False)
    assert default_wait() == 60
    monkeypatch.setenv("SLACKWATER_LOCK_WAIT", "2.5")
    assert default_wait() == 2.5
    for wrong in ("-1", "soon", "inf", "nan"):
        monkeypatch.setenv("SLACKWATER_LOCK_WAIT", wrong)
        with pytest.raises(SettingsError, match="SLACKWATER_LOCK_WAIT"):
            default_wait()


def test_patience_says_once_and_sleeps_no_longer_than_it_has(monkeypatch):
    slept, said = [], []
    monkeypatch.setattr("slackwater.warehouse.store.files.time.sleep", slept.append)
    patience = Patience(3.0, said.append)
    while patience.wait("because"):
        pass
    assert said == ["because"]
    assert sum(slept) == pytest.approx(3.0)
    assert max(slept) <= 0.5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_said(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="rights"):
        open_store(tmp_path / "w.duckdb")


def test_a_lock_is_refused_where_its_file_cannot_be(tmp_path):
    lock_path(tmp_path / "w.duckdb").mkdir()
    with pytest.raises(StoreError, match=r"w\.duckdb\.lock"):
        take_lock(tmp_path / "w.duckdb", Patience(0, print))


def test_duckdb_is_asked_for_its_holder(path):
    """`is_locked` looks for the message of DuckDB when it is locked."""
    with writer(path), pytest.raises(duckdb.IOException, match="Could not set lock"):
        duckdb.connect(str(path))


NAMELESS = """
    import fcntl, os, signal, sys
    descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    print("held", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.skipif(not LOCKS.exists(), reason="the system does not list its locks")
def test_a_holder_without_a_record_is_named_and_so_is_its_stop(path):
    """A reader that merges the log of a killed writer holds the lock without a record."""
    open_store(path).close()
    process = run_python(NAMELESS, lock_path(path))
    assert process.stdout.readline() == "held\n"
    while "which is stopped" not in present_holder(path):
        time.sleep(0.01)
    with pytest.raises(StoreLockedError, match=rf"held by PID {process.pid} \(.*\), which is stopped"):
        open_store(path, wait=0)
    process.kill()
    process.wait()
    open_store(path, wait=5).close()
