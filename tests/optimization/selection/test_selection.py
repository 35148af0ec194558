"""Exponentiated gradient, fixed share, their bounds and the reconstruction of weights (M5)."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from make import make_job

from slackwater.optimization.selection.contract import (
    ANYTIME,
    even_weights,
    known_rate,
    leader,
    normalise,
    play,
    shifting_bound,
    shifting_rates,
    static_bound,
    update,
    utility_bounds,
    weigh,
)
from slackwater.optimization.selection.learned import learner_regret, why_leader_changed
from slackwater.optimization.selection.learners import LEARNERS
from slackwater.optimization.selection.learners.exponentiated import ExponentiatedGradient
from slackwater.warehouse.errors import SettingsError

M, K = 12, 400
NAMES = tuple(f"p{i}" for i in range(M))


def random_sequence(rng: np.random.Generator) -> np.ndarray:
    return np.clip(rng.normal(np.linspace(0.3, 0.6, M), 0.3, (K, M)), 0, 1)


def alternating_sequence(rng: np.random.Generator) -> np.ndarray:
    """Return the classic trap for following the leader: two policies take turns, shifted by half a round."""
    rows = np.zeros((K, M))
    rows[0, 0], rows[1::2, 1], rows[2::2, 0] = 0.5, 1.0, 1.0
    return rows


def switching_sequence(rng: np.random.Generator) -> np.ndarray:
    """Return rounds in which each quarter has another best policy."""
    rows = rng.uniform(0.0, 0.5, (K, M))
    for quarter, best in enumerate((0, 5, 2, 9)):
        rows[quarter * K // 4 : (quarter + 1) * K // 4, best] += 0.5
    return rows


KNOWN = ExponentiatedGradient(rounds=K)


def weights_after(names, utilities, *, rate, share=0.0):
    """Return the weights before each round and after the last, at a fixed rate and share."""
    history = [even_weights(names)]
    for row in utilities:
        history.append(update(history[-1], row, rate=rate, share=share))
    return history


def table(utilities: np.ndarray) -> pd.DataFrame:
    rounds = [(f"j{k}", NAMES[i], u) for k, row in enumerate(utilities) for i, u in enumerate(row)]
    return pd.DataFrame(rounds, columns=["job", "policy", "normalised"])


def test_bounds_are_the_formulas():
    assert static_bound(M, K, rate=known_rate(M, K)) == pytest.approx(math.sqrt(K * math.log(M) / 2))
    anytime = 2 * math.sqrt(K * math.log(M) / 2) + math.sqrt(math.log(M) / 8)
    assert static_bound(M, K, rate=ANYTIME) == pytest.approx(anytime)


def test_the_leader_has_no_guarantee():
    trap = learner_regret(table(alternating_sequence(np.random.default_rng(0))), KNOWN)
    assert trap["static_regret_leader"].iloc[-1] > trap["static_bound"].iloc[-1]


def test_weights_are_the_formula():
    utilities = np.random.default_rng(0).uniform(size=(30, M))
    fixed = weights_after(NAMES, utilities, rate=0.7)[-1]
    anytime = weights_after(NAMES, utilities, rate=ANYTIME)[-1]
    for weights, eta in ((fixed, 0.7), (anytime, math.sqrt(8 * math.log(M) / 31))):
        expected = np.exp(eta * utilities.sum(axis=0))
        np.testing.assert_allclose(weights.probability, expected / expected.sum(), rtol=1e-12)
    assert fixed.rounds == 30
    assert leader(fixed) == NAMES[int(utilities.sum(axis=0).argmax())]


def test_fixed_share_is_the_formula():
    utilities = np.random.default_rng(1).uniform(size=(20, M))
    weight = np.full(M, 1 / M)
    for row in utilities:
        weight = weight * np.exp(0.9 * row)
        weight = 0.95 * weight + 0.05 * weight.sum() / M
    weights = weights_after(NAMES, utilities, rate=0.9, share=0.05)[-1]
    np.testing.assert_allclose(weights.probability, weight / weight.sum(), rtol=1e-12)


def test_thousands_of_rounds_stay_finite():
    utilities = np.zeros((5000, 3))
    utilities[:, 0] = 1.0
    weights = weights_after(("a", "b", "c"), utilities, rate=1.0)[-1]
    assert weights.probability == pytest.approx([1, 0, 0])
    assert np.isfinite(weights.log_weight).all()


def test_the_best_share_is_near_the_least_bound():
    rate, share = shifting_rates(M, K, 3)
    best = shifting_bound(M, K, rate=rate, share=share, shifts=3)
    for other in (0.3, 0.5, 2.0, 3.0):
        assert best <= shifting_bound(M, K, rate=rate * other, share=share, shifts=3)
        assert best <= shifting_bound(M, K, rate=rate, share=share * other, shifts=3)


def test_bounds_of_a_job():
    job = make_job(workload=9, n_max=4, value=60)
    bounds = utility_bounds(job, on_demand_usd=2.0, slot_hours=0.5)
    assert bounds == (-60.0, 60.0)
    assert normalise(np.array([-100.0, -60.0, 0.0, 30.0, 60.0]), bounds).tolist() == [0, 0, 0.5, 0.75, 1]


def test_wrong_rounds_are_refused():
    weights = even_weights(("a", "b"))
    with pytest.raises(SettingsError, match="one for each policy"):
        update(weights, np.array([0.1]), rate=1.0)
    with pytest.raises(SettingsError, match="normalised"):
        update(weights, np.array([0.1, 1.1]), rate=1.0)
    with pytest.raises(SettingsError, match="normalised"):
        update(weights, np.array([0.1, np.nan]), rate=1.0)
    with pytest.raises(SettingsError, match="rate"):
        update(weights, np.array([0.1, 0.2]), rate=-1.0)
    with pytest.raises(SettingsError, match="share"):
        update(weights, np.array([0.1, 0.2]), rate=ANYTIME, share=0.1)
    with pytest.raises(SettingsError, match="each once"):
        even_weights(("a", "a"))
    with pytest.raises(SettingsError, match="replay the whole pool"):
        learner_regret(table(np.ones((2, M)) * 0.5).iloc[1:], KNOWN)


def test_one_policy_has_nothing_to_learn():
    weights = update(even_weights(("only",)), np.array([0.3]), rate=ANYTIME)
    assert leader(update(weights, np.array([0.4]), rate=known_rate(1, 5))) == "only"
    assert static_bound(1, 5, rate=known_rate(1, 5)) == 0.0


def test_why_the_leader_changed_names_the_jobs():
    rows = [("j0", 0.9, 0.5), ("j1", 0.5, 0.6), ("j2", 0.2, 0.8), ("j3", 0.5, 0.5), ("j4", 1.0, 0.0)]
    ledger = pd.DataFrame(
        [(job, name, u) for job, *pair in rows for name, u in zip(("A", "B"), pair, strict=True)],
        columns=["job", "policy", "normalised"],
    )
    history = weights_after(("A", "B"), np.array([pair for _, *pair in rows]), rate=1.0)
    changes = why_leader_changed(ledger, history)
    assert [(c.round, c.job, c.before, c.after) for c in changes] == [
        (3, "j2", "A", "B"),
        (5, "j4", "B", "A"),
    ]
    assert [job for job, _ in changes[0].moved] == ["j2", "j1", "j0"]
    assert [by for _, by in changes[0].moved] == pytest.approx([0.6, 0.1, -0.4])
    assert sum(by for _, by in changes[1].moved) == pytest.approx(0.7)
    assert changes[0].sentence() == "B overtook A after job j2, mostly by j2 (+0.60), j1 (+0.10)"
    with pytest.raises(SettingsError, match="one more than rounds"):
        why_leader_changed(ledger, history[:-1])


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("sequence", [random_sequence, switching_sequence])
def test_the_regret_of_any_learner_beside_its_bound(name, sequence):
    utilities = sequence(np.random.default_rng(2))[:120]
    learner = LEARNERS[name]
    result = learner_regret(table(utilities), learner)
    played = play(learner, NAMES, utilities)
    assert result["static_regret"].tolist() == played.static_regret.tolist()
    assert result["expected"].tolist() == played.expected.tolist()
    assert (result["static_regret"] <= result["static_bound"] + 1e-9).all()


@pytest.mark.parametrize("name", LEARNERS)
def test_what_moved_the_leader_adds_up_to_its_lead(name):
    utilities = switching_sequence(np.random.default_rng(8))[::4, ::-1]
    learner, ledger = LEARNERS[name], table(utilities)
    history = weigh(learner, NAMES, utilities)
    changes = why_leader_changed(ledger, history, memory=learner.memory)
    assert changes
    for change in changes:
        log = history[change.round].log_weight
        lead = log[NAMES.index(change.after)] - log[NAMES.index(change.before)]
        assert sum(by for _, by in change.moved) == pytest.approx(lead, rel=1e-6, abs=1e-9)
        assert {job for job, _ in change.moved} == {f"j{k}" for k in range(change.round)}
        if learner.memory is not None and lead > 0:
            ahead = utilities[: change.round, NAMES.index(change.after)]
            ahead = ahead - utilities[: change.round, NAMES.index(change.before)]
            by = dict(change.moved)
            signs = np.sign([by[f"j{k}"] for k in range(change.round)])
            assert (signs == np.sign(ahead)).all(), "a job moved the lead the way its own utilities did"
