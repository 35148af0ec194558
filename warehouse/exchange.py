"""Export, import, publication and compaction of a warehouse."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow.parquet

from slackwater.warehouse.columns import BOTH, CONFLICTS, columns_of
from slackwater.warehouse.errors import DamagedStoreError, InputError, StoreError, StoreLockedError
from slackwater.warehouse.issued import NATURAL_KEYS
from slackwater.warehouse.store.connection import Store, attach_new, compacted_file
from slackwater.warehouse.store.files import POINTER, is_shared, sync_file, sync_folder
from slackwater.warehouse.store.folders import (
    ABOUT_VIEWS,
    EXPORT_AGAIN,
    MANIFEST,
    SHARED,
    SHARED_VERSION,
    VIEWS,
    Generation,
    Manifest,
    TableFile,
    current_generation,
    file_hash,
    generations,
    place_of,
    read_manifest,
    table_file,
)
from slackwater.warehouse.store.foreign import Judge, load_foreign, rows_of_file
from slackwater.warehouse.store.retention import USUAL, Retention, ThinnedRows, thin
from slackwater.warehouse.store.schema import (
    INTERNAL,
    TABLES,
    TableRule,
    as_name,
    changes_of_rows,
    sql_literal,
    views_over,
    with_needs,
)
from slackwater.warehouse.times import moment


def export_store(
    store: Store,
    folder: Path,
    *,
    tables: Sequence[str] = (),
    since: pd.Timestamp | None = None,
    views: Mapping[str, str] | None = None,
) -> Manifest:
    """Write tables (default all; including the tables they refer to) into a new folder: Parquet files and a manifest.

    ``since`` leaves out rows of earlier times, by the time filters of `TABLES`. ``views``: the views to write as well
    (`write_views`), each with its time column, "" for none. The folder is written under a temporary name and renamed.
    Raises `InputError` if ``folder`` exists and is not empty, `StoreError` if it cannot be written.
    """
    names = with_needs(tables)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists", expected="a new or empty folder", remedy="name another one")
    with appearing(folder) as part, store.transaction():
        manifest = write_export(store, part, names, since)
        write_views(store, part / "views", views or {}, since)
        return manifest


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """Context manager that yields a temporary folder and renames it to ``folder`` at the end, or removes it on errors."""
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        yield part
        sync_folder(part)
        os.replace(part, folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise StoreError(
            f"cannot write {folder}: {error.strerror}", remedy="make room, or name another place"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_export(
    store: Store, folder: Path, names: Sequence[str], since: pd.Timestamp | None = None
) -> Manifest:
    """Write the files of some tables, their views and the manifest into an existing folder, from a single state of the store."""
    files: dict[str, TableFile] = {}
    at = None if since is None else moment(since, "since")
    with store.transaction():
        steps = tuple(str(row[0]) for row in store.execute("SELECT name FROM schema_steps ORDER BY position"))
        for name in names:
            where = "TRUE" if since is None else TABLES[name].since
            path = table_file(folder, name)
            rows = _write_parquet(
                store, f"SELECT * FROM {name} WHERE {where}", {"since": at} if "$since" in where else {}, path
            )
            sync_file(path)
            files[name] = TableFile(rows=int(rows), sha256=file_hash(path))
    manifest = Manifest(
        format="slackwater-export",
        version=1,
        schema_steps=steps,
        since="" if since is None else since.isoformat(),
        tables=files,
    )
    (folder / MANIFEST).write_text(manifest.as_json(), encoding="utf-8")
    (folder / VIEWS).write_text(
        "\n".join([ABOUT_VIEWS, *views_over({name: f"{name}.parquet" for name in files}), ""]),
        encoding="utf-8",
    )
    for name in (MANIFEST, VIEWS):
        sync_file(folder / name)
    return manifest


def _write_parquet(store: Store, sql: str, parameters: Mapping[str, object], path: Path) -> int:
    """Write the result of a query to a Parquet file; return the number of rows."""
    rows = 0
    with store.batches(sql, parameters, rows=EXPORT_ROWS) as reader:
        schema = reader.schema
        with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
                rows += batch.num_rows
    return rows


def write_views(
    store: Store, folder: Path, views: Mapping[str, str], since: pd.Timestamp | None = None
) -> None:
    """Write views as Parquet, each in a folder of its name; with a time column, in a folder ``day=2026-01-31`` for each day (UTC).

    A view without rows has a file of its columns.
    ``since`` leaves out rows of earlier times of the views with a time column.
    """
    import pyarrow.dataset
    import pyarrow.parquet

    for name, time in views.items():
        day = f", strftime({time} AT TIME ZONE 'UTC', '%Y-%m-%d') AS day" if time else ""
        where = f" WHERE {time} >= $since" if time and since is not None else ""
        given = {"since": moment(since, "since")} if where and since is not None else {}
        with store.batches(f"SELECT *{day} FROM {name}{where}", given, rows=EXPORT_ROWS) as reader:
            pyarrow.dataset.write_dataset(
                reader,
                folder / name,
                format="parquet",
                partitioning=["day"] if time else None,
                partitioning_flavor="hive" if time else None,
                max_partitions=_MOST_DAYS,
                file_options=pyarrow.dataset.ParquetFileFormat().make_write_options(compression="zstd"),
            )
            if not any((folder / name).rglob("*.parquet")):
                (folder / name).mkdir(parents=True, exist_ok=True)
                pyarrow.parquet.write_table(reader.schema.empty_table(), folder / name / "part-0.parquet")
    for path in sorted(folder.rglob("*")):
        (sync_folder if path.is_dir() else sync_file)(path)


# ---
# Import of an exported folder: verified first, then merged in a single transaction.
#
# Ids are local to the exporting warehouse, so markets, series, imports and vintages are matched by their keys and
# get new ids if they are new. The same folder again adds nothing.


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportCounts:
    """Rows of a table that were added, were stored already, or were set aside.

    ``reasons`` counts the rows set aside by reason, including rows that contradict a stored row of
    the same key: the stored row remains. ``brought_up``: rows of an older schema that were first
    updated by later migration steps.
    """

    added: int
    repeated: int
    rejected: int
    reasons: Mapping[str, int] = field(default_factory=dict)
    brought_up: int = 0


#: Tables whose row ids are used in other tables.
_OWNERS: Mapping[str, TableRule] = {name: rule for name, rule in TABLES.items() if rule.id}
#: Tables that are not imported: models are fitted again from the observations, as foreign states
#: are not trusted.
NOT_IMPORTED = ("fitted",)
EXPORT_ROWS = 100_000  # Rows of an exported table written at a time
_MOST_DAYS = 36_525  # Days of an exported view at most: a hundred years
#: Observations merged at a time.
PART_ROWS = 2_000_000
_OBSERVATIONS: Mapping[str, str] = {kind: columns_of(kind, "value")[0].name for kind in BOTH}
_CONFLICTS = "contradicts a stored row"


def import_folder(
    store: Store, folder: Path, *, judges: Mapping[tuple[str, str], Judge] | None = None
) -> dict[str, ImportCounts]:
    """Merge a folder written by `export_store` into the warehouse; return counts by table.

    Every file is first compared with the manifest; all rows are added in a single transaction. An unusable
    row is set aside together with the rows that refer to it (`slackwater.warehouse.store.foreign`). ``judges`` maps
    table and column to a function that returns why a stored JSON text is unusable. Raises `InputError` for a
    folder that is incomplete, changed or of another form, `SchemaError` for a folder of a newer schema.
    """
    manifest = read_manifest(folder)
    _verify(folder, manifest)
    with store.transaction():
        try:
            return _merge_all(store, folder, manifest, judges or {})
        finally:
            with suppress(StoreError):  # a failed transaction has already dropped them
                for name in ("part", "found_rows", *(f"new_{owner}" for owner in _OWNERS)):
                    store.execute(f"DROP TABLE IF EXISTS temp.{name}")


def _verify(folder: Path, manifest: Manifest) -> None:
    """Compare every file with the manifest: bytes, rows, and the tables its rows refer to; raises `InputError`."""
    for name, expected in manifest.tables.items():
        path = table_file(folder, name)
        if path.is_symlink() or not path.is_file():
            raise InputError(f"no file {path}", expected="every table of the manifest", remedy=EXPORT_AGAIN)
        if file_hash(path) != expected.sha256:
            raise InputError(f"{path} is not the exported file: its SHA-256 differs", remedy=EXPORT_AGAIN)
        rows = rows_of_file(path)
        if rows != expected.rows:
            raise InputError(f"{path} has {rows} rows", expected=f"{expected.rows}", remedy=EXPORT_AGAIN)
        if lacking := [needed for needed in TABLES[name].needs if needed not in manifest.tables]:
            raise InputError(f"{folder} has {name} without {lacking[0]}", remedy=EXPORT_AGAIN)


def _merge_all(
    store: Store, folder: Path, manifest: Manifest, judges: Mapping[tuple[str, str], Judge]
) -> dict[str, ImportCounts]:
    done: dict[str, ImportCounts] = {}
    for name in TABLES:
        if name not in manifest.tables or name in NOT_IMPORTED:
            continue
        own = {column: judge for (table, column), judge in judges.items() if table == name}
        columns = load_foreign(store, name, table_file(folder, name), judges=own)
        later = changes_of_rows(manifest.schema_steps, name, "found_rows")
        brought_up = sum(int(store.execute(statement)[0][0]) for statement in later)
        rows = _TableRows(store=store, name=name, columns=columns)
        rows.set_aside_orphans()
        reasons = rows.reasons()
        rejected = sum(reasons.values())
        if name in _OWNERS:
            added = rows.insert_owners()
        elif name in _OBSERVATIONS:
            added, conflicts = rows.observations()
            rejected += conflicts
            reasons |= {_CONFLICTS: conflicts} if conflicts else {}
        elif name in NATURAL_KEYS:
            added = rows.by_key(NATURAL_KEYS[name])
        else:
            added = rows.forecasts() if name == "forecasts" else rows.insert_unkeyed()
        repeated = manifest.tables[name].rows - added - rejected
        done[name] = ImportCounts(
            added=added, repeated=repeated, rejected=rejected, reasons=reasons, brought_up=brought_up
        )
    # A failed stage that is done according to either warehouse is no longer a failure.
    store.execute(
        "DELETE FROM runs AS f USING runs AS d "
        "WHERE f.status = 'failed' AND d.status = 'done' AND f.run = d.run AND f.stage = d.stage"
    )
    return done


#: Usable rows of the current file.
_USABLE = "(SELECT * EXCLUDE (set_aside) FROM found_rows WHERE set_aside IS NULL)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableRows:
    """Rows of an exported table during the import, in the temporary table ``found_rows``."""

    store: Store
    name: str
    columns: Sequence[str]

    @property
    def _names(self) -> str:
        return ", ".join(self.columns)

    def set_aside_orphans(self) -> None:
        """Set aside the rows that refer to a missing row or a row that was set aside."""
        for owner in TABLES[self.name].needs:
            own = _OWNERS[owner].id
            self.store.execute(
                f"UPDATE found_rows SET set_aside = 'its row of {owner} is missing or was set aside' "
                f"WHERE set_aside IS NULL AND {own} NOT IN (SELECT old_id FROM new_{owner})"
            )

    def reasons(self) -> dict[str, int]:
        """Return the number of rows set aside, by reason."""
        rows = self.store.execute(
            "SELECT set_aside, count(*) FROM found_rows WHERE set_aside IS NOT NULL GROUP BY 1 ORDER BY 2 DESC, 1"
        )
        return {str(reason): int(count) for reason, count in rows}

    def _mapped_rows_sql(self, columns: Sequence[str], source: str = _USABLE) -> str:
        """Return SQL for the usable rows, with the ids of this warehouse instead of the exporting warehouse."""
        joins, chosen = "", {name: f"f.{name}" for name in columns}
        if "old_id" in chosen:
            chosen["old_id"] = f"f.{_OWNERS[self.name].id}"
        for owner in TABLES[self.name].needs:
            own = _OWNERS[owner].id
            joins += f" JOIN new_{owner} AS {owner} ON f.{own} = {owner}.old_id"
            chosen[own] = f"{owner}.new_id"
        ids = ", ".join(f"{sql} AS {name}" for name, sql in chosen.items())
        return f"(SELECT {ids} FROM {source} AS f{joins})"

    def insert_owners(self) -> int:
        """Insert rows that others refer to, with new ids (``new_<table>``) unless their key is stored; return their number."""
        owner = _OWNERS[self.name]
        rest = [name for name in self.columns if name != owner.id]
        key, names = ", ".join(owner.key), ", ".join(rest)
        added = self._insert_rows(
            f"INSERT INTO {self.name} ({owner.id}, {names}) "
            f"SELECT (SELECT coalesce(max({owner.id}), 0) FROM {self.name}) + row_number() OVER (ORDER BY {owner.id}), {names} "
            f"FROM {self._mapped_rows_sql(self.columns)} AS f ANTI JOIN {self.name} USING ({key}) "
            f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY {owner.id}) = 1"
        )
        self.store.execute(
            f"CREATE OR REPLACE TEMP TABLE new_{self.name} AS SELECT f.old_id, t.{owner.id} AS new_id "
            f"FROM {self._mapped_rows_sql([*self.columns, 'old_id'])} AS f JOIN {self.name} AS t USING ({key})"
        )
        return added

    def by_key(self, key: tuple[str, ...]) -> int:
        """Insert the rows whose natural key is not stored yet; return their number."""
        keys = ", ".join(key)
        return self._insert_rows(
            f"INSERT INTO {self.name} ({self._names}) SELECT {self._names} FROM "
            f"(SELECT *, rowid AS place FROM found_rows WHERE set_aside IS NULL) AS f ANTI JOIN {self.name} USING ({keys}) "
            f"QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY place) = 1 ORDER BY place"
        )

    def forecasts(self) -> int:
        """Insert forecasts whose vintage, variable and step are not stored yet; return their number."""
        return self._insert_rows(
            f"INSERT INTO forecasts ({self._names}) SELECT {self._names} FROM {self._mapped_rows_sql(self.columns)} AS f "
            "ANTI JOIN forecasts USING (vid, variable, step_ahead)"
        )

    def insert_unkeyed(self) -> int:
        """Insert rows without a key, each as often as in the warehouse that has more of it; return their number."""
        names = self._names
        copies = f"row_number() OVER (PARTITION BY {names}) AS copy"
        return self._insert_rows(
            f"INSERT INTO rejected ({names}) SELECT {names} FROM "
            f"(SELECT *, {copies}, row_number() OVER () AS place FROM {self._mapped_rows_sql(self.columns)}) AS f "
            f"ANTI JOIN (SELECT *, {copies} FROM rejected) AS t USING ({names}, copy) ORDER BY place"
        )

    def observations(self) -> tuple[int, int]:
        """Insert observations by (series, observed_at, known_at); return the numbers of added and of contradicting rows."""
        value = _OBSERVATIONS[self.name]
        added = rejected = 0
        for first, last in self._parts():
            self.store.execute(
                "CREATE OR REPLACE TEMP TABLE part AS SELECT * FROM "
                + self._mapped_rows_sql(
                    self.columns, "(SELECT * FROM found_rows WHERE set_aside IS NULL AND sid BETWEEN ? AND ?)"
                ),
                [first, last],
            )
            rejected += self._keep_conflicts(value)
            key = "sid, observed_at, known_at"
            added += self._insert_rows(
                f"INSERT INTO {self.name} ({self._names}) SELECT {self._names} FROM part ANTI JOIN {self.name} USING ({key}) "
                f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY batch) = 1 ORDER BY {key}"
            )
        return added, rejected

    def _parts(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of series with about `PART_ROWS` rows each, to limit the memory for sorting."""
        sizes = self.store.execute(
            "SELECT sid, count(*) FROM found_rows WHERE set_aside IS NULL GROUP BY 1 ORDER BY 1"
        )
        first, held = None, 0
        for place, (sid, size) in enumerate(sizes):
            first, held = (sid if first is None else first), held + int(size)
            if held >= PART_ROWS or place == len(sizes) - 1:
                yield int(first), int(sid)
                first, held = None, 0

    def _keep_conflicts(self, value: str) -> int:
        """Store the part's rows that contradict a stored row of their key in ``rejected``; return their number."""
        conflicts = f"FROM part AS f JOIN {self.name} AS t USING (sid, observed_at, known_at) WHERE f.{value} <> t.{value}"
        (rejected,) = self.store.execute(f"SELECT count(*) {conflicts}")[0]
        if rejected:
            self.store.execute(
                "INSERT INTO rejected (batch, file, line, raw, reason, code) SELECT * FROM (SELECT f.batch, "
                f"'{self.name}.parquet' AS file, 0 AS line, "
                f"CAST(to_json(f) AS VARCHAR) AS raw, 'conflicts with stored value ' || t.{value} AS reason, "
                f"{sql_literal(CONFLICTS + value)} AS code {conflicts}) AS new "
                "ANTI JOIN rejected USING (batch, file, raw, reason) ORDER BY ALL"
            )
        return int(rejected)

    def _insert_rows(self, sql: str) -> int:
        return int(self.store.execute(sql)[0][0])


