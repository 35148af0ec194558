"""The output in README and docs/job-files.md equals that of the commands, and README's links resolve."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from command_kit import call
from series_kit import DATA

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
FIRST_HOUR = ROOT / "docs" / "first-hour.md"
#: The page with the plan of a job file.
JOB_FILES = ROOT / "docs" / "job-files.md"
#: Pages outside of the site, whose links `make site` does not check.
LINKED = ("README.md", "CONTRIBUTING.md")


def anchors(page):
    """Return the anchors of a page's headings, as GitHub writes them."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_readme_is_a_landing_page_with_the_two_commands_of_a_newcomer():
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert [line.split("#")[0].strip() for line in lines if line.startswith("    make ")] == [
        "make run",
        "make test",
    ]


def test_the_three_commands_of_readme_are_those_of_the_first_hour():
    text, hour = README.read_text(encoding="utf-8"), FIRST_HOUR.read_text(encoding="utf-8")
    job = re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1]
    printed = re.findall(
        r"^`(slackwater [^`]*)`(?:(?!```).)*?\n\n```\n(.*?)```", text, re.MULTILINE | re.DOTALL
    )
    assert [command.split()[1] for command, _ in printed] == ["plan", "ingest", "markets"]
    assert job in hour
    assert re.search("^    aws .*$", text, re.MULTILINE)[0] in hour
    for command, output in printed:
        assert hour.split(f"## 12:05 `{command}`\n")[1].split("```")[1].startswith("\n" + output)


@pytest.mark.parametrize("name", LINKED)
def test_links_resolve(name):
    page = ROOT / name
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        other = (page.parent / file).resolve() if file else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other.read_text(encoding="utf-8")), target


def planned():
    """Return the command that plans a job file, and the beginning of its output."""
    text = JOB_FILES.read_text(encoding="utf-8")
    before, _, after = text.partition("in a slot of the open H100 histories, prints first:")
    return before[before.rindex("`slackwater plan") + 1 :].partition("`")[0].split(), after.split("```")[
        1
    ].strip()


@pytest.mark.slow
def test_the_plan_of_a_file_is_that_of_the_command(monkeypatch):
    if not (DATA / "prices.parquet").is_file():
        pytest.skip(f"no prices.parquet below {DATA}: set SLACKWATER_DATA to the folder of the open data")
    command, printed = planned()
    slot = pd.Timestamp("2025-10-12T12:00Z")
    monkeypatch.setattr("slackwater.flows.clock.now", lambda: slot + pd.Timedelta("5min"))
    monkeypatch.setenv("COLUMNS", "80")
    words = [str(DATA) if word == "DIR" else word for word in command[1:]]
    words = [str(ROOT / word) if word.endswith(".toml") else word for word in words]
    assert call(*words, "--at", slot.isoformat()).out.startswith(printed)
