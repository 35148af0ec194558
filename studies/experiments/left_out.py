"""``slackwater experiment left-out``: a model chosen on earlier halves of other zones, scored on later halves (M6.5).

The best of several models on a market is known only in hindsight, if it is chosen and scored on the same data. Here every zone
(or source) is left out in turn, and its markets get the model that was best on earlier data of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.accuracy.command import AccuracyOptions
from slackwater.flows.accuracy.report import course_of, read_measured
from slackwater.flows.accuracy.units import BacktestPlan, cores, run_course
from slackwater.flows.command import Answer, Session, progress
from slackwater.flows.show.accuracy import UNITS, describe_comparison, most, shown_steps
from slackwater.flows.show.blocks import Block, Column, Fold, Table
from slackwater.flows.show.formats import MISSING, as_number, percent, plain, rows_of, whole
from slackwater.forecasting.accuracy.intervals import block_interval, interval_words, skills_of
from slackwater.forecasting.accuracy.tables import pooled_by, scaled_losses, with_common
from slackwater.forecasting.origins import second_half
from slackwater.forecasting.predictor import Panel
from slackwater.forecasting.predictors import FLOOR
from slackwater.warehouse.errors import SettingsError

#: The model chosen for the markets of a left-out zone (or source), and the number of other markets it was chosen on.
CHOICE_COLUMNS = ("variable", "class", "left_out", "markets", "others", "model", "skill")
LEFT_OUT_COLUMNS = (
    "variable", "class", "choice", "model", "step", "n", "markets", "skill_pinball", "mean_skill_pinball",
    "skill_low", "skill_high", "blocks", "verdict",
    "median_skill_pinball", "ahead", "ahead_low", "ahead_high", "worst_skill_pinball", "worst_market", "worst_low",
    "worst_high", "share_worse",
    "coverage_50", "coverage_80", "coverage_90", "mae",
)  # fmt: skip
ABOUT = (
    "Each market's model is the one with the highest skill, pooled over the earlier halves of its class without its own "
    "zone (or source), mean over the steps; it is scored on the later half. A model that learns from all markets of a source has "
    "seen the market's own past there, as it has in turns: leave out sources to rule that out too."
)
#: Origin of the model in a row of `LeftOut.classes`.
CHOSEN, BY_DEFAULT, HINDSIGHT = "left out", "default", "hindsight"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Scores of models chosen on earlier data of other zones or sources.

    ``by``: the unit left out, a zone or a source. ``choices`` (`CHOICE_COLUMNS`): a row for every variable, class and unit;
    ``skill`` is the mean over steps by which the model was chosen, on the earlier halves of ``others`` markets. ``classes``
    (`LEFT_OUT_COLUMNS`): the later halves pooled over each class, with the chosen models ("left out"), the default model, and
    the single model that was best there ("hindsight"). ``ahead`` is the pooled skill minus the default's, with a paired 95 %
    interval with zones (sources) as blocks, as in the interval of the skill; the worst market's skill has an interval with days
    as blocks.
    """

    by: str
    choices: pd.DataFrame
    classes: pd.DataFrame


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


# ---
# The study: both halves measured, the answer and its tables.


def left_out_study(options: AccuracyOptions, session: Session, *, by: str) -> Answer:
    """Measure every model on both halves of the series, and report the models chosen with each zone (or source) left out."""
    if by not in LEAVABLE:
        raise SettingsError(f"--by {by}", expected=f"one of {', '.join(LEAVABLE)}")
    course = course_of(
        read_measured(options, session.config, session), options, session.config, keep=options.keep
    )
    found = choose_models(course, by=by, processes=options.workers or cores())
    where = str(session.db if session.data is None else session.data)
    return Answer(
        title="Models chosen with zones left out",
        about=ABOUT,
        value={
            "data": where,
            "default": course.default,
            "by": by,
            "choices": [plain(row) for row in rows_of(found.choices)],
            "classes": [plain(row) for row in rows_of(found.classes)],
        },
        blocks=[block for variable in UNITS for block in left_out_tables(found, variable)],
    )


def choose_models(course: BacktestPlan, *, by: str, processes: int) -> LeftOut:
    """Return `left_out` of a backtest: the earlier halves are forecast like the later halves, or read if stored."""
    with progress("later halves") as tell:
        later = run_course(course, processes=processes, progress=tell)
    with progress("earlier halves") as tell:
        earlier = run_course(earlier_course(course), processes=processes, progress=tell)
    ordered = sorted(course.rolling.predictors, key=lambda name: name != course.default)
    return left_out(earlier.scores, later.scores, by=by, models=ordered, default=course.default)


def earlier_course(course: BacktestPlan) -> BacktestPlan:
    """Return the same backtest of the earlier halves: each series ends where its tested half begins.

    Its own later half is tested. The result contains no slot that is scored later, and markets of a source with different
    ends use their own halves.
    """
    panels = tuple(
        Panel(series=tuple(series.part(0, len(series) // 2) for series in panel.series))
        for panel in course.rolling.panels
    )
    origins = tuple(tuple(second_half(series) for series in panel.series) for panel in panels)
    return replace(course, rolling=replace(course.rolling, panels=panels, origins=origins))


def left_out_tables(found: LeftOut, variable: str) -> list[Block]:
    """Return the skill of models chosen without a market's own zone (or source), by class; none if not measured."""
    table = found.classes[found.classes["variable"] == variable]
    if table.empty:
        return []
    rows = []
    for (kind, choice), own in table.groupby(["class", "choice"], sort=False):
        each = rows_of(own.sort_values("step"))
        known = [row for row in each if as_number(row["worst_skill_pinball"]) is not None]
        worst = min(known, key=lambda row: float(row["worst_skill_pinball"]), default=None)
        rows.append(
            {"class": kind, "choice": choice, "model": each[0]["model"]}
            | {key: most(each, key) for key in ("markets", "n", "blocks")}
            | {f"step_{row['step']}": describe_comparison({**row, "days": row["blocks"]}) for row in each}
            | {"worst": MISSING if worst is None else _worst_market_text(worst)}
        )
    steps = shown_steps(table["step"].tolist())
    columns: dict[str, Column | str] = {
        "class": "stated capacity" if variable == "count" else "price",
        "choice": "chosen",
        "model": "model",
        "markets": Column(heading="markets", format=whole),
        "n": Column(heading="forecasts", format=whole),
        "blocks": Column(heading=f"{found.by}s", format=whole),
        **{f"step_{step}": str(step) for step in steps},
        "worst": "worst market",
    }
    choice_columns: dict[str, Column | str] = {
        "left_out": f"{found.by} left out",
        "class": "class",
        "others": Column(heading="chosen on, markets", format=whole),
        "model": "model",
        "skill": Column(heading="skill there", format=percent),
    }
    choices = rows_of(found.choices[found.choices["variable"] == variable])
    chosen = f"Chosen models, {found.by} by {found.by}"
    title = f"Models chosen with each {found.by} left out, compared with last value by slots ahead"
    return [
        Table(title, rows, columns, marked=lambda row: row["choice"] != CHOSEN),
        Fold(chosen, [Table(chosen, choices, choice_columns)]),
    ]


def _worst_market_text(row: Mapping[str, Any]) -> str:
    low, high = (float(row[key]) for key in ("worst_low", "worst_high"))
    return f"{percent(row['worst_skill_pinball'])} at {row['step']} ({interval_words(low, high, '.0%')}), {row['worst_market']}"
