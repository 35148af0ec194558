"""What ``slackwater status`` does: look, print, and answer with an exit code. It needs no engine and starts none."""

from __future__ import annotations

from pathlib import Path

from flows.clock import now, parse_time
from flows.command.answer import print_json, print_table
from flows.config import read_settings
from flows.monitoring.completeness import NOT_DONE, told_span
from flows.monitoring.status import Status, present_of, stage_cells, status_of
from flows.show.table import rows_of
from warehouse.reader import open_reader

#: Stretches printed at most; --json and the page have all.
_SHOWN = 20


def status_command(
    *,
    db: Path,
    at: str | None,
    since: str | None,
    until: str | None,
    market: str | None,
    html: Path | None,
    settings: Path | None,
    as_json: bool,
) -> int:
    """``slackwater status``: the exit code is `Status.exit_code`."""
    chosen = read_settings(settings)
    with open_reader(db) as store:
        if at is None:
            when, note = present_of(store, chosen, clock=now())
        else:
            when, note = (now() if at == "now" else parse_time(at, "--at")), ""
        found = status_of(
            store,
            chosen,
            at=when,
            since=parse_time(since, "--since") if since else None,
            until=parse_time(until, "--until") if until else None,
            market=market or "",
            note=note,
        )
    if html is not None:
        from flows.monitoring.page import write_status_page

        write_status_page(found, html)
    if as_json:
        print_json(found.answer())
    else:
        print_status(found)
        if html is not None:
            print(f"page: {html}")
    return found.exit_code


def print_status(found: Status) -> None:
    """The tables of a status."""
    done = found.completeness
    print_table(
        f"Slots done of those due, {done.start:%Y-%m-%d %H:%M} to {done.end:%Y-%m-%d %H:%M} UTC",
        stage_cells(done.summary()),
        {name: name for name in ("market", "ingest", "forecast", "allocate", "score")},
    )
    lacking = done.stretches(NOT_DONE)
    columns = ("stage", "state", "market", "since", "until", "slots", "reason")
    print_table(
        "Not done" + (f" (the newest {_SHOWN} of {len(lacking)} stretches)" if len(lacking) > _SHOWN else ""),
        rows_of(lacking.sort_values("until", kind="stable", ascending=False).head(_SHOWN)),
        {name: name for name in columns},
    )
    ages = [
        {**row, **{name: told_span(row[name]) for name in ("age", "late_by") if row[name] == row[name]}}
        for row in rows_of(found.freshness)
    ]
    print_table(
        "Freshness",
        ages,
        {"market": "market", "source": "source", "kind": "of", "newest": "newest (UTC)", "age": "age",
         "expected_by": "next expected by", "late_by": "late by", "stale": "stale"},
    )  # fmt: skip
    if len(found.feeds):
        print_table(
            "Live feeds",
            rows_of(found.feeds),
            {"feed": "feed", "fetched": "last fetched (UTC)", "status": "status", "added": "rows added",
             "expected_by": "next expected by", "reason": "why"},
        )  # fmt: skip
    print_table(
        "Alarms",
        [{"kind": one.kind, "subject": one.subject, "severity": one.severity, "since": one.since.isoformat(),
          "text": one.text} for one in found.alarms],
        {"kind": "alarm", "subject": "about", "severity": "severity", "since": "since (UTC)", "text": "what, and what to do"},
    )  # fmt: skip
    print(found.sentence() + (f" ({found.note})" if found.note else ""))
