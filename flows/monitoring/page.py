"""A status as sections: the completeness map, how fresh every source is, the alarms; on terminals, on pages, in the UI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd

from flows.ledger.runs import STAGES
from flows.monitoring.completeness import NOT_DONE, STATES, told_span
from flows.monitoring.status import Status
from flows.show.blocks import Banner, Block, Column, Fold, Page, Section, Table, keyed
from flows.show.figure import Figure
from flows.show.formats import missing, rows_of, utc, whole

#: States that are drawn, each with its colour and the letter in its boxes, so that none needs colour to be read.
LOOKS: Final[dict[str, tuple[str, str]]] = {
    "done": ("band80", ""),
    "fallback": ("series5", "B"),
    "stale": ("muted", "S"),
    "failed": ("series2", "F"),
    "missing": ("ink", "M"),
}
MEANINGS: Final[dict[str, str]] = {
    "done": "done",
    "fallback": "a simpler model answered",
    "not due": "nothing was due",
    "stale": "the newest observation was too old",
    "failed": "failed or left out",
    "missing": "not done, though due",
}
#: Stretches that a terminal shows at most.
_SHOWN: Final = 20


def status_page(found: Status) -> Page:
    """The page of a status: the verdict and the alarms first."""
    done = found.completeness
    note = f" {found.note[:1].upper()}{found.note[1:]}." if found.note else ""
    well = found.exit_code == 0
    return Page(
        title="Status of the pipeline",
        short=f"status at {utc(found.at)}",
        about=(
            f"Looked at {utc(found.at)}; slots of {told_span(done.step)} from {utc(done.start)} to {utc(done.end)}.{note}"
        ),
        banner=None if well else Banner("Not all is well.", found.sentence()),
        blocks=[
            *([found.sentence()] if well else []),
            alarms_section(found),
            completeness_section(found, drawn=True),
            freshness_section(found),
        ],
    )


def status_blocks(found: Status) -> list[Block]:
    """What a terminal shows: the same, and the verdict last, where it stays in sight."""
    sentence = found.sentence() + (f" ({found.note})" if found.note else "")
    return [
        completeness_section(found),
        freshness_section(found),
        alarms_section(found),
        sentence,
    ]


def alarms_section(found: Status) -> Section:
    """The alarms that stand."""
    rows = [
        {"kind": one.kind, "subject": one.subject, "severity": one.severity, "since": one.since, "text": one.text}
        for one in found.alarms
    ]  # fmt: skip
    columns = keyed(kind="alarm", subject="about", severity="severity", since="since (UTC)") | {
        "text": Column(heading="what, and what to do")
    }
    return Section("Alarms", [Table("", rows, columns, empty="No alarm stands.")], "alarms")


def completeness_section(found: Status, *, drawn: bool = False) -> Section:
    """Slots by market and stage, ``drawn`` as a map a stage, and what was due and is not done."""
    done = found.completeness
    if done.frame.empty:
        return Section("Completeness", ["No market was followed in these slots."], "map")
    lacking = done.stretches(NOT_DONE).sort_values("until", kind="stable", ascending=False)
    doubtful = done.stretches(("stale", "fallback")).sort_values("until", kind="stable", ascending=False)
    columns = keyed("stage", "state", name="market", since="from (UTC)", until="to (UTC)", slots="slots",
                    reason="why")  # fmt: skip
    newest = (
        f" (the newest {_SHOWN} of {len(lacking)} stretches)" if len(lacking) > _SHOWN and not drawn else ""
    )
    lists: list[Block] = [Table(f"Not done{newest}", _named(lacking), columns, most=_SHOWN)]
    if len(doubtful):
        table = Table("", _named(doubtful), columns)
        count = f"{len(doubtful):,} {'stretch' if len(doubtful) == 1 else 'stretches'}"
        lists.append(Fold(f"Stale, or answered by a simpler model: {count}", [table]))
    span = f"{utc(done.start).removesuffix(' UTC')} to {utc(done.end)}"
    return Section(
        "Completeness",
        [
            *(_maps(found) if drawn else []),
            Table(f"Slots done of those due, {span}", stage_cells(done.summary()), keyed("market", *STAGES)),
            Table("Slots of all markets by state", _state_counts(done.frame), _STATE_COLUMNS),
            *lists,
        ],
        "map",
    )


def _named(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of markets, with the market and its source as one name."""
    return [{**row, "name": f"{row['market']}@{row['source']}"} for row in rows_of(frame)]


_STATE_COLUMNS: Final[dict[str, Column | str]] = {
    "stage": "stage",
    **{state: Column(heading=state, format=whole, words=MEANINGS[state]) for state in STATES},
}


