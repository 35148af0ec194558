"""Batches on the real engine: the outcomes of plain replays, in their order, over threads and over processes."""

from __future__ import annotations

import os

import numpy as np
import pytest

from flows.engine import ENGINE_SETTINGS, prepare_engine
from optimization import Job
from optimization.batch import Case, replay_batch
from optimization.ledger import perfect_forecasts
from optimization.market import market_window
from optimization.pool import policy_named
from optimization.throughput import Linear

pytestmark = pytest.mark.engine

POLICIES = [policy_named(name) for name in ("UP", "AHANP(0.7)", "AHAP(3,2,0.9)")]


def case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 9))
    window = market_window(rng.uniform(0.2, 1.1, d), rng.integers(0, 4, d), on_demand_usd=1.0, slot_hours=0.5)
    job = Job(
        name=f"job-{seed}", workload=0.4 * d, deadline_slots=d, n_min=1, n_max=3, throughput=Linear(), mu_up=-0.5, value=9
    )  # fmt: skip
    return Case(job=job, window=window, forecasts=perfect_forecasts(window, 3))


CASES = [case(seed) for seed in range(30)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """The embedded engine with a home of its own."""
    before = dict(os.environ)
    for name in ("PREFECT_HOME", "PREFECT_API_URL", *ENGINE_SETTINGS):
        os.environ.pop(name, None)
    prepare_engine(tmp_path_factory.mktemp("engine"))
    yield
    os.environ.clear()
    os.environ.update(before)


def test_the_parts_are_few_and_in_order():
    from flows.batches import Batch

    parts = Batch(CASES, POLICIES).parts(12)
    assert len(parts) <= 12
    assert [c.job.name for part in parts for c in part.cases] == [c.job.name for c in CASES]
    assert Batch([], POLICIES).parts(12) == []


def test_threads_give_the_plain_outcomes(engine):
    from flows.batches import replay_on_engine

    assert replay_on_engine(CASES, POLICIES) == replay_batch(CASES, POLICIES)
    assert replay_on_engine([], POLICIES) == []


@pytest.mark.slow
def test_processes_give_the_plain_outcomes(engine):
    from prefect.task_runners import ProcessPoolTaskRunner

    from flows.batches import replay_on_engine

    assert replay_on_engine(CASES, POLICIES, runner=ProcessPoolTaskRunner(max_workers=2)) == replay_batch(
        CASES, POLICIES
    )


def test_an_error_of_a_replay_is_raised_by_the_flow(engine):
    from flows.batches import replay_on_engine
    from warehouse.errors import MarketError

    short = Case(job=CASES[0].job, window=CASES[0].window.cut(0, 1))
    with pytest.raises(MarketError, match="at least its deadline"):
        replay_on_engine([CASES[1], short], POLICIES)
