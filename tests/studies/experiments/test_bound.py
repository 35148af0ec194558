"""The bound of a job in the world: reached where nothing restarts, and above every replay (M12.14)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_multi_job, make_window
from moving_markets import a_job, case_of, random_markets
from test_world_replay import Mixing, hostile_case, world_case

from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.world.replay import replay_in_world
from slackwater.studies.world_bound import bound_in_world


def test_the_bound_is_the_cheapest_time_to_work_by_hand():
    """Two instances in eight hours, 10 instance-hours: three hours of spot at 0.2, two at 0.5, and on-demand never."""
    job = make_job(workload=10.0, deadline_slots=8, n_max=2, value=50)
    window = make_window([0.2, 0.2, 0.9, 0.5, 0.2, 0.5, 0.9, 0.9], 2)
    case = world_case(job, window)
    bound = bound_in_world(case)
    assert bound.cost_usd == pytest.approx(2 * (3 * 0.2 + 2 * 0.5))
    assert bound.utility_usd == pytest.approx(50 - bound.cost_usd)
    # With a boot and a restart of half an hour the cheapest half hour is gone, and paid once for one instance.
    slow = bound_in_world(world_case(job, window, boot=600.0, restart=1200.0))
    assert slow.cost_usd == pytest.approx(2 * (2.5 * 0.2 + 2 * 0.5 + 0.5 * 0.9) + 0.5 * 0.2)
    dear = bound_in_world(world_case(replace(job, max_spot_usd=0.3), window))
    assert dear.cost_usd == pytest.approx(2 * (3 * 0.2 + 2 * 1.0))


def test_a_job_that_is_worth_nothing_is_given_up():
    job = make_job(workload=10.0, deadline_slots=8, n_max=2, value=0.1)
    assert bound_in_world(world_case(job, make_window(0.5, 2, slots=8))).utility_usd == 0.0


def test_the_best_of_several_markets_is_taken_from_second_to_second():
    windows = [make_window([0.2, 0.9], 2), make_window([0.9, 0.2], 2)]
    job = make_multi_job(make_job(workload=4.0, deadline_slots=2, n_max=2, value=50, mu_up=1.0), 2, home=0)
    assert bound_in_world(case_of(job, windows)).cost_usd == pytest.approx(4 * 0.2)


@pytest.mark.parametrize("launcher", ["slots", "readings"])
def test_no_replay_is_above_the_bound(launcher):
    """Also without the guard, on hostile readings, and with policies that mix."""
    policies = [policy_named(name) for name in ("MSU", "UP", "Reserve(60)")]
    for i in range(60):
        case = hostile_case(np.random.default_rng([7, i]))
        best = bound_in_world(case).utility_usd
        for outcome in replay_in_world([*policies, Mixing(i)], case, launcher=launcher, guard=i % 2 == 0):
            assert outcome.utility_usd <= best + 1e-6


def test_on_calm_markets_the_bound_is_near():
    job = make_multi_job(a_job(load=0.5), home=0)
    windows, records = random_markets(3, 8, 3, stay=1.0)
    case = case_of(job, windows, records)
    (found,) = replay_in_world([policy_named("MSU")], case)
    assert found.utility_usd > 0.8 * bound_in_world(case).utility_usd
