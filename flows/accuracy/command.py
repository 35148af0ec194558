"""``slackwater accuracy``: its options; heavy libraries are imported inside the command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from flows.command.options import DEFAULT_DB, Data, Db, Json, SettingsPath


def accuracy(
    data: Data = None,
    db: Db = DEFAULT_DB,
    market: Annotated[
        str | None,
        typer.Option(
            "--market",
            metavar="GLOB",
            help="Markets to measure: a pattern on provider/region/zone/type, or with @source after it.",
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Forecasts issued from then on only.")
    ] = None,
    step: Annotated[
        str | None,
        typer.Option("--step", metavar="DURATION", help="Slot length: 10min, 30min (default), 1h."),
    ] = None,
    variable: Annotated[
        str | None, typer.Option("--variable", help="count or price (default: both).")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="A forecaster; may be repeated (default: all in the settings)."),
    ] = None,
    refit: Annotated[
        str | None,
        typer.Option(
            "--refit",
            metavar="DURATION",
            help="How often models are estimated again (counts 24h, prices 7d).",
        ),
    ] = None,
    horizon: Annotated[int, typer.Option("--horizon", help="Slots ahead, 1 to 96.")] = 12,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep", metavar="DIR", help="Keep forecasts here; a run that was stopped goes on from them."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes (default: one a core).")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a report with plots to this file.")
    ] = None,
    settings: SettingsPath = None,
    json: Json = False,
) -> None:
    """How good forecasts are: every model on the later half of every series, by step ahead, beside last value.

    With --data a folder is measured and nothing is stored. With --db the warehouse is, and the forecasts are kept beside it.
    """
    # Before NumPy is loaded: with two threads the small matrices of a filter only spin.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from flows.accuracy.report import AccuracyOptions, accuracy_command

    options = AccuracyOptions(
        market=market,
        since=since,
        step=step,
        variable=variable,
        models=tuple(model or ()),
        refit=refit,
        horizon=horizon,
        keep=keep,
        workers=workers,
    )
    accuracy_command(options, data=data, db=db, settings=settings, html=html, as_json=json)
