"""How far a configuration lies outside what was measured: in sentences, and as a number that widens its interval (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Final

from forecasting.configuration_facts import architecture
from forecasting.configuration_values import Configuration

#: How much one doubling outside the measured range widens the interval of log throughput.
_PER_DOUBLING: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """What was measured: smallest and largest of every number, names, and the largest number of GPUs per GPU model."""

    spans: dict[str, tuple[float, float]]
    models: frozenset[str]
    gpus: frozenset[str]
    groups: frozenset[tuple[str, str, str]]
    most_gpus: dict[str, int]

    def distance(self, c: Configuration) -> float:
        """By how much of itself the interval is to be widened: half per doubling outside any measured range."""
        return _PER_DOUBLING * sum(amount for amount, _ in self._beyond(c))

    def sentences(self, c: Configuration) -> tuple[str, ...]:
        """One sentence per way in which ``c`` lies outside the data; none inside."""
        out: list[str] = []
        shape = architecture(c.model_name)
        if c.gpu_model not in self.gpus:
            out.append(
                f"{c.gpu_model} was never measured ({len(self.gpus)} GPU models were): its data sheet stands in"
            )
        if c.model_name not in self.models:
            guessed = ", of which only the size is known" if shape.assumed else ""
            near = min(self.models, key=lambda name: abs(log2(architecture(name).params_b / shape.params_b)))
            out.append(
                f"{c.model_name} ({shape.params_b:.3g} billion parameters{guessed}) was never measured; "
                f"the nearest in size is {near} ({architecture(near).params_b:.3g} billion)"
            )
        elif c.gpu_model in self.gpus and (c.model_name, c.method, c.gpu_model) not in self.groups:
            out.append(f"{c.model_name} was never measured with {c.method} on {c.gpu_model}")
        out.extend(sentence for _, sentence in self._beyond(c))
        if shape.max_tokens is not None and c.tokens_per_sample > shape.max_tokens:
            out.append(
                f"{c.tokens_per_sample} tokens per sample are {c.tokens_per_sample / shape.max_tokens:.3g} times "
                f"the {shape.max_tokens} that {c.model_name} was trained for"
            )
        return tuple(out)

    def _beyond(self, c: Configuration) -> list[tuple[float, str]]:
        """(doublings outside, sentence) of every number outside its range."""
        out: list[tuple[float, str]] = []
        for name, value in _numbers(c).items():
            low, high = self.spans[name]
            amount = max(log2(low / value), log2(value / high))
            if amount > 1e-9:
                edge, word = (low, "below") if value < low else (high, "above")
                ratio = max(value / high, low / value)
                out.append(
                    (
                        amount,
                        f"{name} {value:g} is {word} all measured ({low:g} to {high:g}), by a factor of {ratio:.3g} from {edge:g}",
                    )
                )
        most = self.most_gpus.get(c.gpu_model)
        if most is not None and c.number_gpus > most and c.number_gpus <= self.spans["number of GPUs"][1]:
            out.append(
                (
                    log2(c.number_gpus / most),
                    f"{c.number_gpus} GPUs are more than the {most} measured on {c.gpu_model}",
                )
            )
        return out


def ranges_of(configurations: Sequence[Configuration]) -> Ranges:
    """The ranges of measured configurations."""
    numbers = [_numbers(c) for c in configurations]
    most: dict[str, int] = {}
    for c in configurations:
        most[c.gpu_model] = max(most.get(c.gpu_model, 0), c.number_gpus)
    return Ranges(
        spans={name: (min(n[name] for n in numbers), max(n[name] for n in numbers)) for name in numbers[0]},
        models=frozenset(c.model_name for c in configurations),
        gpus=frozenset(c.gpu_model for c in configurations),
        groups=frozenset((c.model_name, c.method, c.gpu_model) for c in configurations),
        most_gpus=most,
    )


def _numbers(c: Configuration) -> dict[str, float]:
    return {
        "billions of parameters": architecture(c.model_name).params_b,
        "number of GPUs": c.number_gpus,
        "number of nodes": c.number_nodes,
        "tokens per sample": c.tokens_per_sample,
        "samples per GPU": c.batch_size / c.number_gpus,
    }
