"""How good validity predictions are against the published classifier's labels (SYNTHETIC) and the measured runs (M9.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from forecasting.configuration_classifier import name_columns, train_trees
from forecasting.configuration_labels import label_configurations, shape_columns
from forecasting.configuration_memory import calibrate_memory, memory_parts
from forecasting.configuration_runs import configurations_of
from forecasting.configuration_validity import ValidityModel

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
