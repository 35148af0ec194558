"""Runs on a real server: access control, names, stages, log lines, closed pipes, and killed workers and runs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection
from urllib.parse import urlsplit

import httpx
import pandas as pd
import pytest
from engine_kit import keep_tables, own_engine, own_server, process_of, zombies
from test_turn import AT, small_settings
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from slackwater.flows.engine.run import no_heartbeat
from slackwater.flows.engine.serving import CLIENT_PASSWORD, keep_automation
from slackwater.flows.paths import ALLOWED
from slackwater.warehouse.errors import InputError, SettingsError
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_reader

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def server(tmp_path_factory, tables):
    """Yield the folder in which a Prefect server stores its state."""
    with own_engine(tmp_path_factory.mktemp("server"), tables) as home, own_server(home / "server.log"):
        keep_tables(tables)
        from prefect.logging.handlers import APILogHandler

        with no_heartbeat():
            yield home
            APILogHandler().flush()  # otherwise the last lines are retried after the server has stopped


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory) -> Path:
    return small_settings(tmp_path_factory.mktemp("settings"), measured_origins=0)


@pytest.fixture(scope="module")
def client(server):
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as made:
        yield made


def scheduled_run(client, flow, when: pd.Timestamp, **parameters):
    """Create a run of a deployment of ``flow`` like the scheduler."""
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
    """Return the write end of a pipe whose read end is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def as_a_worker_starts_it(run) -> subprocess.Popen:
    """Start the process of a run with a closed output pipe, as after its worker was killed, and Prefect's default logging."""
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
    """Return the first true result of ``what``; raise AssertionError after ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError("it did not come")


def task_states(client, run) -> dict[str, str]:
    """Return the states of a run's tasks by name; the server writes them in batches, so some may be missing."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])))
    return {one.name: one.state_name for one in found}


def task_runs(client, run) -> dict[str, str]:
    """Return the states of a run's tasks once all have ended."""
    final = {"Completed", "Failed", "Crashed", "Cancelled", "RolledBack", "Cached"}
    return wait_for(
        lambda: (found := task_states(client, run)) and set(found.values()) <= final and found, 20
    )


def decided(db: Path) -> int:
    """Return the number of decisions of the slot."""
    with open_reader(db) as store:
        return len(read_rows(store, "decisions", where={"slot": AT}))


@pytest.fixture(scope="module")
def later(server, client, settings_file, tmp_path_factory):
    """Return a scheduled turn whose warehouse has no folder yet, and the place of the warehouse."""
    from slackwater.flows.engine.flows import pipeline

    db = tmp_path_factory.mktemp("orphan") / "later" / "w.duckdb"
    given = {"db": db, "report": db.parents[1] / "r.html", "settings": settings_file}
    return scheduled_run(client, pipeline, AT + pd.Timedelta("7min"), **given), db


# Access to the server: the password is required, and pages of other sites are refused.

EVIL, AUTHORIZED = "https://evil.example", {"authorization": "right"}


def sent(method: str, path: str, *, headers: dict[str, str], **more) -> httpx.Response:
    """Send a request; the ``authorization`` header "right" is replaced by the correct password."""
    words = dict(headers)
    if "authorization" in words:
        password = (
            os.environ[CLIENT_PASSWORD] if words["authorization"] == "right" else words["authorization"]
        )
        words["authorization"] = "Basic " + b64encode(password.encode()).decode()
    return httpx.request(method, os.environ["PREFECT_API_URL"] + path, headers=words, timeout=30, **more)


def everything(client) -> tuple[int, ...]:
    """Return the number of flow runs, deployments and automations at the server."""
    places = ("/flow_runs/count", "/deployments/count", "/automations/count")
    return tuple(client.request("POST", place, json={}).json() for place in places)


