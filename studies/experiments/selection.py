"""``slackwater experiment selection``: E3, learn which policy to trust over a thousand jobs (M5, M7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slackwater.flows.accuracy.units import cores
from slackwater.flows.command import Answer, progress, say
from slackwater.flows.show.blocks import Block, Figure, Figures, Notes, Section, numbers
from slackwater.flows.show.charts import Axis, lines
from slackwater.optimization.job.definition import Job, rates
from slackwater.optimization.kernels.rules import least_efficiency
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.pool import load_pool
from slackwater.optimization.selection.contract import Learner, normalise, weigh
from slackwater.optimization.selection.learned import LeaderChange, why_leader_changed
from slackwater.optimization.selection.learners import DEFAULT_LEARNER
from slackwater.optimization.selection.prior import MeasuredWorld, read_prior
from slackwater.studies.experiments.charts import area
from slackwater.studies.experiments.material import PoolRun, Tapes, make_scenarios, read_tapes, run_pool
from slackwater.studies.experiments.pool import FAST_PLANNER, fast_pool
from slackwater.studies.experiments.study import StudyOptions, joins, quick_look
from slackwater.studies.learners import BANDITS, INFORMED
from slackwater.studies.rounds import (
    BanditRuns,
    JobOrder,
    Realised,
    SelectionSummary,
    abundance,
    orders_of,
    select_over,
    select_with_bandit,
    train_learners,
)
from slackwater.studies.trials.scenarios import Grid, Scenario

#: Jobs for each cell of the grid, in the test and the training part: 54 cells, so 1,080 and 540 jobs.
JOBS_A_CELL, TRAIN_A_CELL = 20, 10
FAST_JOBS_A_CELL, FAST_TRAIN_A_CELL = 2, 1
#: Cells of single-instance jobs, which a prior also learns from.
SINGLE = Grid(n_maxes=(1,))
#: Number of seeds for the bandits' draws, and with ``--fast``.
SEEDS, FAST_SEEDS = 8, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRounds:
    """Run of a pool as rounds of the selection.

    ``raw`` is in units of each job's OD-only cost; ``wide`` and ``tight`` are the same utilities normalised to [0, 1] by the
    bounds of M5.2 and by `attainable_bounds`; all of shape (jobs, policies). ``kinds`` is each job's `abundance`, ``sources`` the
    label of the source of its availability.
    """

    names: tuple[str, ...]
    jobs: tuple[str, ...]
    raw: np.ndarray
    wide: np.ndarray
    tight: np.ndarray
    kinds: np.ndarray
    sources: tuple[str, ...]

    def ordered(self, order: JobOrder) -> PoolRounds:
        """Return the same jobs in another order."""
        at = order.places
        return PoolRounds(
            names=self.names,
            jobs=tuple(self.jobs[i] for i in at),
            raw=self.raw[at],
            wide=self.wide[at],
            tight=self.tight[at],
            kinds=self.kinds[at],
            sources=tuple(self.sources[i] for i in at),
        )

    def only(self, names: Sequence[str]) -> PoolRounds:
        """Return the same jobs with some of the policies."""
        at = [self.names.index(name) for name in names]
        return replace(
            self, names=tuple(names), raw=self.raw[:, at], wide=self.wide[:, at], tight=self.tight[:, at]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedOrder:
    """Results of all learners on an order of the jobs; the market changes after the rounds ``cuts``."""

    rounds: PoolRounds
    cuts: tuple[int, ...]
    summaries: dict[str, SelectionSummary]
    changes: tuple[LeaderChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionResult:
    """Result of E3: every learner on the training jobs, the learner chosen by them, and the test jobs in each order.

    ``tight``: the test jobs in drawn order, learned from utilities in the tighter bounds. ``bandits``: learners with partial
    information.
    """

    trained: pd.DataFrame
    chosen: str
    played: dict[str, PlayedOrder]
    tight: dict[str, SelectionSummary]
    bandits: BanditResult


def attainable_bounds(job: Job, *, on_demand_usd: float, slot_hours: float) -> tuple[float, float]:
    """Return tighter bounds of a job's utility, USD, for policies that never pay more than on-demand (ours).

    Upper bound: v. Lower bound: minus the most that can be spent up to d, because the ending after
    d has a utility of at least 0 (M2.6). The most that can be spent is d slots of N_max and, if a
    size change lasts less than a slot, no more than p_o L / mu max_n n / H(n) for the work, mu
    being the least efficiency, plus one slot of N_max in which the job finishes.
    """
    slot = job.n_max * on_demand_usd * slot_hours
    most = job.deadline_slots * slot
    slowest = min(least_efficiency(job.restart, n) for n in range(job.n_min, job.n_max + 1))
    if slowest > 0.0:
        hourly = rates(job.throughput, job.n_max)
        dearest = max(n / float(hourly[n]) for n in range(job.n_min, job.n_max + 1))
        most = min(most, on_demand_usd * job.workload * dearest / slowest + slot)
    return -most, job.value


def selection_study(study: StudyOptions, *, prior: Path | None = None) -> Answer:
    """Run every learner on the jobs of a folder's test part, in random order and through switches of regime.

    ``prior``: file for the utilities of the policies on the training part and on single-instance jobs, by source (M5.6).
    """
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
    if prior is not None:
        ones = _rounds_of_part(
            read_tapes(study.data, single=True), policies, part="train", per_cell=per_cell[0], seed=seed,
            planner=planner, grid=SINGLE,
        )  # fmt: skip
        update_prior(prior, [train, ones], command=f"experiment selection --data DIR --seed {seed}")
        say(f"prior written to {prior}")
    result = selection_experiment(train, test, seed=seed, bandit_seeds=FAST_SEEDS if fast else SEEDS)
    return selection_report(result, selection_answer(result, data=str(study.data), seed=seed, fast=fast))


def _rounds_of_part(
    tapes: Tapes,
    policies: Sequence[Policy[Any]],
    *,
    part: Any,
    per_cell: int,
    seed: int,
    planner: str | None = None,
    grid: Grid | None = None,
) -> PoolRounds:
    """Draw the jobs of a part and replay the pool on them, on all cores."""
    with progress(f"forecasts for the {part} jobs", lines=True) as tell:
        scenarios = make_scenarios(
            tapes,
            grid=grid or Grid(),
            part=part,
            per_cell=per_cell,
            seed=seed,
            planner=planner,
            progress=tell,
        )
    with progress(f"{part} jobs", lines=True) as tell:
        run = run_pool(scenarios, policies, processes=cores(), progress=tell)
    return rounds_of(run, scenarios)


def update_prior(path: Path, parts: Sequence[PoolRounds], *, command: str) -> None:
    """Write the mean share of every policy by source of availability; entries that name none of these policies stay (M5.6)."""
    names = set(parts[0].names)
    kept = [one for one in read_prior(path) if not names & set(one.share)] if path.exists() else []
    made = [
        MeasuredWorld(
            source=source,
            command=command,
            jobs=int(own.sum()),
            share=dict(zip(part.names, part.wide[own].mean(axis=0).tolist(), strict=True)),
        )
        for part in parts
        for source in sorted(set(part.sources))
        for own in [np.array([one == source for one in part.sources])]
    ]
    write_prior(path, [*made, *kept])


def rounds_of(run: PoolRun, scenarios: Sequence[Scenario]) -> PoolRounds:
    """Return a pool's run on ``scenarios`` as rounds, in their order."""
    tight = [
        normalise(
            utilities,
            attainable_bounds(
                one.job, on_demand_usd=one.window.on_demand_usd, slot_hours=one.window.slot_hours
            ),
        )
        for one, utilities in zip(scenarios, run.utility, strict=True)
    ]
    return PoolRounds(
        names=run.policies,
        jobs=tuple(run.jobs["job"]),
        raw=run.relative,
        wide=run.normalised,
        tight=np.array(tight),
        kinds=np.array([abundance(one.job, one.window) for one in scenarios]),
        sources=tuple(run.jobs["source"]),
    )


