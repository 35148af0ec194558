"""Wrong times, missing files and unknown names are refused before any heavy library is imported."""

import json
import subprocess
import sys

import pandas as pd
import pytest
from command_kit import call
from make import make_request

from slackwater.flows.ledger.jobs import save_jobs
from slackwater.warehouse.store.connection import open_store

REFUSED = [
    (("plan", "nix"), "no job 'nix' in the warehouse"),
    (("plan", "nix.toml"), "job file nix.toml: No such file or directory"),
    (("plan", "broken.toml"), "job file broken.toml: "),
    (("plan", "x", "--at", "yesterday"), "--at 'yesterday'"),
    (("plan", "x", "--db", "no.duckdb"), "no warehouse at "),
    (("job", "list", "--settings", "nix.toml"), "settings file nix.toml"),
    (("job", "show", "nix"), "no job 'nix'"),
    (("job", "change", "nix", "--deadline", "2026-12-01T00:00Z"), "no job 'nix'"),
    (("job", "report", "nix", "--progress", "1"), "no job 'nix'"),
    (("job", "add", "nix.toml"), "job file nix.toml"),
    (("bill", "nix"), "no job 'nix'"),
    *(
        ((*words, "--db", "no.duckdb"), "no warehouse at ")
        for words in (
            ("ui",),
            ("leaderboard",),
            ("report",),
            ("rejected",),
            ("job", "list"),
            ("export", "new"),
        )
    ),
    (("markets", "--for", "nix"), "no job 'nix'"),
    (("markets", "--db", "no.duckdb"), "no warehouse at "),
    (("status", "--db", "no.duckdb"), "no warehouse at "),
    (("backtest", "--job", "nix"), "no job 'nix'"),
    (("backtest", "--job", "nix", "--from", "monday"), "--from 'monday'"),
    (("replay", "--job", "nix.toml"), "job file nix.toml"),
    (("replay", "--job", "job.toml", "--policy", "nix"), "policy 'nix'; expected a name such as OD-only"),
    (("backtest", "--job", "lora", "--policy", "UP", "--policy", "nix(3)"), "policy 'nix(3)'"),
    (("plan", "lora", "--policy", "nix"), "or module:Name; of a job in several markets 'MeanField'"),
    (("forecast", "--model", "nix"), "predictor 'nix'"),
    (("accuracy", "--model", "nix"), "predictor 'nix'"),
    (("ingest", "nix", "broken.toml"), "source 'nix'"),
    (("ingest", "aws", "nix.json"), "no file or folder nix.json"),
    (("ingest", "aws"), "no file of the source 'aws' given; expected files, folders, or -"),
    (("ingest", "broken.toml"), "file 'broken.toml' without its source"),
    (
        ("forecast", "--market", "aws/x/y/z"),
        "market 'aws/x/y/z' has no observations; expected a market that was ingested",
    ),
    (("plan", "lora", "--market", "lab/r/z/y"), "market 'lab/r/z/y' has no observations"),
    (("run", "--data", "nix"), "no file or folder nix"),
    (("fill", "nix.toml"), "request file nix.toml"),
    (("rent", "nix.toml", "--budget", "3"), "types file nix.toml"),
]
#: Libraries whose import takes longer than printing a help text.
HEAVY = ("pandas", "scipy", "numba", "statsmodels", "lightgbm", "pyomo", "prefect", "altair", "httpx")
ALL = """
import contextlib, io, json, sys
from slackwater.flows.cli import PROGRAM
found = []
for words in json.loads(sys.argv[1]):
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        code = PROGRAM.run(words)
    found.append([code, err.getvalue(), [name for name in json.loads(sys.argv[2]) if name in sys.modules]])
print(json.dumps(found))
"""


AT = pd.Timestamp("2026-03-10T06:00Z")


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """Return, for each command, its error and the heavy libraries imported by then; all commands run in a single process."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "broken.toml").write_text("a = [")
    (folder / "job.toml").write_text("a = 1")
    with open_store(folder / "slackwater.duckdb") as store:
        store.execute("INSERT INTO markets VALUES (1, 'lab', 'r', 'z', 'x')")
        store.execute(
            "INSERT INTO series (sid, mid, source, kind, product) VALUES (1, 1, 'lab', 'availability', '')"
        )
        save_jobs(
            store,
            [make_request("lora", at=AT, market="lab/r/z/x")],
            origin="user",
            at=AT,
            step=pd.Timedelta(minutes=30),
        )
    asked = json.dumps([list(words) for words, _ in REFUSED])
    done = subprocess.run(
        [sys.executable, "-c", ALL, asked, json.dumps(HEAVY)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip([words for words, _ in REFUSED], json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize(
    ("words", "why"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_it_is_refused_without_what_computes(refused, words, why):
    code, err, heavy = refused[words]
    assert code == 2
    assert why in err
    assert heavy == []


def test_names_and_files_that_are_there_pass(tmp_path):
    open_store(tmp_path / "w.duckdb").close()
    assert call("job", "list", "--db", tmp_path / "w.duckdb").code == 0
    assert call("bill", "--db", tmp_path / "w.duckdb").code == 0
