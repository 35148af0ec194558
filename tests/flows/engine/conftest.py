"""Shared fixtures of the engine tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> Path:
    """Return the path where the first engine of a test run stores its database for later engines (`engine_kit.own_engine`)."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "prefect.db"
