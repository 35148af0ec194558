"""Runs as Prefect shows them, on a real server: names, stages, log lines; nobody listens; workers and runs that are killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from engine_kit import keep_tables, own_engine, own_server, process_of
from test_turn import AT, small_settings

from flows.engine.run import no_heartbeat
from flows.engine.serving import keep_automation, zombies
from warehouse.errors import InputError
from warehouse.issued import read_rows
from warehouse.store.connection import open_reader

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def server(tmp_path_factory, tables):
    """A Prefect server; the folder that it keeps its state in."""
    with (
        own_engine(tmp_path_factory.mktemp("server"), tables) as home,
        own_server(home / "server.log"),
    ):
        keep_tables(tables)
        from prefect.logging.handlers import APILogHandler

        with no_heartbeat():
            yield home
            APILogHandler().flush()  # else the last lines are tried again and again when there is no server any more


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory) -> Path:
    return small_settings(tmp_path_factory.mktemp("settings"))


@pytest.fixture(scope="module")
def client(server):
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as made:
        yield made


def scheduled_run(client, flow, when: pd.Timestamp, **parameters):
    """A run of a deployment of ``flow`` as the schedule makes it."""
    from prefect.states import Scheduled
    from prefect.types.entrypoint import EntrypointType

    deployment = flow.to_deployment(
        name="scheduled", tags=["slackwater"], entrypoint_type=EntrypointType.MODULE_PATH
    ).apply()
    return client.create_flow_run_from_deployment(
        deployment, state=Scheduled(scheduled_time=when.to_pydatetime()),
        parameters={name: str(value) for name, value in parameters.items()},
    )  # fmt: skip


def unheard() -> int:
    """The writing end of a pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def as_a_worker_starts_it(run) -> subprocess.Popen:
    """The process of a run whose worker was killed: nobody reads what it writes, and it logs as Prefect does by default."""
    environment = {name: value for name, value in os.environ.items() if "_LOGGING_" not in name}
    pipe = unheard()
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "prefect.engine"],
            stdout=pipe, stderr=pipe, env=environment | {"PREFECT__FLOW_RUN_ID": str(run.id)},
        )  # fmt: skip
    finally:
        os.close(pipe)


def wait_for(what, seconds: float):
    """What ``what`` finds, when it finds something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError("it did not come")


def task_states(client, run) -> dict[str, str]:
    """States of the tasks of a run by name, as far as the server knows them: it writes them in batches."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])))
    return {one.name: one.state_name for one in found}


def task_runs(client, run) -> dict[str, str]:
    """The same when all have ended."""
    final = {"Completed", "Failed", "Crashed", "Cancelled", "RolledBack", "Cached"}
    return wait_for(
        lambda: (found := task_states(client, run)) and set(found.values()) <= final and found, 20
    )


def decided(db: Path) -> int:
    """How many decisions of the slot there are."""
    with open_reader(db) as store:
        return len(read_rows(store, "decisions", where={"slot": AT}))


@pytest.fixture(scope="module", autouse=True)
def begun(server, client, settings_file, tmp_path_factory):
    """A turn of the schedule that nobody listens to, in a process of its own, whose first try has failed.

    It waits ten seconds before the next one: begun before the first test of this file and looked at in the last ones.
    """
    from flows.engine.flows import pipeline

    db = tmp_path_factory.mktemp("orphan") / "later" / "w.duckdb"
    run = scheduled_run(
        client,
        pipeline,
        AT + pd.Timedelta("7min"),
        db=db,
        report=db.parents[1] / "r.html",
        settings=settings_file,
    )
    process = as_a_worker_starts_it(run)
    try:
        wait_for(
            lambda: "AwaitingRetry" in task_states(client, run).values() or process.poll() is not None, 200
        )
        db.parent.mkdir()
        yield run, process, db
    finally:
        process.kill()
        process.wait()


def test_a_turn_that_fails_leaves_its_stages_done(server, client, settings_file, tmp_path):
    from prefect.flow_engine import run_flow

    from flows.engine.flows import pipeline

    pool = tmp_path / "pool.toml"
    pool.write_text('[[family]]\nname = "no such family"\n')
    broken = tmp_path / "broken.toml"
    broken.write_text("".join(
        line for line in settings_file.read_text().splitlines(keepends=True) if not line.startswith("pool")
    ) + f'pool = "{pool}"\n')  # fmt: skip
    given = {"db": tmp_path / "w.duckdb", "report": tmp_path / "r.html", "settings": broken}
    run = scheduled_run(client, pipeline, AT, **given)
    with pytest.raises(InputError):
        run_flow(pipeline, flow_run=run, parameters=given)
    assert task_runs(client, run) == {"ingest": "Completed", "forecast": "Failed", "turn-tries": "Failed"}


