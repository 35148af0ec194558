"""What the numbers mean, in sentences: the answer for each variable, the paper's claim for each market, money beside accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from flows.accuracy.page.reading import (
    LAST_VALUE,
    TOLERATED,
    UNITS,
    Models,
    beyond_chance,
    by_step,
    market_skill,
    percent_signed,
    shown_steps,
)
from flows.show.formats import MISSING, as_number, listed, number, plural, ranges, significant
from forecasting.diagnosis.predictability import ANY, answers

#: Markets named in a sentence; the others are counted.
NAMED = 6
#: Coverage further than this from nominal, in shares of 1, is called off (the demand on the intervals).
OFF = 0.02

#: Skill below this at every step is hardly any.
NEGLIGIBLE = 0.01
#: Steps ahead over which accuracy is ranked beside money: as far as the plans look.
NEAR: Final = 4
#: Fewer models than this have no rank correlation worth a number.
FEWEST: Final = 4
#: Rank correlations from which two rankings are said to agree, and to agree in part.
AGREE, PARTLY = 0.7, 0.3


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Whether a market is predictable: in a few words, up to how many steps (-1 where no test was possible), in a sentence."""

    short: str
    reach: int
    sentence: str


#: The short answer where no test was possible.
UNDECIDED: Final = "undecided"


def claims(scores: pd.DataFrame, models: Models) -> dict[str, Claim]:
    """The answer to the paper's claim for every market; the sentences name models.

    Tests are those of `forecasting.diagnosis.predictability.answers` over all models but last
    value, with Holm's correction within a market.
    """
    asked = [model for model in models.names if model != LAST_VALUE]
    if not asked:
        return {
            market: Claim(short=MISSING, reach=0, sentence="No model but last value was measured.")
            for market in scores["market"].unique()
        }
    found = answers(scores, models=asked)
    return {str(market): _claim(rows, asked, scores) for market, rows in found.groupby("market")}


def _claim(rows: pd.DataFrame, asked: list[str], scores: pd.DataFrame) -> Claim:
    """``rows`` are one market's, by model."""
    by_model: dict[str, dict[Any, Any]] = {str(row["model"]): row for row in rows.to_dict("records")}
    whole, last = by_model[ANY], int(scores["step"].max())
    reach, steps = int(whole["up_to"]), list(whole["steps"])
    if str(whole["answer"]).startswith("undecided"):
        return Claim(short=UNDECIDED, reach=-1, sentence=f"{str(whole['answer']).capitalize()}.")
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
    return Claim(short=short, reach=reach, sentence=f"{opening}; {best}. By model: {each}.")


def claims_summary(variable: str, found: Sequence[Claim]) -> str:
    """On how many markets the claim holds."""
    yes = [claim.reach for claim in found if claim.reach > 0]
    undecided = sum(claim.short == UNDECIDED for claim in found)
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


def accuracy_ranks(pooled: pd.DataFrame) -> pd.DataFrame:
    """Rank by mean pinball skill over the first `NEAR` steps (1 = best, ties share the mean): models by variable."""
    near = pooled[pooled["step"] <= NEAR]
    ranks = {
        str(variable): by_step(rows, "skill_pinball").mean().rank(ascending=False)
        for variable, rows in near.groupby("variable")
    }
    return pd.DataFrame(ranks)


def money_verdict(rows: pd.DataFrame, models: Models, ranks: pd.DataFrame) -> list[str]:
    """Where the default stands by money among ``rows`` of a cost table, and whether the ranking by accuracy is the same."""
    money = rows[rows["money_rank"].notna()].set_index("model")["money_rank"].astype(float)
    lines = []
    if models.default in money.index and money[models.default] > money.min():
        best = listed(sorted(str(m) for m in money.index[money == money.min()]))
        lines.append(
            f"The default ({models.default}) is number {rank_text(money[models.default])} of {len(money)} models "
            f"by money; least is lost with {best}."
        )
    return lines + [
        line for variable in ranks.columns if (line := _agreement(money, ranks[variable], variable))
    ]


def _agreement(money: pd.Series, ranks: pd.Series, variable: str) -> str:
    both = pd.concat([money, ranks], axis=1, keys=["money", "accuracy"]).dropna()
    spread = len(both) >= FEWEST and np.ptp(both["money"]) > 0 and np.ptp(both["accuracy"]) > 0
    if not spread:
        return ""
    rho = float(both["money"].corr(both["accuracy"]))
    verdict = "agree" if rho >= AGREE else "agree in part" if rho >= PARTLY else "do not agree"
    accurate, cheap = (
        listed(sorted(str(m) for m in both.index[both[key] == both[key].min()]))
        for key in ("accuracy", "money")
    )
    return (
        f"The rankings by money and by pinball skill on the {variable} (first {NEAR} steps) {verdict}: Spearman {number(rho)} over "
        f"{len(both)} models; most accurate is {accurate}, least is lost with {cheap}."
    )


def rank_text(value: Any) -> str:
    """A rank; shared ones have a half."""
    found = as_number(value)
    return MISSING if found is None else f"{found:.1f}".removesuffix(".0")
