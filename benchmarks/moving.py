"""Milliseconds of a decision of a multi-market job with ten markets, 20 or 48 half-hour slots and up to 16 instances.

CPU time on a single core after compilation, without estimation of the beliefs. Also measured: the tables of the same job in a
single market (M4.6), hindsight over the ten markets, and expected cost and risk on 100 sample paths. Markets are synthetic:
random-walk availability, constant and varying prices.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from slackwater.optimization.job.definition import Job, Linear
from slackwater.optimization.job.markets import even_moving
from slackwater.optimization.market.window import MarketWindow, Record, market_window, record_of
from slackwater.optimization.moving.decision import MarketsPlan
from slackwater.optimization.moving.definition import MarketsJob
from slackwater.optimization.moving.hindsight import hindsight_over_markets
from slackwater.optimization.moving.policies import MeanField
from slackwater.optimization.moving.sight import Grounds
from slackwater.optimization.moving.world_tables import world_tables_in_force
from slackwater.optimization.policies.stochastic import Stochastic, make_tables
from slackwater.optimization.replay.ahead import PresentJob, look_ahead
from slackwater.optimization.replay.guard import Guard
from slackwater.optimization.replay.run import Case
from slackwater.optimization.world.simulation import Readings, WorldRun
from slackwater.optimization.world.terms import world_markets

MARKETS, N_MAX, HISTORY, ROUNDS = 10, 16, 336, 15


def world(slots: int, seed: int, *, restless: bool) -> tuple[MarketsJob, list[MarketWindow], list[Record]]:
    """Return a job without a home market, its markets and their records."""
    rng = np.random.default_rng(seed)
    shape = (MARKETS, HISTORY + slots)
    counts = np.clip(N_MAX // 2 + rng.integers(-3, 4, shape).cumsum(axis=1), 0, N_MAX).astype(float)
    wander = 0.02 * rng.normal(size=shape).cumsum(axis=1) if restless else np.zeros(shape)
    prices = np.clip(rng.uniform(0.3, 0.6, (MARKETS, 1)) + wander, 0.1, 1.2)
    job = Job(
        name="benchmark", workload=0.5 * slots * N_MAX * 0.5, deadline_slots=slots, n_min=1, n_max=N_MAX, throughput=Linear(),
        mu_up=0.9, mu_down=0.95, value=1.5 * 0.5 * slots * N_MAX * 0.5,
    )  # fmt: skip
    windows = [
        market_window(price[HISTORY:], count[HISTORY:], on_demand_usd=1.0, slot_hours=0.5)
        for price, count in zip(prices, counts, strict=True)
    ]
    records = [
        record_of(
            prices[m], counts[m], first=HISTORY, slot_hours=0.5, peers=np.delete(counts, m, axis=0), hour=0.0
        )
        for m in range(MARKETS)
    ]
    movable = MarketsJob(runs=(job,) * MARKETS, moving=even_moving(MARKETS, taken=0.3, usd=0.1))
    return movable, windows, records


def run() -> dict[str, object]:
    """Return the figures by length of the job and kind of prices."""
    return {
        f"{slots} slots, {'moving' if restless else 'constant'} prices": measured(slots, restless=restless)
        for slots in (20, 48)
        for restless in (False, True)
    }


def measured(slots: int, *, restless: bool) -> dict[str, float]:
    """Return medians of `ROUNDS` runs in milliseconds of CPU time, and sizes of the beliefs."""
    job, windows, records = world(slots, 1, restless=restless)
    mover, single = MeanField(), Stochastic()
    markets = world_markets(job, on_demand_usd=[1.0] * MARKETS, slot_hours=0.5)
    cases = [
        Case(job=run, window=window, record=record)
        for run, window, record in zip(job.runs, windows, records, strict=True)
    ]
    whole = Grounds(job, cases).view(job.begin(), 0)
    readings = [
        Readings(times=np.zeros(1), available=np.array([own.available]), price=np.array([own.price]))
        for own in whole.views
    ]
    begun = WorldRun(markets, readings)
    view = Guard.of(whole, begun).in_world()
    beliefs = [own.belief(mover.forgetting) for own in view.views]
    alone = view.views[0].belief(single.forgetting)
    tables = world_tables_in_force(view, mover.forgetting, whole=True)
    present = PresentJob(
        view=view,
        run=begun,
        beliefs=beliefs,
        planner=MarketsPlan(view=view, tables=tables),
        target=tables.options(view).best()[0],
    )

    def decided() -> None:
        view.views[0].tables.clear()
        mover.decide(None, view)

    return {
        "decision_ms": milliseconds(decided),
        "tables_of_one_market_ms": milliseconds(lambda: make_tables(job.job, alone, keep=1, anywhere=False)),
        "hindsight_ms": milliseconds(lambda: hindsight_over_markets(job, windows), rounds=3),
        "hundred_futures_ms": milliseconds(
            lambda: look_ahead(present, paths=100, rng=np.random.default_rng(1)), rounds=5
        ),
        "count_states": float(np.mean([len(belief.counts.count) for belief in beliefs])),
        "price_levels": float(np.mean([len(belief.prices.level_usd) for belief in beliefs])),
    }


def milliseconds(work: Callable[[], object], *, rounds: int = ROUNDS) -> float:
    """Return the median CPU time of several runs, after a run that compiles."""
    work()
    seconds = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        seconds.append(time.process_time() - begin)
    return round(1000.0 * float(np.median(seconds)), 1)
