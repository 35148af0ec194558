"""Schedulers of a shared cluster (M9.5), all of which implement `slackwater.studies.cluster.simulation.Scheduler`.

The schedulers are first in, first out; an order for partially predicted job sizes; and a Sia-like scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from slackwater.studies.cluster.simulation import Active, Cluster, fits
from slackwater.warehouse.errors import SettingsError

# ---
# First in, first out with head-of-line blocking: no job starts before an earlier arrival has started (M9.5).


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """Scheduler that starts jobs in order of arrival, without preemption.

    Each job uses the first of its attempts that has not failed. A job whose attempt failed retains its place in the queue,
    ahead of all later arrivals. This favours wrong configurations: a user who resubmits a job joins the end of the queue.
    """

    round_s: Final[None] = None

    @property
    def name(self) -> str:
        """Name in tables."""
        return "FIFO"

    def decide(self, now_s: float, jobs: Sequence[Active], cluster: Cluster) -> Mapping[int, int]:
        """Return all running jobs and the longest head of the queue that fits (`Scheduler.decide`)."""
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
    """Return the first attempt of a job that has not failed and fits on a node."""
    return next(
        i
        for i, attempt in enumerate(active.job.attempts)
        if i not in active.failed and attempt.gpus <= cluster.gpus_per_node
    )


# ---
# Job order when only some sizes are predicted (M10), on a single machine and, in rounds, on the cluster.
#
# Predicted jobs run shortest first, the others in round robin. The setting is that of "Non-clairvoyant scheduling with
# partial predictions" (ICML 2024): preemption is free, the objective is the sum of completion times, and B of n sizes are
# predicted. The rule is ours, in the spirit of the paper; we do not claim the paper's bounds for it.

#: Factor on the index of a running job, so that jobs with nearly equal indices do not preempt each other.
STICKINESS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialOrder:
    """Scheduler that takes jobs in the order of their index each round, while GPUs are free.

    Each job uses the first attempt that has not failed. The index of a predicted job is its predicted remaining time on that
    attempt. The index of an unpredicted job, or of a job that has exceeded its prediction, is the time it has run (least
    attained service first, which is round robin among simultaneous arrivals). The index of a running job is halved. Decisions
    are made in rounds because a change costs a restart here (ours).
    """

    round_s: float = 300.0

    @property
    def name(self) -> str:
        """Name in tables."""
        return "partial predictions"

    def decide(self, now_s: float, jobs: Sequence[Active], cluster: Cluster) -> Mapping[int, int]:
        """Return the jobs of least index that fit (`Scheduler.decide`)."""
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
    """Return the index of a job in seconds; jobs of lower index run earlier."""
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


#: Work below this share of the largest size counts as zero: it is rounding error of sums.
NONE_LEFT = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """State of a job for `turn`: the work done so far and the predicted size, None without a prediction."""

    attained: float
    predicted: float | None

    @property
    def known(self) -> bool:
        """Whether the prediction is still usable: a job that has exceeded its prediction counts as unpredicted."""
        return self.predicted is not None and self.attained < self.predicted


def turn(standings: Sequence[QueuedJob]) -> list[int]:
    """Return the positions of the jobs that share the machine now: a single predicted job, or all unpredicted jobs (round robin).

    The index of a predicted job is its predicted remaining work. The index of the group of unpredicted jobs is the least work
    that any of them has received: a job that has received x units is expected to need about x more. The least index runs; ties
    go to a predicted job, then to the earlier position. With all sizes predicted this is shortest predicted remaining time
    first; with none predicted it is round robin.

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
    """Return the completion time of each job on a machine of speed 1 under `turn`, shape (jobs,).

    The result is exact; jobs in round robin share the machine continuously. Raises `SettingsError` unless the three sequences
    have equal length and all sizes and predictions are positive.
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
    """Return the work of each running job until a job ends, exceeds its prediction, or a predicted job takes over."""
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
    """Return predictions for a random ``share`` of the sizes, each multiplied by a lognormal error factor of sigma ``error``."""
    known = rng.permutation(len(sizes)) < round(share * len(sizes))
    factor = np.exp(error * rng.standard_normal(len(sizes)))
    return [float(s * f) if k else None for s, f, k in zip(sizes, factor, known, strict=True)]


# ---
# A goodput scheduler after Sia (Jayaram Subramanya et al., SOSP 2023), on a single type of GPU, with the published constants
# (M9.5).
#
# Its program assigns at most one configuration to each job, within the number of GPUs, at least cost. `choose` solves it
# exactly with a table; `choice_model` is the integer program.


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Options of a job: the cost of no GPUs, and for every option the number of GPUs and the cost."""

    nothing: float
    gpus: tuple[int, ...]
    cost: tuple[float, ...]


