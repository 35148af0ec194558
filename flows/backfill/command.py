"""What ``slackwater backfill`` does: print the plan, or make it on the engine and print what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from flows.backfill.plan import SlotPlan, Stretch, plan_backfill, stretch_of
from flows.clock import parse_time
from flows.command.answer import print_json, print_table, say_to_stderr
from flows.config import read_settings
from flows.ledger.runs import STAGES
from warehouse.errors import SettingsError
from warehouse.reader import open_reader

#: Slots of a plan or an outcome that are printed at most; --json has all.
SHOWN = 60


def backfill_command(
    *,
    start: str,
    end: str,
    step: str | None,
    reprocess: str,
    backwards: bool,
    dry_run: bool,
    stages: tuple[str, ...],
    data: Path | None,
    db: Path,
    settings: Path | None,
    as_json: bool,
) -> int:
    """``slackwater backfill``: exit code 3 if a stage of a slot failed."""
    chosen = read_settings(settings)
    slot = pd.Timedelta(minutes=chosen.step_minutes)
    stretch = stretch_of(
        parse_time(start, "--from"), parse_time(end, "--to"), slot=slot, step=_duration(step),
        stages=stages, reprocess=reprocess, backwards=backwards,
    )  # fmt: skip
    if dry_run:
        print_plan(stretch, _planned(db, stretch), as_json=as_json)
        return 0
    say_to_stderr(f"start the engine; backfill of {len(stretch.slots())} slots")
    from flows.engine.prepare import prepare_engine

    prepare_engine(db.resolve().parent, quiet=True)
    from flows.backfill.flow import backfill

    state = backfill(
        start=stretch.start.to_pydatetime(), end=stretch.end.to_pydatetime(), db=db,
        step_minutes=round(stretch.step / pd.Timedelta(minutes=1)), reprocess=stretch.reprocess,
        backwards=backwards, stages=list(stretch.stages), data=data, settings=settings, strict=False,
    )  # fmt: skip
    answer, rows = state["answer"], state["slots"]
    if as_json:
        print_json(answer | {"changed": rows})
    else:
        _print_outcome(answer, rows)
    return 3 if answer["failed"] else 0


def _duration(text: str | None) -> pd.Timedelta | None:
    if text is None:
        return None
    try:
        found = pd.Timedelta(text)
    except ValueError as error:
        raise SettingsError(f"--step {text!r}", expected="a time such as 1h or 30min") from error
    if not found > pd.Timedelta(0):
        raise SettingsError(f"--step {text!r}", expected="a positive time such as 1h")
    return found


def _planned(db: Path, stretch: Stretch) -> list[SlotPlan]:
    if not db.exists():
        return plan_backfill(None, stretch)
    with open_reader(db) as store:
        return plan_backfill(store, stretch)


def print_plan(stretch: Stretch, plans: Sequence[SlotPlan], *, as_json: bool) -> None:
    """Every slot and what would be done in it."""
    todo = {stage: sum(stage in plan.todo for plan in plans) for stage in stretch.stages}
    if as_json:
        slots = [plan.row() | {"todo": list(plan.todo), "failed_before": plan.reasons} for plan in plans]
        print_json({"slots": slots, "make": todo, "order": _order(stretch)})
        return
    shown = [plan.row() for plan in plans if plan.todo]
    columns = {"slot": "slot (UTC)", "run": "run"} | {stage: stage for stage in stretch.stages}
    print_table(f"Backfill of {len(plans)} slots, {len(shown)} with something to do", shown[:SHOWN], columns)
    if len(shown) > SHOWN:
        print(
            f"... and {len(shown) - SHOWN} slots more, to {shown[-1]['slot']:%Y-%m-%d %H:%M}; --json has all"
        )
    print(", ".join(f"{stage}: {count} to make" for stage, count in todo.items()) + f"; {_order(stretch)}")


def _order(stretch: Stretch) -> str:
    if not stretch.backwards:
        return "oldest slots first"
    return "newest slots first; allocate and score oldest first after that, as each builds on the slot before"


def _print_outcome(answer: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    failed = [row for row in rows if row["why"]]
    columns = (
        {"slot": "slot (UTC)"}
        | {stage: stage for stage in STAGES if stage in answer["stages"]}
        | {"why": "why"}
    )
    if failed:
        print_table(f"Failed slots ({len(failed)})", failed[:SHOWN], columns)
    print(
        f"{answer['slots']} slots: {answer['made']} stages made, {answer['kept']} kept, {answer['failed']} failed, "
        f"{answer['waiting']} waiting for a stage before them"
    )
    if answer["failed"]:
        print("mend the cause and run it again with --reprocess failed")
