"""What is in an exported folder: one Parquet file a table, and a manifest with schema, row counts and content hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from warehouse.errors import InputError
from warehouse.migrations import MIGRATIONS, pending_steps
from warehouse.tables import TABLES

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
