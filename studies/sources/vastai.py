"""Vast.ai offers scraped once a day into a CSV: price and number of interruptible offers per country, GPU and size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from math import isfinite
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field

from slackwater.warehouse.amounts import parsed_number, parsed_whole
from slackwater.warehouse.columns import because
from slackwater.warehouse.documents import read_data
from slackwater.warehouse.sources.contract import Batch, Kind, Options, Row, label_option, pack, rejection
from slackwater.warehouse.sources.files.reading import FileSource, csv_chunks, head
from slackwater.warehouse.sources.live.vast_offers import MEDIAN, MINIMUM, MOST_GPUS

COLUMNS = (
    "date", "provider", "gpu_model", "gpu_count", "region", "rental_type", "price_min_usd",
    "price_median_usd", "price_max_usd", "n_offers", "source_url", "fetched_at",
)  # fmt: skip
#: Prices of n GPUs are products of rounded prices per GPU; more digits would be noise of the multiplication.
_DIGITS = 6
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfferLine:
    """A usable line; prices are per instance (the file's price per GPU times the number of GPUs)."""

    line: int
    day: str
    model: str
    instance_type: str
    region: str
    minimum: float
    median: float
    offers: int
    fetched_at: datetime

    @property
    def key(self) -> tuple[str, str, str]:
        return self.day, self.region, self.instance_type


def _days(value: object) -> frozenset[str]:
    if isinstance(value, frozenset):
        return value
    try:
        return frozenset(
            date.fromisoformat(text.strip()).isoformat() for text in str(value).split(",") if text.strip()
        )
    except ValueError as error:
        raise ValueError("days as YYYY-MM-DD, separated by commas") from error


class VastAiOptions(Options):
    """Options of scraped offers."""

    truncated_days: Annotated[frozenset[str], BeforeValidator(_days)] = Field(
        frozenset(),
        description="further days (YYYY-MM-DD, separated by commas) on which the scrape was cut off",
    )
    source: str = label_option("vastai")


class VastAi(FileSource[VastAiOptions]):
    """Interruptible offers per country and machine size; a machine with n GPUs has the instance type ``MODEL_xn``.

    Treatment of the lines:

    - an interruptible line of Vast.ai (``rental_type`` spot) yields an availability row and two
      price rows (median, min);
    - an on-demand line of Vast.ai gives ``on_demand_usd`` of the interruptible line of the same
      day, country and size, but no separate row. It is rejected without such a line, if fetched
      before another of its day, or if it contradicts another line of the same fetch;
    - a line fetched from another site is rejected: its prices are per instance and no interruptible
      offer;
    - region ``all`` is derived: the sum of counts and the lowest price over countries (``line``:
      the last line used), unless two lines of the same country, size and fetch contradict each
      other: then that size is unknown on that day;
    - a series (country and size seen anywhere in the file, or ``all``) absent on a whole day is
      derived as 0 offers (``line``: the first interruptible line of that day); on a cut-off day it
      is unknown and yields no row.

    A price is observed when it was fetched, a count at the day's first fetch of its GPU model;
    ``known_at`` is the last fetch used. A day is cut off (``truncated``: its counts are lower
    bounds) when its on-demand offers add up to exactly a page limit of the scrape, or when it is
    listed in ``data/vastai_cut_off_days.toml`` (a file reduced to some GPU models no longer adds up
    to the limit) or in the option.
    """

    name = "vastai"
    zone = ""
    form = VastAiOptions
    expected = f"a CSV with the columns {', '.join(COLUMNS)}"
    examples: Mapping[str, str] = {
        "observations.csv": ",".join(COLUMNS)
        + "\n2026-01-01,vast.ai,L40S,1,US,spot,0.5,0.5,0.5,3,https://console.vast.ai/,2026-01-01T20:30:00+00:00\n"
    }

    def recognised(self, path: Path) -> bool:
        """Recognise the format by the suffix and columns in the first line."""
        first = head(path).split(b"\n", 1)[0]
        return path.suffix == ".csv" and b"rental_type" in first and b"n_offers" in first

    def batches(self, path: Path, options: VastAiOptions) -> Iterator[Batch]:
        """Return the rows of a file."""
        constants = {
            "source": options.source,
            "provider": "vast.ai",
            "zone": "all",
            "gap_seconds": _DAY_SECONDS,
            "kind": "offers",
            "file": str(path),
        }
        known = {day.isoformat() for day in read_data(__package__, "vastai_cut_off_days")["days"]}
        return pack(self._rows(path, options.truncated_days | known), constants)

    def _rows(self, path: Path, named_days: frozenset[str]) -> Iterator[tuple[Kind, Row]]:
        spot: list[_OfferLine] = []
        on_demand: dict[tuple[str, str, str], list[_OfferLine]] = defaultdict(list)
        standard: dict[tuple[str, str, str], _OfferLine | None] = {}
        listed: dict[str, int] = defaultdict(int)
        for first, second in self._lines(path):
            if isinstance(first, str):
                yield first, second
                continue
            offer = _offer(first, second)
            if isinstance(offer, str):
                yield rejection(first, ",".join(second.values()), offer)
            elif second["rental_type"] == "spot":
                spot.append(offer)
            else:
                on_demand[offer.key].append(offer)
        for offers in on_demand.values():
            newest = _newest_of(offers)
            for older in offers:
                if older is not newest:
                    yield rejection(older.line, _text(older), _why_older(older, newest))
            standard[offers[0].key] = newest
            listed[offers[0].day] += newest.offers if newest is not None else 0
        matched = {offer.key for offer in spot}
        for key, listing in standard.items():
            if key not in matched and listing is not None:
                yield rejection(listing.line, _text(listing), because("offer.unmatched"))
        limits = set(read_data(__package__, "vastai_cut_off_days")["page_limits"])
        cut_off = named_days | {day for day, total in listed.items() if total in limits}
        yield from _price_rows(spot, standard)
        yield from _count_rows(spot, cut_off)

    def _lines(self, path: Path) -> Iterator[tuple[int, dict[str, str]] | tuple[Kind, Row]]:
        """Yield (line, fields) of every line, and rejected rows for lines that cannot be parsed."""

        def check(names: Sequence[str]) -> None:
            if missing := [c for c in COLUMNS if c not in names]:
                raise self.wrong(path, 1, f"no column {missing[0]!r}")

        for chunk in csv_chunks(path, check_header=check):
            for line, raw, reason in chunk.rejected:
                yield rejection(line, raw, reason)
            if len(chunk):
                columns = [chunk.columns[c].to_pylist() for c in COLUMNS]
                for line, *fields in zip(chunk.lines.to_pylist(), *columns, strict=True):
                    yield line, dict(zip(COLUMNS, fields, strict=True))


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "an unknown site"
    except ValueError:
        return "an unknown site"


def _offer(line: int, fields: Mapping[str, str]) -> _OfferLine | str:
    """Return the offer of a line, or the reason why it cannot be used."""
    host = _host(fields["source_url"])
    if host != "vast.ai" and not host.endswith(".vast.ai"):
        return because("offer.other_site", host)
    if fields["rental_type"] not in ("spot", "on_demand"):
        return because("value.unexpected", "rental type", repr(fields["rental_type"]), "spot or on_demand")
    try:
        day, fetched_at = date.fromisoformat(fields["date"]), datetime.fromisoformat(fields["fetched_at"])
        gpus, offers = parsed_whole(fields["gpu_count"]), parsed_whole(fields["n_offers"])
        minimum, middle = (parsed_number(fields[name]) for name in ("price_min_usd", "price_median_usd"))
    except ValueError as error:
        return because("value.unparsed", error)
    if fetched_at.tzinfo is None or day.isoformat() != fields["date"]:
        stated = f"date {fields['date']!r} or fetched_at {fields['fetched_at']!r}"
        return because("value.not_time", stated)
    if not 1 <= gpus <= MOST_GPUS or offers < 0:
        return because("offer.sizes", MOST_GPUS, f"{gpus} and {offers}")
    return _OfferLine(
        line=line,
        day=fields["date"],
        model=fields["gpu_model"],
        instance_type=f"{fields['gpu_model']}_x{gpus}",
        region=fields["region"],
        minimum=round(minimum * gpus, _DIGITS),
        median=round(middle * gpus, _DIGITS),
        offers=offers,
        fetched_at=fetched_at,
    )


def _text(offer: _OfferLine) -> str:
    return f"{offer.day},{offer.instance_type},{offer.region},on_demand,{offer.median},{offer.offers}"


def _price_rows(
    spot: Sequence[_OfferLine], on_demand: Mapping[tuple[str, str, str], _OfferLine | None]
) -> Iterator[tuple[Kind, Row]]:
    for offer in spot:
        standard = on_demand.get(offer.key)
        row = {
            "region": offer.region,
            "instance_type": offer.instance_type,
            "observed_at": offer.fetched_at,
            "on_demand_usd": standard.median if standard else None,
            "line": offer.line,
        }
        yield "price", {**row, "product": MEDIAN, "price_usd": offer.median}
        yield "price", {**row, "product": MINIMUM, "price_usd": offer.minimum}
    for (_, instance_type), offers in _worldwide(spot).items():
        if offers is None:
            continue
        yield (
            "price",
            {
                "region": "all",
                "instance_type": instance_type,
                "product": MINIMUM,
                # A country's placeholder price is no worldwide price; if all are placeholders, the
                # store rejects the 0.
                "price_usd": min(
                    (o.minimum for o in offers if isfinite(o.minimum) and o.minimum > 0), default=0.0
                ),
                "observed_at": min(o.fetched_at for o in offers),
                "known_at": max(o.fetched_at for o in offers),
                "line": max(o.line for o in offers),
            },
        )


def _worldwide(spot: Sequence[_OfferLine]) -> dict[tuple[str, str], list[_OfferLine] | None]:
    """Return the newest line of every country by day and size, for sums; the value is None if lines contradict."""
    groups: dict[tuple[str, str, str], list[_OfferLine]] = defaultdict(list)
    for offer in spot:
        groups[offer.key].append(offer)
    found: dict[tuple[str, str], list[_OfferLine] | None] = {}
    for (day, _, instance_type), offers in groups.items():
        newest, world = _newest_of(offers), found.setdefault((day, instance_type), [])
        if newest is None or world is None:
            found[day, instance_type] = None
        else:
            world.append(newest)
    return found


def _newest_of(offers: Sequence[_OfferLine]) -> _OfferLine | None:
    """Return the line fetched last, whatever their order; None if two lines of that fetch differ."""
    last = max(offer.fetched_at for offer in offers)
    newest = [offer for offer in offers if offer.fetched_at == last]
    return newest[0] if len({replace(offer, line=0) for offer in newest}) == 1 else None


def _why_older(offer: _OfferLine, newest: _OfferLine | None) -> str:
    if newest is None:
        return because("offer.contradicts")
    if offer == replace(newest, line=offer.line):
        return because("offer.repeats", newest.line)
    return because("offer.older", newest.line)


def _count_rows(spot: Sequence[_OfferLine], cut_off: frozenset[str]) -> Iterator[tuple[Kind, Row]]:
    days: dict[str, list[_OfferLine]] = defaultdict(list)
    for offer in spot:
        days[offer.day].append(offer)
    series = {(o.region, o.instance_type): o.model for o in spot}
    series |= {("all", o.instance_type): o.model for o in spot}
    for day, offers in days.items():
        opened: dict[str, datetime] = {}
        for offer in offers:
            opened[offer.model] = min(offer.fetched_at, opened.get(offer.model, offer.fetched_at))
        first, last = min(opened.values()), max(o.fetched_at for o in offers)
        seen: set[tuple[str, str]] = set()
        # Contradicting lines prove nothing: neither a sum nor the absence of offers.
        seen |= {("all", size) for (_, size), world in _worldwide(offers).items() if world is None}
        for row in _present(offers):
            key = (str(row["region"]), str(row["instance_type"]))
            seen.add(key)
            yield "availability", {**row, "observed_at": opened[series[key]], "truncated": day in cut_off}
        if day in cut_off:
            continue
        for (region, instance_type), model in series.items():
            if (region, instance_type) not in seen:
                yield (
                    "availability",
                    {
                        "region": region,
                        "instance_type": instance_type,
                        "available": 0,
                        "observed_at": opened.get(model, first),
                        "known_at": last,
                        "truncated": False,
                        "line": offers[0].line,
                    },
                )


def _present(offers: Sequence[_OfferLine]) -> Iterator[Row]:
    """Yield the rows of a day: the count of each line, then the sums over countries."""
    for offer in offers:
        yield {
            "region": offer.region,
            "instance_type": offer.instance_type,
            "available": offer.offers,
            "known_at": offer.fetched_at,
            "line": offer.line,
        }
    for (_, instance_type), group in _worldwide(offers).items():
        if group is None:
            continue
        yield {
            "region": "all",
            "instance_type": instance_type,
            "available": sum(o.offers for o in group),
            "known_at": max(o.fetched_at for o in group),
            "line": max(o.line for o in group),
        }
