"""`slackwater ui` as a process: it prints its address, answers, warns, and ends cleanly."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from slackwater.warehouse.store.connection import open_store

WAIT = 120


#: The command with short timeouts for incomplete requests and for idle connections.
IMPATIENT = (
    "import functools, sys, uvicorn, slackwater.flows.ui.connections as connections\n"
    "connections.REQUEST_SECONDS = 0.8\n"
    "uvicorn.Config = functools.partial(uvicorn.Config, timeout_keep_alive=1)\n"
    "from slackwater.flows.cli import main\n"
    "main()"
)


def started(*arguments: str, how: tuple[str, str] = ("-m", "slackwater.flows.cli")):
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, *how, "ui", *arguments], stderr=subprocess.PIPE, text=True, env=environment
    )
    said = ""
    for line in process.stderr:
        said += line
        if found := re.search(r"at (http://\S+)", line):
            return process, found[1], said
    raise AssertionError(f"ended with {process.wait()}: {said}")


def ended(process: subprocess.Popen, number: int) -> int:
    process.send_signal(number)
    try:
        code = process.wait(timeout=WAIT)
    finally:
        process.kill()
        process.stderr.close()
    return code


@pytest.mark.slow
def test_another_address_warns_and_sigint_ends_it(tmp_path):
    db = tmp_path / "w.duckdb"
    with open_store(db):
        pass
    process, address, said = started("--db", str(db), "--port", "0", "--host", "0.0.0.0")
    try:
        assert "warning: 0.0.0.0 can be reached from other machines" in said
        assert httpx.get(address, timeout=WAIT).status_code == 200
        assert httpx.get(address, headers={"host": "evil.example"}, timeout=WAIT).status_code == 421
    finally:
        code = ended(process, signal.SIGINT)
    assert code == 0


def connected(address: str, sent: bytes = b"") -> socket.socket:
    host, _, port = address.removeprefix("http://").rstrip("/").partition(":")
    made = socket.create_connection((host, int(port)), timeout=WAIT)
    made.sendall(sent)
    return made


def test_it_takes_a_free_port_keeps_nothing_open_and_ends_on_sigterm(tmp_path):
    db = tmp_path / "w.duckdb"
    with open_store(db) as store:
        store.execute("SELECT 1")
    process, address, said = started("--db", str(db), "--port", "0", how=("-c", IMPATIENT))
    try:
        assert address.startswith("http://127.0.0.1:")
        assert "warning" not in said
        assert httpx.get(address, timeout=WAIT).status_code == 200
        silent, half = connected(address), connected(address, b"GET / HTTP/1.1\r\nHost: 127")
        asked = connected(address, b"GET /api/state HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        half.sendall(b".0.0.1\r\n")  # occasional bytes do not extend the limit
        for one in (silent, half, asked):
            told = b""
            while got := one.recv(65536):  # until the connection is closed; WAIT bounds the test
                told += got
            assert told.startswith(b"HTTP/1.1 200") == (one is asked)
            one.close()
        folder = f"/proc/{process.pid}/fd"
        if os.path.isdir(folder):
            still = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
            assert [one for one in still if str(tmp_path) in one] == []
            # The listening socket and the pair that wakes the event loop.
            assert len([one for one in still if one.startswith("socket:")]) <= 3
        for path in tmp_path.iterdir():  # the warehouse and the files for readers next to it
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        answer = httpx.get(address, timeout=WAIT)
        assert answer.status_code == 503
        assert "No warehouse yet" in answer.text
        assert not list(tmp_path.iterdir())  # reading creates no files
    finally:
        code = ended(process, signal.SIGTERM)
    assert code == 0
