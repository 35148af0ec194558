"""What a configuration really yields in the experiment on a cluster: measured rates, and a smooth surface between them (M9.5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.interpolate import RBFInterpolator

from warehouse.errors import SettingsError

#: Ridge on the thin-plate spline: repeated campaigns of one configuration differ by about 2 %.
SMOOTHING = 0.1
#: How far apart one GPU and several are, and lengths of ratio two, in units of a ratio of two in tokens a GPU and step.
SEVERAL, LENGTH = 2.0, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Configurations of one model and method: GPUs, samples a step over all GPUs, tokens a sample; arrays of one shape."""

    gpus: np.ndarray
    batch: np.ndarray
    tokens_per_sample: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSurface:
    """Rates of one model, method and GPU model: ``measured`` tokens per second over all GPUs at ``grid``, and between them."""

    grid: Grid
    measured: np.ndarray

    def __post_init__(self) -> None:
        if not len(self.measured) or not (np.asarray(self.measured) > 0).all():
            raise SettingsError(
                f"a surface of {len(self.measured)} rates, not all positive",
                expected="at least one positive rate",
            )

    def rates(self, grid: Grid) -> np.ndarray:
        """Tokens per second over all GPUs: the median of what was measured where something was, else `smooth_rates`."""
        known: dict[tuple[int, int, int], list[float]] = {}
        for key, rate in zip(_keys(self.grid), self.measured, strict=True):
            known.setdefault(key, []).append(float(rate))
        smooth = self.smooth_rates(grid)
        return np.array(
            [
                float(np.median(known[key])) if key in known else float(rate)
                for key, rate in zip(_keys(grid), smooth, strict=True)
            ]
        )

    def smooth_rates(self, grid: Grid) -> np.ndarray:
        """A smoothed thin-plate spline of log rate per GPU over log tokens a GPU and step, log GPUs and log length (ours).

        Kept within the least and the largest measured rate per GPU, so that nothing runs away outside the data.
        """
        per_gpu = np.log(np.asarray(self.measured, dtype=float) / self.grid.gpus)
        here, there = _features(self.grid), _features(grid)
        varies = np.ptp(here, axis=0) > 0
        if not varies.any() or len(per_gpu) <= varies.sum() + 1:
            return np.asarray(np.exp(np.median(per_gpu)) * grid.gpus)
        spline = RBFInterpolator(here[:, varies], per_gpu, kernel="thin_plate_spline", smoothing=SMOOTHING)
        return np.asarray(np.exp(np.clip(spline(there[:, varies]), per_gpu.min(), per_gpu.max())) * grid.gpus)


def _keys(grid: Grid) -> list[tuple[int, int, int]]:
    return [
        (int(g), int(b), int(t))
        for g, b, t in zip(grid.gpus, grid.batch, grid.tokens_per_sample, strict=True)
    ]


def _features(grid: Grid) -> np.ndarray:
    gpus, length = np.asarray(grid.gpus, dtype=float), np.asarray(grid.tokens_per_sample, dtype=float)
    return np.column_stack(
        [
            np.log2(length * grid.batch / gpus),
            np.log2(gpus),
            SEVERAL * (gpus > 1),
            LENGTH * np.log2(length),
        ]
    )
