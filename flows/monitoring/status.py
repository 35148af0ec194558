"""Status of a pipeline: completeness, freshness and alarms as a value, and its sections on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from slackwater.flows.command import Answer
from slackwater.flows.config import Settings
from slackwater.flows.ledger.jobs import unreadable_jobs
from slackwater.flows.ledger.stages import STAGES
from slackwater.flows.monitoring.alarms import Alarm, alarms_of, standing_alarms
from slackwater.flows.monitoring.completeness import (
    NOT_DONE,
    STATES,
    Completeness,
    classify,
    feed_freshness,
    freshness,
    read_facts,
    span_text,
    window_of,
)
from slackwater.flows.show.blocks import (
    Banner,
    Block,
    Column,
    Figure,
    Fold,
    Notes,
    Page,
    Section,
    Table,
    columns_by_key,
)
from slackwater.flows.show.charts import cells
from slackwater.flows.show.formats import first_of, missing, rows_of, utc, whole
from slackwater.flows.turn.report.recent_errors import RECENT
from slackwater.warehouse.asof import contradicting_sources
from slackwater.warehouse.errors import MarketError
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.store.foreign import unreadable_rows

#: Exit codes of ``slackwater status`` (2 is a user's error): all well, something is not done, an
#: alarm is active, both.
WELL, NOT_ALL_DONE, ALARMED, BOTH = 0, 3, 4, 5
#: Name and version of the JSON object, so that its readers notice changes.
SCHEMA: Final = "slackwater.status/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Status as known at ``at``; ``note`` explains the choice of that time, "" if it was given.

    ``freshness`` and ``feeds`` are the tables of `slackwater.flows.monitoring.completeness`. ``gone`` are
    stored alarms that are no longer active. ``unreadable`` lists the stored rows that are ignored
    everywhere, ``contradicted`` the sources that contradict each other (M1.5).
    """

    at: pd.Timestamp
    completeness: Completeness
    freshness: Sequence[Mapping[str, Any]]
    feeds: Sequence[Mapping[str, Any]]
    alarms: tuple[Alarm, ...]
    gone: tuple[Alarm, ...] = ()
    note: str = ""
    unreadable: tuple[str, ...] = ()
    contradicted: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Exit code: 0 all well, 3 something is missing or failed (or no market is followed), 4 an alarm is active, 5 both."""
        lacking = self.completeness.frame.empty or self.completeness.count(*NOT_DONE) > 0
        if lacking and self.alarms:
            return BOTH
        return NOT_ALL_DONE if lacking else ALARMED if self.alarms else WELL

    def sentence(self) -> str:
        """Return a summary in a sentence."""
        done = self.completeness
        if done.frame.empty:
            return "No market was followed in these slots: no forecast was issued and no job ran."
        lacking = {state: done.count(state) for state in NOT_DONE if done.count(state)}
        counts = " and ".join(f"{count:,} {state}" for state, count in lacking.items())
        due = len(done.frame) - done.count("not due")
        work = f"{counts} of {due:,} due tasks" if counts else f"All {due:,} due tasks are done"
        count = len(self.alarms)
        alarms = f"{count} alarm{'s' if count > 1 else ''}" if count else "no alarm"
        return f"{work}; {alarms}."

    def answer(self) -> dict[str, Any]:
        """Return the object that ``slackwater status --json`` prints."""
        done = self.completeness
        return {
            "schema": SCHEMA,
            "at": self.at,
            "note": self.note,
            "unreadable": list(self.unreadable),
            "contradicted": list(self.contradicted),
            "exit_code": self.exit_code,
            "since": done.start,
            "until": done.end,
            "step_minutes": done.step / pd.Timedelta(minutes=1),
            "completeness": [
                {**row, "complete": None if pd.isna(row["complete"]) else round(row["complete"], 6)}
                for row in rows_of(done.summary())
            ],
            "not_done": rows_of(done.stretches(NOT_DONE)),
            "doubtful": rows_of(done.stretches(("stale", "fallback"))),
            "freshness": [_minutes(row) for row in self.freshness],
            "feeds": [_minutes(row) for row in self.feeds],
            "alarms": [alarm.row() for alarm in self.alarms],
        }


def _minutes(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert durations to minutes, with suffixed names, and NaT to None."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        if name in ("age", "every", "late_by", "max_age"):
            plain[f"{name}_minutes"] = None if pd.isna(value) else value / pd.Timedelta(minutes=1)
        else:
            plain[name] = None if value is pd.NaT else value
    return plain


def status_of(
    store: Store,
    settings: Settings,
    *,
    at: pd.Timestamp,
    since: pd.Timestamp | None = None,
    until: pd.Timestamp | None = None,
    market: str = "",
    note: str = "",
) -> Status:
    """Return the status of a warehouse as known at ``at``; writes nothing.

    ``since`` and ``until`` bound the slots of the map (see
    `slackwater.flows.monitoring.completeness.window_of`); freshness and alarms are those at ``at``.
    ``market`` selects a market (``key`` or ``key@source``); raises `MarketError` if it is not followed.
    """
    window = window_of(store, settings, start=since, end=until, at=at)
    facts = read_facts(store, settings, window, pattern=market)
    markets = list(dict.fromkeys(zip(facts.seen["market"], facts.seen["source"], strict=True)))
    if market and not markets:
        raise MarketError(
            f"market {market!r} has no forecast and no job around {window.first} to {window.last}",
            expected="a market that a turn followed",
            remedy="`slackwater status` without --market shows the followed markets",
        )
    found = alarms_of(store, settings, markets, at=at)
    stand = {(finding.kind, finding.subject) for finding in found}
    return Status(
        at=at,
        completeness=classify(facts, settings),
        freshness=freshness(facts.promises, at=at),
        feeds=feed_freshness(store, settings, at=at),
        alarms=tuple(found),
        gone=tuple(
            alarm for alarm in standing_alarms(store, at=at) if (alarm.kind, alarm.subject) not in stand
        ),
        note=note,
        unreadable=(
            *unreadable_rows(store, measured_since=(at - RECENT).to_pydatetime()),
            *unreadable_jobs(store),
        ),
        contradicted=tuple(contradicting_sources(store, at, window.step, settings.trust)),
    )


def check_has_turn(store: Store) -> None:
    """Raise `MarketError` if no turn has run in the warehouse."""
    if not store.execute("SELECT 1 FROM runs LIMIT 1"):
        raise MarketError(
            "no turn has run in this warehouse",
            remedy="run a turn with `slackwater run`, or give a time with --at",
        )


# ---
# Sections of a status for terminals, pages and the UI: completeness map, freshness and alarms.

#: Drawn states with their colours and letters, so that states differ without colours.
LOOKS: Final[dict[str, tuple[str, str]]] = {
    "done": ("band80", ""),
    "fallback": ("series5", "B"),
    "stale": ("muted", "S"),
    "failed": ("series2", "F"),
    "missing": ("ink", "M"),
}
MEANINGS: Final[dict[str, str]] = {
    "done": "done",
    "fallback": "a simpler model made the forecast",
    "not due": "not due",
    "stale": "the newest observation was too old",
    "failed": "failed or left out",
    "missing": "not done, though due",
}
_SHOWN: Final = 20  # Maximum number of listed problems on a terminal, and of markets named in a row of a page
#: Maximum number of sources listed on a terminal that are not stale.
_FRESH: Final = 4
NAMED: Final = 4


def status_answer(found: Status) -> Answer:
    """Return the answer of ``status``."""
    return Answer(
        title="Status",
        value=found.answer(),
        blocks=status_blocks(found),
        page=lambda: status_page(found),
        exit_code=found.exit_code,
    )


def status_page(found: Status) -> Page:
    """Return the page of a status, with summary and alarms first."""
    done = found.completeness
    note = f" {found.note[:1].upper()}{found.note[1:]}." if found.note else ""
    well = found.exit_code == 0
    return Page(
        title="Status of the pipeline",
        short=f"status at {utc(found.at)}",
        about=(
            f"Status at {utc(found.at)}; slots of {span_text(done.step)} from {utc(done.start)} to {utc(done.end)}.{note}"
        ),
        banner=None if well else Banner("Problems found.", found.sentence()),
        blocks=[
            *([found.sentence()] if well else []),
            *unreadable_blocks(found),
            alarms_section(found),
            completeness_section(found, drawn=True),
            freshness_section(found),
        ],
    )


def status_blocks(found: Status) -> list[Block]:
    """Return the blocks for a terminal: the summary, the alarms, then the work and the data."""
    sentence = found.sentence() + (f" ({found.note})" if found.note else "")
    return [
        sentence,
        alarms_section(found),
        *unreadable_blocks(found),
        completeness_section(found),
        freshness_section(found),
    ]


MOST_CONTRADICTED = 10  # Maximum number of contradictions listed separately


def unreadable_blocks(found: Status) -> list[Block]:
    """Return a list of the stored rows that are unreadable and ignored everywhere, and of the contradicting sources."""
    apart = (f"SOURCES DISAGREE: {text}" for text in found.contradicted)
    rest = "and {} more (`slackwater markets --json` lists all)"
    lines = [*found.unreadable, *first_of(apart, MOST_CONTRADICTED, rest)]
    return [Notes(lines)] if lines else []


def alarms_section(found: Status) -> Section:
    """Return the section of the active alarms."""
    rows = [alarm.row() for alarm in found.alarms]
    columns = columns_by_key(kind="alarm", subject="about", severity="severity", since="since (UTC)") | {
        "text": Column(heading="problem and remedy")
    }
    return Section("Alarms", [Table("", rows, columns, empty="No active alarm.")], "alarms")


def completeness_section(found: Status, *, drawn: bool = False) -> Section:
    """Return the section of slots by market and stage, with a map per stage if ``drawn``, and the due work that is not done."""
    done = found.completeness
    if done.frame.empty:
        return Section("Completeness", ["No market was followed in these slots."], "map")
    lacking = done.stretches(NOT_DONE).sort_values("until", kind="stable", ascending=False)
    doubtful = done.stretches(("stale", "fallback")).sort_values("until", kind="stable", ascending=False)
    columns = columns_by_key("stage", "state", name="market", since="from (UTC)", until="to (UTC)", slots="slots",
                    reason="why")  # fmt: skip
    newest = (
        f" (the newest {_SHOWN} of {len(lacking)} stretches)" if len(lacking) > _SHOWN and not drawn else ""
    )
    rows = group_rows(_named_rows(lacking)) if drawn else _named_rows(lacking)
    lists: list[Block] = [Table(f"Not done{newest}", rows, columns, most=_SHOWN)]
    if len(doubtful):
        table = Table("", _named_rows(doubtful), columns)
        count = f"{len(doubtful):,} {'stretch' if len(doubtful) == 1 else 'stretches'}"
        lists.append(Fold(f"Stale, or forecast by a simpler model: {count}", [table]))
    span = f"{utc(done.start).removesuffix(' UTC')} to {utc(done.end)}"
    return Section(
        "Completeness",
        [
            *(_maps(found) if drawn else []),
            Table(
                f"Done slots of the due slots, {span}",
                stage_cells(done.summary()),
                columns_by_key("market", *STAGES),
            ),
            Table("Slots of all markets by state", _state_counts(done.frame), _STATE_COLUMNS),
            *lists,
        ],
        "map",
    )


def _named_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{**row, "name": f"{row['market']}@{row['source']}"} for row in rows_of(frame)]


def group_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the same stage, state and slots as a single row, with some of their markets and reasons."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("stage", "state", "since", "until", "slots"))
        found.setdefault(key, []).append(row)
    return [
        {**own[0], "name": _some(own, "name", ", "), "reason": _some(own, "reason", "; ")}
        for own in found.values()
    ]


def _some(rows: Sequence[Mapping[str, Any]], key: str, between: str) -> str:
    """Return the first distinct texts of some rows, and the number of the others."""
    texts = dict.fromkeys(str(row[key]) for row in rows if row[key])
    return between.join(first_of(texts, NAMED, "and {} more"))


_STATE_COLUMNS: Final[dict[str, Column | str]] = {
    "stage": "stage",
    **{state: Column(heading=state, format=whole, words=MEANINGS[state]) for state in STATES},
}


def _state_counts(frame: pd.DataFrame) -> list[dict[str, Any]]:
    counts = frame.groupby(["stage", "state"]).size()
    return [
        {"stage": stage} | {state: int(counts.get((stage, state), 0)) for state in STATES} for stage in STAGES
    ]


def stage_cells(summary: pd.DataFrame) -> list[dict[str, str]]:
    """Return a row per market with a short text for each stage, such as ``142 of 144, 2 missing``."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows_of(summary):
        own = rows.setdefault((row["market"], row["source"]), {"market": f"{row['market']}@{row['source']}"})
        due = sum(int(row[state]) for state in STATES if state != "not due")
        others = [f"{row[state]} {state}" for state in STATES[1:] if state != "not due" and row[state]]
        good = int(row["done"] + row["fallback"])
        own[row["stage"]] = ", ".join([f"{good} of {due}", *others]) if due else "-"
    return [
        {"market": row["market"], **{stage: row.get(stage, "-") for stage in STAGES}} for row in rows.values()
    ]


