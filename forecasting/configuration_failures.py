"""Published failure rates beside those of the memory model (M9.3).

The 30,920 published experiments are known through their margins alone: experiments per GPU model, method, batch size, length, and
the share rejected per batch size. From these the grid is rebuilt (`rebuilt_grid`); no failure rate is used to do so, and none to
calibrate the memory model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from forecasting.configuration_memory import MemoryModel, memory_parts
from forecasting.configuration_values import METHODS, Configuration
from warehouse.errors import SourceFileError

STATISTICS_FILE: Final = "llmfinetuningbench_published_stats.csv"
#: The statistics' short names of GPU models.
GPU_NAMES: Final = {
    "A100-SXM": "NVIDIA-A100-SXM4-80GB", "A100-PCIe": "NVIDIA-A100-80GB-PCIe", "L40S": "L40S", "H100-PCIe": "NVIDIA-H100-PCIe",
}  # fmt: skip
#: Numbers of GPUs of the experiments, and the most per GPU model (as in the measured runs).
_COUNTS: Final = (1, 2, 4, 8, 16, 32)
_MOST: Final = {"A100-SXM": 32, "A100-PCIe": 4, "L40S": 4, "H100-PCIe": 1}
#: Batches beyond this are put on A100-SXM, which has more than four GPUs: no measured run on another GPU model has a larger one.
_LARGEST_BATCH: Final = 128
#: Batch sizes that every number of GPUs up to 32 divides: what is rejected there is rejected for another reason.
_DIVISIBLE: Final = (32, 64, 128)
_ROUNDS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Shares of the experiments over (method, GPU model, number of GPUs, length, batch), shape (3, 4, 6, 5, 11), summing to 1.

    ``other_rejections`` is the share rejected for no divisibility; it is put on A100-SXM, where nearly all experiments are.
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
    """The published statistics. Raises `SourceFileError` for a missing file or one without the columns."""
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


def rebuilt_grid(statistics: pd.DataFrame) -> Grid:
    """The published experiments by iterative proportional fitting (Deming and Stephan 1940) of a uniform grid to the known margins.

    The margin of numbers of GPUs is not printed, but a batch smaller than the number of GPUs is rejected: the rejections of batches
    1, 2, 4, 8, 16 are its distribution function, once the other rejections (those of batches that all counts divide) are taken off.
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
    shares[METHODS.index("gptq-lora"), 1:] = 0  # measured on A100-SXM alone
    margins = [np.asarray(m, dtype=float) / np.sum(m) for m in (method, device, counts, length, batch)]
    for _ in range(_ROUNDS):
        for axis, margin in enumerate(margins):
            sums = _margin(shares, axis)
            factor = np.divide(margin, sums, out=np.zeros_like(sums), where=sums > 0)
            shares = shares * factor.reshape([-1 if a == axis else 1 for a in range(5)])
    return Grid(
        shares=shares / shares.sum(), lengths=tuple(int(v) for v in length.index), batches=tuple(int(v) for v in batch.index),
        other_rejections=other,
    )  # fmt: skip


def failure_rates(statistics: pd.DataFrame, runs: pd.DataFrame, memory: MemoryModel) -> pd.DataFrame:
    """Rates of the memory model on the rebuilt grid beside the published ones, in percent.

    Columns: ``rate``, ``factor``, ``level``, ``published``, ``reproduced``, ``difference`` in points.
    A cell's chance to run is the mean over the models measured with its method on its GPU model: which models the experiments
    took is not printed.
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


def _chances(grid: Grid, runs: pd.DataFrame, memory: MemoryModel) -> np.ndarray:
    """Mean chance to run of every cell over the models measured there, by the memory model, of the grid's shape."""
    out = np.zeros_like(grid.shares)
    for m, method in enumerate(METHODS):
        for g, device in enumerate(GPU_NAMES.values()):
            measured = runs[(runs["method"] == method) & (runs["gpu_model"] == device)]
            for model in sorted(measured["model_name"].unique()):
                cells = _cells(grid, model, method, device)
                odds = memory.log_odds(memory_parts(cells)).reshape(grid.shares.shape[2:])
                out[m, g] += 1 / (1 + np.exp(-odds)) / measured["model_name"].nunique()
    return out


def _cells(grid: Grid, model: str, method: str, device: str) -> Sequence[Configuration]:
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
    """Experiments per level: failing ones over their rate."""
    rows = _rows(statistics, "failure_rate", factor)
    return rows["count_or_pairs"] / (rows["value"] / 100)
