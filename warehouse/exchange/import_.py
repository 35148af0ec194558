"""An exported folder into a warehouse, new or not: verified first, then merged in one transaction.

Ids are the exporting warehouse's own, so markets, series, imports and vintages are found again by what they are, and given new
ids where they are new. The same folder again adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from warehouse.errors import InputError, StoreError
from warehouse.issued.records import NATURAL_KEYS
from warehouse.store.connection import Store
from warehouse.store.folders import EXPORT_AGAIN, Manifest, hashed, read_manifest, table_file
from warehouse.store.schema import TABLES, quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Rows of one table that were added, were there already, or contradict a stored row of their key (the stored one stays)."""

    added: int
    repeated: int
    rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owner:
    """A table whose rows have ids that others carry: its id column, and what a row is known by."""

    id: str
    key: tuple[str, ...]


_OWNERS: Mapping[str, _Owner] = {
    "markets": _Owner(id="mid", key=("provider", "region", "zone", "instance_type")),
    "series": _Owner(id="sid", key=("mid", "source", "kind", "product")),
    "imports": _Owner(id="batch", key=("fingerprint",)),
    "vintages": _Owner(id="vid", key=("market", "source", "model", "issued_at", "step_seconds")),
}
#: Observations merged at a time.
PART_ROWS = 2_000_000
_OBSERVATIONS = {
    "price": ("price_usd", "NOT coalesce(isfinite(price_usd) AND price_usd >= 0, FALSE)"),
    "availability": ("available", "NOT coalesce(available >= 0, FALSE)"),
}


def import_folder(store: Store, folder: Path) -> dict[str, Imported]:
    """Merge a folder written by `export_store` into the warehouse; counts by table.

    Every file is compared with the manifest before anything is touched, and everything is added in one transaction. Raises
    `InputError` for a folder that is incomplete, changed or contradicts itself, `SchemaError` for one of a newer schema.
    """
    manifest = read_manifest(folder)
    _verify(folder, manifest)
    with store.transaction():
        try:
            return _merge_all(store, folder, manifest)
        finally:
            with suppress(StoreError):  # a failed transaction takes them with it
                for name in ("part", *(f"new_{owner}" for owner in _OWNERS)):
                    store.execute(f"DROP TABLE IF EXISTS temp.{name}")


def _verify(folder: Path, manifest: Manifest) -> None:
    """Compare every file with the manifest: bytes, rows, and the tables its rows refer to; raises `InputError`."""
    for name, expected in manifest.tables.items():
        path = table_file(folder, name)
        if not path.is_file():
            raise InputError(f"no file {path}", expected="every table of the manifest", remedy=EXPORT_AGAIN)
        if hashed(path) != expected.sha256:
            raise InputError(f"{path} is not what was exported: its SHA-256 differs", remedy=EXPORT_AGAIN)
        try:
            rows = pyarrow.parquet.read_metadata(path).num_rows
        except pa.ArrowException as error:
            raise InputError(f"{path}: {error}", expected="a Parquet file", remedy=EXPORT_AGAIN) from error
        if rows != expected.rows:
            raise InputError(f"{path} has {rows} rows", expected=f"{expected.rows}", remedy=EXPORT_AGAIN)
        if lacking := [needed for needed in TABLES[name].needs if needed not in manifest.tables]:
            raise InputError(f"{folder} has {name} without {lacking[0]}", remedy=EXPORT_AGAIN)


