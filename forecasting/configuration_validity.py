"""Does a configuration run? What was measured, hard rules, memory that cannot suffice, then trees or the memory model (M9.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from forecasting.configuration_classifier import Classifier
from forecasting.configuration_facts import architecture, gpu
from forecasting.configuration_memory import MemoryParts, memory_parts
from forecasting.configuration_values import Configuration, Validity

#: Outside these the labels' grid ends and the trees would go on with its last value: the memory model decides there.
_GRID: Final = {"tokens_per_sample": (512, 8192), "batch_size": (1, 128), "number_gpus": (1, 16)}
#: Memory of the labelled GPU models in GB: between or beyond two sizes trees know nothing.
_LIMITS: Final = (48.0, 80.0)
#: Probability said of a configuration that ran, and of one that cannot.
_SURE: Final = 0.999
_KEY = tuple[str, str, str, int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidityModel:
    """Rules, the calibrated memory model, trees, and the configurations that are known to have run."""

    classifier: Classifier
    ran: frozenset[_KEY]

    def judge(self, configurations: Sequence[Configuration]) -> list[Validity]:
        """Validity of each; what is known to have run is valid (``decided_by`` ``measured``), whatever the models say."""
        answers = self.predict(configurations)
        return [
            replace(
                a,
                valid=True,
                p_valid=_SURE,
                reason="this configuration was measured and ran",
                decided_by="measured",
            )
            if a.decided_by != "rule" and identity(c) in self.ran
            else a
            for c, a in zip(configurations, answers, strict=True)
        ]

    def predict(self, configurations: Sequence[Configuration]) -> list[Validity]:
        """Validity of each without looking at what was measured. Raises `InputError` for unknown models or GPUs."""
        if not configurations:
            return []
        parts = memory_parts(configurations)
        need = self.classifier.memory.peak_gb(parts)
        odds = self.classifier.memory.log_odds(parts)
        trees = self.classifier.p_valid(configurations)
        return [
            self._one(c, parts=parts, row=i, need=float(need[i]), odds=float(odds[i]), trees=float(trees[i]))
            for i, c in enumerate(configurations)
        ]

    def _one(
        self, c: Configuration, *, parts: MemoryParts, row: int, need: float, odds: float, trees: float
    ) -> Validity:
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
        limit, states = float(parts.limit_gb[row]), float(parts.states_gb[row])
        outside = self._outside(c)
        if states >= limit:
            p, by = 1 - _SURE, "memory"
            reason = f"weights and optimizer states alone take {states:.3g} GB per GPU, {c.gpu_model} has {limit:g} GB"
        elif c.method == "gptq-lora" or limit not in _LIMITS or _off_grid(c):
            p, by = float(1 / (1 + np.exp(-odds))), "memory"
            reason = f"estimated peak of {need:.3g} GB per GPU, {c.gpu_model} has {limit:g} GB"
        else:
            p, by = trees, "classifier"
            reason = f"{p:.0%} by published (synthetic) labels; a memory estimate of {need:.3g} of {limit:g} GB per GPU"
        return Validity(
            valid=p > 0.5,
            p_valid=p,
            reason=reason,
            memory_gb=need,
            limit_gb=limit,
            decided_by=by,
            outside=outside,
        )

    def _outside(self, c: Configuration) -> tuple[str, ...]:
        out = [f"no validity of {c.method} is labelled"] if c.method == "gptq-lora" else []
        if c.model_name not in self.classifier.models:
            out.append(f"no validity of {c.model_name} is labelled: models of like shape stand in")
        if c.gpu_model not in self.classifier.gpus:
            out.append(f"no validity on {c.gpu_model} is labelled: its memory stands in")
        return (*out, *_off_grid(c))


def identity(c: Configuration) -> _KEY:
    """What must be equal for a measured run to speak for ``c`` (the number format is not among it)."""
    return (
        c.model_name,
        c.method,
        c.gpu_model,
        c.number_gpus,
        c.number_nodes,
        c.tokens_per_sample,
        c.batch_size,
    )


def broken_rule(c: Configuration) -> str:
    """The rule that refuses ``c`` before anything is run, as a sentence; empty if none does. Raises `InputError`."""
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


def _off_grid(c: Configuration) -> tuple[str, ...]:
    """Sentences for numbers outside the grid of labels."""
    return tuple(
        f"{name} {getattr(c, name)} lies outside the labels' {low} to {high}"
        for name, (low, high) in _GRID.items()
        if not low <= getattr(c, name) <= high
    )
