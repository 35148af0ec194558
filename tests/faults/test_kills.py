"""The harness in a separate process: kills, concurrent writers, a soak test of a feed, and full disks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).with_name("faults.py")


def run(*words):
    """Return the counts of the harness, which fails if anything was lost, doubled or partially visible."""
    process = subprocess.run(
        [sys.executable, str(HARNESS), *words], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:] + process.stdout[-3000:]
    answer = json.loads(process.stdout)
    assert answer["failures"] == []
    return answer


@pytest.mark.parametrize(
    ("parts", "stages"),
    [
        (["kills"], ["ingest"]),
        pytest.param(["kills"], ["feed"], marks=pytest.mark.slow),
        pytest.param(["kills", "network"], ["feed", "turn"], marks=pytest.mark.slow),
    ],
    ids=["ingest", "feed", "turn"],
)
def test_killed_stages_and_a_feed_through_faults_lose_and_double_nothing(parts, stages):
    count = 10 if len(stages) > 1 else 2 if stages == ["ingest"] else 4
    answer = run("--kills", str(count), "--seed", "5", "--only", *parts, "--stage", *stages)
    kills = answer["kills"]
    assert kills["kills"] == kills["at_a_moment"] + kills["after_a_time"] >= 2
    assert kills["lost"] == kills["doubled"] == kills["half_seen"] == 0
    assert kills["reads"] > 0
    assert kills["written"] > 0 or kills["rounds"] < 4  # the second writer may come too late in its rounds
    if "network" in parts:
        network = answer["network"]
        assert sum(network["faults"].values()) > 5
        assert (network["lost"], network["doubled"], network["misread"]) == (0, 0, 0)


@pytest.mark.slow
def test_every_stage_killed_writers_that_meet_and_no_room():
    answer = run()
    kills = answer["kills"]
    assert kills["kills"] >= 200
    assert {stage: tally["kills"] > 0 for stage, tally in kills["stages"].items()} == dict.fromkeys(
        ("ingest", "feed", "forecast", "score", "allocate", "turn", "backfill"), True
    )
    assert kills["stages"]["backfill"]["kills"] >= 20
    assert answer["writers"]["killed_holding_the_lock"] > 0
    assert answer["network"]["fetches"] > 50
    assert sum(one["refused"] for one in answer["room"].values() if isinstance(one, dict)) > 0
