"""Settings of Slackwater, from environment variables, ``slackwater.toml`` and defaults."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from slackwater.warehouse.amounts import LARGEST_COUNT
from slackwater.warehouse.catalogue import OnDemandTerms
from slackwater.warehouse.documents import EXAMPLES, read_toml
from slackwater.warehouse.errors import SettingsError, nearest
from slackwater.warehouse.inputs import InputModel

if TYPE_CHECKING:
    import pandas as pd

    from slackwater.warehouse.observations import Bounds

_HEADER = re.compile(r"[A-Za-z0-9-]+")  # Names of HTTP headers
#: Pattern of the names of feeds and drivers, and of those of sinks and alerts.
SECTION_NAME, RECIPIENT_NAME = r"^[a-z0-9][a-z0-9._-]{0,59}$", r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
#: Forecasters of this package (`slackwater.forecasting.predictors`), all measured by default.
MODELS = ("last_value", "seasonal_naive", "arima", "lightgbm", "markov", "smoothing", "combined")


def setting(default: Any, words: str, **limits: Any) -> Any:
    """Return the declaration of a setting: its default, its meaning, and the limits of its value."""
    return Field(default, description=words, **limits)


class Section(InputModel):
    """Section of ``slackwater.toml``: a value that knows no other keys than its own."""


class Sink(Section):
    """Destination of decisions, ``[[sinks]]`` in ``slackwater.toml``: a folder, or a web address that accepts POST.

    Secrets are read from environment variables; the settings contain only the names of these variables.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    name: str = Field(pattern=RECIPIENT_NAME, description="name under which deliveries are recorded")
    kind: Literal["file", "webhook"]
    folder: Path | None = setting(None, "file: folder for <job>/<slot>.json and <job>/latest.json")
    url: str | None = setting(None, "webhook: address that receives the document by POST", repr=False)
    timeout_seconds: float = setting(10.0, "webhook: time limit of an attempt, seconds", gt=0, le=300)
    token_env: str | None = setting(None, "webhook: environment variable with the token")
    token_header: str = setting("Authorization", "webhook: header for the token")
    token_prefix: str = setting("Bearer ", "webhook: text before the token in the header")
    secret_env: str | None = setting(None, "webhook: environment variable with the secret for the signature")
    attempts: int = setting(3, "attempts per turn", ge=1, le=10)
    backoff_seconds: float = setting(
        1.0, "wait before the second attempt, seconds; doubled before each further attempt", ge=0, le=60
    )
    budget_seconds: float = setting(
        60.0,
        "time limit per turn for this sink, seconds; remaining deliveries wait for the next turn",
        gt=0,
        le=86_400,
    )
    give_up_after: int = setting(
        12, "number of turns that try to deliver a decision before it is given up", ge=1, le=10_000
    )

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            named = parts.hostname
            _ = parts.port
        except ValueError:
            raise ValueError("not a web address") from None
        if parts.scheme not in ("http", "https") or not named or re.search(r"[\s\x00-\x1f]", url):
            raise ValueError("not a web address, expected https://HOST/PATH")
        if parts.username is not None or parts.password is not None:
            raise ValueError("a web address with a user or password, expected token_env instead")
        return url

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Sink:
        wanted = "folder" if self.kind == "file" else "url"
        if getattr(self, wanted) is None:
            raise ValueError(f"a sink of kind {self.kind} needs {wanted}")
        if self.kind == "file" and (self.url or self.token_env or self.secret_env):
            raise ValueError("a sink of kind file takes no url, token_env or secret_env")
        if self.kind == "webhook" and self.folder is not None:
            raise ValueError("a sink of kind webhook takes no folder")
        if not _HEADER.fullmatch(self.token_header):
            raise ValueError("token_header is not a valid name of an HTTP header")
        if self.token_env and urlsplit(self.url or "").scheme == "http" and not self._on_this_machine():
            raise ValueError("http sends the token unencrypted to another machine, expected https")
        return self

    def _on_this_machine(self) -> bool:
        host = urlsplit(self.url or "").hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @property
    def place(self) -> str:
        """The destination without secrets: a folder, or scheme, host and port of the address."""
        if self.kind == "file":
            return str(self.folder)
        parts = urlsplit(self.url or "")
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")


