"""Predictor `dva`: a diffusion variational autoencoder over all markets of a source; needs JAX (M6.2).

This module holds windows and targets, training with held-out hours, and the models of counts and prices. The network is in
`slackwater.studies.predictors.dva_network`, which imports JAX and is imported only for training and prediction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TypeVar

import numpy as np
from scipy.special import ndtr

from slackwater.forecasting.predictor import (
    NEVER_SEEN,
    ByVariable,
    FallsBack,
    Outlook,
    Panel,
    mix_outlooks,
    stored,
)
from slackwater.forecasting.predictors.combined import (
    COUNT_BINS,
    NODES,
    SURPRISE,
    correct_distributions,
    transforms,
)
from slackwater.forecasting.predictors.count_members import in_slots
from slackwater.forecasting.predictors.distributions import MOST_STATES, ahead, interpolation
from slackwater.forecasting.predictors.last_value import LastValue, is_stale
from slackwater.forecasting.predictors.lightgbm import outlook_or_last_value, with_distribution
from slackwater.forecasting.predictors.price_changes import LEAST_PRICE, price_state
from slackwater.forecasting.quantiles import LEVELS
from slackwater.forecasting.series import Series
from slackwater.warehouse.errors import SettingsError

# ---
# Recalibration of price quantiles by past transforms (M6.6), as for counts but from quantiles only.
#
# Only the 19 levels are known: the probability between two quantiles is spread evenly, and a price equal to several quantiles
# is spread over all their levels. The corrected quantile of level a is the issued quantile of the level b with G(b) = a, where
# G is the distribution of past transforms; beyond the outermost levels the distribution is extrapolated linearly. A price
# forecast without spread is not changed.

#: Bins of the transform: below q05, between neighbouring levels, above q95.
PRICE_BINS = LEVELS.size + 1
#: Weight of the prior in pseudo-transforms. The prior is uniform, except that the
#: outermost bins have `SURPRISE` times the weight, because rare outcomes are missing from a short past (ours).
PRICE_PRIOR = 60.0
_PRICE_BELIEVED = np.where(np.isin(np.arange(PRICE_BINS), (0, PRICE_BINS - 1)), SURPRISE, 1.0)
#: Length of the tail beyond q05 and q95, relative to the distance to the neighbouring quantile (ours).
_PRICE_TAIL = 2.0
_PRICE_EDGES = np.concatenate([[0.0], LEVELS, [1.0]])
#: Relative difference below which two prices are equal.
_SAME = 1e-9


def price_transforms(quantiles: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return each price's transform as shares of the bins, shape (*truth.shape, PRICE_BINS); zeros where the price is NaN.

    ``quantiles`` has shape (*truth.shape, 19).
    """
    slack = _SAME * np.maximum(1.0, np.abs(truth))[..., None]
    below = (quantiles < truth[..., None] - slack).sum(axis=-1)
    upto = (quantiles <= truth[..., None] + slack).sum(axis=-1)
    tied = upto > below
    # A price between quantiles i-1 and i is in bin i; a price tied with levels i..j-1 may be in any of the bins i..j.
    first, last = below, np.where(tied, upto, below)
    bins = np.arange(PRICE_BINS)
    inside = (bins >= first[..., None]) & (bins <= last[..., None])
    # The end bins of a tie count half: the mass of the tie may end anywhere within them.
    ends = tied[..., None] & ((bins == first[..., None]) | (bins == last[..., None]))
    whole = (first[..., None] == 0) & (bins == 0) | (last[..., None] == PRICE_BINS - 1) & (
        bins == PRICE_BINS - 1
    )
    weight = inside * np.where(ends & ~whole, 0.5, 1.0)
    share = weight / weight.sum(axis=-1, keepdims=True)
    return np.where(np.isnan(truth)[..., None], 0.0, share)


