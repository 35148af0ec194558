"""Passes of `slackwater act`: targets, stops, repeated calls and the ledger of launches."""

from __future__ import annotations

import resource
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pandas as pd
import pytest
from acting_kit import MARKET, SLOT, START, GuardedWorld, SimulatedJob, make_world
from forms_kit import quick_first

from slackwater.flows.acting.contract import (
    Brought,
    DriverError,
    Instance,
    Order,
    count_by_kind,
    lacking,
    surplus,
)
from slackwater.flows.acting.drivers.simulated import SimulatedDriver
from slackwater.flows.acting.ledger import InstanceEntry, JobLaunches, LaunchLedger, OrderEntry, RevisionEntry
from slackwater.flows.acting.loop import ActLoop
from slackwater.flows.acting.targets import ActiveJob, Limits, SlotDecision, target_of
from slackwater.flows.acting.warehouse import evidence
from slackwater.flows.ledger.open_job import _request_state
from slackwater.optimization.belief.launches import launch_state
from slackwater.optimization.world.simulation import Readings
from slackwater.warehouse.errors import MarketError, StoreError

EVERY = timedelta(minutes=1)


def make_decision(n=0, *, on_demand=0, spot=0, **changes):
    """Return the decision of the n-th slot."""
    slot = START + n * timedelta(seconds=SLOT)
    decision = SlotDecision(
        key=f"key-{n}",
        market=MARKET,
        slot=slot,
        valid_until=slot + timedelta(seconds=SLOT),
        on_demand=on_demand,
        spot=spot,
    )
    return replace(decision, **changes)


class Setting:
    """A job of 6 hours in a market with 4 spot instances for 40 minutes, then none for 20, and so on."""

    def __init__(self, folder, *, budget_usd=None):
        world = make_world(START, hours=6, load=0.5, rng=np.random.default_rng(0))
        counts = np.array([4, 4, 4, 4, 0, 0] * 8)
        readings = Readings(times=600.0 * np.arange(48), available=counts, price=np.full(48, 0.5))
        self.job = SimulatedJob("job", START, 6 * 3600.0, replace(world, readings=(readings,)), budget_usd)
        self.cloud = SimulatedDriver(folder / "cloud", lambda job, now: self.job.world)
        self.world = GuardedWorld({"job": self.job}, self.cloud)
        self.file = folder / "launches.jsonl"
        self.driver = self.cloud
        self.open()

    def open(self, **options):
        self.ledger = LaunchLedger(self.file, **options)
        self.acting = ActLoop(
            world=self.world,
            ledger=self.ledger,
            driver_of=lambda _: self.driver,
            limits=Limits(idle_slots=3, every=EVERY),
        )

    def again(self, **options):
        """Start the actor again, as after a kill."""
        self.ledger.close()
        self.open(**options)

    def revise_to(self, on_demand, spot=0, standby=None):
        """Decide every rest of a slot in the same way; returns the losses that were told."""
        told = []

        def revise(job, launches, now):
            told.append((job.decision.key, launches.losses[job.decision.key].left))
            return {
                "revised_at": now.isoformat(),
                "lost_at": launches.losses[job.decision.key].at.isoformat(),
                "market": MARKET,
                "on_demand": on_demand,
                "spot": spot,
                "standby_on_demand": standby,
            }

        self.world.revise = revise
        return told

    def decide(self, *args, **changes):
        self.world.decisions["job"] = make_decision(*args, **changes)

    def act(self, minutes, **options):
        (result,) = self.acting.run_pass(START + timedelta(minutes=minutes), **options)
        return result

    def held(self, minutes):
        listed = self.cloud.listed("job", [], START + timedelta(minutes=minutes))
        counts = count_by_kind(listed)
        return counts["on_demand"], counts["spot"]


@pytest.fixture
def setting(tmp_path):
    found = Setting(tmp_path)
    yield found
    found.ledger.close()


def test_a_decision_is_brought_once_and_kept(setting):
    setting.decide(on_demand=1, spot=2)
    assert setting.act(0).order is not None
    assert setting.act(1).order is None
    assert setting.held(1) == (1, 2)
    (first,) = [entry for _, entry in setting.world.evidence if isinstance(entry, OrderEntry)]
    assert first.order.token == "key-0-1"


