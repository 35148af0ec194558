"""Validity of configurations: measurements, hard rules, memory, then trees on published labels, which are SYNTHETIC (M9.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from slackwater.forecasting.configurations.facts import (
    Configuration,
    MemoryModel,
    MemoryParts,
    Validity,
    architecture,
    gpu,
    memory_parts,
)
from slackwater.forecasting.configurations.runs import read_published
from slackwater.warehouse.amounts import percent
from slackwater.warehouse.errors import SourceFileError

if TYPE_CHECKING:
    from lightgbm import Booster

# ---
# Validity predicted by the published classifier: SYNTHETIC labels on a grid, not measurements (M9.3).

LABELS_FILE: Final = "autoconf_predicted_validity.parquet"
_KEYS: Final = ("model_name", "method", "gpu_model", "tokens_per_sample", "batch_size", "number_gpus")
_COLUMNS: Final = (*_KEYS, "p_valid", "predicted_valid")


def read_labels(folder: Path) -> pd.DataFrame:
    """Read ``folder``/autoconf_predicted_validity.parquet: configuration columns, ``p_valid`` and ``predicted_valid`` (0 or 1).

    Raises `SourceFileError` for a missing or broken file.
    """
    path = folder / LABELS_FILE
    frame = read_published(
        path,
        pd.read_parquet,
        _COLUMNS,
        expected="the published classifier's predictions",
        form="a Parquet file",
    )
    frame = frame[list(_COLUMNS)].astype(dict.fromkeys(("model_name", "method", "gpu_model"), str))
    if not frame["p_valid"].between(0, 1).all():
        raise SourceFileError(
            path, 0, "a p_valid outside 0 to 1", expected="probabilities", remedy="fetch it again"
        )
    return frame.reset_index(drop=True)


def label_configurations(labels: pd.DataFrame) -> list[Configuration]:
    """Return the configuration of every label."""
    return [
        Configuration(
            model_name=model, method=method, gpu_model=device, tokens_per_sample=int(length), batch_size=int(batch),
            number_gpus=int(count),
        )
        for model, method, device, length, batch, count in labels[list(_KEYS)].itertuples(index=False, name=None)
    ]  # fmt: skip


def shape_columns(configurations: Sequence[Configuration], memory: MemoryModel) -> np.ndarray:
    """Return the classifier's features without names, shape (n, 14): counts, sizes, shares of GPU memory, memory log odds."""
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


# ---
# Trees on the published validity labels: a model with names of models and GPUs, and a model with shapes only (M9.3, SYNTHETIC).

_SETTINGS: Final[dict[str, Any]] = {
    "objective": "cross_entropy", "num_leaves": 15, "learning_rate": 0.08, "min_data_in_leaf": 40, "lambda_l2": 5.0,
    "feature_fraction": 0.7, "verbose": -1, "num_threads": 1, "deterministic": True, "force_row_wise": True,
}  # fmt: skip
#: Numbers of trees with and without names; more trees without names would overfit the labelled models.
_TREES: Final = {"named": 300, "shapes": 120}


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """Two tree models, and the names known to the first."""

    memory: MemoryModel
    named: Booster
    shapes: Booster
    models: tuple[str, ...]
    gpus: tuple[str, ...]

    def p_valid(self, configurations: Sequence[Configuration]) -> np.ndarray:
        """Return the probability that each configuration runs (n,), without names for a model or GPU that has no label."""
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
    """Fit both tree models to predicted probabilities, which carry more information than labels: 0.51 is less certain than 0.99."""
    models = tuple(sorted({c.model_name for c in configurations}))
    gpus = tuple(sorted({c.gpu_model for c in configurations}))
    columns = shape_columns(configurations, memory)
    named = np.column_stack([columns, name_columns(configurations, models, gpus)])
    return Classifier(
        memory=memory, models=models, gpus=gpus,
        named=train_trees(named, p_valid, kind="named", seed=seed), shapes=train_trees(columns, p_valid, kind="shapes", seed=seed),
    )  # fmt: skip


def train_trees(columns: np.ndarray, p_valid: np.ndarray, *, kind: str, seed: int) -> Booster:
    """Train trees of a kind: ``named`` (the last two columns are codes of names) or ``shapes``."""
    import lightgbm as lgb

    names = [columns.shape[1] - 2, columns.shape[1] - 1] if kind == "named" else []
    data = lgb.Dataset(columns, p_valid, categorical_feature=names, params={"verbose": -1})
    return lgb.train({**_SETTINGS, "seed": seed}, data, num_boost_round=_TREES[kind])


def name_columns(
    configurations: Sequence[Configuration], models: Sequence[str], gpus: Sequence[str]
) -> np.ndarray:
    """Return codes of model and GPU, shape (n, 2); -1 for an unknown name."""
    model_code = {name: i for i, name in enumerate(models)}
    gpu_code = {name: i for i, name in enumerate(gpus)}
    return np.array(
        [[model_code.get(c.model_name, -1), gpu_code.get(c.gpu_model, -1)] for c in configurations],
        dtype=float,
    )


# ---
# Decision on validity: measurements, hard rules, insufficient memory, then trees or the memory model (M9.3).

