"""Thresholds of the alarms; their defaults are justified in ``docs/monitoring.md``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

#: Every kind of alarm, and what it means.
ALARM_KINDS: dict[str, str] = {
    "empty ingest": "an ingest added nothing although every market followed was due to be read again",
    "stale source": "a market's newest count or price is older than its maximal age (M1.3)",
    "failing feed": "the last fetch of a live feed failed, brought only a part twice, or is overdue",
    "flat line": "a count or price has kept its value far longer than it ever did",
    "impossible price": "a price that is not positive, or above a multiple of on-demand",
    "price jump": "a price moved by far more than it ever did",
    "rejected rows": "more rows than usual could not be used",
    "drift": "a series is no longer distributed as it was",
    "coverage": "80 % intervals held far more or far less than 80 % of what came",
}


class AlarmSettings(BaseModel):
    """When something is wrong enough to be told; stands under ``[alarms]`` in ``slackwater.toml``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    off: tuple[str, ...] = Field((), description="kinds of alarms that are not wanted")
    grace_minutes: float = Field(
        15.0, ge=0, description="how long after a slot's start its work may take before it is missing"
    )
    recent_hours: float = Field(
        24.0, gt=0, description="how long a jump, an impossible price, a drift or rejected rows stay an alarm"
    )
    empty_gaps: float = Field(
        2.0,
        ge=1,
        description="nominal gaps without a new observation after which an ingest that adds nothing is empty",
    )
    flat_factor: float = Field(4.0, gt=1, description="times the longest past stretch that is a flat line")
    flat_least: int = Field(10, ge=2, description="past stretches needed to judge a flat line")
    price_times_on_demand: float = Field(
        3.0, gt=0, description="a price above this many times on-demand is impossible"
    )
    jump_factor: float = Field(3.0, gt=1, description="times the largest past change that is a price jump")
    jump_least: int = Field(20, ge=2, description="past changes needed to judge a jump")
    rejected_share: float = Field(
        0.01, ge=0, lt=1, description="share of the recent rows that may be rejected"
    )
    coverage_days: float = Field(7.0, gt=0, description="forecasts of so many days are judged by coverage")
    coverage_least: int = Field(24, ge=5, description="independent values needed to judge coverage")
    coverage_chance: float = Field(
        0.001, gt=0, lt=0.5, description="probability that coverage leaves its band by chance, each side"
    )

    @field_validator("off")
    @classmethod
    def _known_kinds(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in ALARM_KINDS:
                raise ValueError(f"no alarm {name!r}, expected some of {', '.join(ALARM_KINDS)}")
        return names
