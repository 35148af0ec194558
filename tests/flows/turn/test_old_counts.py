"""Plans where the count of a slot was not read: a feed of counts that stopped, and a probe every few hours (M13.1)."""

import pandas as pd
import pytest
from command_kit import call
from make import checkpoint, job_text, work

pytestmark = pytest.mark.usefixtures("light_planner")
AT = pd.Timestamp("2026-03-05T12:00:00Z")
ZONES = ("z1", "z2")
TERMS = {
    "deadline_in": "10h",
    "n_max": 4,
    "on_demand_usd": 30.0,
    "workload": work(12),
    "checkpoint": checkpoint(4),
}


def table(folder, column, values):
    """Write a table with a row for each zone and time of ``values``."""
    rows = [
        {
            "provider": "lab",
            "region": "r1",
            "zone": zone,
            "instance_type": "g",
            "timestamp": at,
            column: value,
        }
        for zone in ZONES
        for at, value in values.items()
    ]
    path = folder / f"{column}.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def counted(every, until):
    times = pd.date_range(AT - pd.Timedelta("3D"), until, freq=every)
    return dict.fromkeys(times, 4)


@pytest.fixture(scope="module", params=["stopped", "rare", "fresh"])
def known(request, tmp_path_factory):
    """A folder with prices up to now and counts: stopped 6 h ago, read every 4 h, or read up to now."""
    folder = tmp_path_factory.mktemp(request.param)
    counts = {
        "stopped": counted("10min", AT - pd.Timedelta("6h")),
        "rare": counted("4h", AT - pd.Timedelta("4h")),
        "fresh": counted("10min", AT),
    }[request.param]
    prices = dict.fromkeys(pd.date_range(AT - pd.Timedelta("3D"), AT, freq="30min"), 9.0)
    paths = [table(folder, "spot_price_usd_per_hour", prices), table(folder, "available", counts)]
    for path in paths:
        assert call("ingest", "tabular", path, "--set", "source=lab", "--db", folder / "w.duckdb").code == 0
    (folder / "one.toml").write_text(job_text("one", market="lab/r1/z1/g", **TERMS))
    (folder / "two.toml").write_text(job_text("two", markets=["lab/r1/*/g"], **TERMS))
    return request.param, folder


@pytest.mark.parametrize("job", ["one", "two"])
def test_without_a_count_for_the_slot_spot_is_tried_and_earlier_counts_are_evidence(known, job):
    form, folder = known
    row = call(
        "plan", folder / f"{job}.toml", "--db", folder / "w.duckdb", "--at", AT.isoformat(), "--json"
    ).value
    assert (row["on_demand"], row["spot"] > 0) == (0, True)
    assert row["late_probability"] == 0.0
    if form == "fresh":
        assert (row["evidence"], row["availability_note"]) == (4, None)
        return
    assert row["evidence"] == 3
    age = {"stopped": "6 h", "rare": "4 h"}[form]
    assert row["evidence_basis"].startswith(f"availability not observed for {age}, assumed from ")
    assert "32 measured markets" in row["evidence_basis"]
    assert "not observed in this slot" not in row["reason"]
    assert 108 < row["expected_cost_p10_usd"] <= row["expected_cost_p90_usd"] < row["on_demand_only_usd"]
    assert row["expected_cost_p10_usd"] < row["expected_cost_usd"], "spot may be gone"


@pytest.mark.parametrize(("budget", "enough"), [(60, False), (130, True)])
def test_a_budget_below_the_work_at_the_spot_price_is_said_to_end_first(known, budget, enough):
    form, folder = known
    if form != "fresh":
        pytest.skip("budgets do not depend on the age of counts")
    job = folder / "spent.toml"
    job.write_text(job_text("spent", market="lab/r1/z1/g", budget_usd=budget, **TERMS))
    said = " ".join(call("plan", job, "--db", folder / "w.duckdb", "--at", AT.isoformat()).said.split())
    assert "does not cover finishing on demand" in said
    assert ("only if spot stays available" in said, "Expected finish" in said) == (enough, enough)
    assert ("ends unfinished in" in said, "Not expected to finish: about" in said) == (not enough, not enough)
