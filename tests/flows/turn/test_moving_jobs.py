"""A job that may move through the whole turn: which markets it has, its decisions, and that a turn made again says the same."""

import shutil
from itertools import pairwise

import jsonschema
import pandas as pd
import pytest
from test_turn import AT, dump, one_turn, small_settings

from flows.config import Settings, read_settings
from flows.delivery import document
from flows.ledger.records import decisions_of
from flows.schemas.forms import schema
from flows.turn.context import Turn, find_work, places_of, read_pool, run_id_of
from flows.turn.stages import decide_jobs
from optimization.job.request import parse_request
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
def settings(tmp_path_factory) -> Settings:
    return read_settings(small_settings(tmp_path_factory.mktemp("settings")))


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
            assert [row for own in made for row in own if row["job"] == name] == rows[1:]
            assert decisions_of(store, name) == rows
