"""Predictors that weight members by recent accuracy, for counts and prices: `combined`, the default, and `smoothing` (M6.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pandas as pd

from slackwater.forecasting.predictor import (
    NEVER_SEEN,
    ByVariable,
    FittedPredictor,
    Model,
    Outlook,
    Panel,
    stored,
)
from slackwater.forecasting.predictors.count_members import (
    MEMBERS,
    Expectations,
    expectations,
    in_slots,
    member_distributions,
    situation_of,
)
from slackwater.forecasting.predictors.distributions import MOST_STATES, ahead, interpolation
from slackwater.forecasting.predictors.last_value import FittedLastValue, LastValue, stale_reasons
from slackwater.forecasting.predictors.lightgbm import (
    BoostedPrice,
    CountTrees,
    fit_trees,
    outlook_or_last_value,
    peers_of,
    trees_distributions,
)
from slackwater.forecasting.predictors.price_changes import ChangeProcess, moving_quantiles, price_state
from slackwater.forecasting.predictors.window_shares import (
    NO_SHARES,
    fit_shares,
    is_binary,
    share_distributions,
)
from slackwater.forecasting.quantiles import LEVELS
from slackwater.forecasting.series import Series

# ---
# Counts: a mixture of distributions with weights from recent accuracy and recalibrated coverage (M6.2, M6.6, ours).
#
# The sections below recalibrate a distribution by past transforms, compute optimal recent weights, score past forecasts slot by
# slot, and combine these parts into the model.

# ---
# Recalibration by past probability integral transforms (M6.6): conformal predictive distributions, split and adaptive.
#
# The probability integral transform (PIT) of a value under its forecast distribution is uniform if the forecast is calibrated.
# With G the distribution of past transforms of out-of-sample forecasts, the corrected forecast has distribution function
# G(F(n)): its intervals then have their nominal coverage on that past (a split conformal step, for all levels at once; Vovk et
# al. 2017, Kuleshov et al. 2018). G is updated slot by slot with exponential forgetting, so it follows drift as adaptive
# conformal inference does (Gibbs and Candes 2021). A count has point masses: its transform is spread evenly over the mass of
# the observed value.

#: Edges of the transform bins: the quantile levels, with finer bins in the tails, where too narrow a distribution shows.
_COUNT_TAIL = np.array([0.0, 0.002, 0.01, 0.025])
_COUNT_EDGES = np.concatenate([_COUNT_TAIL, np.linspace(0.05, 0.95, 19), 1.0 - _COUNT_TAIL[::-1]])
COUNT_BINS = _COUNT_EDGES.size - 1
_WIDTH = np.diff(_COUNT_EDGES)
#: Weight of the prior in pseudo-transforms. The prior is uniform, except that the outermost 5 % on each side have `SURPRISE`
#: times the density, because rare outcomes are missing from a short past (ours).
COUNT_PRIOR = 40.0
SURPRISE = 3.0
_COUNT_BELIEVED = _WIDTH * np.where(
    (_COUNT_EDGES[1:] <= 0.05 + 1e-9) | (_COUNT_EDGES[:-1] >= 0.95 - 1e-9), SURPRISE, 1.0
)


def transforms(distribution: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Return each value's transform as shares of the bins, shape (*came.shape, COUNT_BINS).

    ``distribution`` has shape (*came.shape, states). The shares are zero where the value is NaN, outside the states, or has
    probability 0.

    >>> transforms(np.array([[0.25, 0.75]]), np.array([0.0]))[0, 4:9].round(2).tolist()
    [0.2, 0.2, 0.2, 0.2, 0.0]
    """
    states = distribution.shape[-1]
    known = ~np.isnan(actual) & (actual < states)
    value = np.where(known, actual, 0.0).astype(int)
    upper = np.cumsum(distribution, axis=-1)
    high = np.minimum(np.take_along_axis(upper, value[..., None], axis=-1), 1.0)
    mass = np.take_along_axis(distribution, value[..., None], axis=-1)
    low = np.maximum(high - mass, 0.0)
    overlap = np.clip(np.minimum(high, _COUNT_EDGES[1:]) - np.maximum(low, _COUNT_EDGES[:-1]), 0.0, None)
    total = overlap.sum(axis=-1, keepdims=True)
    share = overlap / np.where(total > 0, total, 1.0)
    return np.asarray(np.where(known[..., None], share, 0.0))


def correct_distributions(distribution: np.ndarray, past: np.ndarray) -> np.ndarray:
    """Return distributions (..., states) of G(F), G from sums of transforms (..., COUNT_BINS) and `COUNT_PRIOR` prior ones."""
    weight = past + COUNT_PRIOR * _COUNT_BELIEVED / _COUNT_BELIEVED.sum()
    reached = np.cumsum(weight, axis=-1) / weight.sum(axis=-1, keepdims=True)
    reached = np.concatenate([np.zeros_like(reached[..., :1]), reached], axis=-1)
    reached = np.broadcast_to(reached, (*distribution.shape[:-1], COUNT_BINS + 1))
    cumulative = np.clip(np.cumsum(distribution, axis=-1), 0.0, 1.0)
    left = np.clip(np.searchsorted(_COUNT_EDGES, cumulative, side="right") - 1, 0, COUNT_BINS - 1)
    low = np.take_along_axis(reached, left, axis=-1)
    high = np.take_along_axis(reached, left + 1, axis=-1)
    after = low + (high - low) * (cumulative - _COUNT_EDGES[left]) / _WIDTH[left]
    after[..., -1] = 1.0
    return np.asarray(np.diff(after, axis=-1, prepend=0.0))