#: Grid of the labels. Outside it trees would extrapolate with their last value, so the memory model decides.
_GRID: Final = {"tokens_per_sample": (512, 8192), "batch_size": (1, 128), "number_gpus": (1, 16)}
#: Memory of the labelled GPU models in GB; the trees are not valid for other sizes.
_LIMITS: Final = (48.0, 80.0)
#: Probability reported for a configuration that ran; 1 minus it for a configuration that cannot run.
_SURE: Final = 0.999
_KEY = tuple[str, str, str, int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidityModel:
    """Rules, the calibrated memory model, trees, and the configurations known to have run."""

    classifier: Classifier
    ran: frozenset[_KEY]

    def judge(self, configurations: Sequence[Configuration]) -> list[Validity]:
        """Return the validity of each configuration; one that ran is valid (``measured``), unless a rule excludes it."""
        answers = self.predict(configurations)
        return [
            replace(
                a,
                valid=True,
                p_valid=_SURE,
                reason="this configuration was measured and ran",
                decided_by="measured",
            )
            if a.decided_by != "rule" and identity(c) in self.ran
            else a
            for c, a in zip(configurations, answers, strict=True)
        ]

    def predict(self, configurations: Sequence[Configuration]) -> list[Validity]:
        """Return the validity of each without using measurements. Raises `InputError` for unknown models or GPUs."""
        if not configurations:
            return []
        parts = memory_parts(configurations)
        need = self.classifier.memory.peak_gb(parts)
        odds = self.classifier.memory.log_odds(parts)
        trees = self.classifier.p_valid(configurations)
        return [
            self._judge(
                c, parts=parts, row=i, need=float(need[i]), odds=float(odds[i]), trees=float(trees[i])
            )
            for i, c in enumerate(configurations)
        ]

    def _judge(
        self, c: Configuration, *, parts: MemoryParts, row: int, need: float, odds: float, trees: float
    ) -> Validity:
        rule = broken_rule(c)
        if rule:
            return Validity(
                valid=False,
                p_valid=0.0,
                reason=rule,
                memory_gb=None,
                limit_gb=None,
                decided_by="rule",
                outside=(),
            )
        limit, states = float(parts.limit_gb[row]), float(parts.states_gb[row])
        outside = self._outside(c)
        if states >= limit:
            p, by = 1 - _SURE, "memory"
            reason = f"weights and optimizer states alone take {states:.3g} GB per GPU, {c.gpu_model} has {limit:g} GB"
        elif c.method == "gptq-lora" or limit not in _LIMITS or _off_grid(c):
            p, by = float(1 / (1 + np.exp(-odds))), "memory"
            reason = f"estimated peak of {need:.3g} GB per GPU, {c.gpu_model} has {limit:g} GB"
        else:
            p, by = trees, "classifier"
            reason = f"{percent(p)} by published (synthetic) labels; a memory estimate of {need:.3g} of {limit:g} GB per GPU"
        return Validity(
            valid=p > 0.5,
            p_valid=p,
            reason=reason,
            memory_gb=need,
            limit_gb=limit,
            decided_by=by,
            outside=outside,
        )

    def _outside(self, c: Configuration) -> tuple[str, ...]:
        out = [f"no validity of {c.method} is labelled"] if c.method == "gptq-lora" else []
        if c.model_name not in self.classifier.models:
            out.append(f"no validity of {c.model_name} is labelled: models of like shape stand in")
        if c.gpu_model not in self.classifier.gpus:
            out.append(f"no validity on {c.gpu_model} is labelled: its memory stands in")
        return (*out, *_off_grid(c))


def identity(c: Configuration) -> _KEY:
    """Return the values that must be equal for a measured run to count for ``c``; the number format is not among them."""
    return (
        c.model_name,
        c.method,
        c.gpu_model,
        c.number_gpus,
        c.number_nodes,
        c.tokens_per_sample,
        c.batch_size,
    )


def broken_rule(c: Configuration) -> str:
    """Return the rule that rejects ``c`` before a run, or ""; raises `InputError` for an unknown model or GPU."""
    shape, device = architecture(c.model_name), gpu(c.gpu_model)
    if c.batch_size % c.number_gpus:
        return f"batch size {c.batch_size} is not divisible by {c.number_gpus} GPUs"
    if c.number_gpus % c.number_nodes:
        return f"{c.number_gpus} GPUs are not divisible by {c.number_nodes} nodes"
    if shape.learned_positions and shape.max_tokens is not None and c.tokens_per_sample > shape.max_tokens:
        return f"{c.model_name} has a table of {shape.max_tokens} positions, {c.tokens_per_sample} tokens per sample do not fit"
    if c.method == "gptq-lora" and c.dtype != "float16":
        return f"gptq-lora runs in float16 only, {c.dtype} was requested"
    if c.dtype == "bfloat16" and not device.bfloat16:
        return f"{c.gpu_model} has no bfloat16"
    return ""


def _off_grid(c: Configuration) -> tuple[str, ...]:
    """Return a sentence for each number outside the grid of labels."""
    return tuple(
        f"{name} {getattr(c, name)} lies outside the labels' {low} to {high}"
        for name, (low, high) in _GRID.items()
        if not low <= getattr(c, name) <= high
    )
