"""The warehouse for many readers on shared storage: complete generations of Parquet files behind one pointer.

``<folder>/generations/<number>/`` is an exported folder; ``<folder>/current.json`` names the one to read and is replaced at
once. No file that is named there is ever changed, so readers need no locks, on network file systems neither. The
generations before it stay until ``keep`` newer ones are there.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from warehouse.errors import DamagedStoreError, StoreError, StoreLockedError
from warehouse.exporting import appearing, write_export
from warehouse.manifest import Manifest, read_manifest
from warehouse.snapshot import sync_file, sync_folder
from warehouse.tables import TABLES

if TYPE_CHECKING:
    from warehouse.store import Store

POINTER = "current.json"
FORMAT, VERSION = "slackwater-shared", 1
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
        if found["format"] != FORMAT or found["version"] != VERSION:
            raise ValueError(f"format {found['format']!r} version {found['version']!r}")
        newest = int(found["generation"])
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror}", expected="a folder written by `slackwater publish`"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedStoreError(f"{path}: {error!r}", remedy="publish again") from error
    wanted = newest if number is None else number
    place = _place(folder, wanted)
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


def _place(folder: Path, number: int) -> Path:
    return folder / "generations" / f"{number:09d}"


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
        place = _place(folder, number)
        with appearing(place) as part:
            manifest = write_export(store, part, list(TABLES))
        if before is not None and _same(before, manifest):
            shutil.rmtree(place)
            return before
        point_to(folder, number)
        for old in [one for one in there if one <= number - keep]:
            shutil.rmtree(_place(folder, old), ignore_errors=True)
        return Generation(number=number, folder=place, new=True)


def _same(before: Generation, manifest: Manifest) -> bool:
    return read_manifest(before.folder) == manifest


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
    part.write_text(json.dumps({"format": FORMAT, "version": VERSION, "generation": number}) + "\n")
    sync_file(part)
    os.replace(part, folder / POINTER)
    sync_folder(folder)
