"""A job that may move through the whole turn: which markets it has, its decisions, and that a turn made again says the same."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
from command_kit import call
from test_turn import AT, dump, one_turn, small_settings

from flows.config import Settings, read_settings
from flows.delivery import document
from flows.ledger.records import decisions_of
from flows.schemas.forms import schema
from flows.turn.context import Turn, find_work, places_of, read_pool, run_id_of
from flows.turn.stages import decide_jobs
from flows.ui.jobs import job_data, job_values, jobs_data
from flows.ui.reading import Reading
from optimization.job.request import parse_request, read_request
from warehouse.errors import JobError, MarketError
from warehouse.store.connection import open_store

STEP = pd.Timedelta("30min")
H100 = "simulated/*/*/h100"
HOME = "simulated/west/west-a/h100"


def request(name="mover", *, market=None, at=AT, **changes):
    terms = {
        "name": name, "deadline_in": "8h", "n_min": 1, "n_max": 4, "markets": [H100],
        "workload": {"amount": 14.0, "unit": "gpu_hours"}, "throughput": {"form": "linear"},
        "checkpoint": {"resumable": True, "overhead_minutes": 3},
        "moving": {"checkpoint_gb": 20, "bandwidth_gb_per_minute": 10},
    }  # fmt: skip
    return parse_request({**terms, **changes}, "test").placed(at=at, market=market, source=None)


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory) -> Path:
    return small_settings(tmp_path_factory.mktemp("settings"))


@pytest.fixture(scope="module")
def settings(settings_file) -> Settings:
    return read_settings(settings_file)


@pytest.fixture(scope="module")
def warehouse(settings, tmp_path_factory):
    """A warehouse with the simulated market up to `AT`, after one turn."""
    db = tmp_path_factory.mktemp("moving") / "w.duckdb"
    one_turn(db, settings)
    return db


def keys(found):
    return [one.market.key for one in found]


def turn_on(store, settings, at=AT):
    return Turn(store=store, at=at, settings=settings, run_id=run_id_of(at))


def test_the_markets_of_a_job_are_those_that_fit_and_its_home_first(warehouse, settings):
    with open_store(warehouse) as store:
        turn = turn_on(store, settings)
        free = keys(places_of(turn, request()))
        assert len(free) == 3
        assert all(key.endswith("/h100") for key in free)
        at_home = keys(places_of(turn, request(market=HOME)))
        assert at_home[0] == HOME
        assert set(at_home) == set(free)
        # A home is among them whatever the patterns say.
        elsewhere = request(market=HOME, markets=["simulated/east/*/h100"])
        assert keys(places_of(turn, elsewhere))[0] == HOME
        assert {one.at for one in places_of(turn, elsewhere)} == {AT}


def test_patterns_that_fit_nothing_or_two_types_are_refused(warehouse, settings):
    with open_store(warehouse) as store:
        turn = turn_on(store, settings)
        with pytest.raises(MarketError, match="no market fits") as caught:
            places_of(turn, request(markets=["nowhere/*/*/*"]))
        assert "slackwater markets" in caught.value.remedy
        with pytest.raises(JobError, match="one throughput"):
            places_of(turn, request(markets=["simulated/*/*/*"]))


def test_the_markets_stay_those_of_the_jobs_first_slot(warehouse, settings):
    with open_store(warehouse) as store:
        before = places_of(turn_on(store, settings), request())
        later = places_of(turn_on(store, settings, AT + 5 * STEP), request())
        assert keys(before) == keys(later)
        assert {one.at for one in later} == {AT + 5 * STEP}


def test_the_work_of_a_turn_has_all_its_markets_and_only_while_it_runs(warehouse, settings):
    asked = [request("free"), request("homed", market=HOME)]
    with open_store(warehouse) as store:
        work = find_work(turn_on(store, settings), asked, scored=())
        assert set(work.places) == {"free", "homed"}
        assert set(keys(work.places["free"])) <= set(keys(work.markets))
        for one in work.places["free"]:
            assert {"free", "homed"} <= {job.request.name for job in work.jobs_on(one)}
        over = find_work(turn_on(store, settings, AT + 16 * STEP), (), scored=())
        assert not over.places
        # The pool is replayed at the home of the one; the other has none, and that is said.
        assert [job.request.name for job, _ in over.ended if job.request.may_move] == ["homed"]
        assert [text for text in over.left_out if "free" in text and "not scored" in text]


@pytest.fixture(scope="module")
def three_turns(settings, tmp_path_factory):
    """A warehouse with two jobs that may move, one of them at home in the west, after three turns."""
    db = tmp_path_factory.mktemp("turns") / "w.duckdb"
    asked = [request("free"), request("homed", market=HOME)]
    for k in range(3):
        one_turn(db, settings, at=AT + k * STEP, requests=asked if not k else ())
    return db


def test_every_slot_is_decided_with_a_place_and_progress_goes_on_from_there(three_turns):
    with open_store(three_turns) as store:
        for name in ("free", "homed"):
            rows = decisions_of(store, name)
            assert [pd.Timestamp(row["slot"]) for row in rows] == [AT + k * STEP for k in range(3)]
            place = None if name == "free" else HOME
            for row in rows:
                assert row["policy"] == "MeanField"
                held = row["on_demand"] + row["spot"]
                moved = bool(held) and place is not None and row["market"] != place
                assert row["moved_from"] == (place if moved else None)
                assert row["move_usd"] >= 0
                assert row["place"] == (row["market"] if held else place)
                place = row["place"]
                jsonschema.Draft202012Validator(schema("decision")).validate(document(row))
            assert rows[0]["progress"] == 0
            # What was held is read back from the rows: a slot with instances makes progress.
            for before, after in pairwise(rows):
                gained = after["progress"] - before["progress"]
                assert (gained > 0) == (before["on_demand"] + before["spot"] > 0)
        plain = [row for row in decisions_of(store, "free") if row["probe_next"] is not None]
        assert not plain  # every market was seen


def test_jobs_of_one_market_say_nothing_of_moves(warehouse):
    with open_store(warehouse) as store:
        names = [name for (name,) in store.execute("SELECT DISTINCT job FROM decisions")]
        for row in (row for name in names for row in decisions_of(store, name)):
            assert [row[key] for key in ("place", "moved_from", "move_usd", "probe_next")] == [None] * 4


def test_a_turn_made_again_writes_the_same(three_turns, settings):
    before = dump(three_turns)
    one_turn(three_turns, settings, at=AT + 2 * STEP)
    assert dump(three_turns) == before


def test_slots_decided_together_are_decided_as_they_were_one_by_one(three_turns, settings, tmp_path):
    db = tmp_path / "w.duckdb"
    shutil.copy(three_turns, db)
    with open_store(db) as store:
        live = {name: decisions_of(store, name) for name in ("free", "homed")}
        store.execute("DELETE FROM decisions WHERE job IN ('free', 'homed') AND slot > ?", [AT])
        turns = [turn_on(store, settings, AT + k * STEP) for k in (1, 2)]
        works = [find_work(turn, (), scored=()) for turn in turns]
        made = decide_jobs(turns, works, read_pool(turns[-1]))
        for name, rows in live.items():
            assert [row for own in made for row in own.rows if row["job"] == name] == rows[1:]
            assert decisions_of(store, name) == rows


FILE = """
name = "{name}"
{home}
markets = ["simulated/*/*/h100"]
deadline_in = "8h"
n_max = 4
workload = {{ amount = 14.0, unit = "gpu_hours" }}
throughput = {{ form = "linear" }}
checkpoint = {{ resumable = true, overhead_minutes = 3 }}
moving = {{ minutes = 2, usd = 1.5 }}
"""


def test_a_file_is_planned_and_added_without_a_home_and_with_one(three_turns, settings_file, tmp_path):
    db = shutil.copy(three_turns, tmp_path / "w.duckdb")
    where = ("--db", db, "--settings", settings_file, "--at", AT.isoformat(), "--json")
    for name, home in (("roams", ""), ("settled", f'market = "{HOME}"')):
        file = tmp_path / f"{name}.toml"
        file.write_text(FILE.format(name=name, home=home))
        planned = call("plan", file, *where).value
        assert planned["policy"] == "MeanField"
        assert planned["market"].endswith("/h100")
        added = call("job", "add", file, *where).value
        assert len(added["markets"]) == 3
        assert added["market"] == (HOME if home else None)
        assert added["move_usd_most"] == 1.5
        # As a stored job it is the same job.
        assert call("plan", name, *where).value == planned
    listed = {row["job"]: row["market"] for row in call("job", "list", "--db", db, "--json").value["jobs"]}
    assert listed["settled"] == HOME
    assert listed["roams"] == H100
    refused = call("plan", "roams", *where, "--policy", "UP")
    assert refused.code == 2
    assert "--policy" in refused.err


def test_a_stored_job_is_planned_as_the_turn_decided_it(three_turns, settings_file):
    at = AT + 2 * STEP
    where = ("--db", three_turns, "--settings", settings_file, "--at", at.isoformat(), "--json")
    for name in ("free", "homed"):
        with open_store(three_turns) as store:
            row = decisions_of(store, name)[-1]
        planned = call("plan", name, *where).value
        assert {key: planned[key] for key in row} == row


def test_its_page_stands_where_its_decisions_say(three_turns, settings):
    at = AT + 2 * STEP
    with open_store(three_turns) as store:
        reading = Reading(store=store, settings=settings, db=three_turns, now=at, at=at, run=run_id_of(at))
        rows = {row["job"]: row for row in jobs_data(reading)["jobs"]}
        for name in ("free", "homed"):
            newest = decisions_of(store, name)[-1]
            assert rows[name]["problem"] == ""
            assert rows[name]["market"] == newest["market"]
            assert rows[name]["share_done"] == pytest.approx(newest["progress_share"], abs=1e-6)
            data = job_data(reading, name)
            assert len(data["slots"]) == 3
            assert job_values(reading, data)["decided"].rows


def test_reports_count_and_what_was_predicted_is_not_claimed(three_turns, settings_file, tmp_path):
    db = shutil.copy(three_turns, tmp_path / "w.duckdb")
    where = ("--db", db, "--settings", settings_file, "--json")
    at = AT + 2 * STEP
    told = call("job", "report", "homed", "--progress", "5", "--at", at.isoformat(), *where)
    assert told.value["progress"] == 5.0
    planned = call("plan", "homed", "--at", at.isoformat(), *where).value
    assert (planned["progress"], planned["progress_from"]) == (5.0, "reported")
    shown = call("job", "show", "homed", *where).value
    assert shown["reports"][0]["predicted"] is None
    assert json.dumps(shown["decisions"])


def test_the_joint_plan_leaves_it_out_and_says_so_beside_its_decision(three_turns, settings_file):
    where = ("--db", three_turns, "--settings", settings_file, "--at", (AT + 2 * STEP).isoformat(), "--json")
    value = call("fleet", "plan", *where).value
    assert "free is left out of the joint plan: it may move" in " ".join(value["notes"])
    assert {"free", "homed"} <= {row["job"] for row in value["decisions"]}


def test_the_example_is_a_job_that_may_move():
    asked = read_request(Path(__file__).parents[3] / "examples" / "anywhere.toml")
    assert asked.may_move
    assert asked.moving.takes_minutes == 4.0
