"""AWS spot prices from ``DescribeSpotPriceHistory``, region by region, from where the last reading ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from warehouse.errors import FetchError, SettingsError
from warehouse.live import Asked, Page, PartFailed
from warehouse.source import Batch, Kind
from warehouse.sources.batches import Row, pack, rejection
from warehouse.sources.live.aws_client import AWS_OPTIONS, Aws, AwsAccess, regions_of
from warehouse.sources.live.given import Given
from warehouse.sources.live.transport import Transport

#: AWS keeps no more than this.
MOST_DAYS = 90
#: AWS lists the change before the range too, so a short overlap suffices for rows that come late.
OVERLAP = timedelta(hours=1)
_BAD_TOKEN = ("InvalidNextToken", "InvalidPaginationToken", "InvalidParameterValue", "InvalidToken")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    access: AwsAccess
    regions: tuple[str, ...]
    instance_types: tuple[str, ...]
    products: tuple[str, ...]
    days: int
    page: int
    label: str


class AwsSpot:
    """A history: every record is one price row; parts are regions.

    A region that refuses (not enabled, access denied) fails alone. Rows carry the zone letter of the asking account. AWS lists
    the price in force at the start of the range with the time it was set, so ranges join without a gap.
    """

    name = "aws-spot"
    options: Mapping[str, str] = {
        "regions": "regions to read (default: all that are enabled for the account)",
        "instance_types": "instance types to read (default: all)",
        "products": "product descriptions to read (default: Linux/UNIX)",
        "days": f"days of history read at first, at most {MOST_DAYS} (default: 14)",
        "page": "most records a page (default: 1000)",
        **AWS_OPTIONS,
    }

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise `SettingsError` if the options cannot be used."""
        self._wanted(options)

    def assumptions(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """None: every record says what it is."""
        return ()

    def fetch(self, asked: Asked, transport: Transport) -> Iterator[Page | PartFailed]:
        """Yield the pages of each region; a region that fails is said so and left where it stands."""
        wanted = self._wanted(asked.options)
        aws = Aws(wanted.access, transport)
        for region in regions_of(aws, wanted.access, wanted.regions):
            if asked.is_done(region):
                continue
            try:
                for since, end, token in _ranges(asked, region, wanted.days):
                    yield from _pages(aws, wanted, region, since=since, end=end, token=token)
            except FetchError as error:
                yield PartFailed(part=region, reason=str(error))

    def _wanted(self, options: Mapping[str, Any]) -> _Wanted:
        given = Given(self.name, options, self.options)
        return _Wanted(
            access=AwsAccess.of(given),
            regions=given.texts("regions"),
            instance_types=given.texts("instance_types"),
            products=given.texts("products", ("Linux/UNIX",)),
            days=given.whole("days", 14, low=1, high=MOST_DAYS),
            page=given.whole("page", 1000, low=5, high=1000),
            label=given.text("source", self.name),
        )


def _ranges(asked: Asked, region: str, days: int) -> Iterator[tuple[datetime, datetime, str | None]]:
    """What is left to read of a region, oldest first: a range that was cut, then from the mark to the logical time."""
    mark = asked.mark(region)
    if asked.since is not None:
        end = min(asked.until or asked.at, asked.at)
        if asked.since >= end:
            raise SettingsError(f"range {asked.since} to {end}", expected="a start before the end")
        yield asked.since, end, None
        return
    until = mark.until
    cut = mark.listing
    if cut is not None and cut.since is not None and cut.end is not None:
        yield cut.since, cut.end, cut.token
        until = max(until or cut.end, cut.end)
    if until is None or until < asked.at:
        start = asked.at - timedelta(days=days) if until is None else until - OVERLAP
        yield max(start, asked.at - timedelta(days=MOST_DAYS)), asked.at, None
    elif cut is None:
        yield asked.at - OVERLAP, asked.at, None


def _pages(
    aws: Aws, wanted: _Wanted, region: str, *, since: datetime, end: datetime, token: str | None
) -> Iterator[Page]:
    seen = {token}
    resumed = token is not None
    while True:
        try:
            answer = aws.call(region, "describe_spot_price_history", **_question(wanted, since, end, token))
        except FetchError as error:
            if not resumed or error.code not in _BAD_TOKEN:
                raise
            # A token that has expired meanwhile: read the range again from its start, known rows repeat.
            resumed, token, seen = False, None, {None}
            continue
        resumed = False
        token = answer.get("NextToken") or None
        batches = tuple(_batches(answer.get("SpotPriceHistory") or [], wanted, region))
        yield Page(part=region, batches=batches, token=token, since=since, end=end)
        if token is None:
            return
        if token in seen:
            raise FetchError(f"EC2 in {region} gave the same page token twice", expected="a new one a page")
        seen.add(token)


def _question(wanted: _Wanted, since: datetime, end: datetime, token: str | None) -> dict[str, Any]:
    asked: dict[str, Any] = {"StartTime": since, "EndTime": end, "MaxResults": wanted.page}
    if wanted.instance_types:
        asked["InstanceTypes"] = list(wanted.instance_types)
    if wanted.products:
        asked["ProductDescriptions"] = list(wanted.products)
    if token is not None:
        asked["NextToken"] = token
    return asked


def _batches(records: Sequence[object], wanted: _Wanted, region: str) -> Iterator[Batch]:
    constants = {
        "source": wanted.label,
        "provider": "aws",
        "region": region,
        "file": f"{wanted.label}:{region}",
    }
    return pack((_row(line, record) for line, record in enumerate(records, start=1)), constants)


def _row(line: int, record: object) -> tuple[Kind, Row]:
    if not isinstance(record, Mapping):
        return rejection(line, str(record)[:1000], "not a record")
    return "price", {
        "zone": record.get("AvailabilityZone") or record.get("AvailabilityZoneId"),
        "instance_type": record.get("InstanceType"),
        "product": record.get("ProductDescription"),
        "price_usd": record.get("SpotPrice"),
        "observed_at": record.get("Timestamp"),
        "line": line,
    }
