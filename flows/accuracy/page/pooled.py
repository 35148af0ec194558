"""All markets together, by step: skill over last value and the error of the median, as drawings and as one table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from flows.accuracy.page.answer import percent_signed
from flows.accuracy.page.drawings import Curve, draw_by_step
from flows.accuracy.page.reading import (
    LAST_VALUE,
    SIGNIFICANT,
    UNITS,
    Models,
    beyond_chance,
    by_step,
    over_steps,
    shown_steps,
)
from flows.show.formats import MISSING, as_number, number, percent, significant

#: Skill below this is never drawn: a line that leaves the drawing says enough. Nor is one further below 0 than the best is
#: above it, lest a hopeless model flatten the others, but so much at least, and all of the default's.
LOWEST, SHALLOWEST = -0.5, -0.1


def pooled_view(variable: str, scores: pd.DataFrame, pooled: pd.DataFrame, models: Models) -> dict[str, Any]:
    """Two drawings, skill and error by step, and a row a model; ``scores`` and ``pooled`` are the rows of one variable."""
    skill, mae = by_step(pooled, "skill_pinball"), by_step(pooled, "mae")
    steps = shown_steps(skill.index)
    better, worse, moved = beyond_chance(scores)
    mase = over_steps(scores, ["mase"])["mase"].groupby(level="model").median()
    floor = skill_floor(skill, models)
    sure = better.ge(0.5 * moved, axis=0) & (better > 0)
    return {
        "skill_svg": _skill_drawing(variable, skill, sure, models),
        "mae_svg": _mae_drawing(variable, mae, models),
        "moved": int(moved.max()) if len(moved) else 0,
        "markets": scores["market"].nunique(),
        "cut": number(floor, 2) if (skill < floor).any(axis=None) else "",
        "steps": steps,
        "rows": [
            _row(model, pooled, models, steps)
            | {"beyond": _beyond(model, better, worse, steps), "mase": number(mase.get(model))}
            for model in models.names
            if (pooled["model"] == model).any()
        ],
        "brier": variable == "count",
        "unit": UNITS[variable],
    }


def skill_floor(skill: pd.DataFrame, models: Models) -> float:
    """The lowest skill that is drawn of a table by step and model.

    >>> table = pd.DataFrame({"last_value": [0.0, 0.0], "own": [0.3, 0.2], "bad": [-0.9, -0.2]})
    >>> skill_floor(table, Models.of(table.columns, "own"))
    -0.3
    """
    top = float(np.nanmax(skill.to_numpy(), initial=0.0))
    own = skill[models.default].min() if models.default in skill.columns else 0.0
    least = 0.0 if np.isnan(own) else 1.1 * float(own)
    return max(LOWEST, min(SHALLOWEST, -top, least))


def _curves(table: pd.DataFrame, models: Models, sure: pd.DataFrame | None = None) -> list[Curve]:
    return [
        Curve(
            label=model,
            y=table[model].to_numpy(dtype=float),
            style=models.style(model),
            sure=None if sure is None or model == LAST_VALUE else sure[model].to_numpy(dtype=bool),
            bold=model == models.default,
        )
        for model in models.names
        if model in table.columns
    ]


def _skill_drawing(variable: str, skill: pd.DataFrame, sure: pd.DataFrame, models: Models) -> str | None:
    if not skill.drop(columns=LAST_VALUE, errors="ignore").notna().any(axis=None):
        return None
    sure = sure.reindex(index=skill.index, columns=skill.columns, fill_value=False)
    curves = [curve for curve in _curves(skill, models, sure) if curve.label != LAST_VALUE]
    return draw_by_step(
        skill.index.to_numpy(dtype=float), curves, unit="skill: share of last value's pinball loss saved",
        name=f"skill-{variable}", label=f"Pinball skill over last value by step, {variable}", floor=skill_floor(skill, models),
    )  # fmt: skip


def _mae_drawing(variable: str, mae: pd.DataFrame, models: Models) -> str:
    return draw_by_step(
        mae.index.to_numpy(dtype=float), _curves(mae, models), unit=f"mean absolute error of the median, {UNITS[variable]}",
        name=f"mae-{variable}", label=f"Mean absolute error by step, {variable}",
    )  # fmt: skip


def _row(model: str, pooled: pd.DataFrame, models: Models, steps: list[int]) -> dict[str, Any]:
    own = pooled[pooled["model"] == model].set_index("step")
    n = own["n"].astype(float).to_numpy()

    def mean(metric: str) -> float:
        if metric not in own.columns:
            return float("nan")
        values = own[metric].astype(float).to_numpy()
        there = ~np.isnan(values)
        return float(np.average(values[there], weights=n[there])) if there.any() else float("nan")

    return {
        "model": models.title(model),
        "reference": model == LAST_VALUE,
        "default": model == models.default,
        "mae": [significant(own["mae"].get(step)) for step in steps],
        "skill": [skill_cell(own, step, model) for step in steps],
        "rmse": significant(mean("rmse")),
        "pinball": significant(mean("pinball")),
        "brier": number(mean("brier"), 4),
        "skill_brier": percent_signed(mean("skill_brier")),
        "absent": significant(mean("absent")),
        "unpredicted": significant(mean("unpredicted")),
        "cover": significant(mean("cover")),
        "fallback": percent(mean("fallback_share")),
    }


def class_rows(classes: pd.DataFrame, models: Models) -> list[dict[str, Any]]:
    """The default and last value on each class of markets; ``classes`` are the rows of one variable, in the order to be shown."""
    rows = []
    for name in dict.fromkeys(classes["class"]):
        own = classes[classes["class"] == name]
        default, last = (
            own[own["model"] == model].set_index("step") for model in (models.default, LAST_VALUE)
        )
        if default.empty:
            continue
        steps = shown_steps(default.index)
        rows.append(
            {
                "name": str(name),
                "markets": f"{int(default['markets'].max()):,}",
                "skill": [skill_cell(default, step, models.default) for step in steps],
                "mae": significant(default["mae"].iloc[0]),
                "last": significant(last["mae"].iloc[0]) if len(last) else MISSING,
                "coverage": [percent(float(default[f"coverage_{p}"].mean())) for p in (80, 90)],
                "worse": percent(float(default["share_worse"].mean())),
            }
        )
    return rows


def _beyond(model: str, better: pd.DataFrame, worse: pd.DataFrame, steps: list[int]) -> list[str]:
    """Markets won and lost beyond chance at each step shown."""
    if model == LAST_VALUE or model not in better.columns:
        return [MISSING for _ in steps]
    return [f"{int(better[model][step])} / {int(worse[model][step])}" for step in steps]


def skill_cell(own: pd.DataFrame, step: int, model: str) -> dict[str, str]:
    """A skill with the shade of its cell (``tone``: up1..up3, down1..down3) and a star where it is significant."""
    value = as_number(own["skill_pinball"].get(step))
    if model == LAST_VALUE or value is None:
        return {"text": "0" if model == LAST_VALUE and value is not None else MISSING, "tone": "", "star": ""}
    p = as_number(own["dm_p"].get(step)) if "dm_p" in own.columns else None
    return {
        "text": percent_signed(value).removesuffix(" %"),
        "tone": tone(value),
        "star": "*" if p is not None and p < SIGNIFICANT else "",
    }


def tone(skill: float) -> str:
    """The shade of a skill: blue above 0, orange below, darker from 10 and from 25 %, none within half a per cent.

    >>> [tone(value) for value in (0.3, 0.12, 0.02, 0.001, -0.02, -0.4)]
    ['up3', 'up2', 'up1', '', 'down1', 'down3']
    """
    if abs(skill) < 0.005:
        return ""
    depth = 1 + int(abs(skill) >= 0.1) + int(abs(skill) >= 0.25)
    return f"{'up' if skill > 0 else 'down'}{depth}"
