"""ROSS: one random draw per outage, with odds of one to sqrt(K) (M10)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from forms_kit import quick_first
from make import make_job, make_window

from slackwater.optimization import Allocation, Job, Progress
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.replay.run import replay, see
from slackwater.studies.policies.ross import Ross, _pseudo_random, buying_chance
from slackwater.warehouse.errors import SettingsError

JOB = make_job(workload=60, deadline_slots=30, value=120)


def market(price: float, counts: list[int]) -> MarketWindow:
    return make_window([price] * 30, counts + [0] * (30 - len(counts)))


def held(job: Job, window: MarketWindow, seed: int = 0) -> list[Allocation]:
    return list(replay(Ross(seed=seed), job, window).allocations)


@pytest.mark.parametrize("price", quick_first([0.25, 0.09, 0.64]))
def test_the_share_of_outages_bought_is_one_to_sqrt_k(price):
    """Over many jobs the draws match independent draws of that probability within 4 standard errors."""
    window, jobs = market(price, [8]), 600
    bought = [held(replace(JOB, name=f"job-{i}"), window)[1].on_demand > 0 for i in range(jobs)]
    chance = buying_chance(price, 1.0)
    assert chance == pytest.approx(math.sqrt(price))
    assert abs(np.mean(bought) - chance) <= 4 * math.sqrt(chance * (1 - chance) / jobs)


def test_one_draw_holds_for_the_whole_outage_and_seeds_differ():
    window = market(0.25, [8, 0, 0, 0, 0, 8, 0, 0, 0])
    kinds = set()
    for seed in range(12):
        made = held(JOB, window, seed)
        first, second = [a.on_demand > 0 for a in made[1:5]], [a.on_demand > 0 for a in made[6:9]]
        assert len(set(first)) == len(set(second)) == 1
        assert made[5] == Allocation(0, 8)
        kinds.add((first[0], second[0]))
    assert len(kinds) > 2


def test_while_no_spot_price_is_known_it_waits():
    for i in range(30):
        assert held(replace(JOB, name=f"job-{i}"), market(1.2, [4] * 9))[0] == Allocation(0, 0)


def test_the_lowest_price_seen_sets_the_odds():
    policy, state = Ross(), None
    state = policy.start(JOB)
    for slot, price in enumerate((0.5, 0.2, 0.9, 1.4)):
        seen = see(JOB, market(price, [8] * 30), None).view(JOB, Progress(), slot)
        _, state = policy.decide(state, seen)
    assert state.cheapest == 0.2
    assert state.since == 3


def test_buying_keeps_an_even_pace_to_the_deadline():
    window = market(0.25, [8])
    for seed in range(20):
        made = held(JOB, window, seed)
        if made[1].on_demand:
            assert made[1] == Allocation(math.ceil(52 / 29), 0)
            return
    pytest.fail("no draw of twenty bought")


def test_a_gap_is_neither_spot_nor_outage():
    window = make_window([0.25, np.nan] + [0.25] * 28, [8, np.nan] + [0] * 28)
    seen, policy = see(JOB, window, None), Ross()
    _, state = policy.decide(policy.start(JOB), seen.view(JOB, Progress(), 0))
    allocation, after = policy.decide(state, seen.view(JOB, Progress(done=8.0, n_previous=8), 1))
    assert (allocation, after) == (Allocation(0, 0), state)


def test_the_draw_is_fixed_for_ever():
    """Every process and version draws the same values: Python's `hash`, which differs between processes, is not used."""
    drawn = [_pseudo_random(0, "a", 0), _pseudo_random(7, "a", 0), _pseudo_random(0, "job", 5)]
    assert drawn == [0.24982039903852374, 0.895400809146058, 0.9502912278999825]


def test_a_negative_seed_is_refused():
    with pytest.raises(SettingsError, match="seed"):
        Ross(seed=-1)