class Feed(Section):
    """Live feed, ``[[feeds]]`` in ``slackwater.toml``: a source, the interval between fetches, and options of the source."""

    name: str = Field(pattern=SECTION_NAME, description="name of the feed, unique")
    source: str = Field(description="live source; `slackwater ingest --list` lists them")
    every_minutes: int = setting(60, "minutes between fetches", ge=1, le=10_080)
    timeout_seconds: float = setting(60.0, "time limit of a request, seconds", gt=0, le=3600)
    tries: int = setting(5, "attempts per request, with increasing waits", ge=1, le=20)
    budget_seconds: float = setting(
        600.0, "time limit per turn for this feed, seconds; the rest waits for the next turn", gt=0, le=86_400
    )
    options: dict[str, Any] = Field(default_factory=dict, description="options of the source")

    @property
    def every(self) -> timedelta:
        """The interval between two fetches."""
        return timedelta(minutes=self.every_minutes)

    @model_validator(mode="after")
    def _check_source_and_options(self) -> Feed:
        from slackwater.warehouse.sources import LIVE_SOURCES

        if self.source not in LIVE_SOURCES:
            raise ValueError(
                f"unknown live source {self.source!r}, expected one of {', '.join(LIVE_SOURCES)}"
            )
        try:
            LIVE_SOURCES[self.source].check(self.options)
        except SettingsError as error:
            raise ValueError(f"feed {self.name!r}: {error}") from error
        return self


class DriverSettings(Section):
    """Driver of `slackwater act`, ``[[drivers]]`` in ``slackwater.toml``: where the instances of some jobs are launched."""

    name: str = Field(pattern=SECTION_NAME, description="name of the driver, unique")
    kind: str = Field(description="kind of driver, or module:Name of a package")
    jobs: tuple[str, ...] = setting(("*",), "jobs, by shell patterns; a job has the first driver that fits")
    options: dict[str, Any] = Field(default_factory=dict, description="options of the kind")


class OnDemandSettings(Section):
    """On-demand price of some markets, ``[[on_demand]]`` in ``slackwater.toml``; overrides observed and listed prices."""

    market: str = Field(description="provider/region/zone/type; * matches any part")
    usd: float | None = setting(None, "USD per on-demand instance-hour", gt=0, le=1e6, allow_inf_nan=False)
    on_demand: bool = setting(True, "false: no on-demand instances are sold there")

    @model_validator(mode="after")
    def _says_something(self) -> OnDemandSettings:
        parts = self.market.split("/")
        if self.market != "*" and (len(parts) != 4 or not all(parts)):
            raise ValueError(
                f"market {self.market!r}, expected provider/region/zone/type, for example aws/us-east-1/*/p4d.24xlarge"
            )
        if (self.usd is None) == self.on_demand:
            raise ValueError(
                f"market {self.market!r}: expected usd = PRICE or on_demand = false, and not both"
            )
        return self


class BoundSettings(Section):
    """Bounds beyond which an ingest rejects rows, ``[bounds]`` in ``slackwater.toml``."""

    future_hours: float = setting(
        24.0, "rows dated later than so many hours after their import are rejected", ge=0, le=876_000
    )
    price_times_on_demand: float = setting(
        20.0, "prices above so many times on-demand are rejected", gt=1, le=1e9
    )
    price_share_of_on_demand: float = setting(
        0.001, "prices below this share of on-demand are rejected", ge=0, lt=1
    )

    def at(self, clock: pd.Timestamp | None) -> Bounds:
        """Return the bounds of an ingest at the present time ``clock`` (None: times are not checked)."""
        import pandas as pd

        from slackwater.warehouse.observations import Bounds

        return Bounds(
            clock=clock,
            future=pd.Timedelta(hours=self.future_hours),
            price_times_on_demand=self.price_times_on_demand,
            price_share_of_on_demand=self.price_share_of_on_demand,
        )


# ---
# Alarms and their thresholds; ``docs/monitoring.md`` justifies the defaults.


