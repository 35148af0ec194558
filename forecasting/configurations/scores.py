"""Accuracy of predicted throughput and validity (M9.2, M9.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.forecasting.configurations.facts import calibrate_memory, memory_parts
from slackwater.forecasting.configurations.runs import IDENTITY, configurations_of
from slackwater.forecasting.configurations.throughput import fit_throughput
from slackwater.forecasting.configurations.validity import (
    ValidityModel,
    label_configurations,
    name_columns,
    shape_columns,
    train_trees,
)

# ---
# Accuracy of throughput predictions: held-out configurations, held-out models, and the learning curve (M9.2).

FOLDS: Final = 5  # Parts of a split; each part is predicted by a model fitted to the others
#: Training sizes of the learning curve (M9.2), in rows; the last point uses all rows outside the held-out part.
CURVE_SIZES: Final = (50, 100, 200, 400, 600)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringEffort:
    """Effort of the measurement: repeats, iterations of each search, and ``least_rows`` of a left-out model."""

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
    """Predict every row by a model fitted without runs of its configuration, once per repeat.

    Columns: those of ``runs``, ``row``, ``repeat``, ``predicted``, ``low``, ``high``. Physical model, hyperparameters and
    calibration are fitted to the training part only.
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
    """Predict every row by a model fitted without runs of its language model; columns of `held_out` without ``repeat``."""
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
    """Return errors on a held-out fifth of the configurations for training sets of increasing size.

    One row per repeat and size: ``rows``, ``repeat``, ``mdape``, ``mape``, ``coverage`` (shares, not percent). Sizes beyond the
    training part are left out; the last size is the whole training part.
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
# Accuracy of validity predictions, relative to the published classifier's labels (SYNTHETIC) and the measured runs (M9.3).

#: Held-out units and the tree model used: trees with names are useless for models and GPU models that are not in the training part.
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
    """Return the share of misclassified held-out labels by the trees and by the memory model, for each of ``splits``.

    The memory model is calibrated, and the trees are trained, on the other part. Keys: ``held_out``, ``labels``, ``classifier``,
    ``memory``, ``invalid_said_valid``, ``valid_said_invalid`` (shares of all labels, for the trees).
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
    """Return the share of measured (hence valid) runs predicted as valid without using measurements, by method and in total."""
    said = runs.assign(valid=[a.valid for a in checks.predict(configurations_of(runs))])
    rows = [
        {"method": method, "runs": len(part), "said_valid": float(part["valid"].mean())}
        for method, part in said.groupby("method")
    ]
    return [*rows, {"method": "all", "runs": len(said), "said_valid": float(said["valid"].mean())}]


def impossible_labels(labels: pd.DataFrame) -> dict[str, int]:
    """Count labels whose weights exceed the GPUs' memory, and those of them labelled valid, which are label errors."""
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
