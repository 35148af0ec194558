"""Deployments agree between code and files; logical time, failures and duplicate turns are tested without an engine."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path

import httpx
import pandas as pd
import pytest
import yaml
from command_kit import call
from make import make_turn
from test_turn import AT, dump, one_turn, small_settings

from slackwater.flows.config import Settings, read_settings
from slackwater.flows.engine.run import ENGINE_SETTINGS
from slackwater.flows.engine.serving import (
    DEPLOYMENTS,
    ServeSettings,
    automations,
    chosen_deployments,
    flow_name,
    full_name,
    require_free,
    require_scheduler,
    runner_deployment,
    running_server,
    turn_interval,
)
from slackwater.flows.engine.turns import opened_turn
from slackwater.flows.executor import ADDRESS, KIND, WORKERS, Executor, chosen_executor
from slackwater.flows.ledger.stages import reason_of, worth_another_try
from slackwater.flows.runs import slot_of
from slackwater.flows.turn.stages import whole_turn
from slackwater.optimization.fan import in_turn
from slackwater.warehouse.errors import InputError, MarketError, SettingsError, StoreError, StoreLockedError
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_store
from slackwater.warehouse.store.files import is_waited_for

ROOT = Path(__file__).parents[3]
BY_NAME = {full_name(one): one for one in DEPLOYMENTS}


#: Entries of ``prefect.yaml``, as `prefect deploy` reads them, by full name.
ENTRIES = dict(zip(BY_NAME, yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"], strict=True))


@pytest.mark.parametrize("name", ENTRIES)
def test_runs_of_a_deployment_never_overlap_and_unknown_parameters_are_refused(name):
    entry = ENTRIES[name]
    assert entry["enforce_parameter_schema"] is True
    assert entry["concurrency_limit"]["limit"] == 1
    assert entry["concurrency_limit"]["collision_strategy"] in ("ENQUEUE", "CANCEL_NEW")
    assert entry["work_pool"]["name"] == "slackwater"
    assert all(one["timezone"] == "UTC" for one in entry["schedules"])


def test_a_run_is_declared_dead_after_ten_heartbeats_without_an_event():
    ends, repeats = (one["trigger"] for one in automations())
    assert ends["within"] == int(ENGINE_SETTINGS["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"]) * 10
    assert {one["concurrency_limit"]["grace_period_seconds"] for one in ENTRIES.values()} == {ends["within"]}
    assert repeats["expect"] == ["prefect.flow-run.Crashed"]
    (tag,) = (one["match_related"]["prefect.resource.id"] for one in (repeats,))
    assert [name for name, one in BY_NAME.items() if tag == f"prefect.tag.{one.tags[-1]}"] == [
        "pipeline/every-slot"
    ]


def test_no_two_deployments_have_the_same_name():
    assert len({one.name for one in DEPLOYMENTS}) == len(DEPLOYMENTS)


@pytest.mark.parametrize("name", BY_NAME)
def test_every_parameter_says_what_it_is(name):
    schema = runner_deployment(BY_NAME[name], ServeSettings(db=Path("w.duckdb")))._parameter_openapi_schema
    assert schema.properties
    assert [one for one, said in schema.properties.items() if not said.get("description")] == []


def test_the_jobs_of_a_turn_are_typed():
    schema = runner_deployment(
        BY_NAME["pipeline/every-slot"], ServeSettings(db=Path("w.duckdb"))
    )._parameter_openapi_schema
    assert schema.properties["jobs"]["anyOf"][0]["items"] == {"$ref": "#/definitions/JobRequest"}
    request = schema.definitions["JobRequest"]
    assert {"workload", "throughput", "checkpoint"} <= set(request["required"])
    assert {"n_max", "gpus_max"} <= set(request["properties"])  # either of the two is required


def test_every_flow_has_one_deployment_and_four_are_scheduled():
    assert set(BY_NAME) >= {
        "pipeline/every-slot", "accuracy-report/daily", "ingest/ingest-by-hand", "forecast/forecast-by-hand",
        "allocate/allocate-by-hand", "score/score-by-hand", "status/watch", "compact/weekly", "backfill/backfill-by-hand",
    }  # fmt: skip
    assert len({flow_name(one) for one in DEPLOYMENTS}) == len(DEPLOYMENTS)
    scheduled = {name for name, one in BY_NAME.items() if one.cron}
    assert scheduled == {"pipeline/every-slot", "accuracy-report/daily", "status/watch", "compact/weekly"}


def test_the_scheduler_of_this_environment_works():
    require_scheduler()  # Prefect 3.8 with SQLAlchemy 2.1 installs and starts, but creates no scheduled runs


def test_a_port_that_is_taken_is_refused_before_the_server_starts(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SettingsError, match=f"--port {port}"):
            require_free(port)


def test_executors_are_named_by_the_environment():
    assert chosen_executor({}) == Executor(kind="threads", workers=2)
    assert chosen_executor({KIND: "processes", WORKERS: "3"}) == Executor(kind="processes", workers=3)
    assert chosen_executor({KIND: "dask", ADDRESS: "tcp://10.0.0.1:8786"}).address == "tcp://10.0.0.1:8786"
    with pytest.raises(
        SettingsError, match=r"SLACKWATER_RUNNER='ray'; expected one of threads, processes, dask"
    ):
        chosen_executor({KIND: "ray"})
    for text in ("0", "two", "-1"):
        with pytest.raises(SettingsError, match="SLACKWATER_WORKERS"):
            chosen_executor({WORKERS: text})


def test_a_backfill_has_a_queue_of_its_own():
    for name, one in BY_NAME.items():
        assert one.queue == ("backfill" if name.startswith("backfill/") else "default")


@pytest.mark.parametrize("name", BY_NAME)
def test_the_served_deployment_is_the_one_in_the_file(name):
    one, entry = BY_NAME[name], ENTRIES[name]
    made = runner_deployment(one, ServeSettings(db=Path("slackwater.duckdb")))
    assert f"{made.flow_name}/{made.name}" == name
    assert made.entrypoint == entry["entrypoint"]
    assert made.parameters == entry["parameters"]
    assert made.description == entry["description"]
    assert made.tags == entry["tags"]
    assert made.concurrency_limit == entry["concurrency_limit"]["limit"]
    assert made.concurrency_options.collision_strategy == entry["concurrency_limit"]["collision_strategy"]
    assert made.concurrency_options.grace_period_seconds == entry["concurrency_limit"]["grace_period_seconds"]
    assert [
        {"cron": s.schedule.cron, "timezone": s.schedule.timezone} for s in made.schedules or []
    ] == entry["schedules"]


@pytest.mark.parametrize("name", BY_NAME)
def test_parameters_fit_the_flow_and_runs_are_bounded(name):
    one = BY_NAME[name]
    module, _, function = one.flow.rpartition(".")
    flow = getattr(import_module(module), function)
    given = dict(one.parameters)
    for required in flow.parameters.required:
        # the only required parameters are the ends of a backfill
        given.setdefault(required, "2026-03-10T06:00:00Z")
    flow.validate_parameters(given)
    assert flow.timeout_seconds
    assert flow.name == flow_name(one)


def test_scheduled_times_are_the_starts_of_slots():
    import anyio
    from prefect.client.schemas.schedules import CronSchedule as Said
    from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule

    pipeline = BY_NAME["pipeline/every-slot"]
    start = datetime(2026, 3, 10, 6, 7, tzinfo=UTC)
    cron = runner_deployment(pipeline, ServeSettings(db=Path("w.duckdb"))).schedules[0].schedule
    assert isinstance(cron, Said)
    dates = anyio.run(lambda: CronSchedule(cron=cron.cron, timezone="UTC").get_dates(3, start=start))
    assert [f"{date:%H:%M}" for date in dates] == ["06:30", "07:00", "07:30"]
    slots = runner_deployment(
        pipeline, ServeSettings(db=Path("w.duckdb"), every=timedelta(minutes=7))
    ).schedules[0]
    made = IntervalSchedule(
        interval=slots.schedule.interval, anchor_date=slots.schedule.anchor_date, timezone="UTC"
    )
    for date in anyio.run(lambda: made.get_dates(3, start=start)):
        assert pd.Timestamp(date) == pd.Timestamp(date).floor("7min")


def test_serving_gives_each_flow_the_files_it_takes():
    served = ServeSettings(db=Path("other.duckdb"), data=Path("feed"), settings=Path("s.toml"))
    given = {name: runner_deployment(one, served).parameters for name, one in BY_NAME.items()}
    assert given["pipeline/every-slot"] == {
        "db": "other.duckdb", "data": "feed", "settings": "s.toml", "report": "reports/report.html",
    }  # fmt: skip
    assert given["score/score-by-hand"] == {"db": "other.duckdb", "settings": "s.toml"}


def test_the_time_between_turns_is_whole_slots():
    assert turn_interval(None, Settings()) is None
    assert turn_interval(None, Settings(step_minutes=10)) == pd.Timedelta("10min")
    assert turn_interval("1h", Settings()) == pd.Timedelta("1h")
    for bad in ("20min", "0min", "-30min", "soon", "nat"):
        with pytest.raises(SettingsError, match="whole number of slots of 30 minutes"):
            turn_interval(bad, Settings())


def test_an_unknown_flow_is_refused_by_name():
    assert [flow_name(one) for one in chosen_deployments(["score", "ingest"])] == ["ingest", "score"]
    with pytest.raises(SettingsError, match="pipeline"):
        chosen_deployments(["pipelin"])


def test_a_given_time_is_floored_to_its_slot():
    settings = Settings(step_minutes=30)
    assert slot_of(datetime.fromisoformat("2026-03-10T06:29:59"), settings) == AT
    assert slot_of(datetime.fromisoformat("2026-03-10T08:10+02:00"), settings) == AT


def test_without_a_time_and_without_a_run_there_is_no_clock_to_fall_back_on():
    with pytest.raises(SettingsError, match="no logical time"):
        slot_of(None, Settings())


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory) -> Path:
    return small_settings(tmp_path_factory.mktemp("settings"), measured_origins=0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, settings_file) -> Path:
    """Return a warehouse after a complete turn; tests read it or copy it."""
    db = tmp_path_factory.mktemp("whole") / "w.duckdb"
    one_turn(db, read_settings(settings_file))
    return db


@pytest.fixture(scope="module")
def uninterrupted(whole):
    return dump(whole)


def ledger(db: Path) -> dict[str, tuple[str, str]]:
    """Return status and details of every stage."""
    with open_store(db) as store:
        rows = read_rows(store, "runs")
    return {row.stage: (row.status, row.details) for row in rows.itertuples()}


@pytest.mark.slow  # the quick forms: a turn that fails leaves its stages done, in test_runs.py; a failure below
def test_a_stage_that_failed_is_kept_with_its_reason_until_it_is_done(tmp_path, settings_file, uninterrupted):
    db = tmp_path / "w.duckdb"
    pool = tmp_path / "pool.toml"
    pool.write_text('[[family]]\nname = "no such family"\n')
    broken = read_settings(settings_file).model_copy(update={"pool": pool})
    with pytest.raises(InputError):
        one_turn(db, broken)
    kept = ledger(db)
    assert kept["ingest"][0] == "done"
    assert kept["forecast"][0] == "failed"
    assert "no such family" in kept["forecast"][1]
    assert "score" not in kept
    one_turn(db, read_settings(settings_file))
    assert {status for status, _ in ledger(db).values()} == {"done"}
    assert dump(db) == uninterrupted


def test_a_failure_does_not_undo_what_was_done_before(tmp_path, settings_file, whole, uninterrupted):
    db = Path(shutil.copy(whole, tmp_path / "w.duckdb"))
    (tmp_path / "feed").mkdir()
    (tmp_path / "feed" / "prices.parquet").write_bytes(b"not parquet")
    with pytest.raises(InputError):
        one_turn(db, read_settings(settings_file), data=tmp_path / "feed")
    assert dump(db) == uninterrupted


def test_the_first_error_is_the_one_that_is_raised(tmp_path, settings_file):
    said: list[str] = []
    store = open_store(tmp_path / "w.duckdb")
    turn = make_turn(store, AT, read_settings(settings_file), say=said.append)
    store.close()
    with pytest.raises(ZeroDivisionError), turn.recorded_failure("score"):
        _ = 1 / 0
    assert len(said) == 1
    assert "could not be recorded" in said[0]


@pytest.mark.parametrize(
    ("error", "recorded"),
    [
        (ZeroDivisionError("by zero"), ["ZeroDivisionError: by zero"]),
        (MarketError("no market"), ["no market"]),
        (KeyboardInterrupt(), []),
        (SystemExit(3), []),
    ],
)
def test_failures_are_recorded_and_interruptions_are_not(tmp_path, settings_file, error, recorded):
    with open_store(tmp_path / "w.duckdb") as store:
        turn = make_turn(store, AT, read_settings(settings_file))
        with pytest.raises(type(error)) as raised, turn.recorded_failure("score"):
            raise error
        assert raised.value is error
        rows = read_rows(store, "runs", where={"stage": "score", "status": "failed"})
    assert [json.loads(text)["reason"] for text in rows["details"]] == recorded


def test_reasons_are_sentences():
    assert reason_of(MarketError("no market", remedy="bring some")) == "no market; bring some"
    assert reason_of(ZeroDivisionError("division by zero")) == "ZeroDivisionError: division by zero"
    assert len(reason_of(StoreError("x" * 9999))) == 2000


def test_what_cannot_get_better_is_not_tried_again():
    assert worth_another_try(StoreLockedError("held"))
    assert worth_another_try(OSError("connection reset"))
    for error in (None, InputError("wrong"), MarketError("none"), TimeoutError()):
        assert not worth_another_try(error)


TURN = """
import sys
from pathlib import Path
import pandas as pd
from slackwater.flows.config import read_settings
from slackwater.flows.engine.turns import opened_turn
from slackwater.optimization.fan import in_turn
from slackwater.flows.turn.stages import whole_turn

