"""Leaderboard of the policies over the jobs that ended, their weights, and findings (M5.5): one answer for all pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.command import Answer
from slackwater.flows.ledger.endings import ReportedOutcomes, reported_outcomes
from slackwater.flows.ledger.fields import (
    BASELINES,
    BOARD,
    BOARD_SHOWN,
    HINDSIGHT,
    board_rows,
    columns_of,
    folded_board,
)
from slackwater.flows.ledger.headline import compared_words
from slackwater.flows.ledger.rounds import outcome_frame
from slackwater.flows.show.blocks import Block, Column, Figure, Notes, Section, Table
from slackwater.flows.show.charts import Axis, dots, lines
from slackwater.flows.show.formats import as_number, percent, plural, rows_of, text, usd
from slackwater.flows.turn.context import Turn, TurnValues
from slackwater.flows.turn.pool import Group, Pool, read_pool
from slackwater.optimization.replay.score import BEST_MARKET, leaderboard
from slackwater.optimization.selection.learned import learner_regret, why_leader_changed
from slackwater.optimization.window.plan import WORLD

BOARD_ROWS: Final = 10  # Policies shown besides the baselines and those with reported outcomes
TOP_WEIGHTS, TOP_CHANGES = 8, 8  # Lines in the chart of weights, and changes of the leader marked in it


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResults:
    """Results over ended jobs: the leaderboard, best policy first and empty before the first job, and findings.

    ``movers`` is the leaderboard of the multi-market policies, over the multi-market jobs. ``weights``
    has shape (rounds, policies), ``round_jobs`` names the job of each round, ``policies`` the columns.
    """

    leaderboard: list[dict[str, Any]]
    movers: list[dict[str, Any]]
    findings: list[str]
    policies: tuple[str, ...] = ()
    round_jobs: tuple[str, ...] = ()
    weights: tuple[tuple[float, ...], ...] = ()
    learner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardFacts:
    """The pool, the outcomes of its policies and of the multi-market policies on all scored jobs, and the reported outcomes."""

    pool: Pool
    outcomes: pd.DataFrame
    moved: pd.DataFrame
    reported: ReportedOutcomes


def read_board_facts(turn: Turn, pool: Pool | None = None) -> BoardFacts:
    """Read the outcomes of scored jobs; ``pool`` None: as stored in the warehouse."""
    pool = read_pool(turn) if pool is None else pool
    return BoardFacts(
        pool=pool,
        outcomes=turn.read(outcome_frame, pool.names),
        moved=turn.read(outcome_frame, [*pool.movers.names, BEST_MARKET]),
        reported=turn.read(reported_outcomes),
    )


def policy_results(turn: TurnValues, facts: BoardFacts) -> PolicyResults:
    """Return the results of the pool and of the multi-market policies over all scored jobs."""
    pool, outcomes, moved, reported = facts.pool, facts.outcomes, facts.moved, facts.reported
    outcomes, apart = in_one_model(outcomes)
    moved, moved_apart = in_one_model(moved)
    board = _board_rows(pool, outcomes, reported)
    movers = _board_rows(pool.movers, moved, reported)
    if board:
        findings = _findings(pool, outcomes, board)
    elif movers:
        findings = []
    else:
        name, why = pool.deciding([turn.at])[0]
        mover = pool.movers.deciding([turn.at])[0][0]
        findings = [
            f"No job has ended yet, so no policy has a record here; {name.name} decides: it {why}. {mover.name} decides "
            "multi-market jobs."
        ]
    return PolicyResults(
        leaderboard=board,
        movers=movers,
        findings=[
            *findings,
            *apart,
            *moved_apart,
            *_movers_found(movers),
            *([reported.sentence()] if board or movers else []),
        ],
        policies=tuple(pool.rounds.names),
        round_jobs=tuple(pool.rounds.jobs),
        weights=tuple(tuple(row.tolist()) for row in pool.weights_after()),
        learner=turn.settings.learner,
    )


def _board_rows(
    group: Group[Any], outcomes: pd.DataFrame, reported: ReportedOutcomes
) -> list[dict[str, Any]]:
    """Return the leaderboard of a group; the weight of a hindsight baseline is 0."""
    if outcomes.empty:
        return []
    board = leaderboard(outcomes, group.rounds.newest(group.learner))
    (model,) = set(outcomes["model"])
    board = board.assign(weight=board["weight"].fillna(0.0))
    found = []
    for row in rows_of(board):
        on_time = reported.by_policy.get(row["policy"], ())
        measures = {
            name: None if pd.isna(row[name]) else round(float(row[name]), n) for name, n in DIGITS.items()
        }
        jobs = {"jobs": int(row["jobs"]), "given_up": int(row["given_up"]), "reported_jobs": len(on_time)}
        share = {"reported_on_time": round(sum(on_time) / len(on_time), 4) if on_time else None}
        found.append({"policy": row["policy"], "model": model, **jobs, **measures, **share})
    return [{name: row[name] for name in BOARD} for row in found]


#: Decimal places of the measures of the leaderboard.
DIGITS: Final = {
    "mean_utility": 6, "mean_utility_usd": 4, "mean_cost_usd": 4, "mean_on_demand_only_usd": 4,
    "mean_saved_usd": 4, "saved_share": 6,
    "mean_hindsight_usd": 4, "on_time": 4, "gap_to_hindsight": 6, "weight": 6,
}  # fmt: skip


def in_one_model(outcomes: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the outcomes in the world, or all if there are none, and a finding on the jobs left out."""
    in_world = outcomes["model"] == WORLD
    if in_world.all() or not in_world.any():
        return outcomes, []
    rest = outcomes.loc[~in_world, "job"].nunique()
    return outcomes[in_world], [
        f"{plural(rest, 'job')} scored by an older version, in the slot model, {'is' if rest == 1 else 'are'} not in these means; "
        "the weights count them."
    ]


