"""Temporary tables that hold one import, cast and judged, before it is merged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from warehouse.casting import AVAILABILITY, IDENTITY, PRICE, cast_sql
from warehouse.source import Batch

if TYPE_CHECKING:
    from warehouse.store import Store


class Stage:
    """Temporary tables that hold one import before it is merged; DuckDB spills them to disk when they grow."""

    def __init__(self, store: Store, rule: str) -> None:
        self._store = store
        self._rule = rule
        self._rows = 0
        self.drop()
        names = " VARCHAR NOT NULL, ".join(IDENTITY)
        store.execute(
            f"CREATE TEMP TABLE staged_series (tsid INTEGER, sid INTEGER, file VARCHAR, {names} VARCHAR, kind VARCHAR)"
        )
        store.execute(
            "CREATE TEMP TABLE staged_rejected (n BIGINT, file VARCHAR, line BIGINT, raw VARCHAR, reason VARCHAR)"
        )
        for variable in (PRICE, AVAILABILITY):
            columns = ", ".join(variable.columns)
            store.execute(
                f"CREATE TEMP TABLE staged_{variable.kind} AS SELECT 0 AS tsid, CAST(0 AS BIGINT) AS n, "
                f"CAST(0 AS BIGINT) AS line, observed_at, known_at, {columns} FROM {variable.kind} LIMIT 0"
            )

    def drop(self) -> None:
        """Remove the temporary tables."""
        for name in ("series", "rejected", "price", "availability"):
            self._store.execute(f"DROP TABLE IF EXISTS temp.staged_{name}")
        self._store.execute("DROP TABLE IF EXISTS temp.cast_rows")

    def fill(self, batches: Iterable[Batch], *, hashed: bool) -> str:
        """Stage all batches; returns the digest of their content if asked for."""
        digest = hashlib.sha256()
        for batch in batches:
            if hashed:
                digest.update(batch.kind.encode())
                for chunk in _serialised(batch.table):
                    digest.update(chunk)
            if batch.table.num_rows:
                with self._store.registered("incoming", batch.table):
                    self._add(batch)
                self._rows += batch.table.num_rows
        return digest.hexdigest()

    def _add(self, batch: Batch) -> None:
        if batch.kind == "rejected":
            self._store.execute(
                "INSERT INTO staged_rejected SELECT row_number() OVER () + $offset, coalesce(file, ''), "
                "coalesce(line, 0), coalesce(CAST(raw AS VARCHAR), ''), coalesce(reason, '') FROM incoming",
                {"offset": self._rows},
            )
            return
        variable = PRICE if batch.kind == "price" else AVAILABILITY
        store, parameters = self._store, {"offset": self._rows}
        store.execute(
            f"CREATE OR REPLACE TEMP TABLE cast_rows AS {cast_sql(variable, batch.table.schema)}", parameters
        )
        store.execute(
            "INSERT INTO staged_rejected SELECT n, file, line, raw, reason FROM cast_rows WHERE reason IS NOT NULL"
        )
        keys = ", ".join(("file", *IDENTITY))
        store.execute(
            f"INSERT INTO staged_series SELECT (SELECT count(*) FROM staged_series) + row_number() OVER (ORDER BY {keys}), "
            f"NULL, {keys}, $kind FROM (SELECT DISTINCT {keys} FROM cast_rows WHERE reason IS NULL) AS new "
            f"ANTI JOIN (SELECT * FROM staged_series WHERE kind = $kind) AS old USING ({keys})",
            {"kind": variable.kind},
        )
        store.execute(
            f"INSERT INTO staged_{variable.kind} SELECT tsid, n, line, observed_at, "
            f"coalesce(stated_known_at, {self._rule}), {', '.join(f'cast_rows.{name}' for name in variable.columns)} "
            f"FROM cast_rows JOIN (SELECT * EXCLUDE (kind) FROM staged_series WHERE kind = $kind) AS s USING ({keys}) "
            "WHERE reason IS NULL",
            {"kind": variable.kind},
        )


def _serialised(table: pa.Table) -> Iterator[bytes]:
    yield str(table.schema.remove_metadata()).encode()
    for chunk in table.to_batches():
        yield memoryview(chunk.serialize()).tobytes()