def _maps(found: Status) -> list[Block]:
    done = found.completeness
    stretches = _named_rows(done.stretches(STATES))
    maps = [
        stage_map(stage, [row for row in stretches if row["stage"] == stage], done.start, done.end, done.step)
        for stage in STAGES
    ]
    return [legend(), *maps]


def legend() -> str:
    """Return an explanation of the letters in the map."""
    entries = [f"{letter}: {MEANINGS[state]}" for state, (_, letter) in LOOKS.items() if letter]
    return f"A strip per market. Letters in the boxes: {'; '.join(entries)}; no letter: done; empty: {MEANINGS['not due']}."


def stage_map(
    stage: str, stretches: Sequence[Mapping[str, Any]], start: pd.Timestamp, end: pd.Timestamp, step: pd.Timedelta
) -> Figure:  # fmt: skip
    """Return the map of a stage: a strip per market with anything due, those with the worst states first."""
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
    counts = ", ".join(f"{slots[state]:,} {state}" for state in STATES if state in slots)
    label = f"{stage}: of {sum(slots.values()):,} slots {counts}"
    if not rows:
        return Figure(specs=[], label=label, title=stage, why="Nothing was due.", width=0)
    shown = {state: look for state, look in LOOKS.items() if state in slots}

    return Figure(
        specs=lambda: [cells(rows, names, ends=(start, end + step), states=shown)], label=label, title=stage,
        captions=[f"Of {sum(slots.values()):,} slots: {counts}."], width=0,
    )  # fmt: skip


