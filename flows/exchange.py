"""Commands ``ingest``, ``rejected``, ``markets``, ``export``, ``import``, ``compact`` and ``publish``."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slackwater.flows.command import (
    MOST_LISTED,
    USER_ERROR,
    Answer,
    Patterns,
    Query,
    QueryAt,
    Session,
    all_fit,
    option,
    parsed_time,
    progress,
)
from slackwater.flows.show.blocks import Block, Column, Table, columns_by_key
from slackwater.flows.show.formats import MISSING, as_number, duration, plural, price, utc, whole

if TYPE_CHECKING:
    import pandas as pd

    from slackwater.flows.config import Settings
    from slackwater.warehouse.store.connection import Store


def gap_words(seconds: Any) -> str:
    """Format the time between two readings.

    >>> gap_words(32.0), gap_words(600), gap_words(86400), gap_words(None)
    ('32 s', '10 min', '24 h', '—')
    """
    found = as_number(seconds)
    if not found:
        return MISSING
    return f"{found:.0f} s" if found < 120 else duration(dt.timedelta(seconds=found))


MARKET_COLUMNS: dict[str, Column | str] = {
    "market": "market", "source": "source", "kind": "kind", "count_rows": Column(heading="counts", format=whole),
    "price_rows": Column(heading="prices", format=whole), "capacity": "capacity",
    "on_demand_usd": Column(heading="on-demand", unit="$", format=price), "on_demand_from": "on-demand price from",
    "gap_seconds": Column(heading="gap", format=gap_words),
    "first_observed": Column(heading="first", unit="UTC"), "last_observed": Column(heading="last", unit="UTC"),
    "missing": "missing",
}  # fmt: skip
COUNTED = ("added", "repeated", "rejected")
MOST_CONTRADICTED = 10  # Contradictions between sources that are listed; the others are counted


def ingest(
    source: Annotated[
        str, option("Source format of the files; `slackwater ingest --list` lists them.", metavar="SOURCE")
    ] = "",
    /,
    *paths: Annotated[Path, option("Files or folders; - is standard input.", metavar="PATH...", hyphen=True)],
    options: Annotated[
        list[str] | None,
        option(
            "Option of the source (zone=..., start=...), or a value missing in a table (provider=aws); may be repeated.",
            name="--set",
            metavar="NAME=VALUE",
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        option(
            "Name of a column in the table (timestamp=Timestamp, price=SpotPrice); may be repeated.",
            name="--map",
            metavar="NAME=COLUMN",
        ),
    ] = None,
    known_at: Annotated[
        str | None, option("Time at which the rows became known (default: when observed).", metavar="TIME")
    ] = None,
    list_sources: Annotated[bool, option("List the sources and their options.", name="--list")] = False,
    session: QueryAt = QueryAt(),
) -> Answer:
    """Read histories into the warehouse; the same file twice adds nothing. The path - is standard input.

    The exit code is 2 if no row could be used.
    """
    if list_sources:
        return _sources()
    from slackwater.flows.clock import now
    from slackwater.flows.imported import import_answer, input_files, stated_options
    from slackwater.warehouse.errors import InputError
    from slackwater.warehouse.observations import find_source
    from slackwater.warehouse.observations import ingest as read_files

    if not source:
        raise InputError(
            "no source given",
            expected="SOURCE PATH...",
            remedy="`slackwater ingest --list` lists the sources",
        )
    find_source(source)
    clock = now()
    at = session.time if session.time is not None else clock
    values = stated_options(source, options or [], columns or [], at=session.time)
    bounds = session.config.bounds.at(at)
    with (
        input_files(paths) as (files, standard_input),
        session.writing() as store,
        progress("rows read") as tell,
    ):
        done = read_files(
            store,
            source,
            *files,
            known_at=parsed_time(known_at, "--known-at"),
            imported_at=at,
            bounds=bounds,
            progress=lambda _: None,
            rows=lambda file, rows: tell(rows, text=file),
            standard_input=standard_input,
            **values,
        )
        value, blocks = import_answer(store, done, source, session=session, clock=at)
    unusable = done.rejected > 0 and not done.added and not done.repeated
    code = USER_ERROR if unusable else 0
    return Answer(title="Ingested", value={source: value}, blocks=blocks, exit_code=code)


def _reasons_table(reasons: Mapping[str, int]) -> Table:
    from slackwater.flows.imported import reasons_table

    rows = [{"reason": reason, "rows": count} for reason, count in reasons.items()]
    return reasons_table("Rejected rows, by reason", rows, {"rows": Column(heading="rows", format=whole)})


def _sources() -> Answer:
    from slackwater.warehouse.sources import LIVE_SOURCES, SOURCES

    files = [_source_row(name, SOURCES[name].options) for name in SOURCES.all_names()]
    live = [_source_row(name, LIVE_SOURCES[name].options) for name in LIVE_SOURCES.all_names()]
    blocks = [
        Table("Sources", files, {"source": "source", "options": "options (--set NAME=VALUE)"}),
        Table("Live sources, for [[feeds]] in slackwater.toml", live, columns_by_key("source", "options")),
    ]
    return Answer(title="Sources", value={"sources": files, "live": live}, blocks=blocks)


def _source_row(name: str, options: Mapping[str, str]) -> dict[str, Any]:
    return {"source": name, "options": [f"{key}: {text}" for key, text in options.items()]}


REJECTED_COLUMNS: dict[str, Column | str] = {
    "imported_at": Column(heading="read", unit="UTC"), "source": "source", "file": "file", "line": "line",
    "reason": "reason", "found": "row",
}  # fmt: skip
SHOWN_OF_A_ROW = 300  # Characters of a row shown in a table; JSON has the whole row


def show_rejected(
    *,
    source: Annotated[
        str | None, option("Only rows of this source: a format, a live source or a source label.")
    ] = None,
    file: Annotated[
        str | None,
        option("Only rows of files whose name contains this text, or of this feed.", metavar="TEXT"),
    ] = None,
    reason: Annotated[
        str | None, option("Only rows whose reason contains this text.", metavar="TEXT")
    ] = None,
    most: Annotated[
        int, option("Maximum number of rows shown, newest first.", metavar="N", least=0, most=100_000)
    ] = 20,
    session: Query = Query(),
) -> Answer:
    """Show rejected rows: the number by reason, then the newest rows as found."""
    from slackwater.warehouse.observations import rejected_rows

    with session.reading() as store:
        found = rejected_rows(store, source=source, file=file, reason=reason, most=most)
    total = sum(found.reasons.values())
    value = {"rejected": total, "reasons": dict(found.reasons), "rows": [dict(row) for row in found.rows]}
    raw = [str(row["raw"]) for row in found.rows]
    short = [text if len(text) <= SHOWN_OF_A_ROW else f"{text[:SHOWN_OF_A_ROW]}..." for text in raw]
    rows = [{**row, "found": text} for row, text in zip(found.rows, short, strict=True)]
    title = f"The newest {len(rows):,} of {total:,}" if len(rows) < total else "Rejected rows"
    blocks = [_reasons_table(found.reasons), *([Table(title, rows, REJECTED_COLUMNS)] if rows else [])]
    return Answer(title="Rejected rows", value=value, blocks=blocks)


def markets(
    *patterns: Patterns,
    job: Annotated[
        str | None,
        option(
            "Rank the markets of this multi-market job (a file or a name), or propose markets for a file that names none.",
            name="--for",
            metavar="JOB",
        ),
    ] = None,
    session: Session = Session(),
) -> Answer:
    """List the markets of the warehouse with their observations, sampling interval and missing data."""
    from slackwater.flows.following import step_of
    from slackwater.flows.ledger.jobs import stored_jobs
    from slackwater.warehouse.asof import contradicting_sources
    from slackwater.warehouse.errors import READ_SOME, MarketError

    if job is not None:
        if patterns:
            raise MarketError(
                f"patterns {' '.join(patterns)} together with --for {job}",
                expected="either patterns or --for",
                remedy="`markets` in the job file lists the markets of the job",
            )
        return _rank_markets(job, session)
    with session.market_data() as store:
        rows = market_rows(store, session.config, known_at=session.time)
        at = session.moment(store)[0] if rows else None
        named = {str(row["market"]) for row in rows}
        used = {stored.request.market for stored in stored_jobs(store, known_at=session.time)} & named
        apart = (
            []
            if at is None
            else contradicting_sources(store, at, step_of(session.config), session.config.trust)
        )
    known = len(rows)
    rows = [row for row in rows if fits(patterns, row)]
    rows.sort(key=lambda row: str(row["last_observed"]), reverse=True)
    rows.sort(key=lambda row: (row["market"] not in used, not row["has_counts"]))
    value: dict[str, Any] = {"markets": rows} | ({"contradicted": apart} if apart else {})
    notes = [f"SOURCES DISAGREE: {text}" for text in apart[:MOST_CONTRADICTED]]
    if len(apart) > MOST_CONTRADICTED:
        notes.append(f"and {len(apart) - MOST_CONTRADICTED} more (`--json` lists all)")
    if apart:
        notes.append("`trust` in slackwater.toml sets which source has priority")
    if patterns and not rows and known:
        raise MarketError(
            f"none of {plural(known, 'market')} matches {' '.join(patterns)}",
            expected="part of the name or source of a market, or a shell pattern such as aws/*/*/p4d.24xlarge",
            remedy="`slackwater markets` lists them",
        )
    if not known:
        notes.append(READ_SOME)
    title = f"Markets ({len(rows):,} of {known:,})" if patterns else "Markets"
    table = Table(title, rows, MARKET_COLUMNS, most=MOST_LISTED, more=FEWER)
    return Answer(title="Markets", value=value, blocks=[table], notes=notes)


FEWER = " (filter with a pattern: `slackwater markets p4d us-east-1`)"  # Hint on how to shorten a list


def market_rows(
    store: Store, settings: Settings, *, known_at: pd.Timestamp | None = None
) -> list[dict[str, Any]]:
    """Return the listing of markets with on-demand prices, for ``markets`` and the pages of the UI."""
    from slackwater.flows.show.formats import rows_of
    from slackwater.warehouse.observations import list_markets, with_on_demand

    listed = list_markets(store, known_at=known_at)
    rows = rows_of(with_on_demand(listed, terms=settings.on_demand_terms, known_at=known_at))
    return [
        # An unknown figure is None, as in every other row; pandas has NaN.
        {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in row.items()
        }
        | {"capacity": row["capacity"] if row["count_rows"] else None}
        for row in rows
    ]


def fits(patterns: Sequence[str], row: Mapping[str, Any]) -> bool:
    """Return whether a row of `market_rows` matches all patterns of names."""
    market, source = str(row["market"]), str(row["source"])
    return all_fit(patterns, [market, *market.split("/"), source, f"{market}@{source}"])


def _rank_markets(job: str, session: Session) -> Answer:
    """Rank the markets of a multi-market job by the expected total cost if it runs there in the next slot."""
    from slackwater.flows.clock import now
    from slackwater.flows.plans.answers import RANKED_COLUMNS, ranked_rows
    from slackwater.flows.plans.query import named_job, named_moment
    from slackwater.flows.turn.context import query_turn

    with session.market_data() as store:
        moment = named_moment(
            store, session.config, job, given=session.time, clock=now(), folder=session.data is not None
        )
        turn = query_turn(session, store, moment.at, "markets", own_end=moment.own_end)
        named = named_job(turn, job)
        rows = ranked_rows(turn, named)
    title = f"Markets for {named.name} at {utc(named.at)}"
    alone = 'Its job file names one market; `markets = ["provider/*/*/type"]` compares others.'
    note = (
        alone
        if len(rows) == 1
        else (
            "Instances to run in each market in this slot, and the extra expected total cost compared with the first market, "
            "later moves included."
        )
    )
    return Answer(
        title=title,
        value={"job": named.name, "at": named.at, "markets": rows}
        | ({"proposed": named.proposal} if named.proposal else {}),
        blocks=[Table(title, rows, RANKED_COLUMNS), note, *([named.proposal] if named.proposal else [])],
    )


def export(
    folder: Annotated[Path, option("New or empty folder.", metavar="DIR")],
    /,
    *,
    tables: Annotated[
        str | None,
        option("Only these tables and the tables that they refer to (default: all).", metavar="NAME,..."),
    ] = None,
    since: Annotated[str | None, option("Leave out rows before this time.", metavar="TIME")] = None,
    views: Annotated[
        bool, option("Write the views too, in a folder for each view and day: for other tools.")
    ] = False,
    session: Query = Query(),
) -> Answer:
    """Write the warehouse as Parquet: a file per table, and a manifest with row counts and content hashes."""
    from slackwater.flows.schemas.tables import view_times
    from slackwater.warehouse.exchange import export_store

    names = [name.strip() for name in (tables or "").split(",") if name.strip()]
    with session.reading() as store:
        manifest = export_store(
            store,
            folder,
            tables=names,
            since=parsed_time(since, "--since"),
            views=view_times() if views else {},
        )
    rows = [
        {"table": name, "rows": table.rows, "sha256": table.sha256} for name, table in manifest.tables.items()
    ]
    columns: dict[str, Column | str] = {
        "table": "table",
        "rows": Column(heading="rows", format=whole),
        "sha256": "SHA-256",
    }
    return Answer(
        title=f"Exported to {folder}",
        value={"folder": str(folder), "since": manifest.since or None, "tables": rows},
        blocks=[Table(f"Exported to {folder}", rows, columns)],
    )


def import_(
    folder: Annotated[Path, option("Folder written by `slackwater export`.", metavar="DIR")],
    /,
    *,
    session: Query = Query(),
) -> Answer:
    """Merge an exported folder into a new or existing warehouse; the same folder again adds nothing."""
    from slackwater.flows.ledger.jobs import unusable_spec
    from slackwater.warehouse.exchange import NOT_IMPORTED, import_folder
    from slackwater.warehouse.store.folders import read_manifest

    manifest = read_manifest(folder)  # read first, so that an unusable folder creates no warehouse
    with session.writing() as store:
        done = import_folder(
            store, folder, judges={("jobs", "spec"): unusable_spec, ("terms", "spec"): unusable_spec}
        )
    rows = [
        {"table": name, "added": table.added, "repeated": table.repeated, "rejected": table.rejected}
        for name, table in done.items()
    ]
    reasons = [
        {"table": name, "reason": reason, "rows": count}
        for name, table in done.items()
        for reason, count in table.reasons.items()
    ]
    blocks: list[Block] = [
        Table(
            f"Imported from {folder}",
            rows,
            {"table": "table", **{name: Column(heading=name, format=whole) for name in COUNTED}},
        )
    ]
    if reasons:
        columns: dict[str, Column | str] = columns_by_key("table", "reason")
        columns |= {"rows": Column(heading="rows", format=whole)}
        blocks.append(Table("Rejected rows, by reason", reasons, columns))
    if any(table.brought_up for table in done.values()):
        upgrades = " and ".join(
            f"{table.brought_up} of {name}" for name, table in done.items() if table.brought_up
        )
        blocks.append(
            f"The folder is of an older version. Rows converted to this version, with the same meaning: {upgrades}. Work given in "
            '"gpu_hours" was in instance-hours; its unit is now "instance_hours".'
        )
    if any(manifest.tables[name].rows for name in NOT_IMPORTED if name in manifest.tables):
        blocks.append("Fitted forecasters are not imported; the next turn estimates them again.")
    return Answer(
        title=f"Imported from {folder}",
        value={"folder": str(folder), "tables": rows, "set_aside": reasons},
        blocks=blocks,
    )


def compact(
    *,
    keep_fitted: Annotated[
        float | None,
        option(
            "Drop estimated forecasters that are so many days older than the newest (default: fitted_days of [retention]).",
            metavar="DAYS",
            least=0,
        ),
    ] = None,
    session: Query = Query(),
) -> Answer:
    """Rewrite the warehouse without data it no longer needs; the new file is verified before it replaces the old file.

    The settings [retention] say for how many days forecasts and measured errors are kept in full.
    """
    from slackwater.flows.turn.retention import compact_by_settings

    with session.reading():
        pass  # raises if there is no warehouse, instead of creating it
    row = compact_by_settings(session.db, session.config, fitted_days=keep_fitted)
    columns = {name: Column(heading=name.replace("_", " "), format=whole) for name in row}
    title = f"Compacted {session.db}"
    return Answer(title=title, value=row, blocks=[Table(title, [row], columns)])


def publish(
    folder: Annotated[
        Path, option("Folder on storage shared by the readers; created if missing.", metavar="DIR")
    ],
    /,
    *,
    keep: Annotated[
        int,
        option("Number of published generations that remain readable.", metavar="N", least=2, most=10_000),
    ] = 3,
    session: Query = Query(),
) -> Answer:
    """Publish the warehouse for many readers on shared storage, which pass DIR as --db."""
    from slackwater.warehouse.exchange import publish_generation

    with session.reading() as store:
        done = publish_generation(store, folder, keep=keep)
    row = {"folder": str(folder), "form": "parquet", "generation": done.number, "published": done.new}
    return Answer(title="Published", value=row, blocks=[Table("Published", [row], columns_by_key(*row))])
