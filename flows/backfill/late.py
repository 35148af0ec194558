"""Slots missed before a turn, made in order before it, oldest first: a decision builds on those before it (M2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from slackwater.flows.backfill.run import Part, SlotRange, StageOutcome, run_backfill, run_part, slots_between
from slackwater.flows.command import say
from slackwater.flows.config import Settings
from slackwater.flows.following import step_of
from slackwater.flows.ledger.stages import STAGES
from slackwater.flows.turn.context import run_id_of
from slackwater.warehouse.amounts import plural
from slackwater.warehouse.store.connection import Store, open_reader


def missing_before(
    store: Store, at: pd.Timestamp, *, slot: pd.Timedelta, every: pd.Timedelta
) -> SlotRange | None:
    """Return the slots between the last finished turn and ``at``, ``every`` apart; None without any, or without such a turn."""
    ((last,),) = store.execute(
        "SELECT max(logical_at) FROM (SELECT logical_at FROM runs WHERE status = 'done' AND logical_at < $at "
        "GROUP BY logical_at HAVING count(DISTINCT stage) >= $stages)",
        {"at": at.to_pydatetime(), "stages": len(STAGES)},
    )
    if last is None:
        return None
    count = (at - pd.Timestamp(last).tz_convert("UTC") - pd.Timedelta(microseconds=1)) // every
    if count < 1:
        return None
    return slots_between(at - count * every, at - every, slot=slot, step=every)


def make_missing(
    db: Path,
    at: pd.Timestamp,
    settings: Settings,
    *,
    every: pd.Timedelta | None = None,
    part: Part = run_part,
) -> Sequence[StageOutcome]:
    """Make the turns of the slots missing before ``at``, oldest first; return their outcomes.

    If more than ``late_slots`` of the settings are missing, none is made: the message names the
    command that makes them. Failures are reported and stop nothing.
    """
    if not db.exists() or not settings.late_slots:
        return ()
    slot = step_of(settings)
    with open_reader(db) as store:
        missing = missing_before(store, at, slot=slot, every=every or slot)
    if missing is None:
        return ()
    count = plural(len(missing.slots()), "missing slot")
    if len(missing.slots()) > settings.late_slots:
        say(
            f"{count} before this turn, more than late_slots = {settings.late_slots}; "
            f"`slackwater backfill --from {_words(missing.start)} --to {_words(missing.end)}` makes them"
        )
        return ()
    say(f"make {count} first, from {_words(missing.start)} on")
    outcomes = run_backfill(db, missing, settings, data=None, part=part)
    for outcome in outcomes:
        for stage, reason in outcome.reasons.items():
            say(f"{stage} at {_words(outcome.plan.at)} failed: {reason}")
    return outcomes


def is_made(store: Store, at: pd.Timestamp) -> bool:
    """Return whether the turn of a slot is finished."""
    rows = store.execute(
        "SELECT count(DISTINCT stage) FROM runs WHERE run = ? AND status = 'done'", [run_id_of(at)]
    )
    return int(rows[0][0]) >= len(STAGES)


def _words(at: pd.Timestamp) -> str:
    return f"{at:%Y-%m-%dT%H:%MZ}"
