"""The package without its extras: it plans and writes pages, a turn is a plain call, and whatever needs an extra names it."""

import html
import importlib.metadata
import json
import subprocess
import sys
import venv
from pathlib import Path

import pandas as pd
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_turn import AT, dump, one_turn, small_settings
from test_wheel import ENVIRONMENT, ROOT, build, install, run
from tidy_folder import START, write_tidy

from slackwater.flows.config import read_settings

#: Distributions of the extras that the core must not install.
SERVED = {"prefect", "fastapi", "sqlalchemy", "starlette", "uvicorn", "prometheus-client"}
EXTRA = SERVED | {"altair", "boto3", "distributed", "httpx", "statsmodels"}
#: Runs command lines without the modules of `EXTRA`; prints exit codes and standard errors.
BLOCKED = f"""
import contextlib, io, json, sys
from importlib.machinery import PathFinder

class Blocking(PathFinder):
    @classmethod
    def find_spec(cls, name, *more):
        missing = {sorted(name.replace("-", "_") for name in EXTRA)}
        return None if name.partition(".")[0] in missing else PathFinder.find_spec(name, *more)

sys.meta_path = [Blocking if finder is PathFinder else finder for finder in sys.meta_path]
from slackwater.flows.cli import PROGRAM
found = []
for words in json.loads(sys.argv[1]):
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        code = PROGRAM.run(words)
    found.append([code, err.getvalue()])
print(json.dumps(found))
"""


def without_extras(commands: list[list[str]], folder: Path) -> list[tuple[int, str]]:
    """Return the exit codes and standard errors of commands in a process that finds no module of an extra."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, json.dumps(commands)],
        cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[tuple[int, str]] = json.loads(done.stdout)
    return found


def closure(name: str, found: set[str]) -> set[str]:
    """Add a distribution and all that it requires on this machine, without extras, to ``found``."""
    if name not in found:
        found.add(name)
        for text in importlib.metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                closure(canonicalize_name(needed.name), found)
    return found


def test_a_turn_needs_no_prefect_and_servers_say_so(tmp_path):
    file = small_settings(tmp_path)
    plain = one_turn(tmp_path / "plain.duckdb", read_settings(file))
    commands = [
        ["run", "--at", AT.isoformat(), "--settings", str(file), "--json"],
        ["serve", "--help"],
        ["serve"],
        ["ui", "--port", "0"],
    ]
    turn, told, serve, ui = without_extras(commands, tmp_path)
    assert (turn[0], told) == (0, [0, ""])
    assert dump(tmp_path / "slackwater.duckdb") == dump(tmp_path / "plain.duckdb")
    assert (tmp_path / "reports" / f"{plain.run_id}.html").exists()
    for words, (code, err) in (("serve", serve), ("ui", ui)):
        assert code == 2
        assert err.startswith(f"slackwater: `slackwater {words}` needs prefect, ")
        assert err.endswith('expected the optional extra serve; pip install "slackwater[serve]"\n')


@pytest.mark.slow  # the quick form: a turn without the extras, above
def test_prices_of_a_file_are_planned_on_and_pages_name_the_extras_of_their_parts(tmp_path):
    write_tidy(tmp_path / "data", days=7)
    (tmp_path / "slackwater.toml").write_text(
        '[[feeds]]\nname = "near"\nsource = "http"\n[feeds.options]\nurl = "http://127.0.0.1:9/rows"\n[feeds.options.columns]\n'
        + "".join(f'{name} = "={name}"\n' for name in ("provider", "region", "zone", "instance_type"))
        + 'price_usd = "price"\n'
    )
    example = ROOT / "examples" / "llama-8b-lora.toml"
    (tmp_path / "job.toml").write_text(f"gpus_per_instance = 1\n{example.read_text()}")
    at = (START + pd.Timedelta(days=7)).floor("30min").isoformat()
    plan, accuracy = ["plan", "job.toml", "--market", "lab/r1/z1/a3-highgpu-1g"], ["accuracy", "--backtest"]
    commands = [
        ["ingest", "tabular", "data"],
        [*plan, "--at", at, "--html", "plan.html"],
        [*accuracy, "--model", "last_value", "--workers", "1", "--html", "accuracy.html"],
        ["feeds", "fetch", "near", "--at", at],
    ]
    ingest, planned, measured, feed = without_extras(commands, tmp_path)
    assert [code for code, _ in (ingest, planned, measured)] == [0, 0, 0], (ingest, planned, measured)
    page = (tmp_path / "plan.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "Expected cost" in page
    assert "slackwater[" not in page
    page = html.unescape((tmp_path / "accuracy.html").read_text())
    for what, extra, module in (("this chart", "charts", "altair"), ("cycles", "diagnosis", "statsmodels")):
        remedy = f'expected the optional extra {extra}; pip install "slackwater[{extra}]"'
        assert f"{what} needs {module}, which is not installed; {remedy}" in page
    assert "daily cycle" not in page
    assert feed[0] == 2
    assert 'pip install "slackwater[http]"' in feed[1]


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """Return the ``bin`` of an environment with the wheel and the libraries that its core requires, and no others."""
    wheel = build(ROOT, tmp_path_factory.mktemp("dist"))
    place = tmp_path_factory.mktemp("core")
    venv.create(place, symlinks=True)
    (site,) = place.glob("lib/python3*/site-packages")
    names = closure("slackwater", set()) - {"slackwater"}
    for name in names:
        distribution = importlib.metadata.distribution(name)
        for top in {
            file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            (site / top).symlink_to(distribution.locate_file(top))
    install(wheel, place / "bin" / "python")
    assert not names & EXTRA
    assert len(names) < 32
    return place / "bin"


@pytest.mark.slow
def test_the_core_alone_ingests_plans_decides_and_reports(core, tmp_path):
    write_tidy(tmp_path / "data")
    small_settings(tmp_path)
    example = next(core.parent.glob("lib/python3*/site-packages/slackwater/examples/llama-8b-lora.toml"))
    (tmp_path / "job.toml").write_text(f"gpus_per_instance = 1\n{example.read_text()}")
    at = (START + pd.Timedelta(days=7)).ceil("30min").isoformat()
    market = "lab/r1/z1/a3-highgpu-1g"

    def slackwater(*words):
        return json.loads(run(core / "slackwater", *words, "--json", cwd=tmp_path))

    assert slackwater("ingest", "tabular", "data")
    slackwater("job", "add", "job.toml", "--market", market, "--at", at)
    (decision,) = [one for one in slackwater("run", "--at", at)["decisions"] if one["market"] == market]
    assert slackwater("plan", decision["job"], "--at", at)["market"] == market
    slackwater("job", "report", decision["job"], "--progress", "0", "--spot", decision["spot"],
               "--on-demand", decision["on_demand"], "--at", at)  # fmt: skip
    run(core / "slackwater", "report", "--at", at, "--html", "turn.html", cwd=tmp_path)
    assert Path(tmp_path / "turn.html").read_text().startswith("<!DOCTYPE html>")
    made = slackwater("backfill", "--from", at, "--to", at)
    assert (made["slots"], made["failed"]) == (1, 0)
    program = "import sys; from slackwater import optimization; optimization.plan; assert 'prefect' not in sys.modules"
    run(core / "python", "-c", program, cwd=tmp_path)
