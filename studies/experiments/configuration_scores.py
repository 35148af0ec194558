"""Accuracy of configuration knowledge for other models, fewer rows, validity labels and failure rates (M9.2, M9.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.forecasting.configurations.facts import (
    METHODS,
    Configuration,
    MemoryModel,
    calibrate_memory,
    memory_parts,
)
from slackwater.forecasting.configurations.runs import configurations_of
from slackwater.forecasting.configurations.scores import FOLDS, MeasuringEffort, errors, folds, predict_rows
from slackwater.forecasting.configurations.validity import (
    ValidityModel,
    label_configurations,
    name_columns,
    shape_columns,
    train_trees,
)
from slackwater.warehouse.errors import SourceFileError

# ---
# Language models left out, and the learning curve (M9.2).

#: Training sizes of the learning curve (M9.2), in rows; the last point uses all rows outside the held-out part.
CURVE_SIZES: Final = (50, 100, 200, 400, 600)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEffort(MeasuringEffort):
    """Effort of the study: repeats of the learning curve too, and ``least_rows`` of a left-out model."""

    curve_repeats: int = 5
    least_rows: int = 1


FULL: Final = StudyEffort()
FAST: Final = StudyEffort(repeats=1, curve_repeats=1, iterations=10, least_rows=20)


def models_left_out(
    runs: pd.DataFrame, *, effort: StudyEffort, tell: Callable[[], None] = lambda: None
) -> pd.DataFrame:
    """Predict every row by a model fitted without runs of its language model; columns of `held_out` without ``repeat``."""
    counts = runs["model_name"].value_counts()
    parts = []
    for name in sorted(counts[counts >= effort.least_rows].index):
        chosen = (runs["model_name"] == name).to_numpy()
        parts.append(predict_rows(runs, np.flatnonzero(~chosen), np.flatnonzero(chosen), effort.iterations))
        tell()
    return pd.concat(parts, ignore_index=True)


def learning_curve(
    runs: pd.DataFrame,
    *,
    rng: np.random.Generator,
    effort: StudyEffort,
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
            scored = predict_rows(runs, order[:size], test, effort.iterations)
            out.append({"rows": size, "repeat": repeat, **errors(scored)})
            tell()
    return pd.DataFrame(out)


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


# ---
# Published failure rates compared with those of the memory model (M9.3).
#
# Of the 30,920 published experiments only margins are known: experiments per GPU model, method, batch size and length, and the
# share rejected per batch size. The grid is reconstructed from these (`rebuilt_grid`); failure rates are used neither for that
# nor for the calibration of the memory model.

STATISTICS_FILE: Final = "llmfinetuningbench_published_stats.csv"
#: Short names of GPU models in the statistics.
GPU_NAMES: Final = {
    "A100-SXM": "NVIDIA-A100-SXM4-80GB", "A100-PCIe": "NVIDIA-A100-80GB-PCIe", "L40S": "L40S", "H100-PCIe": "NVIDIA-H100-PCIe",
}  # fmt: skip
#: Numbers of GPUs of the experiments, and the maximum per GPU model (as in the measured runs).
_COUNTS: Final = (1, 2, 4, 8, 16, 32)
_MOST: Final = {"A100-SXM": 32, "A100-PCIe": 4, "L40S": 4, "H100-PCIe": 1}
#: Larger batches are assigned to A100-SXM, which has more than four GPUs: no measured run on another GPU model has a larger batch.
_LARGEST_BATCH: Final = 128
#: Batch sizes divisible by every number of GPUs up to 32: rejections there have other causes.
_DIVISIBLE: Final = (32, 64, 128)
_ROUNDS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationGrid:
    """Shares of the experiments over (method, GPU model, number of GPUs, length, batch), shape (3, 4, 6, 5, 11), with sum 1.

    ``other_rejections`` is the share rejected for reasons other than divisibility. It is assigned to A100-SXM, the GPU model of
    nearly all experiments.
    """

    shares: np.ndarray
    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    other_rejections: float

    @property
    def divisible(self) -> np.ndarray:
        """Whether the number of GPUs divides the batch, shape (6, 11)."""
        return np.array([[b % n == 0 for b in self.batches] for n in _COUNTS])


def read_statistics(folder: Path) -> pd.DataFrame:
    """Read the published statistics. Raises `SourceFileError` for a missing file or missing columns."""
    path = folder / STATISTICS_FILE
    try:
        frame = pd.read_csv(path, dtype={"level": str})
    except OSError as error:
        raise SourceFileError(
            path,
            0,
            error.strerror or str(error),
            expected="the published statistics",
            remedy="name the folder that holds it",
        ) from error
    missing = {"statistic", "factor", "level", "value", "count_or_pairs"} - set(frame.columns)
    if missing:
        raise SourceFileError(
            path,
            1,
            f"columns {sorted(missing)} are missing",
            expected="the published statistics",
            remedy="fetch again",
        )
    return frame


def rebuilt_grid(statistics: pd.DataFrame) -> ConfigurationGrid:
    """Reconstruct the published experiments by iterative proportional fitting of a uniform grid to the known margins.

    The method is that of Deming and Stephan (1940). The margin of the number of GPUs is not published, but a batch smaller than the
    number of GPUs is rejected: the rejections of batches 1, 2, 4, 8, 16 give its distribution function, after the other rejections
    (those of batches that all counts divide) are subtracted.
    """
    batch, length = (
        _experiments(statistics, "total_batch_size"),
        _experiments(statistics, "tokens_per_sample"),
    )
    method = _experiments(statistics, "method").reindex(METHODS)
    device = _rows(statistics, "valid_rate", "gpu_model")["count_or_pairs"].reindex(list(GPU_NAMES))
    rejected = _rows(statistics, "rejected_rate", "total_batch_size")["value"] / 100
    other = float(np.mean([rejected[str(b)] for b in _DIVISIBLE]))
    beyond = [np.clip((rejected[str(n)] - other) / (1 - other), 0, 1) for n in _COUNTS[:-1]]
    counts = -np.diff([1.0, *np.minimum.accumulate(beyond), 0.0])
    shares = np.ones((len(METHODS), len(GPU_NAMES), len(_COUNTS), len(length), len(batch)))
    for g, name in enumerate(GPU_NAMES):
        shares[:, g, np.array(_COUNTS) > _MOST[name]] = 0
    shares[:, 1:, :, :, [int(b) > _LARGEST_BATCH for b in batch.index]] = 0
    shares[METHODS.index("gptq-lora"), 1:] = 0  # measured on A100-SXM only
    margins = [np.asarray(m, dtype=float) / np.sum(m) for m in (method, device, counts, length, batch)]
    for _ in range(_ROUNDS):
        for axis, margin in enumerate(margins):
            sums = _margin(shares, axis)
            factor = np.divide(margin, sums, out=np.zeros_like(sums), where=sums > 0)
            shares = shares * factor.reshape([-1 if a == axis else 1 for a in range(5)])
    return ConfigurationGrid(
        shares=shares / shares.sum(), lengths=tuple(int(v) for v in length.index), batches=tuple(int(v) for v in batch.index),
        other_rejections=other,
    )  # fmt: skip


def failure_rates(statistics: pd.DataFrame, runs: pd.DataFrame, memory: MemoryModel) -> pd.DataFrame:
    """Compare the memory model's rates on the reconstructed grid with the published rates, in percent.

    Columns: ``rate``, ``factor``, ``level``, ``published``, ``reproduced``, ``difference`` in percentage points. The
    probability that a cell runs is the mean over the models measured with its method on its GPU model, because the models of
    the experiments are not published.
    """
    grid = rebuilt_grid(statistics)
    runs_ok = grid.divisible[None, None, :, None, :] * np.ones_like(grid.shares)
    runs_ok[:, 0] *= 1 - grid.other_rejections
    valid = _chances(grid, runs, memory) * runs_ok
    runtime = runs_ok - valid
    out: list[dict[str, Any]] = []
    for axis, factor, levels in (
        (0, "method", METHODS), (1, "gpu_model", tuple(GPU_NAMES)), (3, "tokens_per_sample", grid.lengths),
        (4, "total_batch_size", grid.batches),
    ):  # fmt: skip
        total = _margin(grid.shares, axis)
        for rate, table in (
            ("failure_rate", 1 - valid), ("valid_rate", valid), ("runtime_failure_rate", runtime), ("rejected_rate", 1 - runs_ok),
        ):  # fmt: skip
            published = _rows(statistics, rate, factor)["value"]
            found = 100 * _margin(grid.shares * table, axis) / total
            for i, level in enumerate(levels):
                if str(level) in published.index:
                    out.append(
                        _compared(rate, factor, str(level), float(published[str(level)]), float(found[i]))
                    )
    return pd.DataFrame(out)


def _compared(rate: str, factor: str, level: str, published: float, found: float) -> dict[str, Any]:
    return {
        "rate": rate, "factor": factor, "level": level, "published": published, "reproduced": found,
        "difference": found - published,
    }  # fmt: skip


def _chances(grid: ConfigurationGrid, runs: pd.DataFrame, memory: MemoryModel) -> np.ndarray:
    """Return the mean probability to run of every cell over the models measured there, by the memory model, in the grid's shape."""
    out = np.zeros_like(grid.shares)
    for m, method in enumerate(METHODS):
        for g, device in enumerate(GPU_NAMES.values()):
            measured = runs[(runs["method"] == method) & (runs["gpu_model"] == device)]
            for model in sorted(measured["model_name"].unique()):
                cells = _cells(grid, model, method, device)
                odds = memory.log_odds(memory_parts(cells)).reshape(grid.shares.shape[2:])
                out[m, g] += 1 / (1 + np.exp(-odds)) / measured["model_name"].nunique()
    return out


def _cells(grid: ConfigurationGrid, model: str, method: str, device: str) -> Sequence[Configuration]:
    return [
        Configuration(
            model_name=model,
            method=method,
            gpu_model=device,
            number_gpus=n,
            tokens_per_sample=length,
            batch_size=batch,
        )
        for n in _COUNTS
        for length in grid.lengths
        for batch in grid.batches
    ]


def _margin(table: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(table.sum(axis=tuple(a for a in range(5) if a != axis)))


def _rows(statistics: pd.DataFrame, statistic: str, factor: str) -> pd.DataFrame:
    chosen = statistics[(statistics["statistic"] == statistic) & (statistics["factor"] == factor)]
    return chosen.set_index("level")


def _experiments(statistics: pd.DataFrame, factor: str) -> pd.Series:
    """Return the experiments per level: number of failures divided by the failure rate."""
    rows = _rows(statistics, "failure_rate", factor)
    return rows["count_or_pairs"] / (rows["value"] / 100)
