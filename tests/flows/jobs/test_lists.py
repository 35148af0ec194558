"""`job add` of several files, and the lists of markets and jobs: patterns, sorting and length."""

import json
import shutil

import pandas as pd
import pytest
from command_kit import call, printed
from test_units_commands import END, JOB, history

from slackwater.flows.config import Settings
from slackwater.flows.ledger.decisions import save_decisions
from slackwater.flows.ledger.jobs import find_job
from slackwater.flows.ledger.reports import Report, save_report
from slackwater.flows.show.blocks import Table
from slackwater.flows.show.terminal import Style, lines_of
from slackwater.flows.ui.jobs import jobs_data
from slackwater.flows.ui.reading import Reading
from slackwater.warehouse.issued import write_rows
from slackwater.warehouse.store.connection import open_reader, open_store

FORM = {"amount": 320, "unit": "gpu_hours", "sizes": "gpus_max = 64", "per": ', per = "gpu"'}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return three zones of p4d.24xlarge and the result of adding four job files: two valid, an invalid and a missing file."""
    folder = tmp_path_factory.mktemp("lists")
    (folder / "p4d.json").write_text(history("p4d.24xlarge"))
    for name, hours in (("late", 60), ("soon", 42), ("bad", 42)):
        text = JOB.format(name=name, market="aws/us-east-1/us-east-1b/p4d.24xlarge", **FORM)
        (folder / f"{name}.toml").write_text(
            text.replace('"42h"', '"fish"' if name == "bad" else f'"{hours}h"')
        )
    assert call("ingest", "aws", folder / "p4d.json", "--db", folder / "w.duckdb").code == 0
    found = call(
        "job", "add", *(folder / f"{name}.toml" for name in ("late", "bad", "soon", "gone")), "--db", folder / "w.duckdb",
        "--at", END.isoformat(),
    )  # fmt: skip
    return folder, found


def test_a_file_that_cannot_be_used_costs_itself_alone(folder):
    found = folder[1]
    assert found.code == 2
    text = " ".join(found.out.split())
    assert "2 jobs added: late, soon." in text
    assert "Not added:" in text
    assert "bad.toml: job 'bad': deadline_in 'fish'" in text
    assert "gone.toml: No such file or directory" in text


def test_one_name_is_for_one_file(folder):
    where, _ = folder
    found = call(
        "job", "add", where / "late.toml", where / "soon.toml", "--name", "x", "--db", where / "w.duckdb"
    )
    assert (found.code, "--name x with 2 files" in found.err) == (2, True)
    assert "no job file" in call("job", "add", "--db", where / "w.duckdb").err


def test_jobs_stand_by_urgency_and_can_be_named_by_patterns(folder):
    db = folder[0] / "w.duckdb"
    at = ("--at", END.isoformat())
    rows = call("job", "list", "--db", db, *at, "--json").value["jobs"]
    assert [row["job"] for row in rows] == ["soon", "late"]
    for pattern, names in (("late", ["late"]), ("us-east-1b", ["soon", "late"]), ("l?te", ["late"])):
        rows = call("job", "list", pattern, "--db", db, *at, "--json").value["jobs"]
        assert [row["job"] for row in rows] == names
    assert "none of 2 jobs matches nix" in call("job", "list", "nix", "--db", db).err
    ended = call("job", "list", "--db", db, "--at", "2026-11-27T12:00Z", "--json").value["jobs"]
    assert [(row["job"], row["state"]) for row in ended] == [("late", "running"), ("soon", "ended")]


def test_markets_that_a_job_names_come_first_and_patterns_leave_others_out(folder):
    db = folder[0] / "w.duckdb"
    rows = call("markets", "--db", db, "--json").value["markets"]
    assert [row["zone"] for row in rows] == ["us-east-1b", "us-east-1a", "us-east-1c"]
    assert {row["capacity"] for row in rows} == {None}  # no counts were observed
    rows = call("markets", "1c", "P4D", "--db", db, "--json").value["markets"]
    assert [row["zone"] for row in rows] == ["us-east-1c"]
    rows = call("markets", "aws/*/*a/*", "--db", db, "--json").value["markets"]
    assert [row["zone"] for row in rows] == ["us-east-1a"]
    assert "none of 3 markets matches nix" in call("markets", "nix", "--db", db).err
    assert "patterns 1a together with --for" in call("markets", "1a", "--for", "late", "--db", db).err


def test_a_terminal_gets_a_screenful_and_the_way_to_fewer():
    rows = [{"market": f"m{k}"} for k in range(1527)]
    table = Table("Markets", rows, {"market": "market"}, most=40, more=" (a pattern shows fewer)")
    lines = list(lines_of([table], Style(width=80, abridged=True)))
    assert len(lines) < 50
    assert any("... and 1,487 more (a pattern shows fewer), see --json or --html" in line for line in lines)
    assert len(printed([table]).splitlines()) > 1527


def test_a_job_that_was_missed_is_loud(folder):
    db = folder[0] / "w.duckdb"
    asked = ("job", "list", "--db", db, "--at", "2026-11-29T12:00Z")
    rows = call(*asked, "--json").value["jobs"]
    assert all(row["ending"].startswith("missed: 0 % done at its deadline") for row in rows)
    assert "MISSED: soon: missed: 0 % done at its deadline" in " ".join(call(*asked).out.split())
    # Before its deadline a job has no ending.
    before = call("job", "list", "--db", db, "--at", END.isoformat(), "--json").value["jobs"]
    assert {row["ending"] for row in before} == {None}


def test_without_a_time_a_job_has_the_state_of_the_present(folder, monkeypatch):
    for at, states in (
        ("2026-11-26T12:00Z", {"running"}),
        ("2026-12-31T00:00Z", {"ended"}),
        ("2026-11-01T00:00Z", {"waiting"}),
    ):
        monkeypatch.setattr("slackwater.flows.clock.now", lambda at=at: pd.Timestamp(at))
        rows = call("job", "list", "--db", folder[0] / "w.duckdb", "--json").value["jobs"]
        assert {row["state"] for row in rows} == states
        assert {row["scored"] for row in rows} == {False}


@pytest.mark.parametrize(
    ("end", "hours", "state", "ending"),
    [("finished", 4, "finished", "finished"), ("withdrawn", 4, "withdrawn", "withdrawn by its owner"),
     ("finished", 48, "ended", "late: finished by")],
)  # fmt: skip
def test_a_job_has_one_state_in_the_list_and_on_the_web_pages(folder, tmp_path, end, hours, state, ending):
    db, at = tmp_path / "w.duckdb", END + pd.Timedelta(hours=hours)
    shutil.copy(folder[0] / "w.duckdb", db)
    assert call("job", "report", "soon", f"--{end}", "--at", at.isoformat(), "--db", db).code == 0
    rows = call("job", "list", "soon", "--db", db, "--at", at.isoformat(), "--json").value["jobs"]
    with open_reader(db) as store:
        reading = Reading(store=store, settings=Settings(), db=db, now=at, at=None, run=None)
        rows += jobs_data(reading, patterns=["soon"])["jobs"]
    assert [row["state"] for row in rows] == [state, state]
    assert all(row["ending"].startswith(ending) and row["late_probability"] is None for row in rows)


def test_running_jobs_stand_by_their_risk_of_missing_the_deadline(folder, tmp_path):
    db = tmp_path / "w.duckdb"
    shutil.copy(folder[0] / "w.duckdb", db)
    with open_store(db) as store:
        for name, late in (("soon", 0.02), ("late", 0.4)):
            held = {"job": name, "slot": END.isoformat(), "late_probability": late}
            store.execute(
                "INSERT INTO decisions (job, slot, on_demand, spot, policy, details) VALUES ($job, $slot, 0, 1, 'UP', $held)",
                {"job": name, "slot": END, "held": json.dumps(held)},
            )
    at = ("--at", END.isoformat())
    rows = call("job", "list", "--db", db, *at, "--json").value["jobs"]
    assert [(row["job"], row["late_probability"]) for row in rows] == [("late", 0.4), ("soon", 0.02)]
    assert "40 %" in call("job", "list", "--db", db, *at).out


@pytest.mark.parametrize(
    ("left_out", "finish_slots", "report", "state"),
    [
        ([], 1.0, None, "finished"),
        ([], 2.0, None, "finished"),
        ([], 3.0, None, "running"),  # the next turn had something to decide
        (["job soon is not decided: no price"], 1.0, None, "running"),
        ([], 1.0, 0.5, "running"),
        ([], 1.0, 1.0, "finished"),
    ],
)
def test_a_job_done_by_its_decisions_is_finished_everywhere(
    folder, tmp_path, left_out, finish_slots, report, state
):
    """The newest turn decided nothing for a job that its last decision expected to finish."""
    db, slot, step = tmp_path / "w.duckdb", pd.Timestamp(END).ceil("30min"), pd.Timedelta(minutes=30)
    shutil.copy(folder[0] / "w.duckdb", db)
    decided = {
        "job": "soon", "slot": slot.isoformat(), "slot_end": (slot + step).isoformat(),
        "market": "aws/us-east-1/us-east-1b/p4d.24xlarge",
        "source": "tabular", "policy": "UP", "reason": "because", "on_demand": 0, "spot": 1, "step_minutes": 30.0,
        "late_probability": 0.0, "progress_share": 0.9, "expected_finish": (slot + finish_slots * step).isoformat(),
    }  # fmt: skip
    turn, at = slot + step, slot + 1.5 * step
    with open_store(db) as store:
        save_decisions(store, [("r", decided)])
        details = json.dumps({"decisions": 0, "left_out": left_out})
        row = {"run": "s", "logical_at": turn, "stage": "allocate", "status": "done", "details": details}
        write_rows(store, "runs", [row | {"made": "live"}])
        if report is not None:
            amount = find_job(store, "soon").request.workload.amount
            said = Report(job="soon", reported_at=turn + 0.2 * step, known_at=at, progress=report * amount)
            save_report(store, said, find_job(store, "soon"))
    rows = call("job", "list", "soon", "--db", db, "--at", at.isoformat(), "--json").value["jobs"]
    with open_reader(db) as store:
        reading = Reading(store=store, settings=Settings(), db=db, now=at, at=turn, run="s")
        rows += jobs_data(reading, patterns=["soon"])["jobs"]
    assert [row["state"] for row in rows] == [state, state]
    assert all((row["ending"] is None) == (state == "running") for row in rows)
