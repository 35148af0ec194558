"""Results of a backtest: sums of losses over blocks of forecasts, and the tables computed from them (M6.5)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from slackwater.forecasting.accuracy.intervals import SKILL_COLUMNS, skills_of
from slackwater.forecasting.accuracy.losses import (
    REPORTED,
    Scale,
    actual_after,
    brier,
    chances,
    conditional_frequencies,
    diebold_mariano,
    losses_of,
    scale_of,
    shares_below,
    transform_span,
)
from slackwater.forecasting.origins import Block, Rolling, Timetable
from slackwater.forecasting.predictor import Outlook, Panel
from slackwater.forecasting.predictors import FLOOR
from slackwater.forecasting.quantiles import LEVELS, MOST_COUNT
from slackwater.forecasting.series import Series
from slackwater.warehouse.errors import ForecastError

SUMS = ("n", *REPORTED)  # Quantities summed over origins, in this order
#: Losses stored for every origin, in this order: those compared with last value over the same origins.
PER_ORIGIN = ("pinball", "mae", "reference")
BINS = 10  # Bins of the probability of "at least n"
LARGE = 16  # Counts with at least this capacity form a class
#: Prices with fewer changes a day are in the class "still".
CHANGES_A_DAY = 1.0
_NUMBER = re.compile(r"\d+(\.\d+)?")
_DAY_US = 86_400_000_000
_CHUNK = 1024  # Maximal number of origins scored at once
_FEW_STATES = 128  # Counts with more states are scored in smaller batches


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredForecasts:
    """Stored forecasts to score: series in panels, their ascending origins (indices, those of any model), and the models."""

    panels: tuple[Panel, ...]
    origins: tuple[tuple[np.ndarray, ...], ...]
    models: tuple[str, ...]
    horizon: int
    timetable: Timetable


Tested = Rolling | StoredForecasts  # Forecasts to score: those of a backtest, or stored forecasts


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """Reference values for scoring a series, all known at its first origin.

    ``scale``: units of its errors. ``kind``: its class among `slackwater.forecasting.accuracy.tables.CLASSES`. ``start``:
    first slot of the
    look-back before the first origin. ``days`` number each origin's day from 0; ``first_day`` is the number of the first day
    since the epoch.
    """

    scale: Scale
    kind: str
    start: int
    days: np.ndarray
    first_day: int


def yardstick_of(series: Series, origins: np.ndarray, timetable: Timetable) -> Yardstick:
    """Compute the yardstick of a series with at least one origin."""
    first = series.first_slot + int(origins[0])
    start = int(timetable.of(series.variable).start(np.array([first]), series.step)[0])
    scale = scale_of(series, first, start)
    days = series.times(origins).asi8 // _DAY_US
    return Yardstick(
        scale=scale, kind=_class(series, scale), start=start, days=days - days[0], first_day=int(days[0])
    )


def _class(series: Series, scale: Scale) -> str:
    """Return the class: counts by the capacity their source states (offers on a marketplace have none), prices by movement."""
    if series.variable == "price":
        return "moving" if scale.changes_a_day >= CHANGES_A_DAY else "still"
    if not series.capacity_stated:
        return "offers"
    return "0/1" if scale.capacity <= 1 else "2-15" if scale.capacity < LARGE else "16 and more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Sums over the origins of a block, or of several blocks added up.

    ``places`` are the indices of its origins among the tested origins. ``sums`` has shape (h, len(SUMS)). ``days`` (days, 2):
    number of scored pairs and sum of pinball losses. ``losses`` (m, h, len(PER_ORIGIN)), NaN in gaps and where undefined. ``below``
    (20,), of prices: sums of `shares_below` and the number of scored pairs. ``bins`` (BINS, 3), of counts: number of events, sum
    of probabilities and number of hits. ``reasons`` counts fallback reasons.
    """

    model: str
    panel: int
    which: int
    places: np.ndarray
    sums: np.ndarray
    days: np.ndarray
    losses: np.ndarray
    below: np.ndarray
    bins: np.ndarray
    reasons: Counter[str]


