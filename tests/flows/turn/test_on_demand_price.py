"""The on-demand price of a decision: its origin, no saving without it, and spot only where on-demand is not sold (M1.1)."""

import asyncio
import json
import re
import tomllib

import httpx
import pandas as pd
import pytest
from command_kit import call
from make import make_turn

from slackwater.flows.config import read_settings
from slackwater.flows.turn.stages import whole_turn
from slackwater.flows.ui.app import make_app
from slackwater.flows.ui.reading import Snapshots
from slackwater.optimization.job.request import parse_request
from slackwater.warehouse.store.connection import open_store

NOW = "2026-10-03T12:00Z"
SETTINGS = 'planner = "last_value"\nmodels = ["last_value"]\nrisk_paths = 20\nmeasured_origins = 0\n'
JOB = """
name = "{name}"
market = "aws/us-east-1/us-east-1a/{kind}"
start = 2026-10-03T06:00:00Z
deadline = 2026-10-04T06:00:00Z
n_max = 4
{terms}
workload = {{ amount = 40, unit = "slots" }}
throughput = {{ form = "linear" }}
checkpoint = {{ resumable = true, overhead_minutes = 4 }}
"""


def history(kind, hours=24 * 6):
    times = pd.date_range("2026-10-01", periods=hours // 6, freq="6h", tz="UTC")
    return {
        "SpotPriceHistory": [
            {
                "AvailabilityZone": "us-east-1a",
                "InstanceType": kind,
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": "11.800000",
                "Timestamp": at.isoformat(),
            }
            for at in times
        ]
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("on-demand")
    for kind in ("p4d.24xlarge", "p5e.48xlarge"):
        (folder / f"{kind}.json").write_text(json.dumps(history(kind)))
        found = call("ingest", "aws", folder / f"{kind}.json", "--db", folder / "w.duckdb")
        assert found.code == 0, found.err
    (folder / "s.toml").write_text(SETTINGS)
    return folder


def plan(place, *, kind="p4d.24xlarge", terms="", settings="", words=("--json",)):
    job = place / "job.toml"
    job.write_text(JOB.format(name="j", kind=kind, terms=terms))
    file = place / "own.toml"
    file.write_text(SETTINGS + settings)
    return call("plan", job, "--at", NOW, "--db", place / "w.duckdb", "--settings", file, *words)


def decision(place, **given):
    value = plan(place, **given).value
    return value["decisions"][0] if "decisions" in value else value


@pytest.mark.parametrize(
    ("terms", "settings", "usd", "origin"),
    [
        ("", "", 21.957642, "catalogue: list price in us-east-1, from 2025-06-01"),
        ("", '[[on_demand]]\nmarket = "aws/us-east-1/*/p4d.24xlarge"\nusd = 20.0\n', 20.0, "settings"),
        ("on_demand_usd = 30.0", '[[on_demand]]\nmarket = "*"\nusd = 20.0\n', 30.0, "job"),
        ('on_demand_usd = { "aws/*/*/p4d.24xlarge" = 25.0, "gcp/*/*/*" = 1.0 }', "", 25.0, "job"),
    ],
)
def test_the_origin_of_the_price_stands_with_the_decision_and_the_saving_is_relative_to_it(
    place, terms, settings, usd, origin
):
    row = decision(place, terms=terms, settings=settings)
    assert row["on_demand_usd_per_hour"] == usd
    assert row["on_demand_from"].startswith(origin)
    assert row["on_demand_note"] is None
    # A single instance for 41 slots of half an hour on demand; spot at 11.8 may be lost on the way.
    assert row["on_demand_only_usd"] == pytest.approx(20.5 * usd, rel=0.03)
    assert row["saved_share"] == pytest.approx(
        1.0 - row["expected_cost_usd"] / row["on_demand_only_usd"], abs=1e-3
    )
    assert 0.2 < row["saved_share"] < 1.0 - 11.8 / usd + 0.02


def test_without_a_price_no_saving_is_printed_and_the_plan_says_what_it_assumes(place):
    row = decision(place, kind="p5e.48xlarge")
    assert [
        row[name] for name in ("saved_usd", "saved_share", "on_demand_only_usd", "on_demand_usd_per_hour")
    ] == [None] * 4
    assert row["on_demand_from"].startswith("unknown: 39.3333 USD assumed")
    assert row["spot"] > 0
    text = plan(place, kind="p5e.48xlarge", words=()).said
    assert (
        "on-demand price unknown, so no saving is stated and the plan assumes 39.33 USD an instance-hour"
        in text
    )
    assert "state on_demand_usd in the job" in text
    assert "saved" not in text.replace("no saving", "")
    assert "of on-demand" not in text


@pytest.mark.parametrize(
    ("terms", "settings"),
    [
        ("on_demand = false", ""),
        ("", '[[on_demand]]\nmarket = "aws/*/*/*"\non_demand = false\n'),
        ('on_demand = { "aws/us-east-1/*/*" = false }', ""),
    ],
)
def test_where_nothing_is_sold_on_demand_the_answer_says_what_that_means(place, terms, settings):
    row = decision(place, terms=terms, settings=settings)
    assert (row["on_demand"], row["saved_usd"], row["on_demand_usd_per_hour"]) == (0, None, None)
    assert row["on_demand_from"].startswith("not sold")
    assert "the deadline holds only while spot lasts" in row["on_demand_note"]
    assert row["expected_cost_usd"] < 1000


def test_markets_show_the_price_that_plans_use(place):
    found = call("markets", "--db", place / "w.duckdb", "--json").value["markets"]
    priced, unknown = sorted(found, key=lambda row: row["market"])
    assert priced["on_demand_usd"] == 21.957642
    assert priced["on_demand_from"].startswith("catalogue: ")
    assert priced["missing"] == "counts"
    assert (unknown["on_demand_usd"], unknown["on_demand_from"]) == (None, "unknown")
    assert unknown["missing"] == "counts, on-demand price"


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ("on_demand_usd = 0.0", "on_demand_usd"),
        ('on_demand_usd = { "p4d.24xlarge" = 20.0 }', "provider/region/zone/instance_type"),
        ("on_demand_usd = 20.0\non_demand = false", "on_demand_usd together with on_demand = false"),
    ],
)
def test_terms_that_mean_nothing_are_refused(place, terms, why):
    found = plan(place, terms=terms)
    assert found.code == 2
    assert why in found.err


