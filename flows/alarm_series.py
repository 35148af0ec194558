"""The checks behind the alarms that look at series and forecasts: drift, and coverage out of its band (M6.5, M6.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from flows.alarm_checks import Finding
from flows.frames import rows_of
from forecasting.drift_marks import drift_table
from forecasting.series import series_of
from warehouse.history import AVAILABLE, PRICE, History

if TYPE_CHECKING:
    from flows.alarm_facts import AlarmFacts

#: An interval is too wide when even this one holds more than `_NOMINAL` of what came.
_INNER = "50 %"
_NOMINAL = 0.8
#: Autocorrelation of hits is taken up to here; beyond it nearly nothing would be independent.
_MOST_CARRIED = 0.95


def drifts(facts: AlarmFacts) -> list[Finding]:
    """Series in which a change of distribution was marked in the recent hours (`forecasting.drift`)."""
    series = [series_of(one, variable) for one in facts.histories for variable in ("price", "count")]
    recent = facts.at - pd.Timedelta(hours=facts.rules.recent_hours)
    found = []
    for one in series:
        marks = drift_table([one])
        for mark in rows_of(marks[marks["at"] > recent]):
            found.append(
                Finding(
                    kind="drift",
                    subject=f"{one.key} {one.variable}",
                    since=mark["since"],
                    text=f"{one.variable}: {mark['found']}; expected no such difference by chance in 30 days; forecasts adapt, "
                    "but look whether the source or the market has changed",
                )
            )
    return found


def coverage_out_of_band(facts: AlarmFacts) -> list[Finding]:
    """Recent one-step intervals that held too little or too much of what came.

    Too little: the 80 % intervals held so few values that it is improbable (a binomial of as many independent values as there are
    effectively). Too much: even the 50 % intervals held more than 80 % by as much. Intervals of no width at a value that stays
    are right, so only those with a width count for too much; whole numbers alone make 80 % intervals of counts hold more.
    """
    found = []
    actual = {f"{one.market.key}@{one.source}": one for one in facts.histories}
    for (market, source, variable), own in facts.issued.groupby(["market", "source", "variable"], sort=True):
        history = actual.get(f"{market}@{source}")
        if history is None:
            continue
        scored = _scored(own, history, str(variable))
        for text in _judged(scored, facts):
            subject = f"{market}@{source} {variable}"
            found.append(Finding(kind="coverage", subject=subject, since=scored["slot"].iloc[0], text=text))
    return found


def _scored(own: pd.DataFrame, history: History, variable: str) -> pd.DataFrame:
    """The forecasts whose slot has come and was observed, with the value that came."""
    column = history.frame[PRICE if variable == "price" else AVAILABLE]
    came = column.reindex(pd.DatetimeIndex(own["slot"])).to_numpy(dtype=float)
    scored: pd.DataFrame = own.assign(came=came)[~np.isnan(came)].sort_values("slot")
    return scored


def _judged(scored: pd.DataFrame, facts: AlarmFacts) -> list[str]:
    """A sentence if coverage is out of its band."""
    rules = facts.rules
    came = scored["came"].to_numpy(dtype=float)
    low, high = scored["q10"].to_numpy(dtype=float), scored["q90"].to_numpy(dtype=float)
    inside = (low - 1e-9 <= came) & (came <= high + 1e-9)
    n, share = effective(inside), float(inside.mean()) if inside.size else float("nan")
    if n >= rules.coverage_least and improbable(share, n, below=True) < rules.coverage_chance:
        return [
            f"80 % intervals one slot ahead held {100 * share:.0f} % of {inside.size} values ({n:.0f} effectively independent); "
            f"expected {100 * band(n, rules.coverage_chance)[0]:.0f} % or more; look whether the market has changed"
        ]
    low, high = scored["q25"].to_numpy(dtype=float), scored["q75"].to_numpy(dtype=float)
    wide = high - low > 1e-9
    inner = ((low <= came) & (came <= high))[wide]
    n, share = effective(inner), float(inner.mean()) if inner.size else float("nan")
    if n >= rules.coverage_least and improbable(share, n, below=False) < rules.coverage_chance:
        return [
            f"{_INNER} intervals one slot ahead held {100 * share:.0f} % of {inner.size} values ({n:.0f} effectively independent): "
            "far too wide; expected about 50 %, at most 80 %; look whether the market has become calmer"
        ]
    return []


def effective(hits: np.ndarray) -> float:
    """How many independent values the hits (n,) are worth: n (1 - r) / (1 + r), r their first autocorrelation, at least 0.

    >>> effective(np.array([True, False] * 10)), round(effective(np.array([True] * 10 + [False] * 10)), 2)
    (20.0, 1.05)
    """
    n = hits.size
    if n < 3 or hits.all() or not hits.any():
        return float(n)
    apart = hits - hits.mean()
    carried = float(np.clip((apart[1:] * apart[:-1]).sum() / np.square(apart).sum(), 0.0, _MOST_CARRIED))
    return n * (1 - carried) / (1 + carried)


def improbable(share: float, n: float, *, below: bool) -> float:
    """Probability that ``n`` independent values, each inside with probability 0.8, give this share or a more extreme one."""
    from scipy.stats import binom

    whole = int(n)
    hits = round(share * whole)
    return float(binom.cdf(hits, whole, _NOMINAL) if below else binom.sf(hits - 1, whole, _NOMINAL))


def band(n: float, chance: float) -> tuple[float, float]:
    """The shares between which coverage of ``n`` independent values lies but for ``chance`` on each side."""
    from scipy.stats import binom

    whole = int(n)
    return float(binom.ppf(chance, whole, _NOMINAL)) / whole, float(
        binom.isf(chance, whole, _NOMINAL)
    ) / whole
