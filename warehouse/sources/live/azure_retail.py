"""Azure spot prices from the Retail Prices API, with the on-demand price of the same size, product and region."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qsl

from pydantic import Field, field_validator

from warehouse.errors import FetchError
from warehouse.sources.contract import (
    Address,
    Batch,
    Kind,
    Options,
    Row,
    Texts,
    label_option,
    pack,
    rejection,
)
from warehouse.sources.live.contract import (
    Example,
    FetchedPage,
    FetchRequest,
    LiveSource,
    PartFailed,
    next_page,
)
from warehouse.sources.live.transport import Transport

BASE = "https://prices.azure.com/api/retail/prices"
VERSION = "2023-01-01-preview"
#: Endings of meter names that are no on-demand price.
_CHEAPER = ("spot", "low priority")
_REGION = re.compile(r"^[a-z0-9]+$")
_MOST_PAGES = 500

OnDemand = dict[tuple[str, str], str]


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
        # The name goes into a filter expression: nothing that could end it is let through.
        if not regions or not all(_REGION.match(region) for region in regions):
            raise ValueError("a list of region names such as eastus")
        return tuple(dict.fromkeys(regions))


class AzureRetail(LiveSource[AzureOptions]):
    """A snapshot of list prices; parts are regions (``armRegionName``), which Azure does not divide into zones here.

    Spot meters (``Spot`` in the meter or SKU name) are price rows; the on-demand price beside them is that of the meter of the
    same size and product without Spot. Meters of another price type, Low Priority meters and on-demand meters without a spot
    one are no observation of a spot market and leave no row.
    """

    name = "azure-retail"
    form = AzureOptions
    example = Example(
        options={"regions": ["eastus"]},
        answer="""{"Items": [{"armRegionName": "eastus", "armSkuName": "Standard_NC6s_v3", "meterName": "NC6s v3 Spot",
 "productName": "Virtual Machines NCSv3 Series", "skuName": "NC6s v3 Spot", "type": "Consumption", "retailPrice": 0.9,
 "currencyCode": "USD", "unitOfMeasure": "1 Hour"}], "NextPageLink": null}""",
    )

    def assumed(self, options: AzureOptions) -> tuple[str, ...]:
        """That a list price holds from when it was read."""
        return ("Azure list price, observed when it was read; no capacity is published",)

    def pages(
        self, options: AzureOptions, asked: FetchRequest, transport: Transport
    ) -> Iterator[FetchedPage | PartFailed]:
        """The spot pages of each region; a region that fails is said so and left where it stands."""
        for region in options.regions:
            if asked.is_done(region):
                continue
            try:
                yield from _spot_pages(options, region, asked, transport)
            except FetchError as error:
                yield PartFailed(part=region, reason=str(error))


def _filter(region: str, *, spot: bool) -> str:
    words = (
        f"serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and armRegionName eq '{region}'"
    )
    return f"{words} and contains(meterName, 'Spot')" if spot else words


def _spot_pages(
    options: AzureOptions, region: str, asked: FetchRequest, transport: Transport
) -> Iterator[FetchedPage]:
    on_demand: OnDemand = {}
    for items, _ in _listing(options, region, transport, spot=False, token=None):
        for item in items:
            _note_on_demand(item, on_demand)
    for items, token in _listing(options, region, transport, spot=True, token=asked.token(region)):
        batches = _batches(items, options, region, asked=asked, on_demand=on_demand, transport=transport)
        yield FetchedPage(part=region, batches=tuple(batches), token=token)


def _listing(
    options: AzureOptions, region: str, transport: Transport, *, spot: bool, token: str | None
) -> Iterator[tuple[Sequence[object], str | None]]:
    """(items, query of the next page) of a listing; ``token`` is the query to go on with.

    Of ``NextPageLink`` only the query is used, with our own address before it: so a proxy stays in the way, and no server
    can send us elsewhere.
    """
    query = token
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
        yield items, query
        if next_page(query, seen, "the price list", most=_MOST_PAGES) is None:
            return


def _is_spot(item: Mapping[str, Any]) -> bool:
    return any("spot" in str(item.get(name, "")).lower() for name in ("meterName", "skuName"))


def _note_on_demand(item: object, on_demand: OnDemand) -> None:
    if not isinstance(item, Mapping) or item.get("type") not in (None, "Consumption"):
        return
    names = f"{item.get('meterName', '')} {item.get('skuName', '')}".lower()
    if any(word in names for word in _CHEAPER):
        return
    on_demand.setdefault((str(item.get("armSkuName")), str(item.get("productName"))), _price(item))


def _price(item: Mapping[str, Any]) -> str:
    found = item.get("retailPrice", item.get("unitPrice"))
    return "" if found is None else str(found)


def _batches(
    items: Sequence[object],
    options: AzureOptions,
    region: str,
    *,
    asked: FetchRequest,
    on_demand: OnDemand,
    transport: Transport,
) -> Iterator[Batch]:
    constants = {
        "source": options.source,
        "provider": "azure",
        "zone": "all",
        "observed_at": asked.observed_at(transport.server_date),
        "file": f"{options.source}:{region}",
    }
    return pack(_rows(items, options, on_demand), constants)


def _rows(items: Sequence[object], options: AzureOptions, on_demand: OnDemand) -> Iterator[tuple[Kind, Row]]:
    for line, item in enumerate(items, start=1):
        if not isinstance(item, Mapping):
            yield rejection(line, str(item)[:1000], "not an item of the price list")
            continue
        size = str(item.get("armSkuName") or "")
        if not _is_spot(item) or not any(fnmatchcase(size, glob) for glob in options.instance_types):
            continue
        if reason := _unusable(item):
            yield rejection(line, str(dict(item))[:1000], reason)
            continue
        product = str(item.get("productName") or "")
        yield (
            "price",
            {
                "region": item.get("armRegionName"),
                "instance_type": size,
                "product": "Windows" if "windows" in product.lower() else "Linux/UNIX",
                "price_usd": _price(item),
                "on_demand_usd": on_demand.get((size, product)) or None,
                "line": line,
            },
        )


def _unusable(item: Mapping[str, Any]) -> str | None:
    if item.get("currencyCode") != "USD":
        return f"currency {str(item.get('currencyCode'))[:20]!r}, expected USD"
    if item.get("unitOfMeasure") != "1 Hour":
        return f"unit {str(item.get('unitOfMeasure'))[:20]!r}, expected 1 Hour"
    return None
