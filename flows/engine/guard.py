"""ASGI middleware in front of Slackwater's web servers: host, origin and method checks, and security headers."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
#: Headers of every response, in addition to the content security policy: pages of other origins cannot embed, frame or open it.
HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def host_name(header: str) -> str:
    """Return the host name of a Host header in lower case, without port and brackets.

    >>> host_name("LocalHost:8642"), host_name("[::1]:80"), host_name("::1"), host_name("")
    ('localhost', '::1', '::1', '')
    """
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header if header.count(":") > 1 else header.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Return whether a server bound to ``host`` is reachable from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def may_ask(header: str, *, bound: str, names: Iterable[str] = ()) -> bool:
    """Return whether a request with this Host header may be answered; protects against DNS rebinding.

    IP addresses cannot be rebound: loopback addresses are accepted, other addresses unless the server is bound to loopback
    only. Host names must be ``bound``, in ``names`` or "localhost".

    >>> may_ask("localhost:8642", bound="127.0.0.1"), may_ask("evil.example", bound="127.0.0.1")
    (True, False)
    >>> may_ask("192.0.2.7:8642", bound="0.0.0.0"), may_ask("192.0.2.7", bound="127.0.0.1")
    (True, False)
    """
    name = host_name(header)
    if name in LOOPBACK_NAMES or name in {bound.lower(), *(name.lower() for name in names)}:
        return True
    try:
        return ip_address(name).is_loopback or not is_loopback(bound)
    except ValueError:
        return False


def is_same_origin(origin: str, host: str) -> bool:
    """Return whether ``origin`` has the host and port of the Host header; http and https both match, as a proxy may add TLS.

    >>> is_same_origin("http://localhost:4200", "localhost:4200"), is_same_origin("https://team.example", "team.example")
    (True, True)
    >>> is_same_origin("http://localhost:3000", "localhost:4200"), is_same_origin("null", "localhost:4200")
    (False, False)
    """
    scheme, separator, place = origin.strip().lower().partition("://")
    default = {"http": ":80", "https": ":443"}.get(scheme)
    if not separator or default is None:
        return False
    return place.removesuffix(default) == host.strip().lower().removesuffix(default)


class Guard:
    """Middleware that refuses unknown hosts (421), other origins (403) and other methods (405), and adds `HEADERS`.

    Browsers send an Origin header with websockets, with requests that may change state, and with requests whose response
    a script may read; other programs send no such header. Websockets are refused by the same rules, before the handshake.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        bound: str,
        names: Iterable[str] = (),
        policy: str = "frame-ancestors 'none'",
        methods: tuple[str, ...] = (),
    ) -> None:
        """Wrap ``app``, bound to address ``bound``; ``names``: further hosts, ``methods``: allowed HTTP methods (empty: any)."""
        self.app = app
        self.bound = bound
        self.names = tuple(names)
        self.headers = {"content-security-policy": policy, **HEADERS}
        self.methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers[name] = value
            await send(message)

        refused = self._refuse(scope)
        if refused is None:
            await self.app(scope, receive, guarded)
        elif scope["type"] == "websocket":
            await send(
                {"type": "websocket.close", "code": 1008}
            )  # closed before it is accepted: the handshake fails with 403
        else:
            await refused(scope, receive, guarded)

    def _refuse(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not may_ask(hosts[0], bound=self.bound, names=self.names):
            return PlainTextResponse(
                "This address is not served under that host name. Use localhost, or start with --allow-host NAME.\n",
                status_code=421,
            )
        if not all(is_same_origin(origin, hosts[0]) for origin in origins):
            return PlainTextResponse("Requests from pages of other sites are refused.\n", status_code=403)
        if scope["type"] == "http" and self.methods and scope["method"] not in self.methods:
            return PlainTextResponse(
                f"This page is read-only: {' and '.join(self.methods)} only.\n",
                status_code=405,
                headers={"allow": ", ".join(self.methods)},
            )
        return None
