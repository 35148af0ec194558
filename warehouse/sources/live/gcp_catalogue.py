"""Google Cloud's price catalogue: spot and on-demand prices of GPU machine types, summed from the SKUs of their parts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field

from warehouse.errors import FetchError
from warehouse.packaged import read_data
from warehouse.sources.contract import Address, Kind, Options, Row, Texts, label_option, pack, rejection
from warehouse.sources.live.contract import (
    WHOLE,
    Example,
    FetchedPage,
    FetchRequest,
    LiveSource,
    PartFailed,
    next_page,
)
from warehouse.sources.live.transport import Transport

BASE = "https://cloudbilling.googleapis.com"
#: Compute Engine in the catalogue.
SERVICE = "6F81-5844-456A"
#: Environment variables that may hold the API key, the first that is set.
KEY_VARIABLES = ("GCP_API_KEY", "GOOGLE_API_KEY")
_USAGES = {"Preemptible": "spot", "OnDemand": "on-demand"}
_UNITS = {"gpu": ("h",), "core": ("h",), "ram": ("GiBy.h", "GBy.h")}
_MOST_PAGES = 100
_NANO = Decimal("1e-9")

#: (spot or on-demand, series, part, region) -> USD per hour of one GPU, core or GiB.
Parts = dict[tuple[str, str, str, str], Decimal]


def _example() -> str:
    """A catalogue of the three parts of a machine with an L4 GPU."""
    prices = {
        "Nvidia L4 GPU attached to Spot Preemptible VMs": "h",
        "Spot Preemptible G2 Instance Core": "h",
        "Spot Preemptible G2 Instance Ram": "GiBy.h",
    }
    skus = [
        {
            "description": f"{part} running in Iowa",
            "category": {"usageType": "Preemptible"},
            "serviceRegions": ["us-central1"],
            "pricingInfo": [
                {
                    "pricingExpression": {
                        "usageUnit": unit,
                        "tieredRates": [
                            {"unitPrice": {"currencyCode": "USD", "units": "0", "nanos": 10_000_000}}
                        ],
                    }
                }
            ],
        }
        for part, unit in prices.items()
    ]
    return json.dumps({"skus": skus, "nextPageToken": ""})


class GcpOptions(Options):
    """Options of the catalogue."""

    instance_types: Texts = Field(
        ("*",), description="machine types to keep, patterns (default: all known GPU machine types)"
    )
    regions: Texts = Field(("*",), description="regions to keep, patterns (default: all)")
    page: int = Field(5000, ge=1, le=5000, description="SKUs a page, at most 5000 (default: 5000)")
    url: Address = Field(BASE, description=f"address of the API (default: {BASE})")
    source: str = label_option("gcp-catalogue")


class GcpCatalogue(LiveSource[GcpOptions]):
    """A snapshot of list prices per region; all pages of the catalogue are read before anything is kept, as the parts of a
    machine type are spread over them.

    A machine type of ``data/gcp_machine_types.toml`` costs its GPUs, cores and memory; a region that lacks one of the
    three has no row. SKUs of other machines are no observation here. A SKU of ours that cannot be used is a rejected row.
    """

    name = "gcp-catalogue"
    form = GcpOptions
    example = Example(options={}, answer=_example(), credentials=KEY_VARIABLES)

    def assumed(self, options: GcpOptions) -> tuple[str, ...]:
        """How the price of a machine is put together."""
        return (
            "Google Cloud list price: GPUs, cores and memory of the machine type, without local SSD; no capacity is published",
        )

    def pages(
        self, options: GcpOptions, asked: FetchRequest, transport: Transport
    ) -> Iterator[FetchedPage | PartFailed]:
        """One page with all prices; raises `FetchError` without a key or when a page fails."""
        if asked.is_done(WHOLE):
            return
        parts: Parts = {}
        rejected: list[tuple[Kind, Row]] = []
        for skus in _pages(options, transport):
            for line, sku in enumerate(skus, start=1):
                reason = _note(sku, parts)
                if reason is not None:
                    rejected.append(rejection(line, str(sku)[:1000], reason))
        constants = {
            "source": options.source,
            "provider": "gcp",
            "zone": "all",
            "product": "Linux/UNIX",
            "observed_at": asked.observed_at(transport.server_date),
            "file": options.source,
            "line": 0,
        }
        rows = [*rejected, *_rows(parts, options)]
        notes = () if len(rows) > len(rejected) else ("no machine type has a complete spot price",)
        yield FetchedPage(part=WHOLE, batches=tuple(pack(rows, constants)), notes=notes)


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


def _note(sku: object, parts: Parts) -> str | None:
    """Keep the price of a SKU if it is a part of a known machine type; why it cannot be used, if it is one."""
    if not isinstance(sku, Mapping):
        return "not a SKU"
    category = sku.get("category")
    description = str(sku.get("description") or "")
    usage = _USAGES.get(str(category.get("usageType"))) if isinstance(category, Mapping) else None
    found = _parts_of(description) if usage else []
    if usage is None or not found:
        return None
    price = _price(sku, found[0][1])
    if isinstance(price, str):
        return f"{description[:80]}: {price}"
    regions = sku.get("serviceRegions")
    if not isinstance(regions, list) or not regions:
        return f"{description[:80]}: no serviceRegions"
    for series, part in found:
        for region in regions:
            parts.setdefault((usage, series, part, str(region)), price)
    return None


def _parts_of(description: str) -> list[tuple[str, str]]:
    """(series, part) that a SKU description names: "... A2 Instance Core running in Iowa" is the core of both A2 series."""
    words = description.lower().removeprefix("spot preemptible ")
    return [
        (series["name"], part)
        for series in read_data(__package__, "gcp_machine_types")["series"]
        for part in _UNITS
        if words.startswith((f"{series[part].lower()} running", f"{series[part].lower()} attached"))
    ]


def _price(sku: Mapping[str, Any], part: str) -> Decimal | str:
    """USD per unit and hour of the newest pricing's last tier; in words what is wrong with it."""
    pricing = sku.get("pricingInfo")
    newest = pricing[-1] if isinstance(pricing, list) and pricing else None
    expression = newest.get("pricingExpression") if isinstance(newest, Mapping) else None
    tiers = expression.get("tieredRates") if isinstance(expression, Mapping) else None
    if not isinstance(expression, Mapping) or not isinstance(tiers, list) or not tiers:
        return "no tieredRates"
    if expression.get("usageUnit") not in _UNITS[part]:
        return f"unit {str(expression.get('usageUnit'))[:20]!r}, expected {' or '.join(_UNITS[part])}"
    rate = tiers[-1].get("unitPrice") if isinstance(tiers[-1], Mapping) else None
    if not isinstance(rate, Mapping):
        return "no unitPrice"
    if rate.get("currencyCode", "USD") != "USD":
        return f"currency {str(rate.get('currencyCode'))[:20]!r}, expected USD"
    return _money(str(rate.get("units", "0")), str(rate.get("nanos", "0")))


