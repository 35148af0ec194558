"""Which slots and stages a backfill makes: read off the ledger of runs before anything is done, and printed by the dry run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pandas as pd

from flows.ledger.runs import STAGES
from flows.turn.context import run_id_of
from warehouse.errors import SettingsError
from warehouse.issued import read_rows
from warehouse.store.connection import Store

Reprocess = Literal["missing", "failed", "all"]
#: The most slots of one backfill: a mistyped year should not begin.
MOST_SLOTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The slots from ``start`` to ``end``, both included, ``step`` apart; and which stages of each, in which order of slots.

    ``reprocess``: "missing" makes the stages that were never done nor tried, "failed" those that failed too, "all" every one.
    ``backwards`` makes the newest slots first, as far as a slot does not go on from the one before (decisions and scores do).
    """

    start: pd.Timestamp
    end: pd.Timestamp
    step: pd.Timedelta
    stages: tuple[str, ...] = STAGES
    reprocess: Reprocess = "missing"
    backwards: bool = False

    def slots(self) -> pd.DatetimeIndex:
        """The slots, ascending."""
        return pd.date_range(self.start, self.end, freq=self.step)


def stretch_of(
    start: pd.Timestamp,
    end: pd.Timestamp,
    *,
    slot: pd.Timedelta,
    step: pd.Timedelta | None = None,
    stages: Sequence[str] = (),
    reprocess: str = "missing",
    backwards: bool = False,
) -> Stretch:
    """A stretch on the grid of ``slot``: from the first slot at or after ``start`` to the last at or before ``end``.

    Raises `SettingsError` for an empty or endless range, a step that is not whole slots, an unknown stage or rule.
    """
    step = slot if step is None else step
    if step < slot or step % slot:
        raise SettingsError(f"--step {step}", expected=f"a multiple of the slot length {slot}")
    if reprocess not in get_args(Reprocess):
        raise SettingsError(f"--reprocess {reprocess!r}", expected=f"one of {', '.join(get_args(Reprocess))}")
    for stage in stages:
        if stage not in STAGES:
            raise SettingsError(f"--stage {stage!r}", expected=f"one of {', '.join(STAGES)}")
    first, last = start.ceil(slot), end.floor(slot)
    if last < first:
        raise SettingsError(f"no slot from {start} to {end}", expected="--from at or before --to")
    if (last - first) // step >= MOST_SLOTS:
        raise SettingsError(
            f"{(last - first) // step + 1} slots", expected=f"at most {MOST_SLOTS} in one backfill"
        )
    return Stretch(
        start=first,
        end=first + (last - first) // step * step,
        step=step,
        stages=tuple(stage for stage in STAGES if stage in stages) or STAGES,
        reprocess=_rule(reprocess),
        backwards=backwards,
    )


def _rule(text: str) -> Reprocess:
    return "all" if text == "all" else "failed" if text == "failed" else "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """What a backfill does in one slot: ``todo``, in order; and of each stage asked for how it stands and why it failed."""

    at: pd.Timestamp
    todo: tuple[str, ...]
    standing: dict[str, str]
    reasons: dict[str, str]

    @property
    def run(self) -> str:
        """The name of the slot's turn."""
        return run_id_of(self.at)

    def row(self) -> dict[str, Any]:
        """The plan as plain values."""
        return {
            "slot": self.at,
            "run": self.run,
            **{stage: _words(stage, self) for stage in STAGES if stage in self.standing},
        }


def _words(stage: str, plan: SlotPlan) -> str:
    standing = plan.standing[stage]
    if stage in plan.todo:
        return "make" if standing == "missing" else f"make again ({standing})"
    return f"keep ({standing})"


def plan_backfill(store: Store | None, stretch: Stretch) -> list[SlotPlan]:
    """What a backfill of the stretch does, slot by slot in ascending order; without a warehouse everything is missing."""
    standing: dict[tuple[str, str], tuple[str, str]] = {}
    if store is not None:
        runs = read_rows(
            store,
            "runs",
            where={"logical_at": slice(stretch.start, stretch.end + pd.Timedelta(microseconds=1))},
        )
        for run, stage, status, details in runs[["run", "stage", "status", "details"]].itertuples(
            index=False
        ):
            if standing.get((run, stage), ("", ""))[0] != "done":
                reason = str(json.loads(details)["reason"]) if status == "failed" else ""
                standing[run, stage] = (status, reason)
    return [_slot_plan(at, stretch, standing) for at in stretch.slots()]


def _slot_plan(at: pd.Timestamp, stretch: Stretch, known: dict[tuple[str, str], tuple[str, str]]) -> SlotPlan:
    own = {stage: known.get((run_id_of(at), stage), ("missing", "")) for stage in stretch.stages}
    wanted = {"missing": ("missing",), "failed": ("missing", "failed"), "all": ("missing", "failed", "done")}
    return SlotPlan(
        at=at,
        todo=tuple(stage for stage, (state, _) in own.items() if state in wanted[stretch.reprocess]),
        standing={stage: state for stage, (state, _) in own.items()},
        reasons={stage: why for stage, (_, why) in own.items() if why},
    )
