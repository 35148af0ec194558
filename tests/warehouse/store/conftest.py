"""Warehouse files of the tests of the store."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def new_warehouses():
    """Create warehouses as the program does, instead of copying them as other tests do.

    Their initial size also decides how much fits on a small disk.
    """


@pytest.fixture(autouse=True, scope="module")
def open_snapshots():
    """Open every snapshot anew, as a process of its own does."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "w.duckdb"
