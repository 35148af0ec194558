"""The completeness map: what became of every market, stage and slot (M1.3, M6.1).

`completeness_of` reads a warehouse, `classify` is the same as a pure function of `flows.completeness_facts.Facts`. A slot of a
stage is in one of `STATES`:

* ``done``: ingest has an observation that is young enough (M1.3); forecast has the planner's vintage; allocate has a decision
  for every running job; score has every job that ended in the slot.
* ``fallback``: the planner's forecast is there, but a simpler model answered.
* ``stale``: the newest observation behind it was older than its maximal age, so the slot is a gap.
* ``failed``: the stage ran and failed, or left this market or job out; the reason says why.
* ``missing``: nothing was done where something was due.
* ``not due``: nothing was known of the market yet, no job was running, none had ended, or it is still being done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from flows.completeness_facts import Facts, Window, read_facts
from flows.completeness_stages import allocate_states, forecast_states, ingest_states, score_states
from flows.config import Settings
from flows.markets import step_of
from flows.runs import STAGES
from warehouse.errors import SettingsError
from warehouse.store import Store

#: In the order in which they are shown; the first three are well or need nothing.
STATES: Final = ("done", "fallback", "not due", "stale", "failed", "missing")
#: States in which work that was due was not done.
NOT_DONE: Final = ("failed", "missing")
COLUMNS: Final = ("market", "source", "stage", "slot", "state", "reason")
#: How far back a map looks unless it is told.
DEFAULT_SPAN: Final = pd.Timedelta(days=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """The map: ``frame`` has `COLUMNS`, a row for every market, source, stage and slot, sorted by these; slots are UTC.

    ``start`` and ``end`` are the first and the last slot, ``at`` the time it was looked at from.
    """

    at: pd.Timestamp
    start: pd.Timestamp
    end: pd.Timestamp
    step: pd.Timedelta
    frame: pd.DataFrame

    def summary(self) -> pd.DataFrame:
        """A row per market, source and stage: slots in each of `STATES`, and ``complete``, the share of due slots that are done.

        Slots with a fallback count as done, stale ones do not; ``complete`` is NaN where nothing was due.
        """
        keys = ["market", "source", "stage"]
        counts = self.frame.groupby([*keys, "state"], sort=False).size().unstack("state", fill_value=0)
        counts = counts.reindex(columns=list(STATES), fill_value=0)
        due = counts.sum(axis=1) - counts["not due"]
        counts["complete"] = (counts["done"] + counts["fallback"]) / due.where(due > 0)
        counts.columns.name = None
        return counts.reset_index()

    def stretches(self, states: tuple[str, ...] = ("failed", "missing", "stale", "fallback")) -> pd.DataFrame:
        """Slots in a row in the same of these states, as one row: market, source, stage, state, since, until, slots, reason.

        ``until`` is the last slot's start; the reason is the last slot's, where it is the freshest.
        """
        frame = self.frame
        change = frame[["market", "source", "stage", "state"]].ne(
            frame[["market", "source", "stage", "state"]].shift()
        )
        run = change.any(axis=1).cumsum()
        kept = frame["state"].isin(states)
        grouped = frame[kept].groupby(run[kept], sort=False)
        return grouped.agg(
            market=("market", "first"),
            source=("source", "first"),
            stage=("stage", "first"),
            state=("state", "first"),
            since=("slot", "first"),
            until=("slot", "last"),
            slots=("slot", "size"),
            reason=("reason", "last"),
        ).reset_index(drop=True)

    def count(self, *states: str) -> int:
        """How many slots are in one of these states."""
        return int(self.frame["state"].isin(states).sum())


def completeness_of(
    store: Store,
    settings: Settings,
    *,
    start: pd.Timestamp | None = None,
    end: pd.Timestamp | None = None,
    at: pd.Timestamp,
    market: str = "",
) -> Completeness:
    """The completeness map of a warehouse from ``start`` to ``end``, as it could be told at ``at``; reads, never writes.

    ``end`` is ``at`` unless it is earlier. Without ``start`` it begins `DEFAULT_SPAN` before, but not before the first turn
    that the ledger knows; with it everything from there on is due. ``market`` keeps one (``key`` or ``key@source``).
    Raises `SettingsError` if no slot lies between.
    """
    window = window_of(store, settings, start=start, end=end, at=at)
    return classify(read_facts(store, settings, window, pattern=market), settings)


def window_of(
    store: Store,
    settings: Settings,
    *,
    start: pd.Timestamp | None,
    end: pd.Timestamp | None,
    at: pd.Timestamp,
) -> Window:
    """The slots that `completeness_of` looks at."""
    step = step_of(settings)
    last = min(at if end is None else end, at).floor(step)
    if start is None:
        start = last - DEFAULT_SPAN
        (first_turn,) = store.execute("SELECT epoch_us(min(logical_at)) FROM runs")[0]
        if first_turn is not None:
            start = max(start, min(pd.Timestamp(first_turn, unit="us", tz="UTC"), last))
    first = start.ceil(step)
    if first > last:
        raise SettingsError(
            f"no slot from {start} to {last}", expected="--since before --until and before the time of --at"
        )
    return Window(first=first, last=last, step=step, at=at)


def classify(facts: Facts, settings: Settings) -> Completeness:
    """The map of some facts: no storage, no clock."""
    window = facts.window
    young = window.at - pd.Timedelta(minutes=settings.alarms.grace_minutes)
    stages = {
        "ingest": ingest_states(facts),
        "forecast": forecast_states(facts),
        "allocate": allocate_states(facts),
        "score": score_states(facts),
    }
    parts = []
    for stage in STAGES:
        own = facts.seen[["market", "source", "slot"]].assign(stage=stage)
        own["state"], own["reason"] = stages[stage].state, stages[stage].reason
        parts.append(own)
    frame = pd.concat(parts, ignore_index=True)
    waiting = (frame["state"] == "missing") & (frame["slot"] > young)
    frame.loc[waiting, "state"] = "not due"
    frame.loc[waiting, "reason"] = (
        f"has until {settings.alarms.grace_minutes:g} minutes after the slot's start"
    )
    order = np.lexsort(
        (
            frame["slot"].astype("int64").to_numpy(),
            frame["stage"].map({stage: k for k, stage in enumerate(STAGES)}).to_numpy(),
            frame["source"].to_numpy(dtype=str),
            frame["market"].to_numpy(dtype=str),
        )
    )
    frame = frame.iloc[order].reset_index(drop=True)
    return Completeness(
        at=window.at, start=window.first, end=window.last, step=window.step, frame=frame[list(COLUMNS)]
    )
