"""Weights of several forecasters of one price, by step and part of the law, from what their forecasts lost of late (M6.2).

Exponential weights on discounted relative losses, drawn to those of the whole panel while the market itself has taught little: a
market's losses count as many observations as its price changed since. A forecast made at slot c for c + k counts from
c + k on, when its value is known, never earlier (ours).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from forecasting.forecast import LEVELS

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Discounted losses (members, `SCORED_STEPS`, parts) and changes of price (`SCORED_STEPS`,) as of a slot since the epoch."""

    losses: np.ndarray
    changes: np.ndarray
    slot: int

    def relative(self) -> np.ndarray:
        """Losses in units of the members' mean, 1 where nothing was lost; shape of ``losses``."""
        return relative(self.losses)

    def state(self) -> dict[str, Any]:
        """What `restore` needs, for JSON."""
        return {"losses": self.losses.tolist(), "changes": self.changes.tolist(), "slot": self.slot}

    @staticmethod
    def restore(state: dict[str, Any]) -> Record:
        """The record whose `state` this is."""
        return Record(
            losses=np.array(state["losses"]), changes=np.array(state["changes"]), slot=state["slot"]
        )


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
    gap = np.diff(scores.at, prepend=scores.at[:1])
    fade = np.exp2(-gap / half_life)
    lost, changed = _faded(scores.losses, fade, axis=1), _faded(scores.changes, fade, axis=0)
    for k in range(losses.shape[2]):
        known = np.searchsorted(scores.at + k + 1, asked, side="right")
        newest = scores.at[np.maximum(known, 1) - 1]
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
