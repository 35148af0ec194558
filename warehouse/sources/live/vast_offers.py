"""Vast.ai's offer search: prices and number of interruptible offers per GPU model, machine size and country."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from warehouse.errors import FetchError
from warehouse.sources.contract import Address, Kind, Options, Row, Texts, label_option, pack, rejection
from warehouse.sources.files.vastai import MEDIAN, MINIMUM, MOST_GPUS
from warehouse.sources.live.contract import WHOLE, Example, FetchedPage, FetchRequest, LiveSource, PartFailed
from warehouse.sources.live.transport import Transport

BASE = "https://console.vast.ai"
#: Quartiles beside minimum and median; named so that the median stays the first product by name.
QUARTILES = {0.25: "interruptible, quartile 1 over offers", 0.75: "interruptible, quartile 3 over offers"}
_KEY_FILES = ("~/.config/vastai/vast_api_key", "~/.vast_api_key")
_SEPARATOR = "\t"

Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """One usable offer: USD per hour of the whole offer, all its GPUs."""

    line: int
    place: Place
    usd: float


class VastOptions(Options):
    """Options of the offer search."""

    gpu_models: Texts = Field(
        (), description="GPU models to search for, as Vast.ai names them: RTX 4090, ... (default: all)"
    )
    limit: int = Field(1000, ge=1, le=100_000, description="most offers a search returns (default: 1000)")
    verified: bool = Field(True, description="false: unverified machines too (default: true)")
    url: Address = Field(BASE, description=f"address of the API (default: {BASE})")
    source: str = label_option("vast-offers")


class VastOffers(LiveSource[VastOptions]):
    """A snapshot in two searches, of interruptible (``bid``) and of on-demand offers.

    n GPUs in one offer are the instance type ``MODEL_xn``; the region is the country code at the end of ``geolocation``, and
    ``all`` sums over countries. An interruptible offer's price is ``min_bid``; beside it stands the median ``dph_base`` of
    on-demand offers of the same size and country. A search that returns as many offers as it asked for was cut off: its counts
    are marked ``truncated``. A series seen before that a whole answer does not list has 0 offers.
    """

    name = "vast-offers"
    form = VastOptions
    example = Example(
        options={},
        answer='{"offers": [{"gpu_name": "RTX 4090", "num_gpus": 1, "geolocation": "Sweden, SE", '
        '"min_bid": 0.3, "dph_base": 0.6}]}',
        credentials=("VAST_API_KEY",),
    )

    def assumed(self, options: VastOptions) -> tuple[str, ...]:
        """What an offer's numbers are taken for."""
        return (
            "min_bid and dph_base are USD per hour of the whole offer; offers listed are not a launch test, "
            "and one machine can be listed in several sizes",
        )

    def pages(
        self, options: VastOptions, asked: FetchRequest, transport: Transport
    ) -> Iterator[FetchedPage | PartFailed]:
        """One page with all prices and counts; raises `FetchError` without a key or when a search fails."""
        if asked.is_done(WHOLE):
            return
        headers = {"Authorization": f"Bearer {_key(transport)}"}
        bids = _search(options, transport, headers, kind="bid")
        asks = _search(options, transport, headers, kind="on-demand")
        truncated = len(bids) >= options.limit
        rejected: list[tuple[Kind, Row]] = []
        offers = _usable(bids, "min_bid", rejected)
        standard = _by_place(_usable(asks, "dph_base", rejected))
        places = _by_place(offers)
        known = {_place(text) for text in asked.mark(WHOLE).memory}
        rows = [
            *rejected,
            *_price_rows(places, standard),
            *_count_rows(places, set() if truncated else known - set(places), truncated),
        ]
        constants = {
            "source": options.source,
            "provider": "vast.ai",
            "zone": "all",
            "observed_at": asked.observed_at(transport.server_date),
            "gap_seconds": int(asked.every.total_seconds()),
            "kind": "offers",
            "file": options.source,
        }
        notes = (f"cut off at {options.limit} offers: counts are lower bounds",) if truncated else ()
        yield FetchedPage(
            part=WHOLE,
            batches=tuple(pack(rows, constants)),
            memory=tuple(sorted(_SEPARATOR.join(place) for place in known | set(places))),
            notes=notes,
        )


def _key(transport: Transport) -> str:
    """The API key from ``VAST_API_KEY``, else from the file Vast.ai's own client keeps; raises `FetchError`."""
    key = os.environ.get("VAST_API_KEY", "").strip()
    for name in _KEY_FILES:
        path = Path(name).expanduser()
        if not key and path.is_file():
            key = path.read_text(encoding="utf-8", errors="replace").strip()
    if not key or not key.isprintable() or not key.isascii():
        raise FetchError(
            "no Vast.ai API key found" if not key else "the Vast.ai API key has characters no key has",
            expected=f"one in VAST_API_KEY or in {_KEY_FILES[0]}",
        )
    transport.secrets.add(key)
    return key


