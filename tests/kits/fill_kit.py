"""Shared parts of the tests of `slackwater fill`: measurements that a real model is fitted on, and markets of known GPUs."""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from make import make_turn
from tidy_folder import START, write_tidy

from slackwater.flows.config import Settings
from slackwater.forecasting.configurations.validity import LABELS_FILE
from slackwater.optimization.requests.request import complete_request, parse_tuning_request
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.store.connection import open_store

STEP = pd.Timedelta("30min")
#: Seven days into eight of record.
AT = START.ceil("30min") + pd.Timedelta(days=7)
SETTINGS = Settings(history_days=3, risk_paths=20, seed=5, planner="last_value")
GPUS = {"NVIDIA-A100-SXM4-80GB": 1.0, "NVIDIA-H100-PCIe": 1.4}
MODELS = {"llama3.2-3b": 3.2, "llama3.1-8b": 8.0}
SIZES = {**MODELS, "llama3.1-70b": 70.0}
GRID = (SIZES, ("full", "lora"), GPUS, (1024, 2048, 8192), (8, 32, 128), (1, 2, 4, 8))
THREE = {"model": "llama3.1-8b", "samples": 50_000, "deadline_in": "12h"}


def write_measurements(folder: Path, *, seed: int = 1) -> Path:
    """Write runs whose rate follows a simple rule with two per cent of noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for model, size in MODELS.items():
        for name, speed in GPUS.items():
            for gpus in (1, 2, 4, 8):
                for batch in (8, 16, 32):
                    for length in (1024, 2048):
                        rate = 30_000 * speed / size * gpus**0.93 * (batch / gpus / (batch / gpus + 0.5))
                        rows.append(
                            _run(model, size, name, gpus, batch, length, rate * np.exp(0.02 * rng.normal()))
                        )
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(folder / "ft_throughput.csv", index=False)
    labels = pd.DataFrame([_label(*terms) for terms in product(*GRID)])
    labels[labels["batch_size"] % labels["number_gpus"] == 0].to_parquet(folder / LABELS_FILE)
    return folder


def _label(model, method, name, length, batch, gpus):
    """Label a run by memory: 16 bytes a trained parameter, 2 a frozen parameter, and some for the tokens of a GPU."""
    size = SIZES[model]
    needed = (16.0 if method == "full" else 2.0) * size / gpus + 2e-4 * length * batch / gpus * size**0.5
    p_valid = 1.0 / (1.0 + np.exp((needed - 80.0) / 4.0))
    return {
        "model_name": model, "method": method, "gpu_model": name, "tokens_per_sample": length, "batch_size": batch,
        "number_gpus": gpus, "p_valid": p_valid, "predicted_valid": int(p_valid >= 0.5),
    }  # fmt: skip


def _run(model, size, name, gpus, batch, length, rate):
    return {
        "source": "lab", "model_name": model, "params_b": size, "method": "lora", "gpu_model": name, "number_nodes": 1,
        "number_gpus": gpus, "tokens_per_sample": length, "batch_size": batch, "torch_dtype": "bfloat16",
        "tokens_per_second": rate, "passes": 1.0, "suspect_token_accounting": 0,
    }  # fmt: skip


def write_markets(folder: Path, *, seed: int = 3) -> Path:
    """Write the tidy folder with zones in Google Cloud: a3-highgpu-1g has one H100; its other types have no known GPU."""
    write_tidy(folder, seed=seed)
    for name in ("availability", "prices"):
        frame = pd.read_parquet(folder / f"{name}.parquet")
        frame["provider"] = "gcp"
        frame.to_parquet(folder / f"{name}.parquet")
    return folder


def market_store(folder: Path):
    """Return an open warehouse with these markets."""
    store = open_store(folder / "w.duckdb")
    tidy = write_markets(folder / "data")
    ingest(store, "tabular", tidy, imported_at=AT, progress=lambda _: None)
    return store


def asked(**changes):
    values = {**THREE, **changes}
    return complete_request(parse_tuning_request({k: v for k, v in values.items() if v is not None}, "test"))


def turn_at(store, at=AT, **changes):
    settings = SETTINGS.model_copy(update=changes)
    return make_turn(store, at, settings)
