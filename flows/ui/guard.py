"""Who may ask, and what a browser may do with the answer: host names, methods, and the headers of every response."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS: Final = ("GET", "HEAD")
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
#: Drawings carry style attributes (colours by custom property); style sheets and scripts come from the server alone.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def host_name(header: str) -> str:
    """The name in a Host header, without its port and brackets, in lower case.

    >>> host_name("LocalHost:8642"), host_name("[::1]:80"), host_name("::1"), host_name("")
    ('localhost', '::1', '::1', '')
    """
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header if header.count(":") > 1 else header.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server bound to ``host``.

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
    """Whether a request that names this host is answered: what a page of another site, rebound to us by DNS, cannot fake.

    Addresses cannot be rebound; they are answered where the server is not bound to loopback alone. Host names must be known.

    >>> may_ask("localhost:8642", bound="127.0.0.1"), may_ask("evil.example", bound="127.0.0.1")
    (True, False)
    >>> may_ask("192.0.2.7:8642", bound="0.0.0.0"), may_ask("192.0.2.7", bound="127.0.0.1")
    (True, False)
    """
    name = host_name(header)
    if name in LOOPBACK_NAMES or name in {bound.lower(), *(one.lower() for one in names)}:
        return True
    try:
        return ip_address(name).is_loopback or not is_loopback(bound)
    except ValueError:
        return False


class Guard:
    """Refuses foreign host names (421) and every method but GET and HEAD (405); puts `HEADERS` on every answer."""

    def __init__(self, app: ASGIApp, *, bound: str, names: Iterable[str] = ()) -> None:
        self.app = app
        self.bound = bound
        self.names = tuple(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        asked = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(asked) != 1 or not may_ask(asked[0], bound=self.bound, names=self.names):
            await PlainTextResponse(
                "This address is not served under that host name. Use localhost, or start with --allow-host NAME.\n",
                status_code=421,
            )(scope, receive, guarded)
            return
        if scope["method"] not in METHODS:
            refused = PlainTextResponse("This page is read-only: GET and HEAD only.\n", status_code=405)
            refused.headers["allow"] = ", ".join(METHODS)
            await refused(scope, receive, guarded)
            return
        await self.app(scope, receive, guarded)
