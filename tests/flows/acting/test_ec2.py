"""The EC2 driver: requests of the documented form, and acting with kills against a double and moto's server."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from acting_kit import MARKET, START, Killed, Kills, mortal_acting
from botocore.stub import Stubber
from ec2_kit import Ec2Double, request_errors
from moto_kit import forget_ended, moto_client, moto_url  # noqa: F401 - a fixture

from slackwater.flows.acting.contract import DriverError, Order
from slackwater.flows.acting.drivers import DRIVERS, Place
from slackwater.flows.acting.ledger import LaunchLedger
from slackwater.flows.acting.loop import ActLoop
from slackwater.flows.acting.targets import ActiveJob, Limits, SlotDecision
from slackwater.flows.acting.warehouse import evidence

ZONE_ID_MARKET = "aws/us-east-1/use1-az1/p4d.24xlarge"
REGION_MARKET = "aws/us-east-1/all/p4d.24xlarge"


def make_driver(tmp_path, **options):
    place = Place(name="cloud", db=tmp_path / "w.duckdb", world_of=lambda job, now: None)
    return DRIVERS["ec2"]({"template": "training", "settle_seconds": 0.0, **options}, place)


def make_order(n=1, **changes):
    order = Order(job="j", token=f"{'a' * 32}-{n}", key="a" * 32, market=MARKET, on_demand=1, spot=2)
    return order.model_copy(update=changes)


@pytest.mark.parametrize(
    ("market", "place"),
    [
        (MARKET, {"AvailabilityZone": "us-east-1a", "SubnetId": "subnet-1"}),
        (ZONE_ID_MARKET, {"AvailabilityZoneId": "use1-az1"}),
        (REGION_MARKET, {}),  # EC2 chooses the zone
    ],
)
def test_a_request_is_one_fleet_of_both_kinds_in_the_form_of_the_api(tmp_path, market, place):
    driver = make_driver(tmp_path, subnets={"us-east-1a": "subnet-1"})
    request = driver.request(make_order(market=market, valid_until=START), {"on_demand": 1, "spot": 2})
    assert request_errors(request) == ""
    (config,) = request["LaunchTemplateConfigs"]
    assert config["Overrides"] == [{"InstanceType": "p4d.24xlarge"} | place]
    assert request["Type"] == "instant"
    assert request["TargetCapacitySpecification"] == {
        "TotalTargetCapacity": 3,
        "OnDemandTargetCapacity": 1,
        "SpotTargetCapacity": 2,
        "DefaultTargetCapacityType": "spot",
    }
    assert [tags["ResourceType"] for tags in request["TagSpecifications"]] == ["fleet", "instance"]
    assert len(request["ClientToken"]) <= 64
    assert "create-fleet" in driver.commands(make_order(market=market), [])[0]


def make_double(driver, **options):
    """Return a double of EC2 in place of the API that a driver calls."""
    double = Ec2Double(START, **options)
    driver._clients["us-east-1"] = double
    return double


def test_a_fleet_that_is_granted_in_part_states_its_instances_and_the_refusal(tmp_path):
    driver = make_driver(tmp_path)
    double = make_double(driver, spot=1)
    brought = driver.bring(make_order(on_demand=2, spot=3), START)
    assert sorted(one.kind for one in brought.launched) == ["on_demand", "on_demand", "spot"]
    assert {(one.market, one.key, one.since) for one in brought.launched} == {(MARKET, "a" * 32, START)}
    assert brought.refused == "2 spot: InsufficientInstanceCapacity"
    assert brought.error == ""
    double.spot = 3
    assert len(driver.bring(make_order(2, on_demand=2, spot=3), START).launched) == 2


def test_an_error_of_a_fleet_that_is_no_refusal_is_an_error_of_the_driver(tmp_path):
    driver = make_driver(tmp_path)
    double = make_double(driver, spot=0)
    double.refusal = "UnauthorizedOperation"
    brought = driver.bring(make_order(), START)
    assert [one.kind for one in brought.launched] == ["on_demand"]
    assert brought.refused == "2 spot: UnauthorizedOperation"
    assert brought.error == "EC2 in us-east-1: UnauthorizedOperation: why"


def test_a_repeated_order_returns_the_first_fleet_while_nothing_is_listed(tmp_path):
    driver = make_driver(tmp_path)
    double = make_double(driver, late=lambda: timedelta(seconds=50), spot=1)
    order = make_order(missing={"on_demand": 1, "spot": 2})
    first = driver.bring(order, START)
    double.spot = 5
    assert driver.bring(order, START) == first
    double.now += timedelta(minutes=1)  # the granted instances are listed
    assert driver.bring(order, START) == first
    assert len(double.fleets) == 1


def test_spot_is_replaced_at_its_notice_and_its_loss_is_stored_once_at_its_end(tmp_path):
    """The instance is paid to its end, and nobody stops it before."""
    world = Slots(np.random.default_rng(0), ["job"], minutes=60)
    world.turn(START)
    world.decisions["job"] = replace(world.decisions["job"], on_demand=0, spot=2)
    driver = make_driver(tmp_path)
    double = make_double(driver)
    acting = ActLoop(
        world=world,
        ledger=LaunchLedger(tmp_path / "launches.jsonl"),
        driver_of=lambda _: driver,
        limits=Limits(idle_slots=3, every=timedelta(seconds=30)),
    )
    revised, reports = [], []
    world.record = lambda found, now: reports.extend(one for new in found for one in evidence(new, now)) or {}
    world.revise = lambda job, launches, now: revised.append(launches.losses[job.decision.key]) or "no"

    def act(minutes):
        double.now = START + timedelta(minutes=minutes)
        double.reclaim()
        (result,) = acting.run_pass(double.now)
        return {name.id for name in result.held}

    assert act(0) == {"i-0", "i-1"}
    double.now = START + timedelta(minutes=9.5)
    double.give_notice(1)
    assert act(10) == {"i-0", "i-1", "i-2"}
    assert (revised[0].at, revised[0].left) == (START + timedelta(minutes=9.5), 1)
    assert act(11) == {"i-0", "i-1", "i-2"}
    assert act(11.5) == act(12) == {"i-1", "i-2"}
    launches = acting.ledger.job("job")
    lost, end = launches.instances["i-0"], START + timedelta(minutes=11.5)
    assert (lost.end, lost.ended) == ("lost", end)
    assert launches.losses[launches.last.order.key].at == START + timedelta(minutes=9.5)
    told = [((one.reported_at - START) / timedelta(minutes=1), one.spot, one.lost) for one in reports]
    assert told == [(0, 2, None), (10, 3, None), (11.5, 2, 1)]
    acting.ledger.close()


def test_a_changed_request_of_an_interrupted_order_launches_nothing(tmp_path):
    double = make_double(make_driver(tmp_path), late=lambda: timedelta(seconds=50))
    for template in ("training", "other"):
        driver = make_driver(tmp_path, template=template)
        driver._clients["us-east-1"] = double
        brought = driver.bring(make_order(), START)
    assert len(double.fleets) == 1
    assert (brought.launched, brought.error) == ((), "")
    assert brought.refused == (
        "1 on-demand: IdempotentParameterMismatch; 2 spot: IdempotentParameterMismatch"
    )


def test_an_api_that_does_not_answer_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    driver = make_driver(tmp_path, endpoint_url="http://127.0.0.1:9")
    with pytest.raises(DriverError, match="EC2 in us-east-1"):
        driver.listed("job", [MARKET], START)


def ended_instance(name, *, spot, reason=""):
    """Return an instance in EC2's form that ended, an hour after its launch."""
    return {
        "InstanceId": name,
        "InstanceType": "p4d.24xlarge",
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "LaunchTime": START,
        "State": {"Code": 48, "Name": "terminated"},
        "StateTransitionReason": reason,
        "StateReason": {"Code": "Server.SpotInstanceTermination", "Message": ""} if spot else {},
        **({"InstanceLifecycle": "spot"} if spot else {}),
    }


