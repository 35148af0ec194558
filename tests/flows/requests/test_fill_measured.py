"""Reports of filled jobs: observed throughput compared with the prediction, without use of later data (M9.4, M1.2)."""

import pandas as pd
import pytest
from advice_kit import BEGIN, MARKET, SOURCE, STEP, request
from command_kit import call

from slackwater.flows.ledger.decisions import save_decisions
from slackwater.flows.ledger.jobs import find_job, save_jobs
from slackwater.flows.ledger.reports import Report, save_report
from slackwater.flows.ledger.throughput import measured_rows
from slackwater.flows.requests.fill import job_text, measured_runs
from slackwater.optimization.job.request import FilledConfiguration, parse_request, read_request
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.store.connection import open_store

MINUTE = pd.Timedelta("1min")
RATES = (0.0, 1000.0, 1400.0, 1900.0)
FILLED = {
    "model_name": "llama3.1-8b", "method": "lora", "gpu_model": "NVIDIA-A100-SXM4-80GB", "gpus_per_instance": 2,
    "tokens_per_sample": 2048, "batch_size": 16, "torch_dtype": "bfloat16", "tokens_per_second": RATES,
    "low": tuple(0.9 * rate for rate in RATES), "high": tuple(1.2 * rate for rate in RATES),
    "round_samples": (0, 16, 18, 8), "rounds": (0, 1, 1, 2),
}  # fmt: skip
#: Five hours at 1400 tokens/s.
TOKENS = 1400.0 * 3600 * 5


def filled_request(name="demo", **changes):
    terms = {
        "n_min": 2, "n_max": 4, "workload": {"amount": TOKENS, "unit": "tokens"}, "configuration": FILLED,
        "throughput": {"form": "table", "rates": [3600 * (rate or 1000.0) for rate in RATES]},
        "checkpoint": {"resumable": True, "overhead_minutes": 5},
    }  # fmt: skip
    return request(name, **{**terms, **changes})


@pytest.fixture
def jobs():
    with open_store(":memory:") as store:
        save_jobs(store, [filled_request()], origin="user", at=BEGIN, step=STEP)
        yield store


def say(store, slot, *, known=None, **terms):
    when = BEGIN + slot * STEP
    known = when if known is None else BEGIN + known * STEP
    one = Report(job="demo", reported_at=when, known_at=known, **terms)
    save_report(store, one, find_job(store, "demo"))
    return one


def decided(store, totals):
    rows = [
        {
            "job": "demo",
            "slot": (BEGIN + k * STEP).isoformat(),
            "policy": "UP",
            "on_demand": 0,
            "spot": total,
            "reason": "",
        }
        for k, total in enumerate(totals)
    ]
    save_decisions(store, [("run", row) for row in rows])


def runs(store, slot=12):
    return measured_runs(store, known_at=BEGIN + slot * STEP)


def test_the_first_report_counts_from_the_start_without_the_time_to_come_up(jobs):
    say(jobs, 2, progress=1200.0 * 55 * 60, spot=3)  # an hour, of which five minutes are lost
    (run,) = runs(jobs)
    assert run.tokens_per_second == pytest.approx(1200.0)
    assert (run.since, run.instances, run.predicted) == (BEGIN, 3, 1400.0)
    assert not run.inside  # 1260 is the lower bound
    assert run.row()["error"] == pytest.approx(1200 / 1400 - 1)


def test_from_report_to_report_the_difference_counts(jobs):
    say(jobs, 2, progress=4e6, spot=3)
    say(jobs, 3, progress=4e6 + 1500.0 * 1800, spot=2, on_demand=1)
    assert [run.tokens_per_second for run in runs(jobs)] == pytest.approx([4e6 / 3300, 1500.0])
    assert runs(jobs)[1].inside


@pytest.mark.parametrize(("later", "minutes"), [(4, 5), (2, 1)])
def test_a_change_of_size_costs_its_overhead(later, minutes):
    point = {"resumable": True, "overhead_minutes": 5, "shrink_overhead_minutes": 1}
    with open_store(":memory:") as store:
        asked = filled_request(checkpoint=point)
        save_jobs(store, [asked], origin="user", at=BEGIN, step=STEP)
        decided(store, [3, 3, later])
        say(store, 2, progress=4e6)  # without counts in the report, the decided counts apply
        say(store, 3, progress=5e6)
        assert [run.instances for run in runs(store)] == [3, later]
        assert runs(store)[1].tokens_per_second == pytest.approx(1e6 / (1800 - 60 * minutes))


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({"progress": 1e6, "spot": 3}, {"progress": 2e6, "spot": 4}, "3 and 4 instances"),
        ({"progress": 1e6, "spot": 3}, {"finished": True}, "finished"),
        ({"progress": 1e6, "spot": 3}, {"spot": 3}, "no progress was reported"),
        ({"progress": 1e6, "spot": 3}, {"progress": 1e6, "spot": 3}, "no progress was made"),
        ({"progress": 1e6}, {"progress": 2e6}, "the instances that ran were not reported"),
        ({"progress": 1e6, "spot": 1}, {"progress": 2e6, "spot": 1}, "nothing was predicted for 1"),
        ({"progress": 1e6, "spot": 0}, {"progress": 2e6, "spot": 0}, "nothing was predicted for 0"),
    ],
)
def test_what_cannot_be_measured_says_why(jobs, first, second, why):
    reports = [say(jobs, 2, **first), say(jobs, 4, **second)]
    row = measured_rows(find_job(jobs, "demo"), [], reports)[1]
    assert why in row["why_not"]
    assert all(run.reported_at != reports[1].reported_at for run in runs(jobs))


