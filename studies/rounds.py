"""Replay of job sequences by learners, by bandits and by selectors among forecasters (M5, M10)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from slackwater.optimization.job.definition import Job, rates
from slackwater.optimization.kernels.rules import usable_spot
from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.selection.contract import (
    Learner,
    PlayedRounds,
    Weights,
    checked_round,
    play,
    weigh,
)
from slackwater.optimization.selection.learners import learner_named
from slackwater.studies.learners import INFORMED
from slackwater.studies.learners.contract import BanditFeedback, BanditLearner, play_bandit
from slackwater.warehouse.errors import SettingsError


def best_sequence(utilities: np.ndarray, shifts: int) -> np.ndarray:
    """Return the summed utility of the best policy sequence with at most ``shifts`` changes, by round, shape (K,).

    Dynamic program over (round, changes used, policy): retain the policy, or change to it from the
    best of the previous round.
    """
    utilities = np.asarray(utilities, dtype=float)
    best, sums = np.tile(utilities[0], (shifts + 1, 1)), [utilities[0].max()]
    for row in utilities[1:]:
        changed = np.full_like(best, -np.inf)
        changed[1:] = best[:-1].max(axis=1, keepdims=True)
        best = np.maximum(best, changed) + row
        sums.append(best.max())
    return np.array(sums, dtype=float)


# ---
# Results of a learner on a sequence of jobs: utility, regret, weights, and the choice among
# learners (M5).

#: Number of first jobs in which the weights settle; the claim about a selector concerns the later
#: jobs (E3).
SETTLING = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Realised:
    """Mean utility per job over a stretch of rounds, in the unit of the raw utilities.

    ``sampled`` is the mean under the weights (the expectation of drawing by weight), ``drawn`` the
    utility of one seeded draw per round, ``leader`` that of following the largest weight, and
    ``best_fixed`` the best single policy over the same jobs. ``share`` = sampled / best_fixed
    utility (NaN unless the latter is positive).
    """

    jobs: int
    sampled: float
    drawn: float
    leader: float
    best_fixed: str
    best_fixed_utility: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionSummary:
    """Results of a learner on K jobs and M policies.

    ``overall`` and ``settled`` (after the first `SETTLING` jobs, or the second half of fewer) are
    in raw utilities. Regrets and bounds are cumulative over rounds, shape (K,), in normalised
    utilities, for which the guarantee holds. ``shifting_*`` compare with the best sequence of
    policies with ``shifts`` changes. ``weights`` has shape (K + 1, M): before round 1 .. K and
    after K; ``leaders`` holds the policy followed in each round. ``stretches`` are the stretches
    between the rounds ``cuts`` after which the market changed.
    """

    learner: str
    names: tuple[str, ...]
    overall: Realised
    settled: Realised
    stretches: tuple[Realised, ...]
    regret_curve: np.ndarray
    bound_curve: np.ndarray
    shifts: int
    shifting_regret_curve: np.ndarray
    shifting_bound_curve: np.ndarray
    weights: np.ndarray
    leaders: tuple[str, ...]

    @property
    def sampled_utility(self) -> float:
        """Mean raw utility under the weights over all jobs."""
        return self.overall.sampled

    @property
    def leader_utility(self) -> float:
        """Mean raw utility of following the leader over all jobs."""
        return self.overall.leader

    @property
    def best_fixed(self) -> str:
        """Best single policy by mean raw utility over all jobs."""
        return self.overall.best_fixed

    @property
    def regret(self) -> float:
        """Static regret after the last round, in normalised utility."""
        return float(self.regret_curve[-1])

    @property
    def bound(self) -> float:
        """Bound of the static regret after the last round."""
        return float(self.bound_curve[-1])

    @property
    def within_bound(self) -> bool:
        """Whether the static regret was under its bound after every round."""
        return bool((self.regret_curve <= self.bound_curve + 1e-9).all())


def select_over(
    utilities_normalised: np.ndarray,
    raw_utilities: np.ndarray,
    names: Sequence[str],
    *,
    seed: int,
    learner: str | Learner[Any] = "default",
    cuts: Sequence[int] = (),
) -> SelectionSummary:
    """Run a learner that chooses among policies job after job, each choice from earlier jobs only (M5.1-M5.4).

    Both tables have shape (K, M): utilities in [0, 1] for learning
    (`selection.contract.normalised`), and the same utilities in the unit of the report. ``seed`` is
    for the draws only. ``cuts`` are the numbers of rounds after which the market is known to have
    changed, ascending; the learner does not receive them. Raises `SettingsError` for tables that do
    not match, an unknown learner or cuts outside the rounds.
    """
    values, raw = checked_tables(utilities_normalised, raw_utilities, names)
    chosen = learner_named(learner) if isinstance(learner, str) else learner
    history = weigh(chosen, names, values)
    chances = np.array([each.probability for each in history[:-1]])
    played = PlayedRounds(
        names=tuple(names),
        utilities=values,
        chances=chances,
        drawn=_draws(chances, np.random.default_rng(seed)),
    )
    return summary_of(chosen, raw, played, history, cuts=cuts)


def summary_of(
    learner: Learner[Any] | BanditLearner[Any],
    raw: np.ndarray,
    played: PlayedRounds,
    history: Sequence[Weights],
    *,
    cuts: Sequence[int] = (),
) -> SelectionSummary:
    """Summarise played rounds; ``history`` holds the weights before each round and after the last.

    ``raw`` (K, M) as for `select_over`; ``played.drawn`` holds the draws. Raises `SettingsError`
    for cuts outside the rounds.
    """
    values, drawn = played.utilities, np.asarray(played.drawn)
    led = np.array([int(np.argmax(each.log_weight)) for each in history[:-1]])
    first, shifts = SETTLING if len(values) > 2 * SETTLING else len(values) // 2, len(cuts)
    ends = [0, *cuts, len(values)]
    if any(a >= b for a, b in pairwise(ends)):
        raise SettingsError(f"cuts {list(cuts)}", expected=f"ascending, between 1 and {len(values) - 1}")
    return SelectionSummary(
        learner=learner.name,
        names=played.names,
        overall=_realised(raw, played, drawn, led),
        settled=_realised(raw, played, drawn, led, first=first),
        stretches=tuple(_realised(raw, played, drawn, led, first=a, last=b) for a, b in pairwise(ends)),
        regret_curve=played.static_regret,
        bound_curve=learner.static_bounds(played),
        shifts=shifts,
        shifting_regret_curve=best_sequence(values, shifts) - played.expected.cumsum(),
        shifting_bound_curve=learner.shifting_bounds(played, shifts),
        weights=np.array([each.probability for each in history]),
        leaders=tuple(played.names[i] for i in led),
    )


def compare_learners(
    utilities_normalised: np.ndarray,
    raw_utilities: np.ndarray,
    names: Sequence[str],
    *,
    learners: Mapping[str, Learner[Any]] | None = None,
) -> pd.DataFrame:
    """Compare learners on the same jobs, best first.

    Columns: learner, sampled_utility (raw), regret and bound (normalised).
    """
    values, raw = checked_tables(utilities_normalised, raw_utilities, names)
    rows = []
    for name, learner in (INFORMED if learners is None else learners).items():
        played = play(learner, names, values)
        rows.append(
            {
                "learner": name,
                "sampled_utility": float((played.chances * raw).sum(axis=1).mean()),
                "regret": float(played.static_regret[-1]),
                "bound": float(learner.static_bounds(played)[-1]),
            }
        )
    table = pd.DataFrame(rows)
    return table.sort_values("sampled_utility", ascending=False, kind="stable", ignore_index=True)


def train_learners(
    utilities_normalised: np.ndarray,
    raw_utilities: np.ndarray,
    names: Sequence[str],
    *,
    orders: Mapping[str, JobOrder],
    learners: Mapping[str, Learner[Any]] | None = None,
) -> pd.DataFrame:
    """Return the mean raw utility of each learner in each order of the training jobs, best over all orders first.

    Columns: learner, one of each order's name, mean. The first row is the learner to choose,
    because the order of future jobs is unknown. Ties go to the learner named first.
    """
    table = pd.DataFrame()
    for name, order in orders.items():
        values, raw = (
            np.asarray(t, dtype=float)[order.places] for t in (utilities_normalised, raw_utilities)
        )
        earned = compare_learners(values, raw, names, learners=learners).set_index("learner")
        table[name] = earned["sampled_utility"]
    known = list(INFORMED if learners is None else learners)
    table = table.loc[known].assign(mean=lambda frame: frame.mean(axis=1)).rename_axis("learner")
    return table.reset_index().sort_values("mean", ascending=False, kind="stable", ignore_index=True)


def checked_tables(
    normalised: np.ndarray, raw: np.ndarray, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return both tables as floats; raises `SettingsError` unless finite and of equal shape (jobs, policies)."""
    values, given = np.asarray(normalised, dtype=float), np.asarray(raw, dtype=float)
    if values.shape != given.shape or values.ndim != 2 or values.shape[1] != len(names) or not len(values):
        raise SettingsError(
            f"normalised utilities {values.shape}, raw {given.shape}, {len(names)} names",
            expected="two tables of the same shape (jobs, policies), at least one job",
        )
    if not np.isfinite(given).all():
        raise SettingsError(
            "raw utilities that are not finite numbers", remedy="replay every policy on every job"
        )
    return values, given


