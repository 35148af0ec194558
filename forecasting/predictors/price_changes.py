"""State of a price at a slot and the price model `ChangeProcess`, a renewal process of price changes (M6.2).

A price is constant between changes, so its history is the list of its changes. All features are computed from that list and
from rolling windows that end at the slot. Sizes are changes of the logarithm in units of the series' own recent changes, so that
markets of any price level can be pooled (ours).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from slackwater.forecasting.predictor import Outlook, Panel, stored
from slackwater.forecasting.quantiles import LEVELS
from slackwater.forecasting.series import Series

DORMANT = pd.Timedelta(days=7)  # A price without changes for this long is treated as constant (ours)
#: Minimal number of changes within `DORMANT`; with fewer the price is treated as constant, since the next is too rare for a
#: quantile.
FEWEST_RECENT = 2
#: The price is also treated as constant after this many recent intervals without a change, and at least a day.
PATIENCE = 4.0
RECENT = 8  # Number of changes in "recent" means: of the size of changes, and of the time between them
LEAST_PRICE = 1e-6  # Lower bound of prices before taking the logarithm, USD per instance-hour
_SAME = 1e-9  # Changes of the log price up to this size count as no change

#: Columns of `price_rows`, in order.
STATE_COLUMNS = (
    "age", "age_of_interval", "last_interval", "mean_interval", "change_1", "change_2", "change_4", "same_sign",
    "size", "size_1", "over_median_day", "over_low_day", "over_high_day", "over_median_week", "range_week", "of_on_demand",
    "rate_quarter", "rate_day", "rate_week", "move_day",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceState:
    """State of a price at each slot; arrays have shape (slots,) unless noted, and row t reads slots up to t only.

    ``level`` is the logarithm of the newest observed price. ``age`` is the number of slots since it last changed, inf if it
    never did; ``interval`` the mean number of slots between the recent changes, inf before the second change. ``last`` is the
    last change of the logarithm and ``size`` the mean absolute size of the recent changes, both 0 if there is none. ``usual``
    is the median level of a day. ``moves`` is True if at least `FEWEST_RECENT` changes lie within `DORMANT` and the last is not
    older than the longer of a day and `PATIENCE` intervals. ``when`` and ``by`` list the slots and sizes of all changes,
    ``count`` the number of changes up to each slot.
    """

    level: np.ndarray
    age: np.ndarray
    interval: np.ndarray
    last: np.ndarray
    size: np.ndarray
    usual: np.ndarray
    moves: np.ndarray
    when: np.ndarray
    by: np.ndarray
    count: np.ndarray


def price_state(series: Series) -> PriceState:
    """Compute the state of a price; slots before the first observed value have level NaN."""
    n = len(series)
    held = np.where(series.newest >= 0, series.values[np.maximum(series.newest, 0)], np.nan)
    level = np.log(np.maximum(held, LEAST_PRICE))
    step = np.diff(level, prepend=level[:1])
    step[~(np.abs(step) > _SAME)] = 0.0
    when = np.flatnonzero(step)
    by = step[when]
    count = np.searchsorted(when, np.arange(n), side="right")
    has = count > 0
    newest = np.where(has, when[np.maximum(count - 1, 0)] if when.size else 0, 0)
    age = np.where(has, np.arange(n) - newest, np.inf)
    total = np.concatenate([[0.0], np.cumsum(np.abs(by))])
    first = np.maximum(count - RECENT, 0)
    size = (total[count] - total[first]) / np.maximum(count - first, 1)
    slots = np.append(when, 0)
    spans = np.maximum(count - 1 - first, 0)
    interval = np.where(spans > 0, (newest - slots[first]) / np.maximum(spans, 1), np.inf)
    day = slots_of(series, 24.0)
    usual = pd.Series(level).rolling(day, min_periods=1).median().to_numpy() if when.size else level
    window = max(1, DORMANT // series.step)
    recent = count - count[np.maximum(np.arange(n) - window, 0)]
    patience = np.maximum(day, PATIENCE * interval)
    return PriceState(
        level=level, age=age, interval=interval, last=np.append(by, 0.0)[np.where(has, count - 1, -1)], size=size, usual=usual,
        moves=(recent >= FEWEST_RECENT) & (age <= patience), when=when, by=by, count=count,
    )  # fmt: skip


def moving_quantiles(
    forecast: Callable[[np.ndarray], np.ndarray] | None,
    series: Series,
    state: PriceState,
    origins: np.ndarray,
    horizon: int,
    *,
    chunk: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return quantiles (origins, horizon, 19) and mean of a price: of ``forecast`` where it moves, else the newest value.

    ``forecast`` maps origins to their quantiles; it is called for at most ``chunk`` origins at a time.
    """
    mean = np.repeat(series.last(origins)[:, None], horizon, axis=1)
    quantiles = np.repeat(mean[:, :, None], LEVELS.size, axis=2)
    lively = np.flatnonzero(state.moves[origins])
    if forecast is not None and lively.size:
        for begin in range(0, lively.size, chunk or lively.size):
            part = lively[begin : begin + (chunk or lively.size)]
            quantiles[part] = forecast(origins[part])
    return quantiles, np.where(quantiles[:, :, 0] < quantiles[:, :, -1], quantiles.mean(axis=2), mean)


