"""Output width of the real commands: no line exceeds 80 columns or the pipe width, and nothing is cropped."""

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from command_kit import call
from forms_kit import quick_first
from make import job_text, work
from rich.cells import cell_len
from test_turn import AT, one_turn, small_settings

from slackwater.flows.command import PIPE_WIDTH
from slackwater.flows.config import read_settings
from slackwater.flows.ledger.fields import zone_of
from slackwater.flows.ledger.headline import details, headline, outlook

MARKET = "simulated/east/east-a/h100"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("width")
    one_turn(folder / "slackwater.duckdb", read_settings(small_settings(folder)))
    for name, amount in (("short", 20), ("impossible", 480)):
        (folder / f"{name}.toml").write_text(
            job_text(f"a-job-with-a-long-name-{name}", workload=work(amount, "gpu_hours"))
        )
    return folder


def outside():
    """Return the environment for a command started as a separate process, without COLUMNS and LINES."""
    own = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    return own | {"PYTHONPATH": os.pathsep.join(sys.path)}


def command(*words):
    return [sys.executable, "-m", "slackwater.flows.cli", *words]


def in_terminal(place, columns, *words):
    """Run a command in a pseudo-terminal with ``columns`` columns and return the printed lines."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    with subprocess.Popen(
        command(*words), cwd=place, stdout=theirs, stderr=subprocess.DEVNULL, env=outside()
    ) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            said += part
    os.close(ours)
    assert process.returncode == 0, said
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in said.decode().replace("\r", "").split("\n")]


def in_pipe(place, *words):
    done = subprocess.run(
        command(*words), cwd=place, capture_output=True, text=True, check=True, env=outside()
    )
    return done.stdout.split("\n")


def called(*words):
    """Run a command in this process and return the printed lines."""
    done = call(*words)
    assert done.code == 0, done.err
    return done.out.split("\n")


@pytest.fixture
def at_80_columns(place, monkeypatch):
    """Change to the folder and set COLUMNS to 80, for commands called in this process."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "80")


def squeezed(text):
    """Remove all whitespace: folding may break lines at a space or at a separator in a name."""
    return re.sub(r"\s", "", text)


@pytest.mark.slow  # the quick form: no answer is wider than 80 columns
def test_a_decision_is_whole_on_a_terminal_of_80_columns_and_in_a_pipe(place, monkeypatch):
    words = ("plan", "short.toml", "--market", MARKET, "--at", AT.isoformat())
    monkeypatch.chdir(place)
    row = call(*words, "--json").value
    told = [headline(row), *outlook(row), row["reason"], *(one["value"] for one in details(row))]
    assert row["saved_usd"] == pytest.approx(row["on_demand_only_usd"] - row["expected_cost_usd"], abs=1e-3)
    # Without a width, any output that is not a terminal counts as a pipe; `test_no_command_runs_wide` uses real pipes.
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(sys, "__stdout__", None)
    for width, lines in ((80, in_terminal(place, 80, *words)), (PIPE_WIDTH, called(*words))):
        assert max(map(cell_len, lines)) <= width
        said = squeezed("\n".join(lines))
        assert all(squeezed(value) in said for value in told), [v for v in told if squeezed(v) not in said]
        assert row["market"] in "\n".join(lines), "a name that fits a line is not broken"


def test_a_job_that_cannot_be_done_says_so_first_and_what_could_be_done(at_80_columns):
    lines = called("plan", "impossible.toml", "--market", MARKET, "--at", AT.isoformat())
    said = " ".join(" ".join(lines).split())
    assert "At that time: Warning: job " in said[:200]
    assert "cannot be done by" in said[:300]
    assert "Best effort: Run 8" in said
    assert "8 on-demand instances, its fastest size, need 60 h for the rest" in said
    assert "more than the 6 h left" in said
    assert "81 instances or a deadline of" in said
    assert "saved" not in said, "a job that is given up saves nothing"


