"""``slackwater rent``: its options; heavy libraries are imported inside the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.command.options import DEFAULT_DB, At, Data, Db, Json, MarketOption, SettingsPath


def rent(
    types: Annotated[
        Path, typer.Argument(metavar="TYPES", help="Types of jobs (TOML), as examples/types.toml.")
    ],
    budget: Annotated[
        float, typer.Option("--budget", help="GPUs on the mean; USD per hour with --price or --market.")
    ],
    whole: Annotated[bool, typer.Option("--whole", help="Whole GPUs only.")] = False,
    price: Annotated[
        float | None, typer.Option("--price", metavar="USD", help="List price of a GPU-hour.")
    ] = None,
    market: MarketOption = None,
    overhead: Annotated[
        float,
        typer.Option("--restart-minutes", min=0, help="Lost by a job whenever a spot instance of it goes."),
    ] = 6.0,
    model: Annotated[
        str | None, typer.Option("--model", help="Forecaster behind the spot price (with --market).")
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option("--runs", metavar="DIR", help='Measured runs, for speedups of form "measured".'),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the simulations.")] = 7,
    data: Data = None,
    db: Db = DEFAULT_DB,
    at: At = None,
    settings: SettingsPath = None,
    json: Json = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots to this file.")
    ] = None,
) -> None:
    """How many GPUs to rent for each job of a stream, so that jobs are done soonest within a budget; nothing queues.

    With --market a GPU is an instance of that market, and its price is what spot forecasts make of it.
    """
    from flows.renting.command import Asked, rent_command

    asked = Asked(
        types=types,
        budget=budget,
        whole=whole,
        price=price,
        market=market,
        restart_hours=overhead / 60.0,
        model=model,
        runs=runs,
        seed=seed,
    )
    rent_command(asked, data=data, db=db, at=at, settings=settings, html=html, as_json=json)
