"""A record that began within its last slot: one price row, read long ago (M1.3)."""

import pandas as pd
import pytest
from command_kit import call

from slackwater.flows.following import slot_to_read

STEP = pd.Timedelta(minutes=30)
ROWS = """provider,region,zone,instance_type,timestamp,spot_price_usd_per_hour,on_demand_price_usd_per_hour
{market},{at},0.30,0.90
other,eu,a,L4_x1,2026-11-27T10:50:00Z,0.30,0.90
"""
JOB = """name = "one"
market = "olde/eu/a/L4_x1"
deadline_in = "12h"
n_min = 1
n_max = 4
[workload]
amount = 16
unit = "instance_hours"
[throughput]
form = "linear"
alpha = 1.0
[checkpoint]
resumable = true
overhead_minutes = 0
"""


@pytest.mark.parametrize(("at", "slot"), [("10:50", "11:00"), ("11:00", "11:00")])
def test_the_first_slot_with_an_observation_is_planned_and_the_age_is_that_of_the_market(tmp_path, at, slot):
    (tmp_path / "p.csv").write_text(ROWS.format(market="olde,eu,a,L4_x1", at=f"2026-11-15T{at}:00Z"))
    (tmp_path / "one.toml").write_text(JOB)
    db = ("--db", tmp_path / "w.duckdb")
    assert call("ingest", "tabular", tmp_path / "p.csv", *db).code == 0
    found = call("plan", tmp_path / "one.toml", *db, "--policy", "UP", "--json").value
    assert pd.Timestamp(found["slot"]) == pd.Timestamp(f"2026-11-15T{slot}Z")
    text = " ".join(call("plan", tmp_path / "one.toml", *db, "--policy", "UP").out.split())
    old = (pd.Timestamp.now(tz="UTC") - pd.Timestamp(f"2026-11-15T{at}Z")).days
    assert f"the newest data are {old} days old" in text
    assert "or plan the present slot" not in text


def test_a_replay_says_in_how_many_slots_nothing_was_observed(tmp_path):
    (tmp_path / "p.csv").write_text(ROWS.format(market="olde,eu,a,L4_x1", at="2026-11-15T10:50:00Z"))
    (tmp_path / "one.toml").write_text(JOB)
    db = ("--db", tmp_path / "w.duckdb")
    assert call("ingest", "tabular", tmp_path / "p.csv", *db).code == 0
    found = call("replay", "--job", tmp_path / "one.toml", "--policy", "MSU", *db)
    assert found.out.startswith("No observation in 23 of 24 slots")
    later = ("--from", "2026-11-15T10:30Z")
    refused = call("replay", "--job", tmp_path / "one.toml", "--policy", "MSU", *later, *db)
    assert "has slots from 2026-11-15 10:30 UTC to 2026-11-15 22:00 UTC" in refused.err


def test_a_longer_record_is_read_in_its_last_slot():
    first, last = pd.Timestamp("2026-11-15T10:00Z"), pd.Timestamp("2026-11-15T10:50Z")
    read = {"step": STEP, "own_end": True}
    assert slot_to_read(last, last, first=first, **read) == pd.Timestamp("2026-11-15T10:30Z")
    assert slot_to_read(last, last, first=last, **read) == pd.Timestamp("2026-11-15T11:00Z")
    # At a time before the record there is nothing to read.
    assert slot_to_read(last, first, first=last, **read) == first
