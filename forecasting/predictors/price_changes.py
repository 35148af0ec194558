"""Prices as a process of changes: when the next ones come, and how far they carry the price (M6.2).

Spot prices of today are set anew every few hours and mostly go on the way they went; auction prices jump and come back. Both
are a renewal process of changes, whose hazard depends on the time since the last, times changes of the logarithm that depend
on the last one. The hazard is that of the market, drawn to the panel's in relative time (time since the last change in units
of the recent interval); sizes are in units of the market's recent changes and pooled over the panel (ours).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from forecasting.forecast import LEVELS
from forecasting.panel import Panel
from forecasting.price_features import PriceState, price_state
from forecasting.series import Series
from forecasting.univariate import Outlook

#: Changes within the horizon that are told apart; more are taken for so many.
MOST_CHANGES = 5
#: Points that a law of sizes is kept as.
POINTS = 25
#: Ages (slots) up to which a market's own hazard is tabulated.
OLDEST = 96
#: Edges of relative age between which the panel's hazard is constant.
EDGES = np.array([0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0])
#: Changes that the panel's hazard counts as, against the market's own.
PRIOR_CHANGES = 5.0
#: After so many days what was seen counts half.
HALF_LIFE = pd.Timedelta(days=15)
FEWEST_CHANGES = 12
_LARGEST = 6.0


def recent_interval(state: PriceState, usual: float) -> np.ndarray:
    """Mean slots between the recent changes, drawn to the usual one while there are few, shape (slots,)."""
    seen = np.clip(state.count - 1, 0, 7)
    own = np.where(np.isfinite(state.interval), state.interval, 0.0)
    return np.maximum((seen * own + usual) / (seen + 1), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeProcess:
    """Model of a price over a panel as a renewal process of changes."""

    def fit(self, panel: Panel) -> FittedChangeProcess:
        """Count ages at which prices changed and did not, and regress each change's successors on it."""
        states = {one.key: price_state(one) for one in panel.series}
        lively = [one for one in panel.series if states[one.key].when.size > 1]
        if sum(states[one.key].when.size for one in lively) < FEWEST_CHANGES:
            return FittedChangeProcess(usual=np.inf, rate=np.zeros(EDGES.size + 1), own={}, sizes=())
        end = max(one.end for one in panel.series)
        spans = np.concatenate([np.diff(states[one.key].when) for one in lively])
        usual = float(np.clip(np.mean(spans), 1.0, 96.0))
        exposure, events = np.zeros(EDGES.size + 1), np.zeros(EDGES.size + 1)
        tables = {}
        for one in lively:
            risk = _at_risk(one, states[one.key], usual, end)
            exposure += np.bincount(risk.bin, risk.weight / risk.interval, EDGES.size + 1)
            events += np.bincount(risk.bin, risk.weight * risk.changed, EDGES.size + 1)
            tables[one.key] = (
                np.bincount(risk.age, risk.weight, OLDEST + 1), np.bincount(risk.age, risk.weight * risk.changed, OLDEST + 1)
            )  # fmt: skip
        overall = events.sum() / exposure.sum()
        rate = (events + 3.0 * overall) / (exposure + 3.0)
        sizes = tuple(_size_law(lively, states, n, end) for n in range(1, MOST_CHANGES + 1))
        return FittedChangeProcess(usual=usual, rate=rate, own=tables, sizes=sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRisk:
    """Slots at which a price could change: its age there (1 = the slot after a change), relative-age bin, weight, whether it did."""

    age: np.ndarray
    bin: np.ndarray
    interval: np.ndarray
    weight: np.ndarray
    changed: np.ndarray


def _at_risk(series: Series, state: PriceState, usual: float, end: int) -> AtRisk:
    slots = np.flatnonzero(state.moves[:-1]) + 1
    age = state.age[slots - 1] + 1
    interval = recent_interval(state, usual)[slots - 1]
    return AtRisk(
        age=np.minimum(age, OLDEST).astype(int), bin=np.searchsorted(EDGES, age / interval), interval=interval,
        weight=np.exp2(-(end - series.first_slot - slots) * (series.step / HALF_LIFE)), changed=state.age[slots] == 0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLaw:
    """Where the price stands after some more changes, in units of recent ones: slope x last + a law of residuals.

    The residual is scaled by ``scale[0] + scale[1] |last|``; ``points`` are its quantiles at equidistant levels.
    """

    slope: float
    scale: tuple[float, float]
    points: np.ndarray


def _size_law(lively: list[Series], states: dict[str, PriceState], n: int, end: int) -> SizeLaw | None:
    before, after, weight = [], [], []
    for one in lively:
        state = states[one.key]
        if state.when.size <= n + 1:
            continue
        path = np.concatenate([[0.0], np.cumsum(state.by)])
        i = np.arange(1, state.when.size - n)
        unit = state.size[state.when[i]]
        before.append(state.by[i] / unit)
        after.append((path[i + 1 + n] - path[i + 1]) / unit)
        weight.append(np.exp2(-(end - one.first_slot - state.when[i]) * (one.step / HALF_LIFE)))
    if not before:
        return None
    x, z, w = np.concatenate(before), np.concatenate(after), np.concatenate(weight)
    z = np.clip(z, -4 * _LARGEST * n, 4 * _LARGEST * n)
    cut = np.clip(z, -_LARGEST, _LARGEST)
    slope = float((w * x * cut).sum() / ((w * x * x).sum() + 1.0))
    rest = z - slope * x
    size = np.abs(x)
    spread = np.minimum(np.abs(rest), _LARGEST)
    level, tilt = _line(size, spread, w)
    rest = rest / (level + tilt * size)
    order = np.argsort(rest)
    share = (np.cumsum(w[order]) - 0.5 * w[order]) / w.sum()
    points = np.interp((np.arange(POINTS) + 0.5) / POINTS, share, rest[order])
    return SizeLaw(slope=slope, scale=(level, tilt), points=points)


def _line(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> tuple[float, float]:
    """Weighted least squares of y >= 0 on x >= 0 with both coefficients not negative and the first positive."""
    mx, my = np.average(x, weights=w), np.average(y, weights=w)
    tilt = float((w * (x - mx) * (y - my)).sum() / ((w * (x - mx) ** 2).sum() + 1e-9))
    tilt = min(max(tilt, 0.0), 0.95 * my / mx if mx > 0 else 0.0)
    return max(my - tilt * mx, 1e-9), tilt


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedChangeProcess:
    """``usual`` interval, hazard ``rate`` by relative age, each market's exposures and changes by age, laws after 1.. changes."""

    usual: float
    rate: np.ndarray
    own: dict[str, tuple[np.ndarray, np.ndarray]]
    sizes: tuple[SizeLaw | None, ...]

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        series = panel.series[which]
        state = price_state(series)
        last = series.last(origins)
        mean = np.repeat(last[:, None], horizon, axis=1)
        quantiles = np.repeat(mean[:, :, None], LEVELS.size, axis=2)
        lively = np.flatnonzero(state.moves[origins])
        if self.sizes and lively.size:
            for begin in range(0, lively.size, 2000):
                mine = lively[begin : begin + 2000]
                quantiles[mine] = self._quantiles(series, state, origins[mine], horizon)
            mean = np.where(quantiles[:, :, 0] < quantiles[:, :, -1], quantiles.mean(axis=2), mean)
        return Outlook(quantiles=quantiles, mean=mean, reasons=("",) * origins.size)

    def hazard(self, key: str, age: np.ndarray, interval: np.ndarray) -> np.ndarray:
        """Chance of a change at a slot that would end an age, shapes broadcast."""
        rate = self.rate[np.searchsorted(EDGES, age / interval)]
        pooled = 1.0 - np.exp(-rate / interval)
        if key not in self.own:
            return pooled
        exposure, events = self.own[key]
        place = np.minimum(age, OLDEST).astype(int)
        # The panel's hazard counts as the exposure on which it would have seen PRIOR_CHANGES.
        prior = PRIOR_CHANGES / np.maximum(pooled, 1e-3)
        return (events[place] + prior * pooled) / (exposure[place] + prior)

    def chances(self, series: Series, state: PriceState, origins: np.ndarray, horizon: int) -> np.ndarray:
        """P(exactly n changes within k slots), shape (origins, horizon, MOST_CHANGES + 1)."""
        interval = recent_interval(state, self.usual)[origins]
        steps = np.arange(1, horizon + 1)
        first = _first(self.hazard(series.key, state.age[origins][:, None] + steps, interval[:, None]))
        again = _first(self.hazard(series.key, np.broadcast_to(steps, first.shape), interval[:, None]))
        at_least = [np.ones(first.shape)]
        arrival = first
        for n in range(MOST_CHANGES):
            at_least.append(np.cumsum(arrival, axis=1))
            if n + 1 < MOST_CHANGES:
                later = np.zeros_like(arrival)
                for j in range(1, horizon):
                    later[:, j:] += arrival[:, : horizon - j] * again[:, j - 1 : j]
                arrival = later
        at_least.append(np.zeros(first.shape))
        return np.stack([at_least[n] - at_least[n + 1] for n in range(MOST_CHANGES + 1)], axis=-1)

    def _quantiles(self, series: Series, state: PriceState, origins: np.ndarray, horizon: int) -> np.ndarray:
        chances = self.chances(series, state, origins, horizon)
        unit = state.size[origins]
        x = state.last[origins] / unit
        points, weights = [np.zeros((origins.size, 1))], [chances[:, :, :1]]
        law = None
        for n in range(1, MOST_CHANGES + 1):
            law = self.sizes[n - 1] or law
            if law is None:
                continue
            points.append(
                (law.slope * x)[:, None] + (law.scale[0] + law.scale[1] * np.abs(x))[:, None] * law.points
            )
            weights.append(np.repeat(chances[:, :, n : n + 1] / POINTS, POINTS, axis=2))
        value = np.concatenate(points, axis=1)
        order = np.argsort(value, axis=1)
        value = np.take_along_axis(value, order, axis=1)
        weight = np.take_along_axis(np.concatenate(weights, axis=2), order[:, None, :], axis=2)
        total = np.cumsum(weight, axis=2)
        total /= total[:, :, -1:]
        out = np.empty((origins.size, horizon, LEVELS.size))
        rows = np.arange(origins.size)[:, None]
        for i, level in enumerate(LEVELS):
            out[:, :, i] = value[rows, np.argmax(total >= level - 1e-9, axis=2)]
        grown = np.exp(np.minimum(state.level[origins][:, None, None] + out * unit[:, None, None], 30.0))
        return np.where(out == 0, series.last(origins)[:, None, None], grown)


def _first(hazard: np.ndarray) -> np.ndarray:
    """P(the first change comes at step j) from hazards by step, last axis steps."""
    stays = np.cumprod(1.0 - hazard, axis=-1)
    return hazard * np.concatenate([np.ones_like(stays[..., :1]), stays[..., :-1]], axis=-1)
