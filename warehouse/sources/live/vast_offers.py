"""Vast.ai's offer search: prices and number of interruptible offers per GPU model, machine size and country."""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from slackwater.warehouse.amounts import parsed_number, parsed_whole
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
    WHOLE,
    Example,
    FetchedPage,
    FetchRequest,
    LiveSource,
    NoPrice,
    PartFailed,
    left_out,
    price_of,
    unknown_names,
    why_not_in_force,
)
from slackwater.warehouse.sources.live.transport import Transport

BASE = "https://console.vast.ai"
MEDIAN = "interruptible, median over offers"
MINIMUM = "interruptible, min over offers"
MOST_GPUS = 1024  # Upper limit on the GPUs of an offered machine
#: Quartiles, in addition to minimum and median; the names sort after that of the median, which stays
#: the first product.
QUARTILES = {0.25: "interruptible, quartile 1 over offers", 0.75: "interruptible, quartile 3 over offers"}
_KEY_FILES = ("~/.config/vastai/vast_api_key", "~/.vast_api_key")
_SEPARATOR = "\t"
#: GPU memory sizes on the market, in GB. A card reports less by up to the share `_LESS`, which
#: driver and error correction use.
_MEMORY_GB = (
    2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96, 128, 141, 180, 192, 256, 288,
)  # fmt: skip
_LESS = 0.08
_MIB_PER_GIB = 1024
#: No card has less memory, in MiB; none has as many GB.
_LEAST_MIB = 1000
_MOST_GB = 4096

_SAME_COUNTRY = {"UK": "GB"}  # Another code -> that of ISO 3166

Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """A usable offer: USD per hour of the whole offer, with all its GPUs."""

    place: Place
    usd: float


