"""The warehouse as folders of Parquet files, for whoever reads one: `warehouse.exchange` writes them.

An *exported* folder holds one Parquet file a table, ``manifest.json`` with schema, row counts and content hashes, and
``views.sql``. A *shared* folder holds complete exports under ``generations/<number>/``, and ``current.json`` names the one to read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warehouse.errors import DamagedStoreError, InputError, StoreError
from warehouse.store.schema import MIGRATIONS, TABLES, pending_steps

MANIFEST = "manifest.json"
#: The text that makes the files of a folder look like a warehouse to any DuckDB, and how it begins.
VIEWS = "views.sql"
ABOUT_VIEWS = (
    "-- Tables and views: `duckdb -init views.sql` in this folder, or first SET file_search_path = 'FOLDER'."
)
_EXPORTED = "slackwater-export"
#: Raised when a folder written today could not be read by the version before.
_EXPORT_VERSION = 1
EXPORT_AGAIN = "export it again; nothing was imported"


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
            "format": _EXPORTED,
            "version": _EXPORT_VERSION,
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
        raise InputError(f"{path}: {error}", expected="a manifest", remedy=EXPORT_AGAIN) from error
    try:
        manifest = _parsed(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: {error!r}", expected="a whole manifest", remedy=EXPORT_AGAIN) from error
    pending_steps(manifest.steps, MIGRATIONS)
    if unknown := [name for name in manifest.tables if name not in TABLES]:
        raise InputError(f"{path}: table {unknown[0]!r}", expected=f"some of {', '.join(TABLES)}")
    return manifest


def _parsed(found: Any) -> Manifest:
    if found["format"] != _EXPORTED or found["version"] != _EXPORT_VERSION:
        raise ValueError(f"format {found['format']!r} version {found['version']!r}")
    return Manifest(
        steps=tuple(str(step) for step in found["schema_steps"]),
        since=str(found["since"]),
        tables={
            str(name): TableFile(rows=int(one["rows"]), sha256=str(one["sha256"]))
            for name, one in found["tables"].items()
        },
    )


POINTER = "current.json"
SHARED, SHARED_VERSION = "slackwater-shared", 1
_NUMBER = re.compile(r"\d{9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A published state; ``new`` is False if the one published before says the same."""

    number: int
    folder: Path
    new: bool


def is_shared(folder: Path) -> bool:
    """Whether a folder is one that `publish_generation` writes."""
    return (folder / POINTER).is_file()


def current_generation(folder: Path, number: int | None = None) -> Generation:
    """The newest generation, or the one of that number while it is kept; raises `StoreError`."""
    path = folder / POINTER
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != SHARED or found["version"] != SHARED_VERSION:
            raise ValueError(f"format {found['format']!r} version {found['version']!r}")
        newest = int(found["generation"])
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror}", expected="a folder written by `slackwater publish`"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedStoreError(f"{path}: {error!r}", remedy="publish again") from error
    wanted = newest if number is None else number
    place = place_of(folder, wanted)
    if not place.is_dir():
        raise StoreError(
            f"{folder} has no generation {wanted}",
            expected=f"one of {', '.join(str(one) for one in generations(folder))}",
        )
    return Generation(number=wanted, folder=place, new=False)


def generations(folder: Path) -> list[int]:
    """Numbers of the generations that are kept, ascending."""
    try:
        return sorted(int(name) for name in os.listdir(folder / "generations") if _NUMBER.fullmatch(name))
    except FileNotFoundError:
        return []


def place_of(folder: Path, number: int) -> Path:
    """Where the generation of that number stands in a shared folder."""
    return folder / "generations" / f"{number:09d}"