db = Path(sys.argv[1])
with opened_turn(db, pd.Timestamp(sys.argv[2]), settings=read_settings(Path(sys.argv[3])), fan=in_turn) as turn:
    whole_turn(turn, data=None, requests=[], report=db.with_name("other.html"))
"""


@pytest.mark.slow
def test_two_runs_of_one_slot_at_once_do_it_once(tmp_path, settings_file, uninterrupted):
    db = tmp_path / "w.duckdb"
    words = [sys.executable, "-c", TURN, str(db), AT.isoformat(), str(settings_file)]
    with opened_turn(db, AT, settings=read_settings(settings_file), fan=in_turn) as turn:
        other = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        while not is_waited_for(db):
            assert other.poll() is None
            time.sleep(0.02)
        whole_turn(turn, data=None, requests=[], report=tmp_path / "one.html")
    said = other.communicate(timeout=300)[1]
    assert other.returncode == 0, said
    assert dump(db) == uninterrupted


def alive(folder: Path) -> list[str]:
    """Return the command lines of processes with ``folder`` in their command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in text:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def serve(folder: Path, *words: str) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    command = [sys.executable, "-m", "slackwater.flows.cli", "serve", "--port", "0", *words]
    environment["PREFECT_HOME"] = str(folder / ".prefect")
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.engine
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("stop", "when"),
    [
        pytest.param(signal.SIGTERM, "ready", id="served", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "start", id="starting", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "ready", id="interrupted", marks=pytest.mark.slow),
    ],
)
def test_serve_stops_with_all_that_it_started(tmp_path, stop, when):
    process = serve(tmp_path, "--only", "score")
    said = []
    for line in process.stderr:
        said.append(line)
        if line.strip().startswith(when):
            break
    assert alive(tmp_path), said
    if when == "ready":  # the server requires a password and prints where the password is stored
        address, file = re.search(r"Prefect at (\S+) \(password in (\S+)\)", "".join(said)).groups()
        name, password = Path(file).read_text().strip().split(":")
        url = f"{address}/api/deployments/count"
        assert httpx.post(url, json={}).status_code == 401
        assert httpx.post(url, json={}, headers={"origin": "https://evil.example"}).status_code == 403
        assert httpx.post(url, json={}, auth=(name, password)).json() == 1
    process.send_signal(stop)
    rest = process.communicate(timeout=90)[1]
    assert process.returncode == 0, [*said, rest]
    assert "Traceback" not in rest
    assert alive(tmp_path) == []


