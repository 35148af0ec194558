"""The members of the mixture of counts that need no estimation: laws that follow a series by themselves (M6.2, ours).

In this file: what followed like situations, what was seen of late, the members by name, and the ridge regression that says which
situations are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numba
import numpy as np
import pandas as pd

from forecasting.predictor import Panel, stored
from forecasting.predictors.laws import ahead, indicator
from forecasting.series import Series, newest_observed

# ---
# Laws from what followed like situations: past pairs (slot, slot + k) weighted by likeness and by how recent they are (ours).
#
# A Markov chain estimated directly for k steps is the case in which only equal values are alike. Everything here is a plain
# function of the past: there is nothing to estimate, so nothing goes stale between refits.

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


# ---
# Laws of what was seen of late: exponential smoothing of the distribution of a count, reading by reading (M6.2, ours).
#
# The point forecast of simple exponential smoothing is a weighted mean of the past; here the whole past distribution is kept, with
# the same weights, so that stays at 0 and at the cap and values that come back keep their mass.

#: Weight of a day against the day after it, in the law of a time of day.
_DAY_DECAY = 0.8
#: Days that must have been observed before a time of day says anything.
FEWEST_DAYS = 3


def readings(series: Series) -> tuple[np.ndarray, int]:
    """All readings in order of time, shape (slots x per_slot,), and how many there are per slot; the last of each is its value."""
    within = series.within
    return np.concatenate([within, series.values[:, None]], axis=1).ravel(), within.shape[1] + 1


def recent_laws(series: Series, half_life: float, states: int, *, parity: int = -1) -> np.ndarray:
    """The law of past readings at every slot, weights halved every ``half_life`` slots, shape (slots, states).

    ``parity`` 0 or 1 counts only every second reading: those an even or an odd number of readings before the slot's own
    (probes that use up what they find make neighbours unlike); -1 counts all.
    """
    seen, per_slot = readings(series)
    return np.asarray(_smooth(seen, per_slot, 0.5 ** (1.0 / (half_life * per_slot)), parity, states))


@numba.njit(cache=True, nogil=True)
def _smooth(seen: np.ndarray, per_slot: int, decay: float, parity: int, states: int) -> np.ndarray:
    slots = seen.size // per_slot
    mass = np.zeros((2, states))
    out = np.empty((slots, states))
    for i in range(seen.size):
        mass *= decay
        if not np.isnan(seen[i]) and seen[i] < states:
            mass[i % 2, int(seen[i])] += 1.0
        if i % per_slot == per_slot - 1:
            chosen = mass[0] + mass[1] if parity < 0 else mass[(i + parity) % 2]
            out[i // per_slot] = (chosen + _EVEN / states) / (chosen.sum() + _EVEN)
    return out


def lagged(values: np.ndarray, lag: int) -> np.ndarray:
    """The value ``lag`` slots before, NaN where there is none; the first axis is time."""
    out = np.full(values.shape, np.nan)
    if lag < values.shape[0]:
        out[lag:] = values[: values.shape[0] - lag]
    return out


def smoothed(values: np.ndarray, half_life: float) -> np.ndarray:
    """Exponentially weighted mean of the observed past of each column, NaN before the first; the first axis is time."""
    flat = np.ascontiguousarray(values.reshape(values.shape[0], -1), dtype=float)
    return np.asarray(_mean_so_far(flat, 0.5 ** (1.0 / half_life)).reshape(values.shape))


@numba.njit(cache=True, nogil=True)
def _mean_so_far(values: np.ndarray, decay: float) -> np.ndarray:
    out = np.full(values.shape, np.nan)
    for j in range(values.shape[1]):
        total, weight = 0.0, 0.0
        for t in range(values.shape[0]):
            total *= decay
            weight *= decay
            if not np.isnan(values[t, j]):
                total += values[t, j]
                weight += 1.0
            if weight > 0.0:
                out[t, j] = total / weight
    return out


def hour_laws(series: Series, seen: np.ndarray, places: np.ndarray, steps: np.ndarray) -> np.ndarray | None:
    """Laws of the target's time of day on earlier days, shape (places, steps, states); None without a clock.

    ``seen`` (slots, states) is the indicator of the values. A day's slots within an hour of the time count, a day
    weighs 0.8 of the next; nothing after a place is read. Rows of places with too few days before them are NaN.
    """
    day = series.slots_per_day
    if day < 8:
        return None
    half = max(1, day // 24)
    total = np.cumsum(np.vstack([np.zeros((1, seen.shape[1])), seen]), axis=0)
    slots = np.arange(seen.shape[0])
    high, low = np.minimum(slots + half + 1, seen.shape[0]), np.maximum(slots - half, 0)
    near = total[high] - total[low]
    for t in range(day, seen.shape[0]):
        near[t] += _DAY_DECAY * near[t - day]
    back = day * (-(-(steps + half) // day))
    source = places[:, None] + steps - back
    law = np.where((source >= 0)[..., None], near[np.maximum(source, 0)], 0.0) + _EVEN / seen.shape[1]
    known = np.cumsum(~np.isnan(series.values))[places] >= FEWEST_DAYS * day
    return np.where(known[:, None, None], law / law.sum(axis=-1, keepdims=True), np.nan)


# ---
# The members of the count's combination that need no estimation: laws that follow the series by themselves (M6.2, ours).
#
# Each is right somewhere: staying put on short horizons, what was seen of late where the market flickers, what followed like
# situations where it moves in patterns, the time of day on long horizons. The mixture finds out which, where.

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


# ---
# Expected counts by ridge regression on the newest readings, pooled over the markets of a source (ours).
#
# Its forecasts are not issued: they say which past situations were like the present one (`count_members`).

#: Newest readings that are regressed on.
_LAGS = 12
#: Pull of the coefficients towards "the value stays".
_RIDGE = 0.5
#: How much the mean of all markets' normal equations adds to a market's own.
_POOLED = 3.0
#: Days after which a pair weighs half.
_HALF_LIFE_HOURS = 100.0
#: Only the newest so many slots are estimated on.
_LONGEST_TRAINING = 2000


def regressors(series: Series) -> np.ndarray:
    """Constant, the newest readings and means of late as shares of the cap, and whether at a bound; shape (slots, columns)."""
    seen, per_slot = readings(series)
    known = np.maximum.accumulate(np.where(np.isnan(seen), -1, np.arange(seen.size)))
    held = np.where(known >= 0, seen[np.maximum(known, 0)], 0.0)
    last = np.arange(len(series)) * per_slot + per_slot - 1
    lags = min(_LAGS, 4 * per_slot)
    newest = held[np.maximum(last[:, None] - np.arange(lags), 0)]
    means = np.stack([smoothed(series.values, in_slots(series, h, 2)) for h in (2.0, 6.0, 24.0)], axis=1)
    cap = np.maximum(series.upper, 1.0)[:, None]
    now = newest[:, :1]
    columns = [np.ones_like(now), newest / cap, np.nan_to_num(means) / cap, now == 0, now >= cap]
    return np.concatenate([np.asarray(column, dtype=float) for column in columns], axis=1)


@stored("count.expectations")
@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """``coefficients`` of each series key, shape (nodes, columns), at the ``nodes`` (steps ahead); 0 weight on nothing known."""

    nodes: np.ndarray
    coefficients: dict[str, np.ndarray]

    def at(self, steps: np.ndarray) -> Expectations:
        """The same at ``steps`` alone; as it is where one of them lies between the nodes."""
        places = np.searchsorted(self.nodes, steps)
        if places.max() >= self.nodes.size or (self.nodes[places] != steps).any():
            return self
        return Expectations(
            nodes=self.nodes[places],
            coefficients={key: beta[places] for key, beta in self.coefficients.items()},
        )

    def of(self, series: Series, steps: np.ndarray) -> np.ndarray | None:
        """Expected counts 1-based ``steps`` after every slot, shape (slots, steps), between nodes linear; None if not estimated."""
        beta = self.coefficients.get(series.key)
        rows = regressors(series)
        if beta is None or beta.shape[1] != rows.shape[1]:
            return None
        # Slot by slot in one order of sums: a matrix product may round a slot otherwise when more slots follow it.
        share_of_cap = (rows[:, None, :] * beta).sum(axis=-1)
        at_nodes = np.clip(share_of_cap, 0.0, 1.0) * np.maximum(series.upper, 1.0)[:, None]
        out = np.empty((rows.shape[0], steps.size))
        for j, step in enumerate(steps):
            right = int(np.searchsorted(self.nodes, step))
            high, low = min(right, self.nodes.size - 1), max(min(right, self.nodes.size - 1) - 1, 0)
            gap = max(self.nodes[high] - self.nodes[low], 1)
            share = np.clip((step - self.nodes[low]) / gap, 0.0, 1.0) if high > low else 0.0
            out[:, j] = at_nodes[:, low] * (1 - share) + at_nodes[:, high] * share
        return out


def expectations(panel: Panel, nodes: np.ndarray) -> Expectations:
    """Estimate on all of the panel; markets of one source and one number of readings a slot share what they know."""
    groups: dict[tuple[str, int], list[Series]] = {}
    for series in panel.series:
        if series.observed.size > 2:
            groups.setdefault((series.source, series.within.shape[1]), []).append(series)
    found: dict[str, np.ndarray] = {}
    for members in groups.values():
        sums = [_summed(series, nodes) for series in members]
        left, right = (np.mean([pair[i] for pair in sums], axis=0) for i in (0, 1))
        start = np.zeros(left.shape[-1])
        start[1] = 1.0
        ridge = _RIDGE * np.eye(start.size)
        ridge[0, 0] = 1e-3
        for series, (own_left, own_right) in zip(members, sums, strict=True):
            matrix = own_left + _POOLED * left + ridge
            found[series.key] = (
                start + np.linalg.solve(matrix, (own_right + _POOLED * right)[..., None])[..., 0]
            )
    return Expectations(nodes=nodes, coefficients=found)


def _summed(series: Series, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of the normal equations of a series and of its phases."""
    parts = [_normal_equations(one, nodes) for one in (series, *phases(series))]
    left, right = (np.mean([part[i] for part in parts], axis=0) for i in (0, 1))
    return left, right


def _normal_equations(series: Series, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """X'WX (nodes, columns, columns) and X'W(target - value now) (nodes, columns) of the newest slots."""
    series = series.part(max(0, len(series) - _LONGEST_TRAINING), len(series))
    rows, cap = regressors(series), np.maximum(series.upper, 1.0)
    target = ahead(series.values, int(nodes[-1]))[:, nodes - 1]
    weight = 0.5 ** ((len(series) - 1 - np.arange(len(series))) / in_slots(series, _HALF_LIFE_HOURS, 48))
    left, right = [], []
    for j in range(nodes.size):
        known = ~np.isnan(target[:, j]) & ~np.isnan(series.values)
        x, w = rows[known], weight[known]
        gain = target[known, j] / cap[known] - x[:, 1]
        left.append((x * w[:, None]).T @ x)
        right.append((x * w[:, None]).T @ gain)
    return np.stack(left), np.stack(right)