def test_the_standby_plan_replaces_lost_spot_at_once(setting):
    setting.world.revise = lambda job, launches, now: "no forecast"
    setting.decide(1, spot=3, standby_on_demand=2)
    setting.act(30)
    result = setting.act(41)
    assert result.note == "no forecast"
    assert (result.target.on_demand, result.target.spot, result.lost) == (2, 0, 3)
    assert setting.held(41) == (2, 0)
    assert setting.act(59).order is None  # spot is back at 60, and the standby plan stays
    setting.decide(2, spot=4)
    setting.act(60)
    assert setting.held(60) == (0, 4)


def test_after_a_loss_the_rest_of_the_slot_is_decided_again(setting):
    told = setting.revise_to(1)
    setting.decide(1, spot=3, standby_on_demand=2)
    setting.act(30)
    result = setting.act(41)
    assert told == [("key-1", 0)]
    assert (result.target.on_demand, result.target.spot) == (1, 0)
    assert "spot was lost at 00:40 UTC: decided again until 01:00 UTC" in result.target.why
    orders = [one for _, one in setting.world.evidence if isinstance(one, OrderEntry)]
    assert [(one.order.token, one.order.on_demand, one.order.spot) for one in orders] == [
        ("key-1-1", 0, 3), ("key-1-r1-1", 1, 0),
    ]  # fmt: skip
    assert setting.act(45).order is None
    setting.again()
    assert setting.act(50).order is None  # a restarted actor reads the decision from the ledger
    assert told == [("key-1", 0)]
    setting.decide(2, spot=4)
    setting.act(60)
    assert setting.held(60) == (0, 4)


def test_spot_lost_after_a_revision_is_decided_again_under_its_own_name(setting):
    told = setting.revise_to(0, spot=3, standby=1)
    setting.decide(1, spot=3, standby_on_demand=2, valid_until=START + timedelta(hours=3))
    setting.act(30)
    setting.act(41)
    setting.act(70)  # the spot is back
    setting.act(101)
    assert [key for key, _ in told] == ["key-1", "key-1-r1"]
    assert setting.ledger.job("job").revision.key == "key-1-r2"


def test_spot_lost_in_the_last_minute_of_a_slot_waits_for_the_next_decision(setting):
    told = setting.revise_to(1)
    setting.decide(1, spot=3, standby_on_demand=2, valid_until=START + timedelta(minutes=42))
    setting.act(30)
    assert setting.act(41).target.on_demand == 2
    assert told == []


def test_an_actor_killed_before_its_new_decision_is_stored_decides_again(setting):
    class Killing(LaunchLedger):
        def add(self, entry):
            if isinstance(entry, RevisionEntry):
                raise Interrupted
            super().add(entry)

    told = setting.revise_to(1)
    setting.decide(1, spot=3, standby_on_demand=2)
    setting.act(30)
    setting.ledger.close()
    setting.acting.ledger = setting.ledger = Killing(setting.file)
    with pytest.raises(Interrupted):
        setting.act(41)
    setting.again()
    assert setting.act(42).target.on_demand == 1
    assert len(told) == 2


def test_without_a_standby_plan_lost_spot_stays_requested(setting):
    setting.world.revise = lambda job, launches, now: "no forecast"
    setting.decide(1, spot=3, valid_until=START + timedelta(hours=3))
    setting.act(30)
    assert setting.act(45).order is None
    assert setting.held(61) == (0, 3)


def test_without_decisions_instances_are_kept_for_three_slots(setting):
    setting.decide(on_demand=1, spot=2)
    setting.act(0)
    assert "nothing new is launched" in setting.act(31).target.why
    assert setting.held(31) == (1, 2)
    setting.act(41)  # the spot is lost, and not replaced
    setting.act(119)
    assert setting.held(119) == (1, 0)
    assert "no decision since the slot of" in setting.act(120).target.why
    assert setting.held(120) == (0, 0)


