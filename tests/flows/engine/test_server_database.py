"""A Prefect server with its state in PostgreSQL instead of SQLite: the same turn gives the same tables."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from test_turn import AT, dump, one_turn, small_settings

from slackwater.flows.config import read_settings
from slackwater.flows.engine.run import prepare_engine
from slackwater.flows.engine.serving import free_port, running_server

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(shutil.which, ("initdb", "pg_ctl"))), reason="PostgreSQL is not installed"
    ),
]

TURN = """
import sys
from datetime import datetime
from pathlib import Path
from slackwater.flows.engine.flows import pipeline

pipeline(db=Path(sys.argv[1]), at=datetime.fromisoformat(sys.argv[2]), settings=Path(sys.argv[3]),
         report=Path(sys.argv[1]).with_suffix(".html"))
"""


def other_user() -> str | None:
    """Return another user to run PostgreSQL, which refuses to run as root; None if the current user is not root."""
    if os.getuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


@pytest.fixture
def database():
    """Yield the address of an empty database on a free port."""
    user, port = other_user(), free_port()
    folder = Path(tempfile.mkdtemp(prefix="slackwater-pg-", dir="/tmp"))
    data = folder / "data"
    if user:
        shutil.chown(folder, user)

    def run(*words: str) -> None:
        subprocess.run(words, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)

    run("initdb", "--pgdata", str(data), "--auth", "trust", "--username", "slackwater")
    listen = f"-c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -p {port}"
    run("pg_ctl", "--pgdata", str(data), "--wait", "--log", str(folder / "log"), "-o", listen, "start")
    yield f"postgresql+asyncpg://slackwater@127.0.0.1:{port}/postgres"
    run("pg_ctl", "--pgdata", str(data), "--mode", "fast", "stop")
    shutil.rmtree(folder)


def test_a_turn_with_the_server_on_postgresql(database, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    settings = small_settings(tmp_path)
    # also restores the variables set by prepare_engine
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / ".prefect"))
    before = dict(os.environ)
    prepare_engine(tmp_path)
    os.environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = database
    try:
        with running_server(tmp_path / "server.log"):
            words = [sys.executable, "-c", TURN, str(tmp_path / "w.duckdb"), AT.isoformat(), str(settings)]
            subprocess.run(words, check=True, timeout=300)
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert not list((tmp_path / ".prefect").glob("*.db"))
    one_turn(tmp_path / "plain.duckdb", read_settings(settings))
    assert dump(tmp_path / "w.duckdb") == dump(tmp_path / "plain.duckdb")
