"""The command ``backfill``. Heavy modules are imported only when the command runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from slackwater.flows.command import Answer, Session, option, parsed_duration, say
from slackwater.flows.show.blocks import Block, Column, Table
from slackwater.flows.show.formats import plural
from slackwater.warehouse.plugins import has_extra

if TYPE_CHECKING:
    from slackwater.flows.backfill.run import SlotRange

SHOWN = 60  # Maximum number of slots shown in a terminal, for a plan or a result


def backfill(
    *,
    start: Annotated[str, option("First slot, ISO 8601.", name="--from", metavar="TIME")],
    end: Annotated[str, option("Last slot.", name="--to", metavar="TIME")],
    step: Annotated[
        str | None, option("Time between slots, such as 1h (default: every slot).", metavar="DURATION")
    ] = None,
    reprocess: Annotated[
        str,
        option(
            "Stages to run: those never run; these and failed stages; or all stages again (issued results are not changed).",
            metavar="missing|failed|all",
        ),
    ] = "missing",
    backwards: Annotated[
        bool,
        option(
            "Newest slots first; decisions and scores are then computed in order, as each depends on the previous slot."
        ),
    ] = False,
    dry_run: Annotated[
        bool, option("Print the stages that would run in each slot, without running them.")
    ] = False,
    stages: Annotated[
        list[str] | None,
        option(
            "ingest, forecast, allocate or score; may be repeated (default: all).",
            name="--stage",
            metavar="STAGE",
        ),
    ] = None,
    session: Session = Session(),
) -> Answer:
    """Run the turns of past slots, with the data available at that time.

    Existing results are not replaced. An interrupted backfill can be run again. Exit code 3 if a
    stage of a slot failed.
    """
    import pandas as pd

    from slackwater.flows.backfill.run import slots_between
    from slackwater.flows.clock import parse_time

    slot_range = slots_between(
        parse_time(start, "--from"), parse_time(end, "--to"),
        slot=pd.Timedelta(minutes=session.config.step_minutes),
        step=parsed_duration(step, "--step") if step else None,
        stages=tuple(stages or ()), reprocess=reprocess, backwards=backwards,
    )  # fmt: skip
    if dry_run:
        return _plan(slot_range, session)
    from slackwater.warehouse.store.files import check_place

    check_place(session.db, read_only=False)
    value = _as_flow(slot_range, session) if has_extra("serve") else _directly(slot_range, session)
    return Answer(
        title="Backfill", value=value, blocks=_outcome_blocks(value), exit_code=3 if value["failed"] else 0
    )


def _as_flow(slot_range: SlotRange, session: Session) -> dict[str, Any]:
    import pandas as pd

    from slackwater.flows.engine.run import no_heartbeat, prepare_engine
    from slackwater.flows.engine.serving import start_embedded_server

    say(f"start the engine; backfill of {len(slot_range.slots())} slots")
    prepare_engine(session.db.resolve().parent, quiet=True)
    start_embedded_server()
    from slackwater.flows.backfill import flow

    with no_heartbeat():
        state = flow.backfill(
            start=slot_range.start.to_pydatetime(), end=slot_range.end.to_pydatetime(), db=session.db,
            step_minutes=round(slot_range.step / pd.Timedelta(minutes=1)), reprocess=slot_range.reprocess,
            backwards=slot_range.backwards, stages=list(slot_range.stages), data=session.data, settings=session.settings,
            strict=False,
        )  # fmt: skip
    answer: dict[str, Any] = state["answer"]
    return answer | {"changed": state["slots"]}


def _directly(slot_range: SlotRange, session: Session) -> dict[str, Any]:
    from slackwater.flows.backfill.run import backfill_answer, changed_slots, run_backfill

    say(f"backfill of {len(slot_range.slots())} slots")
    outcomes = run_backfill(session.db, slot_range, session.config, data=session.data)
    return backfill_answer(slot_range, outcomes) | {"changed": changed_slots(outcomes)}


def _plan(slot_range: SlotRange, session: Session) -> Answer:
    """List every slot with the stages that a backfill would run."""
    from slackwater.flows.backfill.run import plan_backfill

    if session.db.exists():
        with session.reading() as store:
            plans = plan_backfill(store, slot_range)
    else:
        plans = plan_backfill(None, slot_range)
    todo = {stage: sum(stage in plan.todo for plan in plans) for stage in slot_range.stages}
    slots = [plan.row() | {"todo": list(plan.todo), "failed_before": plan.reasons} for plan in plans]
    shown = [plan.row() for plan in plans if plan.todo]
    columns: dict[str, Column | str] = {
        "slot": Column(heading="slot", unit="UTC"),
        "run": "run",
        **{stage: stage for stage in slot_range.stages},
    }
    title = f"Backfill of {plural(len(plans), 'slot')}, {len(shown)} with stages to run"
    result = ", ".join(f"{stage}: {count} to run" for stage, count in todo.items())
    return Answer(
        title=title,
        value={"slots": slots, "make": todo, "order": _order(slot_range)},
        blocks=[Table(title, shown, columns, most=SHOWN), f"{result}; {_order(slot_range)}"],
    )


def _order(slot_range: SlotRange) -> str:
    if not slot_range.backwards:
        return "oldest slots first"
    return "newest slots first; then allocate and score, oldest first, as each depends on the previous slot"


def _outcome_blocks(value: Mapping[str, Any]) -> list[Block]:
    rows: Sequence[Mapping[str, Any]] = value["changed"]
    failed = [row for row in rows if row["why"]]
    columns = {
        "slot": Column(heading="slot", unit="UTC"),
        **{stage: stage for stage in value["stages"]},
        "why": "why",
    }
    blocks: list[Block] = (
        [Table(f"Failed slots ({len(failed)})", failed, columns, most=SHOWN)] if failed else []
    )
    blocks.append(
        f"{plural(value['slots'], 'slot')}: {value['made']} stages done, {value['kept']} already done, {value['failed']} failed, "
        f"{value['waiting']} waiting for an earlier stage"
    )
    return [*blocks, "fix the cause and run it again with --reprocess failed"] if value["failed"] else blocks
