"""Schedulers of a shared cluster (M9.5), all behind `studies.cluster.simulation.Scheduler`.

In this file: first in, first out; orders when only some sizes are predicted; Sia.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from studies.cluster.simulation import Active, Cluster, fits
from warehouse.errors import SettingsError

# ---
# First in, first out, head of line: nobody starts before a job that arrived earlier has started (M9.5).


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """Jobs start in the order of arrival, each with the first of its attempts that has not failed, and run to their end.

    A job whose attempt failed keeps its place in the order, so it comes before all that arrived after it (kind to wrong
    configurations: a person who submits again goes to the end of the queue).
    """

    round_s: Final[None] = None

    @property
    def name(self) -> str:
        """Name in tables."""
        return "FIFO"

    def decide(self, now_s: float, jobs: Sequence[Active], cluster: Cluster) -> Mapping[int, int]:
        """All that run, and of those that wait the longest head of the queue that fits (`Scheduler.decide`)."""
        asked = {a.number: a.running for a in jobs if a.running is not None}
        free = [cluster.gpus_per_node] * cluster.nodes
        for active in jobs:
            if active.running is not None:
                free[active.node] -= active.attempt().gpus
        widths: list[int] = []
        for active in jobs:
            if active.running is not None:
                continue
            attempt = next_attempt(active, cluster)
            widths.append(active.job.attempts[attempt].gpus)
            if not fits(free, widths):
                break
            asked[active.number] = attempt
        return asked


def next_attempt(active: Active, cluster: Cluster) -> int:
    """The first attempt of a job that has not failed and fits on a node."""
    return next(
        i
        for i, attempt in enumerate(active.job.attempts)
        if i not in active.failed and attempt.gpus <= cluster.gpus_per_node
    )


# ---
# Job order when only some sizes are predicted (M10), on one machine and, in rounds, on the cluster.
#
# Round robin for the rest, shortest predicted first, mixed. The setting is that of "Non-clairvoyant scheduling with partial
# predictions" (ICML 2024): preemption is free, the sum of completion times counts, and B of n sizes are predicted. The rule
# is ours, in its spirit; the paper's bounds are not claimed for it.

#: Share of its remaining time that a running job is put forward by, so that near-equals do not swap for nothing.
STICKINESS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialOrder:
    """Every round jobs are taken in the order of their index while GPUs last, each with the first attempt that has not failed.

    The index of a predicted job is its predicted remaining time on that attempt, of an unpredicted one (or one that has
    outlived its prediction) the time it has run: least attained first, which is round robin among those that arrive together.
    Halved for a job that is running. Round robin by rounds, because a change costs a restart here (ours).
    """

    round_s: float = 300.0

    @property
    def name(self) -> str:
        """Name in tables."""
        return "partial predictions"

    def decide(self, now_s: float, jobs: Sequence[Active], cluster: Cluster) -> Mapping[int, int]:
        """The jobs of least index that fit (`Scheduler.decide`)."""
        asked: dict[int, int] = {}
        room = cluster.gpus
        for active in sorted(jobs, key=lambda a: (index_s(a, now_s, cluster), a.number)):
            attempt = next_attempt(active, cluster) if active.running is None else active.running
            gpus = active.job.attempts[attempt].gpus
            if gpus <= room:
                asked[active.number] = attempt
                room -= gpus
        return asked


def index_s(active: Active, now_s: float, cluster: Cluster) -> float:
    """The place of a job in the order, seconds: the less the earlier."""
    attempt = active.job.attempts[next_attempt(active, cluster) if active.running is None else active.running]
    since = 0.0
    if active.running is not None:
        since = max(0.0, now_s - active.since_s - cluster.start_up_s)
    done = active.attained + since * attempt.rate
    predicted = active.job.predicted_work
    if predicted is not None and done < predicted and attempt.believed > 0:
        index = (predicted - done) / attempt.believed
    else:
        index = active.gpu_s / attempt.gpus + since
    return index * (STICKINESS if active.running is not None else 1.0)


#: Work smaller than this share of the largest size is none: it is the rounding of sums.
NONE_LEFT = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job as the rule sees it: the work done so far, and the predicted size, None if there is none."""

    attained: float
    predicted: float | None

    @property
    def known(self) -> bool:
        """Whether the prediction still says something: a job that has outlived it counts as unpredicted."""
        return self.predicted is not None and self.attained < self.predicted


