"""Warehouses that the tests of jobs have in common."""

import pytest
from advice_kit import job_store, new_store


@pytest.fixture
def jobs(tmp_path):
    """A warehouse with one job of twelve slots and no market: enough to report to and to change."""
    with job_store(tmp_path) as store:
        yield store


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    """A warehouse with markets that no test adds a job to."""
    with new_store(tmp_path_factory.mktemp("read")) as store:
        yield store
