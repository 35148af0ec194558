"""Staged rows into the tables, in set form: what is new is added, what is there is repeated, what contradicts is rejected.

`Stage` holds one import in temporary tables, cast and judged. A row's key is (series, observed_at, known_at). Inside one import
the last line of a key wins; against the store, a row with the same key and another value conflicts, and a row known later (or
earlier) with another value is one more version of the observation. A version that says what the one known before it already
said is repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from warehouse.observations.casting import AVAILABILITY, IDENTITY, PRICE, Variable, cast_sql, places_sql
from warehouse.sources.contract import Batch
from warehouse.store.connection import Store

#: Rows merged at a time: the sorts and joins of a part stay well inside the store's memory limit.
PART_ROWS = 1_000_000
_KEY = "sid, observed_at, known_at"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Rows of one variable that were added, and those that said nothing new."""

    added: int
    repeated: int


def keep_series(store: Store) -> None:
    """Give every staged series its market and series id, making those that are new."""
    place = "provider, region, zone, instance_type"
    store.execute(
        "INSERT INTO markets SELECT (SELECT coalesce(max(mid), 0) FROM markets) + "
        f"row_number() OVER (ORDER BY {place}), * "
        f"FROM (SELECT DISTINCT {place} FROM staged_series) AS s ANTI JOIN markets USING ({place})"
    )
    store.execute(
        "INSERT INTO series SELECT (SELECT coalesce(max(sid), 0) FROM series) + "
        "row_number() OVER (ORDER BY mid, source, kind, product), * "
        f"FROM (SELECT DISTINCT mid, source, kind, product FROM staged_series JOIN markets USING ({place})) AS s "
        "ANTI JOIN series USING (mid, source, kind, product)"
    )
    store.execute(
        "UPDATE staged_series AS s SET sid = k.sid FROM (SELECT * FROM series JOIN markets USING (mid)) AS k "
        "WHERE " + " AND ".join(f"s.{name} = k.{name}" for name in (*IDENTITY, "kind"))
    )


def merge(store: Store, variable: Variable, batch: int) -> Merged:
    """Merge the staged rows of one variable, in parts of bounded size; rejected ones go to ``staged_rejected``."""
    added = repeated = 0
    for part in _parts(store, variable):
        store.execute(
            "CREATE OR REPLACE TEMP TABLE part AS SELECT s.sid, t.* "
            f"FROM staged_{variable.kind} AS t JOIN staged_series AS s USING (tsid) "
            "WHERE sid BETWEEN $first_sid AND $last_sid AND observed_at >= $start AND observed_at < $stop",
            part,
        )
        merged = _merge_part(store, variable, batch)
        added += merged.added
        repeated += merged.repeated
    for table in ("part", "contested", "hard", "winners", "chain"):
        store.execute(f"DROP TABLE IF EXISTS temp.{table}")
    return Merged(added=added, repeated=repeated)


def _parts(store: Store, variable: Variable) -> list[dict[str, object]]:
    """Ranges of series ids, and of times where one series is long, that hold about `PART_ROWS` rows each.

    All rows of an observation fall into one part, and parts are in the order of the tables.
    """
    sizes = store.execute(
        f"SELECT s.sid, count(*) FROM staged_{variable.kind} JOIN staged_series AS s USING (tsid) GROUP BY s.sid ORDER BY s.sid"
    )
    parts: list[dict[str, object]] = []
    room = 0
    for sid, size in sizes:
        if size > PART_ROWS:
            parts += _time_parts(store, variable, sid, size)
            room = 0
        elif size > room:
            parts.append({"first_sid": sid, "last_sid": sid, "start": "-infinity", "stop": "infinity"})
            room = PART_ROWS - size
        else:
            parts[-1]["last_sid"] = sid
            room -= size
    return parts


