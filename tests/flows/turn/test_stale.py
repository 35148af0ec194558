"""A decision on old data reports their age; so does a plan on a record that ended long ago."""

import pandas as pd
import pytest
from command_kit import call
from forms_kit import quick_first
from make import job_text, make_turn, work
from test_turn import small_settings
from tidy_folder import DAYS, START, write_tidy

from slackwater.flows.config import read_settings
from slackwater.flows.ledger.fields import DECISION, decision_notes
from slackwater.flows.monitoring.completeness import expected_updates, freshness
from slackwater.flows.turn.report.command import decision_blocks
from slackwater.flows.turn.stages import whole_turn
from slackwater.optimization.job.request import read_request
from slackwater.warehouse.store.connection import open_store

MARKET = "lab/r1/z1/a3-highgpu-1g"
TERMS = {"n_max": 4, "workload": work(8)}
#: Time of the newest count; counts are ten minutes apart.
LAST = START + pd.Timedelta(days=DAYS) - pd.Timedelta(minutes=10)
LATER = LAST.floor("30min") + pd.Timedelta(hours=41)
TOLD = f"the newest count of {MARKET} is from {LAST:%Y-%m-%d %H:%M} UTC, 41 hours before this slot"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("stale")
    write_tidy(place / "data")
    small_settings(place, measured_origins=0)
    (place / "late.toml").write_text(job_text("late", market=MARKET, **TERMS))
    return place


def plan(folder, *more, settings="slackwater.toml"):
    words = ("plan", str(folder / "late.toml"), "--data", str(folder / "data"), "--policy", "UP")
    return call(*words, "--settings", str(folder / settings), *more)


def test_a_plan_long_after_the_last_count_says_how_old_it_is(folder):
    at = ("--at", LATER.isoformat())
    assert plan(folder, *at, "--json").value["stale"] == TOLD
    said = " ".join(plan(folder, *at).out.split())
    assert said.count(f"STALE DATA: {TOLD}") == 1


def test_a_plan_soon_after_the_last_count_says_nothing(folder):
    assert plan(folder, "--at", LAST.ceil("30min").isoformat(), "--json").value["stale"] is None


def test_a_plain_plan_of_a_record_that_ended_long_ago_says_so(folder):
    told = plan(folder, "--json").value["stale"]
    known = LAST.floor("30min") - pd.Timedelta(minutes=5)  # the newest count known at the planned slot
    assert told.startswith(f"the newest count of {MARKET} is from {known:%Y-%m-%d %H:%M} UTC, ")
    assert told.endswith("this slot is long over")
    assert "days before now" in told
    said = " ".join(plan(folder).out.split())
    assert "Start nothing: the newest data are " in said
    assert "Read newer data and plan again. At that time: Run " in said


@pytest.mark.parametrize("minutes", quick_first([[30, 40], [20, 60]]))
def test_decisions_and_status_call_the_same_market_stale(folder, tmp_path, minutes):
    """Counts arrive every ten minutes: they are stale after three intervals, and after at least a slot (M1.3)."""
    db = tmp_path / "w.duckdb"
    where = ("--db", str(db), "--settings", str(folder / "slackwater.toml"))
    assert call("ingest", "tabular", folder / "data", *where).code == 0
    for late in minutes:
        at = LAST + pd.Timedelta(minutes=late)
        old = plan(folder, "--at", at.isoformat(), "--json").value
        with open_store(db) as store:
            promises = expected_updates(
                store, [(MARKET, "lab:counts")], at=pd.Timestamp(old["slot"]), step=pd.Timedelta("30min")
            )
        known = freshness(promises, at=pd.Timestamp(old["slot"]))
        (row,) = (own for own in known if own["kind"] == "count")
        assert (old["stale"] is not None) == row["stale"], at


def test_a_turn_keeps_what_it_said(folder, tmp_path):
    settings = read_settings(folder / "slackwater.toml")
    with open_store(tmp_path / "w.duckdb") as store:
        turn = make_turn(store, LATER, settings)
        request = read_request(folder / "late.toml").with_place(at=LATER, market=MARKET, source="lab:counts")
        result = whole_turn(turn, data=folder / "data", requests=[request], report=tmp_path / "r.html")
    (row,) = result.decisions
    assert row["stale"] == TOLD
    assert TOLD in " ".join((tmp_path / "r.html").read_text().split())
    shown = call("job", "show", "late", "--db", str(tmp_path / "w.duckdb"), "--json").value
    assert [one["stale"] for one in shown["decisions"]] == [TOLD]


@pytest.mark.slow  # the quick form: a record that ends before now, of `test_plan_of_a_turn`
def test_a_job_added_at_the_end_of_an_old_record_says_so_and_the_turn_of_later_why_it_decides_nothing(
    folder, tmp_path
):
    """Also for a multi-market job."""
    db = tmp_path / "w.duckdb"
    where = ("--db", db, "--settings", folder / "slackwater.toml")
    assert call("ingest", "tabular", folder / "data", *where).code == 0
    began, roaming = LAST.floor("30min"), tmp_path / "roaming.toml"
    roaming.write_text(job_text("late", markets=[MARKET], **TERMS))
    for file, name in ((folder / "late.toml", "late"), (roaming, "roaming")):
        added = call("job", "add", file, *where, "--name", name)
        assert "STALE DATA: the newest count" in added.said
        assert f"`slackwater run --at {began:%Y-%m-%dT%H:%MZ}` decides that slot" in added.said
        assert "long over" in call("job", "add", file, *where, "--name", name, "--json").value["stale"]
        soon = ("--name", f"{name}-soon", "--at", LAST.ceil("30min").isoformat())
        assert "STALE DATA" not in call("job", "add", file, *where, *soon).said
    with open_store(db) as store:
        turn = make_turn(store, LATER, read_settings(folder / "slackwater.toml"))
        notes = whole_turn(turn, data=folder / "data", requests=[], report=None).notes
    over = [note for note in notes if "over before any turn decided it" in note]
    assert sorted(note.split()[1] for note in over) == ["late", "late-soon", "roaming", "roaming-soon"]


def row(job, market, slot="2026-01-05T12:00:00+00:00", stale="old"):
    return dict.fromkeys(DECISION) | {
        "job": job, "market": market, "source": "s", "slot": slot, "stale": stale and f"{market} is {stale}",
    }  # fmt: skip


def test_many_decisions_do_not_drown_what_they_say():
    many = [row(f"j{k}", "a/b/c/d") for k in range(40)]
    assert decision_notes(many, "stale") == ["a/b/c/d is old"]
    earlier = row("j", "a/b/c/d", slot="2026-01-04T12:00:00+00:00", stale="younger")
    assert decision_notes([*many, earlier], "stale") == ["a/b/c/d is old"]
    markets = [row("j", f"a/b/c/d{k}") for k in range(6)]
    assert decision_notes(markets, "stale") == [
        *(f"a/b/c/d{k} is old" for k in range(3)),
        "and the same for 3 more markets",
    ]
    assert decision_notes([row("j", "a/b/c/d", stale=None)], "stale") == []
    (note, _) = decision_blocks("Decisions", many)
    assert len(note.items) == 1