# ---
# Publication for many readers on shared storage: generations of Parquet files with a pointer.
#
# A shared folder (`slackwater.warehouse.store.folders`) gets a new export under ``generations/<number>/``, then the pointer is
# replaced atomically. Published files never change, so readers need no locks, not even on network file systems.
# The last ``keep`` generations are preserved.


def publish_generation(store: Store, folder: Path, *, keep: int = 3) -> Generation:
    """Write the store as a new generation of a shared folder; return the current generation if its content is the same.

    The last ``keep`` generations are preserved for readers that still use them. Raises
    `StoreLockedError` while another process publishes there, `StoreError` if the folder cannot be
    written; readers then continue with the previous generation.
    """
    try:
        (folder / "generations").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror}", remedy="name another place") from error
    with publishing(folder):
        there = generations(folder)
        before = current_generation(folder) if is_shared(folder) else None
        number = there[-1] + 1 if there else 1
        place = place_of(folder, number)
        with appearing(place) as part:
            manifest = write_export(store, part, list(TABLES))
        if before is not None and read_manifest(before.folder) == manifest:
            shutil.rmtree(place)
            return before
        point_to(folder, number)
        for old in [generation for generation in there if generation <= number - keep]:
            shutil.rmtree(place_of(folder, old), ignore_errors=True)
        return Generation(number=number, folder=place, new=True)