def test_a_backfill_shows_its_pieces(server, client, settings_file, tmp_path, monkeypatch):
    from flows.backfill.flow import backfill

    monkeypatch.setattr("flows.backfill.run.PIECE", 2)
    start = AT - 2 * pd.Timedelta("30min")  # one slot more than a piece
    state = backfill(
        start=start.to_pydatetime(), end=AT.to_pydatetime(), db=tmp_path / "w.duckdb", settings=settings_file,
        stages=["ingest", "forecast", "allocate"], return_state=True,
    )  # fmt: skip
    assert state.is_completed()
    run = client.read_flow_run(state.state_details.flow_run_id)
    assert run.name == "backfill 2026-03-10T05:00Z 2026-03-10T06:00Z"
    pieces = ("2026-03-10T05:00Z to 2026-03-10T05:30Z", "2026-03-10T06:00Z to 2026-03-10T06:00Z")
    assert task_runs(client, run) == {
        f"{part} {piece}": "Completed" for part in ("prepare", "forecast", "allocate") for piece in pieces
    }


COMMAND = [sys.executable, "-m", "flows.cli", "run", "--at", AT.isoformat()]


@pytest.mark.parametrize("closed", [pytest.param("unread", marks=pytest.mark.slow), "closed"])
def test_a_command_that_nobody_listens_to_does_its_turn(server, settings_file, tmp_path, closed):
    words = [*COMMAND, "--db", str(tmp_path / "w.duckdb"), "--settings", str(settings_file)]
    if closed == "closed":
        words = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *words]
    pipe = unheard()
    done = subprocess.run(words, cwd=tmp_path, stdout=pipe, stderr=pipe, timeout=300, check=False)
    os.close(pipe)
    assert decided(tmp_path / "w.duckdb") == 2
    assert done.returncode == 0
    with open_reader(tmp_path / "w.duckdb") as store:
        assert set(read_rows(store, "runs")["status"]) == {"done"}


@pytest.mark.slow
def test_the_turn_of_a_killed_worker_is_done(server, client, settings_file, tmp_path):
    worker = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "serve", "--only", "pipeline", "--settings", str(settings_file)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        for line in worker.stderr:
            if line.strip().startswith(b"ready"):
                break
        deployment = client.read_deployment_by_name("pipeline/every-slot")
        run = client.create_flow_run_from_deployment(deployment.id, parameters={"at": AT.isoformat()})
        wait_for(lambda: client.read_flow_run(run.id).state.is_running(), 200)
    finally:
        worker.kill()
        worker.stderr.close()
        worker.stdout.close()
    wait_for(lambda: client.read_flow_run(run.id).state.is_final(), 200)
    assert client.read_flow_run(run.id).state.is_completed()
    assert decided(tmp_path / "slackwater.duckdb") == 2


def test_a_run_in_the_place_of_a_dead_one_makes_its_slot_once_and_while_it_lasts(
    server, client, settings_file, tmp_path
):
    """As the automation starts it: with the name of the run that died."""
    from prefect.flow_engine import run_flow

    from flows.engine.flows import pipeline

    given = {"db": tmp_path / "w.duckdb", "report": tmp_path / "r.html", "settings": settings_file}
    name, early = "turn 2026-03-10T06:00Z", "turn 2026-03-10T05:30Z"
    for after, said in ((early, "2026-03-10T05:30Z was missed"), (f"{name} again", "died twice"), (name, "")):
        words = given | {"after": after}
        run = scheduled_run(client, pipeline, AT + pd.Timedelta("11min"), **words)
        answer = run_flow(pipeline, flow_run=run, parameters=words)
        assert client.read_flow_run(run.id).name == f"{name} again"
        assert (
            (said in answer["missed"] and "slackwater backfill --from" in answer["missed"])
            if said
            else answer["decisions"]
        )
        assert (tmp_path / "w.duckdb").exists() == (not said)
    assert decided(tmp_path / "w.duckdb") == 2


