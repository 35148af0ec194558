"""Google Cloud's price catalogue: spot and on-demand prices of GPU machine types, summed from the SKUs of their parts."""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from pydantic import Field

from slackwater.warehouse.catalogue import list_price
from slackwater.warehouse.columns import because
from slackwater.warehouse.documents import read_data
from slackwater.warehouse.errors import FetchError
from slackwater.warehouse.sources.contract import (
    Address,
    Kind,
    Options,
    Row,
    Texts,
    label_option,
    pack,
    rejection,
)
from slackwater.warehouse.sources.live.contract import (
    WHOLE,
    Example,
    FetchedPage,
    FetchRequest,
    LiveSource,
    NoPrice,
    PartFailed,
    left_out,
    next_page,
    price_of,
    time_of,
    unknown_names,
)
from slackwater.warehouse.sources.live.transport import Transport

BASE = "https://cloudbilling.googleapis.com"
SERVICE = "6F81-5844-456A"  # Compute Engine in the catalogue
#: Environment variables for the API key; the first that is set is used.
KEY_VARIABLES = ("GCP_API_KEY", "GOOGLE_API_KEY")
_SPOT_USAGE, _ON_DEMAND_USAGE = "Preemptible", "OnDemand"
#: Unit in the catalogue -> factor to the price per hour of a GPU, core or GiB. Google counts 730
#: hours per month.
_GB = Decimal(1024**3) / 10**9
_UNITS: Mapping[str, Mapping[str, Decimal]] = {
    "gpu": {"h": Decimal(1)},
    "core": {"h": Decimal(1)},
    "ram": {"GiBy.h": Decimal(1), "GBy.h": _GB},
    "ssd": {"GiBy.mo": Decimal(1) / 730, "GBy.mo": _GB / 730, "GiBy.h": Decimal(1), "GBy.h": _GB},
}
_PARTS = tuple(_UNITS)
_MOST_PAGES = 100
_NANO = Decimal("1e-9")
#: A description, in lower case: how the part is sold, its name, and the place.
_DESCRIPTION = re.compile(
    r"(?P<spot>spot preemptible |preemptible |spot )?(?P<name>.+?)"
    r"(?P<attached> attached to (spot preemptible|preemptible|spot) vms)?( (running )?in .+)?"
)
#: Words in descriptions of other ways to rent a part.
_OTHER_WAYS = re.compile(
    r"\b(reserved|reservations?|commitment|committed|dws|defined duration|flex|calendar|sole tenancy|custom|extended|premium"
    r"|capacity optimized|virtual workstation|\d+[ -]years?)\b"
)
#: Cores and memory of accelerator-optimized machines.
_ACCELERATED = re.compile(r"[ag]\d\w* instance (core|ram)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """A machine type: the SKU (the first of its names) and amount of each part. ``own``: SKUs that no other series uses."""

    name: str
    parts: Mapping[str, tuple[str, Decimal]]
    own: frozenset[str]


@cache
def _names() -> Mapping[str, tuple[str, str]]:
    """Return description of a SKU in lower case -> (first name of the SKU, part)."""
    data = read_data(__package__, "gcp_machine_types")
    tables = [*data["series"], data["attached"], *data["attached"]["gpus"], {"ssd": data["ssd"]}]
    return {
        name.lower(): (table[part][0], part)
        for table in tables
        for part in _PARTS
        for name in table.get(part, ())
    }


@cache
def _machines() -> tuple[_Machine, ...]:
    """Return all known machine types, those of N1 with their attached GPUs."""
    data = read_data(__package__, "gcp_machine_types")
    users = Counter(table[part][0] for table in data["series"] for part in _PARTS if part in table)
    found = []
    for series in data["series"]:
        skus = {part: series[part][0] for part in _PARTS if part in series} | {"ssd": data["ssd"][0]}
        own = frozenset(sku for sku in skus.values() if users[sku] == 1)
        for name, amounts in series["types"].items():
            parts = {
                part: (skus[part], Decimal(amount))
                for part, amount in zip(_PARTS, amounts, strict=True)
                if amount
            }
            found.append(_Machine(name=name, parts=parts, own=own))
    return (*found, *_attached_name(data["attached"]))


def _attached_name(data: Mapping[str, Any]) -> Iterator[_Machine]:
    for card in data["gpus"]:
        for gpus, (most_vcpus, most_gib) in card["most"].items():
            for host, shape in data["hosts"].items():
                for vcpus in shape["vcpus"]:
                    gib = Decimal(str(shape["gib"])) * vcpus
                    if vcpus <= most_vcpus and gib <= most_gib:
                        parts = {
                            "gpu": (card["gpu"][0], Decimal(gpus)),
                            "core": (data["core"][0], Decimal(vcpus)),
                            "ram": (data["ram"][0], gib),
                        }
                        name = f"{host}-{vcpus}+{card['name']}x{gpus}"
                        yield _Machine(name=name, parts=parts, own=frozenset(card["gpu"][:1]))


class GcpOptions(Options):
    """Options of the catalogue."""

    instance_types: Texts = Field(
        ("a*", "g*", "n1-standard-*"),
        description="machine types to keep, patterns (default: a*, g*, n1-standard-*; n1-highmem-* are known too)",
    )
    regions: Texts = Field(("*",), description="regions to keep, patterns (default: all)")
    page: int = Field(5000, ge=1, le=5000, description="SKUs a page, at most 5000 (default: 5000)")
    url: Address = Field(BASE, description=f"address of the API (default: {BASE})")
    source: str = label_option("gcp-catalogue")


class GcpCatalogue(LiveSource[GcpOptions]):
    """A snapshot of list prices per region.

    All pages of the catalogue are read before anything is stored, as the parts of a machine type
    are spread over them. A machine type of ``data/gcp_machine_types.toml`` costs its GPUs, cores
    and memory, and its local SSD if that has a price. If another part has no price in a region, the
    machine type has no row there and is counted. Types that are not sold on demand by
    ``warehouse/data/catalogue.csv`` have no on-demand price. SKUs of other ways to rent (flex-start,
    reservations, commitments) are left out; unknown GPUs are named.
    """

    name = "gcp-catalogue"
    form = GcpOptions
    example = Example(
        options={}, answer=json.dumps(read_data(__package__, "gcp_example")), credentials=KEY_VARIABLES
    )

    def assumed(self, options: GcpOptions) -> tuple[str, ...]:
        """Return a note on the parts of a machine's price."""
        return (
            "Google Cloud list price: GPUs, cores, memory and the local SSD that comes with the machine type; "
            "no capacity is published",
        )

    def pages(
        self, options: GcpOptions, request: FetchRequest, transport: Transport
    ) -> Iterator[FetchedPage | PartFailed]:
        """Yield a page with all prices; raises `FetchError` without a key or when a page fails."""
        if request.is_done(WHOLE):
            return
        found = _Catalogue()
        for skus in _pages(options, transport):
            for line, sku in enumerate(skus, start=1):
                found.note(line, sku)
        at = request.observed_at(transport.server_date)
        found.price_parts(at)
        constants = {
            "source": options.source,
            "provider": "gcp",
            "zone": "all",
            "product": "Linux/UNIX",
            "observed_at": at,
            "file": options.source,
            "line": 0,
        }
        rows = list(found.rows(options, at))
        notes = () if rows else ("no machine type has a complete spot price",)
        batches = tuple(pack([*rows, *found.rejected], constants))
        yield FetchedPage(part=WHOLE, batches=batches, notes=notes + found.notes(options))


def _key(transport: Transport) -> str:
    for name in KEY_VARIABLES:
        key = os.environ.get(name, "").strip()
        if key and key.isascii() and key.isprintable():
            transport.secrets.add(key)
            return key
    raise FetchError("no Google Cloud API key found", expected=f"one in {' or '.join(KEY_VARIABLES)}")


def _pages(options: GcpOptions, transport: Transport) -> Iterator[Sequence[object]]:
    # In a header, not in the URL: URLs are logged by proxies and clients.
    headers = {"X-Goog-Api-Key": _key(transport)}
    token: str | None = None
    seen: set[str | None] = set()
    while True:
        params = {"pageSize": str(options.page), "currencyCode": "USD"} | (
            {"pageToken": token} if token else {}
        )
        url = f"{options.url}/v1/services/{SERVICE}/skus"
        answer = transport.ask_json("GET", url, params=params, headers=headers)
        # An empty list is left out of an answer, but the first page of this service is never empty.
        skus = answer.get("skus", [] if seen else None) if isinstance(answer, dict) else None
        if not isinstance(skus, list):
            raise FetchError("the catalogue answered without skus", expected='{"skus": [...]}')
        yield skus
        token = next_page(answer.get("nextPageToken") or None, seen, "the catalogue", most=_MOST_PAGES)
        if token is None:
            return


_Place = tuple[bool, str, str]  # (spot or on demand, first name of a SKU, region)


class _PricedSku(NamedTuple):
    """A SKU with the price of a part, and the time from which it applies."""

    line: int
    sku: Mapping[str, Any]
    start: datetime | None
    usd: Decimal


class _Catalogue:
    """Prices of all parts, and the SKUs that could not be used."""

    def __init__(self) -> None:
        self.rejected: list[tuple[Kind, Row]] = []
        self._skus: list[tuple[int, Mapping[str, Any], bool, str, str]] = []
        self._prices: dict[_Place, Decimal] = {}
        self._left_out: Counter[str] = Counter()
        self._unknown: set[str] = set()
        self._incomplete: set[str] = set()
        self._contested: set[str] = set()
        self._without_ssd: set[str] = set()

    def note(self, line: int, sku: object) -> None:
        """Store a SKU that is a spot or on-demand part of a known machine type; count or name other SKUs of GPUs."""
        if not isinstance(sku, Mapping):
            self.rejected.append(rejection(line, str(sku)[:1000], because("record.not_sku")))
            return
        category = sku.get("category")
        category = category if isinstance(category, Mapping) else {}
        words = " ".join(str(sku.get("description") or "").lower().split())
        match = _DESCRIPTION.fullmatch(words)
        if match is None:
            return
        usage, name = category.get("usageType"), match["name"]
        # The place may be followed by the way to rent: "in Americas for 1 Year".
        is_other = usage not in (None, "", _SPOT_USAGE, _ON_DEMAND_USAGE) or _OTHER_WAYS.search(words)
        is_gpu = category.get("resourceGroup") == "GPU" or bool(re.search(r"\bgpu\b", words))
        if name in _names() and not is_other:
            if not usage:
                self._reject(line, sku, NoPrice("price.lacks", "usageType"))
                return
            spot = usage == _SPOT_USAGE or bool(match["spot"] or match["attached"])
            self._skus.append((line, sku, spot, *_names()[name]))
        elif is_other:
            if is_gpu or name in _names():
                self._left_out["SKUs of GPUs rented otherwise (flex-start, reserved, committed, ...)"] += 1
        elif is_gpu or _ACCELERATED.fullmatch(name):
            self._unknown.add(name)

    def _reject(self, line: int, sku: Mapping[str, Any], why: NoPrice) -> None:
        words = why.reason.of(str(sku.get("description"))[:80])
        self.rejected.append(rejection(line, str(dict(sku))[:1000], words))

    def price_parts(self, at: datetime) -> None:
        """Find the price in force of every part, that with the newest start; parts with several have none (M1.1)."""
        stated: dict[_Place, list[_PricedSku]] = defaultdict(list)
        for line, sku, spot, name, part in self._skus:
            try:
                price = _price(sku, part, at)
                regions = sku.get("serviceRegions")
                if not isinstance(regions, list) or not regions:
                    raise NoPrice("price.lacks", "serviceRegions")
            except NoPrice as error:
                self._reject(line, sku, error)
                continue
            if price is None:
                self._left_out["SKUs not yet in force"] += 1
                continue
            for region in sorted({str(region) for region in regions}):
                stated[spot, name, region].append(_PricedSku(line, sku, *price))
        for place, found in stated.items():
            newest = _newest(found)
            prices = sorted({own.usd for own in newest})
            if len(prices) == 1:
                self._prices[place] = prices[0]
                self._left_out["SKUs of a part with a newer price"] += len(found) - len(newest)
                continue
            several = ", ".join(f"{usd.normalize():f}" for usd in prices[:3])
            for own in newest:
                self._reject(
                    own.line, own.sku, NoPrice("price.several", len(prices), f"part in {place[2]}", several)
                )

    def rows(self, options: GcpOptions, at: datetime) -> Iterator[tuple[Kind, Row]]:
        """Yield the spot price of each machine type in each region, with the on-demand price if sold on demand and known."""
        regions = sorted({region for _, _, region in self._prices})
        regions = [region for region in regions if any(fnmatchcase(region, glob) for glob in options.regions)]
        machines: dict[str, list[_Machine]] = defaultdict(list)
        for machine in _machines():
            if any(fnmatchcase(machine.name, glob) for glob in options.instance_types):
                machines[machine.name].append(machine)
        for region in regions:
            for name, machine_forms in machines.items():
                spot = self._total(machine_forms, region, spot=True)
                # The parts of a type that is not sold on demand have on-demand prices for larger types.
                terms = list_price("gcp", region, name, at)
                sold = terms is None or terms.usd is not None
                listed = self._total(machine_forms, region, spot=False) if sold else None
                if spot is not None:
                    row = {"region": region, "instance_type": name, "price_usd": f"{spot:f}"}
                    yield "price", {**row, "on_demand_usd": None if listed is None else f"{listed:f}"}

    def _total(self, machine_forms: Sequence[_Machine], region: str, *, spot: bool) -> Decimal | None:
        """Return USD per hour of a machine that is billed in one of several ways; None if there is no price or several."""
        prices = [
            {part: self._prices.get((spot, sku, region)) for part, (sku, _) in machine.parts.items()}
            for machine in machine_forms
        ]
        complete = [
            (machine, found)
            for machine, found in zip(machine_forms, prices, strict=True)
            if all(usd is not None for part, usd in found.items() if part != "ssd")
        ]
        totals = {_sum(machine, found) for machine, found in complete}
        name = f"{machine_forms[0].name} in {region}"
        if len(totals) == 1:
            if any("ssd" in found and found["ssd"] is None for _, found in complete):
                self._without_ssd.add(name)
            return totals.pop()
        if totals:
            self._contested.add(name)
        for machine, found in zip(machine_forms, prices, strict=True):
            missing = [part for part, usd in found.items() if usd is None and part != "ssd"]
            # A part shared with other series does not prove that this machine is offered in the region.
            if missing and any(
                found[part] is not None and machine.parts[part][0] in machine.own for part in found
            ):
                how = "spot" if spot else "on demand"
                self._incomplete.add(f"{name} ({how}: {', '.join(missing)})")
        return None

    def notes(self, options: GcpOptions) -> tuple[str, ...]:
        """Return notes on SKUs left out, unknown names and missing prices; call it after `rows`."""
        known = [machine.name for machine in _machines()]
        lost = [glob for glob in options.instance_types if not any(fnmatchcase(name, glob) for name in known)]
        return (
            *unknown_names("patterns without a known machine type", lost),
            *unknown_names("machine types without the price of a part", self._incomplete),
            *unknown_names("machine types with more than one price", self._contested),
            *unknown_names("machine types priced without their local SSD", self._without_ssd),
            *unknown_names("SKUs of GPUs that are not known", self._unknown),
            *left_out(self._left_out),
        )


def _sum(machine: _Machine, prices: Mapping[str, Decimal | None]) -> Decimal:
    """Return USD per hour of the parts that have a price, rounded to the billionth."""
    parts = ((machine.parts[part][1], usd) for part, usd in prices.items() if usd is not None)
    return sum((amount * usd for amount, usd in parts), Decimal(0)).quantize(_NANO)


def _newest(found: Sequence[_PricedSku]) -> Sequence[_PricedSku]:
    """Return the SKUs with the newest start; all where a start is not stated."""
    starts = [own.start for own in found if own.start is not None]
    return [own for own in found if own.start == max(starts)] if len(starts) == len(found) else found


def _price(sku: Mapping[str, Any], part: str, at: datetime) -> tuple[datetime | None, Decimal] | None:
    """Return start and USD per hour of a GPU, core or GiB, None if no price is in force yet; raises `NoPrice`."""
    found = _in_force(sku.get("pricingInfo"), at)
    if found is None:
        return None
    start, expression = found
    unit = str(expression.get("usageUnit"))
    if unit not in _UNITS[part]:
        raise NoPrice("value.unexpected", "unit", repr(unit[:20]), " or ".join(_UNITS[part]))
    return start, _first_tier(expression) * _UNITS[part][unit]


def _in_force(pricing: object, at: datetime) -> tuple[datetime | None, Mapping[str, Any]] | None:
    """Return the newest start up to a time and its pricing expression, None if all start later; raises `NoPrice`."""
    entries = pricing if isinstance(pricing, list) else []
    if not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise NoPrice("price.lacks", "tieredRates")
    starts = [time_of(entry.get("effectiveTime"), "effectiveTime") for entry in entries]
    if None in starts and len(entries) > 1:
        raise NoPrice("price.several_times")
    latest = max((start for start in starts if start is not None and start <= at), default=None)
    if latest is None and starts != [None]:
        return None
    newest = [
        entry.get("pricingExpression")
        for start, entry in zip(starts, entries, strict=True)
        if start == latest
    ]
    if any(sku != newest[0] for sku in newest):
        raise NoPrice("price.one_time")
    if not isinstance(newest[0], Mapping):
        raise NoPrice("price.lacks", "tieredRates")
    return latest, newest[0]


def _first_tier(expression: Mapping[str, Any]) -> Decimal:
    """Return USD per unit of the first tier that is not free; raises `NoPrice`."""
    tiers = expression.get("tieredRates")
    if not isinstance(tiers, list) or not tiers:
        raise NoPrice("price.lacks", "tieredRates")
    prices: dict[Decimal, set[Decimal]] = defaultdict(set)
    for tier in tiers:
        rate = tier.get("unitPrice") if isinstance(tier, Mapping) else None
        if not isinstance(rate, Mapping):
            raise NoPrice("price.lacks", "unitPrice")
        if rate.get("currencyCode", "USD") != "USD":
            raise NoPrice("value.unexpected", "currency", repr(str(rate.get("currencyCode"))[:20]), "USD")
        prices[_number(str(tier.get("startUsageAmount", 0)), "startUsageAmount")].add(_money(rate))
    charged = sorted(start for start, rates in prices.items() if rates != {Decimal(0)})
    first = prices[charged[0]] if charged else {Decimal(0)}
    if len(first) > 1:
        raise NoPrice("price.one_tier")
    return price_of(first.pop(), "price")


def _money(rate: Mapping[str, Any]) -> Decimal:
    units, nanos = str(rate.get("units", "0")), str(rate.get("nanos", "0"))
    return _number(units, "units") + _number(nanos, "nanos") * _NANO


def _number(text: str, name: str) -> Decimal:
    try:
        number = Decimal(text if len(text) <= 12 else "")
    except InvalidOperation:
        raise NoPrice("value.not_number", f"{name} {text[:20]!r}") from None
    if not number.is_finite():
        raise NoPrice("value.not_number", f"{name} {text[:20]!r}")
    return number
