"""``slackwater experiment``: each experiment of M7 with one command; heavy libraries are imported inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.experiments.cluster.cli import cluster

experiment_app = typer.Typer(
    help="Repeat an experiment on a folder of measured prices and counts: train on the past half, test on the later one.",
    no_args_is_help=True,
)

Folder = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", help="Folder with prices.parquet and availability.parquet."),
]
Fast = Annotated[
    bool, typer.Option("--fast", help="Fewer jobs and policies: a look in under a minute, not a result.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything drawn.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a report with plots to this file.")
]
Processes = Annotated[
    int | None,
    typer.Option("--processes", min=1, help="Processes to spread jobs over (default: one a core)."),
]


@experiment_app.command("pool")
def pool(
    data: Folder,
    fast: Fast = False,
    seed: Seed = 7,
    json: Json = False,
    html: Html = None,
    processes: Processes = None,
) -> None:
    """Every policy of the pool on a grid of jobs: utility, gain over each baseline, share of the headroom captured (E1)."""
    from flows.experiments.pool.study import pool_command

    pool_command(data=data, seed=seed, fast=fast, as_json=json, html=html, processes=processes)


@experiment_app.command("error")
def error(
    data: Folder,
    fast: Fast = False,
    seed: Seed = 7,
    json: Json = False,
    html: Html = None,
    processes: Processes = None,
) -> None:
    """Utility when forecasts are wrong by a known amount, and where planning without them is better (E2)."""
    from flows.experiments.error.study import error_command

    error_command(data=data, seed=seed, fast=fast, as_json=json, html=html, processes=processes)


@experiment_app.command("selection")
def selection(
    data: Folder, fast: Fast = False, seed: Seed = 7, json: Json = False, html: Html = None
) -> None:
    """Learn which policy to trust over a thousand jobs: regret against its bound, weights through a regime switch (E3)."""
    from flows.experiments.selection.study import selection_command

    selection_command(data=data, seed=seed, fast=fast, as_json=json, html=html)


@experiment_app.command("cant-be-late")
def cant_be_late(
    data: Folder, fast: Fast = False, seed: Seed = 7, json: Json = False, html: Html = None
) -> None:
    """The public single-instance benchmark (48 h of work, a deadline, a restart overhead) on 0/1 traces."""
    from flows.experiments.cant_be_late.study import cant_be_late_command

    cant_be_late_command(data=data, seed=seed, fast=fast, as_json=json, html=html)


@experiment_app.command("predictors")
def predictors(
    data: Folder,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="A forecaster to choose from; may be repeated (default: six)."),
    ] = None,
    fast: Fast = False,
    seed: Seed = 7,
    json: Json = False,
    html: Html = None,
) -> None:
    """Choose among forecasters whose accuracy is unknown beforehand, by what planning with each has earned (M10)."""
    from flows.experiments.predictors.study import predictors_command

    predictors_command(data=data, seed=seed, fast=fast, as_json=json, html=html, models=tuple(model or ()))


@experiment_app.command("probing")
def probing(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Folder with availability.parquet.")],
    fast: Fast = False,
    seed: Seed = 7,
    json: Json = False,
    html: Html = None,
) -> None:
    """How often to probe a market when a probe costs money: rules that look at what was seen beside fixed intervals (M10)."""
    from flows.experiments.probing.study import probing_command

    probing_command(data=data, seed=seed, fast=fast, as_json=json, html=html)


@experiment_app.command("fleet")
def fleet(data: Folder, fast: Fast = False, seed: Seed = 7, json: Json = False, html: Html = None) -> None:
    """Jobs that compete for the same counts: planned together, one by one in three orders, and each alone."""
    from flows.experiments.fleet.study import fleet_command

    fleet_command(data=data, seed=seed, fast=fast, as_json=json, html=html)


experiment_app.command("cluster")(cluster)


@experiment_app.command("renting")
def renting(data: Folder, fast: Fast = False, seed: Seed = 7, json: Json = False, html: Html = None) -> None:
    """A stream of jobs on a budget in USD: list price against effective price, dual price and spending plan on real markets."""
    from flows.experiments.renting.answer import rent_experiment_command

    rent_experiment_command(data=data, seed=seed, fast=fast, as_json=json, html=html)
