"""Every learner: its formula, its proven bound on easy, hostile and changing rounds, and its reconstruction (M5)."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from forms_kit import quick_first
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from slackwater.optimization.selection.contract import leader, play, weigh
from slackwater.optimization.selection.learners import DEFAULT_LEARNER, LEARNERS, learner_named
from slackwater.optimization.selection.learners.adahedge import AdaHedge
from slackwater.optimization.selection.learners.blend import Blend
from slackwater.optimization.selection.learners.exponentiated import ExponentiatedGradient, FixedShare
from slackwater.studies.learners import INFORMED
from slackwater.studies.learners.discounted import Discounted
from slackwater.studies.learners.squint import Squint
from slackwater.studies.rounds import best_sequence
from slackwater.warehouse.errors import SettingsError

M, K = 10, 300
NAMES = tuple(f"p{i}" for i in range(M))
ALL = [
    *INFORMED.values(),
    ExponentiatedGradient(rounds=K),
    FixedShare(rounds=K, haste=4.0),
    Discounted(half_life=20),
]
SHIFTING = [FixedShare(rounds=K), Discounted(half_life=40, haste=3.0), LEARNERS["blend"]]


def name_of(learner):
    return learner.name


def random_rounds(rng, learner):
    return np.clip(rng.normal(np.linspace(0.3, 0.6, M), 0.3, (K, M)), 0, 1)


def close_rounds(rng, learner):
    """Return rounds in which policies differ by far less than the range allows, as under the wide bounds of M5.2."""
    return 0.7 + rng.uniform(-0.2, 0.2, (K, 1)) + np.linspace(0, 0.01, M) + rng.normal(0, 0.002, (K, M))


def hostile_rounds(rng, learner):
    """Return rounds in which the learner's most trusted policy earns nothing, the others everything."""
    state, rows = learner.start(NAMES), []
    for _ in range(K):
        row = np.ones(M)
        row[int(np.argmax(learner.weights(state).log_weight))] = 0.0
        rows.append(row)
        state = learner.learn(state, row)
    return np.array(rows)


def duel_rounds(rng, learner):
    """Return rounds for two policies in which the less trusted earns 1: every learner must lose about sqrt(K)."""
    state, rows = learner.start(NAMES), []
    for _ in range(K):
        chance = learner.weights(state).probability
        row = np.zeros(M)
        row[0 if chance[0] < chance[1] else 1] = 1.0
        rows.append(row)
        state = learner.learn(state, row)
    return np.array(rows)


def trap_rounds(rng, learner):
    """Return the classic trap for following the leader."""
    rows = np.zeros((K, M))
    rows[0, 0], rows[1::2, 1], rows[2::2, 0] = 0.5, 1.0, 1.0
    return rows


