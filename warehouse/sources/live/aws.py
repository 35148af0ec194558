"""AWS spot prices through boto3, from ``DescribeSpotPriceHistory``.

Credentials come from boto3's standard chain. boto signs requests and parses answers, but the `Transport`
sends and retries them, as for every other API. Times are returned as the text of the answer.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from importlib import import_module
from typing import Any

from pydantic import Field

from slackwater.warehouse.columns import because
from slackwater.warehouse.errors import FetchError, SettingsError
from slackwater.warehouse.plugins import require_extra
from slackwater.warehouse.sources.contract import (
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
from slackwater.warehouse.sources.files.aws import currency_of
from slackwater.warehouse.sources.live.contract import (
    Example,
    FetchedPage,
    FetchRequest,
    LiveSource,
    PartFailed,
    next_page,
)
from slackwater.warehouse.sources.live.transport import Throttled, Transport

_THROTTLING = {
    "RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled",
    "RequestThrottledException", "TooManyRequestsException", "EC2ThrottledException", "SlowDown",
    "ServiceUnavailable", "Unavailable", "InternalError", "InternalFailure", "RequestTimeout",
}  # fmt: skip
_SERVER_ERROR = 500
_OF_THE_BODY = ("content-encoding", "content-length", "transfer-encoding")
HOME = "us-east-1"
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")  # First place where boto3 looks for credentials
MOST_DAYS = 90  # Length of AWS's price history in days
#: AWS also lists the last change before the range, so a short overlap suffices for rows that appear late.
OVERLAP = timedelta(hours=1)
_BAD_TOKEN = ("InvalidNextToken", "InvalidPaginationToken", "InvalidParameterValue", "InvalidToken")


class AwsAccess(Options):
    """Access to AWS."""

    profile: str | None = Field(
        None, description="profile of the AWS configuration files (default: boto3's standard chain)"
    )
    home_region: str = Field(
        HOME, description=f"region that is asked which regions there are (default: {HOME})"
    )
    endpoint_url: Address | None = Field(None, description="address of the API, for a proxy or a test server")


class AwsSpotOptions(AwsAccess):
    """Options of the price history."""

    regions: Texts = Field((), description="regions to read (default: all that are enabled for the account)")
    instance_types: Texts = Field((), description="instance types to read (default: all)")
    products: Texts = Field(("Linux/UNIX",), description="product descriptions to read (default: Linux/UNIX)")
    days: int = Field(
        14,
        ge=1,
        le=MOST_DAYS,
        description=f"days of history read at first, at most {MOST_DAYS} (default: 14)",
    )
    page: int = Field(1000, ge=5, le=1000, description="most records a page (default: 1000)")
    source: str = label_option("aws-spot")


class AwsClients:
    """EC2 clients by region, on a shared session; raises `SettingsError` without boto3, `FetchError` without credentials."""

    def __init__(self, access: AwsAccess, transport: Transport) -> None:
        self._access = access
        self._transport = transport
        self._session = _session(access, transport)
        self._clients: dict[str, Any] = {}

    def call(self, region: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Call the API with retries; raises `FetchError`, with AWS's error code if AWS refuses."""

        def once() -> dict[str, Any]:
            answer: dict[str, Any] = self._translate_error(region, operation, parameters)
            facts = answer.get("ResponseMetadata", {})
            if "RequestId" not in facts:
                # boto accepts any XML: a proxy's sign-in page would be parsed as an answer without
                # rows, and the fetch would lose all rows.
                raise FetchError(f"EC2 in {region} answered something that is not its own", again=True)
            self._transport.note_date(facts.get("HTTPHeaders", {}).get("date"))
            return answer

        return self._transport.patiently(once)

    def _client(self, region: str) -> Any:
        if region not in self._clients:
            config = import_module("botocore.config").Config(
                retries={"mode": "standard", "total_max_attempts": 1}
            )
            self._clients[region] = self._session.client(
                "ec2", region_name=region, endpoint_url=self._access.endpoint_url, config=config
            )
        return self._clients[region]

    def _translate_error(self, region: str, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        faults = import_module("botocore.exceptions")
        name = f"EC2 in {region}"
        try:
            method: Callable[..., dict[str, Any]] = getattr(self._client(region), operation)
            return method(**parameters)
        except FetchError as error:  # from the transport, which could not send the request or read the answer
            raise FetchError(f"{name}: {error.found}", expected=error.expected, again=error.again) from error
        except faults.ClientError as error:
            raise _refusal(name, error.response) from None
        except faults.NoCredentialsError:
            raise _no_credentials() from None
        except faults.HTTPClientError as error:  # from boto's own requests for credentials
            raise FetchError(f"{name}: {type(error).__name__}", again=True) from None
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
    require_extra("aws", "an AWS source")
    boto3, session = import_module("boto3"), import_module("botocore.session")
    faults = import_module("botocore.exceptions")
    core = session.Session(profile=access.profile)
    # Times stay text: the store rejects an invalid time, and a parser error would lose the whole page.
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=str)
    try:
        core.register_component("data_loader", _api_descriptions(core.get_config_variable("data_path")))
        core.register("before-send", _sent_through(transport))
        transport.certificates = core.get_config_variable("ca_bundle")
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


