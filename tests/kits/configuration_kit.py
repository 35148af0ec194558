"""A synthetic folder of fine-tuning measurements with known truth, and the real folder."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from open_data import DATA

from slackwater.forecasting.configurations.facts import Configuration, MemoryModel, features, memory_parts
from slackwater.forecasting.configurations.runs import RUNS_FILE
from slackwater.forecasting.configurations.throughput import log_rate
from slackwater.forecasting.configurations.validity import LABELS_FILE
from slackwater.studies.experiments.configuration_scores import STATISTICS_FILE

REAL = DATA / "finetune"
SXM, PCIE = "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"
#: Constants of the formula behind the synthetic runs.
LAW = np.array([-0.8, -1.0, -0.85, 0.7, -1.0, -0.5, 1.8, 1.2])
#: The memory model behind the synthetic labels.
MEMORY = MemoryModel(
    kept_full=3.0, kept_adapter=1.5, logit_bytes=8.0, base_gb=2.0, gathered=1.0, sharpness=4.0
)
#: Log deviation of a model's runs from the formula on a GPU.
OFFSETS = {("mistral-7b-v0.1", SXM): 0.2, ("llama3.2-3b", SXM): -0.1, ("granite-3.3-8b", PCIE): -0.3}


def configuration(**changes):
    """Return a configuration in the synthetic folder, with changes."""
    base = {
        "model_name": "mistral-7b-v0.1", "method": "lora", "gpu_model": SXM, "number_gpus": 2, "tokens_per_sample": 2048,
        "batch_size": 16,
    }  # fmt: skip
    return Configuration(**{**base, **changes})


def made_up_runs(noise=0.01, seed=3):
    """Return runs of three models from `LAW`, their `OFFSETS` and a little noise, with the columns of the real file."""
    configurations = [
        Configuration(
            model_name=model,
            method=method,
            gpu_model=device,
            number_gpus=n,
            tokens_per_sample=length,
            batch_size=n * per,
        )
        for (model, device), method in product(OFFSETS, ("full", "lora"))
        for n, length, per in product((1, 2, 4), (512, 2048), (1, 4, 16))
    ]
    f = features(configurations)
    offset = np.array([OFFSETS[c.model_name, c.gpu_model] for c in configurations])
    log = log_rate(LAW, f) + offset + np.random.default_rng(seed).normal(0, noise, len(configurations))
    return pd.DataFrame(
        [
            {
                "source": "made up", "model_name": c.model_name, "method": c.method, "gpu_model": c.gpu_model, "number_nodes": 1,
                "number_gpus": c.number_gpus, "tokens_per_sample": c.tokens_per_sample, "batch_size": c.batch_size,
                "torch_dtype": "bfloat16", "tokens_per_second": float(np.exp(value)) * c.number_gpus, "passes": 1.0,
                "suspect_token_accounting": 0,
            }
            for c, value in zip(configurations, log, strict=True)
        ]
    )  # fmt: skip


def made_up_labels():
    """Return labels by `MEMORY` on a grid of the same models on two GPU models."""
    models, devices = (*sorted({m for m, _ in OFFSETS}), "llama2-70b"), (SXM, "L40S")
    grid = [
        (model, method, device, length, n * per, n)
        for model, method, device in product(models, ("full", "lora"), devices)
        for n, length, per in product((1, 2, 4, 8), (512, 2048, 8192), (1, 2, 4, 8, 16))
        if n * per <= 128
    ]
    frame = pd.DataFrame(
        grid, columns=["model_name", "method", "gpu_model", "tokens_per_sample", "batch_size", "number_gpus"]
    )
    parts = memory_parts([Configuration(**row) for row in frame.to_dict("records")])
    p = 1 / (1 + np.exp(-MEMORY.log_odds(parts)))
    return frame.assign(p_valid=p, predicted_valid=(p > 0.5).astype(int))


def made_up_statistics(shares=None):
    """Return published statistics of 10,000 synthetic experiments; ``shares`` of GPU numbers 1..32 determine the rejections."""
    shares = np.array([0.2, 0.25, 0.25, 0.2, 0.06, 0.04]) if shares is None else shares
    batches = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    rejected = [100 * shares[[n > b for n in (1, 2, 4, 8, 16, 32)]].sum() for b in batches]
    rows = []
    for b, r in zip(batches, rejected, strict=True):
        failing = min(99.0, r + 10)
        rows.append(("failure_rate", "total_batch_size", str(b), failing, round(10_000 / 11 * failing / 100)))
        rows.append(("rejected_rate", "total_batch_size", str(b), r, np.nan))
    rows += [("failure_rate", "tokens_per_sample", str(s), 50.0, 1000) for s in (512, 1024, 2048, 4096, 8192)]
    rows += [
        ("failure_rate", "method", m, 50.0, k)
        for m, k in (("full", 3000), ("gptq-lora", 200), ("lora", 1800))
    ]
    rows += [
        ("valid_rate", "gpu_model", g, 40.0, k)
        for g, k in (("A100-SXM", 9000), ("A100-PCIe", 600), ("L40S", 300), ("H100-PCIe", 100))
    ]
    return pd.DataFrame(rows, columns=["statistic", "factor", "level", "value", "count_or_pairs"])


def made_up_folder(folder: Path) -> Path:
    """Write the three files of the synthetic measurements to ``folder``."""
    made_up_runs().to_csv(folder / RUNS_FILE, index=False)
    made_up_labels().to_parquet(folder / LABELS_FILE)
    made_up_statistics().to_csv(folder / STATISTICS_FILE, index=False)
    return folder
