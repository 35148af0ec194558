"""Random jobs on uncertain markets with work on a grid, and their expected value by a plain decision tree."""

from dataclasses import replace
from functools import cache

import numpy as np
from make import make_job
from window_cases import allowed

from slackwater.optimization.job.definition import (
    TOLERANCE,
    Amdahl,
    Job,
    Linear,
    Power,
    RateTable,
    on_demand_to_go,
    rates,
)
from slackwater.optimization.kernels.induction import Game
from slackwater.optimization.kernels.rules import least_efficiency
from slackwater.optimization.window.plan import sizes

#: Throughputs whose gains at the efficiencies below are whole steps of half-hour slots: (H, step).
ON_GRID = [
    (Linear(), 0.05),
    (Linear(alpha=2.0, beta=0.5), 0.025),
    (Amdahl(parallel=0.5), 1.0 / 120.0),  # 1, 4/3, 3/2
    (Power(exponent=2.0), 0.05),
    (RateTable(rates=(1.0, 1.6, 1.2)), 0.01),  # measured rates may fall
]
EFFICIENCIES = (1.0, 0.9, 0.5, 0.0, -0.6, -2.1)
HALF_HOUR = 0.5


def stochastic_rows(rng, size):
    """Return a transition matrix with some moves impossible."""
    rows = rng.random((size, size)) * (rng.random((size, size)) < 0.7) + 1e-3 * np.eye(size)
    return rows / rows.sum(axis=1, keepdims=True)


def random_job(rng, *, slots, n_max):
    """Return (job, step): the work of every slot and the workload are whole numbers of steps."""
    throughput, step = ON_GRID[int(rng.integers(len(ON_GRID)))]
    n_min = int(rng.integers(1, n_max + 1))
    most = max(throughput.rate(n) for n in range(n_min, n_max + 1)) * HALF_HOUR
    workload = step * max(1, round(float(rng.uniform(0.1, 1.2)) * slots * most / step))
    job = make_job(
        name="game",
        workload=workload,
        deadline_slots=slots,
        n_min=n_min,
        n_max=n_max,
        throughput=throughput,
        mu_up=float(rng.choice(EFFICIENCIES)),
        mu_down=float(rng.choice(EFFICIENCIES[:5])),
        value=0.0,
        gamma=float(rng.choice([1.2, 1.5, 2.5])),
    )
    dear = workload / most * n_max * HALF_HOUR
    return replace(job, value=float(rng.choice([0.3, 1.5, 4.0])) * dear), step


def random_game(rng, *, slots, n_max, start=0):
    """Return (job, game): counts and prices of a few states; the grid extends beyond all the work that can be owed."""
    job, step = random_job(rng, slots=slots + start, n_max=n_max)
    states, levels = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    price = np.sort(rng.choice([0.0, 0.2, 0.35, 0.6, 0.99, 1.0, 1.4], levels, replace=False)) * HALF_HOUR
    return job, game_of(
        job, step, slot=start,
        available=rng.choice(n_max + 3, states, replace=False),
        chain=np.stack([stochastic_rows(rng, states) for _ in range(slots)]),
        price=price, price_chain=np.stack([stochastic_rows(rng, levels) for _ in range(slots)]),
    )  # fmt: skip


def game_of(job, step, *, slot, available, chain, price, price_chain) -> Game:
    """Return the game of ``job`` at ``slot`` on half-hour slots; ``price`` in USD per slot, on-demand 1 USD per hour."""
    gain = rates(job.throughput, job.n_max)[sizes(job)] * HALF_HOUR
    onward = np.broadcast_to(price_chain, (len(chain), *np.shape(price_chain)[-2:]))
    least = min(least_efficiency(job.restart, int(n)) for n in sizes(job)[1:])
    owed = chain.shape[0] * max(0.0, -least) * gain.max()
    return Game(
        sizes=sizes(job), gain=gain, available=np.asarray(available, dtype=np.int64), chain=chain,
        price=np.asarray(price, dtype=float), price_chain=np.ascontiguousarray(onward), on_demand=HALF_HOUR,
        restart=job.restart, value=job.worth, slot=slot, slack=TOLERANCE * job.workload, step=step,
        points=round((job.workload + owed) / step) + 2,
    )  # fmt: skip


def by_tree(job: Job, game: Game, *, on_grid: bool = True):
    """Return before(i, steps, n, s, x): the expected value at the start of slot i, ``steps`` of work left, n running before.

    Every (on-demand, spot) of M2.3 is tried in every slot under the rules of M2.4, and the termination is
    that of the replay (M2.6). Work is counted in whole steps, or with ``on_grid`` False in fractions of them.
    """
    gain = {int(n): float(g) for n, g in zip(game.sizes, game.gain, strict=True)}

    @cache
    def before(i: int, steps: float, held: int, s: int, x: int) -> float:
        if steps <= 1e-6:
            return job.completion_value(game.slot + i)
        if i == game.chain.shape[0]:
            return on_demand_to_go(
                job, done=job.workload - steps * game.step, n_previous=held, slot=job.deadline_slots,
                on_demand_usd=1.0, slot_hours=HALF_HOUR,
            ).value_usd  # fmt: skip
        best = -np.inf
        for n_o, n_s in allowed(job, int(game.available[s])):
            n = n_o + n_s
            work = job.efficiency(n, held) * gain[n] / game.step
            assert not on_grid or abs(work - round(work)) < 1e-6, "the case is not on its grid"
            paid = n_o * HALF_HOUR + n_s * float(game.price[x])
            best = max(best, after(i, round(steps - work, 0 if on_grid else 7), n, s, x) - paid)
        return best

    def after(i: int, steps: float, n: int, s: int, x: int) -> float:
        """Return the expectation over the market of slot i + 1."""
        if steps <= 1e-6:
            return job.completion_value(game.slot + i + 1)
        if i + 1 == game.chain.shape[0]:
            return before(i + 1, steps, n, 0, 0)
        total = 0.0
        for t, p in enumerate(game.chain[i][s]):
            for y, q in enumerate(game.price_chain[i][x]):
                if p * q > 0:
                    total += float(p * q) * before(i + 1, steps, n, t, y)
        return total

    return before, after
