"""When to probe: exact for two states against enumeration and value iteration, and what rules pay on drawn chains (M10)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from optimization.market.belief import CountChain
from optimization.trials.probing import (
    Stakes,
    Watch,
    best_waits,
    expected_transitions,
    fixed_waits,
    greedy_waits,
    learned_chain,
    levels_of,
    look_ahead,
    states_of,
    track,
    transitions_seen,
    valued,
)
from warehouse.errors import SettingsError


def two_states(p, q):
    return CountChain(count=np.arange(2), transition=np.array([[1 - p, p], [q, 1 - q]]))


def drawn_chain(rng, size):
    stay = rng.uniform(0.5, 0.98, size)
    rest = rng.dirichlet(np.ones(size), size)
    matrix = stay[:, None] * np.eye(size) + (1 - stay)[:, None] * rest
    return CountChain(count=np.arange(size), transition=matrix)


def drawn_stakes(rng):
    return Stakes(absent=1.0, unpredicted=float(rng.uniform(0.3, 3)), probe=float(rng.uniform(0.02, 1)))


def test_best_waits_equal_enumeration_for_two_states():
    rng = np.random.default_rng(0)
    for _ in range(60):
        stakes = drawn_stakes(rng)
        ahead = look_ahead(two_states(*rng.uniform(0.01, 0.5, 2)), stakes, longest=12)
        every = [
            valued(np.array(pair), ahead, stakes).per_slot
            for pair in itertools.product(range(1, 13), repeat=2)
        ]
        assert best_waits(ahead, stakes).per_slot == pytest.approx(min(every), abs=1e-10)


def relative_value_iteration(chain, stakes, longest):
    """The same problem slot by slot: the state is (seen, age), the choice to look or not; nothing is shared with the code."""
    size, count = len(chain.count), chain.count.astype(float)
    laws = [np.linalg.matrix_power(chain.transition, k) for k in range(longest + 1)]

    def loss(law):
        return min(
            sum(
                p * (stakes.absent * max(g - n, 0) + stakes.unpredicted * max(n - g, 0))
                for p, n in zip(law, count, strict=True)
            )
            for g in count
        )

    losses = np.array([[loss(laws[k][s]) for s in range(size)] for k in range(longest + 1)])
    value = np.zeros((longest, size))  # after k slots without a look
    for _ in range(6000):
        new = np.empty_like(value)
        for k in range(longest):
            look = stakes.probe + laws[k + 1] @ value[0]
            wait = losses[k + 1] + value[k + 1] if k + 1 < longest else np.full(size, np.inf)
            new[k] = np.minimum(look, wait)
        # Half a step at a time: a chain whose waits are all alike would swing for ever.
        new = 0.5 * new + 0.5 * value
        step = new - value
        if np.ptp(step) < 1e-12:
            break
        value = new - new[0, 0]
    return 2.0 * float(step.mean())


@pytest.mark.parametrize("size", [2, 4])
def test_best_waits_equal_dynamic_programming_slot_by_slot(size):
    rng = np.random.default_rng(size)
    for _ in range(4):
        chain, stakes = drawn_chain(rng, size), drawn_stakes(rng)
        found = best_waits(look_ahead(chain, stakes, longest=8), stakes)
        assert found.per_slot == pytest.approx(relative_value_iteration(chain, stakes, 8), abs=1e-6)


def test_best_is_never_worse_than_greedy_or_fixed_and_greedy_can_be_bad():
    rng, worst = np.random.default_rng(3), 1.0
    for _ in range(40):
        stakes = drawn_stakes(rng)
        ahead = look_ahead(drawn_chain(rng, int(rng.integers(2, 9))), stakes, longest=30)
        best, greedy = best_waits(ahead, stakes), greedy_waits(ahead, stakes)
        assert best.per_slot <= greedy.per_slot + 1e-9
        assert all(best.per_slot <= fixed_waits(k, ahead, stakes).per_slot + 1e-9 for k in range(1, 31))
        worst = max(worst, greedy.per_slot / best.per_slot)
    assert worst > 1.05


def test_probing_gets_rarer_as_it_gets_dearer():
    chain = drawn_chain(np.random.default_rng(4), 5)
    rates = []
    for price in (0.0, 0.05, 0.3, 1.0, 100.0):
        stakes = Stakes(absent=1.0, unpredicted=1.0, probe=price)
        rates.append(best_waits(look_ahead(chain, stakes, longest=20), stakes).rate)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(1 / 20)


def test_greedy_probes_when_the_expected_loss_exceeds_the_price():
    stakes = Stakes(absent=1.0, unpredicted=1.0, probe=0.25)
    ahead = look_ahead(two_states(0.1, 0.02), stakes, longest=50)
    for state, wait in enumerate(greedy_waits(ahead, stakes).slots.tolist()):
        assert (ahead.loss[: wait - 1, state] <= 0.25).all()
        assert ahead.loss[wait - 1, state] > 0.25 or wait == 50


def test_the_guess_is_the_count_of_least_expected_loss():
    rng = np.random.default_rng(5)
    for _ in range(20):
        chain, stakes = drawn_chain(rng, 6), drawn_stakes(rng)
        ahead = look_ahead(chain, stakes, longest=3)
        law = np.linalg.matrix_power(chain.transition, 3)
        for s in range(6):
            costs = [
                law[s] @ np.where(g > chain.count, stakes.absent * (g - chain.count), stakes.unpredicted * (chain.count - g))
                for g in chain.count
            ]  # fmt: skip
            assert ahead.loss[2, s] == pytest.approx(min(costs), abs=1e-6)
            assert ahead.guess[2, s] == int(np.argmin(np.round(costs, 9)))


def drawn_series(chain, slots, rng):
    states = [0]
    steps = np.cumsum(chain.transition, axis=1)
    for u in rng.random(slots):
        states.append(min(int(np.searchsorted(steps[states[-1]], u)), len(steps) - 1))
    return chain.count[states].astype(float)


@pytest.mark.parametrize("rule", [best_waits, greedy_waits], ids=["best", "greedy"])
def test_what_a_rule_pays_on_its_own_chain_is_what_was_promised(rule):
    rng = np.random.default_rng(6)
    chain = drawn_chain(rng, 3)
    stakes = Stakes(absent=1.0, unpredicted=2.0, probe=0.15)
    watch = Watch(levels=chain.count, stakes=stakes, longest=15)
    transitions = 1e9 * chain.transition
    promised = rule(look_ahead(learned_chain(transitions, chain.count), stakes, longest=15), stakes)
    paid = [track(drawn_series(chain, 4000, rng), transitions, rule, watch) for _ in range(12)]
    for mine, theirs in (("cost", promised.per_slot), ("probes", promised.rate)):
        values = np.array([getattr(one, mine) for one in paid])
        error = values.std(ddof=1) / np.sqrt(len(values))
        assert abs(values.mean() - theirs) <= 3 * error + 1e-9


def test_expected_transitions_equal_all_paths():
    chain = drawn_chain(np.random.default_rng(7), 3).transition
    powers = np.array([np.linalg.matrix_power(chain, k) for k in range(1, 6)])
    for apart in (1, 2, 4):
        total, mass = np.zeros((3, 3)), 0.0
        for path in itertools.product(range(3), repeat=apart - 1):
            whole = (0, *path, 2)
            p = np.prod([chain[i, j] for i, j in itertools.pairwise(whole)])
            mass += p
            for i, j in itertools.pairwise(whole):
                total[i, j] += p
        found = expected_transitions(chain, 0, 2, apart, powers=powers)
        np.testing.assert_allclose(found, total / mass, atol=1e-12)
        assert found.sum() == pytest.approx(apart)


def test_learning_from_probes_alone_finds_a_chain_that_has_changed():
    """The stretch before said that it never moves; probes show that it does, and the losses fall."""
    rng = np.random.default_rng(8)
    moving = two_states(0.15, 0.15)
    series = drawn_series(moving, 6000, rng)
    stakes = Stakes(absent=1.0, unpredicted=1.0, probe=0.02)
    before = 500.0 * np.array([[0.999, 0.001], [0.001, 0.999]])
    still, learning = (
        track(series, before, best_waits, Watch(levels=moving.count, stakes=stakes, longest=48, relearn=r, half_life=500))
        for r in (0, 48)
    )  # fmt: skip
    assert learning.cost < 0.6 * still.cost


def test_nothing_but_what_was_probed_is_read():
    rng = np.random.default_rng(9)
    chain = drawn_chain(rng, 4)
    series = drawn_series(chain, 500, rng)
    watch = Watch(
        levels=chain.count, stakes=Stakes(absent=1.0, unpredicted=1.0, probe=0.4), longest=12, relearn=50
    )
    log = []

    def rule(ahead, stakes):
        waits = best_waits(ahead, stakes)
        log.append(waits.slots.tobytes())
        return waits

    whole = track(series, 50 * chain.transition, rule, watch)
    first, log = list(log), []
    changed = series.copy()
    changed[400:] = 0.0
    track(changed, 50 * chain.transition, rule, watch)
    assert log[:9] == first[:9], "what came later moved a rule made before"
    perfect = track(series, 50 * chain.transition, lambda a, s: fixed_waits(1, a, s), watch)
    assert (perfect.wrong, perfect.probes) == (0.0, 1.0)
    assert whole.probes < 1.0


def test_slots_between_probes_teach_nothing():
    """With a probe every fifth slot, what the others held moves neither a chain nor a guess."""
    rng = np.random.default_rng(10)
    chain = drawn_chain(rng, 4)
    series = drawn_series(chain, 400, rng)
    other = rng.integers(0, 4, len(series)).astype(float)
    other[::5] = series[::5]
    watch = Watch(
        levels=chain.count, stakes=Stakes(absent=1.0, unpredicted=1.0, probe=0.4), longest=12, relearn=50
    )
    learned = []
    for counts in (series, other):
        laws = []

        def rule(ahead, stakes, laws=laws):
            laws.append(ahead.law.tobytes() + ahead.guess.tobytes())
            return fixed_waits(5, ahead, stakes)

        track(counts, 50 * chain.transition, rule, watch)
        learned.append(laws)
    assert len(set(learned[0])) > 3, "it does learn"
    assert learned[0] == learned[1]


def test_gaps_are_not_scored_and_a_probe_in_one_shows_nothing():
    series = np.array([1.0, np.nan, np.nan, 0.0, 0.0, np.nan, 1.0])
    watch = Watch(
        levels=np.arange(2), stakes=Stakes(absent=1.0, unpredicted=1.0, probe=0.1), longest=5, hold=True
    )
    found = track(series, np.eye(2), lambda a, s: fixed_waits(1, a, s), watch)
    assert found.slots == 3
    assert found.probes == pytest.approx(6 / 3), "six probes, three of them in gaps"
    assert found.cost == pytest.approx(0.1 * 6 / 3)
    with pytest.raises(SettingsError, match="no known count"):
        track(np.full(4, np.nan), np.eye(2), best_waits, watch)


def test_levels_states_and_counted_transitions():
    assert levels_of(3).tolist() == [0, 1, 2, 3]
    assert levels_of(80).tolist() == list(range(0, 81, 4))
    assert states_of(np.array([0.0, 7.0, np.nan, 80.0]), levels_of(80)).tolist() == [0, 1, -1, 20]
    watch = Watch(
        levels=np.arange(2), stakes=Stakes(absent=1.0, unpredicted=1.0, probe=0.1), longest=5, half_life=1.0
    )
    np.testing.assert_allclose(
        transitions_seen(np.array([0.0, 1.0, 1.0, np.nan, 0.0]), watch), [[0, 0.125], [0, 0.25]]
    )


def test_wrong_stakes_and_waits_are_refused():
    with pytest.raises(SettingsError, match="positive costs"):
        Stakes(absent=0.0, unpredicted=1.0, probe=1.0)
    stakes = Stakes(absent=1.0, unpredicted=1.0, probe=1.0)
    with pytest.raises(SettingsError, match="at least one"):
        look_ahead(two_states(0.1, 0.1), stakes, longest=0)
    with pytest.raises(SettingsError, match="1 to 4"):
        fixed_waits(5, look_ahead(two_states(0.1, 0.1), stakes, longest=4), stakes)