class AlarmKind(NamedTuple):
    """Meaning of an alarm, and whether it is serious: a job may miss its deadline, or plans may be wrong."""

    words: str
    serious: bool = False


#: Every kind of alarm; names in backticks are thresholds of `AlarmSettings`.
ALARM_KINDS: dict[str, AlarmKind] = {
    "job missed": AlarmKind(
        "the deadline of a job has passed within `recent_hours` with work left", serious=True
    ),
    "job infeasible": AlarmKind("on-demand alone cannot finish a job by its deadline", serious=True),
    "job at risk": AlarmKind("the risk of missing the deadline is at least `risk`", serious=True),
    "decision not delivered": AlarmKind("a sink did not accept a decision", serious=True),
    "market gone": AlarmKind(
        "the market of a running job has had no observation for `gone_hours`", serious=True
    ),
    "budget": AlarmKind("50, 80 or 100 % of a job's budget is paid, by its reports, else its decisions"),
    "no report": AlarmKind("a job with earlier reports has had none for `report_slots` slots"),
    "stale source": AlarmKind(
        "a followed market's newest count or price was older than its maximal age (M1.3) at the last ingest, or when "
        "the last turn was due (`grace_minutes`)",
        serious=True,
    ),
    "failing feed": AlarmKind(
        "the last fetch of a live feed failed, the last two were partial, or the feed is overdue by more than its "
        "interval, or was never fetched though ingest ran",
        serious=True,
    ),
    "impossible price": AlarmKind(
        "a price is not positive, or above `price_times_on_demand` times on-demand", serious=True
    ),
    "empty ingest": AlarmKind(
        "the newest ingest added nothing, and every newest count is at least `empty_gaps` nominal gaps old"
    ),
    "flat line": AlarmKind(
        "a count or price has kept its value `flat_factor` times as long as in any of at least `flat_least` stretches "
        "before"
    ),
    "price jump": AlarmKind(
        "a price changed by `jump_factor` times the largest of at least `jump_least` earlier changes, in logarithms"
    ),
    "rejected rows": AlarmKind("more than `rejected_share` of a reader's recent rows were unusable"),
    "drift": AlarmKind("the distribution of a series has changed"),
    "coverage": AlarmKind(
        "80 % intervals one slot ahead held too few values of the last `coverage_days`, or 50 % intervals held more "
        "than 80 %"
    ),
}


