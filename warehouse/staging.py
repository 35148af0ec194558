"""Temporary tables that hold one import, cast and judged, before it is merged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from warehouse.casting import AVAILABILITY, IDENTITY, PRICE, cast_sql, places_sql
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
        for name in ("cast_rows", "places"):
            self._store.execute(f"DROP TABLE IF EXISTS temp.{name}")

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
        store, schema, kind = self._store, batch.table.schema, {"kind": variable.kind}
        keys = ", ".join(("file", *IDENTITY))
        store.execute(f"CREATE OR REPLACE TEMP TABLE places AS {places_sql(variable, schema)}")
        store.execute(
            f"CREATE OR REPLACE TEMP TABLE cast_rows AS {cast_sql(variable, schema)}", {"offset": self._rows}
        )
        store.execute(
            "INSERT INTO staged_rejected SELECT n, file, line, raw, c.reason FROM cast_rows AS c "
            "JOIN places USING (pid) WHERE c.reason IS NOT NULL"
        )
        store.execute(
            "INSERT INTO staged_series SELECT (SELECT count(*) FROM staged_series) + row_number() OVER (ORDER BY "
            f"{keys}), NULL, {keys}, $kind FROM (SELECT DISTINCT {keys} FROM places WHERE reason IS NULL) AS new "
            f"ANTI JOIN (SELECT * FROM staged_series WHERE kind = $kind) AS old USING ({keys})",
            kind,
        )
        columns = ", ".join(f"c.{name}" for name in variable.columns)
        store.execute(
            f"INSERT INTO staged_{variable.kind} SELECT tsid, n, line, observed_at, "
            f"coalesce(stated_known_at, {self._rule}), {columns} FROM cast_rows AS c JOIN (SELECT pid, tsid FROM places "
            f"JOIN staged_series USING ({keys}) WHERE staged_series.kind = $kind) AS s USING (pid) WHERE c.reason IS NULL",
            kind,
        )


def _serialised(table: pa.Table) -> Iterator[bytes]:
    yield str(table.schema.remove_metadata()).encode()
    for chunk in table.to_batches():
        yield memoryview(chunk.serialize()).tobytes()