# The quick form has a request of each kind; test_guarded_server.py has all hosts and origins.
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        pytest.param({}, 401, id="no password"),
        pytest.param({"authorization": ":"}, 401, id="an empty one", marks=pytest.mark.slow),
        pytest.param({"authorization": "slackwater:guess"}, 401, id="a wrong one"),
        pytest.param({"origin": EVIL}, 403, id="a foreign page", marks=pytest.mark.slow),
        pytest.param({"origin": EVIL} | AUTHORIZED, 403, id="a foreign page that knows the password"),
        pytest.param({"origin": "null"} | AUTHORIZED, 403, id="a sandboxed page", marks=pytest.mark.slow),
        pytest.param(
            {"origin": "http://127.0.0.1:1"} | AUTHORIZED,
            403,
            id="a page of another program",
            marks=pytest.mark.slow,
        ),
        pytest.param({"host": "evil.example:4200"} | AUTHORIZED, 421, id="a name that leads here"),
        pytest.param(
            {"host": "evil.example", "origin": "http://evil.example"} | AUTHORIZED,
            421,
            id="its page",
            marks=pytest.mark.slow,
        ),
        pytest.param({"host": "ephemeral-prefect"} | AUTHORIZED, 421, id="the server's own name for itself"),
    ],
)
def test_a_request_that_is_not_the_users_is_refused_and_changes_nothing(server, client, later, headers, code):
    before = everything(client)
    deployment = later[0].deployment_id
    run = {"parameters": {"db": "w.duckdb", "html": "/tmp/overwritten.html"}}
    for method, path, more in (
        ("GET", "/admin/settings", {}),
        ("POST", "/deployments/filter", {"json": {}}),
        ("POST", f"/deployments/{deployment}/create_flow_run", {"json": run}),
        (
            "POST",
            f"/deployments/{deployment}/create_flow_run",
            {"content": json.dumps(run), "type": "text/plain"},
        ),
        ("POST", f"/deployments/{deployment}/create_flow_run", {"content": json.dumps(run)}),
        ("POST", f"/deployments/{deployment}/create_flow_run", {"data": {"parameters": "{}"}}),
        ("DELETE", f"/deployments/{deployment}", {}),
    ):
        kind = {"content-type": more.pop("type")} if "type" in more else {}
        answer = sent(method, path, headers=headers | kind, **more)
        assert answer.status_code == code, (method, path, answer.text)
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
    assert everything(client) == before


def test_a_browser_is_told_that_no_other_page_may_ask(server):
    wanted = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    answer = sent("OPTIONS", "/deployments/filter", headers={"origin": EVIL} | wanted)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_user_s_own_page_and_programs_are_served(server, name):
    port = urlsplit(os.environ["PREFECT_API_URL"]).port
    own = {"host": f"{name}:{port}", "origin": f"http://{name}:{port}"} | AUTHORIZED
    assert sent("POST", "/deployments/filter", headers=own, json={}).status_code == 200
    assert sent("POST", "/deployments/filter", headers=AUTHORIZED, json={}).status_code == 200
    settings = httpx.get(
        os.environ["PREFECT_API_URL"].removesuffix("api") + "ui-settings", headers={"host": own["host"]}
    ).json()
    # relative address, so it uses the host name of the browser
    assert (settings["auth"], settings["api_url"]) == ("BASIC", "/api")


@pytest.mark.parametrize("path", ["/events/in", "/events/out", "/logs/out"])
def test_a_websocket_of_another_page_or_without_the_password_is_refused(server, path):
    url = os.environ["PREFECT_API_URL"].replace("http", "ws") + path
    place = urlsplit(url)
    for address, origin in (
        (url, EVIL),
        (url, "null"),
        (url, "http://127.0.0.1:1"),
        (url.replace("127.0.0.1", "evil.example"), None),
    ):
        way = create_connection((place.hostname, place.port))
        with (
            way,
            pytest.raises(InvalidStatus, match="403"),
            connect(address, sock=way, subprotocols=["prefect"], origin=origin),
        ):
            pass
    for password in (None, "slackwater:guess"):
        with connect(url, subprotocols=["prefect"]) as socket:
            socket.send(json.dumps({"type": "auth", "token": password}))
            with pytest.raises(ConnectionClosed):
                socket.recv(timeout=30)
    with connect(url, subprotocols=["prefect"]) as socket:
        socket.send(json.dumps({"type": "auth", "token": os.environ[CLIENT_PASSWORD]}))
        assert json.loads(socket.recv(timeout=30)) == {"type": "auth_success"}


def test_the_files_of_the_server_are_the_users_alone_and_the_password_is_in_one(server):
    home = Path(os.environ["PREFECT_HOME"])
    password = os.environ[CLIENT_PASSWORD]
    files = [file for file in (*home.rglob("*"), server / "server.log") if file.is_file()]
    assert {"auth", "prefect.db"} <= {file.name for file in files}
    made_here = [
        file for file in files if file.name in ("auth", "server.log") or file.name.startswith("prefect.db")
    ]
    assert {file.name: file.stat().st_mode & 0o077 for file in made_here} == {
        file.name: 0 for file in made_here
    }
    assert [file.name for file in files if password.encode() in file.read_bytes()] == ["auth"]
    if Path("/proc").is_dir():
        lines = [
            file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if os.access(file, os.R_OK)
        ]
        assert not [line for line in lines if password.encode() in line]


