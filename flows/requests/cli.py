"""``slackwater fill``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.command.options import DEFAULT_DB, At, Data, Db, Json, SettingsPath


def fill(
    request: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="Request file (TOML), as in examples/requests/.")
    ],
    configurations: Annotated[
        Path | None,
        typer.Option(
            "--configurations",
            metavar="FILE",
            help="Fitted configuration knowledge (default: fitted on DIR/finetune, else configurations.zip).",
        ),
    ] = None,
    data: Data = None,
    db: Db = DEFAULT_DB,
    at: At = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", help="Policy to plan with (default: the leader of the selection)."),
    ] = None,
    plans: Annotated[
        int, typer.Option("--plans", min=1, max=24, help="Configurations to plan on forecasts.")
    ] = 6,
    run: Annotated[
        bool, typer.Option("--run", help="Replay the chosen job to its deadline and score it; needs --at.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="JOB.toml", help="Where the job file goes.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots to this file.")
    ] = None,
    settings: SettingsPath = None,
    json: Json = False,
) -> None:
    """Fill a fine-tuning request: GPUs, batch and market for the least cost or time that meets its deadline, and the job it
    becomes.
    """
    from flows.requests.command import FillOptions, fill_command

    options = FillOptions(
        configurations=configurations,
        data=data,
        db=db,
        at=at,
        policy=policy,
        plans=plans,
        run=run,
        out=out,
        html=html,
        settings=settings,
    )
    fill_command(request, options, as_json=json)
