"""Bandits: formulas, proven bounds on random, hostile and switching rounds, and one observed number per round (M10)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slackwater.studies.learners import BANDITS
from slackwater.studies.learners.ar_ucb import ArUcb
from slackwater.studies.learners.contract import BanditFeedback, play_bandit
from slackwater.studies.learners.exp3 import Exp3, Exp3IX, Exp3S
from slackwater.studies.rounds import best_sequence, select_over, select_with_bandit
from slackwater.warehouse.errors import SettingsError

M, K, SEEDS = 4, 400, 5
NAMES = tuple(f"p{i}" for i in range(M))
ALL = [*BANDITS.values(), Exp3(haste=0.5)]
PROVEN = [Exp3(), Exp3(haste=4.0), Exp3IX(), Exp3S(rounds=K)]


def name_of(learner):
    return learner.name


def random_rounds(rng):
    return np.clip(rng.normal(np.linspace(0.3, 0.6, M), 0.3, (K, M)), 0, 1)


def hostile_rounds(rng):
    """Return rounds in which the best policy so far turns bad: leads are built up and lost repeatedly."""
    rows = np.zeros((K, M))
    for k in range(K):
        rows[k, (int(math.log2(k + 1)) + 1) % M] = 1.0
        rows[k, M - 1] = max(rows[k, M - 1], 0.55)
    return rows


def switching_rounds(rng):
    """Return rounds in which each third has another best policy."""
    rows = rng.uniform(0.0, 0.4, (K, M))
    for third, best in enumerate((0, 3, 2)):
        rows[third * K // 3 : (third + 1) * K // 3, best] += 0.6
    return rows


SEQUENCES = [random_rounds, hostile_rounds, switching_rounds]


def runs_on(learner, table, seeds=SEEDS):
    return [play_bandit(learner, NAMES, table, rng=np.random.default_rng(s))[0] for s in range(seeds)]


@pytest.mark.slow
@pytest.mark.parametrize("rounds", SEQUENCES)
@pytest.mark.parametrize("learner", PROVEN, ids=name_of)
def test_expected_regret_stays_under_its_bound_at_every_round(learner, rounds):
    table = rounds(np.random.default_rng(5))
    runs = runs_on(learner, table)
    regret = np.mean([run.static_regret for run in runs], axis=0)
    bounds = learner.static_bounds(runs[0])
    assert bounds[-1] < K or isinstance(learner, Exp3S | Exp3IX), "else the bound says nothing"
    assert (regret <= bounds + 1e-9).all()
    assert regret[-1] > 0.01 * bounds[-1] or rounds is not random_rounds, (
        "a bound of another order proves little"
    )


@pytest.mark.slow
@pytest.mark.parametrize("shifts", [1, 2, 5])
def test_the_shifting_bound_of_exp3s_holds_through_switches(shifts):
    learner = Exp3S(rounds=K, shifts=2)
    table = switching_rounds(np.random.default_rng(6))
    runs = runs_on(learner, table)
    regret = np.mean([best_sequence(table, shifts) - run.expected.cumsum() for run in runs], axis=0)
    assert (regret <= learner.shifting_bounds(runs[0], shifts) + 1e-9).all()
    assert np.isinf(Exp3().shifting_bounds(runs[0], shifts)).all(), "none is proven"


def test_exp3_ix_holds_against_an_opponent_that_watches():
    """The most trusted policy earns nothing: with probability 0.95 the bound on the drawn utility holds against any opponent."""
    learner, over = Exp3IX(), 0
    for seed in range(20):
        rng, state, drawn, rows = np.random.default_rng(seed), Exp3IX().start(NAMES), [], []
        for _ in range(200):
            chances = learner.weights(state).probability
            row = np.ones(M)
            row[int(chances.argmax())] = 0.0
            arm = int(rng.choice(M, p=chances))
            rows.append(row)
            drawn.append(row[arm])
            state = learner.learn(
                state, BanditFeedback(policy=arm, utility=float(row[arm]), chance=float(chances[arm]))
            )
        regret = np.array(rows).sum(axis=0).max() - sum(drawn)
        played, _ = play_bandit(learner, NAMES, np.array(rows), rng=rng)
        over += regret > learner.static_bounds(played)[-1]
    assert over <= 3


def test_exp3_is_the_formula():
    table = random_rounds(np.random.default_rng(3))[:50]
    played, history = play_bandit(Exp3(haste=2.0), NAMES, table, rng=np.random.default_rng(0))
    losses = np.zeros(M)
    for k, (arm, row) in enumerate(zip(played.drawn, table, strict=True), start=1):
        weight = np.exp(-2.0 * math.sqrt(math.log(M) / (M * k)) * losses)
        weight /= weight.sum()
        np.testing.assert_allclose(history[k - 1].probability, weight, rtol=1e-9)
        losses[arm] += (1.0 - row[arm]) / weight[arm]


def test_exp3s_is_the_formula():
    learner, table = Exp3S(rounds=100, shifts=1), random_rounds(np.random.default_rng(3))[:50]
    played, history = play_bandit(learner, NAMES, table, rng=np.random.default_rng(0))
    weight, gamma = np.ones(M), learner.explored(M)
    for k, (arm, row) in enumerate(zip(played.drawn, table, strict=True)):
        chance = (1 - gamma) * weight / weight.sum() + gamma / M
        np.testing.assert_allclose(history[k].probability, chance, rtol=1e-9)
        grown = weight.copy()
        grown[arm] *= math.exp(gamma * row[arm] / (chance[arm] * M))
        weight = grown + math.e / (100 * M) * weight.sum()


def test_ar_ucb_is_ridge_regression_of_what_was_seen():
    learner, rng = ArUcb(lags=2, ridge=0.7), np.random.default_rng(1)
    state, rows = learner.start(("a", "b")), {0: [], 1: []}
    last = [0.0, 0.0]
    for _ in range(40):
        arm, x = int(rng.integers(2)), float(rng.random())
        rows[arm].append(([1.0, *last], x))
        state = learner.learn(state, BanditFeedback(policy=arm, utility=x, chance=0.5))
        last = [x, last[0]]
    mean, width = learner.outlook(state)
    for arm, seen in rows.items():
        z, x = np.array([r[0] for r in seen]), np.array([r[1] for r in seen])
        gram = z.T @ z + 0.7 * np.eye(3)
        now = np.array([1.0, *last])
        assert mean[arm] == pytest.approx(now @ np.linalg.solve(gram, z.T @ x))
        beta = math.sqrt(1.4) + 0.5 * math.sqrt(2 * math.log(2 / 0.05) + np.linalg.slogdet(gram / 0.7)[1])
        assert width[arm] == pytest.approx(beta * math.sqrt(now @ np.linalg.solve(gram, now)))


def autoregressive(learner, seed, rounds=500, noise=0.05):
    """Play a market whose best policy depends on the previous utility; return earnings, regrets by round and final state."""
    rng = np.random.default_rng(seed)
    base, lag = np.array([0.10, 0.20, 0.12]), np.array([0.80, 0.0, 0.20])
    state, last, earned, lost = learner.start(("a", "b", "c")), 0.0, [], []
    for _ in range(rounds):
        mean = base + lag * last
        chances = learner.weights(state).probability
        arm = int(rng.choice(3, p=chances))
        last = float(np.clip(mean[arm] + rng.uniform(-noise, noise), 0, 1))
        lost.append(mean.max() - mean[arm])
        earned.append(last)
        state = learner.learn(state, BanditFeedback(policy=arm, utility=last, chance=float(chances[arm])))
    return np.array(earned), np.array(lost), state


def test_ar_ucb_pays_no_more_than_its_price_where_its_model_holds():
    for seed in range(5):
        _, lost, state = autoregressive(ArUcb(noise=0.05), seed)
        assert lost.sum() <= state.price
        assert lost[-100:].mean() < 0.3 * lost[:100].mean(), "it learns"


@pytest.mark.slow  # the quick form: it pays no more than its price, above
def test_ar_ucb_wins_where_utilities_are_autocorrelated_and_exp3_does_not():
    mine = np.mean([autoregressive(ArUcb(noise=0.05), seed)[0].mean() for seed in range(4)])
    plain = np.mean([autoregressive(Exp3(), seed)[0].mean() for seed in range(4)])
    assert mine > plain + 0.02


def test_pooling_shares_what_a_few_rounds_show():
    """Forty policies, one of them better: with few rounds each, the pooled form loses less than the plain form."""
    rng = np.random.default_rng(2)
    table = np.clip(0.5 + 0.2 * (np.arange(40) == 17) + rng.normal(0, 0.05, (300, 40)), 0, 1)
    names = tuple(map(str, range(40)))
    earned = {
        pooled: np.mean(
            [play_bandit(ArUcb(pooled=pooled), names, table, rng=np.random.default_rng(s))[0].expected.mean() for s in range(3)]
        )
        for pooled in (False, True)
    }  # fmt: skip
    assert earned[True] > earned[False] + 0.02


@pytest.mark.parametrize("learner", ALL, ids=name_of)
def test_nothing_but_what_was_drawn_is_seen(learner):
    table = np.random.default_rng(3).uniform(size=(60, M))
    played, history = play_bandit(learner, NAMES, table, rng=np.random.default_rng(1))
    unseen = np.random.default_rng(4).uniform(size=table.shape)
    unseen[np.arange(60), played.drawn] = table[np.arange(60), played.drawn]
    again, other = play_bandit(learner, NAMES, unseen, rng=np.random.default_rng(1))
    assert again.drawn.tolist() == played.drawn.tolist()
    assert [w.log_weight.tobytes() for w in other] == [w.log_weight.tobytes() for w in history]
    later = table.copy()
    later[30:] = later[30:, ::-1] / 2
    cut, _ = play_bandit(learner, NAMES, later, rng=np.random.default_rng(1))
    assert cut.drawn[:31].tolist() == played.drawn[:31].tolist()
    np.testing.assert_array_equal(cut.chances[:31], played.chances[:31])


@pytest.mark.parametrize("learner", ALL, ids=name_of)
def test_chances_add_up_and_wrong_rounds_are_refused(learner):
    played, history = play_bandit(learner, NAMES, np.full((30, M), 0.25), rng=np.random.default_rng(0))
    np.testing.assert_allclose(played.chances.sum(axis=1), 1.0)
    assert [w.rounds for w in history] == list(range(31))
    state = learner.start(NAMES)
    for policy, utility, chance in (
        (M, 0.5, 0.5),
        (-1, 0.5, 0.5),
        (0, 1.1, 0.5),
        (0, math.nan, 0.5),
        (0, 0.5, 0.0),
    ):
        with pytest.raises(SettingsError, match="a share in"):
            learner.learn(state, BanditFeedback(policy=policy, utility=utility, chance=chance))
    with pytest.raises(SettingsError, match="shares in"):
        play_bandit(learner, NAMES, np.full((2, M), 1.5), rng=np.random.default_rng(0))
    only, _ = play_bandit(learner, ("only",), np.array([[0.3], [0.9]]), rng=np.random.default_rng(0))
    assert only.chances.tolist() == [[1.0], [1.0]]


def test_runs_of_several_seeds_add_up_and_full_information_earns_more():
    table = switching_rounds(np.random.default_rng(8))
    runs = select_with_bandit(table, 2.0 * table, NAMES, learner=Exp3(), seeds=range(3), cuts=[K // 3])
    assert runs.learner == "exp3"
    drawn = [play_bandit(Exp3(), NAMES, table, rng=np.random.default_rng([s, 31]))[0] for s in range(3)]
    earned = [2.0 * table[np.arange(K), one.drawn].mean() for one in drawn]
    assert runs.drawn_utility == pytest.approx(np.mean(earned))
    low, high = runs.settled_interval
    assert low <= runs.settled_utility <= high
    assert len(runs.stretch_utilities) == 2
    assert runs.drawn_utility < select_over(table, 2.0 * table, NAMES, seed=0).sampled_utility
    with pytest.raises(SettingsError, match="same shape"):
        select_with_bandit(table, table[:5], NAMES, learner=Exp3(), seeds=[0])


def test_settings_that_make_no_sense_are_refused():
    for make in (lambda: ArUcb(ridge=0.0), lambda: ArUcb(lags=-1), lambda: Exp3(haste=0.0)):
        with pytest.raises(SettingsError):
            make()
