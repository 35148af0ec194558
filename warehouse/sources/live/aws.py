"""EC2 through boto3: credentials from its standard chain, our own retries, times left as the text they are written in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib import import_module
from typing import Any

from warehouse.errors import FetchError, SettingsError
from warehouse.sources.contract import Batch, Kind
from warehouse.sources.files.reading import Row, pack, rejection
from warehouse.sources.live.contract import WHOLE, Asked, Page, PartFailed
from warehouse.sources.live.options import Given
from warehouse.sources.live.transport import Throttled, Transport, shown

#: Options of every AWS source.
AWS_OPTIONS: Mapping[str, str] = {
    "profile": "profile of the AWS configuration files (default: boto3's standard chain)",
    "home_region": "region that is asked which regions there are (default: us-east-1)",
    "endpoint_url": "address of the API, for a proxy or a test server",
    "source": "label of all rows (default: the source's name)",
}
_THROTTLING = {
    "RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled",
    "RequestThrottledException", "TooManyRequestsException", "EC2ThrottledException", "SlowDown",
    "ServiceUnavailable", "Unavailable", "InternalError", "InternalFailure", "RequestTimeout",
}  # fmt: skip
_SERVER_ERROR = 500
HOME = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsAccess:
    """How AWS is reached."""

    profile: str | None
    home: str
    endpoint: str | None

    @classmethod
    def of(cls, given: Given) -> AwsAccess:
        """From the options; raises `SettingsError`."""
        return cls(
            profile=given.text("profile") or None,
            home=given.text("home_region", HOME),
            endpoint=given.url("endpoint_url") if given.has("endpoint_url") else None,
        )


class Aws:
    """EC2 clients by region, on one session; raises `SettingsError` without boto3, `FetchError` without credentials."""

    def __init__(self, access: AwsAccess, transport: Transport) -> None:
        self._access = access
        self._transport = transport
        self._session = _session(access, transport)
        self._clients: dict[str, Any] = {}

    def call(self, region: str, operation: str, **asked: Any) -> dict[str, Any]:
        """One API call, asked again while that may help.

        Raises `FetchError`, with AWS's code when it says no.
        """

        def once() -> dict[str, Any]:
            answer: dict[str, Any] = self._translated(region, operation, asked)
            facts = answer.get("ResponseMetadata", {})
            if "RequestId" not in facts:
                # boto reads any XML: a proxy's sign-in page would be an answer without rows, and a fetch that lost them all.
                raise FetchError(f"EC2 in {region} answered something that is not its own", again=True)
            self._transport.note_date(facts.get("HTTPHeaders", {}).get("date"))
            return answer

        return self._transport.patiently(once)

    def _client(self, region: str) -> Any:
        if region not in self._clients:
            limit = min(30.0, self._transport.seconds)
            config = import_module("botocore.config").Config(
                connect_timeout=limit,
                read_timeout=limit,
                retries={"mode": "standard", "total_max_attempts": 1},
            )
            self._clients[region] = self._session.client(
                "ec2", region_name=region, endpoint_url=self._access.endpoint, config=config
            )
        return self._clients[region]

    def _translated(self, region: str, operation: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        faults = import_module("botocore.exceptions")
        name = f"EC2 in {region}"
        try:
            method: Callable[..., dict[str, Any]] = getattr(self._client(region), operation)
            return method(**asked)
        except faults.ClientError as error:
            raise _refused(name, error.response) from None
        except faults.NoCredentialsError:
            raise _no_credentials() from None
        except faults.HTTPClientError as error:
            # The text of the error may hold the whole URL.
            where = f" at {shown(self._access.endpoint)}" if self._access.endpoint else ""
            raise FetchError(f"{name}{where}: {type(error).__name__}", again=True) from None
        except (
            import_module("botocore.parsers").ResponseParserError,
            ValueError,
            KeyError,
            TypeError,
        ) as error:
            raise FetchError(
                f"{name} answered something unreadable ({type(error).__name__})", again=True
            ) from None
        except faults.BotoCoreError as error:
            raise FetchError(f"{name}: {self._transport.secrets.scrub(str(error))}") from None


def _session(access: AwsAccess, transport: Transport) -> Any:
    try:
        boto3, session = import_module("boto3"), import_module("botocore.session")
    except ImportError as error:
        raise SettingsError(
            "the AWS sources need boto3, which is not installed",
            remedy='install it with `pip install "slackwater[aws]"`',
        ) from error
    faults = import_module("botocore.exceptions")
    core = session.Session(profile=access.profile)
    # Rows go on as found: a time that is no time is the store's to refuse, and must not spoil its whole page.
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
    try:
        core.register_component("data_loader", _api_descriptions(core.get_config_variable("data_path")))
        found = core.get_credentials()
        frozen = None if found is None else found.get_frozen_credentials()
    except (faults.BotoCoreError, faults.ClientError) as error:
        raise FetchError(
            f"AWS credentials: {transport.secrets.scrub(str(error))}",
            remedy="correct the option profile, or the AWS configuration",
        ) from None
    if frozen is None:
        raise _no_credentials()
    for value in (frozen.access_key, frozen.secret_key, frozen.token):
        transport.secrets.add(value)
    return boto3.Session(botocore_session=core)


@cache
def _api_descriptions(path: str | None) -> Any:
    """boto's reader of API descriptions, which it keeps: to parse EC2's takes longer than to ask it."""
    return import_module("botocore.loaders").create_loader(path)


def _no_credentials() -> FetchError:
    return FetchError(
        "no AWS credentials found",
        expected="some in boto3's standard chain: environment, configuration files, SSO, instance role",
        remedy="configure one, or name a profile in the option profile",
    )


def _refused(name: str, response: Mapping[str, Any]) -> FetchError:
    error = response.get("Error", {})
    code, said = str(error.get("Code", "")), str(error.get("Message", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    words = f"{name} refused: {code or status} {said[:200]}".rstrip()
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if code in _THROTTLING or status == 429 or status >= _SERVER_ERROR:
        after = str(headers.get("retry-after", ""))
        return Throttled(words, wait=float(after[:9]) if after.isdecimal() else 0.0)
    return FetchError(words, code=code)


def regions_of(aws: Aws, access: AwsAccess, wanted: tuple[str, ...]) -> list[str]:
    """The regions named, or all that are enabled for the account; raises `FetchError`."""
    if wanted and wanted != ("all",):
        return list(dict.fromkeys(wanted))
    answer = aws.call(access.home, "describe_regions")
    return sorted(str(one["RegionName"]) for one in answer.get("Regions", []) if one.get("RegionName"))


# ---
# AWS spot prices from ``DescribeSpotPriceHistory``, region by region, from where the last reading ended.

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


# ---
# AWS spot placement scores from ``GetSpotPlacementScores``: how likely a request for N instances is to be met, 1 to 10.

#: The kind of these rows: a score is no count of instances, and is never read as one.
KIND = "score"
BEST_SCORE = 10
#: AWS: with fewer types in one request the score is always low.
FEWEST_TYPES = 3
_MOST_REGIONS = 10
_PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlacementOptions:
    access: AwsAccess
    regions: tuple[str, ...]
    instance_types: tuple[str, ...]
    target: int
    zones: bool
    label: str


class AwsPlacement:
    """A snapshot: one availability row of kind ``score`` per region, or per zone ID, with capacity 10.

    The types of a request are scored together, so the market's instance type is all of them joined by ``+``. AWS names at
    most the ten best places; one it does not name has no row.
    """

    name = "aws-placement"
    options: Mapping[str, str] = {
        "instance_types": "instance types scored together; AWS wants at least three of different sizes or families",
        "target_capacity": "instances the score is for (default: 1)",
        "regions": "regions to score, at most ten (default: AWS's choice of the best)",
        "zones": "true: score zones (by zone ID) instead of whole regions",
        **AWS_OPTIONS,
    }

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise `SettingsError` if the options cannot be used."""
        self._wanted(options)

    def assumptions(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """What the score is a score of."""
        wanted = self._wanted(options)
        words = [f"placement score (1 to 10) for {wanted.target} instances, not a count of instances"]
        if len(wanted.instance_types) < FEWEST_TYPES:
            words.append("placement scores for fewer than three instance types are always low")
        return tuple(words)

    def fetch(self, asked: Asked, transport: Transport) -> Iterator[Page | PartFailed]:
        """Yield the scores of the regions or zones, page by page; raises `FetchError` if AWS refuses."""
        if asked.is_done(WHOLE):
            return
        wanted = self._wanted(asked.options)
        aws = Aws(wanted.access, transport)
        token = asked.token(WHOLE)
        seen = {token}
        while True:
            answer = aws.call(
                wanted.access.home, "get_spot_placement_scores", **_placement_question(wanted, token)
            )
            token = answer.get("NextToken") or None
            rows = answer.get("SpotPlacementScores") or []
            batches = _placement_batches(rows, wanted, asked, transport)
            yield Page(part=WHOLE, batches=tuple(batches), token=token)
            if token is None:
                return
            if token in seen:
                raise FetchError("EC2 gave the same page token twice", expected="a new one a page")
            seen.add(token)

    def _wanted(self, options: Mapping[str, Any]) -> _PlacementOptions:
        given = Given(self.name, options, self.options)
        types = given.texts("instance_types")
        regions = given.texts("regions")
        if not types:
            raise given.wrong("instance_types", "at least one instance type, better three")
        if len(regions) > _MOST_REGIONS:
            raise given.wrong("regions", f"at most {_MOST_REGIONS} regions")
        return _PlacementOptions(
            access=AwsAccess.of(given),
            regions=regions,
            instance_types=types,
            target=given.whole("target_capacity", 1, low=1, high=2_000_000),
            zones=given.flag("zones"),
            label=given.text("source", self.name),
        )


def _placement_question(wanted: _PlacementOptions, token: str | None) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "InstanceTypes": list(wanted.instance_types),
        "TargetCapacity": wanted.target,
        "TargetCapacityUnitType": "units",
        "SingleAvailabilityZone": wanted.zones,
        "MaxResults": _PAGE,
    }
    if wanted.regions:
        asked["RegionNames"] = list(wanted.regions)
    if token is not None:
        asked["NextToken"] = token
    return asked


def _placement_batches(
    scores: Sequence[object], wanted: _PlacementOptions, asked: Asked, transport: Transport
) -> Iterator[Batch]:
    constants = {
        "source": wanted.label,
        "provider": "aws",
        "instance_type": "+".join(wanted.instance_types),
        "observed_at": asked.observed_at(transport.server_date),
        "capacity": BEST_SCORE,
        "gap_seconds": int(asked.every.total_seconds()),
        "kind": KIND,
        "truncated": False,
        "file": wanted.label,
    }
    return pack((_placement_row(line, one) for line, one in enumerate(scores, start=1)), constants)


def _placement_row(line: int, score: object) -> tuple[Kind, Row]:
    if not isinstance(score, Mapping):
        return rejection(line, str(score)[:1000], "not a score")
    return "availability", {
        "region": score.get("Region"),
        "zone": score.get("AvailabilityZoneId") or "all",
        "available": score.get("Score"),
        "line": line,
    }
