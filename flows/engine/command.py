"""``serve``. Prefect is loaded when the command is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flows.command import Warehouse, option


def serve(
    *,
    data: Annotated[
        Path | None, option("Folder with prices and availability tables to read.", metavar="DIR")
    ] = None,
    only: Annotated[
        list[str] | None,
        option("Serve this flow's deployment alone; may be repeated (default: all).", metavar="FLOW"),
    ] = None,
    every: Annotated[
        str | None,
        option("Time between turns, whole slots such as 30min (default: every slot).", metavar="TIME"),
    ] = None,
    port: Annotated[
        int, option("Port of the Prefect server that is started; 0 for any.", least=0, most=65535)
    ] = 4200,
    warehouse: Warehouse = Warehouse(),
) -> None:
    """Run the deployments on this machine as their schedules say, until it is stopped.

    With PREFECT_API_URL set that Prefect server is used; else one is started on loopback, and stopped at the end.
    """
    from flows.engine.serving import serve_command

    serve_command(
        db=warehouse.db, data=data, settings=warehouse.settings, only=only or [], every=every, port=port
    )
