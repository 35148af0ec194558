"""The median forecasts that plans would have read: of any models, at the slots asked for, from a backtest's blocks or made now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from forecasting.origins import Block, Rolling, Timetable, Unit, forecast_blocks, units_of
from forecasting.predictor import Panel, Predictor
from forecasting.quantiles import LEVELS, Variable
from forecasting.series import Series
from optimization.replay.run import spread

#: Place of the median among the levels.
_MEDIAN = LEVELS.size // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Medians:
    """Median forecasts by (model, variable, series key) and slot number since the epoch, each of shape (h,)."""

    table: dict[tuple[str, Variable, str], dict[int, np.ndarray]] = field(default_factory=dict)

    def copy(self) -> Medians:
        """The same forecasts in tables of their own."""
        return Medians(table={key: dict(own) for key, own in self.table.items()})

    def at(self, model: str, series: Series, slot: int) -> np.ndarray | None:
        """The median issued by ``model`` in a slot (index into ``series``); None where there is none."""
        own = self.table.get((model, series.variable, series.key), {})
        return own.get(series.first_slot + slot)

    def add(self, blocks: Iterable[Block], panels: Sequence[Panel]) -> None:
        """Take in the blocks of a backtest over ``panels``."""
        for block in blocks:
            series = panels[block.panel].series[block.which]
            own = self.table.setdefault((block.model, series.variable, series.key), {})
            medians = block.outlook.quantiles[:, :, _MEDIAN].copy()  # a view would hold all levels
            own.update(zip((series.first_slot + block.origins).tolist(), medians, strict=True))


def add_missing(
    medians: Medians,
    panels: Sequence[Panel],
    wanted: Mapping[tuple[Variable, str], Iterable[int]],
    models: Mapping[str, Predictor],
    *,
    timetable: Timetable,
    horizon: int,
    processes: int = 1,
) -> None:
    """Make the forecasts that ``medians`` lacks, on the timetable of a backtest.

    ``wanted`` says by variable and series key in which slots (indices into the series) a forecast is read; a slot without an
    observed value at or before it has none. Each model is estimated by the timetable, and reads nothing after a slot for it.
    """
    backtests = tuple(
        Rolling(
            panels=tuple(panels),
            origins=tuple(
                tuple(
                    _lacking(one, name, wanted.get((one.variable, one.key), ()), medians)
                    for one in panel.series
                )
                for panel in panels
            ),
            predictors={name: own},
            horizon=horizon,
            timetable=timetable,
        )
        for name, own in models.items()
    )
    work = [(place, unit) for place, backtest in enumerate(backtests) for unit in units_of(backtest)]
    for blocks in spread(_forecast, work, backtests, processes=processes):
        medians.add(blocks, panels)


def _forecast(item: tuple[int, Unit], backtests: tuple[Rolling, ...]) -> list[Block]:
    place, unit = item
    return list(forecast_blocks(unit, backtests[place]))


def _lacking(series: Series, model: str, slots: Iterable[int], medians: Medians) -> np.ndarray:
    """The wanted slots of a series that no forecast is known for, ascending."""
    known = medians.table.get((model, series.variable, series.key), {})
    lacking = sorted(t for t in set(slots) if series.first_slot + t not in known)
    origins = np.array(lacking, dtype=np.int64)
    return origins[series.newest[origins] >= 0] if origins.size else origins


def panels_of(series: Sequence[Series]) -> list[Panel]:
    """One panel for each source and variable, in order of first appearance; a key that comes twice is kept once."""
    groups: dict[tuple[str, Variable, pd.Timedelta], dict[str, Series]] = {}
    for one in series:
        groups.setdefault((one.source, one.variable, one.step), {}).setdefault(one.key, one)
    return [Panel(series=tuple(own.values())) for own in groups.values()]