def test_a_signal_while_the_server_is_being_started_leaves_no_process(tmp_path, monkeypatch):
    """The signal arrives right after the process starts, before it is assigned to a variable."""
    started = []
    popen = subprocess.Popen

    def interrupted(*words, **more):
        started.append(popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / ".prefect"))
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    # A shell starts background commands, and thus these tests, with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), running_server(tmp_path / "server.log"):
            pytest.fail("the server is not there yet")
    finally:
        signal.signal(signal.SIGINT, before)
    assert started[0].poll() is not None


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--only", "scores"], "expected one of pipeline"),
        (["--every", "20min"], "whole number of slots"),
        (["--db", "nowhere/w.duckdb"], "no folder"),
    ],
)
def test_serve_says_what_is_wrong_before_anything_starts(tmp_path, monkeypatch, words, found):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / ".prefect"))
    monkeypatch.setattr(subprocess, "Popen", None)
    called = call("serve", "--port", 0, *words)
    assert called.code == 2
    assert found in called.err
    assert not (tmp_path / ".prefect").exists()


def test_a_run_that_dies_in_any_state_between_its_begin_and_its_end_is_noticed():
    """Prefect names its events after states; a run in an unlisted state would block its deployment forever."""
    from prefect import states

    source = Path(states.__file__).read_text(encoding="utf-8")
    named = set(re.findall(r'Pending\(cls=cls, name="(\w+)"|type=StateType.RUNNING, name="(\w+)"', source))
    named = {one for both in named for one in both if one}
    assert named >= {"Submitting", "InfrastructurePending", "Retrying"}
    begun = {one.removeprefix("prefect.flow-run.") for one in automations()[0]["trigger"]["after"]}
    assert named | {states.Pending().name, states.Running().name, "heartbeat"} <= begun


@pytest.mark.parametrize("name", BY_NAME)
def test_an_unknown_parameter_is_refused_when_a_run_is_created(name):
    """The server validates the parameters of a run by this schema before it creates the run."""
    from prefect.utilities.schema_tools.validation import ValidationError, validate

    made = runner_deployment(BY_NAME[name], ServeSettings(db=Path("w.duckdb")))
    schema = made._parameter_openapi_schema.model_dump(exclude_unset=True)  # as Prefect sends it
    required = dict.fromkeys(schema.get("required", ()), "2026-01-01T00:00:00Z")
    validate({**made.parameters, **required}, schema, raise_on_error=True)
    with pytest.raises(ValidationError, match="modles"):
        validate({**made.parameters, **required, "modles": 1}, schema, raise_on_error=True)
