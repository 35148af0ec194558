"""The cover error of a path of counts: linear program, bounds, and response to pure lateness (M6.5, M10)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from slackwater.forecasting.accuracy.losses import SLOT_DISTANCE, cover_errors


def by_linear_program(error):
    """Solve the matching as a flow along the slots: f = up - down carried on; the remainder is absent or unpredicted."""
    h = len(error)
    keep = np.zeros((h, 2 * (h - 1) + 2 * h))
    for t in range(h):
        for carried, sign in ((t, 1.0), (t - 1, -1.0)):
            if 0 <= carried < h - 1:
                keep[t, carried], keep[t, h - 1 + carried] = sign, -sign
        keep[t, 2 * (h - 1) + t], keep[t, 2 * (h - 1) + h + t] = 1.0, -1.0
    price = np.concatenate([np.full(2 * (h - 1), SLOT_DISTANCE), np.ones(2 * h)])
    return linprog(price, A_eq=keep, b_eq=error).fun


def test_it_is_the_cheapest_cover():
    rng = np.random.default_rng(0)
    for _ in range(40):
        predicted, actual = rng.integers(0, 5, (2, 1, 6)).astype(float)
        steps = cover_errors(predicted, actual)[0]
        for k in range(1, 7):
            assert steps[:k].sum() == pytest.approx(by_linear_program((predicted - actual)[0, :k]), abs=1e-9)


def test_between_the_difference_of_sums_and_absent_plus_unpredicted():
    rng = np.random.default_rng(1)
    predicted, actual = rng.integers(0, 17, (2, 200, 24)).astype(float)
    total = cover_errors(predicted, actual).sum(axis=1)
    assert (total <= np.abs(predicted - actual).sum(axis=1) + 1e-9).all()
    assert (total >= np.abs((predicted - actual).sum(axis=1)) - 1e-9).all()
    np.testing.assert_allclose(total, cover_errors(actual, predicted).sum(axis=1), err_msg="symmetric")


def test_an_hour_late_is_better_than_never():
    actual = np.array([[0, 0, 8, 8, 8, 8.0]])
    late, never = np.array([[0, 0, 0, 0, 8, 8.0]]), np.zeros((1, 6))
    early = np.array([[0, 8, 0, 0, 0, 0.0]])
    moved = np.array([[0, 0, 0, 8, 8, 8.0]])
    assert cover_errors(never, actual).sum() == 32.0
    assert cover_errors(late, actual).sum() == 16.0, "nothing to match: it forecasts too little"
    assert cover_errors(moved, actual).sum() == 8.0
    assert cover_errors(early, actual).sum() == 8 * SLOT_DISTANCE + 24.0, "eight instances a slot too early"
    assert cover_errors(actual, actual).sum() == 0.0


def test_gaps_match_nothing():
    actual = np.array([[2.0, np.nan, 0.0]])
    predicted = np.array([[0.0, 5.0, 2.0]])
    np.testing.assert_allclose(cover_errors(predicted, actual), [[2.0, 0.0, 4 * SLOT_DISTANCE - 2.0]])
    assert cover_errors(np.zeros((0, 4)), np.zeros((0, 4))).shape == (0, 4)
