"""The output printed in README equals the output of its commands."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from command_kit import call
from series_kit import DATA

README = Path(__file__).resolve().parents[1] / "README.md"
#: The columns of the table of decisions, and the format of a decision's fields in it.
COLUMNS = {
    "job": lambda row: row["job"],
    "on-demand": lambda row: str(row["on_demand"]),
    "spot": lambda row: str(row["spot"]),
    "expected cost, $": lambda row: f"{row['expected_cost_usd']:.2f}",
    "expected finish, UTC": lambda row: f"{pd.Timestamp(row['expected_finish']):%Y-%m-%d %H:%M}",
    "risk of missing deadline": lambda row: f"{100 * row['late_probability']:.0f} %",
    "policy": lambda row: row["policy"],
    "why": lambda row: row["reason"],
}


def shown():
    """Return the rows of README's table of decisions, and the command before it."""
    text = README.read_text(encoding="utf-8")
    block = next(
        part
        for part in text.split("```")
        if part.strip().startswith("job ") and "risk of missing deadline" in part
    )
    before = text[: text.index(block)].rstrip("`\n ")
    command = before[before.rindex("`slackwater ") + 1 :].partition("`")[0]
    head, *lines = block.strip("\n").splitlines()
    names = list(COLUMNS)
    starts = [head.index(name) for name in names]
    ends = [*starts[1:], None]
    rows = []
    for line in lines:
        # A column of numbers is right-aligned: it ends where its name ends.
        cells = [line[low:high].strip() for low, high in zip(starts, ends, strict=True)]
        rows.append(dict(zip(names, cells, strict=True)))
    return command.split(), rows


def test_the_table_has_its_command_and_its_columns():
    command, rows = shown()
    assert command[:2] == ["slackwater", "run"]
    assert len(rows) == 2
    assert all(row["job"] and row["why"] and row["spot"].isdigit() for row in rows)


@pytest.mark.slow
def test_the_decisions_are_those_of_the_command(tmp_path):
    if not (DATA / "prices.parquet").is_file():
        pytest.skip(f"no prices.parquet below {DATA}: set SLACKWATER_DATA to the folder of the open data")
    command, rows = shown()
    words = [str(DATA) if word == "DIR" else word for word in command[1:]]
    decided = call(*words, "--db", tmp_path / "w.duckdb", "--report", tmp_path / "r.html", "--json").value
    found = {row["job"]: row for row in decided["decisions"]}
    assert len(found) == 8
    for row in rows:
        own = found[row["job"]]
        assert {name: write(own) for name, write in COLUMNS.items()} == row


def planned():
    """Return README's plan of a job file: the command, and the beginning of its output."""
    text = README.read_text(encoding="utf-8")
    before, _, after = text.partition("given in a slot of the open H100 histories, begins:")
    return before[before.rindex("`slackwater plan") + 1 :].partition("`")[0].split(), after.split("```")[
        1
    ].strip()


@pytest.mark.slow
def test_the_plan_of_a_file_is_that_of_the_command(monkeypatch):
    if not (DATA / "prices.parquet").is_file():
        pytest.skip(f"no prices.parquet below {DATA}: set SLACKWATER_DATA to the folder of the open data")
    command, printed = planned()
    slot = pd.Timestamp("2025-10-12T12:00Z")
    monkeypatch.setattr("flows.clock.now", lambda: slot + pd.Timedelta("5min"))
    monkeypatch.setenv("COLUMNS", "80")
    words = [str(DATA) if word == "DIR" else word for word in command[1:]]
    words = [str(README.parent / word) if word.endswith(".toml") else word for word in words]
    assert call(*words, "--at", slot.isoformat()).out.startswith(printed)
