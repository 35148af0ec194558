"""Commands ``ingest`` and ``rejected``: rows read, rows set aside with reasons, markets followed, and the next command."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from slackwater.flows.command import (
    DEFAULT_DB,
    USER_ERROR,
    Answer,
    Query,
    QueryAt,
    option,
    parsed_time,
    progress,
)
from slackwater.flows.show.blocks import Block, Column, Notes, Table, columns_by_key
from slackwater.flows.show.formats import plural, utc, whole
from slackwater.warehouse.catalogue import product_rank, unplanned_words
from slackwater.warehouse.documents import read_data
from slackwater.warehouse.errors import InputError
from slackwater.warehouse.sources import SOURCES

if TYPE_CHECKING:
    import pandas as pd

    from slackwater.warehouse.observations import Appended
    from slackwater.warehouse.store.connection import Store

SHOWN_MARKETS = 12  # Markets listed on a terminal; pipes, pages and JSON have all markets
_MOST_NAMES = 3  # Markets that a note names; the others are counted
READ_COLUMNS: dict[str, Column | str] = {
    "market": "market",
    "prices": Column(heading="prices", format=whole),
    "counts": Column(heading="counts", format=whole),
    "ratings": Column(heading="ratings", format=whole),
    "products": "products",
    "followed": "followed",
}


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
    """Read histories into the warehouse; reading a file again adds nothing. The path - is standard input.

    The exit code is 2 if no row could be used.
    """
    if list_sources:
        return _sources()
    from slackwater.flows.clock import now
    from slackwater.warehouse import observations

    if not source:
        raise InputError(
            "no source given",
            expected="SOURCE PATH...",
            remedy="`slackwater ingest --list` lists the sources",
        )
    observations.find_source(source)
    clock = now()
    at = session.time if session.time is not None else clock
    values = stated_options(source, options or [], columns or [], at=session.time)
    bounds = session.config.bounds.at(at)
    with (
        input_files(paths) as (files, standard_input),
        session.writing() as store,
        progress("rows read") as report_progress,
    ):
        done = observations.ingest(
            store,
            source,
            *files,
            known_at=parsed_time(known_at, "--known-at"),
            imported_at=at,
            bounds=bounds,
            progress=lambda _: None,
            rows=lambda file, rows: report_progress(rows, text=file),
            standard_input=standard_input,
            **values,
        )
        value, blocks = import_answer(store, done, source, session=session, clock=at)
    unusable = done.rejected > 0 and not done.added and not done.repeated
    code = USER_ERROR if unusable else 0
    return Answer(title="Ingested", value={source: value}, blocks=blocks, exit_code=code)


def _sources() -> Answer:
    from slackwater.warehouse.sources import LIVE_SOURCES

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
SHOWN_CHARACTERS = 300  # Characters of a row shown in a table; JSON has whole rows


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
    short = [text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..." for text in raw]
    rows = [{**row, "found": text} for row, text in zip(found.rows, short, strict=True)]
    title = f"The newest {len(rows):,} of {total:,}" if len(rows) < total else "Rejected rows"
    counts = [{"reason": reason, "rows": count} for reason, count in found.reasons.items()]
    by_reason = reasons_table(
        "Rejected rows, by reason", counts, {"rows": Column(heading="rows", format=whole)}
    )
    blocks: list[Block] = [by_reason, *([Table(title, rows, REJECTED_COLUMNS)] if rows else [])]
    return Answer(title="Rejected rows", value=value, blocks=blocks)


@contextmanager
def input_files(paths: Sequence[Path]) -> Iterator[tuple[list[Path], Path | None]]:
    """Yield the paths, with ``-`` as a copy of standard input, and that copy; raises `InputError` for a missing or empty one."""
    from slackwater.warehouse.observations import STANDARD_INPUT

    for path in paths:
        if str(path).startswith("-") and str(path) != STANDARD_INPUT and not path.exists():
            raise InputError(f"no option {path}", remedy="`slackwater ingest --help` lists the options")
        if str(path) != STANDARD_INPUT and not path.exists():
            raise InputError(f"no file or folder {path}", remedy="check the path")
    if not any(str(path) == STANDARD_INPUT for path in paths):
        yield list(paths), None
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("nothing on standard input", remedy="pipe a command into it, or name a file")
    with TemporaryDirectory(prefix="slackwater-") as folder:
        copy = Path(folder) / "standard-input"
        with copy.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        if not copy.stat().st_size:
            raise InputError("standard input is empty", remedy="did the command before `|` fail?")
        yield [copy if str(path) == STANDARD_INPUT else path for path in paths], copy


def stated_options(
    source: str, texts: Sequence[str], columns: Sequence[str], *, at: pd.Timestamp | None
) -> dict[str, str | Mapping[str, str]]:
    """Return the options of ``--set`` and ``--map``; ``observed_at``, if the source has it, defaults to ``--at``."""
    options: dict[str, str | Mapping[str, str]] = dict(_parse_pair(text, "--set") for text in texts)
    if columns:
        options["map"] = dict(_parse_pair(text, "--map") for text in columns)
    if at is not None and "observed_at" in SOURCES[source].options:
        options.setdefault("observed_at", at.isoformat())
    return options


def _parse_pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise InputError(f"{option} {text!r}", expected="NAME=VALUE" if option == "--set" else "NAME=COLUMN")
    return name.strip(), value.strip()


def import_answer(
    store: Store, done: Appended, source: str, *, session: QueryAt, clock: pd.Timestamp
) -> tuple[dict[str, Any], list[Block]]:
    """Return the JSON value and the blocks of the answer to an import."""
    from slackwater.warehouse.observations import imported_series

    read = imported_series(store, done.batches)
    reasons = _reasons_not_followed(store, read, session)
    for row in read:
        row["followed"] = reasons.get(f"{row['market']}@{row['source']}", "")
    value: dict[str, Any] = {"added": done.added, "repeated": done.repeated, "rejected": done.rejected}
    if done.reasons:
        value["reasons"] = dict(done.reasons)
    if done.set_aside:
        value["set_aside"] = dict(done.set_aside)
    value["markets"] = [
        {**row, "followed": not row["followed"], "why_not": row["followed"] or None} for row in read
    ]
    value["next"] = _next_commands(read, done, session)
    blocks: list[Block] = [_headline(done, source, read)]
    if read:
        rows = [
            {**row, "products": "; ".join(row["products"]), "followed": "no" if row["followed"] else "yes"}
            for row in read
        ]
        shown = {
            key: column
            for key, column in READ_COLUMNS.items()
            if key not in ("counts", "ratings") or any(row[key] for row in read)
        }
        blocks.append(Table("Markets read", rows, shown, most=SHOWN_MARKETS))
    if done.reasons or done.set_aside:
        blocks.append(_set_aside(done))
    notes = [*_follow_notes(read), *_product_notes(read), *_age_notes(read, clock)]
    if notes:
        blocks.append(Notes(notes))
    blocks.append("Next: " + "   or   ".join(f"`{command}`" for command in value["next"]))
    return value, blocks


def _reasons_not_followed(
    store: Store, read: Sequence[Mapping[str, Any]], session: QueryAt
) -> dict[str, str]:
    """Return the reasons why markets are not followed, as of the end of each market's record."""
    if not read:
        return {}
    from slackwater.flows.following import why_not_followed
    from slackwater.flows.histories import KnownMarkets

    config = session.config
    last = max(row["last"] for row in read)
    listing = KnownMarkets(store=store, at=last, settings=config, own_end=True)
    return why_not_followed(listing, most=config.max_markets)


