"""Blocks of forecasts turned into sums at once, so that a backtest of any length fits in memory (M6.5)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pandas as pd

from forecasting.accuracy.losses import (
    REPORTED,
    Scale,
    actual_after,
    brier,
    chances,
    conditional_frequencies,
    losses_of,
    scale_of,
    shares_below,
    transform_span,
)
from forecasting.origins.timetable import Timetable
from forecasting.origins.units import Block
from forecasting.predictor import Outlook, Panel
from forecasting.predictors import FLOOR
from forecasting.quantiles import LEVELS
from forecasting.series import Series

#: What is summed over origins, in this order.
SUMMED = ("n", *REPORTED)
#: Losses kept of every origin, in this order: those that last value's are compared with over the same origins.
KEPT = ("pinball", "mae", "reference")
#: Bins of the chance of "at least n".
BINS = 10
#: A test part shorter than this, or one without a clock, is cut into equal parts instead of weeks.
SHORTEST_WEEKS = pd.Timedelta(days=14)
EQUAL_PARTS = 4
#: Counts of so many instances or more are a class of their own.
LARGE = 16
#: Prices that change less often are still.
CHANGES_A_DAY = 1.0
_NUMBER = re.compile(r"\d+(\.\d+)?")
_DAY_US = 86_400_000_000
#: The epoch was a Thursday; weeks begin on Mondays.
_MONDAY = 3
#: Origins scored at once.
_CHUNK = 1024
#: Example forecasts kept of every market.
FANS = 4


class Tested(Protocol):
    """What was forecast: series in panels, ascending origins of each (indices), and by which models."""

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Panels of one variable each."""

    @property
    def origins(self) -> tuple[tuple[np.ndarray, ...], ...]:
        """The origins of every series of each panel."""

    @property
    def models(self) -> Sequence[str]:
        """The names of the models."""

    @property
    def horizon(self) -> int:
        """Slots ahead."""

    @property
    def timetable(self) -> Timetable:
        """By which they were estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What the forecasts of one series are measured with, all of it known at its first origin.

    ``scale``: what errors are measured in. ``kind``: its class among `forecasting.accuracy.tables.CLASSES`. ``start``: the
    slot that the look-back before the first origin begins at. ``periods`` and ``days`` number each origin's period (from
    0) and day, ``first_day`` since the epoch.
    """

    scale: Scale
    kind: str
    start: int
    periods: np.ndarray
    days: np.ndarray
    first_day: int


def yardstick_of(series: Series, origins: np.ndarray, timetable: Timetable) -> Yardstick:
    """The yardstick of a series with at least one origin."""
    first = series.first_slot + int(origins[0])
    start = int(timetable.of(series.variable).start(np.array([first]), series.step)[0])
    scale = scale_of(series, first, start)
    days = series.times(origins).asi8 // _DAY_US
    return Yardstick(
        scale=scale,
        kind=_class(series, scale),
        start=start,
        periods=_periods(series, origins, days),
        days=days - days[0],
        first_day=int(days[0]),
    )


def _class(series: Series, scale: Scale) -> str:
    """Counts by the capacity their source states (offers on a marketplace have none), prices by whether they move."""
    if series.variable == "price":
        return "moving" if scale.changes_a_day >= CHANGES_A_DAY else "still"
    if not series.capacity_stated:
        return "offers"
    return "0/1" if scale.capacity <= 1 else "2-15" if scale.capacity < LARGE else "16 and more"


