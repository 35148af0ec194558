"""Throughput of fine-tuning configurations: a physical law, a Gaussian process on what it leaves, intervals (M9.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from forecasting import configuration_process as process
from forecasting.configuration_features import Features, features
from forecasting.configuration_intervals import Calibration, calibrate
from forecasting.configuration_law import fit_law, log_rate
from forecasting.configuration_outside import Ranges, ranges_of
from forecasting.configuration_runs import configurations_of
from forecasting.configuration_values import Configuration, Predicted

#: Steps of the search for hyperparameters; more change no error by a tenth of a point.
ITERATIONS: Final = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputModel:
    """Everything needed to predict: the rows seen, the law's constants, the process on its residual, the intervals' calibration."""

    runs: pd.DataFrame
    law: np.ndarray
    process: process.Process
    calibration: Calibration
    ranges: Ranges

    def predict(self, configurations: Sequence[Configuration]) -> list[Predicted]:
        """Median and 90 % interval of tokens per second for every configuration. Raises `InputError` for unknown models or GPUs."""
        if not configurations:
            return []
        f = features(configurations)
        points = points_of(f)
        mean, sd = self.process.predict(points)
        centre = np.exp(log_rate(self.law, f) + mean) * f.number_gpus
        distances = [self.ranges.distance(c) for c in configurations]
        reach = self.calibration.reach(points, sd, self.process.points) * np.array([1 + d for d in distances])
        return [
            Predicted(
                tokens_per_second=float(centre[i]),
                low=float(centre[i] * np.exp(-reach[i])),
                high=float(centre[i] * np.exp(reach[i])),
                outside=self.ranges.sentences(c),
            )
            for i, c in enumerate(configurations)
        ]

    def with_runs(self, runs: pd.DataFrame) -> ThroughputModel:
        """The model after it has seen ``runs`` (columns of `configuration_runs.COLUMNS`); constants and calibration stay.

        Conditioning can only lower the variance of the process: a reported run pulls its configuration's prediction towards it
        and never widens its interval; a model or group seen for the first time is from then on judged as a measured one.
        """
        joined = pd.concat([self.runs, runs], ignore_index=True)
        f = features(configurations_of(joined))
        points = points_of(f)
        residual = log_per_gpu(joined, f) - log_rate(self.law, f)
        return replace(
            self,
            runs=joined,
            process=process.condition(points, residual, self.process.theta),
            ranges=ranges_of(configurations_of(joined)),
        )


def fit_throughput(
    runs: pd.DataFrame, *, iterations: int = ITERATIONS, theta: np.ndarray | None = None
) -> ThroughputModel:
    """Fit law, process and calibration to cleaned runs; ``theta`` are hyperparameters to begin the search with."""
    configurations = configurations_of(runs)
    f = features(configurations)
    rate = log_per_gpu(runs, f)
    law = fit_law(f, rate)
    residual = rate - log_rate(law, f)
    points = points_of(f)
    fitted = process.fit(
        points, residual, theta=process.start() if theta is None else theta, iterations=iterations
    )
    return ThroughputModel(
        runs=runs.reset_index(drop=True), law=law, process=fitted, calibration=calibrate(fitted),
        ranges=ranges_of(configurations),
    )  # fmt: skip


def restore(
    runs: pd.DataFrame, *, law: np.ndarray, theta: np.ndarray, calibration: Calibration
) -> ThroughputModel:
    """A model again from what was kept of it: rows, constants, hyperparameters and calibration."""
    configurations = configurations_of(runs)
    f = features(configurations)
    residual = log_per_gpu(runs, f) - log_rate(law, f)
    return ThroughputModel(
        runs=runs, law=law, process=process.condition(points_of(f), residual, theta), calibration=calibration,
        ranges=ranges_of(configurations),
    )  # fmt: skip


def log_per_gpu(runs: pd.DataFrame, f: Features) -> np.ndarray:
    """Log of measured tokens per second and GPU."""
    return np.asarray(np.log(runs["tokens_per_second"].to_numpy(dtype=float) / f.number_gpus))


def points_of(f: Features) -> process.Points:
    """Coordinates (`configuration_process.AXES`; doublings, logs of size and peak) and groups of the process."""
    x = np.column_stack(
        [
            np.log2(f.tokens), np.log2(f.length), np.log2(f.number_gpus), np.log2(f.number_nodes),
            np.log(f.params_b), np.log(f.peak), np.clip(f.pressure, 0, 1.2),
        ]
    )  # fmt: skip
    model, method, device, _ = (np.array(names) for names in zip(*f.names, strict=True))
    groups: Mapping[str, np.ndarray] = {
        "model": model, "method": method, "gpu": device, "count": f.number_gpus.astype(int),
        "group": np.array(["|".join(names) for names in f.names]),
    }  # fmt: skip
    return process.Points(x=x, groups=groups)
