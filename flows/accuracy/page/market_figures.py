"""Small drawings market by market: the default's forecasts with what came, and its loss by day with the marks of drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from flows.accuracy.page.answer import percent_signed
from flows.accuracy.page.reading import LAST_VALUE, UNITS, Models, market_skill
from flows.accuracy.page.time_drawings import FANS, Drift, Fan, draw_daily, draw_fans
from flows.show.formats import MISSING, listed, missing, plural, significant
from forecasting.accuracy.columns import QUANTILES, Accuracy

#: Markets drawn at most, those with the most loss; and how many of them stand open, the others folded away.
MOST_DRAWN: Final = 40
OPEN: Final = 6
#: Marks of drift that are described for a market; of more only the times are told.
TOLD: Final = 2
_DAY: Final = pd.Timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Drawings for the page: the first `OPEN` in ``open``, the others in ``folded``; ``left_out`` says what is not drawn."""

    open: list[dict[str, Any]]
    folded: list[dict[str, Any]]
    left_out: str


def by_loss(scores: pd.DataFrame, models: Models) -> list[str]:
    """Markets by the default's pinball loss in units of the market's scale, most first; of all models if the default is none."""
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


def fans_grid(variable: str, accuracy: Accuracy, models: Models) -> Grid:
    """A drawing of up to `FANS` forecasts of the default for every market, those with most loss first."""
    scores, fans = _of(accuracy.scores, variable), _of(accuracy.fans, variable)
    fans = fans[fans["model"] == models.default]
    groups = dict(iter(fans.groupby("market")))
    skill = market_skill(scores)
    limits = scores.groupby("market")["capacity"].max() if variable == "count" else pd.Series(dtype=float)
    figures = []
    drawable = [market for market in by_loss(scores, models) if market in groups]
    for i, market in enumerate(drawable[:MOST_DRAWN]):
        shown = market_fans(groups[market])
        svg = draw_fans(
            shown, limit=drawn_limit(float(limits.get(market, np.nan)), shown), unit=UNITS[variable], name=f"fan-{variable}-{i}",
            label=f"Forecasts of the {variable} of {market} and what came",
        )  # fmt: skip
        own = float(skill[models.default].get(market, np.nan)) if models.default in skill.columns else np.nan
        inside = _inside(shown)
        figures.append(
            {
                "market": market,
                "svg": svg,
                "facts": f"Skill over last value, all steps: {percent_signed(own)}. {inside}",
            }
        )
    return _folded(figures, len(drawable), "markets")


def _of(table: pd.DataFrame, variable: str) -> pd.DataFrame:
    return table[table["variable"] == variable]


def market_fans(rows: pd.DataFrame) -> list[Fan]:
    """The forecasts of one market, evenly chosen if there are more than `FANS`."""
    origins = sorted(rows["origin"].unique())
    if len(origins) > FANS:
        places = np.unique(np.linspace(0, len(origins) - 1, FANS).round().astype(int))
        origins = [origins[place] for place in places]
    return [_fan(rows[rows["origin"] == origin].sort_values("step")) for origin in origins]


def _fan(rows: pd.DataFrame) -> Fan:
    ahead = rows[rows["step"] > 0]
    past = rows.loc[rows["step"] <= 0, "actual"].to_numpy(dtype=float)
    at = pd.Timestamp(rows["origin"].iloc[0])
    return Fan(
        title=f"{_day(at)} {at:%H:%M}",
        quantiles=ahead[list(QUANTILES)].to_numpy(dtype=float),
        actual=ahead["actual"].to_numpy(dtype=float),
        past=past[-ahead.shape[0] :],
    )


def _inside(fans: Sequence[Fan]) -> str:
    """How many of the drawn values lie within the drawn 90 % bands."""
    held = [(f.actual >= f.quantiles[:, 0]) & (f.actual <= f.quantiles[:, -1]) for f in fans]
    known = sum(int((~np.isnan(f.actual)).sum()) for f in fans)
    return f"{sum(int(h.sum()) for h in held)} of {known} values drawn lie within the lightest band."


