"""The score tables as the page reads them: one name a market, one style a model, sums over steps (M6.5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from forecasting.predictors import COMPARED as TAG
from forecasting.predictors import FLOOR, predictor_names

#: The forecast that every other one is shown beside.
LAST_VALUE: Final = FLOOR
#: The models that stand side by side for every market, besides the default.
COMPARED: Final = predictor_names(TAG)
UNITS: Final = {"count": "instances", "price": "USD per instance-hour"}
TITLES: Final = {"count": "Count of available instances", "price": "Spot price"}
#: Steps that the tables show; the drawings show all.
SHOWN_STEPS: Final = (1, 2, 4, 8, 12)
#: The default may be this much worse than last value on a market before that is called a loss (the demand).
TOLERATED: Final = 0.02
#: Differences less likely than this by chance alone are called significant.
SIGNIFICANT: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The models of a page: last value first, then the default, then the others by name; ``default`` may be none of them."""

    names: tuple[str, ...]
    default: str

    @classmethod
    def of(cls, names: Iterable[str], default: str) -> Models:
        """The models named, each once."""
        rank = {LAST_VALUE: 0, default: 1}
        return cls(
            names=tuple(sorted(set(names), key=lambda name: (rank.get(name, 2), name))), default=default
        )

    def style(self, name: str) -> int:
        """The line of a model: -1 is plain ink (last value); the default is always the first of `flows.show.drawings.LINES`."""
        if name == LAST_VALUE:
            return -1
        if name == self.default:
            return 0
        others = [other for other in self.names if other not in (LAST_VALUE, self.default)]
        return 1 + others.index(name)

    def title(self, name: str) -> str:
        """The name, and for the default that it is."""
        return f"{name} (default)" if name == self.default else name


def shown_steps(steps: Iterable[int]) -> list[int]:
    """`SHOWN_STEPS` among ``steps``, and the last one.

    >>> shown_steps(range(1, 7))
    [1, 2, 4, 6]
    """
    found = sorted({int(step) for step in steps})
    return [step for step in found if step in SHOWN_STEPS or step == found[-1]]


def over_steps(scores: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Means over the steps by (market, model), weighted by ``n``; rows without a value do not count, none at all gives NaN."""
    keys = [scores["market"], scores["model"]]
    values = scores[list(metrics)].astype(float)
    weight = scores["n"].astype(float)
    sums = values.mul(weight, axis=0).groupby(keys).sum()
    n = values.notna().mul(weight, axis=0).groupby(keys).sum()
    means = sums / n.where(n > 0)
    means["n"] = scores["n"].groupby(keys).sum()
    return means


def market_skill(scores: pd.DataFrame) -> pd.DataFrame:
    """1 - pinball loss / that of last value over all steps, by market (rows) and model (columns); NaN where that loss is 0."""
    loss = over_steps(scores, ["pinball"])["pinball"].unstack("model")
    if LAST_VALUE not in loss.columns:
        return loss * float("nan")
    reference = loss[LAST_VALUE]
    return 1 - loss.div(reference.where(reference > 0), axis=0)


def by_step(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """``metric`` by step (rows, ascending) and model (columns)."""
    return table.pivot_table(
        index="step", columns="model", values=metric, aggfunc="mean", dropna=False
    ).astype(float)


def beyond_chance(scores: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """On how many markets a model is better, and worse, than last value beyond chance (Diebold-Mariano, p < `SIGNIFICANT`).

    Both by step (rows) and model (columns), of ``scores`` of one variable; then the number of markets with a skill, by step.
    """
    skill, p = scores["skill_pinball"].astype(float), scores["dm_p"].astype(float)
    keys = [scores["step"], scores["model"]]
    better, worse = (
        (((skill > 0) if up else (skill < 0)) & (p < SIGNIFICANT)).groupby(keys).sum().unstack("model")
        for up in (True, False)
    )
    moved = scores[skill.notna()].groupby("step")["market"].nunique().reindex(better.index, fill_value=0)
    return better, worse, moved


def market_parts(market: str) -> tuple[str, str]:
    """The key and the source of ``provider/region/zone/type@source``; the source is "" where none is named.

    >>> market_parts("aws/us-east-1/us-east-1a/p3.2xlarge@skynomad")
    ('aws/us-east-1/us-east-1a/p3.2xlarge', 'skynomad')
    """
    key, _, source = market.partition("@")
    return key, source