def cost_of(choices: Sequence[Choice], chosen: Sequence[int | None]) -> float:
    """Return the objective of a choice: an option's index for each job, None for no GPUs."""
    return sum(
        choice.nothing if option is None else choice.cost[option]
        for choice, option in zip(choices, chosen, strict=True)
    )


def choose(choices: Sequence[Choice], gpus: int) -> list[int | None]:
    """Return the choice of least cost that uses at most ``gpus`` GPUs (multiple-choice knapsack by dynamic programming, exact).

    Minimises sum_j c_j(option of j) (M9.5) in O(jobs x options x gpus). Ties go to the earlier option; running nothing comes last.
    Raises `SettingsError` for a negative number of GPUs.
    """
    if gpus < 0:
        raise SettingsError(f"{gpus} GPUs to give out", expected="zero or more")
    alone = [_cheapest(choice, gpus) for choice in choices]
    if sum(c.gpus[o] for c, o in zip(choices, alone, strict=True) if o is not None) <= gpus:
        return alone  # the separate optima already fit
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
    """Return the best option of a job that is alone on the cluster."""
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
    """Return the same program in Pyomo: minimise sum x_jo c_jo + sum_j (1 - sum_o x_jo) nothing_j (M9.5).

    The constraints limit each job to one option and the sum of GPUs to ``gpus``. Solve it with
    `slackwater.optimization.window.solver.solve`
    and read it with `chosen_options`. It is the reference for tests of `choose`.
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
    """Return the option of each job in a solved `choice_model`."""
    return [
        next((o for o in range(len(choice.gpus)) if model.take[j, o].value > 0.5), None)
        for j, choice in enumerate(choices)
    ]


#: Cost of an option whose goodput after a restart is zero: above the cost of running nothing, so that it is never chosen.
NEVER = 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sia:
    """Scheduler that minimises sum_j [ (r G_jk / G_j,min)^p + lambda_a |x - x_prev|_1 ] + lambda_n (jobs without GPUs) each round.

    G_jk is the expected rate of job j on k GPUs. The restart factor r is max(age - restarts x 30 s, 0) / (age + 30 s) for any
    option other than the running attempt. p < 0 sets fairness. Published constants: rounds of 60 s, p = -0.5, lambda_n = 1.1,
    lambda_a = 0.01, 30 s.

    Expected rates (ours, after Sia's bootstrapping): an option that has run has its observed rate; the other options have their
    expected rate times the ratio observed / expected of the observed option nearest in GPUs. Expected rates proportional to the
    number of GPUs are Sia's first guess, perfect scaling. An option that failed is never taken again, nor an option expected to
    fail while another is left (ours: Sia does not model failures). Solved exactly by `choose`.
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
        """Return the attempts chosen by the program of this round (`Scheduler.decide`)."""
        options = [options_of(active, cluster) for active in jobs]
        choices = [self.choice(now_s, active, tried) for active, tried in zip(jobs, options, strict=True)]
        chosen = choose(choices, cluster.gpus)
        return {
            active.number: list(tried)[option]
            for active, tried, option in zip(jobs, options, chosen, strict=True)
            if option is not None
        }

    def choice(self, now_s: float, active: Active, options: Mapping[int, float]) -> Choice:
        """Return the options of a single job with their costs; ``options`` maps its attempts to their expected rates."""
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
    """Return attempt -> expected rate: for every number of GPUs the first attempt that has not failed and is not expected to fail.

    If all remaining attempts are expected to fail, the first for each number of GPUs is an option, with perfect scaling.
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
    """Return the observed rate of an attempt, else its expected rate corrected by the observed attempt nearest in GPUs.

    The correction factor is that attempt's observed rate divided by its expected rate.
    """
    attempts, seen = active.job.attempts, active.observed
    if i in seen:
        return seen[i]
    known = [k for k in seen if attempts[k].believed > 0]
    if not known:
        return attempts[i].believed
    near = min(known, key=lambda k: (abs(attempts[k].gpus - attempts[i].gpus), -k))
    return attempts[i].believed * seen[near] / attempts[near].believed
