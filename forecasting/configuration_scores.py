"""How good throughput predictions are: whole configurations, whole models held out, and the learning curve (M9.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from forecasting.configuration_runs import IDENTITY, configurations_of
from forecasting.configuration_throughput import fit_throughput

#: Parts of a split; each is predicted by a model of the others.
FOLDS: Final = 5
#: Sizes of the learning curve (M9.2), in rows; the last is all rows but the part held out.
CURVE_SIZES: Final = (50, 100, 200, 400, 600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is spent on measuring: repeats of the split and of the learning curve, steps of each search, all models left out or
    only those with at least ``least_rows``.
    """

    repeats: int = 3
    curve_repeats: int = 5
    iterations: int = 25
    least_rows: int = 1


FULL: Final = Effort()
FAST: Final = Effort(repeats=1, curve_repeats=1, iterations=10, least_rows=20)


def held_out(
    runs: pd.DataFrame, *, rng: np.random.Generator, effort: Effort, tell: Callable[[], None] = lambda: None
) -> pd.DataFrame:
    """Every row predicted by a model that saw no run of its configuration, once a repeat.

    Columns: those of ``runs``, ``row``, ``repeat``, ``predicted``, ``low``, ``high``. Law, hyperparameters and
    calibration are fitted inside the training part.
    """
    parts = []
    for repeat in range(effort.repeats):
        for train, test in folds(runs, rng=rng, parts=FOLDS):
            parts.append(_predicted(runs, train, test, effort.iterations).assign(repeat=repeat))
            tell()
    return pd.concat(parts, ignore_index=True)


def models_left_out(
    runs: pd.DataFrame, *, effort: Effort, tell: Callable[[], None] = lambda: None
) -> pd.DataFrame:
    """Every row predicted by a model that saw no run of its language model; the columns of `held_out` without ``repeat``."""
    counts = runs["model_name"].value_counts()
    parts = []
    for name in sorted(counts[counts >= effort.least_rows].index):
        chosen = (runs["model_name"] == name).to_numpy()
        parts.append(_predicted(runs, np.flatnonzero(~chosen), np.flatnonzero(chosen), effort.iterations))
        tell()
    return pd.concat(parts, ignore_index=True)


def learning_curve(
    runs: pd.DataFrame,
    *,
    rng: np.random.Generator,
    effort: Effort,
    sizes: Sequence[int] = CURVE_SIZES,
    tell: Callable[[], None] = lambda: None,
) -> pd.DataFrame:
    """Errors on a held-out fifth of the configurations, learned from so many rows of the others.

    One row per repeat and size: ``rows``, ``repeat``, ``mdape``, ``mape``, ``coverage`` (shares, not percent). A size beyond the
    training part is left out; the last is all of it.
    """
    out = []
    for repeat in range(effort.curve_repeats):
        train, test = next(folds(runs, rng=rng, parts=FOLDS))
        order = rng.permutation(train)
        for size in (*(s for s in sizes if s < len(train)), len(train)):
            scored = _predicted(runs, order[:size], test, effort.iterations)
            out.append({"rows": size, "repeat": repeat, **errors(scored)})
            tell()
    return pd.DataFrame(out)


def folds(
    runs: pd.DataFrame, *, rng: np.random.Generator, parts: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(training rows, held-out rows) of each part; repeats of one configuration are never on both sides."""
    identity = runs.groupby(list(IDENTITY), sort=True).ngroup().to_numpy()
    part = (rng.permutation(identity.max() + 1) % parts)[identity]
    for k in range(parts):
        yield np.flatnonzero(part != k), np.flatnonzero(part == k)


def errors(scored: pd.DataFrame) -> dict[str, float]:
    """MdAPE and MAPE of the medians, coverage of the intervals, and the median ratio of their ends; shares, not percent."""
    relative = (scored["predicted"] / scored["tokens_per_second"] - 1).abs()
    inside = scored["tokens_per_second"].between(scored["low"], scored["high"])
    return {
        "mdape": float(relative.median()), "mape": float(relative.mean()), "coverage": float(inside.mean()),
        "width": float((scored["high"] / scored["low"]).median()),
    }  # fmt: skip


def errors_by(scored: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """`errors` of every group of ``keys`` with its number of distinct rows."""
    out = []
    for names, part in scored.groupby(keys, sort=True):
        label = dict(zip(keys, names if isinstance(names, tuple) else (names,), strict=True))
        out.append({**label, "rows": part["row"].nunique(), **errors(part)})
    return pd.DataFrame(out)


def _predicted(runs: pd.DataFrame, train: np.ndarray, test: np.ndarray, iterations: int) -> pd.DataFrame:
    model = fit_throughput(runs.iloc[train], iterations=iterations)
    answers = model.predict(configurations_of(runs.iloc[test]))
    return runs.iloc[test].assign(
        row=test,
        predicted=[a.tokens_per_second for a in answers],
        low=[a.low for a in answers],
        high=[a.high for a in answers],
    )