class _Body(io.BytesIO):
    """Response body with the interface that boto expects."""

    def stream(self) -> Iterator[bytes]:
        """Yield the whole body."""
        yield self.read()


def _sent_through(transport: Transport) -> Callable[..., Any]:
    """Return a hook that sends boto's requests through the transport, as boto limits neither time nor size of an answer."""
    response = import_module("botocore.awsrequest").AWSResponse

    def send(request: Any, **_: Any) -> Any:
        headers = {
            name: value.decode("latin-1") if isinstance(value, bytes) else str(value)
            for name, value in request.headers.items()
        }
        answer = transport.exchange(request.method, request.url, headers=headers, content=request.body)
        # The body is already decoded.
        kept_headers = {name: text for name, text in answer.headers.items() if name not in _OF_THE_BODY}
        return response(request.url, answer.status, kept_headers, _Body(answer.body))

    return send


@cache
def _api_descriptions(path: str | None) -> Any:
    """Return boto's loader of API descriptions, cached: parsing EC2's description takes longer than a request."""
    return import_module("botocore.loaders").create_loader(path)


def _no_credentials() -> FetchError:
    return FetchError(
        "no AWS credentials found",
        expected="some in boto3's standard chain: environment, configuration files, SSO, instance role",
        remedy="configure one, or name a profile in the option profile",
    )


