"""The answer in three sentences a variable, made from the numbers; where the default is weak they say so first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from flows.accuracy.page.reading import (
    LAST_VALUE,
    TOLERATED,
    UNITS,
    Models,
    beyond_chance,
    by_step,
    market_skill,
    shown_steps,
)
from flows.show.formats import as_number, listed, plural, ranges, significant

#: Markets named in a sentence; the others are counted.
NAMED = 6
#: Coverage further than this from nominal, in shares of 1, is called off (the demand on the intervals).
OFF = 0.02

#: Skill below this at every step is hardly any.
NEGLIGIBLE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A finding; ``weak`` where the default falls short."""

    text: str
    weak: bool = False


def answer(variable: str, scores: pd.DataFrame, pooled: pd.DataFrame, models: Models) -> list[Sentence]:
    """Is the default better than last value, and at which steps; on which markets it loses; whether its intervals hold.

    ``scores`` and ``pooled`` are the rows of one variable.
    """
    measured = set(pooled["model"])
    if models.default not in measured:
        text = f"The default model ({models.default}) was not measured on the {variable}; the tables show the others."
        return [Sentence(text=text, weak=True)]
    if LAST_VALUE not in measured:
        return [
            Sentence(
                text=f"Last value was not measured on the {variable}, so nothing is compared with it.",
                weak=True,
            )
        ]
    if models.default == LAST_VALUE:
        return [
            Sentence(
                text=f"The default for the {variable} is last value itself, so there is nothing to compare it with."
            )
        ]
    return [
        _by_steps(variable, scores, pooled, models),
        *_median_error(variable, pooled, models),
        _by_markets(variable, scores, models),
        _intervals(pooled, models),
        *_another_is_better(pooled, models),
    ]


def _by_steps(variable: str, scores: pd.DataFrame, pooled: pd.DataFrame, models: Models) -> Sentence:
    skill = by_step(pooled, "skill_pinball")[models.default].dropna()
    name = f"On the {variable}, the default ({models.default})"
    if skill.empty:
        return Sentence(
            text=f"On the {variable} last value made no error at all (flat series), so nothing can be better."
        )
    sizes = "; ".join(f"{percent_signed(skill[k])} at {plural(k, 'slot')}" for k in shown_steps(skill.index))
    ending = f": skill {sizes}{_beyond_chance(scores, models, int(skill.index[0]))}."
    better, worse = ([int(k) for k in skill.index[chosen]] for chosen in (skill > 0, skill <= 0))
    if not better:
        return Sentence(
            text=f"Weak result: {name[0].lower()}{name[1:]} is not better than last value at any step{ending}",
            weak=True,
        )
    if worse:
        where = f"only at {_steps(better)} and loses to it at {_steps(worse)}"
        return Sentence(
            text=f"Weak result: {name[0].lower()}{name[1:]} is better than last value {where}{ending}",
            weak=True,
        )
    if skill.max() < NEGLIGIBLE:
        return Sentence(
            text=f"Weak result: {name[0].lower()}{name[1:]} is hardly better than last value{ending}",
            weak=True,
        )
    return Sentence(text=f"{name} is better than last value at every step{ending}")


def _beyond_chance(scores: pd.DataFrame, models: Models, step: int) -> str:
    better, worse, moved = beyond_chance(scores)
    won, lost = int(better[models.default][step]), int(worse[models.default][step])
    return f" (at {plural(step, 'slot')} better beyond chance on {won}, worse on {lost} of {plural(int(moved[step]), 'market')})"


def _median_error(variable: str, pooled: pd.DataFrame, models: Models) -> list[Sentence]:
    errors = by_step(pooled, "mae")[[models.default, LAST_VALUE]].dropna()
    if errors.empty:
        return []
    above = [int(k) for k in errors.index[errors[models.default] > errors[LAST_VALUE] * (1 + 1e-9)]]
    first = int(errors.index[0])
    own, last = (significant(errors.loc[first, model]) for model in (models.default, LAST_VALUE))
    sizes = f"{own} against {last} {UNITS[variable]} at {plural(first, 'slot')}"
    if not above:
        return [Sentence(text=f"The error of its median is never above that of last value ({sizes}).")]
    where = "every step" if len(above) == len(errors) else _steps(above)
    return [
        Sentence(text=f"The error of its median is above that of last value at {where} ({sizes}).", weak=True)
    ]


