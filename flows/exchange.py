"""Commands ``markets``, ``catalogue``, ``export``, ``import``, ``compact`` and ``publish``."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slackwater.flows.command import (
    MOST_LISTED,
    Answer,
    Output,
    Patterns,
    Query,
    Session,
    all_fit,
    option,
    parsed_time,
)
from slackwater.flows.show.blocks import Block, Column, Notes, Table, columns_by_key
from slackwater.flows.show.formats import MISSING, as_number, duration, first_of, plural, price, utc, whole

if TYPE_CHECKING:
    import pandas as pd

    from slackwater.flows.config import Settings
    from slackwater.warehouse.catalogue import InstanceType
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
    "last_counted": Column(heading="last count", unit="UTC"),
    "missing": "missing",
}  # fmt: skip
COUNT_COLUMNS = ("added", "repeated", "rejected")
MOST_CONTRADICTED = 10  # Contradictions between sources that are listed; the others are counted


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
    disagree = (f"SOURCES DISAGREE: {text}" for text in apart)
    notes = first_of(disagree, MOST_CONTRADICTED, "and {} more (`--json` lists all)")
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
    from slackwater.warehouse.listing import list_markets, with_on_demand

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
    from slackwater.flows.query import named_job, named_moment
    from slackwater.flows.turn.context import query_turn

    with session.market_data() as store:
        moment = named_moment(
            store, session.config, job, given=session.time, clock=now(), folder=session.data is not None
        )
        turn = query_turn(session, store, moment.at, "markets", own_end=moment.own_end)
        named = named_job(turn, job)
        rows = ranked_rows(turn, named)
    title = f"Markets for {named.name} at {utc(named.at)}"
    alone = 'One market fits its job file; `markets = ["provider/*/*/type"]` compares others.'
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
            {"table": "table", **{name: Column(heading=name, format=whole) for name in COUNT_COLUMNS}},
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


# ---
# The ``catalogue`` command: known instance types with their GPUs and on-demand list prices.

MOST_SOURCES = 6  # Number of sources listed by name; the others are only counted

COLUMNS: dict[str, Column | str] = {
    "type": "instance type", "holds": "GPUs", "on_demand": Column(heading="on-demand $/h"), "regions": "regions", "date": "price",
}  # fmt: skip


def catalogue(
    *patterns: Annotated[
        str,
        option(
            "Provider, region, instance type or GPU: a part of its name or a shell pattern; several must all fit.",
            metavar="PATTERN...",
        ),
    ],
    output: Output = Output(),
) -> Answer:
    """List instance types with GPUs, on-demand list price, source and date; prices are per instance."""
    from slackwater.warehouse.catalogue import catalogue as all_rows

    found = [row for row in all_rows() if all(_fits(row, pattern) for pattern in patterns)]
    rows = [_row_values(row, patterns) for row in found]
    blocks: list[Block] = [
        Table(
            f"Instance types ({len(rows)} of {len(all_rows())} rows)",
            rows,
            COLUMNS,
            most=MOST_LISTED,
            empty="none fits",
        )
    ]
    if sources := sorted({f"{row.source}" for row in found}):
        named = "; ".join(first_of(sources, MOST_SOURCES, "{} more; --json has all"))
        blocks.append(Notes([f"Sources: {named}"]))
    if not patterns:
        blocks.append(
            Notes(["name a provider, region, type or GPU to see fewer: slackwater catalogue aws H100"])
        )
    return Answer(
        title="Catalogue", value={"instance_types": [_plain(row, patterns) for row in found]}, blocks=blocks
    )


def _fits(row: InstanceType, pattern: str) -> bool:
    return all_fit([pattern], (row.provider, row.instance_type, row.gpu_model or "", *row.regions))


def _regions(row: InstanceType, patterns: Sequence[str]) -> list[str]:
    """Return the regions of a row that match any pattern, or all its regions if none matches."""
    from slackwater.warehouse.catalogue import is_named

    named = [region for region in row.regions if any(is_named(pattern, region) for pattern in patterns)]
    return named or list(row.regions)


def _plain(row: InstanceType, patterns: Sequence[str]) -> dict[str, Any]:
    usd, gpus = row.on_demand_usd, row.gpus
    return {
        "provider": row.provider,
        "instance_type": row.instance_type,
        "gpu_model": row.gpu_model,
        "gpus": gpus,
        "gpu_memory_gib": row.gpu_memory_gib,
        "regions": _regions(row, patterns),
        "on_demand_usd": usd,
        "on_demand_usd_per_gpu": None if usd is None or not gpus else round(usd / gpus, 6),
        "sold_on_demand": row.sold,
        "valid_from": row.valid_from or None,
        "source": row.source,
        "source_date": row.source_date or None,
    }


def _row_values(row: InstanceType, patterns: Sequence[str]) -> dict[str, Any]:
    unsold = "unknown" if row.sold else "not sold"
    first, *others = _regions(row, patterns)
    date = f"from {row.valid_from}" if row.valid_from else f"read {row.source_date or 'on an unknown day'}"
    return {
        "type": f"{row.provider} {row.instance_type}",
        "holds": "none or unknown" if row.gpus is None else f"{row.gpus} x {row.gpu_model}",
        "on_demand": unsold if row.on_demand_usd is None else price(row.on_demand_usd),
        "regions": f"{first} and {len(others)} more" if others else first,
        "date": date,
    }
