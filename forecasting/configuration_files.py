"""A configuration model in one file: a zip of JSON and tables, never code (no pickle)."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from forecasting.configuration_classifier import Classifier
from forecasting.configuration_features import features
from forecasting.configuration_intervals import Calibration
from forecasting.configuration_law import CONSTANTS
from forecasting.configuration_memory import MemoryModel
from forecasting.configuration_process import start
from forecasting.configuration_runs import COLUMNS, configurations_of
from forecasting.configuration_throughput import points_of, restore
from forecasting.configuration_validity import ValidityModel, identity
from warehouse.errors import InputError, SourceFileError

if TYPE_CHECKING:
    from lightgbm import Booster

    from forecasting.configurations import ConfigurationModel

FORMAT: Final = 1
_KIND: Final = "slackwater configurations"


def write_model(model: ConfigurationModel, path: Path) -> None:
    """Write ``model`` whole or not at all; the same model gives the same bytes. Raises `InputError` if it cannot."""
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


def read_model(path: Path) -> ConfigurationModel:
    """Read a model. Raises `SourceFileError` for a file that is missing, damaged, of another kind, or of a newer format."""
    from forecasting.configurations import ConfigurationModel

    head, runs, trees = _parts(path)
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
            theta=_numbers(head["theta"], len(start())),
            calibration=calibration,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(path, f"its parts do not fit together ({error})") from error
    ran = frozenset(map(identity, configurations_of(runs)))
    return ConfigurationModel(
        throughput=throughput, checks=ValidityModel(classifier=classifier, ran=ran), seed=int(head["seed"])
    )


def _parts(path: Path) -> tuple[dict[str, Any], pd.DataFrame, tuple[str, str]]:
    """Head, runs and texts of the trees, after the kind and format are known to be ours."""
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
        raise _broken(path, f"it is damaged ({error})") from error
    if set(COLUMNS) - set(runs.columns):
        raise _broken(path, "its runs lack columns")
    return head, runs, trees


def _check_head(head: Any, path: Path) -> None:
    if not isinstance(head, dict) or head.get("kind") != _KIND or not isinstance(head.get("format"), int):
        raise _broken(path, "it is not a configuration model")
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
        raise _broken(path, f"its trees are damaged ({error})") from error


def _broken(path: Path, found: str) -> SourceFileError:
    return SourceFileError(
        path, 0, found, expected="a file written by `slackwater fit-configurations`", remedy="fit again"
    )
