"""Own launches as evidence: states by slot, and the transitions between them (M13.1, M13.3)."""

import numpy as np
import pytest

from slackwater.optimization.belief.archetypes import ALL, NONE, PART, archetypes
from slackwater.optimization.belief.launches import (
    UNKNOWN,
    Launch,
    Launches,
    own_transitions,
    state_ages,
    states_between,
    transitions_between,
)

MEAN = np.array([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.1, 0.1, 0.8]])
CHAIN, SHARE = np.repeat(MEAN[None], 3, axis=0), np.array([[0.1] * 3, [0.1] * 3, [0.8] * 3]) / 3


def counted(states):
    """Return own transitions of any age."""
    found = own_transitions(np.asarray(states), CHAIN, SHARE)
    assert found.shape == CHAIN.shape
    return found.sum(axis=0)


def test_slots_without_a_launch_are_unknown_and_held_slots_were_granted():
    tried = [Launch(slot=1, state=PART, held=3), Launch(slot=3, state=NONE)]
    known = Launches.of(4, tried, 5, archetypes(4, 0.5))
    assert known.first == 2  # two of the held slots were before the job
    assert known.until(3).tolist() == [ALL, ALL, ALL, PART, UNKNOWN, NONE]
    assert known.until(0).tolist() == [ALL, ALL, ALL]  # nothing later is read
    assert (known.launched_slots(3), known.launched_slots(0)) == (5, 3)


def test_a_transition_loses_half_its_weight_in_24_slots():
    states = np.full(26, UNKNOWN)
    states[:2] = ALL, NONE
    assert counted(states)[ALL, NONE] == pytest.approx(0.5)


def test_a_transition_counts_for_the_age_of_its_state():
    found = own_transitions(np.array([ALL, NONE, ALL, ALL, ALL, NONE]), CHAIN, SHARE)
    assert (found > 0.0).sum() == 4
    assert found[2, ALL, NONE] > 0.0  # the age of the first state is unknown
    assert found[0, NONE, ALL] > 0.0
    assert (found[[0, 1], ALL, ALL] > 0.0).all()
    assert found[2, ALL, NONE] == pytest.approx(1.0 + 0.5 ** (4 / 24))
    far = np.full(9, UNKNOWN)
    far[0], far[-1] = ALL, NONE
    ages = own_transitions(far, CHAIN, SHARE).sum(axis=2)
    np.testing.assert_allclose(ages / ages.sum(axis=0), np.repeat([[0.1], [0.1], [0.8]], 3, axis=1))


@pytest.mark.parametrize("apart", [1, 2, 5, 24])
def test_two_launches_are_one_transition_however_far_apart(apart):
    states = np.full(apart + 1, UNKNOWN)
    states[0], states[-1] = ALL, NONE
    found = counted(states)
    assert found.sum() == pytest.approx(1.0)
    if apart == 1:
        assert found[ALL, NONE] == 1.0
    else:  # on the way each cell is as likely as the chain makes it
        assert found[ALL, NONE] > found[PART, NONE] > 0.0


def test_launches_too_far_apart_and_a_single_launch_show_no_transition():
    far = np.full(26, UNKNOWN)
    far[0] = far[-1] = ALL
    assert counted(far).sum() == 0.0
    assert counted([ALL]).sum() == 0.0


def test_an_age_counts_from_the_last_change_that_was_read():
    states = np.array([ALL, ALL, NONE, NONE, NONE, UNKNOWN, NONE, ALL, ALL, PART])
    assert state_ages(states)[states != UNKNOWN].tolist() == [2, 2, 0, 1, 2, 2, 0, 1, 0]
    both = np.stack([states, states[::-1]])
    np.testing.assert_array_equal(state_ages(both)[0], state_ages(states))  # along the last axis


@pytest.mark.parametrize(("readings", "parts"), [(0, 3), (1, 3), (2, 3), (5, 3), (3, 4), (0, 1)])
def test_states_between_slots_are_those_read_at_the_ends_of_the_parts(readings, parts):
    within = np.arange(4.0 * readings).reshape(4, readings)
    found = states_between(within, 5, parts)
    assert found.shape == (4, parts - 1)
    if readings + 1 < parts:
        assert (found == UNKNOWN).all()
        return
    at = (np.arange(1, parts) * (readings + 1)) // parts - 1
    np.testing.assert_array_equal(
        found, np.where(within[:, at] >= 5, ALL, np.where(within[:, at] > 0, PART, NONE))
    )
    within[1] = np.nan
    assert (states_between(within, 5, parts)[1] == UNKNOWN).all()


def test_transitions_between_are_counted_by_age_and_forgotten():
    states = np.array([ALL, ALL, ALL])
    between = np.array([[UNKNOWN, UNKNOWN], [NONE, NONE], [NONE, ALL]])
    found, age = transitions_between(states, between)
    once = 0.5 ** (1 / 24)
    assert found[2, ALL, NONE] == pytest.approx(once)  # the age of the first state is unknown
    assert found[0, NONE, NONE] == pytest.approx(once)
    assert found[1, NONE, ALL] == pytest.approx(once)
    assert found[0, ALL, NONE] == pytest.approx(1.0)
    assert found[0, NONE, ALL] == pytest.approx(1.0)
    assert found[0, ALL, ALL] == pytest.approx(1.0)
    assert found.sum() == pytest.approx(3 * once + 3.0)
    assert age == 1


def test_slots_without_readings_between_show_no_transition_inside():
    states = np.array([ALL, NONE, ALL])
    for between in (np.full((3, 2), UNKNOWN), np.empty((3, 0), dtype=np.int64)):
        assert transitions_between(states, between)[0].sum() == 0.0


def test_readings_between_slots_count_from_the_same_slot_as_counts():
    counts, within = np.array([4.0, 0.0, 4.0]), np.array([[np.nan, np.nan], [1.0, 0.0], [4.0, 4.0]])
    known = Launches.of(4, (), 3, archetypes(4, 0.5), counts=counts, within=within, first=1)
    assert known.between_until(0).tolist() == [[UNKNOWN, UNKNOWN], [PART, NONE]]
    assert known.between_until(1)[-1].tolist() == [ALL, ALL]
    assert (known.between_until(2)[-1] == UNKNOWN).all()  # not read
    early = Launches.of(
        4, [Launch(slot=0, state=ALL, held=3)], 3, archetypes(4, 0.5), counts=counts, within=within, first=1
    )
    np.testing.assert_array_equal(early.between_until(0)[2:], known.between_until(0))
