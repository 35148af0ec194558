"""The warehouse as Parquet files in a folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from warehouse.errors import InputError, StoreError
from warehouse.store.connection import Store
from warehouse.store.files import sync_file, sync_folder
from warehouse.store.folders import MANIFEST, Manifest, TableFile, hashed, table_file
from warehouse.store.schema import TABLES, quoted, with_needs
from warehouse.times import moment


def export_store(
    store: Store, folder: Path, *, tables: Sequence[str] = (), since: pd.Timestamp | None = None
) -> Manifest:
    """Write tables (none named: all; with those they refer to) into a new folder: a Parquet file each, and a manifest.

    ``since`` leaves out rows of earlier times, as `TABLES` says which. The folder is written under another name and renamed.
    Raises `InputError` if there is something at ``folder`` already, `StoreError` if it cannot be written.
    """
    names = with_needs(tables)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists", expected="a new or empty folder", remedy="name another one")
    with appearing(folder) as part:
        return write_export(store, part, names, since)


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A folder to fill under another name, which gets its own when the block has come to its end and goes otherwise."""
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
    """Write the files of some tables and the manifest into an existing folder; all of them show one state of the store."""
    files: dict[str, TableFile] = {}
    with store.transaction():
        steps = tuple(str(row[0]) for row in store.execute("SELECT name FROM schema_steps ORDER BY position"))
        for name in names:
            where = "TRUE"
            if since is not None:
                at = f"CAST({quoted(moment(since, 'since').isoformat())} AS TIMESTAMPTZ)"
                where = TABLES[name].since.replace("$since", at)
            path = table_file(folder, name)
            (rows,) = store.execute(
                f"COPY (SELECT * FROM {name} WHERE {where}) TO {quoted(path)} (FORMAT parquet, COMPRESSION zstd)"
            )[0]
            sync_file(path)
            files[name] = TableFile(rows=int(rows), sha256=hashed(path))
    manifest = Manifest(steps=steps, since="" if since is None else since.isoformat(), tables=files)
    (folder / MANIFEST).write_text(manifest.as_json(), encoding="utf-8")
    sync_file(folder / MANIFEST)
    return manifest
