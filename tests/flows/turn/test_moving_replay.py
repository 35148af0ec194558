"""`slackwater replay` of a multi-market job: multi-market policies compared with the hindsight optimum over its markets."""

import json

import jsonschema
import pytest
from command_kit import call
from make import job_text, work
from test_turn import AT, one_turn, small_settings

from slackwater.flows.config import read_settings
from slackwater.flows.schemas.forms import schema


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay")
    settings = small_settings(folder, measured_origins=0)
    one_turn(folder / "w.duckdb", read_settings(settings))
    return (
        "--db",
        folder / "w.duckdb",
        "--settings",
        settings,
        "--at",
        AT.isoformat(),
        "--model",
        "last_value",
    )


def job_file(tmp_path, **changes):
    path = tmp_path / "mover.toml"
    terms = {
        "deadline_in": "8h",
        "n_max": 4,
        "workload": work(14, "gpu_hours"),
        "markets": ["simulated/*/*/h100"],
    }
    path.write_text(job_text("mover", **terms | changes))
    return path


def test_every_mover_beside_hindsight(words, tmp_path):
    done = call("replay", "--job", job_file(tmp_path), "--policy", "all", "--json", *words)
    rows = json.loads(done.out)["replays"]
    jsonschema.validate(json.loads(done.out), schema("replay"))
    assert {"MeanField", "Greedy"} < {row["policy"] for row in rows}
    costs = [row["cost_usd"] for row in rows]
    assert costs == pytest.approx(sorted(costs), rel=1e-12)  # all are on time, and the job has no value
    for row in rows:
        assert row["on_time"]
        assert len(row["markets"]) == 3
        assert row["utility_usd"] is None
        assert row["model"] == "world"
        assert 0.0 < row["cost_usd"] < row["on_demand_only_usd"]


def test_one_mover_slot_by_slot_from_its_home(words, tmp_path):
    home = "simulated/west/west-a/h100"
    done = call("replay", "--job", job_file(tmp_path), "--market", home, "--json", *words)
    row = json.loads(done.out)
    jsonschema.validate(row, schema("replay"))
    assert (row["policy"], row["market"]) == ("MeanField", home)
    places = [slot["market"] for slot in row["allocations"] if slot["on_demand"] + slot["spot"]]
    assert set(places) <= set(row["markets"])
    assert all(slot["market"] is None for slot in row["allocations"] if not slot["on_demand"] + slot["spot"])
    left = [a for a, b in zip([home, *places], places, strict=False) if a != b]
    assert row["moves"] == len(left)


def test_patterns_on_the_command_line_and_what_is_refused(words, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    plain = job_file(tmp_path, markets=None)
    done = call("replay", "--job", plain, "--markets", "simulated/*/*/h100", *words)
    assert "on 3 markets" in done.out
    assert "cost of moves" in done.out
    alone = call("replay", "--job", plain, "--markets", "simulated/west/*/h100", *words)
    assert "on simulated/west/west-a/h100 from" in alone.out
    nowhere = call("replay", "--job", plain, *words)
    assert "names no market: it may move among" in nowhere.said
    unknown = call("replay", "--job", plain, "--markets", "simulated/*/*/h100", "--policy", "UP", *words)
    assert unknown.code
    assert "MeanField" in unknown.err


def test_markets_ranked_for_a_job(words, tmp_path):
    db = [word for word in words if word not in ("--model", "last_value")]
    done = call("markets", "--for", job_file(tmp_path), "--json", *db)
    rows = json.loads(done.out)["markets"]
    assert len(rows) == 3
    assert rows[0]["dearer_usd"] == 0.0
    assert [row["dearer_usd"] for row in rows] == sorted(row["dearer_usd"] for row in rows)
    for row in rows:
        assert row["reason"]
        assert 0.0 <= row["chance_of_spot"] <= 1.0
        assert row["spot"] <= (row["available"] or 0)
    shown = call("markets", "--for", job_file(tmp_path), *db).out
    assert "reason" in shown
    assert "likely late" not in shown  # a high chance of spot is no risk
    at_home = job_file(tmp_path, markets=None, market="simulated/west/west-a/h100")
    alone = json.loads(call("markets", "--for", at_home, "--json", *db).out)["markets"]
    assert [row["market"] for row in alone] == ["simulated/west/west-a/h100"]
    assert "One market fits its job file" in call("markets", "--for", at_home, *db).out
    assert "names no market" in call("markets", "--for", job_file(tmp_path, markets=None), *db).said
