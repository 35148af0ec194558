"""``slackwater export``, ``import``, ``compact`` and ``publish``: their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.command.options import DEFAULT_DB, Db, Json


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    db: Db = DEFAULT_DB,
    tables: Annotated[
        str | None,
        typer.Option(
            "--tables", metavar="NAME,...", help="These tables and those they refer to (default: all)."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Leave out rows of earlier times.")
    ] = None,
    json: Json = False,
) -> None:
    """Write the warehouse as Parquet: one file a table, and a manifest with row counts and content hashes."""
    from flows.exchange.command import export_command

    export_command(folder, db=db, tables=tables, since=since, as_json=json)


def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder written by `slackwater export`.")],
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Merge an exported folder into a warehouse, new or not; the same folder again adds nothing."""
    from flows.exchange.command import import_command

    import_command(folder, db=db, as_json=json)


def compact(
    db: Db = DEFAULT_DB,
    keep_fitted: Annotated[
        float,
        typer.Option(
            "--keep-fitted",
            metavar="DAYS",
            min=0,
            help="Drop estimated forecasters older than that, counted from the newest.",
        ),
    ] = 14.0,
    json: Json = False,
) -> None:
    """Rewrite the warehouse without what it no longer needs, verified before it takes the old file's place."""
    from flows.exchange.command import compact_command

    compact_command(db=db, keep_fitted=keep_fitted, as_json=json)


def publish(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A folder on storage that the readers share; made if need be."),
    ],
    db: Db = DEFAULT_DB,
    form: Annotated[
        Literal["parquet", "ducklake"], typer.Option("--form", help="What the readers are given.")
    ] = "parquet",
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=2, help="Generations that stay readable.")
    ] = 3,
    json: Json = False,
) -> None:
    """Publish the warehouse for many readers on shared storage; with --form parquet they name DIR as their --db."""
    from flows.exchange.command import publish_command

    publish_command(folder, db=db, form=form, keep=keep, as_json=json)
