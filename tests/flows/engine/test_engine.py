"""The same turn on the real engine: equal results, artifacts, typed parameters, single flows, and batches of replays."""

import json
import os
import threading
from datetime import UTC
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pytest
from accuracy_demo import same_tables
from engine_kit import keep_tables, own_engine, own_server
from make import make_job, make_window
from test_turn import AT, dump, one_turn, panel_settings, small_settings
from tidy_folder import write_tidy

from slackwater.flows.accuracy.command import AccuracyOptions
from slackwater.flows.accuracy.report import course_of, read_measured
from slackwater.flows.accuracy.units import run_course
from slackwater.flows.command import Session
from slackwater.flows.config import Settings, read_settings
from slackwater.flows.engine.run import no_heartbeat, run_turn
from slackwater.flows.executor import Executor
from slackwater.flows.runs import artifact_key
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import Case
from slackwater.optimization.replay.score import perfect_forecasts
from slackwater.studies.replays import replay_batch, replay_case
from slackwater.warehouse.errors import InputError, MarketError
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_reader

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory, tables):
    """Yield the home of an embedded engine of this module."""
    with (
        own_engine(tmp_path_factory.mktemp("engine"), tables) as home,
        own_server(home / "embedded.log", embedded=True),
    ):
        keep_tables(tables)
        from prefect.logging.handlers import APILogHandler

        with no_heartbeat():
            yield home
            APILogHandler().flush()


def test_the_embedded_server_serves_this_process_alone(engine):
    from prefect.client.orchestration import get_client

    address = os.environ["PREFECT_API_URL"]
    for headers, code in (
        ({}, 401),
        ({"origin": "https://evil.example"}, 403),
        ({"host": "evil.example"}, 421),
    ):
        assert httpx.post(f"{address}/flow_runs/filter", json={}, headers=headers).status_code == code
    # the embedded server has no user interface
    assert httpx.get(address.removesuffix("api")).status_code == 404
    with get_client(sync_client=True) as client:
        assert str(client.api_url).startswith(address)
        assert client.hello().json() is not None


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory) -> Path:
    return small_settings(tmp_path_factory.mktemp("settings"))


@pytest.fixture(scope="module")
def on_engine(engine, settings_file):
    from slackwater.flows.engine.flows import pipeline

    db = engine / "engine.duckdb"
    answer = pipeline(
        db=db, at=AT.to_pydatetime().astimezone(UTC), report=engine / "r.html", settings=settings_file
    )
    return db, answer


def test_the_engine_gives_the_plain_answer(on_engine, settings_file, tmp_path):
    db, answer = on_engine
    plain = one_turn(tmp_path / "plain.duckdb", read_settings(settings_file)).answer()
    assert {**answer, "report": ""} == {**plain, "report": ""}
    assert dump(db) == dump(tmp_path / "plain.duckdb")


@pytest.fixture(scope="module")
def plain_panels(tmp_path_factory):
    """Return settings and tables of a turn without the engine, with forecasters that learn from several markets."""
    folder = tmp_path_factory.mktemp("panels")
    file = panel_settings(folder)
    one_turn(folder / "plain.duckdb", read_settings(file))
    return file, dump(folder / "plain.duckdb")


@pytest.mark.slow
def test_threads_estimate_and_forecast_the_same_over_panels(engine, plain_panels, tmp_path):
    from slackwater.flows.engine.flows import pipeline

    file, plain = plain_panels
    db = tmp_path / "threads.duckdb"
    pipeline(db=db, at=AT.to_pydatetime(), report=tmp_path / "r.html", settings=file)
    assert plain["fitted"]
    assert dump(db) == plain


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["processes", "dask"])
def test_other_processes_estimate_and_forecast_the_same_over_panels(
    engine, plain_panels, tmp_path, monkeypatch, kind
):
    from slackwater.flows.engine import flows

    file, plain = plain_panels
    db = tmp_path / f"{kind}.duckdb"
    monkeypatch.setattr(flows, "EXECUTOR", Executor(kind=kind, workers=2))
    flows.pipeline(db=db, at=AT.to_pydatetime(), report=tmp_path / "r.html", settings=file)
    assert dump(db) == plain


def scheduled_run(flow, when, **parameters):
    """Create a run of a deployment of ``flow`` like the scheduler: with a scheduled time and without `at`."""
    from prefect.client.orchestration import get_client
    from prefect.states import Scheduled

    deployment = flow.to_deployment(name="scheduled").apply()
    with get_client(sync_client=True) as client:
        return client.create_flow_run_from_deployment(
            deployment, state=Scheduled(scheduled_time=when), parameters=parameters
        )


