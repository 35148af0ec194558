"""Members of the count mixture, computed from the series: analogs, smoothed readings, a pooled ridge (M6.2, ours)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numba
import numpy as np
import pandas as pd

from slackwater.forecasting.predictor import Panel, stored
from slackwater.forecasting.predictors.distributions import ahead, indicator
from slackwater.forecasting.series import Series, newest_observed

# ---
# Analog forecasts: distributions from past pairs (slot, slot + k), weighted by similarity and by age (ours).
#
# A Markov chain estimated directly for k steps is the special case in which only equal values are similar. Everything here
# is a pure function of the past without estimated parameters, so nothing becomes outdated between refits.

_HALF_LIVES = 4.0  # Pairs older than this many half-lives have no weight
#: Weight factor of a pair if either its start or the present value is at a bound (0 or the capacity) and the two differ.
_ACROSS_A_BOUND = 0.25
_LEAST_SWING = 0.25  # Lower bound of the usual change per slot; smaller changes are measurement noise
_EVEN = 1e-3  # Total weight spread evenly over all counts, so that no count is impossible


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """Similarity of two slots: exp(-(|x - x'| + before |y1 - y1'|) / (width swing)).

    x is the present value (or an expected value of the target), y1 the value one slot earlier, and the swing the recent
    mean absolute change per slot. ``half_life`` is in slots; ``stay`` is the number of pseudo-pairs at the present value.
    """

    half_life: float
    width: float = 1.0
    before: float = 0.0
    stay: float = 2.0

    @property
    def window(self) -> int:
        """Number of past slots that are used."""
        return int(np.ceil(_HALF_LIVES * self.half_life))


def writable(values: np.ndarray) -> np.ndarray:
    """Return an array of floats as writable and contiguous: numba compiles a function again for each other kind of array."""
    return np.require(values, float, ["C_CONTIGUOUS", "WRITEABLE"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Readings of a series at every slot: ``values`` (slots,) with NaN in gaps, and ``score`` (slots,).

    Similarity is measured on the score. Readings between slots form further tracks: the same market observed a fraction of a
    slot earlier.
    """

    values: np.ndarray
    score: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", writable(self.values))
        object.__setattr__(self, "score", writable(self.score))


def analog_distributions(
    tracks: Sequence[Track],
    swing: np.ndarray,
    places: np.ndarray,
    steps: np.ndarray,
    like: Likeness,
    states: int,
) -> np.ndarray:
    """Return distributions of the count ``steps`` slots after ``places`` of the first track, shape (places, steps, states).

    They are estimated from past pairs of all tracks. ``swing`` (slots,) is the usual change per slot. A place whose score
    is NaN gets the uniform distribution.
    """
    own = tracks[0]
    least = np.where(np.isfinite(swing), np.maximum(swing, _LEAST_SWING), 1.0)[places]
    decay = 0.5 ** (1.0 / like.half_life)
    now = own.score[places]
    previous = np.where(places > 0, own.values[places - 1], np.nan)
    raw = np.zeros((places.size, steps.size, states))
    for track in tracks:
        _weigh(
            track.values, track.score, now, previous, places, raw,
            steps, like.window, decay, 1.0 / (like.width * least), like.before,
        )  # fmt: skip
    stay = np.clip(np.where(np.isfinite(now), np.round(now), 0.0), 0, states - 1).astype(int)
    raw[np.arange(places.size), :, stay] += np.where(np.isfinite(now), like.stay, 0.0)[:, None]
    raw += _EVEN / states
    return np.asarray(raw / raw.sum(axis=2, keepdims=True))


