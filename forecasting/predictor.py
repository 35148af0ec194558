"""What a predictor is: a History in, a Forecast out; it sees nothing else (M6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import pandas as pd

from forecasting.forecast import LEVELS, Forecast, Variable
from forecasting.series import Series, capacities, newest_observed, series_of
from warehouse.errors import ForecastError
from warehouse.history import ROW_KNOWN_AT, History


class FittedPredictor(Protocol):
    """A predictor with its parameters estimated, standing at the last slot of the history it knows."""

    def extend(self, history: History) -> FittedPredictor:
        """Move the state to the end of a longer history of the same market without estimating again (M6.4)."""
        ...

    def forecast(self, *, horizon: int) -> Forecast:
        """Forecast the ``horizon`` slots after the last slot of the known history; never fails, falls back with a label."""
        ...

    def forecast_many(
        self, history: History, origins: Sequence[pd.Timestamp], *, horizon: int
    ) -> list[Forecast]:
        """One forecast per origin, equal to ``extend(history.until(origin)).forecast(...)`` but made in one pass."""
        ...


class Predictor(Protocol):
    """A model with its settings, not yet estimated."""

    @property
    def name(self) -> str:
        """What its forecasts are kept under."""

    def fit(self, history: History) -> FittedPredictor:
        """Estimate on everything in ``history`` (which ends at the decision time); never fails, falls back with a label."""
        ...


# ---
# From models of one variable to a predictor of both: time, gaps, empty histories and bounds are handled here, once.

NOTHING_OBSERVED = "no observed value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a model believes at each of m origins.

    ``quantiles`` has shape (m, h, 19), ``mean`` (m, h); ``reasons`` says for each origin why it fell back ("" = it did not).
    ``law`` (m, h, n), where the model has one, is the whole distribution of a count on 0..n-1.
    """

    quantiles: np.ndarray
    mean: np.ndarray
    reasons: tuple[str, ...]
    law: np.ndarray | None = None