def tally(block: Block, tested: Tested) -> Tally:
    """Score a block against the actual values; targets that are gaps or after the end of the series are not scored."""
    series, origins = tested.panels[block.panel].series[block.which], tested.origins[block.panel][block.which]
    stick, horizon = yardstick_of(series, origins, tested.timetable), tested.horizon
    out = Tally(
        model=block.model,
        panel=block.panel,
        which=block.which,
        places=np.searchsorted(origins, block.origins),
        sums=np.zeros((horizon, len(SUMS))),
        days=np.zeros((int(stick.days[-1]) + 1, 2)),
        losses=np.full((block.origins.size, horizon, len(PER_ORIGIN)), np.nan),
        below=np.zeros(LEVELS.size + 1),
        bins=np.zeros((BINS, 3)),
        reasons=Counter(_NUMBER.sub("#", why) for why in block.outlook.reasons if why),
    )
    frequencies = None
    if block.model == FLOOR and stick.scale.capacity:
        # Twice the horizon, because the newest value may be old.
        past = series.since(stick.start).as_of(series.first_slot + int(origins[0]))
        frequencies = conditional_frequencies(past.values, stick.scale.capacity, 2 * horizon)
    for first, piece in _pieces(block, series):
        _add(out, first, piece, series, stick, frequencies)
    return out