@numba.njit(cache=True, nogil=True)
def _weigh(
    values: np.ndarray,
    score: np.ndarray,
    now: np.ndarray,
    previous: np.ndarray,
    places: np.ndarray,
    out: np.ndarray,
    steps: np.ndarray,
    window: int,
    decay: float,
    scale: np.ndarray,
    before: float,
) -> None:
    """Add to ``out`` (places, steps, states) the weights of a track's targets at ascending ``steps``, pairs before places."""
    cap = out.shape[2] - 1
    alike = np.zeros(values.size)
    for i in range(places.size):
        t, x = places[i], now[i]
        if np.isnan(x):
            continue
        edge = x == 0 or x == cap
        for s in range(max(t - steps[-1] - window, -1) + 1, t - steps[0] + 1):
            other = score[s]
            alike[s] = np.nan
            if not (np.isnan(other) or np.isnan(values[s])):
                far = abs(x - other)
                if before > 0.0 and s > 0:
                    forgotten = previous[i] - values[s - 1]
                    if not np.isnan(forgotten):
                        far += before * abs(forgotten)
                alike[s] = np.exp(-far * scale[i])
                if x != other and (edge or other == 0 or other == cap):
                    alike[s] *= _ACROSS_A_BOUND
        for k in range(steps.size):
            step, weight = steps[k], 1.0
            for s in range(t - step, max(t - step - window, -1), -1):
                target = values[s + step]
                if not (np.isnan(target) or np.isnan(alike[s]) or target > cap):
                    out[i, k, int(target)] += weight * alike[s]
                weight *= decay


# ---
# Distributions of recent readings: exponential smoothing of the distribution of a count, reading by reading (M6.2, ours).
#
# Simple exponential smoothing forecasts a weighted mean of the past. Here the weighted past distribution itself is the
# forecast, so stays at 0 or at the capacity and recurring values retain their probability mass.

_DAY_DECAY = 0.8  # Decay factor per day in the distribution of a time of day
FEWEST_DAYS = 3  # Days that must have been observed before the distribution of a time of day is used


def readings(series: Series) -> tuple[np.ndarray, int]:
    """Return all readings in order (slots x per_slot,), the last of a slot its value, and ``per_slot``."""
    within = series.within
    return np.concatenate([within, series.values[:, None]], axis=1).ravel(), within.shape[1] + 1


def recent_distributions(series: Series, half_life: float, states: int, *, parity: int = -1) -> np.ndarray:
    """Return the weighted distribution of past readings at every slot, shape (slots, states).

    Weights halve every ``half_life`` slots. ``parity`` 0 or 1 includes only readings an even or odd number of readings
    before the slot's newest reading, because probes that consume the instances they find make adjacent readings differ; -1
    includes all.
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


def lag_values(values: np.ndarray, lag: int) -> np.ndarray:
    """Return the values ``lag`` slots earlier, NaN where there is none; the first axis is time."""
    out = np.full(values.shape, np.nan)
    if lag < values.shape[0]:
        out[lag:] = values[: values.shape[0] - lag]
    return out


def smooth_values(values: np.ndarray, half_life: float) -> np.ndarray:
    """Return the exponentially weighted mean of the observed past of each column, NaN before the first value; axis 0 is time."""
    flat = writable(values.reshape(values.shape[0], -1))
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


def hour_distributions(
    series: Series, seen: np.ndarray, places: np.ndarray, steps: np.ndarray
) -> np.ndarray | None:
    """Return distributions of the target's time of day on earlier days, shape (places, steps, states).

    None if a day has fewer than 8 slots or there is no clock. ``seen`` (slots, states) is the indicator of the values. Slots
    within an hour of the target's time of day count; weights decay by 0.8 per day. Nothing after a place is read. Rows of
    places with too few days before them are NaN.
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
    distribution = (
        np.where((source >= 0)[..., None], near[np.maximum(source, 0)], 0.0) + _EVEN / seen.shape[1]
    )
    known = np.cumsum(~np.isnan(series.values))[places] >= FEWEST_DAYS * day
    return np.where(known[:, None, None], distribution / distribution.sum(axis=-1, keepdims=True), np.nan)


