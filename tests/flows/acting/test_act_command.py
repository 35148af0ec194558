"""The command `act` on a warehouse with decisions, from the first launch to the last stop."""

from __future__ import annotations

import signal
import subprocess
import sys
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

from slackwater.flows.acting.contract import Instance
from slackwater.flows.acting.drivers import DRIVERS, Place
from slackwater.flows.acting.drivers.simulated import SimulatedDriver
from slackwater.flows.acting.ledger import EvidenceEntry, InstanceEntry, LaunchLedger, ledger_file
from slackwater.flows.acting.loop import ActLoop
from slackwater.flows.acting.stopping import StopSignals
from slackwater.flows.acting.targets import Limits
from slackwater.flows.acting.warehouse import ActingWarehouse
from slackwater.flows.jobs.bill import cost_rows
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
        self.world = ActingWarehouse(self.db, SETTINGS)
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
        acting = ActLoop(world=renter.world, ledger=ledger, driver_of=lambda _: renter.cloud, limits=limits)
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
            acting = ActLoop(
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
    found = call(*words)
    assert "demo: nothing to call, no decision yet" in found.said
    assert "No turn has decided yet: `slackwater run` runs one" in " ".join(found.out.split())


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["in a wait", "in a launch"])
def test_interrupted_it_ends_its_look_and_tells_what_runs_on(tmp_path, monkeypatch, number, moment):
    wait, bring, looks = StopSignals.wait, SimulatedDriver.bring, []

    def interrupted_wait(signals, seconds):
        looks.append(seconds)
        assert len(looks) == 1
        if moment == "in a wait":
            signal.raise_signal(number)
        return wait(signals, seconds)

    def interrupted_launch(driver, order, now):
        if moment == "in a launch":
            signal.raise_signal(number)
        return bring(driver, order, now)

    renter = Renter(tmp_path)
    renter.turn(0, "OD-only")
    monkeypatch.setattr(StopSignals, "wait", interrupted_wait)
    monkeypatch.setattr(SimulatedDriver, "bring", interrupted_launch)
    monkeypatch.setattr("slackwater.flows.clock.now", lambda: BEGIN)
    before = signal.getsignal(number)
    done = call("act", "--driver", "simulated", "--db", renter.db)
    assert done.code == 128 + number
    assert "acting on every open job, a look every 30 s" in done.err
    assert "on-demand instances run for 1 job; $0.00 paid so far" in done.said
    assert "Interrupted: these instances keep running" in done.said
    assert signal.getsignal(number) == before


def test_a_second_signal_ends_the_process_at_once():
    code = (
        "import signal; from slackwater.flows.acting.stopping import StopSignals\n"
        "with StopSignals() as stop:\n"
        "    signal.raise_signal(signal.SIGTERM); print(stop.exit_code, flush=True)\n"
        "    signal.raise_signal(signal.SIGINT); print('goes on')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "143\n")
    assert "a second signal ends it at once" in done.stderr


def test_instances_that_run_on_after_the_deadline_are_in_the_bill(tmp_path):
    """Nobody looks for half an hour after the deadline: the bill has what the ledger has."""
    renter = Renter(tmp_path, deadline_in="2h", workload={"amount": 30, "unit": "instance_hours"})
    for slot in range(4):
        renter.turn(slot, "OD-only")
        renter.act(slot)
    (last,) = renter.act(4, minutes=31)["jobs"]
    assert (last["on_demand"], last["why"], last["left_out"]) == (0, "the deadline has passed", [])
    assert last["evidence_waits_since"] is None
    with open_store(renter.db) as store:
        billed = sum(row["paid_usd"] for row in cost_rows(store, "demo"))
    assert billed == pytest.approx(last["paid_usd"], abs=0.005)
    with LaunchLedger(ledger_file(renter.db), read_only=True) as ledger:
        hours = sum(
            (one.ended - one.since) / timedelta(hours=1) for one in ledger.job("demo").instances.values()
        )
    assert hours == pytest.approx(8 * 151 / 60)


def test_a_decision_that_comes_after_its_slot_is_not_in_the_bill(tmp_path):
    """Turns are late by an hour, and the slots between are made later: `act` ran nothing there."""
    renter = Renter(tmp_path)
    for slot in range(3):
        assert renter.act(slot, minutes=21)["jobs"][0]["why"] == "no decision yet"
    for slot in range(4):
        renter.turn(slot, "OD-only")
    done = renter.act(3, minutes=1)["jobs"][0]
    assert done["on_demand"] > 0
    (last,) = renter.act(3, minutes=21)["jobs"]
    with open_store(renter.db) as store:
        rows = cost_rows(store, "demo")
    assert [row["held_from"] for row in rows] == ["reported"] * 4
    assert [row["paid_usd"] for row in rows[:3]] == [0.0] * 3
    assert last["paid_usd"] > 0


def test_evidence_that_the_warehouse_refuses_is_stated(tmp_path):
    """The ledger has a job that the warehouse, made anew, does not know."""
    renter = Renter(tmp_path)
    renter.turn(0, "OD-only")
    renter.act(0)
    at = BEGIN.to_pydatetime()
    unknown = Instance(id="i-1", job="gone", key="k", market=MARKET, kind="spot", since=at)
    with LaunchLedger(ledger_file(renter.db)) as ledger:
        ledger.add(InstanceEntry(at=at, job="gone", key="k", instances=(unknown,), spot_left=1))
        acting = ActLoop(
            world=renter.world,
            ledger=ledger,
            driver_of=lambda _: renter.cloud,
            limits=Limits(idle_slots=3, every=timedelta(seconds=30)),
        )
        acting.run_pass(at + timedelta(minutes=1))
        assert "no job 'gone' in the warehouse" in ledger.job("gone").left_out[0]


def test_a_grant_before_the_start_of_a_job_is_said_to_be_left_out(tmp_path):
    renter = Renter(tmp_path)
    renter.turn(0, "OD-only")
    early = BEGIN.to_pydatetime() - timedelta(minutes=20)
    own = Instance(id="i-1", job="demo", key="", market=MARKET, kind="on_demand", since=early)
    with LaunchLedger(ledger_file(renter.db)) as ledger:
        ledger.add(InstanceEntry(at=BEGIN.to_pydatetime(), job="demo", key="", instances=(own,), spot_left=0))
        acting = ActLoop(
            world=renter.world,
            ledger=ledger,
            driver_of=lambda _: renter.cloud,
            limits=Limits(idle_slots=3, every=timedelta(seconds=30)),
        )
        (done,) = acting.run_pass(BEGIN.to_pydatetime() + timedelta(minutes=1))
    (why,) = done.left_out
    assert why.startswith("granted 1 on-demand: a report of job 'demo'")
    assert "after its start" in why


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
