"""What the tests of the engine share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> Path:
    """Where the first engine of a run, in whichever worker, leaves its tables for the next (`engine_kit.own_engine`)."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "prefect.db"
