"""GPUs of the instances of a market, and sizes and workload of a request in GPUs and in instances (M2.1, M9.1)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Literal, get_args

from slackwater.warehouse.amounts import plural
from slackwater.warehouse.catalogue import SIZES, catalogue, is_named, named_gpus, rows_of
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.history import Market

if TYPE_CHECKING:
    from slackwater.optimization.job.definition import Job, Throughput
    from slackwater.optimization.job.request import JobRequest

MOST_INSTANCES, MOST_GPUS = 1024, 8192  # Largest numbers of instances and of GPUs of a job
PER_GPU = "throughput per GPU"  # Reason, in error messages, why the number of GPUs of an instance is needed
WorkUnit = Literal["tokens", "gpu_hours", "instance_hours", "slots"]  # Units of a workload
#: Units of work in words; other units are printed unchanged.
UNIT_WORDS = {"gpu_hours": "GPU-hour", "instance_hours": "instance-hour", "slots": "slot"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """GPUs of an instance type: number, model as in the measured runs, and memory of a single GPU (None: unknown)."""

    provider: str
    instance_type: str
    gpu_model: str
    gpus: int
    gpu_memory_gib: float | None = None


@cache
def gpu_types() -> tuple[GpuType, ...]:
    """Return the instance types of the catalogue with known GPUs; of a marketplace's ``<type>_xN`` only the type with 1 GPU."""
    found: dict[tuple[str, str], GpuType | None] = {}
    for row in catalogue():
        name = row.instance_type.removesuffix(SIZES)
        kept = f"{name}_x1" if row.instance_type.endswith(SIZES) else name
        found.setdefault((row.provider, kept), _gpu_type(row.provider, kept))
    return tuple(gpu_type for gpu_type in found.values() if gpu_type is not None)


def gpu_type_of(market: Market) -> GpuType | None:
    """Return the GPUs of an instance of a market; None for a type that is not in the catalogue.

    A marketplace's ``<type>_xN`` is a machine with N GPUs. The bare type counts machines of
    different sizes together and has no entry.

    >>> gpu_type_of(Market.parse("primeintellect/any/all/A100_80GB_SXM4_x4")).gpus
    4
    """
    return _gpu_type(market.provider, market.instance_type)


@lru_cache(maxsize=4096)
def _gpu_type(provider: str, instance_type: str) -> GpuType | None:
    for row in rows_of(provider, instance_type):
        if row.gpu_model is not None and row.gpus is not None:
            return GpuType(
                provider=provider,
                instance_type=instance_type,
                gpu_model=row.gpu_model,
                gpus=row.gpus,
                gpu_memory_gib=row.gpu_memory_gib,
            )
    return None


def has_gpu(wanted: str, gpu_model: str) -> bool:
    """Return whether ``wanted``, a part of a GPU model's name or a shell pattern for a part, matches the model; ignores case.

    >>> has_gpu("h100", "NVIDIA-H100-SXM5-80GB"), has_gpu("A100*80GB", "NVIDIA-A100-SXM4-40GB")
    (True, False)
    """
    return is_named(wanted, gpu_model)


def check_gpu(wanted: str) -> None:
    """Raise `JobError` if no known instance type has the GPU ``wanted``."""
    known = sorted({kind.gpu_model for kind in gpu_types()})
    if not any(has_gpu(wanted, model) for model in known):
        raise JobError(
            f"gpu_type {wanted!r}",
            expected=f"a part of one of {', '.join(known)}",
            remedy='for example gpu_type = "H100"; `slackwater catalogue` lists the instance types',
        )


# ---
# Sizes and work of a request.


def catalogue_gpus(market: Market) -> int | None:
    """Return the GPUs of an instance of a market by the catalogue, else by the name that sources give a machine of N GPUs.

    None for another unknown type, and for a type without GPUs.

    >>> names = ("n1-standard-8+p4x2", "RTX_4090_24GB_x8", "8x-H200", "gpu_4x_a6000", "gpu-h200-sxm_8gpu-128vcpu-1600gb", "own-1")
    >>> [catalogue_gpus(Market.parse(f"own/r/z/{name}")) for name in names]
    [2, 8, 8, 4, 8, None]
    """
    found = gpu_type_of(market)
    if found is not None:
        return found.gpus or None
    return named_gpus(market.instance_type)


