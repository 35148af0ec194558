"""Does a configuration run? Hard rules first, then a memory model (M9.3)."""

from __future__ import annotations

from math import erfc, log, sqrt

from forecasting.configuration_facts import architecture, gpu
from forecasting.configuration_memory import estimated_memory_gb
from forecasting.configuration_values import Configuration, Validity


def broken_rule(c: Configuration) -> str:
    """The rule that refuses ``c`` before anything is run, as a sentence; empty if none does."""
    shape, device = architecture(c.model_name), gpu(c.gpu_model)
    if c.batch_size % c.number_gpus:
        return f"batch size {c.batch_size} is not divisible by {c.number_gpus} GPUs"
    if c.number_gpus % c.number_nodes:
        return f"{c.number_gpus} GPUs are not divisible by {c.number_nodes} nodes"
    if shape.learned_positions and shape.max_tokens is not None and c.tokens_per_sample > shape.max_tokens:
        return f"{c.model_name} has a table of {shape.max_tokens} positions, {c.tokens_per_sample} tokens per sample do not fit"
    if c.method == "gptq-lora" and c.dtype != "float16":
        return f"gptq-lora runs in float16 only, {c.dtype} was asked for"
    if c.dtype == "bfloat16" and not device.bfloat16:
        return f"{c.gpu_model} has no bfloat16"
    return ""


def memory_validity(c: Configuration) -> Validity:
    """Validity by rules and the memory model alone."""
    rule = broken_rule(c)
    if rule:
        return Validity(
            valid=False,
            p_valid=0.0,
            reason=rule,
            memory_gb=None,
            limit_gb=None,
            decided_by="rule",
            outside=(),
        )
    need, limit = estimated_memory_gb(c), gpu(c.gpu_model).memory_gb
    p = 0.5 * erfc(log(need / (0.95 * limit)) / (0.25 * sqrt(2)))
    word = "fit in" if p >= 0.5 else "exceed"
    return Validity(
        valid=p >= 0.5, p_valid=p, reason=f"about {need:.3g} GB per GPU {word} the {limit:g} GB of {c.gpu_model}",
        memory_gb=need, limit_gb=limit, decided_by="memory", outside=(),
    )  # fmt: skip
