"""Run the commands of the how-to page in order against a real Prefect server, work pool and worker, offline."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pandas as pd
import pytest
import yaml
from test_turn import small_settings

from slackwater.flows.engine.run import ENGINE_SETTINGS
from slackwater.flows.engine.serving import (
    CLIENT_PASSWORD,
    DEPLOYMENTS,
    PASSWORD_FILE,
    SERVER_PASSWORD,
    free_port,
    full_name,
)
from slackwater.flows.ledger.stages import STAGES
from slackwater.flows.paths import ALLOWED
from slackwater.flows.schemas.command import DEPLOYMENTS_FILE
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_reader

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to-run-it.md"
BLOCK = re.compile(r"(<!-- long -->\n)?```sh\n(.*?)```", re.DOTALL)


def blocks(*, long: bool) -> list[str]:
    """Return the commands of the page in order; blocks marked long only if ``long``."""
    return [text for mark, text in BLOCK.findall(PAGE.read_text()) if long or not mark]


def test_the_page_names_every_deployment_and_setting():
    text = PAGE.read_text()
    for one in DEPLOYMENTS:
        assert f"`{full_name(one)}`" in text
        assert f"prefect deployment run {full_name(one)}" in text
    told = dict(re.findall(r"(\w+)=(\S+)", "\n".join(blocks(long=False))))
    assert told.items() >= ENGINE_SETTINGS.items()
    assert {PASSWORD_FILE, SERVER_PASSWORD, CLIENT_PASSWORD, ALLOWED} <= set(re.findall(r"[\w-]+", text))


class Shell:
    """Shell that runs blocks of commands and stops at the first failing command."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
        self.process = subprocess.Popen(
            ["bash", "-eu"], cwd=folder, env=kept, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, block: str) -> str:
        """Run a block of commands and return its output; raise AssertionError with the logs if a command fails."""
        self.process.stdin.write(block.replace("4200", str(self.port)) + "\necho --- done\n")
        self.process.stdin.flush()
        said: list[str] = []
        for line in self.process.stdout:
            if line == "--- done\n":
                return "".join(said)
            said.append(line)
        logs = [path.read_text()[-3000:] for path in sorted(self.folder.glob(".prefect/*.log"))]
        raise AssertionError("\n".join([block, *said, *logs]))

    def close(self) -> None:
        """Terminate the shell and all processes that it started."""
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(30)
            time.sleep(1)
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


