"""A job that may move through the whole turn: which markets it has, its decisions, and that a turn made again says the same."""

import pandas as pd
import pytest
from test_turn import AT, one_turn, small_settings

from flows.config import Settings, load_settings
from flows.turn.context import Turn, find_work, places_of, run_id_of
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
    return load_settings(small_settings(tmp_path_factory.mktemp("settings")))


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
