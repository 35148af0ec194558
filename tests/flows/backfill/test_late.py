"""Slots missed before a scheduled turn are made before it, oldest first, whichever of several late runs starts first."""

import pandas as pd
import pytest
from past_jobs import past_jobs
from test_turn import AT, one_turn, small_settings

from slackwater.flows.backfill import late
from slackwater.flows.backfill.late import is_made, make_missing, missing_before
from slackwater.flows.config import read_settings
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_reader

STEP = pd.Timedelta("30min")


@pytest.fixture(scope="module")
def after_an_outage(tmp_path_factory):
    """Return a warehouse and settings: a turn, then an outage of two slots, then the turn of the newest of three late runs."""
    folder = tmp_path_factory.mktemp("late")
    settings, db = read_settings(small_settings(folder, measured_origins=0)), folder / "w.duckdb"
    one_turn(db, settings, at=AT, requests=past_jobs(1, before=AT))
    outcomes = make_missing(db, AT + 3 * STEP, settings)
    one_turn(db, settings, at=AT + 3 * STEP)
    return db, settings, outcomes


def test_the_newest_of_three_late_runs_makes_the_others_first_in_order(after_an_outage):
    db, settings, outcomes = after_an_outage
    assert [one.plan.at for one in outcomes] == [AT + STEP, AT + 2 * STEP]
    with open_reader(db) as store:
        rows = read_rows(store, "runs").query("stage == 'allocate'")
        assert list(rows["logical_at"]) == [AT, AT + STEP, AT + 2 * STEP, AT + 3 * STEP]
        assert list(rows["made"]) == ["live", "backfill", "backfill", "live"]
        # The other two late runs find their slots made.
        assert is_made(store, AT + STEP)
        assert is_made(store, AT + 2 * STEP)
        assert not is_made(store, AT + 4 * STEP)
        assert missing_before(store, AT + 4 * STEP, slot=STEP, every=STEP) is None
    assert make_missing(db, AT + 4 * STEP, settings) == ()


def test_slots_between_turns_of_a_slower_schedule_are_not_missing(after_an_outage):
    db, _, _ = after_an_outage
    with open_reader(db) as store:
        assert missing_before(store, AT + 7 * STEP, slot=STEP, every=4 * STEP) is None
        found = missing_before(store, AT + 11 * STEP, slot=STEP, every=4 * STEP)
    assert found is not None
    assert list(found.slots()) == [AT + 7 * STEP]


def test_a_long_outage_is_left_to_the_command_that_the_turn_names(after_an_outage, monkeypatch):
    db, settings, _ = after_an_outage
    said = []
    monkeypatch.setattr(late, "say", said.append)
    few = settings.model_copy(update={"late_slots": 2})
    assert make_missing(db, AT + 9 * STEP, few) == ()
    assert "5 missing slots before this turn" in said[0]
    assert "`slackwater backfill --from" in said[0]
    assert make_missing(db, AT + 9 * STEP, settings.model_copy(update={"late_slots": 0})) == ()


def test_a_new_warehouse_misses_nothing(tmp_path, after_an_outage):
    assert make_missing(tmp_path / "none.duckdb", AT, after_an_outage[1]) == ()
