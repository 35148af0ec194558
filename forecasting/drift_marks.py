"""Drift of market series: what is watched, where it is marked, and whether a model should be estimated again (M6.4).

The tests themselves are `forecasting.drift`'s; here they meet series, their clocks and their variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from forecasting.drift import (
    RULE,
    Drift,
    DriftRule,
    compared,
    detect,
    detect_loss,
    difference,
    told_changes,
    told_level,
)
from forecasting.panel import Panel
from forecasting.series import Series

DRIFT_COLUMNS = ("variable", "market", "at", "since", "kind", "statistic", "found")
_DAY = pd.Timedelta(days=1)


def watched(series: Series) -> np.ndarray:
    """What is watched for a change of distribution, shape (slots,): counts themselves, of prices the size of relative changes.

    A price may stand anywhere and stay there: a new level alone is no new behaviour, more or larger changes are.
    """
    if series.variable == "count":
        return series.values
    values = np.where(series.values > 0, series.values, np.nan)
    return np.abs(np.diff(np.log(values), prepend=np.nan))


def slots_per_day(series: Series) -> int:
    """Slots of a day's length, also where the clock means nothing; at least 1."""
    return max(1, round(_DAY / series.step))


def series_drifts(series: Series, *, rule: DriftRule = RULE) -> list[Drift]:
    """`detect` on what is watched of a series."""
    return detect(
        watched(series),
        slots_per_day=slots_per_day(series),
        first_slot=series.first_slot,
        rule=rule,
        told=_told(series),
    )


def _told(series: Series) -> Callable[[np.ndarray], str]:
    return told_level if series.variable == "count" else told_changes


def drifted_since(series: Series, last_fit: int, *, rule: DriftRule = RULE) -> str:
    """Why a model estimated up to slot ``last_fit`` (since the epoch) should be estimated again now, "" if it need not.

    The newest slots after the fit, as many as each of ``rule.recent_days``, against those up to it: one comparison a window, cheap
    enough for every turn. Reads all of ``series``, which ends at the present.
    """
    day, values = slots_per_day(series), watched(series)
    known = last_fit - series.first_slot + 1
    before = values[max(0, known - round(rule.reference_days * day)) : max(0, known)]
    best, words = rule.limit, ""
    for days in rule.recent_days:
        recent = round(days * day)
        if recent < 1 or len(values) - recent < known or len(before) < max(rule.least_days * day, recent):
            continue
        after = values[len(values) - recent :]
        statistic = compared(before, after, day, rule)
        if statistic > best:
            best, words = statistic, difference(_told(series)(before), _told(series)(after), days)
    return words


def early_fits(panels: Sequence[Panel], *, rule: DriftRule = RULE) -> tuple[tuple[int, ...], ...]:
    """For each panel the slots since the epoch, ascending, in which drift of any of its series was found: estimate again there.

    Each is known in its slot, so a backtest may use them (`forecasting.rolling.Rolling.early`).
    """
    return tuple(
        tuple(
            sorted(
                {one.first_slot + mark.at for one in panel.series for mark in series_drifts(one, rule=rule)}
            )
        )
        for panel in panels
    )


def drift_table(series: Sequence[Series], *, rule: DriftRule = RULE) -> pd.DataFrame:
    """`DRIFT_COLUMNS`: a row per mark on the distribution of a series; ``at`` and ``since`` are the starts (UTC) of those slots."""
    rows = [
        {"variable": one.variable, "market": one.key, **_row(one, mark)}
        for one in series
        for mark in series_drifts(one, rule=rule)
    ]
    return pd.DataFrame(rows, columns=list(DRIFT_COLUMNS))


def loss_drift_table(losses: Sequence[tuple[Series, np.ndarray]], *, rule: DriftRule = RULE) -> pd.DataFrame:
    """The same of `detect_loss`; each series beside its losses by slot (slots,)."""
    rows = [
        {"variable": one.variable, "market": one.key, **_row(one, mark)}
        for one, own in losses
        for mark in detect_loss(own, slots_per_day=slots_per_day(one), first_slot=one.first_slot, rule=rule)
    ]
    return pd.DataFrame(rows, columns=list(DRIFT_COLUMNS))


def _row(series: Series, mark: Drift) -> dict[str, object]:
    zero = pd.Timestamp(0, tz="UTC")
    return {
        "at": zero + (series.first_slot + mark.at) * series.step,
        "since": zero + (series.first_slot + mark.since) * series.step,
        "kind": mark.kind,
        "statistic": mark.statistic,
        "found": mark.found,
    }


def drift_sentences(table: pd.DataFrame, series: Sequence[Series]) -> list[str]:
    """Per variable in words: how many marks of which kind in how many markets and days, against the false alarms to expect."""
    lines = []
    for variable in dict.fromkeys(one.variable for one in series):
        own = [one for one in series if one.variable == variable]
        days = sum(len(one) / slots_per_day(one) for one in own)
        marks = table[table["variable"] == variable]
        kinds = ", ".join(f"{n} of the {kind}" for kind, n in marks["kind"].value_counts(sort=False).items())
        lines.append(
            f"{variable}: {len(marks)} marks of drift{f' ({kinds})' if kinds else ''} in {marks['market'].nunique()} of {len(own)} "
            f"markets over {days:.0f} market days; a series that never changes has less than one in 30 days."
        )
    return lines
