"""What a backtest found: scores of every model by market and step, and what a report draws from them (M6.5).

All tables are long `pandas.DataFrame`s whose columns are the constants of this module, in that order. What is not
defined (a scaled error with zero scale, a skill over a floor that never erred, a Brier score of a price) is NaN,
never infinite. ``market`` is always ``provider/region/zone/instance_type@source``. Errors are in USD per instance-
hour for ``variable`` "price", in instances for "count". ``step`` is 1-based: slots ahead.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from forecasting.quantiles import LEVELS

#: The quantile columns of a table.
QUANTILES = [f"q{round(100 * q):02d}" for q in LEVELS]

#: What is measured in every row of `Accuracy.scores`, `Accuracy.periods` and `Accuracy.pooled`.
MEASURES = (
    "n", "mae", "rmse", "mase", "pinball", "skill_pinball", "skill_mae",
    "coverage_50", "coverage_80", "coverage_90", "brier", "fallback_share",
    "width_50", "width_80", "width_90", "skill_brier", "absent", "unpredicted", "cover",
    "coverage_50_closed", "coverage_80_closed", "coverage_90_closed",
)  # fmt: skip
SCORE_COLUMNS = (
    "variable",
    "model",
    "market",
    "step",
    *MEASURES,
    "dm",
    "dm_p",
    "source",
    "scale",
    "capacity",
    "class",
)
PERIOD_COLUMNS = ("variable", "model", "market", "period", "start", "end", "step", *MEASURES, "source")
POOLED_COLUMNS = (
    "variable", "model", "step", *MEASURES,
    "mean_skill_pinball", "median_skill_pinball", "worst_skill_pinball", "share_worse", "markets",
)  # fmt: skip
CLASS_COLUMNS = ("variable", "model", "class", *POOLED_COLUMNS[2:])
#: Classes of markets in the order they are shown: of counts by their stated capacity, of prices by how often they change.
CLASSES = {"count": ("0/1", "2-15", "16 and more", "offers"), "price": ("moving", "still")}
RELIABILITY_COLUMNS = ("variable", "model", "step", "level", "share", "n")
CALIBRATION_COLUMNS = ("model", "step", "bin", "chance", "frequency", "n")
DAILY_COLUMNS = ("variable", "model", "market", "day", "n", "mae", "pinball", "source")
REASON_COLUMNS = ("variable", "model", "market", "reason", "n")
FAN_COLUMNS = (
    "variable",
    "model",
    "market",
    "origin",
    "step",
    "slot",
    "actual",
    "mean",
    *QUANTILES,
    "source",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The scores of a backtest and the tables a report draws.

    ``scores`` (`SCORE_COLUMNS`): one row per variable, model, market and step. ``mae`` is of the median, ``rmse`` of
    the mean; ``mase`` is in units of the mean |y(t) - y(t-1)| of the training part (NaN if that is 0); ``pinball`` is
    the mean over the 19 levels, half of the CRPS; ``brier`` that of "at least n", averaged over n = 1..capacity.
    ``skill_pinball`` and ``skill_mae`` are 1 - loss / loss of `FLOOR`; ``skill_brier`` the same against last value's
    conditional frequencies P(y(t+k) >= n | [y(t) >= n]) counted on the training part. ``dm`` and ``dm_p``: statistic
    (positive = better than `FLOOR`) and two-sided p value of Diebold and Mariano's test of the pinball loss.
    ``coverage_P``: mean share of the randomised probability integral transform of the value within the central P % of
    levels (`forecasting.accuracy.measures.covered`): P for a right law, with point masses or without; ``coverage_P_closed``:
    share of values in the closed interval of the quantiles, which point masses lift above P however right the law is.
    ``absent`` and ``unpredicted``: mean instances forecast and not there, there and not forecast; ``cover`` what this step
    adds to the error of a forecast as a path, in which an instance at a slot nearby is less than two errors
    (`forecasting.accuracy.measures`). ``scale`` is what pooled losses are divided by: capacity for counts, mean price of the
    training part for prices. ``class``: one of `CLASSES` (counts by their stated capacity, "offers" without one; a price is
    "moving" if it changed once a day or more in the training part). A skill is NaN where last value never erred.

    ``periods`` (`PERIOD_COLUMNS`): the same by period of the test part, numbered from 0: calendar weeks (Monday,
    UTC), or four equal parts where the clock means nothing or the test part is shorter than two weeks; ``start`` and
    ``end`` are the first and last origin.

    ``pooled`` (`POOLED_COLUMNS`): one row per variable, model and step over all markets: n-weighted means of errors,
    coverage, width and shares (of those defined); skills are 1 - sum of scaled loss / sum of scaled floor loss, every
    origin's loss divided by its market's ``scale``. Then mean, median and worst of the markets' own pinball skills,
    the share of markets below 0, and how many markets there are. ``classes`` (`CLASS_COLUMNS`): the same over the
    markets of each class.

    ``reliability`` (`RELIABILITY_COLUMNS`): share of actual values at or below the quantile of each level; where
    values tie with quantiles (counts, flat prices) the expected share of the randomised probability integral
    transform. ``calibration`` (`CALIBRATION_COLUMNS`, counts): the chance given to "at least n" in ten bins, its mean
    in the bin and how often it came true. Both are pooled over markets. ``daily`` (`DAILY_COLUMNS`): mean loss over
    steps of the forecasts issued on each UTC day.

    ``fans`` (`FAN_COLUMNS`): a few forecasts of the default model per market, evenly spread over its test part; rows
    with step <= 0 are the actual values up to the origin (NaN mean and quantiles). ``notes`` says in words what was
    left out and why. ``models`` are in the order asked for, ``default`` is the name of the default one. ``reasons``
    (`REASON_COLUMNS`) counts the forecasts in which another model answered, by the reason given, numbers in it as "#".
    """

    scores: pd.DataFrame
    pooled: pd.DataFrame
    periods: pd.DataFrame
    reliability: pd.DataFrame
    calibration: pd.DataFrame
    daily: pd.DataFrame
    fans: pd.DataFrame
    models: tuple[str, ...]
    default: str
    step: pd.Timedelta
    notes: tuple[str, ...] = ()
    reasons: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(REASON_COLUMNS)))
    classes: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(CLASS_COLUMNS)))