def _merge_all(store: Store, folder: Path, manifest: Manifest) -> dict[str, Imported]:
    done: dict[str, Imported] = {}
    for name in TABLES:
        if name not in manifest.tables:
            continue
        rows = _Rows(store=store, name=name, file=table_file(folder, name))
        if name in _OWNERS:
            added = rows.own()
        elif name in _OBSERVATIONS:
            done[name] = rows.observations(manifest.tables[name].rows)
            continue
        elif name in NATURAL_KEYS:
            added = rows.by_key(NATURAL_KEYS[name])
        else:
            added = rows.forecasts() if name == "forecasts" else rows.rejected()
        done[name] = Imported(added=added, repeated=manifest.tables[name].rows - added, rejected=0)
    # A failure counts until the stage is done, whichever warehouse knows of that.
    store.execute(
        "DELETE FROM runs AS f USING runs AS d "
        "WHERE f.status = 'failed' AND d.status = 'done' AND f.run = d.run AND f.stage = d.stage"
    )
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The rows of one exported table on their way in."""

    store: Store
    name: str
    file: Path

    @property
    def _source(self) -> str:
        return f"read_parquet({quoted(self.file)})"

    def _columns(self) -> list[str]:
        """Columns of the file; raises `InputError` for one the table lacks."""
        found = [str(row[0]) for row in self.store.execute(f"DESCRIBE SELECT * FROM {self._source}")]
        there = [
            str(row[0])
            for row in self.store.execute(
                "SELECT column_name FROM duckdb_columns() WHERE table_name = ?", [self.name]
            )
        ]
        if unknown := [name for name in found if name not in there]:
            raise InputError(
                f"{self.file} has a column {unknown[0]!r}", expected=f"some of {', '.join(there)}"
            )
        if lacking := [name for name in (*self._ids(), *self._key()) if name not in found]:
            raise InputError(f"{self.file} lacks the column {lacking[0]!r}", expected=f"{', '.join(there)}")
        return found

    def _key(self) -> tuple[str, ...]:
        if self.name in _OWNERS:
            return _OWNERS[self.name].key
        if self.name in _OBSERVATIONS:
            return ("observed_at", "known_at", _OBSERVATIONS[self.name][0])
        return NATURAL_KEYS.get(self.name, ())

    def _ids(self) -> list[str]:
        return [_OWNERS[owner].id for owner in TABLES[self.name].needs]

    def _mapped(self, columns: list[str], where: str = "TRUE") -> str:
        """SQL: the file's rows that meet a condition, with this warehouse's ids in the place of the exporting one's."""
        joins, chosen = "", {name: f"f.{name}" for name in columns}
        if "old_id" in chosen:
            chosen["old_id"] = f"f.{_OWNERS[self.name].id}"
        for owner in TABLES[self.name].needs:
            own = _OWNERS[owner].id
            joins += f" LEFT JOIN new_{owner} AS {owner} ON f.{own} = {owner}.old_id"
            chosen[own] = f"{owner}.new_id"
        ids = ", ".join(f"{sql} AS {name}" for name, sql in chosen.items())
        return f"(SELECT {ids} FROM (SELECT * FROM {self._source} WHERE {where}) AS f{joins})"

    def _check_ids(self) -> None:
        for owner in TABLES[self.name].needs:
            own = _OWNERS[owner].id
            lost = self.store.execute(
                f"SELECT f.{own} FROM {self._source} AS f ANTI JOIN new_{owner} AS o ON f.{own} = o.old_id LIMIT 1"
            )
            if lost:
                raise InputError(
                    f"{self.file} names {own} {lost[0][0]}, which {owner}.parquet lacks",
                    remedy="export it again; nothing was imported",
                )

    def own(self) -> int:
        """Rows that others refer to: known ones keep this warehouse's id, new ones get the next; kept in ``new_<table>``."""
        columns, owner = self._columns(), _OWNERS[self.name]
        if owner.id not in columns:
            raise InputError(f"{self.file} lacks the column {owner.id!r}")
        self._check_ids()
        rest = [name for name in columns if name != owner.id]
        key, names = ", ".join(owner.key), ", ".join(rest)
        before = self._size()
        self.store.execute(
            f"INSERT INTO {self.name} ({owner.id}, {names}) "
            f"SELECT (SELECT coalesce(max({owner.id}), 0) FROM {self.name}) + row_number() OVER (ORDER BY {owner.id}), {names} "
            f"FROM {self._mapped(columns)} AS f ANTI JOIN {self.name} USING ({key}) "
            f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {owner.id}) = 1"
        )
        self.store.execute(
            f"CREATE OR REPLACE TEMP TABLE new_{self.name} AS SELECT f.old_id, t.{owner.id} AS new_id "
            f"FROM {self._mapped([*columns, 'old_id'])} AS f JOIN {self.name} AS t USING ({key})"
        )
        return self._size() - before

    def by_key(self, key: tuple[str, ...]) -> int:
        """Rows with a natural key: those whose key is there already are repeated."""
        names, keys = ", ".join(self._columns()), ", ".join(key)
        return self._inserted(
            f"INSERT INTO {self.name} ({names}) SELECT {names} FROM "
            f"(SELECT *, row_number() OVER () AS place FROM {self._source}) AS f ANTI JOIN {self.name} USING ({keys}) "
            f"QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY place) = 1 ORDER BY place"
        )

    def forecasts(self) -> int:
        """Rows of vintages, by vintage, variable and step."""
        names = ", ".join(self._columns())
        self._check_ids()
        return self._inserted(
            f"INSERT INTO forecasts ({names}) SELECT {names} FROM {self._mapped(names.split(', '))} AS f "
            "ANTI JOIN forecasts USING (vid, variable, step_ahead)"
        )

    def rejected(self) -> int:
        """Rows without a key: as often as the more generous of the two warehouses has each."""
        columns = self._columns()
        self._check_ids()
        names = ", ".join(columns)
        copies = f"row_number() OVER (PARTITION BY {names}) AS copy"
        return self._inserted(
            f"INSERT INTO rejected ({names}) SELECT {names} FROM "
            f"(SELECT *, {copies}, row_number() OVER () AS place FROM {self._mapped(columns)}) AS f "
            f"ANTI JOIN (SELECT *, {copies} FROM rejected) AS t USING ({names}, copy) ORDER BY place"
        )

    def observations(self, rows: int) -> Imported:
        """Observed rows by (series, observed_at, known_at): a stored row with another value stays, the other is rejected."""
        columns = self._columns()
        self._check_ids()
        value, wrong = _OBSERVATIONS[self.name]
        if found := self.store.execute(f"SELECT {value} FROM {self._source} WHERE {wrong} LIMIT 1"):
            raise InputError(f"{self.file} has a {value} of {found[0][0]}", expected="a number >= 0")
        added = rejected = 0
        for where in self._parts():
            self.store.execute(
                f"CREATE OR REPLACE TEMP TABLE part AS SELECT * FROM {self._mapped(columns, where)}"
            )
            rejected += self._keep_conflicts(value)
            names, key = ", ".join(columns), "sid, observed_at, known_at"
            added += self._inserted(
                f"INSERT INTO {self.name} ({names}) SELECT {names} FROM part ANTI JOIN {self.name} USING ({key}) "
                f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY batch) = 1 ORDER BY {key}"
            )
        return Imported(added=added, repeated=rows - added - rejected, rejected=rejected)

    def _parts(self) -> Iterator[str]:
        """Conditions on the file's rows: whole series, about `PART_ROWS` rows together, so that sorting needs little memory."""
        sizes = self.store.execute(f"SELECT sid, count(*) FROM {self._source} GROUP BY 1 ORDER BY 1")
        first, held = None, 0
        for place, (sid, size) in enumerate(sizes):
            first, held = (sid if first is None else first), held + int(size)
            if held >= PART_ROWS or place == len(sizes) - 1:
                yield f"sid BETWEEN {first} AND {sid}"
                first, held = None, 0

    def _keep_conflicts(self, value: str) -> int:
        """Keep the rows of the part that contradict a stored row of their key among the rejected ones; their number."""
        conflicts = f"FROM part AS f JOIN {self.name} AS t USING (sid, observed_at, known_at) WHERE f.{value} <> t.{value}"
        (rejected,) = self.store.execute(f"SELECT count(*) {conflicts}")[0]
        if rejected:
            self.store.execute(
                f"INSERT INTO rejected SELECT * FROM (SELECT f.batch, {quoted(self.file.name)} AS file, 0 AS line, "
                f"CAST(to_json(f) AS VARCHAR) AS raw, 'conflicts with stored value ' || t.{value} AS reason {conflicts}) AS new "
                "ANTI JOIN rejected USING (batch, file, raw, reason) ORDER BY ALL"
            )
        return int(rejected)

    def _size(self) -> int:
        return int(self.store.execute(f"SELECT count(*) FROM {self.name}")[0][0])

    def _inserted(self, sql: str) -> int:
        return int(self.store.execute(sql)[0][0])