def selection_experiment(
    train: PoolRounds,
    test: PoolRounds,
    *,
    seed: int,
    learners: Mapping[str, Learner[Any]] | None = None,
    bandit_seeds: int = FAST_SEEDS,
) -> SelectionResult:
    """Choose a learner on the training jobs, then run all learners and the bandits on the test jobs in every order.

    The choice uses the mean utility over the same orders of the training jobs, because the order of future jobs is unknown. Each
    bandit runs with ``bandit_seeds`` seeds, from ``seed`` on.
    """
    known = INFORMED if learners is None else learners
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
    rounds: PoolRounds, cuts: tuple[int, ...], learners: Mapping[str, Learner[Any]], chosen: str, seed: int
) -> PlayedOrder:
    return PlayedOrder(
        rounds=rounds,
        cuts=cuts,
        summaries={
            name: select_over(rounds.wide, rounds.raw, rounds.names, seed=seed, learner=learner, cuts=cuts)
            for name, learner in learners.items()
        },
        changes=tuple(_changes(rounds, learners[chosen])),
    )


def _changes(rounds: PoolRounds, learner: Learner[Any]) -> list[LeaderChange]:
    ledger = pd.DataFrame(
        {
            "job": np.repeat(np.array(rounds.jobs, dtype=object), len(rounds.names)),
            "policy": np.tile(np.array(rounds.names, dtype=object), len(rounds.jobs)),
            "normalised": rounds.wide.ravel(),
        }
    )
    history = weigh(learner, rounds.names, rounds.wide)
    return why_leader_changed(ledger, history, memory=learner.memory)