@pytest.mark.slow
def test_a_late_run_does_the_work_of_its_slot(on_engine, settings_file, tmp_path):
    from prefect.flow_engine import run_flow

    from slackwater.flows.engine.flows import pipeline

    late = (AT + pd.Timedelta("7min")).to_pydatetime()  # months ago, and not at the start of a slot
    given = {"db": tmp_path / "late.duckdb", "report": tmp_path / "r.html", "settings": settings_file}
    run = scheduled_run(pipeline, late, **{name: str(path) for name, path in given.items()})
    answer = run_flow(pipeline, flow_run=run, parameters=given)
    assert {**answer, "report": ""} == {**on_engine[1], "report": ""}
    assert dump(tmp_path / "late.duckdb") == dump(on_engine[0])


def test_a_run_that_fails_is_tried_again_for_the_same_slot(engine, settings_file, tmp_path, monkeypatch):
    from prefect.client.orchestration import get_client
    from prefect.flow_engine import run_flow

    from slackwater.flows.engine import flows
    from slackwater.flows.turn.context import run_id_of

    monkeypatch.setattr(flows, "FIRST_WAIT", 0.2)
    folder = tmp_path / "not yet"
    given = {"db": folder / "w.duckdb", "settings": settings_file}
    run = scheduled_run(flows.ingest, AT.to_pydatetime(), **{name: str(path) for name, path in given.items()})
    made = threading.Timer(0.5, folder.mkdir)
    made.start()
    counts = run_flow(flows.ingest, flow_run=run, parameters=given)
    made.join()
    assert counts["simulated"]["added"] > 0
    with open_reader(folder / "w.duckdb") as store:
        assert list(read_rows(store, "runs")["run"]) == [run_id_of(AT)]
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(run.id).state.is_completed()


def test_a_run_on_wrong_input_is_not_tried_again(engine, settings_file, tmp_path):
    from prefect.flow_engine import run_flow

    from slackwater.flows.engine import flows

    (tmp_path / "prices.parquet").write_bytes(b"not parquet")
    given = {"db": tmp_path / "w.duckdb", "data": tmp_path, "settings": settings_file}
    run = scheduled_run(flows.ingest, AT.to_pydatetime(), **{name: str(path) for name, path in given.items()})
    # Fails without a retry, whose wait would take ten seconds.
    with pytest.raises(InputError, match=r"prices\.parquet"):
        run_flow(flows.ingest, flow_run=run, parameters=given)
    with open_reader(tmp_path / "w.duckdb") as store:
        kept = read_rows(store, "runs")
    assert list(zip(kept["stage"], kept["status"], strict=True)) == [("ingest", "failed")]
    assert "prices.parquet" in kept["details"].iloc[0]


@pytest.mark.slow  # the stage in which the time runs out is random
def test_a_run_that_takes_too_long_is_stopped_and_says_so(on_engine, settings_file, tmp_path):
    from prefect.flow_engine import run_flow

    from slackwater.flows.engine.flows import pipeline

    given = {"db": tmp_path / "w.duckdb", "report": tmp_path / "r.html", "settings": settings_file}
    hasty = pipeline.with_options(timeout_seconds=0.3)  # the smallest turn takes ten times as long
    run = scheduled_run(hasty, AT.to_pydatetime(), **{name: str(path) for name, path in given.items()})
    with pytest.raises(TimeoutError):
        run_flow(hasty, flow_run=run, parameters=given)
    # the warehouse is not locked and contains no partial results
    one_turn(tmp_path / "w.duckdb", read_settings(settings_file))
    assert dump(tmp_path / "w.duckdb") == dump(on_engine[0])


