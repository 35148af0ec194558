"""Drift detection by a test that reads no data after the slot of its result (M6.4, M6.5).

Every quarter of a day the last 1, 2 and 4 days are compared with the data before them by the two-sample
Kolmogorov-Smirnov test. Slots are not independent, so the numbers of slots are divided by the autocorrelation time of the values
about the mean of their window, tau = 1 + 2 sum rho_k (Weiss, JASA 73, 1978; the sum is truncated by Sokal's rule); without that
a zone that stays at 0 for a night would show drift every morning.

The limit was chosen on stationary chains of counts whose stays last from an hour to a day: on each the test raises at most
0.6 false alarms in 30 days (`tests/forecasting/diagnosis/test_drift.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from slackwater.forecasting.series import Series

# Windows and limit of the test (ours).
RECENT_DAYS = (1.0, 2.0, 4.0)  # Lengths of the recent windows
REFERENCE_DAYS = 14.0  # Longest reference before a recent window
LEAST_DAYS = 3.0  # Shortest reference, which is at least as long as the recent window
EVERY_DAYS = 0.25  # Time between two tests
LIMIT = 1.8  # Largest D sqrt(n m / (n + m)), with effective sample sizes, that is no drift
LEAST_AUTOCORRELATION = 1.0 / 12.0  # Lower bound of the autocorrelation time in days
_LEAST_SEEN = 0.5  # Minimal share of observed slots in a window (ours)
#: Sokal's constant: the sum of autocorrelations ends at the first lag of this many autocorrelation times.
_SOKAL = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Detected drift: raised in slot ``at`` (index), beginning about slot ``since``; ``found`` describes the difference."""

    at: int
    since: int
    found: str


def describe_level(window: np.ndarray) -> str:
    """Describe a window of levels in words."""
    seen = window[~np.isnan(window)]
    return f"mean {seen.mean():.3g}, at zero {100 * (seen == 0).mean():.0f} % of the time"


def describe_changes(window: np.ndarray) -> str:
    """Describe a window of sizes of relative changes in words."""
    seen = window[~np.isnan(window)]
    return f"mean change {100 * seen.mean():.2g} %, still {100 * (seen == 0).mean():.0f} % of the time"


def detect(
    values: np.ndarray,
    *,
    slots_per_day: int,
    first_slot: int = 0,
    describe: Callable[[np.ndarray], str] = describe_level,
) -> list[Drift]:
    """Detect changes of the distribution of ``values`` (slots,), NaN in gaps; each test reads slots up to its own only.

    Tests are at multiples of `EVERY_DAYS` since the epoch; ``first_slot`` is the number of slot 0. After a detection the
    reference restarts where the change began, so no test follows for at least `LEAST_DAYS`. ``describe`` describes a window
    in words.
    """
    every = max(1, round(EVERY_DAYS * slots_per_day))
    begins, marks = 0, []
    for end in range(1 + (-first_slot - 1) % every, len(values) + 1, every):
        statistic, split = _largest_contrast(values[begins:end], slots_per_day)
        if statistic > LIMIT:
            since = begins + split
            days = (end - since) / slots_per_day
            before, after = describe(values[begins:since]), describe(values[since:end])
            words = f"the last {days:g} d ({after}) differ from before ({before})"
            marks.append(Drift(at=end - 1, since=since, found=words))
            begins = since
    return marks


def _largest_contrast(values: np.ndarray, day: int) -> tuple[float, int]:
    """Return the largest `contrast` of a recent window at the end of ``values``, and the index at which it begins.

    The contrast is 0 where it is at most `LIMIT`, and if no window has enough reference data.
    """
    found = (0.0, len(values))
    for days in RECENT_DAYS:
        recent = round(days * day)
        split = len(values) - recent
        reference = values[max(0, split - round(REFERENCE_DAYS * day)) : max(0, split)]
        if recent < 1 or len(reference) < max(LEAST_DAYS * day, recent):
            continue
        statistic = contrast(
            reference, values[split:], floor=LEAST_AUTOCORRELATION * day, longest=4 * day, least=LIMIT
        )
        if statistic > found[0]:
            found = (statistic, split)
    return found


