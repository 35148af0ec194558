"""The induction equals a plain decision tree where all work lies on its grid, and hindsight where all is certain (M4.6)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from market_games import HALF_HOUR, by_tree, game_of, random_game, random_job
from numpy.testing import assert_allclose

from optimization import EndRule, HorizonProblem, Job
from optimization.hindsight import hindsight
from optimization.induction import after_work, best_size, induct, slot_cost, value_at
from optimization.labels import solve_window
from optimization.market import market_window
from optimization.throughput import Linear

#: Tables are kept in single precision.
SINGLE = 1e-6


def check_against_tree(seed: int, *, slots: int, n_max: int) -> None:
    """Values after every slot, in every state, for every size and every eighth amount of work left."""
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
    """(job, game, window) where every slot has its own state and leads to the next one's for certain."""
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
    return job, game, market_window(price, count, on_demand_usd=1.0, slot_hours=HALF_HOUR)


def held_at_start(job: Job, game, kept) -> float:
    """The worth of the best first size, nothing held before and all work left."""
    work = np.array([job.efficiency(int(n), 0) for n in game.sizes]) * game.gain
    costs = np.array([slot_cost(game, n, game.available[0], game.price[0]) for n in game.sizes])
    left = np.maximum(0.0, job.workload - work) / game.step
    worth = [np.interp(left[j], np.arange(game.points), kept[0, 0, 0, j]) for j in range(len(work))]
    chosen = best_size(
        game, kept[0, 0, 0], costs, work, np.arange(len(work)), job.workload, job.completion_value(1)
    )
    best = float(np.max(worth - costs))
    assert (worth - costs)[chosen] == pytest.approx(best, abs=SINGLE * (1 + job.value))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_a_market_known_for_certain_is_worth_its_hindsight(seed):
    """The exact twin over the whole job is the same number, by another way (M3.2, M4.7)."""
    job, game, window = known_market(seed, slots=1 + seed % 8, n_max=1 + seed % 3)
    told = hindsight(job, window)
    assert told.exact
    scale = SINGLE * (1.0 + job.value + 3 * len(window))
    assert held_at_start(job, game, induct(game, 1)) == pytest.approx(told.low, abs=scale)


@pytest.mark.parametrize("seed", range(6))
def test_every_later_slot_of_a_known_market_is_a_window_of_the_twin(seed):
    """After slot i the table is the optimum of the rest, for every size held and amount left (M3.3b up to d)."""
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
    """Never above v, never less for more work done, never better on dearer spot or on fewer instances."""
    _, game = random_game(np.random.default_rng(300 + seed), slots=4, n_max=3)
    kept = induct(game, 4)
    slack = SINGLE * (1.0 + game.value)
    assert kept.max() <= game.value + slack
    assert (np.diff(kept, axis=-1) <= slack).all()
    dearer = induct(game._replace(price=np.minimum(game.price * 1.3, 1.4)), 4)
    assert (dearer <= kept + slack).all()
    fewer = induct(game._replace(available=np.maximum(game.available - 1, 0)), 4)
    assert (fewer <= kept + slack).all()
    worthless = induct(game._replace(value=0.0), 4)
    assert_allclose(worthless, 0.0, atol=slack)


def test_fewer_slots_kept_are_the_same_slots():
    _, game = random_game(np.random.default_rng(8), slots=5, n_max=2)
    np.testing.assert_array_equal(induct(game, 2), induct(game, 5)[:2])


def test_chains_that_change_with_the_hour_are_followed():
    """Spot that comes for certain with slot 2 is waited for, spot that goes is not (M4.6)."""
    job = Job(name="t", workload=1.0, deadline_slots=3, n_min=1, n_max=1, throughput=Linear(), value=10.0)
    stay, rise = np.eye(2), np.array([[0.0, 1.0], [0.0, 1.0]])
    rest = {"price": [0.05], "price_chain": np.eye(1), "slot": 0, "available": [0, 1]}
    coming = game_of(job, 0.5, chain=np.stack([rise, stay, stay]), **rest)
    staying = game_of(job, 0.5, chain=np.stack([stay, stay, stay]), **rest)
    # Two slots of work in three: idle at slot 0, then two on spot; or two on demand, whenever.
    assert induct(coming, 1)[0, 0, 0, 0, 2] == pytest.approx(10.0 - 2 * 0.05)
    assert induct(staying, 1)[0, 0, 0, 0, 2] == pytest.approx(10.0 - 2 * 0.5)


class TestAfterWork:
    """out[g] is the value of g steps less the work, finished below 0, held beyond the grid."""

    @staticmethod
    def shifted(work: float) -> list[float]:
        job = Job(name="a", workload=2.0, deadline_slots=1, n_min=1, n_max=1, throughput=Linear(), value=9.0)
        game = game_of(
            job, 0.5, slot=0, available=[1], chain=np.ones((1, 1, 1)), price=[0.1], price_chain=np.eye(1)
        )
        out = np.full(game.points, np.nan)
        after_work(game, np.array([100.0, 80.0, 60.0, 50.0, 10.0, 0.0]), work, 7.0, out)
        return out.tolist()

    def test_whole_steps(self):
        assert self.shifted(1.0) == [7.0, 7.0, 7.0, 80.0, 60.0, 50.0]

    def test_parts_of_a_step_are_linear(self):
        assert self.shifted(0.75) == pytest.approx([7.0, 7.0, 90.0, 70.0, 55.0, 30.0])

    def test_no_work(self):
        assert self.shifted(0.0)[1:] == [80.0, 60.0, 50.0, 10.0, 0.0]

    def test_more_than_all(self):
        assert self.shifted(50.0) == [7.0] * 6

    def test_work_owed_leads_up_the_grid_and_no_further(self):
        assert self.shifted(-1.25) == pytest.approx([55.0, 30.0, 5.0, 0.0, 0.0, 0.0])
        assert self.shifted(-1.0) == [60.0, 50.0, 10.0, 0.0, 0.0, 0.0]


def test_the_value_falls_linearly_after_the_deadline():
    job = Job(
        name="v", workload=1, deadline_slots=4, n_min=1, n_max=1, throughput=Linear(), value=8.0, gamma=1.5
    )
    game = game_of(
        job, 0.5, slot=0, available=[0], chain=np.ones((4, 1, 1)), price=[0.1], price_chain=np.eye(1)
    )
    for slots in (0.0, 3.5, 4.0, 4.5, 5.0, 5.999, 6.0, 7.0):
        assert value_at(game, slots) == pytest.approx(job.completion_value(slots))