def _by_markets(variable: str, scores: pd.DataFrame, models: Models) -> Sentence:
    skill = market_skill(scores)
    own = skill[models.default].dropna() if models.default in skill.columns else pd.Series(dtype=float)
    if own.empty:
        return Sentence(
            text=f"On no market did the {variable} move while it was tested, so no market can be won or lost."
        )
    lost, tolerated = own[own < -TOLERATED].sort_values(), f"{100 * TOLERATED:.0f} %"
    flat = scores["market"].nunique() - own.size
    undefined = f" On {plural(flat, 'flat market')} the skill is undefined." if flat else ""
    if lost.empty:
        text = f"On no market is it worse than last value by more than {tolerated}, all steps together"
        won = int((own > 0).sum())
        return Sentence(text=f"{text}; it is better on {won} of {own.size}.{undefined}")
    named = [f"{market} ({percent_signed(value)})" for market, value in lost.head(NAMED).items()]
    if lost.size > NAMED:
        named.append(f"{lost.size - NAMED} more (see the table of markets)")
    text = f"Where it loses: on {lost.size} of {plural(own.size, 'market')} it is worse than last value by more than {tolerated}"
    return Sentence(text=f"{text}: {listed(named)}.{undefined}", weak=True)


def _intervals(pooled: pd.DataFrame, models: Models) -> Sentence:
    own = pooled[pooled["model"] == models.default]
    parts, closed, off = [], [], set()
    for level in (80, 90):
        held = own[f"coverage_{level}"].dropna().astype(float)
        if held.empty:
            continue
        away = held - level / 100
        off |= {"above"} if (away > OFF + 1e-9).any() else set()
        off |= {"below"} if (away < -OFF - 1e-9).any() else set()
        parts.append(f"its {level} % interval held {_range(held)}")
        within = own[f"coverage_{level}_closed"].dropna().astype(float)
        closed += [_range(within)] if len(within) and not within.round(3).equals(held.round(3)) else []
    if not parts:
        return Sentence(text="The coverage of its intervals was not measured.", weak=True)
    ends = f" With values on an end of the interval counted as inside: {listed(closed)}." if closed else ""
    text = f"{listed(parts)} of the actual values"
    if not off:
        return Sentence(text=f"{text[0].upper()}{text[1:]}: within 2 points of nominal at every step.{ends}")
    how = "wider than promised at some steps and narrower at others, in each case"
    if len(off) == 1:
        how = {"above": "wider than promised,", "below": "narrower than promised,"}[off.pop()]
    return Sentence(text=f"Weak result: {text}: {how} by more than 2 points.{ends}", weak=True)


def _range(shares: pd.Series) -> str:
    low, high = (f"{100 * end:.1f}" for end in (shares.min(), shares.max()))
    return f"{low if low == high else f'{low} to {high}'} %"


def _another_is_better(pooled: pd.DataFrame, models: Models) -> list[Sentence]:
    """A model that beats the default, if there is one: then the default is not the best choice on these data."""
    skill = by_step(pooled, "skill_pinball").drop(columns=[LAST_VALUE], errors="ignore")
    means = skill.mean().dropna()
    if models.default not in means or means.idxmax() == models.default:
        return []
    best, own = str(means.idxmax()), float(means[models.default])
    skills = f"{percent_signed(means[best])} against {percent_signed(own)}"
    return [
        Sentence(text=f"{best} did better than the default over all steps: mean skill {skills}.", weak=True)
    ]


def _steps(steps: Sequence[int]) -> str:
    return f"{'step' if len(steps) == 1 else 'steps'} {ranges(steps)}"


def percent_signed(value: float) -> str:
    """A skill in percent with its sign, one decimal.

    >>> percent_signed(0.331), percent_signed(-0.02), percent_signed(-1e-9), percent_signed(float("nan"))
    ('+33.1 %', '−2.0 %', '0.0 %', '—')
    """
    found = as_number(value)
    if found is None:
        return "—"
    written = f"{100 * found:+.1f} %"
    return "0.0 %" if written[1:] == "0.0 %" else written.replace("-", "−")
