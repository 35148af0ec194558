"""Terms of a job in the world (M12.9): the only conversion of a job in slots to seconds and rates per hour."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.optimization.job.definition import Job, rates
from slackwater.optimization.moving.definition import MarketsJob
from slackwater.optimization.world.simulation import WorldMarkets, WorldTerms
from slackwater.warehouse.errors import JobError


def world_markets(job: MarketsJob, *, on_demand_usd: Sequence[float], slot_hours: float) -> WorldMarkets:
    """Return a job in all its markets, with the prices of an on-demand instance-hour in each."""
    sold = job.sold or (True,) * len(job.runs)
    return WorldMarkets(
        terms=tuple(
            world_terms(run, on_demand_usd=usd, sold=on)
            for run, usd, on in zip(job.runs, on_demand_usd, sold, strict=True)
        ),
        transfer=job.moving.taken * slot_hours * 3600.0,
        move_usd=job.moving.usd,
        home=job.home,
    )


def world_terms(job: Job, *, on_demand_usd: float, sold: bool = True) -> WorldTerms:
    """Return the terms of a job as one of its markets runs it; ``on_demand_usd`` is the price of an instance-hour there.

    ``sold`` states whether on-demand is sold there. Raises `JobError` for a job without times of its instances (`Job.times`).
    """
    times = job.times
    if times is None:
        raise JobError(
            f"job {job.name!r} has no times of its instances",
            expected="boot, restart and checkpoint, as slot_job computes them from a request",
            remedy="create the job with times=InstanceTimes(...)",
        )
    return WorldTerms(
        rates=tuple(
            float(h) if n >= job.n_min else 0.0 for n, h in enumerate(rates(job.throughput, job.n_max))
        ),
        workload=job.workload,
        on_demand_usd=on_demand_usd,
        boot=times.boot,
        restart=times.restart,
        checkpoint=times.checkpoint,
        notice_saves=times.notice_saves,
        on_demand_wait=times.on_demand_wait,
        sold=sold,
    )
