"""Job requests: the contents of a TOML job file, and the job in slots computed from them (M2.1, M2.6)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field, ValidationError, field_validator, model_validator

from slackwater.optimization.job.definition import (
    TOLERANCE,
    Amdahl,
    Job,
    Linear,
    Power,
    Progress,
    RateTable,
    Throughput,
    rates,
    shortfall,
)
from slackwater.optimization.job.times import TIME_KEYS, instance_times
from slackwater.optimization.job.units import (
    MOST_GPUS,
    PER_GPU,
    WorkUnit,
    check_gpu,
    gpus_per_instance,
    instance_range,
    instances_words,
    required_gpus,
    work_amount,
    work_market_of,
)
from slackwater.optimization.kernels.rules import after_growing, after_shrinking, slots_needed_each
from slackwater.warehouse.amounts import EARLIEST_YEAR, LATEST_YEAR, duration, parsed_duration
from slackwater.warehouse.catalogue import OnDemandTerms
from slackwater.warehouse.documents import EXAMPLES, read_data, read_toml
from slackwater.warehouse.errors import JobError, nearest
from slackwater.warehouse.history import History, Market
from slackwater.warehouse.inputs import InputModel, all_error_parts

LONGEST_NAME = 200  # Longest name of a job, in characters
#: Margin added to the imputed value of a job with a hard deadline, so that rounding cannot make
#: giving up the better ending.
VALUE_MARGIN = 0.05


def mu_from_overhead(overhead_hours: float, slot_hours: float) -> float:
    """Return the share of a slot that still makes progress when a change of size takes ``overhead_hours`` (M2.4).

    mu = 1 - overhead / Delta. It is negative for an overhead longer than a slot (ours): M2.4 charges a change
    to a single slot, so that slot carries the lost progress of the following slots too. If the new size
    stays, the loss is made up exactly when the change would have ended; if the size changes earlier, the loss
    is overestimated. Raises `JobError` for a slot that is not positive or a negative or infinite overhead.

    >>> mu_from_overhead(0.05, 0.5)
    0.9
    >>> mu_from_overhead(0.2, 0.05)
    -3.0
    """
    if not slot_hours > 0 or not 0 <= overhead_hours < math.inf:
        raise JobError(
            f"overhead of {overhead_hours} h in slots of {slot_hours} h",
            expected="a finite overhead >= 0 and slot > 0",
        )
    return 1.0 - overhead_hours / slot_hours


@lru_cache(maxsize=64)
def must_finish_value(job: Job, *, on_demand_usd: float, slot_hours: float) -> float:
    """Return the least value in USD, plus `VALUE_MARGIN`, for which M2.6 never gives up while finishing can still pay (ours).

    M2.6 gives up remaining work R at slot t if no constant n has V(t + k) > k n p_o Delta, with k
    the number of slots that n instances need. So the value must exceed k n p_o Delta / f(t + k),
    where f = V / v is the remaining share of M2.5, and the minimum of this over n grows with R. It
    is therefore evaluated at the largest R that can still be finished before gamma d, at most L
    plus the negative progress that t slots can cause, for every slot t = 0..d (M3.3b needs endings
    before d too) and every previous size. The result is the largest of these.

    ``job.value`` is not read. If no whole slot fits between d and gamma d, only the slots up to d count.
    """
    d, last = job.deadline_slots, math.ceil(job.late_limit) - 1
    sizes = np.arange(job.n_min, job.n_max + 1)
    gain = rates(job.throughput, job.n_max)[sizes] * slot_hours
    # A row each for sizes that grow, stay and shrink, instead of a row for every previous size.
    first = np.array(
        [(after_growing(job.restart, n), 1.0, after_shrinking(job.restart, n)) for n in sizes.tolist()]
    ).T
    owed = max(0.0, -float((first[:2] * gain).min()), -float((first[2] * gain)[:-1].min(initial=0.0)))
    need = 0.0
    for slot in range(d + 1):
        slots_left = last - slot
        if slots_left < 1:
            continue
        most = -_least_by_size_before(-(first + (slots_left - 1)) * gain, job)
        rest = np.minimum(job.workload + slot * owed, most) - TOLERANCE * job.workload
        for amount in np.unique(rest):
            k = slots_needed_each(amount, first * gain, gain)
            late = np.maximum(0.0, slot + k - d)
            share = 1.0 - late / ((job.gamma - 1.0) * d)
            price = np.full(k.shape, np.inf)
            np.divide(k * sizes * on_demand_usd * slot_hours, share, out=price, where=(k <= slots_left))
            need = max(need, float(_least_by_size_before(price, job)[rest == amount].max()))
    return (1.0 + VALUE_MARGIN) * need


def _least_by_size_before(values: np.ndarray, job: Job) -> np.ndarray:
    """Return by previous size the least of ``values`` (3: grown, same, shrunk; sizes) over next sizes (n_max + 1,)."""
    before, count = np.arange(job.n_max + 1), values.shape[1]
    grown = np.append(np.minimum.accumulate(values[0, ::-1])[::-1], np.inf)
    shrunk = np.append(np.inf, np.minimum.accumulate(values[2]))
    kept = np.concatenate([np.full(job.n_min, np.inf), values[1]])
    larger, smaller = (np.clip(before + by - job.n_min, 0, count) for by in (1, 0))
    return np.asarray(np.minimum(np.minimum(grown[larger], shrunk[smaller]), kept))


# ---
# Job requests: the contents of a TOML job file (M2.1).


class Workload(InputModel):
    """Amount of work in tokens, GPU-hours, instance-hours, or slots of one instance (M2.1)."""

    amount: float = Field(gt=0)
    unit: WorkUnit


class _Form(InputModel):
    """Throughput H(n) of n instances, or of n GPUs with ``per`` = "gpu": k instances of g GPUs then run at H(k g) (M2.2)."""

    per: Literal["instance", "gpu"] = Field("instance", exclude_if=lambda value: value == "instance")


class LinearForm(_Form):
    """Linear form H(n) = alpha n + beta."""

    form: Literal["linear"]
    alpha: float = Field(1.0, gt=0)
    beta: float = 0.0

    def build(self, gpus: int = 1) -> Throughput:
        """Return H(``gpus`` n), the throughput of n instances."""
        return Linear(alpha=self.alpha * gpus, beta=self.beta)


class AmdahlForm(_Form):
    """Amdahl form H(n) = scale / ((1 - parallel) + parallel / n)."""

    form: Literal["amdahl"]
    parallel: float = Field(ge=0, le=1)
    scale: float = Field(1.0, gt=0)

    def build(self, gpus: int = 1) -> Throughput:
        """Return H(``gpus`` n), the throughput of n instances."""
        if gpus == 1:
            return Amdahl(parallel=self.parallel, scale=self.scale)
        whole = (1.0 - self.parallel) * gpus + self.parallel
        return Amdahl(parallel=self.parallel / whole, scale=self.scale * gpus / whole)


class PowerForm(_Form):
    """Power form H(n) = scale n^exponent."""

    form: Literal["power"]
    exponent: float = Field(gt=0)
    scale: float = Field(1.0, gt=0)

    def build(self, gpus: int = 1) -> Throughput:
        """Return H(``gpus`` n), the throughput of n instances."""
        return Power(exponent=self.exponent, scale=self.scale * float(gpus) ** self.exponent)


class TableForm(_Form):
    """Measured values H(1), H(2), ..."""

    form: Literal["table"]
    rates: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1, max_length=1024)

    def build(self, gpus: int = 1) -> Throughput:
        """Return H(``gpus`` n), the throughput of n instances; raises `JobError` for a table of fewer than ``gpus`` GPUs."""
        if len(self.rates) < gpus:
            raise JobError(
                f"a throughput table per GPU that ends at {len(self.rates)} GPUs, and instances of {gpus}",
                expected=f"rates of 1 to {gpus} GPUs or more",
            )
        return RateTable(rates=self.rates[gpus - 1 :: gpus])


class Checkpoint(InputModel):
    """Checkpointing of a job: whether it can resume after losing its instances, and the overhead of a change of size."""

    resumable: bool
    overhead_minutes: float = Field(0.0, ge=0)
    shrink_overhead_minutes: float | None = Field(None, ge=0)


Rate = Annotated[float, Field(ge=0, le=1e12)]
Whole = Annotated[int, Field(ge=0, le=10**9)]
#: Columns of a configuration: element n - 1 is for n instances.
Rates = Annotated[tuple[Rate, ...], Field(max_length=1024)]
Wholes = Annotated[tuple[Whole, ...], Field(max_length=1024)]


class FilledConfiguration(InputModel):
    """Configuration that a request was filled with, and the throughput predicted for each number of instances (M9.4).

    Element n - 1 of the tuples is for n instances: useful tokens per second (median and 90 %
    interval), the samples of a round of gradient accumulation over all GPUs, and the rounds of a
    step; all zeros where the job cannot run. The name of a model that is not known by name ends in
    ``@`` and its parameters in billions.
    """

    model_name: str
    method: str
    gpu_model: str
    gpus_per_instance: int = Field(ge=1, le=1024)
    tokens_per_sample: int = Field(ge=1, le=10**9)
    batch_size: int = Field(ge=1, le=10**9)
    torch_dtype: str | None = None
    tokens_per_second: Rates
    low: Rates
    high: Rates
    round_samples: Wholes
    rounds: Wholes

    @model_validator(mode="after")
    def _one_length(self) -> FilledConfiguration:
        tables = (self.tokens_per_second, self.low, self.high, self.round_samples, self.rounds)
        widths = {len(table) for table in tables}
        if len(widths) != 1:
            raise ValueError(f"tables of {sorted(widths)} instances, expected one length for all")
        for n, column in enumerate(zip(*tables, strict=True), start=1):
            if any(column) and not (all(column) and column[1] <= column[0] <= column[2]):
                raise ValueError(
                    f"for {n} instances {column}, expected low <= median <= high and rounds of samples, or zeros"
                )
        return self


class MovingTerms(InputModel):
    """Time and cost of a move to another market, in addition to the restart (M11.2).

    ``minutes`` is time without progress and ``usd`` a fixed cost. A checkpoint of ``checkpoint_gb``
    adds its transfer time and the egress cost of the route (``optimization/data/egress.toml``, or
    ``egress_usd_per_gb`` for every route).
    """

    minutes: float = Field(0.0, ge=0)
    usd: float = Field(0.0, ge=0)
    checkpoint_gb: float = Field(0.0, ge=0)
    bandwidth_gb_per_minute: float | None = Field(None, gt=0)
    egress_usd_per_gb: float | None = Field(None, ge=0)

    @property
    def takes_minutes(self) -> float:
        """Minutes of a move, including the transfer of the checkpoint."""
        sent = self.checkpoint_gb / self.bandwidth_gb_per_minute if self.bandwidth_gb_per_minute else 0.0
        return self.minutes + sent


def pattern_parts(text: str) -> tuple[tuple[str, str, str, str], str]:
    """Split a pattern of markets into its four parts and its source pattern; raises `JobError` for an invalid pattern.

    >>> pattern_parts("gcp/*/*/a3-highgpu-1g")
    (('gcp', '*', '*', 'a3-highgpu-1g'), '*')
    >>> pattern_parts("*@lab:counts")
    (('*', '*', '*', '*'), 'lab:counts')
    """
    key, at, source = text.partition("@")
    parts = ["*"] * 4 if key == "*" else key.split("/")
    if len(parts) != 4 or not all(parts) or (at and not source):
        raise JobError(
            f"markets {text!r}",
            expected="provider/region/zone/instance_type, each a name or a shell pattern, perhaps with @source",
            remedy='for example markets = ["gcp/*/*/a3-highgpu-1g"]; `slackwater markets` lists what there is',
        )
    return (parts[0], parts[1], parts[2], parts[3]), source or "*"


def _is_empty(value: object) -> bool:
    return not value


def _is_none(value: object) -> bool:
    return value is None


Price = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]  # Price in USD per instance-hour


#: Keys of sizes in GPUs and in instances.
GPU_SIZES, INSTANCE_SIZES = ("gpus_min", "gpus_max"), ("n_min", "n_max")


ThroughputForm = Annotated[LinearForm | AmdahlForm | PowerForm | TableForm, Field(discriminator="form")]


class JobRequest(InputModel):
    """A requested job, in real times and units.

    ``start`` is the earliest start (default: the time at which the job is added). The deadline is
    ``deadline``, a time, or ``deadline_in``, a duration after the start. ``market`` and ``source``
    are where the job runs. Without ``value_usd`` the job has a hard deadline. ``configuration`` is
    the choice of ``slackwater fill``, None for other jobs.

    Sizes are numbers of instances (``n_min``, ``n_max``) or of GPUs (``gpus_min``, ``gpus_max``),
    never both; the other pair is None. ``gpus_per_instance``, a number or a mapping by instance
    type, takes precedence over the catalogue (`slackwater.optimization.job.units.gpus_per_instance`).

    With ``markets``, patterns of names, the job may move among the matching markets (M11), limited
    to instances with the GPU ``gpu_type`` and to ``regions``, if given. ``market`` is then the
    market that holds its data at first; if it is None the first start is free in every market.
    ``throughput`` applies to all instance types except those in ``throughput_on``. Fields of
    multi-market jobs are left out of the output of other jobs.

    ``on_demand_usd`` is the price of an on-demand instance-hour, for all markets or by pattern; ``on_demand``
    = False means that nothing is sold on demand. Both take precedence over observed and list prices (M1.1).

    ``max_spot_usd`` is the highest price of a spot instance-hour at which the job runs spot
    instances, ``max_hourly_usd`` the highest hourly cost of the whole job even if all instances are
    on-demand, and ``budget_usd`` its highest total cost (M2.10).

    The keys of `slackwater.optimization.job.times.TIME_KEYS` are times of the job's instances; None
    for those that are measured or assumed (M12.9).
    """

    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    market: str | None = None
    source: str | None = None
    start: datetime | None = None
    deadline: datetime | None = None
    deadline_in: str | None = None
    step_minutes: int | None = Field(None, ge=3, le=1440)
    n_min: int | None = Field(None, ge=1, exclude_if=_is_empty)
    n_max: int | None = Field(None, ge=1, exclude_if=_is_empty)
    gpus_min: int | None = Field(None, ge=1, exclude_if=_is_empty)
    gpus_max: int | None = Field(None, ge=1, exclude_if=_is_empty)
    gpus_per_instance: (
        Annotated[int, Field(ge=1, le=MOST_GPUS)]
        | Mapping[str, Annotated[int, Field(ge=1, le=MOST_GPUS)]]
        | None
    ) = Field(None, exclude_if=_is_empty)
    value_usd: float | None = Field(None, gt=0)
    decay: float = Field(1.5, gt=1)
    workload: Workload
    throughput: ThroughputForm
    checkpoint: Checkpoint
    configuration: FilledConfiguration | None = None
    markets: tuple[str, ...] = Field((), max_length=1000, exclude_if=_is_empty)
    gpu_type: str | None = Field(None, min_length=1, exclude_if=_is_empty)
    regions: tuple[str, ...] = Field((), max_length=1000, exclude_if=_is_empty)
    moving: MovingTerms | None = Field(None, exclude_if=_is_empty)
    throughput_on: Mapping[str, ThroughputForm] = Field(default_factory=dict, exclude_if=_is_empty)
    on_demand_usd: Price | Mapping[str, Price] | None = Field(None, exclude_if=_is_empty)
    on_demand: bool | Mapping[str, bool] = Field(True, exclude_if=lambda value: value is True)
    max_spot_usd: Price | None = Field(None, exclude_if=_is_empty)
    max_hourly_usd: Price | None = Field(None, exclude_if=_is_empty)
    budget_usd: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = Field(
        None, exclude_if=_is_empty
    )
    boot_minutes: float | None = Field(None, ge=0, exclude_if=_is_none)
    restart_minutes: float | None = Field(None, ge=0, exclude_if=_is_none)
    checkpoint_minutes: float | None = Field(None, ge=0, exclude_if=_is_none)
    notice_seconds: float | None = Field(None, ge=0, exclude_if=_is_none)
    on_demand_wait_minutes: float | None = Field(None, ge=0, exclude_if=_is_none)

    @field_validator("name")
    @classmethod
    def _printable(cls, name: str) -> str:
        # Names appear on terminals, in paths and in documents of other programs.
        if not name.isprintable():
            raise ValueError(f"{name!a} holds a character that cannot be printed")
        return name

    @field_validator("deadline_in", mode="before")
    @classmethod
    def _has_unit(cls, value: object) -> object:
        if isinstance(value, int | float):
            raise ValueError(f'{value} has no unit; expected a duration such as "{value}h"')
        return value

    @model_validator(mode="before")
    @classmethod
    def _least_size(cls, values: Any) -> Any:
        """Set ``n_min`` to 1 if the request gives no size in GPUs and no ``n_min``."""
        if isinstance(values, Mapping) and all(values.get(key) is None for key in (*GPU_SIZES, "n_min")):
            return {**values, "n_min": 1}
        return values

    @model_validator(mode="after")
    def _sizes(self) -> JobRequest:
        gpus = [key for key in GPU_SIZES if getattr(self, key) is not None]
        instances = [key for key in INSTANCE_SIZES if getattr(self, key) is not None]
        if gpus and instances:
            raise JobError(
                f"job {self.name!r} gives {instances[0]} and {gpus[0]}",
                expected="sizes in instances (n_min, n_max) or in GPUs (gpus_min, gpus_max)",
                remedy=f"leave {' and '.join(gpus if instances == ['n_max'] else instances)} out",
            )
        kind, low, high = ("gpus", self.gpus_min, self.gpus_max) if gpus else ("n", self.n_min, self.n_max)
        if high is None:
            raise JobError(
                f"job {self.name!r} gives no {kind}_max",
                expected="n_max = 8, the most instances, or gpus_max = 64, the most GPUs",
            )
        if low is not None and low > high:
            raise JobError(
                f"job {self.name!r}: {kind}_min {low}, {kind}_max {high}",
                expected=f"1 <= {kind}_min <= {kind}_max",
            )
        return self

    @model_validator(mode="after")
    def _may_move(self) -> JobRequest:
        for text in (*self.markets, *_patterns(self.on_demand_usd), *_patterns(self.on_demand)):
            pattern_parts(text)
        if self.on_demand is False and self.on_demand_usd is not None:
            raise JobError(
                f"job {self.name!r}: on_demand_usd together with on_demand = false",
                expected="one of them: a price, or that nothing is sold on demand",
            )
        if self.gpu_type is not None:
            check_gpu(self.gpu_type)
        for text in self.regions:
            if not text or "/" in text:
                raise JobError(
                    f"job {self.name!r}: regions {text!r}",
                    expected="names or shell patterns of one part of a market's name",
                    remedy='for example regions = ["us-*"]; `slackwater markets` lists what there is',
                )
        keys = [name for name in ("moving", "throughput_on") if getattr(self, name)]
        if self.market is not None:
            keys += [name for name in ("gpu_type", "regions") if getattr(self, name)]
        if keys and not self.markets:
            raise JobError(
                f"job {self.name!r} says {keys[0]} and may run in one market only",
                expected="markets, which it may move among",
                remedy=f'add markets = ["gcp/*/*/a3-highgpu-1g"], or leave {keys[0]} out',
            )
        return self

    @property
    def may_move(self) -> bool:
        """Whether this is a multi-market job."""
        return bool(self.markets)

    @property
    def names_no_market(self) -> bool:
        """Whether the request gives neither a market nor patterns of markets."""
        return self.market is None and not self.markets

    def with_place(self, *, at: pd.Timestamp, market: str | None, source: str | None) -> JobRequest:
        """Return the request with absolute start, deadline, market and source; raises `JobError` for an unusable deadline."""
        start = _utc(self.start, "start", self.name) if self.start else at
        if (self.deadline is None) == (self.deadline_in is None):
            raise JobError(
                f"job {self.name!r} gives {'both' if self.deadline else 'neither'} deadline and deadline_in",
                expected="one of them",
                remedy='for example deadline_in = "12h"',
            )
        if self.deadline is not None:
            deadline = _utc(self.deadline, "deadline", self.name)
        else:
            span = _duration(self.deadline_in or "", self.name)
            _check_span(span, f"job {self.name!r}")
            deadline = start + span
        if deadline <= start:
            raise JobError(
                f"job {self.name!r}: deadline {_minute(deadline)} is not after its start {_minute(start)}",
                expected="a deadline in the future",
                remedy="state a later deadline, or an earlier time with --at",
            )
        _check_span(deadline - start, f"job {self.name!r}")
        return self.model_copy(
            update={
                "start": start.to_pydatetime(),
                "deadline": deadline.to_pydatetime(),
                "deadline_in": None,
                "market": market,
                "source": source or self.source,
            }
        )

    @property
    def place(self) -> str:
        """``market@source``, or the market alone if any of its sources may be used."""
        return f"{self.market}@{self.source}" if self.source else str(self.market)

    @property
    def own_market(self) -> Market:
        """The market of the request; raises `JobError` if it has none."""
        if self.market is None:
            raise JobError(f"job {self.name!r} names no market", expected="a request that was placed in one")
        return Market.parse(self.market)

    @property
    def where(self) -> str:
        """Market of the request for lists; for a job without a market, its patterns and filters."""
        return self.market or " ".join([", ".join(self.markets), *self.filters])

    @property
    def filters(self) -> list[str]:
        """Filters on the markets of the request, as text."""
        found = [] if self.gpu_type is None else [f"with {self.gpu_type}"]
        return [*found, f"in {', '.join(self.regions)}"] if self.regions else found

    @property
    def starts(self) -> pd.Timestamp:
        """Start of a placed request, UTC; raises `JobError` if the request is not placed."""
        return _placed_time(self.start, self.name)

    @property
    def ends(self) -> pd.Timestamp:
        """Deadline of a placed request, UTC; raises `JobError` if the request is not placed."""
        return _placed_time(self.deadline, self.name)


def _patterns(terms: object) -> Sequence[str]:
    return list(terms) if isinstance(terms, Mapping) else []


def on_demand_terms(request: JobRequest) -> tuple[OnDemandTerms, ...]:
    """Return the on-demand terms that a job states for its markets, first those where nothing is sold on demand."""
    sold = request.on_demand if isinstance(request.on_demand, Mapping) else {"*": request.on_demand}
    usd = (
        request.on_demand_usd if isinstance(request.on_demand_usd, Mapping) else {"*": request.on_demand_usd}
    )
    stated: list[tuple[str, float | None]] = [(market, None) for market, on in sold.items() if not on]
    stated += [(market, price) for market, price in usd.items() if price is not None]
    return tuple(OnDemandTerms(market=market, usd=price, stated_in="job") for market, price in stated)


def _placed_time(value: datetime | None, name: str) -> pd.Timestamp:
    if value is None:
        raise JobError(f"job {name!r} has no start or deadline yet", expected="a request that was placed")
    return pd.Timestamp(value).tz_convert("UTC")


def _utc(value: datetime, field: str, name: str) -> pd.Timestamp:
    _require_zone(value, field, f"job {name!r}")
    return pd.Timestamp(value).tz_convert("UTC")


def _require_zone(value: datetime, field: str, who: str) -> None:
    """Raise `JobError` for a time without a time zone; ``who`` names the job or its file."""
    if value.tzinfo is None:
        raise JobError(
            f"{who}: {field} {value} has no time zone",
            remedy=f"write it with its offset, such as {value:%Y-%m-%dT%H:%M}Z for UTC",
        )


def _duration(text: str, name: str) -> pd.Timedelta:
    try:
        return parsed_duration(text)
    except ValueError as error:
        raise JobError(f"job {name!r}: deadline_in {error}") from error


#: Longest duration of a job; a longer request is most likely a mistake, and its tables would be too large.
LONGEST = pd.Timedelta(days=100)
MOST_SLOTS = 5000  # Largest number of slots of a job: the tables of a decision grow with it
#: Largest product of slots and instances of a job: up to it a decision takes seconds.
MOST_STATES = 250_000
_BOUNDS = read_data("slackwater.optimization", "job_bounds")
#: Smallest meaningful amounts and rates, and largest allowed amounts with their units, by key (ours, M2.8).
LEAST = {key: bound["least"] for key, bound in _BOUNDS.items() if "least" in bound}
MOST = {key: (bound["most"], bound["unit"]) for key, bound in _BOUNDS.items()}


def check_bounds(request: JobRequest, where: str = "") -> None:
    """Raise `JobError` on the first amount or time out of bounds (M2.8); ``where`` names the job file."""
    who = f"job file {where}" if where else f"job {request.name!r}"
    own = {"throughput": request.throughput}
    own |= {f"throughput_on.{name}": form for name, form in request.throughput_on.items()}
    for key, (most, unit) in MOST.items():
        part, _, field = key.rpartition(".")
        holders = own if part == "throughput" else {part: getattr(request, part) if part else request}
        for place, holder in holders.items():
            number, least = getattr(holder, field, None), LEAST.get(key, -most)
            for value in number if isinstance(number, tuple) else (number,):
                if value is not None and not least <= value <= most:
                    raise JobError(
                        f"{who}: {f'{place}.{field}' if place else field} = {value:g}",
                        expected=f"at least {least:g}" if value < least else f"at most {most:,.0f} {unit}",
                    )
    for field, time in (("start", request.start), ("deadline", request.deadline)):
        if time is not None:
            _require_zone(time, field, who)
        if time is not None and not EARLIEST_YEAR <= time.year <= LATEST_YEAR:
            raise JobError(
                f"{who}: {field} = {time:%Y-%m-%d}", expected=f"a time from {EARLIEST_YEAR} to {LATEST_YEAR}"
            )
    if request.start is not None and request.deadline is not None:
        _check_span(pd.Timestamp(request.deadline) - pd.Timestamp(request.start), who)


def _check_span(span: pd.Timedelta, who: str) -> None:
    if span > LONGEST:
        raise JobError(
            f"{who}: its deadline is {span / pd.Timedelta(days=1):,.0f} days after its start",
            expected=f"at most {LONGEST.days} days",
            remedy="plan a longer job in parts, each from the checkpoint of the previous part",
        )


def read_request(path: Path) -> JobRequest:
    """Read a job file; raises `JobError` with the file, the key and the expected value."""
    return parse_request(read_toml(path, "job file"), str(path))


def parse_request(values: dict[str, object], where: str) -> JobRequest:
    """Validate the contents of a job file; raises `JobError` that names every wrong or missing key."""
    try:
        request = JobRequest.model_validate(values)
    except ValidationError as error:
        wrong = {key: (kind, message) for key, kind, message in all_error_parts(error.errors())}
        missing = [
            key
            for key, (kind, _) in wrong.items()
            if kind == "missing" and not any(other.endswith(f".{key}") for other in wrong)
        ]
        problems = [
            _problem_words(key, kind, message) for key, (kind, message) in wrong.items() if kind != "missing"
        ]
        problems += [f"missing: {', '.join(missing)}"] if missing else []
        if not {"n_max", "gpus_max"} & {key.rpartition(".")[2] for key in (*values, *wrong)}:
            problems = (
                [*problems[:-1], f"{problems[-1]}, n_max or gpus_max"]
                if missing
                else [*problems, "missing: n_max or gpus_max"]
            )
            missing = [*missing, "n_max"]
        needed = [
            text for table, text in _EXAMPLES.items() if table in {key.partition(".")[0] for key in missing}
        ]
        raise JobError(
            f"job file {where}: {'; '.join(problems)}",
            expected=f"for example {', '.join(needed)}" if needed else "",
            remedy=EXAMPLES["job file"],
        ) from error
    check_bounds(request, where)
    _require_rate(request, where)
    return request


#: Key of the rate of a form: its default of 1 is no rate of tokens.
_RATE_KEYS = {"linear": "alpha", "amdahl": "scale", "power": "scale"}


def _require_rate(request: JobRequest, where: str) -> None:
    """Raise `JobError` for work in tokens and a form of throughput without its rate, which would be 1 token an hour."""
    if request.workload.unit != "tokens":
        return
    for form in (request.throughput, *request.throughput_on.values()):
        key = _RATE_KEYS.get(form.form, "")
        if key and key not in form.model_fields_set:
            raise JobError(
                f"job file {where}: workload in tokens, throughput without {key}",
                expected=f'{key} = 3.6e7, the tokens per hour of one instance (or GPU, with per = "gpu")',
                remedy='state it, or the work in hours: unit = "gpu_hours"',
            )


#: Shortest examples of the keys that every job file needs.
_EXAMPLES = {
    "name": 'name = "lora"',
    "n_max": "n_max = 8 (instances) or gpus_max = 64",
    "workload": 'workload = { amount = 48, unit = "gpu_hours" }',
    "throughput": 'throughput = { form = "linear" }',
    "checkpoint": "checkpoint = { resumable = true, overhead_minutes = 4 }",
}


def _problem_words(key: str, kind: str, message: str) -> str:
    """Return the error text for a key of a job file; a top-level key inside a table is reported as misplaced."""
    table, _, name = key.rpartition(".")
    if kind != "extra_forbidden":
        return f"{key}: {message}"
    if table and name in JobRequest.model_fields:
        return f"{name} stands in [{table}] and belongs above the first table"
    part = JobRequest.model_fields[table].annotation if table in JobRequest.model_fields else None
    known = getattr(part if table else JobRequest, "model_fields", {})
    alike = nearest(name, known)
    return f"{key} is no key of a job" + (f", perhaps {alike}" if alike else "")


def may_move_among(request: JobRequest, patterns: tuple[str, ...]) -> JobRequest:
    """Return the request as a multi-market request with ``patterns``; raises `JobError` for an invalid pattern."""
    for text in patterns:
        pattern_parts(text)
    return request.model_copy(update={"markets": patterns})


def stays_in(request: JobRequest) -> JobRequest:
    """Return the request as a single-market request, without its patterns, filters and terms of moving."""
    return request.model_copy(
        update={"markets": (), "gpu_type": None, "regions": (), "moving": None, "throughput_on": {}}
    )


# ---
# Terms that change while a job runs (M2.9) (ours).


@dataclass(frozen=True, slots=True, kw_only=True)
class TermChange:
    """A changed term of a job, named by its key in a job file, as plain values; None for an absent value."""

    term: str
    before: Any
    after: Any


#: Terms that may change: the computed work done does not depend on them, except where the largest
#: size shrinks.
MAY_CHANGE = (
    "deadline",
    "workload.amount",
    "n_max",
    "gpus_max",
    "value_usd",
    "decay",
    "budget_usd",
    "max_spot_usd",
    *TIME_KEYS,
)


def term_changes(before: JobRequest, after: JobRequest) -> list[TermChange]:
    """Return the differences between two placed requests, in the order of a job file."""
    old, new = _flat(before.model_dump(mode="json")), _flat(after.model_dump(mode="json"))
    return [
        TermChange(term=key, before=old.get(key), after=new.get(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def check_change(before: JobRequest, after: JobRequest) -> None:
    """Raise `JobError` on the first term that cannot change, and for values out of bounds (`check_bounds`) (M2.9)."""
    for change in term_changes(before, after):
        if change.term in (*GPU_SIZES, *INSTANCE_SIZES) and (before.gpus_max is None) != (
            after.gpus_max is None
        ):
            kind, keys = ("instances", "n_max") if before.gpus_max is None else ("GPUs", "gpus_max")
            raise JobError(
                f"job {before.name!r}: {change.term} = {_as_words(change.after)}, where the job has its sizes in {kind}",
                expected=f"{keys}, the largest size in {kind}",
                remedy=f"change {keys}, or add another job with `slackwater job add --name NAME`",
            )
        if change.term not in MAY_CHANGE:
            raise JobError(
                f"job {before.name!r}: {change.term} = {_as_words(change.after)}, where the job has {_as_words(change.before)}",
                expected=f"a change of {', '.join(MAY_CHANGE)}: by the other terms the work done so far is reckoned",
                remedy="leave it as it is, or add another job with `slackwater job add --name NAME`",
            )
    for key in ("n_max", "gpus_max"):
        old, new = getattr(before, key), getattr(after, key)
        if old is not None and new is not None and new < old:
            raise JobError(
                f"job {before.name!r}: {key} = {new}",
                expected=f"at least the {old} of now: the work done so far is computed from the instances that ran",
                remedy="leave it as it is, or add another job with `slackwater job add --name NAME`",
            )
    check_bounds(after)


def _as_words(value: Any) -> str:
    return "nothing" if value is None else str(value)


def first_slot(request: JobRequest, step: pd.Timedelta) -> pd.Timestamp:
    """Return the first whole slot of a placed request: its start rounded up to the grid."""
    return request.starts.ceil(step)


def slot_note(request: JobRequest, step: pd.Timedelta) -> str:
    """Return the start and the deadline to which those of a placed request are rounded (M2.1); "" if both are whole slots."""
    start, deadline = first_slot(request, step), request.ends.floor(step)
    rounded = [
        f"start {_minute(request.starts)} counts from {_minute(start)}" if start != request.starts else "",
        f"deadline {_minute(request.ends)} counts as {_minute(deadline)}" if deadline != request.ends else "",
    ]
    found = ", ".join(filter(None, rounded))
    return f"{found}: slots of {duration(step)} are planned whole" if found else ""


def check_slots(request: JobRequest, step: pd.Timedelta) -> int:
    """Return the whole slots from the start of a placed request to its deadline; raises `JobError` for none or too many."""
    slots = math.floor((request.ends - first_slot(request, step)) / step + 1e-9)
    if slots < 1:
        raise JobError(
            f"job {request.name!r}: no whole slot of {duration(step)} between its start {_minute(request.starts)} "
            f"and its deadline {_minute(request.ends)}",
            expected="at least one slot",
            remedy="state a later deadline, or shorter slots with the setting step_minutes",
        )
    if slots > MOST_SLOTS:
        raise JobError(
            f"job {request.name!r}: {slots:,} slots of {duration(step)} to its deadline",
            expected=f"at most {MOST_SLOTS:,}",
            remedy="use a longer step or an earlier deadline",
        )
    return slots


def slot_job(
    request: JobRequest,
    *,
    step: pd.Timedelta,
    on_demand_usd: float,
    market: Market | None = None,
    work_market: Market | None = None,
    sold: bool = True,
) -> Job:
    """Return the job in slots of a placed request on a market, by default the request's market.

    The deadline is rounded down to a whole slot; overheads become shares of a slot. Without a value
    in the request, a value is imputed for which the job is never given up while finishing is
    possible (``must_finish``).

    Sizes, throughput and GPUs are those of the market's instance type. The work is counted on the
    instance type of ``work_market``, by default that of the same market or, if that has an entry in
    ``throughput_on``, a type named in the request without an entry (`work_markets`). Raises
    `JobError` if no whole slot fits before the deadline, if there are too many slots or states, or
    if GPUs per instance are needed and unknown.
    """
    slots = check_slots(request, step)
    slot_hours = step / pd.Timedelta(hours=1)
    if market is None:
        market = request.own_market
    counted_on = work_market or work_market_of(request, [market])
    least, most, throughput = run_on(request, market)
    most = min(most, _most_an_hour(request, least, on_demand_usd if sold else None))
    if slots * most > MOST_STATES:
        raise JobError(
            f"job {request.name!r}: {slots:,} slots of {duration(step)} with up to {most:,} instances",
            expected=f"slots times instances of at most {MOST_STATES:,}",
            remedy=f"use a longer step, an earlier deadline or a smaller {'gpus_max' if request.n_max is None else 'n_max'}",
        )
    point = request.checkpoint
    shrink = (
        point.overhead_minutes if point.shrink_overhead_minutes is None else point.shrink_overhead_minutes
    )
    job = Job(
        name=request.name,
        workload=work_amount(request, counted_on, slot_hours),
        deadline_slots=slots,
        n_min=least,
        n_max=most,
        throughput=throughput,
        gpus=gpus_per_instance(request, market),
        mu_up=mu_from_overhead(point.overhead_minutes / 60.0, slot_hours),
        mu_down=mu_from_overhead(shrink / 60.0, slot_hours),
        value=request.value_usd or 0.0,
        gamma=request.decay,
        resumable=point.resumable,
        must_finish=request.value_usd is None,
        max_spot_usd=math.inf if request.max_spot_usd is None else request.max_spot_usd,
        budget_usd=math.inf if request.budget_usd is None else request.budget_usd,
        times=instance_times(request, market.provider),
    )
    if request.value_usd is None:
        job = replace(job, value=must_finish_value(job, on_demand_usd=on_demand_usd, slot_hours=slot_hours))
    return job


def _most_an_hour(request: JobRequest, least: int, on_demand_usd: float | None) -> int:
    """Return the most instances that ``max_hourly_usd`` pays for at the highest possible price (M2.10).

    This price is on-demand, or the job's ``max_spot_usd`` where nothing is sold on demand
    (``on_demand_usd`` None). Raises `JobError` if it pays for fewer than ``least`` instances.
    """
    limit, highest = request.max_hourly_usd, on_demand_usd or request.max_spot_usd
    if limit is None:
        return MOST_STATES
    if highest is None:
        raise JobError(
            f"job {request.name!r}: max_hourly_usd where nothing is sold on demand, and no highest spot price",
            expected="max_spot_usd, the highest price that an instance may have",
            remedy="add max_spot_usd, or leave max_hourly_usd out",
        )
    most = math.floor(limit / highest + 1e-9)
    if most < least:
        kind = "on demand" if on_demand_usd else "at its max_spot_usd"
        raise JobError(
            f"job {request.name!r}: max_hourly_usd {limit:.2f} pays for {most} instances, {highest:.2f} USD an hour each {kind}",
            expected=f"at least {least * highest:.2f}, for {least}",
            remedy="raise max_hourly_usd, or set max_spot_usd alone to limit what spot costs",
        )
    return most


def hourly_note(request: JobRequest, job: Job, history: History) -> str:
    """Return a note if ``max_hourly_usd`` leaves a job fewer instances than it requests; "" if it does not (M2.10).

    It counts every instance at the on-demand price, as a deadline may need all of them on demand.
    """
    most = instance_range(request, history.market)[1]
    if request.max_hourly_usd is None or job.n_max >= most:
        return ""
    sold = history.on_demand.sold
    price = history.on_demand_usd if sold else request.max_spot_usd or 0.0
    return (
        f"max_hourly_usd of ${request.max_hourly_usd:,.2f} pays for {job.n_max} of {most} instances at ${price:,.2f} an hour, "
        f"{'the on-demand price' if sold else 'max_spot_usd'}: no more run at once, on spot either"
    )


def run_on(request: JobRequest, market: Market) -> tuple[int, int, Throughput]:
    """Return smallest and largest n of a request on a market, and H(n); `JobError` if its GPUs are needed and unknown."""
    form = request.throughput_on.get(market.instance_type, request.throughput)
    least, most = instance_range(request, market)
    gpus = required_gpus(request, market, PER_GPU) if form.per == "gpu" else 1
    return least, most, form.build(gpus)


def job_on(request: JobRequest, history: History) -> tuple[Job, pd.Timestamp]:
    """Return the job in slots of a placed request on the market of a history, and the start of its first slot.

    Raises the errors of `slot_job`.
    """
    job = slot_job(
        request,
        step=history.step,
        on_demand_usd=history.on_demand_usd,
        market=history.market,
        work_market=work_market_of(request, [history.market]),
        sold=history.on_demand.sold,
    )
    return job, first_slot(request, history.step)


def shortfall_words(
    job: Job, start: pd.Timestamp, step: pd.Timedelta, *, slot: int = 0, progress: Progress | None = None
) -> str:
    """Return why a job whose slot 0 begins at ``start`` cannot finish in time, by how much, and what would help; "" if it can."""
    found = shortfall(job, progress or Progress(), slot=slot, slot_hours=step / pd.Timedelta(hours=1))
    if found is None:
        return ""
    deadline = start + job.deadline_slots * step
    given_up = math.ceil(job.late_limit) <= slot + found.slots
    until = start + job.late_limit * step
    if found.slots * (step / pd.Timedelta(days=1)) > LONGEST.days:
        return (
            f"cannot be done by {_minute(deadline)}: {instances_words(found.n, job.gpus, 'on-demand instance')}, "
            f"its fastest size, {'needs' if found.n == 1 else 'need'} more than {LONGEST.days} days for the rest"
            + (f"; {instances_words(found.enough, job.gpus)} would do" if found.enough is not None else "")
            + (f"; it is given up at {_minute(until)}" if given_up else "")
        )
    end, worked = start + (slot + found.slots) * step, (found.worked * step).ceil("min")
    could = [f"a deadline of {_minute(end)}"]
    if found.enough is not None:
        could.insert(0, instances_words(found.enough, job.gpus))
    return (
        f"cannot be done by {_minute(deadline)}: {instances_words(found.n, job.gpus, 'on-demand instance')}, "
        "its fastest size, "
        f"{'needs' if found.n == 1 else 'need'} {duration(worked)} for the rest, "
        f"{duration(worked - found.left * step)} more than the {duration(found.left * step)} left; "
        f"{' or '.join(could)} would do; "
        + (
            f"no instances finish it by {_minute(until)}, and it is given up then"
            if given_up
            else f"best effort is done by {_minute(start + slot * step + worked)}, late"
        )
    )


def _minute(time: pd.Timestamp) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"
