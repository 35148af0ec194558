"""Reports on jobs by HTTP, with a token: the same check and record as `slackwater job report`."""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import pandas as pd
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slackwater.flows.config import Settings
from slackwater.flows.engine.guard import is_loopback
from slackwater.flows.jobs.command import GivenReport
from slackwater.flows.jobs.reporting import write_report
from slackwater.flows.ledger.jobs import find_job
from slackwater.flows.show.formats import plain
from slackwater.warehouse.errors import JobError, SettingsError, SlackwaterError, StoreLockedError
from slackwater.warehouse.store.connection import open_store

PATH: Final = "/api/jobs/{name:path}/report"  # Path of the reports of a job
MOST_BYTES: Final = 65_536  # Largest body of a report, bytes
LEAST_TOKEN: Final = 16  # Shortest token that is accepted, characters
#: Seconds that a report waits for the warehouse.
WAIT: Final = 10.0
#: Keys of a report: the options of ``job report``, with underscores.
KEYS: Final = tuple(field.name for field in fields(GivenReport))
_REPORT: Final = TypeAdapter(with_config(ConfigDict(extra="forbid"))(GivenReport))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReceiver:
    """Receiver of reports by HTTP: the warehouse, the token, and why it refuses all reports ("": it does not)."""

    db: Path
    settings: Settings
    token: str
    clock: Callable[[], pd.Timestamp]
    refused: str = ""

    @classmethod
    def of(
        cls,
        db: Path,
        settings: Settings,
        *,
        clock: Callable[[], pd.Timestamp],
        bound: str,
        environment: Mapping[str, str] = os.environ,
    ) -> ReportReceiver | None:
        """Return the receiver that the settings describe, None without a token in them.

        A token is sent unencrypted without TLS, so that a server at another address than loopback
        refuses reports unless a proxy with TLS is stated. Raises `SettingsError` without a token in the environment.
        """
        name = settings.report_token_env
        if name is None:
            return None
        token = environment.get(name, "").strip()
        if len(token) < LEAST_TOKEN or not token.isascii():
            raise SettingsError(
                f"environment variable {name} holds no token of {LEAST_TOKEN} ASCII characters or more",
                expected="the token that report_token_env names",
                remedy=f"export {name}=$(openssl rand -hex 32)",
            )
        refused = ""
        if not is_loopback(bound) and not settings.report_behind_tls:
            refused = f"reports are refused at {bound}, as their token would be sent without TLS"
        return cls(db=db, settings=settings, token=token, clock=clock, refused=refused)

    async def answer(self, request: Request) -> Response:
        """Store the report of a request and return it as `slackwater job report --json` does."""
        if self.refused:
            remedy = "serve at loopback, with a proxy with TLS before it; report_behind_tls = true if there is one elsewhere"
            return _refusal(403, self.refused, remedy=remedy)
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(), self.token.encode())
        if scheme.lower() != "bearer" or not same:
            headers = {"www-authenticate": "Bearer"}
            return _refusal(401, "no valid token", expected="Authorization: Bearer TOKEN", headers=headers)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                return _refusal(
                    413, f"a body of more than {MOST_BYTES:,} bytes", expected="the JSON of a report"
                )
        try:
            report = _REPORT.validate_json(body, strict=True)  # no true for 1, no text for a number
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            found = f"{key}: {first['msg']}" if key else str(first["msg"])
            return _refusal(422, found, expected=f"some of {', '.join(KEYS)}")
        return await run_in_threadpool(self._store, request.path_params["name"], report)

    def _store(self, name: str, report: GivenReport) -> Response:
        try:
            with open_store(self.db, wait=WAIT) as store:
                try:
                    find_job(store, name)
                except JobError as error:
                    return _error_response(404, error)
                done = write_report(store, self.settings, name, report, clock=self.clock())
        except StoreLockedError as error:
            return _error_response(503, error, headers={"retry-after": "5"})
        except SlackwaterError as error:
            return _error_response(422, error)
        return JSONResponse(plain(done.value))


def _error_response(code: int, error: SlackwaterError, headers: Mapping[str, str] | None = None) -> Response:
    return _refusal(
        code,
        keyed_words(error.found),
        expected=keyed_words(error.expected),
        remedy=keyed_words(error.remedy),
        headers=headers,
    )


def keyed_words(text: str) -> str:
    """Return a text about options of ``job report`` with the keys of a request in their place.

    >>> keyed_words("--at 'noon'"), keyed_words("say so with --granted N"), keyed_words("use --progress or --progress-share")
    ("at 'noon'", 'say so with granted N', 'use progress or progress_share')
    """
    return re.sub(r"--([a-z]+(?:-[a-z]+)*)", _key, text)


def _key(found: re.Match[str]) -> str:
    key = found[1].replace("-", "_")
    return key if key in KEYS else found[0]


def _refusal(
    code: int, found: str, *, expected: str = "", remedy: str = "", headers: Mapping[str, str] | None = None
) -> Response:
    body: dict[str, Any] = {"error": {"found": found, "expected": expected, "remedy": remedy}}
    return JSONResponse(body, status_code=code, headers=dict(headers or {}))
