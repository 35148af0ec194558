"""Calls of ``kubectl``, and pods as instances."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slackwater.flows.acting.contract import DriverError, End, Instance, Kind
from slackwater.flows.acting.drivers.calls import call_program

ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """The program ``kubectl`` with its first arguments, for one namespace of one cluster."""

    program: tuple[str, ...]
    namespace: str
    context: str | None
    timeout_seconds: float

    def read_json(self, *words: str) -> dict[str, Any]:
        """Return the answer of a call as an object."""
        out = self.call(*words)
        try:
            found = json.loads(out)
        except ValueError as error:
            raise DriverError(f"the answer of `kubectl {words[0]}`: {error}", expected="JSON") from error
        return dict(found)

    def call(self, *words: str, given: str = "") -> str:
        """Run a call with ``given`` on its standard input, and return its standard output."""
        return call_program(
            self._words(*words),
            name=f"`kubectl {words[0]}`",
            timeout_seconds=self.timeout_seconds,
            given=given,
            expected="kubectl",
        )

    def command(self, *words: str) -> str:
        """Return a call as a command of a shell."""
        return shlex.join(self._words(*words))

    def _words(self, *words: str) -> list[str]:
        context = [] if self.context is None else ["--context", self.context]
        return [*self.program, *context, "--namespace", self.namespace, *words]


def pod_instance(
    pod: Mapping[str, Any], *, job: str, market: str, kind: Kind, now: datetime
) -> Instance | None:
    """Return a pod as an instance, None before it has a node."""
    meta, status = pod["metadata"], pod.get("status", {})
    if "startTime" not in status:
        return None
    since = datetime.fromisoformat(status["startTime"])
    over = status.get("phase") in ENDED or "deletionTimestamp" in meta
    at = _end_time(meta, status) or now
    return Instance(
        id=meta["uid"],
        job=job,
        key="",
        market=market,
        kind=kind,
        since=min(since, now),
        ended=max(since, min(at, now)) if over else None,
        end=_end(status) if over else None,
    )


def _end(status: Mapping[str, Any]) -> End | None:
    """Return "lost" for a pod whose node was reclaimed, "finished" for a completed pod, else None: the loop infers the reason."""
    if status.get("phase") == "Succeeded":
        return "finished"
    return "lost" if _disruptions(status) else None


def _disruptions(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the conditions that state that the node of a pod was reclaimed."""
    return [
        condition
        for condition in status.get("conditions", ())
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True"
    ]


def _end_time(meta: Mapping[str, Any], status: Mapping[str, Any]) -> datetime | None:
    """Return when the node of a pod was reclaimed, its last container ended, or it was deleted; None if not stated."""
    stated = [disruption.get("lastTransitionTime") for disruption in _disruptions(status)]
    if not any(stated) and status.get("phase") in ENDED:
        ends = [
            status_of_container.get("state", {}).get("terminated") or {}
            for status_of_container in status.get("containerStatuses", ())
        ]
        stated = [status_of_container.get("finishedAt") for status_of_container in ends]
    if not any(stated):
        stated = [meta.get("deletionTimestamp")]
    return max((datetime.fromisoformat(text) for text in stated if text), default=None)
