"""The members of the count's combination that need no estimation: laws that follow the series by themselves (M6.2, ours).

Each is right somewhere: staying put on short horizons, what was seen of late where the market flickers, what followed like
situations where it moves in patterns, the time of day on long horizons. `stacking` finds out which, where.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from forecasting.analogs import Likeness, Track, analog_laws
from forecasting.laws import indicator
from forecasting.recent import hour_laws, recent_laws, smoothed
from forecasting.series import Series, newest_observed

_HOUR = pd.Timedelta(hours=1)
#: Of a series read more often than three times a slot so many phases are used beside its own.
_MOST_PHASES = 2
Expect = Callable[[Series, np.ndarray], "np.ndarray | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A series' slots ``places`` (ascending indices) seen from each of them, for targets ``steps`` slots ahead.

    ``present`` (slots,) is the newest observed value at every slot, ``swing`` (slots,) the usual change per slot of late.
    ``phases`` are the series as read a part of a slot earlier; ``expected`` the expected values of the targets (slots, steps)
    of the series and of each of its phases, empty if not estimated.
    """

    series: Series
    phases: tuple[Series, ...]
    places: np.ndarray
    steps: np.ndarray
    states: int
    present: np.ndarray
    swing: np.ndarray
    expected: tuple[np.ndarray, ...] = ()
    expect: Expect | None = None
    #: Laws worked out so far, by member and step: a law of one step does not depend on the others that are asked for.
    known: dict[tuple[str, int], np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    def at_steps(self, steps: np.ndarray) -> Situation:
        """The same places, seen for other targets."""
        if np.isin(steps, self.steps).all():
            return self.part(np.searchsorted(self.steps, steps))
        other = situation_of(self.series, self.places, steps, self.states, self.expect)
        return replace(other, known=self.known)

    def part(self, which: np.ndarray) -> Situation:
        """The situation for the steps of these indices only."""
        expected = tuple(one[:, which] for one in self.expected)
        return replace(self, steps=self.steps[which], expected=expected)


def situation_of(
    series: Series, places: np.ndarray, steps: np.ndarray, states: int, expect: Expect | None = None
) -> Situation:
    """The situation at ``places`` of a series; ``expect`` gives the expected values of a series' targets."""
    earlier = phases(series)
    expected = [found for one in (series, *earlier) if expect and (found := expect(one, steps)) is not None]
    present = np.where(series.newest >= 0, series.values[np.maximum(series.newest, 0)], np.nan)
    change = np.abs(np.diff(series.values, prepend=np.nan))
    return Situation(
        series=series, phases=earlier, places=places, steps=steps, states=states, present=present,
        expected=tuple(expected), expect=expect,
        swing=smoothed(change, in_slots(series, 24.0, 8)),
    )  # fmt: skip


def phases(series: Series) -> tuple[Series, ...]:
    """The series as it was read a part of a slot earlier, a few evenly spread; slot by slot known when the slot begins.

    Pairs of readings a whole number of slots apart teach as much at one phase as at another, so a market that is probed
    three times a slot teaches three times as much.
    """
    m = series.within.shape[1]
    chosen = np.unique(np.linspace(0, m, min(m, _MOST_PHASES) + 2)[1:-1].astype(int)) if m > 1 else range(m)
    seen = np.concatenate([series.within, series.values[:, None]], axis=1).ravel()
    out = []
    for back in sorted(m - int(place) for place in chosen):
        # The newest reading of slot t is now the one ``back`` readings earlier.
        moved = np.concatenate([np.full(back, np.nan), seen[: seen.size - back]]).reshape(-1, m + 1)
        values = moved[:, -1]
        out.append(replace(series, values=values, within=moved[:, :-1], newest=newest_observed(values)))
    return tuple(out)


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
        tracks = _tracks(at)
        laws = [analog_laws(tracks, at.swing, at.places, int(k), like, at.states) for k in at.steps]
        return np.stack(laws, axis=1)

    return member


def _tracks(at: Situation) -> list[Track]:
    """What was there, in the series and in its phases."""
    own = Track(values=at.series.values, score=at.present)
    return [own, *(Track(values=one.values, score=one.values) for one in at.phases)]


def _alike_expected(at: Situation) -> np.ndarray:
    """What followed when as much was expected as now; without expectations, when as much was there as now."""
    like = Likeness(half_life=in_slots(at.series, 48.0, 24), width=0.8)
    laws = []
    for j, k in enumerate(at.steps):
        tracks = _tracks(at)
        if len(at.expected) == len(tracks):
            tracks = [
                Track(values=track.values, score=expected[:, j])
                for track, expected in zip(tracks, at.expected, strict=True)
            ]
        laws.append(analog_laws(tracks, at.swing, at.places, int(k), like, at.states))
    return np.stack(laws, axis=1)


def _hour(at: Situation) -> np.ndarray:
    seen = indicator(at.series.values, at.states)
    law = hour_laws(at.series, seen, at.places, at.steps)
    recent = _recent(48.0, 16)(at)
    return recent if law is None else np.where(np.isnan(law), recent, law)


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
    return np.stack([_member_law(at, name) for name in names])


def _member_law(at: Situation, name: str) -> np.ndarray:
    """A member's law, worked out once for each step of a situation however often it is asked for."""
    new = np.flatnonzero([(name, int(k)) not in at.known for k in at.steps])
    if new.size:
        laws = MEMBERS[name](at if new.size == at.steps.size else at.part(new))
        at.known.update({(name, int(at.steps[j])): laws[:, i] for i, j in enumerate(new)})
    return np.stack([at.known[name, int(k)] for k in at.steps], axis=1)
