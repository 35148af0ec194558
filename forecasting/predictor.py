"""What a predictor is: a panel of series in, an outlook for any of them out; it sees nothing else (M6.1, M6.2, M6.4).

A panel is one variable of several markets. Its series share variable and step but may begin and end at different times;
slot numbers since the epoch say which slots are the same. Cutting a panel at a slot cuts every series there, so a
predictor that is handed a cut panel cannot know more. When it is handed what is the timetable's business
(`forecasting.origins`): gaps, histories without a value, bounds and crossing quantiles are seen to there, once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from forecasting.quantiles import Variable
from forecasting.series import Series
from forecasting.state import stored
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

    @property
    def variable(self) -> Variable:
        """The variable of all series; raises `ForecastError` for a panel without any."""
        if not self.series:
            raise ForecastError("a panel of no series", expected="at least one")
        return self.series[0].variable

    def __len__(self) -> int:
        return len(self.series)

    def until(self, slot: int) -> Panel:
        """Every series up to and with the slot of that number since the epoch; those that begin later are empty."""
        return Panel(series=tuple(one.until(slot) for one in self.series))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a model believes at each of m origins.

    ``quantiles`` has shape (m, h, 19), ``mean`` (m, h); ``reasons`` says for each origin why it fell back ("" = it did
    not). ``law`` (m, h, n), where the model has one, is the whole distribution of a count on 0..n-1.
    """

    quantiles: np.ndarray
    mean: np.ndarray
    reasons: tuple[str, ...]
    law: np.ndarray | None = None


class FittedPredictor(Protocol):
    """A predictor with its parameters estimated; a frozen dataclass marked with `forecasting.state.stored`."""

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast series ``which`` of ``panel`` for 1..``horizon`` slots after each origin.

        Origins are ascending indices into that series with an observed value at or before each. No slot of any series
        after an origin's own may be read for it. Never fails: what the model cannot answer a simpler one does, with a
        reason.
        """
        ...


class Model(Protocol):
    """A model with its settings, not yet estimated: of one variable, or of either."""

    def fit(self, panel: Panel) -> FittedPredictor:
        """Estimate on all of ``panel``, whose series may be empty or all gaps; never fails, falls back with a reason."""
        ...


class Predictor(Model, Protocol):
    """A `Model` of price and of count, each from a panel of its own, under a name.

    The one thing a forecaster has to be: turns, backfills, experiments and the accuracy report take whatever satisfies it.
    """

    @property
    def name(self) -> str:
        """What its forecasts are kept under."""

    @property
    def pooled(self) -> bool:
        """Whether it learns from all markets of a source together; else it is shown panels of one series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByVariable:
    """A predictor that has a model for each variable."""

    name: str
    price: Model
    count: Model
    pooled: bool

    def fit(self, panel: Panel) -> FittedPredictor:
        """Estimate the model of the panel's variable."""
        return (self.price if panel.variable == "price" else self.count).fit(panel)


# ---
# Models of one series as models of a panel.


class FittedSeriesModel(Protocol):
    """A model of one series with its parameters estimated."""

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """`FittedPredictor.outlook` of a series by itself."""
        ...


class SeriesModel(Protocol):
    """A model of one series, not yet estimated."""

    def fit(self, series: Series) -> FittedSeriesModel:
        """Estimate on the whole series, which may be empty; never fails, falls back with a reason."""
        ...


def each_alone(name: str, *, price: SeriesModel, count: SeriesModel) -> ByVariable:
    """The predictor that estimates and forecasts every market by itself."""
    return ByVariable(name=name, price=EachAlone(model=price), count=EachAlone(model=count), pooled=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EachAlone:
    """A model of single series as a model of a panel: every market is estimated on its own."""

    model: SeriesModel

    def fit(self, panel: Panel) -> FittedEachAlone:
        """Estimate the model on every series."""
        return FittedEachAlone(
            model=self.model, fitted={one.key: self.model.fit(one) for one in panel.series}
        )


@stored("each_alone")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEachAlone:
    """The fitted model of every key; ``model`` estimates on what little there is of a market that came later."""

    model: SeriesModel
    fitted: dict[str, FittedSeriesModel]

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """The series' own model; a market without one by the model of its past at each origin, labelled."""
        series = panel.series[which]
        own = self.fitted.get(series.key)
        if own is not None:
            return own.outlook(series, origins, horizon)
        parts = []
        for origin in origins:
            young = self.model.fit(series.part(0, int(origin) + 1))
            parts.append(
                FallsBack(simpler=young, reason=NEVER_SEEN).outlook(series, np.array([origin]), horizon)
            )
        return Outlook(
            quantiles=np.concatenate([one.quantiles for one in parts]),
            mean=np.concatenate([one.mean for one in parts]),
            reasons=tuple(one.reasons[0] for one in parts),
        )


@stored("falls_back")
@dataclass(frozen=True, slots=True, kw_only=True)
class FallsBack:
    """A simpler model that answers in another's place, with the reason why."""

    simpler: FittedSeriesModel
    reason: str

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """The simpler model's outlook under the reason (and the simpler model's own, if it has one)."""
        given = self.simpler.outlook(series, origins, horizon)
        reasons = tuple(f"{self.reason}; {own}" if own else self.reason for own in given.reasons)
        return replace(given, reasons=reasons)


def bounded(
    quantiles: np.ndarray, mean: np.ndarray, series: Series, origins: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles that do not cross and stay within 0 and the bound known at the origin, whole for counts (M6.3)."""
    upper = series.upper[origins]
    if series.variable == "count":
        quantiles = np.floor(
            quantiles + 0.5 + 1e-9
        )  # halves go up, also when they are a rounding error short
    quantiles = np.maximum.accumulate(quantiles, axis=2)
    return np.clip(quantiles, 0.0, upper[:, None, None]), np.clip(mean, 0.0, upper[:, None])


def mixed(own: Outlook, other: Outlook, use_other: np.ndarray) -> Outlook:
    """``own`` where ``use_other`` (m,) is False, ``other`` with its reasons where it is True; a law only if both have one."""
    law = None
    if own.law is not None and other.law is not None and own.law.shape == other.law.shape:
        law = np.where(use_other[:, None, None], other.law, own.law)
    return Outlook(
        law=law,
        quantiles=np.where(use_other[:, None, None], other.quantiles, own.quantiles),
        mean=np.where(use_other[:, None], other.mean, own.mean),
        reasons=tuple(
            o if use else a for a, o, use in zip(own.reasons, other.reasons, use_other, strict=True)
        ),
    )
