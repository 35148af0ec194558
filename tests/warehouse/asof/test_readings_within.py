"""Readings between slots: probes between the previous slot and a slot's start, known by then, compared with a
slow implementation.
"""

import numpy as np
import pandas as pd
import pytest
from storekit import HOUR, MARKET, MINUTE, T0, count_row, price_row
from storekit import batch as make_batch

from slackwater.warehouse.asof import MOST_WITHIN, load_history
from slackwater.warehouse.history import Market
from slackwater.warehouse.observations import append

HERE = Market(**MARKET)
END = T0 + 6 * HOUR


def probed(store, times, *, gap=10 * MINUTE, late=None):
    late = late or {}
    rows = [
        count_row(at, k % 17, gap_seconds=gap.total_seconds(), known_at=at + late.get(k, 0 * MINUTE))
        for k, at in enumerate(times)
    ]
    prices = [price_row(T0, 1.0, on_demand_usd=3.06), price_row(T0 + HOUR, 1.1, on_demand_usd=3.06)]
    append(store, [make_batch("availability", rows), make_batch("price", prices)], source="t", known_at=None)
    return [(row["observed_at"], row["known_at"], row["available"]) for row in rows]


def read(store, *, step=30 * MINUTE, within=True, known_at=END):
    return load_history(store, HERE, end=END, step=step, known_at=known_at, within=within)


def slow(rows, slots, step, gap):
    """Return column j: the newest version of the last probe at or before slot - step (m - j) / (m + 1), if
    young and known by the slot.
    """
    m = min(round(step / gap) - 1, MOST_WITHIN)
    out = np.full((len(slots), m), np.nan)
    for i, slot in enumerate(slots):
        for j in range(m):
            at = slot - step * (m - j) / (m + 1)
            past = [row for row in rows if row[0] <= at]
            if past:
                observed, known, value = max(past, key=lambda row: row[0])
                if at - observed <= 1.5 * gap and known <= slot:
                    out[i, j] = value
    return out


@pytest.mark.parametrize("step", [30 * MINUTE, HOUR, 2 * HOUR])
def test_columns_are_the_probes_between_slots_oldest_first(store, step):
    rng = np.random.default_rng(4)
    times = [T0 + k * 10 * MINUTE + rng.integers(0, 60) * pd.Timedelta(seconds=1) for k in range(36)]
    times = times[:10] + times[15:]  # a hole of an hour
    rows = probed(store, times, late={20: 45 * MINUTE, 21: MINUTE})
    history = read(store, step=step)
    wanted = slow(rows, history.slots, step, 10 * MINUTE)
    assert wanted.shape[1] == {30: 2, 60: 5, 120: 5}[int(step / MINUTE)]
    assert np.isnan(wanted).any()
    assert np.isfinite(wanted).sum() > wanted.size / 2
    assert np.array_equal(history.within, wanted, equal_nan=True)


def test_a_ten_minute_probe_gives_a_half_hour_slot_its_two_middle_readings(store):
    probed(store, [T0 + k * 10 * MINUTE for k in range(36)])
    history = read(store)
    slot = 4  # 02:00: probes 10 and 11 at 01:40 and 01:50
    assert history.available[slot] == 12
    assert history.within[slot].tolist() == [10, 11]


def test_nothing_finer_than_the_slots_is_none_and_unasked_is_none(store):
    probed(store, [T0 + k * 10 * MINUTE for k in range(36)])
    assert read(store, step=10 * MINUTE).within is None
    assert read(store, within=False).within is None


def test_what_was_learned_later_than_the_reading_is_not_there_yet(store):
    probed(store, [T0 + k * 10 * MINUTE for k in range(36)], late={10: 15 * MINUTE, 13: 21 * MINUTE})
    early, whole = read(store, known_at=T0 + 2 * HOUR), read(store)
    assert whole.within[4].tolist() == [10, 11]  # known at 01:55
    assert np.array_equal(
        whole.within[5], [np.nan, 14], equal_nan=True
    )  # probe 13 of 02:10 was known at 02:31 only
    assert len(early.slots) == 5
    assert np.array_equal(early.within, whole.within[:5], equal_nan=True)
