"""The report's view of forecast errors: pooled over markets by step, in sentences, and per market (M6.5)."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from flows.show.drawings import Line, draw_steps
from flows.show.format import listed, number, percent, plural, ranges, significant
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
UNITS: Final = {"price": "USD per instance-hour", "count": "instances"}


def accuracy_view(accuracy: pd.DataFrame) -> dict[str, Any]:
    """What the template shows of the accuracy table: one block a variable, the legend, the table per market.

    A market measured in several sources (a column ``source``, if there) counts as several. Raises `InputError` if a table with
    rows lacks one of `COLUMNS`.
    """
    if accuracy.empty:
        return {"blocks": [], "legend": [], "markets": [], "rows": 0}
    lacking = [column for column in COLUMNS if column not in accuracy.columns]
    if lacking:
        raise InputError(f"accuracy table without {', '.join(lacking)}", expected=", ".join(COLUMNS))
    table = _apart(accuracy)
    styles = model_styles(table["model"])
    blocks = [
        _block(table[table["variable"] == v], v, styles) for v in UNITS if (table["variable"] == v).any()
    ]
    rows = market_rows(table)
    groups: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(row["market"], []).append(row)
    legend = [{"label": model, "style": style} for model, style in styles.items()]
    return {"blocks": blocks, "legend": legend, "markets": list(groups.items()), "rows": len(rows)}


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


def model_styles(models: pd.Series) -> dict[str, int]:
    """Line style of every model: last value is the plain ink line (-1), the others follow in alphabetical order."""
    names = sorted(set(models.astype(str)), key=lambda name: (name != LAST_VALUE, name))
    return {name: i - (LAST_VALUE in names) for i, name in enumerate(names)}


def pooled(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A measure pooled over the markets where every model was measured, by step (rows) and model (columns) (M6.5)."""
    rows = pooled_scores(shared_scores(table))
    return rows.pivot(index="step", columns="model", values=metric).astype(float)


def pooled_skill(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """1 - pooled error / pooled error of last value, by step and model; NaN where last value made no error (M6.5)."""
    return pooled(table, f"skill_{metric}")


def _block(table: pd.DataFrame, variable: str, styles: dict[str, int]) -> dict[str, Any]:
    """Drawings and sentences of one variable."""
    block: dict[str, Any] = {
        "variable": variable,
        "unit": UNITS[variable],
        "figures": [],
        "sentences": [],
        "cut": False,
    }
    mae, skill = pooled(table, "mae"), pooled_skill(table, "pinball")
    block["note"] = _pooling_note(table)
    if mae.empty:
        return block
    block["figures"] = [
        {
            "title": f"Mean absolute error, {UNITS[variable]}",
            "svg": _figure(mae, styles, f"{variable}-mae", None),
        },
        {
            "title": "Pinball skill over last value (above 0 is better)",
            "svg": _figure(skill, styles, f"{variable}-skill", SKILL_FLOOR)
            if skill.notna().any(axis=None)
            else None,
        },
    ]
    block["sentences"] = losing_sentences(table, variable)
    block["cut"] = bool((skill < SKILL_FLOOR).any(axis=None))
    return block


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


def _figure(table: pd.DataFrame, styles: dict[str, int], name: str, floor: float | None) -> str:
    """One drawing; last value is drawn last, over the others (its skill is the zero line itself, so it is left out)."""
    order = sorted(table.columns, key=lambda model: -styles[model] if styles[model] < 0 else -99)
    lines = [
        Line(label=str(model), y=table[model].to_numpy(dtype=float), style=styles[model])
        for model in order
        if floor is None or model != LAST_VALUE
    ]
    return draw_steps(
        table.index.to_numpy(dtype=float),
        lines,
        name=f"accuracy-{name}",
        label=name.replace("-", " "),
        floor=floor,
    )


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
