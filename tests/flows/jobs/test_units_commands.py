"""GPUs and instances: prices of p4d.24xlarge (8 GPUs), a job of 320 GPU-hours, and the output of every command."""

import json
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest
from command_kit import call

pytestmark = pytest.mark.usefixtures("quick_settings", "light_planner")
P4D = "aws/us-east-1/us-east-1a/p4d.24xlarge"
END = datetime(2026, 11, 25, 12, tzinfo=UTC)
JOB = """
name = "{name}"
market = "{market}"
deadline_in = "42h"
{sizes}
workload = {{ amount = {amount}, unit = "{unit}" }}
throughput = {{ form = "linear"{per} }}
checkpoint = {{ resumable = true, overhead_minutes = 4 }}
"""
FORMS = {
    "gpus": {"amount": 320, "unit": "gpu_hours", "sizes": "gpus_max = 64", "per": ', per = "gpu"'},
    "hours": {"amount": 320, "unit": "gpu_hours", "sizes": "n_max = 8", "per": ""},
    "instances": {"amount": 40, "unit": "instance_hours", "sizes": "n_max = 8", "per": ""},
}


def history(kind, days=5):
    """Return a response of describe-spot-price-history: three zones, a change every four hours, around 11.8 USD."""
    rows = []
    for place, zone in enumerate("abc"):
        for k in range(days * 6):
            price = 11.8 + 0.05 * place + 0.04 * ((k * 7 + place) % 5 - 2)
            at = END - timedelta(hours=4 * k, minutes=7 * place)
            rows.append(
                {
                    "AvailabilityZone": f"us-east-1{zone}",
                    "InstanceType": kind,
                    "ProductDescription": "Linux/UNIX",
                    "SpotPrice": f"{price:.6f}",
                    "Timestamp": at.isoformat(),
                }
            )
    return json.dumps({"SpotPriceHistory": rows})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a warehouse with prices of p4d.24xlarge and of an unknown instance type, and the job in every form."""
    folder = tmp_path_factory.mktemp("units")
    for kind in ("p4d.24xlarge", "q9.12xlarge"):
        (folder / f"{kind}.json").write_text(history(kind))
        assert call("ingest", "aws", folder / f"{kind}.json", "--db", folder / "w.duckdb").code == 0
    for name, form in FORMS.items():
        (folder / f"{name}.toml").write_text(JOB.format(name=name, market=P4D, **form))
    return folder


@pytest.fixture(scope="module")
def plans(folder):
    return {
        name: call("plan", folder / f"{name}.toml", "--db", folder / "w.duckdb", "--json").value
        for name in FORMS
    }


def test_the_same_work_in_gpus_and_in_instances_is_the_same_plan(plans):
    own = ("job", "key", "workload", "workload_unit", "work")
    found = {
        name: {key: value for key, value in plan.items() if key not in own} for name, plan in plans.items()
    }
    assert found["gpus"] == found["hours"] == found["instances"]


def test_a_plan_has_its_instances_and_its_work_in_gpus_too(plans):
    plan = plans["hours"]
    size = plan["spot"]
    assert (plan["on_demand"], 1 <= size <= 8) == (0, True)
    assert (plan["gpus_per_instance"], plan["gpus"]) == (8, 8 * size)
    assert plan["instances"] == f"{size} x p4d.24xlarge, {8 * size} GPUs"
    assert (plan["workload"], plan["workload_unit"], plan["workload_instance_hours"]) == (
        320,
        "gpu_hours",
        40,
    )
    assert plan["work"] == "320 GPU-hours = 40 instance-hours"
    assert plans["instances"]["work"] == "40 instance-hours = 320 GPU-hours"
    # 40 hours at 11.7 to 11.9 USD, and what losses of spot cost.
    assert 40 * 11.7 < plan["expected_cost_usd"] < plan["on_demand_only_usd"]


def test_both_are_on_the_screen(folder, plans):
    said = call("plan", folder / "hours.toml", "--db", folder / "w.duckdb").said
    assert f"instances {plans['hours']['instances']}" in said
    assert "work 320 GPU-hours = 40 instance-hours" in said


@pytest.mark.parametrize(
    ("hours", "start", "told"),
    [
        pytest.param(0, "2026-11-25T12:00", "", marks=pytest.mark.slow),
        (49, "2026-11-25T12:00", "The job starts at 2026-11-25 12:00 UTC, the newest observation of its market, 49 hours ago"),
        pytest.param(
            7, "2026-11-25T19:00", "The newest observation of its market is 7 hours old. The job starts at 2026-11-25 19:00 UTC",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_plan_and_add_begin_a_job_of_a_file_at_the_same_time_and_say_so_with_older_data(
    folder, tmp_path, monkeypatch, hours, start, told
):
    """A job begins now; with a record that ended long ago, at its end."""
    db = tmp_path / "w.duckdb"
    db.write_bytes((folder / "w.duckdb").read_bytes())
    monkeypatch.setattr("slackwater.flows.clock.now", lambda: pd.Timestamp(END) + pd.Timedelta(hours=hours))
    planned = call("plan", folder / "gpus.toml", "--db", db)
    assert (told in planned.said) if told else ("`deadline_in`" not in planned.said)
    added = call("job", "add", folder / "gpus.toml", "--db", db)
    assert (told in added.said) if told else ("`deadline_in`" not in added.said)
    (row,) = call("job", "list", "--db", db, "--json").value["jobs"]
    shown = call("job", "show", row["job"], "--db", db, "--json").value
    assert shown["job"]["start"].startswith(start)
    assert call("plan", folder / "gpus.toml", "--db", db, "--json").value["slot"].startswith(start)


def test_job_add_list_and_show_have_both(folder, tmp_path):
    db = tmp_path / "w.duckdb"
    db.write_bytes((folder / "w.duckdb").read_bytes())
    odd = tmp_path / "odd.toml"
    odd.write_text(
        JOB.format(name="odd", market=P4D, **FORMS["gpus"]).replace("gpus_max = 64", "gpus_max = 70")
    )
    added = call("job", "add", odd, "--db", db, "--json").value
    assert (added["n_min"], added["n_max"], added["gpus_per_instance"]) == (1, 8, 8)
    assert added["sizes"] == "1 to 8 x p4d.24xlarge, 8 to 64 GPUs"
    assert "gpus_max = 70 is rounded down to 8 x p4d.24xlarge, 64 GPUs" in added["note"]
    (row,) = call("job", "list", "--db", db, "--json").value["jobs"]
    shown = call("job", "show", "odd", "--db", db, "--json").value
    for found in (added, row, shown):
        assert found["sizes"] == "1 to 8 x p4d.24xlarge, 8 to 64 GPUs"
        assert found["work"] == "320 GPU-hours = 40 instance-hours"
    changed = call("job", "change", "odd", "--gpus-max", 128, "--db", db, "--json").value
    assert changed["changes"] == [{"term": "gpus_max", "before": 70, "after": 128}]
    refused = call("job", "change", "odd", "--n-max", 16, "--db", db)
    assert refused.code == 2
    assert "gpus_max" in refused.err
    report = call(
        "job",
        "report",
        "odd",
        "--progress",
        80,
        "--spot",
        9,
        "--at",
        "2026-11-25T13:30Z",
        "--db",
        db,
        "--json",
    )
    assert (report.value["workload_unit"], report.value["progress_share"]) == ("gpu_hours", 0.25)
    assert report.value["warnings"] == []


@pytest.mark.parametrize("form", ["gpus", "hours"])
def test_a_type_with_unknown_gpus_is_asked_for_them(folder, tmp_path, form):
    file = tmp_path / "j.toml"
    file.write_text(
        JOB.format(name="j", market=P4D.replace("p4d", "q9").replace("24x", "12x"), **FORMS[form])
    )
    refused = call("plan", file, "--db", folder / "w.duckdb")
    assert refused.code == 2
    assert "how many GPUs an instance of q9.12xlarge has is not known" in refused.err
    assert "gpus_per_instance = 8" in refused.err
    file.write_text("gpus_per_instance = 8\n" + file.read_text())
    plan = call("plan", file, "--db", folder / "w.duckdb", "--json").value
    size = plan["spot"]
    assert (plan["gpus"], plan["instances"]) == (8 * size, f"{size} x q9.12xlarge, {8 * size} GPUs")


def test_a_type_with_unknown_gpus_shows_instances_only(folder, tmp_path):
    file = tmp_path / "j.toml"
    file.write_text(JOB.format(name="j", market="aws/us-east-1/us-east-1a/q9.12xlarge", **FORMS["instances"]))
    plan = call("plan", file, "--db", folder / "w.duckdb", "--json").value
    assert (plan["gpus"], plan["gpus_per_instance"]) == (None, None)
    assert (plan["instances"], plan["work"]) == (f"{plan['spot']} x q9.12xlarge", "40 instance-hours")


def test_a_replay_and_the_decisions_of_all_jobs_have_both(folder):
    words = ("--db", folder / "w.duckdb", "--json")
    replayed = call("replay", "--job", folder / "hours.toml", "--policy", "UP", *words).value
    assert (replayed["gpus_per_instance"], replayed["work"]) == (8, "320 GPU-hours = 40 instance-hours")
    hours = sum(slot["on_demand"] + slot["spot"] for slot in replayed["allocations"]) / 2
    assert 40 <= hours <= 45
    at = ("--at", "2026-11-25T12:00Z")
    joint = call("fleet", "plan", "--job", folder / "hours.toml", *at, *words).value
    assert [row["gpus"] == 8 * row["spot"] > 0 for row in joint["decisions"]] == [True]


def test_a_job_on_two_instance_types_has_the_sizes_of_each(tmp_path):
    """p5.48xlarge has 8 GPUs and p5.4xlarge has 1 GPU of the same type."""
    rows = ["provider,region,zone,instance_type,timestamp,spot_price_usd_per_hour,available,gap_seconds"]
    for k in range(48):
        at = (END - timedelta(minutes=30 * (47 - k))).isoformat()
        rows += [
            f"aws,us-east-1,us-east-1a,p5.48xlarge,{at},{20 + k % 3},2,1800",
            f"aws,us-east-1,us-east-1b,p5.4xlarge,{at},{2 + k % 3 / 10},8,1800",
        ]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    words = ("--db", tmp_path / "w.duckdb", "--json")
    assert call("ingest", "tabular", tmp_path / "t.csv", *words).code == 0
    text = JOB.format(
        name="two", market="", amount=160, unit="gpu_hours", sizes="gpus_max = 20", per=', per = "gpu"'
    )
    file = tmp_path / "two.toml"
    file.write_text(text.replace('market = ""', 'markets = ["aws/*/*/p5.48xlarge", "aws/*/*/p5.4xlarge"]'))
    added = call("job", "add", file, *words).value
    assert added["sizes"].split("; ") == [
        "1 to 2 x p5.48xlarge, 8 to 16 GPUs",
        "1 to 20 x p5.4xlarge, 1 to 20 GPUs",
    ]
    assert added["work"].split("; ") == [
        "160 GPU-hours = 20 instance-hours of p5.48xlarge",
        "160 GPU-hours = 160 instance-hours of p5.4xlarge",
    ]
    assert (added["gpus_per_instance"], added["n_max"]) == (None, None)
    assert "gpus_max = 20 is rounded down to 2 x p5.48xlarge, 16 GPUs" in added["note"]
    file.write_text(file.read_text().replace("42h", "12h"))
    replayed = call("replay", "--job", file, "--policy", "Greedy", *words).value
    assert (replayed["gpus_per_instance"], replayed["work"]) == (None, added["work"])
