"""When a series is no longer what it was: two tests that read nothing later than the slot they speak in (M6.4, M6.5).

*Distribution*: every `DriftRule.every` the last 1, 2 and 4 days are compared with what came before them by the two-sample
test of Kolmogorov and Smirnov. Slots are not independent, so the numbers of slots are divided by the autocorrelation time of the
values about their own window's mean, tau = 1 + 2 sum rho_k (Weiss, JASA 73, 1978; the sum is cut by Sokal's rule); without that a
zone that stays at 0 for a night would be drift every morning. *Loss*: the mean loss of a model in blocks of six hours goes through
the test of Page (Biometrika 41, 1954) and Hinkley (1971) for a rise, scaled by the blocks' own long-run deviation.

Limits were set on stationary chains of counts whose stays last from an hour to a day: each test there raises less than one
false alarm in 30 days (at most 0.6 and 0.4), the two together less than one (`tests/forecasting/diagnosis/test_drift.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from forecasting.series import Series


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRule:
    """What is compared with what, and how much is too much (ours).

    Recent windows and the reference before them in days, ``every`` and ``block`` in days too. ``least_days`` of reference are
    needed, and as many as the recent window has. ``limit`` bounds the statistic D sqrt(n m / (n + m)) of effective numbers,
    ``autocorrelation_floor`` (days) the autocorrelation time from below. ``slack`` and ``loss_limit`` are Page's, in deviations of
    a block; a block counts for at most ``most`` of them, so that one wild block is not a drift.
    """

    recent_days: tuple[float, ...] = (1.0, 2.0, 4.0)
    reference_days: float = 14.0
    least_days: float = 3.0
    every: float = 0.25
    limit: float = 1.8
    autocorrelation_floor: float = 1.0 / 12.0
    block: float = 0.25
    slack: float = 0.5
    loss_limit: float = 6.0
    most: float = 3.0


#: The rule unless another is given.
RULE = DriftRule()
#: Less than this share of a window's slots observed says nothing (ours).
_LEAST_SEEN = 0.5
#: Sokal's constant: the sum of autocorrelations ends at the first lag of so many autocorrelation times.
_SOKAL = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A mark: raised in slot ``at`` (index), of what began about slot ``since``; ``found`` says in words what differs."""

    at: int
    since: int
    kind: Literal["distribution", "loss"]
    statistic: float
    found: str


def told_level(window: np.ndarray) -> str:
    """A window of levels in words."""
    seen = window[~np.isnan(window)]
    return f"mean {seen.mean():.3g}, at zero {100 * (seen == 0).mean():.0f} % of the time"


def told_changes(window: np.ndarray) -> str:
    """A window of sizes of relative changes in words."""
    seen = window[~np.isnan(window)]
    return f"mean change {100 * seen.mean():.2g} %, still {100 * (seen == 0).mean():.0f} % of the time"


def detect(
    values: np.ndarray,
    *,
    slots_per_day: int,
    first_slot: int = 0,
    rule: DriftRule = RULE,
    told: Callable[[np.ndarray], str] = told_level,
) -> list[Drift]:
    """Marks where the distribution of ``values`` (slots,), NaN in gaps, changed; each reads the slots up to its own alone.

    Checks are at multiples of ``rule.every`` since the epoch, of which ``first_slot`` numbers slot 0. After a mark the reference
    begins anew where the change began, so it is quiet for at least ``rule.least_days``. ``told`` puts a window into words.
    """
    every = max(1, round(rule.every * slots_per_day))
    begins, marks = 0, []
    for end in range(1 + (-first_slot - 1) % every, len(values) + 1, every):
        found = _largest(values[begins:end], slots_per_day, rule)
        if found is not None and found.statistic > rule.limit:
            since = begins + found.split
            days = (end - since) / slots_per_day
            words = difference(told(values[begins:since]), told(values[since:end]), days)
            marks.append(
                Drift(at=end - 1, since=since, kind="distribution", statistic=found.statistic, found=words)
            )
            begins = since
    return marks


@dataclass(frozen=True, slots=True)
class _Contrast:
    """The largest statistic over recent windows, and the index at which its window begins."""

    statistic: float
    split: int


