"""Confidence intervals of comparisons over blocks of dependent forecasts, and verdicts from them (M6.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from scipy.special import stdtrit  # Student's t without scipy.stats, which takes long to import

#: Minimal number of blocks (days, zones, starts) for an interval and a verdict.
LEAST_BLOCKS: Final = 3
BETTER, WORSE, EVEN, TOO_FEW = "better", "worse", "even", "too few"
#: Reference model; equals `slackwater.forecasting.predictors.FLOOR`, which is too slow to import for the layers above.
_FLOOR: Final = "last_value"
#: Columns of `skills_by_block`.
SKILL_COLUMNS: Final = ("skill_pinball", "skill_low", "skill_high", "days", "verdict")
#: Losses below this share of the largest block's loss count as zero: prices are sums of floats.
_NO_LOSS = 1e-9


def verdict(low: float, high: float, *, above: str = BETTER, below: str = WORSE) -> str:
    """Return the verdict on a difference from the ends of its interval.

    ``above`` or ``below`` if the interval lies above or below 0, `EVEN` if it contains 0, and `TOO_FEW` if it is unknown, as
    with fewer than `LEAST_BLOCKS` blocks.

    >>> verdict(0.1, 0.3), verdict(-0.3, -0.1), verdict(-0.1, 0.3), verdict(float("nan"), float("nan"))
    ('better', 'worse', 'even', 'too few')
    """
    if not (np.isfinite(low) and np.isfinite(high)):
        return TOO_FEW
    if low > 0.0:
        return above
    return below if high < 0.0 else EVEN


def interval_words(low: float, high: float, form: str = ".4f") -> str:
    """Format an interval, followed by `EVEN` if it contains 0, or state `TOO_FEW` if it is unknown.

    >>> interval_words(-0.1, 0.3, "+.1f"), interval_words(0.1, 0.3, ".0%"), interval_words(float("nan"), float("nan"))
    ('-0.1 to +0.3: even', '10% to 30%', 'too few blocks for an interval')
    """
    found = verdict(low, high)
    if found == TOO_FEW:
        return f"{TOO_FEW} blocks for an interval"
    return f"{low:{form}} to {high:{form}}" + (f": {EVEN}" if found == EVEN else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skills:
    """Skills, 1 - loss / loss of last value, of several comparisons; arrays (comparisons,), NaN where last value never erred.

    ``low`` and ``high`` are the ends of the 95 % interval, ``days`` the number of blocks in which either model erred.
    """

    skill: np.ndarray
    low: np.ndarray
    high: np.ndarray
    days: np.ndarray

    def columns(self) -> dict[str, np.ndarray]:
        """Return `SKILL_COLUMNS` by name."""
        found = [verdict(float(low), float(high)) for low, high in zip(self.low, self.high, strict=True)]
        columns = (self.skill, self.low, self.high, self.days, np.array(found, dtype=object))
        return dict(zip(SKILL_COLUMNS, columns, strict=True))


def skills_of(loss: np.ndarray, floor: np.ndarray) -> Skills:
    """Compare ``loss`` with ``floor``, each (blocks, comparisons)."""
    of = np.tile(np.arange(loss.shape[1]), loss.shape[0])
    return _skills(loss.ravel(), floor.ravel(), of, loss.shape[1])


def block_interval(loss: np.ndarray, floor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the 95 % interval of 1 - sum of ``loss`` / sum of ``floor``, each (blocks, h), in shapes (h,) and (h,).

    Losses of a market within a day are dependent, so days are its blocks; for a class of markets the blocks are zones. The
    variance is that of a ratio of sums over clusters, by linearisation (Cochran 1977, chapter 6), with Student's t with one
    degree of freedom less than the number of blocks. A day on which neither model has a loss is no block, so a market that
    hardly moved has a wide interval. NaN for fewer than `LEAST_BLOCKS`; the width is 0 if the ratio is the same in all blocks.
    """
    found = skills_of(loss, floor)
    return found.low, found.high


def skills_by_block(losses: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return `SKILL_COLUMNS` by ``keys`` of rows with ``loss`` and ``floor``, summed by ``day``; last value has no verdict."""
    sums = losses.groupby([*keys, "day"], sort=False)[["loss", "floor"]].sum().reset_index()
    groups = sums.groupby(list(keys), sort=False)
    of = groups.ngroup().to_numpy()
    names = groups.size().index
    found = _skills(sums["loss"].to_numpy(float), sums["floor"].to_numpy(float), of, len(names))
    table = pd.DataFrame(found.columns(), index=names)
    if "model" in keys:
        own = table.index.get_level_values("model") == _FLOOR
        table.loc[own, ["skill_low", "skill_high"]] = np.nan
        table.loc[own, "verdict"] = ""
    return table


def _skills(loss: np.ndarray, floor: np.ndarray, of: np.ndarray, size: int) -> Skills:
    """Compare losses by block, both (rows,); ``of`` is the comparison of each row."""
    most = np.zeros(size)
    np.maximum.at(most, of, np.maximum(loss, floor))
    seen = np.maximum(loss, floor) > _NO_LOSS * most[of]
    days = np.bincount(of, weights=seen, minlength=size)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.bincount(of, weights=floor, minlength=size)
        ratio = np.bincount(of, weights=loss, minlength=size) / total
        error = np.where(seen, loss - ratio[of] * floor, 0.0) / total[of]
        spread = np.sqrt(np.bincount(of, weights=np.square(error), minlength=size) * days / (days - 1))
        reach = stdtrit(np.maximum(days - 1, 1), 0.975) * spread
        known = (days >= LEAST_BLOCKS) & (total > 0)
        return Skills(
            skill=np.where(total > 0, 1.0 - ratio, np.nan),
            low=np.where(known, 1.0 - ratio - reach, np.nan),
            high=np.where(known, 1.0 - ratio + reach, np.nan),
            days=days.astype(int),
        )
