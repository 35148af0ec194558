"""The warehouse as a DuckLake on shared storage: a catalogue that is replaced at once, over Parquet files that never change.

DuckLake's own catalogue in a DuckDB file knows one process at a time; here it is changed as a copy and renamed, so a reader
goes on with the one it opened. Needs the extension as a Python package (``slackwater[ducklake]``), since it is loaded offline.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from warehouse.errors import StoreError
from warehouse.sharing import Generation, publishing
from warehouse.snapshot import sync_file, sync_folder
from warehouse.tables import TABLES, quoted

if TYPE_CHECKING:
    from warehouse.store import Store

CATALOGUE = "catalog.ducklake"
_PACKAGE = "duckdb_extension_ducklake"


def extension_file(version: str) -> Path:
    """The DuckLake extension for a DuckDB ``version`` ("v1.5.5"); raises `StoreError` naming the extra that brings it."""
    found = find_spec(_PACKAGE)
    remedy = "pip install 'slackwater[ducklake]', or publish with --form parquet"
    if found is None or not found.submodule_search_locations:
        raise StoreError("the DuckLake extension is not installed", remedy=remedy)
    folder = Path(found.submodule_search_locations[0]) / "extensions"
    path = folder / version / "ducklake.duckdb_extension"
    if not path.is_file():
        there = ", ".join(sorted(one.name for one in folder.iterdir()))
        raise StoreError(
            f"the DuckLake extension that is installed is for DuckDB {there}", expected=version, remedy=remedy
        )
    return path


def publish_to_lake(store: Store, folder: Path, *, keep: int = 3) -> Generation:
    """Bring the DuckLake in ``folder`` to the state of a store that was opened for reading, as one snapshot of it.

    Rows that are new are added, a table that lost any is written anew; nothing changed is no new snapshot. The last ``keep``
    snapshots stay readable (``AT (VERSION => n)``). Raises `StoreLockedError` while another process publishes there.
    """
    ((source,),) = store.execute(
        "SELECT path FROM duckdb_databases() WHERE database_name = current_database()"
    )
    if source is None:
        raise StoreError(f"warehouse {store.name} is no file", remedy="publish from the warehouse itself")
    try:
        (folder / "data").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror}", remedy="name another place") from error
    part = folder / f".{CATALOGUE}.part"
    with publishing(folder):
        try:
            return _published(Path(source), folder, part, keep)
        except OSError as error:
            raise StoreError(f"cannot write {folder}: {error.strerror}", remedy="make room there") from error
        finally:
            for path in (part, part.with_name(f"{part.name}.wal")):
                with suppress(OSError):
                    path.unlink()


def _published(source: Path, folder: Path, part: Path, keep: int) -> Generation:
    catalogue = folder / CATALOGUE
    if catalogue.exists():
        shutil.copyfile(catalogue, part)
    before, after = _brought_up(source, folder, part, keep)
    if before == after:
        return Generation(number=after, folder=folder, new=False)
    sync_file(part)
    os.replace(part, catalogue)
    sync_folder(folder)
    return Generation(number=after, folder=folder, new=True)


def _brought_up(source: Path, folder: Path, part: Path, keep: int) -> tuple[int, int]:
    """Change the catalogue at ``part``; the numbers of its newest snapshot before and after."""
    from warehouse.store import open_store

    with open_store(":memory:") as store:
        (version,) = store.execute("SELECT version()")[0]
        store.execute(f"LOAD {quoted(extension_file(str(version)))}")
        store.execute(f"ATTACH {quoted(source)} AS source (READ_ONLY)")
        data = folder.resolve() / "data"
        store.execute(f"ATTACH {quoted(f'ducklake:{part}')} AS lake (DATA_PATH {quoted(f'{data}/')})")
        try:
            before = _newest(store)
            with store.transaction():
                for table in (*TABLES, "schema_steps"):
                    _bring_up(store, table)
            after = _newest(store)
            if after != before:
                _expire(store, after - keep)
        finally:
            store.execute("DETACH lake")
    return before, after


def _newest(store: Store) -> int:
    return int(store.execute("SELECT coalesce(max(snapshot_id), 0) FROM lake.snapshots()")[0][0])


def _expire(store: Store, oldest: int) -> None:
    """Forget snapshots up to ``oldest`` and delete the files that only they read."""
    rows = store.execute("SELECT snapshot_id FROM lake.snapshots() WHERE snapshot_id <= ?", [oldest])
    if rows:
        numbers = ", ".join(str(int(row[0])) for row in rows)
        store.execute(f"CALL ducklake_expire_snapshots('lake', versions => [{numbers}])")
        store.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")


def _columns(store: Store, database: str, table: str) -> list[tuple[str, str]]:
    return [
        (str(row[0]), str(row[1]))
        for row in store.execute(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE database_name = ? AND table_name = ? "
            "ORDER BY column_index",
            [database, table],
        )
    ]


def _bring_up(store: Store, table: str) -> None:
    here, there = _columns(store, "source", table), _columns(store, "lake", table)
    if here != there:
        store.execute(f"CREATE OR REPLACE TABLE lake.{table} AS SELECT * FROM source.{table}")
        return
    new, gone = (
        f"SELECT * FROM {one}.{table} EXCEPT ALL SELECT * FROM {other}.{table}"
        for one, other in (("source", "lake"), ("lake", "source"))
    )
    if store.execute(f"SELECT count(*) FROM ({gone})") != [(0,)]:
        store.execute(f"DELETE FROM lake.{table}")
        store.execute(f"INSERT INTO lake.{table} SELECT * FROM source.{table}")
    elif store.execute(f"SELECT count(*) FROM ({new})") != [(0,)]:
        store.execute(f"INSERT INTO lake.{table} {new}")