def contrast(
    before: np.ndarray, after: np.ndarray, *, floor: float, longest: int, least: float = 0.0
) -> float:
    """Return D sqrt(n m / (n + m)) with effective sample sizes n and m; NaN if too few slots are observed.

    An effective sample size is the number of observed slots divided by the autocorrelation time. The autocorrelation time is
    that of the deviations of both windows from their means, with lags up to ``longest``, and at least ``floor``. If the
    statistic with ``floor`` is at most ``least``, the result is 0, without further computation.
    """
    seen_before, seen_after = before[~np.isnan(before)], after[~np.isnan(after)]
    n, m = seen_before.size, seen_after.size
    if n < max(1.0, _LEAST_SEEN * len(before)) or m < max(1.0, _LEAST_SEEN * len(after)):
        return float("nan")
    points = np.unique(np.concatenate([seen_before, seen_after]))
    if points.size == 1:
        return 0.0
    shares = [np.searchsorted(np.sort(x), points, side="right") / x.size for x in (seen_before, seen_after)]
    distance = float(np.abs(shares[0] - shares[1]).max())
    most = distance * float(np.sqrt(n * m / (n + m)))
    if most / np.sqrt(max(floor, 1.0)) <= least:
        return 0.0
    return most / float(np.sqrt(max(floor, autocorrelation_time((before, after), longest))))


def autocorrelation_time(windows: Sequence[np.ndarray], longest: int) -> float:
    """Return tau = 1 + 2 sum rho_k in slots, over windows about their own means, with gaps at the mean; 1 without variation.

    >>> autocorrelation_time([np.array([0.0, 1.0] * 50)], 20)
    1.0
    """
    products = np.zeros(longest + 1)
    for window in windows:
        centred = np.nan_to_num(window - np.nanmean(window))
        power = np.fft.rfft(centred, 2 * len(centred))
        own = np.fft.irfft(power * np.conj(power))[: min(longest + 1, len(centred))]
        products[: len(own)] += own
    if products[0] <= 1e-12 * sum(map(len, windows)):
        return 1.0
    times = 2.0 * np.cumsum(products / products[0]) - 1.0
    far = np.flatnonzero(np.arange(longest + 1) >= _SOKAL * times)
    return float(max(1.0, times[far[0]] if far.size else times.max()))


# ---
# Drift of market series: the monitored values and detections (M6.4).
#
# The functions below apply the test above to series with their clocks and variables.

DRIFT_COLUMNS = ("variable", "market", "at", "since", "found")
_DAY = pd.Timedelta(days=1)


def drift_values(series: Series) -> np.ndarray:
    """Return the values monitored for drift, shape (slots,): counts, or the sizes of relative price changes.

    A price may stay at any level: a new level alone is no drift, but more or larger changes are.
    """
    if series.variable == "count":
        return series.values
    values = np.where(series.values > 0, series.values, np.nan)
    return np.abs(np.diff(np.log(values), prepend=np.nan))


def slots_per_day(series: Series) -> int:
    """Return the number of slots in a day's length, also without a real clock; at least 1."""
    return max(1, round(_DAY / series.step))


def series_drifts(series: Series) -> list[Drift]:
    """Apply `detect` to the monitored values of a series."""
    return detect(
        drift_values(series),
        slots_per_day=slots_per_day(series),
        first_slot=series.first_slot,
        describe=describe_level if series.variable == "count" else describe_changes,
    )


def drift_table(series: Sequence[Series]) -> pd.DataFrame:
    """Return `DRIFT_COLUMNS`: a row per detected change of distribution; ``at`` and ``since`` are slot starts (UTC)."""
    rows = [
        (own.variable, own.key, own.time(mark.at), own.time(mark.since), mark.found)
        for own in series
        for mark in series_drifts(own)
    ]
    return pd.DataFrame(rows, columns=list(DRIFT_COLUMNS))
