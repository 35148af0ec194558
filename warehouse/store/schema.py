"""Schema of the warehouse: named migration steps, each applied with its record in a single transaction, after a backup.

The steps are the files of ``warehouse/store/sql``. `TABLES` describes the key, the references and the time
filter of every table, for operations on all tables (export, sharing, compacting). Views and column comments
contain no data and are not steps: `describe` recreates them when their text has changed (decision 31).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import duckdb

from slackwater.warehouse.amounts import LARGEST_COUNT
from slackwater.warehouse.columns import BOTH, differences
from slackwater.warehouse.documents import read_data, read_sql, sql_names
from slackwater.warehouse.errors import DamagedStoreError, SchemaError, StoreError
from slackwater.warehouse.store.files import Say, copy_synced, identity_of, sync_folder

_PIECE = 1 << 20

#: Names of the steps in the order of their numbers, one for each file ``NNNN_<name>.sql``. Append only.
MIGRATIONS = tuple(name for name in sql_names(__package__) if name[:4].isdigit())

#: Tables that are neither exported nor published: the record of steps, and pages of fetches that
#: have not ended.
INTERNAL = ("schema_steps", "staged_pages")

#: File of ``warehouse/store/sql`` with the views and comments, and the view that stores the digest
#: of its text.
DESCRIPTION = DESCRIBED = "described"

_VIEW = re.compile(r"^CREATE OR REPLACE VIEW (\w+) ", re.M)
_NOTE = re.compile(r"--.*")
_LITERAL = re.compile(r"'[^']*'")
_COMMENT = re.compile(r"^COMMENT ON (?:TABLE|VIEW|COLUMN) (\w+)", re.M)
_LEDGER = "CREATE TABLE IF NOT EXISTS schema_steps (position INTEGER NOT NULL, name VARCHAR NOT NULL)"


def applied_steps(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Return the steps applied to a file, in order; raises `DamagedStoreError` for tables without a record of steps."""
    # First, as nearly every file has it: listing all tables is slower, since it reads the content of each.
    with suppress(duckdb.CatalogException):
        rows = connection.execute("SELECT name FROM schema_steps ORDER BY position").fetchall()
        return [str(row[0]) for row in rows]
    tables = {row[0] for row in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if tables:
        raise DamagedStoreError(
            f"a DuckDB database with the tables {', '.join(sorted(tables)[:5])}",
            expected="a warehouse created by slackwater",
            remedy="name another file",
        )
    return []


def pending_steps(applied: Sequence[str], steps: Sequence[str] = MIGRATIONS) -> list[str]:
    """Return the steps still to apply; raises `SchemaError` if the file has steps unknown to this program."""
    if list(applied) != list(steps[: len(applied)]):
        unknown = [name for name in applied if name not in steps] or list(applied)
        raise SchemaError(
            f"a warehouse with the schema step {unknown[0]!r}",
            expected=f"at most {steps[-1]!r}",
            remedy="it was written by a newer version: upgrade slackwater, or name another file",
        )
    return list(steps[len(applied) :])


def migrate(
    connection: duckdb.DuckDBPyConnection, steps: Sequence[str] = MIGRATIONS, *, say: Say | None = None
) -> list[str]:
    """Apply the pending steps, check the columns of observations, and return the steps applied.

    Each step and its record are committed together. For a new file all steps share a
    transaction. ``say`` receives the messages of the steps: the rows of a step's last
    statement if that is a query with the column ``said``.
    """
    applied = applied_steps(connection)
    pending = pending_steps(applied, steps)
    numbered = list(enumerate(pending, start=len(applied)))
    messages: list[str] = []
    for together in [[migration] for migration in numbered] if applied else [numbered]:
        connection.execute("BEGIN")
        try:
            connection.execute(_LEDGER)
            for position, name in together:
                found = connection.execute(read_sql(__package__, name))
                if say is not None and found.description and found.description[0][0] == "said":
                    messages += [str(row[0]) for row in found.fetchall()]
                connection.execute("INSERT INTO schema_steps VALUES (?, ?)", [position, name])
            connection.execute("COMMIT")
        except BaseException:
            with suppress(duckdb.TransactionException):  # the failure may already have ended the transaction
                connection.execute("ROLLBACK")
            raise
    if tuple(steps) == MIGRATIONS:
        _check_columns(connection)
    for text in messages:
        if say is not None:
            say(text)
    return pending


def _check_columns(connection: duckdb.DuckDBPyConnection) -> None:
    """Raise `SchemaError` unless the tables of observations have the columns declared for them."""
    found = [
        difference
        for kind in BOTH
        for difference in differences(
            kind,
            [
                (str(name), str(type_), null == "YES")
                for name, type_, null, *_ in connection.execute(f"DESCRIBE {kind}").fetchall()
            ],
        )
    ]
    if found:
        raise SchemaError(
            found[0],
            expected="tables with the columns of warehouse/data/columns.toml",
            remedy="add a step to warehouse/store/sql that alters the table, or correct the declaration",
        )


def changes_of_rows(steps: Sequence[str], table: str, into: str) -> list[str]:
    """Return statements that bring rows exported with an older schema up to date.

    They are the UPDATE statements on ``table`` of all steps that are not in ``steps``, applied to
    the table ``into``.
    """
    start = f"UPDATE {table} SET "
    statements = [
        part.strip()
        for name in MIGRATIONS
        if name not in steps
        for part in read_sql(__package__, name).split(";\n")
    ]
    return [
        f"UPDATE {into} SET {text.partition(start)[2]}" for text in statements if f"\n{start}" in f"\n{text}"
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Views and comments of a warehouse: their SQL text, its ``digest``, and the names of the ``views``."""

    text: str
    digest: str
    views: tuple[str, ...]

    def bring_up(self, execute: Callable[[str], object], known: tuple[str, Sequence[str]] | None) -> bool:
        """Run the text unless the digest in ``known`` (digest and views of the stored text) matches; return whether it ran.

        Drops views of the earlier text that are no longer defined; views created by others are left alone.
        """
        if known is not None and known[0] == self.digest:
            return False
        for name in [] if known is None else known[1]:
            if name not in self.views:
                execute(f"DROP VIEW IF EXISTS {as_name(name)}")
        execute(self.text)
        execute(
            f"CREATE OR REPLACE VIEW {DESCRIBED} AS SELECT {sql_literal(self.digest)} AS digest, {[*self.views]} AS views"
        )
        return True


def description() -> Description:
    """Return the current views and comments."""
    return _description_of(read_sql(__package__, DESCRIPTION))


@lru_cache(maxsize=1)
def _description_of(text: str) -> Description:
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Description(text=text, digest=digest, views=tuple(_VIEW.findall(text)))


def describe(connection: duckdb.DuckDBPyConnection) -> bool:
    """Update views and comments to the text of `DESCRIPTION` in a single transaction; return False if they are up to date."""
    known: tuple[str, Sequence[str]] | None = None
    with suppress(duckdb.CatalogException):
        known = connection.execute(f"SELECT digest, views FROM {DESCRIBED}").fetchone()
    connection.execute("BEGIN")
    try:
        changed = description().bring_up(connection.execute, known)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(duckdb.TransactionException):
            connection.execute("ROLLBACK")
        raise
    return changed


def views_over(files: Mapping[str, Path | str]) -> list[str]:
    """Return statements that present Parquet ``files`` (by table) as the tables, views and comments of a warehouse.

    A view that needs a table without a file is left out.
    """
    result = [
        f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM read_parquet({sql_literal(file)});"
        for name, file in files.items()
    ]
    statements = [
        f"{text.strip()};" for text in read_sql(__package__, DESCRIPTION).split(";\n") if text.strip()
    ]
    there, known = set(files), {*TABLES, *(found[1] for text in statements if (found := _VIEW.search(text)))}
    for text in statements:
        if found := _VIEW.search(text):
            read = _LITERAL.sub("", _NOTE.sub("", text[found.end() :]))
            if known.intersection(re.findall(r"\w+", read)) <= there:
                there.add(found[1])
                result.append(text)
        elif (found := _COMMENT.search(text)) and found[1] in there:
            result.append(text.replace("COMMENT ON TABLE", "COMMENT ON VIEW", 1))
    return result


def back_up(database: Path, source: int, *, step: str) -> Path:
    """Copy the file open as ``source`` to ``<database>.backup-<step>`` and return its path; no other backup is overwritten.

    A backup with the same bytes is reused; if the name is taken by other bytes, a number is
    appended. The file must be checkpointed and must not change during the copy. Raises `StoreError`
    if there is no room, before anything was changed.
    """
    target = _free_name(database, source, step)
    if target.exists():
        return target
    part = target.with_name(f"{target.name}.part")
    try:
        copy_synced(source, part, size=identity_of(source).size)
        os.replace(part, target)
        sync_folder(target.parent)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise StoreError(
            f"no backup of {database} before its schema is brought up to date: {error.strerror}",
            remedy="make room next to the file; nothing was changed",
        ) from error
    return target


def _free_name(database: Path, source: int, step: str) -> Path:
    plain = database.with_name(f"{database.name}.backup-{step}")
    names = (plain if number == 0 else plain.with_name(f"{plain.name}.{number}") for number in count())
    return next(name for name in names if not name.exists() or _is_copy(name, source))


def _is_copy(path: Path, source: int) -> bool:
    size = identity_of(source).size
    if path.stat().st_size != size:
        return False
    with path.open("rb") as file:
        return all(file.read(_PIECE) == os.pread(source, _PIECE, offset) for offset in range(0, size, _PIECE))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRule:
    """Properties of a table for export, sharing and compacting, a table of ``store/data/tables.toml``, which explains the keys.

    ``since``: SQL that is true for rows of the time $since or later. ``wrong``: SQL that is true for unusable
    rows, each with its reason. ``documents``: type of the JSON value in each column with a JSON text.
    """

    key: tuple[str, ...]
    id: str
    needs: tuple[str, ...]
    since: str
    wrong: tuple[tuple[str, str], ...]
    documents: Mapping[str, type]


def _read_rule(table: Mapping[str, Any]) -> TableRule:
    time = table.get("time")
    return TableRule(
        key=tuple(table.get("key", ())),
        id=table.get("id", ""),
        needs=tuple(table.get("needs", ())),
        since=f"({time} IS NULL OR {time} >= $since)" if time else table.get("since", "TRUE"),
        wrong=(
            *((condition, reason) for condition, reason in table.get("wrong", ())),
            *((f"NOT isfinite({column})", f"{column} is not a number") for column in table.get("finite", ())),
            *(
                (
                    f"{column} IS NOT NULL AND {column} NOT BETWEEN 0 AND {LARGEST_COUNT}",
                    f"{column} is not within 0 to {LARGEST_COUNT:,}",
                )
                for column in table.get("counts", ())
            ),
        ),
        documents={
            column: list if column in table.get("lists", ()) else dict for column in table.get("json", ())
        },
    )


#: Every table except those of `INTERNAL`; each follows the tables it needs.
TABLES: Mapping[str, TableRule] = {
    name: _read_rule(table) for name, table in read_data(__package__, "tables").items()
}


def with_needs(names: Iterable[str]) -> list[str]:
    """Return the named tables (default all) and the tables they need, in the order of `TABLES`.

    Raises `StoreError` for an unknown table.
    """
    chosen = list(names) or list(TABLES)
    wanted: set[str] = set()
    while chosen:
        name = chosen.pop()
        if name not in TABLES:
            raise StoreError(f"no table {name!r}", expected=f"some of {', '.join(TABLES)}")
        wanted.add(name)
        chosen += [needed for needed in TABLES[name].needs if needed not in wanted]
    return [name for name in TABLES if name in wanted]


def sql_literal(text: object) -> str:
    """Return a text as an SQL literal, for statements that take no parameters."""
    return "'" + str(text).replace("'", "''") + "'"


def as_name(text: str) -> str:
    """Return a text as a quoted SQL identifier."""
    return '"' + text.replace('"', '""') + '"'
