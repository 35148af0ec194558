"""An unreadable stored row affects only itself: every command and page continues without it and names it."""

import pandas as pd
import pytest
from command_kit import call
from starlette.testclient import TestClient
from test_odd_jobs import asked
from test_turn import AT, one_turn, small_settings

from slackwater.flows.config import read_settings
from slackwater.flows.ui.app import make_app
from slackwater.flows.ui.reading import Snapshots
from slackwater.warehouse.store.connection import open_store

STEP = pd.Timedelta(minutes=30)
DEEP = "[" * 100_000
#: Table, column, stored text, and the message in `status`.
BAD = [
    ("jobs", "spec", "{", "job bad-0 is left out"),
    ("jobs", "spec", DEEP, "job bad-1 is left out"),
    ("jobs", "spec", '{"name": "sound"}', "job bad-2 is left out"),
    ("jobs", "spec", "null", "job bad-3 is left out"),
]


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory):
    """Run a turn with a valid job, insert unreadable rows into every table with a document, and run another turn."""
    folder = tmp_path_factory.mktemp("unreadable")
    settings, db = small_settings(folder, measured_origins=0), folder / "w.duckdb"
    config = read_settings(settings)
    one_turn(db, config, requests=[asked("sound", "5h"), asked("short", "1h")])
    one_turn(db, config, at=AT + 2 * STEP)
    with open_store(db) as store:
        for place, (_, _, text, _) in enumerate(BAD):
            store.execute(
                "INSERT INTO jobs SELECT ?, market, source, ?, origin, created_at, start_at, deadline_at, step_seconds "
                "FROM jobs WHERE name = 'sound'",
                [f"bad-{place}", text],
            )
        for table, column in (
            ("decisions", "details"), ("outcomes", "details"), ("outcomes", "allocations"), ("runs", "details"),
            ("accuracy", "more"),
        ):  # fmt: skip
            store.execute(f"INSERT INTO {table} SELECT * REPLACE ('{{' AS {column}) FROM {table} LIMIT 1")
        store.execute(
            "INSERT INTO fetches VALUES ('f', now(), 'done', 1, 0, 0, 1, '{\"parts\": {\"a\": 3}}', '')"
        )
    return folder, settings, db, one_turn(db, config, at=AT + 4 * STEP)


def test_the_sound_job_is_decided_and_the_others_are_named(spoiled):
    *_, turn = spoiled
    assert [row["job"] for row in turn.decisions] == ["sound"]
    said = "\n".join(turn.notes)
    assert all(words in said for *_, words in BAD)


COMMANDS = (
    ("status",),
    ("job", "list"),
    ("job", "show", "sound"),
    ("job", "show", "short"),
    ("plan", "sound", "--at", (AT + 4 * STEP).isoformat()),
    ("leaderboard",),
    ("feeds",),
    ("report", "--at", (AT + 4 * STEP).isoformat()),
    ("markets",),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_goes_on(spoiled, words, tmp_path, monkeypatch):
    _, settings, db, _ = spoiled
    monkeypatch.chdir(tmp_path)
    done = call(*words, "--db", db, "--settings", settings)
    assert done.code in (0, 3, 4, 5), done.err
    assert "Traceback" not in done.err


def test_status_and_job_list_name_the_rows(spoiled):
    _, settings, db, _ = spoiled
    status = call("status", "--db", db, "--settings", settings).said
    assert "1 rows of decisions are left out: details cannot be read" in status
    assert all(words in status for *_, words in BAD)
    jobs = call("job", "list", "--db", db, "--settings", settings).said
    assert all(words in jobs for *_, words in BAD)


@pytest.fixture(scope="module")
def pages(spoiled):
    _, settings, db, _ = spoiled
    snapshots = Snapshots(db, read_settings(settings), lambda: AT + 5 * STEP)
    with TestClient(make_app(snapshots), base_url="http://127.0.0.1") as client:
        yield client


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/jobs",
        "/job?name=sound",
        "/job?name=short",
        "/markets",
        "/accuracy",
        "/policies",
        "/completeness",
        "/runs",
    ],
)
def test_every_page_goes_on(pages, path):
    answer = pages.get(path)
    assert answer.status_code == 200, answer.text
