"""A job that cannot be read, opened or replayed is reported and left out; the other jobs are decided and scored."""

import pandas as pd
import pytest
from make import make_request
from test_turn import AT, one_turn, small_settings

from slackwater.flows.config import read_settings
from slackwater.flows.ledger.jobs import save_jobs, stored_jobs
from slackwater.warehouse.store.connection import open_store

STEP = pd.Timedelta(minutes=30)
HOME = "simulated/east/east-a/h100"


def asked(name, length, **more):
    terms = {"workload": {"amount": 6, "unit": "gpu_hours"}, "checkpoint": {"resumable": True}} | more
    return make_request(name, at=AT, market=HOME, deadline_in=length, **terms)


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    """Run two turns: in the second, a job with too short a throughput table and a valid job have ended."""
    folder = tmp_path_factory.mktemp("odd")
    settings, db = read_settings(small_settings(folder, measured_origins=0)), folder / "w.duckdb"
    broken = {"throughput": {"form": "table", "rates": [1.0, 2.0]}}
    with open_store(db) as store:
        # As stored by an older version.
        save_jobs(store, [asked("endless", "5h"), asked("huge", "5h")], origin="user", at=AT, step=STEP)
        store.execute(
            "UPDATE jobs SET spec = replace(spec, '\"decay\":1.5', '\"decay\":null') WHERE name = 'endless'"
        )
        store.execute(
            "UPDATE jobs SET spec = replace(spec, '\"n_max\":8', '\"n_max\":1000000') WHERE name = 'huge'"
        )
    requests = [
        asked("sound", "5h"),
        asked("short", "1h"),
        asked("odd", "5h", **broken),
        asked("odd-short", "1h", **broken),
    ]
    first = one_turn(db, settings, requests=requests)
    return db, first, one_turn(db, settings, at=AT + 2 * STEP)


def test_the_others_are_decided(turns):
    _, first, second = turns
    assert [row["job"] for row in first.decisions] == ["short", "sound"]
    assert [row["job"] for row in second.decisions] == ["sound"]
    said = "\n".join(first.notes)
    assert "job odd is not decided: throughput table ends at 2 instances" in said
    assert "job huge is left out: job 'huge': n_max = 1e+06; expected at most 1,024 instances" in said
    assert "job endless is left out: its stored decay cannot be read" in said


def test_the_others_are_scored(turns):
    db, _, second = turns
    with open_store(db) as store:
        scored = {name for (name,) in store.execute("SELECT DISTINCT job FROM outcomes")}
        details = [text for (text,) in store.execute("SELECT details FROM runs WHERE stage = 'score'")]
        names = {job.request.name for job in stored_jobs(store)}
    assert "short" in scored
    assert not {"odd-short", "odd", "huge", "endless"} & scored
    assert any("job odd-short is not scored" in text for text in details)
    assert {"huge", "odd"} <= names
    assert second.leaderboard[0]["mean_hindsight_usd"] > 0
