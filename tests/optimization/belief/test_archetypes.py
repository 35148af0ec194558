"""Archetypes of availability: states of a request, weights, slot lengths, and the shipped file (M13.2)."""

import numpy as np
import pytest

from slackwater.optimization.belief.archetypes import (
    AGES,
    ALL,
    NONE,
    PART,
    _chains_over,
    archetypes,
    request_states,
)
from slackwater.studies.archetypes import transitions


def test_a_request_gets_none_part_or_all():
    assert request_states(np.array([0, 1, 3, 4, 9]), 4).tolist() == [NONE, PART, PART, ALL, ALL]
    assert request_states(np.array([0, 1, 2]), 1).tolist() == [NONE, ALL, ALL]


@pytest.mark.parametrize("request_size", [1, 3, 8, 100])
@pytest.mark.parametrize("slot_hours", [0.05, 0.5, 1.0, 6.0])
def test_rows_weights_and_shares_are_distributions(request_size, slot_hours):
    known = archetypes(request_size, slot_hours)
    assert len(known) > 20
    assert known.chain.shape == known.inside.shape == (len(known), AGES, 3, 3)
    np.testing.assert_allclose(known.chain.sum(axis=3), 1.0)
    np.testing.assert_allclose(known.inside.sum(axis=3), 1.0)
    assert (known.inside >= 0.0).all()
    np.testing.assert_allclose(known.share.sum(axis=(1, 2)), 1.0)
    assert known.weight.sum() == pytest.approx(1.0)
    assert (known.chain >= 0.0).all()


def test_a_longer_slot_changes_more_and_a_larger_request_is_granted_less():
    def stays(hours):
        known = archetypes(1, hours)
        return float(known.weight @ known.chain[:, -1, ALL, ALL])

    def granted(n):
        known = archetypes(n, 0.5)
        return float(known.weight @ known.share[:, :, ALL].sum(axis=1))

    assert stays(1 / 6) > stays(0.5) > stays(1.0) > stays(6.0)
    assert granted(1) > granted(4) > granted(16)


def test_a_zone_can_be_left_out():
    every, others = archetypes(4, 0.5), archetypes(4, 0.5, ("us-east-1c", "us-west-2c"))
    assert len(others) < len(every)
    assert others.weight.sum() == pytest.approx(1.0)


def test_several_steps_of_rows_without_age_are_a_power_and_age_shows_in_the_first():
    rng = np.random.default_rng(4)
    chain = rng.dirichlet(np.ones(3), size=(2, 3))
    same = np.repeat(chain[:, None], AGES, axis=1)
    np.testing.assert_allclose(_chains_over(same, 3.0)[:, 1], np.linalg.matrix_power(chain, 3))
    rows = rng.dirichlet(np.ones(3), size=(2, AGES, 3))
    old, fresh = rows[:, -1], rows[:, 0]
    stays = np.eye(3)
    twice = (old * stays) @ old + (old * (1.0 - stays)) @ fresh
    np.testing.assert_allclose(_chains_over(rows, 2.0)[:, -1], twice)


def test_measured_transitions_have_the_age_of_their_state():
    states = np.array([2, 2, 2, 0, 0, 0, 2, 0, 2, 2])
    found = transitions(600.0 * np.arange(len(states)), states, 600.0)
    ages = np.zeros((AGES, 3, 3))
    for age, before, after in (
        (2, 2, 2), (2, 2, 2), (2, 2, 0), (0, 0, 0), (1, 0, 0), (2, 0, 2), (0, 2, 0), (0, 0, 2), (0, 2, 2),
    ):  # fmt: skip
        ages[age, before, after] += 1.0
    np.testing.assert_allclose(found, ages)
