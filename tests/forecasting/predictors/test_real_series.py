"""The real open series: the published floor, and the models that beat it (E4)."""

from __future__ import annotations

import numpy as np
import pytest
from predictors_kit import installed
from series_kit import DATA, real_histories

from slackwater.forecasting.accuracy.losses import score
from slackwater.forecasting.origins import backtest

STEPS = [1, 2, 4, 8, 12]
pytestmark = pytest.mark.skipif(
    not (DATA / "availability.parquet").is_file(), reason="real histories are absent: set SLACKWATER_DATA"
)


@pytest.fixture(scope="module")
def counts():
    """Return nine H100 zones (0..16, real clock) and both 16-node V100 zones (no clock)."""
    found = [
        *real_histories("skynomad-artifact:h100").values(),
        *real_histories("spot-traces:availability/16-node").values(),
    ]
    assert len(found) == 11
    return found


def scores_of(names, history, horizon=12, every=1):
    """Return scores over the later half of a history, each market by itself."""
    n = len(history.slots)
    origins = list(history.slots[max(0, n // 2 - 1) : n - 1 : every])
    made = [
        one
        for name in dict.fromkeys(["last_value", *names])
        for own in backtest([history], name, origins=origins, horizon=horizon).values()
        for one in own
    ]
    return score(made, history)


def mean_by_step(tables, model, metric):
    rows = [
        t[(t["model"] == model) & (t["variable"] == "count")].set_index("step").loc[STEPS, metric]
        for t in tables
    ]
    return np.mean(rows, axis=0)


def test_last_value_is_the_published_floor(counts):
    """Estimated every day, tested on the second half: MAE 2.00/1.96/2.29/2.75/3.02 at steps 1, 2, 4, 8, 12."""
    tables = [scores_of(["last_value"], h) for h in counts]
    assert mean_by_step(tables, "last_value", "mae") == pytest.approx(
        [2.00, 1.96, 2.29, 2.75, 3.02], abs=0.02
    )


@pytest.mark.parametrize(
    ("zones", "every", "names"),
    [
        pytest.param(slice(None, None, 8), 8, ["combined"], id="quick", marks=pytest.mark.slow),
        pytest.param(slice(None), 1, ["markov", "smoothing", "combined"], id="whole", marks=pytest.mark.slow),
    ],
)
def test_a_distribution_is_worth_more_than_a_point(counts, zones, every, names):
    """Models of the series beat last value's pinball loss at every step, out of sample, by at least a tenth.

    This holds even if every market is fitted alone. Trees fitted so do not: see
    `docs/decisions/0013-counts-by-a-mixture.md`.
    """
    tables = [scores_of(names, h, every=every) for h in counts[zones]]
    floor = mean_by_step(tables, "last_value", "pinball")
    for name in names:
        assert (mean_by_step(tables, name, "pinball") < 0.92 * floor).all()
    assert all((t["n"] > 300 // every).all() for t in tables)


@pytest.mark.slow
def test_every_predictor_on_every_open_zone_without_a_broken_number(counts):
    for history in [*counts, *real_histories("skynomad-artifact:v100").values()]:
        table = scores_of(installed(), history, horizon=48, every=4)
        assert table["n"].min() > 0
        assert np.isfinite(table[["mae", "rmse", "pinball"]].to_numpy()).all()
        assert table["coverage_90"].between(0, 1).all()
        lightgbm = table[(table["variable"] == "count") & (table["model"] == "lightgbm")].set_index("step")
        half = max(0, len(history.slots) // 2 - 1)
        counted = ~np.isnan(history.available)
        changed = counted & (history.available != history.available[counted][0])
        if changed[: half + 1].any():
            assert (lightgbm["fallback_share"] < 0.2).all()
            continue
        flat = np.argmax(changed) if changed.any() else len(history.slots)
        for step, own in lightgbm.iterrows():
            measured = [at for at in range(half, len(history.slots) - step, 4) if counted[at + step]]
            before = np.mean([at < flat for at in measured])
            assert own["fallback_share"] >= before > 0, "nothing had been learned yet, and that must show"
