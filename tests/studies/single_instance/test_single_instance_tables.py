"""Tables of backward induction: exact expectation, no miss on any path, no look-ahead; and their Markov chains."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as testing
from hypothesis import strategies as st

from slackwater.studies.single_instance import (
    Chain,
    Greedy,
    MarketStates,
    Setting,
    SingleUniformProgress,
    chain_of,
    estimate,
    make_table,
    make_tables,
    optimum,
    recent_share,
    run,
    run_ages,
)
from slackwater.studies.single_kernel import NONE, ON_DEMAND, SPOT, guarded
from slackwater.warehouse.errors import PolicyError, SettingsError

TWO = MarketStates(ages=(1,), shares=())


def two_state(down_up: float, up_down: float) -> Chain:
    chance = np.array([1 - down_up, down_up, up_down, 1 - up_down])
    return Chain(
        up=np.array([False, True]), start=np.array([0, 2, 4]), to=np.array([0, 1, 0, 1]), chance=chance
    )


def sticky(seed: int, slots: int, flips: float) -> np.ndarray:
    return np.logical_xor.accumulate(np.random.default_rng(seed).random(slots) < flips)


def learned_chain(states: MarketStates, *traces: np.ndarray) -> Chain:
    return chain_of(states, estimate(states, traces))


def expectation(setting: Setting, chain: Chain, first: int) -> float:
    """Return the least expected cost by plain recursion over (slot, minutes left, instance, minutes owed, market).

    ``did``: minutes of the last slot that a loss takes back. A miss costs infinity.
    """
    row = chain.chance.reshape(2, 2)
    bill = {NONE: 0.0, SPOT: setting.ticks.spot_usd, ON_DEMAND: setting.ticks.on_demand_usd}

    @cache
    def cost(t: int, left: int, held: int, owed: int, did: int, k: int) -> float:
        if held == SPOT and not k:
            held, owed, left = NONE, 0, left + did
        if left <= 0:
            return 0.0
        if t == setting.slots:
            return np.inf
        best = np.inf
        for action in (NONE, SPOT, ON_DEMAND):
            if action == SPOT and not k:
                continue
            due = 0 if action == NONE else owed if action == held else setting.overhead_minutes
            eaten = min(due, 10)
            work = 0 if action == NONE else 10 - eaten
            lost = work if setting.loses_last_slot else 0
            ahead = [cost(t + 1, left - work, action, due - eaten, lost, j) for j in (0, 1)]
            best = min(best, bill[action] + row[k] @ np.array(ahead))
        return float(best)

    return cost(0, setting.work_minutes, NONE, 0, 0, first)


@pytest.mark.parametrize("overhead", [0, 3, 12, 25])
@pytest.mark.parametrize("rates", [(0.2, 0.1), (0.05, 0.4), (0.5, 0.5)])
@pytest.mark.parametrize("loses", [False, True])
def test_the_table_equals_the_plain_recursion(overhead, rates, loses):
    setting = Setting(work_minutes=60, deadline_minutes=130, overhead_minutes=overhead, loses_last_slot=loses)
    chain = two_state(*rates)
    table = make_table("t", setting, TWO, chain)
    expected = [expectation(setting, chain, k) for k in (0, 1)]
    assert table.expected_cost_usd == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("overhead", "loses"), [(3, False), (12, False), (12, True)])
def test_mean_bill_over_all_paths_is_the_expected_one(overhead, loses):
    setting = Setting(work_minutes=40, deadline_minutes=80, overhead_minutes=overhead, loses_last_slot=loses)
    chain = two_state(0.3, 0.2)
    row = chain.chance.reshape(2, 2)
    table = make_table("t", setting, TWO, chain)
    total = np.zeros(2)
    for path in itertools.product((0, 1), repeat=setting.slots):
        chance = np.prod([row[a, b] for a, b in itertools.pairwise(path)])
        found = run(table, setting, np.array(path, dtype=bool), 0)
        assert not found.missed
        total[path[0]] += chance * found.cost_usd
    assert total == pytest.approx(table.expected_cost_usd, abs=1e-9)


def test_a_table_serves_every_nearer_deadline():
    far = Setting(work_minutes=120, deadline_minutes=240, overhead_minutes=12)
    near = Setting(work_minutes=120, deadline_minutes=180, overhead_minutes=12)
    chain = learned_chain(MarketStates(), sticky(1, 3000, 0.1))
    shared, own = (make_table("t", s, MarketStates(), chain) for s in (far, near))
    for seed in range(20):
        up = sticky(seed, near.slots, 0.2)
        assert (shared.actions(near, up) == own.actions(near, up)).all()
    with pytest.raises(PolicyError, match="make it anew"):
        own.actions(far, sticky(0, far.slots, 0.2))


@pytest.fixture(scope="module")
def learned():
    return {
        overhead: make_tables("stochastic", setting, MarketStates(), chain)
        for overhead in (3, 12)
        for setting in [Setting(deadline_minutes=52 * 60, overhead_minutes=overhead)]
        for chain in [learned_chain(MarketStates(), sticky(7, 5000, 0.05), np.ones(500, dtype=bool))]
    }


@pytest.mark.parametrize("overhead", [3, 12])
def test_no_trace_however_hostile_makes_it_miss(learned, overhead):
    table = learned[overhead]
    n = table.setting.slots
    at = np.arange(n)
    hostile = [np.zeros(n, bool), np.ones(n, bool), at % 2 == 0, at % 3 == 0, at % 3 > 0]
    hostile += [at < dead for dead in range(1, n, 13)] + [at > born for born in range(1, n, 13)]
    hostile += [sticky(seed, n, p) for seed in range(10) for p in (0.02, 0.2, 0.6)]
    for up in hostile:
        for setting in (table.setting, replace(table.setting, loses_last_slot=False)):
            found, best = run(table, setting, up, 0), optimum(setting, up)
            assert not found.missed
            assert found.cost_usd >= best.cost_usd - 1e-9


@testing(max_examples=60, deadline=None)
@given(
    st.integers(0, 31), st.integers(1, 150), st.integers(0, 10), st.integers(0, 2**32 - 1), st.floats(0.01, 0.9)
)  # fmt: skip
def test_no_setting_makes_it_miss(overhead, work, spare, seed, rate):
    deadline = 10 * (-(-(work + overhead) // 10) + spare)
    setting = Setting(work_minutes=work, deadline_minutes=deadline, overhead_minutes=overhead)
    counts = replace(setting, loses_last_slot=False)
    chain = two_state(rate, 1e-9)  # its chain assumes that spot is never lost
    learns, exact, plain = (
        make_tables("t", setting, TWO, chain),
        make_table("t", setting, TWO, chain),
        make_table("t", counts, TWO, chain),
    )
    for p in (0.05, 0.3, 0.9):
        up = sticky(seed, setting.slots, p)
        assert not any(run(policy, setting, up, 0).missed for policy in (learns, exact))
        assert not any(run(policy, counts, up, 0).missed for policy in (learns, exact, plain))
        # The guard: on-demand still finishes after a slot without work, and spot that starts leaves its overhead too.
        done, held, owed, taken = 0, NONE, 0, learns.actions(setting, up)
        for t, action in enumerate(taken):
            if action in (NONE, SPOT) and done < setting.ticks.work:
                due = 0 if action == NONE else owed if held == SPOT else setting.ticks.overhead
                eaten = min(due, setting.ticks.slot)
                assert guarded(setting.ticks, setting.slots - t, setting.ticks.work - done, eaten)
            done, held, owed = work_done(setting, up[: t + 2], taken[: t + 1])


def work_done(setting: Setting, up: np.ndarray, actions: np.ndarray) -> tuple[int, int, int]:
    """Return the ticks of work after the slots of ``actions``, the instance that is left and its overhead.

    ``up`` is a slot longer than ``actions`` (not at the deadline).
    """
    done = last = owed = 0
    held = NONE
    for t, action in enumerate(actions):
        owed = 0 if action == NONE else owed if action == held else setting.ticks.overhead
        eaten = min(owed, setting.ticks.slot)
        last = 0 if action == NONE else setting.ticks.slot - eaten
        owed, held = owed - eaten, action
        lost = action == SPOT and t + 1 < up.size and not up[t + 1]
        done += 0 if lost and setting.loses_last_slot else last
        held = NONE if lost else held
    return done, held, owed


def test_a_loss_shows_whether_the_last_slot_counts():
    """The chain loses spot often: expecting to lose each last slot, it waits; once a loss has kept it, spot is worth it."""
    setting = Setting(work_minutes=100, deadline_minutes=300, overhead_minutes=3)
    policy = make_tables("t", setting, TWO, two_state(0.5, 0.6))
    up = np.array([one == "1" for one in "11010101" * 4])[: setting.slots]
    there, here = (policy.actions(s, up) for s in (setting, replace(setting, loses_last_slot=False)))
    assert (there[:3] == here[:3]).all()
    kept = make_table("t", replace(setting, loses_last_slot=False), TWO, two_state(0.5, 0.6), guard=True)
    lost = make_table("t", setting, TWO, two_state(0.5, 0.6), guard=True)
    assert (lost.actions(setting, up) == there).all()
    assert not (there == here).all()
    begins = int(np.argmax(here == SPOT))
    falls = begins + int(np.argmin(up[begins:]))
    assert (kept.action == policy.kept).all()
    assert not run(policy, setting, up, 0).missed
    assert (here[:falls] == there[:falls]).all()


def test_a_scrambled_future_changes_no_earlier_action(learned):
    rng = np.random.default_rng(3)
    for policy in (learned[12], Greedy(), SingleUniformProgress(), SingleUniformProgress(hysteresis=False)):
        setting = learned[12].setting
        up = sticky(12, setting.slots, 0.1)
        actions = policy.actions(setting, up)
        for t in rng.integers(0, setting.slots - 1, 15):
            other = up.copy()
            other[t + 1 :] = rng.random(setting.slots - t - 1) < 0.5
            assert (policy.actions(setting, other)[: t + 1] == actions[: t + 1]).all()


def test_codes_look_at_the_past_only():
    states, up = MarketStates(), sticky(5, 400, 0.1)
    whole = states.code(up)
    for t in (0, 1, 17, 200, 398):
        assert (states.code(up[: t + 1]) == whole[: t + 1]).all()
    assert whole.min() >= 0
    assert whole.max() < states.count


def test_ages_and_shares_by_hand():
    up = np.array([False, True, True, True, False, False])
    assert list(run_ages(up)) == [1, 1, 2, 3, 1, 2]
    # Three of six pseudo-slots are up: (3 + 0)/7, (3 + 1)/8, then over the last two slots only.
    assert recent_share(up, 2) == pytest.approx([3 / 7, 4 / 8, 5 / 8, 5 / 8, 4 / 8, 3 / 8])


def test_the_chain_recovers_the_rates_it_was_drawn_from():
    rng = np.random.default_rng(0)
    up = np.zeros(60_000, dtype=bool)
    for t in range(1, up.size):
        up[t] = rng.random() < (0.9 if up[t - 1] else 0.05)
    chain = learned_chain(TWO, up)
    rows = np.zeros((2, 2))
    rows[np.repeat([0, 1], np.diff(chain.start)), chain.to] = chain.chance
    assert rows == pytest.approx(np.array([[0.95, 0.05], [0.1, 0.9]]), abs=0.01)


def test_age_of_a_run_is_learned():
    # Up runs last 3 or 60 slots: after 10 observed slots many more are expected.
    rng = np.random.default_rng(1)
    pieces = []
    for _ in range(400):
        pieces += [np.zeros(rng.integers(3, 9), bool), np.ones(3 if rng.random() < 0.5 else 60, bool)]
    states = MarketStates(shares=())
    chain = learned_chain(states, np.concatenate(pieces))
    rows = np.zeros((states.count, states.count))
    rows[np.repeat(np.arange(states.count), np.diff(chain.start)), chain.to] = chain.chance
    lost = rows[:, : states.count // 2].sum(axis=1)[states.count // 2 :]
    assert lost[2] == pytest.approx(0.5, abs=0.06)  # age 3
    assert lost[5] < 0.01  # ages 9 to 12


def test_rows_never_seen_are_not_absorbing():
    chain = learned_chain(MarketStates(), sticky(2, 300, 0.05))
    for k in range(chain.up.size):
        part = slice(chain.start[k], chain.start[k + 1])
        flips = chain.chance[part][chain.up[chain.to[part]] != chain.up[k]].sum()
        assert 0 < flips < 1
    always_up = learned_chain(TWO, np.ones(500, bool))
    assert 0 < always_up.chance[(~always_up.up)[always_up.to]].min() < 0.01


def test_bad_states_and_chains_are_refused():
    with pytest.raises(SettingsError, match="ascending slots from 1"):
        MarketStates(ages=(2, 3))
    with pytest.raises(SettingsError, match="ascending limits"):
        MarketStates(shares=(0.8, 0.2))
    with pytest.raises(PolicyError, match="two slots in a row"):
        estimate(MarketStates(), [np.ones(1, bool)])
    with pytest.raises(PolicyError, match="1 in every row"):
        Chain(up=np.array([True]), start=np.array([0, 1]), to=np.array([0]), chance=np.array([0.5]))
    with pytest.raises(PolicyError, match="a chain of 2 states"):
        make_table(
            "t",
            Setting(work_minutes=10, deadline_minutes=30, overhead_minutes=3),
            MarketStates(),
            two_state(0.1, 0.1),
        )
