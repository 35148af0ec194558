"""A predictor that learns from several markets: both variables' panel models in one, for live turns and single histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forecasting.forecast import Variable
from forecasting.panel import FittedPanelModel, Panel, PanelModel
from forecasting.series import Series, newest_observed, series_of
from forecasting.univariate import FittedUnivariate, Outlook
from warehouse.history import ROW_KNOWN_AT, History


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