# ---
# Mixture weights that minimize the recent CRPS (M6.2, M6.5; ours).
#
# The ranked probability score of a mixture is quadratic in its weights: with F_m(n) member m's P(count <= n) and y the observed
# value,
#
#     CRPS(w) = sum_n (sum_m w_m F_m(n) - [y <= n])^2 = w' G w,   G_ab = sum_n (F_a(n) - [y <= n]) (F_b(n) - [y <= n]),
#
# for weights that sum to 1. The best weights on past forecasts, with exponential forgetting, therefore solve a quadratic
# program on the simplex whose matrix is a running sum. Unlike weights from each member's own score, they account for correlated
# errors of the members. Combination by squared error is due to Bates and Granger (1969); for distributions scored by CRPS it is
# the linear pool of Hall and Mitchell (2007) with the log score replaced.

#: Iterations of exponentiated gradient; more iterations change no weight by 0.01 on the public series.
_ITERATIONS = 200
_RATE = 0.5
#: Ridge added to each diagonal element, relative to the mean diagonal: similar members share their weight.
_RIDGE = 0.005


def error_products(distributions: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Return the matrix G of each forecast, divided by the number of thresholds, shape (*shape, members, members).

    ``distributions`` has shape (members, *shape, states), ``actual`` (*shape,); NaN in ``actual`` gives zeros.
    """
    states = distributions.shape[-1]
    if states < 2:
        return np.zeros((*actual.shape, distributions.shape[0], distributions.shape[0]))
    below = (actual[..., None] <= np.arange(states - 1)).astype(float)
    error = np.where(np.isnan(actual)[..., None], 0.0, np.cumsum(distributions, axis=-1)[..., :-1] - below)
    error = np.moveaxis(error, 0, -2)
    return np.asarray(error @ np.swapaxes(error, -1, -2) / (states - 1))


def crps(distribution: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Return the CRPS of (*shape, states) of values ``actual`` (*shape,) over the number of thresholds; 0 for NaN."""
    below = actual[..., None] <= np.arange(distribution.shape[-1])
    loss = ((np.cumsum(distribution, axis=-1) - below) ** 2).sum(axis=-1) / max(distribution.shape[-1] - 1, 1)
    return np.asarray(np.where(np.isnan(actual), 0.0, loss))


def simplex_weights(matrix: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the weights w >= 0 with sum 1 that minimize w' A w + ridge |w|^2 for each A (..., members, members).

    The result has shape (..., members). Exponentiated gradient from ``start`` (members,); a zero matrix returns ``start``.
    """
    members = matrix.shape[-1]
    scale = np.einsum("...ii->...", matrix)[..., None, None] / members
    unit = matrix / np.where(scale > 0, scale, 1.0) + _RIDGE * np.eye(members) * (scale > 0)
    step = -2.0 * _RATE * unit
    weights: np.ndarray = np.ones(matrix.shape[:-1]) * start
    for _ in range(_ITERATIONS):
        weights *= np.exp((step @ weights[..., None])[..., 0])
        weights /= weights.sum(axis=-1, keepdims=True)
    return weights


# ---
# Scores of past forecasts: running sums of error products and of transforms, slot by slot (M6.2, M6.6, ours).

#: Steps ahead at which weights and coverage are tracked; interpolated between them, constant beyond.
NODES = np.array([1, 2, 3, 4, 6, 8, 12, 24, 48])
COUNT_HALF_LIFE = 24.0  # Half-life in hours of past forecasts in the weights
_MEMORY = 5.0  # Ratio of the half-life of coverage to that of the weights: coverage needs more data


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedMembers:
    """Distributions of all members at consecutive slots from ``start`` (since the epoch), and observed values, at `NODES`.

    ``distributions`` has shape (members, places, nodes, states), ``came`` (places, nodes), NaN where nothing was observed, at the
    slot or at its target. Sums have a half-life of ``half_life`` slots.
    """

    start: int
    distributions: np.ndarray
    came: np.ndarray
    half_life: float

    @property
    def slots(self) -> np.ndarray:
        """Slots forecast from, since the epoch, shape (places,)."""
        return self.start + np.arange(self.came.shape[0])

    def products(self, first: int, at: np.ndarray, so_far: np.ndarray | None = None) -> np.ndarray:
        """Return decayed sums of error products (at, nodes, members, members) at ``at``, of targets from ``first`` on."""
        return self._running(error_products(self.distributions, self.came), first, at, self.half_life, so_far)

    def mixture(self, weights: np.ndarray) -> np.ndarray:
        """Return the mixture with ``weights`` (places, nodes, members), shape (places, nodes, states)."""
        return np.asarray(np.einsum("pkm,mpkn->pkn", weights, self.distributions))

    def transforms(
        self, mixture: np.ndarray, first: int, at: np.ndarray, so_far: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the decayed sums of transforms of a mixture (places, nodes, states), shape (at, nodes, COUNT_BINS).

        The other parameters are those of `products`.
        """
        terms = transforms(mixture, self.came)
        return self._running(terms, first, at, _MEMORY * self.half_life, so_far)

    def losses(
        self,
        distributions: Sequence[np.ndarray],
        first: int,
        at: np.ndarray,
        so_far: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the sums of the CRPS of each of ``distributions`` (places, nodes, states), shape (at, nodes, distributions).

        Nothing is forgotten. The other parameters are those of `products`.
        """
        terms = np.stack([crps(distribution, self.came) for distribution in distributions], axis=-1)
        return self._running(terms, first, at, np.inf, so_far)

    def _running(
        self, terms: np.ndarray, first: int, at: np.ndarray, half_life: float, so_far: np.ndarray | None
    ) -> np.ndarray:
        """Return decayed sums at slots ``at`` (ascending) of ``terms`` (places, nodes, ...); a term enters at its target slot."""
        total = np.zeros(terms.shape[1:]) if so_far is None else so_far
        decay = 0.5 ** (1.0 / half_life)
        out = np.empty((at.size, *total.shape))
        node, reached = np.arange(NODES.size), 0
        for slot in range(first, int(at[-1]) + 1):
            made = slot - NODES - self.start
            known = (made >= 0) & (made < terms.shape[0])
            total = total * decay
            total[known] += terms[made[known], node[known]]
            while reached < at.size and at[reached] == slot:
                out[reached] = total
                reached += 1
        out[reached:] = total
        return out


# ---
# Count model: a mixture whose weights follow recent accuracy, per market and step (M6.2, M6.6, ours).
#
# The members are those of `predictors.count_members` and, optionally, trees over all markets (`predictors.lightgbm`). At a fit,
# weights and coverage come from the members' forecasts of the last `HELD_OUT` hours by a preliminary fit that ends before them;
# then the model is estimated again on all data. Between refits both are updated by every forecast whose target slot has passed.
# Persistence is a member, so the mixture can reduce to the newest value; a second level weighs the mixture against last value with
# its spread, by the losses of both since the start of the held-out hours, without forgetting.

#: Hours of forecasts from which weights are learned at a fit, from a fit that does not use these hours.
HELD_OUT = 48.0
#: Weight of the mean record of a source's markets, added to a market's own record of error products and of losses.
COUNT_POOLED = 0.3
POOLED_PAST = 1.0  # Weight of the mean transforms of a source's markets, added to a market's own transforms
_COVERAGE_EVERY = 6  # Interval in slots at which weights used only for coverage are recomputed
TREES = "trees"  # Name of the trees as a member
#: Largest share of the mixture at the second level, and the steepness of the share in the relative difference of losses.
MOST_SHARE, RIVALRY = 0.9, 40.0
#: Log odds of the mixture against last value where both lost the same, before the limit.
HEAD_START = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedCount:
    """Count model of a panel: members with these names in `MEMBERS`, and the trees under the name `TREES`.

    ``second_level``: whether the mixture is combined with last value, and of 0/1 series with `window_shares`.
    """

    members: tuple[str, ...] = (*MEMBERS, TREES)
    second_level: bool = True

    def fit(self, panel: Panel) -> FittedStackedCount:
        """Estimate expectations and trees, and compute weights and transforms on the newest `HELD_OUT` hours."""
        alive = [series for series in panel.series if series.observed.size]
        end = max((series.end for series in alive), default=0)
        first = end - _held_out(alive)
        early = self._estimate(panel.until(first - 1), first)
        seen = {
            own.key: early.watch(panel, which, first, end - 1)
            for which, own in enumerate(panel.series)
            if own.observed.size and own.end > first
        }
        slots = np.arange(first, end)
        sums = {key: watched.products(first, slots) for key, watched in seen.items()}
        record = {key: value[-1] for key, value in sums.items()}
        mixtures, running = {}, {}
        for key, watched in seen.items():
            # Use the weights of each forecast's issue time: later weights depend on the observed value and look overconfident.
            weights = early.weigh(sums[key], _source(key), sums)[watched.slots - first]
            mixtures[key] = watched.mixture(weights)
            running[key] = watched.transforms(mixtures[key], first, slots)
        losses = {}
        for own in alive:
            if own.key in seen and self.second_level and not is_binary(own):
                watched = seen[own.key]
                past = running[own.key] + POOLED_PAST * _source_mean(running, own.source)
                issued = correct_distributions(mixtures[own.key], past[watched.slots - first])
                last = early.last_value(own).distributions(
                    own, watched.slots - own.first_slot, NODES, issued.shape[-1]
                )
                losses[own.key] = watched.losses((issued, last), first, slots[-1:])[0]
        return replace(
            self._estimate(panel, end),
            record=record,
            past={key: value[-1] for key, value in running.items()},
            losses=losses,
            shares=fit_shares(panel) if self.second_level else NO_SHARES,
        )

    def _estimate(self, panel: Panel, end: int) -> FittedStackedCount:
        expected = expectations(panel, NODES)
        trees = fit_trees(panel, expected) if TREES in self.members else CountTrees(boosters=())
        return FittedStackedCount(
            members=self.members,
            second_level=self.second_level,
            end=end,
            expected=expected,
            trees=trees,
            last={series.key: LastValue().fit(series) for series in panel.series if self.second_level},
        )


def _held_out(alive: list[Series]) -> int:
    """Return the number of slots for learning weights: `HELD_OUT`, but at most a third of the longest series."""
    longest = max((len(series) for series in alive), default=0)
    return int(min(in_slots(alive[0], HELD_OUT, 48), longest // 3)) if alive else 0


@stored("combined.count")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedStackedCount:
    """Fitted count mixture; ``end`` is the slot (since the epoch) after the last slot used for estimation.

    ``last`` is last value at the second level. For every series with forecasts in the held-out hours, ``record`` holds the sums
    of error products (nodes, members, members), ``past`` the sums of transforms (nodes, COUNT_BINS) and ``losses``, unless it
    is a 0/1 series, the sums of the CRPS of the corrected mixture and of last value (nodes, 2).
    """

    members: tuple[str, ...]
    second_level: bool
    end: int
    expected: Expectations
    trees: CountTrees
    last: dict[str, FittedLastValue]
    shares: CountTrees = NO_SHARES
    record: dict[str, np.ndarray] = field(default_factory=dict)
    past: dict[str, np.ndarray] = field(default_factory=dict)
    losses: dict[str, np.ndarray] = field(default_factory=dict)

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast with the mixture at each origin.

        Last value replaces it, with a reason, if the newest value is stale or there are too many states.
        """
        series = panel.series[which]
        why = NEVER_SEEN if series.key not in self.record else ""
        binary, last = is_binary(series), self.last_value(series)
        known: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

        def issued(part: np.ndarray, steps: np.ndarray, states: int) -> np.ndarray:
            alike = origins[series.upper[origins] == states - 1]
            if states not in known:
                known[states] = self._standing(panel, which, alike)
            weights, past, own = (values[np.searchsorted(alike, part)] for values in known[states])
            nodes = interpolation(steps, NODES)
            places = series.newest[part]
            distributions = self._distributions(panel, which, places, steps, states)
            mixture = correct_distributions(
                np.einsum("pkm,mpkn->pkn", nodes @ weights, distributions), nodes @ past
            )
            if not self.second_level or (binary and not self.shares.boosters):
                return mixture
            if binary:
                return 0.5 * mixture + 0.5 * share_distributions(self.shares, series, places, steps)
            share = (own @ nodes.T)[..., None]
            return np.asarray(
                share * mixture + (1.0 - share) * last.distributions(series, places, steps, states)
            )

        return outlook_or_last_value(issued, series, origins, horizon, end=self.end, why=why)

    def last_value(self, series: Series) -> FittedLastValue:
        """Return the last-value model of a market as of the fit; without spread for a market unknown at the fit."""
        return self.last.get(series.key, LastValue().fit(series.part(0, 0)))

    def watch(self, panel: Panel, which: int, first: int, last: int) -> ObservedMembers:
        """Compute all members' distributions at the nodes, with observed values, from slot ``first`` to ``last``.

        Slots are numbered since the epoch. A forecast from a slot without a value has other steps and is not scored.
        """
        series = panel.series[which]
        start = max(first, series.first_slot + int(np.argmax(series.newest >= 0)))
        places = np.arange(start - series.first_slot, min(last + 1, series.end) - series.first_slot)
        states = int(series.upper[places].max()) + 1 if places.size else 1
        actual = ahead(series.values, int(NODES[-1]))[places][:, NODES - 1]
        if states > MOST_STATES:  # last value forecasts such a series, so there is nothing to weight
            places, actual = places[:0], actual[:0]
        actual = np.where((series.newest[places] == places)[:, None], actual, np.nan)
        distributions = self._distributions(panel, which, places, NODES, min(states, MOST_STATES))
        return ObservedMembers(
            start=start,
            distributions=distributions,
            came=actual,
            half_life=in_slots(series, COUNT_HALF_LIFE, 24),
        )

    def _distributions(
        self, panel: Panel, which: int, places: np.ndarray, steps: np.ndarray, states: int
    ) -> np.ndarray:
        """Return the distributions of all members, shape (members, places, steps, states)."""
        series = panel.series[which]
        at = situation_of(series, places, steps, states, self.expected.of)
        distributions = member_distributions(at, tuple(name for name in self.members if name != TREES))
        if TREES not in self.members:
            return distributions
        return np.concatenate(
            [distributions, trees_distributions(self.trees.loaded(), at, peers_of(panel, which))[None]]
        )

    def weigh(self, record: np.ndarray, source: str, others: dict[str, np.ndarray]) -> np.ndarray:
        """Return the weights (..., nodes, members) from a market's own sums and the mean of the sums of its source."""
        members = len(self.members)
        return simplex_weights(
            record + COUNT_POOLED * _source_mean(others, source), np.full(members, 1.0 / members)
        )

    def _standing(
        self, panel: Panel, which: int, origins: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return weights, transforms and share of the mixture at each origin: (origins, nodes), and members or COUNT_BINS."""
        series, members = panel.series[which], len(self.members)
        own = self.record.get(series.key, np.zeros((NODES.size, members, members)))
        past = self.past.get(series.key, np.zeros((NODES.size, COUNT_BINS)))
        shared = POOLED_PAST * _source_mean(self.past, series.source)
        lost = self.losses.get(series.key, np.zeros((NODES.size, 2)))
        slots = origins + series.first_slot
        standing = self.weigh(own, series.source, self.record)
        weights = np.repeat(standing[None], origins.size, axis=0)
        pasts = np.repeat(past[None], origins.size, axis=0)
        losses = np.repeat(lost[None], origins.size, axis=0)
        # A market that was not in the panel at the fit has no record before its first slot.
        first = max(self.end, series.first_slot)
        late = slots >= first
        if late.any():
            # The target of a forecast issued up to k slots before the fit lies after the fit, so its error enters now.
            seen = self.watch(panel, which, first - int(NODES[-1]), int(slots[-1]))
            sums = seen.products(first, np.arange(first, int(slots[-1]) + 1), own)
            weights[late] = self.weigh(sums[slots[late] - first], series.source, self.record)
            # Weights for transforms and losses are recomputed only every few slots: the difference is negligible.
            spaced = self.weigh(sums[::_COVERAGE_EVERY], series.source, self.record)
            at_each = np.concatenate([standing[None], spaced])
            made = at_each[np.clip((seen.slots - first) // _COVERAGE_EVERY + 1, 0, len(spaced))]
            mixture = seen.mixture(made)
            pasts[late] = seen.transforms(mixture, first, slots[late], past)
            if self.second_level and not is_binary(series):
                both = (
                    correct_distributions(mixture, past + shared),
                    self.last_value(series).distributions(
                        series, seen.slots - series.first_slot, NODES, mixture.shape[-1]
                    ),
                )
                losses[late] = seen.losses(both, first, slots[late], lost)
        losses += COUNT_POOLED * _source_mean(self.losses, series.source)
        return weights, pasts + shared, share_of_mixture(losses)


def share_of_mixture(losses: np.ndarray) -> np.ndarray:
    """Return the share of the mixture in the forecast from sums of the CRPS of mixture and last value (..., 2) (M6.2).

    The rest is last value's.

    >>> share_of_mixture(np.array([[1.0, 1.0], [9.0, 11.0], [11.0, 9.0]])).round(3).tolist()
    [0.658, 0.894, 0.043]
    """
    total = losses.sum(axis=-1)
    gain = (losses[..., 1] - losses[..., 0]) / np.where(total > 0, total, 1.0)
    return np.asarray(MOST_SHARE / (1.0 + np.exp(-HEAD_START - RIVALRY * gain)))


def _source(key: str) -> str:
    return key.partition("@")[2]


def _source_mean(sums: dict[str, np.ndarray], source: str) -> np.ndarray | float:
    """Return the mean over the markets of a source, over all markets if it has none, or 0 without any."""
    own = [value for key, value in sums.items() if _source(key) == source] or list(sums.values())
    return np.asarray(np.mean(own, axis=0)) if own else 0.0


# ---
# Prices: a mixture with weights from recent losses, by market, step and part of the distribution (M6.2, M6.6).
#
# The sections below forecast the newest value with the spread of recent changes, compute the weights, and combine these parts
# into the model.

# ---
# Last value with the spread of recent changes over the same number of slots, older changes weighing less (M6.2).
#
# Calm and volatile periods of a price alternate, so the spread of recent days is more informative than that of the whole
# training part (ours).

#: Half-life of a change; changes older than four half-lives have no weight (ours, on the first quarters of the public series).
PRICE_HALF_LIFE = pd.Timedelta(days=2)
SPREAD_EVERY = 4  # Interval in slots at which the spread is recomputed
_CHUNK = 4_000_000  # Maximal number of values sorted at once


@stored("combined.adaptive_price")
@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveLastValue:
    """Price model without estimation: y(t+k) = y(t), with quantiles from recent changes over k slots."""

    def fit(self, panel: Panel) -> AdaptiveLastValue:
        """Return the model itself; it reads all it needs from the series up to each origin."""
        return self

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast the newest value with the spread as of the newest multiple of `SPREAD_EVERY` slots since the epoch.

        A newest value that is g slots old has the spread of changes over k + g slots. A price without a change in the window
        has no spread.
        """
        series = panel.series[which]
        last, age = series.last(origins), series.age(origins)
        mean = np.repeat(last[:, None], horizon, axis=1)
        quantiles = np.repeat(mean[:, :, None], LEVELS.size, axis=2)
        half = max(1.0, PRICE_HALF_LIFE / series.step)
        width = int(4 * half)
        record_slots = origins - (origins + series.first_slot) % SPREAD_EVERY
        blocks, place = np.unique(record_slots, return_inverse=True)
        moved = np.concatenate([[0], np.cumsum(np.nan_to_num(np.diff(_newest_values(series))) != 0)])
        seen = np.maximum(blocks, 0)
        lively = moved[seen] > moved[np.maximum(seen - width, 0)]
        shown = np.minimum(age, width // 2)
        for extra in np.unique(shown):
            rows = np.flatnonzero((shown == extra) & lively[place])
            if rows.size:
                needed, back = np.unique(place[rows], return_inverse=True)
                quantiles[rows] += change_quantiles(series, blocks[needed], horizon, int(extra), width, half)[
                    back
                ]
        return Outlook(quantiles=quantiles, mean=mean, reasons=stale_reasons(series, origins))


def _newest_values(series: Series) -> np.ndarray:
    """Return the newest observed value at each slot, NaN before the first, shape (slots,)."""
    return np.where(series.newest >= 0, series.values[np.maximum(series.newest, 0)], np.nan)


def change_quantiles(
    series: Series, ends: np.ndarray, horizon: int, extra: int, width: int, half: float
) -> np.ndarray:
    """Return quantiles (ends, horizon, 19), median 0, of changes over extra+1.. slots that are complete at ``ends``.

    They are the changes within the last ``width`` slots; their weights halve every ``half`` slots.
    """
    out = np.zeros((ends.size, horizon, LEVELS.size))
    chunk = max(1, _CHUNK // width)
    weights = np.exp2((np.arange(width) - width + 1) / half)
    for k in range(extra + 1, extra + horizon + 1):
        change = ahead(series.values, k)[:, -1] - series.values
        padded = np.concatenate([np.full(width, np.nan), change])
        windows = np.lib.stride_tricks.sliding_window_view(padded, width)
        for begin in range(0, ends.size, chunk):
            # The newest change over k slots that is known at slot t began at t - k; row r ends with change r - 1.
            rows = windows[np.clip(ends[begin : begin + chunk] - k + 1, 0, change.size)]
            out[begin : begin + chunk, k - extra - 1] = weighted_quantiles(rows, weights)
    return out


def weighted_quantiles(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return weighted quantiles at `LEVELS` of each row (n, m) minus its median, shape (n, 19).

    ``weights`` is (m,); NaN has no weight, and rows without a number give 0. A quantile is the smallest value whose share of
    the weight reaches the level, so point masses are preserved.
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
# Weights of the price members, by step and part of the distribution, from recent losses (M6.2).
#
# Exponential weights on discounted relative losses, shrunk towards those of the whole panel: a market's own losses count as many
# observations as its price had recent changes. A forecast issued at slot c for c + k counts from c + k on, when its target is
# known, never earlier (ours).

#: Parts of the distribution with separate weights: the tails, the flanks and the median.
PARTS = (slice(0, 4), slice(4, 9), slice(9, 10), slice(10, 15), slice(15, 19))
MEDIAN_PART = 2
SCORED_STEPS = 12  # Number of steps that are scored; later steps take the weights of the last
HALF_LIFE_DAYS = 6.0  # Half-life of a loss in days
RATE = 40.0  # Learning rate: a relative loss larger by 1 / `RATE` reduces the weight by a factor e
#: Weight of the panel's losses in changes of price; in the panel, a market counts at most `MOST_CHANGES` of its changes.
PRIOR_CHANGES = 20.0
MOST_CHANGES = 20.0
#: The median differs from the newest value only if another member's relative loss of the median is lower by at least this.
MEDIAN_GAIN = 0.02


@stored("combined.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class DiscountedLosses:
    """Discounted losses (members, `SCORED_STEPS`, parts) and price changes (`SCORED_STEPS`,) as of a slot since the epoch."""

    losses: np.ndarray
    changes: np.ndarray
    slot: int


def empty_record(members: int, slot: int) -> DiscountedLosses:
    """Return a record without losses as of ``slot``."""
    return DiscountedLosses(
        losses=np.zeros((members, SCORED_STEPS, len(PARTS))), changes=np.zeros(SCORED_STEPS), slot=slot
    )


def relative(losses: np.ndarray) -> np.ndarray:
    """Return losses (members, ...) relative to the mean of the members, 1 where the mean is 0."""
    mean = losses.mean(axis=0)
    return np.where(mean > 0, losses / np.where(mean > 0, mean, 1.0), 1.0)


def part_losses(quantiles: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return pinball losses (..., n, h, parts) by `PARTS` of quantiles (..., n, h, 19); 0 where ``truth`` (n, h) is NaN."""
    error = truth[..., None] - quantiles
    loss = np.where(np.isnan(error), 0.0, np.maximum(LEVELS * error, (LEVELS - 1.0) * error))
    return np.stack([loss[..., part].sum(axis=-1) for part in PARTS], axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastLosses:
    """Scores of forecasts issued at slots ``at`` (n,), ascending: ``losses`` (members, n, h, parts), ``changes`` (n, h)."""

    at: np.ndarray
    losses: np.ndarray
    changes: np.ndarray


def records(
    scores: PastLosses, start: DiscountedLosses, slots: np.ndarray, half_life: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return discounted losses (members, asked, h, parts) and changes (asked, h) as known at the ``slots`` slots since the epoch.

    Losses halve every ``half_life`` slots. The slots ``slots`` must not lie before the slot of ``start``.
    """
    faded = np.exp2((start.slot - slots) / half_life)
    losses = start.losses[:, None] * faded[None, :, None, None]
    changes = start.changes[None, :] * faded[:, None]
    if not scores.at.size:
        return losses, changes
    # Discount sequentially: the result at a slot must not depend on how many scores follow it.
    gap = np.diff(scores.at, prepend=scores.at[:1])  # noqa: PD008
    fade = np.exp2(-gap / half_life)
    lost, changed = (
        _discounted_sums(scores.losses, fade, axis=1),
        _discounted_sums(scores.changes, fade, axis=0),
    )
    for k in range(losses.shape[2]):
        known = np.searchsorted(scores.at + k + 1, slots, side="right")
        newest = scores.at[np.maximum(known, 1) - 1]  # noqa: PD008
        shrink = np.where(known > 0, np.exp2((newest - slots) / half_life), 0.0)
        losses[:, :, k] += lost[:, known, k] * shrink[None, :, None]
        changes[:, k] += changed[known, k] * shrink
    return losses, changes


def _discounted_sums(values: np.ndarray, fade: np.ndarray, axis: int) -> np.ndarray:
    """Return cumulative sums along an axis, discounted before each addition, with a leading zero."""
    ordered = np.moveaxis(values, axis, 0)
    total = np.zeros((ordered.shape[0] + 1, *ordered.shape[1:]))
    for i, factor in enumerate(fade):
        total[i + 1] = total[i] * factor + ordered[i]
    return np.moveaxis(total, 0, axis)


def pool_losses(kept: list[DiscountedLosses]) -> np.ndarray:
    """Return the relative losses of a panel, each market weighted by its price changes; shape of a record's losses."""
    shares = [np.minimum(record.changes, MOST_CHANGES) for record in kept]
    total = np.sum(shares, axis=0)[None, :, None]
    summed = np.sum(
        [relative(record.losses) * share[None, :, None] for record, share in zip(kept, shares, strict=True)],
        axis=0,
    )
    return np.where(total > 0, summed / np.where(total > 0, total, 1.0), 1.0)


def mixed_quantiles(
    members: np.ndarray, losses: np.ndarray, changes: np.ndarray, prior: np.ndarray
) -> np.ndarray:
    """Return the weighted mean of the members' quantiles (members, n, h, 19), level by level; shape (n, h, 19).

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
# Price model: the members' quantiles weighted by recent losses, per market, step and part of the distribution (M6.2).
#
# The newest value without spread is a member, so a constant price is forecast as constant; where the price has not moved for long
# (`PriceState.moves`), no other member is used. Weights are learned from out-of-sample forecasts only: from models estimated
# without the panel's newest days, and after the fit from the fitted models' own forecasts (ours).

#: Name -> model factory of the member. The newest value without spread is always an additional first member.
PRICE_MEMBERS: dict[str, Callable[[], Model]] = {
    "adaptive": AdaptiveLastValue,
    "changes": ChangeProcess,
    "lightgbm": BoostedPrice,
}
#: Length of the newest part of a panel used to weight the members; at most a third of the panel.
WEIGHT_SPAN = pd.Timedelta(days=12)
REFIT_EVERY = 3  # Interval in slots, counted from the epoch, at which past forecasts are scored


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedPrice:
    """Price model of a panel: the weighted members with these names in `PRICE_MEMBERS`."""

    names: tuple[str, ...] = tuple(PRICE_MEMBERS)

    def fit(self, panel: Panel) -> FittedCombinedPrice:
        """Weight members estimated without the newest days on those days, and estimate them again on all data."""
        begins = [series.first_slot for series in panel.series if len(series)]
        end = max((series.end for series in panel.series), default=0)
        fitted = {name: PRICE_MEMBERS[name]().fit(panel) for name in self.names}
        if not begins:
            return FittedCombinedPrice(members=fitted, kept={}, prior=_even_losses(len(fitted)), end=end)
        width = min(int(WEIGHT_SPAN / panel.series[0].step), (end - min(begins)) // 3)
        before = panel.until(end - 1 - width)
        earlier = {name: PRICE_MEMBERS[name]().fit(before) for name in self.names}
        first, stop = end - 1 - width, end - 1
        kept: dict[str, DiscountedLosses] = {}
        for which, own in enumerate(panel.series):
            origins = scored_origins(own, (first, stop))
            if origins.size:
                start = empty_record(len(fitted) + 1, first)
                quantiles = member_quantiles(earlier, panel, which, origins, SCORED_STEPS)
                scores = scores_of(own, origins, quantiles)
                losses, changes = records(scores, start, np.array([stop]), _half_life(own))
                kept[own.key] = DiscountedLosses(losses=losses[:, 0], changes=changes[0], slot=stop)
        prior = pool_losses(list(kept.values())) if kept else _even_losses(len(fitted))
        return FittedCombinedPrice(members=fitted, kept=kept, prior=prior, end=end)


def _even_losses(members: int) -> np.ndarray:
    return np.ones_like(empty_record(members + 1, 0).losses)


def _half_life(series: Series) -> float:
    """Return the half-life of the weights in slots."""
    return max(1.0, pd.Timedelta(days=HALF_LIFE_DAYS) / series.step)


def scored_origins(series: Series, span: tuple[int, int]) -> np.ndarray:
    """Return indices of origins in [first, stop) (slots since the epoch), every `REFIT_EVERY` slots, where the price moves."""
    low, high = (min(max(slot - series.first_slot, 0), len(series)) for slot in span)
    origins = np.arange(low, high)
    origins = origins[(origins + series.first_slot) % REFIT_EVERY == 0]
    return np.asarray(origins[price_state(series).moves[origins]])


def scores_of(series: Series, origins: np.ndarray, quantiles: np.ndarray) -> PastLosses:
    """Score quantiles ``quantiles`` (members, origins, `SCORED_STEPS` or more, 19) where their targets lie in the series."""
    target = origins[:, None] + np.arange(1, SCORED_STEPS + 1)
    inside = np.minimum(target, len(series) - 1)
    inside_series = target < len(series)
    truth = np.where(inside_series, series.values[inside], np.nan)
    changed = inside_series & (price_state(series).age[inside] == 0)
    losses = part_losses(quantiles[:, :, :SCORED_STEPS], truth)
    return PastLosses(at=origins + series.first_slot, losses=losses, changes=changed * float(REFIT_EVERY))


def member_quantiles(
    members: dict[str, FittedPredictor], panel: Panel, which: int, origins: np.ndarray, horizon: int
) -> np.ndarray:
    """Return quantiles (members + 1, origins, horizon, 19), the newest value first, in the bounds known then (M6.3)."""
    series = panel.series[which]
    quantiles = [model.outlook(panel, which, origins, horizon).quantiles for model in members.values()]
    upper = series.upper[origins][:, None, None]
    return np.asarray(np.clip(np.stack([standing(series, origins, horizon), *quantiles]), 0.0, upper))


def standing(series: Series, origins: np.ndarray, horizon: int) -> np.ndarray:
    """Return the newest value at every step and level, shape (origins, horizon, 19)."""
    return np.broadcast_to(series.last(origins)[:, None, None], (origins.size, horizon, LEVELS.size))


@stored("combined.price")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCombinedPrice:
    """Fitted price mixture, estimated before slot ``end``: each market's losses ``kept``, the panel's ``prior``."""

    members: dict[str, FittedPredictor]
    kept: dict[str, DiscountedLosses]
    prior: np.ndarray
    end: int

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """Forecast weighted quantiles where the price moves, and the newest value where it is constant."""
        series = panel.series[which]
        forecast = partial(self._quantiles, panel, which, horizon)
        quantiles, mean = moving_quantiles(forecast, series, price_state(series), origins, horizon)
        return Outlook(quantiles=quantiles, mean=mean, reasons=stale_reasons(series, origins))

    def _quantiles(self, panel: Panel, which: int, horizon: int, origins: np.ndarray) -> np.ndarray:
        """Return the weighted quantiles of the members, shape (origins, horizon, 19)."""
        series = panel.series[which]
        start = self.kept.get(series.key, empty_record(len(self.members) + 1, self.end - 1))
        slots = np.maximum(origins + series.first_slot, start.slot)
        past = scored_origins(series, (self.end - 1, int(origins[-1]) + series.first_slot))
        every = np.union1d(past, origins)
        quantiles = member_quantiles(self.members, panel, which, every, max(horizon, SCORED_STEPS))
        # Values after the last origin are not known there; `records` leaves out those after each of the others.
        known = series.part(0, int(origins[-1]) + 1)
        scores = scores_of(known, past, quantiles[:, np.searchsorted(every, past)])
        losses, changes = records(scores, start, slots, _half_life(series))
        return mixed_quantiles(
            quantiles[:, np.searchsorted(every, origins), :horizon], losses, changes, self.prior
        )


# ---
# Predictors of both variables.

#: Members of `smoothing`: persistence and smoothed recent readings.
_SMOOTHING_MEMBERS = (
    "stay", "recent_half_hour", "recent_90_minutes", "recent_4_hours", "recent_12_hours", "recent_2_days",
)  # fmt: skip


def combined() -> ByVariable:
    """Return the predictor that weights all models by recent accuracy per market and step."""
    return ByVariable(name="combined", pooled=True, price=CombinedPrice(), count=StackedCount())


def smoothing() -> ByVariable:
    """Return the exponential-smoothing predictor: of a count's distribution, and of the size of a price's changes."""
    return ByVariable(
        name="smoothing",
        pooled=True,
        price=AdaptiveLastValue(),
        count=StackedCount(members=_SMOOTHING_MEMBERS, second_level=False),
    )