def switching_rounds(rng, learner):
    """Return rounds in which each third has another best policy."""
    rows = rng.uniform(0.0, 0.5, (K, M))
    for third, best in enumerate((0, 5, 2)):
        rows[third * K // 3 : (third + 1) * K // 3, best] += 0.5
    return rows


SEQUENCES = [random_rounds, close_rounds, hostile_rounds, duel_rounds, trap_rounds, switching_rounds]


@cache
def played_on(rounds, learner):
    """Return the learner's run, computed once for all bounds checked against it."""
    return play(learner, NAMES, rounds(np.random.default_rng(5), learner))


@pytest.mark.parametrize("rounds", SEQUENCES)
@pytest.mark.parametrize("learner", ALL, ids=name_of)
def test_static_regret_stays_under_its_bound_at_every_round(learner, rounds):
    played = played_on(rounds, learner)
    bounds = learner.static_bounds(played)
    assert np.isfinite(bounds).all()
    assert (played.static_regret <= bounds + 1e-9).all()


@pytest.mark.parametrize("rounds", SEQUENCES)
@pytest.mark.parametrize("learner", SHIFTING, ids=name_of)
@pytest.mark.parametrize("shifts", [1, 2, 6])
def test_shifting_regret_stays_under_its_bound_at_every_round(learner, rounds, shifts):
    played = played_on(rounds, learner)
    regret = best_sequence(played.utilities, shifts) - played.expected.cumsum()
    bounds = learner.shifting_bounds(played, shifts)
    assert np.isfinite(bounds).all()
    assert (regret <= bounds + 1e-9).all()


@given(table=arrays(float, st.tuples(st.integers(1, 25), st.integers(1, 6)), elements=st.floats(0, 1)))
@example(
    table=np.array([[0.0, 5e-324], [5e-324, 5e-324]])
)  # a gap so small that a rate based on it overflows
@settings(max_examples=40, deadline=None)
def test_bounds_hold_on_any_rounds(table):
    names = tuple(map(str, range(table.shape[1])))
    for learner in LEARNERS.values():
        played = play(learner, names, table)
        np.testing.assert_allclose(played.chances.sum(axis=1), 1.0, rtol=1e-12)
        assert (played.static_regret <= learner.static_bounds(played) + 1e-9).all(), learner.name
        moving = best_sequence(table, 2) - played.expected.cumsum()
        assert (moving <= learner.shifting_bounds(played, 2) + 1e-9).all(), learner.name


@pytest.mark.parametrize("learner", ALL, ids=name_of)
def test_bounds_are_not_slack_by_orders(learner):
    """An adversary costs each learner a sizeable part of its bound, so a bound that is too small would fail."""
    played = played_on(duel_rounds, learner)
    part = played.static_regret[-1] / learner.static_bounds(played)[-1]
    assert part > (0.1 if learner.name != "blend" else 0.05)


def test_learners_of_no_range_pay_little_where_policies_differ_by_little():
    utilities = close_rounds(np.random.default_rng(1), None)
    regret = {name: play(learner, NAMES, utilities).static_regret[-1] for name, learner in LEARNERS.items()}
    assert regret["adahedge"] < 0.25 * regret["anytime"]
    assert regret["blend"] < 0.3 * regret["anytime"]


def test_the_blend_follows_a_switch_that_adahedge_alone_follows_late():
    utilities = switching_rounds(np.random.default_rng(2), None)
    plain, blend = (play(LEARNERS[name], NAMES, utilities).expected.sum() for name in ("adahedge", "blend"))
    best = best_sequence(utilities, 2)[-1]
    assert best - blend < 0.8 * (best - plain)


def test_adahedge_does_not_mind_shift_and_scale():
    utilities = random_rounds(np.random.default_rng(3), None)
    whole = weigh(AdaHedge(), NAMES, utilities)
    small = weigh(AdaHedge(), NAMES, 0.4 + utilities / 128.0)
    for a, b in zip(whole, small, strict=True):
        np.testing.assert_allclose(a.probability, b.probability, rtol=1e-6, atol=1e-12)


def test_adahedge_is_the_formula():
    utilities = random_rounds(np.random.default_rng(4), None)[:40]
    gains, gap = np.zeros(M), 0.0
    history = weigh(AdaHedge(), NAMES, utilities)
    for row, weights in zip(utilities, history, strict=False):
        weight = np.full(M, 1.0 / M)
        if gap > 0:
            eta = math.log(M) / gap
            weight = np.exp(eta * (gains - gains.max()))
            weight /= weight.sum()
            mixed = math.log(float(weight @ np.exp(eta * row))) / eta
        else:
            mixed = row.max()
        np.testing.assert_allclose(weights.probability, weight, rtol=1e-9)
        gains, gap = gains + row, gap + mixed - float(weight @ row)


def test_squint_is_the_formula():
    utilities = random_rounds(np.random.default_rng(4), None)[:40]
    rates = [2.0**-i for i in range(1, 25)]
    regret, variance = np.zeros(M), np.zeros(M)
    for row, weights in zip(utilities, weigh(Squint(), NAMES, utilities), strict=False):
        weight = sum(
            eta / (i * (i + 1)) * np.exp(eta * regret - eta**2 * variance)
            for i, eta in enumerate(rates, start=1)
        )
        weight = weight / weight.sum()
        np.testing.assert_allclose(weights.probability, weight, rtol=1e-9)
        beyond = row - weight @ row
        regret, variance = regret + beyond, variance + beyond**2


def test_squint_keeps_its_potential_below_one():
    """The inequality behind its bound holds on hostile rounds."""
    learner, state = Squint(), Squint().start(NAMES)
    for row in hostile_rounds(None, learner):
        state = learner.learn(state, row)
        potential = sum(
            np.mean(np.exp(eta * state.regret - eta**2 * state.variance)) / (i * (i + 1))
            for i, eta in ((i, 2.0**-i) for i in range(1, 25))
        )
        assert potential <= 1.0 + 1e-9


def test_discounting_is_the_formula():
    utilities = random_rounds(np.random.default_rng(7), None)[:30]
    learner = Discounted(half_life=5.0, haste=2.0)
    age = np.arange(29, -1, -1)[:, None]
    expected = np.exp(learner.rate(M) * (2.0 ** (-age / 5.0) * utilities).sum(axis=0))
    np.testing.assert_allclose(
        weigh(learner, NAMES, utilities)[-1].probability, expected / expected.sum(), rtol=1e-9
    )


def test_exponentiated_gradient_is_the_formula():
    utilities = random_rounds(np.random.default_rng(8), None)[:30]
    for learner, eta in (
        (ExponentiatedGradient(), math.sqrt(8 * math.log(M) / 31)),
        (ExponentiatedGradient(rounds=K), math.sqrt(8 * math.log(M) / K)),
    ):
        expected = np.exp(eta * utilities.sum(axis=0))
        weights = weigh(learner, NAMES, utilities)[-1]
        np.testing.assert_allclose(weights.probability, expected / expected.sum(), rtol=1e-9)


def test_the_blend_of_one_is_that_one():
    utilities = random_rounds(np.random.default_rng(9), None)
    alone, blended = (weigh(each, NAMES, utilities) for each in (Squint(), Blend(learners=(Squint(),))))
    for a, b in zip(alone, blended, strict=True):
        np.testing.assert_allclose(a.probability, b.probability, rtol=1e-12)


@pytest.mark.parametrize("learner", ALL, ids=name_of)
def test_rebuilt_weights_are_the_same_bits(learner):
    utilities = np.random.default_rng(2).uniform(size=(80, M))
    state = learner.start(NAMES)
    live = [learner.weights(state)]
    for row in utilities:
        state = learner.learn(state, row)
        live.append(learner.weights(state))
    stored = np.frombuffer(utilities.tobytes()).reshape(utilities.shape)
    rebuilt = weigh(learner, NAMES, stored)
    assert [w.log_weight.tobytes() for w in rebuilt] == [w.log_weight.tobytes() for w in live]
    assert [w.rounds for w in rebuilt] == list(range(81))
    assert weigh(learner, NAMES, stored[:40])[-1].log_weight.tobytes() == live[40].log_weight.tobytes()


@pytest.mark.parametrize("learner", ALL, ids=name_of)
def test_no_weight_knows_its_own_round(learner):
    utilities = np.random.default_rng(3).uniform(size=(40, M))
    other = utilities.copy()
    other[20:] = other[20:, ::-1]
    before, after = (weigh(learner, NAMES, table) for table in (utilities, other))
    for k in range(21):
        assert before[k].log_weight.tobytes() == after[k].log_weight.tobytes()
    assert not np.array_equal(before[21].log_weight, after[21].log_weight)


@pytest.mark.parametrize("rounds", quick_first([1000, 3000]))
@pytest.mark.parametrize("learner", ALL, ids=name_of)
def test_long_one_sided_rounds_stay_finite(learner, rounds):
    utilities = np.zeros((rounds, 3))
    utilities[:, 1] = 1.0
    for table in (utilities, utilities * 1e-9, np.full((50, 3), 0.25)):
        history = weigh(learner, ("a", "b", "c"), table)
        assert all(np.isfinite(weights.log_weight).all() for weights in history[::50])
    assert leader(weigh(learner, ("a", "b", "c"), utilities[:50])[-1]) == "b"


@pytest.mark.parametrize("learner", ALL, ids=name_of)
def test_one_policy_has_nothing_to_learn(learner):
    played = play(learner, ("only",), np.array([[0.3], [0.9]]))
    assert played.chances.tolist() == [[1.0], [1.0]]
    np.testing.assert_allclose(played.static_regret, 0.0, atol=1e-15)
    assert (learner.static_bounds(played) >= 0.0).all()


@pytest.mark.parametrize("learner", ALL, ids=name_of)
def test_wrong_rounds_are_refused(learner):
    state = learner.start(("a", "b"))
    for wrong in ([0.1], [0.1, 1.1], [0.1, math.nan]):
        with pytest.raises(SettingsError):
            learner.learn(state, np.array(wrong))
    with pytest.raises(SettingsError, match="each once"):
        learner.start(("a", "a"))


def test_learners_by_name():
    assert learner_named("default") is LEARNERS[DEFAULT_LEARNER]
    assert all(learner_named(name).name == name for name in INFORMED)
    with pytest.raises(SettingsError, match="adahedge"):
        learner_named("oracle")
    with pytest.raises(SettingsError, match="each once"):
        Blend(learners=(Squint(), Squint()))
    with pytest.raises(SettingsError, match="positive"):
        Discounted(half_life=0.0)
