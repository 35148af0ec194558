"""HTTP requests to APIs: bounded in time, size and number, retried with backoff, without secrets in messages."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from slackwater.warehouse.errors import CaughtError, FetchError
from slackwater.warehouse.plugins import require_extra
from slackwater.warehouse.times import steady_seconds

if TYPE_CHECKING:
    import httpx

_SECRET_NAME = re.compile(r"(?i)(key|token|secret|passw|credential)")
#: Minimum length of a secret; shorter values of such variables are ordinary words.
_SHORTEST_SECRET = 8
Answered = TypeVar("Answered")
#: Maximum size of an answer in bytes, far above any page of the documented APIs.
LARGEST_BODY = 64 * 1024 * 1024
SKEW_SECONDS = 300.0  # Maximum difference between the server's clock and ours without a note, in seconds
_LARGEST_REFUSAL = 65_536  # Maximum number of bytes read from a refusal, for its reason
#: Maximum wait in seconds for a connection that sends nothing, whatever the time limit of the request.
_LONGEST_WAIT = 30.0
_OK = 200
_THROTTLED = 429
_SERVER_ERROR = 500
_HOPELESS_STATUS = (501, 505)


class Secrets:
    """Values that must not be printed or stored; `scrub` removes them from a text."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        found = os.environ if environment is None else environment
        self._values = {
            value
            for name, value in found.items()
            if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET
        }

    def add(self, value: str | None) -> None:
        """Add a value to the secrets."""
        if value:
            self._values.add(value)

    def scrub(self, text: str) -> str:
        """Replace every secret in a text by ``***``."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, "***")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Retry policy with full jitter: before try k+1 a delay uniform on [0, min(``longest``, ``base`` 2^(k-1))] seconds.

    A server's ``Retry-After`` is the minimum delay; above ``longest`` it ends the tries. ``total``
    bounds the sum of all delays of a fetch.
    """

    tries: int = 5
    base: float = 0.5
    longest: float = 60.0
    total: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """Body, content type and printable URL of a successful answer."""

    body: bytes
    content_type: str
    url: str

    def text(self) -> str:
        """Return the body as UTF-8 text; raises `FetchError` if it is not UTF-8."""
        try:
            return self.body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise FetchError(f"{self.url} answered with bytes that are not UTF-8", again=True) from error

    def json(self) -> Any:
        """Parse the body as JSON, with numbers as text as written; raises `FetchError` if it is not JSON."""
        text = self.text()
        try:
            return json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
        except (ValueError, RecursionError) as error:
            raise FetchError(
                f"{self.url} answered with {self.content_type or 'no content type'} that is not JSON: {_head(text)}",
                expected="a JSON answer",
                again=True,
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """An answer of any status: its headers, and its decoded body."""

    status: int
    reason: str
    headers: httpx.Headers
    body: bytes


class _Line:
    """HTTP client whose connections another thread can cut."""

    def __init__(self, seconds: float, certificates: str | None) -> None:
        import httpx  # of the extra `http`: files and boto3 need none

        self.client = httpx.Client(
            timeout=httpx.Timeout(min(_LONGEST_WAIT, seconds)),
            follow_redirects=False,
            verify=_tls_context(certificates),
        )
        self._streams: list[Any] = []
        self._cut = False

    def note(self, _: str, payload: Mapping[str, Any]) -> None:
        """Store the connections that the client opens, which httpx reports through its trace extension."""
        stream = payload.get("return_value")
        if hasattr(stream, "get_extra_info"):
            self._streams.append(stream)
            if self._cut:
                self.cut()

    def cut(self) -> None:
        """Shut down the sockets, which ends all waits; the waiting thread then closes the client."""
        self._cut = True
        for stream in self._streams:
            with suppress(OSError, AttributeError, ValueError):
                stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def ended(self) -> None:
        """Close the client after a request if its connections were cut."""
        if self._cut:
            self.client.close()


def _tls_context(certificates: str | None) -> ssl.SSLContext:
    """Return the TLS context of a certificate file (None: httpx's default), cached until a file changes."""
    places = [certificates, *(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))]
    return _read_trusted(certificates or "", tuple(_with_change_time(place) for place in places))


@lru_cache(maxsize=8)
def _read_trusted(certificates: str, _: tuple[tuple[str, int] | None, ...]) -> ssl.SSLContext:
    import httpx

    return ssl.create_default_context(cafile=certificates) if certificates else httpx.create_ssl_context()


