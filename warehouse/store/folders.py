"""Readers for a warehouse stored as folders of Parquet files; `slackwater.warehouse.exchange` writes them.

An *exported* folder contains a Parquet file per table, ``manifest.json`` with schema, row counts
and content hashes, and ``views.sql``. A *shared* folder contains complete exports under
``generations/<number>/``; ``current.json`` names the current generation.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from slackwater.warehouse.errors import DamagedStoreError, InputError, StoreError
from slackwater.warehouse.store.files import POINTER
from slackwater.warehouse.store.schema import MIGRATIONS, TABLES, pending_steps

MANIFEST = "manifest.json"
#: File with SQL statements that present the files of a folder as a warehouse to any DuckDB, and its
#: first line.
VIEWS = "views.sql"
ABOUT_VIEWS = (
    "-- Tables and views: `duckdb -init views.sql` in this folder, or first SET file_search_path = 'FOLDER'."
)
EXPORT_AGAIN = "export it again; nothing was imported"


class _StoredFile(BaseModel):
    model_config = ConfigDict(frozen=True)


class TableFile(_StoredFile):
    """Row count and SHA-256 of a table's file."""

    rows: int
    sha256: str


class Manifest(_StoredFile):
    """Content of an exported folder by table; ``since``: ISO 8601 time before which rows were left out, "" for none.

    ``version`` is incremented when the previous version of the program could no longer read a new folder.
    """

    format: Literal["slackwater-export"]
    version: Literal[1]
    schema_steps: tuple[str, ...]
    since: str
    tables: dict[str, TableFile]

    def as_json(self) -> str:
        """Return the text of the manifest file; equal content gives equal text."""
        return self.model_dump_json(indent=2) + "\n"


def table_file(folder: Path, name: str) -> Path:
    """Return the path of a table's file in an exported folder."""
    return folder / f"{name}.parquet"


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a folder; raises `InputError`, or `SchemaError` for a newer schema."""
    path = folder / MANIFEST
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}", expected="a folder written by `slackwater export`"
        ) from error
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"{path}: {where} {first['msg']}", expected="a whole manifest", remedy=EXPORT_AGAIN
        ) from error
    pending_steps(manifest.schema_steps, MIGRATIONS)
    if unknown := [name for name in manifest.tables if name not in TABLES]:
        raise InputError(f"{path}: table {unknown[0]!r}", expected=f"some of {', '.join(TABLES)}")
    return manifest


SHARED, SHARED_VERSION = "slackwater-shared", 1
_NUMBER = re.compile(r"\d{9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Published export in a shared folder; ``new`` is False if its content equals that of the generation before."""

    number: int
    folder: Path
    new: bool


def current_generation(folder: Path) -> Generation:
    """Return the newest generation; raises `StoreError` if it does not exist."""
    path = folder / POINTER
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != SHARED or found["version"] != SHARED_VERSION:
            raise ValueError(f"format {found['format']!r} version {found['version']!r}")
        number = int(found["generation"])
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror}", expected="a folder written by `slackwater publish`"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedStoreError(f"{path}: {error!r}", remedy="publish again") from error
    place = place_of(folder, number)
    if not place.is_dir():
        raise StoreError(
            f"{folder} has no generation {number}",
            expected=f"one of {', '.join(str(generation) for generation in generations(folder))}",
        )
    return Generation(number=number, folder=place, new=False)


def generations(folder: Path) -> list[int]:
    """Return the numbers of the existing generations, ascending."""
    try:
        return sorted(int(name) for name in os.listdir(folder / "generations") if _NUMBER.fullmatch(name))
    except FileNotFoundError:
        return []


def place_of(folder: Path, number: int) -> Path:
    """Return the folder of a generation in a shared folder."""
    return folder / "generations" / f"{number:09d}"
