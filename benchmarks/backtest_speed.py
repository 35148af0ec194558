"""Backtests compared with Nixtla's libraries: the same series, origins, horizon and refit cadence, single-threaded.

statsforecast's AutoARIMA is compared with our ARIMA, mlforecast's LightGBM with ours (``lightgbm`` in the registry), in the order
peer, ours, peer, so that changes in the speed of the machine become visible. The peers run in a separate environment, created once
by uv from ``benchmarks/peers/requirements.txt`` in the folder ``SLACKWATER_PEERS`` (default ``.peers``). Their quantiles get the
same bounds and rounding as ours, which can only improve them. Gaps are not scored.

``SLACKWATER_PEER_SLOTS`` (default 704) limits series to their newest slots: AutoARIMA takes seconds per estimation.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.forecasting import histories
from slackwater.forecasting.predictor import Panel, bound_quantiles
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.predictors.distributions import ahead
from slackwater.forecasting.quantiles import LEVELS, Variable
from slackwater.forecasting.series import series_of
from slackwater.warehouse.errors import SettingsError

HORIZON = 12
REFIT = 48
STEPS = (1, 2, 4, 8, 12)
#: Slots used by an estimation, of our ARIMA (its built-in limit) and of AutoARIMA (``input_size``).
TRAINING = 1000
GROUPS: dict[str, tuple[str, Variable]] = {
    "h100_counts": ("skynomad-artifact:h100", "count"),
    "v100_counts_16": ("availability/16-node", "count"),
    "v100_prices": ("skynomad-artifact:v100", "price"),
}
#: Our predictor -> the peer with the same kind of model.
PAIRS = {"arima": "autoarima", "lightgbm": "lightgbm"}
PEERS = Path(__file__).parent / "peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Series of a source on the same slots, and the forecast origins (indices) of the test."""

    name: str
    panel: Panel
    origins: np.ndarray

    @property
    def quantities(self) -> int:
        """Number of forecast values: series x origins x steps x quantiles."""
        return len(self.panel) * self.origins.size * HORIZON * LEVELS.size


