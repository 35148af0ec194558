"""Counts by a mixture of laws whose weights follow what was right of late, and whose coverage is corrected (M6.2, M6.6, ours).

In this file: how a law is corrected by past transforms, which weights would have been best of late, what came of past forecasts
slot by slot, and the predictor made of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from forecasting.predictor import NEVER_SEEN, Outlook, Panel
from forecasting.predictors.count_members import (
    MEMBERS,
    Expectations,
    expectations,
    in_slots,
    member_laws,
    situation_of,
)
from forecasting.predictors.laws import MOST_STATES, ahead
from forecasting.predictors.lightgbm import answered
from forecasting.predictors.lightgbm.count import CountTrees, fit_trees, peers_of, trees_laws
from forecasting.series import Series
from forecasting.state import stored

# ---
# Laws corrected by where past values fell in them (M6.6): conformal predictive distributions, split and adaptive.
#
# The probability integral transform (PIT) of a value under the law issued for it is uniform if laws are right. With G the
# distribution of past transforms on forecasts that were not fitted to them, the corrected law has distribution function
# G(F(n)): its intervals then have their nominal coverage on that past (a split conformal step, for all levels at once; Vovk et
# al. 2017, Kuleshov et al. 2018). G is kept up slot by slot with old transforms forgotten, so it follows drift as adaptive
# conformal inference does (Gibbs and Candes 2021). A count has point masses: its transform is spread evenly over the mass of
# the value that came.

#: Edges of the bins of the transform: the quantile levels, and finer in the tails, where a law that is too narrow goes wrong.
_TAIL = np.array([0.0, 0.002, 0.01, 0.025])
_EDGES = np.concatenate([_TAIL, np.linspace(0.05, 0.95, 19), 1.0 - _TAIL[::-1]])
BINS = _EDGES.size - 1
_WIDTH = np.diff(_EDGES)
#: Transforms that are believed in before any was seen: uniform but for the outermost twentieths, which get so many times as much,
#: since what never happened in the past is not in it (ours).
PRIOR = 40.0
_SURPRISE = 3.0
_BELIEVED = _WIDTH * np.where((_EDGES[1:] <= 0.05 + 1e-9) | (_EDGES[:-1] >= 0.95 - 1e-9), _SURPRISE, 1.0)


def transforms(law: np.ndarray, came: np.ndarray) -> np.ndarray:
    """Share of each value's transform in each bin, shape (*came.shape, BINS); zero where nothing came or it was impossible.

    ``law`` has shape (*came.shape, states).

    >>> transforms(np.array([[0.25, 0.75]]), np.array([0.0]))[0, 4:9].round(2).tolist()
    [0.2, 0.2, 0.2, 0.2, 0.0]
    """
    states = law.shape[-1]
    known = ~np.isnan(came) & (came < states)
    value = np.where(known, came, 0.0).astype(int)
    upper = np.cumsum(law, axis=-1)
    high = np.minimum(np.take_along_axis(upper, value[..., None], axis=-1), 1.0)
    mass = np.take_along_axis(law, value[..., None], axis=-1)
    low = np.maximum(high - mass, 0.0)
    overlap = np.clip(np.minimum(high, _EDGES[1:]) - np.maximum(low, _EDGES[:-1]), 0.0, None)
    total = overlap.sum(axis=-1, keepdims=True)
    share = overlap / np.where(total > 0, total, 1.0)
    return np.asarray(np.where(known[..., None], share, 0.0))


def corrected(law: np.ndarray, past: np.ndarray) -> np.ndarray:
    """Laws (..., states) with distribution function G(F), G from sums of past transforms (..., BINS) and `PRIOR` believed ones."""
    weight = past + PRIOR * _BELIEVED / _BELIEVED.sum()
    reached = np.cumsum(weight, axis=-1) / weight.sum(axis=-1, keepdims=True)
    reached = np.concatenate([np.zeros_like(reached[..., :1]), reached], axis=-1)
    reached = np.broadcast_to(reached, (*law.shape[:-1], BINS + 1))
    cumulative = np.clip(np.cumsum(law, axis=-1), 0.0, 1.0)
    left = np.clip(np.searchsorted(_EDGES, cumulative, side="right") - 1, 0, BINS - 1)
    low = np.take_along_axis(reached, left, axis=-1)
    high = np.take_along_axis(reached, left + 1, axis=-1)
    after = low + (high - low) * (cumulative - _EDGES[left]) / _WIDTH[left]
    after[..., -1] = 1.0
    return np.asarray(np.diff(after, axis=-1, prepend=0.0))


# ---
# Weights of a mixture of laws that would have been best of late, by CRPS (M6.2, M6.5; ours).
#
# The ranked probability score of a mixture is quadratic in its weights: with F_m(n) member m's P(count <= n) and y what came,
#
#     CRPS(w) = sum_n (sum_m w_m F_m(n) - [y <= n])^2 = w' G w,   G_ab = sum_n (F_a(n) - [y <= n]) (F_b(n) - [y <= n]),
#
# for weights that add up to one. So the best weights on past forecasts, each counting half as much as one a half-life later,
# solve
# a quadratic program on the simplex whose matrix is a running sum. Unlike weights by each member's own score, they know which
# members err together. Combination by squared error is Bates and Granger (1969); for laws by CRPS it is the linear pool of Hall
# and Mitchell (2007) with their log score replaced.

#: Steps of exponentiated gradient; more change no weight by 0.01 on the open series.
_ITERATIONS = 200
_RATE = 0.5
#: Of the matrix' mean diagonal, added to each diagonal: alike members share their weight.
_RIDGE = 0.005


def error_products(laws: np.ndarray, came: np.ndarray) -> np.ndarray:
    """G per element, divided by the number of thresholds; ``laws`` (members, *shape, states), ``came`` (*shape,) with NaN where
    nothing is known, which gives zero. The result has shape (*shape, members, members)."""
    states = laws.shape[-1]
    if states < 2:
        return np.zeros((*came.shape, laws.shape[0], laws.shape[0]))
    below = (came[..., None] <= np.arange(states - 1)).astype(float)
    error = np.where(np.isnan(came)[..., None], 0.0, np.cumsum(laws, axis=-1)[..., :-1] - below)
    error = np.moveaxis(error, 0, -2)
    return np.asarray(error @ np.swapaxes(error, -1, -2) / (states - 1))


def simplex_weights(matrix: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Weights w >= 0 that add up to one and minimise w' A w + ridge |w|^2 for each A (..., members, members), shape (..., members).

    Exponentiated gradient from ``start`` (members,); a matrix of zeros returns ``start``.
    """
    members = matrix.shape[-1]
    scale = np.einsum("...ii->...", matrix)[..., None] / members
    unit = matrix / np.where(scale > 0, scale, 1.0)[..., None]
    unit = unit + _RIDGE * np.eye(members) * (scale > 0)[..., None]
    weights = np.broadcast_to(start, matrix.shape[:-1]).copy()
    for _ in range(_ITERATIONS):
        slope = 2.0 * (unit @ weights[..., None])[..., 0]
        slope -= (weights * slope).sum(axis=-1, keepdims=True)
        weights *= np.exp(-_RATE * slope)
        weights /= weights.sum(axis=-1, keepdims=True)
    return weights


