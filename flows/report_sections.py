"""What each section of the report page shows, as plain texts and drawings; the template only lays them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from flows.plots import LINES, Line, Mark, draw_market, draw_utilities, draw_weights, panel_step, shown_past
from flows.report_data import MarketPanel
from flows.report_format import (
    MISSING,
    as_number,
    duration,
    listed,
    missing,
    number,
    percent,
    plural,
    price,
    text,
    utc,
)
from warehouse.errors import InputError

#: The policies without forecasts that every other one must beat (M4.1-M4.3).
BASELINES: Final = ("OD-only", "MSU", "UP")
#: Rows of the leaderboard, lines of the weights and changes of the leader shown without unfolding.
TOP_POLICIES, TOP_WEIGHTS, TOP_CHANGES = 15, 8, 8
#: Probability of lateness from which a decision is marked.
WORRYING, LIKELY = 0.1, 0.5


def decisions_view(decisions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The decision table and one sentence that sums it up."""
    rows = [_decision_row(row) for row in decisions]
    on_demand, spot = (
        sum(int(as_number(row.get(k)) or 0) for row in decisions) for k in ("on_demand", "spot")
    )
    costs = [c for c in (as_number(row.get("expected_cost_usd")) for row in decisions) if c is not None]
    late = sum(row["risk"] != "" for row in rows)
    summary = (
        f"{plural(len(rows), 'job')}: hold {plural(on_demand, 'on-demand instance')} and "
        f"{plural(spot, 'spot instance')} in the slot named below. Expected cost of these jobs, from start to end: "
        f"{number(sum(costs)) + ' USD' if costs else MISSING}. "
    )
    summary += (
        f"{plural(late, 'job')} may miss the deadline." if late else "No job is in danger of being late."
    )
    return {"rows": rows, "summary": summary}


def _decision_row(row: Mapping[str, Any]) -> dict[str, Any]:
    late = row.get("late_probability")
    chance = as_number(late) or 0.0
    risk = "likely late" if chance >= LIKELY else "at risk" if chance >= WORRYING else ""
    cost = number(row.get("expected_cost_usd"))
    return {
        "job": text(row.get("job")),
        "market": text(row.get("market")),
        "slot": utc(row.get("slot")),
        "on_demand": text(row.get("on_demand")),
        "spot": text(row.get("spot")),
        "policy": text(row.get("policy")),
        "reason": text(row.get("reason")),
        "cost": cost if cost == MISSING else f"{cost} USD",
        "finish": utc(row.get("expected_finish")),
        "late": percent(late),
        "risk": risk,
        "deadline": "" if missing(row.get("deadline")) else utc(row["deadline"]),
        "synthetic": _synthetic(row.get("synthetic")),
        "model": "" if missing(row.get("model")) else str(row["model"]),
        "status": "" if missing(row.get("status")) else str(row["status"]),
    }


def _synthetic(value: Any) -> str:
    """The label of a decision on assumed data: ``value`` is the list of assumptions, or just True or False."""
    if missing(value) or value is False:
        return ""
    if isinstance(value, str):
        return f"synthetic: {value}"
    return "synthetic" if value is True else "synthetic: " + "; ".join(str(a) for a in value)


def markets_view(
    panels: Sequence[MarketPanel], decisions: Sequence[Mapping[str, Any]], at: pd.Timestamp
) -> dict[str, Any]:
    """The drawings of the markets, those a decision was made for first."""
    shown = []
    for i, panel in enumerate(panels):
        held = [f"{text(row.get('job'))}: {_holding(row)}" for row in decisions if decided_for(panel, row)]
        shown.append(_panel(panel, name=f"market-{i + 1}", at=at) | {"held": held})
    return {
        "groups": [
            {"title": title, "panels": group}
            for title, group in (
                ("With a decision now", [p for p in shown if p["held"]]),
                ("Followed, no decision now", [p for p in shown if not p["held"]]),
            )
            if group
        ],
        "gaps": any(p["gaps"] for p in shown),
        "synthetic": any(p["assumptions"] for p in shown),
    }


def decided_for(panel: MarketPanel, row: Mapping[str, Any]) -> bool:
    """Whether a decision row is about a panel's market: the same market key, and the same source where both name one."""
    market, _, source = str(row.get("market") or "").partition("@")
    source = source or str(row.get("source") or "")
    keys = {panel.title.partition("@")[0].strip()}
    if panel.forecast is not None:
        keys.add(panel.forecast.market.key)
    return market in keys and (not source or not panel.source or source == panel.source)


def _holding(row: Mapping[str, Any]) -> str:
    return f"hold {text(row.get('on_demand'))} on-demand + {text(row.get('spot'))} spot"


def _panel(panel: MarketPanel, *, name: str, at: pd.Timestamp) -> dict[str, Any]:
    slots, forecast = panel.slots, panel.forecast
    view: dict[str, Any] = {
        "title": panel.title, "source": panel.source, "assumptions": panel.assumptions, "svg": None, "gaps": "",
        "facts": f"on-demand {price(panel.on_demand_usd)} USD per instance-hour; capacity {panel.capacity}",
        "remarks": [], "forecast": "No forecast was issued for this market.",
    }  # fmt: skip
    if len(slots) == 0:
        return view | {"remarks": ["No slot was observed yet, so there is nothing to draw."], "forecast": ""}
    past, step = shown_past(panel), panel_step(panel)
    no_price, no_count = np.isnan(panel.price[past]), np.isnan(panel.available[past])
    view["gaps"] = _gap_text(no_price, no_count)
    view["remarks"] = list(_remarks(slots[-1], step, at, bool(no_price.all() and no_count.all())))
    view["facts"] += f"; past {duration(step * no_price.size)} in slots of {duration(step)}"
    view["svg"] = draw_market(panel, name=name)
    if forecast is not None:
        ahead = duration(step * forecast.horizon)
        view["forecast"] = (
            f"forecast by {forecast.predictor}, {ahead} ahead, issued {utc(forecast.issued_at)}"
        )
        if forecast.fallback:
            view["forecast"] += f"; fell back ({forecast.fallback})"
    return view


def _remarks(last: pd.Timestamp, step: pd.Timedelta, at: pd.Timestamp, all_gap: bool) -> Iterator[str]:
    if all_gap:
        yield "Nothing was observed in any of these slots: they are all gaps."
    if at - last > step:
        yield f"The record ends at {utc(last)}; the market is taken at that time."


def _gap_text(price: np.ndarray, count: np.ndarray) -> str:
    parts = [f"{word} {int(m.sum())}" for word, m in (("price", price), ("count", count)) if m.any()]
    return f"slots not observed (of {price.size}): {', '.join(parts)}" if parts else ""


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


def ingest_view(ingested: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Counts of rows by source; the usual columns first, any other after them."""
    usual = [c for c in ("added", "repeated", "rejected") if any(c in counts for counts in ingested.values())]
    others = sorted({c for counts in ingested.values() for c in counts} - set(usual))
    rows = [(source, [_count(counts.get(c)) for c in usual + others]) for source, counts in ingested.items()]
    return {"columns": usual + others, "rows": rows}


def _count(value: Any) -> str:
    return number(value, 0)


def line_swatch(style: int) -> dict[str, str]:
    """Colour property and SVG dash pattern of a line style, for the legends."""
    if style < 0:
        return {"colour": "ink", "dash": "", "width": "3"}
    colour, dash, _ = LINES[style % len(LINES)]
    pattern = " ".join(str(2 * v) for v in dash[1]) if isinstance(dash, tuple) else ""
    return {"colour": colour, "dash": pattern, "width": "2"}
