"""Background of the accuracy answer (predictability, drift): measured on the backtest's series, shown on a page only."""

from __future__ import annotations

import sys

import pytest
from series_kit import panels_of
from tidy_folder import write_tidy

from slackwater.flows import cli
from slackwater.flows.accuracy.report import background_of
from slackwater.flows.accuracy.units import BacktestPlan
from slackwater.forecasting.diagnosis.drift import DRIFT_COLUMNS
from slackwater.forecasting.diagnosis.predictability import PREDICTABILITY
from slackwater.forecasting.origins import TIMETABLE, Rolling, second_half
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.series import series_of
from slackwater.studies.experiments.material import history_of, read_tapes


def test_every_series_is_measured(tmp_path):
    tapes = read_tapes(write_tidy(tmp_path / "tidy", days=5))
    panels = tuple(
        panels_of([series_of(history_of(tape), tape.variable) for tape in (*tapes.counts, *tapes.paths)])
    )
    rolling = Rolling(
        panels=panels, origins=tuple(tuple(second_half(one) for one in panel.series) for panel in panels),
        predictors={name: make_predictor(name) for name in ("last_value", "markov")}, timetable=TIMETABLE,
    )  # fmt: skip
    found = background_of(BacktestPlan(rolling=rolling, default="markov"))
    assert tuple(found.predictability.columns) == PREDICTABILITY
    assert tuple(found.drift.columns) == DRIFT_COLUMNS
    assert set(found.predictability["market"]) == {one.key for panel in panels for one in panel.series}


@pytest.mark.slow
def test_the_page_of_the_command_has_predictability_and_drift(tmp_path, monkeypatch, capsys):
    folder, page = write_tidy(tmp_path / "tidy"), tmp_path / "page.html"
    words = ["accuracy", "--data", folder, "--model", "markov", "--html", page, "--workers", 1]
    monkeypatch.setattr(sys, "argv", ["slackwater", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code in (0, None), capsys.readouterr().err
    assert "Predictability of" in page.read_text()
