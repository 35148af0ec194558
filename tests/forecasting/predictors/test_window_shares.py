"""The second level of 0/1 series: shares of ones among recent readings (M6.2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make import MARKET, make_history

from slackwater.forecasting.predictor import Panel, restore_model, state_text
from slackwater.forecasting.predictors.combined import StackedCount
from slackwater.forecasting.predictors.window_shares import NO_SHARES, fit_shares, is_binary, share_rows
from slackwater.forecasting.series import series_of


def alternating(slots, seed, cap=1):
    """Return a 0/1 count whose readings inside a slot show a level that persists, while the slot's value flickers."""
    rng = np.random.default_rng(seed)
    level = np.repeat(rng.choice([0.2, 0.8], slots // 12 + 1), 12)[:slots]
    seen = (rng.random((slots, 6)) < level[:, None]).astype(float)
    market = replace(MARKET, zone=f"us-east-1{'abc'[seed]}")
    own = series_of(make_history([1.0] * slots, seen[:, -1], capacity=cap, market=market), "count")
    return replace(own, source="test", within=seen[:, :-1])


def test_window_shares_know_what_the_value_of_a_slot_hides():
    panel = Panel(series=tuple(alternating(700, seed) for seed in range(3)))
    start = panel.series[0].first_slot
    own, origins = panel.series[0], np.arange(610, 690)
    came, losses = own.values[origins + 1], {}
    for second in (False, True):
        model = StackedCount(members=("stay", "recent_12_hours"), second_level=second)
        fitted = model.fit(panel.until(start + 599))
        assert bool(fitted.shares.boosters) == second
        assert restore_model(state_text(fitted)).shares == fitted.shares
        chance = fitted.outlook(panel, 0, origins, 1).distribution[:, 0, 1]
        losses[second] = ((chance - came) ** 2).mean()
    assert losses[True] < 0.97 * losses[False]


def test_window_shares_read_nothing_later_and_only_states_of_one_instance():
    series = alternating(300, 1)
    rows = share_rows(series)
    assert np.array_equal(rows[:200], share_rows(series.part(0, 200)), equal_nan=True)
    both = np.concatenate([series.within, series.values[:, None]], axis=1)[198:200]
    assert rows[199, 2] == pytest.approx(np.log((both.sum() + 0.5) / (12 - both.sum() + 0.5)))
    assert is_binary(series)
    assert not is_binary(alternating(300, 1, cap=2))
    assert not is_binary(replace(series, capacity_stated=False))
    assert fit_shares(Panel(series=(series.part(0, 100),))) == NO_SHARES