@pytest.mark.parametrize("permitted", [True, False])
def test_a_loss_has_the_time_of_its_spot_request_where_that_may_be_read(tmp_path, monkeypatch, permitted):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    driver = make_driver(tmp_path)
    listed = [
        ended_instance("i-1", spot=True),
        ended_instance("i-2", spot=True),
        ended_instance("i-3", spot=True, reason="Server.SpotInstanceTermination (2026-03-02 00:10:00 GMT)"),
        ended_instance("i-4", spot=False, reason="User initiated (2026-03-02 00:15:00 GMT)"),
        ended_instance("i-5", spot=False),
    ]
    statuses = {"i-1": "instance-terminated-no-capacity", "i-2": "marked-for-termination"}
    requests = [
        {"InstanceId": name, "Status": {"Code": code, "UpdateTime": START + timedelta(minutes=20)}}
        for name, code in statuses.items()
    ]
    with Stubber(driver._client("us-east-1")) as stub:
        for asked in ({"i-1", "i-2"}, {"i-2"} if permitted else {"i-1", "i-2"}):
            stub.add_response("describe_instances", {"Reservations": [{"Instances": listed}]})
            if permitted:
                wanted = {"Filters": [{"Name": "instance-id", "Values": sorted(asked)}]}
                stub.add_response(
                    "describe_spot_instance_requests", {"SpotInstanceRequests": requests}, wanted
                )
            else:
                stub.add_client_error("describe_spot_instance_requests", "UnauthorizedOperation")
        for _ in range(2):
            found = driver.listed("job", [MARKET], START + timedelta(hours=1))
            minutes = {one.id: (one.ended - START) / timedelta(minutes=1) for one in found}
            known = 20 if permitted else 60
            assert minutes == {"i-1": known, "i-2": 60, "i-3": 10, "i-4": 15, "i-5": 60}
            assert {one.id for one in found if one.end == "lost"} == {"i-1", "i-2", "i-3"}
        stub.assert_no_pending_responses()


