"""GPU model and number of GPUs of the instances of a market (M9.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

from slackwater.warehouse.catalogue import SIZES, catalogue, is_named, rows_of
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.history import Market


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """GPUs of an instance type: ``gpus`` GPUs of the model ``gpu_model``, named as in the measured runs.

    ``gpu_memory_gib`` is the memory of a single GPU, None if unknown.
    """

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
    return tuple(one for one in found.values() if one is not None)


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
    known = sorted({one.gpu_model for one in gpu_types()})
    if not any(has_gpu(wanted, model) for model in known):
        raise JobError(
            f"gpu_type {wanted!r}",
            expected=f"a part of one of {', '.join(known)}",
            remedy='for example gpu_type = "H100"; `slackwater catalogue` lists the instance types',
        )
