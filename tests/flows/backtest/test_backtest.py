"""Test `slackwater backtest`: compare policies over many start times of a stored record."""

from dataclasses import replace
from types import SimpleNamespace

import jsonschema
import pandas as pd
import pytest
from command_kit import call
from make import job_text, work
from page_kit import charts_of
from tidy_folder import write_tidy

from slackwater.flows.backtest.run import Run, _rank, _summary
from slackwater.flows.schemas.forms import schema

MARKET = "lab/r1/z1/a3-highgpu-1g"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a warehouse with eight days of counts and prices, and settings that forecast with the last value."""
    folder = tmp_path_factory.mktemp("backtest")
    write_tidy(folder / "data")
    (folder / "s.toml").write_text('planner = "last_value"\nmodels = ["last_value"]\n')
    done = call("ingest", "tabular", folder / "data", "--db", folder / "w.duckdb")
    assert done.code == 0, done.err
    return folder


def backtest_job(**changes):
    terms = {"n_max": 4, "value_usd": 300, "workload": work(12, "slots")}
    return job_text("lora", **terms | changes)


def simulate(folder, *words, **changes):
    job = folder / "job.toml"
    job.write_text(backtest_job(**changes))
    where = ("--db", folder / "w.duckdb", "--settings", folder / "s.toml", "--market", MARKET)
    return call("backtest", "--job", job, *where, *words)


def test_every_start_is_a_replay_of_that_start(folder):
    """Mean, maximum and lateness in the table follow from the individual replays."""
    found = simulate(
        folder, "--from", "2025-03-08", "--to", "2025-03-09", "--every", "12h",
        "--policy", "UP", "--policy", "OD-only", "--json",
    ).value  # fmt: skip
    jsonschema.validate(found, schema("backtest"))
    assert found["starts"] == 3
    assert found["deadline_slots"] == 12
    assert found["model"] == "world"
    own = {}
    for start in ("2025-03-08T00:00Z", "2025-03-08T12:00Z", "2025-03-09T00:00Z"):
        replay = call(
            "replay", "--job", folder / "job.toml", "--db", folder / "w.duckdb", "--settings", folder / "s.toml",
            "--market", MARKET, "--policy", "UP", "--from", start, "--json",
        ).value  # fmt: skip
        own[replay["from"]] = replay
    runs = {run["start"]: run for run in found["runs"] if run["policy"] == "UP"}
    assert {start: run["cost_usd"] for start, run in runs.items()} == pytest.approx(
        {start: replay["cost_usd"] for start, replay in own.items()}
    )
    assert {start: run["hindsight_usd"] for start, run in runs.items()} == pytest.approx(
        {start: replay["hindsight"]["cost_usd"] for start, replay in own.items()}
    )
    assert {start: run["finish"] for start, run in runs.items()} == {
        start: replay["finish"] for start, replay in own.items()
    }
    up = next(row for row in found["policies"] if row["policy"] == "UP")
    costs = [run["cost_usd"] for run in runs.values()]
    alone = [run["on_demand_only_usd"] for run in runs.values()]
    assert up["mean_cost_usd"] == pytest.approx(sum(costs) / 3)
    assert up["worst_cost_usd"] == pytest.approx(max(costs))
    assert runs[up["worst_start"]]["cost_usd"] == pytest.approx(max(costs))
    assert up["saved_share"] == pytest.approx(1 - sum(costs) / sum(alone))
    assert up["late"] == sum(not run["on_time"] for run in runs.values())


def test_an_interval_is_of_blocks_of_a_day_or_of_the_job(folder):
    """24 starts within two days give two blocks; a job of 36 hours has blocks of 36 hours."""
    light = ("--policy", "OD-only", "--json")
    short = simulate(
        folder, "--from", "2025-03-07", "--to", "2025-03-08T23:00Z", "--every", "2h", *light
    ).value
    assert short["starts"] == 24
    assert short["blocks"] == 2
    long = simulate(
        folder, "--from", "2025-03-05", "--to", "2025-03-07T23:00Z", "--every", "12h", *light,
        deadline_in="36h",
    ).value  # fmt: skip
    assert long["starts"] == 6
    assert long["blocks"] == 2
    single = simulate(folder, "--from", "2025-03-07", "--to", "2025-03-07T12:00Z", "--every", "6h")
    assert "1 block. With fewer than 3 there is no interval." in single.said


def test_a_fixed_deadline_is_replayed_as_its_length(folder):
    """A job from 12:00 to 18:00 of a fixed date has six hours at every start."""
    found = simulate(
        folder, "--from", "2025-03-08", "--to", "2025-03-08T12:00Z", "--every", "12h", "--json",
        deadline_in=None,
        start=pd.Timestamp("2031-01-01T12:00Z"),
        deadline=pd.Timestamp("2031-01-01T18:00Z"),
    ).value  # fmt: skip
    assert found["deadline_slots"] == 12
    assert found["starts"] == 2


def test_default_starts_are_those_that_fit_into_the_record(folder):
    """Starts before the first observation are counted as left out; the last job ends with the record."""
    found = simulate(folder, "--every", "24h", "--policy", "OD-only", "--json").value
    assert found["left_out"] > 0
    assert found["starts"] + found["left_out"] == 31
    assert found["from"] >= "2025-03-03"
    assert "left out" in simulate(folder, "--every", "24h", "--policy", "OD-only").said


def test_the_answer_comes_first_and_the_page_has_its_chart(folder):
    done = simulate(
        folder, "--from", "2025-03-06", "--to", "2025-03-08", "--every", "6h", "--html", folder / "b.html"
    )
    first = done.out.splitlines()[0]
    assert "on average" in first
    assert "less than on-demand only" in first
    assert "MSU" in done.out
    assert "optimum in the slot model" in " ".join(done.out.split())
    assert "model: world" in " ".join(done.out.split())
    assert len(charts_of((folder / "b.html").read_text())) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--every", "1min"), "at least a slot"),
        (("--every", "30min", "--from", "2024-01-01"), "at most 2,000"),
        (("--from", "2025-03-20", "--to", "2025-03-21"), "in the record"),
        (("--from", "2025-03-09", "--to", "2025-03-08"), "the first before the last"),
        (("--policy", "nonsense"), "nonsense"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_words(folder, words, said):
    done = simulate(folder, *words)
    assert done.code == 2
    assert said in done.err


def test_a_job_that_cannot_resume_is_simulated_on_demand_only(folder):
    job = folder / "fixed.toml"
    job.write_text(backtest_job(checkpoint={"resumable": False}))
    found = call(
        "backtest", "--job", job, "--db", folder / "w.duckdb", "--settings", folder / "s.toml", "--market", MARKET,
        "--from", "2025-03-08", "--to", "2025-03-08T06:00Z", "--json",
    ).value  # fmt: skip
    assert [row["policy"] for row in found["policies"]] == ["OD-only"]


def test_a_job_of_several_markets_is_simulated_over_all_of_them(folder):
    job = folder / "anywhere.toml"
    job.write_text(backtest_job(markets=["lab/*/*/a3-highgpu-1g"]))
    found = call(
        "backtest", "--job", job, "--db", folder / "w.duckdb", "--settings", folder / "s.toml",
        "--from", "2025-03-08", "--to", "2025-03-08T06:00Z", "--json",
    ).value  # fmt: skip
    assert len(found["markets"]) == 3
    assert found["starts"] == 2
    assert found["model"] == "world"
    assert all(run["on_time"] for run in found["runs"])


def test_a_start_that_is_given_up_has_no_saving():
    """$60 and $40 of $100 in two starts, and a third that is given up for $5: 50 % saved in the finished jobs."""
    day, start = pd.Timedelta("1D"), pd.Timestamp("2026-03-01T00:00Z")
    runs = [
        Run(
            start=start + k * day, policy="UP", cost_usd=cost, on_time=finished, spot_share=1.0, on_demand_only_usd=100.0,
            finish=start + (k + 0.5) * day if finished else None, hindsight_usd=30.0, utility_usd=value - cost,
        )
        for k, (cost, finished, value) in enumerate([(60.0, True, 90.0), (40.0, True, 90.0), (5.0, False, 0.0)])
    ]  # fmt: skip
    blocks = SimpleNamespace(block_of=lambda at: (at - start) // day)
    row = _summary("UP", runs, blocks)
    assert (row.starts, row.late, row.given_up, row.mean_cost_usd) == (3, 1, 1, 35.0)
    assert (row.saved_usd, row.saved_share) == pytest.approx((50.0, 0.5))
    assert row.mean_utility_usd == pytest.approx((30.0 + 50.0 - 5.0) / 3)
    none = _summary("UP", runs[2:], blocks)
    assert (none.saved_usd, none.saved_share, none.saved_low) == (None, None, None)
    # A policy that is never late but pays more than the value is worth less than one that gives the job up.
    never_late = replace(row, policy="OD-only", late=0, mean_cost_usd=100.0, mean_utility_usd=-10.0)
    assert sorted([never_late, row], key=_rank) == [row, never_late]
    hard = [replace(summary, mean_utility_usd=None) for summary in (row, never_late)]
    assert sorted(hard, key=_rank) == hard[::-1]
