"""Configuration model (M9): throughput and validity of a fine-tuning configuration, estimated from measured runs.

`fit_configurations` fits a `ConfigurationModel` to data, `load_configurations` reads a stored model. The parts are `facts` (inputs,
outputs and data sheets), `runs` (measured runs, cleaned), `throughput` (physical model, Gaussian process, intervals) and
`validity` (rules, memory, classifier).
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from slackwater.forecasting.configurations.facts import (
    METHODS,
    Configuration,
    MemoryModel,
    PredictedThroughput,
    Validity,
    architecture,
    calibrate_memory,
    features,
    known_models,
    memory_parts,
)
from slackwater.forecasting.configurations.runs import (
    COLUMNS,
    checked_runs,
    configurations_of,
    read_runs,
    runs_frame,
)
from slackwater.forecasting.configurations.throughput import (
    CONSTANTS,
    Calibration,
    ThroughputModel,
    fit_throughput,
    initial_parameters,
    points_of,
    restore,
)
from slackwater.forecasting.configurations.validity import (
    Classifier,
    ValidityModel,
    fit_classifier,
    identity,
    label_configurations,
    read_labels,
)
from slackwater.warehouse.errors import InputError, SourceFileError

if TYPE_CHECKING:
    from lightgbm import Booster


__all__ = [
    "METHODS", "Configuration", "ConfigurationModel", "PredictedThroughput", "Validity", "fit_configurations",
    "load_configurations", "read_runs", "runs_frame",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationModel:
    """Model of throughput and validity of configurations; immutable."""

    throughput: ThroughputModel
    checks: ValidityModel
    seed: int

    @property
    def models(self) -> Mapping[str, float]:
        """Known models and their parameters in billions; other models are named with their size, ``name@7.2b``."""
        reported = set(self.throughput.runs["model_name"]) - set(known_models())
        return {name: architecture(name).params_b for name in (*known_models(), *sorted(reported))}

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """Measured GPU models, those with most rows first."""
        return tuple(self.throughput.runs["gpu_model"].value_counts().index)

    def predict(self, configurations: Sequence[Configuration]) -> list[PredictedThroughput]:
        """Predict tokens per second of each configuration. Raises `InputError` for an unknown model or GPU."""
        return self.throughput.predict(configurations)

    def validity(self, configurations: Sequence[Configuration]) -> list[Validity]:
        """Return for each configuration whether it runs, and the basis of the decision."""
        return self.checks.judge(configurations)

    def with_runs(self, runs: pd.DataFrame) -> ConfigurationModel:
        """Return the model updated with reported runs (see `runs_frame`). Raises `InputError` if they are invalid."""
        throughput = self.throughput.with_runs(checked_runs(runs))
        ran = frozenset(map(identity, configurations_of(throughput.runs)))
        return replace(self, throughput=throughput, checks=replace(self.checks, ran=ran))

    def save(self, path: Path) -> None:
        """Store the model in one file."""
        write_model(self, path)


def fit_configurations(folder: Path, *, seed: int) -> ConfigurationModel:
    """Fit to the measurements and validity labels of ``folder``. Raises `SourceFileError` for a missing or broken file."""
    runs, labels = read_runs(folder), read_labels(folder)
    labelled, p_valid = label_configurations(labels), labels["p_valid"].to_numpy()
    memory = calibrate_memory(memory_parts(labelled), p_valid)
    classifier = fit_classifier(labelled, p_valid, memory=memory, seed=seed)
    ran = frozenset(map(identity, configurations_of(runs)))
    return ConfigurationModel(
        throughput=fit_throughput(runs), checks=ValidityModel(classifier=classifier, ran=ran), seed=seed
    )


# ---
# File format of a configuration model: a zip of JSON and tables, without code (no pickle).

FORMAT: Final = 1
_KIND: Final = "slackwater configurations"


def write_model(model: ConfigurationModel, path: Path) -> None:
    """Write ``model`` atomically; equal models give equal bytes. Raises `InputError` if the file cannot be written."""
    throughput, classifier = model.throughput, model.checks.classifier
    head = {
        "kind": _KIND, "format": FORMAT, "seed": model.seed, "law": throughput.law.tolist(),
        "theta": throughput.process.theta.tolist(), "calibration": throughput.calibration.to_json(),
        "memory": asdict(classifier.memory), "models": classifier.models, "gpus": classifier.gpus,
    }  # fmt: skip
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in (
            ("model.json", json.dumps(head)),
            ("runs.csv", throughput.runs.to_csv(index=False)),
            ("named.txt", classifier.named.model_to_string()),
            ("shapes.txt", classifier.shapes.model_to_string()),
        ):
            file.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content.getvalue())
        part.replace(path)
    except OSError as error:
        raise InputError(
            f"configuration model {path}: {error.strerror}",
            expected="a writable file",
            remedy="choose another path",
        ) from error


def load_configurations(path: Path) -> ConfigurationModel:
    """Read a stored `ConfigurationModel`; raises `SourceFileError` for a file missing, damaged, other or newer."""
    head, runs, trees = _read_archive(path)
    try:
        scores = np.array(head["calibration"].pop("scores"))
        first = runs.iloc[: len(scores)]
        calibration = Calibration(
            points=points_of(features(configurations_of(first))), scores=scores, **head["calibration"]
        )
        classifier = Classifier(
            memory=MemoryModel(**head["memory"]), models=tuple(head["models"]), gpus=tuple(head["gpus"]),
            named=_booster(trees[0], path), shapes=_booster(trees[1], path),
        )  # fmt: skip
        throughput = restore(
            runs,
            law=_numbers(head["law"], CONSTANTS),
            theta=_numbers(head["theta"], len(initial_parameters())),
            calibration=calibration,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _broken_file(path, f"its parts do not fit together ({error})") from error
    ran = frozenset(map(identity, configurations_of(runs)))
    return ConfigurationModel(
        throughput=throughput, checks=ValidityModel(classifier=classifier, ran=ran), seed=int(head["seed"])
    )


def _read_archive(path: Path) -> tuple[dict[str, Any], pd.DataFrame, tuple[str, str]]:
    """Read the file of a model: its head, its runs and its two classifiers as text; raises `SourceFileError` for another file."""
    try:
        with zipfile.ZipFile(path) as file:
            head = json.loads(file.read("model.json"))
            _check_head(head, path)
            runs = pd.read_csv(io.BytesIO(file.read("runs.csv")))
            trees = (file.read("named.txt").decode(), file.read("shapes.txt").decode())
    except OSError as error:
        raise SourceFileError(
            path, 0, error.strerror or str(error), expected="a configuration model",
            remedy="make one with `slackwater fit-configurations DATA`",
        ) from error  # fmt: skip
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise _broken_file(path, f"it is damaged ({error})") from error
    if set(COLUMNS) - set(runs.columns):
        raise _broken_file(path, "its runs lack columns")
    return head, runs, trees


def _check_head(head: Any, path: Path) -> None:
    if not isinstance(head, dict) or head.get("kind") != _KIND or not isinstance(head.get("format"), int):
        raise _broken_file(path, "it is not a configuration model")
    if head["format"] > FORMAT:
        raise SourceFileError(
            path, 0, f"format {head['format']}", expected=f"format {FORMAT} or older",
            remedy="update the program, or fit again",
        )  # fmt: skip


def _numbers(values: Any, size: int) -> np.ndarray:
    array = np.array(values, dtype=float)
    if array.shape != (size,) or not np.isfinite(array).all():
        raise ValueError(f"{size} numbers were expected")
    return array


def _booster(text: str, path: Path) -> Booster:
    from lightgbm import Booster
    from lightgbm.basic import LightGBMError

    try:
        return Booster(model_str=text)
    except LightGBMError as error:
        raise _broken_file(path, f"its trees are damaged ({error})") from error


def _broken_file(path: Path, found: str) -> SourceFileError:
    return SourceFileError(
        path, 0, found, expected="a file written by `slackwater fit-configurations`", remedy="fit again"
    )
