"""The commands ``run`` and ``serve``. Prefect is imported only when a command runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from slackwater.flows.command import Answer, Session, Warehouse, option
from slackwater.flows.show.blocks import Block, Notes, Section
from slackwater.flows.show.formats import utc


def run(
    *,
    job: Annotated[
        list[Path] | None, option("Job file to add first; may be repeated.", metavar="FILE")
    ] = None,
    report: Annotated[Path | None, option("HTML report to write.", metavar="FILE")] = None,
    session: Session = Session(),
) -> Answer:
    """Run one turn of the loop: ingest, forecast, decide, score, report.

    Without --data and without feeds the turn uses the markets stored in the warehouse; if there are none, the
    market is SIMULATED (calibrated to measured series). With --data and without --at, each market is
    evaluated at the end of its own record; with --at, all are evaluated at that time.
    """
    from slackwater.flows.engine.run import run_turn
    from slackwater.flows.turn.report.command import decided_blocks, turn_blocks

    shown: list[Block] = []

    def show(decisions: Sequence[Mapping[str, Any]]) -> None:
        shown.extend(decided_blocks(decisions) if decisions else ["No job is open: nothing to run."])
        session.show(shown)

    value = run_turn(session, job_files=job or [], report=report, show=show)
    return Answer(
        title=f"Turn at {utc(value['at'])}",
        value=value,
        shown=shown,
        blocks=[
            *turn_blocks(value, planner=session.config.planner),
            *_rehearsal(session, value["decisions"], value["at"]),
        ],
    )


def _rehearsal(session: Session, decisions: Sequence[Mapping[str, Any]], at: str) -> list[Block]:
    """Return a rehearsal of `slackwater act` on a job in the simulated markets, for a warehouse without other markets."""
    simulated = decisions and all(str(row["source"]).startswith("simulated") for row in decisions)
    if session.json or not simulated:
        return []
    import pandas as pd

    from slackwater.flows.acting.rehearsal import rehearse
    from slackwater.warehouse.errors import SlackwaterError

    try:
        found = rehearse(session.db, session.config, pd.Timestamp(at))
    except SlackwaterError as error:
        return [Notes([f"`slackwater act` was not rehearsed: {error}"])]
    if not found:
        return []
    head = "`slackwater act` launches, replaces and stops instances. Rehearsed in a simulated cloud, on recent hours with a loss:"
    return [Section("Acting on decisions", [head, *found])]


def serve(
    *,
    data: Annotated[
        Path | None, option("Folder with prices and availability tables to read.", metavar="DIR")
    ] = None,
    only: Annotated[
        list[str] | None,
        option("Serve only the deployment of this flow; may be repeated (default: all).", metavar="FLOW"),
    ] = None,
    every: Annotated[
        str | None,
        option(
            "Time between turns, a multiple of the slot length such as 30min (default: every slot).",
            metavar="DURATION",
        ),
    ] = None,
    port: Annotated[
        int, option("Port of the Prefect server; 0 for any free port.", least=0, most=65535)
    ] = 4200,
    allow_host: Annotated[
        list[str] | None,
        option("Host name accepted in requests forwarded by a proxy; may be repeated.", metavar="NAME"),
    ] = None,
    warehouse: Warehouse = Warehouse(),
) -> None:
    """Run the deployments on this machine on their schedules until stopped.

    If PREFECT_API_URL is set, that Prefect server is used; else a new server is started on loopback and
    stopped at the end. Its password, for the Prefect UI and for commands, is the text of the file
    auth in Prefect's home (.prefect in the folder of the warehouse).
    """
    from slackwater.flows.engine.serving import serve_command

    serve_command(warehouse, data=data, only=only or [], every=every, port=port, names=allow_host or ())
