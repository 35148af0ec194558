"""What the report says of decisions, markets and ingested rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from flows.ledger.fields import DECISION, columns_of
from flows.show.blocks import Block, Column, Grid, Section, Table
from flows.show.figure import Figure
from flows.show.formats import (
    MISSING,
    as_number,
    duration,
    missing,
    number,
    percent,
    plural,
    price,
    text,
    utc,
    whole,
)
from flows.turn.panels import MarketPanel, market_charts, panel_step, shown_past

#: Probability of lateness from which a decision is marked.
WORRYING, LIKELY = 0.1, 0.5


def decisions_section(decisions: Sequence[Mapping[str, Any]]) -> Section:
    """The decision table and one sentence that sums it up."""
    if not decisions:
        return Section("What to hold", ["No job is open, so there is nothing to decide."], "decisions")
    table = Table("", [_decision_row(row) for row in decisions], columns_of(DECISION), cards=True)
    note = (
        "Expected cost, finish and lateness come from sampled futures of price and availability; the cost is that of the "
        "whole job, what was paid before this slot included."
    )
    return Section("What to hold", [decisions_summary(decisions), table, note], "decisions")


def decisions_summary(decisions: Sequence[Mapping[str, Any]]) -> str:
    """What is held in all, at what cost, and which jobs are in danger."""
    on_demand, spot = (
        sum(int(as_number(row.get(key)) or 0) for row in decisions) for key in ("on_demand", "spot")
    )
    costs = [cost for row in decisions if (cost := as_number(row.get("expected_cost_usd"))) is not None]
    return (
        f"{plural(len(decisions), 'job')}: hold {plural(on_demand, 'on-demand instance')} and "
        f"{plural(spot, 'spot instance')} in the slot named below. "
        f"Expected cost, from start to end: {number(sum(costs)) + ' USD' if costs else MISSING}. "
    ) + _lateness(decisions)


def _lateness(decisions: Sequence[Mapping[str, Any]]) -> str:
    chances = [as_number(row.get("late_probability")) for row in decisions]
    late, unknown = sum((chance or 0.0) >= WORRYING for chance in chances), chances.count(None)
    sentence = (
        f"{plural(late, 'job')} may miss the deadline." if late else "No job is in danger of being late."
    )
    if unknown == len(chances):
        return "Whether the deadline will be met was not estimated."
    return sentence + (f" For {plural(unknown, 'job')} this was not estimated." if unknown else "")


def _decision_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its risk in words, and all that stands behind it as one text."""
    late = row.get("late_probability")
    chance = as_number(late) or 0.0
    risk = " (likely late)" if chance >= LIKELY else " (at risk)" if chance >= WORRYING else ""
    model, status = forecaster_told(row), row.get("status")
    parts = [
        text(row.get("reason")),
        f"forecast: {model}" if model else "",
        "" if missing(status) else f"solver: {status}",
        synthetic_told(row.get("synthetic")),
    ]
    why = "; ".join(part for part in parts if part)
    return {**row, "late_probability": percent(late) + risk, "reason": why}


def forecaster_told(row: Mapping[str, Any]) -> str:
    """The forecaster behind a decision, and why a simpler one answered for it if that is so."""
    model, fallback = row.get("model") or row.get("forecaster"), row.get("fallback")
    if missing(model):
        return "" if missing(fallback) else str(fallback)
    return str(model) if missing(fallback) else f"{model} (fell back: {fallback})"


def synthetic_told(value: Any) -> str:
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


