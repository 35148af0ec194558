"""Predicted and observed availability: what a prediction knows, ages of states, losses, and the rows of the answer."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from slackwater.optimization.belief.launches import UNKNOWN
from slackwater.studies.experiments.belief_calibration import (
    AHEAD,
    LOSS_SLOTS,
    availability_rows,
    loss_rows,
    losses,
    predictions,
)
from slackwater.studies.trials.scenarios import Tape
from slackwater.warehouse.history import Market

SLOTS = 260


def tape(values, within=None):
    return Tape(
        variable="available",
        market=Market.parse("lab/lab/lab-1/a3-highgpu-1g"),
        source="lab:counts",
        values=np.asarray(values, dtype=float),
        bound=16.0,
        first=pd.Timestamp("2026-01-01", tz="UTC"),
        step=pd.Timedelta(minutes=30),
        real_clock=True,
        within=within,
    )


def flips(seed=1):
    return np.where(np.random.default_rng(seed).random(SLOTS) < 0.8, 8.0, 3.0)


def test_a_prediction_knows_nothing_of_later_slots():
    first = tape(flips())
    at = first.half + 40
    other = replace(first, values=np.where(np.arange(SLOTS) <= at, first.values, 0.0))
    both = [predictions(own, 8) for own in (first, other)]
    known = range(40 // 8 + 1)
    for row in known:
        one, two = (found.iloc[row] for found in both)
        assert (one["state"], one["age"]) == (two["state"], two["age"])
        np.testing.assert_array_equal(one["predicted"], two["predicted"])
        assert one["expected_losses"] == two["expected_losses"]
    assert (both[0].iloc[known[-1]]["observed"] != both[1].iloc[known[-1]]["observed"]).any()


def test_the_observed_share_and_losses_are_those_of_the_series():
    values = flips()
    first = tape(values)
    found = predictions(first, 8)
    for k, row in enumerate(found.itertuples()):
        now = first.half + 8 * k
        assert row.observed.tolist() == [float(values[now + h] >= 8) for h in AHEAD]
        ahead = values[now : now + LOSS_SLOTS]
        assert row.losses == ((ahead[:-1] == 8.0) & (ahead[1:] == 3.0)).sum()
        assert row.age == 0 or values[now - 1] == values[now]


def test_losses_inside_slots_count():
    within = np.full((SLOTS, 2), 8.0)
    within[:, 1] = 0.0  # every slot loses all instances in its last part
    found = predictions(tape(np.full(SLOTS, 8.0), within), 24)
    assert set(found["losses"]) == {LOSS_SLOTS}
    assert set(found["age"]) == {4}


def test_a_slot_without_a_count_is_left_out():
    values = flips()
    values[SLOTS // 2] = np.nan
    assert len(predictions(tape(values), 4)) < len(predictions(tape(flips()), 4))
    assert losses(np.array([[2, UNKNOWN, 1, 1], [1, UNKNOWN, 2, 0]])).tolist() == [1, 1]


def test_rows_are_means_by_state_and_age():
    rows = [
        {
            "series": f"s{k % 7}", "request": 1 + 7 * (k % 2), "state": 2, "age": k % 2,
            "predicted": np.full(len(AHEAD), 0.6), "observed": np.full(len(AHEAD), float(k % 4 < 2)),
            "expected_losses": 3.0, "losses": 4,
        }
        for k in range(40)
    ]  # fmt: skip
    table, rng = pd.DataFrame(rows), np.random.default_rng(1)
    found = availability_rows(table, rng)
    assert [(row["state"], row["age"], row["slots"]) for row in found] == [
        ("all", "1", 20),
        ("all", "2 to 3", 20),
    ]
    assert found[0]["ahead_4"]["predicted"] == pytest.approx(0.6)
    assert found[0]["ahead_4"]["observed"] == 0.5
    by_request = {row["request"]: row for row in loss_rows(table, rng)}
    assert set(by_request) == {"all", "1 instance", "several instances"}
    assert by_request["all"]["expected_less_observed"] == pytest.approx(-0.25)
    assert by_request["all"]["interval"] == pytest.approx([-0.25, -0.25])
