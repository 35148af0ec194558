"""What a learner would have made of a sequence of jobs: utility, regret, weights, and the choice among learners (M5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from optimization.job.definition import Job, rates
from optimization.market.window import MarketWindow
from optimization.selection.contract import BanditLearner, Learner, Played, play, weigh
from optimization.selection.learners import LEARNERS, learner_named
from optimization.selection.weights import Weights, best_sequence
from warehouse.errors import SettingsError

#: The first jobs, over which weights settle: the claim about a selector is made for the jobs after these (E3).
SETTLING = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Realised:
    """Mean utility per job, in the unit of the raw utilities, over one stretch of rounds.

    ``sampled`` is the mean under the weights (what drawing by weight earns in expectation), ``drawn`` what
    one seeded draw a round earned, ``leader`` what following the largest weight earned, ``best_fixed`` the
    best single policy over the same jobs, and ``share`` = sampled / best_fixed utility (NaN unless that is
    positive).
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
    """One learner on K jobs and M policies.

    ``overall`` and ``settled`` (after the first `SETTLING` jobs, or the second half of fewer) are in raw
    utilities; regrets and bounds are cumulative over rounds, shape (K,), in normalised utilities, which the
    guarantee speaks of. ``shifting_*`` are against the best sequence of policies with ``shifts`` changes.
    ``weights`` has shape (K + 1, M): before round 1 .. K and after K; ``leaders`` holds the policy followed
    in each round. ``stretches`` are the stretches between the rounds ``cuts`` after which the market changed.
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
        """The best single policy by mean raw utility over all jobs."""
        return self.overall.best_fixed

    @property
    def regret(self) -> float:
        """Static regret after the last round, in normalised utility."""
        return float(self.regret_curve[-1])

    @property
    def bound(self) -> float:
        """Its bound."""
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
    """Let a learner choose among policies job after job, each choice made from the jobs before (M5.1-M5.4).

    Both tables have shape (K, M): utilities in [0, 1], which it learns from (`selection.normalised`), and the
    same in the unit of the report. ``seed`` serves the draws only. ``cuts`` are the numbers of rounds after
    which the market is known to have changed, ascending; the learner is not told. Raises `SettingsError` for
    tables that do not match, an unknown learner or cuts outside the rounds.
    """
    values, raw = checked_tables(utilities_normalised, raw_utilities, names)
    chosen = learner_named(learner) if isinstance(learner, str) else learner
    history = weigh(chosen, names, values)
    chances = np.array([each.probability for each in history[:-1]])
    played = Played(
        names=tuple(names),
        utilities=values,
        chances=chances,
        drawn=_draws(chances, np.random.default_rng(seed)),
    )
    return summary_of(chosen, raw, played, history, cuts=cuts)


def summary_of(
    learner: Learner[Any] | BanditLearner[Any],
    raw: np.ndarray,
    played: Played,
    history: Sequence[Weights],
    *,
    cuts: Sequence[int] = (),
) -> SelectionSummary:
    """What rounds that were played come to; ``history`` holds the weights before each round and after the last.

    ``raw`` (K, M) as for `select_over`; ``played.drawn`` says what was drawn. Raises `SettingsError` for cuts outside the rounds.
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
    """Each learner over the same jobs, best first: columns learner, sampled_utility (raw), regret and bound (normalised)."""
    values, raw = checked_tables(utilities_normalised, raw_utilities, names)
    rows = []
    for name, learner in (LEARNERS if learners is None else learners).items():
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
    orders: Mapping[str, Order],
    learners: Mapping[str, Learner[Any]] | None = None,
) -> pd.DataFrame:
    """Mean raw utility of each learner in each order of the jobs of a training part, the best over all orders first.

    Columns: learner, one of each order's name, mean. The first row is the learner to choose: nobody knows
    beforehand in which order the jobs will come. Ties go to the learner named first.
    """
    table = pd.DataFrame()
    for name, order in orders.items():
        values, raw = (
            np.asarray(t, dtype=float)[order.places] for t in (utilities_normalised, raw_utilities)
        )
        earned = compare_learners(values, raw, names, learners=learners).set_index("learner")
        table[name] = earned["sampled_utility"]
    known = list(LEARNERS if learners is None else learners)
    table = table.loc[known].assign(mean=lambda frame: frame.mean(axis=1)).rename_axis("learner")
    return table.reset_index().sort_values("mean", ascending=False, kind="stable", ignore_index=True)


def checked_tables(
    normalised: np.ndarray, raw: np.ndarray, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Both as floats; raises `SettingsError` unless they are finite and of the same shape (jobs, policies)."""
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
    """One policy a round by weight, shape (K,)."""
    above = rng.random((len(chances), 1)) < chances.cumsum(axis=1)
    above[:, -1] = True  # where rounding leaves the sum just below 1
    return np.asarray(above.argmax(axis=1))


def _realised(
    raw: np.ndarray,
    played: Played,
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
# The orders in which the selection meets the same jobs: as they came, and through switches of regime (M5.4, E3).


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order of the jobs, as places, and the number of rounds after each of which the market changes."""

    places: np.ndarray
    cuts: tuple[int, ...]


def abundance(job: Job, window: MarketWindow) -> float:
    """How often spot below on-demand's price alone could do the job's work by d, changes of size left aside."""
    usable = np.where(window.price < window.on_demand_usd, window.available, 0)
    sizes = np.minimum(usable, job.n_max).astype(int)
    hourly = rates(job.throughput, job.n_max)
    return float(hourly[np.where(sizes >= job.n_min, sizes, 0)].sum() * window.slot_hours / job.workload)


def switch_order(kinds: Sequence[float] | np.ndarray) -> Order:
    """First the jobs of kind above the median, then the others, each half in its own order (E3's regime switch).

    Raises `SettingsError` if all are of one kind.
    """
    values = np.asarray(kinds, dtype=float)
    above = values > np.median(values) if len(values) else np.zeros(0, dtype=bool)
    if not above.any():
        raise SettingsError(
            f"{len(values)} jobs, all on markets of one kind",
            expected="jobs of two kinds",
            remedy="use more series or more jobs",
        )
    return Order(places=np.argsort(~above, kind="stable"), cuts=(int(above.sum()),))


def hostile_order(utilities: np.ndarray) -> Order:
    """First the jobs on which the best policy beats a certain other, then all on which that one beats the best.

    The other is the one that adds most to the best, so that the switch is worth as much as a switch between
    two policies can be, and all that was learned before it speaks against it. Without such a policy the order
    stays and there is no cut. ``utilities`` has shape (K, M).
    """
    values = np.asarray(utilities, dtype=float)
    best = values[:, [int(values.sum(axis=0).argmax())]]
    other = values[:, [int(np.maximum(values, best).sum(axis=0).argmax())]]
    behind = (other > best)[:, 0]
    cut = int((~behind).sum())
    return Order(places=np.argsort(behind, kind="stable"), cuts=(cut,) if 0 < cut < len(values) else ())


def orders_of(raw_utilities: np.ndarray, kinds: Sequence[float] | np.ndarray) -> dict[str, Order]:
    """The orders in which E3 plays the same jobs: as they came, through a switch of market, and the hostile one."""
    return {
        "random_order": Order(places=np.arange(len(raw_utilities)), cuts=()),
        "regime_switch": switch_order(kinds),
        "hostile_switch": hostile_order(raw_utilities),
    }
