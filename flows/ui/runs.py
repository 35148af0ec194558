"""Data and charts of the ledger of runs and of completeness."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import pandas as pd

from slackwater.flows.command import Answer
from slackwater.flows.ledger.stages import STAGES
from slackwater.flows.monitoring.alarms import standing_alarms
from slackwater.flows.monitoring.completeness import STATES, Completeness
from slackwater.flows.monitoring.status import status_answer, status_of
from slackwater.flows.show.formats import rows_of
from slackwater.flows.ui.reading import Reading, UiPage, page_of_answer
from slackwater.warehouse.documents import read_object
from slackwater.warehouse.issued import read_rows

PROBLEM_STATES: Final = ("failed", "missing", "stale")  # States that are listed as problems
MOST_STRETCHES: Final = 200  # Maximum number of listed problems, newest first


def completeness(reading: Reading) -> UiPage:
    """Return the answer of ``status``, with the states of every market and slot by stage (a letter per slot, see ``letters``)."""
    none: dict[str, Any] = {
        "at": None,
        "reference_time": None,
        "slots": [],
        "stages": {},
        "counts": {},
        "letters": LETTERS,
        "stretches": [],
    }
    if reading.at is None:
        text = "Nothing to map yet: there is no turn and no market. `slackwater run` runs the first turn."
        return page_of_answer(Answer(title="Completeness", value=none, blocks=[text]), empty=True)
    answer = status_answer(found := status_of(reading.store, reading.settings, at=reading.present))
    return page_of_answer(replace(answer, value={**answer.value, **_states(reading, found.completeness)}))


def _states(reading: Reading, found: Completeness) -> dict[str, Any]:
    frame = found.frame
    stages: dict[str, list[dict[str, Any]]] = {stage: [] for stage in STAGES}
    keys = [frame["stage"], frame["market"], frame["source"]]
    for (stage, market, source), states in frame["state"].map(LETTERS).groupby(keys, sort=True):
        stages[str(stage)].append({"market": market, "source": source, "states": "".join(states)})
    counts = frame.groupby(["stage", "state"]).size()
    stretches = rows_of(found.stretches(PROBLEM_STATES).sort_values("until", ascending=False, kind="stable"))
    return {
        "at": reading.at,
        "reference_time": found.at,
        "slots": [pd.Timestamp(slot) for slot in sorted(set(frame["slot"]))],
        "stages": stages,
        "counts": {
            stage: {state: int(counts.get((stage, state), 0)) for state in STATES} for stage in STAGES
        },
        "letters": LETTERS,
        "stretches": stretches[:MOST_STRETCHES],
        "stretches_in_all": len(stretches),
    }


#: Letters of the states, for the rows of the map.
LETTERS: Final = {
    "done": "d", "fallback": "b", "not due": "-", "stale": "s", "failed": "f", "missing": "m",
}  # fmt: skip


def alarm_rows(reading: Reading) -> list[dict[str, Any]]:
    """Return the alarms active at the newest turn, serious alarms first."""
    if reading.at is None:
        return []
    rows = [alarm.row() for alarm in standing_alarms(reading.store, at=reading.at)]
    return sorted(rows, key=lambda row: row["severity"] != "serious")


# ---
# The ledger of runs: which stages of each turn are done, how they were made, and why a stage failed.

PAGE_RUNS: Final = 50  # Runs per page of the list


def runs_data(reading: Reading, *, page: int = 1) -> dict[str, Any]:
    """Return a page of the runs, newest first, and the address of the Prefect UI if the environment defines it."""
    total = int(reading.store.execute("SELECT count(DISTINCT run) FROM runs")[0][0])
    pages = max(1, -(-total // PAGE_RUNS))
    page = min(max(page, 1), pages)
    return {
        "at": reading.at,
        "page": page,
        "pages": pages,
        "total": total,
        "prefect_ui": prefect_ui(os.environ),
        "runs": run_rows(reading, most=PAGE_RUNS, skip=(page - 1) * PAGE_RUNS),
    }


def run_rows(reading: Reading, *, most: int, skip: int = 0) -> list[dict[str, Any]]:
    """Return a row per run: time, mode (live or backfill), and each stage's status with its counts or the reason."""
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
    return [run | _run_status(run["stages"]) for run in found.values()]


def _stage(row: Mapping[str, Any]) -> dict[str, Any]:
    details = read_object(row["details"]) or {}
    return {
        "status": str(row["status"]),
        "made": str(row["made"] or "live"),
        "reason": str(details.get("reason", "")),
        "left_out": [str(name) for name in details.get("left_out", ())],
        "details": {k: v for k, v in details.items() if k not in ("reason", "left_out")},
    }


def _run_status(stages: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the status of a run: "failed" if a stage failed, "done" if all are done, otherwise "part"."""
    statuses = {name: stages[name]["status"] if name in stages else "missing" for name in STAGES}
    whole = (
        "failed"
        if "failed" in statuses.values()
        else "done"
        if set(statuses.values()) == {"done"}
        else "part"
    )
    result = sorted({stage["made"] for stage in stages.values()})
    return {
        "status": whole,
        "made": " and ".join(result),
        "missing": [name for name, status in statuses.items() if status == "missing"],
        "reasons": [
            f"{name}: {stage_row['reason']}" for name, stage_row in stages.items() if stage_row["reason"]
        ],
        "left_out": list(dict.fromkeys(text for stage in stages.values() for text in stage["left_out"])),
    }


def prefect_ui(environment: Mapping[str, str]) -> str | None:
    """Return the address of the Prefect UI: ``PREFECT_UI_URL``, else ``PREFECT_API_URL`` without ``/api``.

    Returns None if neither is a web address.

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
