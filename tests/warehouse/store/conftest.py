"""Warehouse files of the tests of the store."""

import shutil
from pathlib import Path

import pytest

from slackwater.warehouse.store.connection import Opening

#: Creates a file as the program does.
MAKE = Opening._make
#: Tests of new files, of their schema and of their size: they create warehouses as the program does.
CREATING = {
    "test_described",
    "test_disk_full",
    "test_migration_backup",
    "test_storage_version",
    "test_store_file",
    "test_units_step",
}


@pytest.fixture(autouse=True, scope="module")
def new_warehouses(request, empty_warehouse):
    """Create warehouse files as copies, except in the tests of `CREATING`; processes that a test starts create them as usual."""

    def copied(opening):
        file = Path(opening.name)
        if not (file.exists() and file.stat().st_size):
            shutil.copyfile(empty_warehouse, file)

    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__ not in CREATING:
            patch.setattr(Opening, "_make", copied)
        yield


@pytest.fixture
def created(monkeypatch):
    """Create warehouse files as the program does, in a test of other modules."""
    monkeypatch.setattr(Opening, "_make", MAKE)


@pytest.fixture(autouse=True, scope="module")
def open_snapshots():
    """Open every snapshot anew, as a process of its own does."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "w.duckdb"
