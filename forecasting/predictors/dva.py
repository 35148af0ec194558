"""The predictor `dva`: a diffusion variational autoencoder over all markets of a source, with the extra of that name (M6.2).

In this file: windows and targets, training with the newest hours held out, counts, prices. The network itself is
`forecasting.predictors.dva_network`, which imports JAX and is imported when one is trained or asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy.special import ndtr

from forecasting.predictor import NEVER_SEEN, ByVariable, FallsBack, Outlook, Panel, mixed, stored
from forecasting.predictors.combined import (
    COUNT_BINS,
    NODES,
    PRICE_BINS,
    corrected,
    corrected_quantiles,
    price_transforms,
    transforms,
)
from forecasting.predictors.count_members import in_slots
from forecasting.predictors.last_value import LastValue, is_stale
from forecasting.predictors.laws import MOST_STATES, ahead
from forecasting.predictors.lightgbm import answered, with_law
from forecasting.predictors.price_changes import LEAST_PRICE, price_state
from forecasting.quantiles import LEVELS
from forecasting.series import Series

# ---
# Windows and targets: what a network is told of the past of one origin, and what is to come of it.

#: Slots of a window and of a target, a multiple of 4 (the network halves them twice); later steps are answered like the last.
LENGTH = 48
#: Columns of a window.
COLUMNS = 8
#: Targets and windows are cut at so many units.
_MOST_UNITS = 12.0
#: Recent changes of a price that make its unit.
_CHANGES = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Value = ``base`` + ``unit`` * what the network says, both (origins,); of prices that is the logarithm."""

    base: np.ndarray
    unit: np.ndarray

    def of(self, values: np.ndarray) -> np.ndarray:
        """Values (origins, ...) in units from the base."""
        shape = (-1,) + (1,) * (values.ndim - 1)
        told = (values - self.base.reshape(shape)) / self.unit.reshape(shape)
        return np.asarray(np.clip(told, -_MOST_UNITS, _MOST_UNITS))

    def back(self, told: np.ndarray) -> np.ndarray:
        """What `of` was made from."""
        shape = (-1,) + (1,) * (told.ndim - 1)
        return np.asarray(self.base.reshape(shape) + self.unit.reshape(shape) * told)


def _measured(series: Series) -> np.ndarray:
    """The values as the network measures them: counts, logarithms of prices."""
    return series.values if series.variable == "count" else np.log(np.maximum(series.values, LEAST_PRICE))


def units_at(series: Series, origins: np.ndarray) -> Units:
    """Counts in halves of the capacity known at the origin, prices in `_CHANGES` of their recent changes."""
    base = _measured(series)[series.newest[origins]]
    if series.variable == "count":
        return Units(base=base, unit=np.maximum(series.upper[origins], 1.0) / 2.0)
    size = price_state(series).size[origins]
    return Units(base=base, unit=_CHANGES * np.where(size > 0, size, 1.0))


def windows_at(series: Series, origins: np.ndarray) -> np.ndarray:
    """Windows (origins, `LENGTH`, `COLUMNS`) in float32, the origin first; each reads slots up to its own only.

    Columns: the value (of counts from the middle of their range, of prices from the newest), the mean of the slot's readings
    or its change, whether there was a value, whether it changed, time of day twice, and twice where the origin stands.
    """
    units, count = units_at(series, origins), series.variable == "count"
    places = origins[:, None] - np.arange(LENGTH)
    inside = np.maximum(places, 0)
    newest = series.newest[inside]
    there = (places >= 0) & (newest >= 0)
    measured = _measured(series)
    now = np.where(there, measured[np.maximum(newest, 0)], units.base[:, None])
    before = np.concatenate([now[:, 1:], now[:, -1:]], axis=1)
    if count:
        beside = _mean_reading(series)[inside]
        beside = np.where(there & np.isfinite(beside), beside, now)
        middle = replace(units, base=units.unit)
        values, second = middle.of(now), middle.of(beside)
        stands = [values[:, 0], np.log2(2.0 * units.unit) / 8.0]
    else:
        values, second = units.of(now), (now - before) / units.unit[:, None]
        age = np.minimum(price_state(series).age[origins], 10.0 * LENGTH)
        stands = [np.log(units.unit) / 4.0, np.log1p(age) / 3.0]
    clock = np.zeros((2, *places.shape))
    if series.slots_per_day:
        angle = 2.0 * np.pi * ((series.first_slot + places) % series.slots_per_day) / series.slots_per_day
        clock = np.stack([np.sin(angle), np.cos(angle)])
    observed = there & ~np.isnan(series.values[inside])
    columns = [values, np.clip(second, -_MOST_UNITS, _MOST_UNITS), observed, now != before, *clock]
    columns += [np.repeat(one[:, None], LENGTH, axis=1) for one in stands]
    return np.stack(columns, axis=2).astype(np.float32)


