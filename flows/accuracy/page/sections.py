"""Sections of the accuracy report on all markets together: tables, findings in words, and charts (M6.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pandas as pd

from slackwater.flows.show.blocks import Block, Column, Figure, Figures, Fold, Notes, Section, Table
from slackwater.flows.show.charts import Axis, cut_told, dots, error_ceiling, lines, skill_floor
from slackwater.flows.show.formats import (
    MISSING,
    as_number,
    fixed,
    listed,
    number,
    percent,
    plural,
    ranges,
    rows_of,
    significant,
    whole,
)
from slackwater.flows.show.skills import ABOUT_VERDICTS, compared, nothing_compared, steps_compared
from slackwater.forecasting.accuracy.intervals import (
    BETTER,
    EVEN,
    TOO_FEW,
    WORSE,
    interval_words,
    skills_by_block,
    skills_of,
    verdict,
)
from slackwater.forecasting.accuracy.left_out import BY_DEFAULT, CHOSEN
from slackwater.forecasting.accuracy.losses import PERCENTS
from slackwater.forecasting.accuracy.tables import Accuracy, LeftOut
from slackwater.forecasting.diagnosis.predictability import ANY, answers
from slackwater.forecasting.predictors import COMPARED as TAG
from slackwater.forecasting.predictors import FLOOR, predictor_names

if TYPE_CHECKING:
    from slackwater.flows.accuracy.error_cost import ErrorCost


# ---
# The score tables for the page: order of models, means over steps, skills and their formats (M6.5).

#: Reference forecast of all comparisons.
LAST_VALUE: Final = FLOOR
#: Models listed for every market, besides the default.
COMPARED: Final = predictor_names(TAG)
UNITS: Final = {"count": "instances", "price": "USD per instance-hour"}
TITLES: Final = {"count": "Count of available instances", "price": "Spot price"}
#: Lead times shown in tables; charts show all.
SHOWN_STEPS: Final = (1, 2, 4, 8, 12)
#: Skill of the default below minus this value counts as a loss on a market (the requirement on the
#: default).
TOLERATED: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Models of a page: last value, then the default, then the others by name; ``default`` need not be among them."""

    names: tuple[str, ...]
    default: str

    @classmethod
    def of(cls, names: Iterable[str], default: str) -> Models:
        """Return the distinct models in order."""
        rank = {LAST_VALUE: 0, default: 1}
        return cls(
            names=tuple(sorted(set(names), key=lambda name: (rank.get(name, 2), name))), default=default
        )

    def title(self, name: str) -> str:
        """Return the name, with a mark on the default."""
        return f"{name} (default)" if name == self.default else name


def shown_steps(steps: Iterable[int]) -> list[int]:
    """Return those of ``steps`` that are in `SHOWN_STEPS`, and the last step.

    >>> shown_steps(range(1, 7))
    [1, 2, 4, 6]
    """
    found = sorted({int(step) for step in steps})
    return [step for step in found if step in SHOWN_STEPS or step == found[-1]]