def _search(
    options: VastOptions, transport: Transport, headers: Mapping[str, str], *, kind: str
) -> list[object]:
    question: dict[str, Any] = {
        "type": kind,
        "limit": options.limit,
        "rentable": {"eq": True},
        "rented": {"eq": False},
        "order": [["dph_total", "asc"]],
    }
    if options.verified:
        question["verified"] = {"eq": True}
    if options.gpu_models:
        question["gpu_name"] = {"in": list(options.gpu_models)}
    answer = transport.ask_json("POST", f"{options.url}/api/v0/bundles/", headers=headers, body=question)
    offers = answer.get("offers") if isinstance(answer, dict) else None
    if isinstance(offers, dict):  # one offer stands alone in the documented answer
        offers = [offers]
    if not isinstance(offers, list):
        raise FetchError("Vast.ai answered without offers", expected='{"offers": [...]}')
    return offers


def _usable(offers: Sequence[object], price: str, rejected: list[tuple[Kind, Row]]) -> list[_Offer]:
    usable: list[_Offer] = []
    for line, offer in enumerate(offers, start=1):
        found = _offer(line, offer, price)
        if isinstance(found, str):
            rejected.append(rejection(line, str(offer)[:1000], found))
        else:
            usable.append(found)
    return usable


def _offer(line: int, offer: object, price: str) -> _Offer | str:
    """The offer, or why it cannot be used."""
    if not isinstance(offer, Mapping):
        return "not an offer"
    model = str(offer.get("gpu_name") or "").strip().replace(" ", "_")
    if not model or len(model) > 60 or "/" in model or "@" in model:
        return "no usable gpu_name"
    try:
        gpus, usd = int(str(offer.get("num_gpus"))), float(str(offer.get(price)))
    except ValueError:
        return f"num_gpus or {price} is no number"
    if not 1 <= gpus <= MOST_GPUS or not math.isfinite(usd) or usd < 0:
        return f"{gpus} GPUs at {usd:g} USD, expected 1 to {MOST_GPUS} at a price of at least 0"
    country = str(offer.get("geolocation") or "").rpartition(",")[2].strip()
    return _Offer(
        line=line,
        place=(country if len(country) == 2 and country.isalpha() else "unknown", f"{model}_x{gpus}"),
        usd=usd,
    )


def _by_place(offers: Sequence[_Offer]) -> dict[Place, list[_Offer]]:
    """Offers per country and machine size, and over all countries."""
    places: dict[Place, list[_Offer]] = defaultdict(list)
    for offer in offers:
        places[offer.place].append(offer)
        places["all", offer.place[1]].append(offer)
    return dict(sorted(places.items()))


def quantile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics, the median of two being their mean.

    >>> quantile([1.0, 2.0, 4.0, 8.0], 0.5), quantile([3.0], 0.25)
    (3.0, 3.0)
    """
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def _price_rows(
    places: Mapping[Place, Sequence[_Offer]], standard: Mapping[Place, Sequence[_Offer]]
) -> Iterator[tuple[Kind, Row]]:
    for place, offers in places.items():
        prices = [offer.usd for offer in offers]
        listed = [offer.usd for offer in standard.get(place, ()) if offer.usd > 0]
        row = {
            "region": place[0],
            "instance_type": place[1],
            "on_demand_usd": quantile(listed, 0.5) if listed else None,
            "line": max(offer.line for offer in offers),
        }
        yield "price", {**row, "product": MINIMUM, "price_usd": min(prices)}
        yield "price", {**row, "product": MEDIAN, "price_usd": quantile(prices, 0.5)}
        for share, product in QUARTILES.items():
            yield "price", {**row, "product": product, "price_usd": quantile(prices, share)}


def _count_rows(
    places: Mapping[Place, Sequence[_Offer]], absent: set[Place], truncated: bool
) -> Iterator[tuple[Kind, Row]]:
    counts = {place: len(offers) for place, offers in places.items()} | dict.fromkeys(absent, 0)
    for (region, instance_type), count in sorted(counts.items()):
        yield (
            "availability",
            {
                "region": region,
                "instance_type": instance_type,
                "available": count,
                "truncated": truncated,
                "line": 0,
            },
        )


def _place(text: str) -> Place:
    region, _, instance_type = text.partition(_SEPARATOR)
    return region, instance_type
