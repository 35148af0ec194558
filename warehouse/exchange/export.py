"""What is in an exported folder: one Parquet file a table, and a manifest with schema, row counts and content hashes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from warehouse.errors import InputError, StoreError
from warehouse.store.files import sync_file, sync_folder
from warehouse.store.schema import MIGRATIONS, TABLES, pending_steps, quoted, with_needs
from warehouse.times import moment

if TYPE_CHECKING:
    from warehouse.store.connection import Store


MANIFEST = "manifest.json"
FORMAT = "slackwater-export"
#: Raised when a folder written today could not be read by the version before.
VERSION = 1
_AGAIN = "export it again; nothing was imported"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """Rows and SHA-256 of a table's file."""

    rows: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a folder holds, by table; ``since``: ISO 8601 time before which rows were left out, "" for none."""

    steps: tuple[str, ...]
    since: str
    tables: Mapping[str, TableFile]

    def as_json(self) -> str:
        """The text of the manifest file: the same content gives the same text."""
        tables = {name: {"rows": one.rows, "sha256": one.sha256} for name, one in self.tables.items()}
        found = {
            "format": FORMAT,
            "version": VERSION,
            "schema_steps": list(self.steps),
            "since": self.since,
            "tables": tables,
        }
        return json.dumps(found, indent=2) + "\n"


def table_file(folder: Path, name: str) -> Path:
    """The file of a table in an exported folder."""
    return folder / f"{name}.parquet"


def hashed(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder, checked; raises `InputError`, or `SchemaError` for a folder of a newer schema."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}", expected="a folder written by `slackwater export`"
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: {error}", expected="a manifest", remedy=_AGAIN) from error
    try:
        manifest = _parsed(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: {error!r}", expected="a whole manifest", remedy=_AGAIN) from error
    pending_steps(manifest.steps, MIGRATIONS)
    if unknown := [name for name in manifest.tables if name not in TABLES]:
        raise InputError(f"{path}: table {unknown[0]!r}", expected=f"some of {', '.join(TABLES)}")
    return manifest


def _parsed(found: Any) -> Manifest:
    if found["format"] != FORMAT or found["version"] != VERSION:
        raise ValueError(f"format {found['format']!r} version {found['version']!r}")
    return Manifest(
        steps=tuple(str(step) for step in found["schema_steps"]),
        since=str(found["since"]),
        tables={
            str(name): TableFile(rows=int(one["rows"]), sha256=str(one["sha256"]))
            for name, one in found["tables"].items()
        },
    )


def verify(folder: Path, manifest: Manifest) -> None:
    """Compare every file with the manifest: bytes, rows, and the tables its rows refer to; raises `InputError`."""
    for name, expected in manifest.tables.items():
        path = table_file(folder, name)
        if not path.is_file():
            raise InputError(f"no file {path}", expected="every table of the manifest", remedy=_AGAIN)
        if hashed(path) != expected.sha256:
            raise InputError(f"{path} is not what was exported: its SHA-256 differs", remedy=_AGAIN)
        try:
            rows = pyarrow.parquet.read_metadata(path).num_rows
        except pa.ArrowException as error:
            raise InputError(f"{path}: {error}", expected="a Parquet file", remedy=_AGAIN) from error
        if rows != expected.rows:
            raise InputError(f"{path} has {rows} rows", expected=f"{expected.rows}", remedy=_AGAIN)
        if lacking := [needed for needed in TABLES[name].needs if needed not in manifest.tables]:
            raise InputError(f"{folder} has {name} without {lacking[0]}", remedy=_AGAIN)


# ---
# The warehouse as Parquet files in a folder that appears whole or not at all.


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
