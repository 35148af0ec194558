"""How predictable a series is, and whether it swings from probe to probe: told before any model is fitted (M6.7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from forecasting.accuracy.intervals import LEAST_BLOCKS
from forecasting.series import Series
from warehouse.errors import ForecastError

# ---
# How predictable a series is, told before any model is fitted: persistence, cycles, stillness, information (M6.7).
#
# Everything here reads only the values it is given, skips gaps pair by pair, and is NaN where it is not defined: a flat
# series has no autocorrelation, a series without a real clock no day.

#: Fewer pairs of observed slots than this tell no correlation and no entropy (ours).
FEWEST_PAIRS = 24
#: A cycle is measured on at least this many whole periods, with at most this share of gaps (ours).
FEWEST_PERIODS, MOST_GAPS = 3, 0.25
#: Prices with more distinct values than this are cut into as many bins of equal frequency before entropies are taken.
MOST_STATES = 16
_WEEK_DAYS = 7


def autocorrelation(values: np.ndarray, lags: Sequence[int]) -> np.ndarray:
    """Autocorrelation of ``values`` (slots,), NaN in gaps, at each of ``lags`` >= 1, shape (lags,).

    The products of pairs of which both are observed, about the common mean, over the variance (the biased estimate corrected for
    the number of pairs). NaN with fewer than `FEWEST_PAIRS` pairs and for a flat series.
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
    """F_s = max(0, 1 - Var(R) / Var(S + R)) of an STL decomposition with a fixed cycle of ``period`` slots.

    R is the remainder and S the seasonal part (Wang, Smith and Hyndman, Data Mining and Knowledge Discovery 13, 2006). Gaps are
    bridged by straight lines for the decomposition and left out of the variances. n periods of noise have a strength
    near 1/n: small values mean nothing. NaN for less than `FEWEST_PERIODS` periods, more than `MOST_GAPS` gaps, a flat series.
    """
    seen = np.flatnonzero(~np.isnan(values))
    if period < 2 or seen.size == 0:
        return float("nan")
    values = values[seen[0] : seen[-1] + 1]
    seen = seen - seen[0]
    # STL smooths the trend by straight lines, so values without any spread leave rounding errors alone.
    flat = np.ptp(values[seen]) <= 1e-12 * max(1.0, float(np.abs(values[seen]).max()))
    if len(values) < FEWEST_PERIODS * period or seen.size < (1.0 - MOST_GAPS) * len(values) or flat:
        return float("nan")
    from statsmodels.tsa.seasonal import STL

    bridged = np.interp(np.arange(len(values)), seen, values[seen])
    # A window of seasons longer than the series makes the cycle a fixed one: less would follow the noise. Smooth curves are
    # told every tenth of a period and joined, which is ten times faster and moves the strength by less than 0.001.
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
    """Entropy of the value in bits, and the share of it that the value ``step`` slots before tells: 1 - H(next | now) / H(next).

    Values are states as they are, or `MOST_STATES` bins of equal frequency where there are more. Entropies are those of the
    frequencies with the correction of Miller and Madow for small samples, (states seen - 1) / 2n nats; without it long tables of
    rare states would look informative. The share is cut to [0, 1], and NaN for fewer than `FEWEST_PAIRS` pairs or one state.
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
    """Whole numbers 0..k-1 that stand for the values, in their order; ties share a state."""
    distinct, place = np.unique(values, return_inverse=True)
    if len(distinct) <= MOST_STATES:
        return np.asarray(place)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, MOST_STATES + 1)[1:-1]))
    return np.asarray(np.searchsorted(edges, values, side="right"))


def _entropy(states: np.ndarray) -> float:
    """Entropy in bits of the frequencies of whole numbers, corrected by Miller and Madow."""
    _, counts = np.unique(states, return_counts=True)
    if len(counts) < 2:
        return 0.0
    share = counts / counts.sum()
    nats = -(share * np.log(share)).sum() + (len(counts) - 1) / (2.0 * counts.sum())
    return float(nats / np.log(2.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stillness:
    """Shares of observed slots at zero and at the bound known then, of pairs that did not change, and changes a day."""

    at_zero: float
    at_cap: float
    unchanged: float
    changes_per_day: float


def stillness(series: Series) -> Stillness:
    """How much of its time a series does not move; gaps make no pair. ``at_cap`` is of the capacity, or of on-demand's price."""
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


