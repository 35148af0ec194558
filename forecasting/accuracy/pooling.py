"""Scores, reliability and calibration of many markets as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from forecasting.accuracy.columns import (
    CALIBRATION_COLUMNS,
    CLASS_COLUMNS,
    CLASSES,
    POOLED_COLUMNS,
    RELIABILITY_COLUMNS,
)
from forecasting.predictors import FLOOR
from forecasting.quantiles import LEVELS

#: Averaged over markets with their numbers of origins as weights, each over the markets where it is defined.
WEIGHTED = (
    "mae", "rmse", "mase", "pinball", "coverage_50", "coverage_80", "coverage_90", "brier", "fallback_share",
    "width_50", "width_80", "width_90", "absent", "unpredicted", "cover",
    "coverage_50_closed", "coverage_80_closed", "coverage_90_closed",
)  # fmt: skip
_ROW = ["variable", "model", "step"]
#: A mean loss of last value below this share of a market's scale is none: prices are sums of floats.
NO_ERROR = 1e-9


#: Mean losses of a model and of last value over the origins that both forecast at, and how many those are.
COMMON = ("pinball_common", "mae_common", "n_common", "pinball_floor", "mae_floor")


def pooled_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """`POOLED_COLUMNS` from rows of scores by market, variable, model and step: those of a turn, a warehouse or the report.

    A skill is 1 - sum of scaled loss / sum of scaled floor loss, where a loss summed over origins is divided by its
    market's ``scale``: the capacity for counts (where none is stated the largest one seen), the mean price before the first
    origin for prices. So a market of 16 instances counts as much as one of 1, a dear one as much as a cheap one. Brier
    scores have no unit; they are compared with ``reference``, that of last value's conditional frequencies. Rows without
    `COMMON` were all measured over the same origins.
    """
    if scores.empty:
        return pd.DataFrame(columns=list(POOLED_COLUMNS))
    return _pooled(scores, _ROW)[list(POOLED_COLUMNS)]


def sourced(scores: pd.DataFrame) -> pd.DataFrame:
    """Rows whose market is ``market@source``, if they say the source: a market measured in two sources counts as two."""
    if "source" not in scores:
        return scores
    alone = ~scores["market"].astype(str).str.contains("@", regex=False)
    named = scores["market"].astype(str) + "@" + scores["source"].astype(str)
    return scores.assign(market=scores["market"].where(~alone, named))


def shared_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows of markets, variables and steps at which every model of that variable was measured: only these compare."""
    models = scores.groupby("variable")["model"].transform("nunique")
    there = scores[scores["n"] > 0].groupby(["variable", "market", "step"])["model"].transform("nunique")
    return scores[there.reindex(scores.index).eq(models)]


def class_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """`CLASS_COLUMNS`: as `pooled_scores` over the markets of each class, in the order of `CLASSES`."""
    if scores.empty:
        return pd.DataFrame(columns=list(CLASS_COLUMNS))
    rank = {name: place for names in CLASSES.values() for place, name in enumerate(names)}
    models = {name: place for place, name in enumerate(scores["model"].unique())}
    made = _pooled(scores, ["variable", "model", "class", "step"])
    order = made.assign(m=made["model"].map(models), c=made["class"].map(rank))
    order = order.sort_values(["variable", "m", "c", "step"], kind="stable")
    return made.loc[order.index, list(CLASS_COLUMNS)].reset_index(drop=True)