def corrected_quantiles(quantiles: np.ndarray, past: np.ndarray) -> np.ndarray:
    """Return quantiles (..., 19) recalibrated by past transforms ``past`` (..., PRICE_BINS), non-decreasing.

    The median is not changed: it is the point forecast and has its own weights.
    """
    weight = past + PRICE_PRIOR * _PRICE_BELIEVED / _PRICE_BELIEVED.sum()
    reached = np.cumsum(weight, axis=-1) / weight.sum(axis=-1, keepdims=True)
    flat_q, flat_g = quantiles.reshape(-1, LEVELS.size), reached.reshape(-1, PRICE_BINS)
    extended = np.concatenate(
        [
            flat_q[:, :1] - _PRICE_TAIL * (flat_q[:, 1:2] - flat_q[:, :1]),
            flat_q,
            flat_q[:, -1:] + _PRICE_TAIL * (flat_q[:, -1:] - flat_q[:, -2:-1]),
        ],
        axis=1,
    )
    out = np.empty(flat_q.shape)
    for i in range(flat_q.shape[0]):
        levels = np.interp(LEVELS, np.concatenate([[0.0], flat_g[i]]), _PRICE_EDGES)
        out[i] = np.interp(levels, _PRICE_EDGES, extended[i])
    half = LEVELS.size // 2
    middle = flat_q[:, half : half + 1]
    out[:, :half] = np.minimum(out[:, :half], middle)
    out[:, half + 1 :] = np.maximum(out[:, half + 1 :], middle)
    out[:, half] = flat_q[:, half]
    return np.maximum.accumulate(out, axis=1).reshape(quantiles.shape)


# ---
# Windows and targets: the input of the network at an origin, and the values after it.

#: Slots of a window and of a target, a multiple of 4 (the network halves them twice); later steps use the last.
LENGTH = 48
#: Columns of a window.
COLUMNS = 8
#: Targets and windows are clipped at this many units.
_MOST_UNITS = 12.0
#: Unit of a price in recent changes.
_CHANGES = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Linear scaling of network values: value = ``base`` + ``unit`` * network value, both (origins,); prices are logarithms."""

    base: np.ndarray
    unit: np.ndarray

    def of(self, values: np.ndarray) -> np.ndarray:
        """Convert values (origins, ...) to network units."""
        shape = (-1,) + (1,) * (values.ndim - 1)
        told = (values - self.base.reshape(shape)) / self.unit.reshape(shape)
        return np.asarray(np.clip(told, -_MOST_UNITS, _MOST_UNITS))

    def back(self, told: np.ndarray) -> np.ndarray:
        """Convert network values back; the inverse of `of`, except for its clipping."""
        shape = (-1,) + (1,) * (told.ndim - 1)
        return np.asarray(self.base.reshape(shape) + self.unit.reshape(shape) * told)


def _measured(series: Series) -> np.ndarray:
    """Return the values on the scale of the network: counts, or logarithms of prices."""
    return series.values if series.variable == "count" else np.log(np.maximum(series.values, LEAST_PRICE))


def units_at(series: Series, origins: np.ndarray) -> Units:
    """Return the scaling at each origin: counts in halves of the known capacity, prices in `_CHANGES` of their recent changes."""
    base = _measured(series)[series.newest[origins]]
    if series.variable == "count":
        return Units(base=base, unit=np.maximum(series.upper[origins], 1.0) / 2.0)
    size = price_state(series).size[origins]
    return Units(base=base, unit=_CHANGES * np.where(size > 0, size, 1.0))


def windows_at(series: Series, origins: np.ndarray) -> np.ndarray:
    """Return windows (origins, `LENGTH`, `COLUMNS`) in float32, the origin first; each reads slots up to its origin only.

    Columns: the value (counts relative to the middle of their range, prices to the newest value), the mean of the slot's readings
    (counts) or the change (prices), whether a value was observed, whether it changed, time of day as sine and cosine, and two
    columns with the state at the origin.
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
    """Return the mean of all readings of each slot, NaN without any, shape (slots,)."""
    readings = np.concatenate([series.within, series.values[:, None]], axis=1)
    known = np.isfinite(readings)
    total = np.where(known, readings, 0.0).sum(axis=1)
    return np.where(known.any(axis=1), total / np.maximum(known.sum(axis=1), 1), np.nan)


def targets_at(series: Series, origins: np.ndarray) -> np.ndarray:
    """Return the values after each origin in its units, shape (origins, `LENGTH`), NaN where unknown."""
    return units_at(series, origins).of(ahead(_measured(series), LENGTH)[origins])


def taught_at(series: Series) -> np.ndarray:
    """Return the origins usable for training and prediction: those with a fresh value and a variable that can move."""
    origins = np.flatnonzero(series.newest >= 0)
    origins = origins[~is_stale(series, series.age(origins))]
    lively = series.upper[origins] > 0 if series.variable == "count" else price_state(series).moves[origins]
    return np.asarray(origins[lively])


