"""A backtest of many series, cut into units of work that need no one else (M6.4, M6.5).

A `Rolling` says everything a backtest depends on, `units_of` cuts it into units (panel, predictor, fit slot), and
`forecast_blocks` makes the forecasts of one, by the same driver and timetable as a turn. A unit is a pure function of the
data up to its last origin, so units may run in any order, in any process, at any time, and be kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecasting.origins.driver import Cohort, cohorts_of, outlook_from
from forecasting.origins.timetable import Timetable
from forecasting.predictor import Outlook, Panel, Predictor
from forecasting.quantiles import Variable
from forecasting.series import Series, slot_at
from warehouse.errors import SettingsError


def second_half(series: Series, since: pd.Timestamp | None = None) -> np.ndarray:
    """The usual origins of a series, ascending indices: its later half without the last slot, not earlier than ``since``.

    Slots without an observed value at or before them are no origins. An empty series has no origin.
    """
    n = len(series)
    first = max(n // 2 - 1, 0)
    if since is not None:
        slot = slot_at(since, series.step)
        first = max(first, slot - series.first_slot + (since > series.time(slot - series.first_slot)))
    origins = np.arange(first, max(n - 1, first))
    return origins[series.newest[origins] >= 0] if n else origins[:0]


@dataclass(frozen=True, kw_only=True)
class Rolling:
    """A backtest: ``panels`` of one source and variable each, the ``origins`` of every series of each, ``predictors`` by name.

    Origins are ascending indices into their series. Raises `SettingsError` for a horizon below 1, or origins that do not
    match the panels.
    """

    panels: tuple[Panel, ...]
    origins: tuple[tuple[np.ndarray, ...], ...]
    predictors: Mapping[str, Predictor]
    timetable: Timetable
    horizon: int = 12

    def __post_init__(self) -> None:
        if self.horizon < 1:
            raise SettingsError(f"horizon {self.horizon}", expected="at least one step")
        if [len(panel) for panel in self.panels] != [len(own) for own in self.origins]:
            raise SettingsError("origins that do not match the panels", expected="one array per series")

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the predictors."""
        return tuple(self.predictors)

    def variable(self, panel: int) -> Variable:
        """The variable of a panel."""
        return self.panels[panel].variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One estimation and all that is forecast from it: ``origins`` has (place in the panel, ascending indices) per
    series."""

    panel: int
    model: str
    fit_slot: int
    origins: tuple[tuple[int, np.ndarray], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The forecasts of one model for one series; `Outlook` says what the arrays are.

    ``origins`` (m,) are indices into the series; all numbers are finite, within their bounds and whole for counts (M6.3).
    """

    model: str
    panel: int
    which: int
    origins: np.ndarray
    outlook: Outlook


#: Units are dealt out like cards, to so many hands.
_PARCELS = 16


def units_of(rolling: Rolling) -> list[Unit]:
    """Every unit, panel by panel; within a panel neighbours are unlike, so that parcels of them cost alike."""
    units: list[Unit] = []
    for place in range(len(rolling.panels)):
        own = [unit for model in rolling.predictors for unit in _units(rolling, place, model)]
        units += [own[i] for first in range(_PARCELS) for i in range(first, len(own), _PARCELS)]
    return units


def _units(rolling: Rolling, place: int, model: str) -> list[Unit]:
    panel, cadence = rolling.panels[place], rolling.timetable.of(rolling.variable(place))
    groups: dict[int, list[tuple[int, np.ndarray]]] = {}
    for cohort in cohorts_of(panel.series, cadence, pooled=rolling.predictors[model].pooled):
        for series in cohort.series:
            which = panel.places[series.key]
            origins = rolling.origins[place][which]
            if origins.size:
                slots = cohort.fit_slots(series.first_slot + origins)
                for slot in np.unique(slots):
                    groups.setdefault(int(slot), []).append((which, origins[slots == slot]))
    return [
        Unit(panel=place, model=model, fit_slot=slot, origins=tuple(groups[slot])) for slot in sorted(groups)
    ]


def seen_by(unit: Unit, rolling: Rolling) -> tuple[Series, ...]:
    """The series that a unit depends on, up to `last_slot`: a market that is estimated alone does not see the others."""
    panel = rolling.panels[unit.panel]
    if rolling.predictors[unit.model].pooled:
        return panel.series
    return tuple(panel.series[which] for which, _ in unit.origins)


def last_slot(unit: Unit, rolling: Rolling) -> int:
    """The last slot (since the epoch) that any forecast of a unit may know."""
    series = rolling.panels[unit.panel].series
    return max([unit.fit_slot, *(series[which].first_slot + int(at[-1]) for which, at in unit.origins)])


def forecast_blocks(unit: Unit, rolling: Rolling) -> Iterator[Block]:
    """Estimate and forecast from every origin of a unit; one block per series, in their order, made when it is asked for."""
    predictor, panel = rolling.predictors[unit.model], rolling.panels[unit.panel]
    cadence = rolling.timetable.of(rolling.variable(unit.panel))
    together = (
        Cohort(series=panel.series, cadence=cadence).basis(predictor, unit.fit_slot)
        if predictor.pooled
        else None
    )
    for which, origins in unit.origins:
        series = panel.series[which]
        basis = together or Cohort(series=(series,), cadence=cadence).basis(predictor, unit.fit_slot)
        outlook = outlook_from(basis, series, series.first_slot + origins, rolling.horizon)
        yield Block(model=unit.model, panel=unit.panel, which=which, origins=origins, outlook=outlook)
