"""Duration of the newest turn, in a file next to the warehouse, whose rows do not depend on the speed of a turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from slackwater.flows.show.page import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSeconds:
    """Seconds of each stage of a turn, by its name in the ledger, and of the whole turn.

    The whole includes opening and closing the warehouse.
    """

    run: str
    stages: Mapping[str, float]
    whole: float


def seconds_file(db: Path) -> Path:
    """Return the path of the file with the durations."""
    return db.with_name(f"{db.stem}.seconds.json")


def save_seconds(db: Path, seconds: TurnSeconds) -> None:
    """Store the durations in place of those of the turn before; raises `OSError` if they cannot be written."""
    write_whole(seconds_file(db), json.dumps(asdict(seconds)))


def read_seconds(db: Path) -> TurnSeconds | None:
    """Return the durations of the newest turn; None before the first turn, and if the file cannot be read."""
    try:
        found = json.loads(seconds_file(db).read_text(encoding="utf-8"))
        stages = {str(stage): float(value) for stage, value in found["stages"].items()}
        return TurnSeconds(run=str(found["run"]), stages=stages, whole=float(found["whole"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
