"""The sections of the accuracy report that tell of all markets together; the same tables give the same blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from flows.accuracy.page.findings import accuracy_ranks, answer, money_verdict, rank_text
from flows.accuracy.page.reading import (
    LAST_VALUE,
    TITLES,
    UNITS,
    Marked,
    Models,
    beyond_chance,
    by_step,
    over_steps,
    shown_steps,
    skill_at,
    skill_text,
    tone,
)
from flows.show.blocks import Block, Column, Fold, Grid, Notes, Section, Table
from flows.show.charts import Axis, dots, lines
from flows.show.figure import Figure
from flows.show.formats import MISSING, as_number, fixed, listed, number, percent, plural, significant, whole
from forecasting.accuracy.losses import PERCENTS
from forecasting.accuracy.tables import Accuracy

if TYPE_CHECKING:
    from flows.accuracy.error_cost import ErrorCost

#: Skill below this is never drawn: a line that leaves the drawing says enough. Nor is one further below 0 than the best is
#: above it, lest a hopeless model flatten the others, but so much at least, and all of the default's.
LOWEST, SHALLOWEST = -0.5, -0.1
#: An axis of skill reaches so far at least, so that noise does not look like a mountain.
SMALLEST_SPAN: Final = 0.05
#: Coverage this far from nominal is still called kept (the demand on the intervals).
TOLERANCE: Final = 0.02
#: Markets drawn as lines of their own in the chart of last value's error.
MOST_LINES: Final = 60
#: Strength of a cycle from which it is called one.
STRONG: Final = 0.3


def of_variables(
    heading: str, anchor: str, scores: pd.DataFrame, blocks: Callable[[str], list[Block]], *first: Block
) -> Section:
    """A section with a part for each variable that was scored."""
    parts = [
        Section(title, blocks(variable), f"{anchor}-{variable}")
        for variable, title in TITLES.items()
        if (scores["variable"] == variable).any()
    ]
    return Section(heading, [*first, *parts], anchor)


def of(table: pd.DataFrame, variable: str) -> pd.DataFrame:
    """The rows of one variable."""
    return table[table["variable"] == variable]


def by_steps(
    steps: Sequence[int],
    prefix: str,
    written: Callable[[Any], str],
    shade: Callable[[Any], str] | None = None,
) -> dict[str, Column | str]:
    """A column a step ahead."""
    return {f"{prefix}{step}": Column(heading=str(step), format=written, tone=shade) for step in steps}


def answer_section(accuracy: Accuracy) -> Section:
    """Is the default better than last value? A few sentences a variable."""

    def told(variable: str) -> list[Block]:
        models = Models.of(of(accuracy.scores, variable)["model"].astype(str), accuracy.default)
        found = answer(variable, of(accuracy.scores, variable), of(accuracy.pooled, variable), models)
        return [Notes([f"▼ {one.text}" if one.weak else one.text for one in found])]

    about = (
        "Skill is the share of last value’s pinball loss that a model saves (the loss of the whole "
        "distribution; half of the CRPS): 0 is as good as last value, 100 % is knowing the future, below 0 "
        "is worse. A finding marked ▼ is a weak one."
    )
    return of_variables("1. The answer", "answer", accuracy.scores, told, about)


def pooled_section(accuracy: Accuracy) -> Section:
    """All markets together by step: charts of skill and error, and the tables they are drawn from."""
    heading = "2. All markets together, by step"
    return of_variables(
        heading, "pooled", accuracy.scores, lambda variable: _pooled_blocks(variable, accuracy)
    )


def _pooled_blocks(variable: str, accuracy: Accuracy) -> list[Block]:
    scores, pooled = of(accuracy.scores, variable), of(accuracy.pooled, variable)
    models = Models.of(scores["model"].astype(str), accuracy.default)
    skill, mae = by_step(pooled, "skill_pinball"), by_step(pooled, "mae")
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
        Grid([_skill_figure(variable, skill, (better, moved), models), _error_figure(variable, mae, models)]),
        Table("Skill over last value, %, by slots ahead", rows, model | by_steps(steps, "skill_", skill_text, tone), marked=_floor),
        Table(
            f"Mean absolute error of the median, {unit}, by slots ahead", rows, model | by_steps(steps, "mae_", significant),
            marked=_floor,
        ),
        Table("All steps together", rows, model | whole_steps, marked=_floor),
        *_class_blocks(variable, of(accuracy.classes, variable), models),
        _chances_fold(rows, better, worse, steps, among, counts=variable == "count"),
        f"Pooled over {scores['market'].nunique()} series: losses are divided by the market’s {scale} before they are summed for "
        f"the skill, so that large markets do not drown small ones; errors are means over all forecasts, in {unit}. MASE is in "
        "units of last value’s error one slot ahead on the training part, the middle market’s. A star: "
        "beyond chance at this step (p < 0.05, not adjusted). — means undefined.",
    ]  # fmt: skip


def _floor(row: Mapping[str, Any]) -> bool:
    """Whether a row is that of last value, which the others are compared with."""
    return bool(row.get("name") == LAST_VALUE)


def pooled_rows(pooled: pd.DataFrame, models: Models, steps: Sequence[int]) -> list[dict[str, Any]]:
    """A row a model of the pooled table of one variable: errors and skills at some steps, the rest over all of them."""
    rows = []
    for name in models.names:
        own = pooled[pooled["model"] == name].set_index("step").sort_index()
        if own.empty:
            continue
        row: dict[str, Any] = {"name": name, "model": models.title(name)}
        row |= {f"skill_{step}": skill_at(own, step, name) for step in steps}
        row |= {f"mae_{step}": own["mae"].get(step) for step in steps}
        means = ("rmse", "pinball", "brier", "skill_brier", "absent", "unpredicted", "cover")
        row |= {metric: weighted(own, metric) for metric in means}
        rows.append(row | {"fallback": weighted(own, "fallback_share")})
    return rows


def weighted(own: pd.DataFrame, metric: str) -> float:
    """Mean of a measure over the steps of one model, weighted by ``n``; NaN where it is nowhere defined."""
    if metric not in own.columns:
        return float("nan")
    values, n = own[metric].astype(float), own["n"].astype(float)
    there = values.notna() & (n > 0)
    return float((values[there] * n[there]).sum() / n[there].sum()) if there.any() else float("nan")


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


def step_rows(
    table: pd.DataFrame,
    models: Models,
    sure: pd.DataFrame | None = None,
    titles: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """A table by step and model as rows of a chart; ``sure``, of the same shape, says where a point stands."""
    steps = [int(step) for step in table.index.tolist()]
    return [
        {"x": step, "y": float(table[name].iloc[k]), "series": (titles or {}).get(name) or models.title(name)}
        | ({} if sure is None else {"point": bool(sure[name].iloc[k])})
        for name in models.names
        if name in table.columns
        for k, step in enumerate(steps)
    ]


def slots_axis() -> Axis:
    """The horizontal axis of what is told by step."""
    return Axis(title="slots ahead", whole=True, zero=False, ticks=8)


def _skill_figure(
    variable: str, skill: pd.DataFrame, chance: tuple[pd.DataFrame, pd.Series], models: Models
) -> Figure:
    title, label = "Skill over last value", f"Pinball skill over last value by step, {variable}"
    drawn = skill.drop(columns=LAST_VALUE, errors="ignore")
    if not drawn.notna().any(axis=None):
        why = "Undefined: last value made no error on any of these series, so there is nothing to improve on."
        return Figure(specs=[], label=label, title=title, why=why, width=0)
    better, moved = chance
    sure = better.ge(0.5 * moved, axis=0) & (better > 0)
    sure = sure.reindex(index=skill.index, columns=skill.columns, fill_value=False)
    floor = skill_floor(skill, models)
    top, bottom = float(np.nanmax(drawn.to_numpy())), float(np.nanmin(drawn.to_numpy()))
    low, high = max(min(bottom, -SMALLEST_SPAN), floor), max(top, SMALLEST_SPAN)
    margin = 0.05 * (high - low)
    names = [models.title(name) for name in models.names if name in drawn.columns]
    spec = lines(
        step_rows(drawn, models, sure), names, bold=models.title(models.default), rule=0.0, x=slots_axis(), height=230,
        y=Axis(title="share of last value’s pinball loss saved", low=low - margin, high=high + margin, format=".2~f"),
    )  # fmt: skip
    cut = f" Skill below {number(floor, 2)} is cut off." if (skill < floor).any(axis=None) else ""
    told = (
        "Above the dashed line at 0 a model beats last value. A mark stands where it does so beyond chance (Diebold and Mariano’s "
        f"test, p < 0.05) on at least half of the {int(moved.max()) if len(moved) else 0} markets that moved.{cut}"
    )
    return Figure(specs=[spec], label=label, title=title, captions=[told], width=0)


def _error_figure(variable: str, mae: pd.DataFrame, models: Models) -> Figure:
    names = [models.title(name) for name in models.names if name in mae.columns]
    spec = lines(
        step_rows(mae, models), names, reference=models.title(LAST_VALUE), bold=models.title(models.default), x=slots_axis(),
        y=Axis(title=f"mean absolute error, {UNITS[variable]}"), height=230,
    )  # fmt: skip
    told = "Lower is better; the plain ink line is last value. Where it bends down from step 1 to 2, see Predictability."
    return Figure(
        specs=[spec], label=f"Mean absolute error by step, {variable}", title="Error of the median", captions=[told], width=0
    )  # fmt: skip


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
        rows.append(
            {"class": str(name), "series": int(default["markets"].max())}
            | {
                f"skill_{step}": skill_at(default, step, models.default)
                for step in shown_steps(default.index)
            }
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


def _chances_fold(
    rows: Sequence[dict[str, Any]], better: pd.DataFrame, worse: pd.DataFrame, steps: Sequence[int], among: int, *, counts: bool
) -> Fold:  # fmt: skip
    """Markets won and lost beyond chance at each step shown, and of counts the instances absent and unpredicted."""

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
    """The models by utility lost, beside their ranks by accuracy: the mean over the policies first, then each policy."""
    heading = "3. Ranked by money, beside ranked by accuracy"
    if cost is None:
        none = f"{_capital(why)}." if why else "What the errors cost was not measured in this run."
        return Section(heading, [none], "money")
    from flows.accuracy.error_cost import ALL_POLICIES, cost_sentences

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


#: How the rows of a cost table that are no model are shown, in the table and in the chart.
_REFERENCES: Final = {
    "perfect": "perfect forecasts",
    "none": "none: the present slot alone",
}


def money_rows(rows: pd.DataFrame, ranks: pd.DataFrame, models: Models) -> list[dict[str, Any]]:
    """Rows of one policy of a cost table, the models by rank first."""
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
        "over jobs; where two overlap widely, the ranking between them is not settled."
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
    """A share of 1 in whole per cent, with its sign where it is negative.

    >>> percent_whole(0.412), percent_whole(-0.2), percent_whole(float("nan"))
    ('41 %', '−20 %', '—')
    """
    found = as_number(value)
    return MISSING if found is None else f"{100 * found:.0f} %".replace("-", "−")


def _interval(row: Mapping[Any, Any], name: str) -> str:
    low, high = (number(row[f"{name}_{end}"], 4) for end in ("low", "high"))
    found = number(row[name], 4)
    return found if MISSING in (low, high) else f"{found} ({low} to {high})"


def before_name(models: Models, uncalibrated: str) -> str:
    """The default before its intervals were calibrated, ``uncalibrated``, if it was measured; "" if not."""
    return uncalibrated if uncalibrated != models.default and uncalibrated in models.names else ""


def calibration_section(accuracy: Accuracy, uncalibrated: str) -> Section:
    """Whether the intervals hold what they promise: coverage and width by step, reliability of chances and of levels (M6.6)."""
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
        Grid(figures),
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
    """A coverage in percent, marked where it is more than the tolerance from nominal."""
    found = as_number(value)
    return None if found is None else Marked(100 * found, abs(found - level / 100) > TOLERANCE + 1e-9)


def _off(value: Any) -> str:
    return "off" if getattr(value, "marked", False) else ""


def _reliability_figure(variable: str, accuracy: Accuracy, models: Models) -> Figure | None:
    """Counts: chance of "at least n" against how often it came true. Prices: level against the share at or below its quantile."""
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
    """One model's promises and what came of them, means over the steps weighted by the number of forecasts."""
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
    """What the series themselves say of their predictability (M6.7).

    ``table`` is `forecasting.diagnosis.predictability.predictability`'s; the rows of the whole series are shown, of the first half
    where there is no other.
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
    """Error of last value by step in units of its error at one step, a thin line a market, the median thick."""
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
    """The middle market in words, and the markets where last value errs more at one step than at two."""
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
    """Which models were answered for by a simpler one, on which markets, how often, and why (M6.1)."""
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
    """Reasons, the most frequent first."""
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
    """How it was measured, with the sources of the measures, and what is to be known of this run."""
    lines_of_it = [
        f"Rolling origins (M6.5): at every slot of the test part each model forecasts the next {plural(horizon, 'slot')} from what "
        "was known then; models are refitted less often than they forecast (M6.4). A slot that was not "
        "observed is scored by nobody; only origins at which every model answered are compared.",
        "The reference of every skill is last value with the quantiles of its training residuals, fitted "
        "once, when a series’ test part begins.",
        "Pinball loss is the mean over the levels 0.05 to 0.95 (Koenker and Bassett 1978; half of the CRPS, "
        "Gneiting and Raftery 2007). Errors of the median are absolute, of the mean squared (RMSE). MASE: "
        "Hyndman and Koehler 2006; undefined where the training part never moved.",
        "Beyond chance: Diebold and Mariano 1995 on the pinball losses, with the small-sample correction of "
        "Harvey, Leybourne and Newbold 1997; Holm 1979 for many tries.",
        "Intervals are calibrated on past errors per step (M6.6; Romano, Patterson and Candès 2019; adaptive "
        "under drift, Gibbs and Candès 2021).",
        "Brier score of “at least n instances”, mean over n; its skill is against last value’s conditional "
        "frequencies on the training part.",
        "Predictability (M6.7), what an error costs (M5.5): the sections above say how they are measured.",
    ]
    here: list[Block] = [Section("Notes on this run", [Notes(notes)], "notes")] if notes else []
    return Section("10. Method and notes", [Notes(lines_of_it), *here], "method")
