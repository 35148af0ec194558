"""Background of the accuracy report (predictability, drift, cost of errors): computed from the backtest, shown on the page."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tidy_folder import write_tidy

from slackwater.flows import cli
from slackwater.flows.accuracy.error_cost import COST_COLUMNS, CostPlan
from slackwater.flows.accuracy.report import background_of, kept_medians
from slackwater.flows.accuracy.units import BacktestPlan, panels_of, run_course
from slackwater.forecasting.diagnosis.drift import DRIFT_COLUMNS
from slackwater.forecasting.diagnosis.predictability import predictability_columns
from slackwater.forecasting.origins import TIMETABLE, Rolling, second_half
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.series import series_of
from slackwater.optimization.trials.scenarios import Grid
from slackwater.studies.experiments.material import history_of, read_tapes

PLAN = CostPlan(grid=Grid(deadlines=(8,), loads=(0.5,), mu_ups=(0.9,), n_maxes=(4, 8)), per_cell=2, seed=1)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    tapes = read_tapes(write_tidy(tmp_path_factory.mktemp("tidy"), days=5))
    panels = tuple(
        panels_of([series_of(history_of(tape), tape.variable) for tape in (*tapes.counts, *tapes.paths)])
    )
    rolling = Rolling(
        panels=panels, origins=tuple(tuple(second_half(one) for one in panel.series) for panel in panels),
        predictors={name: make_predictor(name) for name in ("last_value", "markov")}, timetable=TIMETABLE,
    )  # fmt: skip
    return BacktestPlan(rolling=rolling, default="markov")


@pytest.fixture(scope="module")
def beside(course):
    return background_of(course, plan=PLAN)


def test_kept_forecasts_are_those_that_would_be_made(course, beside, tmp_path):
    kept = replace(course, keep=tmp_path / "kept")
    assert kept_medians(kept).table == {}
    run_course(kept)
    medians = kept_medians(kept)
    series = next(one for panel in course.rolling.panels for one in panel.series if one.variable == "count")
    assert medians.at("markov", series, len(series) // 2 + 3).shape == (12,)
    np.testing.assert_array_equal(background_of(kept, plan=PLAN).cost.utility, beside.cost.utility)


def test_all_of_it_is_there(course, beside):
    assert list(beside.predictability.columns) == predictability_columns(12)
    assert tuple(beside.drift.columns) == DRIFT_COLUMNS
    assert tuple(beside.cost.table.columns) == COST_COLUMNS
    assert set(beside.predictability["market"]) == {
        one.key for panel in course.rolling.panels for one in panel.series
    }
    assert beside.alternation[0].startswith("In the first half of the slots the probes of")
    assert len(beside.drift_words) == 2
    assert beside.notes == ()


def test_without_prices_nothing_is_said_to_cost(course):
    counts = tuple(panel for panel in course.rolling.panels if panel.series[0].variable == "count")
    origins = tuple(tuple(second_half(one) for one in panel.series) for panel in counts)
    beside = background_of(
        replace(course, rolling=replace(course.rolling, panels=counts, origins=origins)), plan=PLAN
    )
    assert beside.cost is None
    assert "what errors cost was not measured" in beside.notes[0]
    assert isinstance(beside.drift, pd.DataFrame)


@pytest.mark.slow
def test_the_page_of_the_command_tells_money_drift_and_predictability(tmp_path, monkeypatch, capsys):
    folder, page = write_tidy(tmp_path / "tidy"), tmp_path / "page.html"
    words = ["accuracy", "--data", folder, "--model", "markov", "--html", page, "--workers", 1]
    monkeypatch.setattr(sys, "argv", ["slackwater", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code in (0, None), capsys.readouterr().err
    text = page.read_text()
    for piece in ("planning the present slot alone", "synthetic joins", "marks of drift", "probes of"):
        assert piece in text
