"""Acting survives kills at any moment: nothing launched twice, nothing left, no deadline missed, the bill exact."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from acting_kit import START, GuardedWorld, Kills, Week, make_jobs

from slackwater.flows.acting.account import paid_usd
from slackwater.flows.acting.contract import count_by_kind
from slackwater.flows.acting.drivers.simulated import SimulatedDriver
from slackwater.flows.acting.ledger import LaunchLedger, Seen, ledger_file


def act_for(tmp_path, *, jobs, hours, chance, seed, minutes=5):
    """Act on jobs in simulated time, and check every promise after each pass and at the end."""
    works = {job.name: job for job in jobs}
    cloud = SimulatedDriver(tmp_path / "cloud", lambda job, now: works[job].world)
    world = GuardedWorld(works, cloud)

    def check(acting, now):
        for name, own in acting.ledger.jobs.items():
            listed = cloud.listed(name, [], now)
            held = count_by_kind(listed)
            if own.last is None:
                continue
            order = own.last.order
            assert held["spot"] <= order.spot
            assert held["on_demand"] <= order.on_demand
            if name in world.finished or now >= works[name].deadline:
                assert sum(held.values()) == 0

    week = Week(tmp_path, world, cloud, Kills(np.random.default_rng(seed), chance), check=check)
    week.every = timedelta(minutes=minutes)
    week.run(hours)
    return world, cloud, week


def check_week(tmp_path, world, cloud, week, hours):
    end = START + timedelta(hours=hours)
    with LaunchLedger(ledger_file(tmp_path / "w.duckdb")) as ledger:
        for job in world.works.values():
            run, own = cloud.run(job.name, end), ledger.job(job.name)
            assert run.finish is not None
            assert run.finish <= job.seconds + 1e-6
            assert not own.held
            bill = paid_usd(own.instances.values(), world.prices(job.name, [], end), end)
            assert bill == pytest.approx(run.paid_usd, abs=0.005)
            seen = [one for name, one in world.evidence if name == job.name and isinstance(one, Seen)]
            lost = {one.id for entry in seen for one in entry.lost}
            assert len(lost) == run.lost_instances
    assert week.kills.count > 0
    assert week.turns_missed > 0


def test_a_day_with_kills_loses_no_deadline_and_no_cent(tmp_path):
    jobs = make_jobs(2, within_hours=2, hours=5, seed=1)
    world, cloud, week = act_for(tmp_path, jobs=jobs, hours=8, chance=0.04, seed=2)
    check_week(tmp_path, world, cloud, week, 8)


@pytest.mark.slow
def test_a_week_of_20_jobs_with_kills_loses_no_deadline_and_no_cent(tmp_path):
    jobs = make_jobs(20, within_hours=144, hours=20, seed=3)
    world, cloud, week = act_for(tmp_path, jobs=jobs, hours=168, chance=0.1, seed=4, minutes=10)
    assert week.kills.count > 300
    check_week(tmp_path, world, cloud, week, 168)