def test_a_run_that_somebody_waits_for_has_no_heartbeat(engine, tmp_path, monkeypatch):
    """The heartbeat thread ends up to a second late, and no automation watches such a run."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, get_current_settings, temporary_settings

    from slackwater.flows.engine import flows

    class Pipeline:
        def with_options(self, **_):
            return lambda **_: get_current_settings().flows.heartbeat_frequency

    monkeypatch.setattr(flows, "pipeline", Pipeline())
    session = Session(db=tmp_path / "w.duckdb", at=AT.isoformat())
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: 30}):
        assert run_turn(session, job_files=[], report=None, show=print) is None
        assert get_current_settings().flows.heartbeat_frequency == 30


def test_a_turn_leaves_artifacts_with_the_name_of_its_warehouse(on_engine):
    from prefect.artifacts import Artifact

    db, answer = on_engine
    decisions = Artifact.get(artifact_key(db, "decisions"))
    assert decisions is not None
    assert decisions.type == "table"
    job = answer["decisions"][0]["job"]
    assert job in str(decisions.data)
    skill = Artifact.get(artifact_key(db, "accuracy"))
    assert {row["step"] for row in json.loads(skill.data)} == {
        row["step"] for row in answer["forecast_errors"]
    }
    for table in (decisions, skill):
        assert [len(row) for row in json.loads(table.data)] == [8] * len(json.loads(table.data))
    assert all(row["n"] > 0 for row in json.loads(skill.data))
    text = Artifact.get(artifact_key(db, "turn"))
    assert text is not None
    assert text.type == "markdown"
    # The sum of the jobs, and the forecast errors by lead time with their number.
    sentence, *_ = text.data.split("\n")
    assert sentence.startswith(f"{len(answer['decisions'])} jobs: run ")
    assert "| variable | slots ahead | forecasts |" in text.data
    assert "report: " in text.data


def test_parameters_are_typed(engine, settings_file):
    from prefect.exceptions import ParameterTypeError

    from slackwater.flows.engine.flows import pipeline

    with pytest.raises(ParameterTypeError, match="at"):
        pipeline(db=engine / "x.duckdb", at="teatime", settings=settings_file)
    assert not (engine / "x.duckdb").exists()


@pytest.mark.slow
def test_the_single_flows_do_the_same_turn(on_engine, settings_file, tmp_path):
    from slackwater.flows.engine.flows import allocate, forecast, ingest, score

    db, when = tmp_path / "single.duckdb", AT.to_pydatetime()
    ingest(db=db, at=when, settings=settings_file)
    forecast(db=db, at=when, settings=settings_file)
    board = score(db=db, at=when, settings=settings_file)
    decisions = allocate(db=db, at=when, settings=settings_file)
    assert board == on_engine[1]["leaderboard"]
    assert decisions == on_engine[1]["decisions"]


def test_without_the_decorators_the_code_is_plain(on_engine, settings_file, tmp_path):
    from slackwater.flows.engine.flows import ingest

    counts = ingest.fn(db=tmp_path / "w.duckdb", at=AT.to_pydatetime(), settings=settings_file)
    assert counts == on_engine[1]["ingested"]


POLICIES = [policy_named(name) for name in ("UP", "AHANP(0.7)", "AHAP(3,2,0.9)")]


def case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 9))
    window = make_window(rng.uniform(0.2, 1.1, d), rng.integers(0, 4, d), slot_hours=0.5)
    job = make_job(name=f"job-{seed}", workload=0.4 * d, deadline_slots=d, n_max=3, mu_up=-0.5, value=9)
    return Case(job=job, window=window, forecasts=perfect_forecasts(window, 3))


CASES = [case(seed) for seed in range(30)]


def spread_over():
    """Replay every case with every policy in tasks of a flow, on the executor of the engine."""
    from prefect import flow

    from slackwater.flows.engine.flows import RUNNER, tasks_of

    @flow(task_runner=RUNNER, validate_parameters=False)
    def spread():
        return tasks_of(replay_case, [{"case": case, "policies": POLICIES} for case in CASES])

    return spread()


def test_threads_give_the_plain_outcomes(engine):
    assert spread_over() == replay_batch(CASES, POLICIES)


@pytest.mark.slow
def test_processes_give_the_plain_outcomes(engine, monkeypatch):
    from slackwater.flows.engine import flows

    monkeypatch.setattr(flows, "EXECUTOR", Executor(kind="processes", workers=2))
    assert spread_over() == replay_batch(CASES, POLICIES)


@pytest.mark.slow  # the quick form: a turn on the engine gives the plain answer, above
def test_an_accuracy_report_makes_the_same_tables(engine, tmp_path):
    from prefect import flow

    from slackwater.flows.accuracy.flow import accuracy_on_engine

    options = AccuracyOptions(models=("markov",), horizon=4, market="*/z1/*")
    measured = read_measured(options, Settings(), Session(data=write_tidy(tmp_path / "tidy")))
    course = course_of(measured, options, Settings(), keep=None)

    @flow(validate_parameters=False, persist_result=False)
    def on_engine():
        return accuracy_on_engine(course)

    same_tables(on_engine(), run_course(course))


def test_an_error_of_a_call_is_raised_by_the_flow(engine):
    from prefect import flow

    from slackwater.flows.engine.flows import tasks_of

    short = Case(job=CASES[0].job, window=CASES[0].window.cut(0, 1))

    @flow(validate_parameters=False)
    def spread():
        return tasks_of(replay_case, [{"case": one, "policies": POLICIES} for one in (CASES[1], short)])

    with pytest.raises(MarketError, match="at least its deadline"):
        spread()
