"""``slackwater experiment selection``: E3, learn which policy to trust over a thousand jobs (M5, M7)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from flows.command import Answer
from flows.command.progress import progress, say
from flows.experiments.command import StudyOptions
from flows.experiments.material import Tapes, read_tapes
from flows.experiments.material_scenarios import make_scenarios
from flows.experiments.pool.study import FAST_PLANNER, fast_pool
from flows.experiments.runner import PoolRun, run_pool
from flows.experiments.selection.answer import selection_answer, selection_blocks
from flows.experiments.selection.bandits import FAST_SEEDS, SEEDS, BanditResult, bandits_on
from optimization.policies.contract import Policy
from optimization.policies.pool import load_pool
from optimization.selection.contract import Learner, weigh
from optimization.selection.learners import LEARNERS
from optimization.selection.orderings import Order, abundance, orders_of
from optimization.selection.regret import LeaderChange, why_leader_changed
from optimization.selection.rounds import SelectionSummary, select_over, train_learners
from optimization.selection.weights import attainable_bounds, normalised
from optimization.trials.scenarios import Grid, Scenario

#: Jobs for each cell of the grid, on the test and on the training part: 54 cells, so 1,080 and 540.
JOBS_A_CELL, TRAIN_A_CELL = 20, 10
FAST_JOBS_A_CELL, FAST_TRAIN_A_CELL = 2, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """A pool's run as rounds of the selection.

    ``raw`` is in units of each job's OD-only cost; ``wide`` and ``tight`` are the same utilities in the bounds of M5.2 and in
    `attainable_bounds`, in [0, 1]; all of shape (jobs, policies). ``kinds`` is each job's `abundance`.
    """

    names: tuple[str, ...]
    jobs: tuple[str, ...]
    raw: np.ndarray
    wide: np.ndarray
    tight: np.ndarray
    kinds: np.ndarray

    def ordered(self, order: Order) -> Rounds:
        """The same jobs in another order."""
        at = order.places
        return Rounds(
            names=self.names,
            jobs=tuple(self.jobs[i] for i in at),
            raw=self.raw[at],
            wide=self.wide[at],
            tight=self.tight[at],
            kinds=self.kinds[at],
        )

    def only(self, names: Sequence[str]) -> Rounds:
        """The same jobs with some of the policies."""
        at = [self.names.index(name) for name in names]
        return replace(
            self, names=tuple(names), raw=self.raw[:, at], wide=self.wide[:, at], tight=self.tight[:, at]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """All learners on one order of the jobs; the market changed after the rounds ``cuts``."""

    rounds: Rounds
    cuts: tuple[int, ...]
    summaries: dict[str, SelectionSummary]
    changes: tuple[LeaderChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionResult:
    """E3: what every learner made of the training jobs, which one that makes the choice, and the test jobs in each order.

    ``tight`` is the order in which they came again, learned from utilities in the tighter bounds. ``bandits`` see less.
    """

    trained: pd.DataFrame
    chosen: str
    played: dict[str, Played]
    tight: dict[str, SelectionSummary]
    bandits: BanditResult


def selection_study(study: StudyOptions) -> Answer:
    """Learn from the jobs of a folder's test part with every learner, in random order and through switches of regime."""
    from flows.experiments.selection.report import selection_page

    seed, fast = study.seed, study.fast
    tapes = read_tapes(study.data)
    for note in tapes.notes:
        say(note)
    policies = fast_pool(load_pool()) if fast else load_pool()
    per_cell = (FAST_TRAIN_A_CELL, FAST_JOBS_A_CELL) if fast else (TRAIN_A_CELL, JOBS_A_CELL)
    planner = FAST_PLANNER if fast else None
    train, test = (
        _rounds_of_part(tapes, policies, part=part, per_cell=jobs, seed=seed, planner=planner)
        for part, jobs in zip(("train", "test"), per_cell, strict=True)
    )
    result = selection_experiment(train, test, seed=seed, bandit_seeds=FAST_SEEDS if fast else SEEDS)
    value = selection_answer(result, data=str(study.data), seed=seed, fast=fast)
    return Answer(
        title="Selection (E3)",
        value=value,
        blocks=selection_blocks(value),
        page=lambda: selection_page(result, value),
    )