# ---
# What came of past forecasts: running sums of error products and of transforms, slot by slot (M6.2, M6.6, ours).

#: Steps at which weights and coverage are followed; between them they are interpolated, beyond them held.
NODES = np.array([1, 2, 3, 4, 6, 8, 12, 24, 48])
#: Hours after which a past forecast counts half for the weights.
HALF_LIFE = 24.0
#: How many times longer coverage is remembered: it takes longer to learn.
_MEMORY = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Laws of all members at consecutive slots from ``start`` (since the epoch), and what came, at `NODES`.

    ``laws`` (members, places, nodes, states), ``came`` (places, nodes), NaN where nothing did. Sums forget half every
    ``half_life`` slots.
    """

    start: int
    laws: np.ndarray
    came: np.ndarray
    half_life: float

    @property
    def slots(self) -> np.ndarray:
        """The slots forecast from, since the epoch, shape (places,)."""
        return self.start + np.arange(self.came.shape[0])

    def products(self, first: int, at: np.ndarray, so_far: np.ndarray | None = None) -> np.ndarray:
        """Sums of error products standing at slots ``at``, of forecasts that came true from slot ``first`` on.

        The result has shape (at, nodes, members, members); ``so_far`` is the sum before ``first``.
        """
        return self._running(error_products(self.laws, self.came), first, at, self.half_life, so_far)

    def transforms(
        self, weights: np.ndarray, first: int, at: np.ndarray, so_far: np.ndarray | None = None
    ) -> np.ndarray:
        """Sums of transforms of the mixture by ``weights`` (places, nodes, members), likewise, shape (at, nodes, BINS)."""
        mixture = np.einsum("pkm,mpkn->pkn", weights, self.laws)
        terms = transforms(mixture, self.came)
        return self._running(terms, first, at, _MEMORY * self.half_life, so_far)

    def _running(
        self, terms: np.ndarray, first: int, at: np.ndarray, half_life: float, so_far: np.ndarray | None
    ) -> np.ndarray:
        """Sums at slots ``at`` (ascending) of ``terms`` (places, nodes, ...): a forecast enters when it comes true."""
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
# Counts by a mixture of laws whose weights follow what has been right of late, per market and step (M6.2, M6.6, ours).
#
# The members are laws that follow the series by themselves (`predictors.count_members`) and, if wanted, trees over all markets
# (`predictors.lightgbm`). Weights and coverage come from the members' own past forecasts: those of
# the last `HELD_OUT` hours by an estimation that ends before them; then everything is estimated again up to the present. Between
# refits every forecast whose slot has passed moves both on. "Stays where it is" is a member, so the mixture can fall back to last
# value.

#: Hours of forecasts that weights are learned from at a fit; what is behind them knows nothing of these hours.
HELD_OUT = 48.0
#: How much the mean of a source's markets adds to a market's own record.
POOLED = 0.3
#: The same for where values fell.
POOLED_PAST = 1.0
#: Slots for which weights are held where only coverage depends on them.
_SPACED = 6
#: Name of the member that trees make.
TREES = "trees"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedCount:
    """Model of the count over a panel: members of these names in `MEMBERS`, and the trees under the name `TREES`."""

    members: tuple[str, ...] = (*MEMBERS, TREES)
    recalibrated: bool = True

    def fit(self, panel: Panel) -> FittedStackedCount:
        """Estimate expectations and trees, weigh the members on the newest `HELD_OUT` hours, and see where values fell."""
        alive = [series for series in panel.series if series.observed.size]
        end = max((series.end for series in alive), default=0)
        first = end - _held_out(alive)
        early = self._estimated(panel.until(first - 1), first)
        seen = {
            one.key: early.watch(panel, which, first, end - 1)
            for which, one in enumerate(panel.series)
            if one.observed.size and one.end > first
        }
        slots = np.arange(first, end)
        sums = {key: watched.products(first, slots) for key, watched in seen.items()}
        record = {key: value[-1] for key, value in sums.items()}
        past = {}
        for key, watched in seen.items():
            # Each forecast by the weights of its own time: later ones have seen what came, and would look too sure.
            weights = early.weigh(sums[key], _source(key), sums)[watched.slots - first]
            past[key] = watched.transforms(weights, first, slots[-1:])[0]
        return replace(self._estimated(panel, end), record=record, past=past)

    def _estimated(self, panel: Panel, end: int) -> FittedStackedCount:
        expected = expectations(panel, NODES)
        trees = fit_trees(panel, expected) if TREES in self.members else CountTrees(boosters=())
        return FittedStackedCount(
            members=self.members, recalibrated=self.recalibrated, end=end, expected=expected, trees=trees
        )


def _held_out(alive: list[Series]) -> int:
    """Slots that weights are learned from: `HELD_OUT`, but no more than a third of the longest series."""
    longest = max((len(series) for series in alive), default=0)
    return int(min(in_slots(alive[0], HELD_OUT, 48), longest // 3)) if alive else 0


@stored("combined.count")
@dataclass(frozen=True, slots=True, kw_only=True)
class FittedStackedCount:
    """``end``: the slot (since the epoch) after the last that was estimated on.

    Of every series watched at the fit: ``record``, sums of error products (nodes, members, members), and ``past``, sums
    of transforms (nodes, BINS).
    """

    members: tuple[str, ...]
    recalibrated: bool
    end: int
    expected: Expectations
    trees: CountTrees
    record: dict[str, np.ndarray] = field(default_factory=dict)
    past: dict[str, np.ndarray] = field(default_factory=dict)

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        """The mixture at each origin; last value answers, labelled, if the newest value is stale or there are too many states."""
        series = panel.series[which]
        why = NEVER_SEEN if series.key not in self.record else ""
        steps = np.arange(1, horizon + 1)
        shares = np.stack([np.interp(steps, NODES, unit) for unit in np.eye(NODES.size)], axis=1)

        def mixture(part: np.ndarray, states: int) -> np.ndarray:
            weights, past = self._standing(panel, which, part)
            law = np.einsum("pkm,mpkn->pkn", shares @ weights, self._laws(panel, which, part, steps, states))
            return corrected(law, shares @ past) if self.recalibrated else np.asarray(law)

        return answered(mixture, series, origins, horizon, end=self.end, why=why)

    def watch(self, panel: Panel, which: int, first: int, last: int) -> Watched:
        """All members' laws at the nodes from slot ``first`` (since the epoch) to ``last``, and what came of them."""
        series = panel.series[which]
        start = max(first, series.first_slot + int(np.argmax(series.newest >= 0)))
        places = np.arange(start - series.first_slot, min(last + 1, series.end) - series.first_slot)
        states = int(series.upper[places].max()) + 1 if places.size else 1
        came = ahead(series.values, int(NODES[-1]))[places][:, NODES - 1]
        if states > MOST_STATES:  # answered by last value, so there is nothing to weigh
            places, came = places[:0], came[:0]
        laws = self._laws(panel, which, places, NODES, min(states, MOST_STATES))
        return Watched(start=start, laws=laws, came=came, half_life=in_slots(series, HALF_LIFE, 24))

    def _laws(
        self, panel: Panel, which: int, places: np.ndarray, steps: np.ndarray, states: int
    ) -> np.ndarray:
        """Laws of all members, shape (members, places, steps, states)."""
        series = panel.series[which]
        at = situation_of(series, places, steps, states, self.expected.of)
        laws = member_laws(at, tuple(name for name in self.members if name != TREES))
        if TREES not in self.members:
            return laws
        return np.concatenate([laws, trees_laws(self.trees.loaded(), at, peers_of(panel, which))[None]])

    def weigh(self, record: np.ndarray, source: str, others: dict[str, np.ndarray]) -> np.ndarray:
        """Weights from a market's own sums (..., nodes, members, members) and the mean of its source's, (..., nodes, members)."""
        members = len(self.members)
        return simplex_weights(record + POOLED * _shared(others, source), np.full(members, 1.0 / members))

    def _standing(self, panel: Panel, which: int, origins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights (origins, nodes, members) and past transforms (origins, nodes, BINS) as they stand at each origin."""
        series, members = panel.series[which], len(self.members)
        own = self.record.get(series.key, np.zeros((NODES.size, members, members)))
        past = self.past.get(series.key, np.zeros((NODES.size, BINS)))
        slots = origins + series.first_slot
        standing = self.weigh(own, series.source, self.record)
        weights = np.repeat(standing[None], origins.size, axis=0)
        pasts = np.repeat(past[None], origins.size, axis=0)
        # A market that was not there at the fit has no record before its first slot.
        first = max(self.end, series.first_slot)
        late = slots >= first
        if late.any():
            # A forecast made k slots before the fit comes true after it, so its error enters now.
            seen = self.watch(panel, which, first - int(NODES[-1]), int(slots[-1]))
            sums = seen.products(first, np.arange(first, int(slots[-1]) + 1), own)
            weights[late] = self.weigh(sums[slots[late] - first], series.source, self.record)
            # What was issued in between is weighed anew every few slots only: its transforms hardly tell the difference.
            spaced = self.weigh(sums[::_SPACED], series.source, self.record)
            at_each = np.concatenate([standing[None], spaced])
            made = at_each[np.clip((seen.slots - first) // _SPACED + 1, 0, len(spaced))]
            pasts[late] = seen.transforms(made, first, slots[late], past)
        return weights, pasts + POOLED_PAST * _shared(self.past, series.source)


def _source(key: str) -> str:
    return key.partition("@")[2]


def _shared(sums: dict[str, np.ndarray], source: str) -> np.ndarray | float:
    """The mean over a source's markets, over all where it has none; 0 without any."""
    own = [value for key, value in sums.items() if _source(key) == source] or list(sums.values())
    return np.asarray(np.mean(own, axis=0)) if own else 0.0