def run(data: Path) -> dict[str, Any]:
    groups = list(groups_of(data))
    python = peers_environment()
    out: dict[str, Any] = {
        "horizon": HORIZON, "refit_every_slots": REFIT,
        "origins": {group.name: [len(group.panel), int(group.origins.size)] for group in groups},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hand_over(groups, folder)
        for ours, peer in PAIRS.items():
            first = peer_seconds(python, peer, folder)
            rows = {group.name: own_run(group, ours) for group in groups}
            second = peer_seconds(python, peer, folder)
            theirs = pd.read_parquet(folder / f"{peer}.parquet")
            out[ours] = {
                group.name: compared(group, rows[group.name], theirs, (first, second)) for group in groups
            }
    return out


def groups_of(data: Path) -> Iterator[Group]:
    """Yield the series of each source, cut to their common slots."""
    most = int(os.environ.get("SLACKWATER_PEER_SLOTS", "704"))
    for name, (source, variable) in GROUPS.items():
        every = [series_of(history, variable) for history in histories(data, (source,))]
        first, end = max(s.first_slot for s in every), min(s.end for s in every)
        first = max(first, end - most)
        panel = Panel(series=tuple(s.part(first - s.first_slot, end - s.first_slot) for s in every))
        n = end - first
        yield Group(name=name, panel=panel, origins=np.arange(n // 2 - 1, n - HORIZON))


def peers_environment() -> Path:
    """Return the interpreter of the peers' environment, created if missing."""
    folder = Path(os.environ.get("SLACKWATER_PEERS", ".peers"))
    python = folder / "bin" / "python"
    if python.exists():
        return python
    beside = Path(sys.executable).parent / "uv"
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise SettingsError("no uv on the path", expected="uv, which makes the peers' environment")
    print(f"make the peers' environment in {folder}", file=sys.stderr)
    subprocess.run([uv, "venv", "-q", "--python", "3.11", str(folder)], check=True)
    subprocess.run(
        [uv, "pip", "install", "-q", "--python", str(python), "-r", str(PEERS / "requirements.txt")], check=True
    )  # fmt: skip
    return python


def hand_over(groups: list[Group], folder: Path) -> None:
    """Write the series and the plan for the peers."""
    parts, windows = [], {}
    for group in groups:
        windows[group.name] = int(group.origins.size)
        for which, series in enumerate(group.panel.series):
            epoch = pd.Timestamp(0, tz="UTC")
            ds = pd.date_range(epoch + series.first_slot * series.step, periods=len(series), freq=series.step)
            parts.append(
                pd.DataFrame({"group": group.name, "unique_id": f"{which:02d}", "ds": ds, "y": series.values})
            )
    pd.concat(parts).to_parquet(folder / "series.parquet")
    plan = {"windows": windows, "horizon": HORIZON, "refit": REFIT, "input_size": TRAINING, "freq": "30min"}
    (folder / "plan.json").write_text(json.dumps(plan))


def peer_seconds(python: Path, peer: str, folder: Path) -> dict[str, Any]:
    """Run a peer on the series in ``folder`` and return its seconds by group."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    subprocess.run(
        [str(python), str(PEERS / "nixtla.py"), peer, str(folder)], check=True, env=os.environ | threads
    )
    seconds: dict[str, Any] = json.loads((folder / f"{peer}.json").read_text())
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """Result of our backtest of a group: quantiles per series, shape (origins, steps, 19), and seconds."""

    quantiles: list[np.ndarray]
    fit: float
    forecast: float


def own_run(group: Group, name: str) -> OwnRun:
    """Estimate at every `REFIT`-th origin and forecast from each, after an untimed small run that compiles the code."""
    small = Group(name=group.name, panel=Panel(series=group.panel.series[:1]), origins=group.origins[:2])
    _roll(small, name)
    return _roll(group, name)


def _roll(group: Group, name: str) -> OwnRun:
    panel = group.panel
    model = make_predictor(name)
    fit = forecast = 0.0
    parts: list[list[np.ndarray]] = [[] for _ in panel.series]
    for start in range(0, group.origins.size, REFIT):
        origins = group.origins[start : start + REFIT]
        slots = panel.series[0].first_slot + origins
        began = time.perf_counter()
        fitted = model.fit(panel.until(int(slots[0])))
        between = time.perf_counter()
        seen = panel.until(int(slots[-1]))
        for which, series in enumerate(seen.series):
            made = fitted.outlook(seen, which, origins, HORIZON)
            parts[which].append(bound_quantiles(made.quantiles, made.mean, series, origins)[0])
        fit, forecast = fit + between - began, forecast + time.perf_counter() - between
    return OwnRun(quantiles=[np.concatenate(part) for part in parts], fit=fit, forecast=forecast)


def compared(group: Group, own: OwnRun, theirs: pd.DataFrame, seconds: tuple[dict, dict]) -> dict[str, Any]:
    """Return seconds, throughput and accuracy by step of a group, and ratios (above 1: ours is better)."""
    theirs = theirs[theirs["group"] == group.name].sort_values(["unique_id", "cutoff", "step"])
    columns = [name for name in theirs.columns if name.startswith("q")]
    shape = (len(group.panel), group.origins.size, HORIZON, LEVELS.size)
    given = theirs[columns].to_numpy(dtype=float).reshape(shape)
    peer = [
        bound_quantiles(quantiles, quantiles[..., 0], series, group.origins)[0]
        for quantiles, series in zip(given, group.panel.series, strict=True)
    ]
    mine, other = accuracy(group, own.quantiles), accuracy(group, peer)
    before, after = (run[group.name]["total"] for run in seconds)
    estimated = sum(run[group.name]["one_estimation"] * run[group.name]["estimations"] for run in seconds) / 2
    total, theirs_total = own.fit + own.forecast, (before + after) / 2
    return {
        "seconds": {"fit": own.fit, "forecast": own.forecast, "total": total},
        "peer_seconds": {"before": before, "after": after, "of_which_fit": min(estimated, theirs_total)},
        "numbers_per_second": group.quantities / total,
        "peer_numbers_per_second": group.quantities / theirs_total,
        "times_faster": theirs_total / total,
        "mae": mine["mae"],
        "peer_mae": other["mae"],
        "pinball": mine["pinball"],
        "peer_pinball": other["pinball"],
        "peer_pinball_over_ours": {k: other["pinball"][k] / mine["pinball"][k] for k in mine["pinball"]},
    }


def accuracy(group: Group, quantiles: list[np.ndarray]) -> dict[str, dict[int, float]]:
    """Return MAE of the median and mean pinball loss by step, as means over series and origins with observed values."""
    absolute, loss = [], []
    for series, q in zip(group.panel.series, quantiles, strict=True):
        error = ahead(series.values, HORIZON)[group.origins][:, :, None] - q
        absolute.append(np.nanmean(np.abs(error[:, :, LEVELS.size // 2]), axis=0))
        loss.append(np.nanmean(np.maximum(LEVELS * error, (LEVELS - 1) * error), axis=(0, 2)))
    mae, pinball = np.mean(absolute, axis=0), np.mean(loss, axis=0)
    return {
        "mae": {k: float(mae[k - 1]) for k in STEPS},
        "pinball": {k: float(pinball[k - 1]) for k in STEPS},
    }