def test_a_failed_call_for_the_time_of_a_loss_is_an_error_of_the_driver(tmp_path, monkeypatch):
    """Throttled, the call is repeated by the next look: the loss is not dated by the look that could not ask."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    driver = make_driver(tmp_path)
    listed = [ended_instance("i-1", spot=True)]
    with Stubber(driver._client("us-east-1")) as stub:
        stub.add_response("describe_instances", {"Reservations": [{"Instances": listed}]})
        stub.add_client_error("describe_spot_instance_requests", "RequestLimitExceeded")
        with pytest.raises(DriverError, match="RequestLimitExceeded"):
            driver.listed("job", [MARKET], START + timedelta(hours=1))


def test_losses_of_more_instances_than_a_filter_takes_are_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    driver = make_driver(tmp_path)
    names = [f"i-{k:03}" for k in range(250)]
    listed = [ended_instance(name, spot=True) for name in names]
    ended = {"Code": "instance-terminated-by-price", "UpdateTime": START + timedelta(minutes=20)}
    with Stubber(driver._client("us-east-1")) as stub:
        stub.add_response("describe_instances", {"Reservations": [{"Instances": listed}]})
        for part in (names[:200], names[200:]):
            stub.add_response(
                "describe_spot_instance_requests",
                {"SpotInstanceRequests": [{"InstanceId": name, "Status": ended} for name in part]},
                {"Filters": [{"Name": "instance-id", "Values": part}]},
            )
        found = driver.listed("job", [MARKET], START + timedelta(hours=1))
    assert {instance.ended for instance in found} == {START + timedelta(minutes=20)}


class Slots:
    """Decisions at random for some jobs, a slot every five minutes unless stated."""

    def __init__(self, rng, names, minutes=5):
        self.rng, self.names, self.decisions, self.over = rng, names, {}, False
        self.step = timedelta(minutes=minutes)
        self.evidence = []

    def turn(self, now):
        for name in self.names:
            on_demand, spot = (int(n) for n in self.rng.integers(0, 4, size=2))
            self.decisions[name] = SlotDecision(
                key=f"{name}-{now:%H%M%S}",
                market=MARKET,
                slot=now,
                valid_until=now + self.step,
                on_demand=on_demand,
                spot=spot,
            )

    def jobs(self, names, now):
        return [
            ActiveJob(
                name=name,
                deadline=START + timedelta(days=9),
                step=self.step,
                markets=(MARKET,),
                ended="finished" if self.over else "",
                decision=self.decisions[name],
            )
            for name in self.names
        ]

    def revise(self, job, launches, now):
        return "not decided again"

    def prices(self, job, markets, now):
        return {}

    def record(self, found, now):
        self.evidence += [entry for new in found for entry in new.entries]
        return {}


def test_kills_never_launch_more_than_ordered_while_instances_are_listed_late(tmp_path):
    """Five minutes with kills, losses and new decisions, then five without: what is up is what was asked for, or what there is."""
    rng = np.random.default_rng(2)
    world, kills = Slots(rng, ["job"], minutes=10), Kills(rng, 0.1)
    driver, acting = make_driver(tmp_path, settle_seconds=60.0), None
    double = make_double(driver, late=lambda: timedelta(seconds=int(rng.integers(0, 60))))

    def check_launch(sizes):
        decision = world.decisions["job"]
        assert double.running("on_demand") <= decision.on_demand or not sizes["OnDemandTargetCapacity"]
        assert double.running("spot") <= decision.spot or not sizes["SpotTargetCapacity"]
        kills.moment()  # after the fleet, before its answer

    double.launched = check_launch
    for step in range(25 * 30):
        is_calm = step % 30 >= 15
        kills.chance = 0.0 if is_calm else 0.1
        if step % 30 == 0 or (not is_calm and rng.random() < 0.2):
            world.turn(double.now)
            double.spot = int(rng.integers(0, 4))
        double.reclaim()
        if not is_calm and rng.random() < 0.05:
            double.give_notice()
        try:
            if acting is None:
                acting = mortal_acting(
                    tmp_path / "launches.jsonl", world, driver, kills, timedelta(seconds=20)
                )
            acting.run_pass(double.now)
        except Killed:
            acting.ledger.close()
            acting = None
        if step % 30 == 29:
            decision, held = world.decisions["job"], double.running("spot")
            assert double.running("on_demand") == decision.on_demand
            assert held == decision.spot or double.spot <= held < decision.spot
        double.now += timedelta(seconds=20)
    assert kills.count > 100
    assert double.repeated > 5  # the first fleet's answer again
    assert double.changed == 0
    acting.ledger.close()


#: Least kills and number of jobs; SLACKWATER_ACT_KILLS=300 is a day of 20 jobs.
KILLS = int(os.environ.get("SLACKWATER_ACT_KILLS", "20"))
JOBS = max(2, min(20, KILLS // 10))


@pytest.mark.slow
def test_what_was_asked_for_and_what_is_up_agree_after_every_kill(tmp_path, moto_url, monkeypatch):  # noqa: F811
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    client, rng = moto_client(moto_url), np.random.default_rng(1)
    driver = make_driver(tmp_path, endpoint_url=moto_url)
    world, kills = Slots(rng, [f"job-{k}" for k in range(JOBS)]), Kills(rng, 0.05)
    acting, now, minute = None, START, 0

    def up():
        held = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        pages = client.get_paginator("describe_instances").paginate(Filters=held)
        return [
            (tag["Value"], one.get("InstanceLifecycle", "on_demand"))
            for page in pages
            for group in page["Reservations"]
            for one in group["Instances"]
            for tag in one["Tags"]
            if tag["Key"] == "slackwater:job"
        ]

    last = None  # until the jobs are over: five minutes after an hour with enough kills
    while last is None or minute < last:
        if minute % 5 == 0:
            world.turn(now)
        if last is None and minute >= 55 and kills.count > KILLS:
            world.over, last = True, minute + 5
        done = False
        while not done:
            try:
                if acting is None:
                    acting = mortal_acting(
                        tmp_path / "launches.jsonl", world, driver, kills, timedelta(minutes=1)
                    )
                acting.run_pass(now)
                done = True
            except Killed:
                acting.ledger.close()
                acting = None
        expected = [
            (name, kind)
            for name, decision in world.decisions.items()
            if not world.over
            for kind, n in (("on_demand", decision.on_demand), ("spot", decision.spot))
            for _ in range(n)
        ]
        assert sorted(up()) == sorted(expected)
        forget_ended()
        now += timedelta(minutes=1)
        minute += 1
    print(f"{kills.count} kills, {minute} minutes, {JOBS} jobs")
    assert kills.count > KILLS
    assert up() == []
    acting.ledger.close()
