"""Counts by a mixture of laws whose weights follow what has been right of late, per market and step (M6.2, M6.6, ours).

The members are laws that follow the series by themselves (`count_members`) and, if wanted, trees over all markets
(`boosted_count`). Weights (`stacking`) and coverage (`recalibration`) come from the members' own past forecasts: those of
the last `HELD_OUT` hours by an estimation that ends before them; then everything is estimated again up to the present. Between
refits every forecast whose slot has passed moves both on. "Stays where it is" is a member, so the mixture can fall back to last
value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from forecasting.laws import MOST_STATES
from forecasting.panel import NEVER_SEEN, Panel
from forecasting.predictors.boosted import answered
from forecasting.predictors.boosted_count import CountTrees, fit_trees, trees_laws
from forecasting.predictors.count_members import MEMBERS, in_slots, member_laws, situation_of
from forecasting.predictors.count_rows import peers_of
from forecasting.predictors.count_watch import HALF_LIFE, NODES, Watched
from forecasting.predictors.expected import Expectations, expectations
from forecasting.recalibration import BINS, corrected
from forecasting.residuals import ahead
from forecasting.series import Series
from forecasting.stacking import simplex_weights
from forecasting.univariate import Outlook

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
