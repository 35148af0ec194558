"""Which GPU an instance type has and how many: ``flows/data/gpu_instances.toml`` (M9.1)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from warehouse.history import Market


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
    """The entries of the table."""
    text = files("flows").joinpath("data/gpu_instances.toml").read_text(encoding="utf-8")
    return tuple(GpuType(**entry) for entry in tomllib.loads(text)["instance"])


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
