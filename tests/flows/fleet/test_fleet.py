"""``slackwater fleet plan`` and ``slackwater experiment fleet`` as commands, on a folder of three zones."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from command_kit import call
from page_kit import charts_of, rendered

from flows.experiments.fleet import METHODS, fleet_answer, fleet_report
from flows.fleet.plan import _otherwise, read_terms
from optimization.fleet.prices import Order, plan_apart, plan_one_by_one
from optimization.fleet.stream import World, draw_stream, jain, problem_at, run_stream
from optimization.window.plan import Allocation
from warehouse.errors import SettingsError

ZONES, AT, PROBES = "abc", "2026-03-06T00:00Z", 1400
JOB = """
name = "{name}"
deadline_in = "6h"
n_max = 8
value_usd = 60
[workload]
amount = 16
unit = "instance_hours"
[throughput]
form = "linear"
[checkpoint]
resumable = true
overhead_minutes = 2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Fifteen days of three zones that come and go, eight instances at most, probed every ten minutes."""
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
        (path / f"{name}.toml").write_text(JOB.format(name=name))
    return path


def planned(folder: Path, *more: str) -> dict:
    words = ["fleet", "plan", "--data", str(folder), "--at", AT, "--market", "cloud/north/a/gpu-1", "--json"]
    words += ["--settings", str(folder / "slackwater.toml")]
    for name in ("first", "second", "third"):
        words += ["--job", str(folder / f"{name}.toml")]
    return call(*words, *more).value


@pytest.fixture(scope="module")
def together(folder):
    """What is planned for the three alone."""
    return planned(folder)


def test_jobs_are_planned_together_on_all_their_zones(together):
    answer = together
    assert [row["job"] for row in answer["jobs"]] == ["first", "second", "third"]
    assert len(answer["markets"]) == 3
    assert all(0 <= row["used"] <= row["available"] for row in answer["markets"])
    assert sum(row["spot"] for row in answer["jobs"]) == sum(row["used"] for row in answer["markets"])
    assert all(row["gain_usd"] >= -1e-6 for row in answer["compared"])
    assert answer["bound_usd"] >= answer["objective_usd"]
    assert answer["objective_usd"] == pytest.approx(
        sum(row["utility_usd"] for row in answer["jobs"]), abs=0.01
    )
    assert "nothing is stored" in " ".join(answer["notes"])
    # Beside it what a turn would decide: all three on the zone they name, no more spot than it has.
    assert [row["job"] for row in answer["decisions"]] == ["first", "second", "third"]
    assert {row["market"] for row in answer["decisions"]} == {"cloud/north/a/gpu-1"}
    there = {row["market"]: row["available"] for row in answer["markets"]}
    assert sum(row["spot"] for row in answer["decisions"]) <= there["cloud/north/a/gpu-1@probe:test"]


def test_the_joint_plan_keeps_what_a_job_that_may_move_is_decided_to_hold(folder, together, tmp_path):
    moving = tmp_path / "moving.toml"
    moving.write_text(
        JOB.format(name="moving")
        .replace("amount = 16", "amount = 40")
        .replace("n_max = 8", 'n_max = 8\nmarkets = ["cloud/*/*/gpu-1"]')
    )
    before = {row["market"]: row["available"] for row in together["markets"]}
    answer = planned(folder, "--job", str(moving))
    (decided,) = [row for row in answer["decisions"] if row["job"] == "moving"]
    assert decided["spot"]
    assert [row["job"] for row in answer["jobs"]] == ["first", "second", "third"]
    held = {f"{decided['market']}@{decided['source']}": decided["spot"]}
    for row in answer["markets"]:
        assert row["used"] <= row["available"] == before[row["market"]] - held.get(row["market"], 0)
    assert any("job moving is left out of the joint plan" in note for note in answer["notes"])


def test_teams_priorities_and_markets_come_from_a_file(folder, tmp_path):
    teams = tmp_path / "teams.toml"
    teams.write_text(
        "[teams.red]\ncap_usd = 12\nspent_usd = 4\n[jobs.first]\nteam = 'red'\n[jobs.second]\npriority = 5\n"
        "markets = ['cloud/north/b/gpu-1']\n[moving]\nminutes = 6\n"
    )
    answer = planned(folder, "--teams", str(teams))
    first, second, _ = answer["jobs"]
    assert answer["teams"][0]["left_usd"] == 8
    assert sum((slot["on_demand"] * 3.0 + slot["spot"] * 1.0) * 0.5 for slot in first["planned"]) <= 8 + 1e-6
    assert second["priority"] == 5
    assert {slot["market"] for slot in second["planned"]} <= {
        None, "cloud/north/a/gpu-1@probe:test", "cloud/north/b/gpu-1@probe:test"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[teams.red]\ncap_usd = -1\n", "teams.red.cap_usd"),
        ("[jobs.first]\nteam = 'blue'\n", "belongs to team 'blue'"),
        ("[jobs.first]\nprority = 2\n", "jobs.first.prority"),
        ("[teams", "valid TOML"),
    ],
)
def test_a_teams_file_that_cannot_be_used_is_refused_in_words(tmp_path, content, said):
    path = tmp_path / "teams.toml"
    path.write_text(content)
    with pytest.raises(SettingsError, match=said):
        read_terms(path)


def test_a_missing_teams_file_and_no_open_job_are_said(folder, tmp_path):
    with pytest.raises(SettingsError, match="No such file"):
        read_terms(tmp_path / "none.toml")
    words = ["fleet", "plan", "--data", str(folder), "--at", AT, "--json"]
    called = call(*words)
    assert called.code == 2
    assert "no job is open" in called.err


def world(counts, slots=60):
    return World(
        name="test",
        counts={f"z{i}": np.full(slots, float(count)) for i, count in enumerate(counts)},
        prices={f"z{i}": np.full(slots, 1.0 + 0.1 * i) for i in range(len(counts))},
        on_demand_usd=dict.fromkeys((f"z{i}" for i in range(len(counts))), 3.0),
        slot_hours=0.5,
        synthetic=False,
    )


def test_a_stream_gives_out_what_is_there_first_come_first_served():
    short = world((6, 4))
    drawn = draw_stream(short, first=0, slots=10, scarcity=5.0, markets_each=2, rng=np.random.default_rng(1))
    apart = run_stream(short, drawn, plan_apart, window=4)
    turned = run_stream(short, drawn, lambda p: plan_one_by_one(p, Order.SLACK), window=4)
    assert apart.refused > 0
    assert turned.refused == 0
    assert len(apart.ended) == len(turned.ended) == len(drawn) > 2
    assert sum(end.utility for end in turned.ended) > sum(end.utility for end in apart.ended)


def test_a_plan_reads_nothing_of_the_record_after_its_slot():
    from optimization.fleet.stream import Running
    from optimization.job.definition import Progress

    rng = np.random.default_rng(2)
    known = world((6, 4))
    drawn = draw_stream(known, first=0, slots=10, scarcity=9.0, markets_each=2, rng=rng)
    running = [Running(one, Progress(), None) for one in drawn if one.at == 3]
    before = problem_at(known, running, 3, window=5, move_hours=0.0)
    for key in known.counts:
        known.counts[key][4:] = rng.integers(0, 9, 56)
        known.prices[key][4:] = rng.uniform(0.5, 2.0, 56)
    after = problem_at(known, running, 3, window=5, move_hours=0.0)
    for key in before.markets:
        assert np.array_equal(before.markets[key].available, after.markets[key].available)
        assert np.array_equal(before.markets[key].price, after.markets[key].price)


def test_fairness_is_jains():
    assert jain([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain([1.0, -5.0]) == pytest.approx(0.5)


@pytest.mark.slow
def test_the_experiment_repeats_itself_and_its_page_holds_it(folder, tmp_path):
    answer = fleet_answer(folder, seed=1, fast=True, tell=lambda done, total: None)
    assert fleet_answer(folder, seed=1, fast=True, tell=lambda done, total: None) == answer
    assert {row["method"] for row in answer["methods"]} == set(METHODS)
    hard = [row for row in answer["gains"] if row["scarcity"] == 2.0 and row["over"] == "alone"]
    assert hard[0]["gain"] > 0
    page = rendered(fleet_report(answer))
    assert charts_of(page)


def test_a_job_that_the_turn_decided_otherwise_is_named_and_why():
    def opened(name):
        return SimpleNamespace(live=SimpleNamespace(job=SimpleNamespace(name=name)))

    def decided(name):
        return {"job": name, "market": f"market/{name}", "source": "s", "on_demand": 0, "spot": 3}

    def route(market, on_demand, spot):
        place = SimpleNamespace(market=market, allocation=Allocation(on_demand, spot))
        return SimpleNamespace(places=(place,))

    fleet = SimpleNamespace(
        open=tuple(map(opened, ("same", "less", "moved", "undecided"))),
        problem=SimpleNamespace(slots=6),
    )
    plan = SimpleNamespace(
        routes=(
            route("market/same@s", 0, 3),
            route("market/less@s", 1, 1),
            route("elsewhere@s", 0, 3),
            route("market/undecided@s", 2, 0),
        )
    )
    rows = [decided(name) for name in ("same", "less", "moved")]
    less, moved, why = _otherwise(fleet, plan, rows)
    assert less == "job less: decided are 0 on-demand and 3 spot, the joint plan holds 1 and 1"
    assert moved.endswith("the joint plan holds 0 and 3 on elsewhere@s")
    assert "6 slots on the middle forecast" in why
    fleet.open = fleet.open[:1]
    plan.routes = plan.routes[:1]
    assert _otherwise(fleet, plan, rows) == []
