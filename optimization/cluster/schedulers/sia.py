"""A goodput scheduler after Sia (Jayaram Subramanya et al., SOSP 2023), on one type of GPU, with its published constants
(M9.5).

Its program: at most one configuration a job, within the GPUs there are, at least cost; exact table and integer program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimization.cluster.simulation import Active, Cluster
from warehouse.errors import SettingsError


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