def markets_section(
    panels: Sequence[MarketPanel], decisions: Sequence[Mapping[str, Any]], at: pd.Timestamp
) -> Section:
    """The charts of the markets, those a decision was made for first."""
    heading = "Markets: what was observed, what is forecast"
    if not panels:
        return Section(heading, ["No market is followed yet; ingest a history to see one."], "markets")
    held = [
        [f"{text(row.get('job'))}: {_holding(row)}" for row in decisions if decided_for(panel, row)]
        for panel in panels
    ]
    shown = [(_panel_figure(panel, own, at), bool(own)) for panel, own in zip(panels, held, strict=True)]
    blocks: list[Block] = [
        "Above, the spot price; below, how many instances one could have held. The solid line is what was observed, a grey "
        "field a gap. The dotted vertical line is where the forecast begins, blue its median: half of the time the truth "
        "should lie in the darkest band, nine times in ten within the lightest. Dashed lines are the on-demand price "
        "(orange) and the capacity, the most one could see (green).",
    ]
    for title, decided in (("With a decision now", True), ("Followed, no decision now", False)):
        group = [figure for figure, has in shown if has == decided]
        if group:
            blocks.append(Section(title, [Grid(group)]))
    return Section(heading, blocks, "markets")


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


def _panel_figure(panel: MarketPanel, held: Sequence[str], at: pd.Timestamp) -> Figure:
    """The charts of a market with what is to be known of them."""
    facts = f"on-demand {price(panel.on_demand_usd)} USD per instance-hour; capacity {panel.capacity}"
    label = f"{panel.title}: spot price and instances available"
    warnings = [f"synthetic: {'; '.join(panel.assumptions)}"] if panel.assumptions else []
    source = [f"source {panel.source}"] if panel.source else []
    if len(panel.slots) == 0:
        why = "No slot was observed yet, so there is nothing to draw."
        return Figure(
            specs=[], label=label, title=panel.title, warnings=warnings, strong=held,
            captions=["; ".join([facts, *source])], why=why, width=0,
        )  # fmt: skip
    past, step = shown_past(panel), panel_step(panel)
    no_price, no_count = np.isnan(panel.price[past]), np.isnan(panel.available[past])
    facts += f"; past {duration(step * no_price.size)} in slots of {duration(step)}"
    gaps = _gap_text(no_price, no_count)
    captions = [
        *_remarks(panel.slots[-1], step, at, bool(no_price.all() and no_count.all())),
        _forecast_told(panel, step),
        "; ".join([facts, *source, *([gaps] if gaps else [])]),
    ]
    return Figure(
        specs=market_charts(panel), label=label, title=panel.title, warnings=warnings, strong=held, captions=captions, width=0
    )  # fmt: skip


def _forecast_told(panel: MarketPanel, step: pd.Timedelta) -> str:
    forecast = panel.forecast
    if forecast is None:
        return "No forecast was issued for this market."
    told = f"forecast by {forecast.predictor}, {duration(step * forecast.horizon)} ahead, issued {utc(forecast.issued_at)}"
    return f"{told}; fell back ({forecast.fallback})" if forecast.fallback else told


def _remarks(last: pd.Timestamp, step: pd.Timedelta, at: pd.Timestamp, all_gap: bool) -> Iterator[str]:
    if all_gap:
        yield "Nothing was observed in any of these slots: they are all gaps."
    if at - last > step:
        yield f"The record ends at {utc(last)}; the market is taken at that time."


def _gap_text(price: np.ndarray, count: np.ndarray) -> str:
    parts = [f"{word} {int(m.sum())}" for word, m in (("price", price), ("count", count)) if m.any()]
    return f"slots not observed (of {price.size}): {', '.join(parts)}" if parts else ""


def ingest_section(ingested: Mapping[str, Mapping[str, int]]) -> Section:
    """Counts of rows by source; the usual columns first, any other after them."""
    usual = [c for c in ("added", "repeated", "rejected") if any(c in counts for counts in ingested.values())]
    others = sorted({c for counts in ingested.values() for c in counts} - set(usual))
    columns = {"source": "Source"} | {
        name: Column(heading=f"Rows {name}", format=whole) for name in usual + others
    }
    rows = [{**counts, "source": source} for source, counts in ingested.items()]
    table = Table("", rows, columns, empty="Nothing was read in this run.")
    return Section("Data read in this run", [table], "ingest")
