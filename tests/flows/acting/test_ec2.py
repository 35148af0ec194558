"""The EC2 driver: requests of the documented form, and acting with kills against moto's server."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import cache

import botocore.session
import numpy as np
import pytest
from acting_kit import MARKET, START, Killed, Kills, MortalDriver, MortalLedger
from botocore.stub import Stubber
from botocore.validate import ParamValidator
from moto_kit import moto_client, moto_url  # noqa: F401 - a fixture

from slackwater.flows.acting.contract import DriverError, Order
from slackwater.flows.acting.drivers import DRIVERS, Place
from slackwater.flows.acting.loop import Acting
from slackwater.flows.acting.targets import ActedDecision, ActedJob, Limits

ZONE_ID_MARKET = "aws/us-east-1/use1-az1/p4d.24xlarge"
REGION_MARKET = "aws/us-east-1/all/p4d.24xlarge"


@cache
def run_instances_shape():
    model = botocore.session.get_session().get_service_model("ec2")
    return model.operation_model("RunInstances").input_shape


def make_driver(tmp_path, **options):
    place = Place(name="cloud", db=tmp_path / "w.duckdb", world_of=lambda job, now: None)
    return DRIVERS["ec2"]({"template": "training", "settle_seconds": 0.0, **options}, place)


@pytest.mark.parametrize("kind", ["spot", "on_demand"])
@pytest.mark.parametrize("market", [MARKET, ZONE_ID_MARKET, REGION_MARKET])
def test_a_request_has_the_form_of_the_api_and_a_token_of_its_own(tmp_path, market, kind):
    driver = make_driver(tmp_path, subnets={"us-east-1a": "subnet-1"})
    order = Order(
        job="j", token="a" * 32 + "-1", key="a" * 32, market=market, on_demand=2, spot=2,
        valid_until=START,
    )  # fmt: skip
    first, second = (driver.request(order, kind, index) for index in (0, 1))
    assert not ParamValidator().validate(first, run_instances_shape()).has_errors()
    assert first["ClientToken"] != second["ClientToken"]
    assert max(len(first["ClientToken"]), len(second["ClientToken"])) <= 64
    assert driver.request(order, kind, 0) == first
    assert ("InstanceMarketOptions" in first) == (kind == "spot")
    assert ("SubnetId" in first) == (market == MARKET)
    placed = {MARKET: {"AvailabilityZone": "us-east-1a"}, ZONE_ID_MARKET: {"AvailabilityZoneId": "use1-az1"}}
    assert first.get("Placement") == placed.get(market)  # without a zone EC2 chooses


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


class Slots:
    """Decisions at random for some jobs, a slot every five passes."""

    def __init__(self, rng, names):
        self.rng, self.names, self.decisions, self.over = rng, names, {}, False
        self.evidence = []

    def turn(self, now):
        for name in self.names:
            on_demand, spot = (int(n) for n in self.rng.integers(0, 4, size=2))
            self.decisions[name] = ActedDecision(
                key=f"{name}-{now:%H%M}",
                market=MARKET,
                slot=now,
                valid_until=now + timedelta(minutes=5),
                on_demand=on_demand,
                spot=spot,
            )

    def jobs(self, names, now):
        return [
            ActedJob(
                name=name,
                deadline=START + timedelta(days=9),
                step=timedelta(minutes=5),
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
        self.evidence += found
        return {}


#: Least kills and number of jobs; SLACKWATER_ACT_KILLS=300 is a day of 20 jobs.
KILLS = int(os.environ.get("SLACKWATER_ACT_KILLS", "20"))
JOBS = max(2, min(20, KILLS // 10))


@pytest.mark.slow
def test_what_was_asked_for_and_what_is_up_agree_after_every_kill(tmp_path, moto_url, monkeypatch):  # noqa: F811
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    client, rng = moto_client(moto_url), np.random.default_rng(1)
    driver = make_driver(tmp_path, endpoint_url=moto_url)
    world, kills = Slots(rng, [f"job-{k}" for k in range(JOBS)]), Kills(rng, max(0.02, 0.1 / JOBS))
    acting, now, minute = None, START, 0

    def up():
        pages = client.get_paginator("describe_instances").paginate()
        found = [one for page in pages for group in page["Reservations"] for one in group["Instances"]]
        return [
            (tag["Value"], one.get("InstanceLifecycle", "on_demand"))
            for one in found
            if one["State"]["Name"] in ("pending", "running")
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
                    ledger = MortalLedger(tmp_path / "launches.jsonl")
                    ledger.kills = kills
                    acting = Acting(
                        world=world,
                        ledger=ledger,
                        driver_of=lambda _: MortalDriver(driver, kills),
                        limits=Limits(idle_slots=3, every=timedelta(minutes=1)),
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
        now += timedelta(minutes=1)
        minute += 1
    print(f"{kills.count} kills, {minute} minutes, {JOBS} jobs")
    assert kills.count > KILLS
    assert up() == []
    acting.ledger.close()