def _state_counts(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Slots by stage and state over all markets."""
    counts = frame.groupby(["stage", "state"]).size()
    return [
        {"stage": stage} | {state: int(counts.get((stage, state), 0)) for state in STATES} for stage in STAGES
    ]


def stage_cells(summary: pd.DataFrame) -> list[dict[str, str]]:
    """A row a market with a short text for each stage, such as ``142 of 144, 2 missing``."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows_of(summary):
        own = rows.setdefault((row["market"], row["source"]), {"market": f"{row['market']}@{row['source']}"})
        due = sum(int(row[state]) for state in STATES if state != "not due")
        others = [f"{row[state]} {state}" for state in STATES[1:] if state != "not due" and row[state]]
        good = int(row["done"] + row["fallback"])
        own[row["stage"]] = ", ".join([f"{good} of {due}", *others]) if due else "-"
    return [
        {"market": one["market"], **{stage: one.get(stage, "-") for stage in STAGES}} for one in rows.values()
    ]


def _maps(found: Status) -> list[Block]:
    done = found.completeness
    stretches = _named(done.stretches(STATES))
    maps = [
        stage_map(stage, [row for row in stretches if row["stage"] == stage], done.start, done.end, done.step)
        for stage in STAGES
    ]
    return [legend(), *maps]


def legend() -> str:
    """The letters of the map in words."""
    told = [f"{letter}: {MEANINGS[state]}" for state, (_, letter) in LOOKS.items() if letter]
    return f"A strip a market. Letters in the boxes: {'; '.join(told)}; no letter: done; empty: {MEANINGS['not due']}."


def stage_map(
    stage: str, stretches: Sequence[Mapping[str, Any]], start: pd.Timestamp, end: pd.Timestamp, step: pd.Timedelta
) -> Figure:  # fmt: skip
    """The map of one stage: a strip a market, from rows with ``name``, ``state``, ``since``, ``until`` (slots) and ``reason``.

    Markets with most trouble come first; where nothing was due nothing is drawn.
    """
    from flows.show.charts import cells

    order = [*reversed(LOOKS), "not due"]
    worst: dict[str, int] = {}
    slots: dict[str, int] = {}
    for row in stretches:
        rank = order.index(row["state"])
        worst[row["name"]] = min(rank, worst.get(row["name"], rank))
        slots[row["state"]] = slots.get(row["state"], 0) + round((row["until"] - row["since"]) / step) + 1
    names = sorted(worst, key=lambda name: (worst[name], name))
    rows = [
        {"x": row["since"], "x2": row["until"] + step, "name": row["name"], "state": row["state"], "why": row["reason"]}
        for row in stretches
        if row["state"] in LOOKS
    ]  # fmt: skip
    told = ", ".join(f"{slots[state]:,} {state}" for state in STATES if state in slots)
    label = f"{stage}: of {sum(slots.values()):,} slots {told}"
    if not rows:
        return Figure(specs=[], label=label, title=stage, why="Nothing was due.", width=0)
    shown = {state: look for state, look in LOOKS.items() if state in slots}
    return Figure(
        specs=[cells(rows, names, ends=(start, end + step), states=shown)], label=label, title=stage,
        captions=[f"Of {sum(slots.values()):,} slots: {told}."], width=0,
    )  # fmt: skip


def freshness_section(found: Status) -> Section:
    """What every source owes and what it did, and the live feeds."""
    rows = [
        {
            **row,
            "age": _span(row["age"]),
            "every": "on change" if missing(row["every"]) else told_span(row["every"]),
            "late": _span(row["late_by"]) if row["late_by"] else None,
            "is_stale": "stale" if row["stale"] else "no",
        }
        for row in _named(found.freshness)
    ]
    columns = keyed(name="market", kind="of", newest="newest (UTC)", age="age", every="every",
                    expected_by="next expected by", late="late by", is_stale="stale")  # fmt: skip
    about = (
        "What every source owes and what it did. Counts are expected at their nominal gap; prices are stored when they change and "
        "count as a gap when they are older than 36 h."
    )
    blocks: list[Block] = [about, Table("", rows, columns, marked=lambda row: row["stale"])]
    if len(found.feeds):
        feeds = [
            {**row, "every": _span(row["every"]), "late": _span(row["late_by"]) if row["late_by"] else None}
            for row in rows_of(found.feeds)
        ]
        shown = keyed("feed", fetched="last fetched (UTC)", status="status", added="rows added", rejected="rejected",
                      every="every", expected_by="next expected by", late="late by", reason="why")  # fmt: skip
        blocks.append(Table("Live feeds", feeds, shown))
    return Section("Freshness", blocks, "fresh")


def _span(span: Any) -> str | None:
    return None if missing(span) else told_span(span)
