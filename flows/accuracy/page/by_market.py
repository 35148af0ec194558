"""Sections by market: predictability, issued forecasts with the observations, and loss over time with drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.accuracy.page.sections import (
    COMPARED,
    LAST_VALUE,
    UNITS,
    Models,
    Predictability,
    claims,
    claims_summary,
    market_skills,
    of,
    of_variables,
    over_steps,
    shown_steps,
    skill_at,
    skill_cell,
    skill_text,
    tone,
    weighted,
)
from slackwater.flows.show.blocks import Block, Column, Figure, Figures, Fold, Notes, Section, Table
from slackwater.flows.show.charts import Axis, Fan, fans, held, lines
from slackwater.flows.show.formats import (
    MISSING,
    fixed,
    listed,
    missing,
    number,
    percent,
    plural,
    significant,
    whole,
)
from slackwater.flows.show.skills import ABOUT_VERDICTS, compared
from slackwater.flows.turn.report import BANDS, MEDIAN, gap_runs
from slackwater.forecasting.accuracy.tables import QUANTILES, Accuracy

#: Maximum number of rows in the market table on a terminal.
ON_TERMINAL: Final = 40
#: Maximum number of charts (markets with the highest loss), and how many of them are not folded.
MOST_DRAWN: Final = 40
OPEN: Final = 6
#: Forecasts drawn side by side for a market, and the gap between two of them in slots.
FANS: Final = 4
APART: Final = 1.6
#: Maximum number of drift marks described for a market; if there are more, only their times are
#: listed.
TOLD: Final = 2
_DAY: Final = pd.Timedelta(days=1)


def markets_section(accuracy: Accuracy) -> Section:
    """Return the section on every market: the models side by side, and whether the paper's claim of predictability holds (M6.7)."""
    return of_variables(
        "4. Every market: is it predictable?",
        "markets",
        accuracy.scores,
        lambda variable: _market_blocks(variable, accuracy),
        "The claim to test: spot price and availability can be predicted a few slots ahead (arXiv "
        "2512.20967). It is answered yes up to step k where some model beats last value beyond chance at "
        "every step 1 to k (Diebold and Mariano’s test, p-values adjusted by Holm for all models and steps "
        "tried on that market).",
    )


def _market_blocks(variable: str, accuracy: Accuracy) -> list[Block]:
    """Return the table of markets (most predictable first), and for each market a table of all models by step."""
    scores = of(accuracy.scores, variable)
    models = Models.of(scores["model"].astype(str), accuracy.default)
    skills, means = market_skills(of(accuracy.daily, variable)), over_steps(scores, ["pinball"])
    skill = skills["skill_pinball"].unstack("model").reindex(scores["market"].unique())
    cells = {key: skill_cell(row) for key, row in skills.to_dict("index").items()}
    beside = [
        m for m in dict.fromkeys([*COMPARED[1:], models.default]) if m in skill.columns and m != LAST_VALUE
    ]
    order = skill[models.default] if models.default in skill.columns else skill.max(axis=1)
    names = sorted(scores["market"].unique(), key=lambda m: (pd.isna(order[m]), -order.fillna(0)[m], m))
    groups = dict(iter(scores.groupby("market")))
    found = claims(scores, models)
    rows = [
        {
            "market": market,
            "n": int(means["n"].xs(market, level="market").max()),
            "days": int(groups[market]["days"].max()),
            "last": _first_error(groups[market], LAST_VALUE),
            "own": _first_error(groups[market], models.default),
            **{f"skill_{model}": cells.get((market, model)) for model in beside},
            "claim": found[market].short,
        }
        for market in names
    ]
    unit = UNITS[variable]
    columns: dict[str, Column | str] = {
        "market": "market",
        "n": Column(heading="forecasts", format=whole),
        "days": Column(heading="days", format=whole, words="Days with errors: the blocks of the interval."),
        "last": Column(heading="error of last value at 1 slot", unit=unit, format=significant),
        "own": Column(heading="error of the default at 1 slot", unit=unit, format=significant),
        **{
            f"skill_{model}": Column(heading=f"skill of {models.title(model)}", unit="%", format=skill_text, tone=tone)
            for model in beside
        },
        "claim": "predictable?",
    }  # fmt: skip
    steps = shown_steps(scores["step"])
    details = [
        block
        for market in names
        for block in _details(market, groups[market], found[market], models, steps, unit)
    ]
    return [
        claims_summary(variable, list(found.values())),
        Table("", rows, columns, sortable=True, most=ON_TERMINAL),
        "Skill over last value, all steps together: shaded from 0.5, 10 and 25 % on, blue where better than "
        f"last value, orange where worse. {ABOUT_VERDICTS} — means undefined: last value made no error.",
        Fold(
            f"All models side by side, by step, for each of {plural(len(rows), 'market')}",
            [*details, ABOUT_VERDICTS],
        ),
    ]  # fmt: skip


