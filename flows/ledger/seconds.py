"""How long the newest turn took: beside the warehouse, whose rows are the same however fast they were made."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSeconds:
    """Seconds of each stage of a turn, as the ledger names them, and of the whole: the warehouse is opened and closed, too."""

    run: str
    stages: Mapping[str, float]
    whole: float


def seconds_file(db: Path) -> Path:
    """Where they stand."""
    return db.with_name(f"{db.stem}.seconds.json")


def save_seconds(db: Path, seconds: TurnSeconds) -> None:
    """Keep them in the place of the turn before; raises `OSError` where that cannot be."""
    part = seconds_file(db).with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(asdict(seconds)), encoding="utf-8")
    os.replace(part, seconds_file(db))


def read_seconds(db: Path) -> TurnSeconds | None:
    """Those of the newest turn; None before the first, and where the file cannot be read."""
    try:
        found = json.loads(seconds_file(db).read_text(encoding="utf-8"))
        stages = {str(stage): float(value) for stage, value in found["stages"].items()}
        return TurnSeconds(run=str(found["run"]), stages=stages, whole=float(found["whole"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
