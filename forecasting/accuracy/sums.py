"""Blocks of forecasts turned into sums at once, so that a backtest of any length fits in memory (M6.5)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from forecasting.accuracy.columns import FLOOR, PERCENTS
from forecasting.accuracy.measures import (
    brier,
    chances,
    conditional_frequencies,
    cover_errors,
    covered,
    covered_closed,
    pinball,
    shares_below,
    transform_span,
    width,
)
from forecasting.forecast import LEVELS
from forecasting.origins.rolling import Block, Rolling, TestPart
from forecasting.predictor import Outlook
from forecasting.series import Series

#: What is summed over origins, in this order.
SUMMED = (
    "n", "abs", "sq", "pinball", *(f"coverage_{p}" for p in PERCENTS), *(f"width_{p}" for p in PERCENTS),
    "brier", "reference", "absent", "unpredicted", "cover", "fallback_share", *(f"coverage_{p}_closed" for p in PERCENTS),
)  # fmt: skip
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What the forecasts of one series are measured with, all of it known at its test start.

    ``capacity``: the largest count then known to be possible, 0 for prices. ``scale``: what pooled losses are divided
    by, the capacity (at least 1) or the mean price of the training part. ``change``: the mean |y(t) - y(t-1)| of the
    training part, NaN if that is 0. ``kind``: its class among `forecasting.accuracy.columns.CLASSES`.
    ``periods`` and ``days`` number each origin's period (from 0) and day,
    ``first_day`` since the epoch.
    """

    capacity: int
    scale: float
    change: float
    kind: str
    periods: np.ndarray
    days: np.ndarray
    first_day: int


def yardstick_of(series: Series, part: TestPart) -> Yardstick:
    """The yardstick of a series with at least one origin."""
    training = series.values[: part.start + 1]
    changes = np.abs(np.diff(training))
    change = float(np.nanmean(changes)) if np.isfinite(changes).any() else np.nan
    counts = series.variable == "count"
    capacity = int(series.upper[part.start]) if counts else 0
    scale = float(max(capacity, 1)) if counts else float(np.nanmean(training))
    days = slot_times(series, part.origins).asi8 // _DAY_US
    return Yardstick(
        capacity=capacity,
        scale=scale,
        change=change if change > 0 else np.nan,
        kind=_count_class(series, capacity) if counts else _price_class(changes, series.step),
        periods=_periods(series, part, days),
        days=days - days[0],
        first_day=int(days[0]),
    )


def _count_class(series: Series, capacity: int) -> str:
    """The class of a count by the capacity its source states; offers on a marketplace have none."""
    if not series.capacity_stated:
        return "offers"
    return "0/1" if capacity <= 1 else "2-15" if capacity < LARGE else "16 and more"


def _price_class(changes: np.ndarray, step: pd.Timedelta) -> str:
    """Whether a price changed once a day or more often in the training part, from its |y(t) - y(t-1)|."""
    known = changes[~np.isnan(changes)]
    days = known.size * (step / pd.Timedelta(days=1))
    return "moving" if days > 0 and np.count_nonzero(known) >= days * CHANGES_A_DAY else "still"


def slot_times(series: Series, places: np.ndarray) -> pd.DatetimeIndex:
    """When the slots at these places of a series begin, UTC, in microseconds."""
    step = series.step // pd.Timedelta(microseconds=1)
    return pd.DatetimeIndex(((series.first_slot + places) * step).astype("datetime64[us]"), tz="UTC")