class FittedVariable(Protocol):
    """A model of one variable with its parameters estimated."""

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast from each origin (an index into ``series`` with an observed value at or before it), reading nothing after it."""
        ...


class VariableModel(Protocol):
    """A model of one variable, not yet estimated."""

    def fit(self, series: Series) -> FittedVariable:
        """Estimate on the whole series; never fails: what cannot be estimated answers with a simpler model and a reason."""
        ...


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FallsBack:
    """A simpler model that answers in another's place, with the reason why."""

    simpler: FittedVariable
    reason: str

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """The simpler model's outlook under the reason (and the simpler model's own, if it has one)."""
        given = self.simpler.outlook(series, origins, horizon)
        reasons = tuple(f"{self.reason}; {own}" if own else self.reason for own in given.reasons)
        return replace(given, reasons=reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnivariatePredictor:
    """A predictor that forecasts price and count each with a model of its own."""

    name: str
    price: VariableModel
    count: VariableModel

    def fit(self, history: History) -> FittedUnivariate:
        """Estimate both models on everything in ``history``."""
        return FittedUnivariate(
            name=self.name,
            history=history,
            price=self.price.fit(series_of(history, "price")),
            count=self.count.fit(series_of(history, "count")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedUnivariate:
    """Both fitted models, standing at the last slot of ``history``."""

    name: str
    history: History
    price: FittedVariable
    count: FittedVariable

    def extend(self, history: History) -> FittedUnivariate:
        """Stand at the end of a longer history with the same parameters (M6.4)."""
        return replace(self, history=history)

    def forecast(self, *, horizon: int) -> Forecast:
        """Forecast the ``horizon`` slots after the last one; with no slot at all, after the time the history was known at."""
        slots = self.history.slots
        if len(slots) == 0:
            return self._of_nothing(horizon)
        return self._batch(self.history, np.array([len(slots) - 1]), horizon)[0]

    def forecast_many(
        self, history: History, origins: Sequence[pd.Timestamp], *, horizon: int
    ) -> list[Forecast]:
        """One forecast per origin in one pass, equal to ``extend(history.until(origin)).forecast(horizon=horizon)``.

        Origins at which a row of their past was not yet known (learned late) are done one by one.
        """
        if not len(origins):
            return []
        at = pd.DatetimeIndex(list(origins))
        places = np.asarray(history.slots.searchsorted(at, side="right")) - 1
        plain = (places >= 0) & ~_learned_late(history, at, places)
        made = iter(self._batch(history, places[plain], horizon)) if plain.any() else iter(())
        return [
            next(made) if simple else self.extend(history.until(origin)).forecast(horizon=horizon)
            for origin, simple in zip(at, plain, strict=True)
        ]

    def _of_nothing(self, horizon: int) -> Forecast:
        at = self.history.known_at
        nowhere = np.full((1, horizon, LEVELS.size), 0.0)
        price = nowhere + self.history.on_demand_usd
        return Forecast(
            market=self.history.market, issued_at=at, step=self.history.step, predictor=self.name, newest_row=at,
            price=price[0], price_mean=price[0, :, 0], count=nowhere[0], count_mean=nowhere[0, :, 0],
            capacity=self.history.capacity, price_fallback=NOTHING_OBSERVED, count_fallback=NOTHING_OBSERVED,
        )  # fmt: skip

    def _batch(self, history: History, places: np.ndarray, horizon: int) -> list[Forecast]:
        prices, counts = series_of(history, "price"), series_of(history, "count")
        price = _known_outlook(self.price, prices, places, horizon, unknown=history.on_demand_usd)
        count = _known_outlook(self.count, counts, places, horizon, unknown=0.0)
        newest = np.maximum(prices.newest, counts.newest)[places]
        slots, capacity = history.slots, capacities(history)
        return [
            Forecast(
                market=history.market,
                issued_at=slots[place],
                step=history.step,
                predictor=self.name,
                # Of nothing observed the newest row is the origin itself: the reasons say that it holds no value.
                newest_row=slots[newest[i]] if newest[i] >= 0 else slots[place],
                price=price.quantiles[i],
                price_mean=price.mean[i],
                count=count.quantiles[i],
                count_mean=count.mean[i],
                capacity=int(capacity[place]),
                price_fallback=price.reasons[i],
                count_fallback=count.reasons[i],
            )
            for i, place in enumerate(places)
        ]


def _known_outlook(
    fitted: FittedVariable, series: Series, places: np.ndarray, horizon: int, *, unknown: float
) -> Outlook:
    """The model's outlook where anything was observed, ``unknown`` under its reason where nothing was."""
    seen = series.newest[places] >= 0
    quantiles = np.full((places.size, horizon, LEVELS.size), unknown)
    mean = np.full((places.size, horizon), unknown)
    reasons = [NOTHING_OBSERVED] * places.size
    if seen.any():
        given = fitted.outlook(series, places[seen], horizon)
        quantiles[seen], mean[seen] = bounded(given.quantiles, given.mean, series, places[seen])
        for place, reason in zip(np.flatnonzero(seen), given.reasons, strict=True):
            reasons[place] = reason
    return Outlook(quantiles=quantiles, mean=mean, reasons=tuple(reasons))


def _learned_late(history: History, at: pd.DatetimeIndex, places: np.ndarray) -> np.ndarray:
    """For each origin, whether a row of its past became known only after it, shape (origins,)."""
    known = history.frame[ROW_KNOWN_AT]
    if not len(known):
        return np.zeros(at.size, dtype=bool)
    times = known.fillna(history.slots[0]).dt.tz_convert("UTC").to_numpy(dtype="datetime64[ns]")
    newest = np.maximum.accumulate(times)
    return np.asarray(newest[np.maximum(places, 0)] > at.to_numpy(dtype="datetime64[ns]"))


# ---
# Models that learn from several markets together: a panel of series in, an outlook for any of them out (M6.2).
#
# A panel's series share variable and step but may begin and end at different times; slot numbers since the epoch say which slots
# are the same. Cutting a panel at a slot cuts every series there, so a model that is handed a cut panel cannot know more.

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


# ---
# A predictor that learns from several markets: both variables' panel models in one, for live turns and single histories.


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPredictor:
    """A predictor of price and count whose models learn from all markets they are shown."""

    name: str
    price: PanelModel
    count: PanelModel

    def fit(self, history: History) -> FittedUnivariate:
        """Estimate on one market alone."""
        return self.fit_panel([history]).of(history)

    def fit_panel(self, histories: Sequence[History]) -> FittedPanelPredictor:
        """Estimate both models on everything in ``histories`` (one step, each market of a source once)."""
        return FittedPanelPredictor(
            name=self.name,
            price=self.price.fit(Panel(series=tuple(series_of(one, "price") for one in histories))),
            count=self.count.fit(Panel(series=tuple(series_of(one, "count") for one in histories))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPanelPredictor:
    """Both panel models with their parameters estimated."""

    name: str
    price: FittedPanelModel
    count: FittedPanelModel

    def of(self, history: History, peers: Sequence[History] = ()) -> FittedUnivariate:
        """The predictor of one market, standing at the end of its history, that may look at its peers."""
        return self.among(history, peers_from(peers))

    def among(self, history: History, peers: Peers) -> FittedUnivariate:
        """The same with the peers' series taken out of their histories before, once for all markets; its own may be among them."""
        return FittedUnivariate(
            name=self.name,
            history=history,
            price=AmongPeers(model=self.price, peers=peers.price),
            count=AmongPeers(model=self.count, peers=peers.count),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """What markets may see of each other: the series of each, without the values that became known after their slot began."""

    price: tuple[Series, ...] = ()
    count: tuple[Series, ...] = ()


def peers_from(histories: Sequence[History]) -> Peers:
    """The histories as peers: what their series show was known at every origin."""
    return Peers(
        price=tuple(_punctual(one, "price") for one in histories),
        count=tuple(_punctual(one, "count") for one in histories),
    )


def _punctual(history: History, variable: Variable) -> Series:
    """A series without the values that became known late."""
    series = series_of(history, variable)
    known = history.frame[ROW_KNOWN_AT]
    late = (known > history.slots.to_series(index=known.index)).to_numpy(dtype=bool)
    if not late.any():
        return series
    values = np.where(late, np.nan, series.values)
    within = np.where(late[:, None], np.nan, series.within)
    return replace(series, values=values, within=within, newest=newest_observed(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class AmongPeers:
    """A panel model as the model of one variable of one market, beside the series of its peers."""

    model: FittedPanelModel
    peers: tuple[Series, ...] = ()

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """The panel model's outlook at origins in any order; peers are cut at the last."""
        ascending, back = np.unique(origins, return_inverse=True)
        last = series.first_slot + int(ascending[-1])
        own = series.until(last)
        others = tuple(peer.until(last) for peer in self.peers if peer.key != series.key)
        given = self.model.outlook(Panel(series=(own, *others)), 0, ascending, horizon)
        return Outlook(
            quantiles=given.quantiles[back],
            mean=given.mean[back],
            reasons=tuple(given.reasons[place] for place in back),
            law=None if given.law is None else given.law[back],
        )