def slots_of(series: Series, hours: float) -> int:
    """Return the number of slots in ``hours``, at least 1."""
    return max(1, round(pd.Timedelta(hours=hours) / series.step))


def price_rows(series: Series, state: PriceState, origins: np.ndarray) -> np.ndarray:
    """Return the features of a price at ``origins`` (at least one), shape (origins, len(`STATE_COLUMNS`)); NaN if unknown."""
    day, week, quarter = (slots_of(series, hours) for hours in (24.0, 168.0, 6.0))
    unit = np.where(state.size > 0, state.size, np.nan)[origins]
    age, interval = state.age[origins], state.interval[origins]
    back = [_change_before(state, origins, i) for i in range(RECENT)]
    # The longest windows reach back a week; one more day is included, and earlier slots are not needed.
    begin = max(0, int(origins.min()) - week - day)
    level = pd.Series(state.level[begin:])
    windows = {
        "median_day": level.rolling(day, min_periods=1).median(),
        "low_day": level.rolling(day, min_periods=1).min(),
        "high_day": level.rolling(day, min_periods=1).max(),
        "median_week": level.rolling(week, min_periods=1).median(),
        "low_week": level.rolling(week, min_periods=1).min(),
        "high_week": level.rolling(week, min_periods=1).max(),
    }
    at = {name: window.to_numpy()[origins - begin] for name, window in windows.items()}
    here = state.level[origins]
    with np.errstate(invalid="ignore", divide="ignore"):
        columns = [
            np.minimum(age, week), np.minimum(age / interval, 20.0), _interval_before(state, origins), interval,
            back[0] / unit, back[1] / unit, np.sum(back[:4], axis=0) / unit,
            np.mean([np.sign(b) == np.sign(back[0]) for b in back[1:]], axis=0),
            np.log(unit), np.log(np.abs(back[0]) / unit),
            *((here - at[name]) / unit for name in ("median_day", "low_day", "high_day", "median_week")),
            (at["high_week"] - at["low_week"]) / unit,
            here - np.log(series.on_demand_usd),
            *(_rate(state, origins, width) for width in (quarter, day, week)),
            _mean_change(state.level[begin:], day)[origins - begin] / unit,
        ]  # fmt: skip
    return np.stack([np.where(np.isfinite(column), column, np.nan) for column in columns], axis=1)


def _change_before(state: PriceState, origins: np.ndarray, back: int) -> np.ndarray:
    """Return the change ``back`` changes before the last, NaN if there were fewer."""
    place = state.count[origins] - 1 - back
    return np.where(place >= 0, np.append(state.by, 0.0)[np.maximum(place, -1)], np.nan)


def _interval_before(state: PriceState, origins: np.ndarray) -> np.ndarray:
    """Return the number of slots between the last two changes, NaN if there were fewer than two."""
    place = state.count[origins] - 1
    when = np.append(state.when, 0).astype(float)
    return np.where(place >= 1, when[np.maximum(place, 0)] - when[np.maximum(place - 1, 0)], np.nan)