#: Numbers of rounds in curves and weights, of policies with weights, and of leader changes in the result.
TOLD_ROUNDS, TOLD_POLICIES, TOLD_CHANGES = 25, 8, 5
#: Orders with a switch, and their names.
SWITCHES = {"regime_switch": "switch of market", "hostile_switch": "hostile switch"}
#: Share of the best fixed policy that E3 promises for the default learner once the weights have settled.
PROMISED_SHARE = 0.98


def selection_answer(result: SelectionResult, *, data: str, seed: int, fast: bool) -> dict[str, Any]:
    """Return the object of ``experiment selection --json``; utilities in units of each job's OD-only cost."""
    steady = result.played["random_order"]
    rounds = steady.rounds
    answer = {
        "data": data,
        "seed": seed,
        "fast": fast,
        "jobs": len(rounds.jobs),
        "policies": len(rounds.names),
        "learner": result.chosen,
        "default_learner": DEFAULT_LEARNER,
        "training": result.trained.to_dict(orient="records"),
        **{name: order_answer(played, result.chosen) for name, played in result.played.items()},
        "bounds": bounds_answer(steady, result.tight),
        "bandits": bandit_answer(result.bandits),
    }
    return answer | {"findings": findings(answer)}


def order_answer(played: PlayedOrder, chosen: str) -> dict[str, Any]:
    """Return all learners on an order of the jobs, with the weights and leader changes of the chosen learner."""
    some = next(iter(played.summaries.values()))
    return {
        "shifts": some.shifts,
        "switch_after": list(played.cuts),
        "best_fixed": some.best_fixed,
        "best_fixed_utility": some.overall.best_fixed_utility,
        "stretches": [
            {"jobs": part.jobs, "best_fixed": part.best_fixed, "best_fixed_utility": part.best_fixed_utility}
            for part in some.stretches
        ],
        "learners": {name: summary_answer(summary) for name, summary in played.summaries.items()},
        "weights": weights_answer(played.summaries[chosen]),
        "leader_changes": {
            "number": len(played.changes),
            "last": [change.sentence() for change in played.changes[-TOLD_CHANGES:]],
        },
    }


def summary_answer(summary: SelectionSummary) -> dict[str, Any]:
    """Return the utilities of a learner, its regrets with their bounds (null without a proven bound), and the curves."""
    at = told_rounds(len(summary.regret_curve))
    return {
        "sampled_utility": summary.sampled_utility,
        "drawn_utility": summary.overall.drawn,
        "leader_utility": summary.leader_utility,
        "share_of_best_fixed": summary.overall.share,
        "settled": asdict(summary.settled),
        "stretches": [earned(part) for part in summary.stretches],
        "regret": summary.regret,
        "bound": summary.bound,
        "within_bound": summary.within_bound,
        "shifting_regret": float(summary.shifting_regret_curve[-1]),
        "shifting_bound": float(summary.shifting_bound_curve[-1]),
        "within_shifting_bound": bool(
            (summary.shifting_regret_curve <= summary.shifting_bound_curve + 1e-9).all()
        ),
        "curves": {
            "round": [int(k) for k in at],
            "regret": summary.regret_curve[at - 1].tolist(),
            "bound": summary.bound_curve[at - 1].tolist(),
            "shifting_regret": summary.shifting_regret_curve[at - 1].tolist(),
            "shifting_bound": summary.shifting_bound_curve[at - 1].tolist(),
        },
    }


def earned(part: Realised) -> dict[str, Any]:
    """Return the utilities of a learner over a range of rounds."""
    return {
        "sampled": part.sampled,
        "drawn": part.drawn,
        "leader": part.leader,
        "share_of_best_fixed": part.share,
    }


def told_rounds(rounds: int) -> np.ndarray:
    """Return at most `TOLD_ROUNDS` evenly spaced round numbers, including the first and the last."""
    return np.unique(np.linspace(1, rounds, min(rounds, TOLD_ROUNDS)).round().astype(int))


def shown_weights(weights: np.ndarray) -> np.ndarray:
    """Return the columns of the policies with the largest maximum weight, in descending order, at most `TOLD_POLICIES`."""
    return np.argsort(-weights.max(axis=0), kind="stable")[:TOLD_POLICIES]


def weights_answer(summary: SelectionSummary) -> dict[str, Any]:
    """Return the weights over time of the policies with the largest maximum weight, and the sum of all others."""
    at, shown = told_rounds(len(summary.regret_curve)), shown_weights(summary.weights)
    told = summary.weights[at]
    return {
        "after_round": [int(k) for k in at],
        "policies": {summary.names[i]: told[:, i].tolist() for i in shown},
        "others": (1.0 - told[:, shown].sum(axis=1)).clip(0.0).tolist(),
    }


