"""Stored forecast errors, measured by turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isnan

import pandas as pd

from slackwater.warehouse.documents import read_object
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.store.connection import Store

#: Columns of errors stored separately; the others are stored as JSON in "more".
ACCURACY_COLUMNS = (
    "market", "source", "model", "variable", "step", "n", "mae", "rmse", "mase", "pinball", "skill_mae",
    "skill_pinball", "coverage_80", "width_80", "brier", "absent", "unpredicted", "fallback_share",
)  # fmt: skip


_TIMES_A_WRITE = 12  # Times whose errors are written together, to limit memory


def save_accuracy(store: Store, measured: Sequence[tuple[pd.Timestamp, pd.DataFrame]]) -> None:
    """Store the errors measured at each of some times; all or nothing."""
    tables = [(at, accuracy) for at, accuracy in measured if len(accuracy)]
    with store.transaction():
        for i in range(0, len(tables), _TIMES_A_WRITE):
            own = tables[i : i + _TIMES_A_WRITE]
            table = pd.concat([accuracy.assign(measured_at=at) for at, accuracy in own], ignore_index=True)
            kept = table[[*ACCURACY_COLUMNS, "measured_at"]]
            write_rows(store, "accuracy", kept.assign(more=_as_json(table.drop(columns=list(kept.columns)))))


def measured_errors(store: Store, at: pd.Timestamp | None) -> pd.DataFrame:
    """Return the errors measured at a time as stored, with the ``scale`` that pooling needs (NaN if not stored)."""
    table = read_rows(store, "accuracy", where={"measured_at": at})
    scales = [(read_object(text) or {}).get("scale") for text in table["more"]]
    return table.drop(columns=["more"]).assign(scale=pd.Series(scales, index=table.index, dtype=float))


def _as_json(table: pd.DataFrame) -> list[str]:
    """Return each row of a table of numbers as `json.dumps` writes it, with null for NaN."""
    form = "{" + ", ".join(f"{json.dumps(str(name))}: %s" for name in table.columns) + "}"
    written = [
        ["null" if isnan(value) else repr(value) for value in table[name].to_numpy(dtype=float).tolist()]
        for name in table.columns
    ]
    return [form % row for row in zip(*written, strict=True)]
