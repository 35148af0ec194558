"""The command ``ui``: serve the web app, imported when it runs, until SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

from slackwater.flows.command import Warehouse, option, parsed_time
from slackwater.warehouse.errors import SettingsError, StoreLockedError

if TYPE_CHECKING:
    import pandas as pd

    from slackwater.flows.config import Settings


def ui(
    *,
    host: Annotated[
        str, option("Address to serve at; others than loopback warn.", metavar="ADDRESS")
    ] = "127.0.0.1",
    port: Annotated[int, option("Port; 0 takes a free one and prints it.", least=0, most=65535)] = 8642,
    allow_host: Annotated[
        list[str] | None, option("A host name to answer to; may be repeated.", metavar="NAME")
    ] = None,
    at: Annotated[
        str | None, option("Tell ages from this time (ISO 8601) instead of the clock.", metavar="TIME")
    ] = None,
    warehouse: Warehouse = Warehouse(),
) -> None:
    """Serve a read-only web app with jobs, markets, accuracy, policies, completeness and runs, until Ctrl-C.

    The warehouse must exist.
    """
    fixed = parsed_time(at, "--at")
    with suppress(StoreLockedError), warehouse.reading():  # pages wait for a writer, not for a file
        pass
    from slackwater.flows.clock import now

    serve(
        warehouse.db,
        warehouse.config,
        clock=now if fixed is None else lambda: fixed,
        host=host,
        port=port,
        names=allow_host or (),
    )


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to ``host``; port 0: any free. Raises `SettingsError` if the address is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    result = socket.socket(family, socket.SOCK_STREAM)
    try:
        result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        result.bind((host, port))
    except OSError as error:
        result.close()
        raise SettingsError(
            f"cannot serve at {host} port {port}: {error.strerror or error}",
            remedy="choose another --port (0 takes a free one) or --host",
        ) from error
    return result


def address_of(host: str, port: int) -> str:
    """Return the URL to open in a browser.

    >>> address_of("::1", 80), address_of("0.0.0.0", 8642)
    ('http://[::1]:80/', 'http://127.0.0.1:8642/')
    """
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"


def serve(
    db: Path,
    settings: Settings,
    *,
    clock: Callable[[], pd.Timestamp],
    host: str,
    port: int,
    names: Sequence[str] = (),
) -> None:
    """Serve until SIGINT or SIGTERM; print the URL to stderr, with a warning if other machines can reach it."""
    with bound_socket(host, port) as taken:
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGINT, _end)
        import uvicorn

        from slackwater.flows.engine.guard import is_loopback
        from slackwater.flows.ui.app import make_app, warm_up
        from slackwater.flows.ui.connections import ClosingProtocol
        from slackwater.flows.ui.reading import Snapshots
        from slackwater.flows.ui.reports import ReportReceiver

        if not is_loopback(host):
            print(
                f"slackwater: warning: {host} can be reached from other machines; the page has no login and shows jobs and costs",
                file=sys.stderr,
            )
        receiver = ReportReceiver.of(db, settings, clock=clock, bound=host)
        if receiver is not None and receiver.refused:
            print(f"slackwater: warning: {receiver.refused}", file=sys.stderr)
        snapshots = Snapshots(db, settings, clock)
        warm_up(snapshots)
        app = make_app(snapshots, bound=host, names=names, receiver=receiver)
        server = uvicorn.Server(
            uvicorn.Config(
                app, log_level="warning", access_log=False, server_header=False, lifespan="off",
                timeout_graceful_shutdown=3, http=ClosingProtocol,
            )
        )  # fmt: skip
        taken.listen(64)
        print(
            f"slackwater: {db} at {address_of(host, taken.getsockname()[1])} (Ctrl-C ends it)",
            file=sys.stderr,
            flush=True,
        )
        server.run(sockets=[taken])


def _end(number: int, frame: FrameType | None) -> None:
    """Exit without an error: before the server runs, and when it re-raises the signal after its shutdown."""
    raise SystemExit(0)
