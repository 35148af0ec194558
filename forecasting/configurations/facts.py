"""Data sheets of models and GPUs, configurations, and their demand for compute and memory (M9)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from scipy.optimize import minimize

from slackwater.warehouse.documents import read_data
from slackwater.warehouse.errors import InputError, nearest

# ---
# Models and GPUs: shapes, parameter counts, peak figures (from data files).

#: A model that is not in the file is named with its parameters in billions: ``our-model@7.2b``.
_NAME_WITH_SIZE: Final = re.compile(r"(?P<name>[^@]+)@(?P<size>\d+(?:\.\d+)?)\s*[bB]?")
#: Range of parameters in billions for which the shape of a model is derived from its size.
_SIZES: Final = (0.05, 2000.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Shape of a decoder-only transformer.

    ``params_b`` and ``active_b`` are parameters in billions: all parameters, and those used by a token. ``assumed`` is True if the
    shape was derived from the parameter count only. ``matrices`` per feed-forward block: 3 if gated, else 2.
    """

    name: str
    params_b: float
    active_b: float
    layers: int
    width: int
    heads: int
    key_heads: int
    feed_forward: int
    vocabulary: int
    max_tokens: int | None
    matrices: int = 3
    tied: bool = False
    experts: int = 1
    kind: str = "dense"
    learned_positions: bool = False
    assumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Peak figures of a GPU: dense 16-bit TFLOP/s, GB/s of memory, GB (10**9 bytes) of memory, GB/s to its neighbours."""

    name: str
    tflops: float
    memory_gb_s: float
    memory_gb: float
    link_gb_s: float
    bfloat16: bool
    source: str


@lru_cache(maxsize=1)
def known_models() -> Mapping[str, Architecture]:
    """Return every model of `forecasting/data/models.toml` by name."""
    return {
        name: Architecture(**{"active_b": values["params_b"], **values}, name=name)
        if "layers" in values
        else _typical_shape(name, values["params_b"])
        for name, values in read_data("slackwater.forecasting", "models").items()
    }


@lru_cache(maxsize=1)
def known_gpus() -> Mapping[str, Gpu]:
    """Return every GPU of `forecasting/data/gpus.toml` by name."""
    return {
        name: Gpu(name=name, **values) for name, values in read_data("slackwater.forecasting", "gpus").items()
    }


def architecture(model_name: str) -> Architecture:
    """Return the shape of a model from the data file, or derived from the size after the ``@`` of its name.

    Raises `InputError` for other names, because throughput cannot be predicted without a parameter count.

    >>> architecture("our-model@7b").layers, architecture("our-model@7b").assumed
    (32, True)
    """
    known = known_models().get(model_name)
    if known is not None:
        return known
    sized = _NAME_WITH_SIZE.fullmatch(model_name)
    if sized is None:
        raise InputError(
            f"model {model_name!r} is not known",
            expected=f"one of {len(known_models())} known models"
            + (f" ({alike})" if (alike := nearest(model_name, known_models())) else "")
            + ", or a name with a size",
            remedy=f"give its parameters in billions: {model_name.split('@')[0]}@7.2b",
        )
    params_b = float(sized["size"])
    if not _SIZES[0] <= params_b <= _SIZES[1]:
        raise InputError(
            f"model {model_name!r} with {params_b:g} billion parameters",
            expected=f"{_SIZES[0]:g} to {_SIZES[1]:g} billion",
            remedy="give the number in billions",
        )
    return _typical_shape(model_name, params_b)


def gpu(gpu_model: str) -> Gpu:
    """Return the peak figures of a GPU. Raises `InputError` if it is not in the data file, since predictions need them."""
    known = known_gpus().get(gpu_model)
    if known is None:
        raise InputError(
            f"GPU model {gpu_model!r} has no known peak figures",
            expected=f"one of {', '.join(known_gpus())}",
            remedy="choose one of these, or add its data sheet's figures to forecasting/data/gpus.toml",
        )
    return known


def _typical_shape(name: str, params_b: float) -> Architecture:
    """Derive a typical shape from the size (ours).

    Width and layers follow the growth of open models, about P = 12.5 layers width^2. Layers grow approximately as the cube root
    of P from 32 at 7 billion; heads are 128 wide; the feed-forward block is gated.
    """
    layers = max(8, round(32 * (params_b / 7.0) ** (1 / 3.2)))
    width = max(512, round((params_b * 1e9 / (12.5 * layers)) ** 0.5 / 128) * 128)
    heads = width // 128
    return Architecture(
        name=name, params_b=params_b, active_b=params_b, layers=layers, width=width, heads=heads,
        key_heads=max(1, heads // 4), feed_forward=round(3.1 * width), vocabulary=64_000, max_tokens=None, assumed=True,
    )  # fmt: skip


# ---
# Value types: a fine-tuning configuration, and its predicted throughput and validity (M9).

METHODS: Final = ("full", "lora", "gptq-lora")  # Measured fine-tuning methods


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Configuration of a fine-tuning run (M9.1).

    ``model_name`` is a name in `forecasting/data/models.toml`, or any other name followed by ``@`` and its parameters in
    billions: ``our-model@7.2b``. ``gpu_model`` is a name in `forecasting/data/gpus.toml`. ``batch_size`` counts the samples of
    a step over all GPUs; ``tokens_per_sample`` is the longest sequence. The default ``torch_dtype`` is the usual format of the
    data: bfloat16, but float16 for gptq-lora and for GPUs without bfloat16. Raises `InputError` for a method without
    measurements or a number below 1.
    """

    model_name: str
    method: str
    gpu_model: str
    number_gpus: int
    number_nodes: int = 1
    tokens_per_sample: int
    batch_size: int
    torch_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(
                f"fine-tuning method {self.method!r}",
                expected=f"one of {', '.join(METHODS)}",
                remedy="change `method`",
            )
        for name in ("number_gpus", "number_nodes", "tokens_per_sample", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or value != int(value) or value < 1:
                raise InputError(
                    f"{name} = {value!r}", expected="a whole number of at least 1", remedy=f"change `{name}`"
                )

    @property
    def dtype(self) -> str:
        """Effective number format: ``torch_dtype``, or the usual format. Raises `InputError` for an unknown GPU."""
        if self.torch_dtype:
            return self.torch_dtype
        return "float16" if self.method == "gptq-lora" or not gpu(self.gpu_model).bfloat16 else "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedThroughput:
    """Throughput, tokens/s over all GPUs, with a 90 % interval; ``outside``: distance from the measured range."""

    tokens_per_second: float
    low: float
    high: float
    outside: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """Predicted validity: whether a configuration runs (M9.3).

    ``decided_by`` is ``measured``, ``rule``, ``memory`` (the memory model) or ``classifier``. ``memory_gb`` is the estimated
    peak per GPU and ``limit_gb`` the memory of a GPU, both in 10**9 bytes; None if a rule decided before the estimate.
    """

    valid: bool
    p_valid: float
    reason: str
    memory_gb: float | None
    limit_gb: float | None
    decided_by: str
    outside: tuple[str, ...]


# ---
# Peak memory of a fine-tuning step per GPU from the model's shape; constants calibrated on published labels (M9.3, ours).

#: Bytes per parameter before any token is read, by method: 16-bit weights, gradients and two 16-bit moments; 16-bit weights;
#: 4-bit weights with their scales (adapters are left out: below 1 %). Sharded over the GPUs.
STATE_BYTES: Final = {"full": 8.0, "lora": 2.0, "gptq-lora": 0.6}
_HOLD: Final = 1e-3  # Penalty of the calibration for deviations from `TEXTBOOK`, per squared log


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModel:
    """Constants of the memory estimate.

    ``kept_full``, ``kept_adapter``: activations stored per token and layer, in units of the layer's 16-bit input (1:
    checkpointing at every layer). ``logit_bytes``: bytes per token and vocabulary entry. ``base_gb``: memory of the runtime.
    ``gathered``: number of layers whose full weights are present at once on several GPUs. ``sharpness``: of the odds, per log
    of limit over estimate.
    """

    kept_full: float
    kept_adapter: float
    logit_bytes: float
    base_gb: float
    gathered: float
    sharpness: float

    def peak_gb(self, parts: MemoryParts) -> np.ndarray:
        """Return the estimated peak per GPU in 10**9 bytes, shape (n,)."""
        kept = np.where(parts.full, self.kept_full, self.kept_adapter)
        return np.asarray(
            parts.states_gb
            + kept * parts.inputs_gb
            + self.logit_bytes * parts.words_gb
            + self.base_gb
            + self.gathered * parts.layer_gb
        )

    def log_odds(self, parts: MemoryParts) -> np.ndarray:
        """Return the log odds that the configuration runs, shape (n,): zero if the estimate equals the GPU's memory."""
        return np.asarray(self.sharpness * np.log(parts.limit_gb / self.peak_gb(parts)))


#: Plausible constants before calibration on labels, towards which the calibration is regularized.
TEXTBOOK: Final = MemoryModel(
    kept_full=1.0, kept_adapter=1.0, logit_bytes=4.0, base_gb=1.5, gathered=1.0, sharpness=4.5
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Components of the memory estimate, arrays with an entry per configuration, in 10**9 bytes per GPU.

    ``inputs_gb``: a 16-bit input per token and layer; ``words_gb``: tokens times vocabulary; ``layer_gb``: 16-bit weights of a
    layer, on several GPUs only. ``full`` is True for full fine-tuning.
    """

    states_gb: np.ndarray
    inputs_gb: np.ndarray
    words_gb: np.ndarray
    layer_gb: np.ndarray
    limit_gb: np.ndarray
    full: np.ndarray

    def take(self, rows: np.ndarray) -> MemoryParts:
        """Return the given rows."""
        return MemoryParts(
            states_gb=self.states_gb[rows], inputs_gb=self.inputs_gb[rows], words_gb=self.words_gb[rows],
            layer_gb=self.layer_gb[rows], limit_gb=self.limit_gb[rows], full=self.full[rows],
        )  # fmt: skip


def memory_parts(configurations: Sequence[Configuration]) -> MemoryParts:
    """Return the components of the memory estimate of every configuration. Raises `InputError` for an unknown model or GPU."""
    rows = np.array([_parts(c) for c in configurations], dtype=float).reshape(len(configurations), 6)
    return MemoryParts(
        states_gb=rows[:, 0], inputs_gb=rows[:, 1], words_gb=rows[:, 2], layer_gb=rows[:, 3], limit_gb=rows[:, 4],
        full=rows[:, 5] > 0,
    )  # fmt: skip


def calibrate_memory(parts: MemoryParts, p_valid: np.ndarray) -> MemoryModel:
    """Fit the constants by minimal cross-entropy with predicted probabilities ``p_valid`` (SYNTHETIC labels).

    Rows whose states already exceed the GPU's memory are left out: some labels call them valid, which no constants can reproduce.
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
# Features of the throughput model: FLOPs, bytes, tokens per GPU and step (one row per configuration).


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Arrays with an entry per configuration; times are in seconds, ``tokens`` is per GPU and step.

    ``compute_s`` is the time of the matrix products of a step at the GPU's peak. ``gather_s`` is the time of moving the model's
    weights between the GPUs three times at the link's full rate (fully sharded training gathers them twice and scatters
    gradients once). ``read_s`` is the time of reading the weights from the GPU's memory. ``pressure`` is estimated peak memory
    over the GPU's memory.
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
    """Return the features of every configuration, as arrays of shape (n,). Raises `InputError` for an unknown model or GPU."""
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
    """Return the FLOPs of a token, forward and backward: 6 P with all weights trained, 4 P with an adapter, and causal attention.

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
