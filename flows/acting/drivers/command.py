"""Driver that calls a script of the user: a JSON request on its standard input, a JSON answer."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slackwater.flows.acting.contract import Brought, Driver, DriverError, Instance, Kind, Order
from slackwater.flows.acting.drivers import DriverOptions, Place, read_options
from slackwater.flows.acting.drivers.calls import call_program

SCHEMA = "slackwater.order/1"


class Options(DriverOptions):
    """Options of the driver."""

    run: tuple[str, ...] = Field(min_length=1, description="program and arguments")
    timeout_seconds: float = Field(300.0, gt=0, le=86_400, description="time limit of a call, seconds")
    settle_seconds: float = Field(
        0.0, ge=0, le=86_400, description="seconds until the script lists an instance after its launch"
    )
    retry_seconds: float = Field(
        120.0, gt=0, description="seconds after which instances that were not granted are requested again"
    )


class _HeldInstance(BaseModel):
    """An instance as reported by the script."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    kind: Kind
    market: str
    key: str = ""
    since: datetime
    ended: datetime | None = None
    end: Literal["lost", "stopped", "finished"] | None = None


class _Reply(BaseModel):
    """The answer of the script."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    held: tuple[_HeldInstance, ...]
    refused: str = ""


class CommandDriver(Driver):
    """Driver that calls a script; the script keeps the contract of `bring` by the ``token`` of the request."""

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.settle_seconds = options.settle_seconds
        self.retry_seconds = options.retry_seconds
        self._options = options

    def listed(self, job: str, markets: Collection[str], now: datetime) -> Sequence[Instance]:
        """Return the instances that the script lists."""
        reply = self._call({"action": "list", "job": job, "markets": sorted(markets)})
        return _instances(job, reply)

    def bring(self, order: Order, now: datetime) -> Brought:
        """Let the script bring the job to an order."""
        reply = self._call({"action": "bring", **_request(order)})
        held = [instance for instance in _instances(order.job, reply) if instance.ended is None]
        return Brought(launched=tuple(held), refused=reply.refused)

    def commands(self, order: Order, held: Sequence[Instance]) -> list[str]:
        """Return the call of the script, with its input."""
        sent = json.dumps({"schema": SCHEMA, "action": "bring", **_request(order)})
        return [f"{' '.join(self._options.run)} <<< '{sent}'"]

    def _call(self, request: Mapping[str, Any]) -> _Reply:
        program = self._options.run[0]
        answer = call_program(
            self._options.run,
            name=program,
            timeout_seconds=self._options.timeout_seconds,
            given=json.dumps({"schema": SCHEMA, **request}),
        )
        try:
            return _Reply.model_validate_json(answer)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise DriverError(
                f"the answer of {program}: {where + ': ' if where else ''}{first['msg']}",
                expected='a JSON object such as {"held": [{"id": "i-1", "kind": "spot", "market": "...", "since": "..."}]}',
            ) from error


def _request(order: Order) -> dict[str, Any]:
    return {
        "job": order.job,
        "token": order.token,
        "key": order.key,
        "markets": list(order.markets),
        "target": {"market": order.market, "on_demand": order.on_demand, "spot": order.spot},
        "valid_until": None if order.valid_until is None else order.valid_until.isoformat(),
        "tags": order.tags,
    }


def _instances(job: str, reply: _Reply) -> list[Instance]:
    return [Instance(job=job, **instance.model_dump()) for instance in reply.held]


def create(options: Mapping[str, Any], place: Place) -> CommandDriver:
    """Create the driver from its options."""
    return CommandDriver(place.name, read_options(Options, options, place))
