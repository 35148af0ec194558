"""Backward induction compared with a decision tree on its grid, and with hindsight on deterministic markets (M4.6)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from make import make_job, make_window
from market_games import HALF_HOUR, by_tree, game_of, random_game, random_job
from numpy.testing import assert_allclose

from slackwater.optimization import EndRule, HorizonProblem, Job
from slackwater.optimization.job.definition import Linear
from slackwater.optimization.kernels.induction import Choices, SlotState, chosen_size, induct
from slackwater.optimization.kernels.rules import slot_cost, spot_held
from slackwater.optimization.replay.score import hindsight
from slackwater.optimization.window.twin import solve_window

#: Tolerance: tables are stored in single precision.
SINGLE = 1e-6


def check_against_tree(seed: int, *, slots: int, n_max: int) -> None:
    """Compare values after every slot, in every state, for every size and every eighth amount of remaining work."""
    rng = np.random.default_rng(seed)
    job, game = random_game(rng, slots=slots, n_max=n_max, start=int(rng.integers(0, 2)))
    kept = induct(game, slots)
    _, after = by_tree(job, game)
    scale = SINGLE * (1.0 + job.value + n_max * slots)
    most = round(job.workload / game.step)
    steps = sorted({0, 1, most, *range(0, most + 1, max(1, most // 8))})
    for i in range(slots):
        for s, x, j in itertools.product(range(kept.shape[1]), range(kept.shape[2]), range(kept.shape[3])):
            for g in steps:
                told = after(i, g, int(game.sizes[j]), s, x)
                assert kept[i, s, x, j, g] == pytest.approx(told, abs=scale), (seed, i, s, x, j, g)


@pytest.mark.parametrize("seed", range(40))
def test_values_are_those_of_the_decision_tree(seed):
    check_against_tree(seed, slots=1 + seed % 4, n_max=1 + seed % 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_values_are_those_of_the_decision_tree_long(seed):
    check_against_tree(seed, slots=1 + seed % 5, n_max=1 + seed % 3)


def known_market(seed: int, *, slots: int, n_max: int):
    """Return (job, game, window) where each slot has its own state, which leads to the next slot's state with certainty."""
    rng = np.random.default_rng(seed)
    job, step = random_job(rng, slots=slots, n_max=n_max)
    price = rng.choice([0.1, 0.3, 0.5, 0.9, 1.0, 1.3], slots)
    count = rng.integers(0, n_max + 2, slots)
    onward = np.eye(slots, k=1)
    onward[-1, -1] = 1.0
    game = game_of(
        job, step, slot=0, available=count, chain=np.stack([onward] * slots), price=price * HALF_HOUR,
        price_chain=onward,
    )  # fmt: skip
    return job, game, make_window(price, count, slot_hours=HALF_HOUR)


def held_at_start(job: Job, game, kept) -> float:
    """Return the value of the best first size, with no instances running before and all work left."""
    work = np.array([job.efficiency(int(n), 0) for n in game.sizes]) * game.gain
    spot = [spot_held(n, game.available[0], game.price[0], game.on_demand) for n in game.sizes]
    costs = np.array(
        [slot_cost(n, s, game.price[0], game.on_demand) for n, s in zip(game.sizes, spot, strict=True)]
    )
    left = np.maximum(0.0, job.workload - work) / game.step
    worth = [np.interp(left[j], np.arange(game.points), kept[0, 0, 0, j]) for j in range(len(work))]
    at = SlotState(
        float(job.workload), 0, int(game.available[0]), float(game.price[0]), float(job.completion_value(1))
    )
    chosen = chosen_size.py_func(
        game, kept[0, 0, 0], Choices(game.sizes, game.gain, np.arange(len(work))), at
    )
    best = float(np.max(worth - costs))
    assert (worth - costs)[np.searchsorted(game.sizes, chosen)] == pytest.approx(
        best, abs=SINGLE * (1 + job.value)
    )
    return best


@pytest.mark.parametrize("seed", range(60))
def test_a_market_known_for_certain_is_worth_its_hindsight(seed):
    """Exact hindsight over the whole job computes the same value by another method (M3.2, M4.7)."""
    job, game, window = known_market(seed, slots=1 + seed % 8, n_max=1 + seed % 3)
    told = hindsight(job, window)
    assert told.high <= told.low
    scale = SINGLE * (1.0 + job.value + 3 * len(window))
    assert held_at_start(job, game, induct(game, 1)) == pytest.approx(told.low, abs=scale)


