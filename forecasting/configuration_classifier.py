"""Trees on the published validity labels: one with the names of models and GPUs, one with shapes alone (M9.3, SYNTHETIC)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from forecasting.configuration_labels import shape_columns
from forecasting.configuration_memory import MemoryModel
from forecasting.configuration_values import Configuration

if TYPE_CHECKING:
    from lightgbm import Booster

_SETTINGS: Final[dict[str, Any]] = {
    "objective": "cross_entropy", "num_leaves": 15, "learning_rate": 0.08, "min_data_in_leaf": 40, "lambda_l2": 5.0,
    "feature_fraction": 0.7, "verbose": -1, "num_threads": 1, "deterministic": True, "force_row_wise": True,
}  # fmt: skip
#: Trees with and without names; more of those without would learn the labelled models by heart.
_TREES: Final = {"named": 300, "shapes": 120}


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """The two sets of trees, and the names that the first knows."""

    memory: MemoryModel
    named: Booster
    shapes: Booster
    models: tuple[str, ...]
    gpus: tuple[str, ...]

    def p_valid(self, configurations: Sequence[Configuration]) -> np.ndarray:
        """Probability that each configuration runs, shape (n,); by shapes alone where model or GPU are not among the labels."""
        if not configurations:
            return np.empty(0)
        columns = shape_columns(configurations, self.memory)
        names = name_columns(configurations, self.models, self.gpus)
        known = (names >= 0).all(axis=1)
        by_name = np.asarray(self.named.predict(np.column_stack([columns, names])))
        return np.where(known, by_name, np.asarray(self.shapes.predict(columns)))


def fit_classifier(
    configurations: Sequence[Configuration], p_valid: np.ndarray, *, memory: MemoryModel, seed: int
) -> Classifier:
    """Fit both to predicted probabilities (softer than labels: a 0.51 says less than a 0.99)."""
    models = tuple(sorted({c.model_name for c in configurations}))
    gpus = tuple(sorted({c.gpu_model for c in configurations}))
    columns = shape_columns(configurations, memory)
    named = np.column_stack([columns, name_columns(configurations, models, gpus)])
    return Classifier(
        memory=memory, models=models, gpus=gpus,
        named=train_trees(named, p_valid, kind="named", seed=seed), shapes=train_trees(columns, p_valid, kind="shapes", seed=seed),
    )  # fmt: skip


def train_trees(columns: np.ndarray, p_valid: np.ndarray, *, kind: str, seed: int) -> Booster:
    """Trees of one kind, ``named`` (the last two columns are codes of names) or ``shapes``."""
    import lightgbm as lgb

    names = [columns.shape[1] - 2, columns.shape[1] - 1] if kind == "named" else []
    data = lgb.Dataset(columns, p_valid, categorical_feature=names, params={"verbose": -1})
    return lgb.train({**_SETTINGS, "seed": seed}, data, num_boost_round=_TREES[kind])


def name_columns(
    configurations: Sequence[Configuration], models: Sequence[str], gpus: Sequence[str]
) -> np.ndarray:
    """Codes of model and GPU, shape (n, 2); -1 for a name that is not known."""
    model_code = {name: i for i, name in enumerate(models)}
    gpu_code = {name: i for i, name in enumerate(gpus)}
    return np.array(
        [[model_code.get(c.model_name, -1), gpu_code.get(c.gpu_model, -1)] for c in configurations],
        dtype=float,
    )
