"""A Prefect server on this machine, as a child process that ends with the one that wants it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import httpx

from warehouse.errors import SettingsError
from warehouse.times import steady_seconds

LOOPBACK = "127.0.0.1"
#: Where Prefect's server listens unless it is told otherwise.
DEFAULT_PORT = 4200
#: Seconds that a server may take to answer, and to stop.
START_SECONDS, STOP_SECONDS = 180.0, 20.0


def free_port() -> int:
    """A port of the loopback address that nobody listens on now."""
    with socket.socket() as one:
        one.bind((LOOPBACK, 0))
        return int(one.getsockname()[1])


def require_free(port: int) -> None:
    """Raise `SettingsError` if somebody listens on a port of the loopback address."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((LOOPBACK, port))
        except OSError as error:
            raise SettingsError(
                f"--port {port}: {error.strerror}",
                expected="a free port",
                remedy="name another one, 0 for any, or set PREFECT_API_URL if a Prefect server runs there",
            ) from error


def require_scheduler() -> None:
    """Raise `SettingsError` if the server would start but make no scheduled run.

    Prefect 3.8.8 allows SQLAlchemy 2.1, but its scheduler cannot insert runs through it ("Can't evaluate bulk DML statement"): it
    logs that once a minute, and nothing ever runs.
    """
    found = version("sqlalchemy")
    if tuple(int(part) for part in found.split(".")[:2]) >= (2, 1) and version("prefect").startswith("3.8."):
        raise SettingsError(
            f"SQLAlchemy {found}, through which Prefect {version('prefect')} makes no scheduled run",
            expected="SQLAlchemy 2.0",
            remedy='pip install "sqlalchemy<2.1"',
        )


@contextmanager
def running_server(log: Path, *, port: int = 0) -> Iterator[str]:
    """Start ``prefect server`` on loopback and yield the address of its API; stop it at the end, whatever happened.

    It takes its settings from the environment (`flows.engine.prepare.prepare_engine`) and writes what it says into ``log``. Port 0
    means any that is free. Raises `SettingsError` if the port is taken or the server does not start.
    """
    require_scheduler()
    if port:
        require_free(port)
    port = port or free_port()
    words = [sys.executable, "-m", "prefect", "server", "start", "--host", LOOPBACK, "--port", str(port)]
    url = f"http://{LOOPBACK}:{port}/api"
    # A server must not ask another one, and Ctrl-C at the terminal is for the process that stops it in order.
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    with log.open("ab") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            _wait_until_healthy(process, url, log)
            yield url
        finally:
            _stop(process)


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = steady_seconds() + START_SECONDS
    while process.poll() is None and steady_seconds() < deadline:
        try:
            if httpx.get(f"{url}/health", timeout=5).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    ended = f"ended with code {process.returncode}" if process.poll() is not None else "does not answer"
    raise SettingsError(f"the Prefect server {ended}", remedy=f"its own words are in {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
