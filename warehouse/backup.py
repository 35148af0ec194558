"""A copy of a warehouse of an older schema, made before it is brought up to date."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count
from pathlib import Path

from warehouse.errors import StoreError
from warehouse.snapshot import copy_synced, identity_of, sync_folder

_PIECE = 1 << 20


def back_up(database: Path, source: int, *, step: str) -> Path:
    """Copy the file open as ``source`` to ``<database>.backup-<step>`` and return that; no other backup is overwritten.

    A backup with the same bytes is used as it is; beside one with other bytes a number is added. The file must be checkpointed and
    stay as it is meanwhile. Raises `StoreError` if there is no room, before anything was changed.
    """
    target = _free_name(database, source, step)
    if target.exists():
        return target
    part = target.with_name(f"{target.name}.part")
    try:
        copy_synced(source, part, size=identity_of(source).size)
        os.replace(part, target)
        sync_folder(target.parent)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise StoreError(
            f"no backup of {database} before its schema is brought up to date: {error.strerror}",
            remedy="make room beside the file; nothing was changed",
        ) from error
    return target


def _free_name(database: Path, source: int, step: str) -> Path:
    plain = database.with_name(f"{database.name}.backup-{step}")
    names = (plain if number == 0 else plain.with_name(f"{plain.name}.{number}") for number in count())
    return next(name for name in names if not name.exists() or _same(name, source))


def _same(path: Path, source: int) -> bool:
    size = identity_of(source).size
    if path.stat().st_size != size:
        return False
    with path.open("rb") as file:
        return all(file.read(_PIECE) == os.pread(source, _PIECE, offset) for offset in range(0, size, _PIECE))
