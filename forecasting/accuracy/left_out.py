"""Model choice by leave-zone-out: chosen on earlier halves of other zones, scored on later halves (M6.5).

The best of several models on a market is known only in hindsight, if it is chosen and scored on the same data. Here every zone
(or source) is left out in turn, and its markets get the model that was best on earlier data of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.forecasting.accuracy.intervals import block_interval, skills_of
from slackwater.forecasting.accuracy.tables import (
    CHOICE_COLUMNS,
    LEFT_OUT_COLUMNS,
    LeftOut,
    pooled_by,
    scaled_losses,
    with_common,
)
from slackwater.forecasting.predictors import FLOOR

#: Origin of the model in a row of `LeftOut.classes`.
CHOSEN, BY_DEFAULT, HINDSIGHT = "left out", "default", "hindsight"


def zone_of(market: str) -> str:
    """Return provider, region and zone of a market, without type and source.

    >>> zone_of("gcp/us-east4/us-east4-a/a3-highgpu-1g@lab:counts")
    'gcp/us-east4/us-east4-a'
    """
    return "/".join(market.partition("@")[0].split("/")[:3])


def source_of(market: str) -> str:
    """Return the source of a market; pooled models are estimated on the markets of a source.

    >>> source_of("gcp/us-east4/us-east4-a/a3-highgpu-1g@lab:counts")
    'lab:counts'
    """
    return market.partition("@")[2]


#: Units that can be left out together, with the function that returns the unit of a market key.
LEAVABLE: Final[Mapping[str, Callable[[str], str]]] = {"zone": zone_of, "source": source_of}


def left_out(
    earlier: pd.DataFrame, later: pd.DataFrame, *, by: str, models: Sequence[str], default: str
) -> LeftOut:
    """Choose a model for every market among ``models`` (the first of equals) and score it on the market's later half.

    ``earlier`` and ``later`` are tables of `slackwater.forecasting.accuracy.tables.Accuracy.scores` of the two halves; ``by``
    is a key of
    `LEAVABLE`. The model of a market has the highest mean over steps of the skill pooled over the earlier halves of all markets
    of its class outside its zone (source). If there are none, or last value never erred on them, it is ``default``. The class
    of a market is that of its later half, known at its first origin. The choice therefore uses no data of the market except its
    class, and no later data of any market.
    """
    group = LEAVABLE[by]
    later = with_common(later)
    kinds = later.drop_duplicates(["variable", "market"]).set_index(["variable", "market"])["class"]
    past = with_common(earlier)
    past = past.assign(
        **{"class": kinds.reindex(pd.MultiIndex.from_frame(past[["variable", "market"]])).to_numpy()}
    )
    past = past[past["class"].notna()].assign(group=past["market"].map(group))
    choices: list[dict[str, Any]] = []
    rows: list[pd.DataFrame] = []
    for (variable, kind), own in later.assign(group=later["market"].map(group)).groupby(
        ["variable", "class"], sort=False
    ):
        known = past[(past["variable"] == variable) & (past["class"] == kind)]
        afterwards = best_model(own, models, default)[0]
        for left, markets in own.groupby("group", sort=True):
            others = known[known["group"] != left]
            model, skill = best_model(others, models, default)
            choices.append(
                {"variable": variable, "class": kind, "left_out": left, "markets": int(markets["market"].nunique()),
                 "others": int(others["market"].nunique()), "model": model, "skill": skill}
            )  # fmt: skip
            rows.append(markets[markets["model"] == model].assign(choice=CHOSEN))
        for choice, model in ((BY_DEFAULT, default), (HINDSIGHT, afterwards)):
            rows.append(own[own["model"] == model].assign(choice=choice))
    chosen = pd.DataFrame(choices, columns=list(CHOICE_COLUMNS))
    return LeftOut(by=by, choices=chosen, classes=_classes(pd.concat(rows, ignore_index=True)))


def best_model(scores: pd.DataFrame, models: Sequence[str], default: str) -> tuple[str, float]:
    """Return the model with the highest mean over steps of the pooled skill, and that mean; ``default`` and NaN without skills."""
    if scores.empty:
        return default, np.nan
    pooled = pooled_by(scores[scores["model"].isin([*models, FLOOR])], ["model", "step"])
    mean = pooled.groupby("model")["skill_pinball"].mean().reindex(list(models)).dropna()
    return (str(mean.idxmax()), float(mean.max())) if len(mean) else (default, np.nan)


def _classes(rows: pd.DataFrame) -> pd.DataFrame:
    """Compute `LEFT_OUT_COLUMNS` from the later-half rows of the chosen models, each with its ``choice`` and ``group``."""
    keys = ["variable", "class", "choice", "step"]
    result = pooled_by(rows, keys).set_index(keys)
    names = rows.groupby(keys, sort=False)["model"].agg(lambda own: ", ".join(dict.fromkeys(own)))
    skilled = rows[rows["skill_pinball"].notna()]
    worst = skilled.loc[skilled.groupby(keys, sort=False)["skill_pinball"].idxmin()].set_index(keys)
    result = result.assign(
        model=names,
        worst_market=worst["market"],
        worst_low=worst["skill_low"],
        worst_high=worst["skill_high"],
    )
    ahead = _skill_gains(rows).reindex(result.index)
    return result.join(ahead).reset_index()[list(LEFT_OUT_COLUMNS)]


def _skill_gains(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the pooled skill minus the default's, with its interval by groups, by variable, class, choice and step."""
    sums = (
        scaled_losses(rows)
        .groupby(["variable", "class", "choice", "step", "group"], sort=False)[["loss", "floor"]]
        .sum()
    )
    base = sums.xs(BY_DEFAULT, level="choice")["loss"].rename("base")
    both = sums.join(base, on=["variable", "class", "step", "group"])
    by_key: dict[Any, dict[str, Any]] = {}
    for key, own in both.groupby(level=["variable", "class", "choice", "step"], sort=False):
        floor = own["floor"].to_numpy()[:, None]
        # The skill ahead of the default is 1 - (floor + loss - base) / floor.
        baseline = floor + (own["loss"] - own["base"]).to_numpy()[:, None]
        low, high = block_interval(baseline, floor)
        total = float(floor.sum())
        ahead = 1.0 - float(baseline.sum()) / total if total > 0 else np.nan
        if key[2] == BY_DEFAULT:
            low = high = np.array([np.nan])
        of_skill = skills_of(own["loss"].to_numpy()[:, None], floor).columns()
        by_key[key] = {
            "ahead": ahead, "ahead_low": float(low[0]), "ahead_high": float(high[0]), "blocks": int(of_skill["days"][0]),
            **{name: of_skill[name][0] for name in ("skill_low", "skill_high", "verdict")},
        }  # fmt: skip
    result = pd.DataFrame.from_dict(by_key, orient="index")
    result.index = pd.MultiIndex.from_tuples(result.index, names=["variable", "class", "choice", "step"])
    return result