def test_a_promised_deadline_starts_on_demand_at_the_last_moment_without_decisions(setting):
    setting.decide(guarded=True)
    last = setting.world.last_start("job", START)
    minutes = (last.at - START) / timedelta(minutes=1)
    assert setting.act(minutes - 2).target.on_demand == 0
    result = setting.act(minutes - 0.5)
    assert (result.target.on_demand, setting.held(minutes)) == (4, (4, 0))
    setting.act(359)
    run = setting.cloud.run("job", START + timedelta(hours=6))
    assert run.finish is not None
    assert run.finish <= 6 * 3600.0


def test_everything_stops_at_the_finish(setting):
    setting.decide(spot=4, valid_until=START + timedelta(hours=7))
    setting.act(0)
    setting.world.finished.add("job")
    result = setting.act(5)
    assert result.is_over
    assert setting.held(5) == (0, 0)


def test_everything_stops_at_the_deadline(setting):
    setting.decide(11, on_demand=1, valid_until=START + timedelta(hours=7))
    setting.act(330)
    assert setting.act(360).is_over
    assert setting.held(360) == (0, 0)


def test_everything_stops_before_the_budget_is_exceeded(tmp_path):
    setting = Setting(tmp_path, budget_usd=1.0)
    setting.decide(on_demand=2, valid_until=START + timedelta(hours=7))
    for minute in range(0, 60):
        result = setting.act(minute)
    assert "budget of $1.00" in result.target.why
    assert setting.held(59) == (0, 0)
    assert 0.95 <= result.paid_usd <= 1.0
    setting.ledger.close()


class Interrupted(BaseException):
    """The process ended during the call."""


class Interrupting:
    """A driver whose caller is killed after the call took effect, or before."""

    def __init__(self, driver, *, before):
        self._driver, self._before, self.calls = driver, before, []

    def __getattr__(self, name):
        return getattr(self._driver, name)

    def bring(self, order, now):
        self.calls.append(order.token)
        if len(self.calls) == 1:
            if not self._before:
                self._driver.bring(order, now)
            raise Interrupted
        return self._driver.bring(order, now)


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupted_call_is_repeated_with_its_token(setting, before):
    setting.driver = Interrupting(setting.cloud, before=before)
    setting.decide(spot=3)
    with pytest.raises(Interrupted):
        setting.act(0)
    setting.again()
    setting.act(1)
    assert setting.driver.calls == ["key-0-1", "key-0-1"]
    assert setting.held(1) == (0, 3)


def test_another_order_waits_until_an_interrupted_launch_would_be_listed(setting):
    setting.driver = Interrupting(setting.cloud, before=True)
    setting.driver.settle_seconds = 90.0
    setting.decide(spot=3)
    with pytest.raises(Interrupted):
        setting.act(0)
    setting.decide(spot=1)
    setting.again()
    assert setting.act(1).order is None
    assert setting.act(2).order is not None
    assert setting.held(2) == (0, 1)


def test_a_driver_that_fails_is_told_and_tried_again(setting):
    class Failing:
        name, settle_seconds, retry_seconds = "failing", 0.0, 60.0
        listed, fitted = setting.cloud.listed, setting.cloud.fitted

        def bring(self, order, now):
            raise DriverError("no quota for p4d.24xlarge")

    setting.driver = Failing()
    setting.decide(spot=1)
    assert setting.act(0).error == "no quota for p4d.24xlarge"
    setting.driver = setting.cloud
    assert setting.act(1).error == ""
    assert setting.held(1) == (0, 1)


def test_an_error_of_an_answered_call_is_told_after_its_outcome_is_stored(setting):
    class Partly:
        name, settle_seconds, retry_seconds = "partly", 0.0, 120.0
        listed, fitted = setting.cloud.listed, setting.cloud.fitted

        def bring(self, order, now):
            brought = setting.cloud.bring(order.model_copy(update={"spot": 0}), now)
            return brought.model_copy(update={"refused": "2 spot: no", "error": "no permission for spot"})

    setting.driver = Partly()
    setting.decide(on_demand=1, spot=2)
    assert setting.act(0).error == "no permission for spot"
    launches = setting.ledger.job("job")
    assert (launches.answered, launches.refused) == (True, "2 spot: no")
    result = setting.act(1)  # nothing is requested again before `retry_seconds`
    assert (result.order, result.refused, len(result.held)) == (None, "2 spot: no", 1)
    assert setting.act(2).error == "no permission for spot"
    assert launches.last.order.token == "key-0-2"


