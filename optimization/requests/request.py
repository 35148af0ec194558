"""Fine-tuning requests: the few fields of the user, and the defaults for the rest, each reported (M9.1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator

from slackwater.warehouse.amounts import EARLIEST_YEAR, LATEST_YEAR
from slackwater.warehouse.documents import EXAMPLES, read_toml
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.inputs import InputModel

#: Defaults of a request; each use of a default is reported.
DEFAULT_METHOD, DEFAULT_LENGTH = "lora", 2048
DEFAULT_OVERHEAD_MINUTES = 5.0
Positive = Annotated[int, Field(ge=1, le=10**9)]


class TuningRequest(InputModel):
    """Fine-tuning request: model, work and deadline; everything else is optional.

    The work is ``samples`` of ``tokens_per_sample`` tokens, or ``tokens``, times ``epochs``. ``number_gpus``
    is the maximal number of GPUs at a time, ``batch_size`` the samples of an optimizer step over all GPUs.
    ``plan_by`` is the end of the predicted throughput that the job's H(n) uses.
    """

    model: str = Field(min_length=1)
    name: str | None = Field(None, min_length=1)
    method: Literal["full", "lora", "gptq-lora"] | None = None
    tokens_per_sample: Positive | None = None
    samples: float | None = Field(None, ge=1e-6, le=1e15)
    tokens: float | None = Field(None, ge=1e-6, le=1e15)
    epochs: float = Field(1.0, ge=1e-6, le=1e6)
    deadline: datetime | None = None
    deadline_in: str | None = None
    gpu_model: str | None = None
    number_gpus: int | None = Field(None, ge=1, le=8192)
    batch_size: Positive | None = None
    torch_dtype: Literal["bfloat16", "float16", "float32"] | None = None
    params_b: float | None = Field(None, ge=1e-3, le=1e5)
    objective: Literal["cost", "time"] = "cost"
    plan_by: Literal["median", "low"] = "median"
    budget_usd: float | None = Field(None, ge=0.01, le=1e9)
    value_usd: float | None = Field(None, ge=0.01, le=1e9)
    decay: float = Field(1.5, gt=1, le=100)
    overhead_minutes: float | None = Field(None, ge=0, le=10_080)
    boot_minutes: float | None = Field(None, ge=0, le=10_080)
    restart_minutes: float | None = Field(None, ge=0, le=10_080)
    checkpoint_minutes: float | None = Field(None, ge=0, le=10_080)
    notice_seconds: float | None = Field(None, ge=0, le=86_400)
    on_demand_wait_minutes: float | None = Field(None, ge=0, le=10_080)
    markets: tuple[str, ...] = Field((), max_length=1000)

    @field_validator("deadline")
    @classmethod
    def _in_range(cls, deadline: datetime | None) -> datetime | None:
        if deadline is not None and deadline.tzinfo is None:
            raise ValueError(
                f"{deadline} has no time zone; expected an offset, such as {deadline:%Y-%m-%dT%H:%M}Z for UTC"
            )
        if deadline is not None and not EARLIEST_YEAR <= deadline.year <= LATEST_YEAR:
            raise ValueError(f"expected a time from the year {EARLIEST_YEAR} to {LATEST_YEAR}")
        return deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRequest:
    """Request with method, length, total tokens and overhead settled, and a sentence for every default ``assumed``."""

    request: TuningRequest
    name: str
    method: str
    tokens_per_sample: int
    tokens: float
    overhead_minutes: float
    assumed: tuple[str, ...]


def read_tuning_request(path: Path) -> TuningRequest:
    """Read a request file; raises `JobError` with the file, the key and the expected value."""
    values = read_toml(path, "request file")
    return parse_tuning_request(values, str(path))


def parse_tuning_request(values: dict[str, object], where: str) -> TuningRequest:
    """Check the values of a request file; raises `JobError` on the first invalid value."""
    try:
        return TuningRequest.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise JobError(
            f"request file {where}: {key}: {first['msg']}", remedy=EXAMPLES["request file"]
        ) from error


def complete_request(request: TuningRequest) -> CompletedRequest:
    """Settle the fields that no market or measurement decides; `JobError`: work or deadline missing or twice."""
    _one_of(request, "samples", "tokens", "for example samples = 50000")
    _one_of(request, "deadline", "deadline_in", 'for example deadline_in = "12h"')
    assumed = []
    method, length = request.method or DEFAULT_METHOD, request.tokens_per_sample or DEFAULT_LENGTH
    if request.method is None:
        assumed.append(f'method = "{method}": not given')
    if request.tokens_per_sample is None:
        why = (
            "the work in tokens stays as requested" if request.tokens else "every sample counts as that long"
        )
        assumed.append(f"tokens_per_sample = {length}: not given; {why}")
    overhead = DEFAULT_OVERHEAD_MINUTES if request.overhead_minutes is None else request.overhead_minutes
    if request.overhead_minutes is None:
        assumed.append(f"overhead_minutes = {overhead:g}: lost at every change of size, not given")
    if request.value_usd is None:
        assumed.append("no value_usd: the job must finish, at any cost that still finishes it")
    if request.epochs == 1.0 and "epochs" not in request.model_fields_set:
        assumed.append("epochs = 1: not given")
    once = request.tokens or (request.samples or 0.0) * length
    return CompletedRequest(
        request=request,
        name=request.name or f"{request.model}-{method}",
        method=method,
        tokens_per_sample=length,
        tokens=once * request.epochs,
        overhead_minutes=overhead,
        assumed=tuple(assumed),
    )


def _one_of(request: TuningRequest, one: str, other: str, remedy: str) -> None:
    given = [name for name in (one, other) if getattr(request, name) is not None]
    if len(given) != 1:
        raise JobError(
            f"a request for {request.model!r} with {f'both {one} and' if given else f'neither {one} nor'} {other}",
            expected="one of them",
            remedy=remedy,
        )
