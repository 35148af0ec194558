"""The stochastic policy in the world: restarts of new instances, the guard's line, and what the slot model cannot see (M4.12)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_window

from slackwater.optimization.job.definition import Allocation, Amdahl, InstanceTimes, Linear, Progress
from slackwater.optimization.market.window import record_of
from slackwater.optimization.policies.contract import Running
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import Case, see
from slackwater.optimization.world.readings import market_readings
from slackwater.optimization.world.replay import Launcher, WorldCase, replay_in_world

HOUR = 3600.0
LONG = InstanceTimes(boot=120.0, restart=1500.0, checkpoint=0.0)
SHORT = InstanceTimes(boot=120.0, restart=240.0, checkpoint=0.0)


def target(held, *, available=4, price=0.5, done=0.0, slot=0, pending=0.0, gap=1.0, slots=12, **job):
    """Return the target of a job on four instances that holds ``held``, in a market that never changed."""
    terms = {"times": SHORT, "workload": 24.0, "n_max": 4, "value": 100.0, "must_finish": True} | job
    own = make_job(deadline_slots=slots, throughput=terms.pop("throughput", Linear()), **terms)
    counts = np.full(60 + slots, float(available))
    record = record_of(np.full(60 + slots, price), counts, first=60, slot_hours=1.0)
    seen = see(own, make_window(price, available, slots=slots), None, record)
    view = seen.view(own, Progress(done=done, n_previous=held.total), slot)
    running = Running(held=held, pending_hours=pending, saved=done, gap_hours=gap, guarded=True)
    policy = policy_named("Stochastic(24)")
    return policy.decide(policy.start(own), replace(view, running=running))[0]


@pytest.mark.parametrize(("price", "left", "spot"), [(0.9, 1.0, 0), (0.3, 12.0, 4)])
def test_on_demand_is_left_for_spot_only_where_the_rest_of_the_job_pays_the_restart(price, left, spot):
    """A slot of the slot model on as many instances costs no restart, so it would always change to spot."""
    kept = target(Allocation(4, 0), price=price, times=LONG, done=24.0 - left)
    assert (kept.spot == 0) == (spot == 0), kept


def test_spot_runs_only_while_a_loss_leaves_on_demand_in_time():
    """Four instances do 24 hours of work in 6 hours; with an hour until the next decision and 6 minutes to start, 7.1 are kept."""
    assert target(Allocation(0, 4), slots=8, done=0.0).spot == 4
    assert target(Allocation(0, 4), slots=7, done=0.0) == Allocation(4, 0)
    assert target(Allocation(0, 4), slots=7, done=0.0, gap=0.5).spot == 4


def test_a_group_that_is_still_restarting_is_not_valued_as_working():
    """Spot that starts in 11 hours does nothing for the job; new instances do."""
    waiting = target(Allocation(0, 1), pending=11.0, slots=20, n_max=1, workload=6.0)
    assert waiting != Allocation(0, 1)
    assert target(Allocation(0, 1), pending=0.1, slots=20, n_max=1, workload=6.0) == Allocation(0, 1)


@pytest.mark.parametrize("throughput", [Linear(), Amdahl(parallel=0.95)])
def test_the_plan_is_no_dearer_than_greedy_where_spot_comes_and_goes(throughput):
    """On markets of two states, mean cost over jobs, decisions at slots, in time in each."""
    rng, paid, slots = np.random.default_rng(5), np.zeros(2), 16
    for seed in range(6):
        states = np.cumsum(rng.random(200 + slots) < 0.2) % 2
        counts = 8.0 * states
        work = (0.5 + 0.05 * seed) * slots * throughput.rate(8) * 0.5
        times = InstanceTimes(boot=120.0, restart=240.0, checkpoint=600.0)
        job = make_job(
            workload=work, deadline_slots=slots, n_max=8, throughput=throughput, value=40.0 * slots,
            must_finish=True, times=times, mu_up=0.8, mu_down=0.867,
        )  # fmt: skip
        window = make_window(np.full(slots, 0.25), counts[200:].astype(int), slot_hours=0.5)
        record = record_of(np.full(200 + slots, 0.25), counts, first=200, slot_hours=0.5)
        case = WorldCase.of(Case(job=job, window=window, record=record), market_readings(window))
        policies = [policy_named("MSU"), policy_named("Stochastic(24)")]
        outcomes = replay_in_world(policies, case, launcher=Launcher.SLOTS)
        assert all(outcome.on_time for outcome in outcomes)
        paid += [outcome.total_cost_usd for outcome in outcomes]
    assert paid[1] <= paid[0] * 1.01
