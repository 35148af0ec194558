"""The deployments, said once: ``slackwater serve`` serves them, ``prefect.yaml`` says the same for a work pool (a test compares).

Three are scheduled: the pipeline at every slot, the status four times an hour, and the accuracy report once a day. The single
stages and the backfill are there to be run by hand or by an automation. Limits keep one run of a deployment at a time, but
nothing depends on them: the engine may lose a slot or count one twice when a process dies. What keeps a slot from being done
twice is the warehouse: one process writes, a second one waits for it, and a stage that is done adds nothing when it is done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from warehouse.errors import SettingsError

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment
    from prefect.schedules import Schedule

#: The work pool of ``prefect.yaml``, of type process, and its queues: backfills have their own, so that live runs are served.
POOL, LIVE_QUEUE, BACKFILL_QUEUE = "slackwater", "default", "backfill"
#: Seconds that the engine waits for a run's process to start before it gives the run's place to another.
GRACE_SECONDS = 300
#: Schedules by interval count from here, as slots do, so that every scheduled time is the start of a slot.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: What happens to a run that comes while another is going: it waits, or it is cancelled.
Collision = Literal["ENQUEUE", "CANCEL_NEW"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One deployment: which flow, when, with what, and one run of it at a time.

    ``flow`` is the way to import it. A ``cron`` is UTC; without one it is not scheduled. Paths among ``parameters`` are relative to
    the folder the deployments were made in. Retries and time limits are the flow's own (`flows.engine.flows`).
    """

    name: str
    flow: str
    description: str
    cron: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    queue: str = LIVE_QUEUE
    collision: Collision = "ENQUEUE"

    def entry(self) -> dict[str, Any]:
        """The deployment as an entry of ``prefect.yaml``."""
        schedules = [{"cron": self.cron, "timezone": "UTC"}] if self.cron else []
        return {
            "name": self.name,
            "entrypoint": self.flow,
            "description": self.description,
            "schedules": schedules,
            "parameters": self.parameters,
            "tags": list(self.tags),
            "enforce_parameter_schema": True,
            "concurrency_limit": {
                "limit": 1,
                "collision_strategy": self.collision,
                "grace_period_seconds": GRACE_SECONDS,
            },
            "work_pool": {"name": POOL, "work_queue_name": self.queue},
        }


_DB = {"db": "slackwater.duckdb"}
#: Every deployment, the scheduled ones first.
DEPLOYMENTS = (
    Deployment(
        name="every-slot",
        flow="flows.engine.flows.pipeline",
        description="One turn at every slot: ingest, forecast, decide, score, report. The slot is the scheduled time's.",
        cron="*/30 * * * *",
        parameters={**_DB, "report": "reports/report.html"},
        tags=("slackwater", "live"),
    ),
    Deployment(
        name="daily",
        flow="flows.accuracy.flow.accuracy_report",
        description="Every forecaster measured again over the whole record, once a day, with a page.",
        cron="20 0 * * *",
        parameters={**_DB, "html": "reports/accuracy.html"},
        tags=("slackwater", "report"),
        collision="CANCEL_NEW",
    ),
    Deployment(
        name="watch",
        flow="flows.monitoring.flow.status",
        description="What is missing, failed or stale, four times an hour: alarms as events, and a page.",
        cron="10-59/15 * * * *",
        parameters={**_DB, "html": "reports/status.html"},
        tags=("slackwater", "report"),
        collision="CANCEL_NEW",
    ),
    Deployment(
        name="by-hand",
        flow="flows.engine.flows.ingest",
        description="The first stage of a turn alone.",
        parameters=_DB,
        tags=("slackwater", "stage"),
    ),
    Deployment(
        name="by-hand",
        flow="flows.engine.flows.forecast",
        description="The second stage of a turn alone: issue the forecasts of a slot and measure them.",
        parameters=_DB,
        tags=("slackwater", "stage"),
    ),
    Deployment(
        name="by-hand",
        flow="flows.engine.flows.allocate",
        description="The third stage of a turn alone: decide a slot for every running job.",
        parameters=_DB,
        tags=("slackwater", "stage"),
    ),
    Deployment(
        name="by-hand",
        flow="flows.engine.flows.score",
        description="The last stage of a turn alone: replay the pool on the jobs that ended and learn from them.",
        parameters=_DB,
        tags=("slackwater", "stage"),
    ),
    Deployment(
        name="by-hand",
        flow="flows.backfill.flow.backfill",
        description="Make the turns of past slots afterwards, many slots in one run, beside the live ones.",
        parameters=_DB,
        tags=("slackwater", "backfill"),
        queue=BACKFILL_QUEUE,
    ),
)


