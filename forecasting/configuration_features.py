"""What a configuration comes to in the terms of the machine: FLOPs, bytes, tokens per GPU and step (one row per configuration)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forecasting.configuration_facts import architecture, gpu
from forecasting.configuration_memory import TEXTBOOK, memory_parts
from forecasting.configuration_values import METHODS, Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Arrays of one entry per configuration; times are seconds, ``tokens`` is per GPU and step.

    ``compute_s`` is the time of the matrix products of one step at the GPU's peak; ``gather_s`` that of moving the model's weights
    between the GPUs three times at the link's full rate (fully sharded training gathers them twice and scatters gradients once);
    ``read_s`` that of reading the weights from the GPU's own memory. ``pressure`` is estimated peak memory over the GPU's memory.
    """

    tokens: np.ndarray
    length: np.ndarray
    number_gpus: np.ndarray
    number_nodes: np.ndarray
    params_b: np.ndarray
    layers: np.ndarray
    peak: np.ndarray
    compute_s: np.ndarray
    gather_s: np.ndarray
    read_s: np.ndarray
    pressure: np.ndarray
    method: np.ndarray
    names: tuple[tuple[str, str, str, str], ...]


def features(configurations: Sequence[Configuration]) -> Features:
    """Features of every configuration, as arrays of shape (n,). Raises `InputError` for an unknown model or GPU."""
    rows = np.array([_row(c) for c in configurations], dtype=float).reshape(len(configurations), 10)
    memory = memory_parts(configurations)
    return Features(
        tokens=rows[:, 0], length=rows[:, 1], number_gpus=rows[:, 2], number_nodes=rows[:, 3], params_b=rows[:, 4],
        layers=rows[:, 5], peak=rows[:, 6], compute_s=rows[:, 7], gather_s=rows[:, 8], read_s=rows[:, 9],
        pressure=TEXTBOOK.peak_gb(memory) / memory.limit_gb,
        method=np.array([METHODS.index(c.method) for c in configurations], dtype=int),
        names=tuple((c.model_name, c.method, c.gpu_model, c.dtype) for c in configurations),
    )  # fmt: skip


def flop_per_token(configuration: Configuration) -> float:
    """FLOPs of one token, forward and backward: 6 P with all weights trained, 4 P with an adapter, and causal attention.

    Attention costs 2 L width S forward (half of the square is masked) and twice that backward; P counts the active parameters
    (Kaplan et al. 2020, section 2.1; the adapter's share is left out).
    """
    shape = architecture(configuration.model_name)
    products = (6.0 if configuration.method == "full" else 4.0) * shape.active_b * 1e9
    return products + 6.0 * shape.layers * shape.width * configuration.tokens_per_sample


def _row(c: Configuration) -> tuple[float, ...]:
    shape, device = architecture(c.model_name), gpu(c.gpu_model)
    tokens = c.batch_size * c.tokens_per_sample / c.number_gpus
    weights_gb = shape.params_b * (0.6 if c.method == "gptq-lora" else 2.0)
    gather = 3 * weights_gb / device.link_gb_s if c.number_gpus > 1 else 0.0
    return (
        tokens, c.tokens_per_sample, c.number_gpus, c.number_nodes, shape.params_b, shape.layers, device.tflops,
        tokens * flop_per_token(c) / (device.tflops * 1e12), gather, weights_gb / device.memory_gb_s,
    )  # fmt: skip
