"""``slackwater serve``: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.command.options import DEFAULT_DB, Data, Db, SettingsPath


def serve(
    db: Db = DEFAULT_DB,
    data: Data = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="FLOW",
            help="Serve this flow's deployment alone; may be repeated (default: all).",
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="TIME",
            help="Time between turns, whole slots such as 30min (default: every slot).",
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65535, help="Port of the Prefect server that is started; 0 for any."
        ),
    ] = 4200,
    settings: SettingsPath = None,
) -> None:
    """Run the deployments on this machine as their schedules say, until it is stopped.

    With PREFECT_API_URL set that Prefect server is used; else one is started on loopback, and stopped at the end.
    """
    from flows.engine.serving import serve_command

    serve_command(db=db, data=data, settings=settings, only=only or [], every=every, port=port)