@pytest.mark.parametrize(
    "entry",
    ['market = "p4d.24xlarge"\nusd = 1.0', 'market = "*"', 'market = "*"\nusd = 1.0\non_demand = false', 'market = "*"\nusd = -1.0']
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(place, entry):
    found = plan(place, settings=f"[[on_demand]]\n{entry}\n")
    assert found.code == 2
    assert "on_demand" in found.err


POOL = '[[family]]\nname = "OD-only"\n[[family]]\nname = "UP"\n'


def test_no_saving_in_the_page_the_leaderboard_and_the_outcomes_of_a_job_without_a_price(place, tmp_path):
    """An ended and an open job without an on-demand price: check their pages, tables and JSON."""
    db, file = tmp_path / "w.duckdb", tmp_path / "s.toml"
    (tmp_path / "pool.toml").write_text(POOL)
    file.write_text(f'{SETTINGS}pool = "{tmp_path / "pool.toml"}"\n')
    settings, at = read_settings(file), pd.Timestamp("2026-10-04T12:00Z")
    values = tomllib.loads(JOB.format(name="ended", kind="p5e.48xlarge", terms=""))
    open_now = values | {"name": "open", "start": at.to_pydatetime(), "deadline": at + pd.Timedelta("24h")}
    rows = json.loads((place / "p5e.48xlarge.json").read_text())["SpotPriceHistory"]
    table = pd.DataFrame(rows)[["AvailabilityZone", "InstanceType", "Timestamp", "SpotPrice"]]
    table.columns = ["zone", "instance_type", "timestamp", "spot_price_usd_per_hour"]
    # jobs with prices only are not scored
    counted = table.assign(provider="aws", region="us-east-1", available=8)
    counted.to_csv(tmp_path / "counted.csv", index=False)
    assert call("ingest", "tabular", tmp_path / "counted.csv", "--db", db).code == 0
    with open_store(db) as store:
        turn = make_turn(store, at, settings)
        requests = [parse_request(one, "t") for one in (values, open_now)]
        result = whole_turn(turn, data=None, requests=requests, report=tmp_path / "report.html")
    (decision,) = [row for row in result.decisions if row["job"] == "open"]
    assert (decision["saved_usd"], decision["on_demand_only_usd"]) == (None, None)
    shown = {"report": told((tmp_path / "report.html").read_text(encoding="utf-8"))}
    assert "on-demand price unknown" in shown["report"]
    common = ("--db", db, "--settings", file)
    rows = call("leaderboard", *common, "--json").value["leaderboard"]
    assert {row["policy"] for row in rows} == {"OD-only", "UP"}
    assert all(row["mean_saved_usd"] is None and row["saved_share"] is None for row in rows)
    outcomes = call("job", "show", "ended", *common, "--json").value["outcomes"]
    assert all(row["saved_usd"] is None and row["on_demand_only_usd"] is None for row in outcomes)
    for words in (("leaderboard",), ("job", "show", "ended"), ("job", "show", "open")):
        shown[" ".join(words)] = call(*words, *common).out
    app = make_app(Snapshots(db, settings, lambda: at))
    for path in ("/", "/jobs", "/job?name=open", "/job?name=ended", "/markets", "/policies"):
        answer = asked(app, path)
        assert answer.status_code == 200
        shown[path] = told(answer.text)
    assert "No on-demand price." in shown["/job?name=open"]
    for where, text in shown.items():
        assert not re.search(r"\bnan\b", text), where
        assert "less than on-demand only" not in text, where
        assert not re.search(r"\d %\s+(less|of on-demand)", text), where


def told(page):
    """Return the visible text of a page."""
    return re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL))


def asked(app, path):
    async def ask():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8642") as client:
            return await client.get(path)

    return asyncio.run(ask())


def test_the_catalogue_is_filtered_by_provider_region_type_and_gpu():
    rows = call("catalogue", "aws", "h100", "us-east-1", "--json").value["instance_types"]
    assert {row["instance_type"] for row in rows} == {"p5.48xlarge", "p5.4xlarge"}
    assert all(row["regions"] == ["us-east-1"] for row in rows)
    assert {row["on_demand_usd_per_gpu"] for row in rows} == {98.32 / 8, 55.04 / 8}
    assert "not sold" in call("catalogue", "a3-highgpu-1g").said
    assert call("catalogue", "homemade", "--json").value["instance_types"] == []
    assert "none fits" in call("catalogue", "homemade").said
