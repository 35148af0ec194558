"""Azure spot prices from the Retail Prices API, with the on-demand price of the same size, product and region."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qsl

from pydantic import Field, field_validator

from slackwater.warehouse.columns import because
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
    why_not_in_force,
)
from slackwater.warehouse.sources.live.transport import Transport

BASE = "https://prices.azure.com/api/retail/prices"
VERSION = "2023-01-01-preview"
_REGION = re.compile(r"^[a-z0-9]+$")
_MOST_PAGES = 500
#: Patterns for names of meters, SKUs and products that are neither spot nor on-demand virtual machines.
_OTHER = {
    "low priority": re.compile(r"\blow[ -]?priority\b"),
    "cloud services": re.compile(r"\bcloud ?services?\b"),
    "dedicated hosts": re.compile(r"\bdedicated host\b"),
    "reservations": re.compile(r"\breserv"),
    "prices with licences of one's own": re.compile(r"\bhybrid ?benefit\b|\bbyol\b"),
    "expired": re.compile(r"\bexpired\b"),
}
_SPOT = re.compile(r"\bspot\b")
#: Systems that are part of a price, by words in names of meters, SKUs and products; others are Linux without a licence.
_SYSTEMS = {
    "Windows": re.compile(r"\bwindows\b"),
    "RHEL": re.compile(r"\brhel|\bred ?hat\b"),
    "SUSE": re.compile(r"\bsuse\b|\bsles"),
    "Ubuntu Pro": re.compile(r"\bubuntu ?pro\b"),
    "SQL Server": re.compile(r"\bsql\b"),
}
#: ``type`` of an item that is no pay-as-you-go price -> description.
_TYPES = {"reservation": "reservations", "devtestconsumption": "dev/test prices"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meter:
    """A usable item: USD per hour of a size and product, in force since ``start``."""

    item: Mapping[str, Any]
    line: int
    usd: Decimal
    start: datetime
    primary: bool


_Place = tuple[str, str]  # (size, product)


@dataclass(slots=True)
class _Region:
    """Listings of a region: the meters of spot and of on-demand, the rejected rows, and the number of items left out."""

    region: str
    at: datetime
    meters: dict[bool, dict[_Place, list[_Meter]]] = field(
        default_factory=lambda: {True: defaultdict(list), False: defaultdict(list)}
    )
    rejected: list[tuple[Kind, Row]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


class AzureOptions(Options):
    """Options of the price list."""

    regions: Texts = Field(
        (),
        validate_default=True,
        description="regions to read, as armRegionName: eastus, westeurope, ... (must be given)",
    )
    instance_types: Texts = Field(
        ("Standard_N*",),
        description="sizes to keep, patterns on armSkuName (default: Standard_N*, the GPU families)",
    )
    url: Address = Field(BASE, description=f"address of the API (default: {BASE})")
    api_version: str = Field(VERSION, description=f"its version (default: {VERSION})")
    source: str = label_option("azure-retail")

    @field_validator("regions")
    @classmethod
    def _names(cls, regions: tuple[str, ...]) -> tuple[str, ...]:
        # The name goes into a filter expression, so characters that could end a string are not allowed.
        if not regions or not all(_REGION.match(region) for region in regions):
            raise ValueError("a list of region names such as eastus")
        return tuple(dict.fromkeys(regions))


class AzureRetail(LiveSource[AzureOptions]):
    """A snapshot of list prices; parts are regions (``armRegionName``), which Azure does not divide into zones here.

    All pages of a region are read before anything is stored. Spot meters (``Spot`` in the meter or
    SKU name) are price rows; the on-demand price is that of the meter of the same size and product
    without Spot. Only pay-as-you-go prices of the first tier that are in force count; of several,
    the newest. Items of equal rank with different prices are all rejected.
    """

    name = "azure-retail"
    form = AzureOptions
    example = Example(
        options={"regions": ["eastus"]},
        answer="""{"Items": [{"armRegionName": "eastus", "armSkuName": "Standard_NC6s_v3", "meterName": "NC6s v3 Spot",
 "productName": "Virtual Machines NCSv3 Series", "skuName": "NC6s v3 Spot", "type": "Consumption", "retailPrice": 0.9,
 "effectiveStartDate": "2020-08-01T00:00:00Z", "currencyCode": "USD", "unitOfMeasure": "1 Hour"}], "NextPageLink": null}""",
    )

    def assumed(self, options: AzureOptions) -> tuple[str, ...]:
        """Return the note that a list price is observed when it is read."""
        return ("Azure list price, observed when it was read; no capacity is published",)

    def pages(
        self, options: AzureOptions, request: FetchRequest, transport: Transport
    ) -> Iterator[FetchedPage | PartFailed]:
        """Yield a page per region; a failing region yields `PartFailed` and its mark stays unchanged."""
        for region in options.regions:
            if request.is_done(region):
                continue
            try:
                yield _page(options, region, request, transport)
            except FetchError as error:
                yield PartFailed(part=region, reason=str(error))


def _filter(region: str, *, spot: bool) -> str:
    words = (
        f"serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and armRegionName eq '{region}'"
    )
    return f"{words} and contains(meterName, 'Spot')" if spot else words


def _page(options: AzureOptions, region: str, request: FetchRequest, transport: Transport) -> FetchedPage:
    pages = [
        (spot, items)
        for spot in (False, True)
        for items in list(_listing(options, region, transport, spot=spot))
    ]
    at = request.observed_at(transport.server_date)
    found = _Region(region=region, at=at)
    for spot, items in pages:
        for line, item in enumerate(items, start=1):
            _note(found, options, line, item, spot=spot)
    constants = {
        "source": options.source,
        "provider": "azure",
        "region": region,
        "zone": "all",
        "observed_at": at,
        "file": f"{options.source}:{region}",
    }
    rows = list(_rows(found))
    notes = left_out(found.left_out)
    if not rows:
        notes += (f"no spot price of {', '.join(options.instance_types)}",)
    return FetchedPage(
        part=region,
        batches=tuple(pack([*rows, *found.rejected], constants)),
        notes=tuple(f"{region}: {note}" for note in notes),
    )


def _listing(
    options: AzureOptions, region: str, transport: Transport, *, spot: bool
) -> Iterator[Sequence[object]]:
    """Yield the items of each page; only the query of ``NextPageLink`` is used, so no server can redirect requests."""
    query: str | None = None
    seen: set[str | None] = {query}
    while True:
        params = dict(parse_qsl(query)) if query else {}
        params = params or {"api-version": options.api_version, "$filter": _filter(region, spot=spot)}
        answer = transport.ask_json("GET", options.url, params=params)
        items = answer.get("Items") if isinstance(answer, dict) else None
        if not isinstance(items, list):
            raise FetchError("the price list answered without Items", expected='{"Items": [...]}')
        link = str(answer.get("NextPageLink") or "")
        query = link.partition("#")[0].partition("?")[2] or None
        yield items
        if next_page(query, seen, "the price list", most=_MOST_PAGES) is None:
            return


def _note(found: _Region, options: AzureOptions, line: int, item: object, *, spot: bool) -> None:
    """Store a usable meter of the listing (spot or not), reject invalid items, and count items of other kinds."""
    if not isinstance(item, Mapping):
        if spot:
            found.rejected.append(rejection(line, str(item)[:1000], because("record.not_item")))
        return
    names = " ".join(str(item.get(name) or "") for name in ("meterName", "skuName")).lower()
    size = str(item.get("armSkuName") or "")
    is_spot = bool(_SPOT.search(names))
    # The spot listing asks for names of meters, so it lacks spot prices that only the name of the SKU shows.
    repeated = is_spot and not spot and "Spot" in str(item.get("meterName") or "")
    if (
        (spot and not is_spot)
        or repeated
        or not any(fnmatchcase(size, glob) for glob in options.instance_types)
    ):
        return
    if item.get("armRegionName") not in (None, found.region):
        found.left_out["of other regions"] += 1
        return
    try:
        if other := _other(item, names):
            found.left_out[other] += 1
            return
        start = time_of(item.get("effectiveStartDate"), "effectiveStartDate")
        end = time_of(item.get("effectiveEndDate"), "effectiveEndDate")
        if when := why_not_in_force(start, end, found.at):
            found.left_out[when] += 1
            return
        meter = _Meter(
            item=item,
            line=line,
            usd=_price(item),
            start=start or datetime.min.replace(tzinfo=UTC),
            primary=item.get("isPrimaryMeterRegion") is not False,
        )
    except NoPrice as error:
        found.rejected.append(rejection(line, str(dict(item))[:1000], error.reason))
        return
    names += f" {item.get('productName') or ''}".lower()
    product = next((system for system, pattern in _SYSTEMS.items() if pattern.search(names)), "Linux/UNIX")
    found.meters[is_spot][size, product].append(meter)


def _other(item: Mapping[str, Any], names: str) -> str:
    """Return the kind of an item that is no first-tier pay-as-you-go price of a virtual machine, else ""."""
    sold = str(item.get("type") or "Consumption").lower()
    if sold != "consumption" or item.get("reservationTerm"):
        return _TYPES.get(sold, f"of type {sold[:20]}") if sold != "consumption" else _TYPES["reservation"]
    if item.get("serviceName") not in (None, "Virtual Machines"):
        return "of other services"
    names += f" {item.get('productName') or ''}".lower()
    for words, pattern in _OTHER.items():
        if pattern.search(names):
            return words
    tier = item.get("tierMinimumUnits")
    if tier is not None and str(tier).strip("0.") != "":
        return "of higher tiers"
    return ""


def _price(item: Mapping[str, Any]) -> Decimal:
    """Return USD per hour; raises `NoPrice`."""
    if item.get("currencyCode") != "USD":
        raise NoPrice("value.unexpected", "currency", repr(str(item.get("currencyCode"))[:20]), "USD")
    if item.get("unitOfMeasure") != "1 Hour":
        raise NoPrice("value.unexpected", "unit", repr(str(item.get("unitOfMeasure"))[:20]), "1 Hour")
    name = "retailPrice" if "retailPrice" in item else "unitPrice"
    return price_of(item.get(name), name)


def _only(meters: Sequence[_Meter], found: _Region) -> Decimal | None:
    """Return the price on which the newest meters agree; meters of equal rank that disagree are rejected."""
    best = [meter for meter in meters if meter.primary] or list(meters)
    newest = max((meter.start for meter in best), default=None)
    best = [meter for meter in best if meter.start == newest]
    prices = sorted({meter.usd for meter in best})
    if len(prices) == 1:
        return prices[0]
    words = because("price.several", len(prices), "size and product", ", ".join(map(str, prices[:3])))
    found.rejected.extend(rejection(meter.line, str(dict(meter.item))[:1000], words) for meter in best)
    return None


def _rows(found: _Region) -> Iterator[tuple[Kind, Row]]:
    on_demand = {place: _only(meters, found) for place, meters in found.meters[False].items()}
    for (size, product), meters in sorted(found.meters[True].items()):
        usd = _only(meters, found)
        listed = on_demand.get((size, product))
        if usd is not None:
            yield (
                "price",
                {
                    "instance_type": size,
                    "product": product,
                    "price_usd": str(usd),
                    "on_demand_usd": None if listed is None else str(listed),
                    "line": min(meter.line for meter in meters if meter.usd == usd),
                },
            )
