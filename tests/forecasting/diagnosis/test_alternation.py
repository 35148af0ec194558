"""Alternation between probes: detected where it was inserted, and in the only real zone that has it (M6.7)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from make import make_history
from series_kit import DATA

from slackwater.forecasting.diagnosis.predictability import (
    TABLE,
    alternation,
    alternation_table,
    alternations,
    mean_change,
    probes_of,
)
from slackwater.forecasting.series import Series, series_of

DAY = 144


def smooth(days, *, seed=0):
    """Return a count with stays of about two hours, probed every 10 minutes."""
    rng = np.random.default_rng(seed)
    moves = np.cumsum(rng.random(days * DAY) < 1 / 12)
    return rng.integers(3, 14, moves[-1] + 1)[moves].astype(float)


def swinging(days, size=3.0, *, seed=0):
    return smooth(days, seed=seed) + size * (-1.0) ** np.arange(days * DAY)


def with_probes(values, per_slot=3) -> Series:
    """Return the series of every third value, with the two between as readings within the slot."""
    table = values.reshape(-1, per_slot)
    made = series_of(make_history(np.ones(len(table)), table[:, -1], capacity=20), "count")
    return replace(made, within=table[:, :-1])


def test_a_swing_is_found_with_its_share_of_the_variance():
    values = swinging(8)
    found = alternation(values, 3, probes_per_day=DAY)
    assert found.found
    assert found.one_slot > found.two_slots
    assert found.share == pytest.approx(9.0 / values.var(), rel=0.15)
    assert found.without < found.one_slot
    assert found.without == pytest.approx(mean_change(smooth(8), 3), rel=0.1)


def test_no_swing_is_not_found():
    wrong = [alternation(smooth(7, seed=s), 3, probes_per_day=DAY).found for s in range(60)]
    assert np.mean(wrong) <= 0.05


def test_noise_alone_is_no_swing():
    rng = np.random.default_rng(1)
    wrong = [
        alternation(rng.normal(size=7 * DAY).round() + 8, 3, probes_per_day=DAY).found for _ in range(60)
    ]
    assert np.mean(wrong) <= 0.05


def test_an_even_number_of_probes_hides_the_swing_from_slots():
    found = alternation(swinging(8), 6, probes_per_day=DAY)
    assert found.found
    assert found.one_slot <= found.two_slots
    assert np.isnan(found.without)


@pytest.mark.parametrize("values", [np.full(1000, 4.0), np.full(1000, np.nan), np.zeros(0), np.arange(20.0)])
def test_nothing_to_tell_is_not_a_swing(values):
    found = alternation(values, 3, probes_per_day=DAY)
    assert not found.found
    assert np.isnan(found.p_value)


def test_missing_probes_make_no_pair():
    values = swinging(8)
    holed = np.where(np.random.default_rng(2).random(values.size) < 0.1, np.nan, values)
    found = alternation(holed, 3, probes_per_day=DAY)
    assert found.found
    assert found.probes == int((~np.isnan(holed)).sum())
    assert found.one_slot == pytest.approx(alternation(values, 3, probes_per_day=DAY).one_slot, rel=0.1)


def test_probes_are_put_back_in_one_line():
    values = smooth(2)
    series = with_probes(values)
    np.testing.assert_array_equal(probes_of(series), values)
    bare = series_of(make_history([1.0] * 5, [1, 2, 3, 4, 5]), "count")
    np.testing.assert_array_equal(probes_of(bare), bare.values)
    assert alternations([bare]) == []


def test_a_swing_that_begins_half_way_is_of_the_second_half():
    values = np.concatenate([smooth(7, seed=3), swinging(7, seed=4)])
    first, second = alternations([with_probes(values)])
    assert (first.part, second.part) == ("first", "second")
    assert not first.found
    assert second.found
    table = alternation_table([first, second])
    assert list(table.columns) == list(TABLE)
    assert table["found"].tolist() == [False, True]


@pytest.mark.skipif(not (DATA / "availability.parquet").exists(), reason=f"no data folder at {DATA}")
def test_one_slot_is_harder_than_two_because_of_zones_that_swing():
    rows = pd.read_parquet(DATA / "availability.parquet")
    rows = rows[rows["source"] == "andylizf/skynomad-artifact:h100"]
    found = {}
    for zone, own in rows.sort_values("timestamp").groupby("zone"):
        rounds = np.maximum(1, np.rint(own["timestamp"].diff().dt.total_seconds().iloc[1:] / 600)).to_numpy(
            int
        )
        values = np.full(rounds.sum() + 1, np.nan)
        values[np.concatenate([[0], np.cumsum(rounds)])] = own["available"].to_numpy(float)
        found[zone] = alternation(
            values[len(values) // 2 :], 3, probes_per_day=DAY, market=zone, part="second"
        )
    swing = found["us-east4-a"]
    assert swing.found
    assert swing.share > 0.08
    assert swing.one_slot > 1.3 * swing.two_slots
    assert swing.without < swing.two_slots
    rest = [one for zone, one in found.items() if zone != "us-east4-a"]
    assert np.mean([one.one_slot for one in rest]) < np.mean([one.two_slots for one in rest])
