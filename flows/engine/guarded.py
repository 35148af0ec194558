"""``python -m flows.engine.guarded PORT``: Prefect's server on loopback, behind a guard against pages of other sites.

A request is answered only where it names a loopback host and comes from no page, or from a page of the server itself; requests and
websockets of other sites' pages, and names that were rebound to this machine by DNS, are refused before Prefect sees them. Who may
ask is then decided by `PREFECT_SERVER_API_AUTH_STRING` (`flows.engine.run.protect_server`).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from flows.hosts import is_own_origin, may_ask

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = "127.0.0.1"


class HostGuard:
    """Refuse requests and websockets with a foreign Host (421) or Origin (403)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        hosts, origins = (
            [value.decode("latin-1") for key, value in scope["headers"] if key == name]
            for name in (b"host", b"origin")
        )
        if len(hosts) != 1 or not may_ask(hosts[0], bound=LOOPBACK):
            await _refuse(scope, send, 421, "This server is not served under that host name.\n")
        elif not is_own_origin(origins, hosts[0]):
            await _refuse(scope, send, 403, "This server does not answer pages of other sites.\n")
        else:
            await self.app(scope, receive, send)


async def _refuse(scope: Scope, send: Send, status: int, words: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": words.strip()})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": words.encode()})


def main(port: int) -> None:
    """Serve until SIGTERM or SIGINT; what the server writes is for its user alone."""
    os.umask(0o077)
    os.environ["PREFECT_UI_API_URL"] = "/api"
    own = ",".join(f"http://{name}:{port}" for name in (LOOPBACK, "localhost"))
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = own

    import uvicorn
    from prefect.server.api.server import create_app

    uvicorn.run(HostGuard(create_app(final=True)), host=LOOPBACK, port=port, log_level="warning")


if __name__ == "__main__":
    main(int(sys.argv[1]))
