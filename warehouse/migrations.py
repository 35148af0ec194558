"""The schema of the warehouse: ordered named steps, each applied together with its record in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from warehouse.errors import DamagedStoreError, SchemaError
from warehouse.queries import read_sql

#: Names of the steps in order; each is the file of that name in ``warehouse/sql``. Only ever append.
MIGRATIONS = (
    "0001_observations",
    "0002_forecasts",
    "0003_decisions",
    "0004_fitted",
    "0005_runs",
    "0006_reports",
    "0007_fetches",
    "0008_alarms",
)

_LEDGER = "CREATE TABLE IF NOT EXISTS schema_steps (position INTEGER NOT NULL, name VARCHAR NOT NULL)"


def applied_steps(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Names of the steps the file has, in order; empty for an empty database.

    Raises `DamagedStoreError` for a database that is not a warehouse: it has tables, but no record of steps.
    """
    tables = {row[0] for row in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if "schema_steps" in tables:
        rows = connection.execute("SELECT name FROM schema_steps ORDER BY position").fetchall()
        return [str(row[0]) for row in rows]
    if tables:
        raise DamagedStoreError(
            f"a DuckDB database with the tables {', '.join(sorted(tables)[:5])}",
            expected="a warehouse made by slackwater",
            remedy="name another file",
        )
    return []


def pending_steps(applied: Sequence[str], steps: Sequence[str] = MIGRATIONS) -> list[str]:
    """The steps still to apply; raises `SchemaError` if the file has steps this program does not know."""
    if list(applied) != list(steps[: len(applied)]):
        unknown = [name for name in applied if name not in steps] or list(applied)
        raise SchemaError(
            f"a warehouse with the schema step {unknown[0]!r}",
            expected=f"at most {steps[-1]!r}",
            remedy="it was written by a newer version: upgrade slackwater, or name another file",
        )
    return list(steps[len(applied) :])


def migrate(connection: duckdb.DuckDBPyConnection, steps: Sequence[str] = MIGRATIONS) -> list[str]:
    """Bring the schema up to date and return the names applied; a step and its record stand or fall together."""
    applied = applied_steps(connection)
    pending = pending_steps(applied, steps)
    for position, name in enumerate(pending, start=len(applied)):
        connection.execute("BEGIN")
        try:
            connection.execute(_LEDGER)
            connection.execute(read_sql(name))
            connection.execute("INSERT INTO schema_steps VALUES (?, ?)", [position, name])
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
    return pending
