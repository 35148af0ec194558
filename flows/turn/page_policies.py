"""What the report shows of the policies: the leaderboard and the weights over rounds (M5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from flows.ledger.fields import BASELINES, BOARD, columns_of
from flows.show.blocks import Block, Fold, Notes, Section, Table
from flows.show.charts import Axis, area, dots, lines
from flows.show.figure import Figure
from flows.show.formats import as_number, listed, number, percent, plural, text
from warehouse.errors import InputError

#: Rows of the leaderboard, lines of the weights and changes of the leader shown without unfolding.
TOP_POLICIES, TOP_WEIGHTS, TOP_CHANGES = 15, 8, 8


def policies_section(rows: Sequence[Mapping[str, Any]]) -> Section:
    """The best `TOP_POLICIES`, the baselines wherever they stand, the rest to unfold, and the chart of the first two."""
    heading = "Policies: what each would have made of the jobs that ended"
    if not rows:
        return Section(heading, ["No job has ended yet, so no policy has a record."], "policies")
    top, rest = ranked(rows)
    blocks: list[Block] = []
    drawn = [row for row in top if np.isfinite(_value(row, "mean_utility"))]
    if drawn:
        blocks.append(
            board_summary([*top, *rest])
            + " Utility is the value of the finished job minus the rent paid, divided by what the same job costs on on-demand "
            "instances alone; higher is better. The gap is to the best that could have been done knowing the future."
        )
        blocks.append(utilities_figure(drawn, common_bound(rows)))
    blocks.append(_board(top))
    if rest:
        blocks.append(Fold(f"The other {len(rest)} policies", [_board(rest)]))
    return Section(heading, blocks, "policies")


def ranked(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows with their rank, best first: those that are shown, and the others."""
    order = sorted(rows, key=lambda row: (-_value(row, "mean_utility", -np.inf), str(row.get("policy"))))
    views = [{**row, "rank": place + 1, "on_time": row.get("on_time", row.get("on_time_share"))}
             for place, row in enumerate(order)]  # fmt: skip
    top = [row for row in views if row["rank"] <= TOP_POLICIES or is_baseline(row)]
    return top, [row for row in views if not (row["rank"] <= TOP_POLICIES or is_baseline(row))]


def is_baseline(row: Mapping[str, Any]) -> bool:
    """Whether a row of the leaderboard is that of a baseline."""
    return row.get("policy") in BASELINES


def _board(rows: Sequence[Mapping[str, Any]]) -> Table:
    return Table("", rows, {"rank": "rank", **columns_of(BOARD)}, marked=is_baseline)


def utilities_figure(rows: Sequence[Mapping[str, Any]], bound: float | None) -> Figure:
    """Mean utility per policy as dots, the best at the top; baselines are squares, ``bound`` (hindsight) is a line.

    The axis is that of the policies that compete; a value far below them stands at its left edge with its number.
    """
    values = np.array([_value(row, "mean_utility") for row in rows])
    low, high = utility_range(values, np.array([is_baseline(row) for row in rows]), bound)
    points = [
        {
            "label": text(row.get("policy")),
            "value": max(value, low),
            "kind": "baseline" if is_baseline(row) else "policy",
            "beyond": number(value, 3) if value < low else None,
        }
        for row, value in zip(rows, values, strict=True)
    ]
    axis = Axis(title="mean utility, in units of the on-demand-only cost", low=low, high=high)
    spec = dots(
        points, [point["label"] for point in points], x=axis, bound=bound,
        kinds={"policy": "series1", "baseline": "on-demand"},
    )  # fmt: skip
    line = " The dashed green line is the hindsight optimum." if bound is not None else ""
    return Figure(
        specs=[spec], label="Mean utility of policies", width=620,
        captions=[
            f"Squares are baselines.{line} The best {len(rows)} policies and baselines are drawn; the axis does not "
            "start at 0."
        ],
    )  # fmt: skip


def utility_range(utility: np.ndarray, baseline: np.ndarray, bound: float | None) -> tuple[float, float]:
    """Ends of the utility axis.

    It holds all values but those further below the non-baselines than the lowest of these is below the best (or hindsight).
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


def common_bound(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean utility of hindsight, if every policy was scored on the same jobs (else utility plus gap differ)."""
    bounds = [_value(row, "mean_utility") + _value(row, "gap_to_hindsight") for row in rows]
    finite = [b for b in bounds if np.isfinite(b)]
    return finite[0] if finite and max(finite) - min(finite) < 1e-3 else None