def flow_name(deployment: Deployment) -> str:
    """The name of a deployment's flow in Prefect: its function's, with dashes."""
    return deployment.flow.rsplit(".", 1)[1].replace("_", "-")


def full_name(deployment: Deployment) -> str:
    """``flow/deployment``: how Prefect's commands name it."""
    return f"{flow_name(deployment)}/{deployment.name}"


def prefect_yaml(deployments: Sequence[Deployment] = DEPLOYMENTS) -> dict[str, Any]:
    """What ``prefect.yaml`` says, as plain values."""
    return {"name": POOL, "deployments": [deployment.entry() for deployment in deployments]}


def chosen_deployments(only: Sequence[str]) -> tuple[Deployment, ...]:
    """The deployments of these flows, or all; raises `SettingsError` naming the known flows."""
    known = {flow_name(one): one for one in DEPLOYMENTS}
    for name in only:
        if name not in known:
            raise SettingsError(f"--only {name!r}", expected=f"one of {', '.join(known)}")
    return tuple(one for name, one in known.items() if not only or name in only)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How one machine serves the deployments: files for their flows, and the time between turns (None: as scheduled)."""

    db: Path
    data: Path | None = None
    settings: Path | None = None
    every: timedelta | None = None

    def parameters(self, deployment: Deployment, accepted: Sequence[str]) -> dict[str, Any]:
        """The deployment's parameters with these files, as far as its flow takes them."""
        own = {"db": self.db, "data": self.data, "settings": self.settings}
        given = {key: str(path) for key, path in own.items() if path is not None and key in accepted}
        return {**deployment.parameters, **given}

    def schedule(self, deployment: Deployment) -> Schedule | None:
        """When it runs: turns every ``every`` from the epoch on if that is given, else by its cron."""
        from prefect.schedules import Cron, Interval

        if deployment.cron is None:
            return None
        if every := self._interval(deployment):
            return Interval(every, anchor_date=EPOCH, timezone="UTC")
        return Cron(deployment.cron, timezone="UTC")

    def said(self, deployment: Deployment) -> str:
        """When it runs, in words."""
        if deployment.cron is None:
            return "when it is asked for"
        every = self._interval(deployment)
        return f"every {every}" if every else f"by cron {deployment.cron!r} UTC"

    def _interval(self, deployment: Deployment) -> timedelta | None:
        return self.every if deployment.flow == "flows.engine.flows.pipeline" else None


def runner_deployment(deployment: Deployment, served: Served) -> RunnerDeployment:
    """A deployment as Prefect serves it from one process; its flow is found by import, from whatever folder."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.flows import Flow
    from prefect.types.entrypoint import EntrypointType

    module, _, function = deployment.flow.rpartition(".")
    flow: Flow[..., Any] = getattr(import_module(module), function)
    made = flow.to_deployment(
        name=deployment.name,
        schedule=served.schedule(deployment),
        parameters=served.parameters(deployment, list(flow.parameters.properties)),
        description=deployment.description,
        tags=list(deployment.tags),
        concurrency_limit=ConcurrencyLimitConfig(
            limit=1,
            collision_strategy=ConcurrencyLimitStrategy(deployment.collision),
            grace_period_seconds=GRACE_SECONDS,
        ),
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    return cast("RunnerDeployment", made)
