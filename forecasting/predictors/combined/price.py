"""Prices by a mixture of models whose weights follow what each lost of late, by market, step and part of the law (M6.2, M6.6).

In this file: the newest value with the spread of late, the weights, the correction of quantiles by past transforms, and the
predictor made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from forecasting.predictor import FittedPredictor, Model, Outlook, Panel
from forecasting.predictors.last_value import is_stale
from forecasting.predictors.laws import ahead
from forecasting.predictors.lightgbm.price import BoostedPrice
from forecasting.predictors.price_changes import ChangeProcess, price_state
from forecasting.quantiles import LEVELS
from forecasting.series import Series
from forecasting.state import stored

# ---
# Last value with the spread of late: changes over as many slots in the newest days, older ones counting less (M6.2).
#
# The spread of a whole training part says little of a price whose rest and unrest take turns; that of the last days does (ours).

#: After so long a change counts half, and after four times as long not at all (ours, on the first quarters of the open series).
HALF_LIFE = pd.Timedelta(days=2)
#: The spread is worked out anew every so many slots.
EVERY = 4
#: Numbers sorted at once.
_CHUNK = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveLastValue:
    """Model of a price: y(t+k) = y(t), quantiles from the changes over k slots of late; nothing of it is estimated beforehand."""

    half_life: pd.Timedelta = HALF_LIFE

    def fit(self, panel: Panel) -> FittedAdaptiveLastValue:
        """The model itself: all that it needs it reads from the series up to each origin."""
        return FittedAdaptiveLastValue(half_life=self.half_life)


@stored("combined.adaptive_price")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedAdaptiveLastValue:
    """The time after which a change counts half."""

    half_life: pd.Timedelta

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Spread as of the newest multiple of `EVERY` slots since the epoch; a newest value g slots old is spread over k + g."""
        series = panel.series[which]
        last, age = series.last(origins), series.age(origins)
        mean = np.repeat(last[:, None], horizon, axis=1)
        quantiles = np.repeat(mean[:, :, None], LEVELS.size, axis=2)
        half = max(1.0, self.half_life / series.step)
        width = int(4 * half)
        asked = origins - (origins + series.first_slot) % EVERY
        blocks, place = np.unique(asked, return_inverse=True)
        moved = np.concatenate([[0], np.cumsum(np.nan_to_num(np.diff(_held(series))) != 0)])
        seen = np.maximum(blocks, 0)
        lively = moved[seen] > moved[np.maximum(seen - width, 0)]
        shown = np.minimum(age, width // 2)
        changes = Changes(series=series, width=width, half=half)
        for extra in np.unique(shown):
            mine = np.flatnonzero((shown == extra) & lively[place])
            if mine.size:
                needed, back = np.unique(place[mine], return_inverse=True)
                quantiles[mine] += changes.spread(blocks[needed], horizon, int(extra))[back]
        stale = is_stale(series, age)
        reasons = tuple(
            f"newest value is {g} slots old" if s else "" for g, s in zip(age, stale, strict=True)
        )
        return Outlook(quantiles=quantiles, mean=mean, reasons=reasons)


def _held(series: Series) -> np.ndarray:
    """The newest observed value at each slot, NaN before the first, shape (slots,)."""
    return np.where(series.newest >= 0, series.values[np.maximum(series.newest, 0)], np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of a series over k slots within a window of ``width`` slots, each counting half after ``half`` slots."""

    series: Series
    width: int
    half: float

    def spread(self, ends: np.ndarray, horizon: int, extra: int) -> np.ndarray:
        """Weighted quantiles, with median 0, of the changes over extra+1..extra+horizon slots that had come about at each of
        the ``ends`` (slots), shape (ends, horizon, 19)."""
        out = np.zeros((ends.size, horizon, LEVELS.size))
        chunk = max(1, _CHUNK // self.width)
        for k in range(extra + 1, extra + horizon + 1):
            change = ahead(self.series.values, k)[:, -1] - self.series.values
            padded = np.concatenate([np.full(self.width, np.nan), change])
            windows = np.lib.stride_tricks.sliding_window_view(padded, self.width)
            for begin in range(0, ends.size, chunk):
                part = ends[begin : begin + chunk]
                # The newest change over k slots that is known at slot t began at t - k; row r ends with change r - 1.
                rows = windows[np.clip(part - k + 1, 0, change.size)]
                weights = np.exp2((np.arange(self.width) - self.width + 1) / self.half)
                out[begin : begin + chunk, k - extra - 1] = weighted_quantiles(rows, weights)
        return out


def weighted_quantiles(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Quantiles at `LEVELS` less the median of each row (n, m), NaN counting nothing; rows without a number give 0, shape (n, 19).

    ``weights`` is (m,). The least value whose share of the weight reaches the level, so a point mass stays one.
    """
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    weight = np.where(np.isnan(ordered), 0.0, weights[order])
    total = np.cumsum(weight, axis=1)
    share = total / np.maximum(total[:, -1:], 1e-300)
    out = np.zeros((values.shape[0], LEVELS.size))
    known = np.flatnonzero(~np.isnan(values).all(axis=1))
    for i, level in enumerate(LEVELS):
        place = np.argmax(share[known] >= level - 1e-9, axis=1)
        out[known, i] = ordered[known, place]
    return out - out[:, LEVELS.size // 2][:, None]


# ---
# Weights of several forecasters of one price, by step and part of the law, from what their forecasts lost of late (M6.2).
#
# Exponential weights on discounted relative losses, drawn to those of the whole panel while the market itself has taught little: a
# market's losses count as many observations as its price changed since. A forecast made at slot c for c + k counts from
# c + k on, when its value is known, never earlier (ours).

#: Parts of the law that are weighted apart: the tails, the flanks and the median.
PARTS = (slice(0, 4), slice(4, 9), slice(9, 10), slice(10, 15), slice(15, 19))
MEDIAN_PART = 2
#: Steps that are scored; later ones take the last one's weights.
SCORED_STEPS = 12
#: After so many days a loss counts half.
HALF_LIFE_DAYS = 6.0
#: A member whose relative loss is larger by one part in so many weighs e times less.
RATE = 40.0
#: Changes of price that the panel's losses count as; a market counts at most `MOST_CHANGES` of its own in the panel.
PRIOR_CHANGES = 20.0
MOST_CHANGES = 20.0
#: The median leaves the newest value only where others' median lost less by this share.
MEDIAN_GAIN = 0.02


@stored("combined.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Discounted losses (members, `SCORED_STEPS`, parts) and changes of price (`SCORED_STEPS`,) as of a slot since the epoch."""

    losses: np.ndarray
    changes: np.ndarray
    slot: int

    def relative(self) -> np.ndarray:
        """Losses in units of the members' mean, 1 where nothing was lost; shape of ``losses``."""
        return relative(self.losses)


def empty_record(members: int, slot: int) -> Record:
    """Nothing seen up to ``slot``."""
    return Record(
        losses=np.zeros((members, SCORED_STEPS, len(PARTS))), changes=np.zeros(SCORED_STEPS), slot=slot
    )


def relative(losses: np.ndarray) -> np.ndarray:
    """Losses (members, ...) in units of the members' mean, 1 where nothing was lost."""
    mean = losses.mean(axis=0)
    return np.where(mean > 0, losses / np.where(mean > 0, mean, 1.0), 1.0)


def part_losses(quantiles: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Pinball losses summed within each of `PARTS`, shape (..., n, h, parts).

    ``quantiles`` (..., n, h, 19); ``truth`` (n, h), NaN loses nothing.
    """
    error = truth[..., None] - quantiles
    loss = np.where(np.isnan(error), 0.0, np.maximum(LEVELS * error, (LEVELS - 1.0) * error))
    return np.stack([loss[..., part].sum(axis=-1) for part in PARTS], axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Forecasts made at slots ``at`` (n,) since the epoch, ascending: ``losses`` (members, n, h, parts), ``changes`` (n, h)."""

    at: np.ndarray
    losses: np.ndarray
    changes: np.ndarray


def records(
    scores: Scores, start: Record, asked: np.ndarray, half_life: float
) -> tuple[np.ndarray, np.ndarray]:
    """Discounted losses (members, asked, h, parts) and changes (asked, h) as known at each of the ``asked`` slots since the epoch.

    Losses halve every ``half_life`` slots. Slots asked for must not lie before the start's.
    """
    faded = np.exp2((start.slot - asked) / half_life)
    losses = start.losses[:, None] * faded[None, :, None, None]
    changes = start.changes[None, :] * faded[:, None]
    if not scores.at.size:
        return losses, changes
    # One after the other, each faded to the next: what is known at a slot never depends on how far the scores go on after it.
    gap = np.diff(scores.at, prepend=scores.at[:1])  # noqa: PD008
    fade = np.exp2(-gap / half_life)
    lost, changed = _faded(scores.losses, fade, axis=1), _faded(scores.changes, fade, axis=0)
    for k in range(losses.shape[2]):
        known = np.searchsorted(scores.at + k + 1, asked, side="right")
        newest = scores.at[np.maximum(known, 1) - 1]  # noqa: PD008
        shrink = np.where(known > 0, np.exp2((newest - asked) / half_life), 0.0)
        losses[:, :, k] += lost[:, known, k] * shrink[None, :, None]
        changes[:, k] += changed[known, k] * shrink
    return losses, changes


def _faded(values: np.ndarray, fade: np.ndarray, axis: int) -> np.ndarray:
    """Cumulative sums along an axis, each faded before the next is added, with a zero before the first."""
    ordered = np.moveaxis(values, axis, 0)
    total = np.zeros((ordered.shape[0] + 1, *ordered.shape[1:]))
    for i, factor in enumerate(fade):
        total[i + 1] = total[i] * factor + ordered[i]
    return np.moveaxis(total, 0, axis)


def pooled(kept: list[Record]) -> np.ndarray:
    """Relative losses of a panel, markets counting by their changes; shape of a record's losses."""
    shares = [np.minimum(record.changes, MOST_CHANGES) for record in kept]
    total = np.sum(shares, axis=0)[None, :, None]
    summed = np.sum(
        [record.relative() * share[None, :, None] for record, share in zip(kept, shares, strict=True)], axis=0
    )
    return np.where(total > 0, summed / np.where(total > 0, total, 1.0), 1.0)


def combined(members: np.ndarray, losses: np.ndarray, changes: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Weighted mean of the members' quantiles (members, n, h, 19), level by level; shape (n, h, 19).

    The first member must be the newest value without spread. ``losses`` (members, n, `SCORED_STEPS`, parts) and ``changes``
    (n, `SCORED_STEPS`) are those known at each origin, ``prior`` (members, `SCORED_STEPS`, parts) the panel's relative losses.
    """
    trust = changes[None, :, :, None]
    score = (trust * relative(losses) + PRIOR_CHANGES * prior[:, None]) / (trust + PRIOR_CHANGES)
    weight = np.exp(-RATE * (score - score.min(axis=0)))
    weight /= weight.sum(axis=0)
    steps = np.minimum(np.arange(members.shape[2]), SCORED_STEPS - 1)
    out = np.empty(members.shape[1:])
    for i, part in enumerate(PARTS):
        out[..., part] = np.einsum("mnh,mnhl->nhl", weight[:, :, steps, i], members[..., part])
    middle = score[:, :, steps, MEDIAN_PART]
    stays = middle[1:].min(axis=0) > middle[0] - MEDIAN_GAIN
    half = LEVELS.size // 2
    out[..., half] = np.where(stays, members[0, ..., half], out[..., half])
    out[..., :half] = np.sort(np.minimum(out[..., :half], out[..., half : half + 1]), axis=-1)
    out[..., half + 1 :] = np.sort(np.maximum(out[..., half + 1 :], out[..., half : half + 1]), axis=-1)
    return out


# ---
# Quantiles of a price corrected by where past prices fell among them (M6.6): the counts' recalibration without a law.
#
# Only the 19 levels are known: what lies between two quantiles is spread evenly, a price equal to several quantiles over all
# their levels. The corrected quantile of level a is the issued one of level b with G(b) = a, G the distribution of past
# transforms (`forecasting.predictors.combined.count`); beyond the outermost levels the law is taken to go on as it goes
# there. A price that is forecast without spread stays so.

#: Bins of the transform: below q05, between neighbouring levels, above q95.
BINS = LEVELS.size + 1
#: Transforms that are believed in before any was seen: uniform but for the outermost bins, which get so many times as much, since
#: what never happened in the past is not in it (ours); and how much the panel's mean adds to a market's own.
PRIOR = 60.0
_SURPRISE = 3.0
POOLED = 1.0
_BELIEVED = np.where(np.isin(np.arange(BINS), (0, BINS - 1)), _SURPRISE, 1.0)
#: The tail beyond q05 and q95 is this much longer than the step before it went on (ours).
_TAIL = 2.0
_EDGES = np.concatenate([[0.0], LEVELS, [1.0]])
#: Two prices closer than this share of themselves are one.
_SAME = 1e-9


def price_transforms(quantiles: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Share of each price's transform in each bin, shape (*truth.shape, BINS), zero where there is no price.

    ``quantiles`` has shape (*truth.shape, 19).
    """
    slack = _SAME * np.maximum(1.0, np.abs(truth))[..., None]
    below = (quantiles < truth[..., None] - slack).sum(axis=-1)
    upto = (quantiles <= truth[..., None] + slack).sum(axis=-1)
    tied = upto > below
    # A price between quantiles i-1 and i is in bin i; one tied with levels i..j-1 may be in any of the bins i..j.
    first, last = below, np.where(tied, upto, below)
    bins = np.arange(BINS)
    inside = (bins >= first[..., None]) & (bins <= last[..., None])
    # The end bins of a tie are in it by half: the ends of its mass are anywhere in them.
    ends = tied[..., None] & ((bins == first[..., None]) | (bins == last[..., None]))
    whole = (first[..., None] == 0) & (bins == 0) | (last[..., None] == BINS - 1) & (bins == BINS - 1)
    weight = inside * np.where(ends & ~whole, 0.5, 1.0)
    share = weight / weight.sum(axis=-1, keepdims=True)
    return np.where(np.isnan(truth)[..., None], 0.0, share)


def corrected_quantiles(quantiles: np.ndarray, past: np.ndarray) -> np.ndarray:
    """Quantiles (..., 19) at the levels that past transforms ``past`` (..., BINS) say they should have, non-decreasing.

    The median stays: it is the point forecast, and weighed as one.
    """
    weight = past + PRIOR * _BELIEVED / _BELIEVED.sum()
    reached = np.cumsum(weight, axis=-1) / weight.sum(axis=-1, keepdims=True)
    flat_q, flat_g = quantiles.reshape(-1, LEVELS.size), reached.reshape(-1, BINS)
    extended = np.concatenate(
        [
            flat_q[:, :1] - _TAIL * (flat_q[:, 1:2] - flat_q[:, :1]),
            flat_q,
            flat_q[:, -1:] + _TAIL * (flat_q[:, -1:] - flat_q[:, -2:-1]),
        ],
        axis=1,
    )
    out = np.empty(flat_q.shape)
    for i in range(flat_q.shape[0]):
        levels = np.interp(LEVELS, np.concatenate([[0.0], flat_g[i]]), _EDGES)
        out[i] = np.interp(levels, _EDGES, extended[i])
    half = LEVELS.size // 2
    middle = flat_q[:, half : half + 1]
    out[:, :half] = np.minimum(out[:, :half], middle)
    out[:, half + 1 :] = np.maximum(out[:, half + 1 :], middle)
    out[:, half] = flat_q[:, half]
    return np.maximum.accumulate(out, axis=1).reshape(quantiles.shape)


# ---
# The price models in one: their quantiles weighted by what each lost of late, per market, step and part of the law (M6.2).
#
# The newest value without spread is a member, so a price that stands still is forecast to stand still; and where nothing moved
# for long (`PriceState.moves`) no other is asked. Weights are learned from forecasts that were made without knowing what
# came: those of models estimated on the panel less its newest days, and, after the estimation, the models' own (ours).

#: Name -> how the member is made. The newest value without spread is a member besides, always the first.
PRICE_MEMBERS: dict[str, Callable[[], Model]] = {
    "adaptive": AdaptiveLastValue,
    "changes": ChangeProcess,
    "lightgbm": BoostedPrice,
}
#: The newest part of a panel on which the members are weighed; of a shorter panel a third.
WEIGHED = pd.Timedelta(days=12)
#: No forecast scored.
_NONE = Scores(
    at=np.zeros(0, dtype=int),
    losses=np.zeros((1, 0, SCORED_STEPS, BINS)),
    changes=np.zeros((0, SCORED_STEPS)),
)
#: Past forecasts are scored every so many slots since the epoch.
REFIT_EVERY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedPrice:
    """Model of the price over a panel: the members of these names in `PRICE_MEMBERS`, weighted."""

    names: tuple[str, ...] = tuple(PRICE_MEMBERS)
    recalibrated: bool = True

    def fit(self, panel: Panel) -> FittedCombinedPrice:
        """Weigh members estimated without the newest days on those days, then estimate them on all."""
        begins = [one.first_slot for one in panel.series if len(one)]
        end = max((one.end for one in panel.series), default=0)
        fitted = {name: PRICE_MEMBERS[name]().fit(panel) for name in self.names}
        if not begins:
            return FittedCombinedPrice(members=fitted, kept={}, prior=_even(len(fitted)), end=end)
        width = min(int(WEIGHED / panel.series[0].step), (end - min(begins)) // 3)
        before = panel.until(end - 1 - width)
        earlier = {name: PRICE_MEMBERS[name]().fit(before) for name in self.names}
        first, stop = end - 1 - width, end - 1
        told: dict[int, np.ndarray] = {}
        kept: dict[str, Record] = {}
        for which, one in enumerate(panel.series):
            origins = scored_origins(one, (first, stop))
            if origins.size:
                told[which] = member_quantiles(earlier, panel, which, origins, SCORED_STEPS)
                start = empty_record(len(fitted) + 1, first)
                scores = scores_of(one, origins, told[which])
                losses, changes = records(scores, start, np.array([stop]), _half_life(one))
                kept[one.key] = Record(losses=losses[:, 0], changes=changes[0], slot=stop)
        prior = pooled(list(kept.values())) if kept else _even(len(fitted))
        fallen = {}
        for which, made in told.items():
            one = panel.series[which]
            start = empty_record(len(fitted) + 1, first)
            origins = scored_origins(one, (first, stop))
            seen = _fallen(one, origins, made, start, prior)
            sums, _ = records(seen, _nothing_fallen(first), np.array([stop]), _half_life(one))
            fallen[one.key] = Record(losses=sums[:, 0], changes=np.zeros(SCORED_STEPS), slot=stop)
        return FittedCombinedPrice(
            members=fitted, kept=kept, prior=prior, end=end, fallen=fallen, recalibrated=self.recalibrated
        )


def _fallen(
    series: Series, origins: np.ndarray, told: np.ndarray, start: Record, prior: np.ndarray
) -> Scores:
    """Where prices fell in the quantiles issued at ``origins`` by the weights of that time, in the form of scores."""
    scores = scores_of(series, origins, told)
    losses, changes = records(scores, start, origins + series.first_slot, _half_life(series))
    issued = combined(told[:, :, :SCORED_STEPS], losses, changes, prior)
    target = origins[:, None] + np.arange(1, SCORED_STEPS + 1)
    inside = np.minimum(target, len(series) - 1)
    truth = np.where(target < len(series), series.values[inside], np.nan)
    share = price_transforms(issued, truth)
    return Scores(at=scores.at, losses=share[None], changes=np.zeros(share.shape[:2]))


def _nothing_fallen(slot: int) -> Record:
    return Record(losses=np.zeros((1, SCORED_STEPS, BINS)), changes=np.zeros(SCORED_STEPS), slot=slot)


def _even(members: int) -> np.ndarray:
    return np.ones_like(empty_record(members + 1, 0).losses)


def _half_life(series: Series) -> float:
    """The weights' half-life in slots."""
    return max(1.0, pd.Timedelta(days=HALF_LIFE_DAYS) / series.step)


def scored_origins(series: Series, span: tuple[int, int]) -> np.ndarray:
    """Origins in [first, stop) (slots since the epoch), every `EVERY` slots of them, at which the price moves; as indices."""
    low, high = (min(max(slot - series.first_slot, 0), len(series)) for slot in span)
    origins = np.arange(low, high)
    origins = origins[(origins + series.first_slot) % REFIT_EVERY == 0]
    return np.asarray(origins[price_state(series).moves[origins]])


def scores_of(series: Series, origins: np.ndarray, told: np.ndarray) -> Scores:
    """Losses of quantiles ``told`` (members, origins, `SCORED_STEPS` or more, 19) as far as their values are in the series."""
    target = origins[:, None] + np.arange(1, SCORED_STEPS + 1)
    inside = np.minimum(target, len(series) - 1)
    there = target < len(series)
    truth = np.where(there, series.values[inside], np.nan)
    changed = there & (price_state(series).age[inside] == 0)
    losses = part_losses(told[:, :, :SCORED_STEPS], truth)
    return Scores(at=origins + series.first_slot, losses=losses, changes=changed * float(REFIT_EVERY))


def member_quantiles(
    members: dict[str, FittedPredictor], panel: Panel, which: int, origins: np.ndarray, horizon: int
) -> np.ndarray:
    """Quantiles of the newest value alone and of every member, shape (members + 1, origins, horizon, 19)."""
    told = [model.outlook(panel, which, origins, horizon).quantiles for model in members.values()]
    return np.stack([standing(panel.series[which], origins, horizon), *told])


def standing(series: Series, origins: np.ndarray, horizon: int) -> np.ndarray:
    """The newest value at every step and level, shape (origins, horizon, 19)."""
    return np.broadcast_to(series.last(origins)[:, None, None], (origins.size, horizon, LEVELS.size))


@stored("combined.price")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCombinedPrice:
    """The fitted members, every market's record of losses, the panel's, and the slot since the epoch after the last fitted on."""

    members: dict[str, FittedPredictor]
    kept: dict[str, Record]
    prior: np.ndarray
    end: int
    fallen: dict[str, Record] = field(default_factory=dict)
    recalibrated: bool = True

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Weighted quantiles where the price moves, the newest value alone where it stands still."""
        series = panel.series[which]
        state = price_state(series)
        age = series.age(origins)
        quantiles = np.array(standing(series, origins, horizon))
        mean = quantiles[:, :, 0].copy()
        lively = np.flatnonzero(state.moves[origins])
        if lively.size:
            quantiles[lively] = self._weighted(panel, which, origins[lively], horizon)
            spread = quantiles[lively, :, 0] < quantiles[lively, :, -1]
            mean[lively] = np.where(spread, quantiles[lively].mean(axis=2), mean[lively])
        stale = is_stale(series, age)
        reasons = tuple(
            f"newest value is {g} slots old" if s else "" for g, s in zip(age, stale, strict=True)
        )
        return Outlook(quantiles=quantiles, mean=mean, reasons=reasons)

    def _weighted(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> np.ndarray:
        series = panel.series[which]
        start = self.kept.get(series.key, empty_record(len(self.members) + 1, self.end - 1))
        asked = np.maximum(origins + series.first_slot, start.slot)
        past = scored_origins(series, (self.end - 1, int(origins[-1]) + series.first_slot))
        every = np.union1d(past, origins)
        told = member_quantiles(self.members, panel, which, every, max(horizon, SCORED_STEPS))
        # Values after the last origin are not known there; `records` leaves out those after each of the others.
        known = series.part(0, int(origins[-1]) + 1)
        scores = scores_of(known, past, told[:, np.searchsorted(every, past)])
        losses, changes = records(scores, start, asked, _half_life(series))
        made = combined(told[:, np.searchsorted(every, origins), :horizon], losses, changes, self.prior)
        if not self.recalibrated:
            return made
        before = self.fallen.get(series.key, _nothing_fallen(start.slot))
        at_past = told[:, np.searchsorted(every, past)]
        since = _fallen(known, past, at_past, start, self.prior) if past.size else _NONE
        sums, _ = records(since, before, asked, _half_life(series))
        steps = np.minimum(np.arange(horizon), SCORED_STEPS - 1)
        shared = np.mean([one.losses[0] for one in self.fallen.values()], axis=0) if self.fallen else 0.0
        return corrected_quantiles(made, (sums[0] + POOLED * shared)[:, steps])
