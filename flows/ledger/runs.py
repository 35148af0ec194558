"""The ledger of runs: which stage of which turn is done, how it was made, and why one failed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from warehouse.issued.records import read_rows, write_rows
from warehouse.store.connection import Store

#: How a stage of a run was made: in its own slot, or afterwards.
LIVE, BACKFILL = "live", "backfill"
#: The stages of a turn in the order of their work; each is done once per slot.
STAGES = ("ingest", "forecast", "allocate", "score")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A stage of a run that is done, with its counts and how it was made."""

    run: str
    at: pd.Timestamp
    stage: str
    details: Mapping[str, Any]
    made: str = LIVE


def save_run(
    store: Store, run: str, *, at: pd.Timestamp, stage: str, details: Mapping[str, Any], made: str = LIVE
) -> None:
    """Record that a stage of a run is done, with its counts and how it was made; that it failed before is forgotten."""
    save_runs(store, [RunRow(run=run, at=at, stage=stage, details=details, made=made)])


def save_runs(store: Store, rows: Sequence[RunRow]) -> None:
    """Record that stages of runs are done; that they failed before is forgotten."""
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
    """Record that a stage of a run failed, and why, in the place of an earlier failure; a stage that is done stays done."""
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