def test_an_order_states_what_was_missing_when_it_was_first_given(setting):
    setting.decide(on_demand=1, spot=1)
    assert setting.act(0).order.missing == {"on_demand": 1, "spot": 1}
    setting.driver = Interrupting(setting.cloud, before=False)
    setting.decide(on_demand=1, spot=3, key="other")
    with pytest.raises(Interrupted):
        setting.act(1)
    setting.again()
    assert setting.act(2).order.missing == {"on_demand": 0, "spot": 2}
    assert setting.held(2) == (1, 3)


def test_a_lost_ledger_is_made_again_from_the_tags(setting):
    setting.decide(on_demand=1, spot=2)
    setting.act(0)
    setting.file.unlink()
    setting.again()
    (result,) = setting.acting.adopt(START + timedelta(minutes=1))
    assert (result.target.why, len(result.held)) == ("taken over", 3)
    assert setting.act(2).order is None
    assert setting.held(2) == (1, 2)


def test_down_stops_everything_of_a_job(setting):
    setting.decide(on_demand=1, spot=2)
    setting.act(0)
    (result,) = setting.acting.stop(["job"], START + timedelta(minutes=1), "--down")
    assert result.is_over
    assert setting.held(1) == (0, 0)


def test_a_dry_run_lists_the_calls_and_changes_nothing(setting):
    setting.decide(on_demand=1, spot=2)
    setting.again(read_only=True)
    result = setting.act(0, dry=True)
    assert result.commands == (f"simulate 1 on-demand and 2 spot in {MARKET}",)
    assert setting.held(0) == (0, 0)
    setting.again()
    assert setting.ledger.jobs == {}


def test_one_process_acts_on_a_warehouse(setting):
    with pytest.raises(StoreError, match="another `slackwater act`"):
        LaunchLedger(setting.file)
    with LaunchLedger(setting.file, read_only=True) as reader:
        assert reader.jobs == {}


def test_a_torn_last_line_is_left_out_and_a_damaged_line_is_named(setting):
    setting.decide(spot=2)
    setting.act(0)
    entries = len(setting.file.read_bytes().splitlines())
    with setting.file.open("ab") as file:
        file.write(b'{"event": "orde')
    setting.again()
    assert setting.act(1).order is None
    assert len(setting.file.read_bytes().splitlines()) == entries
    setting.ledger.close()
    with setting.file.open("ab") as file:
        file.write(b"nonsense\n")
    with pytest.raises(StoreError, match=f"line {entries + 1}"):
        setting.open()


def test_an_instance_with_a_notice_is_replaced_and_has_the_time_to_save():
    def instance(name, **changes):
        return Instance(id=name, job="job", key="key", market=MARKET, kind="spot", since=START, **changes)

    held = [instance("i-1", leaving=START), instance("i-2"), instance("i-3")]
    order = Order(job="job", token="key-1", key="key", market=MARKET, on_demand=0, spot=3)
    assert (surplus(order, held), lacking(order, held)["spot"]) == ([], 1)
    fewer = order.model_copy(update={"spot": 1})
    assert [one.id for one in surplus(fewer, held)] == ["i-3"]
    moved = order.model_copy(update={"market": "west"})
    assert [one.id for one in surplus(moved, held)] == ["i-2", "i-3"]
    nothing = order.model_copy(update={"spot": 0})
    assert [one.id for one in surplus(nothing, held)] == ["i-1", "i-2", "i-3"]


def in_west(count):
    """Return the launches of a job that runs on-demand instances in another market than its decision."""
    launches = JobLaunches()
    held = tuple(
        Instance(id=f"i-{k}", job="job", key="key-0", market="west", kind="on_demand", since=START)
        for k in range(count)
    )
    launches.add(InstanceEntry(at=START, job="job", key="key-0", instances=held, spot_left=0))
    return launches