# ---
# Training: first without the newest hours, which serve for recalibration, then briefly on all data.


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Length of training: ``epochs``, at most ``batches`` batches, without the newest ``held_out`` hours.

    Afterwards a ``share`` of this training is repeated with them.
    """

    epochs: float = 20.0
    batches: int = 400
    share: float = 0.25
    held_out: float = 48.0
    seed: int = 2309


#: Minimal number of windows, and the maximal number, above which windows are drawn at random.
FEWEST, MOST = 100, 12000
#: Interval in slots of the origins in the held-out hours.
_SPACED = 2
#: Weight of the mean transforms of a source's markets, added to a market's own transforms.
_POOLED = 1.0
UNTAUGHT = "too little to train a network on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """Training data: windows (n, `LENGTH`, `COLUMNS`) and targets (n, `LENGTH`), NaN where unknown."""

    x: np.ndarray
    y: np.ndarray


def lessons(panel: Panel, seed: int) -> Lessons:
    """Return all windows of a panel with an observed target, at most `MOST`, drawn at random."""
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
    """Train a network on a panel, or continue from ``begin`` for the share of `Training`; return {} if there is too little data."""
    given = lessons(panel, how.seed)
    known = np.isfinite(given.y)
    if len(given.x) < FEWEST or not (np.abs(given.y[known]) > 0).any():
        return {}
    from slackwater.studies.predictors import dva_network  # deferred: JAX is large, and not always installed

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
class FitResult:
    """Result of a fit: parameters by name, and per series the transforms of held-out values and the bound at the fit.

    ``params`` is empty without training, ``past`` holds sums (nodes, bins). ``end`` is the slot (since the epoch) after the
    last slot used; paths are drawn from ``seed``.
    """

    params: Parameters
    past: dict[str, np.ndarray]
    bounds: dict[str, float]
    end: int
    seed: int


Fitted = TypeVar("Fitted", bound=FitResult)


Fallen = Callable[[Parameters, Series, np.ndarray], np.ndarray]


def fit_with_held_out(form: type[Fitted], panel: Panel, how: Training, fallen: Fallen) -> Fitted:
    """Train without the newest hours, compute their transforms with ``fallen``, then continue training with them."""
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
    """Return drawn and cleaned paths on the scale of the network, shape (origins, draws, `LENGTH`)."""
    from slackwater.studies.predictors import dva_network

    told = dva_network.draw_paths(params, windows_at(series, origins), seed=seed)
    return units_at(series, origins).back(np.clip(told.astype(float), -_MOST_UNITS, _MOST_UNITS))


def _standing(past: dict[str, np.ndarray], key: str, bins: int) -> np.ndarray:
    """Return a market's own transforms plus the weighted mean of its source, shape (nodes, bins)."""
    source = key.partition("@")[2]
    own = [value for one, value in past.items() if one.partition("@")[2] == source] or list(past.values())
    shared = np.mean(own, axis=0) if own else np.zeros((NODES.size, bins))
    return past.get(key, np.zeros((NODES.size, bins))) + _POOLED * shared


# ---
# Counts.

#: Last value replaces the network where the capacity exceeds this multiple of its value at the fit, and the reason (ours).
GROWTH = 1.5
GROWN = "far more instances than when the network was trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class DvaCount:
    """Count model of a panel."""

    how: Training = Training()

    def fit(self, panel: Panel) -> FittedDvaCount:
        """Train the network, and compute the transforms of held-out counts."""

        def fallen(params: Parameters, series: Series, origins: np.ndarray) -> np.ndarray:
            states = min(int(series.upper[origins].max()) + 1, MOST_STATES)
            distribution = distributions(
                paths(params, series, origins, self.how.seed)[:, :, NODES - 1], states
            )
            came = ahead(series.values, LENGTH)[origins][:, NODES - 1]
            return np.asarray(transforms(distribution, came).sum(axis=0))

        return fit_with_held_out(FittedDvaCount, panel, self.how, fallen)