# ---
# Members of the count mixture that need no estimation (M6.2, ours).
#
# Each member is accurate in some situation: persistence on short horizons, recent readings where the market flickers, analogs
# where it moves in patterns, the time of day on long horizons. The mixture learns which member to weight in which market.

_HOUR = pd.Timedelta(hours=1)
#: Maximal number of phases used in addition to the series itself.
_MOST_PHASES = 2
Expect = Callable[[Series, np.ndarray], "np.ndarray | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Inputs of the members: a series at its slots ``places`` (ascending indices), for targets ``steps`` slots ahead.

    ``present`` (slots,) is the newest observed value at every slot, ``swing`` (slots,) the recent mean absolute change per slot.
    ``phases`` are the series read a fraction of a slot earlier. ``expected`` holds the expected values of the targets
    (slots, steps) for the series and each of its phases, and is empty if they were not estimated.
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
    #: Cache of distributions by member and step; the distribution of a step does not depend on the other requested steps.
    known: dict[tuple[str, int], np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    def at_steps(self, steps: np.ndarray) -> Situation:
        """Return the situation at the same places for other steps."""
        if np.isin(steps, self.steps).all():
            return self.part(np.searchsorted(self.steps, steps))
        other = situation_of(self.series, self.places, steps, self.states, self.expect)
        return replace(other, known=self.known)

    def part(self, which: np.ndarray) -> Situation:
        """Return the situation for the steps with these indices."""
        expected = tuple(distribution[:, which] for distribution in self.expected)
        return replace(self, steps=self.steps[which], expected=expected)


def situation_of(
    series: Series, places: np.ndarray, steps: np.ndarray, states: int, expect: Expect | None = None
) -> Situation:
    """Return the situation at ``places`` of a series; ``expect`` computes the expected values of a series' targets."""
    earlier = phases(series)
    expected = [found for own in (series, *earlier) if expect and (found := expect(own, steps)) is not None]
    present = np.where(series.newest >= 0, series.values[np.maximum(series.newest, 0)], np.nan)
    change = np.abs(np.diff(series.values, prepend=np.nan))
    return Situation(
        series=series, phases=earlier, places=places, steps=steps, states=states, present=present,
        expected=tuple(expected), expect=expect,
        swing=smooth_values(change, in_slots(series, 24.0, 8)),
    )  # fmt: skip


def phases(series: Series) -> tuple[Series, ...]:
    """Return the series as read a fraction of a slot earlier, at a few evenly spaced phases.

    The values of a phase are known when their slot begins. Pairs of readings a whole number of slots apart are equally
    informative at every phase, so a market probed three times per slot gives three times as many pairs.
    """
    m = series.within.shape[1]
    chosen = np.unique(np.linspace(0, m, min(m, _MOST_PHASES) + 2)[1:-1].astype(int)) if m > 1 else range(m)
    seen = np.concatenate([series.within, series.values[:, None]], axis=1).ravel()
    out = []
    for back in sorted(m - int(place) for place in chosen):
        # The newest reading of slot t is now the reading ``back`` readings earlier.
        moved = np.concatenate([np.full(back, np.nan), seen[: seen.size - back]]).reshape(-1, m + 1)
        values = moved[:, -1]
        out.append(replace(series, values=values, within=moved[:, :-1], newest=newest_observed(values)))
    return tuple(out)


def in_slots(series: Series, hours: float, at_least: float) -> float:
    """Convert hours to a number of slots, at least ``at_least``."""
    return max(hours * (_HOUR / series.step), at_least)


Member = Callable[[Situation], np.ndarray]


def _over_steps(distribution: np.ndarray, at: Situation) -> np.ndarray:
    """Repeat a distribution per slot (slots, states) for each place and step."""
    return np.repeat(distribution[at.places][:, None, :], at.steps.size, axis=1)


def _point_distribution(values: np.ndarray, states: int) -> np.ndarray:
    distribution = indicator(values, states)
    empty = distribution.sum(axis=-1) == 0
    distribution[empty] = 1.0 / states
    return distribution


def _recent(hours: float, at_least: float, parity: int = -1) -> Member:
    def member(at: Situation) -> np.ndarray:
        half_life = in_slots(at.series, hours, at_least)
        return _over_steps(recent_distributions(at.series, half_life, at.states, parity=parity), at)

    return member


def _analog_member(hours: float, at_least: float, *, before: float = 0.0, width: float = 1.0) -> Member:
    def member(at: Situation) -> np.ndarray:
        like = Likeness(half_life=in_slots(at.series, hours, at_least), width=width, before=before)
        return analog_distributions(_tracks(at), at.swing, at.places, at.steps, like, at.states)

    return member


def _tracks(at: Situation) -> list[Track]:
    """Return the tracks of the series and its phases, with the observed values as score."""
    own = Track(values=at.series.values, score=at.present)
    return [own, *(Track(values=phase.values, score=phase.values) for phase in at.phases)]


def _alike_expected(at: Situation) -> np.ndarray:
    """Forecast from past slots with similar expected counts; without expectations, from slots with similar values."""
    like = Likeness(half_life=in_slots(at.series, 48.0, 24), width=0.8)
    tracks = _tracks(at)
    if len(at.expected) != len(tracks):
        return analog_distributions(tracks, at.swing, at.places, at.steps, like, at.states)
    distributions = []
    for j in range(at.steps.size):
        scored = [
            Track(values=track.values, score=expected[:, j])
            for track, expected in zip(tracks, at.expected, strict=True)
        ]
        distributions.append(
            analog_distributions(scored, at.swing, at.places, at.steps[j : j + 1], like, at.states)
        )
    return np.concatenate(distributions, axis=1)


def _hour(at: Situation) -> np.ndarray:
    seen = indicator(at.series.values, at.states)
    distribution = hour_distributions(at.series, seen, at.places, at.steps)
    recent = _recent(48.0, 16)(at)
    return recent if distribution is None else np.where(np.isnan(distribution), recent, distribution)


#: Name -> member. Half-lives are in hours, with a minimum in slots.
MEMBERS: dict[str, Member] = {
    "stay": lambda at: _over_steps(_point_distribution(at.present, at.states), at),
    "recent_half_hour": _recent(0.5, 1),
    "recent_90_minutes": _recent(1.5, 2),
    "recent_4_hours": _recent(4.0, 4),
    "recent_12_hours": _recent(12.0, 8),
    "recent_2_days": _recent(48.0, 16),
    "even_readings": _recent(1.0, 2, parity=0),
    "odd_readings": _recent(1.0, 2, parity=1),
    "alike_1_day": _analog_member(24.0, 16),
    "alike_3_days": _analog_member(72.0, 32, before=0.5),
    "alike_10_days": _analog_member(240.0, 64, width=0.5),
    "alike_expected": _alike_expected,
    "hour_of_day": _hour,
}


def member_distributions(at: Situation, names: tuple[str, ...]) -> np.ndarray:
    """Return the distributions of the named members, shape (members, places, steps, states)."""
    return np.stack([_member_distribution(at, name) for name in names])


def _member_distribution(at: Situation, name: str) -> np.ndarray:
    """Return a member's distributions, computed once per step of a situation and cached."""
    new = np.flatnonzero([(name, int(k)) not in at.known for k in at.steps])
    if new.size:
        distributions = MEMBERS[name](at if new.size == at.steps.size else at.part(new))
        at.known.update({(name, int(at.steps[j])): distributions[:, i] for i, j in enumerate(new)})
    return np.stack([at.known[name, int(k)] for k in at.steps], axis=1)


# ---
# Expected counts by ridge regression on the newest readings, pooled over the markets of a source (ours).
#
# These forecasts are not issued: the member `alike_expected` uses them to find past situations similar to the present.

_LAGS = 12  # Maximal number of newest readings used as regressors
_RIDGE = 0.5  # Ridge penalty, which shrinks the coefficients towards "the value stays"
_POOLED_WEIGHT = 3.0  # Weight of the mean normal equations of all markets relative to the market's own
_HALF_LIFE_HOURS = 100.0  # Half-life of the weight of a pair, in hours
_LONGEST_TRAINING = 2000  # Maximal number of newest slots used for estimation


def regressors(series: Series) -> np.ndarray:
    """Return (slots, columns): a constant, newest readings and three recent means over capacity, and the bounds reached."""
    seen, per_slot = readings(series)
    known = np.maximum.accumulate(np.where(np.isnan(seen), -1, np.arange(seen.size)))
    held = np.where(known >= 0, seen[np.maximum(known, 0)], 0.0)
    last = np.arange(len(series)) * per_slot + per_slot - 1
    lags = min(_LAGS, 4 * per_slot)
    newest = held[np.maximum(last[:, None] - np.arange(lags), 0)]
    means = np.stack([smooth_values(series.values, in_slots(series, h, 2)) for h in (2.0, 6.0, 24.0)], axis=1)
    cap = np.maximum(series.upper, 1.0)[:, None]
    now = newest[:, :1]
    columns = [np.ones_like(now), newest / cap, np.nan_to_num(means) / cap, now == 0, now >= cap]
    return np.concatenate([np.asarray(column, dtype=float) for column in columns], axis=1)


@stored("count.expectations")
@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """Regression ``coefficients`` by series key, shape (nodes, columns), at the ``nodes`` (steps ahead)."""

    nodes: np.ndarray
    coefficients: dict[str, np.ndarray]

    def at(self, steps: np.ndarray) -> Expectations:
        """Return the coefficients at ``steps`` only; the whole object if a step lies between the nodes."""
        places = np.searchsorted(self.nodes, steps)
        if places.max() >= self.nodes.size or (self.nodes[places] != steps).any():
            return self
        return Expectations(
            nodes=self.nodes[places],
            coefficients={key: beta[places] for key, beta in self.coefficients.items()},
        )

    def of(self, series: Series, steps: np.ndarray) -> np.ndarray | None:
        """Return expected counts at 1-based ``steps`` after every slot, shape (slots, steps); None if the series was not estimated.

        Values between nodes are interpolated linearly.
        """
        beta = self.coefficients.get(series.key)
        rows = regressors(series)
        if beta is None or beta.shape[1] != rows.shape[1]:
            return None
        # Sum slot by slot in a fixed order: a matrix product may round a slot differently when more slots follow it.
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
    """Estimate on the whole panel; markets with the same source and number of readings per slot are pooled."""
    groups: dict[tuple[str, int], list[Series]] = {}
    for series in panel.series:
        if series.observed.size > 2:
            groups.setdefault((series.source, series.within.shape[1]), []).append(series)
    found: dict[str, np.ndarray] = {}
    for members in groups.values():
        sums = [_mean_equations(series, nodes) for series in members]
        left, right = (np.mean([pair[i] for pair in sums], axis=0) for i in (0, 1))
        start = np.zeros(left.shape[-1])
        start[1] = 1.0
        ridge = _RIDGE * np.eye(start.size)
        ridge[0, 0] = 1e-3
        for series, (own_left, own_right) in zip(members, sums, strict=True):
            matrix = own_left + _POOLED_WEIGHT * left + ridge
            found[series.key] = (
                start + np.linalg.solve(matrix, (own_right + _POOLED_WEIGHT * right)[..., None])[..., 0]
            )
    return Expectations(nodes=nodes, coefficients=found)


def _mean_equations(series: Series, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the normal equations of a series and its phases."""
    parts = [_normal_equations(own, nodes) for own in (series, *phases(series))]
    left, right = (np.mean([part[i] for part in parts], axis=0) for i in (0, 1))
    return left, right


def _normal_equations(series: Series, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return X'WX (nodes, columns, columns) and X'W(target - present value) (nodes, columns) of the newest slots."""
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
