"""``slackwater backfill``: its options; heavy libraries are imported inside the command."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.command.options import DEFAULT_DB, Data, Db, Json, SettingsPath


def backfill(
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="First slot, ISO 8601.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Last slot.")],
    step: Annotated[
        str | None,
        typer.Option("--step", metavar="TIME", help="Time between slots, such as 1h (default: every slot)."),
    ] = None,
    reprocess: Annotated[
        str,
        typer.Option(
            "--reprocess",
            metavar="missing|failed|all",
            help="Make what was never tried; that and what failed; or every stage again (nothing issued is changed).",
        ),
    ] = "missing",
    backwards: Annotated[
        bool,
        typer.Option(
            "--backwards",
            help="Newest slots first; decisions and scores follow in order, as each builds on the one before.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every slot and what would be done in it; do nothing.")
    ] = False,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            "--stage",
            metavar="STAGE",
            help="ingest, forecast, allocate or score; may be repeated (default: all).",
        ),
    ] = None,
    data: Data = None,
    db: Db = DEFAULT_DB,
    settings: SettingsPath = None,
    json: Json = False,
) -> int:
    """Make the turns of past slots afterwards, as they would have been made then: one flow run for all of them.

    What is there is kept; it can be stopped anywhere and run again. Exit code 3 if a stage of a slot failed.
    """
    from flows.backfill.command import backfill_command

    return backfill_command(
        start=start, end=end, step=step, reprocess=reprocess, backwards=backwards, dry_run=dry_run,
        stages=tuple(stage or ()), data=data, db=db, settings=settings, as_json=json,
    )  # fmt: skip