def _rounds_of_part(
    tapes: Tapes,
    policies: Sequence[Policy[Any]],
    *,
    part: Any,
    per_cell: int,
    seed: int,
    planner: str | None = None,
) -> Rounds:
    """Draw the jobs of one part and replay the pool on them, on all cores."""
    with progress(f"forecasts for the {part} jobs") as tell:
        scenarios = make_scenarios(
            tapes, grid=Grid(), part=part, per_cell=per_cell, seed=seed, planner=planner, progress=tell
        )
    with progress(f"{part} jobs") as tell:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        run = run_pool(scenarios, policies, processes=cores, progress=tell)
    return rounds_of(run, scenarios)


def rounds_of(run: PoolRun, scenarios: Sequence[Scenario]) -> Rounds:
    """A pool's run on ``scenarios`` as rounds, in their order."""
    tight = [
        normalised(
            utilities,
            attainable_bounds(
                one.job, on_demand_usd=one.window.on_demand_usd, slot_hours=one.window.slot_hours
            ),
        )
        for one, utilities in zip(scenarios, run.utility, strict=True)
    ]
    return Rounds(
        names=run.policies,
        jobs=tuple(run.jobs["job"]),
        raw=run.relative,
        wide=run.normalised,
        tight=np.array(tight),
        kinds=np.array([abundance(one.job, one.window) for one in scenarios]),
    )


def selection_experiment(
    train: Rounds,
    test: Rounds,
    *,
    seed: int,
    learners: Mapping[str, Learner[Any]] | None = None,
    bandit_seeds: int = FAST_SEEDS,
) -> SelectionResult:
    """Choose a learner on the training jobs, then play all of them, and the bandits, on the test jobs in every order.

    The choice is by the mean utility over the same orders of the training jobs: nobody knows beforehand which
    it will be. Each bandit draws with ``bandit_seeds`` seeds after ``seed``.
    """
    known = LEARNERS if learners is None else learners
    trained = train_learners(
        train.wide, train.raw, train.names, orders=orders_of(train.raw, train.kinds), learners=known
    )
    chosen = str(trained["learner"].iloc[0])
    orders = orders_of(test.raw, test.kinds)
    played = {
        name: _played(test.ordered(order), order.cuts, known, chosen, seed) for name, order in orders.items()
    }
    return SelectionResult(
        trained=trained,
        chosen=chosen,
        played=played,
        tight={
            name: select_over(test.tight, test.raw, test.names, seed=seed, learner=learner)
            for name, learner in known.items()
        },
        bandits=bandits_on(
            {name: (one.rounds, one.cuts) for name, one in played.items()},
            {name: one.summaries[chosen] for name, one in played.items()},
            train,
            seeds=range(seed, seed + bandit_seeds),
            few_summary=lambda few: select_over(
                few.wide, few.raw, few.names, seed=seed, learner=known[chosen]
            ),
        ),
    )


def _played(
    rounds: Rounds, cuts: tuple[int, ...], learners: Mapping[str, Learner[Any]], chosen: str, seed: int
) -> Played:
    return Played(
        rounds=rounds,
        cuts=cuts,
        summaries={
            name: select_over(rounds.wide, rounds.raw, rounds.names, seed=seed, learner=learner, cuts=cuts)
            for name, learner in learners.items()
        },
        changes=tuple(_changes(rounds, learners[chosen])),
    )


def _changes(rounds: Rounds, learner: Learner[Any]) -> list[LeaderChange]:
    ledger = pd.DataFrame(
        {
            "job": np.repeat(np.array(rounds.jobs, dtype=object), len(rounds.names)),
            "policy": np.tile(np.array(rounds.names, dtype=object), len(rounds.jobs)),
            "normalised": rounds.wide.ravel(),
        }
    )
    history = weigh(learner, rounds.names, rounds.wide)
    return why_leader_changed(ledger, history, memory=learner.memory)
