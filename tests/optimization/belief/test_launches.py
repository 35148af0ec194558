"""Own launches as evidence: states by slot, and the transitions between them (M13.1, M13.3)."""

import numpy as np
import pytest

from slackwater.optimization.belief.archetypes import ALL, NONE, PART, archetypes
from slackwater.optimization.belief.launches import UNKNOWN, Launch, Launches, own_transitions

CHAIN = np.array([[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.1, 0.1, 0.8]])


def test_slots_without_a_launch_are_unknown_and_held_slots_were_granted():
    tried = [Launch(slot=1, state=PART, held=3), Launch(slot=3, state=NONE)]
    known = Launches.of(4, tried, 5, archetypes(4, 0.5))
    assert known.first == 2  # two of the held slots were before the job
    assert known.until(3).tolist() == [ALL, ALL, ALL, PART, UNKNOWN, NONE]
    assert known.until(0).tolist() == [ALL, ALL, ALL]  # nothing later is read
    assert (known.known(3), known.known(0)) == (5, 3)


def test_a_transition_loses_half_its_weight_in_24_slots():
    states = np.full(26, UNKNOWN)
    states[:2] = ALL, NONE
    assert own_transitions(states, CHAIN)[ALL, NONE] == pytest.approx(0.5)


@pytest.mark.parametrize("apart", [1, 2, 5, 24])
def test_two_launches_are_one_transition_however_far_apart(apart):
    states = np.full(apart + 1, UNKNOWN)
    states[0], states[-1] = ALL, NONE
    found = own_transitions(states, CHAIN)
    assert found.sum() == pytest.approx(1.0)
    if apart == 1:
        assert found[ALL, NONE] == 1.0
    else:  # on the way each cell is as likely as the chain makes it
        assert found[ALL, NONE] > found[PART, NONE] > 0.0


def test_launches_too_far_apart_and_a_single_launch_show_no_transition():
    far = np.full(26, UNKNOWN)
    far[0] = far[-1] = ALL
    assert own_transitions(far, CHAIN).sum() == 0.0
    assert own_transitions(np.array([ALL]), CHAIN).sum() == 0.0
