"""Results of the stages of a turn, and the single function that stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from slackwater.flows.ledger.decisions import save_decisions
from slackwater.flows.ledger.errors import save_accuracy
from slackwater.flows.ledger.rounds import NewRounds, save_scored
from slackwater.flows.ledger.stages import RunRow, save_runs
from slackwater.forecasting.quantiles import Forecast
from slackwater.warehouse.history import History
from slackwater.warehouse.issued import (
    FittedState,
    forget_fitted,
    record_assumptions,
    save_fitted,
    write_forecasts,
)
from slackwater.warehouse.store.connection import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Rows that a stage adds to the warehouse, with the rows of the ledger that record the stage.

    ``estimates`` are new fitted models, which replace the stored ``unreadable`` states. ``forecasts`` are
    those of each source, in the order of issue. ``assumed`` are the histories whose assumptions are recorded,
    ``accuracy`` has the errors by time of measurement, and ``decisions`` are pairs of a run and a decision.
    """

    runs: tuple[RunRow, ...] = ()
    unreadable: tuple[FittedState, ...] = ()
    estimates: tuple[FittedState, ...] = ()
    forecasts: tuple[tuple[str, tuple[Forecast, ...]], ...] = ()
    assumed: tuple[History, ...] = ()
    accuracy: tuple[tuple[pd.Timestamp, pd.DataFrame], ...] = ()
    decisions: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    learned: NewRounds | None = None


def write(store: Store, results: Results) -> None:
    """Store the results of a stage in a single transaction: a killed turn continues with the first missing stage."""
    with store.transaction():
        forget_fitted(store, results.unreadable)
        save_fitted(store, results.estimates)
        for source, forecasts in results.forecasts:
            write_forecasts(store, forecasts, source=source)
        for history in results.assumed:
            record_assumptions(store, history)
        save_accuracy(store, results.accuracy)
        save_decisions(store, results.decisions)
        if results.learned is not None:
            save_scored(store, results.learned)
        save_runs(store, results.runs)
