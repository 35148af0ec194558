"""Types of jobs as a person writes them in a TOML file, and the `JobType` values they stand for (M8.1)."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from optimization.renting.budget import JobType
from optimization.renting.price import DeadlineDelay, Delay, PricedDelay
from optimization.renting.speedup import SIZE_LAWS, AmdahlSpeedup, PowerSpeedup, Speedup, TableSpeedup
from warehouse.errors import JobError, SlackwaterError

EXAMPLE = "see examples/types.toml"
Width = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AmdahlPart(_Part):
    """s(k) = 1 / ((1 - parallel) + parallel / k)."""

    form: Literal["amdahl"]
    parallel: float = Field(ge=0, le=1)
    most: Width | None = None

    def build(self, runs: pd.DataFrame | None) -> tuple[Speedup, str]:
        """The speedup, and what a reader should know of it."""
        return AmdahlSpeedup(parallel=self.parallel, most=self.most or math.inf), ""


class PowerPart(_Part):
    """s(k) = k^exponent."""

    form: Literal["power"]
    exponent: float = Field(gt=0)
    most: Width | None = None

    def build(self, runs: pd.DataFrame | None) -> tuple[Speedup, str]:
        """The speedup, and what a reader should know of it."""
        return PowerSpeedup(exponent=self.exponent, most=self.most or math.inf), ""


class LinearPart(_Part):
    """s(k) = k up to ``most`` GPUs."""

    form: Literal["linear"]
    most: Width

    def build(self, runs: pd.DataFrame | None) -> tuple[Speedup, str]:
        """The speedup, and what a reader should know of it."""
        return PowerSpeedup(exponent=1.0, most=self.most), ""


class TablePart(_Part):
    """Measured speedups at some widths."""

    form: Literal["table"]
    gpus: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    speedup: tuple[Positive, ...] = Field(min_length=1)

    def build(self, runs: pd.DataFrame | None) -> tuple[Speedup, str]:
        """The speedup, and what a reader should know of it."""
        return TableSpeedup(gpus=self.gpus, speedups=self.speedup), ""


class MeasuredPart(_Part):
    """Measured runs of one fine-tuning at one total batch on several numbers of GPUs (``--runs DIR``)."""

    form: Literal["measured"]
    model_name: str
    method: Literal["full", "lora", "gptq-lora"]
    gpu_model: str
    tokens_per_sample: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    torch_dtype: str | None = None

    def build(self, runs: pd.DataFrame | None) -> tuple[Speedup, str]:
        """The speedup relative to the fewest GPUs measured; widths that are no faster than fewer are left out and told."""
        if runs is None:
            raise JobError(
                "a measured speedup without measured runs",
                expected="the folder that holds ft_throughput.csv",
                remedy="give it with --runs DIR",
            )
        return _measured(self, runs)


class DelayPart(_Part):
    """What delay costs: USD for each hour, or a value that is lost after a deadline."""

    usd_per_hour: Positive | None = None
    deadline_hours: Positive | None = None
    value_usd: Positive | None = None
    decay: float = Field(1.5, gt=1, allow_inf_nan=False)


class TypePart(_Part):
    """One type of jobs."""

    name: str = Field(min_length=1)
    rate_per_hour: Positive
    mean_hours: Positive
    sizes: Literal["exponential", "deterministic", "heavy-tailed"] = "exponential"
    speedup: AmdahlPart | PowerPart | LinearPart | TablePart | MeasuredPart = Field(discriminator="form")
    delay: DelayPart | None = None


class TypesFile(_Part):
    """A file of types."""

    type: tuple[TypePart, ...] = Field(min_length=1)


def read_types(path: Path, runs: pd.DataFrame | None = None) -> tuple[list[JobType], list[str]]:
    """The types of a file and notes on them; ``runs`` are measured runs as `forecasting.configurations.runs.read_runs` gives them.

    Raises `JobError` that names the file, the key and what was expected.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"types file {path}: {error.strerror}", remedy="name a readable TOML file") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, brackets without end
        raise JobError(f"types file {path}: {error}", expected="valid TOML", remedy=EXAMPLE) from error
    try:
        parts = TypesFile.model_validate(values).type
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise JobError(f"types file {path}: {key}: {first['msg']}", remedy=EXAMPLE) from error
    built = [_build(part, str(path), runs) for part in parts]
    return [kind for kind, _ in built], [note for _, note in built if note]


def _build(part: TypePart, where: str, runs: pd.DataFrame | None) -> tuple[JobType, str]:
    try:
        speedup, note = part.speedup.build(runs)
        kind = JobType(
            name=part.name,
            rate_per_hour=part.rate_per_hour,
            mean_hours=part.mean_hours,
            speedup=speedup,
            delay=_delay(part),
        )
    except SlackwaterError as error:
        raise JobError(
            f"types file {where}: type {part.name!r}: {error.found}",
            expected=error.expected,
            remedy=error.remedy,
        ) from error
    return kind, f"{part.name}: {note}" if note else ""


def _delay(part: TypePart) -> Delay:
    said = part.delay
    if said is None:
        return PricedDelay()
    if said.usd_per_hour is not None and said.deadline_hours is None and said.value_usd is None:
        return PricedDelay(price=said.usd_per_hour, in_usd=True)
    if said.usd_per_hour is None and said.deadline_hours is not None and said.value_usd is not None:
        return DeadlineDelay(
            deadline_hours=said.deadline_hours,
            value_usd=said.value_usd,
            gamma=said.decay,
            size_law=SIZE_LAWS[part.sizes],
        )
    given = ", ".join(sorted(said.model_dump(exclude_none=True, exclude={"decay"}))) or "nothing"
    raise JobError(f"a delay that gives {given}", expected="usd_per_hour, or deadline_hours and value_usd")


def _measured(part: MeasuredPart, runs: pd.DataFrame) -> tuple[Speedup, str]:
    fixed = part.model_dump(exclude={"form", "torch_dtype"})
    chosen = runs
    for column, value in fixed.items():
        matching = chosen[chosen[column] == value]
        if matching.empty:
            known = sorted(chosen[column].unique().tolist())[:8]
            raise JobError(
                f"no measured run with {column} {value!r}",
                expected=f"one of {', '.join(str(one) for one in known)} for what stands before it",
            )
        chosen = matching
    if part.torch_dtype is not None:
        chosen = chosen[chosen["torch_dtype"] == part.torch_dtype]
    rates = chosen.groupby("number_gpus")["tokens_per_second"].median().sort_index()
    if rates.empty:
        raise JobError(f"no measured run in {part.torch_dtype}", expected="another torch_dtype, or none")
    gpus, pace = rates.index.to_numpy(dtype=int), rates.to_numpy(dtype=float)
    useful = np.concatenate([[True], pace[1:] > np.maximum.accumulate(pace)[:-1]])
    notes = [f"speedup measured on {_words(gpus[useful])} GPUs"]
    if not useful.all():
        notes.append(f"{_words(gpus[~useful])} GPUs left out: no faster than fewer")
    if gpus[0] > 1:
        notes.append(f"mean_hours counts GPU-hours on {gpus[0]} GPUs, the fewest measured")
    speedups = float(gpus[0]) * pace[useful] / pace[0]
    return TableSpeedup(gpus=tuple(gpus[useful].tolist()), speedups=tuple(speedups.tolist())), "; ".join(
        notes
    )


def _words(values: Sequence[int] | np.ndarray) -> str:
    return ", ".join(str(int(one)) for one in values)
