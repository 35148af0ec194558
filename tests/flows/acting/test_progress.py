"""Progress of a trainer: from its checkpoints, from the callback, and as reports of a job."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pandas as pd
import pytest
from advice_kit import BEGIN, add_job, new_store
from command_kit import call

from slackwater.flows.acting.contract import Instance
from slackwater.flows.acting.ledger import InstanceEntry, LaunchLedger, ledger_file
from slackwater.flows.acting.progress import read_progress
from slackwater.flows.acting.stopping import StopSignals
from slackwater.flows.acting.trainer import PROGRESS_FILE, ProgressCallback
from slackwater.flows.ledger.reports import reports_of
from slackwater.warehouse.store.connection import open_store

SECONDS = BEGIN.timestamp()
#: Events of the Trainer of Hugging Face, in the order of a short training.
EVENTS = (
    "on_init_end", "on_train_begin", "on_epoch_begin", "on_step_begin", "on_pre_optimizer_step", "on_optimizer_step",
    "on_substep_end", "on_step_end", "on_evaluate", "on_log", "on_save", "on_epoch_end", "on_prediction_step",
    "on_predict", "on_train_end",
)  # fmt: skip


def checkpoint(folder, step, *, minutes, most=400):
    place = folder / f"checkpoint-{step}"
    place.mkdir(parents=True)
    file = place / "trainer_state.json"
    file.write_text(json.dumps({"global_step": step, "max_steps": most, "log_history": []}))
    os.utime(file, (SECONDS + 60 * minutes,) * 2)


class Training:
    """The callback with a clock, as a trainer calls it."""

    def __init__(self, folder, *, minutes):
        self.now = SECONDS + 60 * minutes
        self.callback = ProgressCallback(folder, clock=lambda: self.now)

    def event(self, name, step, *, minutes, most=400):
        self.now = SECONDS + 60 * minutes
        state = SimpleNamespace(global_step=step, max_steps=most, is_world_process_zero=True)
        getattr(self.callback, name)(None, state, None, model=None)


@pytest.fixture
def renter(tmp_path):
    with new_store(tmp_path) as store:
        add_job(store)
    (tmp_path / "output").mkdir()
    return tmp_path


def report(renter, *, minutes):
    at = (BEGIN + pd.Timedelta(minutes=minutes)).isoformat()
    words = ("--watch", renter / "output", "--db", renter / "w.duckdb", "--at", at, "--json")
    return call("progress", "demo", *words)


def stored(renter):
    with open_store(renter / "w.duckdb") as store:
        return reports_of(store, "demo")


def test_the_newest_checkpoint_is_reported_for_its_time(renter):
    assert "no step or checkpoint" in report(renter, minutes=5).value["told"]
    checkpoint(renter / "output", 100, minutes=20)
    checkpoint(renter / "output", 200, minutes=50)
    answer = report(renter, minutes=58).value
    assert (answer["saved_share"], answer["added"]) == (0.5, True)
    assert answer["told"].endswith("(step 200 of 400); a loss now would cost 8 min of work.")
    (found,) = stored(renter)
    assert (found.reported_at, found.progress) == (BEGIN + pd.Timedelta(minutes=50), 10.0)
    assert report(renter, minutes=59).value["added"] is False


def test_a_checkpoint_that_is_being_written_is_left_out(renter):
    checkpoint(renter / "output", 100, minutes=20)
    half = renter / "output" / "checkpoint-200"
    half.mkdir()
    (half / "trainer_state.json").write_text('{"global_step": 2')
    assert report(renter, minutes=58).value["saved_step"] == 100


def test_the_last_step_finishes_the_job(renter):
    checkpoint(renter / "output", 400, minutes=200)
    assert report(renter, minutes=201).value["finished"] is True
    assert stored(renter)[-1].finished


def test_the_callback_measures_restart_and_boot_and_what_a_loss_would_cost(renter):
    market = "lab/r1/z1/a3-highgpu-1g"
    with LaunchLedger(ledger_file(renter / "w.duckdb")) as ledger:
        instance = Instance(
            id="i-1", job="demo", key="k", market=market, kind="spot", since=BEGIN.to_pydatetime()
        )
        ledger.add(InstanceEntry(at=instance.since, job="demo", key="k", instances=(instance,), spot_left=1))
    training = Training(renter / "output", minutes=3)
    training.event("on_step_end", 1, minutes=7)
    training.event("on_step_end", 2, minutes=7.1)
    assert read_progress(renter / "output").step == 1  # the second step is written later
    checkpoint(renter / "output", 100, minutes=30)
    training.event("on_save", 100, minutes=30)
    training.event("on_step_end", 140, minutes=40)
    answer = report(renter, minutes=41).value
    assert (answer["boot_minutes"], answer["restart_minutes"], answer["checkpoint_minutes"]) == (
        3.0,
        4.0,
        23.0,
    )
    assert "a loss now would cost 40 steps, 11 min of work" in answer["told"]
    found = {"boot_minutes": 3.0, "restart_minutes": 4.0, "checkpoint_minutes": 23.0}
    assert stored(renter)[-1].measured == found
    shown = call("job", "show", "demo", "--db", renter / "w.duckdb", "--json").value
    known = {row["key"]: (row["value"], row["origin"]) for row in shown["times"]}
    assert {key: known[key] for key in found} == {key: (value, "measured") for key, value in found.items()}


def test_a_restart_from_a_checkpoint_is_reported_for_the_time_of_the_restart(renter):
    checkpoint(renter / "output", 100, minutes=30)
    report(renter, minutes=31)
    training = Training(renter / "output", minutes=55)
    training.event("on_step_end", 101, minutes=60)
    answer = report(renter, minutes=62).value
    assert (answer["saved_share"], answer["restart_minutes"]) == (0.25, 5.0)
    assert [one.progress for one in stored(renter)] == [5.0, 5.0]
    assert stored(renter)[-1].reported_at == BEGIN + pd.Timedelta(minutes=55)


def test_the_end_of_the_training_finishes_the_job_without_a_checkpoint(renter):
    training = Training(renter / "output", minutes=3)
    training.event("on_train_end", 399, minutes=90)
    assert report(renter, minutes=91).value["finished"] is False
    training.event("on_train_end", 400, minutes=92)
    assert report(renter, minutes=93).value["finished"] is True


def test_every_event_of_the_trainer_is_answered(tmp_path):
    training = Training(tmp_path, minutes=0)
    for event in EVENTS:
        training.event(event, 1, minutes=1)
    with pytest.raises(AttributeError):
        _ = training.callback.nothing


@pytest.mark.slow
def test_the_callback_in_a_training_of_hugging_face(tmp_path):
    handler = pytest.importorskip("transformers.trainer_callback")
    callbacks = handler.CallbackHandler([ProgressCallback(tmp_path)], None, None, None, None)
    state = handler.TrainerState(global_step=3, max_steps=9, is_world_process_zero=True)
    for event in ("on_init_end", "on_train_begin", "on_step_end", "on_save", "on_train_end"):
        getattr(callbacks, event)(None, state, handler.TrainerControl())
    assert read_progress(tmp_path).step == 3


def test_a_folder_that_is_not_there_is_refused(renter):
    done = call("progress", "demo", "--watch", renter / "none", "--db", renter / "w.duckdb")
    assert (done.code, "no folder" in done.err) == (2, True)


STRANGE = ['"200"', "true", "-3", "2.5", "1e400", "[]", "{}", "9" * 5000, "NaN"]


@pytest.mark.parametrize("value", STRANGE)
@pytest.mark.parametrize("key", ["global_step", "max_steps"])
def test_a_state_with_a_strange_number_is_named_and_reports_nothing(renter, key, value):
    checkpoint(renter / "output", 100, minutes=20)
    file = renter / "output" / "checkpoint-100" / "trainer_state.json"
    rest = {"global_step": "100", "max_steps": "400"} | {key: value}
    file.write_text("{" + ", ".join(f'"{name}": {number}' for name, number in rest.items()) + "}")
    done = report(renter, minutes=58)
    found = done.code == 2 and "trainer_state.json" in done.err and "Traceback" not in done.err
    # Python reads no number of 5,000 digits, and an empty list or object is no maximum.
    assert found or "no step or checkpoint" in done.value["told"]
    assert stored(renter) == []


@pytest.mark.parametrize(
    "key", ["step", "max_steps", "at", "started_at", "first_step_at", "checkpoint_seconds"]
)
@pytest.mark.parametrize("value", ['"x"', "true", "-1", "1e300", "NaN", "[1]"])
def test_a_file_of_the_callback_with_a_strange_number_is_named(renter, key, value):
    plain = {
        "step": 3,
        "max_steps": 9,
        "at": SECONDS,
        "started_at": SECONDS,
        "first_step_at": SECONDS,
        "checkpoint_seconds": 60,
    }
    own = {name: str(number) for name, number in plain.items()} | {key: value}
    text = "{" + ", ".join(f'"{name}": {number}' for name, number in own.items()) + "}"
    (renter / "output" / PROGRESS_FILE).write_text(text)
    done = report(renter, minutes=58)
    if (key, value) != ("checkpoint_seconds", "1e300"):
        assert (done.code, PROGRESS_FILE in done.err) == (2, True), done.err


def test_an_error_of_a_later_look_does_not_end_the_watch(renter, monkeypatch):
    looks = iter(["broken", "whole"])
    checkpoint(renter / "output", 100, minutes=20)

    def wait(signals, seconds):
        if next(looks) == "broken":
            (renter / "output" / "checkpoint-100" / "trainer_state.json").write_text('{"global_step": "x"}')
        else:
            checkpoint(renter / "output", 400, minutes=200)

    monkeypatch.setattr(StopSignals, "wait", wait)
    monkeypatch.setattr("slackwater.flows.clock.now", lambda: BEGIN + pd.Timedelta(minutes=210))
    done = call("progress", "demo", "--watch", renter / "output", "--db", renter / "w.duckdb")
    assert done.code == 0
    assert "looking again in 60s" in done.err
    assert stored(renter)[-1].finished


def test_a_job_that_is_not_known_is_refused_before_the_first_checkpoint(renter):
    watched = ("--watch", renter / "output", "--db", renter / "w.duckdb")
    found = call("progress", "nobody", *watched, "--once")
    assert (found.code, "no job 'nobody'" in found.err) == (2, True)
    assert call("progress", "nobody", *watched).code == 2  # without waiting
