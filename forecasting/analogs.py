"""Laws from what followed like situations: past pairs (slot, slot + k) weighted by likeness and by how recent they are (ours).

A Markov chain estimated directly for k steps is the case in which only equal values are alike. Everything here is a plain
function of the past: there is nothing to estimate, so nothing goes stale between refits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np

#: Pairs older than so many half-lives weigh nothing.
_HALF_LIVES = 4.0
#: A pair that starts at a bound (0 or the cap) says so much less about a start elsewhere, and the reverse.
_ACROSS_A_BOUND = 0.25
#: Swings below this are measurement, not movement.
_LEAST_SWING = 0.25
#: Weight that is spread evenly, so that no count is impossible.
_EVEN = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """How alike two slots are: exp(-(|x - x'| + before |y1 - y1'|) / (width swing)).

    x is the present value (or an expected value of the target), y1 the value one slot before, the swing the usual change per
    slot of late. ``half_life`` in slots; ``stay`` pairs are added that stay where the series is.
    """

    half_life: float
    width: float = 1.0
    before: float = 0.0
    stay: float = 2.0

    @property
    def window(self) -> int:
        """Slots that are looked back."""
        return int(np.ceil(_HALF_LIVES * self.half_life))


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Readings of a series once a slot: ``values`` (slots,) with NaN in gaps, and ``score`` (slots,) what likeness is measured on.

    The readings between slots make tracks of their own, the same market seen a part of a slot earlier.
    """

    values: np.ndarray
    score: np.ndarray


def analog_laws(
    tracks: Sequence[Track], swing: np.ndarray, places: np.ndarray, step: int, like: Likeness, states: int
) -> np.ndarray:
    """Laws of the count ``step`` slots after each of ``places`` of the first track, from past pairs of all, shape (places, states).

    ``swing`` (slots,) is the usual change per slot. A place whose score is NaN gets the even law.
    """
    own = tracks[0]
    least = np.where(np.isfinite(swing), np.maximum(swing, _LEAST_SWING), 1.0)[places]
    decay = 0.5 ** (1.0 / like.half_life)
    now = own.score[places]
    previous = np.where(places > 0, own.values[places - 1], np.nan)
    raw = np.zeros((places.size, states))
    for track in tracks:
        _weigh(
            track.values, track.score, now, previous, places, raw,
            step, like.window, decay, 1.0 / (like.width * least), like.before,
        )  # fmt: skip
    stay = np.clip(np.where(np.isfinite(now), np.round(now), 0.0), 0, states - 1).astype(int)
    raw[np.arange(places.size), stay] += np.where(np.isfinite(now), like.stay, 0.0)
    raw += _EVEN / states
    return np.asarray(raw / raw.sum(axis=1, keepdims=True))


@numba.njit(cache=True, nogil=True)
def _weigh(
    values: np.ndarray,
    score: np.ndarray,
    now: np.ndarray,
    previous: np.ndarray,
    places: np.ndarray,
    out: np.ndarray,
    step: int,
    window: int,
    decay: float,
    scale: np.ndarray,
    before: float,
) -> None:
    """Add to ``out`` (places, states) the weights of a track's past targets; pairs end at or before their place."""
    cap = out.shape[1] - 1
    for i in range(places.size):
        t, x = places[i], now[i]
        if np.isnan(x):
            continue
        edge = x == 0 or x == cap
        weight = 1.0
        for s in range(t - step, max(t - step - window, -1), -1):
            target = values[s + step]
            other = score[s]
            if not (np.isnan(target) or np.isnan(other) or np.isnan(values[s]) or target > cap):
                far = abs(x - other)
                if before > 0.0 and s > 0:
                    gone = previous[i] - values[s - 1]
                    if not np.isnan(gone):
                        far += before * abs(gone)
                alike = weight * np.exp(-far * scale[i])
                if x != other and (edge or other == 0 or other == cap):
                    alike *= _ACROSS_A_BOUND
                out[i, int(target)] += alike
            weight *= decay
