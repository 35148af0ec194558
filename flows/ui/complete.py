"""The completeness map, as plain values and drawn: the state of every market, stage and slot, and what is not well in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import pandas as pd

from flows.ledger.runs import STAGES
from flows.monitoring.alarms import standing_alarms
from flows.monitoring.completeness import DEFAULT_SPAN, STATES, completeness_of
from flows.monitoring.page import legend, stage_map
from flows.show.formats import rows_of
from flows.ui.reading import Reading

#: States that are listed slot by slot: something that was due is not as it should be.
LISTED: Final = ("failed", "missing", "stale")
#: Stretches listed at most, the newest first.
MOST_STRETCHES: Final = 200


def looked_at(reading: Reading) -> pd.Timestamp:
    """From when the map is told: the clock's time, or the newest turn's where that is long ago (a record, not a live pipeline)."""
    at = reading.at if reading.at is not None else reading.now
    return reading.now if pd.Timedelta(0) <= reading.now - at <= DEFAULT_SPAN else at


def completeness_data(reading: Reading) -> dict[str, Any]:
    """Slots, markets and their states by stage (one letter a slot, see ``letters``), counts, and the stretches not done."""
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


#: One letter a state, for the rows of the map.
LETTERS: Final = {
    "done": "d", "fallback": "b", "not due": "-", "stale": "s", "failed": "f", "missing": "m",
}  # fmt: skip


def alarm_rows(reading: Reading) -> list[dict[str, Any]]:
    """Alarms that stand at the newest turn, the serious ones first."""
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
    """The maps of the stages, and what is not done."""
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
    """Runs of the same letter as half-open ranges.

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
    """Stretches of the same stage, state and slots as one, with the markets it is about and the reasons that were given."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in stretches:
        key = (row["stage"], row["state"], row["since"], row["until"])
        one = found.setdefault(key, {**row, "markets": [], "reasons": []})
        one["markets"].append((row["market"], row["source"]))
        if row["reason"] and row["reason"] not in one["reasons"]:
            one["reasons"].append(row["reason"])
    return list(found.values())