def test_a_run_of_a_deployment_is_refused_a_page_outside_of_its_folder(
    server, client, settings_file, tmp_path, monkeypatch
):
    from prefect.flow_engine import run_flow

    from slackwater.flows.monitoring.flow import status

    folder, page = tmp_path / "served", tmp_path / "kept.html"
    folder.mkdir()
    page.write_text("precious")
    monkeypatch.chdir(folder)
    monkeypatch.setenv(ALLOWED, str(settings_file))
    given = {"db": Path("w.duckdb"), "settings": settings_file, "html": page}
    run = scheduled_run(client, status, AT, **given)
    with pytest.raises(SettingsError, match=r"html = .* leads out of the folder"):
        run_flow(status, flow_run=run, parameters=given)
    assert "leads out of the folder" in client.read_flow_run(run.id).state.message
    assert (page.read_text(), list(folder.iterdir())) == ("precious", [])


def test_a_turn_that_fails_leaves_its_stages_done(server, client, settings_file, tmp_path):
    from prefect.flow_engine import run_flow

    from slackwater.flows.engine.flows import pipeline

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


@pytest.mark.slow  # the quick form: a run in the place of a dead one, below, shows its stages
def test_a_backfill_shows_its_pieces(server, client, settings_file, tmp_path, monkeypatch):
    from slackwater.flows.backfill.flow import backfill

    monkeypatch.setattr("slackwater.flows.backfill.run.PIECE", 2)
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # processes of its own are tested with the backfill
    start = AT - 2 * pd.Timedelta("30min")  # three slots, more than one piece
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


COMMAND = [sys.executable, "-m", "slackwater.flows.cli", "run", "--at", AT.isoformat()]


@pytest.mark.slow  # the quick forms: a turn that nobody listens to, above, and a command whose reader has enough
@pytest.mark.parametrize("closed", ["unread", "closed"])
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


@contextmanager
def served_turns(settings: Path, folder: Path):
    """Serve the turns of the warehouse in ``folder`` until the end of the block; yields the process."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "slackwater.flows.cli", "serve", "--only", "pipeline", "--settings", str(settings)],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        for line in worker.stderr:
            if line.strip().startswith(b"ready"):
                break
        yield worker
    finally:
        worker.terminate()
        worker.stderr.close()
        worker.wait(60)


@pytest.mark.slow
def test_the_turn_of_a_killed_worker_is_done(server, client, settings_file, tmp_path):
    worker = subprocess.Popen(
        [sys.executable, "-m", "slackwater.flows.cli", "serve", "--only", "pipeline", "--settings", str(settings_file)],
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
    """As the automation starts it: with the name of the dead run."""
    from prefect.flow_engine import run_flow

    from slackwater.flows.engine.flows import pipeline

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
    shows_its_stages(client, run)


@pytest.mark.slow
def test_late_runs_make_their_slots_in_order_whichever_starts_first(server, client, settings_file, tmp_path):
    """Three runs of past slots wait for one worker; each slot is decided once, after the slots before it."""
    from prefect.states import Scheduled

    from slackwater.flows.config import read_settings
    from slackwater.flows.engine.turns import complete_turn

    db, step = tmp_path / "slackwater.duckdb", pd.Timedelta("30min")
    last = pd.Timestamp.now("UTC").floor(step) - 4 * step
    complete_turn(
        db, last, settings=read_settings(settings_file), data=None, requests=[], report=tmp_path / "r.html"
    )
    with served_turns(settings_file, tmp_path):
        deployment = client.read_deployment_by_name("pipeline/every-slot")
        runs = [
            client.create_flow_run_from_deployment(
                deployment.id, state=Scheduled(scheduled_time=(last + k * step).to_pydatetime())
            )
            for k in (1, 3, 2)
        ]
        wait_for(lambda: all(client.read_flow_run(run.id).state.is_final() for run in runs), 900)
        ended = [client.read_flow_run(run.id) for run in runs]
    assert [run.state.type for run in ended] == ["COMPLETED"] * 3
    print("started:", *(run.name for run in sorted(ended, key=lambda run: run.start_time)))
    with open_reader(db) as store:
        slots = [row[0] for row in store.execute("SELECT slot FROM decisions ORDER BY rowid")]
        jobs = store.execute("SELECT job, slot, count(*) FROM decisions GROUP BY ALL HAVING count(*) > 1")
    assert slots == sorted(slots)
    assert jobs == []
    assert {pd.Timestamp(slot) for slot in slots} >= {last + k * step for k in range(4)}


@pytest.mark.slow
def test_the_turn_of_a_killed_process_is_made_again_in_its_slot(server, client, settings_file, tmp_path):
    """Kill a served turn with SIGKILL: the worker notices, the server restarts it, and the slot has its decisions."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

    with served_turns(settings_file, tmp_path) as worker:
        deployment = client.read_deployment_by_name("pipeline/every-slot")
        client.pause_deployment(deployment.id)
        until_next = pd.Timestamp.now("UTC").ceil("30min") - pd.Timestamp.now("UTC")
        if until_next < pd.Timedelta("6min"):
            time.sleep(until_next.total_seconds() + 1)  # the slot must not end during the test
        run = client.create_flow_run_from_deployment(deployment.id)
        started = wait_for(lambda: (found := client.read_flow_run(run.id)).state.is_running() and found, 200)
        process = wait_for(lambda: process_of(worker.pid), 60)
        os.kill(process, signal.SIGKILL)
        wait_for(lambda: client.read_flow_run(run.id).state.is_crashed(), 60)
        named = FlowRunFilter(name=FlowRunFilterName(any_=[f"{started.name} again"]))
        again = wait_for(lambda: client.read_flow_runs(flow_run_filter=named), 120)[0]
        wait_for(lambda: client.read_flow_run(again.id).state.is_completed(), 240)
        assert again.parameters["after"] == started.name
    with open_reader(tmp_path / "slackwater.duckdb") as store:
        slots = set(read_rows(store, "decisions")["slot"])
    assert slots == {pd.Timestamp(started.name.split(" ")[1])}


