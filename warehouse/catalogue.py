"""Instance types with GPUs and list prices, USD per instance-hour (M1.1); `benchmarks.build_catalogue` writes them."""

from __future__ import annotations

import csv
import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib.resources import files
from typing import TypeVar

from slackwater.warehouse.documents import read_data
from slackwater.warehouse.errors import SettingsError

#: Names of providers and products, ``data/products.toml``.
_NAMES = read_data(__package__, "products")
NOT_SOLD = "not sold"  # Text in the price column for types not sold on demand
ANYWHERE = "*"  # Region of a row that applies everywhere
#: Names of machines of N GPUs: of marketplaces (RTX_4090_24GB_x8), of Google Cloud's N1 (+v100x4), of models (H100x8, A100-80Gx8,
#: 8xH100), and of SkyPilot's catalogue and accelerators (8x-H200, 8x_H100-SXM_SECURE, gpu_8x_h100_sxm5, gpu-h200-sxm_8gpu-128vcpu,
#: H100:8).
_NAMED_GPUS = re.compile(
    r"(?:_|\+[a-z]+\d+|^[a-z]+\d+|\dg)x(\d{1,4})$|^(?:gpu_)?(\d{1,4})x(?:[-_ ]+(?=[a-z])|(?=[a-z]+\d))|_(\d{1,4})gpu(?=[-_]|$)"
    r"|^[a-z][^:]*:(\d{1,4})$",
    re.ASCII | re.IGNORECASE,
)
SIZES = "_x*"  # Suffix of marketplace types whose machines with N GPUs are named ``<type>_xN``


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """Row of the catalogue: an instance type in the regions with the same terms.

    None means unknown; ``gpu_model`` and ``gpus`` are None also for instances without GPU. ``sold``
    False: the provider does not sell the type on demand. ``valid_from``: first day of the price
    (ISO 8601), "" if unknown.
    """

    provider: str
    instance_type: str
    gpu_model: str | None
    gpus: int | None
    gpu_memory_gib: float | None
    regions: tuple[str, ...]
    on_demand_usd: float | None
    sold: bool
    valid_from: str
    source: str
    source_date: str

    def of_size(self, size: int) -> InstanceType:
        """Return the row for a machine with ``size`` GPUs, from a marketplace row that lists one GPU."""
        usd = None if self.on_demand_usd is None else self.on_demand_usd * size
        gpus = None if self.gpus is None else self.gpus * size
        name = f"{self.instance_type.removesuffix(SIZES)}_x{size}"
        return replace(self, instance_type=name, gpus=gpus, on_demand_usd=usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPrice:
    """On-demand list price of a market at a given time.

    ``usd`` None: the type is not sold on demand. ``elsewhere``: the price is from another region.
    ``words``: region, date and source.
    """

    usd: float | None
    elsewhere: bool
    words: str


@cache
def catalogue() -> tuple[InstanceType, ...]:
    """Return all rows of the file, in its order."""
    text = files(__package__).joinpath("data/catalogue.csv").read_text(encoding="utf-8")
    rows = csv.reader(text.splitlines())
    next(rows)
    return tuple(
        InstanceType(
            provider=provider,
            instance_type=instance_type,
            gpu_model=gpu_model or None,
            gpus=int(gpus) if gpus else None,
            gpu_memory_gib=float(memory) if memory else None,
            regions=tuple(regions.split()),
            on_demand_usd=None if usd in ("", NOT_SOLD) else float(usd),
            sold=usd != NOT_SOLD,
            valid_from=valid_from,
            source=source,
            source_date=source_date,
        )
        for provider, instance_type, gpu_model, gpus, memory, regions, usd, valid_from, source, source_date in rows
    )


@cache
def provider_names() -> dict[str, str]:
    """Return other spellings of providers, in lower case -> name in the catalogue.

    >>> names = provider_names()
    >>> names["aws"], names["google cloud"], names.get("own")
    ('aws', 'gcp', None)
    """
    others: dict[str, str] = _NAMES["providers"]
    return {row.provider.lower(): row.provider for row in catalogue()} | others


@cache
def _by_type() -> dict[tuple[str, str], tuple[InstanceType, ...]]:
    found: dict[tuple[str, str], tuple[InstanceType, ...]] = {}
    for row in catalogue():
        key = row.provider, row.instance_type
        found[key] = (*found.get(key, ()), row)
    return found


@lru_cache(maxsize=4096)
def rows_of(provider: str, instance_type: str) -> tuple[InstanceType, ...]:
    """Return the rows of an instance type, including ``<type>_xN`` of marketplaces; empty for an unlisted type.

    >>> rows_of("primeintellect", "A100_80GB_SXM4_x4")[0].gpus
    4
    """
    if found := _by_type().get((provider, instance_type)):
        return found
    base, mark, size = instance_type.rpartition("_x")
    if mark and size.isascii() and size.isdecimal() and len(size) < 5 and int(size) > 0:
        return tuple(row.of_size(int(size)) for row in _by_type().get((provider, base + SIZES), ()))
    return ()


@lru_cache(maxsize=4096)
def gpus_of(instance_type: str) -> frozenset[int]:
    """Return the numbers of GPUs of an instance type by the catalogue, ignoring case; empty for an unlisted type.

    >>> sorted(gpus_of("P4d.24xlarge")), sorted(gpus_of("box"))
    ([8], [])
    """
    name = instance_type.lower()
    # names of the simulated market, such as h100, are names of GPUs elsewhere
    rows = (row for row in catalogue() if row.instance_type.lower() == name and row.provider != "simulated")
    return frozenset(row.gpus for row in rows if row.gpus)


@lru_cache(maxsize=4096)
def sellers_of(instance_type: str) -> frozenset[str]:
    """Return the providers of an instance type by the catalogue; empty for an unlisted type.

    >>> sorted(sellers_of("p4d.24xlarge")), sorted(sellers_of("box"))
    (['aws'], [])
    """
    return frozenset(row.provider for row in catalogue() if row.instance_type == instance_type)


def is_named(wanted: str, name: str) -> bool:
    """Return whether a name contains ``wanted``, text or a shell pattern, ignoring case.

    >>> is_named("h100", "NVIDIA-H100-SXM5-80GB"), is_named("A100*80GB", "NVIDIA-A100-SXM4-40GB")
    (True, False)
    """
    return fnmatchcase(name.casefold(), f"*{wanted.casefold()}*")


def named_gpus(instance_type: str) -> int | None:
    """Return the GPUs of a machine by its name; None if the name has no number of GPUs.

    >>> [named_gpus(name) for name in ("8xH100", "8x H100", "H100x8", "A100-80Gx2", "gpu_8x_h100_sxm5", "2xlarge", "p5.48xlarge")]
    [8, 8, 8, 2, 8, None, None]
    """
    named = _NAMED_GPUS.search(instance_type)
    return int(named[named.lastindex or 0]) or None if named else None


def _models_in(name: str) -> set[str]:
    """Return the parts of a name that are written like models of GPUs.

    >>> sorted(_models_in("NVIDIA-H100-SXM5-80GB") | _models_in("gpu_8x_a10g") | _models_in("4xL40S") | _models_in("V100x2"))
    ['a10g', 'h100', 'l40s', 'v100']
    """
    model = re.sub(r"^(?:gpu_)?\d{1,4}x|x\d{1,4}$", " ", name.casefold())
    return set(re.findall(r"(?<![a-z0-9])g?[a-z]\d{1,4}[a-z]?(?![a-z0-9])", model))


@cache
def _gpu_list_prices() -> Mapping[str, float]:
    """Return the highest list price per GPU of each model."""
    found: dict[str, float] = {}
    for row in catalogue():
        if row.gpu_model is not None and row.gpus and row.on_demand_usd is not None:
            for model in _models_in(row.gpu_model):
                found[model] = max(found.get(model, 0.0), row.on_demand_usd / row.gpus)
    return found


#: Share of the highest list price that counts for a type of unknown size: a machine of 8 GPUs then still costs
#: less than the multiple of it that is accepted, and a month of one GPU more (M1.2).
_UNKNOWN_SIZE = 1 / 8


def highest_likely_price(provider: str, instance_type: str) -> float:
    """Return the highest list price of a type, else of its GPUs at any provider, else of the catalogue.

    Where the number of GPUs is not known, that of one GPU, and an eighth of the highest of the catalogue: of a machine
    of 8 unknown GPUs, and in proportion of another number.

    >>> highest_likely_price("own", "H100") < highest_likely_price("own", "H100_x2") < highest_likely_price("own", "8x-H100")
    True
    """
    listed = highest_list_price(provider, instance_type)
    if listed is not None:
        return listed
    models = [usd for model in _models_in(instance_type) if (usd := _gpu_list_prices().get(model))]
    gpus = named_gpus(instance_type)
    return max(models) * (gpus or 1) if models else highest_of_all() * _UNKNOWN_SIZE * (gpus or 8) / 8


def highest_list_price(provider: str, instance_type: str) -> float | None:
    """Return the highest list price of a type in any region at any time; None if there is none."""
    return max(_list_prices(provider, instance_type), default=None)


def lowest_list_price(provider: str, instance_type: str) -> float | None:
    """Return the lowest list price of a type in any region at any time; None if there is none."""
    return min(_list_prices(provider, instance_type), default=None)


def _list_prices(provider: str, instance_type: str) -> list[float]:
    return [row.on_demand_usd for row in rows_of(provider, instance_type) if row.on_demand_usd is not None]


@cache
def highest_of_all() -> float:
    """Return the highest list price of the catalogue."""
    return max(row.on_demand_usd for row in catalogue() if row.on_demand_usd is not None)


def list_price(provider: str, region: str, instance_type: str, at: dt.datetime) -> ListPrice | None:
    """Return the list price of a region at a time, else that of the region with the most similar name (M1.1).

    A price applies from its first day; a price whose first day is unknown applies until the next
    price of its region. None if the catalogue has no price for the time.
    """
    day = at.date().isoformat()
    current: dict[str, InstanceType] = {}
    for row in rows_of(provider, instance_type):
        if row.valid_from > day or (row.sold and row.on_demand_usd is None):
            continue
        for place_name in row.regions:
            if place_name not in current or row.valid_from >= current[place_name].valid_from:
                current[place_name] = row
    if not current:
        return None
    place = next((place_name for place_name in (region, ANYWHERE) if place_name in current), None)
    elsewhere = place is None
    if place is None:
        place = max(
            sorted(current),
            key=lambda place_name: (_alike(place_name, region), _breadth(provider).get(place_name, 0)),
        )
    row = current[place]
    usd = row.on_demand_usd if row.sold else None
    return ListPrice(usd=usd, elsewhere=elsewhere, words=_words(row, region, place, day))


def _words(row: InstanceType, region: str, place: str, day: str) -> str:
    where = "" if place == ANYWHERE else f" in {place}"
    if place not in (region, ANYWHERE):
        where += f" (none listed in {region})"
    date = f"from {row.valid_from}" if row.valid_from else f"read {row.source_date or 'on an unknown day'}"
    if not row.valid_from and row.source_date > day:
        date += ", later than this time"
    kind = "list price" if row.sold else "not sold on demand"
    return f"{kind}{where}, {date}, {row.source}"


def _alike(region: str, other: str) -> int:
    """Return the length of the common prefix of two region names: ``us-east-1`` is similar to ``us-east-2``."""
    return next(
        (i for i, (a, b) in enumerate(zip(region, other, strict=False)) if a != b),
        min(len(region), len(other)),
    )


@cache
def _breadth(provider: str) -> dict[str, int]:
    """Return the number of catalogue rows per region of a provider; its main region has the most."""
    found: dict[str, int] = {}
    for row in catalogue():
        if row.provider == provider:
            for region in row.regions:
                found[region] = found.get(region, 0) + 1
    return found


# ---
# On-demand terms given by a job or the settings; they take precedence over observations and the
# catalogue (M1.1).


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemandTerms:
    """On-demand price, given by a job or the settings, of the markets that match a pattern.

    ``market`` is ``provider/region/zone/type`` with ``*`` for any part; ``usd`` None: not sold on
    demand there. ``stated_in`` is "job" or "settings".
    """

    market: str
    usd: float | None
    stated_in: str

    def __post_init__(self) -> None:
        """Raise `SettingsError` for a price that is not positive and finite."""
        if self.usd is not None and not 0 < self.usd < float("inf"):
            raise SettingsError(f"on-demand price {self.usd}", expected="USD per instance-hour > 0")


def terms_for(market: str, terms: Sequence[OnDemandTerms]) -> OnDemandTerms | None:
    """Return the first terms whose pattern matches ``provider/region/zone/type``, part by part; None without a match."""
    own = market.split("/")
    for term in terms:
        parts = term.market.split("/")
        if term.market == "*" or (len(parts) == len(own) and all(map(fnmatchcase, own, parts))):
            return term
    return None


# ---
# Products of prices, and the product that jobs are planned on (M1.1).
#
# Jobs run on Linux and rent spot instances. Prices of another operating system or purchase option (reserved, flex-start,
# low priority, on-demand) are stored under their product name and never used as the price of the market.

_RANKS = {name.casefold(): rank for rank, name in enumerate(_NAMES["planned"])}
#: Regular expression for names of products never used for planning; it works in Python and DuckDB.
_OTHER_PRODUCTS = "(?i)" + "|".join(_NAMES["other"])
_OTHER = re.compile(_OTHER_PRODUCTS)
UNKNOWN_RANK = len(_RANKS)  # Rank of a product whose name matches neither list
UNSPECIFIED = "unspecified"  # Product of a price whose source does not state any

ItemT = TypeVar("ItemT")


def product_rank(product: str) -> int | None:
    """Return the rank of a product among those used for planning (0 = preferred); None for a product that is never used.

    >>> product_rank("Linux/UNIX"), product_rank("Windows (Amazon VPC)"), product_rank("a name of our own") == UNKNOWN_RANK
    (1, None, True)
    """
    rank = _RANKS.get(product.strip().casefold())
    if rank is not None:
        return rank
    return None if _OTHER.search(product) else UNKNOWN_RANK


def rank_sql(column: str) -> str:
    """Return `product_rank` of a column as a DuckDB expression."""
    whens = " ".join(f"WHEN {_literal(name)} THEN {rank}" for name, rank in _RANKS.items())
    other = f"CASE WHEN NOT regexp_matches({column}, {_literal(_OTHER_PRODUCTS)}) THEN {UNKNOWN_RANK} END"
    return f"CASE lower(trim({column})) {whens} ELSE {other} END"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def planning_item(items: Iterable[ItemT], product: Callable[[ItemT], str]) -> ItemT | None:
    """Return the item whose product ranks best, whatever the order; None without one, and if several share that rank."""
    ranked: dict[int, list[ItemT]] = {}
    for item in items:
        if (rank := product_rank(product(item))) is not None:
            ranked.setdefault(rank, []).append(item)
    if not ranked:
        return None
    best = ranked[min(ranked)]
    if len({product(item) for item in best}) > 1:
        return None
    return best[0]


def unplanned_words(products: Iterable[str]) -> str:
    """Return why none of these products of a market can be used for planning.

    >>> unplanned_words(["Windows", "SUSE Linux"]), unplanned_words(["b", "a", "Windows"])
    ('only SUSE Linux, Windows', 'a or b, nothing says which')
    """
    names = sorted(set(products))
    unknown = [name for name in names if product_rank(name) is not None]
    return f"{' or '.join(unknown)}, nothing says which" if unknown else f"only {', '.join(names)}"


# ---
# Facts about sources that their files do not state: patterns on the source label, with the reason.


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """Glob patterns on the source label (case-sensitive; ``*`` also matches ``/``).

    ``no_clock``: the time of day is unknown, so hour and weekday have no meaning.
    ``price_of_every_probe``: the price was read at every probe and stored when it changed, so it
    remains valid as long as the probes of the source continue.
    """

    no_clock: tuple[str, ...] = ()
    price_of_every_probe: tuple[str, ...] = ()

    def real_clock(self, source: str) -> bool:
        """Return whether hour of day and weekday have a meaning for this source."""
        return not matches(source, self.no_clock)

    def probed_price(self, source: str) -> bool:
        """Return whether the prices of this source were read at each probe."""
        return matches(source, self.price_of_every_probe)


def matches(source: str, patterns: tuple[str, ...]) -> bool:
    """Return whether any pattern matches the source label."""
    return any(fnmatchcase(source, pattern) for pattern in patterns)


@cache
def known_conventions() -> Conventions:
    """Return the content of ``warehouse/data/conventions.toml``, which gives a reason for each pattern."""
    content = read_data(__package__, "conventions")
    return Conventions(
        no_clock=tuple(str(entry["source"]) for entry in content["no_clock"]),
        price_of_every_probe=tuple(str(entry["source"]) for entry in content["price_of_every_probe"]),
    )