@contextmanager
def publishing(folder: Path) -> Iterator[None]:
    """Context manager that locks the folder for the publishing process; raises `StoreLockedError`."""
    descriptor = os.open(folder / ".publishing", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise StoreLockedError(
            f"another process publishes to {folder}", remedy="try again when it is done"
        ) from error
    finally:
        os.close(descriptor)


def point_to(folder: Path, number: int) -> None:
    """Replace the pointer atomically; the generation must be completely written to disk."""
    part = folder / f".{POINTER}.part"
    part.write_text(json.dumps({"format": SHARED, "version": SHARED_VERSION, "generation": number}) + "\n")
    sync_file(part)
    os.replace(part, folder / POINTER)
    sync_folder(folder)


# ---
# Compaction: the warehouse is rewritten without deleted rows and old fitted forecasters.


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """Size of the file in bytes before and after compaction, and the numbers of dropped rows."""

    bytes_before: int
    bytes_after: int
    dropped: ThinnedRows


def compact(store: Store, *, keep: Retention = USUAL) -> CompactionResult:
    """Rewrite the warehouse behind a store open for writing, and close that store.

    Rows that ``keep`` leaves out are dropped. The new file is
    written next to the old file, read back from disk and compared with it table by table, and then
    replaces it atomically; until then the old file is used. Raises `StoreError` if there is no
    room, `StoreLockedError` if this process has other stores of it open.
    """
    database = Path(store.name)
    part = compacted_file(database)
    dropped = thin(store, keep)
    store.execute("CHECKPOINT")
    before = database.stat().st_size
    try:
        _discard(part)
        _copy(store, part)
        sync_file(part)
        after = part.stat().st_size
        store.close_into(part)
        sync_folder(database.parent)
    except OSError as error:
        raise StoreError(
            f"cannot compact {database}: {error.strerror}", remedy="make room next to the file"
        ) from error
    finally:
        _discard(part)
    return CompactionResult(bytes_before=before, bytes_after=after, dropped=dropped)


def _copy(store: Store, part: Path) -> None:
    """Copy every table in a single transaction, then read the copy from disk and compare it with the source."""
    (here,) = store.execute("SELECT current_database()")[0]
    name = as_name(str(here))
    store.execute(attach_new(part, "compacted"))
    try:
        store.execute(f"COPY FROM DATABASE {name} TO compacted")
    finally:
        store.execute("DETACH compacted")
    store.execute(f"ATTACH {sql_literal(part)} AS compacted (READ_ONLY)")
    try:
        for table in (*TABLES, *INTERNAL):
            _compare(store, name, table)
    finally:
        store.execute("DETACH compacted")


def _compare(store: Store, name: str, table: str) -> None:
    """Compare row counts and contents (in any order) of a table; raises `DamagedStoreError`."""
    sums = [
        store.execute(
            f"SELECT count(*), coalesce(bit_xor(hash(t)), 0), coalesce(sum(hash(t)), 0) FROM {where}.{table} AS t"
        )
        for where in (name, "compacted")
    ]
    if sums[0] != sums[1]:
        raise DamagedStoreError(
            f"the compacted copy of {store.name} differs in table {table}",
            expected=f"{sums[0][0][0]} rows as in the file, found {sums[1][0][0]}",
            remedy="the file is as it was; check the disk",
        )


def _discard(part: Path) -> None:
    for path in (part, part.with_name(f"{part.name}.wal")):
        with suppress(OSError):
            os.unlink(path)
