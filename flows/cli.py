"""The ``slackwater`` command: options in, one table or one JSON object out, exit code 2 and one line on a user's error.

Heavy libraries are imported inside the commands, so that ``slackwater --help`` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from flows.accuracy.command import accuracy
from flows.backfill.cli import backfill
from flows.command.options import DEFAULT_DB, At, Data, Db, Json, MarketOption, SettingsPath
from flows.configurations.cli import fit_configurations
from flows.engine.command import serve
from flows.exchange.cli import compact, export, import_, publish
from flows.experiments.command import experiment_app
from flows.feeds.cli import feeds_app
from flows.fleet.cli import fleet_app
from flows.jobs.cli import job_report
from flows.monitoring.cli import status
from flows.renting.cli import rent
from flows.requests.cli import fill
from flows.ui.command import ui
from warehouse.errors import SlackwaterError

app = typer.Typer(
    name="slackwater",
    help="How many spot and on-demand GPU instances to hold in the next slot, so that a job meets its deadline at the least cost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
job_app = typer.Typer(help="Add, list and show jobs, and report what they did.", no_args_is_help=True)
app.add_typer(job_app, name="job")
job_app.command("report")(job_report)
app.add_typer(feeds_app, name="feeds")
app.add_typer(experiment_app, name="experiment")
app.add_typer(fleet_app, name="fleet")


@app.command()
def run(
    data: Data = None,
    db: Db = DEFAULT_DB,
    at: At = None,
    job: Annotated[
        list[Path] | None,
        typer.Option("--job", metavar="FILE", help="Job file to add first; may be repeated."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Where the HTML report goes.")
    ] = None,
    settings: SettingsPath = None,
    json: Json = False,
) -> None:
    """One turn of the loop: ingest, forecast, decide, score, report.

    Without --data the market is SIMULATED (calibrated to measured series). With --data and without --at, every market is
    taken at the end of its own record; with --at, all are taken at that time.
    """
    from flows.command.context import run_command

    run_command(data=data, db=db, at=at, job_files=job or [], report=report, settings=settings, as_json=json)


@app.command()
def ingest(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Format of the files: see `slackwater ingest --list`.")
    ] = "",
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH...", help="Files or folders.")] = None,
    db: Db = DEFAULT_DB,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="An option of the source (zone=..., start=...); may be repeated.",
        ),
    ] = None,
    known_at: Annotated[
        str | None,
        typer.Option(
            "--known-at",
            metavar="TIME",
            help="When the rows became known (default: when they were observed).",
        ),
    ] = None,
    list_sources: Annotated[bool, typer.Option("--list", help="List the sources and their options.")] = False,
    at: At = None,
    json: Json = False,
) -> None:
    """Read histories into the warehouse; the same file twice adds nothing."""
    from flows.command.context import ingest_command, sources_command

    if list_sources:
        sources_command(as_json=json)
        return
    ingest_command(
        source, list(paths or []), db=db, options=list(option or []), known_at=known_at, at=at, as_json=json
    )


@app.command()
def markets(db: Db = DEFAULT_DB, data: Data = None, at: At = None, json: Json = False) -> None:
    """List the markets the warehouse knows: what was measured, how often, and what is missing."""
    from flows.command.context import markets_command

    markets_command(db=db, data=data, at=at, as_json=json)


@job_app.command("add")
def job_add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Job file (TOML), as in examples/.")],
    market: MarketOption = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the job, instead of the file's.")
    ] = None,
    db: Db = DEFAULT_DB,
    at: At = None,
    json: Json = False,
) -> None:
    """Add a job to the warehouse; it is planned in every later run until it ends."""
    from flows.jobs.command import job_add_command

    job_add_command(file, market=market, name=name, db=db, at=at, as_json=json)


@job_app.command("list")
def job_list(db: Db = DEFAULT_DB, at: At = None, json: Json = False) -> None:
    """List the jobs."""
    from flows.jobs.command import job_list_command

    job_list_command(db=db, at=at, as_json=json)


@job_app.command("show")
def job_show(name: str, db: Db = DEFAULT_DB, settings: SettingsPath = None, json: Json = False) -> None:
    """Show one job, the decisions made for it, what was reported of it beside what was predicted, and how it came out."""
    from flows.jobs.command import job_show_command

    job_show_command(name, db=db, settings=settings, as_json=json)


@app.command()
def forecast(
    market: MarketOption = None,
    model: Annotated[
        str | None, typer.Option("--model", help="One forecaster (default: all in the settings).")
    ] = None,
    horizon: Annotated[int | None, typer.Option("--horizon", min=1, max=48, help="Slots ahead.")] = None,
    data: Data = None,
    db: Db = DEFAULT_DB,
    at: At = None,
    settings: SettingsPath = None,
    json: Json = False,
) -> None:
    """Issue forecasts of price and count for one market, or for all followed ones, and keep them."""
    from flows.turn.command import forecast_command

    forecast_command(
        market=market, model=model, horizon=horizon, data=data, db=db, at=at, settings=settings, as_json=json
    )


@app.command()
def plan(
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="A job file, or the name of a job in the warehouse.")
    ],
    market: MarketOption = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="Policy (default: the leader of the selection).")
    ] = None,
    data: Data = None,
    db: Db = DEFAULT_DB,
    at: At = None,
    settings: SettingsPath = None,
    json: Json = False,
) -> None:
    """Decide the next slot of one job: instances to hold, expected cost and finish, and why. Nothing is stored."""
    from flows.turn.command import plan_command

    plan_command(job, market=market, policy=policy, data=data, db=db, at=at, settings=settings, as_json=json)


@app.command()
def replay(
    job: Annotated[Path, typer.Option("--job", metavar="FILE", help="Job file (TOML).")],
    market: Annotated[
        str, typer.Option("--market", metavar="MARKET", help="Market, optionally with @source.")
    ],
    policy: Annotated[
        str, typer.Option("--policy", help='For example UP, OD-only or "AHAP(5,1,0.9)"; "all" for the pool.')
    ] = "UP",
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="First slot (default: so that the job ends with the record)."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help='Forecaster behind the plans; "perfect" for the truth (a bound, not a policy).'
        ),
    ] = None,
    data: Data = None,
    db: Db = DEFAULT_DB,
    settings: SettingsPath = None,
    json: Json = False,
) -> None:
    """What one policy would have made of one job on a market's record, beside the best that hindsight allows."""
    from flows.turn.command import replay_command

    replay_command(
        job,
        market=market,
        policy=policy,
        start=start,
        model=model,
        data=data,
        db=db,
        settings=settings,
        as_json=json,
    )


