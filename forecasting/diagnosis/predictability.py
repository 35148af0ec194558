"""Predictability of a series, measured without fitting a model, and of a market by models (M6.7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from slackwater.forecasting.accuracy.intervals import LEAST_BLOCKS
from slackwater.forecasting.series import Series
from slackwater.warehouse.errors import ForecastError
from slackwater.warehouse.plugins import has_extra, require_extra

# ---
# Predictability without a model: persistence, cycles, stillness, information (M6.7).
#
# All functions read only the given values, skip gaps pair by pair, and return NaN where undefined: a flat series has no
# autocorrelation, a series without a real clock no day.

FEWEST_PAIRS = 24  # Minimal number of pairs of observed slots for a correlation or an entropy (ours)
#: Minimal number of whole periods for the strength of a cycle, and maximal share of gaps (ours).
FEWEST_PERIODS, MOST_GAPS = 3, 0.25
#: Values with more distinct levels are divided into this many bins of equal frequency before entropies are computed.
MOST_STATES = 16
_WEEK_DAYS = 7


def autocorrelation(values: np.ndarray, lags: Sequence[int]) -> np.ndarray:
    """Return the autocorrelation of ``values`` (slots,), NaN in gaps, at each of ``lags`` >= 1, shape (lags,).

    It is the mean product of observed pairs about the common mean, divided by the variance (the biased estimate corrected for the
    number of pairs). NaN with fewer than `FEWEST_PAIRS` pairs and for a flat series.
    """
    centred = values - np.nanmean(values) if np.isfinite(values).any() else values
    variance = np.nanmean(np.square(centred)) if np.isfinite(values).any() else 0.0
    out = np.full(len(lags), np.nan)
    if not variance > 1e-18 * max(1.0, float(np.nanmax(np.abs(values), initial=0.0)) ** 2):
        return out
    for i, lag in enumerate(lags):
        products = centred[lag:] * centred[:-lag] if 0 < lag < len(values) else np.zeros(0)
        products = products[~np.isnan(products)]
        if products.size >= FEWEST_PAIRS:
            out[i] = products.mean() / variance
    return out


def seasonal_strength(values: np.ndarray, period: int) -> float:
    """Return F_s = max(0, 1 - Var(R) / Var(S + R)) of an STL decomposition with a fixed cycle of ``period`` slots.

    R is the remainder and S the seasonal part (Wang, Smith and Hyndman, Data Mining and Knowledge Discovery 13, 2006). Gaps are
    interpolated linearly for the decomposition and left out of the variances. n periods of noise have a strength near 1/n, so small
    values are not significant. NaN for fewer than `FEWEST_PERIODS` periods, more than `MOST_GAPS` gaps, or a flat series. Raises
    `SettingsError` without the extra ``diagnosis``.
    """
    require_extra("diagnosis", "the strength of a cycle")
    seen = np.flatnonzero(~np.isnan(values))
    if period < 2 or seen.size == 0:
        return float("nan")
    values = values[seen[0] : seen[-1] + 1]
    seen = seen - seen[0]
    # STL smooths the trend by straight lines, so the remainder of values without spread is rounding error only.
    flat = np.ptp(values[seen]) <= 1e-12 * max(1.0, float(np.abs(values[seen]).max()))
    if len(values) < FEWEST_PERIODS * period or seen.size < (1.0 - MOST_GAPS) * len(values) or flat:
        return float("nan")
    from statsmodels.tsa.seasonal import STL

    bridged = np.interp(np.arange(len(values)), seen, values[seen])
    # A seasonal window longer than the series fixes the cycle; a shorter window would follow the noise. Smooth curves are
    # evaluated every tenth of a period and interpolated, which is ten times faster and changes the strength by less than 0.001.
    tenth = max(1, period // 10)
    parts = STL(
        bridged,
        period=period,
        seasonal=2 * (len(values) // period) * 10 + 1,
        seasonal_deg=0,
        seasonal_jump=10,
        trend_jump=tenth,
        low_pass_jump=tenth,
    ).fit()
    rest = np.asarray(parts.resid)[seen]
    both = np.asarray(parts.seasonal)[seen] + rest
    return float(max(0.0, 1.0 - rest.var() / both.var())) if both.var() > 0 else float("nan")


def information(values: np.ndarray, step: int = 1) -> tuple[float, float]:
    """Return the entropy of the value in bits, and the share explained by the value ``step`` slots earlier.

    The share is 1 - H(next | now) / H(next). Values are states, or `MOST_STATES` bins of equal frequency if there are more.
    Entropies are those of the frequencies with the correction of Miller and Madow for small samples, (states seen - 1) / 2n
    nats; without it large tables of rare states would look informative. The share is clipped to [0, 1], and NaN for fewer than
    `FEWEST_PAIRS` pairs or a single state.
    """
    states, now, after = np.zeros(0), values[:-step], values[step:]
    both = ~(np.isnan(now) | np.isnan(after))
    if both.sum() < FEWEST_PAIRS:
        return float("nan"), float("nan")
    states = _states(np.concatenate([now[both], after[both]]))
    now, after = np.split(states, 2)
    marginal = _entropy(after)
    if marginal <= 0:
        return 0.0, float("nan")
    conditional = _entropy(now * (int(states.max()) + 1) + after) - _entropy(now)
    return marginal, float(np.clip(1.0 - conditional / marginal, 0.0, 1.0))


def _states(values: np.ndarray) -> np.ndarray:
    """Map values to integers 0..k-1 in ascending order; ties share a state."""
    distinct, place = np.unique(values, return_inverse=True)
    if len(distinct) <= MOST_STATES:
        return np.asarray(place)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, MOST_STATES + 1)[1:-1]))
    return np.asarray(np.searchsorted(edges, values, side="right"))


def _entropy(states: np.ndarray) -> float:
    """Return the entropy in bits of integer frequencies, with the Miller-Madow correction."""
    _, counts = np.unique(states, return_counts=True)
    if len(counts) < 2:
        return 0.0
    share = counts / counts.sum()
    nats = -(share * np.log(share)).sum() + (len(counts) - 1) / (2.0 * counts.sum())
    return float(nats / np.log(2.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stillness:
    """Shares of observed slots at zero and at the cap, share of pairs without a change, and changes a day."""

    at_zero: float
    at_cap: float
    unchanged: float
    changes_per_day: float


def stillness(series: Series) -> Stillness:
    """Measure how often a series does not move, gaps apart; ``at_cap``: of the capacity, or the on-demand price."""
    values = series.values
    seen = ~np.isnan(values)
    if not seen.any():
        return Stillness(at_zero=np.nan, at_cap=np.nan, unchanged=np.nan, changes_per_day=np.nan)
    cap = series.upper if series.variable == "count" else np.full(len(series), series.on_demand_usd)
    change = np.diff(values)
    change = change[~np.isnan(change)]
    moved = float((change != 0).mean()) if change.size else float("nan")
    full = (values[seen] >= cap[seen] - 1e-9) if np.isfinite(cap[seen]).all() else np.array([np.nan])
    return Stillness(
        at_zero=float((values[seen] == 0).mean()),
        at_cap=float(full.mean()),
        unchanged=1.0 - moved,
        changes_per_day=moved * float(pd.Timedelta(days=1) / series.step),
    )


#: Columns of `predictability`.
PREDICTABILITY = (
    "variable", "market", "slots", "gap_share", "at_zero", "at_cap", "unchanged", "changes_per_day", "acf_1", "acf_2", "acf_day",
    "acf_week", "strength_daily", "strength_weekly", "told_1",
)  # fmt: skip


def predictability(series: Sequence[Series]) -> pd.DataFrame:
    """Return a row per series with `PREDICTABILITY`.

    ``market`` is ``market@source``; ``acf_day``, ``acf_week`` and the strengths (`seasonal_strength`) are measured with a real
    clock only; ``told_1`` is the share of the entropy explained by the value a slot earlier (`information`). NaN means undefined,
    as for the autocorrelation of a flat series, or not measured: strengths need the extra ``diagnosis``.
    """
    rows = [{"variable": own.variable, "market": own.key, **_measures(own)} for own in series]
    return pd.DataFrame(rows, columns=list(PREDICTABILITY))


def _measures(series: Series) -> dict[str, float]:
    values, day = series.values, series.slots_per_day
    still = stillness(series)
    cycles = {"day": day, "week": day * _WEEK_DAYS}
    strength = seasonal_strength if has_extra("diagnosis") else lambda values, period: np.nan
    correlations = autocorrelation(values, [1, 2, *(max(lag, 1) for lag in cycles.values())])
    if day < 2:
        correlations[2:] = np.nan
    return {
        "slots": len(series),
        "gap_share": 1.0 - series.observed.size / len(series) if len(series) else np.nan,
        "at_zero": still.at_zero,
        "at_cap": still.at_cap,
        "unchanged": still.unchanged,
        "changes_per_day": still.changes_per_day,
        **dict(zip(("acf_1", "acf_2", "acf_day", "acf_week"), map(float, correlations), strict=True)),
        "strength_daily": strength(values, cycles["day"]),
        "strength_weekly": strength(values, cycles["week"]),
        "told_1": information(values)[1],
    }


def holm(p_values: Iterable[float]) -> np.ndarray:
    """Return p-values adjusted for multiple tests (Holm, Scandinavian Journal of Statistics 6, 1979); NaN are ignored.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(list(p_values), dtype=float)
    out = np.full(p.shape, np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    steps = p[order] * (len(order) - np.arange(len(order)))
    out[order] = np.minimum(np.maximum.accumulate(steps), 1.0) if len(order) else steps
    return out


# ---
# Whether and how far ahead a market is predictable, from scores with a correction for multiple tests (M6.7).
#
# Paper A claims that spot price and availability can be predicted a few slots ahead. Here a step of a market is predictable by a
# model if its pinball loss is below last value's and the Diebold-Mariano test is significant after Holm's correction over the steps
# of that market; whether any of several models is better is tested with a correction over all their steps together. The corrections
# are valid for any dependence between the tests.

LEVEL = 0.05  # Level of the tests: share of markets wrongly classified as predictable
ANSWER_COLUMNS = ("variable", "market", "up_to", "steps", "answer")
_NEEDED_COLUMNS = ("variable", "market", "model", "step", "skill_pinball", "dm", "dm_p", "days")


def answers(scores: pd.DataFrame, *, models: Sequence[str], level: float = LEVEL) -> pd.DataFrame:
    """Return a row per variable and market on whether any of ``models`` predicts it, from
    `slackwater.forecasting.accuracy.tables.Accuracy.scores`.

    ``up_to``: the last of the steps 1, 2, ... that are predictable without a break (0: not even the first). ``steps``: the steps
    at which a model is significantly better than last value. ``answer``: "predictable up to step k", "predictable at step ...,
    not from the first", "not predictable", or "undecided: ..." where no test was possible (errors on too few days, as on a flat
    series). Raises `ForecastError` on a table without the columns, and for no model.
    """
    missing = [name for name in _NEEDED_COLUMNS if name not in scores.columns]
    if missing or not models:
        raise ForecastError(
            f"scores without {', '.join(missing) or 'models to ask about'}",
            expected=f"columns {', '.join(_NEEDED_COLUMNS)} and at least one model",
        )
    chosen_scores = scores[scores["model"].isin(models)].groupby(["variable", "market"], sort=True)
    rows = [
        {"variable": variable, "market": market, **_answer(own, level)}
        for (variable, market), own in chosen_scores
    ]
    return pd.DataFrame(rows, columns=list(ANSWER_COLUMNS))


def _answer(table: pd.DataFrame, level: float) -> dict[str, object]:
    adjusted = holm(table["dm_p"].where(table["days"] >= LEAST_BLOCKS).to_numpy(dtype=float))
    better = (adjusted < level) & (table["skill_pinball"] > 0).to_numpy() & (table["dm"] > 0).to_numpy()
    steps = tuple(sorted({int(k) for k in table["step"].to_numpy()[better]}))
    up_to = next((k for k in range(len(steps), 0, -1) if steps[:k] == tuple(range(1, k + 1))), 0)
    return {
        "up_to": up_to,
        "steps": steps,
        "answer": _words(up_to, steps, tested=not np.isnan(adjusted).all()),
    }


def _words(up_to: int, steps: tuple[int, ...], *, tested: bool) -> str:
    if not tested:
        return f"undecided: errors on fewer than {LEAST_BLOCKS} days"
    if up_to:
        more = [k for k in steps if k > up_to]
        return f"predictable up to step {up_to}" + (f" (and at {_list(more)})" if more else "")
    return f"predictable at step {_list(list(steps))}, not from the first" if steps else "not predictable"


def _list(steps: list[int]) -> str:
    return ", ".join(str(k) for k in steps)
