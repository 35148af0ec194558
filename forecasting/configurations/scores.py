"""Accuracy of predicted throughput on held-out configurations (M9.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from slackwater.forecasting.configurations.runs import IDENTITY, configurations_of
from slackwater.forecasting.configurations.throughput import fit_throughput

FOLDS: Final = 5  # Parts of a split; each part is predicted by a model fitted to the others


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringEffort:
    """Effort of the measurement: repeats, and iterations of each search."""

    repeats: int = 3
    iterations: int = 25


FULL: Final = MeasuringEffort()
FAST: Final = MeasuringEffort(repeats=1, iterations=10)


def held_out(
    runs: pd.DataFrame,
    *,
    rng: np.random.Generator,
    effort: MeasuringEffort,
    tell: Callable[[], None] = lambda: None,
) -> pd.DataFrame:
    """Predict every row by a model fitted without runs of its configuration, once per repeat.

    Columns: those of ``runs``, ``row``, ``repeat``, ``predicted``, ``low``, ``high``. Physical model, hyperparameters and
    calibration are fitted to the training part only.
    """
    parts = []
    for repeat in range(effort.repeats):
        for train, test in folds(runs, rng=rng, parts=FOLDS):
            parts.append(predict_rows(runs, train, test, effort.iterations).assign(repeat=repeat))
            tell()
    return pd.concat(parts, ignore_index=True)


def folds(
    runs: pd.DataFrame, *, rng: np.random.Generator, parts: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (training rows, held-out rows) of each part; repeats of a configuration are never on both sides."""
    identity = runs.groupby(list(IDENTITY), sort=True).ngroup().to_numpy()
    part = (rng.permutation(identity.max() + 1) % parts)[identity]
    for k in range(parts):
        yield np.flatnonzero(part != k), np.flatnonzero(part == k)


def errors(scored: pd.DataFrame) -> dict[str, float]:
    """Return MdAPE and MAPE of the medians, coverage of the intervals, and the median ratio of their ends; shares, not percent."""
    relative = (scored["predicted"] / scored["tokens_per_second"] - 1).abs()
    inside = scored["tokens_per_second"].between(scored["low"], scored["high"])
    return {
        "mdape": float(relative.median()), "mape": float(relative.mean()), "coverage": float(inside.mean()),
        "width": float((scored["high"] / scored["low"]).median()),
    }  # fmt: skip


def errors_by(scored: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return `errors` of every group of ``keys`` with its number of distinct rows."""
    out = []
    for names, part in scored.groupby(keys, sort=True):
        label = dict(zip(keys, names if isinstance(names, tuple) else (names,), strict=True))
        out.append({**label, "rows": part["row"].nunique(), **errors(part)})
    return pd.DataFrame(out)


def predict_rows(runs: pd.DataFrame, train: np.ndarray, test: np.ndarray, iterations: int) -> pd.DataFrame:
    """Return the rows ``test`` with their number and prediction by a model fitted to the rows ``train``."""
    model = fit_throughput(runs.iloc[train], iterations=iterations)
    answers = model.predict(configurations_of(runs.iloc[test]))
    return runs.iloc[test].assign(
        row=test,
        predicted=[a.tokens_per_second for a in answers],
        low=[a.low for a in answers],
        high=[a.high for a in answers],
    )