def _draws(chances: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a policy per round by weight, shape (K,)."""
    above = rng.random((len(chances), 1)) < chances.cumsum(axis=1)
    above[:, -1] = True  # rounding may leave the sum just below 1
    return np.asarray(above.argmax(axis=1))


def _realised(
    raw: np.ndarray,
    played: PlayedRounds,
    drawn: np.ndarray,
    led: np.ndarray,
    *,
    first: int = 0,
    last: int | None = None,
) -> Realised:
    rounds, part = np.arange(len(raw)), slice(first, last)
    fixed = raw[part].mean(axis=0)
    best = int(fixed.argmax())
    sampled = float((played.chances * raw).sum(axis=1)[part].mean())
    top = float(fixed[best])
    return Realised(
        jobs=len(raw[part]),
        sampled=sampled,
        drawn=float(raw[rounds, drawn][part].mean()),
        leader=float(raw[rounds, led][part].mean()),
        best_fixed=played.names[best],
        best_fixed_utility=top,
        share=sampled / top if top > 0 else math.nan,
    )


# ---
# Orders in which the selection receives the same jobs: as recorded, and through switches of regime
# (M5.4, E3).


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOrder:
    """Order of the jobs, as indices, and the numbers of rounds after which the market changes."""

    places: np.ndarray
    cuts: tuple[int, ...]


def abundance(job: Job, window: MarketWindow) -> float:
    """Return how many times spot below the on-demand price could do the job's work by d, ignoring size changes."""
    usable = usable_spot(window.available, window.price, window.on_demand_usd)
    sizes = np.minimum(usable, job.n_max).astype(int)
    hourly = rates(job.throughput, job.n_max)
    return float(hourly[np.where(sizes >= job.n_min, sizes, 0)].sum() * window.slot_hours / job.workload)


def switch_order(kinds: Sequence[float] | np.ndarray) -> JobOrder:
    """Return the jobs of kind above the median first, then the others, both in the given order (regime switch of E3).

    Raises `SettingsError` if all jobs are of one kind.
    """
    values = np.asarray(kinds, dtype=float)
    above = values > np.median(values) if len(values) else np.zeros(0, dtype=bool)
    if not above.any():
        raise SettingsError(
            f"{len(values)} jobs, all on markets of one kind",
            expected="jobs of two kinds",
            remedy="use more series or more jobs",
        )
    return JobOrder(places=np.argsort(~above, kind="stable"), cuts=(int(above.sum()),))


def hostile_order(utilities: np.ndarray) -> JobOrder:
    """Return an order that first favours the best policy and then a rival that beats it on all later jobs.

    The rival is the policy that adds most to the best, so that the switch matters as much as a
    switch between two policies can, and all earlier experience speaks against it. Without such a
    policy the order is unchanged and has no cut. ``utilities`` has shape (K, M).
    """
    values = np.asarray(utilities, dtype=float)
    best = values[:, [int(values.sum(axis=0).argmax())]]
    other = values[:, [int(np.maximum(values, best).sum(axis=0).argmax())]]
    behind = (other > best)[:, 0]
    cut = int((~behind).sum())
    return JobOrder(places=np.argsort(behind, kind="stable"), cuts=(cut,) if 0 < cut < len(values) else ())


def orders_of(raw_utilities: np.ndarray, kinds: Sequence[float] | np.ndarray) -> dict[str, JobOrder]:
    """Return the job orders of E3: as recorded, through a switch of market, and the hostile order."""
    return {
        "random_order": JobOrder(places=np.arange(len(raw_utilities)), cuts=()),
        "regime_switch": switch_order(kinds),
        "hostile_switch": hostile_order(raw_utilities),
    }


# ---
# Results of bandits on a sequence of jobs, which receive only the utility of the policy they played
# (M10).

#: Normal quantile of a 95 % interval.
_Z95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class BanditRuns:
    """Results of a bandit on the same jobs with several seeds of its draws.

    ``runs`` holds a summary per seed; its ``drawn`` utilities are actual earnings, its regrets are
    expectations under the bandit's probabilities.
    """

    runs: tuple[SelectionSummary, ...]

    @property
    def learner(self) -> str:
        """Name of the bandit."""
        return self.runs[0].learner

    @property
    def drawn_utility(self) -> float:
        """Mean raw utility earned over all jobs and seeds."""
        return float(np.mean([run.overall.drawn for run in self.runs]))

    @property
    def settled_utility(self) -> float:
        """Mean raw utility earned after the first `SETTLING` jobs, over all seeds."""
        return float(np.mean([run.settled.drawn for run in self.runs]))

    @property
    def settled_interval(self) -> tuple[float, float]:
        """Normal 95 % interval of `settled_utility` over the seeds; NaN for a single seed."""
        values = np.array([run.settled.drawn for run in self.runs])
        if len(values) < 2:
            return math.nan, math.nan
        half = _Z95 * float(values.std(ddof=1)) / math.sqrt(len(values))
        return float(values.mean()) - half, float(values.mean()) + half

    @property
    def settled_share(self) -> float:
        """Ratio of `settled_utility` to the best fixed policy on the same jobs; NaN unless the latter is positive."""
        best = self.runs[0].settled.best_fixed_utility
        return self.settled_utility / best if best > 0 else math.nan

    @property
    def stretch_utilities(self) -> tuple[float, ...]:
        """Mean raw utility earned in each stretch between switches."""
        rows = [[part.drawn for part in run.stretches] for run in self.runs]
        return tuple(np.mean(rows, axis=0).tolist())

    @property
    def regret_curve(self) -> np.ndarray:
        """Mean expected regret against the best single policy after each round, normalised, shape (K,)."""
        return np.asarray(np.mean([run.regret_curve for run in self.runs], axis=0))

    @property
    def shifting_regret_curve(self) -> np.ndarray:
        """Mean expected regret against the best sequence of policies, normalised, shape (K,)."""
        return np.asarray(np.mean([run.shifting_regret_curve for run in self.runs], axis=0))

    @property
    def bound_curve(self) -> np.ndarray:
        """Bound of `regret_curve`, infinite if none is proven."""
        return self.runs[0].bound_curve

    @property
    def shifting_bound_curve(self) -> np.ndarray:
        """Bound of `shifting_regret_curve`."""
        return self.runs[0].shifting_bound_curve


def select_with_bandit(
    utilities_normalised: np.ndarray,
    raw_utilities: np.ndarray,
    names: Sequence[str],
    *,
    learner: BanditLearner[Any],
    seeds: Sequence[int],
    cuts: Sequence[int] = (),
) -> BanditRuns:
    """Run a bandit that chooses among policies job after job, once for each seed.

    Tables and ``cuts`` as for `select_over`; the bandit receives a single number of the first table
    per job. Raises `SettingsError` for tables that do not match or cuts outside the rounds.
    """
    values, raw = checked_tables(utilities_normalised, raw_utilities, names)
    runs = []
    for seed in seeds:
        played, history = play_bandit(learner, names, values, rng=np.random.default_rng([seed, 31]))
        runs.append(summary_of(learner, raw, played, history, cuts=cuts))
    return BanditRuns(runs=tuple(runs))


# ---
# Selection among forecasters of unknown accuracy by the past utility of planning with each (M10).
# The aim is that of "Best of many in both worlds" (An, Li, Moseley and Visotsky, 2024): follow
# forecasts when they are accurate and ignore them when they are not, without knowing which case
# applies. The setting there is different (shadow prices of resources that run out); here the arms
# are several forecasters and planning without a forecast, and a learner of M5 chooses (ours). The
# utility of a job is known only after its end, so that jobs that overlap in time cannot learn from
# each other.


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Start of each job and the time at which its utility is known, in one unit, both of equal length.

    Raises `SettingsError` for unequal lengths, for starts that are not ascending, and for a utility
    known before the start.
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
        """Yield, for every job, the indices of the jobs whose utility became known since the previous job, in order."""
        waiting: list[tuple[float, int]] = []
        for k, start in enumerate(self.start.tolist()):
            ready = []
            while waiting and waiting[0][0] <= start:
                ready.append(heapq.heappop(waiting)[1])
            heapq.heappush(waiting, (float(self.known[k]), k))
            yield ready


def play_delayed(
    learner: Learner[Any], names: Sequence[str], utilities: np.ndarray, spans: Spans
) -> PlayedRounds:
    """Return the rounds of a learner that learns a job's utilities once they are known.

    ``utilities`` (K, M) in [0, 1]. The learner's bounds are proven for rounds that end before the
    next starts and are not claimed here.
    """
    values = _table(names, utilities, spans)
    state, chances = learner.start(names), []
    for ready in spans.lessons():
        for j in ready:
            state = learner.learn(state, values[j])
        chances.append(learner.weights(state).probability)
    return PlayedRounds(names=tuple(names), utilities=values, chances=np.array(chances))


def play_delayed_bandit(
    learner: BanditLearner[Any],
    names: Sequence[str],
    utilities: np.ndarray,
    spans: Spans,
    *,
    rng: np.random.Generator,
) -> PlayedRounds:
    """Return the same rounds for a bandit, which learns only the utility of its choice for each job.

    The feedback has the probability of the choice at the time of the choice.
    """
    values = _table(names, utilities, spans)
    state = learner.start(names)
    chances: list[np.ndarray] = []
    drawn: list[int] = []
    for ready in spans.lessons():
        for j in ready:
            seen = BanditFeedback(
                policy=drawn[j], utility=float(values[j, drawn[j]]), chance=float(chances[j][drawn[j]])
            )
            state = learner.learn(state, seen)
        now = learner.weights(state).probability
        drawn.append(min(int(np.searchsorted(np.cumsum(now), rng.random(), side="right")), len(names) - 1))
        chances.append(now)
    return PlayedRounds(
        names=tuple(names), utilities=values, chances=np.array(chances), drawn=np.array(drawn, dtype=int)
    )


def follow_least_loss(losses: np.ndarray, spans: Spans, *, first: int = 0) -> np.ndarray:
    """Return the arm of the least mean loss over the jobs known at the start of each job, shape (K,).

    ``losses`` (K, M), NaN where an arm has none; an arm without any known loss is not followed.
    Before any loss is known the arm is ``first``.
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
