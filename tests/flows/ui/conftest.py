"""Shared fixtures of the user interface tests."""

import os
import shutil
from pathlib import Path

import pytest
from test_turn import small_settings

from slackwater.flows.config import Settings, read_settings


@pytest.fixture(scope="session")
def settings(tmp_path_factory) -> Settings:
    return read_settings(small_settings(tmp_path_factory.mktemp("settings")))


@pytest.fixture(scope="session")
def watched(tmp_path_factory, settings) -> Path:
    """Return the warehouse of `test_ui.two_turns`, created by the first worker that needs it; tests read it or copy it."""
    from test_ui import two_turns

    base = tmp_path_factory.getbasetemp()
    kept = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "watched.duckdb"
    db = tmp_path_factory.mktemp("watched") / "w.duckdb"
    if kept.exists():
        shutil.copyfile(kept, db)
    else:
        two_turns(db, settings)
        part = kept.with_suffix(f".{os.getpid()}")
        shutil.copyfile(db, part)
        part.replace(kept)
    return db
