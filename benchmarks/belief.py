"""CPU milliseconds of a decision where availability is not observed (M13), in one market and in ten, and of the scores of a pool.

``first_ms`` is the first call of the process, which loads the compiled code; the median of the next, each of another job, is
``warm_ms``. ``yardstick_ms`` is a fixed loop, by which figures of a slower or busier machine can be scaled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.world import world_case
from slackwater.optimization.belief.archetypes import ALL, archetypes
from slackwater.optimization.belief.launches import Launch, Launches
from slackwater.optimization.job.definition import InstanceTimes, Job, Linear
from slackwater.optimization.job.markets import even_moving
from slackwater.optimization.market.window import market_window
from slackwater.optimization.moving.definition import MarketsJob, in_one_market
from slackwater.optimization.moving.policies import MeanField
from slackwater.optimization.policies.pool import load_pool, policy_named
from slackwater.optimization.replay.decision import Effort, LiveJob, decide
from slackwater.optimization.replay.run import see
from slackwater.optimization.world.replay import Launcher, replay_in_world

SLOTS, SLOT_HOURS, MARKETS = 20, 0.5, 10
EFFORT = Effort(solver_seconds=1.0, risk_paths=200, seed=7)
JOB = Job(
    name="belief",
    workload=0.5 * SLOTS * SLOT_HOURS * 4,
    deadline_slots=SLOTS,
    n_min=1,
    n_max=4,
    throughput=Linear(),
    mu_up=0.8,
    mu_down=0.9,
    value=100.0,
    must_finish=True,
    times=InstanceTimes(boot=120.0, restart=240.0, checkpoint=600.0),
)


def live(markets: int, turn: int) -> LiveJob:
    """Return a job at its first slot in some markets with prices only; ``turn`` makes every call another market."""
    runs = (JOB,) * markets
    job = (
        in_one_market(JOB, sold=True)
        if markets == 1
        else MarketsJob(runs=runs, moving=even_moving(markets, taken=0.1, usd=0.1))
    )
    prior = archetypes(JOB.n_max, SLOT_HOURS)
    launches = Launches.of(JOB.n_max, [Launch(slot=0, state=ALL, held=turn % 7)], SLOTS, prior)
    seen = []
    for m in range(markets):
        price = np.full(SLOTS, 0.25 + 0.01 * m + 1e-4 * turn)
        window = market_window(
            price, np.full(SLOTS, 8.0), on_demand_usd=1.0, slot_hours=SLOT_HOURS, availability_observed=False
        )
        seen.append(see(JOB, window, None, None, launches))
    return LiveJob(
        job=job,
        start=pd.Timestamp("2026-01-01", tz="UTC"),
        step=pd.Timedelta(hours=SLOT_HOURS),
        slot=0,
        seen=tuple(seen),
        decided={},
        names=tuple(f"zone {m}" for m in range(markets)),
        forecasts=(None,) * markets,
    )


def decision(markets: int, policy: Any, turn: int) -> Callable[[], object]:
    """Return the decision of a new job, to be called."""
    return partial(decide, live(markets, turn), policy, EFFORT)


def pool(launcher: Launcher, turn: int) -> Callable[[], object]:
    """Return the scores of all policies of the pool for a new job of 48 slots, to be called."""
    return partial(replay_in_world, load_pool(), world_case(turn), launcher=launcher)


def milliseconds(prepared: Callable[[int], Callable[[], object]], times: int = 9) -> dict[str, float]:
    """Return CPU milliseconds of the first call in this process, and the median of the next."""
    found = []
    for turn in range(times):
        work = prepared(turn)
        begun = time.process_time()
        work()
        found.append(1000.0 * (time.process_time() - begun))
    return {"first_ms": round(found[0], 1), "warm_ms": round(median(found[1:]), 1)}


def yardstick(_: int) -> Callable[[], object]:
    """Return a fixed amount of work."""
    return lambda: sum(i * i for i in range(200_000))


def run() -> dict[str, Any]:
    """Measure decisions with 20 slots left and 200 sampled paths, and the pool of a job of 48 slots."""
    return {
        "yardstick_ms": milliseconds(yardstick)["warm_ms"],
        "one_market": milliseconds(partial(decision, 1, policy_named("Stochastic(24)"))),
        "ten_markets": milliseconds(partial(decision, MARKETS, MeanField())),
        **{f"pool_{launcher}": milliseconds(partial(pool, launcher), times=4) for launcher in Launcher},
        "aims_ms": {"one_market": 100.0, "ten_markets": 30.0, "pool": 500.0},
    }