def gpus_per_instance(request: JobRequest, market: Market) -> int | None:
    """Return the GPUs of an instance: of the request, its filled configuration, the catalogue; None if unknown."""
    stated = request.gpus_per_instance
    if isinstance(stated, Mapping):
        stated = stated.get(market.instance_type)
    if stated is None and request.configuration is not None:
        stated = request.configuration.gpus_per_instance
    return catalogue_gpus(market) if stated is None else stated


def required_gpus(request: JobRequest, market: Market, needed_by: str) -> int:
    """Return `gpus_per_instance`; raises `JobError` with the reason ``needed_by`` and a remedy where the number is unknown."""
    found = gpus_per_instance(request, market)
    if found is None:
        kind = market.instance_type
        stated = f'{{ "{kind}" = 8 }}' if request.may_move else "8"
        instead = "state sizes in instances (n_min, n_max) and work in instance_hours"
        if needed_by == PER_GPU:
            instead += ', throughput with per = "instance"'
        raise JobError(
            f"job {request.name!r}: {needed_by}, and how many GPUs an instance of {kind} has is not known",
            expected=f"gpus_per_instance in the job file, for example gpus_per_instance = {stated}",
            remedy=f"state it, or {instead}",
        )
    return found


def instance_range(request: JobRequest, market: Market) -> tuple[int, int]:
    """Return the smallest and largest number of instances of a request on a market (M2.1).

    GPUs are converted to whole instances: ``gpus_min`` is rounded up, ``gpus_max`` down. Raises
    `JobError` if no whole number of instances lies between them, or if ``gpus_max`` is more than
    `MOST_INSTANCES` instances.
    """
    if request.gpus_max is None:
        return request.n_min or 1, request.n_max or 1
    gpus = required_gpus(request, market, f"gpus_max = {request.gpus_max}")
    least, most = -(-(request.gpus_min or 1) // gpus), request.gpus_max // gpus
    if least > most:
        low = "" if request.gpus_min is None else f"gpus_min = {request.gpus_min}, "
        raise JobError(
            f"job {request.name!r}: {low}gpus_max = {request.gpus_max}, and an instance of {market.instance_type} has {gpus} GPUs",
            expected=f"a multiple of {gpus} within the two",
            remedy=f"for example gpus_max = {max(least, 1) * gpus}, or another instance type",
        )
    if most > MOST_INSTANCES:
        raise JobError(
            f"job {request.name!r}: gpus_max = {request.gpus_max} is {most:,} instances of {market.instance_type}",
            expected=f"at most {MOST_INSTANCES:,} instances",
        )
    return least, most


def has_room(request: JobRequest, market: Market) -> bool:
    """Return whether a whole number of instances lies between ``gpus_min`` and ``gpus_max``; True if the GPUs are unknown."""
    if request.gpus_max is None or gpus_per_instance(request, market) is None:
        return True
    try:
        instance_range(request, market)
    except JobError:
        return False
    return True


def can_run_on(request: JobRequest, market: Market) -> bool:
    """Return whether the request's sizes, work and throughput are defined on the instance type of a market."""
    return has_room(request, market) and (
        not counts_gpus(request, market.instance_type) or gpus_per_instance(request, market) is not None
    )


def counts_gpus(request: JobRequest, instance_type: str) -> bool:
    """Return whether the request needs the number of GPUs of an instance on an instance type."""
    form = request.throughput_on.get(instance_type, request.throughput)
    return request.gpus_max is not None or request.workload.unit == "gpu_hours" or form.per == "gpu"


def workload_units(
    amount: float, unit: WorkUnit, throughput: Throughput, slot_hours: float, gpus: int | None = None
) -> float:
    """Return a workload in the work units of ``throughput``, which is in work units per hour on n instances (M2.1).

    ``tokens`` are work units already. An instance-hour is H(1) work units; a slot of one instance
    is H(1) Delta, and a GPU-hour H(1) / ``gpus``, with ``gpus`` the GPUs of an instance. Raises
    `JobError` for an amount that is not positive, an unknown unit, or GPU-hours without ``gpus``.

    >>> from slackwater.optimization.job.definition import Linear
    >>> workload_units(20, "slots", Linear(alpha=2.0), 0.5), workload_units(320, "gpu_hours", Linear(), 0.5, gpus=8)
    (20.0, 40.0)
    """
    if not (amount > 0 and math.isfinite(amount)):
        raise JobError(f"workload of {amount} {unit}", expected="a positive amount")
    if unit == "tokens":
        return float(amount)
    if unit == "instance_hours":
        return float(amount) * throughput.rate(1)
    if unit == "slots":
        return float(amount) * throughput.rate(1) * slot_hours
    if unit != "gpu_hours":
        raise JobError(f"workload unit {unit!r}", expected=f"one of {', '.join(get_args(WorkUnit))}")
    if not gpus:
        raise JobError(f"workload of {amount} GPU-hours", expected="the number of GPUs of an instance")
    return float(amount) * throughput.rate(1) / gpus


def work_amount(request: JobRequest, market: Market, slot_hours: float) -> float:
    """Return the workload in work units, converted with the request's ``throughput`` on the instance type of a market."""
    work, form = request.workload, request.throughput
    if work.unit == "tokens":
        return float(work.amount)
    gpus = None
    if work.unit == "gpu_hours" or form.per == "gpu":
        what = f"a workload of {work.amount:g} GPU-hours" if work.unit == "gpu_hours" else PER_GPU
        gpus = required_gpus(request, market, what)
    throughput = form.build(gpus if form.per == "gpu" and gpus else 1)
    return workload_units(work.amount, work.unit, throughput, slot_hours, gpus)


def work_markets(request: JobRequest, markets: Sequence[Market]) -> list[Market]:
    """Return the markets on whose instance type a request counts its work: those where its ``throughput`` applies.

    If all of the markets have an entry in ``throughput_on``, these are the instance types named in
    ``markets`` that have no entry.
    """
    found = [market for market in markets if market.instance_type not in request.throughput_on]
    if found or not request.throughput_on:
        return found
    return [
        market
        for market in named_types(request, {market.provider for market in markets})
        if market.instance_type not in request.throughput_on
    ]


def named_types(request: JobRequest, providers: Collection[str] = ()) -> list[Market]:
    """Return the instance types that a request names in full in ``markets``, each as a market with any region and zone.

    A pattern of providers is expanded to the matching names in ``providers``.
    """
    named = [text.partition("@")[0].split("/") for text in request.markets]
    return [
        Market(provider=provider, region="*", zone="*", instance_type=parts[3])
        for parts in named
        if len(parts) == 4 and not set("*?[") & set(parts[3])
        for provider in sorted(
            {provider for provider in providers if fnmatchcase(provider, parts[0])} or {parts[0]}
        )
    ]


def types_without_room(request: JobRequest) -> list[str]:
    """Return notes on the instance types named in a request of which no whole number fits its sizes in GPUs."""
    return [
        f"{market.instance_type} is left out: an instance has {gpus_per_instance(request, market)} GPUs"
        for market in named_types(request)
        if not has_room(request, market)
    ]


def work_market_of(request: JobRequest, markets: Sequence[Market]) -> Market:
    """Return the market on whose instance type a request counts its work, wherever it runs among ``markets``.

    Raises `JobError` if there is none, or if the amount is not the same work on all candidates.
    """
    if request.workload.unit == "tokens" or (
        request.workload.unit != "gpu_hours" and request.throughput.per == "instance"
    ):
        return markets[0]
    found = work_markets(request, markets)
    who = f"job {request.name!r} states its work in {request.workload.unit}"
    if not found:
        raise JobError(
            f"{who}, and each instance type it may run on has a throughput of its own",
            expected="one candidate type without an entry in throughput_on, which `throughput` describes and work is counted on",
            remedy='leave that type out of throughput_on, or state the work in tokens (unit = "tokens")',
        )
    amounts = {market.instance_type: work_amount(request, market, 1.0) for market in found}
    least, most = min(amounts, key=amounts.__getitem__), max(amounts, key=amounts.__getitem__)
    if not math.isclose(amounts[least], amounts[most], rel_tol=1e-9):
        raise JobError(
            f"{who}: {request.workload.amount:g} of them are {amounts[least]:,.6g} units of work on {least} and "
            f"{amounts[most]:,.6g} on {most}",
            expected="an amount that is the same work on every instance type it may run on",
            remedy='state it in tokens (unit = "tokens"), or in gpu_hours with a linear throughput per GPU',
        )
    return found[0]


# ---
# Text for answers: instances and GPUs, where both are known.


def held_words(instances: int, instance_type: str, gpus: int | None) -> str:
    """Return a number of instances as text, with the number of GPUs if known.

    >>> held_words(4, "p4d.24xlarge", 8), held_words(1, "my-node", None)
    ('4 x p4d.24xlarge, 32 GPUs', '1 x my-node')
    """
    return f"{instances} x {instance_type}" + (f", {plural(instances * gpus, 'GPU')}" if gpus else "")


def instances_words(instances: int, gpus: int | None, kind: str = "instance") -> str:
    """Return a number of instances as text, with the GPUs in brackets if an instance has several.

    >>> instances_words(4, 8), instances_words(1, 1, "on-demand instance")
    ('4 instances (32 GPUs)', '1 on-demand instance')
    """
    return plural(instances, kind) + (f" ({instances * gpus} GPUs)" if gpus and gpus > 1 else "")


def size_words(request: JobRequest, market: Market) -> str:
    """Return the smallest and largest size of a request on a market as text, in instances and GPUs."""
    least, most = instance_range(request, market)
    gpus = gpus_per_instance(request, market)
    text = held_words(most, market.instance_type, gpus)
    if least < most:
        text = f"{least} to {most} x {market.instance_type}" + (
            f", {least * gpus} to {most * gpus} GPUs" if gpus else ""
        )
    return text


def rounding_notes(request: JobRequest, market: Market) -> list[str]:
    """Return notes on GPUs rounded to whole instances and on a number of GPUs that differs from the catalogue's."""
    least, most = instance_range(request, market)
    gpus, kind = gpus_per_instance(request, market), market.instance_type
    limits = {"gpus_min": (request.gpus_min, least, "up"), "gpus_max": (request.gpus_max, most, "down")}
    found = [
        f"{key} = {stated} is rounded {way} to {held_words(n, kind, gpus)}"
        for key, (stated, n, way) in limits.items()
        if stated is not None and gpus and stated != n * gpus and (key, stated) != ("gpus_min", 1)
    ]
    known = catalogue_gpus(market)
    if request.gpus_per_instance is not None and known not in (None, gpus):
        found.append(f"gpus_per_instance = {gpus} is stated for {kind}; the catalogue has {known}")
    return found


def sizes_asked(request: JobRequest) -> str:
    """Return the sizes of a request as stated, for a job without a market."""
    if request.gpus_max is not None:
        least, most, word = request.gpus_min or 1, request.gpus_max, "GPU"
    else:
        least, most, word = request.n_min or 1, request.n_max or 1, "instance"
    return f"{least} to {plural(most, word)}" if least < most else plural(most, word)


def named_market(request: JobRequest) -> Market | None:
    """Return a market of the only instance type that a request names; None if it may run on several."""
    if not request.may_move:
        return None if request.market is None else Market.parse(request.market)
    kinds = {tuple(text.partition("@")[0].split("/")[::3]) for text in request.markets}
    named = named_types(request)
    return named[0] if len(kinds) == 1 and named and not set("*?[") & set(named[0].provider) else None


def request_words(request: JobRequest, slot_hours: float) -> dict[str, str]:
    """Return the ``sizes`` and ``work`` of a request as text, in instances and GPUs as far as its markets determine them."""
    market = named_market(request)
    try:
        sizes = sizes_asked(request) if market is None else size_words(request, market)
    except JobError:
        sizes = sizes_asked(request)
    return {"sizes": sizes, "work": request_work_words(request, market, slot_hours)}


def amount_words(amount: float, unit: str) -> str:
    """Return an amount of work as text with its unit.

    >>> amount_words(320, "gpu_hours"), amount_words(1, "slots"), amount_words(1.6e9, "tokens")
    ('320 GPU-hours', '1 slot', '1,600,000,000 tokens')
    """
    number = f"{amount:,.2f}".rstrip("0").rstrip(".")
    if 0 < abs(amount) < 0.01:
        number = f"{amount:.2g}"
    return f"{number} {UNIT_WORDS[unit] if amount == 1 and unit in UNIT_WORDS else unit_words(unit)}"


def unit_words(unit: str) -> str:
    """Return a unit of work in words.

    >>> unit_words("gpu_hours"), unit_words("slots"), unit_words("tokens")
    ('GPU-hours', 'slots', 'tokens')
    """
    return f"{UNIT_WORDS[unit]}s" if unit in UNIT_WORDS else unit


def work_words(
    amount: float, unit: str, instance_hours: float | None, gpus: int | None, *, of: str = "", on: str = ""
) -> str:
    """Return an amount of work as text in its unit and in instance-hours or GPU-hours.

    If the amount is counted in hours ``of`` one instance type and the job runs ``on`` another, the
    text names both.

    >>> work_words(320, "gpu_hours", 40, 8), work_words(40, "instance_hours", 40, 8), work_words(20, "slots", 10, None)
    ('320 GPU-hours = 40 instance-hours', '40 instance-hours = 320 GPU-hours', '20 slots = 10 instance-hours')
    """
    text = amount_words(amount, unit) + (f" of {of}" if of else "")
    if unit == "tokens" or instance_hours is None:
        return text
    if unit != "instance_hours" or of:
        return f"{text} = {amount_words(instance_hours, 'instance_hours')}" + (f" of {on}" if of else "")
    return text + (f" = {amount_words(instance_hours * gpus, 'gpu_hours')}" if gpus else "")


def instance_hours_of(request: JobRequest, job: Job) -> float | None:
    """Return the hours a single instance of the job's market needs for all the work; None for work in tokens."""
    return None if request.workload.unit == "tokens" else job.workload / job.throughput.rate(1)


def job_work_words(request: JobRequest, job: Job, market: Market) -> str:
    """Return the work of a job as text, with the instance type whose hours count if the market is in ``throughput_on``."""
    throughput = request.throughput_on.get(market.instance_type)
    types = (
        sorted({priced.instance_type for priced in work_markets(request, [market])})
        if throughput is not None
        else []
    )
    return work_words(
        request.workload.amount,
        request.workload.unit,
        instance_hours_of(request, job),
        job.gpus,
        of="" if throughput is None else " or ".join(types) or "the job's throughput",
        on=market.instance_type,
    )


def works_words(request: JobRequest, runs: Sequence[tuple[Job, Market]]) -> str:
    """Return the work of a job as text on each instance type of its markets."""
    texts = {market.instance_type: job_work_words(request, job, market) for job, market in runs}
    if len(texts) == 1 or request.workload.unit == "tokens":
        return next(iter(texts.values()))
    return "; ".join(
        words if words.endswith(f" of {kind}") else f"{words} of {kind}" for kind, words in texts.items()
    )


def request_work_words(request: JobRequest, market: Market | None, slot_hours: float) -> str:
    """Return the work of a request as text; in instance-hours and GPU-hours too where ``market`` determines them."""
    amount, unit = request.workload.amount, request.workload.unit
    if market is None or market.instance_type in request.throughput_on:
        return amount_words(amount, unit)
    gpus = gpus_per_instance(request, market)
    per_gpu = None if gpus is None else amount / gpus
    hours = {"gpu_hours": per_gpu, "instance_hours": amount, "slots": amount * slot_hours}.get(unit)
    return work_words(amount, unit, hours, gpus)