def _money(units: str, nanos: str) -> Decimal | str:
    if len(units) > 12 or len(nanos) > 12:
        return "units or nanos are absurd"
    try:
        usd = Decimal(units) + Decimal(nanos) * _NANO
    except InvalidOperation:
        return "units or nanos are no numbers"
    return usd if usd.is_finite() and usd > 0 else f"price {usd} is not positive"


def _rows(parts: Parts, options: GcpOptions) -> Iterator[tuple[Kind, Row]]:
    for series in read_data(__package__, "gcp_machine_types")["series"]:
        regions = sorted({key[3] for key in parts if key[:2] == ("spot", series["name"])})
        for region in regions:
            if not any(fnmatchcase(region, glob) for glob in options.regions):
                continue
            for name, (gpus, cores, gib) in series["types"].items():
                if not any(fnmatchcase(name, glob) for glob in options.instance_types):
                    continue
                amounts = {"gpu": gpus, "core": cores, "ram": gib}
                spot = _sum(parts, "spot", series["name"], region, amounts)
                if spot is None:
                    continue
                listed = _sum(parts, "on-demand", series["name"], region, amounts)
                row = {"region": region, "instance_type": name, "price_usd": str(spot)}
                yield "price", {**row, "on_demand_usd": None if listed is None else str(listed)}


def _sum(parts: Parts, usage: str, series: str, region: str, amounts: Mapping[str, int]) -> Decimal | None:
    """Price of a machine, None if the price of a part is not known."""
    prices = {part: parts.get((usage, series, part, region)) for part in amounts}
    known = {part: price for part, price in prices.items() if price is not None}
    if len(known) < len(amounts):
        return None
    return sum((amounts[part] * price for part, price in known.items()), Decimal(0))