def _rate(state: PriceState, origins: np.ndarray, width: int) -> np.ndarray:
    """Return the number of changes per slot in the last ``width`` slots."""
    before = np.maximum(origins - width, 0)
    return np.asarray((state.count[origins] - state.count[before]) / np.maximum(origins - before, 1))


def _mean_change(level: np.ndarray, width: int) -> np.ndarray:
    """Return the mean absolute change over ``width`` / 4 slots within the newest ``width`` slots, shape (slots,)."""
    lag = max(1, width // 4)
    far = np.full(level.shape[0], np.nan)
    far[lag:] = np.abs(level[lag:] - level[:-lag])
    return pd.Series(far).rolling(width, min_periods=1).mean().to_numpy()


# ---
# Distribution of the next changes given the last: a kernel estimate over the changes of a panel (M6.2).
#
# Today's spot prices mostly continue in the direction and at the pace of their last changes; auction prices jump and return. Both
# are learned from the successors of past changes with similar relative size, direction and streak (ours).

POINTS = 25  # Number of quantiles that represent a distribution of sizes
#: Nodes of the log size of the last change, relative to recent changes, and the bandwidth of the kernel around them.
NODES = np.array([-4.0, -2.5, -1.5, -0.75, 0.0, 0.75, 1.5])
BANDWIDTH = 0.7
#: Weight factor of a past change that differs in a bit of its `situation`, and the minimal kernel weight of any size.
UNLIKE = {1: 0.7, 2: 0.15, 4: 0.3}
ANY_SIZE = 0.02
MOST_SUCCESSORS = 3000  # Maximal number of changes of a market used for estimation
#: Upper bound of the exponent gamma of the last change in the unit, and the ridge penalty that shrinks it towards 0.
_GAMMA = 0.9
_RIDGE = 10.0


@stored("price.sizes")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDistribution:
    """Distribution of the sum of the next few changes, measured in the direction of the last change.

    The unit is size^(1 - gamma) |last|^gamma. ``points`` (8, len(`NODES`), `POINTS`) are quantiles at equidistant levels
    for each `situation` and node of log(|last| / size), between which they are interpolated.
    """

    gamma: float
    points: np.ndarray

    def at(self, last: np.ndarray, size: np.ndarray, situations: np.ndarray) -> np.ndarray:
        """Return log price changes (n, POINTS) for last changes, sizes and situations (n,), descending after a fall."""
        x = np.clip(np.log(np.abs(last) / size), NODES[0], NODES[-1])
        right = np.clip(np.searchsorted(NODES, x), 1, NODES.size - 1)
        share = ((x - NODES[right - 1]) / (NODES[right] - NODES[right - 1]))[:, None]
        points = (1 - share) * self.points[situations, right - 1] + share * self.points[situations, right]
        unit = np.sign(last) * size * np.exp(self.gamma * x)
        return np.asarray(unit[:, None] * points)


def situation(state: PriceState, places: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Return the situation, 0 to 7, of the changes with numbers ``places``, as seen from ``slots``.

    1 after a rise, plus 2 if the previous change had the same direction, plus 4 if the price is off the day's median, in the
    direction of the last change, by more than a recent change.
    """
    by = np.append(state.by, 0.0)
    rose = by[places] > 0
    onwards = (places > 0) & (np.sign(by[places]) == np.sign(by[np.maximum(places - 1, 0)]))
    off = np.sign(by[places]) * (state.level[slots] - state.usual[slots]) > state.size[slots]
    return np.asarray(rose + 2 * onwards + 4 * off, dtype=int)


@dataclass(frozen=True, slots=True, kw_only=True)
class Successors:
    """Past changes and their successors; shapes (n,).

    ``x`` is the log of the size relative to recent changes, ``situations`` the situation, ``weight`` the weight, and
    ``after`` the sum of the next few changes in the same unit.
    """

    x: np.ndarray
    situations: np.ndarray
    weight: np.ndarray
    after: np.ndarray


def successors(
    markets: Sequence[tuple[Series, PriceState]], changes: int, end: int, half_life: float
) -> Successors | None:
    """Return the sums of the next ``changes`` changes, None without any; weights halve every ``half_life`` before ``end``."""
    parts = []
    for series, state in markets:
        i = np.arange(1, state.when.size - changes)[-MOST_SUCCESSORS:]
        if not i.size:
            continue
        path = np.concatenate([[0.0], np.cumsum(state.by)])
        unit = state.size[state.when[i]]
        parts.append(
            (
                np.log(np.abs(state.by[i]) / unit),
                situation(state, i, state.when[i]),
                np.exp2(-(end - series.first_slot - state.when[i]) / half_life),
                np.sign(state.by[i]) * (path[i + 1 + changes] - path[i + 1]) / unit,
            )
        )
    if not parts:
        return None
    x, situations, weight, after = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Successors(x=np.clip(x, NODES[0], NODES[-1]), situations=situations, weight=weight, after=after)


def size_distribution(seen: Successors) -> ChangeDistribution:
    """Estimate weighted quantiles for every node and situation, and gamma by least squares of the log sizes."""
    moved = np.log(np.clip(np.abs(seen.after), 1e-3, 1e2))
    w, x = seen.weight, seen.x
    mx, my = np.average(x, weights=w), np.average(moved, weights=w)
    slope = float((w * (x - mx) * (moved - my)).sum() / ((w * (x - mx) ** 2).sum() + _RIDGE))
    gamma = min(max(slope, 0.0), _GAMMA)
    scaled = seen.after * np.exp(-gamma * x)
    order = np.argsort(scaled)
    near = np.exp(-0.5 * ((x[order][:, None] - NODES) / BANDWIDTH) ** 2) + ANY_SIZE
    levels = (np.arange(POINTS) + 0.5) / POINTS
    points = np.empty((8, NODES.size, POINTS))
    for number in range(8):
        other = seen.situations[order] ^ number
        alike = w[order] * np.prod(
            [np.where(other & bit, counts, 1.0) for bit, counts in UNLIKE.items()], axis=0
        )
        for j in range(NODES.size):
            weight = alike * near[:, j]
            share = (np.cumsum(weight) - 0.5 * weight) / weight.sum()
            points[number, j] = np.interp(levels, share, scaled[order])
    return ChangeDistribution(gamma=gamma, points=points)


# ---
# Prices as a renewal process: the times of the next changes, and their sizes (M6.2).
#
# The hazard of a change depends on the time since the last change; the change of the logarithm depends on the last change (above).
# The hazard is that of the market, shrunk towards the panel's hazard in relative time (time since the last change in units of the
# recent interval between changes). AWS has updated spot prices every 4.5 to 8 hours since 2017, so the time since the last change
# is informative; in the auction era it was less so (ours, on the public series).

MOST_CHANGES = 5  # Maximal number of changes within the horizon that are distinguished
OLDEST = 96  # Maximal age (slots) at which a market's own hazard is tabulated
#: Edges of the relative age between which the panel's hazard is constant.
EDGES = np.array([0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0])
#: Weight of the panel's hazard, in changes, relative to the market's own; and weight of the panel's mean hazard in each bin.
PRIOR_CHANGES = 5.0
PRIOR_BIN = 3.0
HALF_LIFE = pd.Timedelta(days=15)  # Half-life of past changes and exposure
#: Minimal number of changes in a panel; with fewer nothing is estimated.
FEWEST_CHANGES = 12
TOO_FEW = f"fewer than {FEWEST_CHANGES} changes of price to learn from"
#: Bounds of the panel's mean interval, in slots.
_INTERVALS = (1.0, 96.0)
_CHUNK = 2000


def recent_interval(state: PriceState, usual: float) -> np.ndarray:
    """Return the mean slots between recent changes, shrunk towards ``usual`` while there are few, shape (slots,)."""
    seen = np.clip(state.count - 1, 0, RECENT - 1)
    own = np.where(np.isfinite(state.interval), state.interval, 0.0)
    return np.asarray(np.maximum((seen * own + usual) / (seen + 1), 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeProcess:
    """Price model of a panel: a renewal process of changes."""

    def fit(self, panel: Panel) -> FittedChangeProcess:
        """Estimate hazards from the ages with and without a change, and the distribution of the next changes."""
        pairs = [(series, price_state(series)) for series in panel.series]
        markets = [(series, state) for series, state in pairs if state.when.size > 1]
        nothing = np.zeros(EDGES.size + 1)
        if sum(state.when.size for _, state in markets) < FEWEST_CHANGES:
            return FittedChangeProcess(usual=_INTERVALS[1], rate=nothing, own={}, sizes=())
        end = max(series.end for series in panel.series)
        spans = np.concatenate([np.diff(state.when) for _, state in markets])
        usual = float(np.clip(np.mean(spans), *_INTERVALS))
        exposure, events, own = nothing.copy(), nothing.copy(), {}
        for series, state in markets:
            risk = _at_risk(series, state, usual, end)
            exposure += np.bincount(risk.bin, risk.weight / risk.interval, EDGES.size + 1)
            events += np.bincount(risk.bin, risk.weight * risk.changed, EDGES.size + 1)
            own[series.key] = Ages(
                exposure=np.bincount(risk.age, risk.weight, OLDEST + 1),
                events=np.bincount(risk.age, risk.weight * risk.changed, OLDEST + 1),
            )
        overall = events.sum() / exposure.sum() if exposure.sum() > 0 else 0.0
        rate = (events + PRIOR_BIN * overall) / (exposure + PRIOR_BIN)
        half = HALF_LIFE / panel.series[0].step
        seen = [successors(markets, n, end, half) for n in range(1, MOST_CHANGES + 1)]
        sizes = tuple(size_distribution(found) for found in seen if found is not None)
        return FittedChangeProcess(usual=usual, rate=rate, own=own, sizes=sizes)


@stored("price.ages")
@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """Weighted number of slots at risk at each age 0..`OLDEST`, and of those with a change; shapes (`OLDEST` + 1,)."""

    exposure: np.ndarray
    events: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRisk:
    """Slots at which a price could change; shapes (n,).

    ``age`` is 1 in the slot after a change, ``bin`` the bin of the relative age, ``interval`` the recent interval, ``weight`` the
    weight, and ``changed`` True if the price changed.
    """

    age: np.ndarray
    bin: np.ndarray
    interval: np.ndarray
    weight: np.ndarray
    changed: np.ndarray


def _at_risk(series: Series, state: PriceState, usual: float, end: int) -> AtRisk:
    slots = np.flatnonzero(state.moves[:-1]) + 1
    age = state.age[slots - 1] + 1
    interval = recent_interval(state, usual)[slots - 1]
    return AtRisk(
        age=np.minimum(age, OLDEST).astype(int),
        bin=np.searchsorted(EDGES, age / interval),
        interval=interval,
        weight=np.exp2(-(end - series.first_slot - slots) * (series.step / HALF_LIFE)),
        changed=state.age[slots] == 0,
    )


@stored("price.changes")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedChangeProcess:
    """Fitted change process.

    ``usual`` is the panel's mean interval in slots, ``rate`` the hazard per interval by relative age, ``own`` the exposure and
    events of each market, and ``sizes`` the distributions after 1, 2, ... changes. If ``sizes`` is empty, too few changes were
    available and the forecast is the newest value.
    """

    usual: float
    rate: np.ndarray
    own: dict[str, Ages]
    sizes: tuple[ChangeDistribution, ...]

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast quantiles of the process where the price moves (`PriceState.moves`), and the newest value elsewhere."""
        series = panel.series[which]
        state = price_state(series)
        forecast = partial(self._quantiles, series, state, horizon) if self.sizes else None
        quantiles, mean = moving_quantiles(forecast, series, state, origins, horizon, chunk=_CHUNK)
        reason = "" if self.sizes else TOO_FEW
        reasons = tuple(reason if moves else "" for moves in state.moves[origins])
        return Outlook(quantiles=quantiles, mean=mean, reasons=reasons)

    def hazard(self, key: str, age: np.ndarray, interval: np.ndarray) -> np.ndarray:
        """Return the probability of a change in the slot that brings the age to ``age``, given none before; shapes broadcast."""
        rate = self.rate[np.searchsorted(EDGES, age / interval)]
        pooled = 1.0 - np.exp(-rate / interval)
        if key not in self.own:
            return np.asarray(pooled)
        own = self.own[key]
        place = np.minimum(age, OLDEST).astype(int)
        # The panel's hazard has the weight of the exposure in which it would produce PRIOR_CHANGES changes.
        prior = PRIOR_CHANGES / np.maximum(pooled, 1e-3)
        return np.asarray((own.events[place] + prior * pooled) / (own.exposure[place] + prior))

    def chances(self, series: Series, state: PriceState, origins: np.ndarray, horizon: int) -> np.ndarray:
        """Return P(n changes within k slots), n = 0..`MOST_CHANGES` and the last also more, (origins, horizon, n)."""
        interval = recent_interval(state, self.usual)[origins][:, None]
        steps = np.arange(1, horizon + 1)
        first = _first(self.hazard(series.key, state.age[origins][:, None] + steps, interval))
        again = _first(self.hazard(series.key, np.broadcast_to(steps, first.shape), interval))
        at_least = [np.ones(first.shape)]
        arrival = first
        for n in range(1, MOST_CHANGES + 1):
            at_least.append(np.cumsum(arrival, axis=1))
            if n < MOST_CHANGES:
                later = np.zeros_like(arrival)
                for j in range(1, horizon):
                    later[:, j:] += arrival[:, : horizon - j] * again[:, j - 1 : j]
                arrival = later
        at_least.append(np.zeros(first.shape))
        return np.maximum(-np.diff(np.stack(at_least, axis=-1), axis=-1), 0.0)

    def mixture(
        self, state: PriceState, origins: np.ndarray, chances: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return possible log price changes, ascending, (origins, p), and their weights after each of k steps, (origins, k, p).

        ``chances`` (origins, k, `MOST_CHANGES` + 1) are the probabilities of the number of changes by each step.
        """
        situations = situation(state, np.maximum(state.count[origins] - 1, 0), origins)
        last, size = state.last[origins], state.size[origins]
        points, weights = [np.zeros((origins.size, 1))], [chances[:, :, :1]]
        for n in range(1, MOST_CHANGES + 1):
            distribution = self.sizes[min(n, len(self.sizes)) - 1]
            points.append(distribution.at(last, size, situations))
            weights.append(np.repeat(chances[:, :, n : n + 1] / POINTS, POINTS, axis=2))
        value = np.concatenate(points, axis=1)
        order = np.argsort(value, axis=1, kind="stable")
        weight = np.take_along_axis(np.concatenate(weights, axis=2), order[:, None, :], axis=2)
        return np.take_along_axis(value, order, axis=1), weight

    def _quantiles(self, series: Series, state: PriceState, horizon: int, origins: np.ndarray) -> np.ndarray:
        """Return quantiles of the mixture over the number of changes, shape (origins, horizon, 19)."""
        value, weight = self.mixture(state, origins, self.chances(series, state, origins, horizon))
        total = np.cumsum(weight, axis=2)
        total /= total[:, :, -1:]
        rows = np.arange(origins.size)[:, None]
        change = np.stack(
            [value[rows, np.argmax(total >= level - 1e-9, axis=2)] for level in LEVELS], axis=-1
        )
        moved = np.exp(np.minimum(state.level[origins][:, None, None] + change, 30.0))
        return np.where(change == 0, series.last(origins)[:, None, None], moved)


def _first(hazard: np.ndarray) -> np.ndarray:
    """Return P(first change at step j) from hazards by step; the last axis is the step."""
    stays = np.cumprod(1.0 - hazard, axis=-1)
    return np.asarray(hazard * np.concatenate([np.ones_like(stays[..., :1]), stays[..., :-1]], axis=-1))
