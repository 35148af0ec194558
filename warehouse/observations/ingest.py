"""Observations in: each file is staged in chunks, cast and judged in SQL, and merged in one transaction.

Nothing is lost on the way: added + repeated + rejected is the number of rows read, and the same file again adds nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from warehouse.errors import InputError, SettingsError, SourceFileError, StoreError
from warehouse.observations.casting import AVAILABILITY, PRICE
from warehouse.observations.merge import Stage, keep_assumptions, keep_rejected, keep_series, merge
from warehouse.sources import SOURCES
from warehouse.sources.contract import Batch, Source, SourceOptions
from warehouse.store.connection import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedSince:
    """When the rows of a live feed became known, fetched at ``at`` by a feed that is followed since ``start`` (M1.2, ours).

    A row observed before ``start`` is history fetched afterwards: known when it was observed. A later one was known at the
    fetch that brought it, and never before it was observed, however far the server's clock is ahead.
    """

    start: pd.Timestamp
    at: pd.Timestamp


#: When rows became known that do not say it themselves: when they were observed (None), that long after, at a
#: stated time (and never before they were observed), or as a live feed learns them.
KnownAt = pd.Timestamp | pd.Timedelta | FollowedSince | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Rows of an import: ``added`` observations, ``repeated`` ones that say nothing new, ``rejected`` ones kept aside."""

    added: int
    repeated: int
    rejected: int

    def __add__(self, other: Appended) -> Appended:
        return Appended(
            added=self.added + other.added,
            repeated=self.repeated + other.repeated,
            rejected=self.rejected + other.rejected,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where an import comes from; the fields of its line in the table ``imports``."""

    reader: str
    file: str
    options: str
    known_at_rule: str
    assumptions: tuple[str, ...]
    imported_at: pd.Timestamp | None


class _Counted:
    """A source that tells how many rows it has read so far, file by file; otherwise the one it wraps."""

    def __init__(self, source: Source, rows: Callable[[str, int], None]) -> None:
        self._source = source
        self._rows = rows
        self.name = source.name
        self.options = source.options
        self.examples = source.examples
        self.has_files = source.has_files

    def files(self, paths: Sequence[Path]) -> list[Path]:
        return self._source.files(paths)

    def read(self, path: Path, options: SourceOptions) -> Iterator[Batch]:
        seen = 0
        for batch in self._source.read(path, options):
            seen += batch.table.num_rows
            self._rows(path.name, seen)
            yield batch

    def assumptions(self, path: Path, options: SourceOptions) -> tuple[str, ...]:
        return self._source.assumptions(path, options)


def find_source(name: str) -> Source:
    """The source of that name; raises `InputError` with the known names."""
    if name not in SOURCES:
        raise InputError(
            f"source {name!r}",
            expected=f"one of {', '.join(sorted(SOURCES))}",
            remedy="see `slackwater ingest --list`",
        )
    return SOURCES[name]


def ingest(
    store: Store,
    source: str,
    /,
    *paths: Path | str,
    known_at: KnownAt = None,
    imported_at: pd.Timestamp | None = None,
    progress: Callable[[str], None] = lambda _: None,
    rows: Callable[[str, int], None] = lambda _file, _rows: None,
    **options: str,
) -> Appended:
    """Read every file of a source below ``paths`` (files or folders) into the store; a transaction a file, counts summed.

    ``options`` are the source's own (`slackwater ingest --list`). ``progress`` is told each file's name, ``rows`` the rows read
    of it so far. A file that is not of the source's format stops none of the others; it is refused after them, with
    `SourceFileError` (`InputError` of several files). Raises `InputError` for a source that is not known.
    """
    reader = _Counted(find_source(source), rows)
    asked = SourceOptions(values=options)
    total = Appended(added=0, repeated=0, rejected=0)
    refused: list[SourceFileError] = []
    files = reader.files([Path(path) for path in paths])
    for path in files:
        progress(path.name)
        try:
            total += ingest_file(
                store, reader, path, options=asked, known_at=known_at, imported_at=imported_at
            )
        except SourceFileError as error:
            refused.append(error)
    if len(files) == 1 and refused:
        raise refused[0]
    if refused:
        raise InputError(
            f"{len(refused)} of {len(files)} files refused, the first: {refused[0]}",
            remedy=f"the others are in: {total.added} rows added, {total.repeated} repeated, {total.rejected} rejected",
        )
    return total


def ingest_file(
    store: Store,
    source: Source,
    path: Path,
    *,
    options: SourceOptions,
    known_at: KnownAt = None,
    imported_at: pd.Timestamp | None = None,
) -> Appended:
    """Read one file with ``source`` into the store, in one transaction, and count its rows.

    A file that was read before (same bytes, path, source, options and rule) is not read again: its usable
    rows count as repeated, its rejected ones as rejected. ``known_at`` is for rows that do not state it (M1.2); ``imported_at`` is
    the logical time of the import. Raises `SourceFileError` if the file is not of the source's format; then nothing of it stays.
    """
    content = _digest(path) if source.has_files else None
    origin = Origin(
        reader=source.name,
        file=path.as_posix(),
        options=json.dumps(dict(options.values), sort_keys=True),
        known_at_rule=rule_words(known_at),
        assumptions=(),
        imported_at=imported_at,
    )
    known = None if content is None else _known_import(store, _fingerprint(content, origin))
    if known is not None:
        return known
    assumed = tuple(source.assumptions(path, options))
    origin = replace(origin, assumptions=assumed)
    return _import(store, source.read(path, options), origin, known_at=known_at, content=content)


def _digest(path: Path) -> str:
    if path.exists() and not path.is_file():  # a pipe or device may have no end
        raise SourceFileError(path, 0, "a folder, pipe or device", expected="a file")
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SourceFileError(
            path,
            0,
            f"cannot be read ({error.strerror})",
            expected="a readable file",
            remedy="check its rights",
        ) from error


def append(
    store: Store,
    batches: Iterable[Batch],
    *,
    source: str,
    known_at: KnownAt = None,
    imported_at: pd.Timestamp | None = None,
    file: str = "",
    assumptions: tuple[str, ...] = (),
) -> Appended:
    """Append batches that do not come from a file (a simulated market, an API) as one import; rules as in `ingest_file`.

    ``source`` names the reader in the ledger; the label of each series is in the rows. The same batches again add nothing.
    """
    origin = Origin(
        reader=source,
        file=file,
        options="{}",
        known_at_rule=rule_words(known_at),
        assumptions=assumptions,
        imported_at=imported_at,
    )
    return _import(store, batches, origin, known_at=known_at, content=None)


def rule_words(known_at: KnownAt) -> str:
    """The rule in words, as kept in the ledger; raises `SettingsError` for a time without a zone or a negative delay."""
    if known_at is None:
        return "observed_at"
    if isinstance(known_at, pd.Timedelta):
        if known_at < pd.Timedelta(0):
            raise SettingsError(f"known_at rule {known_at}", expected="a delay >= 0")
        return f"observed_at + {known_at.isoformat()}"
    if isinstance(known_at, FollowedSince):
        return f"observed_at before {_zoned(known_at.start)}, then {rule_words(known_at.at)}"
    if known_at.tzinfo is None:
        raise SettingsError(f"known_at {known_at} has no time zone", expected="a UTC time")
    return f"max(observed_at, {known_at.tz_convert('UTC').isoformat()})"


def _zoned(at: pd.Timestamp) -> str:
    if at.tzinfo is None:
        raise SettingsError(f"time {at} has no time zone", expected="a UTC time")
    return at.tz_convert("UTC").isoformat()


def _rule_sql(known_at: KnownAt) -> str:
    if known_at is None:
        return "observed_at"
    if isinstance(known_at, FollowedSince):
        start = _zoned(known_at.start)
        return (
            f"CASE WHEN observed_at < CAST('{start}' AS TIMESTAMPTZ) THEN observed_at "
            f"ELSE {_rule_sql(known_at.at)} END"
        )
    if isinstance(known_at, pd.Timedelta):
        return f"observed_at + to_microseconds({known_at // pd.Timedelta(microseconds=1)})"
    return f"greatest(observed_at, CAST('{known_at.tz_convert('UTC').isoformat()}' AS TIMESTAMPTZ))"


def _fingerprint(content: str, origin: Origin) -> str:
    parts = (content, origin.reader, origin.file, origin.options, origin.known_at_rule)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _known_import(store: Store, fingerprint: str) -> Appended | None:
    rows = store.execute("SELECT added, repeated, rejected FROM imports WHERE fingerprint = ?", [fingerprint])
    if not rows:
        return None
    added, repeated, rejected = rows[0]
    return Appended(added=0, repeated=added + repeated, rejected=rejected)


def _import(
    store: Store, batches: Iterable[Batch], origin: Origin, *, known_at: KnownAt, content: str | None
) -> Appended:
    with store.exclusive():
        stage = Stage(store, _rule_sql(known_at))
        try:
            digest = stage.fill(batches, hashed=content is None)
            content = content or digest
            fingerprint = _fingerprint(content, origin)
            known = _known_import(store, fingerprint)
            if known is not None:
                return known
            with store.transaction():
                return _keep(store, origin, fingerprint=fingerprint, content=content)
        finally:
            with suppress(StoreError):  # inside a failed transaction the tables go with it
                stage.drop()


def _keep(store: Store, origin: Origin, *, fingerprint: str, content: str) -> Appended:
    """Merge what is staged; runs inside a transaction."""
    (batch,) = store.execute("SELECT coalesce(max(batch), 0) + 1 FROM imports")[0]
    keep_series(store)
    added = repeated = 0
    for variable in (PRICE, AVAILABILITY):
        merged = merge(store, variable, batch)
        added += merged.added
        repeated += merged.repeated
    rejected = keep_rejected(store, batch, content)
    store.execute(
        f"INSERT INTO imports VALUES ({', '.join('?' * 12)})",
        [
            batch,
            fingerprint,
            content,
            origin.reader,
            origin.file,
            origin.options,
            origin.known_at_rule,
            json.dumps(origin.assumptions, ensure_ascii=False),
            origin.imported_at,
            added,
            repeated,
            rejected,
        ],
    )
    keep_assumptions(store, origin.assumptions)
    return Appended(added=added, repeated=repeated, rejected=rejected)
