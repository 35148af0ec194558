"""Drift detection: no alarms without change, quick alarms after a change, no use of later data."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from make import make_history
from series_kit import DATA, real_histories

from slackwater.forecasting.diagnosis.drift import (
    DRIFT_COLUMNS,
    autocorrelation_time,
    contrast,
    detect,
    drift_table,
    drift_values,
    series_drifts,
    slots_per_day,
)
from slackwater.forecasting.series import series_of

DAY = 48


def simulate(matrix, slots, rng, start=0):
    """Simulate a Markov chain of counts."""
    reached = np.cumsum(matrix, axis=1)
    draws, out, state = rng.random(slots), np.empty(slots), start
    for t in range(slots):
        state = min(int(np.searchsorted(reached[state], draws[t])), len(matrix) - 1)
        out[t] = state
    return out


def stays(cap, keep, *, zero=0.35, full=0.35):
    """Return a chain that stays with ``keep``, else moves to 0, to the cap or anywhere between."""
    distribution = np.full(cap + 1, (1 - zero - full) / (cap - 1))
    distribution[0], distribution[-1] = zero, full
    return keep * np.eye(cap + 1) + (1 - keep) * distribution[None, :]


def two_state(up, down):
    return np.array([[1 - up, up], [down, 1 - down]])


#: Stationary chains: mean stays from one hour to a day, at 0, at the cap, in between.
STATIONARY = {
    "0/1, 5 h": two_state(0.1, 0.1),
    "0/1, 25 h": two_state(0.02, 0.02),
    "0/1, rarely up": two_state(0.01, 0.1),
    "0..16, 1 h": stays(16, 0.5),
    "0..16, 4 h": stays(16, 0.875),
    "0..16, 12 h": stays(16, 0.958),
    "0..16, mostly 0": stays(16, 0.9, zero=0.8, full=0.05),
}


def false_alarms(matrix, runs, seed, days=60):
    """Return alarms in 30 days on a chain that never changes."""
    rng = np.random.default_rng(seed)
    found = sum(len(detect(simulate(matrix, days * DAY, rng), slots_per_day=DAY)) for _ in range(runs))
    return found / (runs * days / 30)


@pytest.mark.slow
def test_false_alarms_are_fewer_than_one_in_30_days():
    rates = np.array([false_alarms(matrix, 3, seed) for seed, matrix in enumerate(STATIONARY.values())])
    # 42 months over all chains together: the mean is precise enough; single chains are tested in the long form.
    assert rates.mean() < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", list(STATIONARY))
def test_false_alarms_of_every_chain(name):
    assert false_alarms(STATIONARY[name], 40, 11) < 0.8


@pytest.mark.parametrize(
    ("before", "after", "days"),
    [
        (None, two_state(0.1, 0.1), 4.5),
        (stays(16, 0.9, zero=0.8, full=0.05), stays(16, 0.9, zero=0.05, full=0.8), 3.0),
    ],
    ids=["always 0, then moving", "mostly 0, then mostly the cap"],
)
def test_a_planted_change_is_marked_within_days(before, after, days):
    rng = np.random.default_rng(5)
    delays = []
    for _ in range(8):
        old = np.zeros(10 * DAY) if before is None else simulate(before, 10 * DAY, rng)
        values = np.concatenate([old, simulate(after, 10 * DAY, rng)])
        later = [mark.at for mark in detect(values, slots_per_day=DAY) if mark.at >= 10 * DAY]
        delays.append(later[0] / DAY - 10 if later else np.inf)
    assert np.median(delays) < days
    assert np.isfinite(delays).mean() >= 0.75


def test_marks_do_not_depend_on_what_comes_later():
    rng = np.random.default_rng(7)
    values = np.concatenate([np.zeros(6 * DAY), simulate(stays(16, 0.7, zero=0.1), 10 * DAY, rng)])
    values[rng.random(values.size) < 0.05] = np.nan
    whole = detect(values, slots_per_day=DAY)
    assert whole
    for cut in range(5 * DAY, len(values), 31):
        known = [mark for mark in whole if mark.at < cut]
        assert detect(values[:cut], slots_per_day=DAY) == known


def test_checks_stand_at_the_same_times_wherever_a_series_begins():
    values = np.concatenate([np.zeros(7 * DAY), np.full(7 * DAY, 5.0)])
    for first in (0, 5, 11):
        (mark,) = detect(values[first:], slots_per_day=DAY, first_slot=first)
        assert (mark.at + first + 1) % 12 == 0
        assert mark.since + first == pytest.approx(7 * DAY, abs=12)


@pytest.mark.parametrize(
    "values",
    [np.zeros(0), np.full(2000, 3.0), np.full(2000, np.nan), np.arange(40.0), np.array([1.0])],
    ids=["nothing", "flat", "all gaps", "short", "one"],
)
def test_nothing_to_find_is_no_mark(values):
    assert detect(values, slots_per_day=DAY) == []


def test_autocorrelation_time_of_a_first_order_chain():
    rng = np.random.default_rng(10)
    x = np.zeros(40_000)
    for t in range(1, len(x)):
        x[t] = 0.8 * x[t - 1] + rng.normal()
    assert autocorrelation_time([x], 400) == pytest.approx((1 + 0.8) / (1 - 0.8), rel=0.15)
    assert autocorrelation_time([rng.normal(size=5000)], 100) == pytest.approx(1.0, abs=0.2)
    assert autocorrelation_time([np.zeros(50), np.ones(50)], 10) == 1.0


def test_contrast_of_independent_samples_is_that_of_kolmogorov_and_smirnov():
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(11)
    a, b = rng.integers(0, 9, 300).astype(float), rng.integers(0, 12, 100).astype(float)
    distance = ks_2samp(a, b).statistic
    holed = np.append(a, [np.nan] * 20)
    tau = max(2.0, autocorrelation_time((holed, b), 50))
    found = contrast(holed, b, floor=2.0, longest=50)
    assert found == pytest.approx(distance * np.sqrt(300 * 100 / 400 / tau))
    assert contrast(holed, b, floor=2.0, longest=50, least=0.99 * found) == found
    assert contrast(holed, b, floor=2.0, longest=50, least=20.0) == 0.0
    assert np.isnan(contrast(np.append(a, [np.nan] * 400), b, floor=1.0, longest=50))


def test_a_new_price_level_is_no_drift_but_a_moving_price_is():
    rng = np.random.default_rng(13)
    level = np.concatenate([np.full(10 * DAY, 1.0), np.full(10 * DAY, 1.4)])
    moving = np.concatenate([np.full(10 * DAY, 1.0), 1.0 + 0.3 * rng.random(10 * DAY)])
    flat, lively = (series_of(make_history(p, np.ones(len(p))), "price") for p in (level, moving))
    assert series_drifts(flat) == []
    assert series_drifts(lively)[0].at < 13 * DAY
    assert "still 100 % of the time)" in series_drifts(lively)[0].found
    assert np.isnan(drift_values(flat)[0])


def test_the_tables_say_when():
    counts = np.concatenate([np.zeros(8 * DAY), np.full(6 * DAY, 8.0)])
    series = series_of(make_history(np.ones(len(counts)), counts, capacity=8), "count")
    table = drift_table([series])
    assert tuple(table.columns) == DRIFT_COLUMNS
    start = pd.Timestamp("2025-10-04", tz="UTC")
    assert table["at"].between(start + pd.Timedelta(days=8), start + pd.Timedelta(days=10)).all()
    assert (table["since"] <= table["at"]).all()
    assert drift_table([]).empty
    assert slots_per_day(series) == DAY


@pytest.mark.skipif(not (DATA / "availability.parquet").exists(), reason=f"no data folder at {DATA}")
def test_the_zones_that_wake_up_are_marked():
    for one in real_histories("16-node").values():
        series = series_of(one, "count")
        marks = series_drifts(series)
        assert marks
        first = one.slots[marks[0].at] - one.slots[0]
        # The counts are 0 for five days and mostly above 0 in the second half.
        assert pd.Timedelta(days=5) < first < pd.Timedelta(days=10)
        assert "at zero" in marks[0].found
