"""Prices of two zones, and ratings by the provider in place of counts: plans name them and prefer the better zone (M13)."""

import csv

import pandas as pd
import pytest
from command_kit import call
from test_units_commands import JOB

from slackwater.warehouse.store.connection import open_reader

AT = pd.Timestamp("2026-11-25T12:00Z")
KIND, ZONES = "p4d.24xlarge", ("use1-az1", "use1-az2")
MEASURED = "and 32 measured markets"

pytestmark = pytest.mark.usefixtures("quick_settings", "light_planner")


def ingest(db, source, rows):
    """Store rows of p4d.24xlarge in us-east-1."""
    file = db.with_name(f"{source}.csv")
    rows = [{"provider": "aws", "region": "us-east-1", "instance_type": KIND} | row for row in rows]
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (answer,) = call(
        "ingest", "tabular", file, "--set", f"source={source}", "--db", db, "--json"
    ).value.values()
    assert any("slackwater plan" in command for command in answer["next"]) == (source == "own")


def rating(kind, zone, value, hours):
    at = AT + pd.Timedelta(hours=hours)
    return {"zone": zone, "timestamp": at.isoformat(), "available": value, "kind": kind}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a warehouse with the same prices in two zones, a job, and a copy with scores of both zones and a band."""
    folder = tmp_path_factory.mktemp("ratings")
    form = {"amount": 320, "unit": "gpu_hours", "sizes": "gpus_max = 64", "per": ', per = "gpu"'}
    text = JOB.format(name="rated", market=f"aws/us-east-1/*/{KIND}", **form)
    (folder / "job.toml").write_text(text.replace("market = ", "markets = [").replace('xlarge"', 'xlarge"]'))
    prices = [
        {"zone": zone, "timestamp": (AT - pd.Timedelta(hours=4 * k)).isoformat(), "product": "Linux/UNIX",
         "price_usd": 11.8 + 0.04 * (k * 7 % 5 - 2)}
        for zone in ZONES for k in range(30)
    ]  # fmt: skip
    ingest(folder / "prices.duckdb", "own", prices)
    (folder / "rated.duckdb").write_bytes((folder / "prices.duckdb").read_bytes())
    scores = [rating("score", zone, score, -3) for zone, score in zip(ZONES, (1, 9), strict=True)]
    later = [rating("score", zone, score, 1) for zone, score in zip(ZONES, (9, 1), strict=True)]
    ingest(folder / "rated.duckdb", "aws-placement", [*scores, *later])
    ingest(folder / "rated.duckdb", "aws-advisor", [rating("band", "all", 1, -24 * 20)])
    return folder


def plan(folder, db, at=AT):
    answer = call("plan", folder / "job.toml", "--db", folder / db, "--at", at.isoformat(), "--json")
    return answer.value


def test_a_plan_names_the_ratings_and_runs_where_the_score_is_better(folder):
    plain, rated = plan(folder, "prices.duckdb"), plan(folder, "rated.duckdb")
    assert (plain["market_parts"]["zone"], plain["evidence"]) == (ZONES[0], 0)
    assert (rated["market_parts"]["zone"], rated["evidence"]) == (ZONES[1], 2)
    basis = f"availability not observed, assumed from placement score 9 of 10, interruptions of 5 to 10 % a month {MEASURED}"
    assert rated["evidence_basis"] == basis
    assert rated["expected_cost_usd"] < plain["expected_cost_usd"]
    assert (plain["late_probability"], rated["late_probability"]) == (0.0, 0.0)
    text = call("plan", folder / "job.toml", "--db", folder / "rated.duckdb", "--at", AT.isoformat()).said
    assert basis in text
    rows = call(
        "markets",
        "--for",
        folder / "job.toml",
        "--db",
        folder / "rated.duckdb",
        "--at",
        AT.isoformat(),
        "--json",
    ).value["markets"]
    assert [row["market"].split("/")[2] for row in rows] == [ZONES[1], ZONES[0]]
    assert rows[0]["chance_of_spot"] > rows[1]["chance_of_spot"] + 0.2
    assert "placement score 1 of 10" in rows[1]["reason"]


def test_a_score_counts_once_it_is_known_and_for_a_day_and_a_band_for_sixty_days(folder):
    zones = {
        hours: plan(folder, "rated.duckdb", AT + pd.Timedelta(hours=hours))["market_parts"]["zone"]
        for hours in (-3.5, 0.5, 1)
    }
    assert zones == {-3.5: ZONES[0], 0.5: ZONES[1], 1: ZONES[0]}
    old = plan(folder, "rated.duckdb", AT + pd.Timedelta(hours=25.5))
    assert old["evidence_basis"] == (
        f"availability not observed, assumed from interruptions of 5 to 10 % a month {MEASURED}"
    )


def test_ratings_are_counts_neither_of_forecasts_nor_of_completeness_nor_of_accuracy(folder, tmp_path):
    db, at = tmp_path / "w.duckdb", ("--at", AT.isoformat())
    db.write_bytes((folder / "rated.duckdb").read_bytes())
    for command in (("job", "add", folder / "job.toml"), ("run",)):
        assert call(*command, "--db", db, *at).code == 0
    market = f"aws/us-east-1/{ZONES[1]}/{KIND}"  # has rows of prices and of scores
    forecasts = call("forecast", "--market", market, "--db", db, *at, "--json").value["forecasts"]
    assert {(row["source"], len(row["count"])) for row in forecasts} == {("own", 0)}
    status = call("status", "--db", db, *at, "--json").value
    assert {(row["source"], row["kind"]) for row in status["freshness"]} == {("own", "price")}
    assert {row["source"] for row in status["completeness"]} == {"own"}
    with open_reader(db) as store:
        assert store.execute("SELECT count(*) FROM market_counts") == [(0,)]
        assert store.execute("SELECT DISTINCT variable FROM forecast_accuracy") in ([], [("price",)])