def _first_error(rows: pd.DataFrame, model: str) -> float | None:
    own = rows[rows["model"] == model].sort_values("step")
    return float(own["mae"].iloc[0]) if len(own) else None


def _details(
    market: str, rows: pd.DataFrame, claim: Predictability, models: Models, steps: Sequence[int], unit: str
) -> list[Block]:
    """Return the table of a market with a row per model (errors and skills by step, calibration,
    fallbacks), and the answer to the claim.
    """
    table = []
    for model in models.names:
        own = rows[rows["model"] == model].set_index("step").sort_index()
        if own.empty:
            continue
        table.append(
            {"name": model, "model": models.title(model)}
            | {f"mae_{step}": own["mae"].get(step) for step in steps}
            | {f"skill_{step}": skill_at(own, step) for step in steps}
            | {m: weighted(own, m) for m in ("mase", "coverage_80", "coverage_90", "brier", "fallback_share")}
        )
    counts = bool((rows["variable"] == "count").any())
    columns: dict[str, Column | str] = {
        "model": "model",
        **{f"mae_{step}": Column(heading=f"error at {step}", format=significant) for step in steps},
        **{f"skill_{step}": Column(heading=f"skill at {step}", unit="%", format=skill_text, tone=tone) for step in steps},
        "mase": Column(heading="MASE", format=number),
        "coverage_80": Column(heading="in 80 %", format=percent),
        "coverage_90": Column(heading="in 90 %", format=percent),
        **({"brier": Column(heading="Brier", format=fixed(4))} if counts else {}),
        "fallback_share": Column(heading="fallback", format=percent),
    }  # fmt: skip
    title = f"{market}, errors in {unit}"
    return [Table(title, table, columns, marked=lambda row: row["name"] == LAST_VALUE), claim.sentence]


def by_loss(scores: pd.DataFrame, models: Models) -> list[str]:
    """Return the markets by descending pinball loss of the default in units of the market's scale;
    of all models if it was not scored.
    """
    own = scores[scores["model"] == models.default]
    own = own if len(own) else scores
    loss = (
        (own["pinball"].astype(float) / own["scale"].astype(float).where(own["scale"] > 0))
        .groupby(own["market"])
        .mean()
    )
    every = sorted(scores["market"].unique())
    loss = loss.reindex(every).fillna(-1.0)
    return sorted(every, key=lambda market: (-loss[market], market))


def _grid_blocks(figures: Sequence[Figure], among: int, none: str) -> list[Block]:
    """Return the first `OPEN` figures, the others folded, and the number of markets not drawn."""
    if not figures:
        return [none]
    rest = figures[OPEN:]
    left = among - len(figures)
    return [
        Figures(figures[:OPEN]),
        *([Fold(plural(len(rest), "more market"), [Figures(rest)])] if rest else []),
        *(
            [f"{left:,} markets with less loss are not drawn; their numbers are in the tables."]
            if left
            else []
        ),
    ]


