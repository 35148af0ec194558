"""Sia's program: at most one configuration a job, within the GPUs there are, at least cost; exact table and integer program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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

    Solve it with `optimization.solver.solve` and read it with `chosen_options`; it is the reference of `choose`.
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