def turn(standings: Sequence[QueuedJob]) -> list[int]:
    """Positions of the jobs that share the machine now: one predicted job alone, or all unpredicted ones in round robin.

    A predicted job's index is its predicted remaining work, that of the unpredicted together the least work any of them has
    had: what has had x units is thought to need about x more. The least index runs, a predicted job first of equals, then the
    earlier one. All predicted is shortest remaining (predicted) time first; none predicted is
    round robin.

    >>> turn([QueuedJob(attained=0.0, predicted=5.0), QueuedJob(attained=2.0, predicted=None)])
    [1]
    """
    known = [
        (s.predicted - s.attained, i) for i, s in enumerate(standings) if s.known and s.predicted is not None
    ]
    unknown = [i for i, s in enumerate(standings) if not s.known]
    if known and (not unknown or min(known)[0] <= min(standings[i].attained for i in unknown)):
        return [min(known)[1]]
    return unknown


def completion_times(
    arrivals: Sequence[float], sizes: Sequence[float], predicted: Sequence[float | None]
) -> np.ndarray:
    """When each job ends on one machine of speed 1 under `turn`, exact (shares are fluid), shape (jobs,).

    Raises `SettingsError` unless the three are of one length, sizes and predictions positive.
    """
    _require_sound(arrivals, sizes, predicted)
    tiny = NONE_LEFT * max(sizes)
    order = sorted(range(len(sizes)), key=lambda i: (arrivals[i], i), reverse=True)
    attained = np.zeros(len(sizes))
    ends = np.full(len(sizes), np.nan)
    here: list[int] = []
    now = 0.0
    while here or order:
        if not here:
            now = max(now, arrivals[order[-1]])
        while order and arrivals[order[-1]] <= now:
            here.append(order.pop())
        running = [
            here[k]
            for k in turn([QueuedJob(attained=float(attained[i]), predicted=predicted[i]) for i in here])
        ]
        step = _until_next(running, here, attained, sizes, predicted) * len(running)
        if order:
            step = min(step, arrivals[order[-1]] - now)
        attained[running] += step / len(running)
        now += step
        for i in running:
            guess = predicted[i]
            if guess is not None and abs(attained[i] - guess) <= tiny:
                attained[i] = max(attained[i], guess)
            if attained[i] >= sizes[i] - tiny:
                ends[i] = now
                here.remove(i)
    return ends


def _until_next(
    running: Sequence[int],
    here: Sequence[int],
    attained: np.ndarray,
    sizes: Sequence[float],
    predicted: Sequence[float | None],
) -> float:
    """Work of each running job until one ends, outlives its prediction, or a predicted job's turn comes."""
    step = min(sizes[i] - attained[i] for i in running)
    alone = predicted[running[0]]
    if alone is not None and attained[running[0]] < alone:
        return float(min(step, alone - attained[running[0]]))
    least = min(attained[i] for i in running)
    known = [g - attained[i] for i in here if (g := predicted[i]) is not None and attained[i] < g]
    return float(min(step, min(known) - least)) if known else float(step)


def _require_sound(
    arrivals: Sequence[float], sizes: Sequence[float], predicted: Sequence[float | None]
) -> None:
    wrong = [x for x in (*sizes, *(p for p in predicted if p is not None)) if not x > 0]
    if not len(arrivals) == len(sizes) == len(predicted) > 0 or wrong:
        raise SettingsError(
            f"{len(arrivals)} arrivals, {len(sizes)} sizes, {len(predicted)} predictions, {len(wrong)} not positive",
            expected="the same number of each, at least one, and positive sizes",
        )


def partly_known(
    sizes: Sequence[float], *, share: float, error: float, rng: np.random.Generator
) -> list[float | None]:
    """Predictions of a random ``share`` of the sizes, each wrong by a lognormal factor of sigma ``error``."""
    known = rng.permutation(len(sizes)) < round(share * len(sizes))
    factor = np.exp(error * rng.standard_normal(len(sizes)))
    return [float(s * f) if k else None for s, f, k in zip(sizes, factor, known, strict=True)]