def _mean_reading(series: Series) -> np.ndarray:
    """The mean of all readings of each slot, NaN without any, shape (slots,)."""
    readings = np.concatenate([series.within, series.values[:, None]], axis=1)
    known = np.isfinite(readings)
    total = np.where(known, readings, 0.0).sum(axis=1)
    return np.where(known.any(axis=1), total / np.maximum(known.sum(axis=1), 1), np.nan)


def targets_at(series: Series, origins: np.ndarray) -> np.ndarray:
    """What came after each origin in its units, shape (origins, `LENGTH`), NaN where nothing is known."""
    return units_at(series, origins).of(ahead(_measured(series), LENGTH)[origins])


def taught_at(series: Series) -> np.ndarray:
    """Origins that a network learns from and can be asked at: a fresh value, and room to move."""
    origins = np.flatnonzero(series.newest >= 0)
    origins = origins[~is_stale(series, series.age(origins))]
    lively = series.upper[origins] > 0 if series.variable == "count" else price_state(series).moves[origins]
    return np.asarray(origins[lively])


# ---
# Training: on all but the newest hours, which show where values fall in the laws, then a little on everything.


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How long a network is trained: so many ``epochs``, at most so many ``batches``, without the newest ``held_out`` hours.

    Then a ``share`` of it again with them.
    """

    epochs: float = 20.0
    batches: int = 400
    share: float = 0.25
    held_out: float = 48.0
    seed: int = 2309


#: Fewer windows than this teach nothing; more than that many are drawn from.
FEWEST, MOST = 100, 12000
#: Every so many slots of the held out hours are forecast from.
_SPACED = 2
#: How much the mean of a source's markets adds to a market's own record of where values fell.
_POOLED = 1.0
UNTAUGHT = "too little to train a network on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """Windows (n, `LENGTH`, `COLUMNS`) and targets (n, `LENGTH`), NaN where unknown."""

    x: np.ndarray
    y: np.ndarray


def lessons(panel: Panel, seed: int) -> Lessons:
    """All windows of a panel with something that came after them, `MOST` drawn of more."""
    found = []
    for series in panel.series:
        origins = taught_at(series)
        origins = origins[np.isfinite(ahead(series.values, LENGTH)[origins]).any(axis=1)]
        if origins.size:
            found.append((series, origins))
    total = sum(origins.size for _, origins in found)
    rng = np.random.default_rng(seed)
    keep = np.sort(rng.permutation(total)[:MOST])
    x, y, begin = [], [], 0
    for series, origins in found:
        mine = origins[keep[(keep >= begin) & (keep < begin + origins.size)] - begin]
        begin += origins.size
        x.append(windows_at(series, mine))
        y.append(targets_at(series, mine))
    if not x:
        return Lessons(
            x=np.zeros((0, LENGTH, COLUMNS), dtype=np.float32), y=np.zeros((0, LENGTH), dtype=np.float32)
        )
    return Lessons(x=np.concatenate(x), y=np.concatenate(y).astype(np.float32))


Parameters = dict[str, np.ndarray]


def taught(panel: Panel, how: Training, begin: Parameters | None = None) -> Parameters:
    """A network trained on a panel, from ``begin`` for a share as long if that is given; empty where there is too little."""
    given = lessons(panel, how.seed)
    known = np.isfinite(given.y)
    if len(given.x) < FEWEST or not (np.abs(given.y[known]) > 0).any():
        return {}
    from forecasting.predictors import dva_network  # here: JAX is large, and not always installed

    batches = min(how.epochs * len(given.x) / dva_network.BATCH, how.batches)
    again = begin is not None
    params, _ = dva_network.trained(
        begin if begin is not None else dva_network.fresh(how.seed, length=LENGTH, columns=COLUMNS),
        given.x,
        np.where(known, given.y, 0.0).astype(np.float32),
        known.astype(np.float32),
        batches=int(batches * (how.share if again else 1.0)) + 1,
        seed=how.seed + again,
        rate=dva_network.RATE * (0.3 if again else 1.0),
    )
    return params


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a fit has learned: parameters by name (empty: nothing), and of every series where held out values fell, sums (nodes,
    bins), and its bound at the fit.

    ``end``: the slot (since the epoch) after the last; paths are drawn from ``seed``.
    """

    params: Parameters
    past: dict[str, np.ndarray]
    bounds: dict[str, float]
    end: int
    seed: int


