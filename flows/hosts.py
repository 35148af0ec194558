"""Which requests a server of ours answers: those that name it by its own host name and come from its own pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import Final

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")


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


def is_own_origin(origins: Sequence[str], host: str) -> bool:
    """Whether a request to ``host`` comes from a page of that host, or from no page at all.

    ``origins`` are the values of its Origin headers. A browser sends one with every request of another site's page that could
    change anything, and with every websocket.

    >>> is_own_origin([], "localhost:4200"), is_own_origin(["http://localhost:4200"], "localhost:4200")
    (True, True)
    >>> is_own_origin(["http://evil.example"], "localhost:4200"), is_own_origin(["null"], "localhost:4200")
    (False, False)
    """
    return all(origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}") for origin in origins)
