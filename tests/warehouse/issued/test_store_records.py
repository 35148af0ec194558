"""M5.1, M6.1: forecasts, decisions and scores are written once and read back unchanged."""

from dataclasses import fields

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from storekit import DAY, HOUR, MARKET, T0

from slackwater.forecasting.quantiles import LEVELS, Forecast
from slackwater.warehouse.errors import StoreError
from slackwater.warehouse.history import Market
from slackwater.warehouse.issued import read_forecasts, read_rows, write_forecasts, write_rows

HERE = Market(**MARKET)


def forecast(issued_at, *, seed=0, horizon=5, model="naive", market=HERE, **other):
    rng = np.random.default_rng(seed)
    price, count = (np.sort(rng.uniform(0, top, (horizon, LEVELS.size)), axis=1) for top in (3, 16))
    return Forecast(
        market=market, issued_at=issued_at, step=HOUR, predictor=model, newest_row=issued_at, price=price,
        price_mean=price.mean(axis=1), count=count, count_mean=count.mean(axis=1), capacity=16, **other,
    )  # fmt: skip


def same(one, other):
    for name in [field.name for field in fields(Forecast)]:
        mine, theirs = getattr(one, name), getattr(other, name)
        assert np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs, name


def test_forecasts_come_back_as_they_were_issued(store):
    issued = [
        forecast(T0 + k * HOUR, seed=k, horizon=1 + k, price_fallback="flat" if k else "", backfilled=k == 2)
        for k in range(4)
    ]
    assert write_forecasts(store, issued[::-1], source="lab").added == 4
    back = read_forecasts(store, Forecast, market=HERE, source="lab", model="naive")
    assert len(back) == 4
    for one, other in zip(issued, back, strict=True):
        same(one, other)
    some = read_forecasts(
        store, Forecast, market=HERE, source="lab", model="naive", start=T0 + HOUR, end=T0 + 2 * HOUR
    )
    assert [f.issued_at for f in some] == [T0 + HOUR, T0 + 2 * HOUR]
    for other in ({"source": "x"}, {"model": "x"}, {"market": Market.parse("a/b/c/d")}, {"step": DAY}):
        assert (
            read_forecasts(store, Forecast, **({"market": HERE, "source": "lab", "model": "naive"} | other))
            == []
        )


def test_nothing_overwrites_a_forecast(store):
    first = forecast(T0, seed=1)
    assert write_forecasts(store, [first, forecast(T0, seed=2)], source="lab").repeated == 1
    written = write_forecasts(
        store, [forecast(T0, seed=3), forecast(T0, seed=4, model="other")], source="lab"
    )
    assert (written.added, written.repeated) == (1, 1)
    assert write_forecasts(store, [forecast(T0, seed=5)], source="elsewhere").added == 1
    (back,) = read_forecasts(store, Forecast, market=HERE, source="lab", model="naive")
    same(back, first)
    assert len(read_rows(store, "forecasts")) == 3 * 2 * 5


def outcome(job, policy, utility):
    return {
        "job": job,
        "policy": policy,
        "scored_at": T0,
        "utility_usd": utility,
        "cost_usd": 1.0,
        "on_time": True,
        "allocations": "[[0, 4]]",
    }


@pytest.mark.parametrize("form", [list, pd.DataFrame, pa.Table.from_pylist])
def test_rows_are_written_once_by_their_natural_key(store, form):
    rows = [outcome("a", "UP", 1.0), outcome("a", "MSU", 2.0), outcome("a", "UP", 9.0)]
    written = write_rows(store, "outcomes", form(rows))
    assert (written.added, written.repeated) == (2, 1)
    again = write_rows(store, "outcomes", form([outcome("b", "UP", 3.0), outcome("a", "MSU", 7.0)]))
    assert (again.added, again.repeated) == (1, 1)
    back = read_rows(store, "outcomes", order_by=["job", "policy"])
    assert back["utility_usd"].tolist() == [2.0, 1.0, 3.0]
    assert back["hindsight_low_usd"].isna().all()
    assert back["scored_at"].iloc[0] == T0


def test_rows_are_chosen_by_value_list_and_range(store):
    rows = [
        {"run": f"r{k}", "stage": s, "status": "done", "logical_at": T0 + k * HOUR}
        for k in range(4)
        for s in ("ingest", "score")
    ]
    write_rows(store, "runs", rows)
    assert len(read_rows(store, "runs", where={"stage": "score"})) == 4
    assert len(read_rows(store, "runs", where={"run": ["r0", "r3"], "stage": "score"})) == 2
    assert read_rows(store, "runs", where={"run": []}).empty
    later = read_rows(store, "runs", where={"logical_at": slice(T0 + HOUR, T0 + 3 * HOUR)})
    assert sorted(set(later["run"])) == ["r1", "r2"]
    assert len(read_rows(store, "runs", where={"logical_at": slice(T0 + HOUR, None), "details": None})) == 6


def test_every_table_can_be_written_and_read(store):
    made = {
        "accuracy": {"measured_at": T0, "market": "m", "source": "s", "model": "x", "variable": "price", "step": 1, "mae": 0.5},
        "jobs": {
            "name": "j", "market": "m", "source": "s", "spec": "{}", "origin": "user", "created_at": T0, "start_at": T0,
            "deadline_at": T0 + DAY, "step_seconds": 1800,
        },
        "decisions": {"job": "j", "slot": T0, "policy": "UP", "on_demand": 1, "spot": 3},
        "weights": {"round": 1, "job": "j", "policy": "UP", "utility": 0.5, "log_weight": -0.1},
        "assumptions": {"market": "m", "source": "s", "text": "t"},
    }  # fmt: skip
    for table, row in made.items():
        assert write_rows(store, table, [row]).added == 1
        assert write_rows(store, table, [row]).repeated == 1
        (back,) = read_rows(store, table).to_dict("records")
        assert {name: back[name] for name in row} == row


def test_what_does_not_fit_is_refused(store):
    with pytest.raises(StoreError, match=r"table 'dreams'.*outcomes"):
        write_rows(store, "dreams", [{"a": 1}])
    with pytest.raises(StoreError, match="no column 'colour'"):
        write_rows(store, "runs", [{"run": "r", "stage": "s", "status": "x", "logical_at": T0, "colour": 1}])
    with pytest.raises(StoreError, match="lack 'status'"):
        write_rows(store, "runs", [{"run": "r", "stage": "s", "logical_at": T0}])
    with pytest.raises(StoreError, match="NOT NULL"):
        write_rows(store, "runs", [{"run": "r", "stage": "s", "status": "x"}])
    with pytest.raises(StoreError, match="no column 'x; DROP'"):
        read_rows(store, "runs", where={"x; DROP": 1})
    assert write_rows(store, "runs", []).added == 0


def test_a_turn_is_kept_whole_or_not_at_all(store):
    def fail():
        with store.transaction():
            write_rows(
                store,
                "weights",
                [{"round": 1, "job": "j", "policy": "UP", "utility": 0.5, "log_weight": 0.0}],
            )
            write_forecasts(store, [forecast(T0)], source="lab")
            write_rows(
                store,
                "weights",
                [{"round": None, "job": "j", "policy": "UP", "utility": 0.5, "log_weight": 0.0}],
            )

    with pytest.raises(StoreError):
        fail()
    assert read_rows(store, "weights").empty
    assert read_forecasts(store, Forecast, market=HERE, source="lab", model="naive") == []
    assert write_forecasts(store, [forecast(T0)], source="lab").added == 1
