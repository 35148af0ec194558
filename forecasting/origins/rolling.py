"""Rolling origins over panels: who forecasts what from which estimation, cut into units of work that need no one else
(M6.4, M6.5).

A `Rolling` says everything a backtest depends on; `units_of` cuts it into units (panel, model, fit slot),
`forecast_blocks` makes the forecasts of one. A unit is a pure function of the data up to its last origin, so units may
run in any order, in any process, at any time, and be kept. The timetable: estimations at multiples of the refit
cadence since the epoch, an origin uses the last one at or before it; where that would leave less than half of the
training part, the one at its series' test start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from forecasting.accuracy.columns import FLOOR
from forecasting.forecast import LEVELS, Variable
from forecasting.predictor import (
    EachAlone,
    Outlook,
    Panel,
    PanelModel,
    Predictor,
    UnivariatePredictor,
    bounded,
)
from forecasting.predictors import make_predictor
from forecasting.predictors.last_value import LastValue
from forecasting.series import Series
from warehouse.errors import ForecastError, SettingsError

#: How often models are estimated again unless told otherwise.
REFIT: Mapping[Variable, pd.Timedelta] = {"count": pd.Timedelta(days=1), "price": pd.Timedelta(days=7)}
#: Why last value answers in the place of a model whose numbers are not finite.
NO_NUMBER = "the model gave no number"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestPart:
    """What a series is tested on: ascending ``origins`` (indices), and ``start``, the last index of the training part."""

    __test__ = False

    start: int
    origins: np.ndarray


def second_half(series: Series, since: pd.Timestamp | None = None) -> TestPart:
    """The usual test part: every slot from the last of the first half to the one before the last, not earlier than
    ``since``.

    Slots without an observed value at or before them are no origins. An empty series has no origin.
    """
    n = len(series)
    start = max(n // 2 - 1, 0)
    first = start
    if since is not None:
        slot = -(-(since - pd.Timestamp(0, tz="UTC")) // series.step)
        first = max(start, int(slot) - series.first_slot)
    origins = np.arange(first, max(n - 1, first))
    return TestPart(start=start, origins=origins[series.newest[origins] >= 0] if n else origins[:0])


@dataclass(frozen=True, kw_only=True)
class Rolling:
    """A backtest: ``panels``, the test part of every series of each, and ``models`` by name, each with its panel
    model by variable.

    ``refit``: time between estimations by variable; the model named `FLOOR` is estimated once, at its series' test start.
    ``early``, if given, holds for each panel further slots (since the epoch, ascending) at which models are estimated, such as
    those at which drift was found (`forecasting.diagnosis.drift.early_fits`). Raises `SettingsError` for a horizon below 1,
    a cadence that is not positive, or test parts or early slots that do not match the panels.
    """

    panels: tuple[Panel, ...]
    parts: tuple[tuple[TestPart, ...], ...]
    models: Mapping[str, Mapping[Variable, PanelModel]]
    horizon: int = 12
    refit: Mapping[Variable, pd.Timedelta]
    early: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.horizon < 1 or min(self.refit.values()) <= pd.Timedelta(0):
            raise SettingsError(
                f"horizon {self.horizon}, refit {[str(every) for every in self.refit.values()]}",
                expected="at least one step and a positive cadence",
            )
        if [len(panel) for panel in self.panels] != [len(parts) for parts in self.parts]:
            raise SettingsError("test parts that do not match the panels", expected="one per series")
        if self.early and len(self.early) != len(self.panels):
            raise SettingsError(
                f"early estimations for {len(self.early)} of {len(self.panels)} panels",
                expected="one tuple each",
            )

    def variable(self, panel: int) -> Variable:
        """The variable of a panel."""
        return self.panels[panel].series[0].variable


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
    """The forecasts of one model for one series from one estimation; `Outlook` says what the arrays are.

    ``origins`` (m,) are indices into the series; all numbers are finite, within their bounds and whole for counts (M6.3).
    """

    model: str
    panel: int
    which: int
    fit_slot: int
    origins: np.ndarray
    outlook: Outlook


def panel_models(name: str) -> dict[Variable, PanelModel]:
    """The registered predictor's model of each variable as panel models; raises `SettingsError` on an unknown name."""
    return models_of(make_predictor(name))


def models_of(predictor: Predictor) -> dict[Variable, PanelModel]:
    """A predictor's models as panel models; raises `SettingsError` if it has none (it is no model of one variable each)."""
    if isinstance(predictor, UnivariatePredictor):
        return {"price": EachAlone(model=predictor.price), "count": EachAlone(model=predictor.count)}
    price, count = getattr(predictor, "price", None), getattr(predictor, "count", None)
    if price is None or count is None:
        raise SettingsError(f"predictor {predictor.name!r}", expected="models of price and of count")
    return {"price": price, "count": count}


def fit_slots(
    series: Series, part: TestPart, refit: pd.Timedelta | None, early: Sequence[int] = ()
) -> np.ndarray:
    """The slot (number since the epoch) whose estimation each origin uses, shape of the origins; None: the test start's.

    Of ``early`` slots (ascending) the last one at or before an origin is used where it is later than the timetable's.
    """
    start = series.first_slot + part.start
    if refit is None:
        return np.full(part.origins.shape, start)
    every = max(1, round(refit / series.step))
    at = series.first_slot + part.origins
    slots = at // every * every
    if len(early):
        place = np.searchsorted(np.asarray(early), at, side="right") - 1
        slots = np.maximum(slots, np.where(place >= 0, np.asarray(early)[np.maximum(place, 0)], slots))
    too_early = 2 * (slots - series.first_slot + 1) < part.start + 1
    return np.where(too_early, start, slots)


