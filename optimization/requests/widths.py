"""H(n) of a filled request: how fast it trains on n instances while the samples of an optimizer step stay the same (M9.4,
M2.2).

What is assumed (ours). The optimizer step has B samples whatever n is, so that training is the same training. On n
instances of g GPUs there are G = n g of them, one node an instance. A step is done in k rounds of gradient accumulation
with m = ceil(B / (k G)) samples a GPU, k the least number of rounds whose round of m G samples fits into memory. Where k m
G > B some GPUs idle at the end of the step: only B of the k m G samples count, so H(n) is the predicted rate of rounds of m
G samples times B / (k m G). More GPUs than samples (G > B) are no width at all. Where k > 1 the optimizer works once in k
rounds and not in every one, which would be faster than predicted; that gain is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from forecasting.configurations.facts import Configuration, Predicted, Validity

#: A width that runs with less than this probability is not planned on as long as a surer one is there.
SURE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What stays the same over all widths: the training itself, the GPU, how many of them an instance has, and the batch."""

    model_name: str
    method: str
    tokens_per_sample: int
    gpu_model: str
    gpus: int
    batch_size: int
    torch_dtype: str | None

    def configuration(self, instances: int, rounds: int) -> Configuration:
        """What is run on ``instances`` when a step is done in ``rounds`` rounds."""
        number = instances * self.gpus
        return Configuration(
            model_name=self.model_name,
            method=self.method,
            gpu_model=self.gpu_model,
            number_gpus=number,
            number_nodes=instances,
            tokens_per_sample=self.tokens_per_sample,
            batch_size=number * -(-self.batch_size // (rounds * number)),
            torch_dtype=self.torch_dtype,
        )

    def rounds(self, instances: int) -> list[int]:
        """Numbers of rounds worth trying on ``instances``: powers of two up to one sample a GPU; none for more GPUs than
        samples.
        """
        number = instances * self.gpus
        if number > self.batch_size:
            return []
        most = -(-self.batch_size // number)
        tried = [1 << power for power in range(most.bit_length()) if 1 << power < most]
        return [*tried, most]


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """H(n) at one n: tokens per second that count, with their 90 % interval; ``rounds`` of ``configuration.batch_size``
    samples a step.

    An n that cannot run has no rate and says why in ``reason``.
    """

    instances: int
    configuration: Configuration | None
    rounds: int
    tokens_per_second: float
    low: float
    high: float
    reason: str
    outside: tuple[str, ...]
    p_valid: float = 0.0

    @property
    def sure(self) -> bool:
        """Whether it runs with a probability of `SURE` or more."""
        return self.runs and self.p_valid >= SURE

    @property
    def runs(self) -> bool:
        """Whether the job can run on it."""
        return self.tokens_per_second > 0


class Predictions(Protocol):
    """What is predicted of configurations; `forecasting.configurations.model.ConfigurationModel` has it."""

    def predict(self, configurations: Sequence[Configuration]) -> list[Predicted]:
        """Tokens per second of each."""

    def validity(self, configurations: Sequence[Configuration]) -> list[Validity]:
        """Whether each runs."""


@dataclass(slots=True, kw_only=True)
class Knowledge:
    """Predictions that are asked for once each."""

    model: Predictions
    _known: dict[Configuration, tuple[Predicted, Validity]] = field(default_factory=dict)

    def learn(self, configurations: Iterable[Configuration]) -> None:
        """Ask the model about those it was not asked about, all at once."""
        new = [one for one in dict.fromkeys(configurations) if one not in self._known]
        if new:
            answers = zip(self.model.predict(new), self.model.validity(new), strict=True)
            self._known.update(zip(new, answers, strict=True))

    def predicted(self, configuration: Configuration) -> Predicted:
        """Tokens per second of one configuration."""
        self.learn([configuration])
        return self._known[configuration][0]

    def validity(self, configuration: Configuration) -> Validity:
        """Whether one configuration runs."""
        self.learn([configuration])
        return self._known[configuration][1]


def widths_of(knowledge: Knowledge, terms: Sequence[Terms], most: int) -> Mapping[Terms, tuple[Width, ...]]:
    """H(n) for n = 1..``most`` GPUs over an instance's GPUs, for several terms; the model is asked once for all of them."""
    asked = {one: range(1, max(1, most // one.gpus) + 1) for one in terms}
    knowledge.learn(
        one.configuration(n, k) for one, instances in asked.items() for n in instances for k in one.rounds(n)
    )
    return {one: tuple(_width(knowledge, one, n) for n in instances) for one, instances in asked.items()}


def _width(knowledge: Knowledge, terms: Terms, instances: int) -> Width:
    """The fewest rounds that surely run, else the fewest that run at all, else why none does."""
    tried = [(rounds, terms.configuration(instances, rounds)) for rounds in terms.rounds(instances)]
    if not tried:
        number = instances * terms.gpus
        return _no_width(instances, f"{number} GPUs are more than the {terms.batch_size} samples of a step")
    verdicts = [knowledge.validity(configuration) for _, configuration in tried]
    valid = [place for place, verdict in enumerate(verdicts) if verdict.valid]
    if not valid:
        return _no_width(instances, f"{instances * terms.gpus} x {terms.gpu_model}: {verdicts[-1].reason}")
    place = next((one for one in valid if verdicts[one].p_valid >= SURE), valid[0])
    (rounds, configuration), verdict = tried[place], verdicts[place]
    rate = knowledge.predicted(configuration)
    share = terms.batch_size / (rounds * configuration.batch_size)
    return Width(
        instances=instances,
        configuration=configuration,
        rounds=rounds,
        tokens_per_second=rate.tokens_per_second * share,
        low=rate.low * share,
        high=rate.high * share,
        reason="",
        outside=tuple(dict.fromkeys((*rate.outside, *verdict.outside))),
        p_valid=verdict.p_valid,
    )


def _no_width(instances: int, reason: str) -> Width:
    return Width(
        instances=instances,
        configuration=None,
        rounds=0,
        tokens_per_second=0.0,
        low=0.0,
        high=0.0,
        reason=reason,
        outside=(),
    )


def usable(widths: Sequence[Width]) -> tuple[Width, ...]:
    """The longest stretch of consecutive n that surely run, the later of equals; where none does, of those that run.

    A job holds any n between two bounds (M2.3), so that a hole would not do.
    """
    return _stretch(widths, [one.sure for one in widths]) or _stretch(widths, [one.runs for one in widths])


def _stretch(widths: Sequence[Width], wanted: Sequence[bool]) -> tuple[Width, ...]:
    best: list[Width] = []
    stretch: list[Width] = []
    for width, good in zip(widths, wanted, strict=True):
        stretch = [*stretch, width] if good else []
        if stretch and len(stretch) >= len(best):
            best = stretch
    return tuple(best)