@pytest.mark.parametrize("seed", range(6))
def test_every_later_slot_of_a_known_market_is_a_window_of_the_twin(seed):
    """After slot i the table is the optimum of the remaining slots, for every running size and amount of work
    left (M3.3b up to d).
    """
    job, game, window = known_market(900 + seed, slots=5, n_max=3)
    kept = induct(game, 4)
    most = round(job.workload / game.step)
    for i, (j, n) in itertools.product(range(4), enumerate(game.sizes.tolist())):
        for g in range(1, most + 1, max(1, most // 6)):
            rest = HorizonProblem(
                job=job, slot=i + 1, done=job.workload - g * game.step, n_previous=n,
                window=window.cut(i + 1, 5), end_rule=EndRule.ON_DEMAND_TO_GO,
            )  # fmt: skip
            assert kept[i, i, i, j, g] == pytest.approx(
                solve_window(rest).objective, abs=SINGLE * (20 + job.value)
            )


@pytest.mark.parametrize("seed", range(20))
def test_what_holds_for_every_game(seed):
    """Values never exceed v, never decrease with work done, and never improve with a higher spot price or fewer instances."""
    _, game = random_game(np.random.default_rng(300 + seed), slots=4, n_max=3)
    kept = induct(game, 4)
    slack = SINGLE * (1.0 + game.value.usd)
    assert kept.max() <= game.value.usd + slack
    assert (np.diff(kept, axis=-1) <= slack).all()
    dearer = induct(game._replace(price=np.minimum(game.price * 1.3, 1.4)), 4)
    assert (dearer <= kept + slack).all()
    fewer = induct(game._replace(available=np.maximum(game.available - 1, 0)), 4)
    assert (fewer <= kept + slack).all()
    worthless = induct(game._replace(value=game.value._replace(usd=0.0)), 4)
    assert_allclose(worthless, 0.0, atol=slack)


def test_fewer_slots_kept_are_the_same_slots():
    _, game = random_game(np.random.default_rng(8), slots=5, n_max=2)
    np.testing.assert_array_equal(induct(game, 2), induct(game, 5)[:2])


def test_chains_that_change_with_the_hour_are_followed():
    """Spot that is certain to appear in slot 2 is worth waiting for; spot that is certain to disappear is not (M4.6)."""
    job = make_job(workload=1.0, deadline_slots=3, n_max=1, value=10.0)
    stay, rise = np.eye(2), np.array([[0.0, 1.0], [0.0, 1.0]])
    rest = {"price": [0.05], "price_chain": np.eye(1), "slot": 0, "available": [0, 1]}
    coming = game_of(job, 0.5, chain=np.stack([rise, stay, stay]), **rest)
    staying = game_of(job, 0.5, chain=np.stack([stay, stay, stay]), **rest)
    # Two slots of work in three: idle in slot 0, then two on spot; or two on-demand slots at any time.
    assert induct(coming, 1)[0, 0, 0, 0, 2] == pytest.approx(10.0 - 2 * 0.05)
    assert induct(staying, 1)[0, 0, 0, 0, 2] == pytest.approx(10.0 - 2 * 0.5)


def test_off_the_grid_the_error_vanishes_with_the_step():
    """Gains that are no whole steps: interpolated linearly, so closer to the tree on finer grids, including work owed."""
    for mu_up in (0.83, -0.37):
        job = make_job(
            workload=2.9,
            deadline_slots=4,
            n_max=2,
            throughput=Linear(beta=0.31),
            mu_up=mu_up,
            mu_down=0.91,
            value=7.0,
            gamma=2.0,
        )
        market = {
            "available": [0, 1, 2], "chain": np.stack([np.full((3, 3), 0.2) + 0.4 * np.eye(3)] * 4),
            "price": [0.1, 0.3], "price_chain": np.array([[0.8, 0.2], [0.3, 0.7]]), "slot": 0,
        }  # fmt: skip
        errors = []
        for parts in (2, 16, 64):
            game = game_of(job, 0.3 / parts, **market)
            kept, (_, after) = induct(game, 4), by_tree(job, game, on_grid=False)
            wrong = [
                abs(np.interp(rest, np.arange(game.points), kept[i, s, x, j]) - after(i, rest, int(n), s, x))
                for i, s, x in np.ndindex(kept.shape[:3])
                for j, n in enumerate(game.sizes)
                for rest in np.linspace(0.01, job.workload, 13) / game.step
            ]
            errors.append(float(np.mean(wrong)))
        assert errors[1] < 0.4 * errors[0]
        assert errors[2] < 0.4 * errors[1]
        assert errors[2] < 0.001 * job.value
