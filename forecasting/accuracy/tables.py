"""From tallies to the tables of `Accuracy`: one panel after the other, so that only one panel's losses are held (M6.5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from forecasting.accuracy.columns import (
    DAILY_COLUMNS,
    FAN_COLUMNS,
    MEASURES,
    PERIOD_COLUMNS,
    QUANTILES,
    REASON_COLUMNS,
    SCORE_COLUMNS,
    Accuracy,
)
from forecasting.accuracy.losses import actual_after
from forecasting.accuracy.measures import diebold_mariano
from forecasting.accuracy.pooling import (
    COMMON,
    NO_ERROR,
    class_scores,
    pooled_calibration,
    pooled_reliability,
    pooled_scores,
)
from forecasting.accuracy.sums import SUMMED, Tally, Tested, Yardstick, yardstick_of
from forecasting.predictors import FLOOR
from forecasting.quantiles import LEVELS
from forecasting.series import Series
from warehouse.errors import ForecastError

#: Slots shown before the origin of an example forecast.
SHOWN_BEFORE = 24
_AT = {name: i for i, name in enumerate(SUMMED)}


#: Columns of a table to be, by name: arrays of one length, or one value for all rows; times as numpy's, in UTC.
Columns = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class _Sums:
    """What is known so far of one model on one series."""

    sums: np.ndarray
    days: np.ndarray
    losses: np.ndarray
    fans: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)


def accuracy_of(
    tested: Tested, tallies: Iterable[Tally], *, default: str, notes: Sequence[str] = ()
) -> Accuracy:
    """The tables of a backtest, or of forecasts that were issued, from the tallies of all blocks, panel by panel.

    A model is compared with the floor over the origins that both forecast at. Raises `ForecastError` without the model
    `FLOOR`.
    """
    if FLOOR not in tested.models:
        raise ForecastError(f"models {', '.join(tested.models)}", expected=f"{FLOOR} among them")
    tables = _Tables(tested=tested)
    held: dict[tuple[str, int], _Sums] = {}
    panel = None
    for one in tallies:
        if panel is not None and one.panel != panel:
            tables.finish(panel, held)
            held = {}
        panel = one.panel
        _merge(held, one, tested)
        tables.pool(one)
    if panel is not None:
        tables.finish(panel, held)
    return tables.accuracy(default, tuple(notes))


def _merge(held: dict[tuple[str, int], _Sums], one: Tally, tested: Tested) -> None:
    origins = tested.origins[one.panel][one.which]
    key = (one.model, one.which)
    if key not in held:
        losses = np.full((origins.size, *one.losses.shape[1:]), np.nan)
        held[key] = _Sums(sums=np.zeros_like(one.sums), days=np.zeros_like(one.days), losses=losses)
    mine = held[key]
    mine.sums += one.sums
    mine.days += one.days
    mine.losses[one.places] = one.losses
    mine.reasons += one.reasons
    mine.fans |= {place: (mean, quantiles) for place, mean, quantiles in one.fans}


def compared(mine: np.ndarray, floor: np.ndarray, periods: np.ndarray) -> np.ndarray:
    """Sums by period over the origins that a model and the floor both forecast at, shape (periods, h, 6).

    From losses (origins, h, len(KEPT)): both models' `KEPT`, with the model's own in front; its "reference" is the number.
    """
    both = ~(np.isnan(mine[..., 0]) | np.isnan(floor[..., 0]))
    told = np.concatenate([mine[..., :2], both[..., None], floor], axis=-1)
    told = np.where(both[..., None], np.nan_to_num(told), 0.0)
    out = np.zeros((int(periods[-1]) + 1, *told.shape[1:]))
    np.add.at(out, periods, told)
    return out


def measures_of(
    sums: np.ndarray, beside: np.ndarray, stick: Yardstick, *, counts: bool
) -> dict[str, np.ndarray]:
    """`MEASURES` from sums (..., len(SUMMED)) and those of `compared` (..., 6); NaN where there is none."""
    n = sums[..., _AT["n"]]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = {name: np.where(n > 0, sums[..., i] / n, np.nan) for name, i in _AT.items()}
        own_pinball, own_mae, _, pinball, mae, reference = (
            beside[..., i] / np.where(beside[..., 2] > 0, beside[..., 2], np.nan) for i in range(6)
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
            **dict(zip(COMMON, (own_pinball, own_mae, beside[..., 2], pinball, mae), strict=True)),
        }
    undefined = [] if counts else ["absent", "unpredicted", "cover"]
    undefined += [] if stick.scale.capacity else ["brier", "skill_brier", "reference"]
    for name in undefined:
        out[name] = np.full(n.shape, np.nan)
    return out


def skill(loss: np.ndarray, floor: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """1 - loss / floor, NaN where the floor never erred: by less than `NO_ERROR` of ``scale``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(floor > NO_ERROR * scale, 1.0 - loss / floor, np.nan)