def _alarm_kinds(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in ALARM_KINDS:
            raise ValueError(f"unknown alarm {name!r}, expected some of {', '.join(ALARM_KINDS)}")
    return names


AlarmNames = Annotated[tuple[str, ...], AfterValidator(_alarm_kinds)]


class Alert(Section):
    """Destination of alarms, ``[[alerts]]`` in ``slackwater.toml``; addresses are read from environment variables."""

    model_config = ConfigDict(hide_input_in_errors=True)

    name: str = Field(pattern=RECIPIENT_NAME, description="name under which sent alarms are recorded")
    kind: Literal["slack", "webhook", "email", "command"]
    address_env: str | None = setting(
        None, "environment variable with the address of the webhook, or with comma-separated mail addresses"
    )
    smtp_env: str = setting(
        "SMTP_URL", "email: environment variable with smtps://USER:PASSWORD@HOST or smtp://HOST"
    )
    command: tuple[str, ...] = setting(
        (), "command: program and arguments; it receives the alarm as JSON on standard input"
    )
    only: AlarmNames = setting((), "kinds of alarms that are sent (default: all)")
    severity: Literal["serious", "all"] = setting("serious", "severity of the alarms that are sent")
    timeout_seconds: float = setting(10.0, "time limit of an attempt, seconds", gt=0, le=300)

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Alert:
        if self.kind == "command" and not self.command:
            raise ValueError("an alert of kind command needs command")
        if self.kind != "command" and (self.command or not self.address_env):
            raise ValueError(f"an alert of kind {self.kind} needs address_env, and takes no command")
        return self

    def wants(self, kind: str, severity: str) -> bool:
        """Return whether an alarm of this kind and severity is sent to this destination."""
        if self.only:
            return kind in self.only
        return self.severity == "all" or severity == "serious"


class RetentionSettings(Section):
    """Ages up to which rows are kept in full by `slackwater compact`, ``[retention]`` in ``slackwater.toml``.

    Forecasts and measured errors stay for at least the period that the figures of accuracy read.
    """

    forecasts_days: float = setting(
        60.0,
        "days of all issued forecasts; of older days one forecast of each model and market stays, and those of jobs "
        "that are replayed",
        ge=0,
        le=36_600,
    )
    accuracy_days: float = setting(
        60.0, "days of all measured errors; of older days the last measurement stays", ge=0, le=36_600
    )
    fitted_days: float = setting(14.0, "days for which estimated forecasters are stored", ge=0, le=36_600)


class AlarmSettings(Section):
    """Thresholds of the alarms, ``[alarms]`` in ``slackwater.toml``."""

    off: AlarmNames = setting((), "kinds of alarms that are switched off")
    grace_minutes: float = setting(
        15.0, "minutes after the start of a slot until unfinished work counts as missing", ge=0, le=10_080
    )
    recent_hours: float = setting(
        24.0,
        "hours for which a jump, an impossible price, a drift or rejected rows remain an alarm",
        gt=0,
        le=8784,
    )
    empty_gaps: float = setting(
        2.0,
        "sampling intervals without a new observation after which an ingest that adds nothing is an alarm",
        ge=1,
        le=1e6,
    )
    flat_factor: float = setting(
        4.0, "a flat line is longer than so many times the longest constant stretch before", gt=1, le=1e6
    )
    flat_least: int = setting(10, "constant stretches needed to detect a flat line", ge=2, le=10**6)
    price_times_on_demand: float = setting(
        3.0, "a price above so many times the on-demand price is impossible", gt=0, le=1e9
    )
    jump_factor: float = setting(
        3.0, "a price jump is larger than so many times the largest change before", gt=1, le=1e6
    )
    jump_least: int = setting(20, "changes needed to detect a jump", ge=2, le=10**6)
    rejected_share: float = setting(
        0.01, "largest share of recent rows that may be rejected without an alarm", ge=0, lt=1
    )
    risk: float = setting(0.1, "probability of missing the deadline from which a job is at risk", gt=0, le=1)
    report_slots: int = setting(
        8,
        "slots without a report that raise an alarm for a job with earlier reports (0: never)",
        ge=0,
        le=100_000,
    )
    gone_hours: float = setting(
        36.0, "hours without observations after which the market of a job counts as gone", gt=0, le=8_784
    )
    coverage_days: float = setting(7.0, "days of forecasts over which coverage is measured", gt=0, le=366)
    coverage_least: int = setting(24, "independent values needed to test coverage", ge=5, le=10**6)
    coverage_chance: float = setting(
        0.001, "false-alarm probability of the coverage test, each side", gt=0, lt=0.5
    )


# ---
# All settings with their defaults, and how they are read.

SETTINGS_FILE = "slackwater.toml"  # Settings file read from the working folder, if it exists


class Settings(Section):
    """All settings; each has a default and can be set in ``slackwater.toml`` or by an environment variable."""

    step_minutes: int = setting(30, "slot length, minutes (M1.3)", ge=3, le=1440)
    horizon: int = setting(12, "largest lead time at which forecasts are measured, slots", ge=1, le=48)
    models: tuple[str, ...] = setting(MODELS, "forecasters to measure")
    planner: str = setting("combined", "forecaster used for plans")
    planning_horizon: int = setting(48, "planning horizon of plans and risks, slots", ge=1, le=96)
    history_days: float = setting(14.0, "days of history used by a forecaster", ge=0.125, le=3660)
    refit_hours: float = setting(
        24.0, "hours between two estimations of the forecasters (M6.4)", ge=0.05, le=8784
    )
    price_history_days: float | None = setting(
        None, "`history_days` for prices, if different", ge=0.125, le=3660
    )
    price_refit_hours: float | None = setting(
        None, "`refit_hours` for prices, if different", ge=0.05, le=8784
    )
    measured_origins: int = setting(32, "forecast origins measured on a new market", ge=0, le=5000)
    max_markets: int = setting(
        24,
        "number of markets followed, markets of jobs first; of up to 24, at most 2 with counts of kind held and 2 of "
        "kind offers",
        ge=1,
        le=5000,
    )
    first_policy: str = setting("UP", "policy used until the first job has ended, if there is no prior")
    prior: Path | None = setting(
        None, "file with earlier measurements of policies, the prior; default: the built-in file (M5.6)"
    )
    prior_jobs: int = setting(60, "weight of the prior in jobs; 0: no prior (M5.6)", ge=0, le=10**6)
    learner: str = setting("blend", "method that learns the weights of the policies (M5)")
    risk_paths: int = setting(
        200,
        "number of sampled scenarios for expected cost and risk of missing the deadline",
        ge=10,
        le=10_000,
    )
    solver_seconds: float = setting(10.0, "time limit of a live solve, seconds (M3.4)", ge=0.01, le=3600)
    report_token_env: str | None = setting(
        None, "environment variable with the token for reports by HTTP; without it `slackwater ui` takes none"
    )
    report_behind_tls: bool = setting(
        False,
        "a proxy with TLS is in front of `slackwater ui`: it takes reports at addresses other than loopback",
    )
    seed: int = setting(7, "random seed of the simulated market and of the sampled scenarios", ge=0, lt=2**63)
    simulated_days: float = setting(21.0, "days of simulated history before the first turn", gt=1, le=366)
    late_slots: int = setting(
        96,
        "most missing slots that a scheduled turn makes before its own; if more are missing it makes none",
        ge=0,
        le=20_000,
    )
    backfill_memory_mb: int = setting(
        512,
        "memory limit of DuckDB in a backfill, MB, in addition to that of its worker processes",
        ge=64,
        le=1_000_000,
    )
    trust: tuple[str, ...] = setting((), "source labels (shell patterns), most trusted first")
    assumed_spot_share: float = setting(
        0.30,
        "assumed spot price as a share of the on-demand price, for markets with counts but no price",
        gt=0,
        le=1,
    )
    assumed_capacity: int = setting(
        8,
        "instances assumed always available in markets with a price but no counts; 0: such markets are not used",
        ge=0,
        le=LARGEST_COUNT,
    )
    bounds: BoundSettings = setting(BoundSettings.model_validate({}), "bounds beyond which rows are rejected")
    alarms: AlarmSettings = setting(AlarmSettings.model_validate({}), "thresholds of the alarms")
    retention: RetentionSettings = setting(
        RetentionSettings.model_validate({}), "ages up to which rows are kept in full"
    )
    on_demand: tuple[OnDemandSettings, ...] = setting(
        (), "on-demand prices by market, which override observed and listed prices; the first match is used"
    )
    feeds: tuple[Feed, ...] = setting((), "live feeds, fetched when due")
    sinks: tuple[Sink, ...] = setting((), "destinations of decisions")
    drivers: tuple[DriverSettings, ...] = setting((), "where `slackwater act` launches instances")
    alerts: tuple[Alert, ...] = setting((), "destinations of alarms")
    pool: Path | None = setting(None, "TOML file of the policy pool; default: the built-in pool")

    @property
    def on_demand_terms(self) -> tuple[OnDemandTerms, ...]:
        """The on-demand prices in the form that `load_histories` takes."""
        return tuple(
            OnDemandTerms(market=price.market, usd=price.usd, stated_in="settings")
            for price in self.on_demand
        )

    @field_validator("feeds", "sinks", "alerts", "drivers")
    @classmethod
    def _named_apart(
        cls, named: tuple[Feed | Sink | Alert | DriverSettings, ...], info: ValidationInfo
    ) -> tuple[Feed | Sink | Alert | DriverSettings, ...]:
        names = [section.name for section in named]
        if doubled := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two {info.field_name} named {doubled[0]!r}, expected different names")
        return named

    @field_validator("learner")
    @classmethod
    def _known_learner(cls, name: str) -> str:
        from slackwater.optimization.selection.learners import LEARNERS

        if name not in LEARNERS:
            raise ValueError(f"unknown learner {name!r}, expected one of {', '.join(LEARNERS)}")
        return name


#: Examples of the settings that are lists of tables.
_EXAMPLES = {
    "on_demand": '[[on_demand]]\nmarket = "aws/us-east-1/*/p4d.24xlarge"\nusd = 21.96',
    "feeds": '[[feeds]]\nname = "us-east"\nsource = "aws-spot"\nevery_minutes = 60',
    "sinks": '[[sinks]]\nname = "drop"\nkind = "file"\nfolder = "decisions"',
    "drivers": '[[drivers]]\nname = "cloud"\nkind = "ec2"\njobs = ["llama-*"]\noptions = { template = "my-training" }',
    "alerts": '[[alerts]]\nname = "team"\nkind = "slack"\naddress_env = "SLACK_WEBHOOK_URL"',
}


def commented_settings() -> str:
    """Return a settings file with every setting commented out, each with its description and default."""
    lines = [
        "# Settings of slackwater with their defaults. Remove the # of a line and change its value.",
        f"# # Environment variables override this file: {PREFIX} and the name of the setting in capitals, with the value as",
        f"# # in this file (quotes are optional, lists may be comma-separated): {variable_of('risk_paths')}=250,",
        f"# # {variable_of('models')}=last_value,combined; a setting of a table as {variable_of('alarms', 'flat_factor')}=5.",
        f"# # {FILE_VARIABLE} names a different settings file. Options of a command override both.",
    ]
    tables = list[str]()
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, BaseModel):
            tables += ["", f"# [{name}]"]
            for own, inner in type(field.default).model_fields.items():
                tables += [f"# # {_words(inner)}", f"# {own} = {_toml(inner.default)}"]
        elif name in _EXAMPLES:
            tables += ["", f"# # {_words(field)}", *(f"# {line}" for line in _EXAMPLES[name].split("\n"))]
        else:
            shown = f"{name} = {_toml(field.default)}" if field.default is not None else f"# {name} = ..."
            lines += ["", f"# # {_words(field)}", f"# {shown}"]
    return "\n".join([*lines, *tables]) + "\n"


