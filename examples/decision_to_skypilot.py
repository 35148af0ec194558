"""A decision document (``slackwater.decision/2``) as SkyPilot task files: one for spot, one for on-demand, where both are held.

    slackwater plan JOB --market MARKET --json > decision.json
    python examples/decision_to_skypilot.py decision.json --out tasks --run "python train.py --resume"
    sky launch -c my-job-spot tasks/my-job-spot.yaml

Nothing is launched here. The keys are those of SkyPilot's YAML reference as its ``latest`` documentation has them, with
``infra: cloud/region/zone``; the documentation up to 0.9.1 has ``cloud``, ``region`` and ``zone`` instead: ``--old``.
A cluster of SkyPilot is all spot or all on-demand, hence two files; a decision to hold nothing writes none.
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
#: Providers of markets, as SkyPilot calls their clouds.
CLOUDS = {
    "aws": "aws", "azure": "azure", "gcp": "gcp", "lambda": "lambda", "nebius": "nebius", "oci": "oci",
    "primeintellect": "primeintellect", "runpod": "runpod", "vast": "vast", "vastai": "vast",
}  # fmt: skip


class UnusableDecisionError(Exception):
    """A document that cannot be turned into tasks; the text says why and what to do."""


def tasks(
    decision: dict[str, Any], *, run: str | None = None, accelerators: str | None = None, old: bool = False
) -> dict[str, dict[str, Any]]:
    """The tasks of a decision by name: none, one or two, each with as many nodes as instances are to be held."""
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
    """Where it runs: ``infra``, or the three keys it replaced."""
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
    """A job's name in letters that clusters may be named with."""
    return re.sub(r"[^a-z0-9-]+", "-", job.lower()).strip("-")[:40] or "job"


def is_over(decision: dict[str, Any], now: datetime) -> bool:
    """Whether the slot that was decided has ended: nothing should be started for it any more."""
    return datetime.fromisoformat(decision["valid_until"]) <= now


def main() -> int:
    """Read a decision, write its tasks, say what was written."""
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