@dataclass(slots=True, kw_only=True)
class _Tables:
    """The tables as they grow: lists of columns of equal length, one entry per model and series."""

    tested: Tested
    scores: list[Columns] = field(default_factory=list)
    periods: list[Columns] = field(default_factory=list)
    daily: list[Columns] = field(default_factory=list)
    fans: list[Columns] = field(default_factory=list)
    reasons: list[Columns] = field(default_factory=list)
    below: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    bins: dict[str, np.ndarray] = field(default_factory=dict)

    def pool(self, one: Tally) -> None:
        """Add a tally to what is pooled over markets: shares below each quantile, and the chances of "at least n"."""
        variable = self.tested.panels[one.panel].variable
        n = one.sums[..., _AT["n"]].sum(axis=0)
        table = np.concatenate([one.below, n[:, None]], axis=1)
        self.below[variable, one.model] = self.below.get((variable, one.model), 0.0) + table
        if variable == "count":
            self.bins[one.model] = self.bins.get(one.model, 0.0) + one.bins

    def finish(self, panel: int, held: dict[tuple[str, int], _Sums]) -> None:
        """The rows of a panel, all of whose tallies are in."""
        for which, (series, origins) in enumerate(
            zip(self.tested.panels[panel].series, self.tested.origins[panel], strict=True)
        ):
            if origins.size == 0:
                continue
            stick = yardstick_of(series, origins, self.tested.timetable)
            floor = held.get((FLOOR, which))
            for model in self.tested.models:
                mine = held.get((model, which))
                if mine is not None:
                    base = np.full_like(mine.losses, np.nan) if floor is None else floor.losses
                    self._add(model, series, origins, stick, mine, base)

    def _add(
        self,
        model: str,
        series: Series,
        origins: np.ndarray,
        stick: Yardstick,
        mine: _Sums,
        floor: np.ndarray,
    ) -> None:
        name = {"variable": series.variable, "model": model, "market": series.key, "source": series.source}
        counts, steps = series.variable == "count", np.arange(1, self.tested.horizon + 1)
        beside = compared(mine.losses, floor, stick.periods)
        tests = [_diebold_mariano(mine.losses, floor, int(step)) for step in steps]
        measured = measures_of(mine.sums.sum(axis=0), beside.sum(axis=0), stick, counts=counts)
        self.scores.append(
            {
                **name, "step": steps, **measured,
                "dm": np.array([one for one, _ in tests]), "dm_p": np.array([p for _, p in tests]),
                "scale": stick.scale.unit, "capacity": stick.scale.capacity, "class": stick.kind,
            }
        )  # fmt: skip
        self.periods.append(_period_rows(name, series, origins, stick, mine.sums, beside))
        self.daily.append(_daily_rows(name, stick, mine.days))
        why = sorted(mine.reasons.items())
        words, numbers = (
            np.array([word for word, _ in why], dtype=object),
            np.array([n for _, n in why], dtype=int),
        )
        self.reasons.append({**name, "reason": words, "n": numbers})
        self.fans += [
            _fan_rows(name, series, origins, place, fan) for place, fan in sorted(mine.fans.items())
        ]

    def accuracy(self, default: str, notes: tuple[str, ...]) -> Accuracy:
        """All tables in their final form."""
        models = tuple(self.tested.models)
        scores = _joined(self.scores, (*SCORE_COLUMNS, "reference", *COMMON), models)
        scores = scores[scores["n"] > 0].reset_index(drop=True)
        periods = _joined(self.periods, PERIOD_COLUMNS, models)
        return Accuracy(
            scores=scores[list(SCORE_COLUMNS)],
            pooled=pooled_scores(scores),
            classes=class_scores(scores),
            periods=periods[periods["n"] > 0].reset_index(drop=True),
            reliability=pooled_reliability(self.below),
            calibration=pooled_calibration(self.bins),
            daily=_joined(self.daily, DAILY_COLUMNS, models),
            fans=_joined(self.fans, FAN_COLUMNS, models),
            models=models,
            default=default,
            step=self.tested.panels[0].series[0].step,
            notes=notes,
            reasons=_joined(self.reasons, REASON_COLUMNS, models),
        )


