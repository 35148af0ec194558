"""Probes that alternate: why a value one slot ahead can be harder to tell than one two slots ahead (M6.7).

Some counts swing from probe to probe, high, low, high. A slot of an odd number of probes then ends on the other side of the
swing, two slots on the same side, and last value errs more at one slot than at two. Slots hide this; the probes show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecasting.diagnosis.predictability import autocorrelation, mean_change
from forecasting.series import Series

#: Even lags over which the swing is averaged.
EVEN_LAGS = (2, 4, 6, 8)
#: Fewer blocks of a day than this give no p-value; the level at which a swing is called one.
FEWEST_BLOCKS, LEVEL = 4, 0.01
#: Columns of `alternation_table`.
TABLE = (
    "market", "part", "probes", "per_slot", "share", "one_slot", "two_slots", "without", "p_value", "found", "inverts",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternation:
    """What one series' probes say; errors are mean |y(t + lag) - y(t)| in instances.

    ``per_slot`` probes make a slot. ``share`` is the share of the variance that changes sign from probe to probe: half of how much
    the autocorrelation at even lags stands above the middle of its odd neighbours (a swing of share a under anything smooth adds
    a (-1)^k to it). ``one_slot`` and ``two_slots`` are the errors of last value; ``without`` is that of one slot if there were no
    swing: the middle of the errors one probe less and one more ahead (NaN where a slot is not an odd number >= 3 of probes).
    ``p_value`` tests one-sided that errors at an odd lag exceed that middle: Student's t of the days' excess as a share of
    their errors, so that no single wild day can dominate. ``part`` says of which half of the slots this is, as swings come and go.
    """

    market: str
    part: str
    probes: int
    per_slot: int
    correlations: tuple[float, ...]
    share: float
    one_slot: float
    two_slots: float
    without: float
    p_value: float

    @property
    def found(self) -> bool:
        """Whether the probes alternate beyond chance (`LEVEL`)."""
        return self.p_value < LEVEL and self.share > 0

    @property
    def inverts(self) -> bool:
        """Whether one slot ahead is harder to tell than two."""
        return self.one_slot > self.two_slots


def probes_of(series: Series) -> np.ndarray:
    """The readings between slots and at their starts in one line, shape (slots * (m + 1),); the slots' own where m is 0."""
    m = series.within.shape[1] if len(series.within) == len(series) and series.within.ndim == 2 else 0
    if m == 0:
        return series.values
    return np.column_stack([series.within, series.values]).ravel()


def alternation(
    values: np.ndarray, per_slot: int, *, probes_per_day: int, market: str = "", part: str = "whole"
) -> Alternation:
    """Measure the swing in ``values`` (probes,), evenly spaced, NaN where a probe is missing.

    Pairs with a missing probe are left out. What is not defined (flat or short series) is NaN.
    """
    lags = range(1, EVEN_LAGS[-1] + 2)
    rho = autocorrelation(values, list(lags))
    stands = [rho[k - 1] - (rho[k - 2] + rho[k]) / 2.0 for k in EVEN_LAGS]
    odd = per_slot if per_slot % 2 and per_slot >= 3 else 3
    return Alternation(
        market=market,
        part=part,
        probes=int((~np.isnan(values)).sum()),
        per_slot=per_slot,
        correlations=tuple(float(r) for r in rho),
        share=float(np.mean(stands)) / 2.0,
        one_slot=mean_change(values, per_slot),
        two_slots=mean_change(values, 2 * per_slot),
        without=(mean_change(values, odd - 1) + mean_change(values, odd + 1)) / 2.0
        if odd == per_slot
        else float("nan"),
        p_value=_excess_p(values, odd, probes_per_day),
    )


def _excess_p(values: np.ndarray, odd: int, block: int) -> float:
    """One-sided p-value that |y(t + odd) - y(t)| exceeds the middle of its two even neighbours, from blocks of that many probes."""
    n = len(values) - odd - 1
    if n < block:
        return float("nan")
    at = values[:n]
    before, own, after = (np.abs(values[lag : lag + n] - at) for lag in (odd - 1, odd, odd + 1))
    both = ~np.isnan(before + own + after)
    middle = (before + after) / 2.0
    shares = []
    for i in range(0, n - block + 1, block):
        use = slice(i, i + block)
        total = (own[use] + middle[use])[both[use]].sum()
        if total > 0:
            shares.append((own[use] - middle[use])[both[use]].sum() / total)
    if len(shares) < FEWEST_BLOCKS or np.ptp(shares) == 0:
        return float("nan")
    from scipy.stats import t

    error = np.std(shares, ddof=1) / np.sqrt(len(shares))
    return float(t.sf(np.mean(shares) / error, len(shares) - 1))


def alternations(series: Sequence[Series]) -> list[Alternation]:
    """The swing of every count series that has readings between its slots, in the first half of its slots and in the second."""
    out = []
    for one in series:
        if one.variable != "count" or probes_of(one).size <= len(one):
            continue
        per_slot = one.within.shape[1] + 1
        half = len(one) // 2
        for part, cut in (("first", one.part(0, half)), ("second", one.part(half, len(one)))):
            day = round(pd.Timedelta(days=1) / one.step) * per_slot
            out.append(alternation(probes_of(cut), per_slot, probes_per_day=day, market=one.key, part=part))
    return out


def alternation_table(found: Sequence[Alternation]) -> pd.DataFrame:
    """One row a series and part, in order: the fields of `Alternation` but ``correlations``, and its found and inverts."""
    return pd.DataFrame([{name: getattr(one, name) for name in TABLE} for one in found], columns=list(TABLE))


def alternation_sentences(found: Sequence[Alternation]) -> list[str]:
    """The answer in words, part by part: which series swing, what that does to one slot ahead, and what is left without them."""
    if not found:
        return ["No count series has readings between its slots, so whether probes alternate is not known."]
    lines = []
    for part in dict.fromkeys(one.part for one in found):
        here = [one for one in found if one.part == part]
        swinging = sorted((one for one in here if one.found), key=lambda one: -one.share)
        lines.append(_summary(part, here, swinging))
        lines += [_sentence(one) for one in swinging]
    return lines


def _summary(part: str, here: Sequence[Alternation], swinging: Sequence[Alternation]) -> str:
    where = "Over all slots" if part == "whole" else f"In the {part} half of the slots"
    rest = [one for one in here if not one.found]
    text = (
        f"{where} the probes of {len(swinging)} of {len(here)} count series alternate (p < {LEVEL}); "
        f"last value's mean error is {_mean(here, 'one_slot'):.2f} at one slot and {_mean(here, 'two_slots'):.2f} at two"
    )
    if not swinging or not rest:
        return text + "."
    return text + f", without those {_mean(rest, 'one_slot'):.2f} and {_mean(rest, 'two_slots'):.2f}."


def _mean(found: Sequence[Alternation], name: str) -> float:
    return float(np.nanmean([getattr(one, name) for one in found]))


def _sentence(one: Alternation) -> str:
    side = "the other side" if one.per_slot % 2 else "the same side"
    text = (
        f"{one.market}: {100 * one.share:.0f} % of the variance changes sign from probe to probe; a slot is {one.per_slot} probes, "
        f"so one slot ahead is on {side} of the swing (mean error {one.one_slot:.2f}), two slots ahead on the same "
        f"({one.two_slots:.2f})"
    )
    return (
        f"{text}; without the swing one slot would cost {one.without:.2f}."
        if one.without == one.without
        else f"{text}."
    )
