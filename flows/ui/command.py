"""``ui``: the page to watch."""

from __future__ import annotations

from typing import Annotated

from flows.command import Warehouse, option
from flows.command.session import parsed_time


def ui(
    *,
    host: Annotated[
        str, option("Address to serve at; others than loopback warn.", metavar="ADDRESS")
    ] = "127.0.0.1",
    port: Annotated[int, option("Port; 0 takes a free one and prints it.", least=0, most=65535)] = 8642,
    allow_host: Annotated[
        list[str] | None, option("A host name to answer to; may be repeated.", metavar="NAME")
    ] = None,
    at: Annotated[
        str | None, option("Tell ages from this time (ISO 8601) instead of the clock.", metavar="TIME")
    ] = None,
    warehouse: Warehouse = Warehouse(),
) -> None:
    """Serve a read-only page of jobs, markets, accuracy, policies, completeness and runs, until Ctrl-C."""
    from flows.clock import now
    from flows.ui.server import serve

    fixed = parsed_time(at, "--at")
    serve(
        warehouse.db,
        warehouse.config,
        clock=now if fixed is None else lambda: fixed,
        host=host,
        port=port,
        names=allow_host or (),
    )