def test_an_automation_that_says_the_same_stays_and_so_does_what_it_has_heard(server, client):
    """A new automation would not know about runs that died with the process that created the previous automation."""
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

    from slackwater.flows.engine.flows import pipeline

    anyio.run(keep_automation, zombies(silence=35))
    anyio.run(keep_automation, zombies(silence=40))  # replaces the first automation
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


STAGES = ("ingest", "forecast", "allocate", "score")


def log_lines(client, run) -> list:
    """Return the log of a run; raise AssertionError if it is incomplete after ten seconds."""
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    for _ in range(50):
        lines = client.read_logs(log_filter=LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id])))
        if any("Finished in state" in one.message for one in lines):
            return lines
        time.sleep(0.2)
    raise AssertionError(lines)


def shows_its_stages(client, run) -> list[str]:
    """Check that a turn shows its stages and logs them; return its log."""
    found = task_runs(client, run)
    assert {name: found[name] for name in STAGES} == dict.fromkeys(STAGES, "Completed")
    assert found["forecast market 1 of 2"] == "Completed"
    lines = log_lines(client, run)
    told = [one.message for one in lines]
    assert {"ingest", "forecast 2 markets", "decide for 2 jobs", "report"} <= set(told)
    # Each line is attached to the task of its stage.
    assert next(one for one in lines if one.message == "ingest").task_run_id is not None
    return told


@pytest.mark.slow  # the quick form: a run in the place of a dead one, above, shows its stages
def test_a_turn_that_nobody_listens_to_is_tried_again_and_decides(client, later):
    """It runs in a process with a closed output pipe; its first attempt fails, and the second comes ten seconds later."""
    run, db = later
    process = as_a_worker_starts_it(run)
    try:
        wait_for(
            lambda: "AwaitingRetry" in task_states(client, run).values() or process.poll() is not None, 200
        )
        db.parent.mkdir()
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.wait()
    run = client.read_flow_run(run.id)
    assert run.state.is_completed()
    assert run.name == "turn 2026-03-10T06:00Z"
    assert decided(db) == 2
    told = shows_its_stages(client, run)
    assert any(line.startswith("failed, to be tried again: ") and "no folder" in line for line in told)


def test_a_deployment_of_a_work_pool_refuses_unknown_parameters_once_it_is_closed(client):
    """`prefect deploy` registers the schema of the flow itself, as `to_deployment` does."""
    from prefect.exceptions import PrefectHTTPStatusError

    from slackwater.flows.engine.closing import close_deployments
    from slackwater.flows.engine.flows import score

    made = score.to_deployment(name="score-by-hand", parameters={"db": "w.duckdb"})
    own = made.apply()
    run = client.create_flow_run_from_deployment(own, parameters={"modles": 1})
    client.delete_flow_run(run.id)
    assert "score/score-by-hand" in asyncio.run(close_deployments())
    with pytest.raises(PrefectHTTPStatusError, match="modles"):
        client.create_flow_run_from_deployment(own, parameters={"modles": 1})
    run = client.create_flow_run_from_deployment(own, parameters={"own_end": True})
    client.delete_flow_run(run.id)