def bounds_answer(played: PlayedOrder, tight: Mapping[str, SelectionSummary]) -> dict[str, Any]:
    """Return the spread of policies within the fixed and the tighter bounds, and each learner's utility share with both."""
    rounds = played.rounds
    return {
        "spread_of_policies": {
            "wide": float(np.median(np.ptp(rounds.wide, axis=1))),
            "attainable": float(np.median(np.ptp(rounds.tight, axis=1))),
        },
        "settled_share_of_best_fixed": {
            name: {"wide": summary.settled.share, "attainable": tight[name].settled.share}
            for name, summary in played.summaries.items()
        },
    }


def findings(answer: dict[str, Any]) -> list[str]:
    """Return sentences computed from the results, favourable or not."""
    chosen, default = answer["learner"], answer["default_learner"]
    own = answer["random_order"]["learners"][chosen]
    settled, spread = own["settled"], answer["bounds"]["spread_of_policies"]
    kept = "kept" if settled["share"] >= PROMISED_SHARE else "NOT kept"
    return [
        f"{chosen} earned most over the orders of the training jobs and is followed below"
        + (", as by default." if chosen == default else f"; the default is {default}."),
        f"After settling, over {settled['jobs']} jobs, it realised {settled['sampled']:.4f} of on-demand cost a job, "
        f"{settled['share']:.4f} of what the best fixed policy ({settled['best_fixed']}) made of the same jobs: the promise of "
        f"{PROMISED_SHARE} is {kept}. One seeded draw a job gave {settled['drawn']:.4f}, "
        f"following the leader {settled['leader']:.4f}.",
        f"Its regret over {answer['jobs']} jobs is {own['regret']:.3f}, its bound {own['bound']:.3f}.",
        *[_switch_finding(answer[order], chosen, name) for order, name in SWITCHES.items()],
        _bound_finding(answer),
        f"In the bounds of M5.2 the policies of a job lie {spread['wide']:.3f} apart (median), in the attainable ones "
        f"{spread['attainable']:.3f}: learners of a fixed rate learn slowly from that, those that need no range do not mind.",
    ]


def _switch_finding(order: dict[str, Any], chosen: str, name: str) -> str:
    if not order["switch_after"]:
        return f"There is no {name} in these jobs: one policy is best on all of them."
    before, after = order["stretches"]
    one = order["learners"][chosen]
    said = (
        f"Through the {name} after job {order['switch_after'][0]} its regret against the best sequence with one change is "
        f"{one['shifting_regret']:.3f}; after the switch it realised {one['stretches'][1]['share_of_best_fixed']:.4f} of what "
        f"{after['best_fixed']}, the best there, made."
    )
    if before["best_fixed"] == after["best_fixed"]:
        said += " That policy is the best before the switch too, so there is little to unlearn."
    return said


def _bound_finding(answer: dict[str, Any]) -> str:
    broken = [
        f"{name} ({order})"
        for order in ("random_order", *SWITCHES)
        for name, one in answer[order]["learners"].items()
        if not (one["within_bound"] and one["within_shifting_bound"])
    ]
    if broken:
        return f"A regret was ABOVE its bound: {', '.join(broken)}."
    return "No learner's regret was above its bound, after any job of any order."


