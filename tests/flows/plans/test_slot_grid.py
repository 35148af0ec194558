"""Deadlines and starts inside a slot: plans use whole slots, and the answer names the rounded times."""

import pytest
from command_kit import call

pytestmark = pytest.mark.usefixtures("light_planner")

JOB = """name = "{name}"
{times}
n_min = 1
n_max = 4

[workload]
amount = 4
unit = "instance_hours"

[throughput]
form = "linear"

[checkpoint]
resumable = true
overhead_minutes = 6
"""
MARKET = "aws/us-east-1/us-east-1a/p4d.24xlarge"
ROWS = "\n".join(
    f"{MARKET.replace('/', ',')},2026-03-0{day}T{hour:02}:{minute:02}:00Z,8.0,22.0,4"
    for day in (4, 5)
    for hour in range(24)
    for minute in (0, 30)
)
HEADER = "provider,region,zone,instance_type,timestamp,spot_price_usd_per_hour,on_demand_price_usd_per_hour,available"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    (folder / "m.csv").write_text(f"{HEADER}\n{ROWS}\n")
    assert call("ingest", "tabular", folder / "m.csv", "--db", folder / "w.duckdb").code == 0
    return folder


def asked(folder, command, times, name="j"):
    file = folder / f"{name}.toml"
    file.write_text(JOB.format(name=name, times=times))
    found = call(*command, file, "--market", MARKET, "--db", folder / "w.duckdb", "--at", "2026-03-05T12:00Z")
    return found.code, " ".join((found.out + found.err).split())


@pytest.mark.parametrize("command", [("plan",), ("job", "add")])
def test_a_deadline_inside_a_slot_counts_as_the_start_of_the_slot_and_the_answer_says_so(folder, command):
    code, said = asked(folder, command, "deadline = 2026-03-06T00:10:00Z", f"late-{command[-1]}")
    assert code == 0
    assert "deadline 2026-03-06 00:10 UTC counts as 2026-03-06 00:00 UTC" in said
    code, said = asked(folder, command, "deadline = 2026-03-06T00:00:00Z", f"whole-{command[-1]}")
    assert (code, "counts as" in said) == (0, False)


def test_a_start_inside_a_slot_counts_from_the_next(folder):
    times = "start = 2026-03-05T11:45:00Z\ndeadline = 2026-03-06T01:00:00+01:00"
    code, said = asked(folder, ("plan",), times)
    assert (code, "start 2026-03-05 11:45 UTC counts from 2026-03-05 12:00 UTC" in said) == (0, True)


@pytest.mark.parametrize("command", [("plan",), ("job", "add")])
def test_a_deadline_inside_the_present_slot_is_refused_as_it_is_written(folder, command):
    code, said = asked(folder, command, "deadline = 2026-03-05T12:10:00Z")
    assert code == 2
    assert "no whole slot of 30 min" in said
    assert "2026-03-05 12:10 UTC; expected at least one slot; " in said


@pytest.mark.parametrize("command", [("plan",), ("job", "add")])
def test_a_deadline_that_has_passed_is_refused_with_the_remedy(folder, command):
    code, said = asked(folder, command, "deadline = 2026-03-05T11:00:00Z")
    assert code == 2
    assert "deadline 2026-03-05 11:00 UTC is not after its start 2026-03-05 12:00 UTC" in said
    assert "state a later deadline, or an earlier time with --at" in said


def test_the_finish_and_the_saving_of_on_demand_only_are_exact(folder):
    """Four hours of one instance that needs no time to boot or restart: a finish at 16:00 and no saving."""
    file = folder / "od.toml"
    times = "deadline = 2026-03-06T00:00:00Z\nboot_minutes = 0\nrestart_minutes = 0\nnotice_seconds = 0"
    text = JOB.format(name="od", times=times).replace("n_max = 4", "n_max = 1").replace("= 6\n", "= 0\n")
    file.write_text(text)
    asked = ("plan", file, "--market", MARKET, "--db", folder / "w.duckdb", "--at", "2026-03-05T12:00Z")
    found = call(*asked, "--policy", "OD-only", "--json")
    assert found.value["expected_finish"] == "2026-03-05T16:00:00+00:00"
    assert '"saved_usd": 0.0' in found.out
    assert "Expected finish 2026-03-05 16:00 UTC, deadline" in call(*asked, "--policy", "OD-only").said