app.command()(accuracy)
app.command()(backfill)
app.command()(fill)
app.command("fit-configurations")(fit_configurations)
app.command()(rent)
app.command()(ui)
app.command()(status)
app.command()(serve)
app.command()(export)
app.command("import")(import_)
app.command()(compact)
app.command()(publish)


@app.command()
def leaderboard(db: Db = DEFAULT_DB, settings: SettingsPath = None, json: Json = False) -> None:
    """Every policy's record over the jobs that ended, and how far it is trusted."""
    from flows.command.context import leaderboard_command

    leaderboard_command(db=db, settings=settings, as_json=json)


@app.command()
def report(
    db: Db = DEFAULT_DB,
    at: At = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where the HTML goes.")] = None,
    settings: SettingsPath = None,
    json: Json = False,
) -> None:
    """Write the HTML report of the newest run (or of the one at --at) again from the warehouse."""
    from flows.command.context import report_command

    report_command(db=db, at=at, out=out, settings=settings, as_json=json)


def main() -> None:
    """Entry point: errors of the user end in one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except SlackwaterError as error:
        print(f"slackwater: {error}", file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        print("slackwater: stopped", file=sys.stderr)
        sys.exit(130)
    except TyperException as error:
        if str(error):  # empty: no command was given, and the help is already printed
            # With the option that is meant, which the words of the error itself leave out.
            print(f"slackwater: {error.format_message()}", file=sys.stderr)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
