"""Tables of Nixtla's libraries, out and in."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from make import make_history

from slackwater.forecasting import backtest, forecast
from slackwater.forecasting.frames import from_table, of_forecasts, of_histories
from slackwater.warehouse.errors import ForecastError, SettingsError

LEVELS = tuple(range(10, 91, 10))
HORIZON = 4


@pytest.fixture(scope="module")
def history():
    rng = np.random.default_rng(5)
    counts = rng.integers(0, 9, 200).astype(float)
    counts[60:63] = np.nan
    return make_history(1 + rng.random(200), counts)


@pytest.fixture(scope="module")
def issued(history):
    return backtest([history], "last_value", origins=list(history.slots[[150, 151]]), horizon=HORIZON)[
        f"{history.market.key}@test"
    ]


def table(history, issued, **changes):
    return of_forecasts(issued, source="test", observed=of_histories([history]), **changes)


def test_observations_have_a_row_for_each_value_and_none_for_a_gap(history):
    found = of_histories([history])
    assert list(found) == ["unique_id", "ds", "y"]
    rows = found.set_index(["unique_id", "ds"])["y"]
    counts = rows[f"test/{history.market.key}/count"]
    assert len(counts) == 197
    expected = pd.Series(history.available, index=history.slots).dropna()
    assert counts.to_dict() == expected.to_dict()
    assert len(rows[f"test/{history.market.key}/price"]) == 200
    assert of_histories([]).empty


def test_forecasts_have_their_cutoff_their_interval_and_what_was_observed(history, issued):
    found = table(history, issued)
    assert list(found) == [
        "unique_id", "ds", "cutoff", "y", "last_value", "last_value-lo-80", "last_value-hi-80",
    ]  # fmt: skip
    row = found.set_index(["unique_id", "cutoff", "ds"]).loc[
        (f"test/{history.market.key}/price", history.slots[150], history.slots[152])
    ]
    assert row.tolist() == [
        history.price[152],
        issued[0].median("price")[1],
        issued[0].price[1, 1],
        issued[0].price[1, 17],
    ]
    assert of_forecasts(issued, source="test")["y"].isna().all()


def test_forecasts_written_and_read_are_the_same_forecasts(history, issued):
    known = make_history(history.price[:151], history.available[:151])
    again = forecast(
        known, from_table(table(history, issued, level=LEVELS), name="last_value"), horizon=HORIZON
    )
    assert again.fallback == ""
    assert again.issued_at == issued[0].issued_at
    np.testing.assert_allclose(again.price, issued[0].price)
    np.testing.assert_array_equal(again.count, issued[0].count)


def test_an_origin_that_the_table_lacks_is_forecast_by_last_value(history, issued):
    known = make_history(history.price[:153], history.available[:153])
    elsewhere = from_table(table(history, issued), name="last_value")
    assert "no row for every slot" in forecast(known, elsewhere, horizon=HORIZON).price_fallback
    longer = forecast(
        make_history(history.price[:151], history.available[:151]), elsewhere, horizon=HORIZON + 1
    )
    assert "no row for every slot" in longer.count_fallback


def test_a_table_without_intervals_is_a_point(history, issued):
    points = table(history, issued).drop(columns=["last_value-lo-80", "last_value-hi-80"])
    known = make_history(history.price[:151], history.available[:151])
    given = forecast(known, from_table(points, name="last_value"), horizon=HORIZON)
    np.testing.assert_allclose(given.price, issued[0].median("price")[:, None].repeat(19, axis=1))


def test_what_a_table_cannot_say_is_refused(history, issued):
    with pytest.raises(ForecastError, match="level 85"):
        table(history, issued, level=(85,))
    with pytest.raises(SettingsError, match="without last_value-hi-80"):
        from_table(table(history, issued).drop(columns="last_value-hi-80"), name="last_value")
    wrong = table(history, issued).assign(unique_id="demand")
    with pytest.raises(SettingsError, match="unique_id 'demand'"):
        from_table(wrong, name="last_value")