def board_summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Who has the best mean utility, and what the baselines have; ``rows`` are those of `ranked`."""
    best = min(rows, key=lambda row: row["rank"])
    sentence = f"{text(best.get('policy'))} has the best mean utility, {number(best.get('mean_utility'), 3)}"
    others = [
        f"{row['policy']} {number(row.get('mean_utility'), 3)} (rank {row['rank']})"
        for row in rows
        if is_baseline(row) and row is not best
    ]
    return sentence + (f"; the baselines: {listed(others)}." if others else ".")


def weights_section(weights: pd.DataFrame, round_jobs: Sequence[str]) -> Section:
    """The chart of the weights, and every change of the leader with the job after which it came.

    Raises `InputError` if the jobs are not as many as the rounds.
    """
    heading = "Trust in the policies over time"
    if weights.empty:
        none = "No round of selection yet: all policies are trusted alike until the first job ends."
        return Section(heading, [none], "weights")
    if len(round_jobs) != len(weights):
        raise InputError(
            f"{len(round_jobs)} round jobs for {len(weights)} rounds of weights", expected="one a round"
        )
    values, names = weights.to_numpy(dtype=float), [str(column) for column in weights.columns]
    leaders = leaders_of(values)
    told = changes_told(names, leaders, round_jobs)
    blocks: list[Block] = [
        weights_summary(names, values, leaders)
        + " After each job that ends, every policy is replayed on it, and weight moves to those that did better.",
        weights_figure(names, values, leaders),
    ]
    if told:
        blocks += [
            "Changes of the leader, numbered as in the drawing:",
            Notes(told[:TOP_CHANGES], ordered=True),
        ]
    else:
        blocks.append("The leader has not changed.")
    if told[TOP_CHANGES:]:
        more = Notes(told[TOP_CHANGES:], ordered=True, start=TOP_CHANGES + 1)
        blocks.append(Fold(f"{len(told) - TOP_CHANGES} later changes", [more]))
    return Section(heading, blocks, "weights")


def changes_told(names: Sequence[str], leaders: Sequence[int], round_jobs: Sequence[str]) -> list[str]:
    """Every change of the leader, with the job after which it came."""
    return [
        f"round {k + 1} ({round_jobs[k]}): {names[leaders[k]]} takes the lead from {names[leaders[k - 1]]}"
        for k in changes_of(leaders)
    ]


def changes_of(leaders: Sequence[int]) -> list[int]:
    """Rounds (from 0) after which another policy leads than before."""
    return [k for k in range(1, len(leaders)) if leaders[k] != leaders[k - 1] and leaders[k - 1] >= 0]


def weights_figure(names: Sequence[str], values: np.ndarray, leaders: Sequence[int]) -> Figure:
    """Weights in percent over rounds; the sum of all other policies in a chart of its own above.

    A chart of its own, because at first nearly all weight is in it and the lines would lie on the axis.
    """
    drawn = shown_policies(values, leaders)
    labels = {j: f"{names[j]} ({percent(values[-1, j])})" for j in drawn}
    rounds = np.arange(1, len(values) + 1)
    rows = [
        {"x": int(k), "y": 100 * value, "series": labels[j]}
        for j in drawn
        for k, value in zip(rounds, values[:, j], strict=True)
    ]
    marks = [{"x": k + 1, "text": str(i + 1)} for i, k in enumerate(changes_of(leaders)[:TOP_CHANGES])]
    axis = Axis(title="round (one job that ended)", whole=True, low=1, high=len(values), ticks=12)
    specs = [
        lines(
            rows,
            list(labels.values()),
            x=axis,
            y=Axis(title="weight, %"),
            marks=marks,
            points=len(values) < 30,
            height=200,
        )
    ]
    if len(drawn) < len(names):
        rest = 100 * np.delete(values, drawn, axis=1).sum(axis=1)
        shared = [{"x": int(k), "y": value} for k, value in zip(rounds, rest, strict=True)]
        title = Axis(title="all other policies together, %", low=0, high=100, ticks=2)
        specs.insert(0, area(shared, x=Axis(whole=True, low=1, high=len(values)), y=title))
    return Figure(specs=specs, label="Weights of policies over rounds")


def leaders_of(values: np.ndarray) -> list[int]:
    """Column of the leader after each round, -1 while all weights tie; who leads keeps the lead in a tie. ``values``: (K, M)."""
    leaders, current = [], -1
    for row in values:
        best = float(row.max())
        ahead = np.flatnonzero(row >= best - 1e-12)
        if ahead.size < row.size or row.size == 1:
            current = current if current in ahead else int(ahead[0])
        leaders.append(current)
    return leaders


def shown_policies(values: np.ndarray, leaders: Sequence[int]) -> list[int]:
    """Columns of the policies drawn as lines: the newest leaders, then the heaviest in the last round; at most `TOP_WEIGHTS`."""
    led = [j for j in dict.fromkeys(reversed(leaders)) if j >= 0][: TOP_WEIGHTS // 2]
    heaviest = [int(j) for j in np.argsort(-values[-1], kind="stable")]
    chosen = list(dict.fromkeys(led + heaviest))[:TOP_WEIGHTS]
    return sorted(chosen, key=heaviest.index)


def weights_summary(names: Sequence[str], values: np.ndarray, leaders: Sequence[int]) -> str:
    """Who leads with what weight, and how often that changed."""
    changes = len(changes_of(leaders))
    rounds = plural(len(leaders), "round")
    if leaders[-1] < 0:
        return f"After {rounds} all policies weigh the same: there is no leader yet."
    weight = percent(values[-1, leaders[-1]])
    changed = (
        "never changed" if changes == 0 else "changed once" if changes == 1 else f"changed {changes} times"
    )
    return f"After {rounds} {names[leaders[-1]]} leads with {weight} of the weight; the leader {changed}."
