"""The command line: help, output formats, and one-line errors with exit code 2."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from command_kit import call
from forms_kit import quick_first
from published import keeps_to
from test_turn import AT, tidy_tables

from slackwater.flows.schemas.forms import schema
from slackwater.warehouse.store.connection import open_store

pytestmark = pytest.mark.usefixtures("quick_settings")
ROOT = Path(__file__).resolve().parents[3]
#: The cheapest forecasts to fit, for tests that are not about forecasts.
LAST = ("--model", "last_value")
COMMANDS = (
    "run", "ingest", "rejected", "markets",
    "job", "forecast", "plan", "replay", "accuracy", "leaderboard", "experiment", "report", "serve",
    "status", "ui", "backfill", "feeds", "export", "import", "compact", "publish", "schema",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    tidy_tables(folder, AT - pd.Timedelta(days=3), AT)
    return folder


@pytest.fixture(scope="module")
def market(data) -> str:
    table = pd.read_parquet(data / "availability.parquet").sort_values("available")
    row = table[table["capacity_probed"] == 16].iloc[-1]
    return "/".join(row[["provider", "region", "zone", "instance_type"]])


def test_every_command_is_there_and_documented():
    page = (ROOT / "docs" / "commands.md").read_text()
    code, out, _ = call("--help")
    assert code == 0
    for command in COMMANDS:
        assert command in out
        assert re.search(rf"slackwater {command}\b", page), f"docs/commands.md does not show {command}"


@pytest.mark.parametrize(
    ("words", "times"),
    [
        (("job", "report"), 2), (("job", "change"), 2), (("plan",), 1), (("backtest",), 3), (("status",), 3), (("ui",), 1),
        (("ingest",), 2), (("backfill",), 3), (("replay",), 2),
    ],
)  # fmt: skip
def test_every_time_that_a_person_gives_has_the_rule_of_its_zone_in_the_help(words, times):
    out = call(*words, "--help").said
    described = out.partition("[OPTIONS]")[2]
    assert (
        described.count("UTC unless a zone is given")
        == len(re.findall(r"--[a-z-]+ TIME", described))
        == times
    )


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("nonsense",), "nonsense"),
        (("run", "--nonsense"), "--nonsense"),
        (("replay", "--job", "nowhere.toml", "--market", "a/b/c/d"), "nowhere.toml"),
        (("run", "--at", "yesterday-ish"), "--at"),
        (("run", "--settings", "nowhere.toml"), "nowhere.toml"),
        (("ingest", "csvv", "x"), "csvv"),
        (("ingest", "tabular", "nowhere"), "nowhere"),
        (("ingest",), "SOURCE"),
        (("leaderboard", "--db", "nowhere/deep/x.duckdb"), "nowhere/deep"),
        (("run", "--db", "nowhere/deep/x.duckdb"), "no folder nowhere/deep for the warehouse; make it"),
        (
            (
                "backfill",
                "--from",
                "2026-01-05T11:00Z",
                "--to",
                "2026-01-05T11:00Z",
                "--db",
                "nowhere/x.duckdb",
            ),
            "no folder nowhere",
        ),
        (("plan", "no-such-job"), "no warehouse"),
        (("report",), "no warehouse"),
        (("job", "show", "no-such-job"), "no warehouse"),
        (("job", "list"), "no warehouse"),
    ],
)
def test_a_user_error_is_one_line_and_exit_code_2(tmp_path, monkeypatch, words, part):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(*words)
    lines = [line for line in err.splitlines() if not line.startswith("  ")]
    assert code == 2
    assert len(lines) == 1
    assert part in lines[0]
    assert "Traceback" not in err
    assert not list(tmp_path.glob("*.duckdb*"))


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("plan", "no-such-job"), "no observations"),
        (("accuracy",), "no observations; read a price history with `slackwater ingest`"),
        (("report",), "no run"),
        (("job", "show", "no-such-job"), "no-such-job"),
    ],
)
def test_an_empty_warehouse_is_told_from_none(tmp_path, monkeypatch, words, part):
    monkeypatch.chdir(tmp_path)
    open_store("slackwater.duckdb").close()
    code, _, err = call(*words)
    assert code == 2
    assert part in err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("markets",), "read a price history with `slackwater ingest`"),
        (("job", "list"), "`slackwater init --job` writes a job file"),
        (("feeds",), "[[feeds]] in slackwater.toml names a live source"),
    ],
)
def test_an_empty_list_names_the_next_step(tmp_path, monkeypatch, words, part):
    monkeypatch.chdir(tmp_path)
    open_store("slackwater.duckdb").close()
    code, out, _ = call(*words)
    assert code == 0
    assert part in " ".join(out.split())


def test_an_unknown_command_is_named_alone():
    code, _, err = call("foo")
    assert (code, err) == (2, 'slackwater: Unknown command "foo"; see `slackwater --help`\n')


def test_a_damaged_warehouse_is_named(tmp_path):
    file = tmp_path / "w.duckdb"
    file.write_bytes(b"not a database" * 1000)
    code, _, err = call("markets", "--db", file)
    assert code == 2
    assert "w.duckdb" in err
    assert file.read_bytes().startswith(b"not a database")


def test_ingest_counts_and_repeats(data, tmp_path):
    db = tmp_path / "w.duckdb"
    code, out, _ = call("ingest", "tabular", data, "--db", db, "--json")
    first = json.loads(out)
    assert code == 0
    assert set(first) == {"tabular"}
    assert first["tabular"]["added"] > 1000
    again = json.loads(call("ingest", "tabular", data, "--db", db, "--json")[1])
    counted = {name: again["tabular"][name] for name in ("added", "repeated", "rejected")}
    assert counted == {"added": 0, "repeated": first["tabular"]["added"], "rejected": 0}
    assert again["tabular"]["markets"] == first["tabular"]["markets"]
    listed = json.loads(call("markets", "--db", db, "--json")[1])["markets"]
    assert len(listed) >= 7
    assert {"market", "source", "capacity", "count_rows", "price_rows"} <= set(listed[0])


def test_a_refused_file_stops_no_other_file(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "us-west-2a_v100_1.json").write_text('{"metadata": {"gap_seconds": 300}, "data": [0, 1, 1, 0]}')
    (folder / "us-west-2b_v100_1.json").write_text('{"metadata": {"gap_seconds": 300}, "data": [0, 1')
    code, _, err = call("ingest", "skypilot", folder, "--db", tmp_path / "w.duckdb", "--json")
    assert code == 2
    assert "1 of 2 files refused" in err
    assert "us-west-2b_v100_1.json" in err
    assert "4 rows added" in err
    listed = json.loads(call("markets", "--db", tmp_path / "w.duckdb", "--json")[1])["markets"]
    assert [row["count_rows"] for row in listed] == [4]
    assert listed[0]["real_clock"] is False


@pytest.fixture
def half_a_job(tmp_path) -> Path:
    """Return the file of an example job with half of its work and time."""
    text = (ROOT / "examples" / "llama-8b-lora.toml").read_text(encoding="utf-8")
    for whole, half in (('deadline_in = "12h"', 'deadline_in = "6h"'), ("amount = 48", "amount = 24")):
        assert whole in text
        text = text.replace(whole, half)
    job = tmp_path / "job.toml"
    job.write_text(text)
    return job


@pytest.mark.parametrize(
    ("policy", "more"), quick_first([("AHAP(2,1,0.9)", LAST), ("Stochastic(24)", LAST), ("UP", LAST), ("AHAP(2,1,0.9)", ())], 2)
)  # fmt: skip
def test_replay_answers_for_any_policy(data, market, half_a_job, policy, more):
    """The last case runs the configured forecasts, on which nothing else in the answer depends."""
    words = ("replay", "--job", half_a_job, "--market", market, "--data", data, "--json")
    row = json.loads(call(*words, "--policy", policy, *more)[1])
    keeps_to("replay", row)
    assert row["policy"] == policy
    assert row["cost_usd"] >= 0
    assert row["hindsight"]["low"] <= row["hindsight"]["high"] + 1e-9
    assert row["model"] == "world"
    assert row["utility_usd"] == pytest.approx(row["value_usd"] - row["cost_usd"])
    assert all(slot["spot"] <= (slot["available"] or 0) for slot in row["allocations"])
    assert pd.Timestamp(row["deadline"]) == AT + pd.Timedelta("30min")


def test_a_replay_begins_when_it_is_told_to(data, market, half_a_job):
    words = ("replay", "--job", half_a_job, "--market", market, "--data", data, "--json")
    early = json.loads(call(*words, "--from", (AT - pd.Timedelta(days=2)).isoformat(), *LAST)[1])
    assert pd.Timestamp(early["from"]) == AT - pd.Timedelta(days=2)


def test_a_replay_says_nothing_of_the_value_that_a_job_does_not_have(data, market, tmp_path):
    text = (ROOT / "examples" / "llama-8b-lora.toml").read_text(encoding="utf-8")
    valued, without = tmp_path / "valued.toml", tmp_path / "without.toml"
    valued.write_text(text)
    without.write_text("".join(line for line in text.splitlines(keepends=True) if "value_usd" not in line))
    where = ("--market", market, "--data", data, "--json", *LAST)
    more = {
        "one": ("--policy", "MSU"),
        "all": ("--policy", "all"),
        "mover": (
            "--markets",
            market.rpartition("/")[0].rpartition("/")[0] + "/*/" + market.rpartition("/")[2],
        ),
    }
    # `test_replay_answers_for_any_policy` covers a single policy for the job with a value.
    for name in ("one", "all", "mover"):
        files = (valued, without) if name == "mover" else (without,)
        told = {file: json.loads(call("replay", "--job", file, *where, *more[name])[1]) for file in files}
        for file, value in told.items():
            keeps_to("replay", value)
            assert value["schema"] == "slackwater.replay/2"
            for row in value.get("replays", [value]):
                hang = [
                    row["value_usd"],
                    row["utility_usd"],
                    row["utility"],
                    row["hindsight"]["low"],
                    row["hindsight"]["high"],
                ]
                assert all((one is None) == (file == without) for one in hang)
                assert row["cost_usd"] >= 0
                assert row["hindsight"]["cost_usd"] > 0
    assert schema("replay")["$id"] == "urn:slackwater:replay:2"


def test_replay_outside_the_record_says_so(data, market):
    code, _, err = call(
        "replay",
        "--job",
        ROOT / "examples" / "bert-sweep.toml",
        "--market",
        market,
        "--data",
        data,
        "--from",
        "2031-01-01",
    )
    assert code == 2
    assert "record" in err


def test_plan_forecast_and_jobs(data, market, tmp_path, monkeypatch):
    db = tmp_path / "w.duckdb"
    call("ingest", "tabular", data, "--db", db)
    job = ROOT / "examples" / "llama-8b-lora.toml"
    added = json.loads(call("job", "add", job, "--market", market, "--name", "mine", "--db", db, "--json")[1])
    assert added["added"]
    assert added["deadline_slots"] == 24
    assert [row["job"] for row in json.loads(call("job", "list", "--db", db, "--json")[1])["jobs"]] == [
        "mine"
    ]
    plan = json.loads(call("plan", "mine", "--db", db, "--policy", "AHAP(3,1,0.9)", "--json")[1])
    keeps_to("decision", plan)
    assert plan["policy"] == "AHAP(3,1,0.9)"
    assert "HiGHS" in plan["solver"]
    assert pd.Timestamp(plan["slot"]) == AT
    monkeypatch.setenv("SLACKWATER_PLANNER", "last_value")  # one plan by the configured forecasts is enough
    learned = json.loads(call("plan", "mine", "--db", db, "--policy", "Stochastic", "--json")[1])
    assert learned["policy"] == "Stochastic(24)"
    assert "spot in the next slot: " in learned["reason"]
    shown = json.loads(call("job", "show", "mine", "--db", db, "--json")[1])
    assert shown["decisions"] == []  # a plan stores nothing
    words = ("forecast", "--market", market, "--model", "last_value", "--horizon", 4, "--db", db, "--json")
    forecasts = json.loads(call(*words)[1])
    keeps_to("forecast", forecasts)
    forecast = forecasts["forecasts"][0]
    assert len(forecast["price"]) == len(forecast["count"]) == 4
    assert forecast["count"][0]["q05"] <= forecast["count"][0]["q95"]


def test_a_job_name_taken_by_another_job_is_refused(data, market, tmp_path):
    db = tmp_path / "w.duckdb"
    call("ingest", "tabular", data, "--db", db)
    words = ("--market", market, "--name", "mine", "--db", db)
    assert call("job", "add", ROOT / "examples" / "llama-8b-lora.toml", *words)[0] == 0
    code, _, err = call("job", "add", ROOT / "examples" / "qwen-14b-sft.toml", *words)
    assert code == 2
    assert "other terms" in err


def test_nothing_below_the_command_line_reads_the_clock():
    wanted = re.compile(
        r"datetime\.now|Timestamp\.now|Timestamp\.utcnow|time\.time\(|date\.today|utcnow|\btime\.(perf_counter|monotonic|process_time)"
    )
    # warehouse/times.py reads a monotonic clock, which knows no date
    allowed = {Path("flows/clock.py"), Path("warehouse/times.py")}
    found = [
        path.relative_to(ROOT)
        for layer in ("warehouse", "forecasting", "optimization", "flows")
        for path in (ROOT / layer).rglob("*.py")
        if wanted.search(path.read_text()) and path.relative_to(ROOT) not in allowed
    ]
    assert found == []


def test_a_value_that_cannot_be_read_is_named_with_its_option():
    code, _, err = call("job", "report", "sweep", "--progress", "20%")
    assert code == 2
    assert "--progress" in err