def learner_rows(order: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the learners of an order as table rows, best first."""
    rows = [
        {
            "learner": name,
            "sampled": one["sampled_utility"],
            "leader": one["leader_utility"],
            "settled": one["settled"]["share"],
            "last": one["stretches"][-1]["share_of_best_fixed"],
            "regret": one["regret"],
            "bound": one["bound"],
            "shifting_regret": one["shifting_regret"],
            "shifting_bound": one["shifting_bound"] if np.isfinite(one["shifting_bound"]) else None,
        }
        for name, one in order["learners"].items()
    ]
    return sorted(rows, key=lambda row: -row["sampled"])


ANSWER_COLUMNS = {
    "learner": "learner", "sampled": "utility by weight", "leader": "utility of leader",
    "settled": "settled, of best fixed", "regret": "regret", "bound": "bound",
}  # fmt: skip
SWITCH_COLUMNS = ANSWER_COLUMNS | {
    "last": "after the switch, of best fixed", "shifting_regret": "shifting regret", "shifting_bound": "its bound",
}  # fmt: skip
TRAINING_COLUMNS = {"learner": "learner", "random_order": "random order", **SWITCHES, "mean": "mean"}


# Bandits observe less: the value of replaying the whole pool compared with them (M5.1, M10).

#: Number of policies in the smaller pool: the best on the training part.
FEW = 8
#: Names of the orders in sentences.
ORDER_NAMES = {
    "random_order": "random order",
    "regime_switch": "the switch of market",
    "hostile_switch": "the hostile switch",
}
COLUMNS = {
    "learner": "learner", "random_order": "random order", "regime_switch": "switch of market",
    "hostile_switch": "hostile switch", "few": "few policies, random order", "regret": "regret", "bound": "bound",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BanditResult:
    """Results of every bandit in every order of the jobs, and in random order on the ``few`` policies that were best in training.

    ``summaries``: the learner with full information in the same orders; ``few_summary``: the same on the few policies. ``even``:
    mean utility after settling of a policy drawn at random, by order; ``even_regret``: its regret curve in random order.
    ``spread``: median standard deviation of a policy's utility over jobs; ``gap``: mean difference between two policies' means,
    both in units of on-demand-only cost.
    """

    runs: dict[str, dict[str, BanditRuns]]
    few: tuple[str, ...]
    few_runs: dict[str, BanditRuns]
    summaries: dict[str, SelectionSummary]
    few_summary: SelectionSummary
    even: dict[str, float]
    even_regret: np.ndarray
    spread: float
    gap: float
    seeds: int


def bandits_on(
    orders: Mapping[str, tuple[PoolRounds, Sequence[int]]],
    summaries: Mapping[str, SelectionSummary],
    train: PoolRounds,
    *,
    seeds: Sequence[int],
    few_summary: Any,
) -> BanditResult:
    """Run every bandit of `BANDITS` in every order, once for each seed.

    ``orders`` maps a name to the rounds in that order and the switches; ``summaries`` to the chosen learner's results.
    ``few_summary(rounds)`` returns that learner's result on a smaller pool, chosen by the means on ``train``.
    """
    best = np.argsort(-train.raw.mean(axis=0), kind="stable")[:FEW]
    known = [name for name in (train.names[i] for i in best) if name in orders["random_order"][0].names]
    steady = orders["random_order"][0]
    few = steady.only(known)
    means = steady.raw.mean(axis=0)
    late = len(steady.jobs) - next(iter(summaries.values())).settled.jobs
    regret = steady.wide.cumsum(axis=0).max(axis=1) - steady.wide.mean(axis=1).cumsum()
    return BanditResult(
        runs={
            order: {name: _play(rounds, learner, seeds, cuts) for name, learner in BANDITS.items()}
            for order, (rounds, cuts) in orders.items()
        },
        few=tuple(known),
        few_runs={name: _play(few, learner, seeds, ()) for name, learner in BANDITS.items()},
        summaries=dict(summaries),
        few_summary=few_summary(few),
        even={order: float(rounds.raw[late:].mean()) for order, (rounds, _) in orders.items()},
        even_regret=np.asarray(regret),
        spread=float(np.median(steady.raw.std(axis=0))),
        gap=float(np.abs(means[:, None] - means[None, :]).mean()),
        seeds=len(seeds),
    )


def _play(rounds: PoolRounds, learner: Any, seeds: Sequence[int], cuts: Sequence[int]) -> BanditRuns:
    return select_with_bandit(rounds.wide, rounds.raw, rounds.names, learner=learner, seeds=seeds, cuts=cuts)


def bandit_answer(result: BanditResult) -> dict[str, Any]:
    """Return the object under ``bandits`` of the result of E3: utilities after settling, in units of on-demand-only cost."""
    answer = {
        "seeds": result.seeds,
        "few_policies": list(result.few),
        "full_information": {
            "learner": next(iter(result.summaries.values())).learner,
            **{order: one.settled.sampled for order, one in result.summaries.items()},
            "few": result.few_summary.settled.sampled,
        },
        "drawn_at_random": dict(result.even),
        "spread_over_jobs": result.spread,
        "gap_between_policies": result.gap,
        "bandits": {name: _bandit(result, name) for name in result.few_runs},
    }
    return answer | {"findings": bandit_findings(answer)}


def _bandit(result: BanditResult, name: str) -> dict[str, Any]:
    steady = result.runs["random_order"][name]
    own: dict[str, Any] = {}
    for order, runs in result.runs.items():
        one = runs[name]
        own[order] = {
            "settled_utility": one.settled_utility,
            "settled_interval": list(one.settled_interval),
            "share_of_best_fixed": one.settled_share,
            "stretches": list(one.stretch_utilities),
            "regret": float(one.regret_curve[-1]),
            "bound": _finite(one.bound_curve[-1]),
            "shifting_regret": float(one.shifting_regret_curve[-1]),
            "shifting_bound": _finite(one.shifting_bound_curve[-1]),
            "full_information_is_worth": result.summaries[order].settled.sampled - one.settled_utility,
        }
    bound = float(steady.bound_curve[-1])
    return own | {
        "few": {"settled_utility": result.few_runs[name].settled_utility},
        "bound_says_something": bool(bound < len(steady.bound_curve)),
        "within_bounds": bool(
            all(
                (one.regret_curve <= one.bound_curve + 1e-9).all()
                and (one.shifting_regret_curve <= one.shifting_bound_curve + 1e-9).all()
                for one in (runs[name] for runs in result.runs.values())
            )
        ),
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def bandit_findings(answer: Mapping[str, Any]) -> list[str]:
    """Return sentences on the value of full information, the reasons why bandits are slow, and each bandit."""
    full, even, bandits = answer["full_information"], answer["drawn_at_random"], answer["bandits"]
    best = max(bandits, key=lambda name: bandits[name]["random_order"]["settled_utility"])
    earned = bandits[best]["random_order"]["settled_utility"]
    few = max(one["few"]["settled_utility"] for one in bandits.values())
    plays = 2.0 * (1.96 * answer["spread_over_jobs"] / max(answer["gap_between_policies"], 1e-12)) ** 2
    silent = [name for name, one in bandits.items() if not one["bound_says_something"]]
    return [
        f"Replaying the whole pool after each job is worth {full['random_order'] - earned:.4f} of a job's on-demand-only cost "
        f"in random order: {full['learner']} makes {full['random_order']:.4f} after settling, {best}, the best of those that see "
        f"only the policy they played, {earned:.4f}; drawing at random makes {even['random_order']:.4f}.",
        f"Why: a policy's utility differs from job to job by {answer['spread_over_jobs']:.3f} (standard deviation), two policies' "
        f"means by {answer['gap_between_policies']:.3f}: to tell two apart takes about {plays:.0f} jobs played with each. "
        "Replayed on the same job, both meet the same market, and the difference shows at once.",
        f"On the {len(answer['few_policies'])} policies that were best in training the best bandit makes {few:.4f}, "
        f"{full['learner']} {full['few']:.4f}.",
        *[_wins_and_loses(name, answer) for name in bandits],
        *(
            [
                f"Bounds that say nothing here (larger than the number of jobs, or none proven): {', '.join(silent)}."
            ]
            if silent
            else []
        ),
    ]


def _wins_and_loses(name: str, answer: Mapping[str, Any]) -> str:
    """Return a sentence on the best and worst order of a bandit.

    The measure is its share of the gain of full information over drawing at random.
    """
    full, even, own = answer["full_information"], answer["drawn_at_random"], answer["bandits"][name]
    shares = {
        order: (own[order]["settled_utility"] - even[order]) / (full[order] - even[order])
        for order in ORDER_NAMES
        if order in own and full[order] > even[order]
    }
    if not shares:
        return (
            f"{name}: full information gains nothing over drawing at random here, so there is nothing to win."
        )
    top, low = max(shares, key=lambda o: shares[o]), min(shares, key=lambda o: shares[o])
    leads = [
        ORDER_NAMES[order]
        for order in shares
        if all(
            own[order]["settled_utility"] >= one[order]["settled_utility"]
            for one in answer["bandits"].values()
        )
    ]
    text = (
        f"{name} makes {_percent(shares[top])} of what full information gains over drawing at random in "
        f"{ORDER_NAMES[top]}, its best, and {_percent(shares[low])} in {ORDER_NAMES[low]}, its worst"
    )
    return text + (f"; the best bandit in {', '.join(leads)}." if leads else "; never the best bandit.")


def _percent(share: float) -> str:
    """Return a whole percentage, with 0 unsigned."""
    return f"{round(100 * share):d} %"


def bandit_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return table rows: the learner with full information, each bandit, and drawing at random."""
    full, even = answer["full_information"], answer["drawn_at_random"]
    rows: list[dict[str, Any]] = [
        {"learner": f"{full['learner']} (sees all)", **{o: full[o] for o in ORDER_NAMES}, "few": full["few"]}
    ]
    rows += [
        {
            "learner": name,
            **{order: one[order]["settled_utility"] for order in ORDER_NAMES},
            "few": one["few"]["settled_utility"],
            "regret": one["random_order"]["regret"],
            "bound": one["random_order"]["bound"],
        }
        for name, one in answer["bandits"].items()
    ]
    return [*rows, {"learner": "drawn at random", **{o: even[o] for o in ORDER_NAMES}}]


#: Number of policies drawn as separate lines.
TOP_WEIGHTS = 6
#: Common property of the first jobs in an order with a switch.
BEFORE = {
    "regime_switch": "those whose markets offer most spot for the work to do",
    "hostile_switch": "those on which the policy that is best over all jobs beats a certain other",
}
SOLID_AND_DASHED = (
    "by job (solid), and its proven bound (dashed; none is drawn where none is proven). The axis is linear below 0.1 and "
    "logarithmic above."
)


#: Limits for the points of a drawn line and the marks on it: more points than pixels only enlarge the page.
POINTS, MARKS = 240, 12
#: The axis of the small charts is linear below this regret and logarithmic above: regrets in a chart differ a hundredfold.
LINEAR_BELOW = 0.1


def selection_report(result: SelectionResult, answer: Mapping[str, Any]) -> Answer:
    """Return the report: findings, the choice of the learner, and charts for each order of the jobs.

    Curves are drawn from ``result``, which has every round; ``answer`` has some of them.
    """
    orders = {"random_order": "random order", **SWITCHES}
    return Answer(
        title="Learning which policy to trust",
        about=(
            f"{answer['jobs']} jobs of the test part of {answer['data']}, {answer['policies']} policies, "
            f"seed {answer['seed']}{quick_look(answer)}. "
            "Utilities are in units of what the job costs on on-demand alone; regrets are sums of utilities normalised to the "
            "fixed bounds of each job."
        ),
        value=answer,
        banner=joins(
            "Where a job joins one market's counts with another's prices, no such market was measured."
        ),
        blocks=[
            Section("Findings", [Notes(answer["findings"])], "findings"),
            Section(
                f"The learner chosen: {answer['learner']}",
                [
                    "Mean utility that each learner would have realised on jobs of the training part, in three orders of them. "
                    "Nobody knows beforehand in which order jobs will come, so the mean decides.",
                    numbers(TRAINING_COLUMNS, answer["training"]),
                ],
                "training",
            ),
            *(
                section
                for name, title in orders.items()
                for section in _order_sections(name, title, result.played[name], answer, result.chosen)
            ),
            _bandits_section(result.bandits, answer["bandits"]),
            _bounds_section(answer),
        ],
    )


def _order_sections(
    name: str, title: str, played: PlayedOrder, answer: Mapping[str, Any], chosen: str
) -> list[Section]:
    """Return the table, regrets and weights of an order of the jobs."""
    own, cut = answer[name], played.cuts[0] if played.cuts else None
    against = "the best single policy" if cut is None else "the best sequence of policies with one change"
    columns = ANSWER_COLUMNS if cut is None else SWITCH_COLUMNS
    changes = own["leader_changes"]
    sections = [
        Section(
            f"Jobs in {title}" if cut is None else f"Jobs through a {title}",
            [*_about_order(name, own), numbers(columns, learner_rows(own))],
            name,
        )
    ]
    if cut is not None:
        shifting = {learner: s.shifting_regret_curve for learner, s in played.summaries.items()}
        sections.append(
            Section(
                f"Regret through the {title}",
                [
                    f"Against {against} so far, all learners.",
                    _regrets_figure(shifting, "Shifting regret of every learner through the switch", cut=cut),
                ],
                f"{name}-shifting",
            )
        )
    sections += [
        Section(
            f"Regret against its bound, {title}",
            [
                f"Cumulative regret against {against} so far, {SOLID_AND_DASHED}",
                Figures(_bound_figures(played.summaries, shifting=cut is not None)),
            ],
            f"{name}-regret",
        ),
        Section(
            f"Weights of {chosen}, {title}",
            [
                "Weight after each job; the grey area is all other policies together.",
                f"The leader changed {changes['number']} times; the last changes:"
                if changes["last"]
                else "The leader never changed.",
                *([Notes([f"{sentence}." for sentence in changes["last"]])] if changes["last"] else []),
                _weights_figure(played.summaries[chosen], played.cuts),
            ],
            f"{name}-weights",
        ),
    ]
    return sections


def _about_order(name: str, own: Mapping[str, Any]) -> list[Block]:
    if not own["switch_after"]:
        return [f"The best fixed policy is {own['best_fixed']}."]
    before, after = own["stretches"]
    return [
        f"The first {before['jobs']} jobs are {BEFORE[name]}, the other {after['jobs']} come after. The best fixed policy is "
        f"{before['best_fixed']} before the switch and {after['best_fixed']} after it. The learner is not told."
    ]


def _points(series: str, curve: np.ndarray, *, marked: bool = True) -> list[dict[str, Any]]:
    """Return at most `POINTS` of the rounds 1..K of a curve (K,), including the first and the last; some have a mark."""
    rounds = np.unique(np.linspace(1, len(curve), min(len(curve), POINTS)).round().astype(int))
    every = max(1, len(rounds) // MARKS)
    return [
        {"x": k, "y": curve[k - 1], "series": series, "point": marked and i % every == 0}
        for i, k in enumerate(rounds)
    ]


def _jobs_axis(jobs: int, title: str = "job") -> Axis:
    return Axis(title=title, whole=True, low=0, high=jobs)


def _switches(*cuts: int) -> list[dict[str, Any]]:
    return [{"x": cut + 0.5, "text": "switch"} for cut in cuts]


def _regrets_figure(curves: Mapping[str, np.ndarray], label: str, *, cut: int | None = None) -> Figure:
    """Return a chart of cumulative regrets, each of shape (K,)."""
    spec = lines(
        [point for name, curve in curves.items() for point in _points(name, curve)], list(curves),
        x=_jobs_axis(max(map(len, curves.values()))), y=Axis(title="regret, normalised"),
        marks=[] if cut is None else _switches(cut), height=260,
    )  # fmt: skip
    return Figure(specs=[spec], label=label, width=720)


def _bound_figures(summaries: Mapping[str, SelectionSummary], *, shifting: bool) -> list[Figure]:
    """Return a chart of cumulative regret and bound for each learner, on a common scale."""
    curves = {
        name: (s.shifting_regret_curve, s.shifting_bound_curve)
        if shifting
        else (s.regret_curve, s.bound_curve)
        for name, s in summaries.items()
    }
    ends = np.concatenate([values[np.isfinite(values)] for pair in curves.values() for values in pair])
    y = Axis(title="regret", low=float(min(ends.min(), 0.0)), high=float(ends.max()), symlog=LINEAR_BELOW,
             at=[tick for tick in (-10, -1, 0, 1, 10, 100) if ends.min() <= tick <= ends.max()], format="d")  # fmt: skip
    figures = []
    for name, (regret, bound) in curves.items():
        rows = [*_points("regret", regret, marked=False), *_points("bound", bound, marked=False)]
        drawn = ["regret", "bound"] if np.isfinite(bound).any() else ["regret"]
        spec = lines(
            [row for row in rows if row["series"] in drawn], drawn, order=["regret", "bound"], points=False, rule=0.0,
            x=_jobs_axis(len(regret)), y=y, height=150,
        )  # fmt: skip
        figures.append(Figure(specs=[spec], label=f"Regret of {name} against its bound", title=name, width=0))
    return figures


def _weights_figure(summary: SelectionSummary, cuts: Sequence[int]) -> Figure:
    """Return a chart of the largest weights in percent after each job, below a chart of the sum of all others."""
    after, shown = summary.weights[1:], [int(j) for j in shown_weights(summary.weights)[:TOP_WEIGHTS]]
    names = [f"{summary.names[j]} ({100 * after[-1, j]:.1f} %)" for j in shown]
    others = 100 * (1.0 - after[:, shown].sum(axis=1)).clip(0.0)
    rows = [point for name, j in zip(names, shown, strict=True) for point in _points(name, 100 * after[:, j])]
    return Figure(
        specs=[
            area(
                _points("", others), x=_jobs_axis(len(after), ""),
                y=Axis(title="all other policies together, %", low=0, high=100, ticks=2),
            ),
            lines(rows, names, x=_jobs_axis(len(after)), y=Axis(title="weight, %"), marks=_switches(*cuts), height=240),
        ],
        label="Weights of policies over the jobs",
        width=720,
    )  # fmt: skip


def _bandits_section(result: BanditResult, answer: Mapping[str, Any]) -> Section:
    """Return the section on bandits: regret in random order, and utilities after settling in every order."""
    full = result.summaries["random_order"]
    curves = {
        "drawn at random": result.even_regret,
        **{name: one.regret_curve for name, one in result.runs["random_order"].items()},
        full.learner: full.regret_curve,
    }
    return Section(
        "What replaying the pool is worth: bandits",
        [
            f"The same jobs for learners that see only what the policy earned that they played, mean of {answer['seeds']} seeds of "
            "their draws. The table gives utilities after settling; regret and bound are those of random order.",
            Notes(answer["findings"]),
            _regrets_figure(curves, "Cumulative regret of bandits beside the learner that sees all"),
            numbers(COLUMNS, bandit_rows(answer)),
        ],
        "bandits",
    )


def _bounds_section(answer: Mapping[str, Any]) -> Section:
    shares = answer["bounds"]["settled_share_of_best_fixed"]
    columns = {"learner": "learner", "wide": "bounds of M5.2", "attainable": "attainable bounds"}
    return Section(
        "What the fixed bounds cost",
        [
            "Share of the best fixed policy's utility realised after settling, when utilities are normalised to the bounds of M5.2 "
            "(the value of the job; N_max on-demand up to the last slot in which it is worth anything) and to the tighter ones, "
            "which no policy can leave that never pays more than on-demand.",
            numbers(columns, [{"learner": name, **both} for name, both in shares.items()]),
        ],
        "bounds",
    )


def write_prior(path: Path, worlds: Sequence[MeasuredWorld]) -> None:
    """Write worlds in the format of `read_prior`, best policy first."""
    lines = [
        "# What was measured of policies before the first job, in the slot model (M5.6): see optimization/selection/prior.py."
    ]
    for world in worlds:
        lines += ["", "[[world]]", f'source = "{world.source}"', f"command = '{world.command}'"]
        lines += [f"jobs = {world.jobs}", "[world.share]"]
        best = sorted(world.share.items(), key=lambda item: (-item[1], item[0]))
        lines += [f'"{name}" = {share:.6f}' for name, share in best]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
