"""What E3 answers: one JSON object, tables for people, and the sentences worth reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.experiments.selection.bandits import bandit_answer, bandits_blocks
from flows.show.blocks import Block, Table
from optimization.selection.learners import DEFAULT_LEARNER
from optimization.selection.rounds import Realised, SelectionSummary

if TYPE_CHECKING:
    from flows.experiments.selection.study import Played, SelectionResult

#: Rounds at which curves and weights are told, policies whose weights are told, changes of the leader told in words.
TOLD_ROUNDS, TOLD_POLICIES, TOLD_CHANGES = 25, 8, 5
#: The orders with a switch, and what they are called.
SWITCHES = {"regime_switch": "switch of market", "hostile_switch": "hostile switch"}
#: What E3 promises of the default learner once weights have settled.
PROMISED_SHARE = 0.98


def selection_answer(result: SelectionResult, *, data: str, seed: int, fast: bool) -> dict[str, Any]:
    """The object of ``experiment selection --json``; utilities in units of each job's OD-only cost."""
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


def order_answer(played: Played, chosen: str) -> dict[str, Any]:
    """All learners on one order of the jobs, and the weights and changes of leader of the chosen one."""
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
    """One learner: what it earned, its regrets beside their bounds (null where none is proven), and the curves."""
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
    """What a learner earned over a stretch of the rounds."""
    return {
        "sampled": part.sampled,
        "drawn": part.drawn,
        "leader": part.leader,
        "share_of_best_fixed": part.share,
    }


def told_rounds(rounds: int) -> np.ndarray:
    """At most `TOLD_ROUNDS` round numbers, even apart, the first and the last among them."""
    return np.unique(np.linspace(1, rounds, min(rounds, TOLD_ROUNDS)).round().astype(int))


def shown_weights(weights: np.ndarray) -> np.ndarray:
    """Columns of the policies that ever weigh most, the heaviest first, at most `TOLD_POLICIES`."""
    return np.argsort(-weights.max(axis=0), kind="stable")[:TOLD_POLICIES]


def weights_answer(summary: SelectionSummary) -> dict[str, Any]:
    """Weights over time of the policies that ever weigh most, and of all others together."""
    at, shown = told_rounds(len(summary.regret_curve)), shown_weights(summary.weights)
    told = summary.weights[at]
    return {
        "after_round": [int(k) for k in at],
        "policies": {summary.names[i]: told[:, i].tolist() for i in shown},
        "others": (1.0 - told[:, shown].sum(axis=1)).clip(0.0).tolist(),
    }


def bounds_answer(played: Played, tight: Mapping[str, SelectionSummary]) -> dict[str, Any]:
    """How wide the fixed bounds are beside what policies differ by, and what tighter ones are worth to each learner."""
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
    """Sentences worth reading, computed from the numbers, whichever way they fall."""
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
    """The learners of one order as rows of a table, best first."""
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


COLUMNS = {
    "learner": "learner", "sampled": "utility by weight", "leader": "utility of leader",
    "settled": "settled, of best fixed", "regret": "regret", "bound": "bound",
}  # fmt: skip
SWITCH_COLUMNS = COLUMNS | {
    "last": "after the switch, of best fixed", "shifting_regret": "shifting regret", "shifting_bound": "its bound",
}  # fmt: skip
TRAINING_COLUMNS = {"learner": "learner", "random_order": "random order", **SWITCHES, "mean": "mean"}


def selection_blocks(answer: dict[str, Any]) -> list[Block]:
    """A table for the training jobs and for each order of the test jobs, and the findings."""
    blocks: list[Block] = []
    blocks.append(Table("Mean utility on the training jobs", answer["training"], TRAINING_COLUMNS))
    blocks.append(
        Table(f"{answer['jobs']} test jobs in random order", learner_rows(answer["random_order"]), COLUMNS)
    )
    for order, name in SWITCHES.items():
        cuts = answer[order]["switch_after"]
        if cuts:
            title = f"The same through a {name} after job {cuts[0]}"
            blocks.append(Table(title, learner_rows(answer[order]), SWITCH_COLUMNS))
    for line in answer["findings"]:
        blocks.append(line)
    blocks += bandits_blocks(answer["bandits"])
    return blocks
