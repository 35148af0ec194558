"""A double of EC2 for the driver: it honours client tokens, lists instances late and grants what it has."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import botocore.session
from botocore.exceptions import ClientError
from botocore.validate import ParamValidator


@cache
def create_fleet_shape():
    model = botocore.session.get_session().get_service_model("ec2")
    return model.operation_model("CreateFleet").input_shape


def request_errors(request) -> str:
    """Return why a request does not have the form of ``CreateFleet``, "" if it has."""
    return ParamValidator().validate(request, create_fleet_shape()).generate_report()


def client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}}, "CreateFleet")


class Ec2Double:
    """EC2 in one zone at the time ``now``: at most ``spot`` spot instances, each listed ``late()`` after its launch.

    ``launched`` is called with the sizes of each new fleet after it took effect and before its answer.
    ``repeated`` and ``changed`` count the calls with an earlier token, and those with other parameters.
    """

    def __init__(self, now: datetime, *, late: Callable[[], timedelta] = timedelta, spot: int = 100) -> None:
        self.now, self.late, self.spot = now, late, spot
        self.launched: Callable[[dict[str, Any]], None] = lambda sizes: None
        self.refusal = "InsufficientInstanceCapacity"
        self.instances: dict[str, dict[str, Any]] = {}
        self.fleets: dict[str, tuple[Any, Any]] = {}
        self.listed_from: dict[str, datetime] = {}
        self.notices: dict[str, datetime] = {}
        self.ends: dict[str, datetime] = {}
        self.repeated = self.changed = 0

    def _running(self, kind: str) -> list[dict[str, Any]]:
        return [
            found
            for found in self.instances.values()
            if found["State"]["Name"] == "running" and found.get("InstanceLifecycle", "on_demand") == kind
        ]

    def running(self, kind: str) -> int:
        """Return the number of running instances of a kind without a notice."""
        return sum(found["InstanceId"] not in self.notices for found in self._running(kind))

    def create_fleet(self, **request: Any) -> Any:
        assert request_errors(request) == ""
        token = request["ClientToken"]
        if token in self.fleets:
            self.repeated += 1
            first, answer = self.fleets[token]
            if first != request:
                self.changed += 1
                raise client_error("IdempotentParameterMismatch")
            return answer
        sizes = request["TargetCapacitySpecification"]
        spot = min(sizes["SpotTargetCapacity"], max(0, self.spot - self.running("spot")))
        counts = {"on-demand": sizes["OnDemandTargetCapacity"], "spot": spot}
        groups = [
            {"Lifecycle": kind, "InstanceIds": [self._launch(request, kind) for _ in range(count)]}
            for kind, count in counts.items()
            if count
        ]
        refused = [] if spot == sizes["SpotTargetCapacity"] else [{"Lifecycle": "spot"}]
        errors = [error | {"ErrorCode": self.refusal, "ErrorMessage": "why"} for error in refused]
        answer = {"FleetId": f"fleet-{len(self.fleets)}", "Instances": groups, "Errors": errors}
        self.fleets[token] = request, answer
        self.launched(sizes)
        return answer

    def _launch(self, request: Any, kind: str) -> str:
        name = f"i-{len(self.instances)}"
        (config,) = request["LaunchTemplateConfigs"]
        (override,) = config["Overrides"]
        self.listed_from[name] = self.now + self.late()
        self.instances[name] = {
            "InstanceId": name,
            "InstanceType": override["InstanceType"],
            "Placement": {"AvailabilityZone": override["AvailabilityZone"]},
            "LaunchTime": self.now,
            "State": {"Name": "running"},
            "Tags": request["TagSpecifications"][1]["Tags"],
            **({"InstanceLifecycle": "spot"} if kind == "spot" else {}),
        }
        return name

    def terminate_instances(self, InstanceIds: list[str]) -> None:
        for name in InstanceIds:
            self.instances[name] |= {
                "State": {"Name": "terminated"},
                "StateTransitionReason": f"User initiated ({self.now:%Y-%m-%d %H:%M:%S} GMT)",
            }

    def give_notice(self, count: int = 100) -> None:
        """Give notice to the oldest running spot instances."""
        spot = [
            found["InstanceId"] for found in self._running("spot") if found["InstanceId"] not in self.notices
        ]
        self.notices |= dict.fromkeys(spot[:count], self.now)

    def reclaim(self) -> None:
        """Take the spot instances away that got notice two minutes ago."""
        for found in self._running("spot"):
            if self.now - self.notices.get(found["InstanceId"], self.now) >= timedelta(minutes=2):
                found["State"] = {"Name": "terminated"}
                found["StateReason"] = {"Code": "Server.SpotInstanceTermination"}
                self.ends[found["InstanceId"]] = self.now

    def describe_spot_instance_requests(self, Filters: Any) -> Any:
        (asked,) = Filters
        statuses = {name: ("marked-for-termination", at) for name, at in self.notices.items()}
        statuses |= {name: ("instance-terminated-no-capacity", at) for name, at in self.ends.items()}
        return {
            "SpotInstanceRequests": [
                {"InstanceId": name, "Status": {"Code": code, "UpdateTime": at}}
                for name, (code, at) in statuses.items()
                if name in asked["Values"]
            ]
        }

    def get_paginator(self, name: str) -> Ec2Double:
        assert name == "describe_instances"
        return self

    def paginate(self, Filters: Any) -> Any:
        (asked,) = Filters
        key, values = asked["Name"].removeprefix("tag:"), asked["Values"]
        listed = [
            found
            for found in self.instances.values()
            if self.now >= self.listed_from[found["InstanceId"]]
            and any(tag["Key"] == key and tag["Value"] in values for tag in found["Tags"])
        ]
        yield {"Reservations": [{"Instances": listed}]}
