"""Live feeds as the settings name them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from warehouse.errors import SettingsError


class Feed(BaseModel):
    """One live feed, ``[[feeds]]`` in ``slackwater.toml``: a source, how often it is fetched, and the source's options."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,59}$", description="name of the feed, unique")
    source: str = Field(description="a live source: see `slackwater ingest --list`")
    every_minutes: int = Field(60, ge=1, le=10_080, description="how often it is fetched")
    timeout_seconds: float = Field(60.0, gt=0, le=3600, description="bound of one request")
    tries: int = Field(5, ge=1, le=20, description="tries of one request, with growing waits")
    options: dict[str, Any] = Field(default_factory=dict, description="options of the source")

    @property
    def every(self) -> timedelta:
        """The interval between two fetches."""
        return timedelta(minutes=self.every_minutes)

    @model_validator(mode="after")
    def _usable(self) -> Feed:
        from warehouse.sources.live import LIVE_SOURCES  # here, so that settings without feeds load none

        if self.source not in LIVE_SOURCES:
            raise ValueError(f"no live source {self.source!r}, expected one of {', '.join(LIVE_SOURCES)}")
        try:
            LIVE_SOURCES[self.source].check(self.options)
        except SettingsError as error:
            raise ValueError(f"feed {self.name!r}: {error}") from error
        return self


def distinct(feeds: tuple[Feed, ...]) -> tuple[Feed, ...]:
    """The feeds, if no two have the same name; raises `ValueError`."""
    names = [feed.name for feed in feeds]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two feeds named {name!r}, expected names that differ")
    return feeds
