"""The report's view of forecast errors: pooled over markets by step, in sentences, and per market (M6.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd

from flows.show.blocks import Block, Column, Fold, Grid, Section, Table
from flows.show.charts import Axis, lines
from flows.show.figure import Figure
from flows.show.formats import listed, number, percent, plural, ranges, significant
from forecasting.accuracy.pooling import pooled_scores, shared_scores
from forecasting.predictors import FLOOR
from warehouse.errors import InputError

#: The forecast that every other one is shown beside.
LAST_VALUE: Final = FLOOR
#: Skill below this is not drawn: a line that leaves the drawing says enough.
SKILL_FLOOR: Final = -1.0
COLUMNS: Final = (
    "market", "variable", "model", "step", "n", "mae", "rmse", "mase", "pinball",
    "skill_mae", "skill_pinball", "coverage_80", "brier", "fallback_share",
)  # fmt: skip
TITLES: Final = {"price": "Price", "count": "Count of available instances"}
MARKET_COLUMNS: Final[dict[str, Column | str]] = {
    "market": "Market", "variable": "Variable", "model": "Model", "n": "Forecasts measured",
    "mae_first": "Mean abs. error, first step", "mae_last": "Mean abs. error, last step", "mase": "MASE",
    "skill_mae": "Skill over last value, abs. error", "skill_pinball": "Skill over last value, pinball",
    "coverage_80": "Truth inside 80 % band", "brier": "Brier score (“at least n”)",
    "fallback_share": "Answered by fallback",
}  # fmt: skip
UNITS: Final = {"price": "USD per instance-hour", "count": "instances"}


def accuracy_section(accuracy: pd.DataFrame, *, slot: str = "") -> Section:
    """A part for each variable with its charts, and the table per market; ``slot`` is the length of a slot in words.

    A market measured in several sources (a column ``source``, if there) counts as several. Raises `InputError` if a table with
    rows lacks one of `COLUMNS`.
    """
    heading = "How good the forecasts were"
    if accuracy.empty:
        none = "No forecast has been measured yet: the slots they speak of have not passed."
        return Section(heading, [none], "accuracy")
    table = measured_rows(accuracy)
    names = model_names(table["model"])
    rows = market_rows(table)
    about = (
        "Every forecast was measured against what came later. “Last value” says that nothing will change; a model earns its "
        "place only where it does better than that."
    )
    parts = [
        Section(TITLES[variable], variable_blocks(table[table["variable"] == variable], variable, names))
        for variable in UNITS
        if (table["variable"] == variable).any()
    ]
    folded = Fold(
        f"Per market: {len(rows)} rows",
        [
            Table("", rows, MARKET_COLUMNS, marked=lambda row: row["model"] == LAST_VALUE),
            "Errors of the price in USD per instance-hour, of the count in instances, all steps together unless a step is "
            "named. MASE is the error in units of last value's error on the past; — means undefined, for example on a series "
            "that never moved.",
        ],
    )
    return Section(heading, [f"{about} One slot is {slot}." if slot else about, *parts, folded], "accuracy")


def measured_rows(accuracy: pd.DataFrame) -> pd.DataFrame:
    """The rows that measured something, markets of several sources apart; raises `InputError` if a column is lacking."""
    lacking = [column for column in COLUMNS if column not in accuracy.columns]
    if lacking:
        raise InputError(f"accuracy table without {', '.join(lacking)}", expected=", ".join(COLUMNS))
    return _apart(accuracy)


def _apart(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Rows that measured something, as floats, with markets of several sources named ``market@source``."""
    accuracy = accuracy.reset_index(drop=True)
    numbers = accuracy[list(COLUMNS[4:])].astype(float)
    scale = accuracy["scale"].astype(float) if "scale" in accuracy.columns else 1.0
    table = accuracy[list(COLUMNS[:4])].join(numbers).assign(scale=scale)
    if "source" in accuracy.columns:
        several = accuracy.groupby("market")["source"].transform("nunique") > 1
        named = accuracy["market"].astype(str) + "@" + accuracy["source"].astype(str)
        table["market"] = table["market"].where(~several, named)
    return table[table["n"] > 0]


