"""What the series themselves say of their predictability, and where simpler models had to answer (M6.7, M6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from flows.accuracy.page.drawings import FAINT, Curve, draw_by_step
from flows.accuracy.page.reading import LAST_VALUE, Models, over_steps
from flows.show.formats import listed, number, percent, plural

#: Markets drawn as lines of their own in the drawing of last value's error; the middle of all is the thick line.
MOST_LINES: Final = 60
#: Columns of the table: key in `forecasting.diagnosis.predictability.predictability`, heading, how it is written.
_SHARES: Final = ("at_zero", "at_cap", "unchanged")
_NUMBERS: Final = ("acf_1", "acf_2", "acf_day", "acf_week", "strength_daily", "strength_weekly", "told_1")


def predictability_view(
    variable: str, table: pd.DataFrame | None, alternation: Sequence[str]
) -> dict[str, Any]:
    """A row a market, the drawing of last value's error by step, and why one step can be worse than two.

    ``table`` is `forecasting.diagnosis.predictability.predictability`'s; the rows of the whole series are shown, of the
    first half where there is no other.
    """
    rows = _rows_of(variable, table)
    if rows.empty:
        return {"rows": [], "svg": None, "sentences": [], "alternation": []}
    return {
        "rows": [_row(row) for row in rows.to_dict("records")],
        "svg": _error_drawing(variable, rows),
        "sentences": _sentences(variable, rows),
        "alternation": list(alternation) if variable == "count" else [],
    }


def _rows_of(variable: str, table: pd.DataFrame | None) -> pd.DataFrame:
    if table is None or table.empty:
        return pd.DataFrame()
    own = table[table["variable"] == variable]
    whole = own[own["part"] == "whole"]
    return (whole if len(whole) else own).sort_values("market")


def _row(row: dict[Any, Any]) -> dict[str, Any]:
    return {
        "market": str(row["market"]),
        "slots": number(row["slots"], 0),
        "gaps": percent(row["gap_share"]),
        "shares": [percent(row[key]) for key in _SHARES],
        "changes": number(row["changes_per_day"], 1),
        "numbers": [number(row[key]) for key in _NUMBERS],
    }


def _error_drawing(variable: str, rows: pd.DataFrame) -> str | None:
    """Error of last value by step in units of its error at one step, a thin line a market, the median thick."""
    columns = sorted(
        (c for c in rows.columns if c.startswith("error_")), key=lambda c: int(c.removeprefix("error_"))
    )
    errors = rows[columns].astype(float).to_numpy()
    first = errors[:, :1]
    scaled = errors[(first > 0).ravel()] / first[(first > 0).ravel()]
    if not len(scaled):
        return None
    steps = np.array([int(c.removeprefix("error_")) for c in columns], dtype=float)
    silent = np.zeros(steps.size, dtype=bool)
    lines = [Curve(label="", y=y, style=FAINT, sure=silent) for y in scaled[:MOST_LINES]]
    middle = Curve(label="median", y=np.nanmedian(scaled, axis=0), style=-1)
    return draw_by_step(
        steps, [*lines, middle], unit="mean error of last value, in units of that at 1 slot", name=f"persistence-{variable}",
        label=f"Error of last value by step, {variable}",
    )  # fmt: skip


def _sentences(variable: str, rows: pd.DataFrame) -> list[str]:
    """The middle market in words, and the markets where last value errs more at one step than at two."""
    middle = rows[["unchanged", "acf_1", "strength_daily"]].astype(float).median()
    daily = int((rows["strength_daily"].astype(float) > STRONG).sum())
    worse: list[str] = []
    if "error_2" in rows:
        harder = rows["error_1"].astype(float) > rows["error_2"].astype(float) * (1 + 1e-9)
        worse = [str(market) for market in rows.loc[harder, "market"]]
    text = (
        f"In the middle market the {variable} stays as it is from one slot to the next {percent(middle['unchanged'])} of the time; "
        f"autocorrelation at one slot is {number(middle['acf_1'])}. "
        f"A daily cycle of strength above {STRONG} was found in {daily} of {plural(len(rows), 'market')}."
    )
    if not worse:
        return [text]
    return [
        text,
        f"One slot ahead is harder for last value than two in {plural(len(worse), 'market')}: {listed(worse)}.",
    ]


#: Strength of a cycle from which it is called one.
STRONG: Final = 0.3


def fallback_view(
    variable: str, scores: pd.DataFrame, models: Models, reasons: pd.DataFrame
) -> dict[str, Any]:
    """Which models were answered for by a simpler one, on which markets, how often, and why; rows of one variable.

    ``reasons`` is the table of `forecasting.accuracy.columns.Accuracy`.
    """
    share = over_steps(scores, ["fallback_share"])["fallback_share"].unstack("model")
    used = share.loc[:, [m for m in models.names if m in share.columns and m != LAST_VALUE]]
    rows = []
    for model in used.columns:
        own = used[model].dropna()
        fell = own[own > 0].sort_values(ascending=False, kind="stable")
        always = [str(m) for m in fell.index[fell >= 0.9995]]
        rows.append(
            {
                "model": models.title(model),
                "share": percent(own.mean()),
                "markets": f"{fell.size} of {own.size}",
                "always": always,
                "sometimes": [f"{m} ({percent(value)})" for m, value in fell.items() if value < 0.9995],
                "reasons": _reasons(variable, model, reasons),
            }
        )
    return {"rows": rows, "any": any(row["markets"][0] != "0" for row in rows), "known": not reasons.empty}


def _reasons(variable: str, model: str, reasons: pd.DataFrame) -> list[str]:
    """Reasons, the most frequent first."""
    if reasons.empty:
        return []
    own = reasons[(reasons["variable"] == variable) & (reasons["model"] == model)]
    totals = own.groupby("reason").agg(n=("n", "sum"), markets=("market", "nunique"))
    totals = totals.sort_index().sort_values("n", ascending=False, kind="stable")
    return [
        f"{reason}: {plural(int(row['n']), 'forecast')} on {plural(int(row['markets']), 'market')}"
        for reason, row in totals.iterrows()
    ]
