"""Input, output and counts of the side-by-side benchmark."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from benchmarks.backtest_speed import HORIZON, STEPS, Group, accuracy, compared, hand_over, own_run
from benchmarks.peers.nixtla import quantiles
from slackwater.forecasting.predictor import Panel
from slackwater.forecasting.quantiles import LEVELS
from slackwater.forecasting.series import Series, newest_observed

NAN = float("nan")


def group(slots=200, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 9, slots // 4).repeat(4).astype(float)
    values[rng.random(slots) < 0.05] = NAN
    values[0] = 3
    series = Series(
        variable="count", values=values, upper=np.full(slots, 8.0),
        newest=newest_observed(values), slots_per_day=48, first_slot=48_000, step=pd.Timedelta(minutes=30), source="a",
    )  # fmt: skip
    back = replace(series, values=values[::-1].copy(), newest=newest_observed(values[::-1]), source="b")
    panel = Panel(series=(series, back))
    return Group(name="g", panel=panel, origins=np.arange(slots // 2 - 1, slots - HORIZON))


def test_accuracy_equals_loops():
    one = group()
    rng = np.random.default_rng(1)
    given = [np.sort(rng.uniform(0, 8, (one.origins.size, HORIZON, 19)), axis=2) for _ in range(2)]
    made = accuracy(one, given)
    for step in STEPS:
        absolute, loss = [], []
        for series, q in zip(one.panel.series, given, strict=True):
            own_absolute, own_loss = [], []
            for i, origin in enumerate(one.origins):
                actual = series.values[origin + step]
                if not np.isnan(actual):
                    at = q[i, step - 1]
                    own_absolute.append(abs(actual - at[9]))
                    own_loss.append(
                        np.mean([max(a * (actual - v), (a - 1) * (actual - v)) for a, v in zip(LEVELS, at, strict=True)])
                    )  # fmt: skip
            absolute.append(np.mean(own_absolute))
            loss.append(np.mean(own_loss))
        assert made["mae"][step] == pytest.approx(np.mean(absolute))
        assert made["pinball"][step] == pytest.approx(np.mean(loss))


def test_the_peers_get_the_same_slots_and_give_them_back(tmp_path):
    """A peer that returns our quantiles is as accurate as we are, whatever the order of its rows."""
    one = group()
    hand_over([one], tmp_path)
    rows, plan = (
        pd.read_parquet(tmp_path / "series.parquet"),
        json.loads((tmp_path / "plan.json").read_text()),
    )
    assert plan["windows"] == {"g": one.origins.size}
    first = rows[rows["unique_id"] == "00"]
    assert np.array_equal(first["y"].to_numpy(), one.panel.series[0].values, equal_nan=True)
    assert first["ds"].iloc[0] == pd.Timestamp(48_000 * 1800, unit="s", tz="UTC")
    own = own_run(one, "last_value")
    parts = []
    for which in (1, 0):
        ds = rows[rows["unique_id"] == f"{which:02d}"]["ds"].to_numpy()
        for i, origin in enumerate(one.origins):
            table = pd.DataFrame(own.quantiles[which][i], columns=[f"q{p:02d}" for p in range(5, 100, 5)])
            parts.append(
                table.assign(
                    group="g", unique_id=f"{which:02d}", cutoff=ds[origin], step=range(1, HORIZON + 1)
                )
            )
    second = {"g": {"total": 4.0, "one_estimation": 0.5, "estimations": 2}}
    table = compared(one, own, pd.concat(parts), ({"g": {**second["g"], "total": 2.0}}, second))
    assert table["peer_pinball_over_ours"] == pytest.approx(dict.fromkeys(STEPS, 1.0))
    assert table["times_faster"] == pytest.approx(3.0 / (own.fit + own.forecast))
    assert table["peer_seconds"]["of_which_fit"] == pytest.approx(1.0)


def test_central_intervals_become_quantiles():
    table = {"unique_id": ["00"] * 2, "cutoff": [1, 1], "m": [5.0, 6.0]}
    for level in range(10, 100, 10):
        table[f"m-lo-{level}"] = [5.0 - level / 10, 6.0 - level / 10]
        table[f"m-hi-{level}"] = [5.0 + level / 10, 6.0 + level / 10]
    made = quantiles(pd.DataFrame(table), "m")
    assert made["step"].tolist() == [1, 2]
    assert made[["q05", "q45", "q50", "q55", "q95"]].iloc[0].tolist() == [-4.0, 4.0, 5.0, 6.0, 14.0]