@dataclass(slots=True)
class _Answer:
    """Usable offers of a search, the rejected rows, and the number of offers left out."""

    offers: list[_Offer] = field(default_factory=list)
    rejected: list[tuple[Kind, Row]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


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
    """A snapshot by two searches: interruptible (``bid``) and on-demand offers.

    An offer of n GPUs with m GB each has the instance type ``MODEL_mGB_xn``; the region is the country code
    at the end of ``geolocation``, and ``all`` sums over countries. The price of an interruptible offer is
    ``min_bid``; its on-demand price is the median ``dph_base`` of on-demand offers of the same size and
    country. Offers that are rented, not rentable, not verified or expired are left out. A search that returns
    as many offers as its limit was cut off: its counts are marked ``truncated``. A series seen before that a
    complete answer does not list has 0 offers.
    """

    name = "vast-offers"
    form = VastOptions
    example = Example(
        options={},
        answer='{"offers": [{"gpu_name": "RTX 4090", "num_gpus": 1, "gpu_ram": 24564, "geolocation": "Sweden, SE", '
        '"min_bid": 0.3, "dph_base": 0.6}]}',
        credentials=("VAST_API_KEY",),
    )

    def assumed(self, options: VastOptions) -> tuple[str, ...]:
        """Return a note on the meaning of an offer's numbers."""
        return (
            "min_bid and dph_base are USD per hour of the whole offer; offers listed are not a launch test, "
            "and one machine can be listed in several sizes",
        )

    def pages(
        self, options: VastOptions, request: FetchRequest, transport: Transport
    ) -> Iterator[FetchedPage | PartFailed]:
        """Yield a page with all prices and counts; raises `FetchError` without a key or when a search fails."""
        if request.is_done(WHOLE):
            return
        headers = {"Authorization": f"Bearer {_key(transport)}"}
        bids = _search(options, transport, headers, kind="bid")
        asks = _search(options, transport, headers, kind="on-demand")
        truncated = len(bids) >= options.limit
        at = request.observed_at(transport.server_date)
        bid = _usable(bids, "min_bid", options, at)
        standard = _usable(asks, "dph_base", options, at)
        # For types without memory in their name the card is ambiguous, so their absence does not
        # mean 0 offers.
        known = {_place(text) for text in request.mark(WHOLE).memory if "GB_x" in text}
        spelled = _spellings([*bid.offers, *standard.offers], known)
        places = _by_place(bid.offers, spelled)
        rows = [
            *bid.rejected,
            *standard.rejected,
            *_price_rows(places, _by_place(standard.offers, spelled)),
            *_count_rows(places, set() if truncated else known - set(places), truncated),
        ]
        constants = {
            "source": options.source,
            "provider": "vast.ai",
            "zone": "all",
            "observed_at": at,
            "gap_seconds": int(request.every.total_seconds()),
            "kind": "offers",
            "file": options.source,
            "line": 0,
        }
        cut_off = (f"cut off at {options.limit} offers: counts are lower bounds",) if truncated else ()
        absent = unknown_names("GPU models without an offer", _absent_models(options, bids))
        notes = (*cut_off, *left_out(bid.left_out), *absent)
        yield FetchedPage(
            part=WHOLE,
            batches=tuple(pack(rows, constants)),
            memory=tuple(sorted(_SEPARATOR.join(place) for place in known | set(places))),
            notes=notes,
        )


def _key(transport: Transport) -> str:
    """Return the API key from ``VAST_API_KEY``, else from the file of Vast.ai's client; raises `FetchError`."""
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
    if isinstance(offers, dict):  # the documented answer has a single offer without a list
        offers = [offers]
    if not isinstance(offers, list):
        raise FetchError("Vast.ai answered without offers", expected='{"offers": [...]}')
    return offers


def _absent_models(options: VastOptions, offers: Sequence[object]) -> set[str]:
    """Return the requested GPU models that no offer names."""
    names = {str(offer.get("gpu_name")) for offer in offers if isinstance(offer, Mapping)}
    return set(options.gpu_models) - names


def _usable(offers: Sequence[object], price: str, options: VastOptions, at: datetime) -> _Answer:
    found = _Answer()
    stated: dict[str, list[tuple[int, object, _Offer]]] = defaultdict(list)
    for line, offer in enumerate(offers, start=1):
        if not isinstance(offer, Mapping):
            found.rejected.append(rejection(line, str(offer)[:1000], because("record.not_offer")))
            continue
        try:
            if other := _other(offer, options, at):
                found.left_out[other] += 1
                continue
            usable = _offer(offer, price)
        except NoPrice as error:
            found.rejected.append(rejection(line, str(offer)[:1000], error.reason))
            continue
        name = offer.get("ask_contract_id", offer.get("id"))
        stated[f"line {line}" if name is None else f"id {name}"].append((line, offer, usable))
    for same in stated.values():
        if len({usable for _, _, usable in same}) == 1:
            found.offers.append(same[0][2])
        else:
            found.rejected += [
                rejection(line, str(offer)[:1000], because("offer.differs", len(same)))
                for line, offer, _ in same
            ]
    return found


def _other(offer: Mapping[str, Any], options: VastOptions, at: datetime) -> str:
    """Return why an offer cannot be rented now, "" if it can; raises `NoPrice` for an invalid time."""
    if offer.get("rented") is True:
        return "rented"
    if offer.get("rentable") is False:
        return "not rentable"
    if options.verified and (
        offer.get("verification") not in (None, "verified") or offer.get("verified") is False
    ):
        return "not verified"
    return why_not_in_force(_epoch(offer, "start_date"), _epoch(offer, "end_date"), at)


def _epoch(offer: Mapping[str, Any], name: str) -> datetime | None:
    """Return a time that Vast.ai states in seconds since the epoch; raises `NoPrice` for an invalid time."""
    found = offer.get(name)
    if found is None or found == "":
        return None
    try:
        return datetime.fromtimestamp(parsed_number(str(found)), UTC)
    except (ValueError, OverflowError, OSError):
        raise NoPrice("value.not_seconds", f"{name} {str(found)[:40]!r}") from None


def _offer(offer: Mapping[str, Any], price: str) -> _Offer:
    """Parse an offer; raises `NoPrice` if it cannot be used."""
    model = str(offer.get("gpu_name") or "").strip().replace(" ", "_")
    if not model or len(model) > 60 or "/" in model or "@" in model:
        raise NoPrice("price.lacks", "usable gpu_name")
    gpus = _whole(offer.get("num_gpus"))
    if gpus is None or not 1 <= gpus <= MOST_GPUS:
        raise NoPrice(
            "value.unexpected", "num_gpus", repr(str(offer.get("num_gpus"))[:40]), f"1 to {MOST_GPUS}"
        )
    memory = _memory(offer.get("gpu_ram"))
    country = str(offer.get("geolocation") or "").rpartition(",")[2].strip()
    code = country.upper() if len(country) == 2 and country.isalpha() else "unknown"
    return _Offer(
        place=(_SAME_COUNTRY.get(code, code), f"{model}{memory}_x{gpus}"),
        usd=float(price_of(offer.get(price), price)),
    )


def _whole(found: object) -> int | None:
    try:
        return parsed_whole(str(found))
    except ValueError:
        return None


def _memory(found: object) -> str:
    """Return ``_80GB`` for the MiB that a card of 80 GB reports, "" if the offer states none.

    Values below `_LEAST_MIB` are in GB, as Vast.ai's client prints them.

    >>> _memory("81559"), _memory(46068), _memory(80.0), _memory(None)
    ('_80GB', '_48GB', '_80GB', '')
    """
    if found is None:
        return ""
    try:
        stated = parsed_number(str(found))
    except ValueError:
        stated = math.nan
    size = stated / _MIB_PER_GIB if stated >= _LEAST_MIB else stated
    if not 0 < size <= _MOST_GB:
        raise NoPrice("value.not_megabytes", f"gpu_ram {str(found)[:40]!r}")
    sold = next((gb for gb in _MEMORY_GB if gb * (1 - _LESS) <= size <= gb + 0.5), round(size))
    return f"_{sold}GB"


def _spellings(offers: Sequence[_Offer], known: Iterable[Place]) -> dict[str, str]:
    """Return machine sizes in lower case -> the spelling known from earlier answers, else the most frequent of this answer."""
    counts = Counter(offer.place[1] for offer in offers)
    found = {size.lower(): size for size in sorted(counts, key=lambda size: (counts[size], size))}
    return found | {size.lower(): size for _, size in sorted(known)}


def _by_place(offers: Sequence[_Offer], spelled: Mapping[str, str]) -> dict[Place, list[_Offer]]:
    """Return offers per country and machine size, and over all countries."""
    places: dict[Place, list[_Offer]] = defaultdict(list)
    for offer in offers:
        country, size = offer.place[0], spelled[offer.place[1].lower()]
        places[country, size].append(offer)
        places["all", size].append(offer)
    return dict(sorted(places.items()))


def _price_rows(
    places: Mapping[Place, Sequence[_Offer]], standard: Mapping[Place, Sequence[_Offer]]
) -> Iterator[tuple[Kind, Row]]:
    for place, offers in places.items():
        prices = [offer.usd for offer in offers]
        listed = [offer.usd for offer in standard.get(place, ())]
        row = {
            "region": place[0],
            "instance_type": place[1],
            "on_demand_usd": float(np.quantile(listed, 0.5)) if listed else None,
        }
        yield "price", {**row, "product": MINIMUM, "price_usd": min(prices)}
        yield "price", {**row, "product": MEDIAN, "price_usd": float(np.quantile(prices, 0.5))}
        for share, product in QUARTILES.items():
            yield "price", {**row, "product": product, "price_usd": float(np.quantile(prices, share))}


def _count_rows(
    places: Mapping[Place, Sequence[_Offer]], absent: set[Place], truncated: bool
) -> Iterator[tuple[Kind, Row]]:
    counts = {place: len(offers) for place, offers in places.items()} | dict.fromkeys(absent, 0)
    for (region, instance_type), count in sorted(counts.items()):
        yield (
            "availability",
            {"region": region, "instance_type": instance_type, "available": count, "truncated": truncated},
        )


def _place(text: str) -> Place:
    region, _, instance_type = text.partition(_SEPARATOR)
    return region, instance_type