def _movers_found(board: Sequence[Mapping[str, Any]]) -> list[str]:
    movers = [row for row in board if row["policy"] != BEST_MARKET]
    if not movers:
        return []
    best, led = movers[0], max(movers, key=lambda row: row["weight"])
    return [
        f"Best multi-market policy over {plural(best['jobs'], 'ended multi-market job')}: {_cost_words(best)}; "
        f"{led['policy']} leads with {percent(led['weight'])} of the weight."
    ]


def _cost_words(row: Mapping[str, Any]) -> str:
    """Return the cost of a policy per job compared with on-demand only and, if known, with hindsight."""
    known, given_up = row["mean_hindsight_usd"], row["given_up"]
    saved = (
        ""
        if row["mean_saved_usd"] is None
        else compared_words(row["saved_share"], row["mean_saved_usd"])
        + (f" in the {row['jobs'] - given_up} that it finishes" if given_up else "")
        + ", "
    )
    return (
        f"{row['policy']}, {usd(row['mean_cost_usd'])} USD a job, "
        + ("no on-demand price known, " if row["mean_on_demand_only_usd"] is None else saved)
        + (f"given up {given_up} of {row['jobs']}, " if given_up else "")
        + f"on time in {percent(row['on_time'])} of the replays"
        + ("" if known is None else f"; {HINDSIGHT} {usd(known)} USD")
    )


def _findings(pool: Pool, outcomes: pd.DataFrame, board: list[dict[str, Any]]) -> list[str]:
    """Return findings on the leader and the reason, the baselines, forecast errors, and regret with its bound."""
    by_name = {row["policy"]: row for row in board}
    best = board[0]
    notes = [f"Best policy over {plural(best['jobs'], 'ended job')}: {_cost_words(best)}."]
    for name in ("UP", "MSU", "OD-only"):
        if name in by_name and name != best["policy"]:
            row = by_name[name]
            dearer = row["mean_cost_usd"] - best["mean_cost_usd"]
            notes.append(
                f"{name} costs {usd(abs(dearer))} USD a job {'more' if dearer >= 0 else 'less'}, on time in "
                f"{percent(row['on_time'])} of the replays."
            )
    lost = outcomes.groupby("policy")["lost_to_forecast_error"].mean().dropna()
    if len(lost):
        most = str(lost.idxmax())
        notes.append(
            f"Wrong forecasts cost {best['policy']} {lost.get(best['policy'], 0.0):.3f} of the on-demand-only cost a job, "
            f"and {most} most, {lost[most]:.3f}, compared with perfect forecasts."
        )
    rounds, learner = pool.rounds, pool.learner
    utilities = rounds.full(learner)
    ledger = pd.DataFrame(
        [
            {"job": job, "policy": name, "normalised": value}
            for job, row in zip(rounds.jobs, utilities, strict=True)
            for name, value in zip(pool.names, row.tolist(), strict=True)
        ]
    )
    last = learner_regret(ledger, learner).iloc[-1]
    notes.append(
        f"Selection by {learner.name} after {plural(len(rounds.jobs), 'job')}: regret {last['static_regret']:.3f} "
        f"(bound {last['static_bound']:.3f}) against the best single policy, {last['static_regret_leader']:.3f} "
        "when following the leader."
    )
    changes = why_leader_changed(ledger, rounds.weights(learner), memory=learner.memory)
    notes += [change.sentence() + "." for change in changes[-2:]]
    return notes


