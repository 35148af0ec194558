"""Convert a decision document (``slackwater.decision/2``) to SkyPilot task files, with separate files for spot and on-demand.

    slackwater plan JOB --market MARKET --json > decision.json
    python examples/decision_to_skypilot.py decision.json --out tasks --run "python train.py --resume"
    sky launch -c my-job-spot tasks/my-job-spot.yaml

This script launches nothing. The keys are those of the YAML reference in SkyPilot's ``latest`` documentation, with
``infra: cloud/region/zone``; ``--old`` writes ``cloud``, ``region`` and ``zone`` as documented up to version 0.9.1.
A SkyPilot cluster is either all spot or all on-demand, hence two files; a decision to run no instances writes no file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

SCHEMA = "slackwater.decision/2"
#: Providers of markets -> clouds of SkyPilot.
CLOUDS = {
    "aws": "aws", "azure": "azure", "gcp": "gcp", "lambda": "lambda", "nebius": "nebius", "oci": "oci",
    "primeintellect": "primeintellect", "runpod": "runpod", "vast": "vast", "vastai": "vast",
}  # fmt: skip


class UnusableDecisionError(Exception):
    """Error of a document that cannot be converted to tasks; the text gives the reason."""


def tasks(
    decision: dict[str, Any], *, run: str | None = None, accelerators: str | None = None, old: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the tasks of a decision by name: at most two, with a node for each instance to run."""
    if decision.get("schema") != SCHEMA:
        raise UnusableDecisionError(f"schema {decision.get('schema')!r}, expected {SCHEMA!r}")
    found = {}
    for kind, spot in (("spot", True), ("on-demand", False)):
        nodes = int(decision["spot" if spot else "on_demand"])
        if nodes:
            name = f"{task_name(decision['job'])}-{kind}"
            resources = place(decision["market_parts"], old=old) | {"use_spot": spot}
            if accelerators:
                resources["accelerators"] = accelerators
            else:
                resources["instance_type"] = decision["market_parts"]["instance_type"]
            task: dict[str, Any] = {"name": name, "num_nodes": nodes, "resources": resources}
            task["envs"] = {
                "SLACKWATER_JOB": decision["job"],
                "SLACKWATER_KEY": decision["key"],
                "SLACKWATER_VALID_UNTIL": decision["valid_until"],
            }
            found[name] = task | ({"run": run} if run else {})
    return found


def place(market: dict[str, str], *, old: bool = False) -> dict[str, str]:
    """Return the location keys of a market: ``infra``, or the three keys it replaced."""
    cloud = CLOUDS.get(market["provider"].lower())
    if cloud is None:
        raise UnusableDecisionError(
            f"provider {market['provider']!r} is none that SkyPilot launches on here: {', '.join(sorted(CLOUDS))}"
        )
    region, zone = market["region"], market["zone"]
    has_zone = zone not in ("", "*", "all", region)
    if old:
        return {"cloud": cloud, "region": region} | ({"zone": zone} if has_zone else {})
    return {"infra": "/".join([cloud, region, zone] if has_zone else [cloud, region])}


def task_name(job: str) -> str:
    """Return the name of a job with only the characters allowed in cluster names."""
    return re.sub(r"[^a-z0-9-]+", "-", job.lower()).strip("-")[:40] or "job"


def is_over(decision: dict[str, Any], now: datetime) -> bool:
    """Return whether the slot of the decision has ended, so that no instances should be started for it."""
    return datetime.fromisoformat(decision["valid_until"]) <= now


def main() -> int:
    """Read a decision, write its tasks and print the file names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("decision", type=Path, help="decision document, JSON; - for standard input")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the task files")
    parser.add_argument("--run", help="command that trains, resuming from its checkpoint")
    parser.add_argument("--accelerators", help="such as H100:8, in the place of the instance type")
    parser.add_argument("--old", action="store_true", help="cloud, region and zone in the place of infra")
    parser.add_argument("--anyway", action="store_true", help="also for a slot that is over")
    given = parser.parse_args()
    text = sys.stdin.read() if str(given.decision) == "-" else given.decision.read_text(encoding="utf-8")
    decision = json.loads(text)
    try:
        found = tasks(decision, run=given.run, accelerators=given.accelerators, old=given.old)
    except UnusableDecisionError as error:
        print(error, file=sys.stderr)
        return 2
    if is_over(decision, datetime.now(UTC)) and not given.anyway:
        print(f"the slot ended at {decision['valid_until']}: ask for a new decision", file=sys.stderr)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    for name, task in found.items():
        file = given.out / f"{name}.yaml"
        file.write_text(yaml.safe_dump(task, sort_keys=False, allow_unicode=True), encoding="utf-8")
        print(file)
    if not found:
        print("hold nothing in this slot: take down what is running", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