def test_a_decision_of_another_size_in_between_leaves_nothing_to_measure(jobs):
    decided(jobs, [3, 3, 4, 3])
    say(jobs, 2, progress=3e6, spot=3)
    say(jobs, 4, progress=6e6)
    say(jobs, 5, progress=7e6)  # its slot has no decision
    assert [run.reported_at for run in runs(jobs)] == [BEGIN + 2 * STEP]


def test_both_ends_said_alike_overrule_what_was_decided(jobs):
    decided(jobs, [4, 4, 4, 4])
    say(jobs, 2, progress=3e6, spot=3)
    say(jobs, 4, progress=6e6, spot=3)
    assert [run.instances for run in runs(jobs)] == [3]  # for the first report only the end is known


def test_nothing_is_measured_before_it_was_known(jobs):
    say(jobs, 2, progress=3e6, spot=3)
    say(jobs, 4, known=8, progress=6e6, spot=3)
    assert [len(runs(jobs, slot)) for slot in (1, 2, 7, 8)] == [0, 1, 1, 2]


def test_a_correction_changes_later_looks_only(jobs):
    say(jobs, 2, progress=3e6, spot=3)
    before = runs(jobs, 5)
    say(jobs, 2, known=6, progress=4e6, spot=3)
    assert runs(jobs, 5) == before
    assert runs(jobs, 6)[0].tokens_per_second == pytest.approx(before[0].tokens_per_second * 4 / 3)


def test_the_run_that_is_fed_back_is_one_of_whole_rounds(jobs):
    say(jobs, 2, progress=1200.0 * 55 * 60, spot=3)
    row = runs(jobs)[0].run()
    # A step of 16 samples in a round of 18: the GPUs processed 18/16 of the counted samples.
    assert row["batch_size"] == 18
    assert row["number_gpus"] == 6
    assert row["number_nodes"] == 3
    assert row["tokens_per_second"] == pytest.approx(1200.0 * 18 / 16)


def test_a_job_that_was_not_filled_measures_nothing():
    with open_store(":memory:") as store:
        save_jobs(store, [request()], origin="user", at=BEGIN, step=STEP)
        one = say(store, 2, progress=4.0, spot=3)
        assert runs(store) == []
        assert measured_rows(find_job(store, "demo"), [], [one]) == [None]


def test_the_commands_show_it(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    db = tmp_path / "w.duckdb"
    with open_store(db) as store:
        save_jobs(store, [filled_request(), request("plain")], origin="user", at=BEGIN, step=STEP)
    at = (BEGIN + 2 * STEP).isoformat()
    words = ("--spot", "3", "--at", at, "--db", db)
    report = ("job", "report", "demo", *words)
    told = call(*report, "--tokens", 1400 * 55 * 60, "--json").value["throughput"]
    assert told["inside"] is True
    assert told["tokens_per_second"] == pytest.approx(1400.0)
    printed = call(*report, "--tokens", 1000 * 55 * 60)
    assert "1000 tokens/s on 3 instances, predicted 1400 (-28.6%), outside the 90 % interval" in printed.out
    shown = call("job", "show", "demo", "--db", db, "--json").value
    assert shown["job"]["configuration"]["gpu_model"] == FILLED["gpu_model"]
    assert shown["reports"][0]["throughput"]["tokens_per_second"] == pytest.approx(1000.0)
    assert "1000 tokens/s on 3 instances" in call("job", "show", "demo", "--db", db).out
    assert "throughput" not in call("job", "report", "plain", "--progress", 4, *words, "--json").value


def test_a_filled_job_survives_its_file(tmp_path):
    asked = filled_request(name='a "quoted" \\ näme')
    file = tmp_path / "job.toml"
    file.write_text(job_text(asked, notes=["first\nsecond"]), encoding="utf-8")
    assert read_request(file) == asked
    assert (asked.market, asked.source) == (MARKET, SOURCE)


@pytest.mark.parametrize("name", ["a\x7f", "a\nb", "a\x1b[31mb", "a\u202eb", "x" * 201])
def test_a_name_that_no_terminal_should_print_is_refused(name):
    with pytest.raises(JobError, match="name"):
        filled_request(name=name)


@pytest.mark.parametrize(
    "change",
    [{"low": (0.0, 1001.0, 1.0, 1.0)}, {"rounds": (0, 1, 1)}, {"rounds": (0, 0, 1, 2)}, {"high": (0.0, 1e9, float("inf"), 1e9)}],
)  # fmt: skip
def test_tables_that_contradict_each_other_are_refused(change):
    FilledConfiguration.model_validate(FILLED)
    with pytest.raises(JobError, match="configuration"):
        parse_request(
            filled_request().model_dump(exclude={"start", "deadline"})
            | {"configuration": {**FILLED, **change}},
            "test",
        )
