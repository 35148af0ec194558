"""E3 with less to see: bandits on the same jobs, and what replaying the whole pool is worth beside them (M5.1, M10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.experiments.selection.sections import draw_regret_lines
from flows.show.blocks import Block, Section, Table, figures, study
from optimization.selection.bandits import BanditRuns, select_with_bandit
from optimization.selection.learners import BANDITS
from optimization.selection.rounds import SelectionSummary

if TYPE_CHECKING:
    from flows.experiments.selection.study import Rounds

#: Seeds of the bandits' draws, and of a quick look.
SEEDS, FAST_SEEDS = 8, 2
#: Policies of the smaller pool: the best on the training part.
FEW = 8
#: The orders as they are called in sentences.
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
    """Every bandit in every order of the jobs, and in random order on the ``few`` policies that were best in training.

    ``summaries`` holds the learner with full information in the same orders, ``few_summary`` the same on the few;
    ``even`` is what a policy drawn at random earns after settling, by order, ``even_regret`` its regret curve in
    random order. ``spread`` is the median standard deviation of a policy's utility over jobs, ``gap`` the mean
    difference of two of the policies' means, both in units of on-demand-only cost.
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
    orders: Mapping[str, tuple[Rounds, Sequence[int]]],
    summaries: Mapping[str, SelectionSummary],
    train: Rounds,
    *,
    seeds: Sequence[int],
    few_summary: Any,
) -> BanditResult:
    """Play every bandit of `BANDITS` in every order, once a seed.

    ``orders`` maps a name to the rounds in that order and the switches; ``summaries`` the chosen learner's in each;
    ``few_summary(rounds)`` is that learner's on a smaller pool. The few are chosen by their means on ``train``.
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


def _play(rounds: Rounds, learner: Any, seeds: Sequence[int], cuts: Sequence[int]) -> BanditRuns:
    return select_with_bandit(rounds.wide, rounds.raw, rounds.names, learner=learner, seeds=seeds, cuts=cuts)


def bandit_answer(result: BanditResult) -> dict[str, Any]:
    """The object under ``bandits`` of the answer of E3: utilities after settling, in units of on-demand-only cost."""
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
    """Sentences computed from the numbers: the worth of full information, why bandits are slow, and a line for each bandit."""
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
    """Where one bandit wins and loses: its share, by order, of what full information gains over drawing at random."""
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
    """Whole percent, without a sign of its own on 0."""
    return f"{round(100 * share):d} %"


def bandit_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The learner of full information, each bandit and drawing at random as rows of a table."""
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


def bandit_section(result: BanditResult, answer: Mapping[str, Any]) -> Section:
    """The section of the page: regret in random order, and what each makes of every order after settling."""
    full = result.summaries["random_order"]
    curves = {
        "drawn at random": result.even_regret,
        **{name: one.regret_curve for name, one in result.runs["random_order"].items()},
        full.learner: full.regret_curve,
    }
    return study(
        anchor="bandits",
        heading="What replaying the pool is worth: bandits",
        sentences=[
            f"The same jobs for learners that see only what the policy earned that they played, mean of {answer['seeds']} seeds of "
            "their draws. The table gives utilities after settling; regret and bound are those of random order.",
            *answer["findings"],
        ],
        figure=draw_regret_lines(curves, name="bandits-drawing"),
        table=figures(columns=COLUMNS, rows=bandit_rows(answer)),
    )


def bandits_blocks(answer: Mapping[str, Any]) -> list[Block]:
    """The table for people, and the findings."""
    blocks: list[Block] = []
    blocks.append(
        Table("Utility after settling, of learners that see one policy a job", bandit_rows(answer), COLUMNS)
    )
    for line in answer["findings"]:
        blocks.append(line)
    return blocks
