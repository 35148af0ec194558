"""EC2 through boto3: credentials from its standard chain, our own retries, times left as the text they are written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from warehouse.errors import FetchError, SettingsError
from warehouse.sources.live.given import Given
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
