"""``slackwater fleet``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.command.options import DEFAULT_DB, At, Data, Db, Json, MarketOption, SettingsPath

fleet_app = typer.Typer(help="Plan jobs that compete for the same counts together.", no_args_is_help=True)


@fleet_app.callback()
def fleet() -> None:
    """Plan jobs that compete for the same counts together."""


@fleet_app.command("plan")
def fleet_plan(
    teams: Annotated[
        Path | None,
        typer.Option(
            "--teams", metavar="TEAMS.toml", help="Budgets, priorities, allowed markets: docs/many-jobs.md."
        ),
    ] = None,
    job: Annotated[
        list[Path] | None,
        typer.Option("--job", metavar="FILE", help="Job file to plan beside the open jobs; may be repeated."),
    ] = None,
    market: MarketOption = None,
    window: Annotated[
        int, typer.Option("--window", min=1, max=24, help="Slots planned, this one included.")
    ] = 6,
    data: Data = None,
    db: Db = DEFAULT_DB,
    at: At = None,
    settings: SettingsPath = None,
    json: Json = False,
) -> None:
    """Plan all open jobs together over the markets they may use: who holds what, what a count is worth, what it gains.

    It advises: nothing is stored, and the decisions of `slackwater run` stay as they are.
    """
    from flows.fleet.command import FleetOptions, fleet_plan_command

    options = FleetOptions(
        teams=teams,
        jobs=tuple(job or ()),
        market=market,
        window=window,
        data=data,
        db=db,
        at=at,
        settings=settings,
    )
    fleet_plan_command(options, as_json=json)
