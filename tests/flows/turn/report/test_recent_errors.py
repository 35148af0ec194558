"""The forecast table of a turn: errors of the last two weeks, each forecast counted once, and "even" without evidence."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from make import make_history

from slackwater.flows.config import Settings
from slackwater.flows.ledger.errors import save_accuracy
from slackwater.flows.show.accuracy import describe_comparison
from slackwater.flows.turn.forecast import forecast_market
from slackwater.flows.turn.report.recent_errors import STEPS, errors_of, market_errors, recent_rows
from slackwater.forecasting.quantiles import LEVELS, Forecast
from slackwater.warehouse.history import UNOBSERVED
from slackwater.warehouse.store.connection import open_store

AT = pd.Timestamp("2026-03-20T12:00Z")
WINDOW = pd.Timedelta(hours=16)


def measured(pinball, *, model="combined", n=32, market="gcp/a/a-1/x"):
    row = dict.fromkeys(
        ("mase", "skill_mae", "skill_pinball", "coverage_80", "width_80", "brier", "absent", "unpredicted"),
        np.nan,
    )
    return row | {
        "market": market, "source": "lab", "model": model, "variable": "count", "step": 1, "n": n, "mae": 2 * pinball,
        "rmse": pinball, "pinball": pinball, "fallback_share": 0.0, "scale": 16.0,
    }  # fmt: skip


def fill(store, losses, *, every=WINDOW, floor=1.0):
    """Store errors of a turn per ``every``, newest first, with these losses of the model and ``floor`` for last value."""
    tables = [
        (AT - k * every, pd.DataFrame([measured(loss), measured(floor, model="last_value")]))
        for k, loss in enumerate(losses)
    ]
    save_accuracy(store, tables)


def row_of(store, model="combined"):
    rows = recent_rows(store, AT, window=WINDOW)
    return next(row for row in errors_of(rows, steps=STEPS) if row["model"] == model)


def test_one_day_is_too_few_to_compare(store):
    fill(store, [2.0])
    row = row_of(store)
    assert (row["n"], row["days"], row["verdict"], row["skill_pinball"]) == (32, 1, "too few", None)
    assert describe_comparison(row) == "too few: 1 day"
    assert row["mae_last"] == 2.0


def test_a_steady_gain_is_better_and_a_changing_one_even(store):
    fill(store, [0.5, 0.6, 0.5, 0.6, 0.5, 0.6, 0.5, 0.6])
    row = row_of(store)
    assert row["verdict"] == "better"
    assert row["skill_pinball"] == pytest.approx(0.45)
    assert row["skill_low"] < 0.45 < row["skill_high"]
    with open_store(":memory:") as other:
        fill(other, [0.5, 1.6, 0.5, 1.6, 0.5, 1.6])
        assert row_of(other)["verdict"] == "even"
        fill_worse = [1.5, 1.6] * 4
        with open_store(":memory:") as third:
            fill(third, fill_worse)
            assert row_of(third)["verdict"] == "worse"


def test_a_model_that_equals_last_value_is_even_not_unknown(store):
    fill(store, [1.0, 0.8] * 4, floor=1.0)
    save_accuracy(store, [(AT - k * WINDOW, pd.DataFrame([measured(1.0, model="copy")])) for k in range(8)])
    assert describe_comparison(row_of(store, "copy")) == "even (0 to 0 %)"


def test_where_last_value_never_erred_nothing_is_compared(store):
    fill(store, [0.0, 0.1] * 4, floor=0.0)
    assert describe_comparison(row_of(store)) == "last value made no error"


def test_errors_by_market_keep_sources_apart_and_say_on_how_many_days(store):
    other = {"market": "gcp/a/a-1/x", "source": "other"}
    for k in range(6):
        rows = [measured(0.5), measured(1.0, model="last_value")]
        rows += [measured(1.5) | other, measured(1.0, model="last_value") | other]
        save_accuracy(store, [(AT - k * WINDOW, pd.DataFrame(rows))])
    found = market_errors(recent_rows(store, AT, window=WINDOW)).set_index(["source", "model"])
    assert found["n"].eq(6 * 32).all()
    assert found["days"].eq(4).all()
    assert found["verdict"].to_dict() == {
        ("lab", "combined"): "better", ("lab", "last_value"): "",
        ("other", "combined"): "worse", ("other", "last_value"): "",
    }  # fmt: skip


def test_no_forecast_counts_twice(store):
    """Turns every half hour measured the same origins repeatedly: only measurements a window apart are used."""
    fill(store, [0.5] * 97, every=pd.Timedelta(minutes=30))
    assert row_of(store)["n"] == 4 * 32


def test_only_two_weeks_count(store):
    fill(store, [0.5] * 60)
    assert row_of(store)["n"] == 21 * 32


def test_an_availability_that_nobody_observed_is_not_measured():
    """A market without counts has errors of its price only."""
    observed = make_history([1.0] * 8, [2] * 8)
    assumed = replace(observed, assumptions=(f"{UNOBSERVED}: 2 instances always available",))
    settings = Settings(models=("last_value",), planner="last_value", measured_origins=4, horizon=2)
    variables = []
    for one in (observed, assumed):
        present = one.slots[-1]
        stored = [flat_forecast(one, slot) for slot in one.slots]
        found = forecast_market(one, settings=settings, batches={}, stored=stored, presents=[present])
        variables.append(set(found.accuracy["variable"]))
    assert variables == [{"price", "count"}, {"price"}]


def flat_forecast(of, at):
    steps = (2, len(LEVELS))
    return Forecast(
        market=of.market, issued_at=at, step=of.step, predictor="last_value", newest_row=at,
        price=np.full(steps, 1.0), count=np.full(steps, 2.0), price_mean=np.full(2, 1.0), count_mean=np.full(2, 2.0),
        capacity=2,
    )  # fmt: skip
