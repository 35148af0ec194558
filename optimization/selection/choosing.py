"""Choose among predictors whose accuracy is unknown beforehand, by what planning with each was worth so far (M10).

The aim is that of "Best of many in both worlds" (An, Li, Moseley and Visotsky, 2024): follow predictions when they are accurate
and ignore them when they are not, without being told which. Its setting is another one (shadow prices of resources that run
out); here the arms are several predictors and planning without any, and a learner of M5 does the choosing (ours). A job's
utility is known when the job has ended and not before, so that what overlaps in time teaches nothing to each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimization.selection.contract import BanditLearner, Learner, Played, Seen, checked_round
from warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """When each job starts and when its utility is known, in one unit and of one length, starts ascending.

    Raises `SettingsError` for others.
    """

    start: np.ndarray
    known: np.ndarray

    def __post_init__(self) -> None:
        if self.start.shape != self.known.shape or self.start.ndim != 1:
            raise SettingsError(
                f"{self.start.shape} starts, {self.known.shape} ends", expected="one of each for every job"
            )
        if (np.diff(self.start) < 0).any() or (self.known <= self.start).any():
            raise SettingsError(
                "starts that descend, or a job known before it started",
                expected="ascending starts, each before its job's utility is known",
                remedy="sort the jobs by their starts",
            )

    def lessons(self) -> Iterator[list[int]]:
        """For every job the places of the jobs that became known since the one before, in the order they did."""
        waiting: list[tuple[float, int]] = []
        for k, start in enumerate(self.start.tolist()):
            ready = []
            while waiting and waiting[0][0] <= start:
                ready.append(heapq.heappop(waiting)[1])
            heapq.heappush(waiting, (float(self.known[k]), k))
            yield ready


def play_delayed(learner: Learner[Any], names: Sequence[str], utilities: np.ndarray, spans: Spans) -> Played:
    """The rounds as a learner plays them that learns a job's utilities when they are known; ``utilities`` (K, M) in [0, 1].

    Its bounds are proven for rounds that end before the next begins; here they are not claimed.
    """
    values = _table(names, utilities, spans)
    state, chances = learner.start(names), []
    for ready in spans.lessons():
        for j in ready:
            state = learner.learn(state, values[j])
        chances.append(learner.weights(state).probability)
    return Played(names=tuple(names), utilities=values, chances=np.array(chances))


def play_delayed_bandit(
    learner: BanditLearner[Any],
    names: Sequence[str],
    utilities: np.ndarray,
    spans: Spans,
    *,
    rng: np.random.Generator,
) -> Played:
    """The same for a bandit, which is told of each job what its own choice earned, at the chance it had when it was made."""
    values = _table(names, utilities, spans)
    state = learner.start(names)
    chances: list[np.ndarray] = []
    drawn: list[int] = []
    for ready in spans.lessons():
        for j in ready:
            seen = Seen(
                policy=drawn[j], utility=float(values[j, drawn[j]]), chance=float(chances[j][drawn[j]])
            )
            state = learner.learn(state, seen)
        now = learner.weights(state).probability
        drawn.append(min(int(np.searchsorted(np.cumsum(now), rng.random(), side="right")), len(names) - 1))
        chances.append(now)
    return Played(
        names=tuple(names), utilities=values, chances=np.array(chances), drawn=np.array(drawn, dtype=int)
    )


def follow_least_loss(losses: np.ndarray, spans: Spans, *, first: int = 0) -> np.ndarray:
    """The arm of the least mean loss among the jobs known when each job starts, shape (K,).

    ``losses`` (K, M), NaN where an arm has none: an arm without any known loss is not followed. Until something is known it
    is arm ``first``.
    """
    values = np.asarray(losses, dtype=float)
    total, seen = np.zeros(values.shape[1]), np.zeros(values.shape[1])
    followed = []
    for ready in spans.lessons():
        for j in ready:
            known = np.isfinite(values[j])
            total += np.where(known, values[j], 0.0)
            seen += known
        mean = np.where(seen > 0, total / np.maximum(seen, 1.0), np.inf)
        followed.append(int(np.argmin(mean)) if np.isfinite(mean).any() else first)
    return np.array(followed, dtype=int)


def _table(names: Sequence[str], utilities: np.ndarray, spans: Spans) -> np.ndarray:
    values = np.asarray(utilities, dtype=float)
    if values.ndim != 2 or len(values) != len(spans.start):
        raise SettingsError(
            f"utilities of shape {values.shape} for {len(spans.start)} jobs", expected="one row for each job"
        )
    for row in values:
        checked_round(names, row)
    return values
