"""Cross-validate a model of Nixtla on given series: ``python nixtla.py MODEL FOLDER``; runs in the environment of the peers.

FOLDER contains ``series.parquet`` (columns group, unique_id, ds, y; y NaN in a gap) and ``plan.json`` (per group the number of
windows; horizon, refit and input_size in slots, frequency). Written to FOLDER: ``MODEL.parquet`` (group, unique_id, cutoff,
step, mean, q05..q95) and ``MODEL.json`` (seconds). Neither library supports missing values: gaps are filled with the last value
before them, as their documentation recommends. ``autoarima`` is statsforecast's AutoARIMA with its defaults and Gaussian
intervals; ``lightgbm`` is mlforecast's recursive forecaster with LightGBM's default regressor, global over a group, on 20 lags,
the day before and the time of day, with its conformal intervals.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

LEVELS = list(range(10, 100, 10))
DAY_LAGS = (47, 48)
CONFORMAL_WINDOWS = 10


def main(model: str, folder: Path) -> None:
    warnings.simplefilter("ignore")
    plan = json.loads((folder / "plan.json").read_text())
    rows = pd.read_parquet(folder / "series.parquet")
    rows["ds"] = rows["ds"].dt.tz_localize(None)
    rows["y"] = rows.groupby(["group", "unique_id"])["y"].transform(lambda y: y.ffill().bfill())
    run = {"autoarima": autoarima, "lightgbm": lightgbm}[model]
    parts, seconds = [], {}
    for group, windows in plan["windows"].items():
        own = rows[rows["group"] == group][["unique_id", "ds", "y"]].reset_index(drop=True)
        run(warm_up(own), 2, plan)  # compilation and first imports are not timed
        began = time.perf_counter()
        made = run(own, windows, plan)
        total = time.perf_counter() - began
        fits = -(-windows // plan["refit"])
        began = time.perf_counter()
        run(own, 1, plan)
        seconds[group] = {"total": total, "estimations": fits, "one_estimation": time.perf_counter() - began}
        parts.append(quantiles(made, model).assign(group=group))
    pd.concat(parts, ignore_index=True).to_parquet(folder / f"{model}.parquet")
    (folder / f"{model}.json").write_text(json.dumps(seconds))


def warm_up(own: pd.DataFrame) -> pd.DataFrame:
    """Return the newest 300 slots of the first series."""
    return own[own["unique_id"] == own["unique_id"].iloc[0]].tail(300)


def autoarima(own: pd.DataFrame, windows: int, plan: dict) -> pd.DataFrame:
    from statsforecast import StatsForecast
    from statsforecast.models import AutoARIMA

    forecaster = StatsForecast(models=[AutoARIMA(alias="autoarima")], freq=plan["freq"], n_jobs=1)
    return forecaster.cross_validation(
        df=own, h=plan["horizon"], n_windows=windows, step_size=1, refit=plan["refit"] if windows > 1 else True,
        input_size=plan["input_size"], level=LEVELS,
    )  # fmt: skip


def lightgbm(own: pd.DataFrame, windows: int, plan: dict) -> pd.DataFrame:
    from lightgbm import LGBMRegressor
    from mlforecast import MLForecast
    from mlforecast.utils import PredictionIntervals

    forecaster = MLForecast(
        models={"lightgbm": LGBMRegressor(verbosity=-1, n_jobs=1, random_state=0)}, freq=plan["freq"],
        lags=[*range(1, 21), *DAY_LAGS], date_features=["hour", "minute"], num_threads=1,
    )  # fmt: skip
    return forecaster.cross_validation(
        df=own, h=plan["horizon"], n_windows=windows, step_size=1, refit=plan["refit"] if windows > 1 else True, level=LEVELS,
        prediction_intervals=PredictionIntervals(n_windows=CONFORMAL_WINDOWS, h=plan["horizon"]),
    )  # fmt: skip


def quantiles(made: pd.DataFrame, model: str) -> pd.DataFrame:
    """Convert central intervals to quantiles; the median is the point forecast."""
    step = made.groupby(["unique_id", "cutoff"]).cumcount() + 1
    out = {"unique_id": made["unique_id"], "cutoff": made["cutoff"], "step": step, "mean": made[model]}
    for percent in range(5, 100, 5):
        side, level = ("lo" if percent < 50 else "hi"), abs(100 - 2 * percent)
        out[f"q{percent:02d}"] = made[f"{model}-{side}-{level}"] if level else made[model]
    frame = pd.DataFrame(out)
    columns = [name for name in frame.columns if name.startswith("q")]
    frame[columns] = np.maximum.accumulate(frame[columns].to_numpy(dtype=float), axis=1)
    return frame


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
