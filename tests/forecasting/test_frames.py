"""Tables of Nixtla's libraries, out and in."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from make import make_history

from slackwater.forecasting import backtest, forecast
from slackwater.forecasting.frames import from_table, of_forecasts, of_histories, tidy_rows
from slackwater.warehouse import ingest, load_history, open_store
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


class PolarsLike:
    """A table as Polars has it: column names, and columns whose times are UTC without a zone in NumPy."""

    def __init__(self, table):
        self._table = table
        self.columns = list(table)

    def __getitem__(self, name):
        column = self._table[name]
        return column.dt.tz_localize(None) if name in ("ds", "cutoff") else column


def test_forecasts_of_polars_are_those_of_pandas(history, issued):
    known = make_history(history.price[:151], history.available[:151])
    given = table(history, issued, level=LEVELS)
    given["last_value"] = given["last_value-lo-80"]  # not what last value would say
    found = [
        forecast(known, from_table(one, name="last_value"), horizon=HORIZON)
        for one in (given, PolarsLike(given))
    ]
    assert found[1].fallback == ""
    np.testing.assert_array_equal(found[0].price, found[1].price)
    np.testing.assert_array_equal(found[0].count, found[1].count)


@pytest.mark.parametrize("form", [pd.DataFrame, PolarsLike])
def test_observations_of_such_a_table_are_read_by_the_warehouse(tmp_path, history, form):
    file = tmp_path / "observed.csv"
    tidy_rows(form(of_histories([history]))).to_csv(file, index=False)
    with open_store(":memory:") as store:
        assert ingest(store, "tabular", file).rejected == 0
        again = load_history(
            store, history.market, end=history.slots[-1], step=history.step, known_at=history.slots[-1]
        )
    rows = again.frame.reindex(history.slots)
    np.testing.assert_allclose(rows["price_usd"][:60], history.price[:60])
    np.testing.assert_array_equal(rows["available"][:60], history.available[:60])
    assert again.source == "test"


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
    with pytest.raises(SettingsError, match="unique_id 'demand'"):
        tidy_rows(wrong)
    with pytest.raises(SettingsError, match="without y"):
        tidy_rows(wrong.drop(columns="y"))
