"""What is true and what is predicted of every configuration in the experiment on a cluster (M9.5), from the measured runs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pandas as pd

from forecasting.configurations.facts import Configuration, Predicted, Validity
from forecasting.configurations.runs import RUNS_FILE, read_runs
from optimization.cluster.stream import Family, RateGrid, RateSurface
from warehouse.errors import InputError

if TYPE_CHECKING:
    from flows.experiments.runner import Progress

LABELS_FILE: Final = "autoconf_predicted_validity.parquet"
#: The GPU of the cluster: three of four measured runs are on it.
GPU_MODEL: Final = "NVIDIA-A100-SXM4-80GB"
WIDTHS: Final = (1, 2, 4, 8)
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
#: A model and method with fewer distinct measured configurations than this is no family of jobs.
LEAST_CONFIGURATIONS: Final = 10
#: Models without labels of their own, and whose labels stand for them: the same architecture, and the dense model nearest in size.
STAND_INS: Final = {"granite-3.3-8b": "granite-3.1-8b-instruct", "llama3.2-3b": "granite-3b-code-base-128k"}


class Model(Protocol):
    """What is asked of a model of configurations (`forecasting.configurations.model.ConfigurationModel`)."""

    def predict(self, configurations: Sequence[Configuration]) -> list[Predicted]:
        """Throughput of every configuration."""

    def validity(self, configurations: Sequence[Configuration]) -> list[Validity]:
        """Whether every configuration runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Families of jobs, the share of measured runs by GPUs, and how good truth and predictions are.

    ``figures``: ``families``, ``measured`` and ``interpolated`` configurations that run, ``truth_error`` (median error of the
    surface on configurations left out), ``mdape`` of the predictions on measured configurations of held-out families,
    ``validity_error`` on the labels, ``failure_rate`` of the labels on the grid.
    """

    families: tuple[Family, ...]
    shares: tuple[tuple[int, float], ...]
    figures: Mapping[str, float]


def finetune_folder(data: Path) -> Path:
    """The folder of the measured runs: ``data`` itself or its ``finetune``. Raises `InputError` if neither has them."""
    for folder in (data, data / "finetune"):
        if (folder / RUNS_FILE).is_file():
            return folder
    raise InputError(
        f"{data}: no {RUNS_FILE}" + ("" if data.is_dir() else " (no such folder)"),
        expected=f"a folder with {RUNS_FILE} and {LABELS_FILE}, or one whose `finetune` has them",
        remedy="give that folder with --data",
    )


def learn(
    folder: Path,
    fit: Callable[[Path, int], Model],
    *,
    seed: int,
    folds: int,
    progress: Progress | None = None,
) -> Knowledge:
    """Truth and predictions of every family.

    Families (model, method, length) fall into ``folds`` parts at random. Each is predicted by ``fit(folder, seed)`` on a folder
    without its rows and labels, so no configuration of a family, measured or labelled, is known to the model that predicts it.
    True rates are the measured ones, between them `RateSurface` fitted on all runs; true validity is "measured, or labelled
    valid by the published classifier" (synthetic).
    """
    runs = measured_runs(folder)
    labels = _labels(folder)
    keys = list(
        dict.fromkeys(runs[["model_name", "method", "tokens_per_sample"]].itertuples(index=False, name=None))
    )
    fold_of = np.random.default_rng([seed, 5]).permutation(len(keys)) % folds
    families: dict[int, Family] = {}
    for fold in range(folds):
        held_out = [keys[k] for k in np.flatnonzero(fold_of == fold)]
        with tempfile.TemporaryDirectory() as spare:
            model = fit(_folder_without(folder, held_out, Path(spare)), seed)
        for k in np.flatnonzero(fold_of == fold).tolist():
            families[k] = _family(keys[k], runs, labels, model)
        if progress is not None:
            progress(fold + 1, folds)
    ordered = tuple(families[k] for k in range(len(keys)))
    return Knowledge(families=ordered, shares=_shares(runs), figures=_figures(ordered, keys, runs, labels))


def measured_runs(folder: Path) -> pd.DataFrame:
    """Measured runs on one node of `GPU_MODEL` of the models and methods with enough of them."""
    runs = read_runs(folder)
    runs = runs[
        (runs["gpu_model"] == GPU_MODEL) & runs["number_gpus"].isin(WIDTHS) & (runs["number_nodes"] == 1)
    ]
    counts = (
        runs.drop_duplicates(["model_name", "method", "number_gpus", "tokens_per_sample", "batch_size"])
        .groupby(["model_name", "method"])["batch_size"]
        .transform("size")
    )
    enough = (
        counts.reindex(runs.index).groupby([runs["model_name"], runs["method"]]).transform("max")
        >= LEAST_CONFIGURATIONS
    )
    if not enough.any():
        raise InputError(
            f"{folder}: no model with {LEAST_CONFIGURATIONS} measured configurations on {GPU_MODEL}",
            expected="the measured fine-tuning runs", remedy="give the folder that holds them with --data",
        )  # fmt: skip
    return runs[enough].reset_index(drop=True)


def _labels(folder: Path) -> dict[tuple[Any, ...], bool]:
    """(model, method, length, GPUs, batch) -> valid by the published classifier, on `GPU_MODEL`."""
    path = folder / LABELS_FILE
    if not path.is_file():
        raise InputError(
            f"{path}: no such file",
            expected="the validity labels of the published classifier",
            remedy="fetch it again",
        )
    frame = pd.read_parquet(path)
    frame = frame[frame["gpu_model"] == GPU_MODEL]
    columns = ["model_name", "method", "tokens_per_sample", "number_gpus", "batch_size", "predicted_valid"]
    return {tuple(row[:5]): bool(row[5]) for row in frame[columns].itertuples(index=False, name=None)}


def _folder_without(folder: Path, held_out: Sequence[tuple[Any, ...]], spare: Path) -> Path:
    """A copy of the data without the rows and labels of these families (model, method, length)."""
    gone = set(held_out)
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name not in (RUNS_FILE, LABELS_FILE):
            shutil.copyfile(path, spare / path.name)
    runs, labels = pd.read_csv(folder / RUNS_FILE), pd.read_parquet(folder / LABELS_FILE)
    _without(runs, gone).to_csv(spare / RUNS_FILE, index=False)
    _without(labels, gone).to_parquet(spare / LABELS_FILE, index=False)
    return spare


def _grid(tokens_per_sample: int) -> RateGrid:
    gpus, batch = (a.ravel() for a in np.meshgrid(WIDTHS, BATCHES, indexing="ij"))
    return RateGrid(gpus=gpus, batch=batch, tokens_per_sample=np.full(gpus.size, tokens_per_sample))


def _surface(runs: pd.DataFrame) -> RateSurface:
    grid = RateGrid(
        gpus=runs["number_gpus"].to_numpy(),
        batch=runs["batch_size"].to_numpy(),
        tokens_per_sample=runs["tokens_per_sample"].to_numpy(),
    )
    return RateSurface(grid=grid, measured=runs["tokens_per_second"].to_numpy(dtype=float))


def _family(
    key: tuple[Any, ...], runs: pd.DataFrame, labels: Mapping[tuple[Any, ...], bool], model: Model
) -> Family:
    name, method, length = str(key[0]), str(key[1]), int(key[2])
    own = runs[(runs["model_name"] == name) & (runs["method"] == method)]
    grid = _grid(length)
    runs_well = _true_validity(key, grid, own, labels)
    configurations = [
        Configuration(
            model_name=name,
            method=method,
            gpu_model=GPU_MODEL,
            number_gpus=int(g),
            tokens_per_sample=length,
            batch_size=int(b),
        )
        for g, b in zip(grid.gpus, grid.batch, strict=True)
    ]
    divides = grid.batch % grid.gpus == 0
    verdicts = model.validity(configurations)
    return Family(
        name=f"{name}, {method}, {length} tokens",
        gpus=grid.gpus,
        batch=grid.batch,
        true=np.where(runs_well, _surface(own).rates(grid), 0.0),
        believed=np.array([p.tokens_per_second for p in model.predict(configurations)]),
        p_valid=np.where(divides, [v.p_valid for v in verdicts], 0.0),
        valid=divides & np.array([v.valid for v in verdicts]),
    )


def _true_validity(
    key: tuple[Any, ...], grid: RateGrid, own: pd.DataFrame, labels: Mapping[tuple[Any, ...], bool]
) -> np.ndarray:
    """Measured, or labelled valid: a label is taken from the stand-in where the model has none, of LoRA for its quantised form."""
    at_length = own[own["tokens_per_sample"] == key[2]]
    measured = set(zip(at_length["number_gpus"], at_length["batch_size"], strict=True))
    model, method = STAND_INS.get(key[0], key[0]), "lora" if key[1] == "gptq-lora" else key[1]
    return np.array(
        [
            (g, b) in measured or (b % g == 0 and labels.get((model, method, key[2], g, b), False))
            for g, b in zip(grid.gpus.tolist(), grid.batch.tolist(), strict=True)
        ]
    )


def _shares(runs: pd.DataFrame) -> tuple[tuple[int, float], ...]:
    counts = runs["number_gpus"].value_counts(normalize=True)
    return tuple((width, float(counts.get(width, 0.0))) for width in WIDTHS)


def _figures(
    families: Sequence[Family],
    keys: Sequence[tuple[Any, ...]],
    runs: pd.DataFrame,
    labels: Mapping[tuple[Any, ...], bool],
) -> dict[str, float]:
    wrong, errors, measured = [], [], 0
    for key, family in zip(keys, families, strict=True):
        own = runs[
            (runs["model_name"] == key[0])
            & (runs["method"] == key[1])
            & (runs["tokens_per_sample"] == key[2])
        ]
        seen = set(zip(own["number_gpus"], own["batch_size"], strict=True))
        at = np.array([(int(g), int(b)) in seen for g, b in zip(family.gpus, family.batch, strict=True)])
        measured += int(at.sum())
        errors.extend(np.abs(family.believed[at] / family.true[at] - 1.0).tolist())
        divides = family.batch % family.gpus == 0
        wrong.extend((family.valid != (family.true > 0))[divides].tolist())
    runs_well = np.concatenate([family.true > 0 for family in families])
    return {
        "families": float(len(families)),
        "measured": float(measured),
        "interpolated": float(runs_well.sum() - measured),
        "truth_error": _truth_error(runs),
        "mdape": float(np.median(errors)),
        "validity_error": float(np.mean(wrong)),
        "failure_rate": float(1.0 - runs_well.mean()),
    }


def _truth_error(runs: pd.DataFrame) -> float:
    """Median relative error of the surface on a fifth of the configurations left out, five times over."""
    errors: list[float] = []
    for _, own in runs.groupby(["model_name", "method"], sort=True):
        turn = np.arange(len(own)) % 5
        for part in range(5):
            test = own[turn == part]
            if len(test) and len(own) > len(test):
                found = _surface(own[turn != part]).smooth_rates(_surface(test).grid)
                errors.extend(np.abs(found / test["tokens_per_second"].to_numpy() - 1.0).tolist())
    return float(np.median(errors))


def _without(frame: pd.DataFrame, gone: set[tuple[Any, ...]]) -> pd.DataFrame:
    """The rows of other families."""
    keys = zip(frame["model_name"], frame["method"], frame["tokens_per_sample"], strict=True)
    return frame[[key not in gone for key in keys]]
