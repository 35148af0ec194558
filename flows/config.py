"""Settings of a run: what may be configured, its defaults, and where they are read from."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from flows.alarm_settings import AlarmSettings
from flows.feed_settings import Feed, distinct
from flows.sink_settings import Sink
from warehouse.errors import SettingsError

#: Read from the working folder when it is there.
SETTINGS_FILE = "slackwater.toml"


class Settings(BaseModel):
    """Everything a turn of the loop can be told; all of it has a default and may stand in ``slackwater.toml``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_minutes: int = Field(30, ge=3, le=1440, description="slot length (M1.3)")
    horizon: int = Field(12, ge=1, le=48, description="slots ahead that forecasts are measured over")
    models: tuple[str, ...] = Field(
        ("last_value", "seasonal_naive", "arima", "lightgbm", "markov", "smoothing", "combined"),
        description="forecasters to measure",
    )
    planner: str = Field("combined", description="the forecaster whose forecasts plans are made from")
    planning_horizon: int = Field(48, ge=1, le=96, description="slots ahead that plans and risks look")
    history_days: float = Field(14.0, gt=0, description="how far back a forecaster looks")
    refit_hours: float = Field(24.0, gt=0, description="how often forecasters are estimated again (M6.4)")
    measured_origins: int = Field(
        32, ge=0, description="forecast origins measured on a market never seen before"
    )
    max_markets: int = Field(24, ge=1, description="markets followed when no job names them")
    backlog_jobs: int = Field(
        24, ge=0, description="ended practice jobs made on a warehouse that has none (M5.1)"
    )
    backlog_days: float = Field(
        7.0, gt=0, description="how far before a market's time practice jobs begin at the earliest"
    )
    practice_policy: str = Field("UP", description="the policy that decides before any job has ended")
    learner: str = Field("blend", description="how trust in the policies is learned (M5)")
    risk_paths: int = Field(
        100, ge=10, description="sampled futures behind expected cost and late probability"
    )
    solver_seconds: float = Field(10.0, gt=0, description="time limit of one live solve (M3.4)")
    seed: int = Field(
        7, description="seed of the simulated market, the practice jobs and the sampled futures"
    )
    simulated_days: float = Field(21.0, gt=1, description="days of simulated history before the first turn")
    trust: tuple[str, ...] = Field((), description="source labels (globs), the most trusted first")
    assumed_spot_share: float = Field(
        0.30,
        gt=0,
        le=1,
        description="spot price as a share of on-demand where a market has counts but no price",
    )
    assumed_capacity: int = Field(
        8,
        ge=0,
        description="instances always available where a market has a price but no counts; 0 refuses it",
    )
    alarms: AlarmSettings = Field(AlarmSettings.model_validate({}), description="thresholds of the alarms")
    feeds: tuple[Feed, ...] = Field((), description="live feeds, fetched when they are due")
    sinks: tuple[Sink, ...] = Field((), description="where decisions are handed to")
    pool: Path | None = Field(None, description="TOML file of the policy pool; the built-in one if absent")

    @field_validator("sinks")
    @classmethod
    def _named_apart(cls, sinks: tuple[Sink, ...]) -> tuple[Sink, ...]:
        names = [sink.name for sink in sinks]
        if doubled := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two sinks named {doubled[0]!r}, by which deliveries are remembered")
        return sinks

    @field_validator("learner")
    @classmethod
    def _known_learner(cls, name: str) -> str:
        from optimization.learners import LEARNERS  # here, so that settings alone load no numerics

        if name not in LEARNERS:
            raise ValueError(f"no learner {name!r}, expected one of {', '.join(LEARNERS)}")
        return name

    @field_validator("feeds")
    @classmethod
    def _distinct_feeds(cls, feeds: tuple[Feed, ...]) -> tuple[Feed, ...]:
        return distinct(feeds)


def read_settings(path: Path | None = None) -> Settings:
    """Settings from ``path``, else from ``slackwater.toml`` in the working folder, else the defaults.

    Raises `SettingsError` naming the file, the key and what was expected.
    """
    if path is None:
        path = Path(SETTINGS_FILE)
        if not path.exists():
            return Settings.model_validate({})
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        return Settings.model_validate(values)
    except OSError as error:
        raise SettingsError(
            f"settings file {path}: {error.strerror}", remedy="name a readable file"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SettingsError(
            f"settings file {path}: {key}: {first['msg']}", expected=f"one of {sorted(Settings.model_fields)}"
        ) from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # no TOML, no UTF-8, a number without end, brackets without end
        raise SettingsError(f"settings file {path}: {error}", expected="valid TOML") from error