#: Fast commands, run in a folder after a turn on the simulated market.
ANSWERS = [
    ["job", "list"], ["job", "show", "{job}"], ["markets"], ["leaderboard"], ["rejected"], ["feeds"],
    ["ingest", "--list"], ["schema"],
    ["status", "--at", AT.isoformat()], ["fleet", "plan", "--at", AT.isoformat()], ["init", "--out", "made.toml"],
    ["export", "out"],
    ["job", "add", "short.toml", "--name", "another", "--at", AT.isoformat()], ["plan", "short.toml", "--at", AT.isoformat()],
    ["markets", "--for", "short.toml", "--at", AT.isoformat()], ["forecast", "--market", MARKET, "--at", AT.isoformat()],
    ["backfill", "--from", "2026-03-10T04:00Z", "--to", "2026-03-10T05:30Z", "--dry-run"], ["compact"],
    ["rent", str(ROOT / "examples" / "types.toml"), "--budget", "18"],
]  # fmt: skip
#: Slower commands.
STUDIES = [
    ["replay", "--job", "short.toml", "--market", MARKET, "--model", "last_value"],
    ["accuracy", "--model", "markov"],
]


@pytest.mark.parametrize("answers", quick_first([ANSWERS, STUDIES]), ids=["fast", "slow"])
def test_no_answer_is_wider_than_80_columns_or_cropped(place, tmp_path, monkeypatch, answers):
    """Run the commands in this process: names wrap at separators, and no heading is followed by an empty section."""
    home = tmp_path / "place"
    shutil.copytree(place, home)
    monkeypatch.chdir(home)
    monkeypatch.setenv("COLUMNS", "80")
    job = call("job", "list", "--json").value["jobs"][0]["job"]
    for words in answers:
        done = call(*(word.format(job=job) for word in words))
        lines = done.out.split("\n")
        assert done.code in (0, 3, 4, 5), (words, done.err)
        assert max(map(cell_len, lines)) <= 80, words
        assert "…" not in done.out, words
        heads = [k for k, line in enumerate(lines) if re.match(r"\d\. [A-Z]", line)]
        assert all(lines[k + 1].strip() for k in heads), words


def test_a_job_is_shown_with_its_newest_decision_first_and_what_was_asked_last(at_80_columns):
    listed = call("job", "list", "--json").value["jobs"]
    job = next(row["job"] for row in listed if row["origin"] == "example")
    lines = called("job", "show", job)
    assert lines[0].startswith(
        "This slot ended "
    )  # in an archive: nobody starts instances for a slot of the past
    assert next(line for line in lines if line.startswith(("Decisions", "Outcomes"))).startswith("Decisions")
    assert lines.index("Request") > lines.index(next(line for line in lines if line.startswith("Outcomes")))
    assert "}" in lines[-9:]  # the request, then the note of an archive


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120, PIPE_WIDTH])
@pytest.mark.parametrize(
    "words",
    [
        ("job", "list"),
        ("markets",),
        ("leaderboard",),
        ("status", "--at", AT.isoformat()),
        ("fleet", "plan", "--at", AT.isoformat()),
        ("ingest", "--list"),
        ("replay", "--job", "short.toml", "--market", MARKET, "--policy", "all", "--model", "last_value"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_no_command_runs_wide(place, words, width):
    lines = in_pipe(place, *words) if width == PIPE_WIDTH else in_terminal(place, width, *words)
    assert max(map(cell_len, lines)) <= width
    if words[0] == "replay":
        told = {line.split()[0] for line in lines if line[:1].strip()}
        assert {"OD-only", "UP", "optimum"} <= told  # the baselines in the pool of the settings


@pytest.mark.slow
def test_every_job_and_market_of_the_json_is_in_the_table(place):
    jobs = json.loads("\n".join(in_pipe(place, "job", "list", "--json")))["jobs"]
    said = squeezed("\n".join(in_pipe(place, "job", "list")))  # a terminal has a screenful
    assert all(squeezed(row["job"]) in said and squeezed(zone_of(row["market"])) in said for row in jobs)
    markets = json.loads("\n".join(in_pipe(place, "markets", "--json")))["markets"]
    said = squeezed("\n".join(in_pipe(place, "markets")))
    assert all(squeezed(row["market"]) in said for row in markets)