def over_steps(scores: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """Return means over the steps by (market, model), weighted by ``n``; NaN values are ignored, NaN if there are no others."""
    keys = [scores["market"], scores["model"]]
    values = scores[list(metrics)].astype(float)
    weight = scores["n"].astype(float)
    sums = values.mul(weight, axis=0).groupby(keys).sum()
    n = values.notna().mul(weight, axis=0).groupby(keys).sum()
    means = sums / n.where(n > 0)
    means["n"] = scores["n"].groupby(keys).sum()
    return means


def market_skills(daily: pd.DataFrame) -> pd.DataFrame:
    """Return `SKILL_COLUMNS` over all steps by market and model, from the daily losses of a variable."""
    floor = daily[daily["model"] == LAST_VALUE].set_index(["market", "day"])["pinball"].rename("floor")
    table = daily.join(floor, on=["market", "day"])
    table = table[table["floor"].notna()]
    n = table["n"].astype(float)
    losses = table.assign(loss=table["pinball"].astype(float) * n, floor=table["floor"].astype(float) * n)
    return skills_by_block(losses, ["market", "model"])


def against(daily: pd.DataFrame, scores: pd.DataFrame, model: str, other: str) -> Mapping[Any, Any]:
    """Return `SKILL_COLUMNS` of a model compared with another over all markets and steps, in units of each market's scale."""
    scale = scores.groupby("market")["scale"].first().astype(float)
    unit = daily["n"].astype(float) / daily["market"].map(scale)
    table = daily.assign(sum=daily["pinball"].astype(float) * unit)
    sums = (
        table[table["model"].isin([model, other])]
        .pivot_table(index=["market", "day"], columns="model", values="sum")
        .dropna()
    )
    by_day = sums.groupby("day").sum()
    found = skills_of(by_day[[model]].to_numpy(float), by_day[[other]].to_numpy(float)).columns()
    return {name: values[0] for name, values in found.items()}


def by_step(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return ``metric`` by step (rows, ascending) and model (columns)."""
    return table.pivot_table(
        index="step", columns="model", values=metric, aggfunc="mean", dropna=False
    ).astype(float)


def beyond_chance(scores: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """Count the markets where a model is better, and those where it is worse, than last value
    beyond the 95 % interval by days.

    Both counts are by step (rows) and model (columns), from ``scores`` of a single variable. The
    third result is the number of markets with enough days, by step.
    """
    keys = [scores["step"], scores["model"]]
    better, worse = (
        (scores["verdict"] == word).groupby(keys).sum().unstack("model") for word in (BETTER, WORSE)
    )
    decided = scores[~scores["verdict"].isin(["", TOO_FEW])]
    among = decided.groupby("step")["market"].nunique().reindex(better.index, fill_value=0)
    return better, worse, among


class Marked(float):
    """A number with a mark if it is out of range, such as a coverage far from its level."""

    marked: bool

    def __new__(cls, value: float, marked: bool = False) -> Self:
        """Return a number, highlighted if ``marked``."""
        made = super().__new__(cls, value)
        made.marked = marked
        return made


def skill_cell(row: Mapping[Any, Any]) -> float | str | None:
    """Return the skill in a row with `slackwater.forecasting.accuracy.intervals.SKILL_COLUMNS` as a cell; the
    verdict if it is not significant.
    """
    value = as_number(row["skill_pinball"])
    if value is None or row["verdict"] == "":
        return value
    return value if row["verdict"] in (BETTER, WORSE) else str(row["verdict"])


def skill_at(own: pd.DataFrame, step: int) -> float | str | None:
    """Return `skill_cell` at a step of the rows ``own`` of a model, indexed by step."""
    return skill_cell(own.loc[step].to_dict()) if step in own.index else None


def percent_signed(value: Any) -> str:
    """Format a skill in percent with its sign and a decimal.

    >>> percent_signed(0.331), percent_signed(-0.02), percent_signed(-1e-9), percent_signed(float("nan"))
    ('+33.1 %', '−2.0 %', '0.0 %', '—')
    """
    found = as_number(value)
    if found is None:
        return MISSING
    written = f"{100 * found:+.1f} %"
    return "0.0 %" if written[1:] == "0.0 %" else written.replace("-", "−")


def skill_text(value: Any) -> str:
    """Format a skill for a column in percent, or the verdict of `skill_cell`; exactly 0 is the skill of last value.

    >>> skill_text(0.12), skill_text("even"), skill_text(0.0), skill_text(None)
    ('+12.0', 'even', '0', '—')
    """
    if isinstance(value, str):
        return value
    return "0" if value == 0 else percent_signed(value).removesuffix(" %")


def tone(value: Any) -> str:
    """Return the style of a skill: up for good, down for bad, stronger from 10 and from 25 %, none
    below half a percent.

    >>> [tone(value) for value in (0.3, 0.12, 0.02, 0.001, -0.02, -0.4)]
    ['up3', 'up2', 'up1', '', 'down1', 'down3']
    """
    skill = None if isinstance(value, str) else as_number(value)
    if skill is None or abs(skill) < 0.005:
        return ""
    depth = 1 + int(abs(skill) >= 0.1) + int(abs(skill) >= 0.25)
    return f"{'up' if skill > 0 else 'down'}{depth}"


# ---
# Findings in sentences: the answer for each variable, the paper's claim for each market, and utility compared with accuracy.

#: Maximum number of markets named in a sentence; the others are counted.
NAMED = 6
#: Maximum deviation of coverage from nominal, as a share (the requirement on the intervals).
OFF = 0.02

#: Skill below this at every step is reported as negligible.
NEGLIGIBLE = 0.01
#: Lead times over which accuracy is ranked for comparison with utility: the horizon of the plans.
NEAR: Final = 4
#: Minimum number of models for a rank correlation.
FEWEST: Final = 4
#: Rank correlations from which two rankings agree, and agree in part.
AGREE, PARTLY = 0.7, 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A finding; ``weak`` if the default falls short."""

    text: str
    weak: bool = False


def answer(variable: str, accuracy: Accuracy, models: Models) -> list[Sentence]:
    """State where the default is better than last value, on which markets it is worse, and whether its intervals are calibrated."""
    scores, pooled, daily = (
        of(table, variable) for table in (accuracy.scores, accuracy.pooled, accuracy.daily)
    )
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
        *_by_markets(market_skills(daily), models),
        *_worst_market(scores, models),
        _intervals(pooled, models),
        *_another_is_better(scores, pooled, daily, models),
    ]


def _by_steps(variable: str, scores: pd.DataFrame, pooled: pd.DataFrame, models: Models) -> Sentence:
    own = pooled[pooled["model"] == models.default].sort_values("step")
    rows = own.to_dict("records")
    name = f"On the {variable}, the default ({models.default})"
    if own["verdict"].eq(TOO_FEW).all():
        return Sentence(text=f"On the {variable}: {_lower(nothing_compared(rows))}", weak=True)
    sizes = "; ".join(
        f"{compared(row)} at {plural(row['step'], 'slot')}"
        for row in rows
        if row["step"] in shown_steps(own["step"])
    )
    found = steps_compared(rows)
    ending = f": {sizes}{_beyond_chance(scores, models, int(own['step'].iloc[0]))}. {_evidence(own)}"
    if not own["verdict"].eq(BETTER).all():
        return Sentence(
            text=f"Weak result: {_lower(name)} compared with last value is {found}{ending}", weak=True
        )
    if own["skill_pinball"].max() < NEGLIGIBLE:
        return Sentence(
            text=f"Weak result: {_lower(name)} is hardly better than last value{ending}", weak=True
        )
    return Sentence(text=f"{name} is better than last value at every step{ending}")


def _lower(words: str) -> str:
    return words[:1].lower() + words[1:]


def _evidence(own: pd.DataFrame) -> str:
    """State the number of forecasts and days behind the rows of a model."""
    n, days = int(own["n"].max()), int(own["days"].max())
    return f"{n:,} forecasts a step with errors on {plural(days, 'day')}; 95 % intervals by days."


def _beyond_chance(scores: pd.DataFrame, models: Models, step: int) -> str:
    better, worse, moved = beyond_chance(scores)
    won, lost = int(better[models.default][step]), int(worse[models.default][step])
    among = plural(int(moved[step]), "market")
    return f" (at {plural(step, 'slot')} better on {won}, worse on {lost} of {among}, beyond their intervals)"


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


def _by_markets(skills: pd.DataFrame, models: Models) -> list[Sentence]:
    own = skills[skills.index.get_level_values("model") == models.default].droplevel("model")
    if own.empty:
        return []
    found = own["verdict"].value_counts()
    counts = ", ".join(
        f"{words} on {int(found[word])}"
        for word, words in (
            (BETTER, BETTER),
            (EVEN, EVEN),
            (WORSE, WORSE),
            (TOO_FEW, "not compared (too few days with errors)"),
        )
        if word in found
    )
    text = (
        f"By market, all steps together, compared with last value: {counts} of {plural(len(own), 'market')}."
    )
    lost = own[(own["verdict"] == WORSE) & (own["skill_pinball"] < -TOLERATED)].sort_values("skill_pinball")
    if lost.empty:
        return [Sentence(text=text)]
    named = [f"{market}, {compared(row)}" for market, row in lost.head(NAMED).to_dict("index").items()]
    if len(lost) > NAMED:
        named.append(f"{len(lost) - NAMED} more (see the table of markets)")
    return [
        Sentence(text=f"{text} Worse by more than {100 * TOLERATED:.0f} %: {'; '.join(named)}.", weak=True)
    ]


def _worst_market(scores: pd.DataFrame, models: Models) -> list[Sentence]:
    """State where the default is worst compared with last value: market, lead time and interval by days.

    Also counts the markets and steps at which it is worse by more than `TOLERATED`, and those
    beyond the interval.
    """
    own = scores[(scores["model"] == models.default) & ~scores["verdict"].isin(["", TOO_FEW])]
    own = own[own["step"].isin(shown_steps(scores["step"]))].astype({"skill_pinball": float})
    if own.empty:
        return []
    row = own.iloc[int(own["skill_pinball"].argmin())]
    below = own[own["skill_pinball"] < -TOLERATED]
    sure = int((below["verdict"] == WORSE).sum())
    return [
        Sentence(
            text=f"At one step alone the worst market is {row['market']}: {compared(row.to_dict())} at "
            f"{plural(int(row['step']), 'slot')}. Worse by more than {100 * TOLERATED:.0f} % it is at {len(below)} of "
            f"{len(own)} markets and steps, beyond that interval at {sure}.",
            weak=sure > 0,
        )
    ]


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


def _another_is_better(
    scores: pd.DataFrame, pooled: pd.DataFrame, daily: pd.DataFrame, models: Models
) -> list[Sentence]:
    """State which model has the highest skill, if not the default, and whether it is significantly better than the default."""
    means = by_step(pooled, "skill_pinball").drop(columns=[LAST_VALUE], errors="ignore").mean().dropna()
    if models.default not in means or means.idxmax() == models.default:
        return []
    best = str(means.idxmax())
    row = against(daily, scores, best, models.default)
    if row["verdict"] == TOO_FEW:
        return []
    return [
        Sentence(
            text=f"{best} compared with the default, all steps together: {compared(row)}.",
            weak=row["verdict"] == BETTER,
        )
    ]


def _steps(steps: Sequence[int]) -> str:
    return f"{'step' if len(steps) == 1 else 'steps'} {ranges(steps)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictability:
    """Predictability of a market: short answer, number of predictable steps (-1 if no test was possible), and a sentence."""

    short: str
    reach: int
    sentence: str


#: Short answer if no test was possible.
UNDECIDED: Final = "undecided"


def claims(scores: pd.DataFrame, models: Models) -> dict[str, Predictability]:
    """Return the answer to the paper's claim for every market, with sentences that name models.

    Tests are those of `slackwater.forecasting.diagnosis.predictability.answers` over all models but last
    value, with Holm's correction within a market.
    """
    asked = [model for model in models.names if model != LAST_VALUE]
    if not asked:
        return {
            market: Predictability(short=MISSING, reach=0, sentence="No model but last value was measured.")
            for market in scores["market"].unique()
        }
    found = answers(scores, models=asked)
    return {str(market): _claim(rows, asked, scores) for market, rows in found.groupby("market")}


def _claim(rows: pd.DataFrame, asked: list[str], scores: pd.DataFrame) -> Predictability:
    """Return the answer for a market; ``rows`` are its test results by model."""
    by_model: dict[str, dict[Any, Any]] = {str(row["model"]): row for row in rows.to_dict("records")}
    whole, last = by_model[ANY], int(scores["step"].max())
    reach, steps = int(whole["up_to"]), list(whole["steps"])
    if str(whole["answer"]).startswith("undecided"):
        return Predictability(short=UNDECIDED, reach=-1, sentence=f"{str(whole['answer']).capitalize()}.")
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
    return Predictability(short=short, reach=reach, sentence=f"{opening}; {best}. By model: {each}.")


def claims_summary(variable: str, found: Sequence[Predictability]) -> str:
    """State on how many markets the claim holds."""
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
    """Return ranks by mean pinball skill over the first `NEAR` steps (1 = best, mean ranks for ties), models by variable."""
    near = pooled[pooled["step"] <= NEAR]
    ranks = {
        str(variable): by_step(rows, "skill_pinball").mean().rank(ascending=False)
        for variable, rows in near.groupby("variable")
    }
    return pd.DataFrame(ranks)


def money_verdict(rows: pd.DataFrame, models: Models, ranks: pd.DataFrame) -> list[str]:
    """State the rank of the default by utility in ``rows`` of a cost table, and whether the ranking by accuracy agrees."""
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
    """Format a rank; shared ranks may end in a half."""
    found = as_number(value)
    return MISSING if found is None else f"{found:.1f}".removesuffix(".0")


# ---
# The sections; equal tables give equal blocks.

#: Minimum extent of a skill axis, so that noise does not look large.
SMALLEST_SPAN: Final = 0.05
#: Columns with the amount of data behind a row of skills.
EVIDENCE: Final[dict[str, Column | str]] = {
    "n": Column(heading="forecasts", format=whole, words="At one step ahead."),
    "days": Column(heading="days", format=whole, words="Days with errors: the blocks of the interval."),
}
#: Deviation of coverage from nominal that is accepted (the requirement on the intervals).
TOLERANCE: Final = 0.02
#: Maximum number of markets drawn as lines in the chart of last value's error.
MOST_LINES: Final = 60
#: Strength from which a daily cycle is counted.
STRONG: Final = 0.3


def of_variables(
    heading: str, anchor: str, scores: pd.DataFrame, blocks: Callable[[str], list[Block]], *first: Block
) -> Section:
    """Return a section with a subsection for each scored variable."""
    parts = [
        Section(title, blocks(variable), f"{anchor}-{variable}")
        for variable, title in TITLES.items()
        if (scores["variable"] == variable).any()
    ]
    return Section(heading, [*first, *parts], anchor)


def of(table: pd.DataFrame, variable: str) -> pd.DataFrame:
    """Return the rows of a variable."""
    return table[table["variable"] == variable]


def by_steps(
    steps: Sequence[int],
    prefix: str,
    written: Callable[[Any], str],
    shade: Callable[[Any], str] | None = None,
) -> dict[str, Column | str]:
    """Return a column per lead time."""
    return {f"{prefix}{step}": Column(heading=str(step), format=written, tone=shade) for step in steps}


def answer_section(accuracy: Accuracy) -> Section:
    """Return the section that answers whether the default is better than last value, a few sentences per variable."""

    def told(variable: str) -> list[Block]:
        models = Models.of(of(accuracy.scores, variable)["model"].astype(str), accuracy.default)
        found = answer(variable, accuracy, models)
        return [Notes([f"▼ {one.text}" if one.weak else one.text for one in found])]

    about = (
        "Skill is the share of last value’s pinball loss that a model saves (the loss of the whole "
        "distribution; half of the CRPS): 0 is as good as last value, 100 % is knowing the future, below 0 "
        f"is worse. {ABOUT_VERDICTS} A finding marked ▼ is a weak one."
    )
    return of_variables("1. The answer", "answer", accuracy.scores, told, about)


def pooled_section(accuracy: Accuracy) -> Section:
    """Return the section on all markets together by step: charts of skill and error, with their tables."""
    heading = "2. All markets together, by step"
    return of_variables(
        heading, "pooled", accuracy.scores, lambda variable: _pooled_blocks(variable, accuracy)
    )


def _pooled_blocks(variable: str, accuracy: Accuracy) -> list[Block]:
    scores, pooled = of(accuracy.scores, variable), of(accuracy.pooled, variable)
    models = Models.of(scores["model"].astype(str), accuracy.default)
    decided = pooled.assign(skill_pinball=pooled["skill_pinball"].where(pooled["verdict"] != TOO_FEW))
    skill, mae = by_step(decided, "skill_pinball"), by_step(pooled, "mae")
    steps, unit = shown_steps(skill.index), UNITS[variable]
    better, worse, moved = beyond_chance(scores)
    rows = pooled_rows(pooled, models, steps)
    mase = over_steps(scores, ["mase"])["mase"].groupby(level="model").median()
    for row in rows:
        row["mase"] = as_number(mase.get(row["name"]))
    among = int(moved.max()) if len(moved) else 0
    model: dict[str, Column | str] = {"model": "model"}
    whole_steps: dict[str, Column | str] = {
        "rmse": Column(heading="RMSE", unit=unit, format=significant),
        "mase": Column(heading="MASE", format=number, words="In units of last value’s error one slot ahead on the "
                       "training part, the middle market’s."),
        "pinball": Column(heading="pinball loss", unit=unit, format=significant),
        **({"brier": Column(heading="Brier", format=fixed(4)),
            "skill_brier": Column(heading="Brier skill", unit="%", format=skill_text, tone=tone)} if variable == "count" else {}),
        "fallback": Column(heading="fallback", format=percent, words="Share of forecasts that a simpler model answered."),
    }  # fmt: skip
    scale = "capacity" if variable == "count" else "mean price on the training part"
    return [
        Figures([_skill_figure(variable, skill, pooled, models), _error_figure(variable, mae, models)]),
        Table(
            "Skill over last value, %, by slots ahead", rows, model | EVIDENCE | by_steps(steps, "skill_", skill_text, tone),
            marked=_floor,
        ),
        Fold("Intervals of the skill", [_intervals_table(pooled, models, steps)], printed=True),
        Table(
            f"Mean absolute error of the median, {unit}, by slots ahead", rows, model | by_steps(steps, "mae_", significant),
            marked=_floor,
        ),
        Table("All steps together", rows, model | whole_steps, marked=_floor),
        *_class_blocks(variable, of(accuracy.classes, variable), models),
        *_left_out_blocks(variable, accuracy.left_out),
        _chances_fold(rows, better, worse, steps, among, counts=variable == "count"),
        f"Pooled over {scores['market'].nunique()} series: losses are divided by the market’s {scale} before they are summed for "
        f"the skill, so that large markets do not drown small ones; errors are means over all forecasts, in {unit}. MASE is in "
        "units of last value’s error one slot ahead on the training part, the middle market’s. "
        f"{ABOUT_VERDICTS} — means undefined.",
    ]  # fmt: skip


def _floor(row: Mapping[str, Any]) -> bool:
    """Return whether a row is that of last value, the reference."""
    return bool(row.get("name") == LAST_VALUE)


def pooled_rows(pooled: pd.DataFrame, models: Models, steps: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row per model of the pooled table of a variable: errors and skills at some steps, other measures over all steps."""
    rows = []
    for name in models.names:
        own = pooled[pooled["model"] == name].set_index("step").sort_index()
        if own.empty:
            continue
        row: dict[str, Any] = {"name": name, "model": models.title(name)}
        row |= {"n": int(own["n"].max()), "days": int(own["days"].max())}
        row |= {f"skill_{step}": skill_at(own, step) for step in steps}
        row |= {f"mae_{step}": own["mae"].get(step) for step in steps}
        means = ("rmse", "pinball", "brier", "skill_brier", "absent", "unpredicted", "cover")
        row |= {metric: weighted(own, metric) for metric in means}
        if own["verdict"].eq(TOO_FEW).all():
            row["skill_brier"] = TOO_FEW
        rows.append(row | {"fallback": weighted(own, "fallback_share")})
    return rows


def weighted(own: pd.DataFrame, metric: str) -> float:
    """Return the mean of a measure over the steps of a model, weighted by ``n``; NaN if undefined at every step."""
    if metric not in own.columns:
        return float("nan")
    values, n = own[metric].to_numpy(float), own["n"].to_numpy(float)
    there = ~np.isnan(values) & (n > 0)
    return float((values[there] * n[there]).sum() / n[there].sum()) if there.any() else float("nan")


def step_rows(
    table: pd.DataFrame,
    models: Models,
    sure: pd.DataFrame | None = None,
    titles: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Return a table by step and model as rows of a chart; ``sure``, of the same shape, is True where a point is drawn."""
    steps = [int(step) for step in table.index.tolist()]
    return [
        {"x": step, "y": float(table[name].iloc[k]), "series": (titles or {}).get(name) or models.title(name)}
        | ({} if sure is None else {"point": bool(sure[name].iloc[k])})
        for name in models.names
        if name in table.columns
        for k, step in enumerate(steps)
    ]


def slots_axis() -> Axis:
    """Return the horizontal axis of charts by lead time."""
    return Axis(title="slots ahead", whole=True, zero=False, ticks=8)


def _intervals_table(pooled: pd.DataFrame, models: Models, steps: Sequence[int]) -> Table:
    """Return a table that compares each model with last value at some steps, in words with intervals."""
    rows = []
    for name in models.names:
        own = pooled[pooled["model"] == name].set_index("step")
        if len(own) and name != LAST_VALUE:
            words = {
                f"words_{step}": compared(own.loc[step].to_dict()) for step in steps if step in own.index
            }
            rows.append({"model": models.title(name)} | words)
    return Table(
        "Compared with last value, by slots ahead, 95 % intervals by days",
        rows,
        {"model": "model", **{f"words_{step}": str(step) for step in steps}},
    )


def _skill_figure(variable: str, skill: pd.DataFrame, pooled: pd.DataFrame, models: Models) -> Figure:
    title, label = "Skill over last value", f"Pinball skill over last value by step, {variable}"
    drawn = skill.drop(columns=LAST_VALUE, errors="ignore")
    if not drawn.notna().any(axis=None):
        why = nothing_compared(pooled[pooled["model"] != LAST_VALUE].to_dict("records"))
        return Figure(specs=[], label=label, title=title, why=why, width=0)
    sure = pooled.pivot(index="step", columns="model", values="verdict").isin([BETTER, WORSE])
    sure = sure.reindex(index=skill.index, columns=skill.columns, fill_value=False)
    series = {models.title(name): drawn[name].tolist() for name in models.names if name in drawn.columns}
    floor = skill_floor(series, models.title(models.default))
    top, bottom = float(np.nanmax(drawn.to_numpy())), float(np.nanmin(drawn.to_numpy()))
    low, high = max(min(bottom, -SMALLEST_SPAN), floor), max(top, SMALLEST_SPAN)
    margin = 0.05 * (high - low)
    spec = lines(
        step_rows(drawn, models, sure), list(series), bold=models.title(models.default), rule=0.0, x=slots_axis(), height=230,
        y=Axis(title="share of last value’s pinball loss saved", low=low - margin, high=high + margin, format=".2~f"),
    )  # fmt: skip
    cut = cut_told(series, floor, above=False)
    told = (
        "Above the dashed line at 0 a model is better than last value. A mark stands where the 95 % interval by days of the pooled "
        "skill does not hold 0."
    )
    return Figure(specs=[spec], label=label, title=title, captions=[told, *([cut] if cut else [])], width=0)


def _error_figure(variable: str, mae: pd.DataFrame, models: Models) -> Figure:
    series = {models.title(name): mae[name].tolist() for name in models.names if name in mae.columns}
    kept = models.title(LAST_VALUE), models.title(models.default)
    high = error_ceiling(series, *kept)
    spec = lines(
        step_rows(mae, models), list(series), reference=kept[0], bold=kept[1], x=slots_axis(),
        y=Axis(title=f"mean absolute error, {UNITS[variable]}", high=high), height=230,
    )  # fmt: skip
    told = "Lower is better; the plain ink line is last value. Where it bends down from step 1 to 2, see Predictability."
    cut = cut_told(series, high, above=True)
    return Figure(
        specs=[spec], label=f"Mean absolute error by step, {variable}", title="Error of the median", width=0,
        captions=[told, *([cut] if cut else [])],
    )  # fmt: skip


def class_rows(classes: pd.DataFrame, models: Models) -> list[dict[str, Any]]:
    """Return rows of the default and last value by class of markets; ``classes`` are the rows of a variable, in display order."""
    rows = []
    for name in dict.fromkeys(classes["class"]):
        own = classes[classes["class"] == name]
        default, last = (
            own[own["model"] == model].set_index("step") for model in (models.default, LAST_VALUE)
        )
        if default.empty:
            continue
        rows.append(
            {
                "class": str(name),
                "series": int(default["markets"].max()),
                "n": int(default["n"].max()),
                "days": int(default["days"].max()),
            }
            | {f"skill_{step}": skill_at(default, step) for step in shown_steps(default.index)}
            | {"mae": default["mae"].iloc[0], "last": last["mae"].iloc[0] if len(last) else None}
            | {f"coverage_{p}": float(default[f"coverage_{p}"].mean()) for p in (80, 90)}
            | {"worse": float(default["share_worse"].mean())}
        )
    return rows


def _class_blocks(variable: str, classes: pd.DataFrame, models: Models) -> list[Block]:
    rows = class_rows(classes, models)
    if not rows:
        return []
    steps = shown_steps(classes["step"])
    unit = UNITS[variable]
    columns: dict[str, Column | str] = {
        "class": "capacity" if variable == "count" else "price",
        "series": Column(heading="series", format=whole),
        **EVIDENCE,
        **{f"skill_{step}": Column(heading=f"skill at {step}", unit="%", format=skill_text, tone=tone) for step in steps},
        "mae": Column(heading="error at 1", unit=unit, format=significant),
        "last": Column(heading="last value’s", unit=unit, format=significant),
        "coverage_80": Column(heading="in 80 %", format=percent),
        "coverage_90": Column(heading="in 90 %", format=percent),
        "worse": Column(heading="series worse than last value", format=percent, words="Mean over the steps."),
    }  # fmt: skip
    told = (
        "Counts by their stated capacity; “offers” have none stated (marketplaces)."
        if variable == "count"
        else "A price is “moving” if it changed once a day or more often on the training part."
    )
    return [
        Table("The default by class of markets", rows, columns),
        f"{told} Series worse: mean over the steps.",
    ]


def left_out_rows(found: LeftOut, variable: str) -> list[dict[str, Any]]:
    """Return a row per class and type of model selection: skill by step, the worst market at any step shown, and coverage."""
    table = of(found.classes, variable)
    steps = shown_steps(table["step"]) if len(table) else []
    rows = []
    for (kind, choice), own in table.groupby(["class", "choice"], sort=False):
        shown = [row for row in own.to_dict("records") if row["step"] in steps]
        known = [row for row in shown if as_number(row["worst_skill_pinball"]) is not None]
        worst = min(known, key=lambda row: float(row["worst_skill_pinball"]), default=None)
        rows.append(
            {"class": str(kind), "choice": str(choice), "model": str(own["model"].iloc[0]), "series": int(own["markets"].max())}
            | {"blocks": int(own["blocks"].max())}
            | {f"skill_{row['step']}": skill_cell(row) for row in shown}
            | {"ahead": _ahead_told(shown), "worst": MISSING if worst is None else _worst_told(worst)}
            | {"coverage_80": float(own["coverage_80"].mean())}
        )  # fmt: skip
    return rows


def _ahead_told(rows: Sequence[Mapping[Any, Any]]) -> str:
    """State the lead times at which a model selection is better and worse than the default, beyond its interval.

    Returns a dash for the default itself.
    """
    if all(row["choice"] == BY_DEFAULT for row in rows):
        return MISSING
    found = [
        (row["step"], verdict(row["ahead_low"], row["ahead_high"], above="ahead", below="behind"))
        for row in rows
    ]
    if len({word for _, word in found}) == 1:
        return found[0][1] if found[0][1] in (EVEN, TOO_FEW) else f"{found[0][1]} at every step"
    parts = {word: [str(step) for step, own in found if own == word] for word in ("ahead", "behind", TOO_FEW)}
    return "; ".join(f"{word} at {', '.join(steps)}" for word, steps in parts.items() if steps)


def _worst_told(row: Mapping[Any, Any]) -> str:
    """Describe the skill on the worst market, with lead time, interval by days and market."""
    low, high = as_number(row["worst_low"]), as_number(row["worst_high"])
    within = "" if low is None or high is None else f" ({percent_signed(low)} to {percent_signed(high)})"
    return f"{percent_signed(row['worst_skill_pinball'])} at {row['step']}{within}, {row['worst_market']}"


def _left_out_blocks(variable: str, found: LeftOut | None) -> list[Block]:
    rows = [] if found is None else left_out_rows(found, variable)
    if found is None or not rows:
        return []
    columns: dict[str, Column | str] = {
        "class": "capacity" if variable == "count" else "price",
        "choice": "chosen",
        "model": "model",
        "series": Column(heading="series", format=whole),
        "blocks": Column(heading=f"{found.by}s", format=whole),
        **by_steps(shown_steps(of(found.classes, variable)["step"]), "skill_", skill_text, tone),
        "ahead": "beside the default",
        "worst": "worst market",
        "coverage_80": Column(heading="in 80 %", format=percent),
    }
    choices = rows_of(of(found.choices, variable))
    made: dict[str, Column | str] = {
        "left_out": f"{found.by} left out",
        "class": "class",
        "others": Column(heading="chosen on, series", format=whole),
        "model": "model",
        "skill": Column(heading="skill there", unit="%", format=skill_text, tone=tone),
    }
    title = f"Models chosen with each {found.by} left out, skill over last value, %, by slots ahead"
    told = (
        f"“Left out”: the markets of each {found.by} get the model that was best, mean over the steps, on the earlier "
        "halves of all other markets of their class, and are scored on their later halves. “Hindsight”: the single model "
        "that was best on the later halves. Beside the default: at which steps the difference is beyond its 95 % interval by "
        f"{found.by}s, else even; the skill has its interval by {found.by}s too. "
        "Worst market: at one of the steps shown, with its 95 % interval by days."
    )
    return [
        Table(title, rows, columns, marked=lambda row: row["choice"] != CHOSEN),
        told,
        Fold(f"What was chosen, {found.by} by {found.by}", [Table("", choices, made, most=0)]),
    ]


def _chances_fold(
    rows: Sequence[dict[str, Any]], better: pd.DataFrame, worse: pd.DataFrame, steps: Sequence[int], among: int, *, counts: bool
) -> Fold:  # fmt: skip
    """Return the markets won and lost significantly at each step shown and, for counts, the instances absent and unpredicted."""

    def both(name: str, step: int) -> str:
        if name == LAST_VALUE or name not in better.columns:
            return MISSING
        return f"{int(better[name][step])} / {int(worse[name][step])}"

    told = [{**row, **{f"beyond_{step}": both(row["name"], step) for step in steps}} for row in rows]
    model: dict[str, Column | str] = {"model": "model"}
    blocks: list[Block] = [
        Table(
            f"Markets won / lost beyond chance, by slots ahead, of {among}",
            told,
            model | {f"beyond_{step}": str(step) for step in steps},
            marked=_floor,
        )
    ]
    if counts:
        near = "An instance one slot off counts half an error, not two."
        columns: dict[str, Column | str] = {
            "absent": Column(heading="forecast, not there", format=significant),
            "unpredicted": Column(heading="there, not forecast", format=significant),
            "cover": Column(heading="either, near ones matched", format=significant, words=near),
        }
        blocks.append(Table("Mean instances a slot", told, model | columns, marked=_floor))
    beside = "; instances absent and unpredicted" if counts else ""
    return Fold(f"Markets won and lost beyond chance{beside}", blocks)


def money_section(accuracy: Accuracy, cost: ErrorCost | None, why: str) -> Section:
    """Return the section on the models by lost utility and by accuracy: the mean over the policies first, then each policy."""
    heading = "3. Ranked by money, beside ranked by accuracy"
    if cost is None:
        none = f"{_capital(why)}." if why else "What the errors cost was not measured in this run."
        return Section(heading, [none], "money")
    from slackwater.flows.accuracy.error_cost import ALL_POLICIES, cost_sentences

    models = Models.of(accuracy.scores["model"].astype(str), accuracy.default)
    ranks = accuracy_ranks(accuracy.pooled)
    groups = {str(policy): rows for policy, rows in cost.table.groupby("policy", sort=False)}
    first, *others = sorted(groups, key=lambda policy: policy != ALL_POLICIES)
    about = (
        f"The same jobs are replayed with the same policies ({'; '.join(cost.policies)}) on every model’s forecasts as they were "
        "issued, and on perfect ones. What is lost against perfect forecasts is the price of being wrong."
    )
    notes = "".join(f" {_capital(note)}." for note in cost.notes)
    return Section(
        heading,
        [
            about,
            Notes([*cost_sentences(cost), *money_verdict(groups[first], models, ranks)]),
            *_cost_blocks("Mean over the policies" if first == ALL_POLICIES else first, groups[first], ranks, models),
            *(Fold(policy, _cost_blocks(policy, groups[policy], ranks, models)) for policy in others),
            "Utilities are in units of what the job costs on on-demand instances alone. Accuracy is ranked "
            "by mean pinball skill over the first steps, as far as the plans look. Captured: share of what "
            "perfect forecasts gain over last value. Lost "
            f"to counts: with the model’s counts beside the true prices; the rest is lost to prices.{notes}",
        ],
        "money",
    )  # fmt: skip


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


#: Labels of the rows of a cost table that are not models, in table and chart.
_REFERENCES: Final = {
    "perfect": "perfect forecasts",
    "none": "none: the present slot alone",
}


def money_rows(rows: pd.DataFrame, ranks: pd.DataFrame, models: Models) -> list[dict[str, Any]]:
    """Return the rows of a policy in a cost table, the models by rank first."""
    ranked = rows["money_rank"].notna()
    ordered = pd.concat([rows[ranked].sort_values(["money_rank", "model"], kind="stable"), rows[~ranked]])
    return [
        {str(key): value for key, value in row.items()}
        | {f"rank_{variable}": ranks[variable].get(row["model"]) for variable in ranks.columns}
        | {
            "name": row["model"],
            "reference": as_number(row["money_rank"]) is None,
            "model": _REFERENCES.get(row["model"], row["model"])
            if as_number(row["money_rank"]) is None
            else models.title(row["model"]),
            "lost_told": _interval(row, "lost"),
            "gained_told": _interval(row, "gained"),
        }
        for row in ordered.to_dict("records")
    ]


def _cost_blocks(title: str, table: pd.DataFrame, ranks: pd.DataFrame, models: Models) -> list[Block]:
    rows = money_rows(table, ranks, models)
    points = [
        {
            "label": "no forecast" if row["reference"] else row["model"],
            "value": row["lost"], "low": row["lost_low"], "high": row["lost_high"],
            "kind": "no forecast" if row["reference"] else "default" if row["name"] == models.default else "model",
        }
        for row in rows
        if abs(row["lost"]) + abs(row["lost_high"]) > 0
    ]  # fmt: skip
    kinds = {"default": "series1", "model": "ink", "no forecast": "on-demand"}
    present = {kind: hue for kind, hue in kinds.items() if any(point["kind"] == kind for point in points)}
    spec = dots(
        points, [point["label"] for point in points], kinds=present, spans=True, bound=0.0,
        x=Axis(title="utility lost, in units of the on-demand cost"),
    )  # fmt: skip
    caption = (
        "Further left is better; the green line is planning with perfect forecasts. Bars are 95 % intervals "
        "over blocks of market and day; where two overlap widely, the ranking between them is not settled."
    )
    columns: dict[str, Column | str] = {
        "model": "model",
        "money_rank": Column(heading="rank by money", format=rank_text),
        **{f"rank_{v}": Column(heading=f"rank by accuracy, {v}", format=rank_text) for v in ranks.columns},
        "lost_told": "lost against perfect forecasts (95 %)",
        "gained_told": "gained over last value (95 %)",
        "captured": Column(heading="captured", format=percent_whole),
        "lost_to_counts": Column(heading="lost to counts", format=fixed(4)),
        "mean_utility": Column(heading="mean utility", format=fixed(4)),
        "on_time_share": Column(heading="on time", format=percent),
    }
    figure = Figure(
        specs=[spec] if points else [], label=f"Utility lost by model, {title}", captions=[caption], width=620
    )
    return [figure, Table(title, rows, columns, marked=lambda row: row["reference"])]


def percent_whole(value: Any) -> str:
    """Format a share in whole percent, with a sign if negative.

    >>> percent_whole(0.412), percent_whole(-0.2), percent_whole(float("nan"))
    ('41 %', '−20 %', '—')
    """
    found = as_number(value)
    return MISSING if found is None else f"{100 * found:.0f} %".replace("-", "−")


def _interval(row: Mapping[Any, Any], name: str) -> str:
    return f"{number(row[name], 4)} ({interval_words(float(row[f'{name}_low']), float(row[f'{name}_high']))})"


def before_name(models: Models, uncalibrated: str) -> str:
    """Return ``uncalibrated``, the name of the default before calibration, if it was measured; "" otherwise."""
    return uncalibrated if uncalibrated != models.default and uncalibrated in models.names else ""


def calibration_section(accuracy: Accuracy, uncalibrated: str) -> Section:
    """Return the section on calibration: coverage and width by step, reliability of probabilities and quantiles (M6.6)."""
    about = (
        "The green line is nominal, shaded is within 2 points of it. A line above it: the interval is wider "
        "than it need be; below: it promises too much. Counts are whole numbers and prices rest, so many "
        "values lie exactly on an end of an interval: such a value counts with the chance that the "
        "forecast’s law gives it of being inside (the randomised probability integral transform), which for "
        "a right law is nominal. The table has the share with ends counted as inside, too."
    )
    models = Models.of(accuracy.scores["model"].astype(str), accuracy.default)
    if not before_name(models, uncalibrated):
        about += " The default was scored as it is issued (calibrated); without calibration it was not scored in this run."
    return of_variables(
        "5. Calibration: do the intervals hold what they promise?",
        "calibration",
        accuracy.scores,
        lambda variable: _calibration_blocks(variable, accuracy, uncalibrated),
        about,
    )


def _calibration_blocks(variable: str, accuracy: Accuracy, uncalibrated: str) -> list[Block]:
    pooled = of(accuracy.pooled, variable)
    models = Models.of(of(accuracy.scores, variable)["model"].astype(str), accuracy.default)
    before = before_name(models, uncalibrated)
    shown = [
        name for name in (LAST_VALUE, models.default, before) if name and (pooled["model"] == name).any()
    ]
    titles = {name: models.title(name) for name in shown}
    if before:
        titles |= {
            models.default: f"{models.title(models.default)}, after calibration",
            before: f"{before}: before calibration",
        }
    figures = [_coverage_figure(variable, pooled, models, titles, level) for level in PERCENTS]
    reliability = _reliability_figure(variable, accuracy, models)
    return [
        Figures(figures),
        Fold("Coverage and width by step", _coverage_tables(pooled, shown, models, UNITS[variable])),
        *([reliability] if reliability else []),
    ]  # fmt: skip


def _coverage_figure(
    variable: str, pooled: pd.DataFrame, models: Models, titles: Mapping[str, str], level: int
) -> Figure:
    table = (100 * by_step(pooled, f"coverage_{level}"))[list(titles)]
    values = table.to_numpy()
    low, high = float(np.nanmin(values, initial=level)), float(np.nanmax(values, initial=level))
    ends = min(level - 10.0, low - 2.0), max(min(100.0, level + 10.0), high + 2.0)
    steps = [int(step) for step in table.index]
    spec = lines(
        step_rows(table, models, titles=titles), list(titles.values()), reference=titles.get(LAST_VALUE, ""),
        bold=titles.get(models.default, ""), x=slots_axis(), y=Axis(title="actual values inside, %", low=ends[0], high=ends[1]),
        guide=[{"x": step, "y": level} for step in (steps[0], steps[-1])] if steps else [],
        around=(level - 100 * TOLERANCE, level + 100 * TOLERANCE), height=190,
    )  # fmt: skip
    label = f"Coverage of the {level} % interval by step, {variable}"
    return Figure(specs=[spec], label=label, title=f"{level} % interval", width=0)


def _coverage_tables(pooled: pd.DataFrame, shown: Sequence[str], models: Models, unit: str) -> list[Block]:
    rows: list[dict[str, Any]] = []
    for name in shown:
        own = pooled[pooled["model"] == name].set_index("step")
        for level in PERCENTS:
            row: dict[str, Any] = {"name": name, "model": models.title(name), "interval": f"{level} %"}
            for step in shown_steps(own.index):
                row |= {
                    f"inside_{step}": _share(own[f"coverage_{level}"].get(step), level),
                    f"closed_{step}": _share(own[f"coverage_{level}_closed"].get(step), level),
                    f"width_{step}": own[f"width_{level}"].get(step),
                }
            rows.append(row)
    steps = shown_steps(pooled["step"])
    first: dict[str, Column | str] = {"model": "model", "interval": "interval"}
    points = fixed(1)
    return [
        Table("Actual values inside, %, by slots ahead", rows, first | by_steps(steps, "inside_", points, _off), marked=_floor),
        "Bold and orange: more than 2 points from nominal.",
        Table("Ends counted as inside, %, by slots ahead", rows, first | by_steps(steps, "closed_", points), marked=_floor),
        Table(f"Mean width, {unit}, by slots ahead", rows, first | by_steps(steps, "width_", significant), marked=_floor),
    ]  # fmt: skip


def _share(value: Any, level: int) -> Marked | None:
    """Return a coverage in percent, marked if it deviates from nominal by more than `TOLERANCE`."""
    found = as_number(value)
    return None if found is None else Marked(100 * found, abs(found - level / 100) > TOLERANCE + 1e-9)


def _off(value: Any) -> str:
    return "off" if getattr(value, "marked", False) else ""


def _reliability_figure(variable: str, accuracy: Accuracy, models: Models) -> Figure | None:
    """Return the reliability diagram of a variable; None without data.

    Counts: predicted probability of "at least n instances" and observed frequency. Prices: quantile
    level and share of observations at or below the quantile.
    """
    if variable == "count":
        table, x, y, by = accuracy.calibration, "chance", "frequency", "bin"
        axes = ("chance given to “at least n instances”, %", "how often it came true, %")
        told = (
            "All promises of “at least n instances”, in ten bins: on the green diagonal what was given 70 % "
            "came true 70 times in 100. Below it a model promises too much. All steps together."
        )
    else:
        table, x, y, by = of(accuracy.reliability, variable), "level", "share", "level"
        axes = ("level of the quantile, %", "actual values at or below it, %")
        told = (
            "Share of actual prices at or below each quantile (ties shared out at random): on the green "
            "diagonal the quantiles mean what they say. All steps together."
        )
    if table.empty:
        return None
    names = [name for name in models.names if (table["model"] == name).any()]
    rows = [
        {"x": 100 * promised, "y": 100 * came, "series": models.title(name)}
        for name in names
        for promised, came in promises(table[table["model"] == name], (x, y, by))
    ]
    spec = lines(
        rows, [models.title(name) for name in names], reference=models.title(LAST_VALUE), bold=models.title(models.default),
        guide=[{"x": 0, "y": 0}, {"x": 100, "y": 100}], x=Axis(title=axes[0], low=0, high=100),
        y=Axis(title=axes[1], low=0, high=100), height=320,
    )  # fmt: skip
    return Figure(
        specs=[spec], label=f"Reliability, {variable}", title="Reliability", captions=[told], width=460
    )


def promises(rows: pd.DataFrame, columns: tuple[str, str, str]) -> list[tuple[float, float]]:
    """Return predicted and observed frequencies of a model, means over the steps weighted by the number of forecasts."""
    x, y, by = columns
    rows = rows[rows["n"].astype(float) > 0].dropna(subset=[x, y])
    n = rows["n"].astype(float)
    promised, came = (
        (rows[column].astype(float) * n).groupby(rows[by]).sum() / n.groupby(rows[by]).sum()
        for column in (x, y)
    )
    return list(zip(promised.tolist(), came.tolist(), strict=True))


def predictability_section(
    accuracy: Accuracy, table: pd.DataFrame | None, alternation: Sequence[str]
) -> Section:
    """Return the section on the predictability of the series, independent of models (M6.7).

    ``table`` is that of `slackwater.forecasting.diagnosis.predictability.predictability`; rows of whole series
    are shown, those of first halves if there are no others.
    """
    return of_variables(
        "8. Predictability: what the series say before any model",
        "predictability",
        accuracy.scores,
        lambda variable: _predictability_blocks(variable, table, alternation),
    )


def _predictability_blocks(
    variable: str, table: pd.DataFrame | None, alternation: Sequence[str]
) -> list[Block]:
    rows = pd.DataFrame() if table is None or table.empty else of(table, variable)
    if rows.empty:
        return ["Not measured in this run."]
    entire = rows[rows["part"] == "whole"]
    rows = (entire if len(entire) else rows).sort_values("market")
    why: list[Block] = []
    if variable == "count" and alternation:
        why = [
            Section(
                "Why one step ahead can be worse than two", list(alternation), "predictability-alternation"
            )
        ]
    at_cap = "capacity" if variable == "count" else "on-demand price"
    told = "Share of the entropy of the next value that goes away when the present one is known."
    columns: dict[str, Column | str] = {
        "market": "market",
        "slots": Column(heading="slots", format=whole),
        "gap_share": Column(heading="gaps", format=percent),
        "at_zero": Column(heading="time at zero", format=percent),
        "at_cap": Column(heading=f"time at {at_cap}", format=percent),
        "unchanged": Column(heading="time unchanged", format=percent),
        "changes_per_day": Column(heading="changes a day", format=fixed(1)),
        "acf_1": Column(heading="autocorrelation at 1 slot", format=number),
        "acf_2": Column(heading="at 2 slots", format=number),
        "acf_day": Column(heading="at a day", format=number),
        "acf_week": Column(heading="at a week", format=number),
        "strength_daily": Column(heading="strength of the daily cycle", format=number),
        "strength_weekly": Column(heading="of the weekly", format=number),
        "told_1": Column(heading="told by the present", format=number, words=told),
    }
    records = [{str(key): value for key, value in row.items()} for row in rows.to_dict("records")]
    return [
        *_predictability_words(variable, rows),
        *_persistence_figure(variable, rows),
        *why,
        Fold(
            plural(len(rows), "market"),
            [
                Table("", records, columns, sortable=True),
                "Strength of a cycle: 0 none, 1 nothing but the cycle (Wang, Smith and Hyndman 2006); of a "
                "series without a real clock it is undefined (—). Told by the present: share of the entropy "
                "of the next value that goes away when the present one is known.",
            ],
        ),
    ]


def _persistence_figure(variable: str, rows: pd.DataFrame) -> list[Block]:
    """Return the chart of last value's error by step, relative to its error at lead time 1: a thin
    line per market, the median thick.
    """
    columns = sorted(
        (c for c in rows.columns if c.startswith("error_")), key=lambda c: int(c.removeprefix("error_"))
    )
    errors = rows[columns].astype(float).to_numpy()
    moved = errors[:, 0] > 0
    if not moved.any():
        return []
    scaled, markets = errors[moved] / errors[moved, :1], rows["market"].to_numpy()[moved]
    steps = [int(column.removeprefix("error_")) for column in columns]
    thin = [
        {"x": step, "y": value, "of": market}
        for market, values in zip(markets[:MOST_LINES], scaled, strict=False)
        for step, value in zip(steps, values, strict=True)
    ]
    middle = zip(steps, np.nanmedian(scaled, axis=0), strict=True)
    spec = lines(
        [{"x": step, "y": value, "series": "median"} for step, value in middle], ["median"], reference="median", bold="median",
        faint=thin, x=slots_axis(), y=Axis(title="error of last value, that at 1 slot = 1"), height=230,
    )  # fmt: skip
    told = (
        "A thin line a market, the thick one their median: mean error of last value, in units of that at 1 "
        "slot. Flat means that the future is as hard to tell at any distance; a line that falls after step 1 "
        "means that the next slot is harder than the one after it."
    )
    label = f"Error of last value by step, {variable}"
    return [Figure(specs=[spec], label=label, captions=[told], width=520)]


def _predictability_words(variable: str, rows: pd.DataFrame) -> list[str]:
    """Describe the median market, and the markets where last value is worse at lead time 1 than at 2."""
    middle = rows[["unchanged", "acf_1", "strength_daily"]].astype(float).median()
    daily = int((rows["strength_daily"].astype(float) > STRONG).sum())
    worse: list[str] = []
    if "error_2" in rows:
        harder = rows["error_1"].astype(float) > rows["error_2"].astype(float) * (1 + 1e-9)
        worse = [str(market) for market in rows.loc[harder, "market"]]
    text = (
        f"In the middle market the {variable} stays as it is from one slot to the next {percent(middle['unchanged'])} of the time; "
        f"autocorrelation at one slot is {number(middle['acf_1'])}. "
        f"A daily cycle of strength above {STRONG} was found in {daily} of {plural(len(rows), 'market')}."
    )
    if not worse:
        return [text]
    return [
        text,
        f"One slot ahead is harder for last value than two in {plural(len(worse), 'market')}: {listed(worse)}.",
    ]


def fallbacks_section(accuracy: Accuracy) -> Section:
    """Return the section on models replaced by simpler models: on which markets, how often, and why (M6.1)."""
    return of_variables(
        "9. Where a simpler model answered",
        "fallbacks",
        accuracy.scores,
        lambda variable: _fallback_blocks(variable, accuracy),
        "A model that cannot be estimated on a series (flat, too short, full of gaps, never seen) is "
        "answered for by a simpler one, and the forecast says so.",
    )


def _fallback_blocks(variable: str, accuracy: Accuracy) -> list[Block]:
    scores = of(accuracy.scores, variable)
    models = Models.of(scores["model"].astype(str), accuracy.default)
    share = over_steps(scores, ["fallback_share"])["fallback_share"].unstack("model")
    rows: list[dict[str, Any]] = []
    where: list[dict[str, Any]] = []
    for model in (name for name in models.names if name in share.columns and name != LAST_VALUE):
        own = share[model].dropna()
        fell = own[own > 0].sort_values(ascending=False, kind="stable")
        rows.append(
            {
                "model": models.title(model), "share": own.mean(), "markets": f"{fell.size} of {own.size}",
                "reasons": fallback_reasons(variable, model, accuracy.reasons),
            }
        )  # fmt: skip
        where += [
            {"model": models.title(model), "market": market,
             "share": "always" if value >= 0.9995 else percent(value)}
            for market, value in fell.items()
        ]  # fmt: skip
    if not where:
        return ["Every model answered for itself every time."]
    columns: dict[str, Column | str] = {
        "model": "model",
        "share": Column(heading="share of forecasts, mean over markets", format=percent),
        "markets": "markets touched",
        **({"reasons": "reasons"} if len(accuracy.reasons) else {}),
    }
    names: dict[str, Column | str] = {
        "model": "model",
        "market": "market",
        "share": "forecasts answered by a simpler one",
    }
    return [Table("", rows, columns), Fold("On which markets", [Table("", where, names, sortable=True)])]


def fallback_reasons(variable: str, model: str, reasons: pd.DataFrame) -> list[str]:
    """Return the reasons of fallbacks, most frequent first."""
    if reasons.empty:
        return []
    own = reasons[(reasons["variable"] == variable) & (reasons["model"] == model)]
    totals = own.groupby("reason").agg(n=("n", "sum"), markets=("market", "nunique"))
    totals = totals.sort_index().sort_values("n", ascending=False, kind="stable")
    return [
        f"{reason}: {plural(int(row['n']), 'forecast')} on {plural(int(row['markets']), 'market')}"
        for reason, row in totals.iterrows()
    ]


def method_section(horizon: int, notes: Sequence[str]) -> Section:
    """Return the section on the method, with sources of the measures, and the notes on this run."""
    lines_of_it = [
        f"Rolling origins (M6.5): at every slot of the test part each model forecasts the next {plural(horizon, 'slot')} from what "
        "was known then; models are refitted less often than they forecast (M6.4). A slot that was not "
        "observed is scored by nobody; only origins at which every model answered are compared.",
        "The reference of every skill is last value with the quantiles of its training residuals, fitted "
        "once, when a series’ test part begins.",
        "Pinball loss is the mean over the levels 0.05 to 0.95 (Koenker and Bassett 1978; half of the CRPS, "
        "Gneiting and Raftery 2007). Errors of the median are absolute, of the mean squared (RMSE). MASE: "
        "Hyndman and Koehler 2006; undefined where the training part never moved.",
        "Better and worse: beyond the 95 % interval of a ratio of sums with days as blocks (Cochran 1977). Predictable: Diebold "
        "and "
        "Mariano 1995 on the pinball losses, with the small-sample correction of Harvey, Leybourne and Newbold 1997; Holm 1979 for "
        "many tries.",
        "Intervals are calibrated on past errors per step (M6.6; Romano, Patterson and Candès 2019; adaptive "
        "under drift, Gibbs and Candès 2021).",
        "Brier score of “at least n instances”, mean over n; its skill is against last value’s conditional "
        "frequencies on the training part.",
        "Predictability (M6.7), what an error costs (M5.5): the sections above say how they are measured.",
    ]
    here: list[Block] = [Section("Notes on this run", [Notes(notes)], "notes")] if notes else []
    return Section("10. Method and notes", [Notes(lines_of_it), *here], "method")