# ---
# A goodput scheduler after Sia (Jayaram Subramanya et al., SOSP 2023), on one type of GPU, with its published constants
# (M9.5).
#
# Its program: at most one configuration a job, within the GPUs there are, at least cost; exact table and integer program.


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What one job may be given: the cost of nothing, and for every option its ``gpus`` and its cost."""

    nothing: float
    gpus: tuple[int, ...]
    cost: tuple[float, ...]


def cost_of(choices: Sequence[Choice], chosen: Sequence[int | None]) -> float:
    """The objective of a choice: an option's index for each job, None for nothing."""
    return sum(
        choice.nothing if option is None else choice.cost[option]
        for choice, option in zip(choices, chosen, strict=True)
    )


def choose(choices: Sequence[Choice], gpus: int) -> list[int | None]:
    """The least costly choice that holds at most ``gpus`` GPUs, exact (a multiple-choice knapsack by dynamic programming).

    Minimises sum_j c_j(option of j) (M9.5); O(jobs x options x gpus). Of equals the one with the earlier option wins, nothing last.
    Raises `SettingsError` for a negative number of GPUs.
    """
    if gpus < 0:
        raise SettingsError(f"{gpus} GPUs to give out", expected="zero or more")
    alone = [_cheapest(choice, gpus) for choice in choices]
    if sum(c.gpus[o] for c, o in zip(choices, alone, strict=True) if o is not None) <= gpus:
        return alone  # every job has its best
    best = np.zeros(gpus + 1)
    picks = np.empty((len(choices), gpus + 1), dtype=np.int64)
    for j, choice in enumerate(choices):
        table = np.full((len(choice.gpus) + 1, gpus + 1), np.inf)
        for o, (width, cost) in enumerate(zip(choice.gpus, choice.cost, strict=True)):
            if width <= gpus:
                table[o, width:] = best[: gpus + 1 - width] + cost
        table[-1] = best + choice.nothing
        picks[j] = table.argmin(axis=0)
        best = table[picks[j], np.arange(gpus + 1)]
    return _walk_back(choices, picks, gpus)


def _cheapest(choice: Choice, gpus: int) -> int | None:
    """The best option of a job that has the cluster for itself."""
    fitting = [
        (cost, o)
        for o, (width, cost) in enumerate(zip(choice.gpus, choice.cost, strict=True))
        if width <= gpus
    ]
    best = min(fitting, default=(np.inf, -1))
    return best[1] if best[0] <= choice.nothing else None


def _walk_back(choices: Sequence[Choice], picks: np.ndarray, gpus: int) -> list[int | None]:
    chosen: list[int | None] = [None] * len(choices)
    room = gpus
    for j in range(len(choices) - 1, -1, -1):
        option = int(picks[j, room])
        if option < len(choices[j].gpus):
            chosen[j] = option
            room -= choices[j].gpus[option]
    return chosen


def choice_model(choices: Sequence[Choice], gpus: int) -> Any:
    """The same program in Pyomo: minimise sum x_jo c_jo + sum_j (1 - sum_o x_jo) nothing_j, one option a job, capacity (M9.5).

    Solve it with `optimization.window.solver.solve` and read it with `chosen_options`; it is the reference of `choose`.
    """
    import pyomo.environ as pyo

    model = pyo.ConcreteModel()
    pairs = [(j, o) for j, choice in enumerate(choices) for o in range(len(choice.gpus))]
    model.take = pyo.Var(pairs, domain=pyo.Binary)
    own: Mapping[int, list[Any]] = {
        j: [model.take[j, o] for o in range(len(choice.gpus))] for j, choice in enumerate(choices)
    }
    model.one = pyo.Constraint([j for j in own if own[j]], rule=lambda _, j: sum(own[j]) <= 1)
    if pairs:
        model.room = pyo.Constraint(expr=sum(choices[j].gpus[o] * model.take[j, o] for j, o in pairs) <= gpus)
    model.cost = pyo.Objective(
        expr=sum(c.nothing for c in choices)
        + sum((choices[j].cost[o] - choices[j].nothing) * model.take[j, o] for j, o in pairs),
        sense=pyo.minimize,
    )
    return model


