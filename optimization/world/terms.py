"""Terms of a job in the world (M12.9): the only conversion of a job in slots to seconds and rates per hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from slackwater.optimization.job.definition import InstanceTimes, Job, rates, times_of, work_needed
from slackwater.optimization.kernels.world import HOUR
from slackwater.optimization.moving.definition import MarketsJob
from slackwater.optimization.world.simulation import SECOND_TOLERANCE, WorldMarkets, WorldTerms

TIMES = tuple(field.name for field in fields(InstanceTimes))  # Names of the times of instances


def world_markets(
    job: MarketsJob, *, on_demand_usd: Sequence[float], slot_hours: float, sold: Sequence[bool] | None = None
) -> WorldMarkets:
    """Return a job in all its markets at their on-demand prices; ``sold``: where on-demand is, by default as it states."""
    sold = sold or job.sold or (True,) * len(job.runs)
    return WorldMarkets(
        terms=tuple(
            world_terms(run, on_demand_usd=usd, slot_hours=slot_hours, sold=on)
            for run, usd, on in zip(job.runs, on_demand_usd, sold, strict=True)
        ),
        transfer=job.moving.taken * slot_hours * HOUR,
        move_usd=job.moving.usd,
        slot_seconds=slot_hours * HOUR,
        home=job.home,
    )


def world_terms(job: Job, *, on_demand_usd: float, slot_hours: float, sold: bool = True) -> WorldTerms:
    """Return the terms of a job as one of its markets runs it; ``on_demand_usd`` is the price of an instance-hour there.

    ``sold`` states whether on-demand is sold there. The work is rounded as by M2.6. A job without
    times of its instances restarts in the share of a slot that M2.4 takes, and boots at once.
    """
    times = times_of(job, slot_hours)
    hours = enumerate(rates(job.throughput, job.n_max).tolist())
    return WorldTerms(
        rates=tuple(h if n >= job.n_min else 0.0 for n, h in hours),
        workload=work_needed(job.workload),
        on_demand_usd=on_demand_usd if sold else 0.0,
        sold=sold,
        **{name: getattr(times, name) for name in TIMES},
    )


def planned_job(job: Job, *, slot_hours: float) -> Job:
    """Return a guarded job as policies of the slot model plan it: due a slot earlier, with boot and restart (M12.11).

    Spot runs safely only while a slot without any work leaves on-demand in time. A policy that plans
    to the deadline itself would be cut off by the guard a slot before it. A change of size takes
    boot and restart, or a restart when it shrinks.
    """
    times, seconds = times_of(job, slot_hours), slot_hours * HOUR
    restarts = [times.restart_seconds(n) for n in range(job.n_max + 1)]
    return replace(
        job,
        mu_up=tuple(1.0 - (times.boot + restart) / seconds for restart in restarts),
        mu_down=tuple(1.0 - restart / seconds for restart in restarts),
        deadline_slots=job.deadline_slots - 1,
    )


def on_demand_alone(terms: WorldTerms, deadline: float) -> tuple[int, float]:
    """Return number and cost, USD, of the cheapest on-demand in time (``deadline`` seconds), else of the first to finish."""
    sizes = [n for n, rate in enumerate(terms.rates) if rate > 0.0]
    paid = {n: terms.boot + terms.restart_seconds(n) + terms.workload / terms.rates[n] * HOUR for n in sizes}
    in_time = [n for n in sizes if terms.on_demand_wait + paid[n] <= deadline + SECOND_TOLERANCE]
    n = min(in_time, key=lambda n: n * paid[n]) if in_time else min(sizes, key=lambda n: paid[n])
    return n, n * paid[n] / HOUR * terms.on_demand_usd
