"""Peak memory of a fine-tuning step per GPU, estimated from the model's shape (M9.3, ours)."""

from __future__ import annotations

from forecasting.configuration_facts import architecture
from forecasting.configuration_values import Configuration


def estimated_memory_gb(c: Configuration) -> float:
    """Estimated peak memory per GPU in GB (10**9 bytes): weights, gradients, optimizer states, activations, logits."""
    shape = architecture(c.model_name)
    per_parameter = {"full": 8.0, "lora": 2.0, "gptq-lora": 0.6}[c.method]
    fixed = shape.params_b * per_parameter / c.number_gpus
    tokens = c.batch_size * c.tokens_per_sample / c.number_gpus
    kept = tokens * 2.0 * shape.layers * shape.width / 1e9
    logits = tokens * 2.0 * shape.vocabulary / 1e9
    return fixed + kept + logits + 1.5