# ---
# The answer: best policies with their costs and weights


def leaderboard_answer(found: PolicyResults) -> Answer:
    """Return the answer of ``leaderboard``."""
    value = {"leaderboard": found.leaderboard} | ({"movers": found.movers} if found.movers else {})
    return Answer(title="Policies", value=value, blocks=leaderboard_blocks(found))


def leaderboard_blocks(found: PolicyResults) -> list[Block]:
    """Return the leaderboards with a chart of costs each, the weights over rounds, and the findings."""
    if not found.leaderboard and not found.movers:
        return [Notes(found.findings)]
    blocks: list[Block] = []
    if found.leaderboard:
        blocks += [costs_figure(shown_rows(found.leaderboard)), board_table(found.leaderboard)]
    if found.movers:
        blocks += [costs_figure(found.movers), *movers_tables(found.movers)]
    if found.weights:
        blocks.append(weights_section(found))
    return [*blocks, Notes(found.findings)]


def shown_rows(board: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the best rows of a leaderboard, the baselines, and the policies with reported outcomes."""
    return [
        row
        for k, row in enumerate(folded_board(board))
        if k < BOARD_ROWS or is_baseline(row) or row.get("reported_jobs")
    ]


def board_table(board: Sequence[Mapping[str, Any]]) -> Table:
    """Return the leaderboard: the shown rows and the hindsight cost."""
    return Table(
        f"Policies over ended jobs (best {BOARD_ROWS} of {len(board)}, and baselines)",
        board_rows(shown_rows(board)),
        columns_of(BOARD_SHOWN),
        marked=is_baseline,
    )


def movers_tables(board: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the leaderboard of the multi-market policies; empty before a multi-market job has ended."""
    title = "Multi-market policies over ended multi-market jobs (separate weights)"
    columns: dict[str, Column | str] = {**columns_of(BOARD_SHOWN), "policy": "multi-market policy"}
    return [Table(title, board_rows(board), columns)] if board else []


def is_baseline(row: Mapping[str, Any]) -> bool:
    """Return whether a row of the leaderboard is that of a baseline."""
    return row.get("policy") in BASELINES


def costs_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Return a dot chart of the cost of a job by policy, in the order of ``rows``; baselines are squares, hindsight is a line.

    The axis is scaled to the policies other than baselines; a cost far above them is drawn at the
    right edge with its number. A policy that is not always in time shows its share of jobs in time:
    an unfinished job can be cheap.
    """
    rows = [row for row in rows if np.isfinite(_value(row, "mean_cost_usd"))]
    costs = np.array([_value(row, "mean_cost_usd") for row in rows])
    bound = common_hindsight(rows)
    baseline = np.array([is_baseline(row) for row in rows])
    high_low = (0.0, -1.0) if not rows else utility_range(-costs, baseline, None if bound is None else -bound)
    low, high = (max(0.0, float(f"{-end:.5g}")) for end in high_low[::-1])  # rounded as in a chart
    points = [
        {
            "label": _policy_label(row),
            "value": min(cost, high),
            "kind": "baseline" if is_baseline(row) else "policy",
            "beyond": usd(cost) if cost > high else None,
        }
        for row, cost in zip(rows, costs.tolist(), strict=True)
    ]

    def draw() -> list[dict[str, Any]]:
        along = Axis(title="cost of a job, USD", low=low, high=high)
        kinds = {"policy": "series1", "baseline": "on-demand"}
        return [dots(points, [point["label"] for point in points], x=along, bound=bound, kinds=kinds)]

    line = "" if bound is None else f" The dashed green line is the {HINDSIGHT}, {usd(bound)} USD."
    alone = [_value(row, "mean_on_demand_only_usd") for row in rows[:1]]
    comparison = f" On-demand only costs {usd(alone[0])} USD." if alone and np.isfinite(alone[0]) else ""
    return Figure(
        specs=draw, label="Cost of a job by policy", title="Cost of a job, USD", width=620,
        captions=[
            f"Further left is better; squares are baselines.{line}{comparison} The axis does not start at 0; the figure of a "
            "policy beyond its end is written at the edge."
        ],
    )  # fmt: skip


def _policy_label(row: Mapping[str, Any]) -> str:
    """Return a policy's name, with its share of jobs in time unless that is 100 %."""
    on_time = as_number(row.get("on_time"))
    name = text(row.get("policy"))
    if on_time is None or on_time >= 1.0:
        return name
    return f"{name}, on time {percent(on_time)}" if on_time > 0.0 else f"{name}, late"


def utility_range(utility: np.ndarray, baseline: np.ndarray, bound: float | None) -> tuple[float, float]:
    """Return the ends of an axis of utilities, or of negative costs.

    With d the distance between the worst non-baseline and the best value (or hindsight), values
    more than d below that worst non-baseline are outside the axis.
    """
    competing = utility[~baseline] if (~baseline).any() else utility
    high = float(utility.max()) if bound is None else max(float(utility.max()), bound)
    reach = high - float(competing.min())
    low = float(utility[utility >= competing.min() - reach].min())
    margin = 0.06 * (high - low) or 0.05
    return low - margin, high + margin


def _value(row: Mapping[str, Any], key: str, default: float = float("nan")) -> float:
    value = as_number(row.get(key))
    return default if value is None else value


def common_hindsight(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the hindsight cost of a job if it is known and all policies were scored on the same jobs (else it differs)."""
    costs = [_value(row, "mean_hindsight_usd") for row in rows]
    alike = all(abs(cost - costs[0]) < 0.005 for cost in costs)  # False if a cost is NaN
    return costs[0] if costs and alike else None


def weights_section(found: PolicyResults) -> Section:
    """Return the chart of the weights over rounds, with every change of the leader and the job that caused it."""
    values = np.array(found.weights)
    leaders = leaders_of(values)
    changes = changes_of(leaders)
    rows = [
        {
            "round": k + 1,
            "job": found.round_jobs[k],
            "before": found.policies[leaders[k - 1]],
            "after": found.policies[leaders[k]],
        }
        for k in changes
    ]
    columns: dict[str, Column | str] = {
        "round": "round",
        "job": "after job",
        "before": "leader before",
        "after": "leader",
    }
    rounds = plural(len(values), "round")
    leader = (
        f"{found.policies[leaders[-1]]} leads with {percent(values[-1, leaders[-1]])} of the weight"
        if leaders[-1] >= 0
        else "all policies weigh the same"
    )
    return Section(
        "Weights of the policies",
        [
            f"After {rounds} (one a job that ended) {leader}.",
            weights_figure(found.policies, values, leaders),
            Table("Changes of the leader", rows, columns, most=TOP_CHANGES),
        ],
        "weights",
    )


def changes_of(leaders: Sequence[int]) -> list[int]:
    """Return the rounds (from 0) after which the leader is another policy than before."""
    return [k for k in range(1, len(leaders)) if leaders[k] != leaders[k - 1] and leaders[k - 1] >= 0]


def weights_figure(names: Sequence[str], values: np.ndarray, leaders: Sequence[int]) -> Figure:
    """Return the chart of weights in percent over rounds, of the policies that led last and the heaviest."""
    shown = shown_policies(values, leaders)

    def draw() -> list[dict[str, Any]]:
        labels = {j: f"{names[j]} ({percent(values[-1, j])})" for j in shown}
        rows = [
            {"x": k + 1, "y": 100 * float(values[k, j]), "series": labels[j]}
            for j in shown
            for k in range(len(values))
        ]
        changes = changes_of(leaders)[:TOP_CHANGES]
        return [
            lines(
                rows,
                list(labels.values()),
                x=Axis(title="round (one job that ended)", whole=True, low=1, high=len(values), ticks=12),
                y=Axis(title="weight, %"),
                marks=[{"x": k + 1, "text": str(i + 1)} for i, k in enumerate(changes)],
                points=len(values) < 30,
            )
        ]

    rest = 1.0 - float(values[-1, shown].sum())
    caption = f"All other policies together: {percent(rest)} after the last round."
    return Figure(
        specs=draw,
        label="Weights of policies over rounds",
        captions=[caption] if len(shown) < len(names) else [],
    )


def leaders_of(values: np.ndarray) -> list[int]:
    """Return the column of the leader after each round of ``values`` (rounds, policies); ties keep it, -1 while all tie."""
    leaders, current = [], -1
    for row in values:
        best = float(row.max())
        ahead = np.flatnonzero(row >= best - 1e-12)
        if ahead.size < row.size or row.size == 1:
            current = current if current in ahead else int(ahead[0])
        leaders.append(current)
    return leaders


def shown_policies(values: np.ndarray, leaders: Sequence[int]) -> list[int]:
    """Return at most `TOP_WEIGHTS` columns to draw: the latest leaders, then most weight in the last round."""
    led = [j for j in dict.fromkeys(reversed(leaders)) if j >= 0][: TOP_WEIGHTS // 2]
    heaviest = [int(j) for j in np.argsort(-values[-1], kind="stable")]
    chosen = list(dict.fromkeys(led + heaviest))[:TOP_WEIGHTS]
    return sorted(chosen, key=heaviest.index)
