"""``slackwater status``: its options; heavy libraries are imported inside the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.command.options import DEFAULT_DB, Db, Json, MarketOption, SettingsPath


def status(
    db: Db = DEFAULT_DB,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Time to look from, or `now` (default: now, or the newest turn of a warehouse of histories).",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="First slot of the map (default: 3 days before, not before the first turn).",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Last slot of the map (default: the newest)."),
    ] = None,
    market: MarketOption = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the page to this file.")
    ] = None,
    settings: SettingsPath = None,
    json: Json = False,
) -> int:
    """What is done, missing, failed or stale, how fresh every source is, and the alarms. Nothing is stored.

    Exit code: 0 all well, 3 something is missing or failed, 4 an alarm stands, 5 both (2: a user's error).
    """
    from flows.monitoring.command import status_command

    return status_command(
        db=db, at=at, since=since, until=until, market=market, html=html, settings=settings, as_json=json
    )
