"""The values of configuration knowledge (M9): a way to run a fine-tuning, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forecasting.configuration_facts import gpu
from warehouse.errors import InputError

#: Ways of fine-tuning that were measured.
METHODS: Final = ("full", "lora", "gptq-lora")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One way to run a fine-tuning (M9.1).

    ``model_name`` is a name of `forecasting/data/models.toml`, or any other with its parameters in billions behind an ``@``:
    ``our-model@7.2b``. ``gpu_model`` is a name of `forecasting/data/gpus.toml`. ``batch_size`` counts the samples of one step over
    all GPUs; ``tokens_per_sample`` is the longest sequence. Without a ``torch_dtype`` the data's usual one is meant: bfloat16, but
    float16 for gptq-lora and for GPUs without bfloat16.
    Raises `InputError` for a method that was never measured or a number below one.
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
        """The number format that is meant: ``torch_dtype``, or the usual one. Raises `InputError` for an unknown GPU."""
        if self.torch_dtype:
            return self.torch_dtype
        return "float16" if self.method == "gptq-lora" or not gpu(self.gpu_model).bfloat16 else "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Throughput of a configuration in tokens per second over all GPUs: median and a 90 % interval.

    ``outside`` are sentences that say how far the configuration lies outside what was measured; empty inside.
    """

    tokens_per_second: float
    low: float
    high: float
    outside: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """Whether a configuration runs (M9.3).

    ``decided_by`` is ``rule``, ``memory`` (the memory model alone) or ``classifier``. ``memory_gb`` is the estimated peak per GPU
    and ``limit_gb`` what one GPU has, both in 10**9 bytes; None where a rule decided before it was estimated.
    """

    valid: bool
    p_valid: float
    reason: str
    memory_gb: float | None
    limit_gb: float | None
    decided_by: str
    outside: tuple[str, ...]
