"""``slackwater ui``: the page to watch."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.command.options import DEFAULT_DB, Db, SettingsPath


def ui(
    db: Db = DEFAULT_DB,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address to serve at; others than loopback warn.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one and prints it.")
    ] = 8642,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A host name to answer to; may be repeated."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="Tell ages from this time (ISO 8601) instead of the clock."
        ),
    ] = None,
    settings: SettingsPath = None,
) -> None:
    """Serve a read-only page of jobs, markets, accuracy, policies, completeness and runs, until Ctrl-C."""
    from flows.clock import now, parse_time
    from flows.config import read_settings
    from flows.ui.server import serve

    fixed = parse_time(at, "--at") if at else None
    serve(
        db,
        read_settings(settings),
        clock=now if fixed is None else lambda: fixed,
        host=host,
        port=port,
        names=allow_host or (),
    )
