"""Batches of replays equal single replays, in the same order, also over processes (M5.1)."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
import pytest
from make import make_job, make_record, make_window

from slackwater.flows.executor import fan_out
from slackwater.optimization import Allocation, Job
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import Case, replay
from slackwater.optimization.replay.score import perfect_forecasts
from slackwater.studies.replays import replay_batch
from slackwater.warehouse.errors import MarketError, SettingsError

POLICIES = [
    policy_named(name) for name in ("OD-only", "UP", "AHANP(0.7)", "AHAP(3,1,0.9)", "AHAP(3,3,0.5,last)")
]


def case(seed: int) -> Case:
    """Return a random job on a random market, some with forecasts and a record."""
    rng = np.random.default_rng(seed)
    d, n_max = int(rng.integers(2, 12)), int(rng.integers(1, 6))
    price = np.clip(0.5 + 0.1 * rng.normal(size=d + 6).cumsum(), 0.2, 1.1)
    count = rng.integers(0, n_max + 1, d + 6).astype(float)
    window = make_window(price[6:], count[6:], slot_hours=0.5)
    job = make_job(
        name=f"job-{seed}", workload=0.3 * d * n_max, deadline_slots=d, n_max=n_max, mu_up=0.8, value=4.0 * d
    )
    return Case(
        job=job,
        window=window,
        forecasts=perfect_forecasts(window, 3) if seed % 3 else None,
        record=make_record(price, count, first=6, slot_hours=0.5) if seed % 2 else None,
    )


CASES = [case(seed) for seed in range(20)]


@dataclass(frozen=True, slots=True)
class Remembers:
    """Policy that runs spot where the record before the job had any: its outcome depends on the record."""

    name: str = "Remembers"

    def start(self, job: Job) -> None:
        return None

    def decide(self, state, view):
        known = view.past is not None and float(np.nansum(view.past.available[:6])) > 0
        return Allocation(0, min(view.available, view.job.n_max) if known else 0), None

    def explain(self, state, view, allocation) -> str:
        return ""


def alone(cases, policies):
    return [
        [replay(policy, c.job, c.window, forecasts=c.forecasts, record=c.record) for policy in policies]
        for c in cases
    ]


def test_one_process_gives_what_single_replays_give():
    told: list[tuple[int, int]] = []
    policies = [*POLICIES, Remembers()]
    got = replay_batch(CASES, policies, progress=lambda done, total: told.append((done, total)))
    assert got == alone(CASES, policies)
    assert told == [(i + 1, len(CASES)) for i in range(len(CASES))]
    assert len({row[-1].cost_usd > 0 for row in got}) == 2, "the record must matter"


@pytest.mark.slow
def test_processes_give_the_same_in_the_same_order():
    told: list[int] = []
    got = replay_batch(CASES, POLICIES, processes=2, progress=lambda done, total: told.append(done))
    assert got == replay_batch(CASES, POLICIES)
    assert told == list(range(1, len(CASES) + 1))


def whose(item: int, shared: str) -> tuple[int, str, int]:
    if item < 0:
        raise MarketError(f"item {item}", expected="a count")
    return item, shared, os.getpid()


@pytest.mark.slow
def test_work_is_really_done_elsewhere_and_errors_come_back():
    got = list(fan_out(whose, range(12), "told", processes=2))
    assert [(item, shared) for item, shared, _ in got] == [(i, "told") for i in range(12)]
    assert os.getpid() not in {pid for _, _, pid in got}
    with pytest.raises(MarketError, match="item -1"):
        list(fan_out(whose, [1, 2, -1, 3], "told", processes=2))
    assert {pid for _, _, pid in fan_out(whose, range(3), "told")} == {os.getpid()}


def test_nothing_to_do_and_nobody_to_do_it():
    assert replay_batch([], POLICIES, processes=2) == []
    assert replay_batch(CASES[:1], [], processes=2) == [[]]
    with pytest.raises(SettingsError, match="0 processes"):
        replay_batch(CASES, POLICIES, processes=0)


def test_a_market_too_short_is_refused():
    short = replace(CASES[0], window=CASES[0].window.cut(0, 1))
    with pytest.raises(MarketError, match="at least its deadline"):
        replay_batch([CASES[1], short], POLICIES[:1])