def target_at(minutes, launches, *, budget_usd=None):
    job = ActiveJob(
        name="job",
        deadline=START + timedelta(hours=6),
        step=timedelta(seconds=SLOT),
        budget_usd=budget_usd,
        decision=make_decision(spot=3, standby_on_demand=2, standby_market="west"),
    )
    return target_of(
        job,
        launches,
        START + timedelta(minutes=minutes),
        Limits(idle_slots=3, every=timedelta(minutes=30)),
        spent_usd=lambda: 0.0,
        usd_per_hour=lambda counts, market: {"west": 10.0, MARKET: 1.0}[market] * sum(counts.values()),
        last_start=lambda slot: None,
    )


def test_without_a_newer_decision_instances_in_another_market_run_on():
    target = target_at(35, in_west(2))
    assert (target.market, target.on_demand, target.spot) == ("west", 2, 0)
    assert "nothing new is launched" in target.why


def test_a_budget_counts_instances_at_the_prices_of_their_market():
    """Half an hour of 2 instances in the west costs $10, of 3 in the market of the decision $1.50."""
    assert target_at(5, in_west(2), budget_usd=11.0).spot == 3
    assert target_at(5, in_west(2), budget_usd=9.0).final


def reports(setting):
    """Collect the evidence as reports of the job."""
    found = []

    def record(new, now):
        for one in new:
            found.extend(evidence(one, now))
        return {}

    setting.world.record = record
    return found


def test_the_evidence_states_what_was_granted_and_lost(setting):
    found = reports(setting)
    setting.world.revise = lambda job, launches, now: "no forecast"
    setting.decide(1, spot=3, standby_on_demand=2)
    setting.act(30)
    setting.act(35)  # nothing changed, and nothing is reported again
    setting.act(41)
    assert [(f"{one.reported_at:%H:%M}", one.note, one.launch, one.on_demand, one.spot) for one in found] == [
        ("00:30", "granted 3 spot", {"asked": 3, "granted": 3, "held_minutes": 0.0}, 0, 3),
        ("00:40", "lost 3 spot", {"lost": 3, "held_minutes": 10.0}, 0, 0),
        ("00:41", "granted 2 on-demand", {"asked": 0, "granted": 0, "held_minutes": 0.0}, 2, 0),
    ]
    assert [f"{one.known_at:%H:%M}" for one in found] == ["00:30", "00:41", "00:41"]


class Late:
    """A driver that states launches some seconds after the time of the pass, as clouds do."""

    def __init__(self, driver, seconds):
        self.driver, self.seconds = driver, timedelta(seconds=seconds)

    def __getattr__(self, name):
        return getattr(self.driver, name)

    def listed(self, job, markets, now):
        found = self.driver.listed(job, markets, now)
        return [one.model_copy(update={"since": one.since + self.seconds}) for one in found]


def test_a_launch_later_than_its_pass_is_evidence_once_that_the_warehouse_takes(setting):
    found, launched = reports(setting), setting.driver
    setting.driver = Late(launched, 8)
    setting.again()
    setting.world.revise = lambda job, launches, now: "no forecast"
    setting.decide(1, spot=3, standby_on_demand=2)
    setting.act(30)
    setting.act(35)
    setting.act(41)
    assert sum(one.note.startswith("granted 3 spot") for one in found) == 1
    assert found[0].launch == {"asked": 3, "granted": 3, "held_minutes": 0.0}
    assert all((one.held_minutes or 0.0) >= 0.0 for one in found)


