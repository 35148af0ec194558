"""Blocks of the command ``accuracy``: those of every accuracy answer, with tables that only a backtest has (M6.5 to M6.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pandas as pd

from slackwater.flows.show.accuracy import (
    EVIDENCE,
    UNITS,
    Scores,
    accuracy_blocks,
    describe_comparison,
    market_scores,
    most,
    shown_steps,
)
from slackwater.flows.show.blocks import Block, Column, Fold, Notes, Table
from slackwater.flows.show.formats import (
    MISSING,
    duration,
    fixed_decimals,
    number,
    percent,
    plural,
    rows_of,
    significant,
    utc,
    whole,
)
from slackwater.forecasting.accuracy.intervals import skills_by_block
from slackwater.forecasting.accuracy.tables import Accuracy
from slackwater.forecasting.diagnosis.predictability import answers
from slackwater.forecasting.predictors import FLOOR as LAST_VALUE
from slackwater.warehouse.plugins import has_extra, lacks_extra


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """Tables of `slackwater.forecasting.diagnosis`: predictability, and changes of distribution."""

    predictability: pd.DataFrame = field(default_factory=pd.DataFrame)
    drift: pd.DataFrame = field(default_factory=pd.DataFrame)


def report_blocks(
    accuracy: Accuracy, *, data: str, notes: Sequence[str], background: Background | None = None
) -> list[Block]:
    """Return the answer of a backtest; ``background`` adds folded tables that only a page shows."""
    notes_fold = Fold("Notes on the measures and on series left out", [Notes(notes)], printed=True)
    if accuracy.scores.empty:
        nothing = (
            "No forecast can be scored yet: no slot after one was observed. "
            "Of a warehouse, `slackwater accuracy --backtest` forecasts the past."
        )
        return [nothing, *([notes_fold] if notes else [])]
    more = {
        variable: [
            *class_tables(accuracy.classes, accuracy.default, variable),
            *fallback_tables(accuracy.reasons, variable),
            *([] if background is None else _background_tables(background, variable)),
        ]
        for variable in UNITS
    }
    return [Notes(facts_of(accuracy, data)), *accuracy_blocks(scores_of(accuracy), more), notes_fold]


def facts_of(accuracy: Accuracy, data: str) -> list[str]:
    """Return the data behind the scores: series, slots, horizon, origins and default model."""
    scores = accuracy.scores
    horizon, first = int(scores["step"].max()), scores[scores["step"] == scores["step"].min()]
    origins = int(first[first["model"] == first["model"].iloc[0]]["n"].sum())
    series = scores.groupby("variable")["market"].nunique()
    listed = ", ".join(f"{n} of the {variable}" for variable, n in series.items())
    spans = accuracy.spans.groupby("source").agg(start=("start", "min"), end=("end", "max"))
    return [
        f"Data: {data}; series: {listed}; {origins:,} origins",
        f"Forecasts of {plural(horizon, 'slot')} of {duration(accuracy.step)}; default model: {accuracy.default}",
        *(
            f"Origins of {source}: {utc(row['start'])} to {utc(row['end'])}"
            for source, row in spans.sort_index().iterrows()
        ),
    ]


def scores_of(accuracy: Accuracy) -> list[Scores]:
    """Return the accuracy of each variable of a backtest, for tables and charts."""
    found = []
    for variable in UNITS:
        scores, pooled, daily = (
            _of_variable(table, variable) for table in (accuracy.scores, accuracy.pooled, accuracy.daily)
        )
        if scores.empty:
            continue
        n = daily["n"].astype(float)
        scale = daily["market"].map(scores.groupby("market")["scale"].first()).astype(float)
        losses = daily.assign(loss=daily["pinball"].astype(float) * n)
        by_day = losses.assign(loss=losses["loss"] / scale, n=n.where(scale > 0))
        by_day = by_day.groupby(["model", "day"])[["loss", "n"]].sum().reset_index()
        markets = market_scores(scores, _market_skills(losses))
        found.append(
            Scores(
                variable=variable,
                default=accuracy.default,
                pooled=pooled,
                markets=markets.join(_predictable(scores), on="market"),
                daily=by_day.assign(loss=by_day["loss"] / by_day["n"]),
                reliability=_of_variable(accuracy.reliability, variable),
                note=f"Pooled over {plural(scores['market'].nunique(), 'market')}.",
            )
        )
    return found


def _of_variable(table: pd.DataFrame, variable: str) -> pd.DataFrame:
    return table[table["variable"] == variable] if len(table) else table


def _market_skills(losses: pd.DataFrame) -> pd.DataFrame:
    """Return the skill by market and model over all steps, from rows with the summed ``loss`` of a day."""
    own = losses[losses["model"] == LAST_VALUE].set_index(["market", "day"])
    table = losses.join((own["loss"] / own["n"]).rename("floor"), on=["market", "day"])
    table = table.assign(floor=table["floor"] * table["n"]).dropna(subset=["floor"])
    return skills_by_block(table, ["market", "model"])


def _predictable(scores: pd.DataFrame) -> pd.Series:
    """Return by market whether any model is better than last value beyond chance, and up to which step (M6.7)."""
    models = [name for name in scores["model"].unique() if name != LAST_VALUE]
    if not models:
        return pd.Series(MISSING, index=scores["market"].unique(), name="answer")
    found = answers(scores, models=models)
    return found.set_index("market")["answer"]


# ---
# Tables that only a backtest has


def class_tables(classes: pd.DataFrame, default: str, variable: str) -> list[Block]:
    """Return the table of the default by class of markets; none without classes."""
    own = _of_variable(classes, variable)
    own = own[own["model"] == default] if len(own) else own
    if own.empty:
        return []
    steps = shown_steps(own["step"].tolist())
    rows = []
    for name in dict.fromkeys(own["class"]):
        each = rows_of(own[own["class"] == name].sort_values("step"))
        rows.append(
            {"class": name, "markets": each[0]["markets"], "mae": each[0]["mae"]}
            | {key: most(each, key) for key in ("n", "days")}
            | {f"step_{row['step']}": describe_comparison(row) for row in each}
        )
    columns: dict[str, Column | str] = {
        "class": "stated capacity" if variable == "count" else "price",
        "markets": Column(heading="markets", format=whole),
        **EVIDENCE,
        "mae": Column(heading="error at 1", format=significant),
        **{f"step_{step}": str(step) for step in steps},
    }
    return [Table(f"{default} by class of markets, compared with last value", rows, columns)]


def fallback_tables(reasons: pd.DataFrame, variable: str) -> list[Block]:
    """Return the folded table of reasons for which a simpler model answered; none without any."""
    own = _of_variable(reasons, variable)
    if own.empty:
        return []
    sums = own.groupby(["model", "reason"], as_index=False).agg(n=("n", "sum"), markets=("market", "nunique"))
    sums = sums.sort_values(["n", "model", "reason"], ascending=[False, True, True])
    columns: dict[str, Column | str] = {
        "model": "model",
        "reason": "reason",
        "n": Column(heading="forecasts", format=whole),
        "markets": Column(heading="markets", format=whole),
    }
    title = "Where a simpler model answered, and why"
    return [Fold(title, [Table(title, rows_of(sums), columns)])]


PREDICTABILITY: Final[dict[str, Column | str]] = {
    "market": "market",
    "slots": Column(heading="slots", format=whole),
    "gap_share": Column(heading="gaps", format=percent),
    "at_zero": Column(heading="time at zero", format=percent),
    "at_cap": Column(heading="time at the cap", format=percent, words="Capacity, or the on-demand price."),
    "unchanged": Column(heading="time unchanged", format=percent),
    "changes_per_day": Column(heading="changes a day", format=fixed_decimals(1)),
    "acf_1": Column(heading="autocorrelation, 1 slot", format=number),
    "acf_2": Column(heading="2 slots", format=number),
    "acf_day": Column(heading="a day", format=number),
    "acf_week": Column(heading="a week", format=number),
    "strength_daily": Column(
        heading="daily cycle",
        format=number,
        words="Strength: 0 none, 1 nothing but the cycle (Wang, Smith and Hyndman 2006).",
    ),
    "strength_weekly": Column(heading="weekly cycle", format=number),
    "told_1": Column(
        heading="explained by the present",
        format=number,
        words="Share of the entropy of the next value that the present value explains.",
    ),
}
STRENGTHS: Final = ("strength_daily", "strength_weekly")  # Columns that need the extra ``diagnosis``
DRIFT: Final[dict[str, Column | str]] = {
    "market": "market",
    "at": Column(heading="detected", format=utc),
    "since": Column(heading="since", format=utc),
    "found": "change",
}


def _background_tables(background: Background, variable: str) -> list[Block]:
    series, drift = (_of_variable(table, variable) for table in (background.predictability, background.drift))
    blocks: list[Block] = []
    if len(series):
        rows = rows_of(series.sort_values("market"))
        columns = {key: column for key, column in PREDICTABILITY.items() if key in series}
        notes: list[Block] = []
        if not has_extra("diagnosis"):
            columns = {key: column for key, column in columns.items() if key not in STRENGTHS}
            notes = [Notes([str(lacks_extra("diagnosis", "the strength of daily and weekly cycles"))])]
        title = f"Predictability of {plural(len(rows), 'market')}, before any model"
        blocks.append(Fold(title, [Table(title, rows, columns, sortable=True), *notes]))
    if len(drift):
        rows = rows_of(drift.sort_values(["market", "at"]))
        columns = {key: column for key, column in DRIFT.items() if key in drift}
        title = f"{plural(len(rows), 'change')} of distribution"
        about = "A series that never changes has less than one in 30 days."
        blocks.append(Fold(title, [Table(title, rows, columns, sortable=True), about]))
    return blocks
