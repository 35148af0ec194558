"""A warehouse rewritten without what it no longer needs: deleted rows, and estimated forecasters that are never read again."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from warehouse.errors import DamagedStoreError, SettingsError, StoreError
from warehouse.store.connection import Store
from warehouse.store.files import sync_file, sync_folder
from warehouse.store.schema import TABLES, quoted

#: Estimations are read back at their own fit time only (M6.4): those behind every refit in use serve backfills, which can make
#: them again.
KEEP_FITTED = pd.Timedelta(days=14)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """Bytes of the file before and after, and estimated forecasters dropped."""

    bytes_before: int
    bytes_after: int
    fitted_dropped: int


def compact(store: Store, *, keep_fitted: pd.Timedelta = KEEP_FITTED) -> Compacted:
    """Rewrite the warehouse behind a store open for writing, and close that store.

    Estimated forecasters fitted more than ``keep_fitted`` before the newest one are dropped. The new file is written beside the
    old one, compared with it table by table as it stands on the disk, and then takes its place at once; until then the old one is
    as it was. Raises `StoreError` if there is no room, `StoreLockedError` if this process has other stores of it open.
    """
    if keep_fitted < pd.Timedelta(0):
        raise SettingsError(f"keep estimated forecasters for {keep_fitted}", expected="0 days or more")
    database = Path(store.name)
    part = database.with_name(f"{database.name}.compact.part")
    dropped = _drop_fitted(store, keep_fitted)
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
            f"cannot compact {database}: {error.strerror}", remedy="make room beside the file"
        ) from error
    finally:
        _discard(part)
    return Compacted(bytes_before=before, bytes_after=after, fitted_dropped=dropped)


def _drop_fitted(store: Store, keep: pd.Timedelta) -> int:
    dropped = store.execute(
        "DELETE FROM fitted WHERE fitted_at < (SELECT max(fitted_at) FROM fitted) - to_microseconds(CAST(? AS BIGINT))",
        [keep // pd.Timedelta(microseconds=1)],
    )
    return int(dropped[0][0])


def _copy(store: Store, part: Path) -> None:
    """Copy every table, in one transaction, and compare what stands on the disk then with what was copied."""
    (here,) = store.execute("SELECT current_database()")[0]
    name = '"' + str(here).replace('"', '""') + '"'
    store.execute(f"ATTACH {quoted(part)} AS compacted")
    try:
        store.execute(f"COPY FROM DATABASE {name} TO compacted")
    finally:
        store.execute("DETACH compacted")
    store.execute(f"ATTACH {quoted(part)} AS compacted (READ_ONLY)")
    try:
        for table in (*TABLES, "schema_steps"):
            _compare(store, name, table)
    finally:
        store.execute("DETACH compacted")


def _compare(store: Store, name: str, table: str) -> None:
    """Same number of rows, and the same contents whatever their order; raises `DamagedStoreError`."""
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
