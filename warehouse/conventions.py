"""What is known about sources that their files do not say: patterns on the source label, with the reason."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """Glob patterns (case-sensitive, ``*`` also matches ``/``) on the source label.

    ``no_clock``: the time of day is unknown, so hour and weekday mean nothing. ``price_of_every_probe``: the price was
    read at every probe and stored when it changed, so it holds for as long as the same source's probes go on.
    """

    no_clock: tuple[str, ...] = ()
    price_of_every_probe: tuple[str, ...] = ()

    def real_clock(self, source: str) -> bool:
        """Whether hour of day and weekday of this source mean anything."""
        return not matches(source, self.no_clock)

    def probed_price(self, source: str) -> bool:
        """Whether this source's prices were read at each of its probes."""
        return matches(source, self.price_of_every_probe)


def matches(source: str, patterns: tuple[str, ...]) -> bool:
    """True if any pattern matches the source label."""
    return any(fnmatchcase(source, pattern) for pattern in patterns)


def read_conventions(path: Path | None = None) -> Conventions:
    """Conventions from a TOML file of the form of ``warehouse/data/sources.toml``, which is the default."""
    values = _packaged("sources") if path is None else tomllib.loads(path.read_text(encoding="utf-8"))
    return Conventions(
        no_clock=tuple(str(entry["source"]) for entry in values.get("no_clock", [])),
        price_of_every_probe=tuple(str(entry["source"]) for entry in values.get("price_of_every_probe", [])),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPrice:
    """An on-demand list price: USD per instance-hour, or per GPU-hour (``per_gpu``: then times N for ``<type>_xN``)."""

    provider: str
    instance_type: str
    usd: float
    per_gpu: bool
    date: str
    source: str

    def price_of(self, provider: str, instance_type: str) -> float | None:
        """USD per hour of an instance of this type, None if this entry says nothing about it."""
        if provider != self.provider:
            return None
        base, mark, gpus = instance_type.rpartition("_x")
        if instance_type == self.instance_type:
            return self.usd
        if self.per_gpu and mark and base == self.instance_type and gpus.isdigit():
            return self.usd * int(gpus)
        return None


@cache
def list_prices() -> tuple[ListPrice, ...]:
    """The entries of ``warehouse/data/on_demand_prices.toml``."""
    return tuple(
        ListPrice(
            provider=entry["provider"],
            instance_type=entry["instance_type"],
            usd=float(entry["usd_per_hour"]),
            per_gpu=bool(entry.get("per_gpu", False)),
            date=str(entry["date"]),
            source=entry["source"],
        )
        for entry in _packaged("on_demand_prices")["price"]
    )


def _packaged(name: str) -> dict[str, Any]:
    return tomllib.loads(files("warehouse").joinpath(f"data/{name}.toml").read_text(encoding="utf-8"))
