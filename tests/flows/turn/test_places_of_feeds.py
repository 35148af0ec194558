"""Markets as live feeds leave them, for jobs that may run in any: just fetched, counted once an hour, without zones."""

import pytest
from command_kit import call
from forms_kit import quick_first

JOB = """name = "{name}"
{where}deadline_in = "6h"
n_min = 1
n_max = 2

[workload]
amount = 2
unit = "instance_hours"

[throughput]
form = "linear"

[checkpoint]
resumable = true
overhead_minutes = 6
"""
PATTERN = 'markets = ["vast.ai/*/*/L40S_48GB_x1"]\n'
HEADER = "provider,region,zone,instance_type,timestamp,spot_price_usd_per_hour,on_demand_price_usd_per_hour,available,gap_seconds"
COUNTRIES = ("SE", "US")


@pytest.fixture(autouse=True)
def light_planner(monkeypatch):
    """The default forecaster is fitted anew for every plan; these tests are not about forecasts."""
    monkeypatch.setenv("SLACKWATER_PLANNER", "last_value")


def folder_of(place, times, *, available="3"):
    """Return a folder with a warehouse of a market in each country, and jobs with and without patterns."""
    rows = [
        f"vast.ai,{country},all,L40S_48GB_x1,{at},0.{4 + k},1.2,{available},3600"
        for at in times
        for k, country in enumerate(COUNTRIES)
    ]
    (place / "offers.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    (place / "several.toml").write_text(JOB.format(name="several", where=PATTERN))
    (place / "none.toml").write_text(JOB.format(name="none", where=""))
    assert call("ingest", "tabular", place / "offers.csv", "--db", place / "w.duckdb").code == 0
    return place


@pytest.fixture(scope="module")
def just_fetched(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("fetched"), ["2026-03-05T08:03Z"], available="")


@pytest.mark.parametrize("name", ["several", "none"])
@pytest.mark.parametrize("command", [("plan",), ("markets", "--for"), ("job", "add")])
def test_right_after_the_first_fetch_the_first_slot_with_a_decision_is_named(just_fetched, command, name):
    found = call(
        *command,
        just_fetched / f"{name}.toml",
        "--db",
        just_fetched / "w.duckdb",
        "--at",
        "2026-03-05T08:10Z",
    )
    assert found.code == 2
    assert "2026-03-05 08:30 UTC" in found.err
    assert "slackwater markets` lists" not in found.err


def test_a_pattern_that_no_market_will_ever_fit_is_named(just_fetched):
    job = just_fetched / "other.toml"
    job.write_text(JOB.format(name="other", where='markets = ["aws/*/*/*"]\n'))
    found = call("plan", job, "--db", just_fetched / "w.duckdb", "--at", "2026-03-05T08:10Z")
    assert (found.code, "no market fits aws/*/*/* at 2026-03-05 08:00 UTC" in found.err) == (2, True)


@pytest.fixture(scope="module")
def hourly(tmp_path_factory):
    times = [f"2026-03-0{day}T{hour:02}:00Z" for day in (4, 5) for hour in range(24)]
    return folder_of(tmp_path_factory.mktemp("hourly"), times)


@pytest.mark.parametrize("name", quick_first(["several", "none"]))
def test_markets_counted_once_an_hour_are_places_too_and_named_by_their_country(hourly, name):
    """Feeds are fetched once an hour unless stated; slots have 30 minutes."""
    asked = ("plan", hourly / f"{name}.toml", "--db", hourly / "w.duckdb", "--at", "2026-03-05T12:10Z")
    row = call(*asked, "--json").value
    assert row["market"] == "vast.ai/SE/all/L40S_48GB_x1"
    assert row["synthetic"] == []
    said = call(*asked).said
    assert f"spot instance{'s' if row['spot'] > 1 else ''} in SE until" in said
    assert "Why: start in SE, the best of 2 markets" in said


def test_stale_counts_are_no_observed_availability(hourly):
    """A count holds for three nominal gaps: the last is from 23:00, so until 02:00. Then the prices are what is known."""
    asked = ("plan", hourly / "several.toml", "--db", hourly / "w.duckdb", "--at")
    assert call(*asked, "2026-03-06T02:00Z", "--json").value["spot"] > 0
    found = " ".join(call(*asked, "2026-03-06T02:30Z").out.split())
    assert "availability not observed for 3.5 h" in found


@pytest.mark.parametrize(("counts", "left_out"), [(("3", ""), True), (("", ""), False)])
def test_a_market_left_out_for_its_unknown_availability_is_named(tmp_path, counts, left_out):
    times = [f"2026-03-05T{hour:02}:00Z" for hour in range(10)]
    rows = [
        f"vast.ai,{country},all,L40S_48GB_x1,{at},0.4,1.2,{count},{3600 if count else ''}"
        for at in times
        for country, count in zip(COUNTRIES, counts, strict=True)
    ]
    (tmp_path / "offers.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    (tmp_path / "job.toml").write_text(JOB.format(name="job", where=PATTERN))
    db = ("--db", tmp_path / "w.duckdb")
    assert call("ingest", "tabular", tmp_path / "offers.csv", *db).code == 0
    found = call("job", "add", tmp_path / "job.toml", *db, "--at", "2026-03-05T09:10Z")
    text = " ".join(found.out.split())
    assert ("in other markets of the job only: vast.ai/US/all/L40S_48GB_x1." in text) == left_out


@pytest.mark.parametrize(
    ("where", "expected"),
    quick_first(
        [
            (PATTERN, {"SE", "US"}),
            ('market = "vast.ai/all/all/L40S_48GB_x1"\n' + PATTERN, {"all"}),
            ('markets = ["vast.ai/all/*/L40S_48GB_x1"]\n', {"all"}),
            ('market = "vast.ai/US/all/L40S_48GB_x1"\n' + PATTERN, {"SE", "US"}),
        ],
        2,
    ),
)
def test_the_sum_over_countries_is_no_other_place_than_its_countries(tmp_path, where, expected):
    """It counts the same offers: a standby plan in it would have them twice."""
    times = [f"2026-03-05T{hour:02}:00Z" for hour in range(10)]
    rows = [
        f"vast.ai,{region},all,L40S_48GB_x1,{at},0.4,1.2,{count},3600"
        for at in times
        for region, count in (("all", 6), ("SE", 3), ("US", 3))
    ]
    (tmp_path / "offers.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    (tmp_path / "job.toml").write_text(JOB.format(name="job", where=where))
    db = ("--db", tmp_path / "w.duckdb")
    assert call("ingest", "tabular", tmp_path / "offers.csv", *db).code == 0
    found = call("markets", "--for", tmp_path / "job.toml", *db, "--at", "2026-03-05T09:10Z", "--json").value
    assert {row["market"].split("/")[1] for row in found["markets"]} == expected


def test_a_standby_plan_on_another_type_of_the_same_region_names_the_type(tmp_path):
    rows = [
        f"gcp,us-central1,all,a3-highgpu-{gpus}g,2026-03-05T{hour:02}:00Z,{3.5 * gpus},{on_demand},,"
        for hour in range(0, 10, 3)
        for gpus, on_demand in ((8, 90.0), (4, 45.0))
    ]
    (tmp_path / "prices.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    text = JOB.format(name="job", where='markets = ["gcp/*/*/a3-highgpu-*"]\n')
    text = text.replace('"6h"', '"12h"').replace("n_min = 1\nn_max = 2", "gpus_min = 8\ngpus_max = 16")
    text = text.replace('amount = 2\nunit = "instance_hours"', 'amount = 160\nunit = "gpu_hours"')
    (tmp_path / "job.toml").write_text(text.replace('form = "linear"', 'form = "linear"\nper = "gpu"'))
    db = ("--db", tmp_path / "w.duckdb")
    assert call("ingest", "tabular", tmp_path / "prices.csv", *db).code == 0
    row = call("plan", tmp_path / "job.toml", *db, "--at", "2026-03-05T09:10Z", "--json").value
    own, other = (row[name].split("/")[-1] for name in ("market", "standby_market"))
    assert {own, other} == {"a3-highgpu-8g", "a3-highgpu-4g"}
    assert other in row["standby"]
    assert row["standby"].endswith(" (availability assumed)") == (row["standby_spot"] > 0)