def fans_section(accuracy: Accuracy) -> Section:
    """Return the section with a chart of up to `FANS` forecasts of the default for every market, highest loss first."""

    def drawn(variable: str) -> list[Block]:
        figures, among = fan_figures(variable, accuracy)
        return _grid_blocks(figures, among, "No forecast of the default was kept to be drawn.")

    return of_variables(
        "6. Forecasts as they were issued, and what came",
        "fans",
        accuracy.scores,
        drawn,
        "Each drawing holds a few forecasts of the default model, evenly spread over the test part of one "
        "market; the dotted line is where each was issued. The ink line is what was observed, grey fields "
        "are gaps; blue is the forecast’s median with its 50, 80 and 90 % bands, the dashed line the "
        "capacity. Half of the time the ink line should run in the darkest band, nine times in ten within "
        "the lightest. Markets with the most loss come first; the skill of each stands below it.",
    )


def fan_figures(variable: str, accuracy: Accuracy) -> tuple[list[Figure], int]:
    """Return the charts of at most `MOST_DRAWN` markets, and the number of markets with forecasts."""
    scores = of(accuracy.scores, variable)
    models = Models.of(scores["model"].astype(str), accuracy.default)
    issued = of(accuracy.fans, variable)
    groups = dict(iter(issued[issued["model"] == models.default].groupby("market")))
    skills = market_skills(of(accuracy.daily, variable)).to_dict("index")
    limits = scores.groupby("market")["capacity"].max() if variable == "count" else pd.Series(dtype=float)
    drawable = [market for market in by_loss(scores, models) if market in groups]
    figures = []
    for market in drawable[:MOST_DRAWN]:
        shown = market_fans(groups[market])
        own = skills.get((market, models.default))
        figures.append(
            Figure(
                specs=[fans_chart(shown, limit=float(limits.get(market, np.nan)), unit=UNITS[variable])],
                label=f"Forecasts of the {variable} of {market} and what came",
                title=market,
                captions=[f"{_compared(own)}{_inside(shown)}"],
                width=0,
            )
        )
    return figures, len(drawable)


def _compared(row: Mapping[Any, Any] | None) -> str:
    words = "" if row is None else compared(row)
    return f"Compared with last value, all steps: {words}. " if words else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedForecast:
    """An issued forecast with the observations.

    ``quantiles`` has shape (h, 19), ``actual`` (h,) is NaN in gaps; ``title`` is the time of issue.
    ``past`` (p,) are the values up to and including the slot of issue.
    """

    title: str
    quantiles: np.ndarray
    actual: np.ndarray
    past: np.ndarray


def market_fans(rows: pd.DataFrame) -> list[IssuedForecast]:
    """Return the forecasts of a market, evenly selected if there are more than `FANS`."""
    origins = sorted(rows["origin"].unique())
    if len(origins) > FANS:
        places = np.unique(np.linspace(0, len(origins) - 1, FANS).round().astype(int))
        origins = [origins[place] for place in places]
    return [_issued(rows[rows["origin"] == origin].sort_values("step")) for origin in origins]


def _issued(rows: pd.DataFrame) -> IssuedForecast:
    ahead = rows[rows["step"] > 0]
    past = rows.loc[rows["step"] <= 0, "actual"].to_numpy(dtype=float)
    at = pd.Timestamp(rows["origin"].iloc[0])
    return IssuedForecast(
        title=f"{_day(at)} {at:%H:%M}",
        quantiles=ahead[list(QUANTILES)].to_numpy(dtype=float),
        actual=ahead["actual"].to_numpy(dtype=float),
        past=past[-ahead.shape[0] :],
    )


