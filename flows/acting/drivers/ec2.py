"""Driver of EC2 instances of a launch template (extra ``ec2``): a fleet of type ``instant`` for each order.

``CreateFleet`` launches the missing on-demand and spot instances together and states what was granted.
Repeated with the same client token and parameters it returns the first fleet, so an interrupted order
cannot launch twice even while EC2 does not list its instances yet. Therefore both depend on the stored
order alone: an interrupted order is repeated as it is, and every other call is a new order with a new
token (`Order.missing`). After a kill before the call, the repetition launches; after a kill later, it
finds all instances listed or gets the first answer again, also if only a part was granted. Instances
have their order, market and decision as tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from pydantic import Field

from slackwater.flows.acting.contract import (
    JOB_TAG,
    KEY_TAG,
    KINDS,
    TOKEN_TAG,
    Brought,
    Driver,
    DriverError,
    End,
    Instance,
    Kind,
    Order,
    count_by_kind,
    lacking,
    surplus,
)
from slackwater.flows.acting.drivers import DriverOptions, Place, read_options
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.history import WHOLE, Market
from slackwater.warehouse.plugins import require_extra

MARKET_TAG = "slackwater:market"
#: Errors that refuse instances; a later call may be granted.
REFUSALS = (
    "InsufficientCapacity",
    "InsufficientFreeAddressesInSubnet",
    "InsufficientHostCapacity",
    "InsufficientInstanceCapacity",
    "InstanceLimitExceeded",
    "MaxFleetCountExceeded",
    "MaxSpotInstanceCountExceeded",
    "SpotMaxPriceTooLow",
    "UnfulfillableCapacity",
    "Unsupported",
    "VcpuLimitExceeded",
)
#: Error of a repeated order whose request changed, as after a change of the driver's options: its first
#: call took effect, so nothing more is launched for it, and a later order launches the missing instances.
CHANGED_REQUEST = "IdempotentParameterMismatch"
#: States of instances that are paid.
PAID = ("pending", "running")
#: EC2's reasons for reclaiming an instance.
LOST = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown", "Server.InternalError")
#: Error of a call that the account may not make.
NOT_PERMITTED = "UnauthorizedOperation"
#: Prefix of the status codes of spot requests whose instance EC2 ended, and the code of a two-minute notice.
TERMINATED, NOTICED = "instance-terminated", "marked-for-termination"
#: Most values that EC2 accepts in a filter.
MOST_VALUES = 200
_ZONE_ID = re.compile(r"[a-z]+\d-az\d+")
#: Time in texts such as ``User initiated (2026-03-10 06:31:00 GMT)``.
_TIME = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \w+\)")


class Options(DriverOptions):
    """Options of the driver."""

    template: str = Field(min_length=1, description="launch template: its name, or its id (lt-...)")
    version: str = Field("$Default", description="version of the launch template")
    subnets: dict[str, str] = Field(
        default_factory=dict, description="subnet by zone; without one the zone's default subnet"
    )
    profile: str | None = Field(None, description="profile of the AWS configuration files")
    endpoint_url: str | None = Field(None, description="address of another EC2 API")
    settle_seconds: float = Field(
        60.0, ge=0, le=3600, description="seconds until EC2 lists an instance after its launch"
    )
    retry_seconds: float = Field(
        120.0, gt=0, description="seconds after which instances that were not granted are requested again"
    )


class Ec2Driver(Driver):
    """Driver of EC2."""

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.settle_seconds = options.settle_seconds
        self.retry_seconds = max(options.retry_seconds, options.settle_seconds)
        self._options = options
        self._session = import_module("boto3").Session(profile_name=options.profile)
        self._clients: dict[str, Any] = {}
        self._ended: dict[str, datetime] = {}  # times of interruptions, by instance
        self._noticed: dict[str, datetime] = {}  # times of notices, by instance

    def listed(self, job: str, markets: Collection[str], now: datetime) -> Sequence[Instance]:
        """Return the tagged instances of a job in the regions of ``markets``."""
        found: list[Instance] = []
        for region in sorted({Market.parse(market).region for market in markets}):
            filters = [{"Name": f"tag:{JOB_TAG}", "Values": [job[:256]]}]
            with _driver_errors(region):
                pages = self._client(region).get_paginator("describe_instances")
                instances = [
                    described
                    for page in pages.paginate(Filters=filters)
                    for reservation in page["Reservations"]
                    for described in reservation["Instances"]
                ]
            self._read_interruptions(region, instances)
            for instance in instances:
                name = instance["InstanceId"]
                found.append(_instance(instance, job, now, self._ended.get(name), self._noticed.get(name)))
        return found

    def _read_interruptions(self, region: str, instances: Sequence[Mapping[str, Any]]) -> None:
        """Read from spot requests when EC2 ended spot instances or gave notice, which the instances do not state.

        Without the permission ``ec2:DescribeSpotInstanceRequests`` the times stay unknown.
        """
        spot = [found for found in instances if found.get("InstanceLifecycle") == "spot"]
        new = [
            found["InstanceId"]
            for found in spot
            if _end_time(found) is None
            and found["InstanceId"] not in (self._noticed if _is_held(found) else self._ended)
        ]
        if not new:
            return
        requests = []
        with _driver_errors(region):
            try:
                for first in range(0, len(new), MOST_VALUES):
                    part = [{"Name": "instance-id", "Values": new[first : first + MOST_VALUES]}]
                    answer = self._client(region).describe_spot_instance_requests(Filters=part)
                    requests += answer["SpotInstanceRequests"]
            except import_module("botocore.exceptions").ClientError as error:
                if error.response["Error"]["Code"] != NOT_PERMITTED:
                    raise
                return
        for request in requests:
            status = request.get("Status", {})
            if "UpdateTime" in status:
                at, code = status["UpdateTime"].astimezone(UTC), str(status.get("Code"))
                if code.startswith(TERMINATED):
                    self._ended[request["InstanceId"]] = at
                elif code == NOTICED:
                    self._noticed[request["InstanceId"]] = at

    def bring(self, order: Order, now: datetime) -> Brought:
        """Terminate surplus instances, then launch missing instances."""
        held = [instance for instance in self.listed(order.job, order.markets, now) if instance.ended is None]
        self._terminate(surplus(order, held))
        counts = _counts_to_launch(order, held)
        return self._launch(order, counts, now) if any(counts.values()) else Brought()

    def commands(self, order: Order, held: Sequence[Instance]) -> list[str]:
        """Return the equivalent calls of the AWS command line."""
        calls = [
            f"aws ec2 terminate-instances --region {Market.parse(instance.market).region} --instance-ids {instance.id}"
            for instance in surplus(order, held)
        ]
        if any((counts := _counts_to_launch(order, held)).values()):
            region, sent = Market.parse(order.market).region, json.dumps(self.request(order, counts))
            calls.append(f"aws ec2 create-fleet --region {region} --cli-input-json '{sent}'")
        return calls

    def request(self, order: Order, counts: Mapping[Kind, int]) -> dict[str, Any]:
        """Return the ``CreateFleet`` request of the instances to launch for an order."""
        market = Market.parse(order.market)
        named = "LaunchTemplateId" if self._options.template.startswith("lt-") else "LaunchTemplateName"
        template = {named: self._options.template, "Version": self._options.version}
        override = {"InstanceType": market.instance_type}
        if market.zone != WHOLE:
            zone = "AvailabilityZoneId" if _ZONE_ID.fullmatch(market.zone) else "AvailabilityZone"
            override[zone] = market.zone
        if market.zone in self._options.subnets:
            override["SubnetId"] = self._options.subnets[market.zone]
        tags = order.tags | {MARKET_TAG: order.market}
        if order.valid_until is not None:
            tags["slackwater:valid-until"] = order.valid_until.isoformat()
        pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
        return {
            "ClientToken": order.token[-64:],
            "Type": "instant",
            "LaunchTemplateConfigs": [{"LaunchTemplateSpecification": template, "Overrides": [override]}],
            "TargetCapacitySpecification": {
                "TotalTargetCapacity": sum(counts.values()),
                "OnDemandTargetCapacity": counts["on_demand"],
                "SpotTargetCapacity": counts["spot"],
                "DefaultTargetCapacityType": "spot",
            },
            "SpotOptions": {
                "AllocationStrategy": "price-capacity-optimized",
                "InstanceInterruptionBehavior": "terminate",
            },
            "TagSpecifications": [{"ResourceType": kind, "Tags": pairs} for kind in ("fleet", "instance")],
        }

    def _launch(self, order: Order, counts: Mapping[Kind, int], now: datetime) -> Brought:
        """Launch a fleet, and return its instances and the refusals."""
        region = Market.parse(order.market).region
        with _driver_errors(region):
            try:
                answer = self._client(region).create_fleet(**self.request(order, counts))
            except import_module("botocore.exceptions").ClientError as error:
                if (code := error.response["Error"]["Code"]) not in (*REFUSALS, CHANGED_REQUEST):
                    raise
                answer = {"Errors": [{"ErrorCode": code}]}
        return _brought(order, counts, answer, now)

    def _terminate(self, instances: Sequence[Instance]) -> None:
        for region in sorted({Market.parse(instance.market).region for instance in instances}):
            ids = [instance.id for instance in instances if Market.parse(instance.market).region == region]
            with _driver_errors(region):
                self._client(region).terminate_instances(InstanceIds=ids)

    def _client(self, region: str) -> Any:
        if region not in self._clients:
            config = import_module("botocore.config").Config(
                connect_timeout=10, read_timeout=60, retries={"mode": "standard", "max_attempts": 3}
            )
            self._clients[region] = self._session.client(
                "ec2", region_name=region, endpoint_url=self._options.endpoint_url, config=config
            )
        return self._clients[region]


@contextmanager
def _driver_errors(region: str) -> Iterator[None]:
    """Raise `DriverError` in place of the errors of boto3."""
    faults = import_module("botocore.exceptions")
    try:
        yield
    except faults.ClientError as error:
        details = error.response["Error"]
        raise DriverError(f"EC2 in {region}: {details.get('Code')}: {details.get('Message')}") from error
    except (faults.BotoCoreError, import_module("botocore.parsers").ResponseParserError) as error:
        raise DriverError(f"EC2 in {region}: {error}") from error


def _counts_to_launch(order: Order, held: Collection[Instance]) -> Mapping[Kind, int]:
    """Return the instances to launch by kind: none if all are listed, else those that the order states."""
    counts = lacking(order, held)
    return counts if order.missing is None or not any(counts.values()) else order.missing


def _brought(order: Order, counts: Mapping[Kind, int], answer: Mapping[str, Any], now: datetime) -> Brought:
    """Return the outcome of a fleet; errors of a kind are included if fewer of its instances were granted than requested."""
    launched = tuple(
        Instance(
            id=name,
            job=order.job,
            key=order.key,
            market=order.market,
            kind="spot" if group.get("Lifecycle") == "spot" else "on_demand",
            since=now,
        )
        for group in answer.get("Instances", ())
        for name in group["InstanceIds"]
    )
    granted = count_by_kind(launched)
    refused: list[str] = []
    faults: list[str] = []
    for kind in KINDS:
        left, word = counts[kind] - granted[kind], kind.replace("_", "-")
        if left > 0:
            errors = [error for error in answer.get("Errors", ()) if error.get("Lifecycle", word) == word]
            codes = dict.fromkeys(str(error["ErrorCode"]) for error in errors)
            refused.append(f"{left} {word}: {', '.join(codes) or 'no reason stated'}")
            faults += [
                f"{error['ErrorCode']}: {error.get('ErrorMessage')}"
                for error in errors
                if error["ErrorCode"] not in (*REFUSALS, CHANGED_REQUEST)
            ]
    region = Market.parse(order.market).region
    error = f"EC2 in {region}: {'; '.join(dict.fromkeys(faults))}" if faults else ""
    return Brought(launched=launched, refused="; ".join(refused), error=error)


def _instance(
    found: Mapping[str, Any], job: str, now: datetime, interrupted: datetime | None, noticed: datetime | None
) -> Instance:
    """Return an instance of EC2's answer; without the tag of a market its market is that of its zone."""
    tags = {tag["Key"]: tag["Value"] for tag in found.get("Tags", ())}
    place = str(found["Placement"].get("AvailabilityZone", ""))
    market = tags.get(MARKET_TAG) or f"aws/{place.rstrip('abcdefghijk')}/{place}/{found['InstanceType']}"
    held = _is_held(found)
    since = found["LaunchTime"].astimezone(UTC)
    return Instance(
        id=found["InstanceId"],
        job=job,
        key=tags.get(KEY_TAG, tags.get(TOKEN_TAG, "")),
        market=market,
        kind="spot" if found.get("InstanceLifecycle") == "spot" else "on_demand",
        since=since,
        ended=None if held else max(since, min(now, _end_time(found) or interrupted or now)),
        end=None if held else _end(found),
        leaving=noticed if held else None,
    )


def _end_time(found: Mapping[str, Any]) -> datetime | None:
    """Return the end of an instance as EC2's text states it, None without a time."""
    stated = _TIME.search(found.get("StateTransitionReason", ""))
    return None if stated is None else datetime.fromisoformat(stated[1]).replace(tzinfo=UTC)


def _is_held(found: Mapping[str, Any]) -> bool:
    return found["State"]["Name"] in PAID


def _end(found: Mapping[str, Any]) -> End | None:
    """Return "lost" if EC2 reclaimed the instance, else None: the loop infers whether an order ended it."""
    return "lost" if found.get("StateReason", {}).get("Code") in LOST else None


def create(options: Mapping[str, Any], place: Place) -> Ec2Driver:
    """Create the driver from its options; raises `SettingsError` without boto3 or for an unknown profile."""
    read = read_options(Options, options, place)
    require_extra("ec2", f"the driver {place.name!r}")
    try:
        return Ec2Driver(place.name, read)
    except import_module("botocore.exceptions").ProfileNotFound as error:
        raise SettingsError(
            f"driver {place.name!r}: {error}", expected="a profile of the AWS files"
        ) from error