def _words(field: Any) -> str:
    """Return the description of a setting without rule numbers, which mean nothing in a settings file."""
    return re.sub(r" \(M[\d.]+\)", "", str(field.description))


def _toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


#: Prefix of the environment variables of slackwater. The variable of a setting is this prefix, the name of the setting's
#: table if it has one, and the name of the setting, in capitals.
PREFIX = "SLACKWATER_"
FILE_VARIABLE = f"{PREFIX}SETTINGS"  # Variable that names the settings file


#: All other variables with this prefix, and their purpose; `docs/how-to-run-it.md` documents those for users.
OTHER_VARIABLES = {
    FILE_VARIABLE: "the settings file",
    f"{PREFIX}DB": "the warehouse of commands",
    f"{PREFIX}THREADS": "threads of DuckDB in each process",
    f"{PREFIX}SNAPSHOTS": "whether a copy is written for readers",
    f"{PREFIX}LOCK_WAIT": "seconds that a writer waits for another writer",
    f"{PREFIX}RUNNER": "task runner of a turn",
    f"{PREFIX}WORKERS": "number of workers of the task runner",
    f"{PREFIX}DASK_ADDRESS": "address of the Dask cluster that runs the tasks",
    f"{PREFIX}ALLOWED_PATHS": "files and folders allowed in deployment parameters in addition to the working folder",
    f"{PREFIX}JOB": "name of the job, in a task that the driver skypilot launches",
    f"{PREFIX}KEY": "key of the decision, in such a task",
    f"{PREFIX}REPORT_TOKEN": "token with which the callback of a trainer posts its reports",
    f"{PREFIX}DATA": "measured prices and counts, for tests and benchmarks",
    f"{PREFIX}OTHER_DUCKDB": "another release of DuckDB, for tests",
    f"{PREFIX}ACT_KILLS": "kills of the processes that act, for tests",
    f"{PREFIX}PEERS": "an environment of other forecasters, for benchmarks",
    f"{PREFIX}PEER_SLOTS": "slots visible to them, for benchmarks",
    f"{PREFIX}BACKFILL_DAYS": "days of a backfill, for benchmarks",
}