def test_calls_that_take_time_are_dated_after_them(setting):
    """Launched and stopped within calls of half a minute, instances are paid from and to the time that their driver states."""

    class Slow:
        def __init__(self, driver):
            self.driver, self.now = driver, START

        def __getattr__(self, name):
            return getattr(self.driver, name)

        def bring(self, order, now):
            self.now = now + timedelta(seconds=30)
            return self.driver.bring(order, self.now)

    found = reports(setting)
    setting.driver = slow = Slow(setting.cloud)
    setting.acting.clock = lambda: slow.now
    setting.decide(on_demand=2)
    setting.act(0)
    slow.now = START + timedelta(minutes=10)
    setting.decide(on_demand=0)
    setting.act(10)
    assert [f"{one.reported_at:%H:%M:%S} {one.note}" for one in found] == [
        "00:00:30 granted 2 on-demand", "00:10:30 stopped 2 on-demand",
    ]  # fmt: skip
    assert hours_of(found, "on_demand", START + timedelta(hours=1)) == pytest.approx(2 * 10 / 60)


def hours_of(found, kind, end):
    """Return the instance hours of a kind that reports state, each until the next."""
    edges = [one.reported_at for one in found] + [end]
    return sum(
        getattr(one, kind) * max(pd.Timedelta(0), after - one.reported_at) / pd.Timedelta("1h")
        for one, after in zip(found, edges[1:], strict=True)
    )


