"""Data and charts of the ledger of runs and of completeness."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final
from urllib.parse import urlsplit

import pandas as pd

from slackwater.flows.ledger.records import STAGES
from slackwater.flows.monitoring.alarms import standing_alarms
from slackwater.flows.monitoring.completeness import DEFAULT_SPAN, STATES, completeness_of
from slackwater.flows.monitoring.status import legend, stage_map
from slackwater.flows.show.formats import rows_of
from slackwater.flows.ui.reading import Reading
from slackwater.warehouse.documents import read_object
from slackwater.warehouse.issued import read_rows

# ---
# The completeness map: the state of every market, stage and slot, and a list of the problems.

#: States that are listed as problems.
LISTED: Final = ("failed", "missing", "stale")
#: Maximum number of listed problems, newest first.
MOST_STRETCHES: Final = 200


def looked_at(reading: Reading) -> pd.Timestamp:
    """Return the reference time of the completeness map: now, or the newest turn if that is long ago (an old record)."""
    at = reading.at if reading.at is not None else reading.now
    return reading.now if pd.Timedelta(0) <= reading.now - at <= DEFAULT_SPAN else at


def completeness_data(reading: Reading) -> dict[str, Any]:
    """Return slots, markets with their states by stage (a letter per slot, see ``letters``), counts, and problems."""
    if reading.at is None:
        return {
            "at": None,
            "looked_at": None,
            "slots": [],
            "stages": {},
            "counts": {},
            "letters": LETTERS,
            "stretches": [],
        }
    found = completeness_of(reading.store, reading.settings, at=looked_at(reading))
    frame = found.frame
    slots = [pd.Timestamp(slot) for slot in sorted(set(frame["slot"]))]
    stages: dict[str, list[dict[str, Any]]] = {stage: [] for stage in STAGES}
    letter = frame["state"].map(LETTERS)
    for (stage, market, source), states in letter.groupby(
        [frame["stage"], frame["market"], frame["source"]], sort=True
    ):
        stages[str(stage)].append({"market": market, "source": source, "states": "".join(states)})
    counts = {
        stage: {state: int(n) for state, n in group.value_counts().items()}
        for stage, group in frame.groupby("stage")["state"]
    }
    stretches = rows_of(found.stretches(LISTED).sort_values("until", ascending=False, kind="stable"))
    return {
        "at": reading.at,
        "looked_at": found.at,
        "slots": slots,
        "stages": stages,
        "counts": {
            stage: {state: counts.get(stage, {}).get(state, 0) for state in STATES} for stage in STAGES
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
    rows = [
        {
            "kind": one.kind,
            "subject": one.subject,
            "severity": one.severity,
            "since": one.since,
            "text": one.text,
        }
        for one in standing_alarms(reading.store, at=reading.at)
    ]
    return sorted(rows, key=lambda row: row["severity"] != "serious")


def completeness_values(reading: Reading, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the maps of the stages, and the problems."""
    names = {letter: state for state, letter in LETTERS.items()}
    slots, maps = data["slots"], {}
    for stage, rows in data["stages"].items():
        stretches = [
            {
                "name": f"{row['market']}@{row['source']}",
                "state": names[letter],
                "since": slots[a],
                "until": slots[b - 1],
                "reason": "",
            }
            for row in rows
            for letter, a, b in runs_of(row["states"])
        ]
        maps[stage] = stage_map(stage, stretches, slots[0], slots[-1], reading.step) if slots else None
    return {"maps": maps, "meanings": legend(), "grouped": grouped_stretches(data["stretches"])}


def runs_of(letters: str) -> list[tuple[str, int, int]]:
    """Return runs of equal letters as half-open ranges.

    >>> runs_of("ddm")
    [('d', 0, 2), ('m', 2, 3)]
    """
    found, place = [], 0
    for letter, run in groupby(letters):
        length = len(list(run))
        found.append((letter, place, place + length))
        place += length
    return found


def grouped_stretches(stretches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Group problems of the same stage, state and slots, with their markets and distinct reasons."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in stretches:
        key = (row["stage"], row["state"], row["since"], row["until"])
        one = found.setdefault(key, {**row, "markets": [], "reasons": []})
        one["markets"].append((row["market"], row["source"]))
        if row["reason"] and row["reason"] not in one["reasons"]:
            one["reasons"].append(row["reason"])
    return list(found.values())


# ---
# The ledger of runs: which stages of each turn are done, how they were made, and why a stage failed.

#: Runs per page of the list.
PAGE_RUNS: Final = 50


def runs_data(
    reading: Reading, *, page: int = 1, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a page of the runs, newest first, and the address of the Prefect UI if the environment defines it."""
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
    """Return a row per run: time, mode (live or backfill), and the status of each stage with its
    counts or the reason of failure.
    """
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
    details = read_object(row["details"]) or {}
    return {
        "status": str(row["status"]),
        "made": str(row["made"] or "live"),
        "reason": str(details.get("reason", "")),
        "left_out": [str(one) for one in details.get("left_out", ())],
        "details": {k: v for k, v in details.items() if k not in ("reason", "left_out")},
    }


def _sums(stages: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the status of a run: "failed" if a stage failed, "done" if all are done, otherwise "part"."""
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
