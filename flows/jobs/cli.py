"""``slackwater job report``: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.command.options import DEFAULT_DB, Db, Json


def job_report(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the job.")],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="When it was true, ISO 8601 (default: now)."),
    ] = None,
    progress: Annotated[
        float | None,
        typer.Option("--progress", metavar="X", help="Work done by then, in the unit of the job's workload."),
    ] = None,
    progress_share: Annotated[
        float | None,
        typer.Option("--progress-share", metavar="SHARE", help="Work done by then, 0 to 1 of it."),
    ] = None,
    tokens: Annotated[
        float | None,
        typer.Option("--tokens", metavar="N", help="Tokens done by then, of a job that counts in tokens."),
    ] = None,
    on_demand: Annotated[
        int | None, typer.Option("--on-demand", metavar="N", help="On-demand instances held at that time.")
    ] = None,
    spot: Annotated[
        int | None, typer.Option("--spot", metavar="N", help="Spot instances held at that time.")
    ] = None,
    finished: Annotated[bool, typer.Option("--finished", help="The job is done.")] = False,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="A word to remember it by.")] = "",
    known_at: Annotated[
        str | None,
        typer.Option(
            "--known-at",
            metavar="TIME",
            help="When it became known; decisions of earlier slots do not count it (default: the time of --at).",
        ),
    ] = None,
    db: Db = DEFAULT_DB,
    json: Json = False,
) -> None:
    """Tell what a job has really done and held; the next plan starts from it. Reporting a time again corrects it."""
    from flows.jobs.command import Said, job_report_command

    said = Said(
        progress=progress,
        progress_share=progress_share,
        tokens=tokens,
        on_demand=on_demand,
        spot=spot,
        finished=finished,
        note=note,
    )
    job_report_command(name, said, at=at, known_at=known_at, db=db, as_json=json)
