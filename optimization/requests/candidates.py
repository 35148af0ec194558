"""Candidates for a request: markets with its GPUs, H(n) on them, and the possible configurations (M9.1, M9.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Protocol

import pandas as pd

from slackwater.forecasting.configurations.facts import (
    Configuration,
    PredictedThroughput,
    Validity,
    architecture,
    gpu,
    known_gpus,
)
from slackwater.optimization.job.definition import Job, RateTable, rates, work_needed
from slackwater.optimization.job.request import (
    FilledConfiguration,
    JobRequest,
    MovingTerms,
    parse_request,
    slot_job,
)
from slackwater.optimization.job.times import TIME_KEYS
from slackwater.optimization.job.units import GpuType, gpu_type_of
from slackwater.optimization.kernels.rules import after_growing, slots_needed
from slackwater.optimization.market.recent import RecentMarket, recent_market
from slackwater.optimization.requests.request import CompletedRequest
from slackwater.warehouse.amounts import price
from slackwater.warehouse.errors import JobError, MarketError
from slackwater.warehouse.history import History, Market

EACH_KIND = 2  # Number of markets per GPU model and GPUs per instance that are examined in detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(RecentMarket):
    """Market with the GPUs of its instances and its recent spot data."""

    gpu: GpuType


#: Reason shown when a market cannot be used because of its GPU.
NO_GPU = "the GPU of its instance type is not known, or has no known peak figures"


def rated_gpu(market: Market) -> GpuType | None:
    """Return the GPUs of an instance of a market; None if they or the peak figures of their model are unknown."""
    held = gpu_type_of(market)
    return held if held is not None and held.gpu_model in known_gpus() else None


def offer_of(history: History) -> Offer:
    """Return the offer of a market at the end of its history; raises `MarketError` for an unknown GPU."""
    gpu = rated_gpu(history.market)
    if gpu is None:
        raise MarketError(
            f"{history.market.key}: {NO_GPU}", remedy="`slackwater catalogue` lists the instance types"
        )
    recent = recent_market(history)
    return Offer(**{part.name: getattr(recent, part.name) for part in fields(recent)}, gpu=gpu)


def cheapest_offers(offers: Sequence[Offer], left_out: list[str]) -> list[Offer]:
    """Return the `EACH_KIND` recently cheapest offers by GPU model and number; others append reasons to ``left_out``."""
    kinds: dict[tuple[str, int], list[Offer]] = {}
    for offer in offers:
        kinds.setdefault((offer.gpu.gpu_model, offer.gpu.gpus), []).append(offer)
    kept = []
    for of_kind in kinds.values():
        rates = (
            (offer.screened_usd(_for_8_gpus(offer)) / _for_8_gpus(offer), offer.key, offer)
            for offer in of_kind
        )
        ranked = sorted(rates, key=lambda row: row[:2])
        kept += [offer for _, _, offer in ranked[:EACH_KIND]]
        cheapest_usd, cheapest_key, _ = ranked[0]
        left_out += [
            f"{key}: {price(usd)} USD an instance-hour by its last day, {cheapest_key} {price(cheapest_usd)}"
            for usd, key, _ in ranked[EACH_KIND:]
        ]
    return kept


def _for_8_gpus(offer: Offer) -> int:
    """Return the number of instances with 8 GPUs in total, at least 1."""
    return max(1, 8 // offer.gpu.gpus)


# ---
# H(n) of a filled request: training throughput on n instances with a constant number of samples per
# optimizer step (M9.4, M2.2).
#
# Assumptions (ours). The optimizer step has B samples for every n, so that the training is the
# same. n instances of g GPUs have G = n g GPUs, a node per instance. A step consists of k rounds of
# gradient accumulation with m = ceil(B / (k G)) samples per GPU; k is the least number of rounds
# whose round of m G samples fits into memory. If k m G > B, some GPUs idle at the end of the step:
# only B of the k m G samples count, so H(n) is the predicted throughput of rounds of m G samples
# times B / (k m G). More GPUs than samples (G > B) are excluded. If k > 1 the optimizer runs once
# in k rounds instead of in every round, which would be faster than predicted; that gain is not
# counted.

SURE = 0.8  # A width with a lower probability of running is planned only if no width reaches this probability


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Constants over all widths: the training, the GPU, the GPUs per instance, and the batch."""

    model_name: str
    method: str
    tokens_per_sample: int
    gpu_model: str
    gpus_per_instance: int
    batch_size: int
    torch_dtype: str | None

    def configuration(self, instances: int, rounds: int) -> Configuration:
        """Return the configuration on ``instances`` with a step of ``rounds`` rounds."""
        number = instances * self.gpus_per_instance
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
        """Return the numbers of rounds to try: powers of two up to one sample per GPU; none for more GPUs than samples."""
        number = instances * self.gpus_per_instance
        if number > self.batch_size:
            return []
        most = -(-self.batch_size // number)
        tried = [1 << power for power in range(most.bit_length()) if 1 << power < most]
        return [*tried, most]


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """H(n) at a single n: effective tokens per second with their 90 % interval.

    A step has ``rounds`` rounds of ``configuration.batch_size`` samples. An n that cannot run has
    rate 0 and the cause in ``reason``.
    """

    instances: int
    configuration: Configuration | None = None
    rounds: int = 0
    tokens_per_second: float = 0.0
    low: float = 0.0
    high: float = 0.0
    reason: str = ""
    outside: tuple[str, ...] = ()
    p_valid: float = 0.0

    @property
    def sure(self) -> bool:
        """Whether it runs with a probability of at least `SURE`."""
        return self.runs and self.p_valid >= SURE

    @property
    def runs(self) -> bool:
        """Whether the job can run on it."""
        return self.tokens_per_second > 0

    @property
    def round_samples(self) -> int:
        """Samples of a round over all GPUs; 0 if it cannot run."""
        return self.configuration.batch_size if self.configuration else 0


class Predictions(Protocol):
    """Predictions for configurations, implemented by `slackwater.forecasting.configurations.model.ConfigurationModel`."""

    def predict(self, configurations: Sequence[Configuration]) -> list[PredictedThroughput]:
        """Return the tokens per second of each configuration."""

    def validity(self, configurations: Sequence[Configuration]) -> list[Validity]:
        """Return whether each configuration runs."""


@dataclass(slots=True, kw_only=True)
class Knowledge:
    """Cache of predictions: each configuration is predicted once."""

    model: Predictions
    _known: dict[Configuration, tuple[PredictedThroughput, Validity]] = field(default_factory=dict)

    def learn(self, configurations: Iterable[Configuration]) -> None:
        """Predict the configurations that are not cached, in a single call."""
        new = [
            configuration
            for configuration in dict.fromkeys(configurations)
            if configuration not in self._known
        ]
        if new:
            answers = zip(self.model.predict(new), self.model.validity(new), strict=True)
            self._known.update(zip(new, answers, strict=True))

    def predict(self, configuration: Configuration) -> PredictedThroughput:
        """Return the tokens per second of a configuration."""
        self.learn([configuration])
        return self._known[configuration][0]

    def validity(self, configuration: Configuration) -> Validity:
        """Return whether a configuration runs."""
        self.learn([configuration])
        return self._known[configuration][1]


def widths_of(knowledge: Knowledge, terms: Sequence[Terms], most: int) -> Mapping[Terms, tuple[Width, ...]]:
    """Return H(n) on 1..``most`` GPUs for each of several terms, with a single call of the model.

    The widths are n = 1, 2, ... instances, up to ``most`` divided by the GPUs of an instance.
    """
    counts_of_terms = {term: range(1, max(1, most // term.gpus_per_instance) + 1) for term in terms}
    knowledge.learn(
        term.configuration(n, k)
        for term, instances in counts_of_terms.items()
        for n in instances
        for k in term.rounds(n)
    )
    return {
        term: tuple(_width(knowledge, term, n) for n in instances)
        for term, instances in counts_of_terms.items()
    }


def _width(knowledge: Knowledge, terms: Terms, instances: int) -> Width:
    """Return the width with the fewest rounds that surely run, else the fewest that run, else the reason."""
    tried = [(rounds, terms.configuration(instances, rounds)) for rounds in terms.rounds(instances)]
    if not tried:
        number = instances * terms.gpus_per_instance
        why = f"{number} GPUs are more than the {terms.batch_size} samples of a step"
        return Width(instances=instances, reason=why)
    verdicts = [knowledge.validity(configuration) for _, configuration in tried]
    valid = [place for place, verdict in enumerate(verdicts) if verdict.valid]
    if not valid:
        why = f"{instances * terms.gpus_per_instance} x {terms.gpu_model}: {verdicts[-1].reason}"
        return Width(instances=instances, reason=why)
    place = next((candidate for candidate in valid if verdicts[candidate].p_valid >= SURE), valid[0])
    (rounds, configuration), verdict = tried[place], verdicts[place]
    rate = knowledge.predict(configuration)
    share = terms.batch_size / (rounds * configuration.batch_size)
    return Width(
        instances=instances,
        configuration=configuration,
        rounds=rounds,
        tokens_per_second=rate.tokens_per_second * share,
        low=rate.low * share,
        high=rate.high * share,
        outside=tuple(dict.fromkeys((*rate.outside, *verdict.outside))),
        p_valid=verdict.p_valid,
    )


def usable(widths: Sequence[Width]) -> tuple[Width, ...]:
    """Return the longest run of consecutive n (M2.3) that surely run, the later of equals; if none, of n that run."""
    return _stretch(widths, [width.sure for width in widths]) or _stretch(
        widths, [width.runs for width in widths]
    )


def _stretch(widths: Sequence[Width], wanted: Sequence[bool]) -> tuple[Width, ...]:
    best: list[Width] = []
    stretch: list[Width] = []
    for width, good in zip(widths, wanted, strict=True):
        stretch = [*stretch, width] if good else []
        if stretch and len(stretch) >= len(best):
            best = stretch
    return tuple(best)


# ---
# Candidates for a request: offers, batches and number formats, with H(n) and the cost of on-demand
# only (M9.1, M9.4).

BATCHES = (8, 16, 32, 64, 128)  # Batches to try if the request has none: those of most fine-tunings
#: Maximal number of GPUs to try if the request has none; almost all measured runs have at most 8
#: GPUs per node.
MOST_GPUS = 16
DTYPES = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Configuration for the request: an offer, the terms of the training, and its possible widths (consecutive n).

    ``request`` is the resulting job, placed, with the median as H(n), or the low end if the request
    demands it.
    """

    offer: Offer
    terms: Terms
    widths: tuple[Width, ...]
    request: JobRequest

    @property
    def kind(self) -> tuple[str, int]:
        """GPU model and GPUs per instance."""
        return self.terms.gpu_model, self.terms.gpus_per_instance

    @property
    def gpus(self) -> int:
        """Maximal number of GPUs at a time."""
        return self.widths[-1].instances * self.terms.gpus_per_instance

    @property
    def label(self) -> str:
        """Name of the candidate in tables."""
        widest = self.widths[-1].instances
        return (
            f"{self.gpus} x {self.terms.gpu_model} ({widest} x {self.offer.gpu.instance_type}), "
            f"batch {self.terms.batch_size}, {self.terms.torch_dtype}"
        )

    @property
    def named(self) -> str:
        """Name of the candidate in sentences, with its market."""
        return f"{self.label} on {self.offer.key}"

    def job(self, step: pd.Timedelta, bound: str = "median") -> Job:
        """Return the job in slots at the ``median``, ``low`` or ``high`` throughput, with the value of the planned job."""
        job = slot_job(self.request, step=step, on_demand_usd=self.offer.on_demand_usd)
        return with_rates(job, filled_of(self.request), bound)

    def alone(self, step: pd.Timedelta, bound: str = "median") -> OnDemand:
        """Return the result of on-demand only."""
        # The result does not depend on the value; computing the least value that never gives up
        # takes longer than all the rest.
        priced = self.request.model_copy(update={"value_usd": self.request.value_usd or 1.0})
        job = slot_job(priced, step=step, on_demand_usd=self.offer.on_demand_usd)
        job = with_rates(job, filled_of(self.request), bound)
        return on_demand_alone(
            job, on_demand_usd=self.offer.on_demand_usd, slot_hours=step / pd.Timedelta(hours=1)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemand:
    """Cheapest constant on-demand size that meets the deadline, else the fastest, ``late_by`` slots."""

    instances: int
    slots: int
    cost_usd: float
    late_by: int


def filled_of(request: JobRequest) -> FilledConfiguration:
    """Return the configuration of a filled job; raises `JobError` if it has none."""
    if request.configuration is None:
        raise JobError(f"job {request.name!r} was not filled", expected="a job written by `slackwater fill`")
    return request.configuration


def with_rates(job: Job, filled: FilledConfiguration, bound: str) -> Job:
    """Return the job with the ``bound`` of the throughput interval as H(n); the rates below n_min are unchanged."""
    table = filled.low if bound == "low" else filled.high if bound == "high" else filled.tokens_per_second
    kept = [job.throughput.rate(n) for n in range(1, job.n_max + 1)]
    rates = [rate * 3600.0 if rate > 0 else old for rate, old in zip(table, kept, strict=False)]
    return replace(job, throughput=RateTable(rates=tuple(rates)))


def on_demand_alone(job: Job, *, on_demand_usd: float, slot_hours: float) -> OnDemand:
    """Return the on-demand size of least cost (M4.1: least n) in time, in whole slots, else of earliest finish (ours)."""
    hourly = rates(job.throughput, job.n_max)
    ends = []
    for n in range(job.n_min, job.n_max + 1):
        gain = float(hourly[n]) * slot_hours
        slots = slots_needed(work_needed(job.workload), after_growing(job.restart, n) * gain, gain)
        late = max(0, slots - job.deadline_slots)
        ends.append(
            OnDemand(instances=n, slots=slots, cost_usd=n * slots * slot_hours * on_demand_usd, late_by=late)
        )
    return min(ends, key=lambda end: (end.late_by, end.cost_usd, end.slots))


def candidates_of(
    completed: CompletedRequest, offers: Sequence[Offer], knowledge: Knowledge, rejected: list[str]
) -> list[Candidate]:
    """Return every candidate, reasons against others in ``rejected``; raises `JobError` if none, with the nearest limit."""
    requested = completed.request.number_gpus
    terms = {offer: _terms(completed, offer, rejected) for offer in offers}
    every = list(dict.fromkeys(term for terms_of_kind in terms.values() for term in terms_of_kind))
    tables = widths_of(knowledge, every, requested or MOST_GPUS)
    found = []
    for offer, terms_of_kind in terms.items():
        for term in terms_of_kind:
            run = usable(tables[term])
            if not run or requested not in (None, run[-1].instances * term.gpus_per_instance):
                rejected.append(_refusal(offer, term, tables[term]))
                continue
            found += [
                _candidate(completed, offer, term, run, tables[term], n)
                for n in _maxima(completed, run, term)
            ]
    rejected[:] = list(dict.fromkeys(rejected))
    if not found:
        raise JobError(
            f"no valid configuration for {completed.request.model!r} ({completed.method}, "
            f"{completed.tokens_per_sample} tokens a sample): {_least_missed(knowledge, every, requested)}",
            expected="a configuration that divides and fits into memory",
            remedy="ask for another number of GPUs or another batch, shorter samples or another method",
        )
    return found


def _terms(completed: CompletedRequest, offer: Offer, rejected: list[str]) -> list[Terms]:
    request, name = completed.request, model_name_of(completed)
    most = request.number_gpus
    if most is not None and most % offer.gpu.gpus:
        rejected.append(f"{offer.key}: {most} GPUs are no whole number of instances of {offer.gpu.gpus}")
        return []
    facts = gpu(offer.gpu.gpu_model)
    dtypes = (request.torch_dtype,) if request.torch_dtype else DTYPES if facts.bfloat16 else DTYPES[1:]
    if request.torch_dtype == "bfloat16" and not facts.bfloat16:
        rejected.append(f"{offer.key}: {facts.name} has no bfloat16")
        return []
    if completed.method == "gptq-lora" and not request.torch_dtype:
        dtypes = DTYPES[1:]
    batches = (request.batch_size,) if request.batch_size else BATCHES
    return [
        Terms(
            model_name=name,
            method=completed.method,
            tokens_per_sample=completed.tokens_per_sample,
            gpu_model=offer.gpu.gpu_model,
            gpus_per_instance=offer.gpu.gpus,
            batch_size=batch,
            torch_dtype=dtype,
        )
        for dtype in dtypes
        for batch in batches
    ]


def model_name_of(completed: CompletedRequest) -> str:
    """Return the model's name in the measurements, or with its parameters; raises `InputError` if neither is known."""
    request = completed.request
    name = (
        request.model if request.params_b is None else f"{request.model.split('@')[0]}@{request.params_b:g}b"
    )
    architecture(name)
    return name


def _maxima(completed: CompletedRequest, run: Sequence[Width], terms: Terms) -> list[int]:
    """Return the maximal numbers of instances to try: the powers of two in the run and its end, or the requested number."""
    last = run[-1].instances
    if completed.request.number_gpus is not None:
        return [last]
    inside = {width.instances for width in run}
    return sorted(n for n in {last, *(1 << k for k in range(last.bit_length()))} if n in inside)


def _candidate(
    completed: CompletedRequest,
    offer: Offer,
    terms: Terms,
    run: Sequence[Width],
    table: Sequence[Width],
    most: int,
) -> Candidate:
    kept = tuple(width for width in run if width.instances <= most)
    filled = _filled_configuration(terms, kept[0].instances, table[:most])
    return Candidate(
        offer=offer, terms=terms, widths=kept, request=_job_request(completed, offer, filled, kept)
    )


def _filled_configuration(terms: Terms, n_min: int, table: Sequence[Width]) -> FilledConfiguration:
    widths = [width if width.instances >= n_min else Width(instances=width.instances) for width in table]
    return FilledConfiguration(
        **asdict(terms),
        tokens_per_second=tuple(width.tokens_per_second for width in widths),
        low=tuple(width.low for width in widths),
        high=tuple(width.high for width in widths),
        round_samples=tuple(width.round_samples for width in widths),
        rounds=tuple(width.rounds for width in widths),
    )


def _job_request(
    completed: CompletedRequest, offer: Offer, filled: FilledConfiguration, run: Sequence[Width]
) -> JobRequest:
    request = completed.request
    table = filled.low if request.plan_by == "low" else filled.tokens_per_second
    first = table[run[0].instances - 1]
    values: dict[str, object] = {
        "name": completed.name,
        "deadline": request.deadline,
        "deadline_in": request.deadline_in,
        "n_min": run[0].instances,
        "n_max": run[-1].instances,
        "value_usd": request.value_usd,
        "decay": request.decay,
        "workload": {"amount": completed.tokens, "unit": "tokens"},
        # The job never runs below n_min; a table needs a rate for each n, so the first rate fills the gap.
        "throughput": {"form": "table", "rates": [3600.0 * (rate or first) for rate in table]},
        "checkpoint": {"resumable": True, "overhead_minutes": completed.overhead_minutes},
        "configuration": filled,
        **{key: getattr(request, key) for key in TIME_KEYS},
    }
    placed = parse_request(values, completed.name)
    return placed.with_place(at=offer.at, market=offer.market.key, source=offer.source)


#: Bytes of a checkpoint per parameter, by method: 16-bit weights and two 16-bit moments; for an
#: adapter the base weights plus a hundredth of the full checkpoint.
CHECKPOINT_BYTES = {"full": 6.0, "lora": 2.06, "gptq-lora": 0.66}
SENT_GB_PER_MINUTE = 15.0  # Assumed transfer rate of a checkpoint, 2 Gbit/s: cautious between regions (ours)


def moving_terms(terms: Terms) -> MovingTerms:
    """Return the assumed cost of a move of a filled job: its checkpoint at `SENT_GB_PER_MINUTE` (ours)."""
    size = architecture(terms.model_name).params_b * CHECKPOINT_BYTES[terms.method]
    return MovingTerms.model_validate(
        {"checkpoint_gb": round(size, 1), "bandwidth_gb_per_minute": SENT_GB_PER_MINUTE}
    )


def _refusal(offer: Offer, terms: Terms, widths: Sequence[Width]) -> str:
    widest = next((width for width in reversed(widths) if not width.runs), None)
    what = f"{offer.key}, batch {terms.batch_size}, {terms.torch_dtype}"
    return f"{what}: {widest.reason if widest else 'the requested number of GPUs is not reached'}"


def _least_missed(knowledge: Knowledge, terms: Sequence[Terms], number_gpus: int | None) -> str:
    """Describe the configuration that came closest to the memory of its GPU; of those that fit, the likeliest to run.

    With a requested number of GPUs only configurations of that number count; if there are none, the
    text gives the reason.
    """
    asked = [
        term.configuration(n, term.rounds(n)[-1])
        for term in terms
        for n in range(1, MOST_GPUS // term.gpus_per_instance + 1)
        if term.rounds(n) and number_gpus in (None, n * term.gpus_per_instance)
    ]
    if not asked and terms and number_gpus is not None:
        largest = max(term.batch_size for term in terms)
        return (
            f"{number_gpus} GPUs were requested, and a batch of {largest} has a sample for {largest} at most"
        )
    near: list[tuple[float, float, str]] = []
    for configuration in asked:
        validity = knowledge.validity(configuration)
        if not validity.valid and validity.memory_gb and validity.limit_gb:
            over = max(validity.memory_gb - validity.limit_gb, 0.0)
            lacks = (
                f"{over:.1f} GB too much"
                if over
                else f"which is estimated to fit, but holds with probability {validity.p_valid:.2f} only"
            )
            near.append(
                (
                    over,
                    -validity.p_valid,
                    f"nearest are {configuration.number_gpus} x {configuration.gpu_model} with a batch of "
                    f"{configuration.batch_size}: {validity.memory_gb:.1f} GB a GPU of {validity.limit_gb:.1f} GB, "
                    f"{lacks} ({validity.reason})",
                )
            )
    if near:
        return min(near)[2]
    reasons = list(dict.fromkeys(knowledge.validity(configuration).reason for configuration in asked))
    return "; ".join(reasons[:3]) or "no requested number of GPUs is a whole number of instances"