def chosen_options(model: Any, choices: Sequence[Choice]) -> list[int | None]:
    """The option of each job in a solved `choice_model`."""
    return [
        next((o for o in range(len(choice.gpus)) if model.take[j, o].value > 0.5), None)
        for j, choice in enumerate(choices)
    ]


#: The cost of an option whose goodput after a restart is nothing: above that of running nothing, so that it is never taken.
NEVER = 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sia:
    """Every round the program min sum_j [ (r G_jk / G_j,min)^p + lambda_a |x - x_prev|_1 ] + lambda_n (jobs given nothing).

    G_jk is the believed rate of job j on k GPUs, r the restart factor max(age - restarts x 30 s, 0) / (age + 30 s) where the
    option is not the one held, p < 0 (fairness). Rounds of 60 s, p = -0.5, lambda_n = 1.1, lambda_a = 0.01, 30 s: published.
    Beliefs (ours, after Sia's bootstrapping): an option that has run is known; the others keep their believed rate times what
    the known option nearest in GPUs showed over its own. A believed rate proportional to GPUs is Sia's first guess, perfect
    scaling. An option that failed is never taken again, nor one believed to fail while another is left (ours: Sia knows no
    failures). Solved exactly by `choose`.
    """

    round_s: float = 60.0
    power: float = -0.5
    nothing: float = 1.1
    change: float = 0.01
    restart_s: float = 30.0

    @property
    def name(self) -> str:
        """Name in tables."""
        return "Sia-like"

    def decide(self, now_s: float, jobs: Sequence[Active], cluster: Cluster) -> Mapping[int, int]:
        """The attempts that the program of this round chooses (`Scheduler.decide`)."""
        options = [options_of(active, cluster) for active in jobs]
        choices = [self.choice(now_s, active, tried) for active, tried in zip(jobs, options, strict=True)]
        chosen = choose(choices, cluster.gpus)
        return {
            active.number: list(tried)[option]
            for active, tried, option in zip(jobs, options, chosen, strict=True)
            if option is not None
        }

    def choice(self, now_s: float, active: Active, options: Mapping[int, float]) -> Choice:
        """One job's part of the program; ``options`` maps its attempts to their believed rates."""
        least = min(options.values())
        age = now_s - active.job.arrival_s
        factor = max(age - active.restarts * self.restart_s, 0.0) / (age + self.restart_s)
        held = active.running
        cost = []
        for attempt, rate in options.items():
            goodput = rate / least * (factor if held is not None and attempt != held else 1.0)
            changed = (held is not None) + 1 if attempt != held else 0
            cost.append((goodput**self.power if goodput > 0 else NEVER) + self.change * changed)
        return Choice(
            nothing=self.nothing + (self.change if held is not None else 0.0),
            gpus=tuple(active.job.attempts[attempt].gpus for attempt in options),
            cost=tuple(cost),
        )


def options_of(active: Active, cluster: Cluster) -> dict[int, float]:
    """Attempt -> believed rate: for every number of GPUs the first attempt that has not failed and is not believed to.

    Where all that are left are believed to fail they are options too, as if they scaled perfectly.
    """
    first: dict[int, int] = {}
    doubtful: dict[int, int] = {}
    for i, attempt in enumerate(active.job.attempts):
        if i not in active.failed and attempt.gpus <= cluster.gpus_per_node:
            (first if attempt.believed > 0 else doubtful).setdefault(attempt.gpus, i)
    if not first:
        return {i: float(gpus) for gpus, i in doubtful.items()}
    return {i: believed_rate(active, i) for i in first.values()}


def believed_rate(active: Active, i: int) -> float:
    """What was observed of an attempt, else its believed rate times observed over believed of the observed one nearest in GPUs."""
    attempts, seen = active.job.attempts, active.observed
    if i in seen:
        return seen[i]
    known = [k for k in seen if attempts[k].believed > 0]
    if not known:
        return attempts[i].believed
    near = min(known, key=lambda k: (abs(attempts[k].gpus - attempts[i].gpus), -k))
    return attempts[i].believed * seen[near] / attempts[near].believed
