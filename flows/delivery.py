"""Delivery of decisions to sinks: decision documents, folders and webhooks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from slackwater.flows.clock import now
from slackwater.flows.config import Sink
from slackwater.flows.ledger.decisions import document, program_version, stored_decisions
from slackwater.flows.ledger.stages import LIVE
from slackwater.flows.show.formats import rows_of
from slackwater.warehouse.errors import InputError
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.plugins import has_extra, lacks_extra
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import steady_seconds

#: File names valid on every file system; longer names and names with other characters are shortened and marked.
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_MARK = re.compile(r"-[0-9a-f]{12}")  # End of marked names; unmarked names must not end like this


def as_text(document: Mapping[str, Any]) -> str:
    """Return a document as JSON text, as written to files and sent."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def folder_name(job: str) -> str:
    """Return a unique folder name for a job: its name if valid, else its valid characters and a hash of the name.

    >>> folder_name("llama-8b")
    'llama-8b'
    >>> folder_name("../etc/passwd")
    'etc-passwd-7fef78f53440'
    """
    if _SAFE.fullmatch(job) and not _MARK.search(job[-13:]):
        return job
    digest = hashlib.sha256(job.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", job).lstrip("._-")[:60]
    return f"{kept.rstrip('._-') or 'job'}-{digest}"


def file_name(slot: pd.Timestamp) -> str:
    """Return the file name of a slot's decision, such as 20260310T063000Z.json."""
    return f"{slot.tz_convert('UTC'):%Y%m%dT%H%M%SZ}.json"


# ---
# Delivery to the sinks of the settings: each decision once; failures are retried in the next turn and never stop a turn.

KEY_HEADER = "Idempotency-Key"
_PRINTABLE = re.compile(r"[\x20-\x7e]+")  # Valid header values: printable ASCII


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryResult:
    """Result of a delivery: ``reason`` is empty on success; ``again``: a retry may help; ``tried``: there was an attempt."""

    reason: str = ""
    again: bool = False
    tried: bool = True


class CannotSendError(Exception):
    """Error of a sink whose variable is missing or unusable; the text names the variable, never its content."""


def signed_headers(secret: str, body: bytes, *, key: str, sent: int) -> dict[str, str]:
    """Return the headers of Standard Webhooks 1.0: id, time of sending (seconds since the epoch), signature of both and body.

    ``secret``: ``whsec_`` and base64, as the specification has it, or any text, which is used as it is. Raises
    `CannotSendError` for a ``whsec_`` that is not base64. Receivers check it with any library of standardwebhooks.com.
    """
    try:
        own = secret.removeprefix("whsec_")
        raw = (
            base64.b64decode(own + "=" * (-len(own) % 4), validate=True) if own != secret else secret.encode()
        )
    except binascii.Error as error:
        raise CannotSendError("the secret begins with whsec_ but is not base64 after it") from error
    code = hmac.new(raw, f"{key}.{sent}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": key,
        "webhook-timestamp": str(sent),
        "webhook-signature": f"v1,{base64.b64encode(code).decode()}",
    }


def headers_of(
    sink: Sink, body: bytes, key: str, environment: Mapping[str, str] = os.environ, *, sent: int
) -> dict[str, str]:
    """Return the headers of a delivery at ``sent`` (s since the epoch); raises `CannotSendError` for an invalid variable."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"slackwater/{program_version()}",
        KEY_HEADER: key,
    }
    if sink.token_env:
        token = variable_in(environment, sink.token_env)
        if not _PRINTABLE.fullmatch(sink.token_prefix + token):
            raise CannotSendError(f"environment variable {sink.token_env} holds what no header can")
        headers[sink.token_header] = sink.token_prefix + token
    if sink.secret_env:
        secret = variable_in(environment, sink.secret_env)
        headers |= signed_headers(secret, body, key=key, sent=sent)
    return headers


def variable_in(environment: Mapping[str, str], name: str | None) -> str:
    """Return the content of an environment variable; raises `CannotSendError` if it is not set."""
    value = environment.get(name or "", "").strip()
    if not value:
        raise CannotSendError(f"environment variable {name} is not set")
    return value


def post(sink: Sink, body: bytes, headers: Mapping[str, str], *, seconds: float) -> DeliveryResult:
    """Post ``body`` once, within ``seconds`` in total however slowly the server responds.

    Any 2xx response is a success. Redirections are not followed, because the token would be sent along. Runs in a separate
    thread, because an event loop may be running in the caller's thread. Without the extra ``http`` nothing is sent.
    """
    import asyncio  # with httpx a tenth of the time of a command that sends nothing

    if not has_extra("http"):
        return DeliveryResult(reason=str(lacks_extra("http", f"the sink {sink.name!r}")), tried=False)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, _attempt(sink, body, headers, seconds)).result()


async def _attempt(sink: Sink, body: bytes, headers: Mapping[str, str], seconds: float) -> DeliveryResult:
    import asyncio

    import httpx

    try:
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(timeout=seconds, follow_redirects=False) as client,
            client.stream("POST", sink.url or "", content=body, headers=dict(headers)) as response,
        ):
            return _judge_response(response.status_code)
    except (TimeoutError, httpx.TimeoutException):
        return DeliveryResult(reason=f"no answer within {seconds:.3g} s", again=True)
    except httpx.ConnectError:
        return DeliveryResult(reason="no connection", again=True)
    except httpx.TransportError as error:
        return DeliveryResult(reason=f"the connection broke ({type(error).__name__})", again=True)
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        return DeliveryResult(reason=f"the address or a header cannot be used ({type(error).__name__})")


def _judge_response(status: int) -> DeliveryResult:
    if 200 <= status < 300:
        return DeliveryResult()
    if 300 <= status < 400:
        return DeliveryResult(
            reason=f"answered {status}, a redirection, which is not followed: give the final address"
        )
    return DeliveryResult(reason=f"answered {status}", again=status in (408, 425, 429) or status >= 500)


SENT, FAILED, GIVEN_UP = "sent", "failed", "given_up"
LOOK_BACK = pd.Timedelta(hours=6)  # How far back a turn looks for undelivered decisions of killed turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """State of the delivery of a decision to a sink; ``attempts`` counts the turns that tried."""

    sink: str
    job: str
    slot: pd.Timestamp
    status: str
    attempts: int
    reason: str

    def row(self) -> dict[str, Any]:
        """Return the delivery as plain values."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class Timing:
    """Timing of deliveries: a ``sleep`` function, a steady ``clock`` in seconds, and the time of day for signatures."""

    sleep: Callable[[float], None] = field(default=time.sleep)
    clock: Callable[[], float] = field(default=steady_seconds)
    now: Callable[[], pd.Timestamp] = field(default=now)


def deliver(
    store: Store,
    sinks: Sequence[Sink],
    decisions: Sequence[Mapping[str, Any]],
    *,
    at: pd.Timestamp,
    say: Callable[[str], None],
    pace: Timing | None = None,
) -> list[Delivery]:
    """Deliver the decisions of the turn at ``at``, and undelivered decisions of earlier turns, to every sink.

    ``decisions`` are rows as stored in the warehouse. Each is sent once per sink, the newest first. The result is stored right
    after sending: a process killed in between sends a document twice, with the same key. A failed delivery raises no error:
    it is reported with ``say``, stored with its reason, and retried in the next turn.
    """
    done: list[Delivery] = []
    for sink in sinks:
        own = _handed_over(store, sink, _due(store, sink, decisions, at), at, pace or Timing())
        if failed := [result for result in own if result.status != SENT]:
            say(f"{len(failed)} decisions not delivered to {sink.name} ({sink.place}): {failed[-1].reason}")
        done += own
    return done


def deliveries_of(store: Store, job: str) -> list[Delivery]:
    """Return the deliveries of a job's decisions, ordered by slot and sink."""
    rows = read_rows(store, "deliveries", where={"job": job}, order_by=["slot", "sink"])
    return [_delivery(row) for row in rows_of(rows)]


def _delivery(row: Mapping[str, Any]) -> Delivery:
    return Delivery(
        sink=str(row["sink"]),
        job=str(row["job"]),
        slot=pd.Timestamp(row["slot"]).tz_convert("UTC"),
        status=str(row["status"]),
        attempts=int(row["attempts"]),
        reason=str(row["reason"]),
    )


@dataclass(frozen=True, slots=True)
class _Due:
    """Decision to be delivered, and the number of turns that tried."""

    decision: Mapping[str, Any]
    slot: pd.Timestamp
    tried: int


def _due(store: Store, sink: Sink, decisions: Sequence[Mapping[str, Any]], at: pd.Timestamp) -> list[_Due]:
    """Return the undelivered decisions of a sink: of this turn, of failed deliveries and of killed turns; newest first."""
    failed = known_deliveries(store, {"sink": sink.name, "status": FAILED})
    wanted: dict[tuple[str, pd.Timestamp], Mapping[str, Any]] = {_name(row): row for row in decisions}
    slots = sorted({slot for _, slot in failed})
    stored = [row for _, row in stored_decisions(store, {"slot": slots})] if slots else []
    for earlier in [row for row in stored if _name(row) in failed] + _left_behind(store, sink, at):
        wanted.setdefault(_name(earlier), earlier)
    known = known_deliveries(store, {"sink": sink.name, "slot": sorted({slot for _, slot in wanted})})
    due = []
    for (job, slot), row in wanted.items():
        before = known.get((job, slot))
        if before is None or before.status == FAILED:
            due.append(_Due(row, slot, before.attempts if before else 0))
    return sorted(due, key=lambda delivery: (-delivery.slot.value, str(delivery.decision["job"])))


def known_deliveries(store: Store, where: Mapping[str, object]) -> dict[tuple[str, pd.Timestamp], Delivery]:
    """Return stored deliveries by job (or subject of an alarm) and slot."""
    found = map(_delivery, rows_of(read_rows(store, "deliveries", where=where)))
    return {(delivery.job, delivery.slot): delivery for delivery in found}


def _name(row: Mapping[str, Any]) -> tuple[str, pd.Timestamp]:
    return str(row["job"]), pd.Timestamp(row["slot"]).tz_convert("UTC")


def _left_behind(store: Store, sink: Sink, at: pd.Timestamp) -> list[dict[str, Any]]:
    """Return recent live decisions (`LOOK_BACK`) since the first delivery to the sink, without those of backfills."""
    (first,) = store.execute("SELECT min(slot) FROM deliveries WHERE sink = ?", [sink.name])[0]
    if first is None:
        return []
    recent = slice(
        max(at - LOOK_BACK, pd.Timestamp(first).tz_convert("UTC")), at + pd.Timedelta(microseconds=1)
    )
    found = stored_decisions(store, {"slot": recent})
    runs = {"run": list(dict.fromkeys(run for run, _ in found)), "stage": "allocate", "made": LIVE}
    live = set(read_rows(store, "runs", where=runs)["run"])
    return [row for run, row in found if run in live]


def _handed_over(
    store: Store, sink: Sink, due: Sequence[_Due], at: pd.Timestamp, pace: Timing
) -> list[Delivery]:
    """Deliver all due decisions within the time budget of the sink; each result is stored before the next attempt."""
    end = pace.clock() + sink.budget_seconds
    done = []
    for due_delivery in due:
        answer = _try_delivery(sink, due_delivery, pace, end)
        turns = due_delivery.tried + answer.tried
        status = SENT if not answer.reason else FAILED if turns < sink.give_up_after else GIVEN_UP
        job, slot = _name(due_delivery.decision)
        delivery = Delivery(
            sink=sink.name, job=job, slot=slot, status=status, attempts=turns, reason=answer.reason
        )
        remember(store, delivery, at)
        done.append(delivery)
    return done


def remember(store: Store, delivery: Delivery, at: pd.Timestamp) -> None:
    """Store a delivery in place of an earlier one of the same decision or alarm."""
    with store.transaction():
        store.execute(
            "DELETE FROM deliveries WHERE sink = ? AND job = ? AND slot = ?",
            [delivery.sink, delivery.job, delivery.slot.to_pydatetime()],
        )
        write_rows(store, "deliveries", pd.DataFrame([delivery.row() | {"logical_at": at}]))


def _try_delivery(sink: Sink, delivery: _Due, pace: Timing, end: float) -> DeliveryResult:
    """Deliver a decision, with the attempts and waits that the settings of the sink and the time allow."""
    try:
        whole = document(delivery.decision)
    except InputError as error:
        return DeliveryResult(reason=str(error))
    if sink.kind == "file":
        return _write_files(sink, delivery.slot, whole)
    body = as_text(whole).encode()
    try:
        headers = headers_of(sink, body, str(whole["key"]), sent=int(pace.now().timestamp()))
    except CannotSendError as error:
        return DeliveryResult(reason=str(error))
    return _post_until(sink, body, headers, pace, end)


def _post_until(
    sink: Sink, body: bytes, headers: Mapping[str, str], pace: Timing, end: float
) -> DeliveryResult:
    """Post until success or permanent failure, or until the attempts or the time until ``end`` are used up."""
    answer = DeliveryResult(reason="no time was left for it in this turn", tried=False)
    for attempt in range(sink.attempts):
        wait = sink.backoff_seconds * 2 ** (attempt - 1) if attempt else 0.0
        if pace.clock() + wait >= end:
            break
        if wait:
            pace.sleep(wait)
        answer = post(sink, body, headers, seconds=min(sink.timeout_seconds, max(0.001, end - pace.clock())))
        if not answer.again:
            break
    return answer


def _write_files(sink: Sink, slot: pd.Timestamp, whole: Mapping[str, Any]) -> DeliveryResult:
    """Write ``<folder>/<job>/<slot>.json``, and ``latest.json`` unless that file is of a later slot."""
    from slackwater.flows.show.page import write_whole

    folder = (sink.folder or Path()) / folder_name(str(whole["job"]))
    text = as_text(whole)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / file_name(slot), text)
        latest = folder / "latest.json"
        if not _is_later(latest, slot):
            write_whole(latest, text)
    except OSError as error:
        return DeliveryResult(reason=f"cannot write: {error.strerror or type(error).__name__}", again=True)
    return DeliveryResult()


def _is_later(file: Path, slot: pd.Timestamp) -> bool:
    try:
        return bool(pd.Timestamp(json.loads(file.read_text(encoding="utf-8"))["slot"]) > slot)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False