@pytest.mark.parametrize("seed", quick_first(range(8), 3))
def test_the_evidence_has_the_hours_of_the_instances_however_rare_the_looks(setting, seed):
    """Losses and grants between two looks count from their own time, also while the warehouse is locked or `act` restarts."""
    rng, found = np.random.default_rng(seed), reports(setting)
    free, minute = setting.world.record, 0.0
    setting.world.record = lambda *args: free(*args) if rng.random() < 0.6 else None
    setting.world.revise = lambda job, launches, now: "no forecast"
    while minute < 330:
        on_demand, spot = int(rng.integers(0, 2)), int(rng.integers(0, 4))
        setting.decide(int(minute // 30), on_demand=on_demand, spot=spot, standby_on_demand=1)
        setting.act(minute)
        if rng.random() < 0.2:
            setting.again()
        minute += float(rng.uniform(0.5, 25))
    setting.world.record = free
    setting.act(330)
    end = START + timedelta(minutes=330)
    instances = setting.ledger.job("job").instances.values()
    assert sum(one.end == "lost" for one in instances) == sum(one.lost or 0 for one in found) > 0
    for kind in ("on_demand", "spot"):
        paid = sum(((one.ended or end) - one.since).total_seconds() for one in instances if one.kind == kind)
        assert hours_of(found, kind, end) == pytest.approx(paid / 3600.0, abs=1e-6)


def test_instances_that_are_kept_are_evidence_once_in_each_slot(setting):
    found = reports(setting)
    for slot in range(2):
        setting.decide(slot, spot=2)
        setting.act(30 * slot)
        setting.act(30 * slot + 5)
    assert [one.launch["held_minutes"] for one in found] == [0.0, 30.0]


def test_a_slot_in_which_nothing_runs_is_reported_once_and_is_no_evidence_of_spot(setting):
    """The decision of the slot comes after its end: nothing of it ran."""
    found = reports(setting)
    for minute in (5, 16, 29):  # in the first half the decision may still come
        setting.act(minute)
    setting.decide(0, spot=2)
    for minute in (31, 45, 50):
        setting.act(minute)
    assert [f"{one.reported_at:%H:%M}" for one in found] == ["00:16", "00:45"]
    assert {(one.on_demand, one.spot, one.asked, one.granted) for one in found} == {(0, 0, 0, 0)}
    for advised in (0, 2):
        assert [_request_state(one, advised) for one in found] == [None, None]


def test_a_request_that_is_refused_is_evidence(setting):
    found = reports(setting)
    setting.decide(1, spot=4)
    setting.act(41)
    (refused,) = found
    assert refused.launch == {"asked": 4, "granted": 0}
    assert "4 of 4 spot instances are not available" in refused.note


@pytest.mark.parametrize("answered", [False, True])
def test_a_call_that_fails_is_no_evidence_of_scarce_spot(setting, answered):
    class Failing:
        name, settle_seconds, retry_seconds = "failing", 0.0, 60.0
        listed, fitted = setting.cloud.listed, setting.cloud.fitted

        def bring(self, order, now):
            if answered:
                return Brought(error="no permission for spot")
            raise DriverError("no permission for spot")

    found = reports(setting)
    setting.driver = Failing()
    setting.decide(spot=4)
    assert setting.act(0).error == setting.act(20).error == "no permission for spot"
    assert [_request_state(report, advised=4) for report in found] == [None] * len(found)
    setting.driver = setting.cloud
    setting.cloud.retry_seconds = 60.0
    setting.act(29)
    assert _request_state(found[-1], advised=4) == launch_state(4, 4)


def test_evidence_waits_while_the_warehouse_is_locked(setting):
    found, locked = reports(setting), [True, False]
    free = setting.world.record
    setting.world.record = lambda *args: None if locked.pop(0) else free(*args)
    setting.decide(spot=2)
    assert setting.act(0).waits_since == START
    assert found == []
    setting.again()
    assert setting.act(1).waits_since is None
    assert [one.note for one in found] == ["granted 2 spot"]


def test_a_job_is_over_once_its_evidence_is_stored(setting):
    setting.decide(on_demand=1)
    setting.act(0)
    free, setting.world.record = setting.world.record, lambda *args: None
    stop = START + timedelta(minutes=1)
    (stopped,) = setting.acting.stop(["job"], stop, "--down")
    assert (stopped.held, stopped.waits_since, stopped.is_over) == ((), stop, False)
    setting.world.finished.add("job")
    assert not setting.act(400).is_over  # still looked at, after the deadline and without instances
    setting.world.record = free
    assert setting.acting.run_pass(START + timedelta(minutes=401)) == []
    setting.acting.only = frozenset(["job"])
    assert setting.act(402).is_over  # a job that was named has its summary


def test_refused_evidence_is_stated_by_every_later_pass(setting):
    why = "granted 2 spot: a report of job 'job' at 23:59; expected a time after its start"
    setting.world.record = lambda found, now: {"job": [why]}
    setting.decide(spot=2)
    assert setting.act(0).left_out == (why,)
    setting.world.record = lambda found, now: {}
    setting.again()
    assert setting.act(1).left_out == (why,)


def test_a_warehouse_that_cannot_be_written_is_an_error_of_the_pass(setting):
    def fail(found, now):
        raise StoreError("the disk is full")

    free, setting.world.record = setting.world.record, fail
    setting.decide(spot=2)
    result = setting.act(0)
    assert (result.error, setting.held(0)) == ("evidence is not stored yet: the disk is full", (0, 2))
    setting.world.record = free
    assert setting.act(1).error == ""
    assert setting.world.evidence


def test_an_order_that_the_ledger_cannot_take_is_not_given(setting):
    """The disk is full in the middle of a line: the ledger stays whole, and the next pass goes on."""
    setting.decide(on_demand=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (setting.file.stat().st_size + 40, limits[1]))
    try:
        result = setting.act(0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "the ledger has every order before it is sent" in result.error
    assert setting.held(0) == (0, 0)
    setting.again()
    assert (setting.act(1).error, setting.held(1)) == ("", (1, 0))


def test_prices_that_cannot_be_read_leave_the_cost_unknown_and_stop_nothing_but_budgets(setting):
    def fail(*args):
        raise MarketError("market gone")

    setting.world.prices = fail
    setting.decide(on_demand=1, valid_until=START + timedelta(hours=7))
    result = setting.act(0)
    assert (result.paid_usd, result.note, setting.held(0)) == (None, "cost unknown: market gone", (1, 0))
    assert setting.act(360).is_over  # the deadline
    assert setting.held(360) == (0, 0)


def test_an_error_of_a_job_does_not_keep_others_from_their_target(setting):
    def fail(*args):
        raise MarketError("market gone")

    other = replace(setting.job, name="other", budget_usd=5.0)  # needs prices
    setting.world.works["other"] = other
    setting.world.decisions["other"] = make_decision(on_demand=1)
    setting.decide(on_demand=1)
    prices = setting.world.prices
    setting.world.prices = lambda job, *args: fail() if job == "other" else prices(job, *args)
    first, second = setting.acting.run_pass(START)
    assert {first.job: first.error, second.job: second.error} == {"job": "", "other": "market gone"}
    assert setting.held(0) == (1, 0)
