"""Thresholds of the alarms; their defaults are justified in ``docs/monitoring.md``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class AlarmSettings(BaseModel):
    """When something is wrong enough to be told; stands under ``[alarms]`` in ``slackwater.toml``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    grace_minutes: float = Field(
        15.0, ge=0, description="how long after a slot's start its work may take before it is missing"
    )
