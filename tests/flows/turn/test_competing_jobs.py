"""Single-market and multi-market jobs compete for the spot instances of a market in complete turns (M3.7)."""

import shutil

import pandas as pd
import pytest
from command_kit import call
from forms_kit import quick_first
from make import make_request, make_turn
from test_moving_jobs import H100, STEP
from test_turn import AT, dump, one_turn, small_settings

from slackwater.flows.config import read_settings
from slackwater.flows.histories import read_history
from slackwater.flows.ledger.decisions import decisions_of
from slackwater.flows.places import places_of
from slackwater.flows.turn.pool import read_pool
from slackwater.flows.turn.stages import decide_jobs
from slackwater.flows.turn.work import find_work
from slackwater.warehouse.history import AVAILABLE
from slackwater.warehouse.store.connection import open_store

NAMES = ("a-patient", "b-roaming", "c-pressed", "d-pressed")
TURNS = 2
HOME = "simulated/east/east-a/h100"


def asked(name, gpu_hours, *, markets=()):
    terms = {"deadline_in": "5h", "workload": {"amount": gpu_hours, "unit": "gpu_hours"}}
    if markets:
        return make_request(name, at=AT, market=None, markets=list(markets), moving={"minutes": 2}, **terms)
    return make_request(name, at=AT, market=HOME, **terms)


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory):
    return small_settings(tmp_path_factory.mktemp("settings"), measured_origins=0)


@pytest.fixture(scope="module")
def settings(settings_file):
    return read_settings(settings_file)


@pytest.fixture(scope="module")
def live(settings, tmp_path_factory):
    """Return a warehouse after several turns with three single-market jobs and a multi-market job."""
    db = tmp_path_factory.mktemp("live") / "w.duckdb"
    requests = [
        asked("a-patient", 8),
        asked("b-roaming", 20, markets=[H100]),
        asked("c-pressed", 36),
        asked("d-pressed", 34),
    ]
    for k in range(TURNS):
        one_turn(db, settings, at=AT + k * STEP, requests=requests if not k else ())
    return db


def rows_of(store):
    return {name: decisions_of(store, name) for name in NAMES}


def counts_of(store, settings, slot):
    """Return the available instances of each market in a slot."""
    places = places_of(make_turn(store, slot, settings), asked("any", 8, markets=[H100]))
    return {
        one.market.key: int(read_history(store, one, settings=settings).frame[AVAILABLE].iloc[-1])
        for one in places
    }


def test_no_more_is_promised_than_there_is_and_who_gets_less_is_told_why(live, settings):
    with open_store(live) as store:
        rows = rows_of(store)
        told = 0
        for k in range(TURNS):
            slot, there = AT + k * STEP, counts_of(store, settings, AT + k * STEP)
            used: dict[str, int] = {}
            for own in rows.values():
                (row,) = [one for one in own if pd.Timestamp(one["slot"]) == slot]
                used[row["market"]] = used.get(row["market"], 0) + row["spot"]
                told += "; gets " in row["reason"]
            assert all(spot <= there[market] for market, spot in used.items())
        assert told


def test_slots_made_at_once_are_those_of_the_turns(live, settings, tmp_path):
    db = shutil.copy(live, tmp_path / "w.duckdb")
    with open_store(db) as store:
        before = rows_of(store)
        store.execute("DELETE FROM decisions WHERE job IN ?", [list(NAMES)])
        turns = [make_turn(store, AT + k * STEP, settings) for k in range(TURNS)]
        works = [find_work(turn, (), scored=()) for turn in turns]
        decide_jobs(turns, works, read_pool(turns[-1]))
        assert rows_of(store) == before


@pytest.mark.parametrize("name", quick_first(NAMES[:3]))  # the fourth job is like the third
def test_a_turn_that_lacks_one_decision_gives_it_what_the_others_leave(live, settings, tmp_path, name):
    db = shutil.copy(live, tmp_path / "w.duckdb")
    slot = AT + (TURNS - 1) * STEP
    with open_store(db) as store:
        before = rows_of(store)
        store.execute("DELETE FROM decisions WHERE job = ? AND slot = ?", [name, slot])
        turn = make_turn(store, slot, settings)
        decide_jobs([turn], [find_work(turn, (), scored=())], read_pool(turn))
        after = rows_of(store)
        there = counts_of(store, settings, slot)
        used: dict[str, int] = {}
        for own in after.values():
            used[own[-1]["market"]] = used.get(own[-1]["market"], 0) + own[-1]["spot"]
        assert all(spot <= there[market] for market, spot in used.items())
        assert {key: len(own) for key, own in after.items()} == {key: len(own) for key, own in before.items()}


def test_a_turn_made_again_writes_the_same_and_says_what_was_decided_first(live, settings, tmp_path):
    db = shutil.copy(live, tmp_path / "w.duckdb")
    slot = AT + (TURNS - 1) * STEP
    with open_store(db) as store:
        store.execute('UPDATE decisions SET details = json_merge_patch(details, \'{"reason": "as said"}\')')
        first = sorted((own[-1] for own in rows_of(store).values()), key=lambda row: row["job"])
    before = dump(db)
    found = one_turn(db, settings, at=slot)
    assert dump(db) == before
    assert [row for row in found.decisions if row["job"] in NAMES] == first


def test_the_joint_command_shows_the_decisions_that_the_turn_issues(live, settings_file, tmp_path):
    db = shutil.copy(live, tmp_path / "w.duckdb")
    slot = AT + (TURNS - 1) * STEP
    where = ("--db", db, "--settings", settings_file, "--at", slot.isoformat(), "--json")
    issued = call("fleet", "plan", *where).value["decisions"]
    with open_store(db) as store:
        rows = {name: own[-1] for name, own in rows_of(store).items()}
        store.execute("DELETE FROM decisions WHERE slot = ?", [slot])
    # Also before the turn has decided the slot.
    assert call("fleet", "plan", *where).value["decisions"] == issued
    shown = {row["job"]: row for row in issued}
    for name, row in rows.items():
        assert {key: row[key] for key in shown[name]} == shown[name]
