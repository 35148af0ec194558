"""Every market: the models side by side, and the paper's claim (predictable some slots ahead) answered for it (M6.7)."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from flows.accuracy.page.answer import percent_signed
from flows.accuracy.page.pooled import skill_cell, tone
from flows.accuracy.page.reading import (
    COMPARED,
    LAST_VALUE,
    UNITS,
    Models,
    market_skill,
    over_steps,
    shown_steps,
)
from flows.show.formats import MISSING, as_number, number, percent, plural, ranges, significant
from forecasting.diagnosis.answers import ANY, answers


def markets_view(variable: str, scores: pd.DataFrame, models: Models) -> dict[str, Any]:
    """One row a market (the most predictable first), and for each a table of all models by step; rows of one variable."""
    skill, means = market_skill(scores), over_steps(scores, ["pinball", "fallback_share"])
    steps = shown_steps(scores["step"])
    compared = [
        m for m in dict.fromkeys([*COMPARED[1:], models.default]) if m in skill.columns and m != LAST_VALUE
    ]
    order = skill[models.default] if models.default in skill.columns else skill.max(axis=1)
    names = sorted(scores["market"].unique(), key=lambda m: (pd.isna(order[m]), -order.fillna(0)[m], m))
    groups = dict(iter(scores.groupby("market")))
    found = claims(scores, models)
    rows = [
        {
            "market": market,
            "n": f"{int(means['n'].xs(market, level='market').max()):,}",
            "last": _first_error(groups[market], LAST_VALUE),
            "own": _first_error(groups[market], models.default),
            "skills": [_cell(skill.loc[market].get(model)) for model in compared],
            "claim": found[market]["short"],
            "reach": found[market]["reach"],
            "details": _details(groups[market], models, steps),
            "sentence": found[market]["sentence"],
        }
        for market in names
    ]
    return {
        "rows": rows,
        "compared": [models.title(model) for model in compared],
        "steps": steps,
        "unit": UNITS[variable],
        "summary": _summary(variable, list(found.values())),
        "brier": variable == "count",
    }


def _cell(value: Any) -> dict[str, str]:
    found = as_number(value)
    if found is None:
        return {"text": MISSING, "tone": "", "sort": ""}
    return {"text": percent_signed(found).removesuffix(" %"), "tone": tone(found), "sort": f"{found:.6f}"}


def _first_error(rows: pd.DataFrame, model: str) -> str:
    own = rows[rows["model"] == model].sort_values("step")
    return significant(own["mae"].iloc[0]) if len(own) else MISSING


def _details(rows: pd.DataFrame, models: Models, steps: list[int]) -> list[dict[str, Any]]:
    """A row a model: errors and skills by step, calibration, fallbacks."""
    out = []
    for model in models.names:
        own = rows[rows["model"] == model].set_index("step").sort_index()
        if own.empty:
            continue
        weight = own["n"].astype(float)

        def mean(metric: str, own: pd.DataFrame = own, weight: pd.Series = weight) -> float:
            if metric not in own.columns:
                return float("nan")
            values = own[metric].astype(float)
            kept = weight.where(values.notna(), 0.0)
            return float((values.fillna(0.0) * kept).sum() / kept.sum()) if kept.sum() else float("nan")

        out.append(
            {
                "model": models.title(model),
                "reference": model == LAST_VALUE,
                "mae": [significant(own["mae"].get(step)) for step in steps],
                "skill": [skill_cell(own, step, model) for step in steps],
                "mase": number(mean("mase")),
                "coverage_80": percent(mean("coverage_80")),
                "coverage_90": percent(mean("coverage_90")),
                "brier": number(mean("brier"), 4),
                "fallback": percent(mean("fallback_share")),
            }
        )
    return out


def claims(scores: pd.DataFrame, models: Models) -> dict[str, dict[str, Any]]:
    """The answer to the paper's claim for every market: short, how many steps it reaches, and a sentence that names models.

    Tests are `forecasting.diagnosis.answers.answers`' over all models but last value, with Holm's correction within a market.
    """
    asked = [model for model in models.names if model != LAST_VALUE]
    if not asked:
        return {
            market: {"short": MISSING, "reach": 0, "sentence": "No model but last value was measured."}
            for market in scores["market"].unique()
        }
    found = answers(scores, models=asked)
    return {str(market): _claim(rows, asked, scores) for market, rows in found.groupby("market")}


def _claim(rows: pd.DataFrame, asked: list[str], scores: pd.DataFrame) -> dict[str, Any]:
    """``rows`` are one market's, by model."""
    by_model: dict[str, dict[Any, Any]] = {str(row["model"]): row for row in rows.to_dict("records")}
    whole, last = by_model[ANY], int(scores["step"].max())
    reach, steps = int(whole["up_to"]), list(whole["steps"])
    if str(whole["answer"]).startswith("undecided"):
        return {"short": UNDECIDED, "reach": -1, "sentence": f"{str(whole['answer']).capitalize()}."}
    if reach:
        ahead = f"all {last} steps" if reach == last else f"up to step {reach}"
        short, opening = f"yes, {ahead}", f"Predictable, {ahead}"
    elif steps:
        short, opening = f"only at step {ranges(steps)}", "Not predictable from the first step on"
    else:
        short, opening = "no", "Not predictable"
    each = "; ".join(f"{model}: {by_model[model]['answer']}" for model in asked if model in by_model)
    best = "no skill is defined"
    if whole["best_step"]:
        best = f"the highest skill is {percent_signed(float(whole['best_skill']))} at step {int(whole['best_step'])}"
    return {"short": short, "reach": reach, "sentence": f"{opening}; {best}. By model: {each}."}


#: The short answer where no test was possible.
UNDECIDED: Final = "undecided"


def _summary(variable: str, found: list[dict[str, Any]]) -> str:
    yes = [c["reach"] for c in found if c["reach"] > 0]
    undecided = sum(c["short"] == UNDECIDED for c in found)
    moving = len(found) - undecided
    among = f"{len(yes)} of {plural(moving, 'market')}"
    text = (
        f"The {variable} is predictable from the first step on, by some model and beyond chance, on {among}"
    )
    text += f", in the middle one of them up to step {pd.Series(yes).median():g}" if yes else ""
    return text + (
        f"; {plural(undecided, 'market')} undecided, because last value hardly ever erred there."
        if undecided
        else "."
    )
