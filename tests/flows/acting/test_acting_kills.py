"""Acting survives kills at any moment: nothing launched twice, nothing left, no deadline missed, the bill exact."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from acting_kit import MARKET, START, GuardedWorld, Killed, Kills, Week, make_jobs, mortal_acting

from slackwater.flows.acting.account import paid_usd
from slackwater.flows.acting.contract import count_by_kind
from slackwater.flows.acting.drivers.simulated import SimulatedDriver
from slackwater.flows.acting.ledger import InstanceEntry, LaunchLedger, ledger_file
from slackwater.flows.acting.targets import SlotDecision


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
            seen = [
                one for name, one in world.evidence if name == job.name and isinstance(one, InstanceEntry)
            ]
            lost = {one.id for entry in seen for one in entry.lost}
            assert len(lost) == run.lost_instances
    assert week.kills.count > 0
    assert week.turns_missed > 0


def test_a_day_with_kills_loses_no_deadline_and_no_cent(tmp_path):
    jobs = make_jobs(2, within_hours=2, hours=5, seed=1)
    world, cloud, week = act_for(tmp_path, jobs=jobs, hours=8, chance=0.04, seed=5)
    check_week(tmp_path, world, cloud, week, 8)


@pytest.mark.slow
def test_a_week_of_20_jobs_with_kills_loses_no_deadline_and_no_cent(tmp_path):
    jobs = make_jobs(20, within_hours=144, hours=20, seed=3)
    world, cloud, week = act_for(tmp_path, jobs=jobs, hours=168, chance=0.1, seed=4, minutes=10)
    assert week.kills.count > 300
    check_week(tmp_path, world, cloud, week, 168)


def tear_down_job(reason):
    """Return the job of a tear-down with its last minute with instances, None if that depends on its bill."""
    job = make_jobs(1, within_hours=0, hours=6, seed=8)[0]
    if reason == "budget":
        return replace(job, budget_usd=3.0), None
    return job, {"deadline": job.seconds / 60, "no decision": 120, "finished": 75}[reason]


class Constant(GuardedWorld):
    """One decision, for 2 on-demand and 2 spot instances, and the end of the job at a minute."""

    def decide_for(self, job, *, until):
        self.decisions[job.name] = SlotDecision(
            key="key",
            market=MARKET,
            slot=START,
            valid_until=START + timedelta(minutes=until),
            on_demand=2,
            spot=2,
        )

    def revise(self, job, launches, now):
        return "not decided again"


@pytest.mark.parametrize("reason", ["deadline", "budget", "no decision", "finished"])
def test_every_tear_down_survives_kills(tmp_path, reason):
    """Whatever ends a job, nothing is up a pass later, and nothing starts after; kills come at every fourth moment."""
    job, last = tear_down_job(reason)
    cloud = SimulatedDriver(tmp_path / "cloud", lambda name, now: job.world)
    world, kills = Constant({job.name: job}, cloud), Kills(np.random.default_rng(4), 0.25)
    world.decide_for(job, until=30 if reason == "no decision" else 500)
    file, acting, down_since, now = tmp_path / "launches.jsonl", None, None, START
    end = START + timedelta(minutes=job.seconds / 60 + 20)
    while now < end:
        late = timedelta(0)
        if reason == "finished" and now >= START + timedelta(minutes=last):
            world.finished.add(job.name)
        while True:
            try:
                if acting is None:
                    acting = mortal_acting(file, world, cloud, kills, timedelta(minutes=5))
                acting.run_pass(now + late)
                break
            except Killed:
                if acting is not None:
                    acting.ledger.close()
                acting, late = None, late + timedelta(seconds=5)
        now += max(timedelta(minutes=5), late)
        up = sum(count_by_kind(cloud.listed(job.name, [], now)).values())
        if last is not None and now > START + timedelta(minutes=last + 5):
            assert up == 0
        if last is not None and now < START + timedelta(minutes=last):
            assert up > 0
        if up == 0 and now > START + timedelta(minutes=5):
            down_since = down_since or now
        assert down_since is None or up == 0
    assert kills.count > 10
    assert down_since is not None
    acting.ledger.close()
    with LaunchLedger(file, read_only=True) as ledger:
        paid = paid_usd(ledger.job(job.name).instances.values(), world.prices(job.name, [], end), end)
    assert paid == pytest.approx(cloud.run(job.name, end).paid_usd, abs=0.005)
    if reason == "budget":
        assert 2.0 < paid <= 3.0
