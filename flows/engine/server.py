"""Process of our Prefect server: Prefect's app behind the guard (started by `slackwater.flows.engine.serving.running_server`).

Prefect's settings are read from the environment. The server's own calls to its API do not pass
through the guard.
"""

from __future__ import annotations

import argparse

from slackwater.optimization.fan import end_with

STOP_SECONDS = 20.0  # Seconds between the request to stop and the end


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--host", required=True)
    words.add_argument("--port", type=int, required=True)
    words.add_argument("--parent", type=int, required=True)
    words.add_argument("--allow-host", action="append", default=[])
    given = words.parse_args()
    end_with(given.parent, stop_seconds=STOP_SECONDS)

    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    from slackwater.flows.engine.guard import Guard

    api = get_current_settings().server.api
    uvicorn.run(
        Guard(create_app(final=True), bound=given.host, names=given.allow_host),
        host=given.host,
        port=given.port,
        log_level=get_current_settings().server.logging_level.lower(),
        server_header=False,
        # A client that ends at the same time no longer responds, and its websocket would stay open.
        timeout_graceful_shutdown=2,
        timeout_keep_alive=api.keepalive_timeout,
        ws_ping_interval=api.websocket_ping_interval,
        ws_ping_timeout=api.websocket_ping_timeout,
    )


if __name__ == "__main__":
    main()