def variable_of(*key: str) -> str:
    """Return the environment variable of a setting.

    >>> variable_of("risk_paths"), variable_of("alarms", "flat_factor")
    ('SLACKWATER_RISK_PATHS', 'SLACKWATER_ALARMS_FLAT_FACTOR')
    """
    return PREFIX + "_".join(key).upper()


def _keys() -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Yield key and field of each setting that a variable can set."""
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from (((name, own), inner) for own, inner in type(field.default).model_fields.items())
        else:
            yield (name,), field


def _as_in_file(text: str, field: FieldInfo) -> Any:
    """Parse the value of a variable as TOML; a text may lack quotes, and a list of texts may be comma-separated."""
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        read = {}
    value = read["value"] if list(read) == ["value"] else text
    if field.annotation in (str, Path | None) and not isinstance(value, str):
        return text  # a name or path that looks like a number
    if field.annotation == tuple[str, ...] and isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return value


def read_settings(path: Path | None = None, *, environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings from environment variables, the settings file and defaults, in this order of precedence.

    The file is ``path``, else the file named by `FILE_VARIABLE`, else ``slackwater.toml`` in the working folder if it exists.
    Raises `SettingsError` that names the variable, or the file and the key, and the expected value; for an unknown variable
    or key it names the nearest known names.
    """
    note = ""
    if path is None and (named := environment.get(FILE_VARIABLE, "").strip()):
        path, note = Path(named), f" ({FILE_VARIABLE})"
    elif path is None and Path(SETTINGS_FILE).exists():
        path = Path(SETTINGS_FILE)
    values = {} if path is None else read_toml(path, "settings file", error=SettingsError, note=note)
    given = {
        key: (text, field)
        for key, field in _keys()
        if (text := environment.get(variable_of(*key), "").strip())
    }
    for (*tables, name), (text, field) in given.items():
        table: Any = values
        for entry in tables:
            table = table.setdefault(entry, {})
        if isinstance(table, dict):  # otherwise the file is wrong, and validation reports it
            table[name] = _as_in_file(text, field)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = tuple(str(part) for part in first["loc"])
        for used in (key[:1], key[:2]):
            if used in given:
                text, field = given[used]
                # Values that may contain an address with a secret are not shown.
                found = variable_of(*used) + ("" if used[0] in _EXAMPLES else f"={text!r}")
                inner = f"{'.'.join(key[len(used) :])}: " if len(key) > len(used) else ""
                raise SettingsError(f"{found}: {inner}{first['msg']}", expected=_words(field)) from error
        if first["type"] == "extra_forbidden":
            raise SettingsError(
                f"settings file {path}: {'.'.join(key)} is not a setting",
                expected=nearest(key[-1], _names_beside(key))
                or ", ".join(_names_beside(key) if len(key) > 1 else ()),
                remedy=EXAMPLES["settings file"],
            ) from error
        raise SettingsError(f"settings file {path}: {'.'.join(key)}: {first['msg']}") from error
    _check_variables(environment, settings)
    return settings


def _names_beside(key: tuple[str, ...]) -> Iterable[str]:
    """Return the valid names for the last part of a key."""
    if len(key) == 1:
        return Settings.model_fields
    kind = Settings.model_fields[key[0]].annotation
    sections = [
        alternative
        for alternative in (kind, *get_args(kind))
        if isinstance(alternative, type) and issubclass(alternative, Section)
    ]
    return sections[0].model_fields


def _check_variables(environment: Mapping[str, str], settings: Settings) -> None:
    """Raise `SettingsError` for an unknown variable with the prefix of slackwater."""
    known = [variable_of(*key) for key, _ in _keys()] + list(OTHER_VARIABLES)
    secrets = {name for sink in settings.sinks for name in (sink.token_env, sink.secret_env)}
    for name in sorted(environment):
        if name.startswith(PREFIX) and environment[name].strip() and name not in {*known, *secrets}:
            raise SettingsError(
                f"environment variable {name} is not a setting",
                expected=nearest(name, known),
                remedy=f"{EXAMPLES['settings file']}; unset the variable if it is not for slackwater",
            )
