"""The published classifier's predictions of validity: SYNTHETIC labels on a grid, not measurements (M9.3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from forecasting.configuration_facts import architecture
from forecasting.configuration_memory import MemoryModel, MemoryParts, memory_parts
from forecasting.configuration_values import Configuration
from warehouse.errors import SourceFileError

LABELS_FILE: Final = "autoconf_predicted_validity.parquet"
_KEYS: Final = ("model_name", "method", "gpu_model", "tokens_per_sample", "batch_size", "number_gpus")
_COLUMNS: Final = (*_KEYS, "p_valid", "predicted_valid")


def read_labels(folder: Path) -> pd.DataFrame:
    """Predictions of ``folder``/autoconf_predicted_validity.parquet: what was asked, ``p_valid`` and ``predicted_valid`` (0 or 1).

    Raises `SourceFileError` for a missing or broken file.
    """
    path = folder / LABELS_FILE
    try:
        frame = pd.read_parquet(path)
    except OSError as error:
        raise SourceFileError(
            path, 0, error.strerror or str(error), expected="the published classifier's predictions",
            remedy="name the folder that holds it",
        ) from error  # fmt: skip
    except ValueError as error:
        raise SourceFileError(
            path, 0, f"no table: {error}", expected="a Parquet file", remedy="fetch it again"
        ) from error
    missing = [name for name in _COLUMNS if name not in frame]
    if missing:
        raise SourceFileError(
            path,
            0,
            f"columns {', '.join(missing)} are missing",
            expected=", ".join(_COLUMNS),
            remedy="fetch it again",
        )
    frame = frame[list(_COLUMNS)].astype(dict.fromkeys(("model_name", "method", "gpu_model"), str))
    if not frame["p_valid"].between(0, 1).all():
        raise SourceFileError(
            path, 0, "a p_valid outside 0 to 1", expected="probabilities", remedy="fetch it again"
        )
    return frame.reset_index(drop=True)


def label_configurations(labels: pd.DataFrame) -> list[Configuration]:
    """The configuration of every label."""
    return [
        Configuration(
            model_name=model, method=method, gpu_model=device, tokens_per_sample=int(length), batch_size=int(batch),
            number_gpus=int(count),
        )
        for model, method, device, length, batch, count in labels[list(_KEYS)].itertuples(index=False, name=None)
    ]  # fmt: skip


def shape_columns(configurations: Sequence[Configuration], memory: MemoryModel) -> np.ndarray:
    """What a classifier sees of a configuration, no name among it, shape (n, 14): sizes, shares of the GPU's memory, the odds."""
    parts = memory_parts(configurations)
    shapes = [architecture(c.model_name) for c in configurations]
    counts = np.array(
        [[c.number_gpus, c.tokens_per_sample, c.batch_size, c.method == "full"] for c in configurations],
        dtype=float,
    )
    sizes = np.array([[s.params_b, s.active_b, s.layers, s.width, s.vocabulary] for s in shapes], dtype=float)
    return np.column_stack([counts, sizes, _shares(parts), memory.log_odds(parts)])


def _shares(parts: MemoryParts) -> np.ndarray:
    return np.column_stack(
        [
            parts.states_gb / parts.limit_gb,
            parts.inputs_gb / parts.limit_gb,
            parts.words_gb / parts.limit_gb,
            parts.limit_gb,
        ]
    )