def drawn_limit(capacity: float, fans: Sequence[Fan]) -> float:
    """The capacity, NaN where more than it was seen: then it is not stated, but the most seen before the test part."""
    seen = np.concatenate([np.append(fan.past, fan.actual) for fan in fans])
    return capacity if np.nanmax(seen, initial=0.0) <= capacity else float("nan")


def _folded(figures: list[dict[str, Any]], among: int, noun: str) -> Grid:
    left = among - len(figures)
    note = f"{left:,} {noun} with less loss are not drawn; their numbers are in the tables." if left else ""
    return Grid(open=figures[:OPEN], folded=figures[OPEN:], left_out=note)


def daily_grid(variable: str, accuracy: Accuracy, models: Models, drift: pd.DataFrame | None) -> Grid:
    """Loss by day of the default and of last value for every market, with the marks of drift, those with most loss first.

    ``drift`` holds the marks of this variable: market, at, found.
    """
    daily = _of(accuracy.daily, variable)
    groups = dict(iter(daily.groupby("market")))
    drawable = [market for market in by_loss(_of(accuracy.scores, variable), models) if market in groups]
    figures = []
    for i, market in enumerate(drawable[:MOST_DRAWN]):
        losses = _loss_by_day(groups[market])
        marks = [
            mark for mark in _marks(drift, market) if losses.index[0] <= mark.at < losses.index[-1] + _DAY
        ]
        svg = _daily(losses, models, marks, variable, f"daily-{variable}-{i}")
        figures.append({"market": market, "svg": svg, "facts": _daily_facts(losses, models, marks)})
    return _folded(figures, len(drawable), "markets")


def _marks(drift: pd.DataFrame | None, market: str) -> list[Drift]:
    if drift is None or drift.empty:
        return []
    own = drift[drift["market"] == market].sort_values("at")
    return [
        Drift(at=pd.Timestamp(at), found=str(found))
        for at, found in zip(own["at"], own["found"], strict=True)
    ]


def _loss_by_day(rows: pd.DataFrame) -> pd.DataFrame:
    """Pinball loss by every day from the first to the last (rows; NaN where nothing was issued) and model."""
    table = rows.pivot_table(index="day", columns="model", values="pinball", aggfunc="mean").astype(float)
    days = pd.DatetimeIndex(table.index)
    return table.set_axis(days).reindex(pd.date_range(days.min(), days.max(), freq="D"))


def _daily(table: pd.DataFrame, models: Models, marks: Sequence[Drift], variable: str, name: str) -> str:
    drawn = [n for n in (LAST_VALUE, models.default) if n in table.columns]
    return draw_daily(
        pd.DatetimeIndex(table.index),
        [(table[n].to_numpy(), n == models.default and n != LAST_VALUE) for n in dict.fromkeys(drawn)], marks=marks,
        unit=f"mean pinball loss, {UNITS[variable]}", name=name, label=f"Loss by day, {variable}",
    )  # fmt: skip


def _daily_facts(table: pd.DataFrame, models: Models, marks: Sequence[Drift]) -> str:
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
    return " ".join([*parts, *_told(marks)]) or MISSING


def _told(marks: Sequence[Drift]) -> list[str]:
    """The marks in words; of more than `TOLD` only when they were raised."""
    times = [f"{_day(mark.at)} {mark.at:%H:%M}" for mark in marks]
    if len(marks) > TOLD:
        return [f"Drift told {len(marks)} times: {listed(times)}."]
    return [
        f"Drift {time}{'' if missing(mark.found) else f': {mark.found}'}."
        for time, mark in zip(times, marks, strict=True)
    ]


def _day(at: Any) -> str:
    """A day as in the drawings' axes; of sources that only count from 1970 its number.

    >>> _day("2026-05-04T12:00Z"), _day("1970-01-02T00:00Z")
    ('4 May', 'day 2')
    """
    time = pd.Timestamp(at)
    return f"{time.day} {time:%b}" if time.year > 1970 else f"day {time.day_of_year}"
