"""Post a decision document to a web address: one attempt within a bound, signed, told apart by what went wrong, secrets unsaid."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from flows.config import Sink
from flows.delivery.document import program_version

#: Headers of a delivery.
KEY_HEADER, SIGNATURE_HEADER = "Idempotency-Key", "X-Slackwater-Signature"
#: What may stand in a header: printable ASCII.
_PRINTABLE = re.compile(r"[\x20-\x7e]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a delivery ended: ``reason`` is empty if it was taken; ``again``: another attempt may help; ``tried``: there was one."""

    reason: str = ""
    again: bool = False
    tried: bool = True


class CannotSendError(Exception):
    """A sink that lacks what it needs; the text names the variable, never its content."""


def signature(secret: str, body: bytes) -> str:
    """``sha256=`` and the HMAC-SHA256 of the body in hexadecimal digits, as a receiver computes it to compare.

    >>> signature("secret", b"{}")[:20]
    'sha256=77325902caca8'
    """
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def headers_of(
    sink: Sink, body: bytes, key: str, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Headers of a delivery; raises `CannotSendError` if a variable is not set or holds what no header can."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"slackwater/{program_version()}",
        KEY_HEADER: key,
    }
    if sink.token_env:
        token = _from(environment, sink.token_env)
        if not _PRINTABLE.fullmatch(sink.token_prefix + token):
            raise CannotSendError(f"environment variable {sink.token_env} holds what no header can")
        headers[sink.token_header] = sink.token_prefix + token
    if sink.secret_env:
        headers[SIGNATURE_HEADER] = signature(_from(environment, sink.secret_env), body)
    return headers


def _from(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise CannotSendError(f"environment variable {name} is not set")
    return value


def post(sink: Sink, body: bytes, headers: Mapping[str, str], *, seconds: float) -> Answer:
    """One attempt to post ``body``, within ``seconds`` in all however slowly the other side answers.

    Taken is what is answered by 2xx. A redirection is not followed: the token would go along. It runs in a thread of its own,
    since the caller's may have a loop running.
    """
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, _attempt(sink, body, headers, seconds)).result()


async def _attempt(sink: Sink, body: bytes, headers: Mapping[str, str], seconds: float) -> Answer:
    try:
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(timeout=seconds, follow_redirects=False) as client,
            client.stream("POST", sink.url or "", content=body, headers=dict(headers)) as response,
        ):
            return _judged(response.status_code)
    except (TimeoutError, httpx.TimeoutException):
        return Answer(reason=f"no answer within {seconds:.3g} s", again=True)
    except httpx.ConnectError:
        return Answer(reason="no connection", again=True)
    except httpx.TransportError as error:
        return Answer(reason=f"the connection broke ({type(error).__name__})", again=True)
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        return Answer(reason=f"the address or a header cannot be used ({type(error).__name__})")


def _judged(status: int) -> Answer:
    if 200 <= status < 300:
        return Answer()
    if 300 <= status < 400:
        return Answer(
            reason=f"answered {status}, a redirection, which is not followed: give the final address"
        )
    return Answer(reason=f"answered {status}", again=status in (408, 425, 429) or status >= 500)