@pytest.mark.slow
def test_the_turn_of_a_killed_process_is_made_again_in_its_slot(server, client, settings_file, tmp_path):
    """kill -9 of a served turn: its worker sees it, the server starts it again, and the slot has its decisions."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

    worker = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "serve", "--only", "pipeline", "--settings", str(settings_file)],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        for line in worker.stderr:
            if line.strip().startswith(b"ready"):
                break
        deployment = client.read_deployment_by_name("pipeline/every-slot")
        client.pause_deployment(deployment.id)
        until_next = pd.Timestamp.now("UTC").ceil("30min") - pd.Timestamp.now("UTC")
        if until_next < pd.Timedelta("6min"):
            time.sleep(until_next.total_seconds() + 1)  # the slot must last
        run = client.create_flow_run_from_deployment(deployment.id)
        started = wait_for(lambda: (found := client.read_flow_run(run.id)).state.is_running() and found, 200)
        process = wait_for(lambda: process_of(worker.pid), 60)
        os.kill(process, signal.SIGKILL)
        wait_for(lambda: client.read_flow_run(run.id).state.is_crashed(), 60)
        named = FlowRunFilter(name=FlowRunFilterName(any_=[f"{started.name} again"]))
        again = wait_for(lambda: client.read_flow_runs(flow_run_filter=named), 120)[0]
        wait_for(lambda: client.read_flow_run(again.id).state.is_completed(), 240)
        assert again.parameters["after"] == started.name
    finally:
        worker.terminate()
        worker.stderr.close()
        worker.wait(60)
    with open_reader(tmp_path / "slackwater.duckdb") as store:
        slots = set(read_rows(store, "decisions")["slot"])
    assert slots == {pd.Timestamp(started.name.split(" ")[1])}


def test_an_automation_that_says_the_same_stays_and_so_does_what_it_has_heard(server, client):
    """A new one would know nothing of the runs that died with the process that made the one before."""
    import anyio

    def kept():
        found = client.request("POST", "/automations/filter", json={}).json()
        return [one for one in found if one["name"] == zombies()["name"]]

    anyio.run(keep_automation, zombies())
    first = kept()
    anyio.run(keep_automation, zombies())
    assert kept() == first
    assert first[0]["updated"]
    anyio.run(keep_automation, zombies(silence=123))
    (changed,) = kept()
    assert changed["id"] == first[0]["id"]
    assert (changed["trigger"]["within"], changed["updated"]) != (
        first[0]["trigger"]["within"],
        first[0]["updated"],
    )


@pytest.mark.slow
def test_a_run_whose_process_has_died_is_ended_by_the_server(server, client, settings_file, tmp_path):
    import anyio

    from flows.engine.flows import pipeline

    anyio.run(keep_automation, zombies(silence=35))
    anyio.run(keep_automation, zombies(silence=40))  # in the place of the first
    kept = client.request("POST", "/automations/filter", json={}).json()
    assert [one["trigger"]["within"] for one in kept if one["name"] == zombies()["name"]] == [40]
    run = scheduled_run(client, pipeline, AT, db=tmp_path / "w.duckdb", settings=settings_file)
    process = as_a_worker_starts_it(run)
    try:
        wait_for(lambda: client.read_flow_run(run.id).state.is_running(), 200)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    ended = wait_for(lambda: (found := client.read_flow_run(run.id).state).is_final() and found, 200)
    assert ended.is_crashed()
    assert "nothing was heard" in ended.message


@pytest.fixture(scope="module")
def orphan(client, begun):
    """That turn when it is over, as the server knows it."""
    run, process, db = begun
    assert process.wait(300) == 0
    return client.read_flow_run(run.id), db


def test_a_turn_that_nobody_listens_to_is_tried_again_and_decides(orphan):
    run, db = orphan
    assert run.state.is_completed()
    assert decided(db) == 2


def test_a_turn_is_named_by_its_slot_and_shows_its_stages(client, orphan):
    run, _ = orphan
    assert run.name == "turn 2026-03-10T06:00Z"
    found = task_runs(client, run)
    assert {name: found[name] for name in ("ingest", "forecast", "allocate", "score")} == dict.fromkeys(
        ("ingest", "forecast", "allocate", "score"), "Completed"
    )
    assert found["forecast market 1 of 2"] == "Completed"


def log_lines(client, run) -> list:
    """The log of a run, when it is there."""
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    for _ in range(50):
        lines = client.read_logs(log_filter=LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id])))
        if any("Finished in state" in one.message for one in lines):
            return lines
        time.sleep(0.2)
    raise AssertionError(lines)


def test_a_run_has_a_log(client, orphan):
    lines = log_lines(client, orphan[0])
    told = [one.message for one in lines]
    assert any(line.startswith("failed, to be tried again: ") and "no folder" in line for line in told)
    for line in (
        "ingest",
        "forecast 2 markets",
        "decide for 2 jobs",
        "report",
    ):
        assert line in told
    # Each in the place of its stage.
    assert next(one for one in lines if one.message == "ingest").task_run_id is not None