def _periods(series: Series, part: TestPart, days: np.ndarray) -> np.ndarray:
    at = part.origins
    if series.slots_per_day and (at[-1] - at[0]) * series.step >= SHORTEST_WEEKS:
        weeks = (days + _MONDAY) // 7
        return np.asarray(weeks - weeks[0])
    return np.asarray(np.arange(at.size) * EQUAL_PARTS // at.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Sums over the origins of one block (or of several, added up).

    ``place`` is where its first origin stands among the test part's. ``sums`` (periods, h, len(SUMMED)); ``days``
    (days, 3): cells, sum of absolute errors and of pinball losses; ``losses`` (m, h, 2): pinball and absolute error
    of every origin in single precision, NaN in gaps. ``below`` (h, 19): sum of `shares_below`; ``bins`` (h, BINS, 3):
    number, sum of chances and how many came true. ``reasons`` counts why another model answered. ``fans``: (place in
    the test part, mean (h,), quantiles (h, 19)) of the example forecasts.
    """

    model: str
    panel: int
    which: int
    place: int
    sums: np.ndarray
    days: np.ndarray
    losses: np.ndarray
    below: np.ndarray
    bins: np.ndarray
    reasons: Counter[str]
    fans: tuple[tuple[int, np.ndarray, np.ndarray], ...] = field(default=())


def tally(block: Block, rolling: Rolling, *, fans: bool = False) -> Tally:
    """Score a block against what came; a target that is a gap or after the end is scored by nobody.

    With ``fans`` it keeps the forecasts of the origins of `fan_places`.
    """
    series, part = rolling.panels[block.panel].series[block.which], rolling.parts[block.panel][block.which]
    stick, horizon = yardstick_of(series, part), rolling.horizon
    place = int(np.searchsorted(part.origins, block.origins[0]))
    out = Tally(
        model=block.model,
        panel=block.panel,
        which=block.which,
        place=place,
        sums=np.zeros((int(stick.periods[-1]) + 1, horizon, len(SUMMED))),
        days=np.zeros((int(stick.days[-1]) + 1, 3)),
        losses=np.empty((block.origins.size, horizon, 2), dtype=np.float32),
        below=np.zeros((horizon, LEVELS.size)),
        bins=np.zeros((horizon, BINS, 3)),
        reasons=Counter(_NUMBER.sub("#", why) for why in block.outlook.reasons if why),
    )
    reference = _reference(series, part, stick, horizon) if block.model == FLOOR and stick.capacity else None
    for first, piece in _pieces(block):
        _add(out, first, piece, series, stick, reference)
    return replace(out, fans=_kept_fans(block, part, place)) if fans else out


def actual_after(series: Series, origins: np.ndarray, horizon: int) -> np.ndarray:
    """The values 1..horizon slots after each origin, shape (m, h), NaN in gaps and after the end."""
    places = origins[:, None] + np.arange(1, horizon + 1)
    inside = places < len(series)
    return np.where(inside, series.values[np.minimum(places, len(series) - 1)], np.nan)


def fan_places(part: TestPart) -> np.ndarray:
    """The places in the test part of the example forecasts, evenly spread."""
    size = part.origins.size
    return np.unique((np.arange(FANS) * 2 + 1) * size // (2 * FANS))


def _kept_fans(block: Block, part: TestPart, place: int) -> tuple[tuple[int, np.ndarray, np.ndarray], ...]:
    chosen = fan_places(part)
    inside = chosen[(chosen >= place) & (chosen < place + block.origins.size)]
    mean, quantiles = block.outlook.mean, block.outlook.quantiles
    # Copies: a view would hold the whole block.
    return tuple((int(i), mean[i - place].copy(), quantiles[i - place].copy()) for i in inside)


def _pieces(block: Block) -> Iterator[tuple[int, Block]]:
    """The block in parts of at most `_CHUNK` origins, each with where it begins."""
    given = block.outlook
    for first in range(0, block.origins.size, _CHUNK):
        cut = slice(first, first + _CHUNK)
        outlook = Outlook(
            quantiles=given.quantiles[cut],
            mean=given.mean[cut],
            reasons=given.reasons[cut],
            law=None if given.law is None else given.law[cut],
        )
        yield first, replace(block, origins=block.origins[cut], outlook=outlook)


def _reference(series: Series, part: TestPart, stick: Yardstick, horizon: int) -> np.ndarray:
    """`conditional_frequencies` of the training part up to twice the horizon: a newest value may be old."""
    return conditional_frequencies(series.values[: part.start + 1], stick.capacity, 2 * horizon)


def _add(
    out: Tally, first: int, block: Block, series: Series, stick: Yardstick, reference: np.ndarray | None
) -> None:
    """Add a block, whose origins begin ``first`` after the tally's, to the sums, in place."""
    given, size = block.outlook, block.origins.size
    actual = actual_after(series, block.origins, given.mean.shape[1])
    known = ~np.isnan(actual)
    chance = chances(given.quantiles, given.law, stick.capacity)
    span = transform_span(given.quantiles, given.law, actual)
    measured = _measured(block, actual, span, counts=series.variable == "count")
    if stick.capacity:
        measured["brier"] = brier(chance, actual)
    if reference is not None:
        measured["reference"] = brier(
            _frequencies_at(reference, series, block.origins, actual.shape[1]), actual
        )
    table = np.stack(
        [
            np.where(known, measured[name], 0.0) if name in measured else np.zeros(actual.shape)
            for name in SUMMED
        ],
        axis=-1,
    )
    at = slice(out.place + first, out.place + first + size)
    np.add.at(out.sums, stick.periods[at], table)
    np.add.at(out.days, stick.days[at], table[..., _DAILY].sum(axis=1))
    out.losses[first : first + size] = np.stack([measured["pinball"], measured["abs"]], axis=-1)
    out.below[...] += np.nansum(shares_below(span, actual), axis=0)
    _add_bins(out.bins, chance, actual)


#: Places in `SUMMED` of what `Tally.days` holds.
_DAILY = [SUMMED.index(name) for name in ("n", "abs", "pinball")]


def _measured(
    block: Block, actual: np.ndarray, span: tuple[np.ndarray, np.ndarray], *, counts: bool
) -> dict[str, np.ndarray]:
    """Measures of every origin and step by their names in `SUMMED`, each (m, h); ``span`` is `transform_span`'s."""
    quantiles, shape = block.outlook.quantiles, actual.shape
    median = quantiles[..., LEVELS.size // 2]
    fell_back = np.array([why != "" for why in block.outlook.reasons], dtype=float)
    out = {
        "n": np.ones(shape),
        "abs": np.abs(actual - median),
        "sq": np.square(actual - block.outlook.mean),
        "pinball": pinball(quantiles, actual),
        **{f"coverage_{p}": covered(span, actual, p) for p in PERCENTS},
        **{f"coverage_{p}_closed": covered_closed(quantiles, actual, p) for p in PERCENTS},
        **{f"width_{p}": width(quantiles, p) for p in PERCENTS},
        "fallback_share": np.broadcast_to(fell_back[:, None], shape),
    }
    if counts:
        error = np.floor(median + 1e-9) - actual
        out |= {"absent": np.maximum(error, 0.0), "unpredicted": np.maximum(-error, 0.0)}
        out["cover"] = cover_errors(np.floor(median + 1e-9), actual)
    return out


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
