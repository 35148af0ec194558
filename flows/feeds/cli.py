"""``slackwater feeds``: the live feeds with their last fetch, and one fetched by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.command.options import DEFAULT_DB, At, Db, Json, SettingsPath

feeds_app = typer.Typer(
    help="List the live feeds of the settings with their last fetch; fetch one by hand.",
    invoke_without_command=True,
)


@feeds_app.callback()
def feeds(
    context: typer.Context, db: Db = DEFAULT_DB, settings: SettingsPath = None, json: Json = False
) -> None:
    """List the live feeds of the settings with their last fetch."""
    if context.invoked_subcommand is None:
        from flows.feeds.command import feeds_command

        feeds_command(db=db, settings=settings, as_json=json)


@feeds_app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A feed of the settings.")],
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Read history from then on, where the source has any."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End of that history (default: --at).")
    ] = None,
    db: Db = DEFAULT_DB,
    at: At = None,
    settings: SettingsPath = None,
    json: Json = False,
) -> None:
    """Fetch one feed now, or a range of its history; what is known already is not doubled."""
    from flows.feeds.command import fetch_command

    fetch_command(name, since=since, until=until, db=db, at=at, settings=settings, as_json=json)
