"""Warehouses shared by the tests of jobs."""

import pytest
from advice_kit import job_store, new_store


@pytest.fixture
def jobs(tmp_path):
    """Yield a warehouse with a job of twelve slots and no market, sufficient for reports and changes."""
    with job_store(tmp_path) as store:
        yield store


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    """Yield a warehouse with markets, to which no test adds a job."""
    with new_store(tmp_path_factory.mktemp("read")) as store:
        yield store
