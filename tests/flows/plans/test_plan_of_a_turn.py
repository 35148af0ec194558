"""`slackwater plan`: the row issued by a turn, its slot, the change of instances, and queries for other times and counts."""

import json
import shutil

import pandas as pd
import pytest
from command_kit import call
from forms_kit import quick_first
from make import job_text, make_request, work
from test_turn import AT, one_turn, small_settings

from slackwater.flows.config import read_settings
from slackwater.flows.histories import read_history
from slackwater.flows.ledger.decisions import decisions_of
from slackwater.flows.ledger.headline import headline, over_since
from slackwater.flows.places import find_market
from slackwater.flows.query import TurnMoment, newest_turn, usual_moment
from slackwater.flows.ui.jobs import jobs_data
from slackwater.flows.ui.reading import Reading
from slackwater.warehouse.history import AVAILABLE
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.store.connection import open_reader, open_store

STEP = pd.Timedelta("30min")
NAMES = ("a", "b", "c")
WORK = work(34, "gpu_hours")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return settings, job files and a warehouse after a turn, with three jobs on a market with too little spot for all."""
    place = tmp_path_factory.mktemp("plan")
    settings = read_settings(small_settings(place, measured_origins=0))
    db = place / "before.duckdb"
    one_turn(db, settings)
    with open_store(db) as store:
        keys = sorted(set(list_markets(store)["market"]))
        places = {key: find_market(store, key, at=AT, settings=settings) for key in keys}
        counts = {
            key: int(read_history(store, one, settings=settings, start=AT).frame[AVAILABLE].iloc[-1])
            for key, one in places.items()
        }
    market = next(key for key, count in counts.items() if 9 <= count <= 20)
    (place / "market").write_text(market)
    (place / "count").write_text(str(counts[market]))
    for name in (*NAMES, "d"):
        (place / f"{name}.toml").write_text(job_text(name, workload=WORK))
    for name in NAMES:
        added = call(
            "job", "add", place / f"{name}.toml", "--market", market, "--at", AT.isoformat(), "--db", db
        )
        assert added.code == 0, added.err
    after = shutil.copy(db, place / "after.duckdb")
    one_turn(after, settings)
    return place


@pytest.fixture
def where(folder):
    def options(db="after", at=None):
        words = ("--db", folder / f"{db}.duckdb", "--settings", folder / "slackwater.toml")
        return (*words, "--at", at.isoformat()) if at is not None else words

    return options


def shown(row):
    return {
        key: row[key] for key in ("job", "slot", "market", "on_demand", "spot", "expected_cost_usd", "reason")
    }


def on_the_clock(monkeypatch, now):
    monkeypatch.setattr("slackwater.flows.clock.now", lambda: now)


def test_plan_run_fleet_plan_and_ui_agree_before_and_after_the_turn(folder, where):
    settings = read_settings(folder / "slackwater.toml")
    with open_reader(folder / "after.duckdb") as store:
        issued = {name: decisions_of(store, name)[-1] for name in NAMES}
        reading = Reading(store=store, settings=settings, db=folder / "after.duckdb", now=AT, at=AT, run=None)
        holds = {
            row["job"]: row["hold"] for row in jobs_data(reading, state="running")["jobs"] if row["hold"]
        }
    assert sum(row["spot"] for row in issued.values()) <= int((folder / "count").read_text())
    assert len({row["spot"] for row in issued.values()}) > 1
    for db in ("before", "after"):
        plans = {name: call("plan", name, *where(db, AT), "--json").value for name in NAMES}
        fleet = {
            row["job"]: row for row in call("fleet", "plan", *where(db, AT), "--json").value["decisions"]
        }
        for name, row in issued.items():
            assert {key: plans[name][key] for key in row} == row
            assert shown(fleet[name]) == shown(row)
            assert plans[name]["issued_at"] == (AT.isoformat() if db == "after" else None)
            assert plans[name]["decided_with"] == [other for other in NAMES if other != name]
    for name, row in issued.items():
        assert shown(holds[name]) == shown(row)
    assert f"Issued at {AT:%Y-%m-%d %H:%M} UTC." in call("plan", "a", *where(at=AT)).said
    assert "Not issued" in call("plan", "a", *where("before", AT)).said


def test_an_issued_plan_says_that_the_terms_have_changed_since(folder, tmp_path):
    db = ("--db", shutil.copy(folder / "after.duckdb", tmp_path / "w.duckdb"))
    own = (*db, "--settings", folder / "slackwater.toml", "--at", AT.isoformat())
    assert "has changed since" not in call("plan", "a", *own).said
    assert call("job", "change", "a", "--deadline-in", "9h", *own).code == 0
    assert "its deadline or its work has changed since" in " ".join(call("plan", "a", *own).said.split())


def test_alone_answers_the_other_question_and_says_so(where):
    plans = {name: call("plan", name, *where(at=AT), "--json").value for name in NAMES}
    name = min(NAMES, key=lambda name: plans[name]["spot"])
    joint, others = plans[name], [other for other in NAMES if other != name]
    alone = call("plan", name, *where(at=AT), "--alone", "--json").value
    assert alone["spot"] > joint["spot"]
    assert (alone["alone"], alone["decided_with"], alone["issued_at"]) == (True, [], None)
    assert (joint["alone"], joint["decided_with"]) == (False, others)
    said = call("plan", name, *where(at=AT), "--alone").said
    assert "planned alone, as if no other job wanted spot" in said
    assert (
        f"the turn has issued {joint['on_demand']} on-demand and {joint['spot']} spot for this slot" in said
    )


def test_a_file_is_planned_together_with_the_open_jobs_and_a_stored_one_is_that_job(folder, where):
    market = ("--market", (folder / "market").read_text())
    taken = sum(call("plan", name, *where(at=AT), "--json").value["spot"] for name in NAMES)
    planned = call("plan", folder / "d.toml", *market, *where(at=AT), "--json").value
    assert planned["decided_with"] == list(NAMES)
    assert planned["spot"] <= int((folder / "count").read_text()) - taken
    said = call("plan", folder / "d.toml", *market, *where(at=AT)).said
    assert "3 other open jobs share the spot of this slot: a, b and c" in said
    assert "job d is not in the warehouse" in said
    stored = call("plan", folder / "c.toml", *where(at=AT), "--json").value
    assert stored == call("plan", "c", *where(at=AT), "--json").value


def test_without_a_time_the_slot_of_the_newest_turn_is_planned_and_an_expired_slot_is_said(
    where, monkeypatch
):
    value = call("plan", "a", *where(), "--json").value
    assert (pd.Timestamp(value["slot"]), value["issued_at"], value["expired"]) == (AT, AT.isoformat(), True)
    assert "This slot ended" in call("plan", "a", *where()).said
    on_the_clock(monkeypatch, AT + pd.Timedelta("10min"))
    assert call("plan", "a", *where(), "--json").value["expired"] is False
    first = call("plan", "a", *where()).said
    assert first.startswith(f"Run {value['spot']} spot")
    assert "until 06:30 UTC (start" in first
    on_the_clock(monkeypatch, AT + pd.Timedelta("70min"))
    said = call("plan", "a", *where()).said
    assert said.startswith(
        "This slot ended 40 minutes ago, at 06:30 UTC: start nothing for it. `slackwater run` again"
    )
    # The result is the same with an explicit time.
    assert call("plan", "a", *where(at=AT)).said == said
    assert call("fleet", "plan", *where(), "--json").value["slot"] == AT.isoformat()


@pytest.mark.parametrize("ended", quick_first(["--withdrawn", "--finished"]))
def test_an_issued_decision_is_refused_once_the_job_has_ended_in_its_slot(
    folder, where, monkeypatch, tmp_path, ended
):
    db = shutil.copy(folder / "after.duckdb", tmp_path / "ended.duckdb")
    own = ("--db", db, "--settings", folder / "slackwater.toml")
    on_the_clock(monkeypatch, AT + pd.Timedelta("10min"))
    assert call("plan", "a", *own).code == 0
    on_the_clock(monkeypatch, AT + pd.Timedelta("20min"))
    assert call("job", "report", "a", *own, ended).code == 0
    refused = call("plan", "a", *own)
    assert refused.code == 2
    assert "nothing is to run" in refused.err
    on_the_clock(monkeypatch, AT + pd.Timedelta("70min"))  # the decision of a past slot is shown
    assert call("plan", "a", *own, "--at", AT.isoformat()).code == 0


@pytest.mark.parametrize(
    ("clock", "starts", "expected"),
    [
        ("10min", "0min", "0min"),  # the turn's slot
        ("70min", "0min", "0min"),  # nothing was observed since the turn
        ("70min", "60min", "60min"),  # the job was not open at the time of the turn
        ("30D", "0min", "0min"),
    ],
)
def test_the_usual_time_is_one_at_which_the_job_is_open(folder, clock, starts, expected):
    settings = read_settings(folder / "slackwater.toml")
    market, work = (folder / "market").read_text(), {"amount": 4, "unit": "gpu_hours"}
    job = make_request("x", at=AT + pd.Timedelta(starts), market=market, deadline_in="4h", workload=work)
    with open_reader(folder / "after.duckdb") as store:
        turn = newest_turn(store)
        assert turn == TurnMoment(at=AT, slot=AT)
        now = AT + pd.Timedelta(clock)
        assert usual_moment(store, settings, [job], turn, clock=now).slot == AT + pd.Timedelta(expected)
        # Without a turn, the time is now while the job is open, otherwise the end of the record.
        plain = usual_moment(store, settings, [job], None, clock=now).slot
        assert plain == (now.floor("30min") if job.start <= now < job.deadline else AT)
        # A request without markets is planned now, or at the end of a record that ended more than a day ago.
        free = usual_moment(store, settings, [], None, clock=now).slot
        assert free == (AT if clock == "30D" else now.floor("30min"))
        # New observations since the turn make it now.
        earlier = TurnMoment(at=AT - 4 * STEP, slot=AT - 4 * STEP)
        new = usual_moment(store, settings, [job], earlier, clock=now).slot
        assert new == (now.floor("30min") if clock != "30D" else AT)


def test_a_record_that_ends_before_now_is_stale_data_with_its_age_and_still_a_decision(
    folder, where, monkeypatch
):
    late = AT + pd.Timedelta("3h10min")
    on_the_clock(monkeypatch, late)
    db = shutil.copy(folder / "before.duckdb", folder / "late.duckdb")
    file = folder / "late.toml"
    file.write_text(
        job_text("late", workload=WORK, deadline_in=None, start=late - STEP, deadline=late + 8 * STEP)
    )
    market = (folder / "market").read_text()
    assert call("job", "add", file, "--market", market, "--db", db, *where()[2:]).code == 0
    for job in ("late", file):
        planned = call("plan", job, "--db", db, *where()[2:], "--json").value
        assert (planned["slot"], planned["expired"]) == (late.floor("30min").isoformat(), False)
        assert (
            planned["stale"]
            == f"the newest count of {market} is from {AT:%Y-%m-%d %H:%M} UTC, 3 hours before this slot"
        )
    said = call("plan", "late", "--db", db, *where()[2:]).said
    assert f"STALE DATA: {planned['stale']}" in said


def test_the_change_is_against_what_is_held(folder, where):
    db = shutil.copy(folder / "after.duckdb", folder / "next.duckdb")
    one_turn(db, read_settings(folder / "slackwater.toml"), at=AT + STEP)
    with open_reader(db) as store:
        rows = {name: decisions_of(store, name) for name in NAMES}
    for first, second in rows.values():
        assert (first["held_on_demand"], first["held_spot"], first["held_from"]) == (0, 0, "decided")
        assert second["held_on_demand"] == first["on_demand"]
        assert second["held_spot"] <= first["spot"]
        for row in (first, second):
            for kind in ("on_demand", "spot"):
                assert row[f"held_{kind}"] + row[f"start_{kind}"] - row[f"stop_{kind}"] == row[kind]
                assert 0 in (row[f"start_{kind}"], row[f"stop_{kind}"])
    # Instances reported at the start of a slot replace the decided instances.
    later = AT + 2 * STEP
    words = ("--db", db, *where()[2:])
    assert (
        call("job", "report", "a", "--spot", 1, "--on-demand", 2, "--at", later.isoformat(), *words).code == 0
    )
    planned = call("plan", "a", *words, "--at", later.isoformat(), "--json").value
    assert (planned["held_on_demand"], planned["held_spot"], planned["held_from"]) == (2, 1, "reported")
    assert planned["held_before"] == 3
    # A report after the decision was issued does not change it; the output explains how to plan from the reported instances.
    during = (AT + STEP + pd.Timedelta("5min")).isoformat()
    assert call("job", "report", "b", "--spot", 0, "--on-demand", 7, "--at", during, *words).code == 0
    again = call("plan", "b", *words, "--at", (AT + STEP).isoformat())
    assert "`--held-on-demand 7 --held-spot 0` plans the slot from there" in again.said


def test_what_is_held_can_be_given_for_one_slot(where):
    issued = call("plan", "a", *where(at=AT), "--json").value
    given = call("plan", "a", *where(at=AT), "--held-spot", 2, "--held-on-demand", 1, "--json").value
    assert (given["held_spot"], given["held_on_demand"], given["held_before"]) == (2, 1, 3)
    assert given["start_spot"] == max(0, given["spot"] - 2)
    assert given["stop_on_demand"] == max(0, 1 - given["on_demand"])
    assert given["issued_at"] is None
    said = call("plan", "a", *where(at=AT), "--held-spot", 2).said
    assert "planned from 0 on-demand and 2 spot held, as given, for this slot only" in said
    # The given instances are not stored.
    assert call("plan", "a", *where(at=AT), "--json").value == issued
    # The restart cost of a change of size is computed from the given instances.
    same = call("plan", "a", *where(at=AT), "--alone", "--held-spot", 8, "--json").value
    none = call("plan", "a", *where(at=AT), "--alone", "--json").value
    assert (same["change"], none["change"]) == ("no change", "start 8 spot")
    assert same["expected_cost_usd"] < none["expected_cost_usd"]


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (
            ("--held-spot", 9),
            "9 instances held (0 on-demand, 9 spot); expected at most 8, the n_max of job 'a'",
        ),
        (("--held-spot", 5, "--held-on-demand", 5), "10 instances held"),
        (("--held-spot", -1), "--held-spot"),
        (("--held-on-demand", "some"), "--held-on-demand"),
    ],
)
def test_what_cannot_be_held_is_refused(where, held, said):
    refused = call("plan", "a", *where(at=AT), *held)
    assert refused.code == 2
    assert said in refused.err


def test_a_job_that_has_ended_or_not_begun_is_told_in_words(where):
    early = call("plan", "a", *where(at=AT - STEP))
    assert early.code == 2
    assert f"job 'a' begins at {AT:%Y-%m-%d %H:%M} UTC" in early.err
    late = call("plan", "a", *where(at=AT + 12 * STEP))
    assert late.code == 2
    assert f"job 'a' ended at its deadline, {AT + 12 * STEP:%Y-%m-%d %H:%M} UTC: missed: " in late.err
    assert "`slackwater job show a`" in late.err
    unknown = call("plan", "nobody", *where())
    assert (unknown.code, "no job 'nobody'" in unknown.err) == (2, True)


def test_one_policy_is_another_question(where):
    by_up = call("plan", "a", *where(at=AT), "--policy", "UP", "--json").value
    assert (by_up["policy"], by_up["chosen_because"], by_up["issued_at"]) == ("UP", "asked for", None)


def test_a_stored_decision_of_an_older_version_has_a_headline(where):
    row = {"on_demand": 1, "spot": 0, "slot_end": "2026-03-10T06:30:00+00:00", "expected_cost_usd": None}
    assert headline(row) == "Run 1 on-demand instance until 2026-03-10 06:30 UTC."
    assert over_since(row, pd.Timestamp("2026-03-10T06:29:59Z")) == ""
    moved = row | {"market": "p/r/z1/t", "move_usd": 1.0, "place": "p/r/z1/t", "change": "start 1 on-demand"}
    assert headline(moved) == "Run 1 on-demand instance in z1 until 2026-03-10 06:30 UTC (start 1 on-demand)."


def test_the_document_of_a_plan_keeps_its_form(where):
    value = json.loads(call("plan", "a", *where(at=AT), "--json").out)
    assert value["schema"] == "slackwater.decision/2"
    assert {"expired", "issued_at", "alone", "decided_with", "change", "held_spot"} <= set(value)


@pytest.mark.parametrize(("left", "told"), [("3min", True), ("20min", False)])
def test_a_plan_shortly_before_the_slot_ends_tells_when_new_instances_work(where, monkeypatch, left, told):
    on_the_clock(monkeypatch, AT + STEP - pd.Timedelta(left))
    said = call("plan", "a", *where(at=AT)).said
    assert said.startswith("Run ")
    assert (f"This slot ends in {left[:-3]} min" in said) is told
    assert (f"start now for the slot from {AT + STEP:%H:%M} UTC, and plan again then." in said) is told
