"""Estimated forecasters as they were estimated (M6.4): written once, so that a turn between two refits need not estimate.

The warehouse knows no model: a state is text that `forecasting.state` writes and reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from warehouse.errors import StoreError
from warehouse.issued.records import Written, write_rows
from warehouse.store.connection import Store
from warehouse.times import moment


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedState:
    """What ``predictor`` learned of one variable from the series called ``panel``, on slots of ``step``.

    ``fitted_at`` is the last slot it was estimated on, ``known_at`` (not before it) when all of that was known. ``panel`` names
    the series: a ``market@source`` for a market estimated alone, a source or any other name for several together.
    """

    predictor: str
    variable: Literal["price", "count"]
    panel: str
    step: pd.Timedelta
    fitted_at: pd.Timestamp
    known_at: pd.Timestamp
    state: str

    def __post_init__(self) -> None:
        if self.known_at < self.fitted_at:
            raise StoreError(
                f"{self.predictor} of {self.panel} estimated at {self.fitted_at} on what was known at {self.known_at}",
                expected="a known_at at or after the fit time",
            )


def save_fitted(store: Store, states: Iterable[FittedState]) -> Written:
    """Keep estimated forecasters; one whose predictor, variable, panel, step and fit time are there already is left as it is."""
    rows = [
        {
            "predictor": one.predictor,
            "variable": one.variable,
            "panel": one.panel,
            "step_seconds": int(one.step.total_seconds()),
            "fitted_at": moment(one.fitted_at, "fitted_at"),
            "known_at": moment(one.known_at, "known_at"),
            "state": one.state,
        }
        for one in states
    ]
    return write_rows(store, "fitted", rows)


def forget_fitted(store: Store, states: Iterable[FittedState]) -> None:
    """Drop the stored states of the same predictor, variable, panel, step and fit time: they cannot be read any more."""
    with store.transaction():
        for one in states:
            store.execute(
                "DELETE FROM fitted WHERE predictor = ? AND variable = ? AND panel = ? AND step_seconds = ? "
                "AND fitted_at = ?",
                [
                    one.predictor,
                    one.variable,
                    one.panel,
                    int(one.step.total_seconds()),
                    moment(one.fitted_at, "fitted_at"),
                ],
            )


def load_fitted(
    store: Store,
    *,
    predictor: str,
    step: pd.Timedelta,
    panels: Sequence[str],
    fitted_at: pd.Timestamp,
    known_at: pd.Timestamp,
) -> dict[tuple[str, str], FittedState]:
    """The states estimated at exactly ``fitted_at`` from what was known at ``known_at`` (M1.2), by (panel, variable).

    One query, however many panels; a panel that was not estimated then is absent.
    """
    if not panels:
        return {}
    rows = store.execute(
        "SELECT panel, variable, epoch_us(known_at), state FROM fitted WHERE predictor = $predictor "
        "AND step_seconds = $step AND fitted_at = $fitted_at AND known_at <= $known_at AND list_contains($panels, panel)",
        {
            "predictor": predictor,
            "step": int(step.total_seconds()),
            "fitted_at": moment(fitted_at, "fitted_at"),
            "known_at": moment(known_at, "known_at"),
            "panels": list(panels),
        },
    )
    return {
        (panel, variable): FittedState(
            predictor=predictor,
            variable=variable,
            panel=panel,
            step=step,
            fitted_at=fitted_at,
            known_at=pd.Timestamp(known_us, unit="us", tz="UTC"),
            state=state,
        )
        for panel, variable, known_us, state in rows
    }
