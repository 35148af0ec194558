"""The file that says how jobs share one market: teams with budgets, and per job its priority, caps and allowed markets."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from optimization.fleet.problem import Team
from optimization.job.request import AmdahlForm, LinearForm, PowerForm, TableForm
from warehouse.errors import SettingsError


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TeamTerms(_Part):
    """A budget that jobs share, USD in all; ``spent_usd`` is gone already, beside what the decisions of open jobs cost."""

    cap_usd: float = Field(ge=0)
    spent_usd: float = Field(0.0, ge=0)


ThroughputForm = Annotated[LinearForm | AmdahlForm | PowerForm | TableForm, Field(discriminator="form")]


class JobTerms(_Part):
    """What a job may do among others.

    ``markets`` are allowed beside its own (None: all followed ones of its source and instance type); ``throughput`` says how
    fast it is on other instance types, in the unit of its own throughput.
    """

    priority: float = Field(1.0, gt=0)
    team: str | None = None
    cap_usd: float | None = Field(None, ge=0)
    markets: tuple[str, ...] | None = None
    throughput: Mapping[str, ThroughputForm] = Field(default_factory=dict)


class Moving(_Part):
    """What leaving a market takes beside the restart: ``minutes`` of a slot, ``usd`` for shipping the checkpoint."""

    minutes: float = Field(0.0, ge=0)
    usd: float = Field(0.0, ge=0)


class FleetTerms(_Part):
    """The whole file; a job that is not named has the defaults of `JobTerms`."""

    teams: Mapping[str, TeamTerms] = Field(default_factory=dict)
    jobs: Mapping[str, JobTerms] = Field(default_factory=dict)
    moving: Moving = Field(default_factory=lambda: Moving(minutes=0.0, usd=0.0))

    def of(self, job: str) -> JobTerms:
        """The terms of a job."""
        return self.jobs.get(job) or JobTerms(priority=1.0, cap_usd=None)

    def budgets(self) -> dict[str, Team]:
        """The teams as the optimizer reads them."""
        return {name: Team(cap_usd=one.cap_usd, spent_usd=one.spent_usd) for name, one in self.teams.items()}


def cap_of(terms: JobTerms) -> float:
    """The job's cap in USD, infinite without one."""
    return math.inf if terms.cap_usd is None else terms.cap_usd


def read_terms(path: Path | None) -> FleetTerms:
    """Read the file (None: nothing is said); raises `SettingsError` naming the file, the key and what was expected."""
    if path is None:
        return FleetTerms()
    remedy = "see docs/many-jobs.md"
    try:
        terms = FleetTerms.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingsError(
            f"teams file {path}: {error.strerror}", remedy="name a readable TOML file"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"teams file {path}: {key}: {first['msg']}", remedy=remedy) from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"teams file {path}: {error}", expected="valid TOML", remedy=remedy) from error
    for name, job in terms.jobs.items():
        if job.team is not None and job.team not in terms.teams:
            raise SettingsError(
                f"teams file {path}: job {name!r} belongs to team {job.team!r}",
                expected=f"one of {', '.join(terms.teams) or 'no team: none is given'}",
                remedy=f"add [teams.{job.team}] with cap_usd",
            )
    return terms