def fans_chart(issued: Sequence[IssuedForecast], *, limit: float, unit: str) -> dict[str, Any]:
    """Return a chart of forecasts of a market, placed side by side; values extend over their whole slot.

    ``limit`` is the capacity (NaN if there is none): it is drawn unless it was exceeded or would
    flatten the rest.
    """
    past: list[dict[str, Any]] = []
    ahead: list[dict[str, Any]] = []
    gaps: list[dict[str, Any]] = []
    starts, ticks = [], []
    left = 0.0
    for k, one in enumerate(issued):
        before, horizon = one.past.size, one.actual.size
        begin = left + before
        path = np.append(one.past, one.actual)
        past += [
            {**row, "of": k, "step": round(row["x"] - begin) + 1}
            for row in held([left + i for i in range(path.size + 1)], path.tolist())
        ]
        gaps += [{"x": left + a, "x2": left + b} for a, b in gap_runs(np.isnan(path))]
        ahead += [
            {"x": begin + i, "x2": begin + i + 1, "median": row[MEDIAN], "step": i + 1}
            | {f"low{band}": row[low] for low, _, band in BANDS}
            | {f"high{band}": row[high] for _, high, band in BANDS}
            for i, row in enumerate(one.quantiles)
        ]
        starts.append({"x": begin, "text": one.title})
        ticks += [{"x": begin + step - 0.5, "text": f"+{step}"} for step in sorted({1, horizon})]
        left = begin + horizon + APART
    panel = Fan(
        title=f"{unit}, by slots ahead", past=past, gaps=gaps, ahead=ahead, limit=drawn_limit(limit, issued),
        limit_colour="on-demand", whole=unit == "instances", height=120,
    )  # fmt: skip
    return fans(panel, starts=starts, ticks=ticks)


def drawn_limit(capacity: float, issued: Sequence[IssuedForecast]) -> float:
    """Return the capacity, or NaN if it should not be drawn.

    It is not drawn if it was exceeded (then it is not a stated capacity, but the maximum before the
    test part) or lies far above the drawn values.
    """
    seen = np.concatenate([np.append(one.past, one.actual) for one in issued])
    if not np.nanmax(seen, initial=0.0) <= capacity:
        return float("nan")
    values = np.concatenate([seen, *(one.quantiles.ravel() for one in issued)])
    low, high = np.nanmin(values, initial=capacity), np.nanmax(values, initial=0.0)
    return capacity if capacity <= low + 2.5 * max(high - low, 1e-9) else float("nan")


def _inside(issued: Sequence[IssuedForecast]) -> str:
    """State how many of the drawn values lie within the 90 % bands."""
    held = [(one.actual >= one.quantiles[:, 0]) & (one.actual <= one.quantiles[:, -1]) for one in issued]
    known = sum(int((~np.isnan(one.actual)).sum()) for one in issued)
    return f"{sum(int(h.sum()) for h in held)} of {known} values drawn lie within the lightest band."


def daily_section(accuracy: Accuracy, drift: pd.DataFrame | None, words: Sequence[str]) -> Section:
    """Return the section on the daily loss of the default and of last value for every market, with drift marks.

    ``drift`` (columns variable, market, at, found) is None if drift was not tested; ``words`` are
    sentences about it.
    """
    looked = drift is not None
    about = (
        "Mean pinball loss of the forecasts issued on each UTC day, all steps together: lower is better, and "
        "a day on which the blue line runs below the ink one is a day won. "
    ) + (
        "A mark ▼ stands at the time when a change could first be told, from nothing later."
        if looked
        else "Drift was not looked for in this run."
    )

    def drawn(variable: str) -> list[Block]:
        marks = None if drift is None else of(drift, variable)
        figures, among = daily_figures(variable, accuracy, marks)
        return _grid_blocks(figures, among, "No loss by day was kept.")

    told: list[Block] = [Notes(words)] if words else []
    heading = f"7. Error over time{', and drift' if looked else ''}"
    return of_variables(heading, "daily", accuracy.scores, drawn, about, *told)


