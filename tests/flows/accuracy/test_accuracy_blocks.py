"""The accuracy answer: charts and tables with n, "even" where the interval holds 0, and nothing said of too few days."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from accuracy_demo import MODELS, demo_accuracy, demo_drift, demo_market, demo_predictability, judged
from page_kit import charts_of, unpacked
from series_kit import panels_of
from tidy_folder import write_tidy

from slackwater.flows.accuracy.blocks import (
    Background,
    class_tables,
    fallback_tables,
    report_blocks,
    scores_of,
)
from slackwater.flows.accuracy.report import background_of
from slackwater.flows.accuracy.units import BacktestPlan, run_course
from slackwater.flows.show.accuracy import (
    MOST_DRAWN,
    Scores,
    answer,
    charts,
    daily_figure,
    describe_comparison,
    market_rows,
    markets_figure,
    reliability_figure,
    shown_steps,
    skill_figure,
    skill_table,
    variable_blocks,
    weighted_mean,
)
from slackwater.flows.show.blocks import Fold, Page, Section, Table
from slackwater.flows.show.page import render_page
from slackwater.forecasting.accuracy.tables import Accuracy
from slackwater.forecasting.origins import TIMETABLE, Rolling, second_half
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.series import series_of
from slackwater.studies.experiments.material import history_of, read_tapes

EVIL = 'aws/<b>x</b>/"y"/z\'&$1$@<script>alert(1)</script>'


@pytest.fixture(scope="module")
def accuracy() -> Accuracy:
    return demo_accuracy(markets=3, steps=6)


def of(accuracy: Accuracy, variable: str = "count") -> Scores:
    (found,) = (one for one in scores_of(accuracy) if one.variable == variable)
    return found


def page_of(accuracy: Accuracy, **more) -> str:
    background = Background(predictability=demo_predictability(markets=3), drift=demo_drift(3))
    blocks = report_blocks(accuracy, data=more.get("data", "d"), notes=accuracy.notes, background=background)
    return render_page(Page(title="Forecast accuracy", blocks=blocks))


def tables_of(blocks) -> list[Table]:
    return [
        table
        for block in blocks
        for table in ([block] if isinstance(block, Table) else tables_of(getattr(block, "blocks", ())))
    ]


def of_days(accuracy: Accuracy, days: int) -> Accuracy:
    """Return the scores as if measured on fewer days than an interval needs."""
    blank = {"skill_low": np.nan, "skill_high": np.nan, "days": days, "verdict": "too few"}
    tables = {
        name: (table := getattr(accuracy, name)).assign(
            **{key: table[key].where(table["model"] == "last_value", value) for key, value in blank.items()}
        )
        for name in ("scores", "pooled", "classes")
    }
    return replace(accuracy, **tables)


def test_the_page_is_self_contained_and_has_five_charts_a_variable(accuracy):
    page = page_of(accuracy)
    assert len(charts_of(page)) == 10
    assert all(len(charts(of(accuracy, variable))) == 5 for variable in ("count", "price"))
    assert not re.search(r">\s*(nan|None|inf|NaT|<NA>)\s*<", unpacked(page))


@pytest.mark.slow
def test_same_tables_same_bytes_whatever_the_order_of_rows(accuracy):
    turned = {name: getattr(accuracy, name).iloc[::-1] for name in ("scores", "pooled", "daily")}
    assert page_of(replace(accuracy, **turned)) == page_of(accuracy)


def test_hostile_names_are_escaped(accuracy):
    tables = {
        name: getattr(accuracy, name).assign(
            market=lambda table: table["market"].replace(demo_market("count", 0), EVIL)
        )
        for name in ("scores", "daily")
    }
    text = page_of(replace(accuracy, **tables, notes=(EVIL,)), data=EVIL)
    assert "<b>x" not in text
    assert "<script>alert" not in text
    assert "&lt;b&gt;x" in text


def test_the_answer_is_a_sentence_with_interval_n_and_days(accuracy):
    pooled = accuracy.pooled
    own = pooled["model"] == "combined"
    late = own & pooled["step"].isin([3, 4])
    tie = own & (pooled["step"] == 5)
    skill = pooled["skill_pinball"].mask(late, -0.3).mask(tie, 0.001)
    told = answer(of(replace(accuracy, pooled=judged(pooled.assign(skill_pinball=skill)))))
    assert told.startswith(
        "Compared with last value, combined is better at steps 1–2, 6, even at step 5, worse at steps 3–4: "
    )
    assert re.search(r": \d+ % better \(\d+ to \d+ %\) at 1 slot\. 1,005 forecasts a step on 7 days\.$", told)


def test_of_too_few_days_nothing_is_said_but_how_many(accuracy):
    short = of(of_days(accuracy, 2))
    assert answer(short) == "Too few days to compare: errors on 2, at least 3 wanted."
    assert skill_figure(short) is None
    assert {row["step_1"] for row in skill_table(short).rows} == {"too few: 2 days"}
    assert skill_table(short) not in variable_blocks(short)
    one_day = replace(short, daily=short.daily[short.daily["day"] == short.daily["day"].min()])
    assert daily_figure(one_day) is None


@pytest.mark.parametrize(
    ("default", "words"),
    [("absent", "absent was not measured."), ("last_value", "The default is last value")],
)
def test_a_default_that_cannot_be_compared(accuracy, default, words):
    scores = of(replace(accuracy, default=default))
    assert answer(scores).startswith(words)
    assert variable_blocks(scores)


def test_without_last_value_nothing_is_compared(accuracy):
    scores = of(accuracy)
    alone = replace(scores, pooled=scores.pooled[scores.pooled["model"] != "last_value"])
    assert answer(alone) == "Last value was not measured, so nothing can be compared with it."


def test_skill_is_drawn_with_the_interval_of_the_default(accuracy):
    (spec,) = skill_figure(of(accuracy)).specifications()
    rows = spec["datasets"]["rows"]
    assert {row["series"] for row in rows} == set(MODELS) - {"last_value"}
    own = [row for row in rows if row["series"] == "combined"]
    assert len(own) == 6
    assert all(row["low"] < row["y"] < row["high"] for row in own)
    assert not any("low" in row for row in rows if row["series"] != "combined")


def test_error_over_time_is_in_units_of_each_markets_scale(accuracy):
    table = accuracy.daily[(accuracy.daily["variable"] == "price") & (accuracy.daily["model"] == "arima")]
    scale = accuracy.scores.groupby("market")["scale"].first()
    day = table["day"].min()
    rows = table[table["day"] == day]
    wanted = (rows["pinball"] / rows["market"].map(scale)).mean()
    found = of(accuracy, "price").daily.set_index(["model", "day"])["loss"]
    assert found["arima", day] == pytest.approx(wanted)


def test_market_skills_are_those_of_the_sums(accuracy):
    market = demo_market("count", 1)
    own = accuracy.daily[accuracy.daily["market"] == market]
    losses = {m: (rows["n"] * rows["pinball"]).sum() for m, rows in own.groupby("model")}
    rows = {(row["market"], row["model"]): row for row in market_rows(of(accuracy))}
    found = rows[market, "arima"]
    assert found["skill_pinball"] == pytest.approx(1 - losses["arima"] / losses["last_value"])
    assert (found["days"], found["n"]) == (7, sum(336 - step for step in range(1, 7)))
    flat = [row for row in market_rows(of(accuracy, "price")) if row["market"] == demo_market("price", 0)]
    assert {row["compared"] for row in flat} == {"—", "last value made no error"}


def test_every_market_and_model_is_in_a_table(accuracy):
    scores = of(accuracy)
    own, every = tables_of(variable_blocks(scores))[-2:]
    assert {row["market"] for row in own.rows} == set(scores.markets["market"])
    assert len(every.rows) == 3 * len(MODELS)
    assert {"n", "days", "compared"} <= set(own.columns)


def test_predictability_follows_the_tests_of_significance(accuracy):
    """The answer of M6.7 by market: any model, beyond chance, from the first step on."""
    scores = accuracy.scores
    sure = (scores["model"] == "arima") & (scores["step"] <= 3)
    dm_p = pd.Series(np.where(sure, 1e-6, 0.3), scores.index)
    table = scores.assign(dm=np.where(sure, 9.0, 1.0), dm_p=dm_p, skill_pinball=0.1)
    found = of(replace(accuracy, scores=table)).markets
    assert set(found["answer"]) == {"predictable up to step 3"}
    none = of(replace(accuracy, scores=table.assign(dm_p=0.3))).markets
    assert set(none["answer"]) == {"not predictable"}


def test_of_many_markets_the_best_and_the_worst_are_drawn(accuracy):
    scores = of(accuracy)
    own = scores.markets[scores.markets["model"] == "combined"].iloc[:1]
    n = 2 * MOST_DRAWN + 5
    many = pd.concat([own.assign(market=f"a/b/c/{i:02d}@s", skill_pinball=0.5 - 0.01 * i) for i in range(n)])
    figure = markets_figure(replace(scores, markets=many))
    names = [row["label"] for row in figure.specifications()[0]["datasets"]["rows"]]
    assert len(names) == 2 * MOST_DRAWN
    assert names[0].startswith("a/b/c\n00@s, n = ")
    assert names[-1].startswith(f"a/b/c\n{n - 1}@s")
    assert figure.captions[0].startswith(f"The {MOST_DRAWN} best and {MOST_DRAWN} worst of {n} markets")


def test_reliability_is_drawn(accuracy):
    rows = accuracy.reliability.query("variable == 'count' and model == 'markov'")
    (spec,) = reliability_figure(of(accuracy)).specifications()
    drawn = [row for row in spec["datasets"]["rows"] if row["series"] == "markov"]
    assert [row["y"] for row in drawn] == pytest.approx((100 * rows["observed"]).tolist(), rel=1e-4)


def test_classes_of_markets_are_apart(accuracy):
    (table,) = class_tables(accuracy.classes, "combined", "price")
    assert [(row["class"], row["markets"]) for row in table.rows] == [("moving", 2), ("still", 1)]
    own = accuracy.classes
    own = own[(own["model"] == "combined") & (own["class"] == "moving") & (own["step"] == 1)].iloc[0]
    assert table.rows[0]["step_1"] == describe_comparison(own.to_dict())
    assert class_tables(accuracy.classes.iloc[:0], "combined", "price") == []


def test_reasons_of_fallbacks_are_listed():
    reasons = pd.DataFrame(
        {"variable": "price", "model": "arima", "market": ["a", "a", "b"], "reason": ["flat", "short", "flat"],
         "n": [300, 12, 5]}
    )  # fmt: skip
    (fold,) = fallback_tables(reasons, "price")
    rows = [(row["reason"], row["n"], row["markets"]) for row in fold.blocks[0].rows]
    assert rows == [("flat", 305, 2), ("short", 12, 1)]
    assert fallback_tables(reasons, "count") == []


def test_only_one_variable_and_one_step():
    tiny = demo_accuracy(markets=1, steps=1, days=1)
    tables = {
        name: getattr(tiny, name)[lambda table: table["variable"] == "price"]
        for name in ("scores", "pooled", "reliability", "daily", "classes")
    }
    blocks = report_blocks(replace(tiny, **tables), data="d", notes=())
    assert [block.heading for block in blocks if isinstance(block, Section)] == ["Spot price"]


def test_nothing_scored_is_said(accuracy):
    (first,) = report_blocks(replace(accuracy, scores=accuracy.scores.iloc[:0]), data="d", notes=())
    assert first.startswith("No forecast can be scored")


def test_shown_steps_hold_the_last():
    assert shown_steps(range(1, 13)) == [1, 2, 4, 8, 12]
    assert shown_steps([1, 2, 3]) == [1, 2, 3]


def test_a_mean_over_steps_leaves_out_what_is_undefined():
    rows = [{"n": 1, "mae": 1.0}, {"n": 1, "mae": np.nan}, {"n": 3, "mae": 3.0}]
    assert weighted_mean(rows, "mae") == pytest.approx(2.5)
    assert weighted_mean(rows, "brier") is None


def test_page_of_a_real_backtest(tmp_path):
    """Use real series, models, scores, predictability and drift; the page repeats the values of the tables."""
    tapes = read_tapes(write_tidy(tmp_path / "tidy", days=5))
    series = [series_of(history_of(tape), tape.variable) for tape in (*tapes.counts, *tapes.paths)]
    panels = tuple(panels_of(series))
    rolling = Rolling(
        panels=panels,
        origins=tuple(tuple(second_half(one) for one in panel.series) for panel in panels),
        predictors={name: make_predictor(name) for name in ("last_value", "seasonal_naive", "markov")},
        horizon=3,
        timetable=TIMETABLE,
    )
    course = BacktestPlan(rolling=rolling, default="markov")
    measured = run_course(course, notes=("a note",))
    blocks = report_blocks(measured, data="real", notes=measured.notes, background=background_of(course))
    text = render_page(Page(title="t", blocks=blocks))
    assert not re.search(r">\s*(nan|None|inf|NaT|<NA>)\s*<", text)
    pooled = measured.pooled[measured.pooled["model"] == "markov"]
    for variable in ("count", "price"):
        first = pooled[(pooled["variable"] == variable) & (pooled["step"] == 1)].iloc[0]
        assert f"{describe_comparison(first.to_dict())} at 1 slot" in text
    known = {one.key for one in series}
    (predictability,) = (
        block for section in blocks if isinstance(section, Section) and section.heading == "Spot price"
        for block in section.blocks if isinstance(block, Fold) and block.summary.startswith("Predictability")
    )  # fmt: skip
    assert {row["market"] for row in predictability.blocks[0].rows} <= known
