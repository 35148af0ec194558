"""The loops that replace NumPy functions in kernels give what those functions give."""

import numpy as np
import pytest

from slackwater.optimization.kernels.arrays import copy_between, interpolate, place_of

PLACES = np.array([0, 1, 2, 4, 8])
VALUES = np.array([0.0, 1.0, 1.7, 1.6, 4.4])


@pytest.mark.parametrize("entries", [PLACES, PLACES[:1], PLACES[:0]], ids=len)
def test_places_are_those_of_searchsorted(entries):
    for value in (-1, 0, 1, 3, 8, 9, 2.5):
        assert place_of(entries, value) == np.searchsorted(entries, value)


def test_values_between_places_are_those_of_interp():
    for at in (-1.0, 0, 1, 1.5, 3, 3.3, 8, 11):
        assert interpolate(PLACES, VALUES, at) == np.interp(at, PLACES, VALUES)


def test_only_the_entries_between_the_bounds_are_copied():
    out = np.zeros(5)
    copy_between(VALUES, out, 1, 4)
    assert out.tolist() == [0.0, 1.0, 1.7, 1.6, 0.0]