def _headline(done: Appended, source: str, read: Sequence[Mapping[str, Any]]) -> str:
    set_aside = f"; {plural(done.rejected, 'row')} set aside" if done.rejected else ""
    repeated = f"; {plural(done.repeated, 'row')} already known" if done.repeated else ""
    if not done.added:
        found = "Nothing new" if done.repeated else "Nothing could be used"
        return f"{found} from {source}{repeated}{set_aside}."
    first, last = min(row["first"] for row in read), max(row["last"] for row in read)
    n_markets = len({row["market"] for row in read})
    return (
        f"Read {plural(done.added, 'row')} of {plural(n_markets, 'market')} from {source}, "
        f"{utc(first)} to {utc(last)}{repeated}{set_aside}."
    )


def _set_aside(done: Appended) -> Table:
    """Return a table with the number of rows and values set aside by reason, and the meaning of the reason."""
    found = [
        *((reason, f"{plural(count, 'row')}") for reason, count in done.reasons.items()),
        *((reason, f"{plural(count, 'value')}, spot price kept") for reason, count in done.set_aside.items()),
    ]
    title = "Set aside, by reason (`slackwater rejected` shows the rows)"
    return reasons_table(
        title, [{"reason": reason, "rows": count} for reason, count in found], {"rows": "how many"}
    )


