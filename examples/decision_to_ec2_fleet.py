"""Convert a decision document (``slackwater.decision/2``) to a request for an AWS EC2 Fleet: CreateFleet or ModifyFleet.

    slackwater plan JOB --market MARKET --json > decision.json
    python examples/decision_to_ec2_fleet.py decision.json --template my-training > fleet.json
    aws ec2 create-fleet --region us-east-1 --cli-input-json file://fleet.json

    python examples/decision_to_ec2_fleet.py decision.json --fleet fleet-0123 > change.json
    aws ec2 modify-fleet --region us-east-1 --cli-input-json file://change.json

This script launches nothing. Requests have the form of the EC2 API of 2016-11-15. A fleet of type "maintain" keeps its size
until it is modified: the simplest setup is a fleet per job and a ModifyFleet request per slot. A fleet of type "instant"
starts instances once and does not manage them.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SCHEMA = "slackwater.decision/2"


class UnusableDecisionError(Exception):
    """Error of a document that cannot be converted to a request; the text gives the reason."""


def create_fleet(decision: dict[str, Any], *, template: str, kind: str = "maintain") -> dict[str, Any]:
    """Return the CreateFleet request of a decision.

    ``template``: name of the launch template; ``kind``: "maintain" or "instant". Raises `UnusableDecisionError` for a decision to
    run no instances, and for documents of another schema or provider.
    """
    market = _checked(decision)
    if decision["on_demand"] + decision["spot"] == 0:
        raise UnusableDecisionError("hold nothing in this slot: there is no fleet to create")
    request: dict[str, Any] = {
        "ClientToken": decision["key"],  # a repeated request creates no second fleet
        "Type": kind,
        "TargetCapacitySpecification": target(decision),
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": template, "Version": "$Default"},
                "Overrides": [{"InstanceType": market["instance_type"], "AvailabilityZone": market["zone"]}],
            }
        ],
        "SpotOptions": {
            "AllocationStrategy": "price-capacity-optimized",
            "InstanceInterruptionBehavior": "terminate",
        },
        "OnDemandOptions": {"AllocationStrategy": "lowest-price"},
        "TagSpecifications": [{"ResourceType": "fleet", "Tags": _tags(decision)}],
    }
    if kind == "maintain":
        request["ExcessCapacityTerminationPolicy"] = "termination"
    else:
        request["TagSpecifications"].append({"ResourceType": "instance", "Tags": _tags(decision)})
    return request


def modify_fleet(decision: dict[str, Any], *, fleet: str) -> dict[str, Any]:
    """Return the ModifyFleet request that resizes a fleet of type "maintain" to a decision, possibly to no instances."""
    _checked(decision)
    return {
        "FleetId": fleet,
        "TargetCapacitySpecification": target(decision),
        "ExcessCapacityTerminationPolicy": "termination",
    }


def target(decision: dict[str, Any]) -> dict[str, Any]:
    """Return the target capacity: numbers of on-demand and spot instances."""
    on_demand, spot = int(decision["on_demand"]), int(decision["spot"])
    return {
        "TotalTargetCapacity": on_demand + spot,
        "OnDemandTargetCapacity": on_demand,
        "SpotTargetCapacity": spot,
        "DefaultTargetCapacityType": "spot" if spot else "on-demand",
    }


def _checked(decision: dict[str, Any]) -> dict[str, str]:
    if decision.get("schema") != SCHEMA:
        raise UnusableDecisionError(f"schema {decision.get('schema')!r}, expected {SCHEMA!r}")
    market: dict[str, str] = decision["market_parts"]
    if market["provider"].lower() != "aws":
        raise UnusableDecisionError(f"a market of {market['provider']!r}, expected one of aws")
    return market


def _tags(decision: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {"Key": "slackwater:job", "Value": decision["job"][:256]},
        {"Key": "slackwater:key", "Value": decision["key"]},
        {"Key": "slackwater:valid-until", "Value": decision["valid_until"]},
    ]


def main() -> int:
    """Read a decision and print the request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("decision", type=Path, help="decision document, JSON; - for standard input")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--template", help="launch template of a new fleet")
    what.add_argument("--fleet", help="id of the fleet to bring to the decided size")
    parser.add_argument("--type", choices=("maintain", "instant"), default="maintain", dest="kind")
    parser.add_argument("--anyway", action="store_true", help="also for a slot that is over")
    given = parser.parse_args()
    text = sys.stdin.read() if str(given.decision) == "-" else given.decision.read_text(encoding="utf-8")
    decision = json.loads(text)
    try:
        if given.fleet:
            request = modify_fleet(decision, fleet=given.fleet)
        else:
            request = create_fleet(decision, template=given.template, kind=given.kind)
    except UnusableDecisionError as error:
        print(error, file=sys.stderr)
        return 2
    if datetime.fromisoformat(decision["valid_until"]) <= datetime.now(UTC) and not given.anyway:
        print(f"the slot ended at {decision['valid_until']}: ask for a new decision", file=sys.stderr)
        return 2
    print(json.dumps(request, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