def _time_parts(store: Store, variable: Variable, sid: int, size: int) -> list[dict[str, object]]:
    shares = ", ".join(str(k * PART_ROWS / size) for k in range(1, -(-size // PART_ROWS)))
    (marks,) = store.execute(
        f"SELECT quantile_disc(observed_at, [{shares}]) FROM staged_{variable.kind} "
        "WHERE tsid IN (SELECT tsid FROM staged_series WHERE sid = $sid)",
        {"sid": sid},
    )[0]
    bounds = ["-infinity", *sorted(set(marks)), "infinity"]
    return [
        {"first_sid": sid, "last_sid": sid, "start": start, "stop": stop} for start, stop in pairwise(bounds)
    ]


def _merge_part(store: Store, variable: Variable, batch: int) -> Merged:
    (read,) = store.execute("SELECT count(*) FROM part")[0]
    _find_contested(store, variable)
    columns = ", ".join(variable.columns)
    added = _inserted(
        store,
        f"INSERT INTO {variable.kind} ({_KEY}, {columns}, batch) SELECT {_KEY}, {columns}, $batch FROM part "
        f"ANTI JOIN contested USING (sid, observed_at) ORDER BY {_KEY}",
        batch,
    )
    rejected = 0
    if added < read:
        _choose_winners(store, variable)
        rejected += _reject_superseded(store, variable)
        _complete_stored(store, variable)
        rejected += _reject_conflicts(store, variable)
        added += _add_versions(store, variable, batch)
    return Merged(added=added, repeated=read - added - rejected)


def _inserted(store: Store, sql: str, batch: int) -> int:
    return int(store.execute(sql, {"batch": batch})[0][0])


def _find_contested(store: Store, variable: Variable) -> None:
    """Observations that the import states more than once, or that the store has already."""
    store.execute(
        "CREATE OR REPLACE TEMP TABLE contested AS "
        "SELECT sid, observed_at FROM part GROUP BY ALL HAVING count(*) > 1 UNION "
        f"SELECT DISTINCT sid, observed_at FROM part SEMI JOIN (SELECT sid, observed_at FROM {variable.kind} "
        "WHERE sid BETWEEN (SELECT min(sid) FROM part) AND (SELECT max(sid) FROM part) "
        "AND observed_at BETWEEN (SELECT min(observed_at) FROM part) AND (SELECT max(observed_at) FROM part)) AS stored "
        "USING (sid, observed_at)"
    )


def _choose_winners(store: Store, variable: Variable) -> None:
    """``winners``: per key the last row's value, with the last stated value of every side column beside it."""
    value = variable.value
    sides = ", ".join(
        f"arg_max({side}, n) FILTER (WHERE {side} IS NOT NULL) AS {side}" for side in variable.sides
    )
    store.execute(
        "CREATE OR REPLACE TEMP TABLE hard AS SELECT * FROM part SEMI JOIN contested USING (sid, observed_at)"
    )
    store.execute(
        f"CREATE OR REPLACE TEMP TABLE winners AS SELECT {_KEY}, {value}, last_n, last_line, {sides} FROM hard JOIN "
        f"(SELECT {_KEY}, arg_max({value}, n) AS {value}, max(n) AS last_n, arg_max(line, n) AS last_line "
        f"FROM hard GROUP BY {_KEY}) AS last USING ({_KEY}, {value}) GROUP BY {_KEY}, {value}, last_n, last_line"
    )
    store.execute(
        f"CREATE OR REPLACE TEMP TABLE chain AS SELECT * FROM {variable.kind} "
        "SEMI JOIN winners USING (sid, observed_at)"
    )


def _differ(variable: Variable, one: str, other: str) -> str:
    """SQL: the two rows state different things."""
    tests = [f"{one}.{variable.value} <> {other}.{variable.value}"]
    tests += [f"coalesce({one}.{side} <> {other}.{side}, FALSE)" for side in variable.compared]
    return f"({' OR '.join(tests)})"


def _reject(store: Store, variable: Variable, rows: str, reason: str) -> int:
    """Put rows of ``hard`` (alias h) into ``staged_rejected`` with a reason; returns their number."""
    names = [*IDENTITY] if variable.kind == "price" else [*IDENTITY[:-1]]
    parts = [f"'{name}': s.{name}" for name in names]
    parts += [f"'{name}': h.{name}" for name in ("observed_at", "known_at", *variable.columns)]
    result = store.execute(
        f"INSERT INTO staged_rejected SELECT h.n, s.file, h.line, CAST(to_json({{{', '.join(parts)}}}) AS VARCHAR), {reason} "
        f"FROM hard AS h JOIN staged_series AS s ON h.tsid = s.tsid {rows}"
    )
    return int(result[0][0])


def _reject_superseded(store: Store, variable: Variable) -> int:
    """Rows that another row of the same import overrules leave ``hard``."""
    differ = _differ(variable, "h", "w")
    rejected = _reject(
        store,
        variable,
        f"JOIN winners AS w ON {_same_key('h', 'w')} WHERE {differ}",
        "'superseded by line ' || w.last_line",
    )
    if rejected:
        store.execute(f"DELETE FROM hard AS h USING winners AS w WHERE {_same_key('h', 'w')} AND {differ}")
    return rejected


def _same_key(one: str, other: str) -> str:
    return " AND ".join(f"{one}.{name} = {other}.{name}" for name in _KEY.split(", "))


def _complete_stored(store: Store, variable: Variable) -> None:
    """A stored row learns the side values that it did not have, from a row that otherwise says the same."""
    lacking = " OR ".join(f"(p.{side} IS NULL AND w.{side} IS NOT NULL)" for side in variable.sides)
    for table in (variable.kind, "chain"):
        settings = ", ".join(f"{side} = coalesce(p.{side}, w.{side})" for side in variable.sides)
        store.execute(
            f"UPDATE {table} AS p SET {settings} FROM winners AS w "
            f"WHERE {_same_key('p', 'w')} AND NOT {_differ(variable, 'p', 'w')} AND ({lacking})"
        )


def _reject_conflicts(store: Store, variable: Variable) -> int:
    """Rows that contradict a stored row of the same key."""
    value = variable.value
    words = f"CASE WHEN h.{value} <> p.{value} THEN 'conflicts with stored value ' || p.{value} "
    for side in variable.compared:
        words += (
            f"WHEN coalesce(h.{side} <> p.{side}, FALSE) THEN 'conflicts with stored {side} ' || p.{side} "
        )
    return _reject(
        store,
        variable,
        f"JOIN chain AS p ON {_same_key('h', 'p')} WHERE {_differ(variable, 'h', 'p')}",
        words + "END",
    )


def _add_versions(store: Store, variable: Variable, batch: int) -> int:
    """Winners without a stored row of their key are added, unless the version known before them says the same."""
    value, columns = variable.value, ", ".join(variable.columns)
    before = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    carried = "".join(
        f", last_value({side} IGNORE NULLS) OVER (w {before}) AS earlier_{side}" for side in variable.compared
    )
    news = [f"earlier_{value} IS NULL", f"{value} <> earlier_{value}"]
    news += [f"({side} IS NOT NULL AND {side} IS DISTINCT FROM earlier_{side})" for side in variable.compared]
    return _inserted(
        store,
        f"INSERT INTO {variable.kind} ({_KEY}, {columns}, batch) WITH versions AS ("
        f"SELECT {_KEY}, {columns}, TRUE AS stored FROM chain UNION ALL "
        f"SELECT {_KEY}, {columns}, FALSE FROM winners ANTI JOIN chain USING ({_KEY})), "
        f"compared AS (SELECT *, lag({value}) OVER w AS earlier_{value}{carried} FROM versions "
        "WINDOW w AS (PARTITION BY sid, observed_at ORDER BY known_at)) "
        f"SELECT {_KEY}, {columns}, $batch FROM compared WHERE NOT stored AND ({' OR '.join(news)}) ORDER BY {_KEY}",
        batch,
    )


def keep_rejected(store: Store, batch: int, content: str) -> int:
    """Keep the rejected rows that were not kept from the same content before; returns how many there are in all."""
    store.execute(
        "INSERT INTO rejected SELECT $batch, file, line, raw, reason FROM staged_rejected AS r ANTI JOIN "
        "(SELECT line, raw, reason FROM rejected JOIN imports USING (batch) WHERE content = $content) AS old "
        "USING (line, raw, reason) ORDER BY n",
        {"batch": batch, "content": content},
    )
    return int(store.execute("SELECT count(*) FROM staged_rejected")[0][0])


def keep_assumptions(store: Store, texts: tuple[str, ...]) -> None:
    """Record what the reader assumed, for every series of the import."""
    for text in texts:
        store.execute(
            "INSERT INTO assumptions SELECT * FROM (SELECT DISTINCT "
            "concat_ws('/', provider, region, zone, instance_type) AS market, source, $text AS text "
            "FROM staged_series) AS new ANTI JOIN assumptions USING (market, source, text) ORDER BY ALL",
            {"text": text},
        )