def distributions(drawn: np.ndarray, states: int) -> np.ndarray:
    """Return distributions (..., steps, states) of counts from draws (..., draws, steps) by a normal kernel.

    Mass beyond the range of counts is assigned to the outermost states.
    """
    count = drawn.shape[-2]
    width = np.maximum(0.9 * drawn.std(axis=-2) * count**-0.2, 0.15)
    below = np.zeros((*width.shape, states))
    below[..., -1] = 1.0
    for n in range(states - 1):
        below[..., n] = ndtr((n + 0.5 - drawn) / width[..., None, :]).mean(axis=-2)
    return np.diff(below, axis=-1, prepend=0.0)


@stored("dva.count")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedDvaCount(FitResult):
    """Fitted `dva` of counts."""

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast recalibrated distributions of drawn paths.

        Last value replaces them, with a reason, if the network is untrained, the newest value is stale, or the capacity is
        above `GROWTH` times that at the fit.
        """
        series = panel.series[which]
        simpler = LastValue().fit(series.until(self.end - 1))
        if not self.params:
            return FallsBack(simpler=simpler, reason=UNTAUGHT).outlook(series, origins, horizon)
        past = _standing(self.past, series.key, COUNT_BINS)

        def mine(part: np.ndarray, steps: np.ndarray, states: int) -> np.ndarray:
            drawn = paths(self.params, series, series.newest[part], self.seed)
            return correct_distributions(
                distributions(drawn[:, :, np.minimum(steps, LENGTH) - 1], states),
                interpolation(steps, NODES) @ past,
            )

        why = "" if series.key in self.bounds else NEVER_SEEN
        given = outlook_or_last_value(mine, series, origins, horizon, end=self.end, why=why)
        grown = series.upper[origins] > GROWTH * self.bounds.get(series.key, np.inf)
        if not grown.any():
            return given
        other = FallsBack(simpler=simpler, reason=GROWN).outlook(series, origins, horizon)
        return mix_outlooks(
            given,
            other if given.distribution is None else with_distribution(other, given.distribution.shape[2]),
            grown,
        )


# ---
# Prices.


@dataclass(frozen=True, slots=True, kw_only=True)
class DvaPrice:
    """Price model of a panel."""

    how: Training = Training()

    def fit(self, panel: Panel) -> FittedDvaPrice:
        """Train the network on prices that move, and compute the transforms of held-out prices."""

        def fallen(params: Parameters, series: Series, origins: np.ndarray) -> np.ndarray:
            told = quantiles(paths(params, series, origins, self.how.seed)[:, :, NODES - 1])
            came = ahead(series.values, LENGTH)[origins][:, NODES - 1]
            return np.asarray(price_transforms(told, came).sum(axis=0))

        return fit_with_held_out(FittedDvaPrice, panel, self.how, fallen)


def quantiles(drawn: np.ndarray) -> np.ndarray:
    """Return quantiles (..., steps, 19) of prices from draws (..., draws, steps) of their logarithms."""
    return np.moveaxis(np.exp(np.quantile(drawn, LEVELS, axis=-2)), 0, -1)


@stored("dva.price")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedDvaPrice(FitResult):
    """Fitted `dva` of prices."""

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast quantiles of drawn paths where the price moves (`PriceState.moves`), and the newest value elsewhere.

        Last value replaces them, with a reason, if the network is untrained or the newest value is stale.
        """
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
            past = interpolation(steps, NODES) @ _standing(self.past, series.key, PRICE_BINS)
            drawn = paths(self.params, series, origins[lively], self.seed)
            own = quantiles(drawn[:, :, np.minimum(steps, LENGTH) - 1])
            told[lively] = corrected_quantiles(own, np.broadcast_to(past, (*own.shape[:2], PRICE_BINS)))
            mean[lively] = told[lively].mean(axis=2)
        why = "" if series.key in self.bounds else NEVER_SEEN
        answer = Outlook(quantiles=told, mean=mean, reasons=(why,) * origins.size)
        return (
            mix_outlooks(answer, simpler.outlook(series, origins, horizon), stale) if stale.any() else answer
        )


def dva() -> ByVariable:
    """Return the predictor of the diffusion variational autoencoder; raises `SettingsError` without JAX."""
    if find_spec("jax") is None:
        raise SettingsError(
            "predictor 'dva' needs jax, which is not installed", remedy="install it with `pip install jax`"
        )
    return ByVariable(name="dva", pooled=True, price=DvaPrice(), count=DvaCount())
