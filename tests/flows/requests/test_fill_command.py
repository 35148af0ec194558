"""The `slackwater fill` command: from a request to a score in a single call, its files, and its errors."""

import json
from pathlib import Path

import pandas as pd
import pytest
from command_kit import call
from fill_kit import AT, STEP, write_markets, write_measurements
from make import make_turn
from open_data import DATA
from page_kit import charts_of
from published import keeps_to

from slackwater.flows.clock import parse_time
from slackwater.flows.config import Settings
from slackwater.flows.turn.ingest import ingest_observations
from slackwater.optimization.job.request import read_request
from slackwater.warehouse.store.connection import open_store

ROOT = Path(__file__).resolve().parents[3]
REQUEST = ROOT / "examples" / "requests" / "three-fields.toml"
NOON = pd.Timestamp("2026-03-10T12:00Z")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with markets, measurements, and settings for fast planning."""
    folder = tmp_path_factory.mktemp("data")
    write_markets(folder)
    write_measurements(folder / "finetune")
    (folder / "quick.toml").write_text('planner = "last_value"\nhistory_days = 3\nrisk_paths = 20\n')
    return folder


def test_one_command_goes_from_three_fields_to_a_score(folder, tmp_path):
    page, job = tmp_path / "fill.html", tmp_path / "job.toml"
    words = ("--data", folder, "--at", AT.isoformat(), "--settings", folder / "quick.toml")
    code, out, _ = call("fill", REQUEST, *words, "--run", "--json", "--html", page, "--out", job)
    assert code == 0
    answer = json.loads(out)
    keeps_to("fill", answer)
    score = answer["score"]
    assert parse_time(score["from"], "from") == AT
    decided = score["policies"][0]["policy"]
    # Before the first scored job, the policy with the best prior measurements decides; the baselines are replayed too.
    assert decided.startswith("Stochastic")
    assert {row["policy"] for row in score["policies"][1:]} == {"OD-only", "MSU", "UP"}
    assert {row["model"] for row in score["policies"]} == {"world"}
    text = page.read_text()
    assert answer["configuration"]["gpu_model"] in text
    assert len(charts_of(text)) == 3
    # The `replay` command gives the same result for this job.
    request = read_request(job)
    again = ("--market", f"{request.market}@{request.source}", "--policy", decided, "--json")
    code, out, _ = call("replay", "--job", job, *again, "--data", folder, "--settings", folder / "quick.toml")
    assert code == 0
    replayed = json.loads(out)
    assert replayed["cost_usd"] == pytest.approx(score["outcome"]["cost_usd"])
    assert replayed["allocations"] == score["allocations"]


@pytest.mark.slow
def test_a_filled_job_is_added_planned_and_shown(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    job, db = tmp_path / "job.toml", tmp_path / "w.duckdb"
    words = ("--at", AT.isoformat(), "--settings", folder / "quick.toml")
    assert call("ingest", "tabular", folder, "--db", db)[0] == 0
    code, out, _ = call(
        "fill", REQUEST, "--db", db, "--configurations", _model(folder, tmp_path), "--out", job, *words
    )
    assert code == 0
    assert "why it lost" in out
    assert f"The job is in {job}." in out
    assert call("job", "add", job, "--db", db, "--at", AT.isoformat())[0] == 0
    code, out, _ = call("plan", "llama3.1-8b-lora", "--db", db, "--json", *words)
    assert code == 0
    assert json.loads(out)["workload_unit"] == "tokens"
    shown = json.loads(call("job", "show", "llama3.1-8b-lora", "--db", db, "--json")[1])
    assert shown["job"]["configuration"]["model_name"] == "llama3.1-8b"
    assert min(shown["job"]["configuration"]["low"]) >= 0


def _model(folder, tmp_path):
    from slackwater.forecasting.configurations.model import fit_configurations

    file = tmp_path / "configurations.zip"
    fit_configurations(folder / "finetune", seed=1).save(file)
    return file


@pytest.mark.parametrize(
    ("text", "words", "why"),
    [
        ("model = 3", (), "model"),
        ("model =", (), "TOML"),
        ('model = "llama3.1-8b"\nsamples = 5\ndeadline_in = "1h"', ("--run",), "--run without --at"),
        ('model = "llama3.1-8b"\nsamples = 5\ndeadline_in = "soon"', (), "deadline_in"),
    ],
)
def test_a_wrong_request_is_one_line_on_stderr(folder, tmp_path, text, words, why):
    file = tmp_path / "request.toml"
    file.write_text(text)
    at = () if words else ("--at", AT.isoformat())
    code, out, err = call("fill", file, "--data", folder, "--settings", folder / "quick.toml", *at, *words)
    last = err.strip().splitlines()[-1]
    assert (code, out) == (2, "")
    assert last.startswith("slackwater: ")
    assert why in last


def test_no_knowledge_says_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = call("fill", REQUEST, "--db", tmp_path / "none.duckdb")
    assert code == 2
    assert "fit-configurations" in err


@pytest.mark.parametrize("name", ["three-fields", "all-fields"])
def test_the_examples_are_requests(name):
    from slackwater.optimization.requests.request import complete_request, read_tuning_request

    assert complete_request(read_tuning_request(ROOT / "examples" / "requests" / f"{name}.toml")).tokens > 0


@pytest.mark.slow
def test_the_simulated_market_can_be_filled_on(folder, tmp_path):
    db = tmp_path / "w.duckdb"
    with open_store(db) as store:
        settings = Settings(simulated_days=5)
        ingest_observations(make_turn(store, NOON, settings), None)
    words = ("--at", (NOON - pd.Timedelta(days=1)).isoformat(), "--settings", folder / "quick.toml")
    code, out, _ = call(
        "fill", REQUEST, "--db", db, "--configurations", _model(folder, tmp_path), *words, "--run", "--json"
    )
    assert code == 0
    answer = json.loads(out)
    keeps_to("fill", answer)
    assert answer["configuration"]["market"].startswith("simulated/")
    assert any("simulated" in text.lower() for text in answer["synthetic"])
    assert answer["score"]["outcome"]["finish"] is not None


@pytest.mark.slow
@pytest.mark.skipif(
    not (DATA / "finetune").is_dir(), reason=f"no measured runs below {DATA}: set SLACKWATER_DATA"
)
def test_three_fields_on_the_real_data(tmp_path):
    """Fill, plan, replay and score with measured throughput and measured markets (a day of the marketplace in October 2025)."""
    page = tmp_path / "fill.html"
    at = "2025-10-30T00:00Z"
    code, out, _ = call("fill", REQUEST, "--data", DATA, "--at", at, "--run", "--json", "--html", page)
    assert code == 0
    answer = json.loads(out)
    keeps_to("fill", answer)
    score = answer["score"]
    assert answer["configuration"]["gpu_model"].startswith("NVIDIA-")
    assert len(answer["runners_up"]) >= 4
    assert score["outcome"]["on_time"]
    assert score["at_low"]["on_time"]
    assert score["outcome"]["cost_usd"] < score["on_demand_only_usd"]
    assert score["hindsight"]["cost_usd"] > 0.0
    assert pd.Timedelta(minutes=answer["decision"]["step_minutes"]) == STEP
