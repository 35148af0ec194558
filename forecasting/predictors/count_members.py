"""The members of the count's combination that need no estimation: laws that follow the series by themselves (M6.2, ours).

Each is right somewhere: staying put on short horizons, what was seen of late where the market flickers, what followed like
situations where it moves in patterns, the time of day on long horizons. `stacking` finds out which, where.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecasting.analogs import Likeness, analog_laws
from forecasting.laws import indicator
from forecasting.recent import hour_laws, recent_laws, smoothed
from forecasting.series import Series

_HOUR = pd.Timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A series' slots ``places`` (ascending indices) seen from each of them, for targets ``steps`` slots ahead.

    ``present`` (slots,) is the newest observed value at every slot, ``swing`` (slots,) the usual change per slot of late;
    ``expected`` (slots, steps) expected values of the targets, or None.
    """

    series: Series
    places: np.ndarray
    steps: np.ndarray
    states: int
    present: np.ndarray
    swing: np.ndarray
    expected: np.ndarray | None = None


def situation_of(
    series: Series, places: np.ndarray, steps: np.ndarray, states: int, expected: np.ndarray | None = None
) -> Situation:
    """The situation at ``places`` of a series."""
    present = np.where(series.newest >= 0, series.values[np.maximum(series.newest, 0)], np.nan)
    change = np.abs(np.diff(series.values, prepend=np.nan))
    return Situation(
        series=series, places=places, steps=steps, states=states, present=present, expected=expected,
        swing=smoothed(change, in_slots(series, 24.0, 8)),
    )  # fmt: skip


def in_slots(series: Series, hours: float, at_least: float) -> float:
    """A time in hours as a number of slots, not less than ``at_least``."""
    return max(hours * (_HOUR / series.step), at_least)


Member = Callable[[Situation], np.ndarray]


def _over_steps(law: np.ndarray, at: Situation) -> np.ndarray:
    """A law per slot (slots, states) as one per place and step."""
    return np.repeat(law[at.places][:, None, :], at.steps.size, axis=1)


def _stay(at: Situation) -> np.ndarray:
    return _over_steps(_certain(at.present, at.states), at)


def _certain(values: np.ndarray, states: int) -> np.ndarray:
    law = indicator(values, states)
    empty = law.sum(axis=-1) == 0
    law[empty] = 1.0 / states
    return law


def _recent(hours: float, at_least: float, parity: int = -1) -> Member:
    def member(at: Situation) -> np.ndarray:
        half_life = in_slots(at.series, hours, at_least)
        return _over_steps(recent_laws(at.series, half_life, at.states, parity=parity), at)

    return member


def _alike(hours: float, at_least: float, *, before: float = 0.0, width: float = 1.0) -> Member:
    def member(at: Situation) -> np.ndarray:
        like = Likeness(half_life=in_slots(at.series, hours, at_least), width=width, before=before)
        return np.stack(
            [
                analog_laws(at.series.values, at.present, at.swing, at.places, int(k), like, at.states)
                for k in at.steps
            ],
            axis=1,
        )

    return member


def _alike_expected(at: Situation) -> np.ndarray:
    """What followed when as much was expected as now; without expectations, when as much was there as now."""
    like = Likeness(half_life=in_slots(at.series, 48.0, 24), width=0.8)
    scores = [at.present] * at.steps.size if at.expected is None else list(at.expected.T)
    laws = [
        analog_laws(at.series.values, score, at.swing, at.places, int(k), like, at.states)
        for k, score in zip(at.steps, scores, strict=True)
    ]
    return np.stack(laws, axis=1)


def _hour(at: Situation) -> np.ndarray:
    seen = indicator(at.series.values, at.states)
    law = hour_laws(at.series, seen, at.places, at.steps)
    return _recent(48.0, 16)(at) if law is None else law


#: Name -> member. Half-lives in hours, with the least number of slots they may be.
MEMBERS: dict[str, Member] = {
    "stay": _stay,
    "recent_half_hour": _recent(0.5, 1),
    "recent_90_minutes": _recent(1.5, 2),
    "recent_4_hours": _recent(4.0, 4),
    "recent_12_hours": _recent(12.0, 8),
    "recent_2_days": _recent(48.0, 16),
    "even_readings": _recent(1.0, 2, parity=0),
    "odd_readings": _recent(1.0, 2, parity=1),
    "alike_1_day": _alike(24.0, 16),
    "alike_3_days": _alike(72.0, 32, before=0.5),
    "alike_10_days": _alike(240.0, 64, width=0.5),
    "alike_expected": _alike_expected,
    "hour_of_day": _hour,
}


def member_laws(at: Situation, names: tuple[str, ...]) -> np.ndarray:
    """Laws of the named members, shape (members, places, steps, states)."""
    return np.stack([MEMBERS[name](at) for name in names])
