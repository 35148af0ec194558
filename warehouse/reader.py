"""Open a warehouse for reading: a snapshot of the file, or what was published for many readers (decision 16)."""

from __future__ import annotations

from pathlib import Path

from warehouse.conventions import Conventions, read_conventions
from warehouse.errors import StoreError
from warehouse.exchange.export import read_manifest, table_file
from warehouse.exchange.share import current_generation, is_shared
from warehouse.store.connection import MEMORY_LIMIT, Opening, Store, open_store
from warehouse.store.files import check_place, snapshots_wanted
from warehouse.store.lock import Patience, default_wait, say_on_stderr
from warehouse.store.snapshots import readable_snapshot

#: A snapshot may be replaced between the listing and the opening; twenty times in a row it is not.
_READER_TRIES = 20


def open_reader(path: Path | str, *, conventions: Conventions | None = None) -> Store:
    """Open the warehouse at ``path`` for reading only: the newest snapshot of it, so that no writer waits or is waited for.

    What a store opened here shows does not change; opened again it shows what was published since. A snapshot is made where
    none is of the present file and nobody writes. ``path`` may also be a folder that `slackwater publish` wrote. Raises what
    `open_store` raises.
    """
    if is_shared(Path(path)):
        facts = conventions if conventions is not None else read_conventions()
        folder = current_generation(Path(path)).folder
        manifest = read_manifest(folder)
        tables = {name: table_file(folder, name) for name in manifest.tables}
        connection = Opening(name=str(path), memory_limit=MEMORY_LIMIT).shared(manifest.steps, tables)
        return Store(connection, name=str(path), read_only=True, conventions=facts)
    if str(path) == ":memory:" or not snapshots_wanted():
        return open_store(path, read_only=True, conventions=conventions)
    database = Path(path)
    check_place(database, read_only=True)
    opening = Opening(name=str(path), memory_limit=MEMORY_LIMIT)
    patience = Patience(default_wait(), say_on_stderr)
    for _ in range(_READER_TRIES):
        snapshot = readable_snapshot(database, opening.settle, patience)
        try:
            connection = opening.unlocked(str(snapshot or database), read_only=True)
        except StoreError:
            if snapshot is None or snapshot.exists():
                raise
            continue  # a newer one has taken its place between the listing and the opening
        facts = conventions if conventions is not None else read_conventions()
        return Store(connection, name=str(path), read_only=True, conventions=facts)
    raise StoreError(f"warehouse {database}: snapshots come and go too fast", remedy="try again")
