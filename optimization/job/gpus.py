"""Which GPUs the instances of a market hold (M9.1)."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from warehouse.errors import JobError
from warehouse.history import Market
from warehouse.packaged import read_data


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """What one instance of a type holds: ``gpus`` GPUs of the model ``gpu_model``, named as in the measured runs."""

    provider: str
    instance_type: str
    gpu_model: str
    gpus: int
    sizes: bool = False


@cache
def gpu_types() -> tuple[GpuType, ...]:
    """The entries of ``optimization/data/gpu_instances.toml``."""
    return tuple(GpuType(**entry) for entry in read_data("optimization", "gpu_instances")["instance"])


def gpu_type_of(market: Market) -> GpuType | None:
    """What an instance of a market holds, None for a type that is not in the table.

    A marketplace's ``<type>_xN`` is a machine of N; the bare type counts machines of different sizes together and is none.

    >>> gpu_type_of(Market.parse("primeintellect/any/all/A100_80GB_SXM4_x4")).gpus
    4
    """
    base, mark, count = market.instance_type.rpartition("_x")
    for entry in gpu_types():
        if entry.provider != market.provider:
            continue
        if entry.sizes:
            if mark and base == entry.instance_type and count.isdigit() and int(count) > 0:
                return GpuType(
                    provider=entry.provider,
                    instance_type=market.instance_type,
                    gpu_model=entry.gpu_model,
                    gpus=entry.gpus * int(count),
                )
        elif market.instance_type == entry.instance_type:
            return entry
    return None


def has_gpu(wanted: str, gpu_model: str) -> bool:
    """Whether a GPU model is one that ``wanted`` names: a part of its name, or a shell pattern for a part, in any case.

    >>> has_gpu("h100", "NVIDIA-H100-SXM5-80GB"), has_gpu("A100*80GB", "NVIDIA-A100-SXM4-40GB")
    (True, False)
    """
    return fnmatchcase(gpu_model.casefold(), f"*{wanted.casefold()}*")


def check_gpu(wanted: str) -> None:
    """Raise `JobError` for a GPU that no known instance type has."""
    known = sorted({one.gpu_model for one in gpu_types()})
    if not any(has_gpu(wanted, model) for model in known):
        raise JobError(
            f"gpu_type {wanted!r}",
            expected=f"a part of one of {', '.join(known)}",
            remedy='for example gpu_type = "H100"; optimization/data/gpu_instances.toml has the instance types',
        )
