"""The warehouse for many readers on shared storage: whole generations of Parquet files behind one pointer, or a DuckLake.

A shared folder (`warehouse.store.folders`) gets a new export under ``generations/<number>/``, then the pointer is replaced at
once. No file that is named there is ever changed, so readers need no locks, on network file systems neither. The
generations before it stay until ``keep`` newer ones are there.

A DuckLake is a catalogue over Parquet files that never change. DuckLake's own catalogue in a DuckDB file knows one process at a
time; here it is changed as a copy and renamed, so a reader goes on with the one it opened. It needs the extension as a Python
package (``slackwater[ducklake]``), since it is loaded offline.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from warehouse.errors import StoreError, StoreLockedError
from warehouse.exchange.export import appearing, write_export
from warehouse.store.connection import Store, open_store
from warehouse.store.files import sync_file, sync_folder
from warehouse.store.folders import (
    POINTER,
    SHARED,
    SHARED_VERSION,
    Generation,
    current_generation,
    generations,
    is_shared,
    place_of,
    read_manifest,
)
from warehouse.store.schema import TABLES, quoted

CATALOGUE = "catalog.ducklake"
_PACKAGE = "duckdb_extension_ducklake"


def publish_generation(store: Store, folder: Path, *, keep: int = 3) -> Generation:
    """Write the store as a new generation and point readers to it; nothing new if the current one has the same contents.

    ``keep`` generations stay, so a reader has that many publications' time. Raises `StoreLockedError` while another process
    publishes there, `StoreError` if it cannot be written; readers then go on with the one before.
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
        for old in [one for one in there if one <= number - keep]:
            shutil.rmtree(place_of(folder, old), ignore_errors=True)
        return Generation(number=number, folder=place, new=True)


@contextmanager
def publishing(folder: Path) -> Iterator[None]:
    """One publisher at a time, by a lock on a file in the folder."""
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
    """Replace the pointer at once; only to a generation that is whole on the disk."""
    part = folder / f".{POINTER}.part"
    part.write_text(json.dumps({"format": SHARED, "version": SHARED_VERSION, "generation": number}) + "\n")
    sync_file(part)
    os.replace(part, folder / POINTER)
    sync_folder(folder)


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