def _periods(series: Series, at: np.ndarray, days: np.ndarray) -> np.ndarray:
    if series.slots_per_day and (at[-1] - at[0]) * series.step >= SHORTEST_WEEKS:
        weeks = (days + _MONDAY) // 7
        return np.asarray(weeks - weeks[0])
    return np.asarray(np.arange(at.size) * EQUAL_PARTS // at.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Sums over the origins of one block (or of several, added up).

    ``places`` are where its origins stand among the tested ones. ``sums`` (periods, h, len(SUMMED)); ``days`` (days, 3):
    cells, sum of absolute errors and of pinball losses; ``losses`` (m, h, len(KEPT)), NaN in gaps and where nothing is
    defined. ``below`` (h, 19): sum of `shares_below`; ``bins`` (h, BINS, 3): number, sum of chances and how many came
    true. ``reasons`` counts why another model answered. ``fans``: (place among the origins, mean (h,), quantiles
    (h, 19)) of the example forecasts.
    """

    model: str
    panel: int
    which: int
    places: np.ndarray
    sums: np.ndarray
    days: np.ndarray
    losses: np.ndarray
    below: np.ndarray
    bins: np.ndarray
    reasons: Counter[str]
    fans: tuple[tuple[int, np.ndarray, np.ndarray], ...] = field(default=())


def tally(block: Block, tested: Tested, *, fans: bool = False) -> Tally:
    """Score a block against what came; a target that is a gap or after the end is scored by nobody.

    With ``fans`` it keeps the forecasts of the origins of `fan_places`.
    """
    series, origins = tested.panels[block.panel].series[block.which], tested.origins[block.panel][block.which]
    stick, horizon = yardstick_of(series, origins, tested.timetable), tested.horizon
    out = Tally(
        model=block.model,
        panel=block.panel,
        which=block.which,
        places=np.searchsorted(origins, block.origins),
        sums=np.zeros((int(stick.periods[-1]) + 1, horizon, len(SUMMED))),
        days=np.zeros((int(stick.days[-1]) + 1, 3)),
        losses=np.full((block.origins.size, horizon, len(KEPT)), np.nan),
        below=np.zeros((horizon, LEVELS.size)),
        bins=np.zeros((horizon, BINS, 3)),
        reasons=Counter(_NUMBER.sub("#", why) for why in block.outlook.reasons if why),
    )
    frequencies = None
    if block.model == FLOOR and stick.scale.capacity:
        # Up to twice the horizon: a newest value may be old.
        past = series.since(stick.start).as_of(series.first_slot + int(origins[0]))
        frequencies = conditional_frequencies(past.values, stick.scale.capacity, 2 * horizon)
    for first, piece in _pieces(block):
        _add(out, first, piece, series, stick, frequencies)
    return replace(out, fans=_kept_fans(block, origins, out.places)) if fans else out


def fan_places(origins: np.ndarray) -> np.ndarray:
    """The places among the origins of the example forecasts, evenly spread."""
    return np.unique((np.arange(FANS) * 2 + 1) * origins.size // (2 * FANS))


def _kept_fans(
    block: Block, origins: np.ndarray, places: np.ndarray
) -> tuple[tuple[int, np.ndarray, np.ndarray], ...]:
    own = np.flatnonzero(np.isin(places, fan_places(origins)))
    mean, quantiles = block.outlook.mean, block.outlook.quantiles
    # Copies: a view would hold the whole block.
    return tuple((int(places[i]), mean[i].copy(), quantiles[i].copy()) for i in own)


def _pieces(block: Block) -> Iterator[tuple[int, Block]]:
    """The block in parts of at most `_CHUNK` origins, each with where it begins."""
    given = block.outlook
    for first in range(0, block.origins.size, _CHUNK):
        cut = slice(first, first + _CHUNK)
        outlook = Outlook(quantiles=given.quantiles[cut], mean=given.mean[cut], reasons=given.reasons[cut])
        yield first, replace(block, origins=block.origins[cut], outlook=outlook)


#: Places in `REPORTED` of what `Tally.days` holds, and of what is kept of every origin.
_DAILY = [REPORTED.index(name) for name in ("mae", "pinball")]
_KEPT = [REPORTED.index(name) for name in KEPT[:2]]


def _add(
    out: Tally, first: int, block: Block, series: Series, stick: Yardstick, frequencies: np.ndarray | None
) -> None:
    """Add a block, whose origins begin ``first`` after the tally's, to the sums, in place."""
    given, size = block.outlook, block.origins.size
    actual = actual_after(series, block.origins, given.mean.shape[1])
    counts = series.variable == "count"
    capacity = series.upper[block.origins].astype(int)
    losses = losses_of(
        given.quantiles,
        given.mean,
        np.array([why != "" for why in given.reasons]),
        actual,
        capacity if counts else None,
        REPORTED,
    )
    known = ~np.isnan(actual)
    table = np.concatenate([known[..., None].astype(float), np.nan_to_num(losses)], axis=-1)
    at = out.places[first : first + size]
    np.add.at(out.sums, stick.periods[at], table)
    np.add.at(out.days, stick.days[at], table[..., [0, *(i + 1 for i in _DAILY)]].sum(axis=1))
    own = out.losses[first : first + size]
    own[..., :2] = losses[..., _KEPT]
    if frequencies is not None:
        own[..., 2] = brier(_frequencies_at(frequencies, series, block.origins, actual.shape[1]), actual)
    out.below[...] += np.nansum(shares_below(transform_span(given.quantiles, actual), actual), axis=0)
    if counts:
        for most in np.unique(capacity[capacity > 0]):
            of_it = capacity == most
            _add_bins(out.bins, chances(given.quantiles[of_it], int(most)), actual[of_it])


def _frequencies_at(reference: np.ndarray, series: Series, origins: np.ndarray, horizon: int) -> np.ndarray:
    """Last value's conditional frequency of "at least n" at each origin and step, shape (m, h, capacity).

    A newest value that is g slots old counts as one of k + g steps ahead, as far as the table goes.
    """
    steps = series.age(origins)[:, None] + np.arange(1, horizon + 1)
    rows = np.minimum(steps, reference.shape[0]) - 1
    state = (series.last(origins)[:, None] >= np.arange(1, reference.shape[1] + 1)).astype(int)
    chosen = np.take_along_axis(reference[rows], state[:, None, :, None], axis=-1)
    return np.asarray(chosen[..., 0])


def _add_bins(bins: np.ndarray, chance: np.ndarray, actual: np.ndarray) -> None:
    """Number, sum of chances and hits of "at least n" by bin of the chance, in place."""
    n = np.arange(1, chance.shape[-1] + 1)
    known = np.broadcast_to(~np.isnan(actual)[..., None], chance.shape)
    place = np.minimum((chance * BINS).astype(int), BINS - 1)
    hit = actual[..., None] >= n
    for step in range(chance.shape[1]):
        here = known[:, step]
        where = place[:, step][here]
        for column, weights in enumerate((np.ones(where.size), chance[:, step][here], hit[:, step][here])):
            bins[step, :, column] += np.bincount(where, weights=weights, minlength=BINS)