def _largest(values: np.ndarray, day: int, rule: DriftRule) -> _Contrast | None:
    """The most different recent window at the end of ``values``; None if no window has enough before it."""
    best = None
    for days in rule.recent_days:
        recent = round(days * day)
        split = len(values) - recent
        reference = values[max(0, split - round(rule.reference_days * day)) : max(0, split)]
        if recent < 1 or len(reference) < max(rule.least_days * day, recent):
            continue
        statistic = compared(reference, values[split:], day, rule)
        if not np.isnan(statistic) and (best is None or statistic > best.statistic):
            best = _Contrast(statistic, split)
    return best


def compared(before: np.ndarray, after: np.ndarray, day: int, rule: DriftRule) -> float:
    """`contrast` by a rule on slots of ``day`` a day, or 0 where it could not reach the rule's limit."""
    floor = rule.autocorrelation_floor * day
    return contrast(before, after, floor=floor, longest=4 * day, least=rule.limit)


def contrast(
    before: np.ndarray, after: np.ndarray, *, floor: float, longest: int, least: float = 0.0
) -> float:
    """D sqrt(n m / (n + m)) with n and m the observed slots over the autocorrelation time; NaN where too little is observed.

    The autocorrelation time is of both windows' deviations from their own means, of lags up to ``longest``, and at least ``floor``.
    Where even the least of them gives no more than ``least`` the result is 0, and nothing more is computed.
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
    """tau = 1 + 2 sum rho_k in slots over windows about their own means, gaps at the mean; 1 if nothing varies.

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


def difference(before: str, after: str, days: float) -> str:
    """How two windows, each in words, differ."""
    return f"the last {days:g} d ({after}) differ from before ({before})"


def detect_loss(
    losses: np.ndarray, *, slots_per_day: int, first_slot: int = 0, rule: DriftRule = RULE
) -> list[Drift]:
    """Marks where a model's mean loss rose; ``losses`` (slots,) is what was known in each slot, NaN where nothing was scored.

    A loss belongs in the slot in which the value became known, not in that of its forecast. Blocks without any loss are passed
    over. Blocks since the last mark are the reference, ``rule.least_days`` at least. Falls are no marks: they do no harm.
    """
    width = max(1, round(rule.block * slots_per_day))
    skip = -first_slot % width
    blocks = losses[skip : skip + (len(losses) - skip) // width * width].reshape(-1, width)
    seen = ~np.isnan(blocks)
    means = np.where(seen, blocks, 0.0).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
    known = np.flatnonzero(seen.any(axis=1))
    least = max(2, round(rule.least_days / rule.block))
    begins, rise, since, marks = 0, 0.0, 0, []
    for i in range(len(known)):
        if i - begins < least:
            continue
        z = _deviations(means[known[begins:i]], float(means[known[i]]), rule.most)
        if rise == 0.0:
            since = i
        rise = max(0.0, rise + z - rule.slack)
        if rise > rule.loss_limit:
            marks.append(_loss_mark(means[known], (begins, since, i), rise, (skip, width, known)))
            begins, rise = since, 0.0
    return marks


def _deviations(past: np.ndarray, now: float, most: float) -> float:
    """How many long-run deviations a block lies above the mean of the past ones, cut to -most..most.

    The deviation is that of a first-order autoregression of the blocks, and of a mean of so few of them.
    """
    apart = past - past.mean()
    variance = float(np.square(apart).mean())
    above = now - float(past.mean())
    if variance <= 1e-18:
        return most * float(np.sign(above)) if abs(above) > 1e-9 else 0.0
    carried = float(np.clip((apart[1:] * apart[:-1]).mean() / variance, 0.0, 0.9))
    deviation = np.sqrt(variance * (1 + carried) / (1 - carried) * (1 + 1 / past.size))
    return float(np.clip(above / deviation, -most, most))


def _loss_mark(
    means: np.ndarray, places: tuple[int, int, int], rise: float, grid: tuple[int, int, np.ndarray]
) -> Drift:
    (begins, since, i), (skip, width, known) = places, grid
    return Drift(
        at=skip + int(known[i] + 1) * width - 1,
        since=skip + int(known[since]) * width,
        kind="loss",
        statistic=rise,
        found=f"mean loss {means[since : i + 1].mean():.3g}, before {means[begins:since].mean():.3g}",
    )


# ---
# Drift of market series: what is watched, where it is marked, and whether a model should be estimated again (M6.4).
#
# The tests themselves are `forecasting.diagnosis.drift`'s; here they meet series, their clocks and their variables.

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
