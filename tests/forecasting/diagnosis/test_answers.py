"""Predictable or not: the answer for synthetic scores (M6.7)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from slackwater.forecasting.diagnosis.predictability import ANSWER_COLUMNS, answers
from slackwater.warehouse.errors import ForecastError


def scores(skills, p_values, *, model="arima", market="m@s", variable="count"):
    """Return rows of the scores table of one model: the sign of the statistic is that of the skill."""
    return pd.DataFrame(
        {
            "variable": variable,
            "model": model,
            "market": market,
            "step": np.arange(1, len(skills) + 1),
            "skill_pinball": skills,
            "dm": np.sign(skills) * 3.0,
            "dm_p": p_values,
            "days": 9,
        }
    )


def one(table):
    (found,) = table.to_dict("records")
    return found


def test_up_to_the_last_step_without_a_break():
    found = one(answers(scores([0.3, 0.2, 0.1, 0.05], [1e-6, 1e-5, 1e-3, 0.5]), models=["arima"]))
    assert found["up_to"] == 3
    assert found["steps"] == (1, 2, 3)
    assert found["answer"] == "predictable up to step 3"


def test_errors_on_two_days_decide_nothing():
    few = scores([0.3, 0.2], [1e-6, 1e-5]).assign(days=2)
    assert one(answers(few, models=["arima"]))["answer"] == "undecided: errors on fewer than 3 days"


def test_a_break_and_a_late_start_are_told():
    gap = one(answers(scores([0.3, 0.0, 0.1], [1e-6, 0.5, 1e-3]), models=["arima"]))
    assert gap["answer"] == "predictable up to step 1 (and at 3)"
    late = one(answers(scores([0.01, 0.2, 0.1], [0.6, 1e-4, 1e-3]), models=["arima"]))
    assert (late["up_to"], late["answer"]) == (0, "predictable at step 2, 3, not from the first")


def test_being_significantly_worse_is_not_predictable():
    found = one(answers(scores([-0.3, -0.2], [1e-6, 1e-5]), models=["arima"]))
    assert found["answer"] == "not predictable"
    assert found["steps"] == ()


def test_many_tests_are_counted():
    lone = scores([0.1] * 12, [0.03] + [0.5] * 11)
    assert one(answers(lone, models=["arima"]))["up_to"] == 0
    pair = pd.concat([scores([0.1], [0.03]), scores([0.1], [0.9], model="lightgbm")])
    assert one(answers(pair, models=["arima"]))["up_to"] == 1
    assert one(answers(pair, models=["arima", "lightgbm"]))["up_to"] == 0


def test_any_takes_the_best_of_the_models():
    pair = pd.concat([scores([0.1, 0.1], [1e-4, 0.9]), scores([-0.1, 0.4], [1e-4, 1e-4], model="lightgbm")])
    found = one(answers(pair, models=["arima", "lightgbm"]))
    assert found["steps"] == (1, 2)


def test_a_flat_market_is_undecided():
    table = answers(scores([np.nan] * 3, [np.nan] * 3), models=["arima"])
    assert one(table)["answer"].startswith("undecided")


def test_nulls_are_called_predictable_rarely():
    rng = np.random.default_rng(0)
    markets = [f"m{i}@s" for i in range(300)]
    rows = pd.MultiIndex.from_product([["arima", "lightgbm"], markets, range(1, 13)]).to_frame(index=False)
    rows.columns = ["model", "market", "step"]
    sign = rng.choice([-1, 1], len(rows))
    null = rows.assign(
        variable="count", skill_pinball=0.1 * sign, dm=3.0 * sign, dm_p=rng.random(len(rows)), days=9
    )
    found = answers(null, models=["arima", "lightgbm"])
    assert len(found) == len(markets)
    assert (found["steps"].map(len) > 0).mean() < 0.05


def test_the_table_has_a_row_a_variable_and_market():
    many = pd.concat(
        [
            scores([0.3, 0.2], [1e-6, 1e-6], market="a@s"),
            scores([0.0, 0.0], [0.8, 0.9], market="b@s"),
            scores([0.2, 0.0], [1e-6, 0.9], market="a@s", variable="price"),
        ]
    )
    table = answers(many, models=["arima", "absent"])
    assert tuple(table.columns) == ANSWER_COLUMNS
    assert table[["variable", "market", "up_to"]].values.tolist() == [
        ["count", "a@s", 2], ["count", "b@s", 0], ["price", "a@s", 1]
    ]  # fmt: skip


def test_a_wrong_table_says_what_is_missing():
    with pytest.raises(ForecastError, match="dm_p"):
        answers(scores([0.1], [0.1]).drop(columns="dm_p"), models=["arima"])
    with pytest.raises(ForecastError, match="models to ask"):
        answers(scores([0.1], [0.1]), models=[])