def model_names(models: pd.Series) -> list[str]:
    """The models in the order of their styles: last value first, the others by name."""
    return sorted(set(models.astype(str)), key=lambda name: (name != LAST_VALUE, name))


def pooled(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A measure pooled over the markets where every model was measured, by step (rows) and model (columns) (M6.5)."""
    rows = pooled_scores(shared_scores(table))
    return rows.pivot(index="step", columns="model", values=metric).astype(float)


def pooled_skill(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """1 - pooled error / pooled error of last value, by step and model; NaN where last value made no error (M6.5)."""
    return pooled(table, f"skill_{metric}")


def variable_blocks(table: pd.DataFrame, variable: str, names: Sequence[str]) -> list[Block]:
    """Sentences and charts of one variable."""
    sentences, figures, note = variable_parts(table, variable, names)
    return [*sentences, Grid(figures), note] if figures else [note]


def variable_parts(
    table: pd.DataFrame, variable: str, names: Sequence[str]
) -> tuple[list[str], list[Figure], str]:
    """What is said of one variable, the charts of error and skill, and over what was pooled."""
    mae, skill = pooled(table, "mae"), pooled_skill(table, "pinball")
    note = _pooling_note(table)
    if mae.empty:
        return [], [], note
    if (skill < SKILL_FLOOR).any(axis=None):
        note += " Skill below −1 (more than twice the loss of last value) is cut off."
    undefined = "Undefined: last value made no error on any of these markets (flat series), so there is nothing to improve on."
    titles = (f"Mean absolute error, {UNITS[variable]}", "Pinball skill over last value (above 0 is better)")
    figures = [
        Figure(
            specs=[step_chart(mae, names)], label=f"{variable}: mean absolute error", title=titles[0], width=0
        ),
        Figure(
            specs=[step_chart(skill, names, floor=SKILL_FLOOR)] if skill.notna().any(axis=None) else [],
            label=f"{variable}: pinball skill",
            title=titles[1],
            why=undefined,
            width=0,
        ),
    ]
    return losing_sentences(table, variable), figures, note


def step_chart(
    table: pd.DataFrame, names: Sequence[str], *, floor: float | None = None, unit: str = ""
) -> dict[str, Any]:
    """A measure by step ahead, one line a model; with ``floor`` a skill: 0 is last value, and nothing is drawn below ``floor``."""
    models = [
        str(model) for model in names if model in table.columns and (floor is None or model != LAST_VALUE)
    ]
    rows = [
        {"x": step, "y": value, "series": model}
        for model in models
        for step, value in table[model].dropna().items()
    ]
    low = None
    if floor is not None:
        worst = min((row["y"] for row in rows), default=0.0)
        low = max(min(worst, -0.05), floor)
    return lines(
        rows, models, order=names, reference=LAST_VALUE, rule=None if floor is None else 0.0,
        x=Axis(title="slots ahead", whole=True, zero=False), y=Axis(title=unit, low=low), height=190,
    )  # fmt: skip


def _pooling_note(table: pd.DataFrame) -> str:
    among, markets = table["market"].nunique(), shared_scores(table)["market"].nunique()
    if not markets:
        return (
            "No market was measured with every model, so errors cannot be pooled; see the table per market."
        )
    note = (
        f"Pooled over {plural(markets, 'market')}: errors in units, every forecast counting the same, skills in units "
        "of each market's capacity or mean price."
    )
    if among > markets:
        note += f" Left out: {plural(among - markets, 'market')} where not every model was measured."
    return note


def losing_sentences(table: pd.DataFrame, variable: str) -> list[str]:
    """Which models lose to last value at which steps, by mean absolute error and by pinball loss, in words."""
    if LAST_VALUE not in set(table["model"]):
        return [f"Last value was not measured on the {variable}, so nothing can be compared with it."]
    found = []
    for metric in ("mae", "pinball"):
        errors = pooled(table, metric)
        found.append("" if errors.empty or errors.columns.size < 2 else _losers(errors))
    if found[0] and found[0] == found[1]:
        return [f"By mean absolute error and by pinball loss alike: {found[0]}"]
    named = zip(("mean absolute error", "pinball loss (the whole distribution)"), found, strict=True)
    return [f"By {words}: {sentence}" for words, sentence in named if sentence]


def _losers(errors: pd.DataFrame) -> str:
    """Models grouped by the steps at which their pooled error is above that of last value."""
    last = errors[LAST_VALUE]
    where: dict[str, list[str]] = {}
    for model in errors.columns.drop(LAST_VALUE):
        worse = [int(step) for step in errors.index[errors[model] > last * (1 + 1e-9) + 1e-12]]
        every = len(worse) == len(errors.index)
        steps = "every step" if every else f"{'step' if len(worse) == 1 else 'steps'} {ranges(worse)}"
        where.setdefault(steps if worse else "", []).append(str(model))
    fine = where.pop("", [])
    parts = [
        f"{listed(models)} {'loses' if len(models) == 1 else 'lose'} to last value at {steps}"
        for steps, models in where.items()
    ]
    if fine:
        parts.append(
            f"{listed(fine)} {'is' if len(fine) == 1 else 'are'} at least as good as it at every step"
        )
    return "; ".join(parts) + "."


def market_rows(table: pd.DataFrame) -> list[dict[str, str]]:
    """Errors by market, variable and model over all steps, weighted by the number of forecasts, as texts."""
    keys = ["market", "variable", "model"]
    steps = table.groupby(keys)["step"]
    means = _weighted(table, keys, ["mae", "pinball", "mase", "coverage_80", "brier", "fallback_share"])
    means["mae_first"] = _weighted(table[table["step"] == steps.transform("min")], keys, ["mae"])["mae"]
    means["mae_last"] = _weighted(table[table["step"] == steps.transform("max")], keys, ["mae"])["mae"]
    means["n"] = table.groupby(keys)["n"].sum()
    means[["skill_mae", "skill_pinball"]] = _market_skill(means)
    rows = [
        {
            "market": str(row["market"]), "variable": str(row["variable"]), "model": str(row["model"]),
            "n": f"{int(row['n']):,}", "mae_first": significant(row["mae_first"]),
            "mae_last": significant(row["mae_last"]), "mase": number(row["mase"]),
            "skill_mae": number(row["skill_mae"]), "skill_pinball": number(row["skill_pinball"]),
            "coverage_80": percent(row["coverage_80"]), "brier": number(row["brier"], 3),
            "fallback_share": percent(row["fallback_share"]),
        }
        for row in means.reset_index().to_dict("records")
    ]  # fmt: skip
    return sorted(
        rows, key=lambda r: (r["market"], r["variable"] != "price", r["model"] != LAST_VALUE, r["model"])
    )


def _weighted(table: pd.DataFrame, keys: list[str], metrics: list[str]) -> pd.DataFrame:
    """Means of ``metrics`` by ``keys``, weighted by ``n``; rows without a value do not count, none at all gives NaN."""
    by = [table[key] for key in keys]
    sums = table[metrics].mul(table["n"], axis=0).groupby(by).sum()
    n = table[metrics].notna().mul(table["n"], axis=0).groupby(by).sum()
    return sums / n.where(n > 0)


def _market_skill(means: pd.DataFrame) -> pd.DataFrame:
    """1 - error / error of last value on the same market and variable; undefined (NaN) where last value made none (M6.5)."""
    errors, models = means[["mae", "pinball"]], means.index.get_level_values("model")
    last = errors[models == LAST_VALUE].droplevel("model")
    markets = pd.MultiIndex.from_arrays(
        [errors.index.get_level_values(key) for key in ("market", "variable")]
    )
    reference = last.reindex(markets).set_axis(errors.index)
    return 1 - errors / reference.where(reference > 0)