@pytest.fixture
def shell(tmp_path):
    for name in ("prefect.yaml", "automations.yaml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    small_settings(tmp_path)
    one = Shell(tmp_path, free_port())
    yield one
    one.close()


def asked(shell: Shell, path: str, body: dict | None = None):
    name, password = (shell.folder / ".prefect" / PASSWORD_FILE).read_text().strip().split(":")
    url = f"http://127.0.0.1:{shell.port}/api/{path}"
    assert httpx.post(url, json=body or {}, timeout=30).status_code == 401
    answer = httpx.post(url, json=body or {}, timeout=30, auth=(name, password))
    answer.raise_for_status()
    return answer.json()


def said_by_server(shell: Shell) -> dict[str, dict]:
    """Return every deployment registered at the server, by full name."""
    flows = {one["id"]: one["name"] for one in asked(shell, "flows/filter")}
    return {f"{flows[one['flow_id']]}/{one['name']}": one for one in asked(shell, "deployments/filter")}


def check_deployments(shell: Shell) -> None:
    """Check that the server has exactly the deployments of the file, with the same settings."""
    found = said_by_server(shell)
    assert set(found) == {full_name(one) for one in DEPLOYMENTS}
    entries = yaml.safe_load(DEPLOYMENTS_FILE.read_text())["deployments"]
    for one, entry in zip(DEPLOYMENTS, entries, strict=True):
        known = found[full_name(one)]
        for key in ("entrypoint", "description", "parameters", "tags", "enforce_parameter_schema"):
            assert known[key] == entry[key], (full_name(one), key)
        schedules = [
            {key: item["schedule"][key] for key in ("cron", "timezone")} for item in known["schedules"]
        ]
        assert schedules == entry["schedules"]
        assert known["global_concurrency_limit"]["limit"] == 1
        limit = {key: value for key, value in entry["concurrency_limit"].items() if key != "limit"}
        assert known["concurrency_options"] == limit
        assert known["work_pool_name"] == entry["work_pool"]["name"]
        assert known["work_queue_name"] == entry["work_pool"]["work_queue_name"]
        folder = known["pull_steps"][0]["prefect.deployments.steps.set_working_directory"]["directory"]
        assert folder == str(shell.folder.resolve())
        schema = known["parameter_openapi_schema"]
        assert schema["properties"]["db"]["format"] == "path"
        given = dict.fromkeys(schema.get("required", ()), "2026-03-10T06:00:00Z")
        assert refused(shell, known["id"], {**given, "modles": 1})


def refused(shell: Shell, deployment: str, parameters: dict) -> bool:
    """Return whether the server refuses to create a run with these parameters, and names the unknown parameter."""
    try:
        asked(shell, f"deployments/{deployment}/create_flow_run", {"parameters": parameters})
    except httpx.HTTPStatusError as error:
        return error.response.status_code == 409 and "modles" in error.response.text
    return False


def check_turn(db: Path, slot: pd.Timestamp) -> None:
    """Check that all four stages of the slot are done and that it has decisions."""
    with open_reader(db) as store:
        runs, decisions = read_rows(store, "runs"), read_rows(store, "decisions")
    done = runs[runs["logical_at"] == slot]
    assert sorted(done["stage"]) == sorted(STAGES)
    assert set(done["status"]) == {"done"}
    assert len(decisions[decisions["slot"] == slot]) > 0


def runs_of(shell: Shell) -> list[dict]:
    """Return the ended flow runs that belong to deployments."""
    ended = {"flow_runs": {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]}}}}
    return [run for run in asked(shell, "flow_runs/filter", ended) if run["deployment_id"]]


@pytest.mark.slow
def test_from_a_clone_to_a_scheduled_served_and_watched_pipeline(shell):
    for block in blocks(long=False):
        said = shell.run(block)
        if "prefect deploy " in block:
            check_deployments(shell)
    assert "pipeline" in said or "ingest" in said
    runs = runs_of(shell)
    assert [run["state"]["type"] for run in runs] == ["COMPLETED"] * len(runs)
    slot = pd.Timestamp(runs[0]["expected_start_time"]).floor("30min")
    check_turn(shell.folder / "slackwater.duckdb", slot)


@pytest.mark.slow
def test_every_deployment_runs_on_a_worker(shell):
    for block in blocks(long=True):
        shell.run(block)
    flows = {one["id"]: one["name"] for one in asked(shell, "flows/filter")}
    completed = {flows[run["flow_id"]] for run in runs_of(shell) if run["state"]["type"] == "COMPLETED"}
    assert completed >= {full_name(one).partition("/")[0] for one in DEPLOYMENTS}
    ended = {run["name"]: run["state"] for run in runs_of(shell)}
    assert not {name: one for name, one in ended.items() if one["type"] != "COMPLETED"}
    check_turn(shell.folder / "march.duckdb", pd.Timestamp("2026-03-10T06:00Z"))
    queues = {one["name"] for one in asked(shell, "work_pools/slackwater/queues/filter")}
    assert queues <= {"default", "backfill"}
    assert (shell.folder / "reports" / "report.html").exists()
    assert (shell.folder / "reports" / "accuracy.html").exists()


@pytest.mark.slow
def test_three_turns_by_the_schedule_itself(tmp_path):
    script = [sys.executable, str(ROOT / "examples" / "scheduled_turns.py"), "--folder", str(tmp_path / "w")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    answer = json.loads(done.stdout)
    assert len(answer["turns"]) >= 3
    assert all(turn["failed"] == [] and turn["decisions"] > 0 for turn in answer["turns"][:3])