def _pieces(block: Block, series: Series) -> Iterator[tuple[int, Block]]:
    """Yield the block in parts of at most `_CHUNK` origins, smaller for counts with many states, each with its first index."""
    given = block.outlook
    states = min(int(series.upper.max(initial=0)), MOST_COUNT) if series.variable == "count" else 0
    size = max(1, _CHUNK * _FEW_STATES // max(states, _FEW_STATES))
    for first in range(0, block.origins.size, size):
        cut = slice(first, first + size)
        outlook = Outlook(quantiles=given.quantiles[cut], mean=given.mean[cut], reasons=given.reasons[cut])
        yield first, replace(block, origins=block.origins[cut], outlook=outlook)


#: Index in `SUMS` of the loss in `Tally.days`, and indices in `REPORTED` of the losses stored for every origin.
_DAILY = SUMS.index("pinball")
_PER_ORIGIN = [REPORTED.index(name) for name in PER_ORIGIN[:2]]


def _add(
    out: Tally, first: int, block: Block, series: Series, stick: Yardstick, frequencies: np.ndarray | None
) -> None:
    """Add a block, whose origins begin at index ``first`` of the tally's, to the sums, in place."""
    given, size = block.outlook, block.origins.size
    actual = actual_after(series, block.origins, given.mean.shape[1])
    counts = series.variable == "count"
    capacity = series.upper[block.origins].astype(int)
    losses = losses_of(
        given.quantiles,
        given.mean,
        np.array([why != "" for why in given.reasons]),
        actual,
        capacity if counts else None,
        REPORTED,
    )
    known = ~np.isnan(actual)
    table = np.concatenate([known[..., None].astype(float), np.nan_to_num(losses)], axis=-1)
    at = out.places[first : first + size]
    out.sums[...] += table.sum(axis=0)
    np.add.at(out.days, stick.days[at], table[..., [0, _DAILY]].sum(axis=1))
    own = out.losses[first : first + size]
    own[..., :2] = losses[..., _PER_ORIGIN]
    if frequencies is not None:
        own[..., 2] = brier(_frequencies_at(frequencies, series, block.origins, actual.shape[1]), actual)
    if not counts:
        shares = shares_below(transform_span(given.quantiles, actual), actual)
        out.below[...] += [*np.nansum(shares, axis=(0, 1)), known.sum()]
        return
    for most in np.unique(capacity[capacity > 0]):
        of_it = capacity == most
        _add_bins(out.bins, chances(given.quantiles[of_it], int(most)), actual[of_it])


def _frequencies_at(reference: np.ndarray, series: Series, origins: np.ndarray, horizon: int) -> np.ndarray:
    """Return last value's conditional frequency of "at least n" at each origin and step, shape (m, h, capacity).

    A newest value that is g slots old counts as k + g steps ahead, limited to the size of the table.
    """
    steps = series.age(origins)[:, None] + np.arange(1, horizon + 1)
    rows = np.minimum(steps, reference.shape[0]) - 1
    state = (series.last(origins)[:, None] >= np.arange(1, reference.shape[1] + 1)).astype(int)
    chosen = np.take_along_axis(reference[rows], state[:, None, :, None], axis=-1)
    return np.asarray(chosen[..., 0])


def _add_bins(bins: np.ndarray, chance: np.ndarray, actual: np.ndarray) -> None:
    """Add number, sum of probabilities and hits of "at least n" by bin of the probability, in place."""
    known = np.broadcast_to(~np.isnan(actual)[..., None], chance.shape)
    hit = (actual[..., None] >= np.arange(1, chance.shape[-1] + 1))[known]
    place = np.minimum((chance[known] * BINS).astype(int), BINS - 1)
    for column, weights in enumerate((None, chance[known], hit)):
        bins[:, column] += np.bincount(place, weights=weights, minlength=BINS)


# ---
# Tables of a backtest: scores by market and step, pooled over markets, reliability and calibration (M6.5).

QUANTILES = [f"q{round(100 * q):02d}" for q in LEVELS]  # Quantile columns of a table

#: Measures in every row of `Accuracy.scores` and `Accuracy.pooled`.
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
    *SKILL_COLUMNS[1:],
    "source",
    "scale",
    "capacity",
    "class",
)
POOLED_COLUMNS = (
    "variable", "model", "step", *MEASURES, *SKILL_COLUMNS[1:],
    "mean_skill_pinball", "median_skill_pinball", "worst_skill_pinball", "share_worse", "markets",
)  # fmt: skip
CLASS_COLUMNS = ("variable", "model", "class", *POOLED_COLUMNS[2:])
#: Classes of markets in display order: counts by stated capacity, prices by frequency of change.
CLASSES = {"count": ("0/1", "2-15", "16 and more", "offers"), "price": ("moving", "still")}
RELIABILITY_COLUMNS = ("variable", "model", "predicted", "observed", "n")
DAILY_COLUMNS = ("variable", "model", "market", "day", "n", "pinball")
SPAN_COLUMNS = ("source", "start", "end")
REASON_COLUMNS = ("variable", "model", "market", "reason", "n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Scores of a backtest and the tables of a report; `slackwater.flows.schemas.forms.MEASURES` describes the measures.

    ``scores`` (`SCORE_COLUMNS`): one row per variable, model, market and step; a skill is NaN where last value (`FLOOR`) never
    erred. Past data are those before the first origin: they set ``scale`` (the capacity for counts, the mean price for prices), the
    unit of ``mase``, the frequencies behind ``skill_brier`` and ``class`` (`CLASSES`: counts by their stated capacity, "offers"
    without it; a price is "moving" if it changed once a day or more). ``coverage_P`` is the mean share of the randomised
    probability integral transform within the central P % of levels (`slackwater.forecasting.accuracy.losses.coverage_probability`):
    P for a correct distribution, with or without point masses, which raise ``coverage_P_closed``.

    ``pooled`` (`POOLED_COLUMNS`): one row per variable, model and step over all markets: n-weighted means of errors, coverage,
    width and shares (where defined); skills are 1 - sum of scaled loss / sum of scaled floor loss, every origin's loss divided
    by its market's ``scale``. Then mean, median and worst of the markets' own pinball skills, the share of markets below 0, and
    the number of markets. The interval of a pooled skill has the days of all markets as blocks, since markets move together; it
    is NaN for rows that were not measured by day. ``classes`` (`CLASS_COLUMNS`): the same over the markets of each class.

    ``reliability`` (`RELIABILITY_COLUMNS`), over all markets and steps: of prices the share of actual values at or below the
    quantile of each level, ties as in the randomised probability integral transform; of counts the forecast probability of "at
    least n" in ten bins, its mean in the bin and the observed frequency. ``daily`` (`DAILY_COLUMNS`): mean loss over steps of the
    forecasts issued on each UTC day. ``spans`` (`SPAN_COLUMNS`): first and last origin of each series.

    ``notes`` are sentences that explain omissions.
    ``models`` are in the requested order, ``default`` is the name of the default model. ``reasons`` (`REASON_COLUMNS`) counts
    the forecasts of a fallback model by reason, with numbers replaced by "#".
    """

    scores: pd.DataFrame
    pooled: pd.DataFrame
    spans: pd.DataFrame
    reliability: pd.DataFrame
    daily: pd.DataFrame
    models: tuple[str, ...]
    default: str
    step: pd.Timedelta
    notes: tuple[str, ...] = ()
    reasons: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(REASON_COLUMNS)))
    classes: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(CLASS_COLUMNS)))


# ---
# Scores and reliability pooled over markets.

#: Columns of a future table by name: arrays of equal length, or a single value for all rows; times as NumPy values, in UTC.
Columns = dict[str, Any]

#: Averaged over markets with their numbers of origins as weights, each over the markets where it is defined.
WEIGHTED = tuple(name for name in MEASURES if name != "n" and not name.startswith("skill"))
_ROW = ["variable", "model", "step"]
#: A mean loss of last value below this share of a market's scale counts as zero: prices are sums of floats.
NO_ERROR = 1e-9


#: Mean losses of a model and of last value over the origins that both forecast, and the number of these origins.
COMMON = ("pinball_common", "mae_common", "n_common", "pinball_floor", "mae_floor")


def pooled_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """Compute `POOLED_COLUMNS` from scores by market, variable, model and step, of a turn, a warehouse or the report.

    A skill is 1 - sum of scaled loss / sum of scaled floor loss, where a loss summed over origins is divided by its market's
    ``scale``: the capacity for counts (the largest observed count if none is stated), the mean price before the first origin for
    prices. A market of 16 instances therefore counts as much as a market of 1, and an expensive market as much as a cheap market.
    Brier scores have no unit; they are compared with ``reference``, the score of last value's conditional frequencies. Rows without
    `COMMON` must all be measured over the same origins.
    """
    if scores.empty:
        return pd.DataFrame(columns=list(POOLED_COLUMNS))
    return pooled_by(scores, _ROW).reindex(columns=list(POOLED_COLUMNS))


def name_by_source(scores: pd.DataFrame) -> pd.DataFrame:
    """Rename markets to ``market@source`` if the rows have a source, so that a market measured in two sources counts as two."""
    if "source" not in scores:
        return scores
    alone = ~scores["market"].astype(str).str.contains("@", regex=False)
    named = scores["market"].astype(str) + "@" + scores["source"].astype(str)
    return scores.assign(market=scores["market"].where(~alone, named))


def shared_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of markets, variables and steps at which every model of the variable was measured, which are comparable."""
    models = scores.groupby("variable")["model"].transform("nunique")
    there = scores[scores["n"] > 0].groupby(["variable", "market", "step"])["model"].transform("nunique")
    return scores[there.reindex(scores.index).eq(models)]


def class_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """Compute `CLASS_COLUMNS`: as `pooled_scores` over the markets of each class, in the order of `CLASSES`."""
    if scores.empty:
        return pd.DataFrame(columns=list(CLASS_COLUMNS))
    rank = {name: place for names in CLASSES.values() for place, name in enumerate(names)}
    models = {name: place for place, name in enumerate(scores["model"].unique())}
    result = pooled_by(scores, ["variable", "model", "class", "step"])
    order = result.assign(m=result["model"].map(models), c=result["class"].map(rank))
    order = order.sort_values(["variable", "m", "c", "step"], kind="stable")
    return result.loc[order.index].reindex(columns=list(CLASS_COLUMNS)).reset_index(drop=True)


def pooled_by(scores: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Pool the rows for every value of ``keys``, with all other columns of `POOLED_COLUMNS`."""
    table = with_common(scores)
    weight = table["n"].astype(float)
    means, counted = table[list(WEIGHTED)], [f"{name}|n" for name in WEIGHTED]
    sums: dict[str, pd.Series] = {"n": weight}
    sums |= {str(name): column for name, column in means.mul(weight, axis=0).items()}
    sums |= {
        name: weight.where(column) for name, (_, column) in zip(counted, means.notna().items(), strict=True)
    }
    for loss in ("pinball", "mae"):
        for kind in ("common", "floor"):
            sums[f"{loss}_{kind}"] = table[f"{loss}_{kind}"] * table["n_common"] / table["scale"]
    both = weight.where(table["brier"].notna() & table["reference"].notna())
    sums["brier_sum"], sums["reference_sum"] = table["brier"] * both, table["reference"] * both
    added = pd.DataFrame(sums).groupby([table[key] for key in keys], sort=False).sum(min_count=1)
    shares = added[list(WEIGHTED)].to_numpy() / added[counted].to_numpy()
    out = pd.DataFrame(shares, index=added.index, columns=list(WEIGHTED))
    out["n"] = added["n"].astype(int)
    out["skill_pinball"] = skill(added["pinball_common"], added["pinball_floor"], added["n"])
    out["skill_mae"] = skill(added["mae_common"], added["mae_floor"], added["n"])
    out["skill_brier"] = skill(added["brier_sum"], added["reference_sum"], added["n"])
    groups = table.assign(worse=table["skill_pinball"] < 0).groupby(keys, sort=False)
    skills = groups["skill_pinball"]
    out["mean_skill_pinball"], out["median_skill_pinball"] = skills.mean(), skills.median()
    out["worst_skill_pinball"] = skills.min()
    out["share_worse"] = groups["worse"].sum() / skills.count()
    out["markets"] = groups["market"].nunique()
    return out.reset_index()


def pooled_mean(scores: pd.DataFrame, keys: list[str], name: str) -> pd.Series:
    """Return the mean of a column by ``keys``, weighted with the number of forecasts, as in `pooled_by`."""
    weight = scores["n"].astype(float)
    value = scores[name].astype(float)
    sums = pd.DataFrame({"sum": value * weight, "n": weight.where(value.notna())})
    added = sums.groupby([scores[key] for key in keys], sort=False).sum(min_count=1)
    return (added["sum"] / added["n"]).rename(name)


def with_common(scores: pd.DataFrame) -> pd.DataFrame:
    """Add all columns needed for pooling, including `COMMON`; missing columns were not measured."""
    table = scores.reindex(
        columns=list(dict.fromkeys([*scores.columns, *WEIGHTED, "skill_pinball", "reference", "scale"]))
    )
    table = table.astype(dict.fromkeys([*WEIGHTED, "skill_pinball", "reference", "scale"], float))
    if table["scale"].isna().all():  # measured before scales were stored: all markets have weight 1
        table = table.assign(scale=1.0)
    if set(COMMON) <= set(scores.columns):
        return table
    keys = ["variable", "market", "step"]
    floor = scores[scores["model"] == FLOOR].set_index(keys)[["pinball", "mae"]].astype(float)
    table = table.join(floor.add_suffix("_floor"), on=keys)
    return table.assign(
        pinball_common=table["pinball"], mae_common=table["mae"], n_common=table["n"].astype(float)
    )


def scaled_losses(table: pd.DataFrame) -> pd.DataFrame:
    """Add ``loss`` and last value's ``floor`` to rows of `with_common`: sums of pinball loss in units of the market's scale."""
    weight = table["n_common"].astype(float) / table["scale"].astype(float)
    loss, floor = (table[name].astype(float) * weight for name in ("pinball_common", "pinball_floor"))
    both = loss.notna() & floor.notna()
    return table.assign(loss=loss.where(both, 0.0), floor=floor.where(both, 0.0))


def reliability_of(below: dict[str, np.ndarray], bins: dict[str, np.ndarray]) -> pd.DataFrame:
    """Compute `RELIABILITY_COLUMNS` from the sums `Tally.below` and `Tally.bins` of all series, by model."""
    parts: list[Columns] = []
    for model, sums in sorted(bins.items()):
        n, chance, hits = sums[sums[:, 0] > 0].T
        parts.append(
            {"variable": "count", "model": model, "predicted": chance / n, "observed": hits / n, "n": n}
        )
    for model, (*shares, number) in sorted(below.items()):
        if number:
            observed = np.array(shares) / number
            parts.append(
                {"variable": "price", "model": model, "predicted": LEVELS, "observed": observed, "n": number}
            )
    tables = [pd.DataFrame(part) for part in parts]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(RELIABILITY_COLUMNS))


# ---
# From tallies to the tables of `Accuracy`: panel by panel, so that only one panel's losses are in memory (M6.5).

_AT = {name: i for i, name in enumerate(SUMS)}


@dataclass(slots=True, kw_only=True)
class _Sums:
    """Running sums of a model on a series."""

    sums: np.ndarray
    days: np.ndarray
    losses: np.ndarray
    reasons: Counter[str] = field(default_factory=Counter)


def accuracy_of(
    tested: Tested, tallies: Iterable[Tally], *, default: str, notes: Sequence[str] = ()
) -> Accuracy:
    """Build the tables of a backtest, or of issued forecasts, from the tallies of all blocks, ordered by panel.

    A model is compared with the floor over the origins that both forecast. Raises `ForecastError` without the model `FLOOR`.
    """
    if FLOOR not in tested.models:
        raise ForecastError(f"models {', '.join(tested.models)}", expected=f"{FLOOR} among them")
    tables = _Tables(tested=tested)
    held: dict[tuple[str, int], _Sums] = {}
    panel = None
    for tally in tallies:
        if panel is not None and tally.panel != panel:
            tables.finish(panel, held)
            held = {}
        panel = tally.panel
        _merge(held, tally, tested)
        tables.pool(tally)
    if panel is not None:
        tables.finish(panel, held)
    return tables.accuracy(default, tuple(notes))


def _merge(held: dict[tuple[str, int], _Sums], tally: Tally, tested: Tested) -> None:
    origins = tested.origins[tally.panel][tally.which]
    key = (tally.model, tally.which)
    if key not in held:
        losses = np.full((origins.size, *tally.losses.shape[1:]), np.nan)
        held[key] = _Sums(sums=np.zeros_like(tally.sums), days=np.zeros_like(tally.days), losses=losses)
    total = held[key]
    total.sums += tally.sums
    total.days += tally.days
    total.losses[tally.places] = tally.losses
    total.reasons += tally.reasons


def paired_sums(model: np.ndarray, floor: np.ndarray, days: np.ndarray) -> np.ndarray:
    """Sum losses by day over the origins that a model and the floor both forecast, shape (days, h, 6).

    ``model`` and ``floor`` are the losses `PER_ORIGIN`, shape (origins, h, len(PER_ORIGIN)); ``days`` is the day of
    each origin. The last axis of the result has the model's losses, with the number of origins in place of
    "reference", then the floor's.
    """
    both = ~(np.isnan(model[..., 0]) | np.isnan(floor[..., 0]))
    losses = np.concatenate([model[..., :2], both[..., None], floor], axis=-1)
    losses = np.where(both[..., None], np.nan_to_num(losses), 0.0)
    out = np.zeros((int(days[-1]) + 1, *losses.shape[1:]))
    np.add.at(out, days, losses)
    return out


def measures_of(
    sums: np.ndarray, paired: np.ndarray, stick: Yardstick, *, counts: bool
) -> dict[str, np.ndarray]:
    """Compute `MEASURES` from sums (..., len(SUMS)) and those of `compared` (..., 6); NaN where undefined."""
    n = sums[..., _AT["n"]]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = {name: np.where(n > 0, sums[..., i] / n, np.nan) for name, i in _AT.items()}
        own_pinball, own_mae, _, pinball, mae, reference = (
            paired[..., i] / np.where(paired[..., 2] > 0, paired[..., 2], np.nan) for i in range(6)
        )
        unit = stick.scale.unit if np.isfinite(stick.scale.unit) else 1.0
        out = {
            **mean,
            "n": n,
            "rmse": np.sqrt(mean["mse"]),
            "mase": mean["mae"] / stick.scale.change,
            "skill_pinball": skill(own_pinball, pinball, unit),
            "skill_mae": skill(own_mae, mae, unit),
            "skill_brier": skill(mean["brier"], reference),
            "reference": reference,
            **dict(zip(COMMON, (own_pinball, own_mae, paired[..., 2], pinball, mae), strict=True)),
        }
    undefined = [] if counts else ["absent", "unpredicted", "cover"]
    undefined += [] if stick.scale.capacity else ["brier", "skill_brier", "reference"]
    for name in undefined:
        out[name] = np.full(n.shape, np.nan)
    return out


def skill(loss: ArrayLike, floor: ArrayLike, scale: ArrayLike = 1.0) -> np.ndarray:
    """Return 1 - loss / floor, NaN where the floor's loss is not above `NO_ERROR` of ``scale``."""
    loss, floor, scale = np.asarray(loss), np.asarray(floor), np.asarray(scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(floor > NO_ERROR * scale, 1.0 - loss / floor, np.nan)


@dataclass(slots=True, kw_only=True)
class _Tables:
    """Tables under construction: lists of columns of equal length, an entry per model and series."""

    tested: Tested
    scores: list[Columns] = field(default_factory=list)
    spans: list[dict[str, Any]] = field(default_factory=list)
    daily: list[Columns] = field(default_factory=list)
    reasons: list[Columns] = field(default_factory=list)
    below: dict[str, np.ndarray] = field(default_factory=dict)
    bins: dict[str, np.ndarray] = field(default_factory=dict)
    by_day: dict[tuple[str, str, str], dict[int, np.ndarray]] = field(default_factory=dict)

    def pool(self, tally: Tally) -> None:
        """Add a tally to the sums pooled over markets: shares below each quantile, or probabilities of "at least n"."""
        counts = self.tested.panels[tally.panel].variable == "count"
        sums, own = (self.bins, tally.bins) if counts else (self.below, tally.below)
        sums[tally.model] = sums.get(tally.model, 0.0) + own

    def finish(self, panel: int, held: dict[tuple[str, int], _Sums]) -> None:
        """Add the rows of a panel whose tallies are complete."""
        for which, (series, origins) in enumerate(
            zip(self.tested.panels[panel].series, self.tested.origins[panel], strict=True)
        ):
            if origins.size == 0:
                continue
            stick = yardstick_of(series, origins, self.tested.timetable)
            floor = held.get((FLOOR, which))
            first, last = (series.time(int(place)) for place in origins[[0, -1]])
            self.spans.append({"source": series.source, "start": first, "end": last})
            for model in self.tested.models:
                sums = held.get((model, which))
                if sums is not None:
                    base = np.full_like(sums.losses, np.nan) if floor is None else floor.losses
                    self._add(model, series, stick, sums, base)

    def _add(self, model: str, series: Series, stick: Yardstick, sums: _Sums, floor: np.ndarray) -> None:
        name = {"variable": series.variable, "model": model, "market": series.key, "source": series.source}
        counts, steps = series.variable == "count", np.arange(1, self.tested.horizon + 1)
        tests = [_diebold_mariano(sums.losses, floor, int(step)) for step in steps]
        by_day = paired_sums(sums.losses, floor, stick.days)
        skills = _skills(model, by_day[..., [0, 3]])
        self._add_days((series.variable, model, stick.kind), stick, by_day[..., [0, 3]])
        measured = measures_of(sums.sums, by_day.sum(axis=0), stick, counts=counts)
        self.scores.append(
            {
                **name, "step": steps, **measured,
                "dm": np.array([statistic for statistic, _ in tests]), "dm_p": np.array([p for _, p in tests]),
                **skills, "scale": stick.scale.unit, "capacity": stick.scale.capacity, "class": stick.kind,
            }
        )  # fmt: skip
        self.daily.append(_daily_rows(name, stick, sums.days))
        why = sorted(sums.reasons.items())
        words, numbers = (
            np.array([word for word, _ in why], dtype=object),
            np.array([n for _, n in why], dtype=int),
        )
        self.reasons.append({**name, "reason": words, "n": numbers})

    def _add_days(self, key: tuple[str, str, str], stick: Yardstick, losses: np.ndarray) -> None:
        """Add the losses of a model and of the floor, (days, h, 2), to those of all markets on the same days."""
        if not stick.scale.unit > 0:
            return
        own = self.by_day.setdefault(key, {})
        for day, table in enumerate(losses / stick.scale.unit, start=stick.first_day):
            own[day] = own[day] + table if day in own else table

    def _with_skills(self, pooled: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
        """Return the pooled rows with the intervals of their skills by days."""
        groups: dict[tuple[str, ...], dict[int, np.ndarray]] = {}
        for names, days in self.by_day.items():
            own = groups.setdefault(tuple(names[_PLACES[key]] for key in keys), {})
            for day, table in days.items():
                own[day] = own[day] + table if day in own else table
        parts = [
            pd.DataFrame(_skills(key[_PLACES["model"]], np.stack(list(days.values()))))
            .assign(**dict(zip(keys, key, strict=True)))
            .assign(step=np.arange(1, self.tested.horizon + 1))
            for key, days in groups.items()
            if days
        ]
        if not parts:
            return pooled
        index = [*keys, "step"]
        found = pd.concat(parts).set_index(index)
        return pooled.drop(columns=list(found.columns)).join(found, on=index)[list(pooled.columns)]

    def accuracy(self, default: str, notes: tuple[str, ...]) -> Accuracy:
        """Return all tables in their final form."""
        models = tuple(self.tested.models)
        scores = _joined_rows(self.scores, (*SCORE_COLUMNS, "reference", *COMMON), models)
        scores = scores[scores["n"] > 0].reset_index(drop=True)
        return Accuracy(
            scores=scores[list(SCORE_COLUMNS)],
            pooled=self._with_skills(pooled_scores(scores), ("variable", "model")),
            classes=self._with_skills(class_scores(scores), ("variable", "model", "class")),
            spans=pd.DataFrame(self.spans, columns=list(SPAN_COLUMNS)),
            reliability=reliability_of(self.below, self.bins),
            daily=_joined_rows(self.daily, DAILY_COLUMNS, models),
            models=models,
            default=default,
            step=self.tested.panels[0].series[0].step,
            notes=notes,
            reasons=_joined_rows(self.reasons, REASON_COLUMNS, models),
        )


_PLACES = {"variable": 0, "model": 1, "class": 2}  # Indices of the names in the keys of `_Tables.by_day`


def _skills(model: str, losses: np.ndarray) -> dict[str, np.ndarray]:
    """Return `SKILL_COLUMNS` without the skill from losses (blocks, h, 2) of a model and the floor; empty for the floor itself."""
    own = skills_of(losses[..., 0], losses[..., 1]).columns()
    if model == FLOOR:
        nothing = np.full(losses.shape[1], np.nan)
        own |= {
            "skill_low": nothing,
            "skill_high": nothing,
            "verdict": np.full(nothing.size, "", dtype=object),
        }
    return {name: own[name] for name in SKILL_COLUMNS[1:]}


def _diebold_mariano(losses_of_model: np.ndarray, floor: np.ndarray, step: int) -> tuple[float, float]:
    losses, base = losses_of_model[:, step - 1, 0], floor[:, step - 1, 0]
    known = ~(np.isnan(losses) | np.isnan(base))
    return diebold_mariano(losses[known], base[known], step)


def _daily_rows(name: dict[str, str], stick: Yardstick, days: np.ndarray) -> Columns:
    seen = np.flatnonzero(days[:, 0] > 0)
    n = days[seen, 0]
    return {
        **name,
        "day": (stick.first_day + seen).astype("datetime64[D]").astype("datetime64[us]"),
        "n": n.astype(int),
        "pinball": days[seen, 1] / n,
    }


def _joined_rows(parts: Sequence[Columns], columns: Sequence[str], models: Sequence[str]) -> pd.DataFrame:
    """Return all rows by variable, then model in the requested order, then in the order of ``parts``."""
    if not parts:
        return pd.DataFrame(columns=list(columns))
    size = [next(len(value) for value in part.values() if isinstance(value, np.ndarray)) for part in parts]
    rank = np.array(
        [(part["variable"] == "price") * len(models) + models.index(part["model"]) for part in parts]
    )
    order = np.argsort(np.repeat(rank, size), kind="stable")
    table = {name: _column([part[name] for part in parts], size)[order] for name in columns}
    result = pd.DataFrame(
        {
            name: pd.DatetimeIndex(values, tz="UTC") if values.dtype.kind == "M" else values
            for name, values in table.items()
        }
    )
    return result.astype({"n": int}) if "n" in table else result


def _column(values: Sequence[Any], size: Sequence[int]) -> np.ndarray:
    """Join a column of all parts; a value for all rows of a part is repeated."""
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    return np.repeat(np.array(values, dtype=object if isinstance(values[0], str) else None), size)
