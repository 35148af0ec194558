"""The ledger of runs as plain values: which stage of which turn is done, how it was made, and why one failed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import pandas as pd

from flows.ledger.runs import STAGES
from flows.show.formats import rows_of
from flows.ui.reading import Reading
from warehouse.issued import read_rows

#: Runs of one page of the list.
PAGE_RUNS: Final = 50


def runs_data(
    reading: Reading, *, page: int = 1, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Runs, the newest first, `PAGE_RUNS` a page, and where the Prefect UI is if the environment says so."""
    total = int(reading.store.execute("SELECT count(DISTINCT run) FROM runs")[0][0])
    pages = max(1, -(-total // PAGE_RUNS))
    page = min(max(page, 1), pages)
    return {
        "at": reading.at,
        "page": page,
        "pages": pages,
        "total": total,
        "prefect_ui": prefect_ui(os.environ if environment is None else environment),
        "runs": run_rows(reading, most=PAGE_RUNS, skip=(page - 1) * PAGE_RUNS),
    }


def run_rows(reading: Reading, *, most: int, skip: int = 0) -> list[dict[str, Any]]:
    """One row a run: its time, how it was made, the status of every stage with its counts or the reason of its failure."""
    names = [
        row[0]
        for row in reading.store.execute(
            "SELECT run FROM runs GROUP BY run ORDER BY max(logical_at) DESC, run DESC LIMIT ? OFFSET ?",
            [most, skip],
        )
    ]
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for row in rows_of(read_rows(reading.store, "runs", where={"run": names})):
        run = found[row["run"]]
        run.setdefault("run", row["run"])
        run.setdefault("at", pd.Timestamp(row["logical_at"]))
        stages = run.setdefault("stages", {})
        if stages.get(row["stage"], {}).get("status") != "done":
            stages[row["stage"]] = _stage(row)
    return [run | _sums(run["stages"]) for run in found.values()]


def _stage(row: Mapping[str, Any]) -> dict[str, Any]:
    details = json.loads(row["details"] or "{}")
    return {
        "status": str(row["status"]),
        "made": str(row["made"] or "live"),
        "reason": str(details.get("reason", "")),
        "left_out": [str(one) for one in details.get("left_out", ())],
        "details": {k: v for k, v in details.items() if k not in ("reason", "left_out")},
    }


def _sums(stages: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The status of the whole run: failed if a stage is, done if all are, part of it otherwise."""
    statuses = {name: stages[name]["status"] if name in stages else "missing" for name in STAGES}
    whole = (
        "failed"
        if "failed" in statuses.values()
        else "done"
        if set(statuses.values()) == {"done"}
        else "part"
    )
    made = sorted({stage["made"] for stage in stages.values()})
    return {
        "status": whole,
        "made": " and ".join(made),
        "missing": [name for name, status in statuses.items() if status == "missing"],
        "reasons": [f"{name}: {one['reason']}" for name, one in stages.items() if one["reason"]],
        "left_out": list(dict.fromkeys(text for one in stages.values() for text in one["left_out"])),
    }


def prefect_ui(environment: Mapping[str, str]) -> str | None:
    """Address of the Prefect UI: ``PREFECT_UI_URL``, else ``PREFECT_API_URL`` without its ``/api``; None if neither is a web
    address.

    >>> prefect_ui({"PREFECT_API_URL": "http://127.0.0.1:4200/api"}), prefect_ui({"PREFECT_UI_URL": "javascript:x"})
    ('http://127.0.0.1:4200', None)
    """
    for text in (
        environment.get("PREFECT_UI_URL", ""),
        environment.get("PREFECT_API_URL", "").rstrip("/").removesuffix("/api"),
    ):
        address = text.strip().rstrip("/")
        try:
            parts = urlsplit(address)
        except ValueError:
            continue
        if parts.scheme in ("http", "https") and parts.netloc:
            return address
    return None
