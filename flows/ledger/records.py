"""Decisions and measured errors as the warehouse keeps them, read back as values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from typing import Any

import pandas as pd

from flows.ledger.fields import DECISION, whole_row
from optimization.window.plan import Allocation
from warehouse.issued import read_rows, write_rows
from warehouse.store.connection import Store


def save_decisions(store: Store, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Keep decisions, each with its run; one that was issued for a job and slot before stands and is not changed."""
    if not rows:
        return
    own = [name for name, one in DECISION.items() if one.column]
    table = [
        {name: row[name] for name in own}
        | {"slot": pd.Timestamp(row["slot"]), "run": run, "details": json.dumps(row)}
        for run, row in rows
    ]
    write_rows(store, "decisions", pd.DataFrame(table))


def stored_decisions(
    store: Store, where: Mapping[str, object], *, order_by: Sequence[str] = ()
) -> list[tuple[str, dict[str, Any]]]:
    """Decisions that `read_rows` finds, each with its run; what was not said when one was made is None."""
    rows = read_rows(store, "decisions", where=where, order_by=order_by)
    return [
        (run, whole_row(json.loads(text))) for run, text in zip(rows["run"], rows["details"], strict=True)
    ]


def decisions_of(store: Store, job: str) -> list[dict[str, Any]]:
    """Every decision made for a job, by slot, as plain values."""
    return decisions_by_job(store, [job])[job]


def decisions_by_job(store: Store, jobs: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """`decisions_of` for several jobs by one statement."""
    found: dict[str, list[dict[str, Any]]] = {job: [] for job in jobs}
    for _, row in stored_decisions(store, {"job": list(jobs)}):
        found[row["job"]].append(row)
    return {job: sorted(own, key=lambda row: str(row["slot"])) for job, own in found.items()}


def allocations_of(decisions: Iterable[Mapping[str, Any]]) -> dict[pd.Timestamp, Allocation]:
    """What was decided, by slot."""
    return {
        pd.Timestamp(row["slot"]): Allocation(int(row["on_demand"]), int(row["spot"])) for row in decisions
    }


#: Columns of the errors that the warehouse keeps apart; the rest goes into "more" as JSON.
ACCURACY_COLUMNS = (
    "market", "source", "model", "variable", "step", "n", "mae", "rmse", "mase", "pinball", "skill_mae",
    "skill_pinball", "coverage_80", "width_80", "brier", "absent", "unpredicted", "fallback_share",
)  # fmt: skip


#: Times whose errors are written together: of a long stretch all at once would be held several times over.
_TIMES_A_WRITE = 12


def save_accuracy(store: Store, measured: Sequence[tuple[pd.Timestamp, pd.DataFrame]]) -> None:
    """Keep the errors measured at each of some times; all or nothing."""
    tables = [(at, accuracy) for at, accuracy in measured if len(accuracy)]
    with store.transaction():
        for i in range(0, len(tables), _TIMES_A_WRITE):
            own = tables[i : i + _TIMES_A_WRITE]
            table = pd.concat([accuracy.assign(measured_at=at) for at, accuracy in own], ignore_index=True)
            kept = table[[*ACCURACY_COLUMNS, "measured_at"]]
            write_rows(store, "accuracy", kept.assign(more=_as_json(table.drop(columns=list(kept.columns)))))


def measured_errors(store: Store, at: pd.Timestamp | None) -> pd.DataFrame:
    """The errors measured at a time as they were kept, with the ``scale`` that pooling needs (NaN where none was kept)."""
    table = read_rows(store, "accuracy", where={"measured_at": at})
    scales = [json.loads(text).get("scale") for text in table["more"]]
    return table.drop(columns=["more"]).assign(scale=pd.Series(scales, index=table.index, dtype=float))


def _as_json(table: pd.DataFrame) -> list[str]:
    """Each row of a table of numbers as `json.dumps` writes it, with null for NaN."""
    form = "{" + ", ".join(f"{json.dumps(str(name))}: %s" for name in table.columns) + "}"
    written = [
        ["null" if isnan(value) else repr(value) for value in table[name].to_numpy(dtype=float).tolist()]
        for name in table.columns
    ]
    return [form % row for row in zip(*written, strict=True)]
