"""From a request and a market to the terms of the world: minutes to seconds, rates per hour, n_min (M12.9)."""

from dataclasses import fields, replace

import pandas as pd
import pytest
from make import make_job, make_multi_job, make_request, request_terms

from slackwater.optimization.job.definition import InstanceTimes, work_needed
from slackwater.optimization.job.request import JobRequest, parse_request, slot_job
from slackwater.optimization.job.times import instance_times
from slackwater.optimization.moving.definition import in_one_market
from slackwater.optimization.world.simulation import WorldTerms
from slackwater.optimization.world.terms import on_demand_alone, planned_job, world_markets, world_terms
from slackwater.warehouse.history import Market


def test_a_request_and_a_market_give_seconds_and_rates_per_hour():
    asked = parse_request(
        request_terms(
            n_min=2,
            n_max=3,
            throughput={"form": "linear", "alpha": 5.0},
            boot_minutes=1,
            checkpoint_minutes=12,
            on_demand_wait_minutes=10,
        ),
        "job.toml",
    ).with_place(at=pd.Timestamp("2026-01-05", tz="UTC"), market="gcp/r/z/x", source=None)
    job = slot_job(asked, step=pd.Timedelta(minutes=30), on_demand_usd=3.0, market=Market.parse("gcp/r/z/x"))
    assert world_terms(job, on_demand_usd=3.0, slot_hours=0.5) == WorldTerms(
        rates=(0.0, 0.0, 10.0, 15.0),
        workload=work_needed(100.0),
        on_demand_usd=3.0,
        boot=60.0,
        restart=180.0,
        checkpoint=720.0,
        notice_saves=False,
        on_demand_wait=600.0,
    )


def test_several_markets_have_a_transfer_in_seconds_and_their_moves():
    job = make_job(times=InstanceTimes(boot=1.0, restart=2.0, checkpoint=3.0))
    several = replace(make_multi_job(job, markets=2, taken=0.3, usd=0.5, home=1), sold=(True, False))
    found = world_markets(several, on_demand_usd=[1.0, 2.0], slot_hours=0.5)
    assert found.terms == (
        world_terms(job, on_demand_usd=1.0, slot_hours=0.5),
        world_terms(job, on_demand_usd=2.0, slot_hours=0.5, sold=False),
    )
    assert (found.transfer, found.home) == (pytest.approx(540.0), 1)
    assert found.move_usd.tolist() == [[[0.0, 0.5], [0.5, 0.0]]]


def test_a_job_without_times_restarts_in_the_share_of_a_slot_that_the_slot_model_takes():
    terms = world_terms(make_job(mu_up=0.8), on_demand_usd=1.0, slot_hours=0.5)
    assert (terms.boot, terms.checkpoint, terms.on_demand_wait) == (0.0, 0.0, 0.0)
    assert terms.restart == pytest.approx(360.0)


def test_on_demand_alone_is_the_cheapest_number_in_time():
    times = InstanceTimes(boot=120.0, restart=240.0, checkpoint=600.0, on_demand_wait=600.0)
    terms = world_terms(make_job(workload=4.0, n_max=4, times=times), on_demand_usd=3.0, slot_hours=0.5)
    assert on_demand_alone(terms, 6 * 3600.0) == (1, pytest.approx(3.0 * 4.1))
    assert on_demand_alone(terms, 3 * 3600.0) == (2, pytest.approx(3.0 * 2 * 2.1))
    assert on_demand_alone(terms, 60.0) == (4, pytest.approx(3.0 * 4 * 1.1)), "none is in time"


def test_policies_of_the_slot_model_plan_boot_and_restart_and_a_slot_less_where_the_guard_holds():
    times = InstanceTimes(boot=180.0, restart=360.0, checkpoint=600.0)
    job = make_job(times=times, deadline_slots=12, mu_up=1.0, mu_down=1.0)
    planned = planned_job(job, slot_hours=0.5)
    assert planned.mu_up == pytest.approx((0.7,) * 9)
    assert planned.mu_down == pytest.approx((0.8,) * 9)
    assert planned.deadline_slots == 11


@pytest.mark.parametrize("name", [field.name for field in fields(InstanceTimes)])
def test_every_time_of_an_instance_reaches_the_world(name):
    times = InstanceTimes(boot=120.0, restart=240.0, checkpoint=600.0, on_demand_wait=300.0)
    value = getattr(times, name)
    changed = replace(times, **{name: not value if isinstance(value, bool) else value + 60.0})
    found, other = (
        world_markets(in_one_market(make_job(times=one)), on_demand_usd=[1.0], slot_hours=0.5).arrays
        for one in (times, changed)
    )
    assert any((one != two).any() for one, two in zip(found, other, strict=True))


@pytest.mark.parametrize(
    "key",
    [
        key
        for key in JobRequest.model_fields
        if ("_minutes" in key or "_seconds" in key) and key != "step_minutes"
    ],
)
def test_every_time_of_a_job_file_is_a_time_of_its_instances(key):
    found, other = (instance_times(make_request(**{key: value}), "gcp") for value in (0.0, 3600.0))
    assert found != other
