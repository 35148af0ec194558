"""A launcher for the driver `command`: instances in a file, each launch and end in a log of its own.

python launcher.py FOLDER [REFUSED]       a call of the driver; the first REFUSED spot instances are refused
"""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@contextmanager
def state(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the state of the launcher, alone, and store it."""
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = folder / "state.json"
        found = json.loads(file.read_text()) if file.exists() else {"held": [], "past": [], "refused": 0}
        found.setdefault("tokens", [])
        yield found
        part = file.with_suffix(".new")
        part.write_text(json.dumps(found))
        part.replace(file)


def now() -> str:
    return datetime.now(UTC).isoformat()


def end(found: dict[str, Any], ended: list[dict[str, Any]], why: str) -> None:
    """End some instances now."""
    ids = {instance["id"] for instance in ended}
    found["past"] += [instance | {"ended": now(), "end": why} for instance in ended]
    found["held"] = [instance for instance in found["held"] if instance["id"] not in ids]


def lose_spot(folder: Path) -> int:
    """Take all spot instances away, as a provider does; return their number."""
    with state(folder) as found:
        spot = [instance for instance in found["held"] if instance["kind"] == "spot"]
        end(found, spot, "lost")
    return len(spot)


def bring(found: dict[str, Any], order: dict[str, Any], refused: int) -> str:
    """Bring the instances to the target of an order, once; return why some were not granted."""
    if order["token"] in found["tokens"]:
        return ""
    found["tokens"].append(order["token"])
    target, kept, why = order["target"], [], ""
    for instance in found["held"]:
        here = [other for other in kept if other["kind"] == instance["kind"]]
        if instance["market"] == target["market"] and len(here) < target[instance["kind"]]:
            kept.append(instance)
    end(found, [instance for instance in found["held"] if instance not in kept], "stopped")
    for kind in ("on_demand", "spot"):
        for k in range(sum(instance["kind"] == kind for instance in kept), target[kind]):
            if kind == "spot" and found["refused"] < refused:
                found["refused"] += 1
                why = "1 spot: no capacity"
                continue
            kept.append(
                {
                    "id": f"i-{len(found['tokens'])}-{kind}-{k}",
                    "kind": kind,
                    "market": target["market"],
                    "key": order["key"],
                    "since": now(),
                }
            )
    found["held"] = kept
    return why


def main(folder: Path, refused: int) -> None:
    order = json.load(sys.stdin)
    with state(folder) as found:
        why = bring(found, order, refused) if order["action"] == "bring" else ""
        print(json.dumps({"held": found["held"] + found["past"], "refused": why}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
