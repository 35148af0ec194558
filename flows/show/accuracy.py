"""Forecast accuracy as blocks of the command, the report and the UI: an answer, five charts and their tables (M6.5, M6.6)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pandas as pd

from slackwater.flows.show.blocks import Block, Column, Figure, Figures, Fold, Section, Table
from slackwater.flows.show.charts import Axis, dots, lines
from slackwater.flows.show.formats import (
    MISSING,
    as_number,
    fixed_decimals,
    join_words,
    number,
    percent,
    plural,
    ranges,
    significant,
    whole,
)
from slackwater.forecasting.accuracy.intervals import (
    BETTER,
    EVEN,
    LEAST_BLOCKS,
    SKILL_COLUMNS,
    TOO_FEW,
    WORSE,
)
from slackwater.forecasting.accuracy.tables import WEIGHTED, pooled_by, pooled_mean
from slackwater.forecasting.predictors import FLOOR as LAST_VALUE

#: Explanation of the verdicts.
ABOUT_VERDICTS = (
    f"“{EVEN}”: the 95 % interval, with days as blocks, holds 0; “{TOO_FEW}”: fewer than {LEAST_BLOCKS} days."
)
#: Text in place of an impossible comparison.
_NO_ERROR = "last value made no error"
UNITS: Final = {"count": "instances", "price": "USD per instance-hour"}
TITLES: Final = {"count": "Available instances", "price": "Spot price"}
#: Unit of losses that are pooled over markets.
SCALES: Final = {"count": "share of capacity", "price": "share of the mean price"}
SHOWN_STEPS: Final = (1, 2, 4, 8, 12)  # Lead times shown in tables; charts show all
LEVEL, TOLERANCE = 80, 2  # Interval whose coverage is drawn, in percent, and the accepted deviation in points
MOST_DRAWN: Final = 15  # Markets drawn: so many of the best and of the worst
ON_TERMINAL: Final = 40  # Rows of the table of markets on a terminal
_SLOTS: Final = Axis(title="slots ahead", whole=True, zero=False, ticks=8)
#: A skill axis ends here, or earlier: at the mirror image of the best skill, but not above the second.
LOWEST_SKILL, SHALLOWEST_SKILL = -0.5, -0.1
#: Explanation of the measures.
EXPLANATION: Final = (
    "Skill is the share of last value’s pinball loss that a model saves: 0 is as good as last value (nothing changes), 100 % "
    f"is perfect, below 0 is worse. {ABOUT_VERDICTS} — means undefined, as for a series that never moved."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Accuracy of the forecasts of a variable; ``default`` is the model whose forecasts are used.

    ``pooled`` has a row per model and ``step``, ``markets`` a row per market and model over all steps: ``n``
    (forecasts), `SKILL_COLUMNS`, ``mae`` and other measures. ``daily`` has columns model, day and loss (mean
    pinball loss in units of each market's scale). ``reliability`` has columns model, predicted, observed and
    n; it is empty if not measured. ``note`` is a sentence on the markets that are pooled.
    """

    variable: str
    default: str
    pooled: pd.DataFrame
    markets: pd.DataFrame
    daily: pd.DataFrame
    reliability: pd.DataFrame = field(
        default_factory=lambda: pd.DataFrame(columns=["model", "predicted", "observed", "n"])
    )
    note: str = ""
    _rows: dict[str, list[dict[str, Any]]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in _records(self.pooled.sort_values("step")):  # a page reads them twenty times
            rows.setdefault(row["model"], []).append(row)
        object.__setattr__(self, "_rows", rows)

    @property
    def models(self) -> list[str]:
        """Models in order: last value, the default, then the others by name."""
        rank = {LAST_VALUE: 0, self.default: 1}
        return sorted(set(self.markets["model"]), key=lambda name: (rank.get(name, 2), name))

    @property
    def steps(self) -> list[int]:
        """Lead times shown in tables."""
        return shown_steps(self.pooled["step"].tolist())

    def of(self, model: str) -> list[dict[str, Any]]:
        """Return the pooled rows of a model by step."""
        return self._rows.get(model, [])


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def market_scores(rows: pd.DataFrame, skills: pd.DataFrame) -> pd.DataFrame:
    """Return `Scores.markets` from rows by market, model and step, with the errors at the first and last step."""
    keys = ["market", "model"]
    steps = rows.groupby(keys)["step"]
    found = pooled_by(rows, keys).set_index(keys)[["n", *WEIGHTED]]
    for name, step in (("mae_first", steps.transform("min")), ("mae_last", steps.transform("max"))):
        found[name] = pooled_mean(rows[rows["step"] == step], keys, "mae")
    return found.join(skills[list(SKILL_COLUMNS)]).reset_index()


def shown_steps(steps: Sequence[int]) -> list[int]:
    """Return those of ``steps`` that are in `SHOWN_STEPS`, and the last step.

    >>> shown_steps(range(1, 7))
    [1, 2, 4, 6]
    """
    found = sorted({int(step) for step in steps})
    return [step for step in found if step in SHOWN_STEPS or step == found[-1]]


def accuracy_blocks(
    scores: Sequence[Scores], more: Mapping[str, Sequence[Block]] | None = None, *, markets: bool = True
) -> list[Block]:
    """Return a section per variable, ``markets`` with the tables by market, and the explanation of the measures."""
    sections: list[Block] = [
        Section(
            TITLES[score.variable],
            [*variable_blocks(score, markets=markets), *(more or {}).get(score.variable, ())],
            f"accuracy-{score.variable}",
        )
        for score in scores
    ]
    return [*sections, EXPLANATION]


def variable_blocks(scores: Scores, *, markets: bool = True) -> list[Block]:
    """Return the answer, the charts and the tables of a variable."""
    blocks: list[Block] = []
    if len(scores.pooled):
        known = scores.pooled[~scores.pooled["verdict"].isin(["", TOO_FEW])]
        blocks = [
            answer(scores),
            Figures(charts(scores)),
            *([skill_table(scores)] if len(known) else []),
            error_table(scores),
        ]
    return [*blocks, *([scores.note] if scores.note else []), *(_market_blocks(scores) if markets else [])]


def answer(scores: Scores) -> str:
    """Return a sentence on where the default is better than last value, with the numbers of forecasts and days."""
    rows, name = scores.of(scores.default), scores.default
    if not rows:
        return f"{name} was not measured."
    if name == LAST_VALUE:
        return "The default is last value itself."
    if not scores.of(LAST_VALUE):
        return "Last value was not measured, so nothing can be compared with it."
    if all(row["verdict"] == TOO_FEW for row in rows):
        return nothing_compared(rows)
    first = rows[0]
    return (
        f"Compared with last value, {name} is {steps_compared(rows)}: {describe_comparison(first)} at "
        f"{plural(int(first['step']), 'slot')}. {_evidence(rows)}."
    )


def _evidence(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the numbers of forecasts at a step, and of days, behind the rows of a model."""
    n, days = (most(rows, key) for key in ("n", "days"))
    return f"{plural(n, 'forecast')} a step on {plural(days, 'day')}"


def most(rows: Sequence[Mapping[str, Any]], key: str) -> int:
    """Return the greatest of some numbers of forecasts or days; 0 if none is known."""
    return max((int(found) for row in rows if (found := as_number(row.get(key))) is not None), default=0)


# ---
# Charts. Each is left out where nothing was measured that it could show.


def charts(scores: Scores) -> list[Figure]:
    """Return the charts: skill and coverage by step, reliability, error over time, skill by market."""
    result = (skill_figure, coverage_figure, reliability_figure, daily_figure, markets_figure)
    return [figure for make in result if (figure := make(scores)) is not None]


def _points(scores: Scores, key: str, factor: float = 1.0) -> list[dict[str, Any]]:
    """Return the points of a measure by step, a series per model; undefined values are left out."""
    return [
        {"x": int(row["step"]), "y": factor * float(row[key]), "series": model, "row": row}
        for model in scores.models
        for row in scores.of(model)
        if as_number(row.get(key)) is not None
    ]


def _point_rows(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{key: point[key] for key in ("x", "y", "series")} for point in points]


def _lines(
    scores: Scores, rows: Sequence[Mapping[str, Any]], names: Sequence[str], **more: Any
) -> list[dict[str, Any]]:
    """Return a line chart with the order of the models, last value as the reference and the default in bold."""
    return [lines(rows, names, order=scores.models, reference=LAST_VALUE, bold=scores.default, **more)]


def skill_figure(scores: Scores) -> Figure | None:
    """Return the chart of skill by step, with the intervals of the default as bars."""
    points = [
        point
        for point in _points(scores, "skill_pinball")
        if point["series"] != LAST_VALUE and point["row"]["verdict"] not in ("", TOO_FEW)
    ]
    if not points:
        return None
    names = list(dict.fromkeys(point["series"] for point in points))
    series = {name: [point["y"] for point in points if point["series"] == name] for name in names}
    floor = skill_floor(series, scores.default)

    def draw() -> list[dict[str, Any]]:
        own = [point["row"] for point in points if point["series"] == scores.default]
        ends = [row[key] for row in own for key in ("skill_low", "skill_high")]
        values = [*ends, *(point["y"] for point in points)]
        low = max(min(-0.05, *values), floor)
        rows = []
        for row, point in zip(_point_rows(points), points, strict=True):
            judged = point["row"]
            bar = {"low": max(low, judged["skill_low"]), "high": judged["skill_high"]}
            rows.append(
                row
                | {"point": judged["verdict"] in (BETTER, WORSE)}
                | (bar if row["series"] == scores.default else {})
            )
        up = Axis(title="share of last value’s loss saved", low=low, high=max(0.05, *values), format=".2~f")
        return _lines(scores, rows, names, rule=0.0, spans=True, x=_SLOTS, y=up)

    cut = beyond_axis(series, floor)
    return Figure(
        specs=draw,
        label=f"{scores.variable}: pinball skill by slots ahead",
        title="Skill over last value",
        width=0,
        captions=[
            f"Above 0 a model is better than last value. Bars: 95 % interval of {scores.default}, days as blocks. A point: the "
            f"interval does not hold 0. {_evidence([point['row'] for point in points])}.",
            *([cut] if cut else []),
        ],
    )


def skill_floor(series: Mapping[str, Sequence[float]], keep: str = "") -> float:
    """Return the lower limit of a skill axis; the model ``keep`` is visible down to `LOWEST_SKILL`.

    >>> skill_floor({"own": [0.3, 0.2], "bad": [-0.9, -0.2]})
    -0.3
    >>> skill_floor({"own": [0.3, -0.4]}, "own")
    -0.44
    """
    top = max((0.0, *(value for values in series.values() for value in values)))
    own = 1.1 * min(series.get(keep) or [0.0])
    return round(max(LOWEST_SKILL, min(SHALLOWEST_SKILL, -top, own)), 12)


def beyond_axis(series: Mapping[str, Sequence[float]], low: float) -> str:
    """Return a sentence on the lines that fall below the axis, "" if there are none.

    >>> beyond_axis({"a": [0.1], "bad": [-0.9]}, -0.3)
    'Below −0.300 the axis is cut off: bad falls to −0.900.'
    """
    ends = {name: min(values) for name, values in series.items() if min(values) < low}
    texts = join_words(f"{name} falls to {significant(worst)}" for name, worst in ends.items())
    return f"Below {significant(low)} the axis is cut off: {texts}." if ends else ""


def coverage_figure(scores: Scores) -> Figure | None:
    """Return the chart of the coverage of the 80 % interval by step."""
    points = _points(scores, f"coverage_{LEVEL}", 100.0)
    if not points:
        return None

    def draw() -> list[dict[str, Any]]:
        values, steps = [point["y"] for point in points], [point["x"] for point in points]
        up = Axis(
            title="observed values inside, %",
            low=max(0.0, min(LEVEL - 10, *values) - 2),
            high=min(100.0, max(LEVEL + 10, *values) + 2),
        )
        return _lines(
            scores,
            _point_rows(points),
            list(dict.fromkeys(point["series"] for point in points)),
            points=len(set(steps)) < 2,
            guide=[{"x": step, "y": LEVEL} for step in (min(steps), max(steps))],
            around=(LEVEL - TOLERANCE, LEVEL + TOLERANCE),
            x=_SLOTS,
            y=up,
        )

    return Figure(
        specs=draw,
        label=f"{scores.variable}: coverage of the {LEVEL} % interval by slots ahead",
        title=f"Coverage of the {LEVEL} % interval",
        width=0,
        captions=[
            f"{LEVEL} % is right; shaded: within {TOLERANCE} points. Above, the interval is wider "
            f"than needed; below, too narrow. {_evidence([point['row'] for point in points])}."
        ],
    )


def reliability_figure(scores: Scores) -> Figure | None:
    """Return the reliability diagram: predicted against observed frequencies, all steps together."""
    table = scores.reliability
    names = [name for name in scores.models if (table["model"] == name).any()]
    if not names:
        return None

    def draw() -> list[dict[str, Any]]:
        rows = [
            {"x": 100 * row["predicted"], "y": 100 * row["observed"], "series": row["model"]}
            for row in _records(table)
        ]
        return _lines(
            scores,
            rows,
            names,
            guide=[{"x": 0, "y": 0}, {"x": 100, "y": 100}],
            x=Axis(title="predicted, %", low=0, high=100),
            y=Axis(title="observed, %", low=0, high=100),
        )

    own = table[table["model"] == (scores.default if scores.default in names else names[0])]
    what, n = {
        "count": ("Predicted probability of “at least n instances”", int(own["n"].sum())),
        "price": ("Level of a predicted quantile", int(own["n"].max())),
    }[scores.variable]
    return Figure(
        specs=draw,
        label=f"{scores.variable}: reliability",
        title="Reliability",
        width=0,
        captions=[
            f"{what} against the observed frequency; on the diagonal the model is right. n = {n:,}, all steps."
        ],
    )


def daily_figure(scores: Scores) -> Figure | None:
    """Return the chart of the pinball loss by day, of the default and of last value."""
    names = [name for name in (LAST_VALUE, scores.default) if name in scores.models]
    names = list(dict.fromkeys(names))
    table = scores.daily[scores.daily["model"].isin(names)]
    days = table["day"].nunique()
    if days < 2:
        return None

    def draw() -> list[dict[str, Any]]:
        wide = table.pivot_table(index="day", columns="model", values="loss").astype(float)
        wide = wide.reindex(pd.date_range(wide.index.min(), wide.index.max(), freq="D"))
        rows = [{"x": day, "y": value, "series": name} for name in names for day, value in wide[name].items()]
        return _lines(
            scores,
            rows,
            names,
            time=True,
            points=days < 30,
            x=Axis(),
            y=Axis(title=f"mean pinball loss, {SCALES[scores.variable]}", low=0.0),
        )

    return Figure(
        specs=draw,
        label=f"{scores.variable}: pinball loss by day",
        title="Error over time",
        width=0,
        captions=[f"Lower is better. All steps and markets, {plural(days, 'day')}."],
    )


def markets_figure(scores: Scores) -> Figure | None:
    """Return the chart of the default's skill by market over all steps; of many markets the best and the worst."""
    own = scores.markets[scores.markets["model"] == scores.default]
    known = own[~own["verdict"].isin(["", TOO_FEW])]
    if known.empty:
        return None
    known = known.sort_values(["skill_pinball", "market"], ascending=[False, True])
    shown, markets_text = known, plural(len(known), "market")
    if len(known) > 2 * MOST_DRAWN:
        shown = pd.concat([known[:MOST_DRAWN], known[-MOST_DRAWN:]])
        markets_text = f"The {MOST_DRAWN} best and {MOST_DRAWN} worst of {markets_text}"
    undrawn = len(own) - len(known)

    def draw() -> list[dict[str, Any]]:
        points = [
            {
                "label": f"{_two_lines(row['market'])}, n = {int(row['n']):,}",
                "value": row["skill_pinball"],
                "low": row["skill_low"],
                "high": row["skill_high"],
                "kind": row["verdict"],
            }
            for row in _records(shown)
        ]
        values = [point[key] for point in points for key in ("value", "low", "high")]
        hues = {"better": "series3", "even": "muted", "worse": "series2"}
        along = Axis(
            title="skill over last value",
            low=max(-1.0, min(-0.05, *values)),
            high=min(1.0, max(0.05, *values)),
        )
        return [
            dots(
                points,
                [point["label"] for point in points],
                x=along,
                spans=True,
                rule=0.0,
                height=34 * len(points) + 12,
                kinds={kind: hue for kind, hue in hues.items() if kind in set(shown["verdict"])},
            )
        ]

    return Figure(
        specs=draw,
        label=f"{scores.variable}: skill of {scores.default} by market",
        title="Skill by market",
        width=0,
        captions=[
            f"{markets_text}, all steps; bars: 95 % interval, days as blocks."
            + (f" {plural(undrawn, 'market')} with too few days not drawn." if undrawn else "")
        ],
    )


def _two_lines(market: str) -> str:
    r"""Return a market with its instance type and source on a second line.

    >>> _two_lines("aws/us-east-1/us-east-1a/p3.2xlarge@amazon")
    'aws/us-east-1/us-east-1a\np3.2xlarge@amazon'
    """
    zone, _, rest = market.partition("@")[0].rpartition("/")
    return f"{zone}\n{rest}{market[len(zone) + 1 + len(rest) :]}"


# ---
# Tables


def is_last_value(row: Mapping[str, Any]) -> bool:
    """Return whether a row is that of last value, the reference."""
    return bool(row["model"] == LAST_VALUE)


#: Columns with the amount of data behind a row of skills.
EVIDENCE: Final[dict[str, Column | str]] = {
    "n": Column(heading="forecasts", format=whole),
    "days": Column(heading="days", format=whole, words="Days with errors: the blocks of the interval."),
}
#: Measures over all steps; a table shows those that have values.
MEASURES: Final[dict[str, Column]] = {
    "rmse": Column(heading="RMSE", format=significant),
    "pinball": Column(heading="pinball loss", format=significant),
    "mase": Column(
        heading="MASE", format=number, words="In units of last value’s error one slot ahead on past data."
    ),
    "brier": Column(heading="Brier", format=fixed_decimals(3), words="Of “at least n”, mean over n."),
    "coverage_80": Column(heading="in 80 %", format=percent, words="Observed values inside."),
    "coverage_90": Column(heading="in 90 %", format=percent, words="Observed values inside."),
    "fallback_share": Column(
        heading="fallback", format=percent, words="Forecasts issued by a simpler model."
    ),
}


def _measured_words(rows: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    return {
        key: column
        for key, column in MEASURES.items()
        if any(as_number(row.get(key)) is not None for row in rows)
    }


def skill_table(scores: Scores) -> Table:
    """Return the table that compares each model with last value by step, in words, with intervals."""
    rows = [
        {
            "model": name,
            "n": most(own, "n"),
            "days": most(own, "days"),
            **{f"step_{row['step']}": describe_comparison(row) for row in own},
        }
        for name in scores.models
        if name != LAST_VALUE and (own := scores.of(name))
    ]
    steps = {f"step_{step}": str(step) for step in scores.steps}
    columns: dict[str, Column | str] = {"model": "model", **EVIDENCE, **steps}
    return Table("Compared with last value, by slots ahead", rows, columns)


def error_table(scores: Scores) -> Table:
    """Return the errors of each model by step, and its other measures over all steps."""
    rows = [
        {
            "model": name,
            **{f"mae_{row['step']}": row["mae"] for row in own},
            **{key: weighted_mean(own, key) for key in MEASURES},
        }
        for name in scores.models
        if (own := scores.of(name))
    ]
    errors = {f"mae_{step}": Column(heading=f"error at {step}", format=significant) for step in scores.steps}
    title = f"Mean absolute error by slots ahead, {UNITS[scores.variable]}; the rest over all steps"
    columns: dict[str, Column | str] = {"model": "model", **errors, **_measured_words(rows)}
    return Table(title, rows, columns, marked=is_last_value)


def weighted_mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the mean of a measure over rows, weighted by the number of forecasts; None if undefined in all."""
    known = [(value, int(row["n"])) for row in rows if (value := as_number(row.get(key))) is not None]
    total = sum(n for _, n in known)
    return sum(value * n for value, n in known) / total if total else None


def _market_blocks(scores: Scores) -> list[Block]:
    """Return the table of the default by market, and the table of every model in every market, folded."""
    rows = market_rows(scores)
    own = [row for row in rows if row["model"] == scores.default]
    common: dict[str, Column | str] = {
        **EVIDENCE,
        "mae_first": Column(heading="error, first step", format=significant),
        "mae_last": Column(heading="error, last step", format=significant),
        "compared": "compared with last value",
    }
    measured = _measured_words(rows)
    own_columns: dict[str, Column | str] = {
        "market": "market",
        **common,
        **{key: measured[key] for key in ("coverage_80", "fallback_share") if key in measured},
        **({"answer": "predictable"} if "answer" in scores.markets else {}),
    }
    each: dict[str, Column | str] = {"market": "market", "model": "model", **common, **measured}
    blocks: list[Block] = []
    if own:
        title = f"{scores.default} by market, all steps"
        blocks.append(Table(title, own, own_columns, sortable=True, most=ON_TERMINAL))
    if len(rows) > len(own):
        title = f"Every model in {plural(len({row['market'] for row in rows}), 'market')}"
        table = Table(title, rows, each, sortable=True, marked=is_last_value)
        blocks.append(Fold(title, [table]))
    return blocks


def market_rows(scores: Scores) -> list[dict[str, Any]]:
    """Return a row per market and model; the markets with the highest skill of the default come first."""
    own = scores.markets[scores.markets["model"] == scores.default].set_index("market")
    skill = {str(name): as_number(value) for name, value in own["skill_pinball"].items()}
    place = {name: k for k, name in enumerate(scores.models)}

    def order(row: Mapping[str, Any]) -> tuple[float, str, int]:
        known = skill.get(str(row["market"]))
        return math.inf if known is None else -known, str(row["market"]), place[row["model"]]

    rows = [{**row, "compared": describe_comparison(row) or MISSING} for row in _records(scores.markets)]
    return sorted(rows, key=order)


# ---
# How a model compares with last value, in words (M6.5).


def describe_comparison(row: Mapping[Any, Any]) -> str:
    """Describe how a model compares with last value; the row has `slackwater.forecasting.accuracy.intervals.SKILL_COLUMNS`.

    >>> describe_comparison({"verdict": "better", "skill_pinball": 0.21, "skill_low": 0.1, "skill_high": 0.3, "days": 9})
    '21 % better (10 to 30 %)'
    >>> describe_comparison({"verdict": "even", "skill_pinball": -0.02, "skill_low": -0.1, "skill_high": 0.06, "days": 9})
    'even (-10 to 6 %)'
    >>> describe_comparison({"verdict": "worse", "skill_pinball": -0.03, "skill_low": -0.06, "skill_high": -0.001, "days": 9})
    '3 % worse (0 to 6 %)'
    >>> describe_comparison({"verdict": "too few", "days": 1}), describe_comparison({"verdict": "too few", "days": 0})
    ('too few: 1 day', 'last value made no error')
    """
    if row["verdict"] not in (BETTER, WORSE, EVEN, TOO_FEW):
        return ""
    if row["verdict"] == TOO_FEW:
        return f"{TOO_FEW}: {plural(int(row['days']), 'day')}" if _is_short(row) else _NO_ERROR
    low, high = row["skill_low"], row["skill_high"]
    if row["verdict"] == WORSE:
        low, high = -high, -low
    span = f"({100 * low:.0f} to {100 * high:.0f} %)"
    if row["verdict"] == EVEN:
        return f"{EVEN} {span}"
    return f"{100 * abs(row['skill_pinball']):.0f} % {row['verdict']} {span}"


def _is_short(row: Mapping[Any, Any]) -> bool:
    return 0 < int(row["days"]) < LEAST_BLOCKS


def nothing_compared(rows: Iterable[Mapping[Any, Any]]) -> str:
    """Return a sentence that explains why no row can be compared.

    >>> nothing_compared([{"days": 1}])
    'Too few days to compare: errors on 1, at least 3 wanted.'
    >>> nothing_compared([{"days": 0}])
    'Last value made no error (flat series), so nothing can be better.'
    """
    short = [int(row["days"]) for row in rows if _is_short(row)]
    if short:
        return f"Too few days to compare: errors on {max(short)}, at least {LEAST_BLOCKS} wanted."
    return f"{_NO_ERROR.capitalize()} (flat series), so nothing can be better."


def steps_compared(rows: Iterable[Mapping[Any, Any]]) -> str:
    """List the lead times at which a model is better than, even with and worse than last value.

    The rows are those of a single model, with ``step`` and ``verdict``.

    >>> steps_compared([{"step": 1, "verdict": "better"}, {"step": 2, "verdict": "better"}, {"step": 3, "verdict": "even"}])
    'better at steps 1–2, even at step 3'
    >>> steps_compared([{"step": 1, "verdict": "worse"}, {"step": 2, "verdict": "worse"}])
    'worse at every step'
    """
    table = [(int(row["step"]), str(row["verdict"])) for row in rows]
    parts = []
    for verdict in (BETTER, EVEN, WORSE, TOO_FEW):
        steps = [step for step, found in table if found == verdict]
        if steps:
            where = (
                "every step"
                if len(steps) == len(table)
                else f"{'step' if len(steps) == 1 else 'steps'} {ranges(steps)}"
            )
            parts.append(f"{'too few days' if verdict == TOO_FEW else verdict} at {where}")
    return ", ".join(parts)
