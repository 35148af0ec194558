"""The score tables as the page reads them: the order of models, sums over steps, skills and how they are written (M6.5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pandas as pd

from flows.show.formats import MISSING, as_number
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


class Marked(float):
    """A number that may stand out: a skill that is beyond chance, a coverage that is off."""

    marked: bool

    def __new__(cls, value: float, marked: bool = False) -> Self:
        """A number; ``marked`` where it stands out."""
        made = super().__new__(cls, value)
        made.marked = marked
        return made


def skill_at(own: pd.DataFrame, step: int, model: str) -> Marked | None:
    """A model's skill at a step of its rows ``own`` (by step), marked where the difference is beyond chance there alone."""
    value = as_number(own["skill_pinball"].get(step))
    if value is None:
        return None
    p = as_number(own["dm_p"].get(step)) if "dm_p" in own.columns else None
    return Marked(value, p is not None and p < SIGNIFICANT and model != LAST_VALUE)


def percent_signed(value: Any) -> str:
    """A skill in percent with its sign, one decimal.

    >>> percent_signed(0.331), percent_signed(-0.02), percent_signed(-1e-9), percent_signed(float("nan"))
    ('+33.1 %', '−2.0 %', '0.0 %', '—')
    """
    found = as_number(value)
    if found is None:
        return MISSING
    written = f"{100 * found:+.1f} %"
    return "0.0 %" if written[1:] == "0.0 %" else written.replace("-", "−")


def skill_text(value: Any) -> str:
    """A skill in percent for a column that says so, with a star where it is marked; exactly 0 is last value's own.

    >>> skill_text(Marked(0.12, True)), skill_text(0.0), skill_text(None)
    ('+12.0*', '0', '—')
    """
    if value == 0:
        return "0"
    return percent_signed(value).removesuffix(" %") + ("*" if getattr(value, "marked", False) else "")


def tone(value: Any) -> str:
    """The shade of a skill: good above 0, bad below, darker from 10 and from 25 %, none within half a per cent.

    >>> [tone(value) for value in (0.3, 0.12, 0.02, 0.001, -0.02, -0.4)]
    ['up3', 'up2', 'up1', '', 'down1', 'down3']
    """
    skill = as_number(value)
    if skill is None or abs(skill) < 0.005:
        return ""
    depth = 1 + int(abs(skill) >= 0.1) + int(abs(skill) >= 0.25)
    return f"{'up' if skill > 0 else 'down'}{depth}"
