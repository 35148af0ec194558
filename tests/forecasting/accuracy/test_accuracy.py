"""Every fast metric compared with a slow implementation (M6.5)."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from make import MARKET, make_history
from series_kit import wandering

from slackwater.forecasting.accuracy.losses import LOSSES, SCORE_COLUMNS, pinball, scale_of, score
from slackwater.forecasting.origins import backtest
from slackwater.forecasting.quantiles import LEVELS, Forecast
from slackwater.forecasting.series import series_of
from slackwater.warehouse.errors import ForecastError

NAN = float("nan")


def random_forecasts(actual, origins, *, model="m", horizon=5, seed=0):
    """Return forecasts with random sorted quantiles, which suffice to check arithmetic."""
    rng = np.random.default_rng(seed)
    out = []
    for place in origins:
        price = np.sort(rng.uniform(0, 3, (horizon, LEVELS.size)), axis=1)
        count = np.sort(rng.integers(0, actual.capacity + 1, (horizon, LEVELS.size)), axis=1).astype(float)
        out.append(
            Forecast(
                market=actual.market,
                issued_at=actual.slots[place],
                step=actual.step,
                predictor=model,
                newest_row=actual.slots[place],
                price=price,
                price_mean=price.mean(axis=1),
                count=count,
                count_mean=count.mean(axis=1),
                capacity=actual.capacity,
                count_fallback="why" if place % 2 else "",
            )
        )
    return out


def share_inside(q, y, percent):
    """Return the share of the transform inside the central interval.

    The transform is uniform over the levels that tie with y and half a level more.
    """
    tied = [a for a, v in zip(LEVELS, q, strict=True) if v == y]
    if not tied:
        low, high = {50: (4, 14), 80: (1, 17), 90: (0, 18)}[percent]
        return float(q[low] < y < q[high])
    first = 0.0 if tied[0] < 0.06 else tied[0] - 0.025
    last = 1.0 if tied[-1] > 0.94 else tied[-1] + 0.025
    inside = min(last, 0.5 + percent / 200) - max(first, 0.5 - percent / 200)
    return max(inside, 0.0) / (last - first)


def slow_scores(forecasts, actual, variable, step):
    """Return the metrics of one variable and step by loops over the forecasts."""
    sums: dict[str, list[float]] = {}

    def put(name, value):
        sums.setdefault(name, []).append(value)

    values = dict(zip(actual.slots, actual.price if variable == "price" else actual.available, strict=True))
    for forecast in forecasts:
        y = values.get(forecast.issued_at + step * forecast.step, NAN)
        if math.isnan(y):
            continue
        q = forecast.quantiles(variable)[step - 1]
        put("mae", abs(y - q[9]))
        put("mse", (y - forecast.mean(variable)[step - 1]) ** 2)
        put(
            "pinball",
            sum(a * (y - v) if y >= v else (1 - a) * (v - y) for a, v in zip(LEVELS, q, strict=True)) / 19,
        )
        for percent, low, high in ((50, 4, 14), (80, 1, 17), (90, 0, 18)):
            put(f"coverage_{percent}", share_inside(q, y, percent))
            put(f"width_{percent}", q[high] - q[low])
        if variable == "count":
            n = range(1, forecast.capacity + 1)
            chances = [forecast.probability_at_least(k, step) for k in n]
            put(
                "brier", sum((c - (y >= k)) ** 2 for c, k in zip(chances, n, strict=True)) / forecast.capacity
            )
            put("absent", max(q[9] - y, 0))
            put("unpredicted", max(y - q[9], 0))
        label = forecast.price_fallback if variable == "price" else forecast.count_fallback
        put("fallback_share", float(label != ""))
    return {name: sum(s) / len(s) for name, s in sums.items()}, len(sums["mae"])


def test_every_metric_equals_its_slow_twin():
    actual = wandering(80, gaps=0.15)
    forecasts = random_forecasts(actual, range(20, 78))
    table = score(forecasts, actual).set_index(["variable", "step"])
    for variable in ("price", "count"):
        for step in range(1, 6):
            slow, n = slow_scores(forecasts, actual, variable, step)
            fast = table.loc[(variable, step)]
            assert fast["n"] == n
            assert fast["rmse"] == pytest.approx(math.sqrt(slow.pop("mse")))
            for name, value in slow.items():
                assert fast[name] == pytest.approx(value), name
    assert table.loc["price", ["brier", "absent", "unpredicted"]].isna().all().all()
    assert set(LOSSES) - {"mse"} <= set(SCORE_COLUMNS)


def test_pinball_is_its_definition():
    actual = wandering(40, gaps=0.0)
    (one,) = random_forecasts(actual, [20])
    truth = actual.price[21:26]
    for q, y, loss in zip(one.price, truth, pinball(one.price[None], truth[None])[0], strict=True):
        assert loss == pytest.approx(
            np.mean([max(a * (y - v), (a - 1) * (y - v)) for a, v in zip(LEVELS, q, strict=True)])
        )


def test_twice_the_mean_pinball_approximates_the_crps_of_a_sample():
    """Closed-form CRPS of a normal forecast (Gneiting and Raftery 2007), within the accuracy of 19 levels."""
    quantiles = np.array([-1.6449, -1.2816, -1.0364, -0.8416, -0.6745, -0.5244, -0.3853, -0.2533, -0.1257])
    normal = 50.0 + np.concatenate([quantiles, [0.0], -quantiles[::-1]])
    y = 50.7
    crps = 0.7 * (2 * 0.7580363 - 1) + 2 * 0.3122539 - 1 / math.sqrt(math.pi)
    actual = make_history([y] * 3, [0] * 3)
    forecast = Forecast(
        market=MARKET, issued_at=actual.slots[0], step=actual.step, predictor="m", newest_row=actual.slots[0],
        price=normal[None, :], price_mean=normal[9:10], count=np.zeros((1, 19)), count_mean=np.zeros(1), capacity=0,
    )  # fmt: skip
    assert 2 * score([forecast], actual).query("variable == 'price'")["pinball"].item() == pytest.approx(
        crps, rel=0.05
    )


def test_a_scaled_error_without_a_scale_is_undefined():
    """M6.5: flat before the first origin means no MASE, not infinity and not zero."""
    flat = make_history([0.9] * 60, [4] * 30 + [3] * 30)
    (made,) = backtest([flat], "last_value", origins=list(flat.slots[20:50]), horizon=2).values()
    table = score(made, flat)
    price = table[table["variable"] == "price"]
    assert (price["mae"] == 0).all()
    assert table["mase"].isna().all()
    assert price["skill_mae"].isna().all(), "last value never erred: nothing to be better than"
    assert not np.isinf(table.select_dtypes("number").to_numpy()).any()


def test_the_scale_is_the_last_value_error_before_the_first_origin():
    past = make_history([1.0, 2.0, NAN, 4.0, 5.0, 9.0], [0, 1, 2, 2, NAN, 0])
    price, count = series_of(past, "price"), series_of(past, "count")
    first = price.first_slot
    assert scale_of(price, first + 4, first).change == pytest.approx(1.0)
    assert scale_of(count, first + 3, first).change == pytest.approx(2 / 3)
    assert scale_of(count, first + 3, first + 2).change != scale_of(count, first + 3, first).change
    assert math.isnan(scale_of(price, first, first).change)


def test_skill_compares_on_common_origins_only():
    """A model that forecast only the easy origins must not look better than last value on all of them."""
    actual = wandering(120, gaps=0.0, seed=2)
    floor = random_forecasts(actual, range(40, 110), model="last_value", seed=1)
    model = random_forecasts(actual, range(80, 115), seed=2)
    table = score([*floor, *model], actual).set_index(["model", "variable", "step"]).sort_index()
    for variable in ("price", "count"):
        common = [f for f in model if f.issued_at < actual.slots[110]]
        theirs = [f for f in floor if f.issued_at >= actual.slots[80]]
        own, n = slow_scores(common, actual, variable, 3)
        base, same_n = slow_scores(theirs, actual, variable, 3)
        assert n == same_n
        row = table.loc[("m", variable, 3)]
        assert row["skill_mae"] == pytest.approx(1 - own["mae"] / base["mae"])
        assert row["skill_pinball"] == pytest.approx(1 - own["pinball"] / base["pinball"])
    assert table.loc[["last_value"], "skill_mae"].to_numpy() == pytest.approx(0)


def test_gaps_and_the_end_of_the_record_are_not_scored():
    actual = make_history([1.0] * 30 + [NAN] * 10, [2] * 30 + [NAN] * 10)
    table = score(random_forecasts(actual, [26, 27, 28, 38]), actual).set_index(["variable", "step"])
    assert table["n"].to_dict() == {(v, k): max(0, 4 - k) for v in ("price", "count") for k in (1, 2, 3)}
    assert score(random_forecasts(actual, [35]), actual).empty
    assert list(score([], actual).columns) == SCORE_COLUMNS


def test_steps_beyond_the_horizon_are_left_out():
    actual = wandering(60)
    assert score(random_forecasts(actual, range(30, 50)), actual, horizon=2)["step"].max() == 2


def test_a_forecast_of_another_market_is_refused():
    actual = wandering(60)
    other = wandering(60, step=pd.Timedelta(hours=1))
    with pytest.raises(ForecastError, match="own market and step"):
        score(random_forecasts(other, [30]), actual)