def _with_change_time(place: str | None) -> tuple[str, int] | None:
    """Return a path with its modification time (0 if it does not exist); None for an empty path."""
    try:
        return (place, os.stat(place).st_mtime_ns) if place else None
    except OSError:
        return (str(place), 0)


def _head(text: str) -> str:
    return repr(text[:80] + ("..." if len(text) > 80 else ""))


def _is_serious(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO


def printable_url(url: str) -> str:
    """Return scheme, host and path of a URL, the parts that may be printed."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


class Transport:
    """HTTP access of live sources; counts requests and delays, and stores the server's time and the secrets.

    Randomness comes from the seed, delays from ``sleep``. ``seconds`` bounds a whole request, from
    name resolution to the last byte; ``budget`` bounds all requests together (None: no bound). Both
    are measured by stopwatch, not by time of day, so results do not depend on the clock (M1.4).
    ``certificates``: file of trusted certificates in place of the default.
    """

    def __init__(
        self,
        *,
        seed: int,
        retry: Retry | None = None,
        seconds: float = 60.0,
        largest: int = LARGEST_BODY,
        sleep: Callable[[float], None] = time.sleep,
        secrets: Secrets | None = None,
        budget: float | None = None,
    ) -> None:
        self.retry = retry or Retry()
        self.seconds = seconds
        self.largest = largest
        self.secrets = secrets or Secrets()
        self.certificates: str | None = None
        self.requests = 0
        self.waited = 0.0
        self.out_of_time = False
        self.first_date: datetime | None = None
        self.server_date: datetime | None = None
        self._random = random.Random(seed)
        self._sleep = sleep
        self._line: _Line | None = None
        self._end = None if budget is None else steady_seconds() + budget

    def close(self) -> None:
        """Close open connections."""
        if self._line is not None:
            self._line.client.close()
            self._line = None

    def ask_json(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: object = None,
    ) -> Any:
        """Send a request with retries and parse its answer as JSON; a truncated answer is no JSON and is retried too."""
        return self.patiently(
            lambda: self.ask_once(method, url, params=params, headers=headers, body=body).json()
        )

    def patiently(self, call: Callable[[], Answered]) -> Answered:
        """Call a function with retries by `Retry`; it raises `FetchError`, or `Throttled` with the server's least delay."""
        attempt = 0
        while True:
            attempt += 1
            self._within_budget()
            self.requests += 1
            try:
                return call()
            except FetchError as error:
                floor = error.wait if isinstance(error, Throttled) else 0.0
                ceiling = min(self.retry.longest, self.retry.base * 2.0 ** (attempt - 1))
                wait = max(floor, self._random.uniform(0, ceiling))
                hopeless = not error.again or attempt >= self.retry.tries or floor > self.retry.longest
                if hopeless or self.waited + wait > self.retry.total:
                    raise self.printable(error, tries=attempt) from error
                self.waited += wait
                self._sleep(wait)

    def _within_budget(self) -> None:
        if self._end is not None and steady_seconds() > self._end:
            self.out_of_time = True
            raise FetchError("the time for this fetch is over", remedy="the next one goes on from here")

    def printable(self, error: FetchError, *, tries: int = 1) -> FetchError:
        """Return the error without secrets, and with the number of tries."""
        words = f" ({tries} tries)" if tries > 1 else ""
        return FetchError(
            self.secrets.scrub(error.found) + words,
            expected=self.secrets.scrub(error.expected),
            remedy=self.secrets.scrub(error.remedy),
            code=error.code,
        )

    def note_date(self, text: str | None) -> None:
        """Store the newest ``Date`` of the server; an unreadable date is ignored."""
        if not text:
            return
        try:
            at = parsedate_to_datetime(text)
            self.server_date = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
        except (TypeError, ValueError, OverflowError):
            return
        self.first_date = self.first_date or self.server_date

    def ask_once(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: object = None,
    ) -> Response:
        """Send a single request without retries, for callers that retry themselves; raises `FetchError`."""
        given = {} if body is None else {"json": body}
        answer = self.exchange(method, url, params=params, headers=headers, **given)
        if answer.status != _OK:
            raise self._refusal(answer, url)
        return Response(
            body=answer.body, content_type=answer.headers.get("content-type", ""), url=printable_url(url)
        )

    def exchange(self, method: str, url: str, **parameters: Any) -> Exchange:
        """Send a single request and return its answer of any status; raises `FetchError` after ``seconds``.

        Raises `SettingsError` without the extra ``http``.

        ``parameters``: httpx's arguments for parameters, headers and body. For a status other than 200,
        only the start of the body is read, for the reason. The request runs in a separate thread: a
        slow name server or proxy, or a server that sends a byte now and then, keeps every single
        wait short, so only a clock outside the request can end it.
        """
        if self._line is None:
            require_extra("http", "a live feed over HTTP")
            # At level INFO httpx logs every URL with all its parameters.
            logging.getLogger("httpx").addFilter(_is_serious)
            self._line = _Line(self.seconds, self.certificates)
        line, kept, answers = self._line, CaughtError(), list[Exchange]()

        def request() -> None:
            with kept, _as_fetch_error(url, self.seconds):
                answers.append(self._exchange(line, method, url, parameters))
            line.ended()

        worker = Thread(target=request, name="request", daemon=True)
        worker.start()
        late = True
        try:
            worker.join(self.seconds)
            late = not answers and kept.error is None
        finally:
            if late:
                self._line = None
                line.cut()
        if late:
            raise FetchError(f"{printable_url(url)} did not answer in {self.seconds:g} s", again=True)
        if kept.error is not None:
            raise kept.error
        self.note_date(answers[0].headers.get("date"))
        return answers[0]

    def _exchange(self, line: _Line, method: str, url: str, parameters: Mapping[str, Any]) -> Exchange:
        import httpx

        with line.client.stream(method, url, extensions={"trace": line.note}, **parameters) as response:
            good = response.status_code == _OK
            parts: list[bytes] = []
            # A refusal is reported with as much of its reason as arrives.
            with suppress(*(() if good else (httpx.HTTPError,))):
                size, most = 0, self.largest if good else _LARGEST_REFUSAL
                for part in response.iter_bytes():
                    size += len(part)
                    if size > most:
                        if good:
                            raise FetchError(f"{printable_url(url)} answered with more than {most:,} bytes")
                        break
                    parts.append(part)
            return Exchange(
                status=response.status_code,
                reason=response.reason_phrase,
                headers=response.headers,
                body=b"".join(parts),
            )

    def _refusal(self, answer: Exchange, url: str) -> FetchError:
        status = answer.status
        words = f"{printable_url(url)} answered {status} {answer.reason}".rstrip()
        if status == _THROTTLED or (status >= _SERVER_ERROR and status not in _HOPELESS_STATUS):
            return Throttled(words, wait=self._retry_after(answer.headers.get("retry-after")))
        text = answer.body.decode("utf-8", "replace").strip()
        return FetchError(f"{words}: {_head(text)}" if text else words)

    def _retry_after(self, text: str | None) -> float:
        """Return the delay in seconds that a server requests, as a number or as a date (relative to its own ``Date``)."""
        if not text:
            return 0.0
        if text.strip().isdecimal():
            return float(text.strip()[:9])
        try:
            until = parsedate_to_datetime(text)
        except (TypeError, ValueError, OverflowError):
            return 0.0
        if self.server_date is None or until.tzinfo is None:
            return 0.0
        return max(0.0, (until - self.server_date).total_seconds())


class Throttled(FetchError):
    """Temporary refusal; ``wait``: delay in seconds that the server requests, 0 if it states none."""

    def __init__(self, found: str, *, wait: float = 0.0) -> None:
        super().__init__(found, remedy="ask less often, or later", again=True)
        self.wait = wait


@contextmanager
def _as_fetch_error(url: str, seconds: float) -> Iterator[None]:
    """Convert httpx's errors to `FetchError`, without their messages, which may contain the whole URL."""
    import httpx

    try:
        yield
    except httpx.TimeoutException as error:
        waited = min(_LONGEST_WAIT, seconds)
        raise FetchError(f"{printable_url(url)} did not answer in {waited:g} s", again=True) from error
    except (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.CookieConflict, UnicodeError) as error:
        raise FetchError(
            f"{printable_url(url)} is not a URL that can be asked", expected="http://... or https://..."
        ) from error
    except httpx.TransportError as error:
        cut = isinstance(error, httpx.ReadError | httpx.RemoteProtocolError)
        words = "cut the connection" if cut else "cannot be reached"
        raise FetchError(f"{printable_url(url)} {words} ({type(error).__name__})", again=True) from error
    except httpx.RequestError as error:
        raise FetchError(
            f"{printable_url(url)} answered something unreadable ({type(error).__name__})", again=True
        ) from error