def units_of(rolling: Rolling) -> list[Unit]:
    """Every unit, panel by panel; within a panel neighbours are unlike, so that parcels of them cost alike."""
    units: list[Unit] = []
    for place in range(len(rolling.panels)):
        own = [unit for model in rolling.models for unit in _units(rolling, place, model)]
        units += [own[i] for first in range(_PARCELS) for i in range(first, len(own), _PARCELS)]
    return units


#: Units are dealt out like cards, to so many hands.
_PARCELS = 16


def _units(rolling: Rolling, place: int, model: str) -> list[Unit]:
    refit = None if model == FLOOR else rolling.refit[rolling.variable(place)]
    early = rolling.early[place] if rolling.early else ()
    groups: dict[int, list[tuple[int, np.ndarray]]] = {}
    for which, (series, part) in enumerate(
        zip(rolling.panels[place].series, rolling.parts[place], strict=True)
    ):
        slots = fit_slots(series, part, refit, early)
        for slot in np.unique(slots):
            groups.setdefault(int(slot), []).append((which, part.origins[slots == slot]))
    return [
        Unit(panel=place, model=model, fit_slot=slot, origins=tuple(groups[slot])) for slot in sorted(groups)
    ]


def seen_by(unit: Unit, rolling: Rolling) -> tuple[Panel, list[int]]:
    """The panel a unit's model is shown (before it is cut), and where the series of its origins stand in it.

    A model that estimates every market alone is shown only the markets that it is asked about.
    """
    panel = rolling.panels[unit.panel]
    asked = [which for which, _ in unit.origins]
    if isinstance(rolling.models[unit.model][rolling.variable(unit.panel)], EachAlone):
        return Panel(series=tuple(panel.series[which] for which in asked)), list(range(len(asked)))
    return panel, asked


def last_slot(unit: Unit, rolling: Rolling) -> int:
    """The last slot (since the epoch) that any forecast of a unit may know."""
    series = rolling.panels[unit.panel].series
    return max([unit.fit_slot, *(series[which].first_slot + int(at[-1]) for which, at in unit.origins)])


def forecast_unit(unit: Unit, rolling: Rolling) -> list[Block]:
    """The blocks of `forecast_blocks`, all held at once."""
    return list(forecast_blocks(unit, rolling))


def forecast_blocks(unit: Unit, rolling: Rolling) -> Iterator[Block]:
    """Estimate once and forecast from every origin of a unit; one block per series, in their order, made when it is asked for.

    The model is handed the panel cut at the fit slot, its forecasts of a series the panel cut at that series' last
    origin. Raises `ForecastError` on an answer of the wrong shape; numbers that are not finite are replaced by last
    value's, labelled.
    """
    panel, places = seen_by(unit, rolling)
    fitted = rolling.models[unit.model][rolling.variable(unit.panel)].fit(panel.until(unit.fit_slot))
    cuts: dict[int, Panel] = {}
    for place, (which, origins) in zip(places, unit.origins, strict=True):
        last = panel.series[place].first_slot + int(origins[-1])
        if last not in cuts:  # one object per cut: a model may keep what it worked out for a panel
            cuts[last] = panel.until(last)
        given = fitted.outlook(cuts[last], place, origins, rolling.horizon)
        outlook = _checked(given, cuts[last].series[place], origins, unit, rolling.horizon)
        yield Block(
            model=unit.model, panel=unit.panel, which=which, fit_slot=unit.fit_slot, origins=origins, outlook=outlook
        )  # fmt: skip


def _checked(given: Outlook, series: Series, origins: np.ndarray, unit: Unit, horizon: int) -> Outlook:
    """The outlook within its bounds; last value's where a number is not finite."""
    shape = (origins.size, horizon)
    if (
        given.quantiles.shape != (*shape, LEVELS.size)
        or given.mean.shape != shape
        or len(given.reasons) != shape[0]
    ):
        raise ForecastError(
            f"{unit.model} on {series.key}: quantiles of shape {given.quantiles.shape}, mean {given.mean.shape}, "
            f"{len(given.reasons)} reasons",
            expected=f"{(*shape, LEVELS.size)}, {shape} and {shape[0]}",
        )
    lost = ~(np.isfinite(given.quantiles).all(axis=(1, 2)) & np.isfinite(given.mean).all(axis=1))
    if given.law is not None:
        lost |= ~np.isfinite(given.law).all(axis=(1, 2))
    if lost.any():
        given = _patched(given, series, origins, unit.fit_slot, lost)
    quantiles, mean = bounded(given.quantiles, given.mean, series, origins)
    return replace(given, quantiles=quantiles, mean=mean)


def _patched(given: Outlook, series: Series, origins: np.ndarray, fit_slot: int, lost: np.ndarray) -> Outlook:
    """Last value's answer where the model's is not finite; the law is given up, since last value has none."""
    horizon = given.mean.shape[1]
    simpler = LastValue().fit(series.until(fit_slot)).outlook(series, origins, horizon)
    return Outlook(
        quantiles=np.where(lost[:, None, None], simpler.quantiles, given.quantiles),
        mean=np.where(lost[:, None], simpler.mean, given.mean),
        reasons=tuple(NO_NUMBER if gone else why for gone, why in zip(lost, given.reasons, strict=True)),
    )
