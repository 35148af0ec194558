"""Options that several commands of ``slackwater`` take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Db = Annotated[
    Path, typer.Option("--db", metavar="FILE", help="The warehouse: a DuckDB file, made if it is not there.")
]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="Logical time, ISO 8601 (UTC unless it says otherwise)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
SettingsPath = Annotated[
    Path | None,
    typer.Option("--settings", metavar="FILE", help="Settings file (default: slackwater.toml if there)."),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Folder with prices and availability tables to read."),
]
MarketOption = Annotated[
    str | None,
    typer.Option(
        "--market", metavar="MARKET", help="provider/region/zone/instance_type, optionally @source."
    ),
]
DEFAULT_DB = Path("slackwater.duckdb")
