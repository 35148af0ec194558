"""Test ``slackwater fleet plan`` on a folder of three zones."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_kit import call
from make import checkpoint, job_text, work

ZONES, AT, PROBES = "abc", "2026-03-06T00:00Z", 1400
TERMS = {"value_usd": 60, "workload": work(16), "checkpoint": checkpoint(2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return fifteen days of three zones with varying availability, at most eight instances, probed every ten minutes."""
    path, rng = tmp_path_factory.mktemp("zones"), np.random.default_rng(3)
    times = pd.date_range("2026-03-01", periods=PROBES, freq="10min", tz="UTC")
    place = {"provider": "cloud", "region": "north", "instance_type": "gpu-1", "source": "probe:test"}
    counts, prices = [], []
    for z, zone in enumerate(ZONES):
        walk = np.clip(4 + np.cumsum(rng.integers(-1, 2, PROBES // 5)).repeat(5) % 9, 0, 8)
        counts.append(
            pd.DataFrame(
                {
                    "timestamp": times,
                    "available": walk,
                    "capacity_probed": 8,
                    "gap_seconds": 600.0,
                    "kind": "probe",
                }
            ).assign(zone=zone, truncated=False, **place)
        )
        prices.append(
            pd.DataFrame(
                {
                    "timestamp": times[::36],
                    "spot_price_usd_per_hour": 1.0 + 0.1 * z,
                    "on_demand_price_usd_per_hour": 3.0,
                }
            ).assign(zone=zone, product="Linux/UNIX", **place)
        )
    pd.concat(counts).to_parquet(path / "availability.parquet")
    pd.concat(prices).to_parquet(path / "prices.parquet")
    (path / "slackwater.toml").write_text('planner = "last_value"\nmodels = ["last_value"]\n')
    for name in ("first", "second", "third"):
        (path / f"{name}.toml").write_text(job_text(name, **TERMS))
    return path


def planned(folder: Path, *more: str) -> dict:
    words = ["fleet", "plan", "--data", str(folder), "--at", AT, "--market", "cloud/north/a/gpu-1", "--json"]
    words += ["--settings", str(folder / "slackwater.toml")]
    for name in ("first", "second", "third"):
        words += ["--job", str(folder / f"{name}.toml")]
    return call(*words, *more).value


@pytest.fixture(scope="module")
def together(folder):
    """Return the plan for the three jobs without further options."""
    return planned(folder)


def test_decisions_share_the_spot_of_a_market(together):
    rows = together["decisions"]
    assert [row["job"] for row in rows] == ["first", "second", "third"]
    assert {row["market"] for row in rows} == {"cloud/north/a/gpu-1"}
    assert sum(row["spot"] for row in rows) <= 8
    assert set(together) == {"slot", "step_minutes", "decisions", "notes"}


def test_a_job_that_may_move_is_decided_with_the_others(folder, tmp_path):
    moving = tmp_path / "moving.toml"
    moving.write_text(job_text("moving", **TERMS | {"workload": work(40), "markets": ["cloud/*/*/gpu-1"]}))
    answer = planned(folder, "--job", str(moving))
    assert [row["job"] for row in answer["decisions"]] == ["first", "moving", "second", "third"]
    assert any(row["spot"] for row in answer["decisions"] if row["job"] == "moving")


def test_no_open_job_is_an_error(folder):
    called = call("fleet", "plan", "--data", str(folder), "--at", AT, "--json")
    assert called.code == 2
    assert "no job is open" in called.err