def predictability(series: Sequence[Series], *, horizon: int = 12) -> pd.DataFrame:
    """Two rows a series, ``part`` "train" (the first half of its slots) and "whole": what its past says of its future.

    Columns: variable, market (``market@source``), part, slots, gap_share, mean, deviation; at_zero, at_cap, unchanged,
    changes_per_day; acf_1..acf_<horizon>, acf_day and acf_week (real clock only); strength_daily and strength_weekly
    (`seasonal_strength`); entropy_bits, told_1 and told_<horizon> (`information`: how much the present tells of the value so
    many slots ahead); error_1..error_<horizon>, the mean error of last value by step. NaN is "not defined", as for
    autocorrelation of a flat series.
    """
    rows = [
        {"variable": one.variable, "market": one.key, "part": part, **_measures(cut, horizon)}
        for one in series
        for part, cut in (("train", one.part(0, len(one) // 2)), ("whole", one))
    ]
    return pd.DataFrame(rows, columns=predictability_columns(horizon))


def predictability_columns(horizon: int) -> list[str]:
    """The columns of `predictability`, in order."""
    steps = range(1, horizon + 1)
    return list(
        dict.fromkeys(
            [
                *("variable", "market", "part", "slots", "gap_share", "mean", "deviation"),
                *("at_zero", "at_cap", "unchanged", "changes_per_day"),
                *(f"acf_{k}" for k in steps),
                *("acf_day", "acf_week", "strength_daily", "strength_weekly", "entropy_bits"),
                *("told_1", f"told_{horizon}"),
                *(f"error_{k}" for k in steps),
            ]
        )
    )


def _measures(series: Series, horizon: int) -> dict[str, float]:
    values, day = series.values, series.slots_per_day
    seen = series.observed
    still = stillness(series)
    steps = range(1, horizon + 1)
    bits, told = information(values)
    cycles = {"day": day, "week": day * _WEEK_DAYS}
    correlations = autocorrelation(values, [*steps, *(max(lag, 1) for lag in cycles.values())])
    if day < 2:
        correlations[horizon:] = np.nan
    return {
        "slots": len(series),
        "gap_share": 1.0 - seen.size / len(series) if len(series) else np.nan,
        "mean": float(seen.mean()) if seen.size else np.nan,
        "deviation": float(seen.std()) if seen.size else np.nan,
        "at_zero": still.at_zero,
        "at_cap": still.at_cap,
        "unchanged": still.unchanged,
        "changes_per_day": still.changes_per_day,
        **{f"acf_{k}": float(correlations[k - 1]) for k in steps},
        "acf_day": float(correlations[horizon]),
        "acf_week": float(correlations[horizon + 1]),
        "strength_daily": seasonal_strength(values, cycles["day"]),
        "strength_weekly": seasonal_strength(values, cycles["week"]),
        "entropy_bits": bits,
        "told_1": told,
        f"told_{horizon}": information(values, horizon)[1],
        **{f"error_{k}": mean_change(values, k) for k in steps},
    }


def mean_change(values: np.ndarray, lag: int) -> float:
    """Mean |y(t + lag) - y(t)| over pairs of observed slots, the error of last value ``lag`` slots ahead; NaN without a pair."""
    change = np.abs(values[lag:] - values[: max(len(values) - lag, 0)])
    change = change[~np.isnan(change)]
    return float(change.mean()) if change.size else float("nan")


def holm(p_values: Iterable[float]) -> np.ndarray:
    """p-values adjusted for testing all of them (Holm, Scandinavian Journal of Statistics 6, 1979); NaN stays and is not counted.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(list(p_values), dtype=float)
    out = np.full(p.shape, np.nan)
    asked = np.flatnonzero(~np.isnan(p))
    order = asked[np.argsort(p[asked], kind="stable")]
    steps = p[order] * (len(order) - np.arange(len(order)))
    out[order] = np.minimum(np.maximum.accumulate(steps), 1.0) if len(order) else steps
    return out


# ---
# Is this market predictable, and how far ahead? The scores' answer, with the many tests counted (M6.7).
#
# Paper A claims that spot price and availability can be predicted a few slots ahead. Here a step of a market counts as
# predictable by a model if its pinball loss is below last value's and Diebold and Mariano's test says so after Holm's correction
# over the steps of that market; "any" asks whether any of the models is, and corrects over all their steps together. The
# corrections hold whatever the tests share.

#: Share of wrong "predictable" among markets that are not.
LEVEL = 0.05
#: The name of the row that asks all models together.
ANY = "any"
ANSWER_COLUMNS = (
    "variable", "market", "model", "up_to", "steps", "worse_steps", "skill_1", "best_skill", "best_step", "answer",
)  # fmt: skip
_NEEDED = ("variable", "market", "model", "step", "skill_pinball", "dm", "dm_p", "days")


def answers(scores: pd.DataFrame, *, models: Sequence[str], level: float = LEVEL) -> pd.DataFrame:
    """One row per variable, market and model, and one for `ANY` of them, from the table
    `forecasting.accuracy.tables.Accuracy.scores`.

    ``up_to``: the last of the steps 1, 2, ... that are predictable without a break (0: not even the first). ``steps`` and
    ``worse_steps``: tuples of steps at which the model is significantly better, and worse, than last value (``worse_steps`` of
    `ANY`: those at which every model is). ``skill_1``, ``best_skill`` and ``best_step``: its pinball skill at one step, the
    largest of all, and where (of the best model for `ANY`). ``answer``: "predictable up to step k", "predictable at step ...,
    not from the first", "not predictable", or "undecided: ..." where no test was possible (errors on too few
    days, as on a flat series).
    Raises `ForecastError` on a table without the columns, and for no model.
    """
    missing = [name for name in _NEEDED if name not in scores.columns]
    if missing or not models:
        raise ForecastError(
            f"scores without {', '.join(missing) or 'models to ask about'}",
            expected=f"columns {', '.join(_NEEDED)} and at least one model",
        )
    asked = scores[scores["model"].isin(models)]
    rows = []
    for (variable, market), table in asked.groupby(["variable", "market"], sort=True):
        each = [table[table["model"] == model].sort_values("step") for model in models]
        named = [(model, own) for model, own in zip(models, each, strict=True) if len(own)]
        rows += [
            {"variable": variable, "market": market, **_answer(model, own, level)} for model, own in named
        ]
        rows.append({"variable": variable, "market": market, **_answer(ANY, table, level)})
    return pd.DataFrame(rows, columns=list(ANSWER_COLUMNS))


def _answer(model: str, table: pd.DataFrame, level: float) -> dict[str, object]:
    adjusted = holm(table["dm_p"].where(table["days"] >= LEAST_BLOCKS).to_numpy(dtype=float))
    skill = table["skill_pinball"].to_numpy(dtype=float)
    statistic = table["dm"].to_numpy(dtype=float)
    step = table["step"].to_numpy(dtype=int)
    better = (adjusted < level) & (skill > 0) & (statistic > 0)
    worse = (adjusted < level) & (skill < 0) & (statistic < 0)
    steps = tuple(sorted({int(k) for k in step[better]}))
    # All models together do worse at a step only if each of them does.
    behind = tuple(int(k) for k in np.unique(step) if worse[step == k].all())
    up_to = next((k for k in range(len(steps), 0, -1) if steps[:k] == tuple(range(1, k + 1))), 0)
    known = np.flatnonzero(~np.isnan(skill))
    best = int(known[np.argmax(skill[known])]) if known.size else -1
    first = skill[step == 1]
    first = first[~np.isnan(first)]
    return {
        "model": model,
        "up_to": up_to,
        "steps": steps,
        "worse_steps": behind,
        "skill_1": float(first.max()) if first.size else float("nan"),
        "best_skill": float(skill[best]) if best >= 0 else float("nan"),
        "best_step": int(step[best]) if best >= 0 else 0,
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


def answer_sentences(found: pd.DataFrame) -> list[str]:
    """Per variable in words: how many markets are predictable at all and how far, by any model and by each one."""
    lines = []
    for variable, table in found.groupby("variable", sort=True):
        whole = table[table["model"] == ANY]
        decided = whole[~whole["answer"].str.startswith("undecided")]
        ahead = decided.loc[decided["up_to"] > 0, "up_to"]
        text = f"{variable}: {len(ahead)} of {len(decided)} markets are predictable from the first step on"
        if len(ahead):
            text += f", in the median up to step {ahead.median():g}"
        never = int((decided["steps"].map(len) == 0).sum())
        text += f"; {never} at no step (Holm over models and steps of a market, level {LEVEL:g})"
        if len(whole) > len(decided):
            text += f"; {len(whole) - len(decided)} undecided, as last value never erred enough to compare"
        each = [
            f"{model} {int((own['up_to'] > 0).sum())}"
            for model, own in table[table["model"] != ANY].groupby("model", sort=False)
        ]
        lines.append(f"{text}. By model: {', '.join(each)}.")
    return lines


# ---
# Probes that alternate: why a value one slot ahead can be harder to tell than one two slots ahead (M6.7).
#
# Some counts swing from probe to probe, high, low, high. A slot of an odd number of probes then ends on the other side of the
# swing, two slots on the same side, and last value errs more at one slot than at two. Slots hide this; the probes show it.

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
