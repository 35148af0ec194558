"""How good predictions of throughput and of validity are (M9.2, M9.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from forecasting.configurations.facts import calibrate_memory, memory_parts
from forecasting.configurations.runs import IDENTITY, configurations_of
from forecasting.configurations.throughput import fit_throughput
from forecasting.configurations.validity import (
    ValidityModel,
    label_configurations,
    name_columns,
    shape_columns,
    train_trees,
)

# ---
# How good throughput predictions are: whole configurations, whole models held out, and the learning curve (M9.2).

#: Parts of a split; each is predicted by a model of the others.
FOLDS: Final = 5
#: Sizes of the learning curve (M9.2), in rows; the last is all rows but the part held out.
CURVE_SIZES: Final = (50, 100, 200, 400, 600)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringEffort:
    """How much is spent on measuring: repeats of the split and of the learning curve, steps of each search, all models left out or
    only those with at least ``least_rows``.
    """

    repeats: int = 3
    curve_repeats: int = 5
    iterations: int = 25
    least_rows: int = 1


FULL: Final = MeasuringEffort()
FAST: Final = MeasuringEffort(repeats=1, curve_repeats=1, iterations=10, least_rows=20)


def held_out(
    runs: pd.DataFrame,
    *,
    rng: np.random.Generator,
    effort: MeasuringEffort,
    tell: Callable[[], None] = lambda: None,
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
    runs: pd.DataFrame, *, effort: MeasuringEffort, tell: Callable[[], None] = lambda: None
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
    effort: MeasuringEffort,
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


# ---
# How good validity predictions are against the published classifier's labels (SYNTHETIC) and the measured runs (M9.3).

#: What is held out at a time, and what the trees may know then: whole models and GPU models are new to them, so names say nothing.
SPLITS: Final = (
    ("grid points", "named"), ("pairs of model and GPU", "named"), ("whole models", "shapes"), ("whole GPU models", "shapes"),
)  # fmt: skip
_PARTS: Final = 5


def label_errors(
    labels: pd.DataFrame,
    *,
    rng: np.random.Generator,
    splits: Sequence[tuple[str, str]] = SPLITS,
    tell: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Share of held-out labels that are missed, by the trees and by the memory model alone, for each of ``splits``.

    The memory model is calibrated, and the trees are trained, on the other part. Keys: ``held_out``, ``labels``, ``classifier``,
    ``memory``, ``invalid_said_valid``, ``valid_said_invalid`` (shares of all labels, of the trees).
    """
    configurations = label_configurations(labels)
    p_valid, valid = labels["p_valid"].to_numpy(), labels["predicted_valid"].to_numpy() == 1
    parts = memory_parts(configurations)
    models, gpus = sorted(set(labels["model_name"])), sorted(set(labels["gpu_model"]))
    names = name_columns(configurations, models, gpus)
    out = []
    for split, kind in splits:
        part = _part(labels, split, rng)
        by_trees, by_memory = np.empty(len(labels), dtype=bool), np.empty(len(labels), dtype=bool)
        for k in np.unique(part):
            test = part == k
            train = np.flatnonzero(~test)
            memory = calibrate_memory(parts.take(train), p_valid[train])
            columns = shape_columns(configurations, memory)
            if kind == "named":
                columns = np.column_stack([columns, names])
            trees = train_trees(columns[train], p_valid[train], kind=kind, seed=int(rng.integers(2**31)))
            by_trees[test] = np.asarray(trees.predict(columns[test])) > 0.5
            by_memory[test] = memory.log_odds(parts)[test] > 0
            tell()
        out.append({
            "held_out": split, "labels": len(labels), "classifier": float(np.mean(by_trees != valid)),
            "memory": float(np.mean(by_memory != valid)), "invalid_said_valid": float(np.mean(by_trees & ~valid)),
            "valid_said_invalid": float(np.mean(~by_trees & valid)),
        })  # fmt: skip
    return out


def measured_said_valid(runs: pd.DataFrame, checks: ValidityModel) -> list[dict[str, Any]]:
    """Share of measured (hence valid) runs that are said to be valid without looking at what was measured, by method and in all."""
    said = runs.assign(valid=[a.valid for a in checks.predict(configurations_of(runs))])
    rows = [
        {"method": method, "runs": len(part), "said_valid": float(part["valid"].mean())}
        for method, part in said.groupby("method")
    ]
    return [*rows, {"method": "all", "runs": len(said), "said_valid": float(said["valid"].mean())}]


def impossible_labels(labels: pd.DataFrame) -> dict[str, int]:
    """Labels whose weights alone exceed the GPUs' memory, and how many of these are called valid: errors of the labels."""
    configurations = label_configurations(labels)
    parts = memory_parts(configurations)
    weights = np.where(parts.full, parts.states_gb / 4, parts.states_gb)
    beyond = weights > parts.limit_gb
    return {
        "labels": int(beyond.sum()),
        "called_valid": int((beyond & (labels["predicted_valid"] == 1)).sum()),
    }


def _part(labels: pd.DataFrame, split: str, rng: np.random.Generator) -> np.ndarray:
    if split == "grid points":
        return np.asarray(rng.permutation(len(labels)) % _PARTS)
    keys = {
        "pairs of model and GPU": ["model_name", "gpu_model"], "whole models": ["model_name"], "whole GPU models": ["gpu_model"],
    }[split]  # fmt: skip
    group = labels.groupby(keys, sort=True).ngroup().to_numpy()
    order = rng.permutation(group.max() + 1)
    return np.asarray((order % min(_PARTS, len(order)))[group])
