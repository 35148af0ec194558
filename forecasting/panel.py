"""Models that learn from several markets together: a panel of series in, an outlook for any of them out (M6.2).

A panel's series share variable and step but may begin and end at different times; slot numbers since the epoch say which slots
are the same. Cutting a panel at a slot cuts every series there, so a model that is handed a cut panel cannot know more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from forecasting.series import Series
from forecasting.univariate import FallsBack, FittedVariable, Outlook, VariableModel
from warehouse.errors import ForecastError

#: Why a market is answered by a model that was estimated on the others alone.
NEVER_SEEN = "market was not there when the model was estimated"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Series of one variable and step, each under a key of its own; raises `ForecastError` otherwise."""

    series: tuple[Series, ...]

    def __post_init__(self) -> None:
        kinds = {(one.variable, one.step) for one in self.series}
        if len(kinds) > 1 or len(self.places) < len(self.series):
            raise ForecastError(
                f"panel of {len(self.series)} series: {len(kinds)} kinds (variable, step), {len(self.places)} names",
                expected="one variable and one step, and no market of a source twice",
            )

    @cached_property
    def places(self) -> dict[str, int]:
        """Where the series of each key stands."""
        return {one.key: i for i, one in enumerate(self.series)}

    def __len__(self) -> int:
        return len(self.series)

    def until(self, slot: int) -> Panel:
        """Every series up to and with the slot of that number since the epoch; those that begin later are empty."""
        return Panel(series=tuple(one.until(slot) for one in self.series))


class FittedPanelModel(Protocol):
    """A panel model with its parameters estimated."""

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast series ``which`` of ``panel`` from each origin (ascending indices into that series, an observed value at or
        before each), reading no slot of any series after the origin's own."""
        ...


class PanelModel(Protocol):
    """A model of one variable over a panel, not yet estimated."""

    def fit(self, panel: Panel) -> FittedPanelModel:
        """Estimate on all of the panel, whose series may be empty or all gaps; never fails, falls back with a label."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EachAlone:
    """A model of single series as a panel model: every market is estimated on its own."""

    model: VariableModel

    def fit(self, panel: Panel) -> FittedEachAlone:
        """Estimate the model on every series that has an observed value."""
        fitted = {one.key: self.model.fit(one) for one in panel.series if one.observed.size}
        return FittedEachAlone(fitted=fitted, unseen=self.model.fit)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEachAlone:
    """The fitted model of every key; ``unseen`` estimates on what little there is of a market that came later."""

    fitted: dict[str, FittedVariable]
    unseen: Callable[[Series], FittedVariable]

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """The series' own model; a market without one is answered by the model of its past at the first origin, labelled."""
        series = panel.series[which]
        own = self.fitted.get(series.key)
        if own is None:
            young = self.unseen(series.part(0, int(origins[0]) + 1))
            own = FallsBack(simpler=young, reason=NEVER_SEEN)
        return own.outlook(series, origins, horizon)
