"""Azure spot prices from the Retail Prices API, with the on-demand price of the same size, product and region."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from warehouse.errors import FetchError
from warehouse.sources.contract import Batch, Kind
from warehouse.sources.files.reading import Row, pack, rejection
from warehouse.sources.live.contract import Asked, Page, PartFailed
from warehouse.sources.live.options import Given
from warehouse.sources.live.transport import Transport

BASE = "https://prices.azure.com/api/retail/prices"
VERSION = "2023-01-01-preview"
#: Endings of meter names that are no on-demand price.
_CHEAPER = ("spot", "low priority")
_REGION = re.compile(r"^[a-z0-9]+$")
_MOST_PAGES = 500

OnDemand = dict[tuple[str, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    base: str
    version: str
    regions: tuple[str, ...]
    sizes: tuple[str, ...]
    label: str


class AzureRetail:
    """A snapshot of list prices; parts are regions (``armRegionName``), which Azure does not divide into zones here.

    Spot meters (``Spot`` in the meter or SKU name) are price rows; the on-demand price beside them is that of the meter of the
    same size and product without Spot. Meters of another price type, Low Priority meters and on-demand meters without a spot
    one are no observation of a spot market and leave no row.
    """

    name = "azure-retail"
    options: Mapping[str, str] = {
        "regions": "regions to read, as armRegionName: eastus, westeurope, ... (must be given)",
        "instance_types": "sizes to keep, patterns on armSkuName (default: Standard_N*, the GPU families)",
        "url": f"address of the API (default: {BASE})",
        "api_version": f"its version (default: {VERSION})",
        "source": "label of all rows (default: azure-retail)",
    }

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise `SettingsError` if the options cannot be used."""
        self._wanted(options)

    def assumptions(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """That a list price holds from when it was read."""
        return ("Azure list price, observed when it was read; no capacity is published",)

    def fetch(self, asked: Asked, transport: Transport) -> Iterator[Page | PartFailed]:
        """Yield the spot pages of each region; a region that fails is said so and left where it stands."""
        wanted = self._wanted(asked.options)
        for region in wanted.regions:
            if asked.is_done(region):
                continue
            try:
                yield from _spot_pages(wanted, region, asked, transport)
            except FetchError as error:
                yield PartFailed(part=region, reason=str(error))

    def _wanted(self, options: Mapping[str, Any]) -> _Wanted:
        given = Given(self.name, options, self.options)
        regions = tuple(dict.fromkeys(given.texts("regions")))
        # The name goes into a filter expression: nothing that could end it is let through.
        if not regions or not all(_REGION.match(region) for region in regions):
            raise given.wrong("regions", "a list of region names such as eastus")
        return _Wanted(
            base=given.url("url", BASE),
            version=given.text("api_version", VERSION),
            regions=regions,
            sizes=given.texts("instance_types", ("Standard_N*",)),
            label=given.text("source", self.name),
        )


def _filter(region: str, *, spot: bool) -> str:
    words = (
        f"serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and armRegionName eq '{region}'"
    )
    return f"{words} and contains(meterName, 'Spot')" if spot else words


def _spot_pages(wanted: _Wanted, region: str, asked: Asked, transport: Transport) -> Iterator[Page]:
    on_demand: OnDemand = {}
    for items, _ in _listing(wanted, region, transport, spot=False, token=None):
        for item in items:
            _note_on_demand(item, on_demand)
    for items, token in _listing(wanted, region, transport, spot=True, token=asked.token(region)):
        batches = _batches(items, wanted, region, asked=asked, on_demand=on_demand, transport=transport)
        yield Page(part=region, batches=tuple(batches), token=token)


def _listing(
    wanted: _Wanted, region: str, transport: Transport, *, spot: bool, token: str | None
) -> Iterator[tuple[Sequence[object], str | None]]:
    """(items, query of the next page) of a listing; ``token`` is the query to go on with.

    Of ``NextPageLink`` only the query is used, with our own address before it: so a proxy stays in the way, and no server
    can send us elsewhere.
    """
    query = token
    seen = {query}
    while True:
        params = dict(parse_qsl(query)) if query else {}
        params = params or {"api-version": wanted.version, "$filter": _filter(region, spot=spot)}
        answer = transport.ask_json("GET", wanted.base, params=params)
        items = answer.get("Items") if isinstance(answer, dict) else None
        if not isinstance(items, list):
            raise FetchError("the price list answered without Items", expected='{"Items": [...]}')
        link = answer.get("NextPageLink") or ""
        query = urlsplit(str(link)).query or None
        yield items, query
        if query is None:
            return
        if query in seen or len(seen) >= _MOST_PAGES:
            raise FetchError("the price list gave the same next page twice, or pages without end")
        seen.add(query)


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
    wanted: _Wanted,
    region: str,
    *,
    asked: Asked,
    on_demand: OnDemand,
    transport: Transport,
) -> Iterator[Batch]:
    constants = {
        "source": wanted.label,
        "provider": "azure",
        "zone": "all",
        "observed_at": asked.observed_at(transport.server_date),
        "file": f"{wanted.label}:{region}",
    }
    return pack(_rows(items, wanted, on_demand), constants)


def _rows(items: Sequence[object], wanted: _Wanted, on_demand: OnDemand) -> Iterator[tuple[Kind, Row]]:
    for line, item in enumerate(items, start=1):
        if not isinstance(item, Mapping):
            yield rejection(line, str(item)[:1000], "not an item of the price list")
            continue
        size = str(item.get("armSkuName") or "")
        if not _is_spot(item) or not any(fnmatchcase(size, glob) for glob in wanted.sizes):
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
