"""Example jobs: created if there is no user job, marked by their names, and hidden once a user job exists."""

import pandas as pd
from make import make_turn
from test_odd_jobs import asked
from test_turn import AT

from slackwater.flows.config import Settings
from slackwater.flows.ledger.jobs import save_jobs, stored_jobs
from slackwater.flows.turn.ingest import ingest_observations
from slackwater.flows.turn.report.page import example_notes
from slackwater.flows.turn.work import find_work
from slackwater.flows.ui.jobs import jobs_data
from slackwater.flows.ui.pages import glance_data
from slackwater.flows.ui.reading import Reading

STEP = pd.Timedelta(minutes=30)
SETTINGS = Settings(models=("last_value",), planner="markov", max_markets=3, simulated_days=4)


def running(store, at):
    turn = make_turn(store, at, SETTINGS)
    ingest_observations(turn, None)
    return [job.request.name for job, _ in find_work(turn, [], scored=()).running]


def test_examples_are_marked_and_set_aside_by_the_first_job_of_a_user(store, tmp_path):
    examples = running(store, AT)
    assert len(examples) == 3
    assert all(name.startswith("example-") for name in examples)
    decided = [{"job": name} for name in examples]
    (told,) = example_notes(store, decided)
    assert "slackwater job add" in told

    mine = asked("mine", "2h")
    save_jobs(store, [mine], origin="user", at=AT, step=STEP)
    assert running(store, AT + STEP) == ["mine"]
    assert example_notes(store, [{"job": "mine"}]) == []
    # The examples do not return after the user job has ended.
    assert running(store, AT + 4 * STEP) == []
    assert {job.origin for job in stored_jobs(store)} == {"user", "example"}

    reading = Reading(store=store, settings=SETTINGS, db=tmp_path, now=AT + STEP, at=AT + STEP, run="r")
    listed = jobs_data(reading)
    assert listed["counts"] == {
        "running": 1,
        "waiting": 0,
        "finished": 0,
        "withdrawn": 0,
        "set aside": 3,
        "ended": 0,
    }
    findings = [one["text"] for one in glance_data(reading)["findings"]]
    assert not any("example-" in text for text in findings)


def test_a_turn_sees_only_the_jobs_of_its_time(store):
    """A turn at a time before the user's job was added plans the examples, also if it is computed afterwards."""
    examples = running(store, AT)
    save_jobs(store, [asked("mine", "2h")], origin="user", at=AT + STEP, step=STEP)
    assert running(store, AT) == examples
