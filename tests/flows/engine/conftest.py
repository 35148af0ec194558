"""Shared fixtures of the engine tests."""

from importlib.metadata import version
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tables(pytestconfig) -> Path:
    """Return the path where the first engine stores its database for later engines (`engine_kit.own_engine`).

    It stays for later test runs with the same version of Prefect.
    """
    return pytestconfig.cache.mkdir("engine") / f"prefect-{version('prefect')}.db"
