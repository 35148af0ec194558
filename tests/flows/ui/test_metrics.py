"""``/metrics`` of a warehouse after two turns, parsed with the reference library of the format."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import httpx
import pandas as pd
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from test_turn import AT
from test_ui import HOSTILE, MARKET

from slackwater.flows.ledger.stages import TurnSeconds, save_seconds, seconds_file
from slackwater.flows.ui.app import make_app
from slackwater.flows.ui.reading import Snapshots
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_reader, open_store

STEP = pd.Timedelta(minutes=30)
NOW = AT + STEP + pd.Timedelta(minutes=10)


@pytest.fixture(scope="module")
def db(tmp_path_factory, watched) -> Path:
    db = Path(shutil.copy(watched, tmp_path_factory.mktemp("metrics") / "w.duckdb"))
    save_seconds(db, TurnSeconds(run="run", stages={"ingest": 0.5, "forecast": 2.0}, whole=3.25))
    return db


def asked(db: Path, settings, now) -> httpx.Response:
    app = make_app(Snapshots(db, settings, lambda: now))

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get("/metrics")

    return asyncio.run(get())


def scraped(db: Path, settings, now=NOW) -> dict[tuple[str, ...], float]:
    """Return samples by name and labels, as parsed by the reference library."""
    answer = asked(db, settings, now)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    families = list(text_string_to_metric_families(answer.text))
    assert all(one.documentation for one in families)
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for one in families
        for sample in one.samples
    }


def test_the_metrics_are_what_the_warehouse_says(db, settings):
    found = scraped(db, settings)
    with open_reader(db) as store:
        decisions = read_rows(store, "decisions")
        accuracy = read_rows(store, "accuracy")
    assert found["slackwater_decisions_total",] == len(decisions)
    newest = decisions[decisions["slot"] == AT + STEP].set_index("job")
    for job in (HOSTILE, "hopeless"):
        for kind in ("spot", "on_demand"):
            assert found["slackwater_hold_instances", job, kind, MARKET] == newest.loc[job, kind]
    assert found["slackwater_job_late_probability", "hopeless"] == 1
    assert found["slackwater_job_late_probability", HOSTILE] < 1
    for name in ("job_expected_cost_usd", "job_on_demand_only_usd", "job_spent_usd"):
        assert found[f"slackwater_{name}", HOSTILE] >= 0
    assert found["slackwater_turn_timestamp_seconds",] == (AT + STEP).timestamp()
    assert {
        found["slackwater_stage_done", stage] for stage in ("ingest", "forecast", "allocate", "score")
    } == {1}
    assert (found["slackwater_turn_seconds",], found["slackwater_stage_seconds", "forecast"]) == (3.25, 2)
    assert found["slackwater_data_age_seconds", MARKET, "simulated:7"] == 600
    assert found["slackwater_alarms", "stale source", "serious"] == 1
    skills = {key for key in found if key[0] == "slackwater_forecast_skill"}
    assert set(accuracy["model"]) == {"last_value", "markov"}
    # a single day of errors cannot rate a model
    assert {key[1] for key in skills} == {"last_value"}
    assert found["slackwater_forecast_skill", "last_value", "1", "count"] == 0


def test_ages_go_on_while_the_warehouse_rests(db, settings):
    later = scraped(db, settings, NOW + pd.Timedelta("1h"))
    assert later["slackwater_data_age_seconds", MARKET, "simulated:7"] == 4200


def test_a_pipeline_that_has_not_begun_has_metrics_too(tmp_path, settings):
    with open_store(tmp_path / "w.duckdb") as store:
        store.execute("SELECT 1")
    assert scraped(tmp_path / "w.duckdb", settings) == {("slackwater_decisions_total",): 0}


def test_without_a_warehouse_a_scrape_fails(tmp_path, settings):
    answer = asked(tmp_path / "w.duckdb", settings, NOW)
    assert answer.status_code == 503
    assert "no warehouse" in answer.json()["error"]["found"]


def test_seconds_that_cannot_be_read_are_left_out(db, settings, tmp_path):
    copy = Path(shutil.copy(db, tmp_path / "w.duckdb"))
    seconds_file(copy).write_text("[]")
    assert ("slackwater_turn_seconds",) not in scraped(copy, settings)


def test_the_dashboard_shows_every_metric_and_no_other(db, settings):
    board = json.loads((Path(__file__).parents[3] / "examples" / "bi" / "grafana.json").read_text("utf-8"))
    asked_for = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"slackwater_\w+", target["expr"])
    }
    assert asked_for == {key[0] for key in scraped(db, settings) if not key[0].endswith("_created")}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
