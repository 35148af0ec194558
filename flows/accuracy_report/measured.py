"""The page of a backtest with all that is measured on its series beside the scores: predictability, drift, costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from flows.accuracy_report.page import About, write_accuracy_page
from flows.error_cost import CostPlan, error_cost
from flows.error_cost_table import ErrorCost
from flows.experiments.progress import job_progress
from forecasting.alternation import alternation_sentences, alternations
from forecasting.drift_marks import drift_table
from forecasting.predictability import predictability
from forecasting.rolling import Rolling
from forecasting.scoring import Accuracy
from forecasting.series import Series
from optimization.batch import spread
from warehouse.errors import MarketError


def write_measured_page(
    path: Path, accuracy: Accuracy, rolling: Rolling, *, data: str, processes: int = 1
) -> None:
    """Measure what the page shows beside the scores, and write it.

    ``rolling`` is the backtest that ``accuracy`` came from; ``data`` names the folder or warehouse. Jobs are replayed under every
    model's forecasts (M5.5), series are described (M6.7) and watched for drift, over ``processes``: the same page however many.
    Raises as `write_accuracy_page` does.
    """
    series = [one for panel in rolling.panels for one in panel.series]
    with job_progress("describing series") as progress:
        described = list(spread(describe, series, rolling.horizon, processes=processes, progress=progress))
    cost, why_not = _cost(rolling, series, processes)
    about = About(
        data=data,
        alternation=alternation_sentences(alternations(series)) if _counts(series) else (),
        no_cost=why_not,
    )
    write_accuracy_page(
        path,
        accuracy,
        about=about,
        predictability=_joined([table for table, _ in described]),
        drift=_joined([table for _, table in described]),
        cost=cost,
    )


def describe(series: Series, horizon: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How predictable one series is, and where it drifted: rows of `predictability` and of `drift_table`."""
    return predictability([series], horizon=horizon), drift_table([series])


def _joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The tables under one another; without a row the first one, for its columns."""
    filled = [table for table in tables if len(table)]
    return pd.concat(filled, ignore_index=True) if filled else tables[0]


def _counts(series: Sequence[Series]) -> bool:
    return any(one.variable == "count" for one in series)


def _cost(rolling: Rolling, series: Sequence[Series], processes: int) -> tuple[ErrorCost | None, str]:
    """What the errors cost, or why that could not be measured."""
    try:
        with job_progress("replaying jobs") as progress:
            return error_cost(
                series, rolling.models, plan=CostPlan(processes=processes), progress=progress
            ), ""
    except MarketError as error:
        return None, f"{error.found} (expected {error.expected})"