def freshness_section(found: Status) -> Section:
    """Return the section on the freshness of every source and on the live feeds."""
    rows = [
        {
            **row,
            "name": f"{row['market']}@{row['source']}",
            "age": _span(row["age"]),
            "every": "on change" if missing(row["every"]) else span_text(row["every"]),
            "late": _span(row["late_by"]) if row["late_by"] else None,
            "is_stale": "stale" if row["stale"] else "no",
        }
        for row in found.freshness
    ]
    columns = columns_by_key(name="market", kind="of", newest="newest (UTC)", age="age", every="every",
                    expected_by="next expected by", late="late by", is_stale="stale")  # fmt: skip
    about = (
        "Newest observation of every source, and the time of the next. Counts are expected at their sampling interval; prices are "
        "stored when they change, and count as missing when older than 36 h."
    )
    table = Table("", rows, columns, most=_FRESH, marked=lambda row: row["stale"])
    blocks: list[Block] = [about, table]
    if found.feeds:
        feeds = [
            {**row, "every": _span(row["every"]), "late": _span(row["late_by"]) if row["late_by"] else None}
            for row in found.feeds
        ]
        shown = columns_by_key("feed", fetched="last fetched (UTC)", status="status", added="rows added", rejected="rejected",
                      every="every", expected_by="next expected by", late="late by", reason="why")  # fmt: skip
        blocks.append(Table("Live feeds", feeds, shown))
    return Section("Freshness", blocks, "freshness")


def _span(span: Any) -> str | None:
    return None if missing(span) else span_text(span)
