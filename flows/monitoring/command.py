"""``status``. What looks is loaded when the command is called; it needs no engine and starts none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from flows.command import Answer, Query, option
from flows.command.session import MarketName, parsed_time
from flows.show.blocks import Block, Column, Table, keyed

if TYPE_CHECKING:
    from flows.monitoring.status import Status

#: Stretches that a terminal shows at most.
_SHOWN = 20


def status(
    *,
    at: Annotated[
        str | None,
        option(
            "Time to look from, or `now` (default: now, or the newest turn of a warehouse of histories).",
            metavar="TIME",
        ),
    ] = None,
    since: Annotated[
        str | None,
        option("First slot of the map (default: 3 days before, not before the first turn).", metavar="TIME"),
    ] = None,
    until: Annotated[
        str | None, option("Last slot of the map (default: the newest).", metavar="TIME")
    ] = None,
    market: MarketName = None,
    session: Query = Query(),
) -> Answer:
    """What is done, missing, failed or stale, how fresh every source is, and the alarms. Nothing is stored.

    Exit code: 0 all well, 3 something is missing or failed, 4 an alarm stands, 5 both (2: a user's error).
    """
    from flows.clock import now
    from flows.monitoring.page import render_status_page
    from flows.monitoring.status import present_of, status_of

    config = session.config
    with session.reading() as store:
        given = now() if at == "now" else parsed_time(at, "--at")
        when, note = present_of(store, config, clock=now()) if given is None else (given, "")
        found = status_of(
            store,
            config,
            at=when,
            since=parsed_time(since, "--since"),
            until=parsed_time(until, "--until"),
            market=market or "",
            note=note,
        )
    return Answer(
        title="Status",
        value=found.answer(),
        blocks=status_blocks(found),
        page=lambda: render_status_page(found),
        exit_code=found.exit_code,
    )


def status_blocks(found: Status) -> list[Block]:
    """What a person is told of a status."""
    from flows.monitoring.completeness import NOT_DONE, told_span
    from flows.monitoring.status import stage_cells
    from flows.show.table import rows_of

    done = found.completeness
    lacking = done.stretches(NOT_DONE).sort_values("until", kind="stable", ascending=False)
    more = f" (the newest {_SHOWN} of {len(lacking)} stretches)" if len(lacking) > _SHOWN else ""
    ages = [
        {**row, **{name: told_span(row[name]) for name in ("age", "late_by") if row[name] == row[name]}}
        for row in rows_of(found.freshness)
    ]
    blocks: list[Block] = [
        Table(
            f"Slots done of those due, {done.start:%Y-%m-%d %H:%M} to {done.end:%Y-%m-%d %H:%M} UTC",
            stage_cells(done.summary()),
            keyed("market", "ingest", "forecast", "allocate", "score"),
        ),
        Table(
            "Not done" + more,
            rows_of(lacking),
            keyed("stage", "state", "market", "since", "until", "slots", "reason"),
            most=_SHOWN,
        ),
        Table(
            "Freshness",
            ages,
            keyed("market", "source", kind="of", newest="newest (UTC)", age="age", expected_by="next expected by",
                  late_by="late by", stale="stale"),
        ),
    ]  # fmt: skip
    if len(found.feeds):
        feeds = keyed("feed", fetched="last fetched (UTC)", status="status", added="rows added",
                      expected_by="next expected by", reason="why")  # fmt: skip
        blocks.append(Table("Live feeds", rows_of(found.feeds), feeds))
    alarms = [
        {
            "kind": one.kind,
            "subject": one.subject,
            "severity": one.severity,
            "since": one.since,
            "text": one.text,
        }
        for one in found.alarms
    ]
    columns = keyed(kind="alarm", subject="about", severity="severity", since="since (UTC)") | {
        "text": Column(heading="what, and what to do")
    }
    return [
        *blocks,
        Table("Alarms", alarms, columns),
        found.sentence() + (f" ({found.note})" if found.note else ""),
    ]
