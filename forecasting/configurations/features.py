"""What a configuration asks of the machine: FLOPs, bytes, tokens and peak memory of a step per GPU (M9.2, M9.3, ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final

import numpy as np
from scipy.optimize import minimize

from forecasting.configurations.facts import METHODS, Configuration, architecture, gpu

# ---
# Peak memory of a fine-tuning step per GPU from the model's shape; constants calibrated on published labels (M9.3, ours).

#: Bytes per parameter that are there before a token is read, by method: 16-bit weights, gradients and two 16-bit moments; 16-bit
#: weights; 4-bit weights with their scales (adapters are left out: below 1 %). Sharded over the GPUs.
STATE_BYTES: Final = {"full": 8.0, "lora": 2.0, "gptq-lora": 0.6}
#: How strongly the calibration holds to `TEXTBOOK`, per squared log.
_HOLD: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModel:
    """Constants of the estimate.

    ``kept_full``, ``kept_adapter``: activations kept per token and layer, in units of the layer's 16-bit input (1: checkpointing at
    every layer). ``logit_bytes``: bytes per token and word of the vocabulary. ``base_gb``: the runtime's own. ``gathered``: layers
    whose whole weights are there at once on several GPUs. ``sharpness``: of the odds, per log of limit over estimate.
    """

    kept_full: float
    kept_adapter: float
    logit_bytes: float
    base_gb: float
    gathered: float
    sharpness: float

    def peak_gb(self, parts: MemoryParts) -> np.ndarray:
        """Estimated peak per GPU in 10**9 bytes, shape (n,)."""
        kept = np.where(parts.full, self.kept_full, self.kept_adapter)
        return np.asarray(
            parts.states_gb
            + kept * parts.inputs_gb
            + self.logit_bytes * parts.words_gb
            + self.base_gb
            + self.gathered * parts.layer_gb
        )

    def log_odds(self, parts: MemoryParts) -> np.ndarray:
        """Log odds that the configuration runs, shape (n,): zero where the estimate is all that the GPU has."""
        return np.asarray(self.sharpness * np.log(parts.limit_gb / self.peak_gb(parts)))


#: What a careful reader would put down before seeing a label.
TEXTBOOK: Final = MemoryModel(
    kept_full=1.0, kept_adapter=1.0, logit_bytes=4.0, base_gb=1.5, gathered=1.0, sharpness=4.5
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Arrays of one entry per configuration, in 10**9 bytes per GPU (``inputs_gb``: one 16-bit input per token and layer;
    ``words_gb``: tokens times vocabulary; ``layer_gb``: one layer's 16-bit weights, on several GPUs only).
    """

    states_gb: np.ndarray
    inputs_gb: np.ndarray
    words_gb: np.ndarray
    layer_gb: np.ndarray
    limit_gb: np.ndarray
    full: np.ndarray

    def take(self, rows: np.ndarray) -> MemoryParts:
        """The rows alone."""
        return MemoryParts(
            states_gb=self.states_gb[rows], inputs_gb=self.inputs_gb[rows], words_gb=self.words_gb[rows],
            layer_gb=self.layer_gb[rows], limit_gb=self.limit_gb[rows], full=self.full[rows],
        )  # fmt: skip


def memory_parts(configurations: Sequence[Configuration]) -> MemoryParts:
    """What the estimate is made of, for every configuration. Raises `InputError` for an unknown model or GPU."""
    rows = np.array([_parts(c) for c in configurations], dtype=float).reshape(len(configurations), 6)
    return MemoryParts(
        states_gb=rows[:, 0], inputs_gb=rows[:, 1], words_gb=rows[:, 2], layer_gb=rows[:, 3], limit_gb=rows[:, 4],
        full=rows[:, 5] > 0,
    )  # fmt: skip


def calibrate_memory(parts: MemoryParts, p_valid: np.ndarray) -> MemoryModel:
    """Constants of the least cross-entropy against predicted probabilities ``p_valid`` (SYNTHETIC labels).

    Rows whose states alone exceed the GPU are left out: some labels call them valid, which no constant can make true.
    """
    possible = parts.states_gb < parts.limit_gb
    centre = np.log(astuple(TEXTBOOK))

    def loss(logs: np.ndarray) -> float:
        odds = _model(logs).log_odds(parts)
        entropy = np.mean((np.logaddexp(0, odds) - p_valid * odds)[possible])
        return float(entropy + _HOLD * np.sum((logs - centre) ** 2))

    return _model(minimize(loss, centre, method="L-BFGS-B").x)


def _model(logs: np.ndarray) -> MemoryModel:
    kept_full, kept_adapter, logit_bytes, base_gb, gathered, sharpness = (float(v) for v in np.exp(logs))
    return MemoryModel(
        kept_full=kept_full, kept_adapter=kept_adapter, logit_bytes=logit_bytes, base_gb=base_gb, gathered=gathered,
        sharpness=sharpness,
    )  # fmt: skip


def _parts(c: Configuration) -> tuple[float, ...]:
    shape = architecture(c.model_name)
    tokens = c.batch_size * c.tokens_per_sample / c.number_gpus
    layer = 2 * shape.params_b / shape.layers if c.number_gpus > 1 else 0.0
    return (
        shape.params_b * STATE_BYTES[c.method] / c.number_gpus, tokens * 2 * shape.layers * shape.width / 1e9,
        tokens * shape.vocabulary / 1e9, layer, gpu(c.gpu_model).memory_gb, float(c.method == "full"),
    )  # fmt: skip


# ---
# What a configuration comes to in the terms of the machine: FLOPs, bytes, tokens per GPU and step (one row per configuration).


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
