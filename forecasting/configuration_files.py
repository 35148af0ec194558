"""A configuration model in one file: a zip of JSON and tables, never code (no pickle)."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from forecasting.configuration_features import features
from forecasting.configuration_intervals import Calibration
from forecasting.configuration_runs import COLUMNS, configurations_of
from forecasting.configuration_throughput import points_of, restore
from warehouse.errors import InputError, SourceFileError

if TYPE_CHECKING:
    from forecasting.configurations import ConfigurationModel

FORMAT: Final = 1
_KIND: Final = "slackwater configurations"


def write_model(model: ConfigurationModel, path: Path) -> None:
    """Write ``model`` whole or not at all; the same model gives the same bytes. Raises `InputError` if it cannot."""
    throughput = model.throughput
    head = {
        "kind": _KIND, "format": FORMAT, "seed": model.seed, "law": throughput.law.tolist(),
        "theta": throughput.process.theta.tolist(), "calibration": throughput.calibration.to_json(),
        "left_out": throughput.runs.attrs.get("left_out"),
    }  # fmt: skip
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in (
            ("model.json", json.dumps(head)),
            ("runs.csv", throughput.runs.to_csv(index=False)),
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

    head, runs = _parts(path)
    if head.get("kind") != _KIND:
        raise _broken(path, "it is not a configuration model")
    if head["format"] > FORMAT:
        raise SourceFileError(
            path,
            0,
            f"format {head['format']}",
            expected=f"format {FORMAT} or older",
            remedy="update the program, or fit again",
        )
    try:
        scores = np.array(head["calibration"].pop("scores"))
        first = runs.iloc[: len(scores)]
        calibration = Calibration(
            points=points_of(features(configurations_of(first))), scores=scores, **head["calibration"]
        )
        throughput = restore(
            runs, law=np.array(head["law"]), theta=np.array(head["theta"]), calibration=calibration
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(path, f"its parts do not fit together ({error})") from error
    return ConfigurationModel(throughput=throughput, seed=int(head["seed"]))


def _parts(path: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    try:
        with zipfile.ZipFile(path) as file:
            head = json.loads(file.read("model.json"))
            runs = pd.read_csv(io.BytesIO(file.read("runs.csv")))
    except OSError as error:
        raise SourceFileError(
            path, 0, error.strerror or str(error), expected="a configuration model",
            remedy="make one with `slackwater fit-configurations DATA`",
        ) from error  # fmt: skip
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise _broken(path, f"it is damaged ({error})") from error
    if not isinstance(head, dict) or set(COLUMNS) - set(runs.columns):
        raise _broken(path, "it is not a configuration model")
    return head, runs


def _broken(path: Path, found: str) -> SourceFileError:
    return SourceFileError(
        path, 0, found, expected="a file written by `slackwater fit-configurations`", remedy="fit again"
    )
