"""Files shipped beside the code that reads them: SQL statements in ``sql/``, TOML tables of facts in ``data/``; and list prices."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def read_sql(package: str, name: str) -> str:
    """The text of ``sql/<name>.sql`` in a package; callers pass their own ``__package__``."""
    return files(package).joinpath(f"sql/{name}.sql").read_text(encoding="utf-8")


@cache
def read_data(package: str, name: str) -> dict[str, Any]:
    """The content of ``data/<name>.toml`` in a package; kept, so nobody may change it."""
    return tomllib.loads(files(package).joinpath(f"data/{name}.toml").read_text(encoding="utf-8"))


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
        if self.per_gpu and mark and base == self.instance_type and gpus.isdecimal() and len(gpus) < 5:
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
        for entry in read_data(__package__, "on_demand_prices")["price"]
    )


def listed_price(provider: str, instance_type: str) -> float | None:
    """USD per hour of an instance of this type by the first entry of the list that says it, None if none does."""
    prices = (entry.price_of(provider, instance_type) for entry in list_prices())
    return next((usd for usd in prices if usd is not None), None)
