"""Warehouses that the tests of jobs have in common."""

import shutil

import pytest
from advice_kit import add_job, new_store

from warehouse.store.connection import open_store


@pytest.fixture(scope="module")
def one_job(tmp_path_factory):
    file = tmp_path_factory.mktemp("job") / "w.duckdb"
    with open_store(file) as store:
        add_job(store)
    return file


@pytest.fixture
def jobs(one_job, tmp_path):
    """A warehouse with one job of twelve slots and no market: enough to report to and to change."""
    with open_store(shutil.copy(one_job, tmp_path / "w.duckdb")) as store:
        yield store


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    """A warehouse with markets that no test adds a job to."""
    with new_store(tmp_path_factory.mktemp("read")) as store:
        yield store
