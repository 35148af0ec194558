"""Rules of the single-instance benchmark compared with hand-computed cases, and the optimum with brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as testing
from hypothesis import strategies as st

from slackwater.studies.single_instance import (
    Greedy,
    Setting,
    SingleOnDemandOnly,
    SingleUniformProgress,
    optimum,
    run,
    settle,
)
from slackwater.studies.single_kernel import NONE, ON_DEMAND, SPOT, guarded
from slackwater.warehouse.errors import PolicyError, SettingsError

SPOT_SLOT, DEMAND_SLOT = 0.9731 / 6, 3.06 / 6


def small(overhead: int, *, work: int = 60, deadline: int = 100) -> Setting:
    return Setting(
        work_minutes=work, deadline_minutes=deadline, overhead_minutes=overhead, loses_last_slot=False
    )


def lossy(overhead: int, **times: int) -> Setting:
    return replace(small(overhead, **times), loses_last_slot=True)


def seen(text: str) -> np.ndarray:
    return np.array([c == "1" for c in text])


def acts(text: str) -> np.ndarray:
    return np.array(["-SO".index(c) for c in text], dtype=np.int8)


def test_on_demand_pays_one_overhead_in_whole_slots():
    setting = small(12)
    found = settle(setting, seen("0" * 10), acts("O" * 10))
    assert found.slots_used == 8  # 72 minutes
    assert found.cost_usd == pytest.approx(8 * DEMAND_SLOT)
    assert found.cost_usd == pytest.approx(setting.on_demand_only_usd)
    assert setting.score(found.cost_usd) == pytest.approx(0)
    assert setting.score(setting.spot_only_usd) == pytest.approx(100)


def test_a_lost_instance_owes_the_overhead_again():
    # Work by slot: 0 8 - 0 8 10 10 10 10 minutes, 56 in total; the tenth slot finishes it.
    found = settle(small(12), seen("1101111111"), acts("SS-SSSSSSS"))
    assert (found.slots_used, found.starts) == (10, 2)
    assert found.cost_usd == pytest.approx(9 * SPOT_SLOT)


def test_overhead_not_paid_off_is_lost_with_the_instance():
    # 0 minutes of work, none, then 0 8 10 10 10 10 10: 58 after nine slots, of which the two starts take
    # two entirely.
    found = settle(small(12), seen("1011111111"), acts("S-SSSSSSSS"))
    assert (found.slots_used, found.starts) == (10, 2)
    switched = settle(small(12), seen("1111111111"), acts("SOOOOOOOOO"))
    assert (switched.slots_used, switched.starts) == (9, 2)
    assert switched.cost_usd == pytest.approx(SPOT_SLOT + 8 * DEMAND_SLOT)


def test_overhead_of_several_slots_is_carried_on():
    # 25 minutes: 0 0 5 10 10 10 10 10 minutes of work.
    found = settle(small(25, work=50), seen("1" * 10), acts("S" * 10))
    assert found.slots_used == 8
    with_pause = settle(small(25, work=50), seen("1" * 10), acts("SS-SSSSSSS"))
    assert with_pause.missed  # the pause wastes 20 minutes of overhead: 5 + 4 x 10 are left


def test_work_left_at_the_deadline_is_a_miss():
    found = settle(small(12), seen("1" * 10), acts("----SSSSSS"))
    assert found.missed
    assert found.slots_used is None
    assert found.cost_usd == pytest.approx(6 * SPOT_SLOT)


def test_spot_where_it_is_down_is_refused():
    with pytest.raises(PolicyError, match="slot 2, where it is down"):
        settle(small(12), seen("1101111111"), acts("SSSSSSSSSS"))
    with pytest.raises(PolicyError, match="expected"):
        settle(small(12), seen("11"), acts("SS"))
    with pytest.raises(PolicyError, match="0 \\(none\\), 1 \\(spot\\)"):
        settle(small(12), seen("1" * 10), np.full(10, 3, dtype=np.int8))


@pytest.mark.parametrize(
    "wrong",
    [
        {"deadline_minutes": 95, "overhead_minutes": 3},
        {"deadline_minutes": 60, "overhead_minutes": 3},
        {"deadline_minutes": 100, "overhead_minutes": -1},
        {"deadline_minutes": 100, "overhead_minutes": 3, "spot_usd_per_hour": 4.0},
    ],
)
def test_a_setting_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(SettingsError, match="expected"):
        Setting(work_minutes=60, **wrong)


def test_uniform_progress_by_hand():
    # Work 40, deadline 80, overhead 2; e(t) = 5 t minutes.
    setting = small(2, work=40, deadline=80)
    up = seen("00011000")
    eager = run(SingleUniformProgress(hysteresis=False), setting, up, 0)
    # 0: c = e = 0: wait. 1: behind: on-demand (8). 2: c = 8 < e(2.4) = 12: stay (18). 3: up: spot (8 more: 26). 4: spot (36).
    # 5: lost; c = 36 >= 25: wait; 6: c >= 30: wait unless 4 + 2 x 2 minutes need the 2 slots left: one slot does: 1 < 2, wait.
    # 7: one slot left: on-demand.
    assert list(eager.actions) == [NONE, ON_DEMAND, ON_DEMAND, SPOT, SPOT, NONE, NONE, ON_DEMAND]
    assert not eager.missed
    staying = run(SingleUniformProgress(), setting, up, 0)
    # At slot 3 c = 18 >= e(3.4) = 17: it leaves too; at 2 it stayed.
    assert list(staying.actions[:4]) == [NONE, ON_DEMAND, ON_DEMAND, SPOT]
    early = run(SingleUniformProgress(), setting, seen("00111000"), 0)
    assert list(early.actions[:3]) == [NONE, ON_DEMAND, ON_DEMAND]  # c = 8 < e(2.4) = 12, though spot is up
    left = run(SingleUniformProgress(hysteresis=False), setting, seen("00111000"), 0)
    assert list(left.actions[:3]) == [NONE, ON_DEMAND, SPOT]


def test_uniform_progress_never_leaves_on_demand_for_nothing():
    # The same work, with spot down from the start: 8, 18, 28, 38 minutes, and 2 more are done in slot 5. At 3 it is ahead
    # (18 >= e(3.4) = 17), and stays.
    setting = small(2, work=40, deadline=80)
    for hysteresis in (True, False):
        found = run(SingleUniformProgress(hysteresis=hysteresis), setting, seen("00000000"), 0)
        assert list(found.actions) == [NONE, *[ON_DEMAND] * 5]
        # Back at 4, where 28 >= e(4.4) = 22: spot, 8 and 4 more minutes.
        again = run(SingleUniformProgress(hysteresis=hysteresis), setting, seen("00001111"), 0)
        assert list(again.actions) == [NONE, *[ON_DEMAND] * 3, SPOT, SPOT]


def test_the_last_slot_of_a_lost_run_does_no_work():
    setting = lossy(2, work=40, deadline=80)
    # 8, then 10 that the loss takes back, none, 8 10 10 4: the seventh slot finishes.
    assert settle(setting, seen("11011111"), acts("SS-SSSSS")).slots_used == 7
    assert settle(small(2, work=40, deadline=80), seen("11011111"), acts("SS-SSSSS")).slots_used == 6
    # A change of kind loses nothing: 8 10 10 | 8 4.
    assert settle(setting, seen("1" * 8), acts("SSSOOOOO")).slots_used == 5
    # The work seems to be done in the fifth slot, but the loss takes its 2 minutes back: on-demand does them.
    found = settle(setting, seen("11111000"), acts("SSSSSOOO"))
    assert (found.slots_used, found.starts) == (6, 2)
    # A run that lasts to the deadline is not lost.
    assert not settle(setting, seen("00011111"), acts("---SSSSS")).missed


def test_the_guard_by_hand():
    # Work 40, deadline 80, overhead 2. A slot without progress must leave 2 minutes, 4 where spot starts.
    ticks = lossy(2, work=40, deadline=80).ticks
    for slots, work, waits, starts in (
        (8, 20, True, True), (6, 20, True, True), (5, 19, True, False), (5, 20, False, False), (8, 33, True, True),
        (8, 34, True, False), (8, 35, False, False),
    ):  # fmt: skip
        assert guarded(ticks, slots, work, 0) == waits  # ticks of two minutes
        assert guarded(ticks, slots, work, ticks.overhead) == starts


def test_greedy_waits_as_long_as_it_can():
    found = run(Greedy(), small(12), seen("0" * 10), 0)
    # 72 minutes need 8 slots: two can be waited.
    assert list(found.actions) == [NONE] * 2 + [ON_DEMAND] * 8
    assert not found.missed


def brute_force(setting: Setting, up: np.ndarray) -> float:
    best = np.inf
    for choice in itertools.product(range(3), repeat=up.size):
        if any(a == SPOT and not u for a, u in zip(choice, up, strict=True)):
            continue
        found = settle(setting, up, np.array(choice, dtype=np.int8))
        if not found.missed:
            best = min(best, found.cost_usd)
    return best


@pytest.mark.parametrize("overhead", [0, 3, 12, 25])
@pytest.mark.parametrize("kind", [small, lossy])
def test_the_optimum_equals_brute_force(overhead, kind):
    setting = kind(overhead, work=30, deadline=60)
    rng = np.random.default_rng(overhead)
    for p in (0.2, 0.4, 0.6, 0.8):
        up = rng.random(setting.slots) < p
        found = optimum(setting, up)
        assert not found.missed
        assert found.cost_usd == pytest.approx(brute_force(setting, up), abs=1e-9)


SETTINGS = st.builds(
    lambda overhead, work, spare, loses: Setting(
        work_minutes=work, overhead_minutes=overhead, deadline_minutes=10 * (-(-(work + overhead) // 10) + spare),
        loses_last_slot=loses,
    ),
    st.integers(0, 31), st.integers(1, 200), st.integers(0, 12), st.booleans(),
)  # fmt: skip


@testing(max_examples=150, deadline=None)
@given(SETTINGS, st.integers(0, 2**32 - 1), st.sampled_from([0.02, 0.1, 0.4]))
def test_heuristics_never_miss_and_never_beat_the_optimum(setting, seed, flips):
    rng = np.random.default_rng(seed)
    up = np.logical_xor.accumulate(rng.random(setting.slots) < flips)
    best = optimum(setting, up)
    assert not best.missed
    for policy in (
        SingleOnDemandOnly(),
        Greedy(),
        SingleUniformProgress(),
        SingleUniformProgress(hysteresis=False),
    ):
        found = run(policy, setting, up, 0)
        # UP keeps running spot where there is no slot to spare.
        if setting.loses_last_slot and isinstance(policy, SingleUniformProgress) and found.missed:
            continue
        assert not found.missed, policy
        assert found.cost_usd >= best.cost_usd - 1e-9