def _pooled(scores: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """One row for every value of ``keys``, with all other columns of `POOLED_COLUMNS`."""
    table = _with_common(scores)
    weight = table["n"].astype(float)
    sums: dict[str, pd.Series] = {"n": weight}
    for name in WEIGHTED:
        sums[name] = table[name] * weight
        sums[f"{name}|n"] = weight.where(table[name].notna())
    for loss in ("pinball", "mae"):
        for kind in ("common", "floor"):
            sums[f"{loss}_{kind}"] = table[f"{loss}_{kind}"] * table["n_common"] / table["scale"]
    both = weight.where(table["brier"].notna() & table["reference"].notna())
    sums["brier_sum"], sums["reference_sum"] = table["brier"] * both, table["reference"] * both
    added = pd.DataFrame(sums).groupby([table[key] for key in keys], sort=False).sum(min_count=1)
    out = pd.DataFrame({name: added[name] / added[f"{name}|n"] for name in WEIGHTED}, index=added.index)
    out["n"] = added["n"].astype(int)
    out["skill_pinball"] = _skill(added["pinball_common"], added["pinball_floor"], added["n"])
    out["skill_mae"] = _skill(added["mae_common"], added["mae_floor"], added["n"])
    out["skill_brier"] = _skill(added["brier_sum"], added["reference_sum"], added["n"])
    skills = table.groupby(keys, sort=False)["skill_pinball"]
    out["mean_skill_pinball"], out["median_skill_pinball"] = skills.mean(), skills.median()
    out["worst_skill_pinball"] = skills.min()
    out["share_worse"] = skills.agg(lambda own: (own < 0).sum() / own.count() if own.count() else np.nan)
    out["markets"] = table.groupby(keys, sort=False)["market"].nunique()
    return out.reset_index()


def _with_common(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows with everything that is pooled; what a table does not have was not measured."""
    table = scores.reindex(
        columns=list(dict.fromkeys([*scores.columns, *WEIGHTED, "skill_pinball", "reference", "scale"]))
    )
    table = table.astype(dict.fromkeys([*WEIGHTED, "skill_pinball", "reference", "scale"], float))
    if table["scale"].isna().all():  # measured before scales were kept: every unit counts as one
        table = table.assign(scale=1.0)
    if set(COMMON) <= set(scores.columns):
        return table
    keys = ["variable", "market", "step"]
    floor = scores[scores["model"] == FLOOR].set_index(keys)[["pinball", "mae"]].astype(float)
    table = table.join(floor.add_suffix("_floor"), on=keys)
    return table.assign(
        pinball_common=table["pinball"], mae_common=table["mae"], n_common=table["n"].astype(float)
    )


def _skill(loss: pd.Series, floor: pd.Series, n: pd.Series) -> pd.Series:
    return (1.0 - loss / floor).where(floor > NO_ERROR * n)


def pooled_reliability(below: dict[tuple[str, str], np.ndarray]) -> pd.DataFrame:
    """`RELIABILITY_COLUMNS` from sums of `shares_below` and n, (h, 19 + 1), by variable and model."""
    rows: list[pd.DataFrame] = []
    for (variable, model), table in sorted(below.items()):
        horizon, n = table.shape[0], table[:, -1:]
        rows.append(
            pd.DataFrame(
                {
                    "variable": variable,
                    "model": model,
                    "step": np.repeat(np.arange(1, horizon + 1), LEVELS.size),
                    "level": np.tile(LEVELS, horizon),
                    "share": (table[:, :-1] / np.where(n > 0, n, np.nan)).ravel(),
                    "n": np.repeat(n[:, 0].astype(int), LEVELS.size),
                }
            )
        )
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=list(RELIABILITY_COLUMNS))


def pooled_calibration(bins: dict[str, np.ndarray]) -> pd.DataFrame:
    """`CALIBRATION_COLUMNS` from numbers, sums of chances and hits, (h, bins, 3), by model."""
    rows: list[dict[str, Any]] = []
    for model, table in sorted(bins.items()):
        for step, place in np.argwhere(table[..., 0] > 0):
            n, chance, hits = table[step, place]
            rows.append(
                {"model": model, "step": int(step) + 1, "bin": int(place), "chance": chance / n,
                 "frequency": hits / n, "n": int(n)}
            )  # fmt: skip
    return pd.DataFrame(rows, columns=list(CALIBRATION_COLUMNS))
