"""A learner over a sequence of jobs: its earnings, when it settles, and the choice among learners (M5)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from forms_kit import quick_first
from make import make_job, make_window

from slackwater.optimization.job.definition import Linear
from slackwater.optimization.selection.contract import weigh
from slackwater.optimization.selection.learners import DEFAULT_LEARNER, LEARNERS
from slackwater.studies.learners import INFORMED
from slackwater.studies.rounds import (
    SETTLING,
    JobOrder,
    abundance,
    best_sequence,
    compare_learners,
    hostile_order,
    orders_of,
    select_over,
    switch_order,
    train_learners,
)
from slackwater.warehouse.errors import SettingsError

M, K = 20, 1000
NAMES = tuple(f"p{i}" for i in range(M))


def jobs(seed: int, *, switch: bool = False, rounds: int = K) -> np.ndarray:
    """Return utilities in units of on-demand cost: jobs differ much, policies little; at a switch the ranking inverts."""
    rng = np.random.default_rng(seed)
    skill = np.sort(rng.normal(0.0, 0.04, M))
    table = rng.uniform(0.6, 1.2, (rounds, 1)) + skill + rng.normal(0.0, 0.05, (rounds, M))
    if switch:
        table[rounds // 2 :] = table[rounds // 2 :, ::-1]
    return table


def shares(raw: np.ndarray) -> np.ndarray:
    return np.clip((raw + 3.0) / 4.5, 0.0, 1.0)


def test_the_summary_adds_up():
    raw = jobs(0, rounds=50)
    summary = select_over(shares(raw), raw, NAMES, seed=1, learner="adahedge", cuts=(10, 30))
    history = weigh(LEARNERS["adahedge"], NAMES, shares(raw))
    assert summary.weights.shape == (51, M)
    assert summary.weights.tobytes() == np.array([w.probability for w in history]).tobytes()
    assert summary.sampled_utility == pytest.approx((summary.weights[:-1] * raw).sum() / 50)
    led = [NAMES.index(name) for name in summary.leaders]
    assert summary.leader_utility == pytest.approx(raw[np.arange(50), led].mean())
    assert summary.best_fixed == NAMES[int(raw.mean(axis=0).argmax())]
    assert summary.overall.share == pytest.approx(summary.sampled_utility / raw.mean(axis=0).max())
    assert (summary.overall.jobs, summary.settled.jobs) == (50, 25)
    assert [part.jobs for part in summary.stretches] == [10, 20, 20]
    assert sum(part.jobs * part.sampled for part in summary.stretches) == pytest.approx(
        50 * summary.sampled_utility
    )
    assert summary.stretches[1].best_fixed_utility == raw[10:30].mean(axis=0).max()
    assert summary.shifts == 2
    gained = (summary.weights[:-1] * shares(raw)).sum()
    assert summary.regret == pytest.approx(shares(raw).sum(axis=0).max() - gained)
    assert summary.within_bound == (summary.regret <= summary.bound)
    assert summary.shifting_regret_curve[-1] > summary.regret
    assert np.isinf(summary.shifting_bound_curve).all(), "no such bound is proven for AdaHedge"


def test_draws_follow_the_weights_and_the_seed():
    raw = jobs(3, rounds=400)
    first, again, other = (select_over(shares(raw), raw, NAMES, seed=seed) for seed in (1, 1, 2))
    assert first.overall.drawn == again.overall.drawn
    assert first.overall.drawn != other.overall.drawn
    assert first.sampled_utility == other.sampled_utility, "the seed serves the draws alone"
    spread = raw.std(axis=1).mean() / math.sqrt(len(raw))
    for summary in (first, other):
        assert abs(summary.overall.drawn - summary.sampled_utility) < 5 * spread


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_the_default_has_settled_after_three_hundred_jobs(seed):
    raw = jobs(seed)
    summary = select_over(shares(raw), raw, NAMES, seed=seed)
    assert summary.learner == DEFAULT_LEARNER
    assert summary.settled.jobs == K - SETTLING
    assert summary.settled.share >= 0.98
    assert summary.within_bound


def test_a_table_is_judged_on_the_jobs_after_settling_alone():
    raw = jobs(4, rounds=2 * SETTLING + 100)
    raw[:SETTLING, 0] += 5.0
    summary = select_over(shares(raw), raw, NAMES, seed=0)
    assert summary.best_fixed == "p0"
    assert summary.settled.best_fixed == NAMES[int(raw[SETTLING:].mean(axis=0).argmax())] != "p0"


@pytest.mark.parametrize("switch", quick_first([True, False]))
def test_the_choice_is_the_one_that_earned_most(switch):
    raw = jobs(7, switch=switch, rounds=120)
    table = compare_learners(shares(raw), raw, NAMES)
    assert set(table["learner"]) == set(INFORMED)
    for row in table.itertuples():
        own = select_over(shares(raw), raw, NAMES, seed=0, learner=row.learner)
        assert row.sampled_utility == pytest.approx(own.sampled_utility)
        assert row.regret == pytest.approx(own.regret)
        assert row.bound == pytest.approx(own.bound)
    orders = {"whole": JobOrder(places=np.arange(len(raw)), cuts=())}
    trained = train_learners(shares(raw), raw, NAMES, orders=orders)
    assert trained["learner"].tolist() == table["learner"].tolist()
    assert trained["whole"].tolist() == trained["mean"].tolist() == table["sampled_utility"].tolist()
    assert table["sampled_utility"].is_monotonic_decreasing
    if switch:
        assert table["learner"].iloc[0] in ("blend", "discounted", "fixed-share"), (
            "a switch asks for one that forgets"
        )


def test_training_weighs_all_orders_alike():
    raw = jobs(5, rounds=100)
    kinds = np.random.default_rng(0).uniform(size=100)
    orders = orders_of(raw, kinds)
    trained = train_learners(shares(raw), raw, NAMES, orders=orders)
    assert list(trained.columns) == ["learner", "random_order", "regime_switch", "hostile_switch", "mean"]
    np.testing.assert_allclose(trained["mean"], trained[list(orders)].mean(axis=1))
    assert trained["mean"].is_monotonic_decreasing
    for row in trained.itertuples():
        at = orders["hostile_switch"].places
        own = select_over(shares(raw)[at], raw[at], NAMES, seed=0, learner=row.learner)
        assert row.hostile_switch == pytest.approx(own.sampled_utility)
    even = np.full((5, 2), 0.5)
    whole = {"whole": JobOrder(places=np.arange(5), cuts=())}
    assert train_learners(even, even, ("a", "b"), orders=whole)["learner"].tolist() == list(INFORMED)


def test_the_hostile_order_is_the_switch_worth_most():
    raw = np.array([[3.0, 0.0, 2.0], [1.0, 0.0, 2.0], [1.0, 9.0, 1.2], [3.0, 0.0, 2.9], [8.0, 0.0, 1.0]])
    order = hostile_order(raw)  # p0 is best, p1 adds 8 to it, p2 adds 1.2
    assert (order.places.tolist(), order.cuts) == ([0, 1, 3, 4, 2], (4,))
    alone = hostile_order(raw[:, :1])
    assert (alone.places.tolist(), alone.cuts) == ([0, 1, 2, 3, 4], ())
    assert hostile_order(np.full((3, 2), 0.5)).cuts == ()


def test_wrong_tables_are_refused():
    raw = jobs(0, rounds=5)
    with pytest.raises(SettingsError, match="same shape"):
        select_over(shares(raw)[:4], raw, NAMES, seed=0)
    with pytest.raises(SettingsError, match="same shape"):
        select_over(shares(raw), raw, NAMES[:3], seed=0)
    with pytest.raises(SettingsError, match="at least one job"):
        select_over(raw[:0], raw[:0], NAMES, seed=0)
    with pytest.raises(SettingsError, match="finite"):
        select_over(shares(raw), np.where(raw == raw[0, 0], np.nan, raw), NAMES, seed=0)
    for cuts in ((0,), (5,), (3, 3), (4, 2)):
        with pytest.raises(SettingsError, match="ascending"):
            select_over(shares(raw), raw, NAMES, seed=0, cuts=cuts)
    with pytest.raises(SettingsError, match="oracle"):
        select_over(shares(raw), raw, NAMES, seed=0, learner="oracle")


def test_a_switch_of_regime_puts_one_kind_of_market_first():
    order = switch_order([0.2, 0.9, 0.4, 0.8, 0.4])
    assert (order.places.tolist(), order.cuts) == ([1, 3, 0, 2, 4], (2,))
    with pytest.raises(SettingsError, match="one kind"):
        switch_order([0.5, 0.5])
    with pytest.raises(SettingsError, match="one kind"):
        switch_order([])


def test_the_kind_of_a_market():
    window = make_window([0.5, 1.5, 0.5, 0.5], [2, 4, 8, 0], slot_hours=0.5)
    for throughput, n_min, work in (
        (Linear(), 1, 2 + 4),
        (Linear(), 3, 4),
        (Linear(alpha=2.0, beta=1.0), 1, 5 + 9),
    ):
        job = make_job(workload=8, deadline_slots=4, n_min=n_min, n_max=4, throughput=throughput, value=9)
        assert abundance(job, window) == pytest.approx(work * 0.5 / 8)


@pytest.mark.slow
def test_after_a_switch_the_blend_serves_the_second_market_too():
    raw = jobs(11, switch=True, rounds=600)
    blend, plain = (
        select_over(shares(raw), raw, NAMES, seed=0, learner=name, cuts=(300,))
        for name in ("blend", "adahedge")
    )
    assert blend.stretches[1].share > plain.stretches[1].share
    assert blend.stretches[1].share > 0.98
    assert (blend.shifting_regret_curve <= blend.shifting_bound_curve + 1e-9).all()


def test_best_sequence_is_the_best_by_enumeration():
    rng = np.random.default_rng(4)
    utilities = rng.uniform(size=(5, 3))
    grid = np.array(np.meshgrid(*[range(3)] * 5)).reshape(5, -1).T
    gains = utilities[np.arange(5), grid].sum(axis=1)
    changes = (grid[:, 1:] != grid[:, :-1]).sum(axis=1)
    for shifts in range(5):
        assert best_sequence(utilities[:3], shifts).tolist() == best_sequence(utilities, shifts)[:3].tolist()
        assert best_sequence(utilities, shifts)[-1] == pytest.approx(gains[changes <= shifts].max())
