"""Times that instances of a job take in a market: stated, measured, or assumed for the provider (M12.9) (ours)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from slackwater.optimization.job.definition import InstanceTimes
from slackwater.warehouse.documents import read_data

if TYPE_CHECKING:
    from slackwater.optimization.job.request import JobRequest

#: Keys of a job file with a time of its instances, in the order of answers.
TIME_KEYS = (
    "boot_minutes",
    "restart_minutes",
    "checkpoint_minutes",
    "notice_seconds",
    "on_demand_wait_minutes",
)
#: Those that an owner can measure and report.
MEASURABLE = ("boot_minutes", "restart_minutes", "checkpoint_minutes", "on_demand_wait_minutes")
GIVEN, MEASURED = "given", "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedTime:
    """A time of `TIME_KEYS`, in the unit of its key.

    ``origin`` is "given" (in the job file), "measured" (in reports) or "assumed for" a provider;
    ``source`` is the source of an assumption, else the key that states the value.
    """

    key: str
    value: float
    origin: str
    source: str


def stated_times(
    request: JobRequest, provider: str, measured: Mapping[str, float] | None = None
) -> tuple[StatedTime, ...]:
    """Return the times of a job's instances at a provider: measured before given before assumed.

    A positive ``checkpoint.overhead_minutes`` is the restart of a job without ``restart_minutes``.
    """
    return tuple(_stated_time(request, provider, key, measured or {}) for key in TIME_KEYS)


def _stated_time(request: JobRequest, provider: str, key: str, measured: Mapping[str, float]) -> StatedTime:
    given = getattr(request, key)
    if key in measured:
        return StatedTime(key=key, value=measured[key], origin=MEASURED, source="reports")
    if given is not None:
        return StatedTime(key=key, value=given, origin=GIVEN, source=key)
    overhead = request.checkpoint.overhead_minutes
    if key == "restart_minutes" and overhead > 0.0:
        source = "checkpoint.overhead_minutes"
        return StatedTime(key=key, value=overhead, origin=GIVEN, source=source)
    assumed, other = _assumed_times(provider)
    table = assumed if key in assumed else other
    return StatedTime(
        key=key,
        value=float(table[key]),
        origin=f"assumed for {assumed.get('name', provider)}",
        source=str(table["sources"][key]),
    )


def _assumed_times(provider: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the assumptions for a provider, and those that hold where it has none."""
    known = read_data("slackwater.optimization", "instance_times")
    return known.get(provider, {}), known["other"]


def instance_times(
    request: JobRequest, provider: str, measured: Mapping[str, float] | None = None
) -> InstanceTimes:
    """Return the times of a job's instances at a provider in seconds."""
    found = {time.key: time.value for time in stated_times(request, provider, measured)}
    assumed, other = _assumed_times(provider)
    return InstanceTimes(
        boot=found["boot_minutes"] * 60.0,
        restart=found["restart_minutes"] * 60.0,
        checkpoint=found["checkpoint_minutes"] * 60.0,
        notice_saves=found["notice_seconds"] >= float(assumed.get("save_seconds", other["save_seconds"])),
        on_demand_wait=found["on_demand_wait_minutes"] * 60.0,
    )


def work_after(request: JobRequest, market: str, instances: int) -> timedelta:
    """Return how long after its grant a new group of ``instances`` works in a market: boot and restart."""
    times = instance_times(request, market.partition("/")[0])
    return timedelta(seconds=times.boot + times.restart_seconds(instances))


def providers_of(request: JobRequest) -> tuple[str, ...]:
    """Return the providers that a request names; a pattern stands for the providers with assumptions that match it."""
    known = [name for name in read_data("slackwater.optimization", "instance_times") if name != "as_of"]
    named = [text.partition("@")[0].split("/")[0] for text in request.markets]
    named += [request.market.split("/")[0]] if request.market is not None else []
    return tuple(
        dict.fromkeys(
            provider
            for pattern in named
            for provider in ([name for name in known if fnmatchcase(name, pattern)] or [pattern])
        )
    )


def times_rows(request: JobRequest, measured: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
    """Return the times of a job's instances as plain values: one row for each provider and key."""
    return [
        {
            "provider": provider,
            "key": time.key,
            "value": time.value,
            "origin": time.origin,
            "source": time.source,
        }
        for provider in providers_of(request)
        for time in stated_times(request, provider, measured)
    ]


def times_words(times: InstanceTimes, instances: int, *, granted: bool) -> list[str]:
    """Return the times of a group of ``instances`` as parts of a sentence; ``granted``: with the wait for on-demand.

    >>> times_words(InstanceTimes(boot=120.0, restart=240.0, checkpoint=600.0), 1, granted=True)
    ['is granted at once', 'boots in 2 min', 'restarts in 4 min']
    """
    wait = f"within {_minutes(times.on_demand_wait)}" if times.on_demand_wait else "at once"
    restart = times.restart_seconds(instances)
    return [
        *([f"is granted {wait}"] if granted else []),
        *([f"boots in {_minutes(times.boot)}"] if times.boot else []),
        *([f"restarts in {_minutes(restart)}"] if restart else []),
    ]


def saving_words(times: InstanceTimes) -> str:
    """Return when the job is assumed to save its work, as a part of a sentence; "" if every moment is saved.

    >>> saving_words(InstanceTimes(boot=0.0, restart=0.0, checkpoint=600.0))
    ', the job saves every 10 min'
    >>> saving_words(InstanceTimes(boot=0.0, restart=0.0, checkpoint=600.0, notice_saves=True))
    ', the job saves at the notice of a loss'
    """
    if times.notice_saves:
        return ", the job saves at the notice of a loss"
    return f", the job saves every {_minutes(times.checkpoint)}" if times.checkpoint else ""


def _minutes(seconds: float) -> str:
    return f"{seconds / 60.0:.3g} min"


def loss_rows(request: JobRequest, measured: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
    """Return the most work that a loss of spot now would cost at each provider: minutes of work, and a sentence."""
    rows = []
    for provider in providers_of(request):
        stated = {time.key: time for time in stated_times(request, provider, measured)}
        saves = instance_times(request, provider, measured).notice_saves
        every, notice = stated["checkpoint_minutes"], stated["notice_seconds"]
        text = (
            f"A loss now would cost no work: the notice of {notice.value:g} s is long enough to save ({notice.origin})."
            if saves
            else f"A loss now would cost up to {every.value:g} min of work, the time between checkpoints ({every.origin})."
        )
        rows.append({"provider": provider, "minutes": 0.0 if saves else every.value, "told": text})
    return rows