def _refusal(name: str, response: Mapping[str, Any]) -> FetchError:
    error = response.get("Error", {})
    code, message = str(error.get("Code", "")), str(error.get("Message", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    words = f"{name} refused: {code or status} {message[:200]}".rstrip()
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if code in _THROTTLING or status == 429 or status >= _SERVER_ERROR:
        after = str(headers.get("retry-after", ""))
        return Throttled(words, wait=float(after[:9]) if after.isdecimal() else 0.0)
    return FetchError(words, code=code)


def regions_of(aws: AwsClients, home: str, wanted: tuple[str, ...]) -> list[str]:
    """Return the regions named, or all that are enabled for the account; raises `FetchError`."""
    if wanted and wanted != ("all",):
        return list(dict.fromkeys(wanted))
    answer = aws.call(home, "describe_regions")
    return sorted(
        str(region["RegionName"]) for region in answer.get("Regions", []) if region.get("RegionName")
    )


class AwsSpot(LiveSource[AwsSpotOptions]):
    """A history: every record is a price row; parts are regions.

    A region that refuses (not enabled, access denied) fails alone. Zone letters are those of the
    account. AWS also lists the price in force at the start of the range, with the time it was set,
    so ranges join without a gap.
    """

    name = "aws-spot"
    form = AwsSpotOptions
    example = Example(
        options={"regions": ["us-east-1"]},
        answer='<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r-1</requestId>'
        "<spotPriceHistorySet><item><availabilityZone>us-east-1a</availabilityZone><instanceType>p3.2xlarge</instanceType>"
        "<productDescription>Linux/UNIX</productDescription><spotPrice>0.918</spotPrice>"
        "<timestamp>2026-01-05T00:00:00.000Z</timestamp></item></spotPriceHistorySet>"
        "<nextToken/></DescribeSpotPriceHistoryResponse>",
        credentials=CREDENTIALS,
    )

    def pages(
        self, options: AwsSpotOptions, request: FetchRequest, transport: Transport
    ) -> Iterator[FetchedPage | PartFailed]:
        """Yield the pages of each region; a failing region yields `PartFailed` and its mark stays unchanged."""
        aws = AwsClients(options, transport)
        for region in regions_of(aws, options.home_region, options.regions):
            if request.is_done(region):
                continue
            try:
                for since, end, token in _ranges(request, region, options.days):
                    yield from _pages(aws, options, region, since=since, end=end, token=token)
            except FetchError as error:
                yield PartFailed(part=region, reason=str(error))


def _ranges(request: FetchRequest, region: str, days: int) -> Iterator[tuple[datetime, datetime, str | None]]:
    """Yield the ranges of a region still to read, oldest first: an interrupted range, then from the mark to the logical time."""
    mark = request.mark(region)
    if request.since is not None:
        end = min(request.until or request.at, request.at)
        if request.since >= end:
            raise SettingsError(f"range {request.since} to {end}", expected="a start before the end")
        yield request.since, end, None
        return
    until = mark.until
    cut = mark.listing
    if cut is not None and cut.since is not None and cut.end is not None:
        yield cut.since, cut.end, cut.token
        until = max(until or cut.end, cut.end)
    if until is None or until < request.at:
        start = request.at - timedelta(days=days) if until is None else until - OVERLAP
        yield max(start, request.at - timedelta(days=MOST_DAYS)), request.at, None
    elif cut is None:
        yield request.at - OVERLAP, request.at, None


def _pages(
    aws: AwsClients,
    options: AwsSpotOptions,
    region: str,
    *,
    since: datetime,
    end: datetime,
    token: str | None,
) -> Iterator[FetchedPage]:
    seen: set[str | None] = {token}
    resumed = token is not None
    while True:
        try:
            answer = aws.call(region, "describe_spot_price_history", **_question(options, since, end, token))
        except FetchError as error:
            if not resumed or error.code not in _BAD_TOKEN:
                raise
            # The token has expired: read the range again from its start; known rows repeat.
            resumed, token, seen = False, None, {None}
            continue
        resumed = False
        token = answer.get("NextToken") or None
        batches = tuple(_batches(answer.get("SpotPriceHistory") or [], options, region))
        yield FetchedPage(part=region, batches=batches, token=token, since=since, end=end)
        if next_page(token, seen, f"EC2 in {region}") is None:
            return


def _question(options: AwsSpotOptions, since: datetime, end: datetime, token: str | None) -> dict[str, Any]:
    parameters: dict[str, Any] = {"StartTime": since, "EndTime": end, "MaxResults": options.page}
    if options.instance_types:
        parameters["InstanceTypes"] = list(options.instance_types)
    if options.products:
        parameters["ProductDescriptions"] = list(options.products)
    if token is not None:
        parameters["NextToken"] = token
    return parameters


def _batches(records: Sequence[object], options: AwsSpotOptions, region: str) -> Iterator[Batch]:
    constants = {
        "source": options.source,
        "provider": "aws",
        "region": region,
        "currency": currency_of(region),
        "file": f"{options.source}:{region}",
    }
    return pack((_row(line, record) for line, record in enumerate(records, start=1)), constants)


def _row(line: int, record: object) -> tuple[Kind, Row]:
    if not isinstance(record, Mapping):
        return rejection(line, str(record)[:1000], because("record.not_record"))
    return "price", {
        "zone": record.get("AvailabilityZone") or record.get("AvailabilityZoneId"),
        "instance_type": record.get("InstanceType"),
        "product": record.get("ProductDescription"),
        "price_usd": record.get("SpotPrice"),
        "observed_at": record.get("Timestamp"),
        "line": line,
    }
