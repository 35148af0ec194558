"""Concave pieces of a column: the same function, split only where it bends upwards (M3.3c)."""

import numpy as np
import pytest
from window_cases import random_problem

from slackwater.optimization.window.plan import EndRule, ExpectedToGo, concave_pieces


def table(work, *columns):
    return ExpectedToGo(work=np.array(work, dtype=float), value_usd=np.array(columns, dtype=float).T)


def test_cuts_where_the_slope_rises():
    steps = table([0, 1, 2, 3, 4], [0, 2, 3, 3, 5])
    assert concave_pieces(steps, 0, low=0, high=4) == [[(0, 0), (1, 2), (2, 3), (3, 3)], [(3, 3), (4, 5)]]


def test_a_straight_line_is_two_points_and_one_piece():
    line = table(np.linspace(-1, 7, 33), np.linspace(2, 3, 33))
    [piece] = concave_pieces(line, 0, low=0, high=4)
    assert np.ravel(piece) == pytest.approx([0, 2.125, 4, 2.625])


def test_constant_beyond_the_ends_and_a_point_for_a_range_of_no_width():
    rising = table([0, 2], [1, 5], [0, 4])
    assert concave_pieces(rising, 1, low=-3, high=9) == [[(-3, 0), (0, 0)], [(0, 0), (2, 4), (9, 4)]]
    assert concave_pieces(rising, 0, low=1, high=1) == [[(1, 3)]]


def test_the_best_point_of_any_piece_is_the_function():
    rng = np.random.default_rng(1)
    for _ in range(100):
        case = random_problem(rng, w=2, n_max=4, end_rule=EndRule.EXPECTED_TO_GO)
        low, high = sorted(rng.uniform(-0.5, 1.2, 2) * case.job.workload)
        for z in rng.uniform(low, high, 5):
            told = [
                np.interp(z, *np.array(piece).T)
                for piece in concave_pieces(case.expected, 1, low=low, high=high)
                if piece[0][0] <= z <= piece[-1][0]
            ]
            assert told == pytest.approx([case.expected.at(z, 1)] * len(told), rel=1e-9, abs=1e-9)
            assert told
    for piece in concave_pieces(case.expected, 1, low=low, high=high):
        rise = np.diff(np.array(piece), axis=0)
        assert np.all(np.diff(rise[:, 1] / rise[:, 0]) < 1e-9)
