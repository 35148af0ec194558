"""The ledger of runs: which stage of which turn is done, how it was made, why one failed and whether to try it again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pandas as pd

from warehouse.errors import DamagedStoreError, InputError, SchemaError, StoreError
from warehouse.issued import read_rows, write_rows
from warehouse.store.connection import Store

#: How a stage of a run was made: in its own slot, or afterwards.
LIVE, BACKFILL = "live", "backfill"
#: The stages of a turn in the order of their work; each is done once per slot.
STAGES = ("ingest", "forecast", "allocate", "score")
#: Characters of a reason that are kept.
LONGEST_REASON = 2000


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


class failure_kept:
    """Record in the ledger why a stage failed, in a transaction of its own, and let the error go on.

    The stage's own rows are gone by then, as it keeps all of them or none. A run that succeeds later takes the record's place.
    If the warehouse cannot take the record either, the first error still is the one that is raised.
    """

    def __init__(
        self, store: Store, run: str, *, at: pd.Timestamp, stage: str, say: Callable[[str], None]
    ) -> None:
        self._store = store
        self._run = run
        self._at = at
        self._stage = stage
        self._say = say

    def __enter__(self) -> None:
        """Nothing to do before the stage."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep the reason of an error; a killed process keeps nothing, so its stage stays missing."""
        if not isinstance(error, Exception):
            return
        try:
            save_failure(self._store, self._run, at=self._at, stage=self._stage, reason=reason_of(error))
        except StoreError as second:
            self._say(f"why {self._stage} failed could not be kept: {second}")


def reason_of(error: BaseException) -> str:
    """One sentence of an error: the project's own speak for themselves, others with their kind."""
    text = str(error).strip()
    named = text if isinstance(error, (InputError, StoreError)) else f"{type(error).__name__}: {text}"
    return named[:LONGEST_REASON]


def worth_another_try(error: BaseException | None) -> bool:
    """Whether the same work may succeed a little later: not with the same wrong input, nor after the time it was given."""
    return error is not None and not isinstance(
        error, (InputError, SchemaError, DamagedStoreError, TimeoutError)
    )
