"""The ledger of runs: which stage of which turn is done, how it was made, and why one failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from warehouse.store import Store, read_rows, write_rows

#: How a stage of a run was made: in its own slot, or afterwards.
LIVE, BACKFILL = "live", "backfill"
#: The stages of a turn in the order of their work; each is done once per slot.
STAGES = ("ingest", "forecast", "allocate", "score")


def save_run(
    store: Store, run: str, *, at: pd.Timestamp, stage: str, details: Mapping[str, Any], made: str = LIVE
) -> None:
    """Record that a stage of a run is done, with its counts and how it was made; that it failed before is forgotten."""
    with store.transaction():
        store.execute("DELETE FROM runs WHERE run = ? AND stage = ? AND status = 'failed'", [run, stage])
        _write_run(store, run, at=at, stage=stage, status="done", details=details, made=made)


def save_failure(
    store: Store, run: str, *, at: pd.Timestamp, stage: str, reason: str, made: str = LIVE
) -> None:
    """Record that a stage of a run failed, and why, in the place of an earlier failure; a stage that is done stays done."""
    with store.transaction():
        if len(read_rows(store, "runs", where={"run": run, "stage": stage, "status": "done"})):
            return
        store.execute("DELETE FROM runs WHERE run = ? AND stage = ? AND status = 'failed'", [run, stage])
        _write_run(store, run, at=at, stage=stage, status="failed", details={"reason": reason}, made=made)


def _write_run(
    store: Store,
    run: str,
    *,
    at: pd.Timestamp,
    stage: str,
    status: str,
    details: Mapping[str, Any],
    made: str,
) -> None:
    row = {
        "run": run,
        "logical_at": at,
        "stage": stage,
        "status": status,
        "details": json.dumps(dict(details)),
        "made": made,
    }
    write_rows(store, "runs", pd.DataFrame([row]))
