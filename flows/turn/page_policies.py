"""What the report shows of the policies: the leaderboard and the weights over rounds (M5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from flows.show.drawings import Line, Mark, draw_utilities, draw_weights
from flows.show.format import as_number, listed, number, percent, plural, text
from warehouse.errors import InputError

#: The policies without forecasts that every other one must beat (M4.1-M4.3).
BASELINES: Final = ("OD-only", "MSU", "UP")
#: Rows of the leaderboard, lines of the weights and changes of the leader shown without unfolding.
TOP_POLICIES, TOP_WEIGHTS, TOP_CHANGES = 15, 8, 8


def leaderboard_view(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The best `TOP_POLICIES`, the baselines wherever they stand, the rest to unfold, and the drawing of the first two."""
    order = sorted(rows, key=lambda row: (-_value(row, "mean_utility", -np.inf), str(row.get("policy"))))
    views = [_policy_row(i + 1, row) for i, row in enumerate(order)]
    top = [v for v in views if v["rank"] <= TOP_POLICIES or v["baseline"]]
    rest = [v for v in views if not (v["rank"] <= TOP_POLICIES or v["baseline"])]
    drawn = [v for v in top if np.isfinite(v["utility_value"])]
    svg = None
    if drawn:
        svg = draw_utilities(
            [v["policy"] for v in drawn],
            np.array([v["utility_value"] for v in drawn]),
            baseline=[v["baseline"] for v in drawn],
            bound=_common_bound(order),
            name="utilities",
        )
    return {
        "top": top, "rest": rest, "svg": svg, "summary": _board_summary(views) if drawn else "",
        "bound": _common_bound(order),
    }  # fmt: skip


def _value(row: Mapping[str, Any], key: str, default: float = float("nan")) -> float:
    value = as_number(row.get(key))
    return default if value is None else value


def _policy_row(rank: int, row: Mapping[str, Any]) -> dict[str, Any]:
    cost = number(row.get("mean_cost_usd"))
    return {
        "rank": rank,
        "policy": text(row.get("policy")),
        "baseline": row.get("policy") in BASELINES,
        "jobs": text(row.get("jobs")),
        "utility": number(row.get("mean_utility"), 3),
        "utility_value": _value(row, "mean_utility"),
        "cost": cost,
        "on_time": percent(row.get("on_time", row.get("on_time_share"))),
        "gap": number(row.get("gap_to_hindsight"), 3),
        "weight": percent(row.get("weight")),
    }


def _common_bound(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean utility of hindsight, if every policy was scored on the same jobs (else utility plus gap differ)."""
    bounds = [_value(row, "mean_utility") + _value(row, "gap_to_hindsight") for row in rows]
    finite = [b for b in bounds if np.isfinite(b)]
    return finite[0] if finite and max(finite) - min(finite) < 1e-3 else None


def _board_summary(views: Sequence[Mapping[str, Any]]) -> str:
    best = views[0]
    sentence = f"{best['policy']} has the best mean utility, {best['utility']}"
    others = [
        f"{v['policy']} {v['utility']} (rank {v['rank']})" for v in views if v["baseline"] and v is not best
    ]
    return sentence + (f"; the baselines: {listed(others)}." if others else ".")


def weights_view(weights: pd.DataFrame, round_jobs: Sequence[str]) -> dict[str, Any]:
    """The drawing of the weights, its legend, and every change of the leader with the job after which it came.

    Raises `InputError` if the jobs are not as many as the rounds.
    """
    if weights.empty:
        return {"svg": None, "legend": [], "changes": [], "more": [], "summary": ""}
    if len(round_jobs) != len(weights):
        raise InputError(
            f"{len(round_jobs)} round jobs for {len(weights)} rounds of weights", expected="one a round"
        )
    values = weights.to_numpy(dtype=float)
    names = [str(column) for column in weights.columns]
    leaders = leaders_of(values)
    changes = [k for k in range(1, len(leaders)) if leaders[k] != leaders[k - 1] and leaders[k - 1] >= 0]
    shown = shown_policies(values, leaders)
    rest = np.delete(values, shown, axis=1).sum(axis=1) if len(shown) < len(names) else None
    lines = [Line(label=names[j], y=values[:, j], style=i) for i, j in enumerate(shown)]
    marks = [Mark(x=k + 1, text=str(i + 1)) for i, k in enumerate(changes[:TOP_CHANGES])]
    told = [
        f"round {k + 1} ({round_jobs[k]}): {names[leaders[k]]} takes the lead from {names[leaders[k - 1]]}"
        for k in changes
    ]
    return {
        "svg": draw_weights(lines, rest, marks, name="weights"),
        "legend": [{"label": line.label, "style": line.style, "value": percent(line.y[-1])} for line in lines],
        "changes": told[:TOP_CHANGES], "more": told[TOP_CHANGES:],
        "summary": _weights_summary(names, values, leaders, len(changes)),
    }  # fmt: skip


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


def _weights_summary(names: Sequence[str], values: np.ndarray, leaders: Sequence[int], changes: int) -> str:
    rounds = plural(len(leaders), "round")
    if leaders[-1] < 0:
        return f"After {rounds} all policies weigh the same: there is no leader yet."
    weight = percent(values[-1, leaders[-1]])
    changed = (
        "never changed" if changes == 0 else "changed once" if changes == 1 else f"changed {changes} times"
    )
    return f"After {rounds} {names[leaders[-1]]} leads with {weight} of the weight; the leader {changed}."
