"""Archetypes of availability: states of a request, weights, slot lengths, and the shipped file (M13.2)."""

import numpy as np
import pytest

from slackwater.optimization.belief.archetypes import ALL, NONE, PART, archetypes, request_states


def test_a_request_gets_none_part_or_all():
    assert request_states(np.array([0, 1, 3, 4, 9]), 4).tolist() == [NONE, PART, PART, ALL, ALL]
    assert request_states(np.array([0, 1, 2]), 1).tolist() == [NONE, ALL, ALL]


@pytest.mark.parametrize("request_size", [1, 3, 8, 100])
@pytest.mark.parametrize("slot_hours", [0.05, 0.5, 1.0, 6.0])
def test_rows_weights_and_shares_are_distributions(request_size, slot_hours):
    known = archetypes(request_size, slot_hours)
    assert len(known) > 20
    np.testing.assert_allclose(known.chain.sum(axis=2), 1.0)
    np.testing.assert_allclose(known.share.sum(axis=1), 1.0)
    assert known.weight.sum() == pytest.approx(1.0)
    assert (known.chain >= 0.0).all()


def test_a_longer_slot_changes_more_and_a_larger_request_is_granted_less():
    def stays(hours):
        known = archetypes(1, hours)
        return float(known.weight @ known.chain[:, ALL, ALL])

    def granted(n):
        known = archetypes(n, 0.5)
        return float(known.weight @ known.share[:, ALL])

    assert stays(1 / 6) > stays(0.5) > stays(1.0) > stays(6.0)
    assert granted(1) > granted(4) > granted(16)


def test_a_zone_can_be_left_out():
    every, others = archetypes(4, 0.5), archetypes(4, 0.5, ("us-east-1c", "us-west-2c"))
    assert len(others) < len(every)
    assert others.weight.sum() == pytest.approx(1.0)
