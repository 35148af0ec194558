"""What a request could be filled with: offers, batches and number formats, with H(n) and what on-demand alone would cost
(M9.1, M9.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from forecasting.configurations.facts import architecture, gpu
from optimization.job.definition import Job, Table, needed, rates
from optimization.job.request import FilledConfiguration, JobRequest, parse_request, slot_job
from optimization.kernels.rules import after_growing, slots_needed
from optimization.requests.offers import Offer
from optimization.requests.request import Completed
from optimization.requests.widths import Knowledge, Terms, Width, usable, widths_of
from warehouse.errors import JobError

#: Batches that are tried where the request names none: what most fine-tunings use.
BATCHES = (8, 16, 32, 64, 128)
#: Most GPUs at once that are tried where the request names none; the measured runs end at 8 GPUs a node but for a few.
MOST_GPUS = 16
DTYPES = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to fill the request: an offer, the terms of the training, and the widths it may have (consecutive n).

    ``request`` is the job it becomes, placed, with the median as H(n), or the low end where the request says so.
    """

    offer: Offer
    terms: Terms
    widths: tuple[Width, ...]
    request: JobRequest

    @property
    def gpus(self) -> int:
        """Most GPUs held at once."""
        return self.widths[-1].instances * self.terms.gpus

    @property
    def label(self) -> str:
        """How tables name it."""
        widest = self.widths[-1].instances
        return (
            f"{self.gpus} x {self.terms.gpu_model} ({widest} x {self.offer.gpu.instance_type}), "
            f"batch {self.terms.batch_size}, {self.terms.torch_dtype}"
        )

    @property
    def named(self) -> str:
        """How sentences name it: with its market."""
        return f"{self.label} on {self.offer.key}"

    def job(self, step: pd.Timedelta, bound: str = "median") -> Job:
        """The job in slots with the ``median``, ``low`` or ``high`` of the predicted throughput; its value is that of the
        job as planned.
        """
        job = slot_job(self.request, step=step, on_demand_usd=self.offer.on_demand_usd)
        return with_rates(job, filled_of(self.request), bound)

    def alone(self, step: pd.Timedelta, bound: str = "median") -> OnDemand:
        """What on-demand alone would do."""
        # Any value will do here: the least that never gives up takes longer to find than all the rest.
        priced = self.request.model_copy(update={"value_usd": self.request.value_usd or 1.0})
        job = slot_job(priced, step=step, on_demand_usd=self.offer.on_demand_usd)
        job = with_rates(job, filled_of(self.request), bound)
        return on_demand_alone(
            job, on_demand_usd=self.offer.on_demand_usd, slot_hours=step / pd.Timedelta(hours=1)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemand:
    """The cheapest constant number of on-demand instances that meets the deadline, or where none does the fastest.

    ``late_by`` slots it misses the deadline.
    """

    instances: int
    slots: int
    cost_usd: float
    late_by: int


def filled_of(request: JobRequest) -> FilledConfiguration:
    """The configuration of a filled job; raises `JobError` for one that was not."""
    if request.configuration is None:
        raise JobError(f"job {request.name!r} was not filled", expected="a job made by `slackwater fill`")
    return request.configuration


def with_rates(job: Job, filled: FilledConfiguration, bound: str) -> Job:
    """The job with another end of the interval as its H(n); what n_min leaves out keeps the rate it has."""
    table = filled.low if bound == "low" else filled.high if bound == "high" else filled.tokens_per_second
    kept = [job.throughput.rate(n) for n in range(1, job.n_max + 1)]
    told = [rate * 3600.0 if rate > 0 else old for rate, old in zip(table, kept, strict=False)]
    return replace(job, throughput=Table(rates=tuple(told)))


def on_demand_alone(job: Job, *, on_demand_usd: float, slot_hours: float) -> OnDemand:
    """On-demand only, whole slots paid (M2.4): the least cost that meets the deadline, else the earliest finish (ours: M4.1
    takes the least n).
    """
    hourly = rates(job.throughput, job.n_max)
    ends = []
    for n in range(job.n_min, job.n_max + 1):
        gain = float(hourly[n]) * slot_hours
        slots = slots_needed(needed(job.workload), after_growing(job.restart, n) * gain, gain)
        late = max(0, slots - job.deadline_slots)
        ends.append(
            OnDemand(instances=n, slots=slots, cost_usd=n * slots * slot_hours * on_demand_usd, late_by=late)
        )
    return min(ends, key=lambda one: (one.late_by, one.cost_usd, one.slots))


def candidates_of(
    asked: Completed, offers: Sequence[Offer], knowledge: Knowledge, rejected: list[str]
) -> list[Candidate]:
    """Every candidate of the offers; why others cannot run goes into ``rejected``, one sentence each.

    Raises `JobError` if none can run, with the limit that was missed by least.
    """
    most = asked.request.number_gpus or MOST_GPUS
    terms = {offer: _terms(asked, offer, rejected) for offer in offers}
    every = list(dict.fromkeys(one for own in terms.values() for one in own))
    tables = widths_of(knowledge, every, most)
    found = []
    for offer, own in terms.items():
        for one in own:
            run = usable(tables[one])
            if asked.request.number_gpus is not None and run and run[-1].instances * one.gpus != most:
                run = ()
            if not run:
                rejected.append(_refusal(offer, one, tables[one]))
                continue
            found += [_candidate(asked, offer, one, run, tables[one], n) for n in _maxima(asked, run, one)]
    rejected[:] = list(dict.fromkeys(rejected))
    if not found:
        raise JobError(
            f"no valid configuration for {asked.request.model!r} ({asked.method}, {asked.tokens_per_sample} tokens a sample): "
            f"{_least_missed(knowledge, every)}",
            expected="a configuration that divides and fits into memory",
            remedy="give more GPUs, a smaller batch, shorter samples or another method",
        )
    return found


def _terms(asked: Completed, offer: Offer, rejected: list[str]) -> list[Terms]:
    request, name = asked.request, model_name_of(asked)
    most = request.number_gpus
    if most is not None and most % offer.gpu.gpus:
        rejected.append(f"{offer.key}: {most} GPUs are no whole number of instances of {offer.gpu.gpus}")
        return []
    facts = gpu(offer.gpu.gpu_model)
    dtypes = (request.torch_dtype,) if request.torch_dtype else DTYPES if facts.bfloat16 else DTYPES[1:]
    if request.torch_dtype == "bfloat16" and not facts.bfloat16:
        rejected.append(f"{offer.key}: {facts.name} has no bfloat16")
        return []
    if asked.method == "gptq-lora" and not request.torch_dtype:
        dtypes = DTYPES[1:]
    batches = (request.batch_size,) if request.batch_size else BATCHES
    return [
        Terms(
            model_name=name,
            method=asked.method,
            tokens_per_sample=asked.tokens_per_sample,
            gpu_model=offer.gpu.gpu_model,
            gpus=offer.gpu.gpus,
            batch_size=batch,
            torch_dtype=dtype,
        )
        for dtype in dtypes
        for batch in batches
    ]


def model_name_of(asked: Completed) -> str:
    """The name the measurements know the model by, or its own with the parameters in billions; raises `InputError` for neither."""
    request = asked.request
    name = (
        request.model if request.params_b is None else f"{request.model.split('@')[0]}@{request.params_b:g}b"
    )
    architecture(name)
    return name


def _maxima(asked: Completed, run: Sequence[Width], terms: Terms) -> list[int]:
    """The greatest numbers of instances that are tried: all powers of two in the run and its end, or the one that is asked for."""
    last = run[-1].instances
    if asked.request.number_gpus is not None:
        return [last]
    inside = {width.instances for width in run}
    return sorted(n for n in {last, *(1 << k for k in range(last.bit_length()))} if n in inside)


def _candidate(
    asked: Completed, offer: Offer, terms: Terms, run: Sequence[Width], table: Sequence[Width], most: int
) -> Candidate:
    kept = tuple(width for width in run if width.instances <= most)
    filled = _filled(terms, kept[0].instances, table[:most])
    return Candidate(offer=offer, terms=terms, widths=kept, request=_job_request(asked, offer, filled, kept))


def _filled(terms: Terms, n_min: int, table: Sequence[Width]) -> FilledConfiguration:
    widths = [width if width.instances >= n_min else None for width in table]
    return FilledConfiguration(
        model_name=terms.model_name,
        method=terms.method,
        gpu_model=terms.gpu_model,
        gpus_per_instance=terms.gpus,
        tokens_per_sample=terms.tokens_per_sample,
        batch_size=terms.batch_size,
        torch_dtype=terms.torch_dtype,
        tokens_per_second=tuple(one.tokens_per_second if one else 0.0 for one in widths),
        low=tuple(one.low if one else 0.0 for one in widths),
        high=tuple(one.high if one else 0.0 for one in widths),
        round_samples=tuple(
            one.configuration.batch_size if one and one.configuration else 0 for one in widths
        ),
        rounds=tuple(one.rounds if one else 0 for one in widths),
    )


def _job_request(
    asked: Completed, offer: Offer, filled: FilledConfiguration, run: Sequence[Width]
) -> JobRequest:
    request = asked.request
    table = filled.low if request.plan_by == "low" else filled.tokens_per_second
    first = table[run[0].instances - 1]
    values: dict[str, object] = {
        "name": asked.name,
        "deadline": request.deadline,
        "deadline_in": request.deadline_in,
        "n_min": run[0].instances,
        "n_max": run[-1].instances,
        "value_usd": request.value_usd,
        "decay": request.decay,
        "workload": {"amount": asked.tokens, "unit": "tokens"},
        # Below n_min the job never runs: a table has no holes, so its first rate stands there.
        "throughput": {"form": "table", "rates": [3600.0 * (rate or first) for rate in table]},
        "checkpoint": {"resumable": True, "overhead_minutes": asked.overhead_minutes},
        "configuration": filled,
    }
    placed = parse_request(values, asked.name)
    return placed.placed(at=offer.at, market=offer.market.key, source=offer.source)


def _refusal(offer: Offer, terms: Terms, widths: Sequence[Width]) -> str:
    widest = next((width for width in reversed(widths) if not width.runs), None)
    what = f"{offer.key}, batch {terms.batch_size}, {terms.torch_dtype}"
    return f"{what}: {widest.reason if widest else 'the number of GPUs asked for is not reached'}"


def _least_missed(knowledge: Knowledge, terms: Sequence[Terms]) -> str:
    """The configuration that came nearest to its GPU's memory, in words."""
    asked = [
        one.configuration(n, one.rounds(n)[-1])
        for one in terms
        for n in range(1, MOST_GPUS // one.gpus + 1)
        if one.rounds(n)
    ]
    near: list[tuple[float, str]] = []
    for configuration in asked:
        validity = knowledge.validity(configuration)
        if not validity.valid and validity.memory_gb and validity.limit_gb:
            over = validity.memory_gb - validity.limit_gb
            near.append(
                (
                    over,
                    f"nearest are {configuration.number_gpus} x {configuration.gpu_model} with a batch of "
                    f"{configuration.batch_size}: {validity.memory_gb:.1f} GB a GPU of {validity.limit_gb:.1f} GB, "
                    f"{over:.1f} GB too much ({validity.reason})",
                )
            )
    if near:
        return min(near)[1]
    reasons: Mapping[str, None] = dict.fromkeys(knowledge.validity(one).reason for one in asked)
    return "; ".join(list(reasons)[:3]) or "no number of GPUs asked for is a whole number of instances"
