"""Laws from what followed like situations: past pairs (slot, slot + k) weighted by likeness and by how recent they are (ours).

A Markov chain estimated directly for k steps is the case in which only equal values are alike. Everything here is a plain
function of the past: there is nothing to estimate, so nothing goes stale between refits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

#: Pairs older than so many half-lives weigh nothing.
_HALF_LIVES = 6.0
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


def analog_laws(
    values: np.ndarray,
    score: np.ndarray,
    swing: np.ndarray,
    places: np.ndarray,
    step: int,
    like: Likeness,
    states: int,
) -> np.ndarray:
    """Laws of the count ``step`` slots after each of ``places``, shape (places, states).

    ``values`` (slots,) with NaN in gaps, ``score`` (slots,) what likeness is measured on, ``swing`` (slots,) the usual change
    per slot. A place whose score is NaN gets the even law.
    """
    least = np.where(np.isfinite(swing), np.maximum(swing, _LEAST_SWING), 1.0)
    decay = 0.5 ** (1.0 / like.half_life)
    raw = _weigh(values, score, least, places, step, like.window, decay, like.width, like.before, states)
    now = score[places]
    stay = np.clip(np.where(np.isfinite(now), np.round(now), 0.0), 0, states - 1).astype(int)
    raw[np.arange(places.size), stay] += np.where(np.isfinite(now), like.stay, 0.0)
    raw += _EVEN / states
    return np.asarray(raw / raw.sum(axis=1, keepdims=True))


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _weigh(
    values: np.ndarray,
    score: np.ndarray,
    swing: np.ndarray,
    places: np.ndarray,
    step: int,
    window: int,
    decay: float,
    width: float,
    before: float,
    states: int,
) -> np.ndarray:
    """Weights of past targets, shape (places, states); pairs end at or before their place."""
    out = np.zeros((places.size, states))
    cap = states - 1
    for i in range(places.size):
        t = places[i]
        x = score[t]
        if np.isnan(x):
            continue
        scale = 1.0 / (width * swing[t])
        previous = values[t - 1] if t > 0 else np.nan
        edge = x == 0 or x == cap
        weight = 1.0
        for s in range(t - step, max(t - step - window, -1), -1):
            target = values[s + step]
            other = score[s]
            if not (np.isnan(target) or np.isnan(other) or np.isnan(values[s]) or target > cap):
                far = abs(x - other)
                if before > 0.0 and s > 0:
                    gone = previous - values[s - 1]
                    if not np.isnan(gone):
                        far += before * abs(gone)
                alike = weight * np.exp(-far * scale)
                if x != other and (edge or other == 0 or other == cap):
                    alike *= _ACROSS_A_BOUND
                out[i, int(target)] += alike
            weight *= decay
    return out