def reasons_table(
    title: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column | str]
) -> Table:
    """Return a table of reasons with other columns, and a column of meanings if a reason has one."""
    found = [row | {"remedy": _remedy(row["reason"])} for row in map(dict, rows)]
    remedy = {"remedy": "meaning"} if any(row["remedy"] for row in found) else {}
    return Table(title, found, {"reason": "reason", **columns, **remedy})


def _remedy(reason: str) -> str:
    remedies = read_data(__package__, "remedies")
    return next((words for part, words in remedies.items() if part in reason), "")


def _follow_notes(read: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return notes on the markets followed without a job that names them, and the reasons why others are not."""
    found: dict[str, list[str]] = {}
    for row in read:
        found.setdefault(row["followed"], []).append(row["market"])
    followed = found.pop("", [])
    return [
        *([f"Followed (forecast in every turn): {_shortened(followed)}."] if followed else []),
        *(
            f"Not followed unless a job names it: {_shortened(names)}: {reason}."
            for reason, names in found.items()
        ),
    ]


def _product_notes(read: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return notes on the markets without a price of Linux instances, and on products with unknown names."""
    found: dict[str, list[str]] = {}
    for row in read:
        if row["products"] and not _has_planned(row["products"]):
            found.setdefault(unplanned_words(row["products"]), []).append(row["market"])
    notes = [
        f"No price that a job can be planned on ({words}; jobs run on Linux): {_shortened(markets)}."
        for words, markets in found.items()
    ]
    others = sorted({name for row in read for name in row["products"] if product_rank(name) is None})
    if others and any(_has_planned(row["products"]) for row in read):
        notes.append(f"Stored, but not used for plans: prices of {', '.join(others)}.")
    return notes


def _has_planned(products: Sequence[str]) -> bool:
    from slackwater.warehouse.catalogue import planning_item

    return planning_item(products, str) is not None


def _age_notes(read: Sequence[Mapping[str, Any]], clock: pd.Timestamp) -> list[str]:
    """Return a note if the newest row is at least two days old: a turn as of now does not use it."""
    if not read:
        return []
    last = max(row["last"] for row in read)
    days = (clock - last).days
    if days < 2:
        return []
    return [
        f"The newest row is {plural(days, 'day')} old: commands take a market at the end of its record, `run` at the present time."
    ]


def _next_commands(read: Sequence[Mapping[str, Any]], done: Appended, session: QueryAt) -> list[str]:
    db = "" if session.db == DEFAULT_DB else f" --db {shlex.quote(str(session.db))}"
    if not read and done.rejected and not done.repeated:
        return [f"slackwater rejected{db}"]
    from slackwater.warehouse.columns import RATINGS_ALONE

    usable = [
        row
        for row in read
        if row["followed"] != RATINGS_ALONE and (not row["products"] or _has_planned(row["products"]))
    ]
    if not usable:
        return [f"slackwater markets{db}"]
    best = min(usable, key=lambda row: (bool(row["followed"]), row["market"]))
    zones = {row["market"] for row in usable if row["market"].split("/")[-1] == best["market"].split("/")[-1]}
    if len(zones) > 1:
        return [f"slackwater markets --for JOB.toml{db}", f"slackwater plan JOB.toml{db}"]
    return [f"slackwater plan JOB.toml --market {shlex.quote(best['market'])}{db}", f"slackwater markets{db}"]


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
