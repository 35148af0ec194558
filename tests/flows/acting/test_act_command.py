"""The command `act` on a warehouse with decisions, from the first launch to the last stop."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pandas as pd
import pytest
from acting_kit import Killed
from advice_kit import (
    BEGIN,
    MARKET,
    SETTINGS,
    STEP,
    add_job,
    decided_row,
    keep,
    new_store,
    opened,
    request,
    turn_at,
)
from command_kit import call

from slackwater.flows.acting.drivers import DRIVERS, Place
from slackwater.flows.acting.ledger import EvidenceEntry, LaunchLedger, ledger_file
from slackwater.flows.acting.loop import Acting
from slackwater.flows.acting.targets import Limits
from slackwater.flows.acting.warehouse import ActedWarehouse
from slackwater.flows.ledger.decisions import decisions_of, revisions_by_job
from slackwater.flows.ledger.jobs import find_job, save_jobs
from slackwater.flows.ledger.reports import Report, reports_of, save_report
from slackwater.warehouse.store.connection import open_store


class Renter:
    """A warehouse with a job of 6 hours, its turns, and calls of `act` with the simulated driver."""

    def __init__(self, folder, *, at=BEGIN, **terms):
        self.db = folder / "w.duckdb"
        with new_store(folder) as store:
            save_jobs(store, [request(at=at, value_usd=None, **terms)], origin="user", at=at, step=STEP)
        self.world = ActedWarehouse(self.db, SETTINGS)
        self.cloud = DRIVERS["simulated"]({}, Place(name="s", db=self.db, world_of=self.world.world_of))

    def turn(self, slot, policy="UP"):
        """Report the progress of the simulated job and decide a slot."""
        at = BEGIN + slot * STEP
        run = self.cloud.run("demo", at.to_pydatetime())
        with open_store(self.db) as store:
            stored = find_job(store, "demo")
            share = run.work / run.terms.workload
            done = Report(
                job="demo",
                reported_at=at,
                known_at=at,
                progress=share * stored.request.workload.amount,
                on_demand=run.held.on_demand,
                spot=run.held.spot,
                finished=run.is_finished,
            )
            save_report(store, done, stored)
            if run.is_finished:
                return False
            reports = reports_of(store, "demo", known_at=at)
            row = decided_row(store, slot, policy=policy, asked=stored.request, reports=reports)
            keep(store, turn_at(store, slot), [row])
        return True

    def act(self, slot, *more, minutes=0.0):
        at = BEGIN + slot * STEP + pd.Timedelta(minutes=minutes)
        words = ("act", "--driver", "simulated", "--db", self.db, "--at", at.isoformat())
        return call(*words, *more, "--json").value


def test_a_job_is_acted_on_from_its_launch_to_its_finish(tmp_path):
    renter, slot = (
        Renter(tmp_path, deadline_in="90min", workload={"amount": 4.5, "unit": "instance_hours"}),
        0,
    )
    while renter.turn(slot):
        renter.act(slot)
        slot += 1
    at = (BEGIN + slot * STEP).to_pydatetime()
    (last,) = renter.act(slot)["jobs"]
    run = renter.cloud.run("demo", at)
    assert (last["on_demand"], last["spot"], last["why"]) == (0, 0, "the job is finished")
    assert run.finish is not None
    assert run.finish <= 1.5 * 3600.0
    assert last["paid_usd"] == pytest.approx(run.paid_usd, abs=0.005)
    with open_store(renter.db) as store:
        notes = [one.note for one in reports_of(store, "demo") if one.note]
    assert notes[0].startswith("granted ")
    assert any("finished" in note for note in notes)


def test_a_pass_that_finds_nothing_new_opens_nothing(tmp_path, monkeypatch):
    def fail(*words, **more):
        raise AssertionError("opened again")

    renter = Renter(tmp_path)
    renter.turn(0, "OD-only")
    limits = Limits(idle_slots=3, every=timedelta(seconds=30))
    with LaunchLedger(ledger_file(renter.db)) as ledger:
        acting = Acting(world=renter.world, ledger=ledger, driver_of=lambda _: renter.cloud, limits=limits)
        for minutes in (0, 1, 2):  # the first pass launches, and the second reads the evidence of the first
            if minutes == 2:
                monkeypatch.setattr("slackwater.flows.acting.warehouse.open_placed_job", fail)
                monkeypatch.setattr("slackwater.warehouse.store.connection.Opening.unlocked", fail)
            (last,) = acting.run_pass((BEGIN + pd.Timedelta(minutes=minutes)).to_pydatetime())
    assert last.held
    assert last.order is None
    monkeypatch.undo()
    with open_store(renter.db) as store:  # a newer snapshot is read
        store.execute("UPDATE jobs SET origin = 'practice'")
    assert renter.world.jobs([], BEGIN.to_pydatetime()) == []


def test_evidence_that_was_stored_just_before_a_kill_is_stored_once(tmp_path):
    renter = Renter(tmp_path)
    renter.turn(0, "OD-only")
    limits = Limits(idle_slots=3, every=timedelta(seconds=30))
    for minutes, dies in ((0, True), (1, False), (2, False)):
        with LaunchLedger(ledger_file(renter.db)) as ledger:
            add = ledger.add

            def mortal(entry, add=add, dies=dies):
                if dies and isinstance(entry, EvidenceEntry):
                    raise Killed
                add(entry)

            ledger.add = mortal
            acting = Acting(
                world=renter.world, ledger=ledger, driver_of=lambda _: renter.cloud, limits=limits
            )
            with suppress(Killed):
                acting.run_pass((BEGIN + pd.Timedelta(minutes=minutes)).to_pydatetime())
    with open_store(renter.db) as store:
        own, *acted = reports_of(store, "demo")
    assert (own.reported_at, own.note) == (BEGIN, "")  # the report of the turn stays as it was
    assert [one.note for one in acted] == [f"granted {acted[0].on_demand} on-demand"]
    assert acted[0].reported_at == BEGIN + pd.Timedelta(microseconds=1)


def test_a_dry_run_prints_the_calls_and_leaves_no_file(tmp_path):
    renter = Renter(tmp_path)
    renter.turn(0, "OD-only")
    before = set(tmp_path.iterdir())
    answer = renter.act(0, "--dry-run")
    (command,) = answer["jobs"][0]["commands"]
    assert command.startswith("simulate ")
    words = ("act", "--driver", "simulated", "--db", renter.db, "--at", BEGIN.isoformat(), "--dry-run")
    shown = call(*words).said
    assert f"demo: {command}" in shown
    assert shown.count("demo") == 1
    assert answer["jobs"][0]["why"] not in shown
    assert set(tmp_path.iterdir()) == before


def test_a_dry_run_without_a_call_tells_why_in_a_line(tmp_path):
    renter = Renter(tmp_path)
    words = ("act", "--driver", "simulated", "--db", renter.db, "--at", BEGIN.isoformat(), "--dry-run")
    assert "demo: nothing to call, no decision yet" in call(*words).said


def test_down_stops_the_instances_and_tells_what_they_cost(tmp_path):
    renter = Renter(tmp_path)
    renter.turn(0, "OD-only")
    first = renter.act(0)["jobs"][0]
    assert first["on_demand"] + first["spot"] > 0
    (stopped,) = renter.act(0, "--down", minutes=10)["jobs"]
    assert (stopped["on_demand"], stopped["spot"]) == (0, 0)
    assert stopped["paid_usd"] > 0.0


def test_a_job_whose_decisions_stop_is_finished_by_its_last_start(tmp_path):
    renter = Renter(tmp_path)
    renter.turn(0)
    last = renter.world.last_start("demo", BEGIN.to_pydatetime())
    minutes = (last.at - BEGIN) / timedelta(minutes=1)
    assert renter.act(0, minutes=minutes - 1)["jobs"][0]["on_demand"] == 0
    assert renter.act(0, minutes=minutes - 0.25)["jobs"][0]["on_demand"] == last.on_demand
    run = renter.cloud.run("demo", (BEGIN + timedelta(hours=6)).to_pydatetime())
    assert run.finish is not None
    assert 6 * 3600.0 - 900.0 <= run.finish <= 6 * 3600.0


def test_an_example_job_is_launched_by_a_simulated_driver_only(tmp_path):
    with new_store(tmp_path) as store:
        add_job(store)
        store.execute("UPDATE jobs SET origin = 'example'")
    settings = tmp_path / "s.toml"
    settings.write_text('[[drivers]]\nname = "mine"\nkind = "command"\noptions = { run = ["false"] }\n')
    words = ("act", "--db", tmp_path / "w.duckdb", "--at", BEGIN.isoformat(), "--json")
    assert call(*words, "--settings", settings).value["jobs"] == []
    assert [row["job"] for row in call(*words, "--driver", "simulated").value["jobs"]] == ["demo"]


def test_without_a_driver_nothing_is_acted_on(tmp_path):
    with new_store(tmp_path) as store:
        add_job(store)
    done = call("act", "--db", tmp_path / "w.duckdb")
    assert done.code == 2
    assert "[[drivers]] in slackwater.toml, or --driver KIND" in done.err
    assert MARKET not in done.out


def test_interrupted_it_tells_what_runs_on(tmp_path, monkeypatch):
    def interrupt(pause):
        raise KeyboardInterrupt

    with new_store(tmp_path) as store:
        add_job(store)
    monkeypatch.setattr("slackwater.flows.acting.command._sleep", interrupt)
    done = call("act", "--driver", "simulated", "--db", tmp_path / "w.duckdb")
    assert done.code == 130
    assert "acting on every open job, a look every 30 s" in done.err
    assert "Interrupted: no instance runs" in done.said


#: Slot in which the market loses all its spot after 10 minutes.
LOSS = 27


@pytest.mark.slow  # the quick form: a job in two markets, in test_act_markets.py
def test_after_a_loss_the_rest_of_the_slot_is_decided_from_what_is_known_then(tmp_path):
    renter = Renter(tmp_path, at=BEGIN + (LOSS - 1) * STEP)
    for slot in (LOSS - 1, LOSS):
        renter.turn(slot, "Stochastic(72)")
        renter.act(slot)
    (done,) = renter.act(LOSS, minutes=12)["jobs"]
    with open_store(renter.db) as store:
        (row,) = revisions_by_job(store, ["demo"])["demo"]
        decision = decisions_of(store, "demo")[-1]
    begin = BEGIN + LOSS * STEP
    times = [pd.Timestamp(row[name]) for name in ("slot", "lost_at", "revised_at")]
    assert times == [begin, begin + pd.Timedelta("10min"), begin + pd.Timedelta("12min")]
    assert (row["on_demand"], row["spot"]) == (done["target"]["on_demand"], done["target"]["spot"])
    assert (row["held_spot"], row["spot_left"], row["guarded"]) == (0, 0, True)
    assert row["policy"] == decision["policy"]
    assert decision["spot"] > row["spot"]  # the decision of the slot stays as it was
    shown = call("job", "show", "demo", "--db", renter.db, "--json").value
    assert [one["revised_at"] for one in shown["revisions"]] == [row["revised_at"]]
    # The next slot begins from the revision: the state is that of the simulated cloud.
    with open_store(renter.db) as store:
        running = opened(store, LOSS + 1, asked=find_job(store, "demo").request)
    run = renter.cloud.run("demo", (BEGIN + (LOSS + 1) * STEP).to_pydatetime())
    assert running.live.progress().done == pytest.approx(run.work, rel=0.02)


@pytest.mark.parametrize("option", ["--down", "--adopt", "--dry-run", "--once"])
def test_a_name_that_is_no_job_is_refused(tmp_path, option):
    with new_store(tmp_path) as store:
        add_job(store)
    words = ("act", "--driver", "simulated", "--db", tmp_path / "w.duckdb", "--at", BEGIN.isoformat())
    done = call(*words, option, "demo", "dmeo")
    assert (done.code, "no job 'dmeo'" in done.err, "demo" in done.err) == (2, True, True)
    assert call(*words, "--down", "--adopt").code == 2