def daily_figures(variable: str, accuracy: Accuracy, drift: pd.DataFrame | None) -> tuple[list[Figure], int]:
    """Return the charts of at most `MOST_DRAWN` markets, and the number of markets with daily
    losses; ``drift`` is that of the variable.
    """
    scores = of(accuracy.scores, variable)
    models = Models.of(scores["model"].astype(str), accuracy.default)
    groups = dict(iter(of(accuracy.daily, variable).groupby("market")))
    drawable = [market for market in by_loss(scores, models) if market in groups]
    figures = []
    for market in drawable[:MOST_DRAWN]:
        losses = _loss_by_day(groups[market])
        marks = [
            mark for mark in _marks(drift, market) if losses.index[0] <= mark["x"] < losses.index[-1] + _DAY
        ]
        figures.append(
            Figure(
                specs=[_daily_chart(losses, models, marks, variable)],
                label=f"Loss by day, {variable} of {market}",
                title=market,
                captions=[_daily_facts(losses, models, marks)],
                width=0,
            )
        )
    return figures, len(drawable)


def _marks(drift: pd.DataFrame | None, market: str) -> list[dict[str, Any]]:
    """Return the times at which a change was first detectable (``x``), with its description (``found``)."""
    if drift is None or drift.empty:
        return []
    own = drift[drift["market"] == market].sort_values("at")
    return [
        {"x": pd.Timestamp(at), "text": "▼", "found": str(found)}
        for at, found in zip(own["at"], own["found"], strict=True)
    ]


def _loss_by_day(rows: pd.DataFrame) -> pd.DataFrame:
    """Return pinball loss by day, from the first to the last (rows; NaN if nothing was issued), and model."""
    table = rows.pivot_table(index="day", columns="model", values="pinball", aggfunc="mean").astype(float)
    days = pd.DatetimeIndex(table.index)
    return table.set_axis(days).reindex(pd.date_range(days.min(), days.max(), freq="D"))


def _daily_chart(
    table: pd.DataFrame, models: Models, marks: Sequence[Mapping[str, Any]], variable: str
) -> dict[str, Any]:
    drawn = [name for name in dict.fromkeys([LAST_VALUE, models.default]) if name in table.columns]
    edges = [*table.index, table.index[-1] + _DAY]
    rows = [
        {**row, "series": models.title(name)} for name in drawn for row in held(edges, table[name].tolist())
    ]
    return lines(
        rows, [models.title(name) for name in drawn], reference=models.title(LAST_VALUE), bold=models.title(models.default),
        x=Axis(), y=Axis(title=f"mean pinball loss, {UNITS[variable]}", ticks=4), time=True, steps=True, points=False,
        marks=[{"x": mark["x"], "text": mark["text"]} for mark in marks], height=140,
    )  # fmt: skip


def _daily_facts(table: pd.DataFrame, models: Models, marks: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    if models.default != LAST_VALUE and {models.default, LAST_VALUE} <= set(table.columns):
        both = table[[models.default, LAST_VALUE]].dropna()
        better = int((both[models.default] < both[LAST_VALUE]).sum())
        same = int((both[models.default] == both[LAST_VALUE]).sum())
        equal = f", equal on {same}" if same else ""
        parts.append(f"Better than last value on {better} of {plural(len(both), 'day')}{equal}.")
        worst = both[models.default].idxmax() if len(both) else None
        if worst is not None and both[models.default].max() > 0:
            parts.append(f"Worst day {_day(worst)}: {significant(both[models.default].max())}.")
    return " ".join([*parts, *_drift_text(marks)]) or MISSING


def _drift_text(marks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe the drift marks; if there are more than `TOLD`, list only their times."""
    times = [f"{_day(mark['x'])} {mark['x']:%H:%M}" for mark in marks]
    if len(marks) > TOLD:
        return [f"Drift told {len(marks)} times: {listed(times)}."]
    return [
        f"Drift {time}." if missing(mark["found"]) else f"Drift {time}: {mark['found']}."
        for time, mark in zip(times, marks, strict=True)
    ]


def _day(at: Any) -> str:
    """Return a day as on the axes; for sources that count from 1970, the number of the day.

    >>> _day("2026-05-04T12:00Z"), _day("1970-01-02T00:00Z")
    ('4 May', 'day 2')
    """
    time = pd.Timestamp(at)
    return f"{time.day} {time:%b}" if time.year > 1970 else f"day {time.day_of_year}"