Fitted = TypeVar("Fitted", bound=Learned)


Fallen = Callable[[Parameters, Series, np.ndarray], np.ndarray]


def learned(form: type[Fitted], panel: Panel, how: Training, fallen: Fallen) -> Fitted:
    """Train without the newest hours, see by ``fallen`` where they fell, then train on with them."""
    alive = [series for series in panel.series if series.observed.size]
    end = max((series.end for series in alive), default=0)
    longest = max((len(series) for series in alive), default=0)
    held_out = int(min(in_slots(alive[0], how.held_out, 48), longest // 3)) if alive else 0
    early = taught(panel.until(end - held_out - 1), how)
    past = {}
    if early:
        for series in alive:
            origins = taught_at(series)
            slots = series.first_slot + origins
            origins = origins[(slots >= end - held_out) & (slots % _SPACED == 0)]
            if origins.size:
                past[series.key] = fallen(early, series, origins)
    return form(
        params=taught(panel, how, early) if early else taught(panel, how),
        past=past,
        bounds={one.key: float(one.upper[-1]) for one in alive},
        end=end,
        seed=how.seed,
    )


def paths(params: Parameters, series: Series, origins: np.ndarray, seed: int) -> np.ndarray:
    """Drawn and cleaned paths in the measure of the network, shape (origins, draws, `LENGTH`)."""
    from forecasting.predictors import dva_network

    told = dva_network.drawn(params, windows_at(series, origins), seed=seed)
    return units_at(series, origins).back(np.clip(told.astype(float), -_MOST_UNITS, _MOST_UNITS))


def _shares(steps: np.ndarray) -> np.ndarray:
    """How much of each of `NODES` is in each step, shape (steps, nodes)."""
    return np.stack([np.interp(steps, NODES, unit) for unit in np.eye(NODES.size)], axis=1)


def _standing(past: dict[str, np.ndarray], key: str, bins: int) -> np.ndarray:
    """A market's own record and the mean of its source's, shape (nodes, bins)."""
    source = key.partition("@")[2]
    own = [value for one, value in past.items() if one.partition("@")[2] == source] or list(past.values())
    shared = np.mean(own, axis=0) if own else np.zeros((NODES.size, bins))
    return past.get(key, np.zeros((NODES.size, bins))) + _POOLED * shared


# ---
# Counts.

#: A capacity of more than so many times what it was at the fit is another market, and why last value answers there (ours).
GROWTH = 1.5
GROWN = "far more instances than when the network was trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class DvaCount:
    """Model of the count over a panel."""

    how: Training = Training()

    def fit(self, panel: Panel) -> FittedDvaCount:
        """Train the network, and see where held out counts fell in its laws."""

        def fallen(params: Parameters, series: Series, origins: np.ndarray) -> np.ndarray:
            states = min(int(series.upper[origins].max()) + 1, MOST_STATES)
            law = laws(paths(params, series, origins, self.how.seed)[:, :, NODES - 1], states)
            came = ahead(series.values, LENGTH)[origins][:, NODES - 1]
            return np.asarray(transforms(law, came).sum(axis=0))

        return learned(FittedDvaCount, panel, self.how, fallen)


def laws(drawn: np.ndarray, states: int) -> np.ndarray:
    """Laws (..., steps, states) of counts from draws (..., draws, steps) by a normal kernel; the outermost take what is beyond."""
    count = drawn.shape[-2]
    width = np.maximum(0.9 * drawn.std(axis=-2) * count**-0.2, 0.15)
    below = np.zeros((*width.shape, states))
    below[..., -1] = 1.0
    for n in range(states - 1):
        below[..., n] = ndtr((n + 0.5 - drawn) / width[..., None, :]).mean(axis=-2)
    return np.diff(below, axis=-1, prepend=0.0)


@stored("dva.count")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedDvaCount(Learned):
    """What was learned of counts."""

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """The laws of drawn paths, corrected; last value answers, labelled, where nothing was learned, the newest value is stale,
        or the capacity is `GROWTH` times what it was."""
        series = panel.series[which]
        simpler = LastValue().fit(series.until(self.end - 1))
        if not self.params:
            return FallsBack(simpler=simpler, reason=UNTAUGHT).outlook(series, origins, horizon)
        steps = np.arange(1, horizon + 1)
        past = _shares(steps) @ _standing(self.past, series.key, COUNT_BINS)

        def mine(part: np.ndarray, states: int) -> np.ndarray:
            drawn = paths(self.params, series, part, self.seed)
            return corrected(laws(drawn[:, :, np.minimum(steps, LENGTH) - 1], states), past)

        why = "" if series.key in self.bounds else NEVER_SEEN
        given = answered(mine, series, origins, horizon, end=self.end, why=why)
        grown = series.upper[origins] > GROWTH * self.bounds.get(series.key, np.inf)
        if not grown.any():
            return given
        other = FallsBack(simpler=simpler, reason=GROWN).outlook(series, origins, horizon)
        return mixed(given, other if given.law is None else with_law(other, given.law.shape[2]), grown)


# ---
# Prices.


@dataclass(frozen=True, slots=True, kw_only=True)
class DvaPrice:
    """Model of the price over a panel."""

    how: Training = Training()

    def fit(self, panel: Panel) -> FittedDvaPrice:
        """Train the network on prices that move, and see where held out ones fell among its quantiles."""

        def fallen(params: Parameters, series: Series, origins: np.ndarray) -> np.ndarray:
            told = quantiles(paths(params, series, origins, self.how.seed)[:, :, NODES - 1])
            came = ahead(series.values, LENGTH)[origins][:, NODES - 1]
            return np.asarray(price_transforms(told, came).sum(axis=0))

        return learned(FittedDvaPrice, panel, self.how, fallen)


def quantiles(drawn: np.ndarray) -> np.ndarray:
    """Quantiles (..., steps, 19) of prices from draws (..., draws, steps) of their logarithms."""
    return np.moveaxis(np.exp(np.quantile(drawn, LEVELS, axis=-2)), 0, -1)


@stored("dva.price")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedDvaPrice(Learned):
    """What was learned of prices."""

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Quantiles of drawn paths where the price moves, the newest value alone where it stands still (`PriceState.moves`)."""
        series = panel.series[which]
        simpler = LastValue().fit(series.until(self.end - 1))
        if not self.params:
            return FallsBack(simpler=simpler, reason=UNTAUGHT).outlook(series, origins, horizon)
        steps = np.arange(1, horizon + 1)
        mean = np.repeat(series.last(origins)[:, None], horizon, axis=1)
        told = np.repeat(mean[:, :, None], LEVELS.size, axis=2)
        stale = is_stale(series, series.age(origins))
        lively = price_state(series).moves[origins] & ~stale
        if lively.any():
            past = _shares(steps) @ _standing(self.past, series.key, PRICE_BINS)
            drawn = paths(self.params, series, origins[lively], self.seed)
            own = quantiles(drawn[:, :, np.minimum(steps, LENGTH) - 1])
            told[lively] = corrected_quantiles(own, np.broadcast_to(past, (*own.shape[:2], PRICE_BINS)))
            mean[lively] = told[lively].mean(axis=2)
        why = "" if series.key in self.bounds else NEVER_SEEN
        answer = Outlook(quantiles=told, mean=mean, reasons=(why,) * origins.size)
        return mixed(answer, simpler.outlook(series, origins, horizon), stale) if stale.any() else answer


def dva() -> ByVariable:
    """The diffusion variational autoencoder."""
    return ByVariable(name="dva", pooled=True, price=DvaPrice(), count=DvaCount())
