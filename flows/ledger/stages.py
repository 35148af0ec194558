"""Ledger of runs: completed and failed stages of each turn, the reason of a failure, and whether to retry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from slackwater.warehouse.errors import DamagedStoreError, InputError, SchemaError, StoreError
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.store.connection import Store

LIVE, BACKFILL = "live", "backfill"  # Time of a stage's run: in its own slot, or later
#: The stages of a turn in order; each is done once per slot.
STAGES = ("ingest", "forecast", "allocate", "score")
LONGEST_REASON = 2000  # Most characters stored of a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A completed stage of a run, with its counts and whether it ran live."""

    run: str
    at: pd.Timestamp
    stage: str
    details: Mapping[str, Any]
    made: str = LIVE


def save_runs(store: Store, rows: Sequence[RunRow]) -> None:
    """Record that stages of runs are done; earlier failures of them are deleted."""
    if not rows:
        return
    with store.transaction():
        store.execute(
            "DELETE FROM runs USING (SELECT unnest($runs) AS run, unnest($stages) AS stage) AS done "
            "WHERE runs.run = done.run AND runs.stage = done.stage AND runs.status = 'failed'",
            {"runs": [row.run for row in rows], "stages": [row.stage for row in rows]},
        )
        _write(store, [(row, "done") for row in rows])


def save_failure(
    store: Store, run: str, *, at: pd.Timestamp, stage: str, reason: str, made: str = LIVE
) -> None:
    """Record that a stage of a run failed, and why, in place of an earlier failure; ignored if the stage is done."""
    with store.transaction():
        if len(read_rows(store, "runs", where={"run": run, "stage": stage, "status": "done"})):
            return
        store.execute("DELETE FROM runs WHERE run = ? AND stage = ? AND status = 'failed'", [run, stage])
        row = RunRow(run=run, at=at, stage=stage, details={"reason": reason}, made=made)
        _write(store, [(row, "failed")])


def _write(store: Store, rows: Sequence[tuple[RunRow, str]]) -> None:
    table = [
        {
            "run": row.run,
            "logical_at": row.at,
            "stage": row.stage,
            "status": status,
            "details": json.dumps(dict(row.details)),
            "made": row.made,
        }
        for row, status in rows
    ]
    write_rows(store, "runs", pd.DataFrame(table))


@contextmanager
def recorded_failure(
    store: Store, run: str, *, at: pd.Timestamp, stage: str, say: Callable[[str], None]
) -> Iterator[None]:
    """Record in the ledger why a stage failed, in a separate transaction; the error is raised in any case.

    The stage's rows are rolled back by then. A later successful run replaces the record.
    """
    try:
        yield
    except Exception as error:  # after an interruption the stage stays missing, as after a kill
        try:
            save_failure(store, run, at=at, stage=stage, reason=reason_of(error))
        except StoreError as second:
            say(f"the failure of {stage} could not be recorded: {second}")
        raise


def reason_of(error: BaseException) -> str:
    """Return an error as a sentence, with its type unless it is an error of this project."""
    text = str(error).strip()
    named = text if isinstance(error, (InputError, StoreError)) else f"{type(error).__name__}: {text}"
    return named[:LONGEST_REASON]


def worth_another_try(error: BaseException | None) -> bool:
    """Return whether a retry may succeed: not after invalid input, a wrong schema, a damaged store, or a timeout."""
    return error is not None and not isinstance(
        error, (InputError, SchemaError, DamagedStoreError, TimeoutError)
    )


# ---
# Duration of the newest turn, in a file next to the warehouse, whose rows do not depend on the speed of a turn.


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSeconds:
    """Seconds of each stage of a turn, and of the whole turn, opening and closing the warehouse included."""

    run: str
    stages: Mapping[str, float]
    whole: float


def seconds_file(db: Path) -> Path:
    """Return the path of the file with the durations."""
    return db.with_name(f"{db.stem}.seconds.json")


def save_seconds(db: Path, seconds: TurnSeconds) -> None:
    """Store the durations in place of those of the turn before; raises `OSError` if they cannot be written."""
    from slackwater.flows.show.page import write_whole

    write_whole(seconds_file(db), json.dumps(asdict(seconds)))


def read_seconds(db: Path) -> TurnSeconds | None:
    """Return the durations of the newest turn; None before the first turn, and if the file cannot be read."""
    try:
        found = json.loads(seconds_file(db).read_text(encoding="utf-8"))
        stages = {str(stage): float(value) for stage, value in found["stages"].items()}
        return TurnSeconds(run=str(found["run"]), stages=stages, whole=float(found["whole"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
