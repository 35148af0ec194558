"""What the report shows of decisions, markets and ingested rows, as plain texts and drawings; the template lays them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from flows.show.drawings import LINES, MarketPanel, draw_market, panel_step, shown_past
from flows.show.format import MISSING, as_number, duration, missing, number, percent, plural, price, text, utc

#: Probability of lateness from which a decision is marked.
WORRYING, LIKELY = 0.1, 0.5


def decisions_view(decisions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The decision table and one sentence that sums it up."""
    rows = [_decision_row(row) for row in decisions]
    on_demand, spot = (
        sum(int(as_number(row.get(k)) or 0) for row in decisions) for k in ("on_demand", "spot")
    )
    costs = [c for c in (as_number(row.get("expected_cost_usd")) for row in decisions) if c is not None]
    summary = (
        f"{plural(len(rows), 'job')}: hold {plural(on_demand, 'on-demand instance')} and "
        f"{plural(spot, 'spot instance')} in the slot named below. "
        f"Expected cost, from start to end: {number(sum(costs)) + ' USD' if costs else MISSING}. "
    )
    return {"rows": rows, "summary": summary + _lateness(rows)}


def _lateness(rows: Sequence[Mapping[str, Any]]) -> str:
    late, unknown = sum(row["risk"] != "" for row in rows), sum(row["late"] == MISSING for row in rows)
    sentence = (
        f"{plural(late, 'job')} may miss the deadline." if late else "No job is in danger of being late."
    )
    if unknown == len(rows):
        return "Whether the deadline will be met was not estimated."
    return sentence + (f" For {plural(unknown, 'job')} this was not estimated." if unknown else "")


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
        "model": _forecaster(row),
        "status": "" if missing(row.get("status")) else str(row["status"]),
    }


def _forecaster(row: Mapping[str, Any]) -> str:
    """The forecaster behind a decision, and why a simpler one answered for it if that is so."""
    model, fallback = row.get("model") or row.get("forecaster"), row.get("fallback")
    if missing(model):
        return "" if missing(fallback) else str(fallback)
    return str(model) if missing(fallback) else f"{model} (fell back: {fallback})"


def _synthetic(value: Any) -> str:
    """The label of a decision on assumed data: ``value`` is the list of assumptions, or just True or False."""
    if missing(value) or value is False:
        return ""
    if isinstance(value, str):
        return f"synthetic: {value}"
    return "synthetic" if value is True else "synthetic: " + "; ".join(str(a) for a in value)


def slot_length(panels: Sequence[MarketPanel]) -> str:
    """The length of a slot in words, "" when the markets differ or there is none."""
    steps = {panel_step(panel) for panel in panels}
    return duration(steps.pop()) if len(steps) == 1 else ""


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
