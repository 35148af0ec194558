"""Is this market predictable, and how far ahead? The scores' answer, with the many tests counted (M6.7).

Paper A claims that spot price and availability can be predicted a few slots ahead. Here a step of a market counts as predictable by
a model if its pinball loss is below last value's and Diebold and Mariano's test says so after Holm's correction over the steps
of that market; "any" asks whether any of the models is, and corrects over all their steps together. The corrections hold
within a market: of markets that cannot be predicted at all, at most a share `LEVEL` is called predictable by chance (ours).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from forecasting.diagnosis.predictability import holm
from warehouse.errors import ForecastError

#: Share of wrong "predictable" among markets that are not.
LEVEL = 0.05
#: The name of the row that asks all models together.
ANY = "any"
ANSWER_COLUMNS = (
    "variable", "market", "model", "up_to", "steps", "worse_steps", "skill_1", "best_skill", "best_step", "answer",
)  # fmt: skip
_NEEDED = ("variable", "market", "model", "step", "skill_pinball", "dm", "dm_p")


def answers(scores: pd.DataFrame, *, models: Sequence[str], level: float = LEVEL) -> pd.DataFrame:
    """One row per variable, market and model, and one for `ANY` of them, from the table
    `forecasting.accuracy.columns.Accuracy.scores`.

    ``up_to``: the last of the steps 1, 2, ... that are predictable without a break (0: not even the first). ``steps`` and
    ``worse_steps``: tuples of steps at which the model is significantly better, and worse, than last value (``worse_steps`` of
    `ANY`: those at which every model is). ``skill_1``, ``best_skill`` and ``best_step``: its pinball skill at one step, the
    largest of all, and where (of the best model for `ANY`). ``answer``: "predictable up to step k", "predictable at step ...,
    not from the first", "not predictable", or "undecided: ..." where no test was possible (last value never erred: a flat series).
    Raises `ForecastError` on a table without the columns, and for no model.
    """
    missing = [name for name in _NEEDED if name not in scores.columns]
    if missing or not models:
        raise ForecastError(
            f"scores without {', '.join(missing) or 'models to ask about'}",
            expected=f"columns {', '.join(_NEEDED)} and at least one model",
        )
    asked = scores[scores["model"].isin(models)]
    rows = []
    for (variable, market), table in asked.groupby(["variable", "market"], sort=True):
        each = [table[table["model"] == model].sort_values("step") for model in models]
        named = [(model, own) for model, own in zip(models, each, strict=True) if len(own)]
        rows += [
            {"variable": variable, "market": market, **_answer(model, own, level)} for model, own in named
        ]
        rows.append({"variable": variable, "market": market, **_answer(ANY, table, level)})
    return pd.DataFrame(rows, columns=list(ANSWER_COLUMNS))


def _answer(model: str, table: pd.DataFrame, level: float) -> dict[str, object]:
    adjusted = holm(table["dm_p"].to_numpy(dtype=float))
    skill = table["skill_pinball"].to_numpy(dtype=float)
    statistic = table["dm"].to_numpy(dtype=float)
    step = table["step"].to_numpy(dtype=int)
    better = (adjusted < level) & (skill > 0) & (statistic > 0)
    worse = (adjusted < level) & (skill < 0) & (statistic < 0)
    steps = tuple(sorted({int(k) for k in step[better]}))
    # All models together do worse at a step only if each of them does.
    behind = tuple(int(k) for k in np.unique(step) if worse[step == k].all())
    up_to = next((k for k in range(len(steps), 0, -1) if steps[:k] == tuple(range(1, k + 1))), 0)
    known = np.flatnonzero(~np.isnan(skill))
    best = int(known[np.argmax(skill[known])]) if known.size else -1
    first = skill[step == 1]
    first = first[~np.isnan(first)]
    return {
        "model": model,
        "up_to": up_to,
        "steps": steps,
        "worse_steps": behind,
        "skill_1": float(first.max()) if first.size else float("nan"),
        "best_skill": float(skill[best]) if best >= 0 else float("nan"),
        "best_step": int(step[best]) if best >= 0 else 0,
        "answer": _words(up_to, steps, tested=not np.isnan(adjusted).all()),
    }


def _words(up_to: int, steps: tuple[int, ...], *, tested: bool) -> str:
    if not tested:
        return "undecided: last value never erred enough to compare"
    if up_to:
        more = [k for k in steps if k > up_to]
        return f"predictable up to step {up_to}" + (f" (and at {_list(more)})" if more else "")
    return f"predictable at step {_list(list(steps))}, not from the first" if steps else "not predictable"


def _list(steps: list[int]) -> str:
    return ", ".join(str(k) for k in steps)


def answer_sentences(found: pd.DataFrame) -> list[str]:
    """Per variable in words: how many markets are predictable at all and how far, by any model and by each one."""
    lines = []
    for variable, table in found.groupby("variable", sort=True):
        whole = table[table["model"] == ANY]
        decided = whole[~whole["answer"].str.startswith("undecided")]
        ahead = decided.loc[decided["up_to"] > 0, "up_to"]
        text = f"{variable}: {len(ahead)} of {len(decided)} markets are predictable from the first step on"
        if len(ahead):
            text += f", in the median up to step {ahead.median():g}"
        never = int((decided["steps"].map(len) == 0).sum())
        text += f"; {never} at no step (Holm over models and steps of a market, level {LEVEL:g})"
        if len(whole) > len(decided):
            text += f"; {len(whole) - len(decided)} undecided, as last value never erred enough to compare"
        each = [
            f"{model} {int((own['up_to'] > 0).sum())}"
            for model, own in table[table["model"] != ANY].groupby("model", sort=False)
        ]
        lines.append(f"{text}. By model: {', '.join(each)}.")
    return lines
