"""The completeness map as strips: for each market and stage a row of boxes, as wide as the slots they stand for.

Colours are those of Okabe and Ito; every state has its own pattern and letter too, so that none needs colour to be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from flows.ledger.runs import STAGES
from flows.monitoring.completeness import STATES, Completeness
from flows.show.table import rows_of

#: Letter of each state, shown in its boxes where there is room; nothing is written on what is well.
LETTERS: Final[dict[str, str]] = {
    "done": "",
    "fallback": "B",
    "not due": "",
    "stale": "S",
    "failed": "F",
    "missing": "M",
}
MEANINGS: Final[dict[str, str]] = {
    "done": "done",
    "fallback": "a simpler model answered",
    "not due": "nothing was due",
    "stale": "the newest observation was too old",
    "failed": "failed or left out",
    "missing": "not done, though due",
}
TROUBLE: Final = ("missing", "failed", "stale", "fallback")
#: Days named under a strip at most.
_MOST_TICKS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Slots in a row in one state."""

    state: str
    css: str
    slots: int
    letter: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """One stage of a market: its boxes, and the whole in words for those who cannot see them."""

    stage: str
    boxes: tuple[Box, ...]
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketStrips:
    """The strips of one market and what there is to say of them."""

    market: str
    source: str
    strips: tuple[Strip, ...]
    troubles: tuple[dict[str, Any], ...]
    worst: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A time under the strips; ``place`` in percent of their width."""

    place: float
    text: str


def css_name(state: str) -> str:
    """The state as the name of a class."""
    return state.replace(" ", "-")


def told_slots(since: pd.Timestamp, until: pd.Timestamp) -> str:
    """A stretch of slots in words.

    >>> told_slots(pd.Timestamp("2026-03-10T06:00Z"), pd.Timestamp("2026-03-10T07:30Z"))
    '10 Mar 06:00 to 07:30'
    """
    if since == until:
        return f"{since:%d %b %H:%M}"
    return f"{since:%d %b %H:%M} to " + (
        f"{until:%H:%M}" if since.date() == until.date() else f"{until:%d %b %H:%M}"
    )


def market_strips(done: Completeness) -> list[MarketStrips]:
    """The strips of every market, those with most trouble first."""
    stretches = done.stretches(STATES)
    found = []
    for (market, source), own in stretches.groupby(["market", "source"], sort=True):
        strips = []
        for stage in STAGES:
            rows = rows_of(own[own["stage"] == stage])
            strips.append(
                Strip(stage=stage, boxes=tuple(_box(row) for row in rows), label=_label(stage, rows))
            )
        troubles = [_trouble(row) for row in rows_of(own[own["state"].isin(TROUBLE)])]
        there = {row["state"] for row in troubles}
        found.append(
            MarketStrips(
                market=str(market),
                source=str(source),
                strips=tuple(strips),
                troubles=tuple(troubles),
                worst=next((state for state in TROUBLE if state in there), ""),
            )
        )
    return sorted(found, key=lambda one: (*TROUBLE, "").index(one.worst))


def _box(row: dict[str, Any]) -> Box:
    when = told_slots(row["since"], row["until"])
    reason = f": {row['reason']}" if row["reason"] else ""
    return Box(
        state=row["state"],
        css=css_name(row["state"]),
        slots=int(row["slots"]),
        letter=LETTERS[row["state"]],
        title=f"{when}, {row['state']}{reason}",
    )


def _label(stage: str, rows: list[dict[str, Any]]) -> str:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["state"]] = counts.get(row["state"], 0) + int(row["slots"])
    told = ", ".join(f"{counts[state]} {state}" for state in STATES if state in counts)
    return f"{stage}: of {sum(counts.values())} slots {told}"


def _trouble(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "stage": row["stage"],
        "state": row["state"],
        "css": css_name(row["state"]),
        "when": told_slots(row["since"], row["until"]),
        "slots": int(row["slots"]),
        "reason": row["reason"],
    }


def ticks(done: Completeness) -> list[Tick]:
    """Days (or the times of a short window) under the strips, a few at most."""
    span = done.end + done.step - done.start
    for gap in (pd.Timedelta(hours=1), pd.Timedelta(hours=3), pd.Timedelta(hours=6), pd.Timedelta(hours=12)):
        if span / gap <= _MOST_TICKS:
            break
    else:
        days = 1
        while span / pd.Timedelta(days=days) > _MOST_TICKS:
            days = next(step for step in (2, 5, 10, 15, 30, 60, 90, 180, 365, 3650) if step > days)
        gap = pd.Timedelta(days=days)
    marks = pd.date_range(done.start.ceil(gap if gap < pd.Timedelta(days=1) else "D"), done.end, freq=gap)
    form = "%d %b" if gap >= pd.Timedelta(days=1) else "%d %b %H:%M"
    return [Tick(place=round(100 * ((mark - done.start) / span), 3), text=f"{mark:{form}}") for mark in marks]