def _diebold_mariano(mine: np.ndarray, floor: np.ndarray, step: int) -> tuple[float, float]:
    losses, base = mine[:, step - 1, 0], floor[:, step - 1, 0]
    known = ~(np.isnan(losses) | np.isnan(base))
    return diebold_mariano(losses[known], base[known], step)


def _period_rows(
    name: dict[str, str],
    series: Series,
    origins: np.ndarray,
    stick: Yardstick,
    sums: np.ndarray,
    beside: np.ndarray,
) -> Columns:
    periods, horizon = sums.shape[:2]
    measured = measures_of(sums, beside, stick, counts=series.variable == "count")
    slots = series.times(origins).to_numpy()
    first = np.searchsorted(stick.periods, np.arange(periods))
    last = np.searchsorted(stick.periods, np.arange(periods), side="right") - 1
    return {
        **name,
        "period": np.repeat(np.arange(periods), horizon),
        "start": slots[np.minimum(first, slots.size - 1)].repeat(horizon),
        "end": slots[np.maximum(last, 0)].repeat(horizon),
        "step": np.tile(np.arange(1, horizon + 1), periods),
        **{measure: measured[measure].ravel() for measure in MEASURES},
    }


def _daily_rows(name: dict[str, str], stick: Yardstick, days: np.ndarray) -> Columns:
    seen = np.flatnonzero(days[:, 0] > 0)
    n = days[seen, 0]
    return {
        **name,
        "day": (stick.first_day + seen).astype("datetime64[D]").astype("datetime64[us]"),
        "n": n.astype(int),
        "mae": days[seen, 1] / n,
        "pinball": days[seen, 2] / n,
    }


def _fan_rows(
    name: dict[str, str], series: Series, origins: np.ndarray, place: int, fan: tuple[np.ndarray, np.ndarray]
) -> Columns:
    """One example forecast after the actual values up to its origin."""
    origin, (mean, quantiles) = int(origins[place]), fan
    before = np.arange(max(origin - SHOWN_BEFORE, 0), origin + 1)
    actual = np.concatenate([series.values[before], actual_after(series, np.array([origin]), mean.size)[0]])
    steps = np.arange(-before.size + 1, mean.size + 1)
    blank = np.full((before.size, LEVELS.size + 1), np.nan)
    body = np.vstack([blank, np.column_stack([mean, quantiles])])
    slots = series.times(origin + steps).to_numpy()
    return {
        **name, "origin": slots[before.size - 1], "step": steps, "slot": slots, "actual": actual,
        **dict(zip(("mean", *QUANTILES), body.T, strict=True)),
    }  # fmt: skip


def _joined(parts: Sequence[Columns], columns: Sequence[str], models: Sequence[str]) -> pd.DataFrame:
    """All rows, by variable, then model in the order asked for, then as they came."""
    if not parts:
        return pd.DataFrame(columns=list(columns))
    size = [next(len(value) for value in part.values() if isinstance(value, np.ndarray)) for part in parts]
    rank = np.array(
        [(part["variable"] == "price") * len(models) + models.index(part["model"]) for part in parts]
    )
    order = np.argsort(np.repeat(rank, size), kind="stable")
    table = {name: _column([part[name] for part in parts], size)[order] for name in columns}
    made = pd.DataFrame(
        {
            name: pd.DatetimeIndex(values, tz="UTC") if values.dtype.kind == "M" else values
            for name, values in table.items()
        }
    )
    return made.astype({"n": int}) if "n" in table else made


def _column(values: Sequence[Any], size: Sequence[int]) -> np.ndarray:
    """One column of all parts; a value that holds for all rows of its part is repeated."""
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    return np.repeat(np.array(values, dtype=object if isinstance(values[0], str) else None), size)
