"""Terms of a job in the world (M12.9): the only conversion of a job in slots to seconds and rates per hour."""

from __future__ import annotations

from slackwater.optimization.job.definition import InstanceTimes, Job, rates
from slackwater.optimization.world.simulation import WorldTerms


def world_terms(job: Job, *, on_demand_usd: float, slot_hours: float) -> WorldTerms:
    """Return the terms of a job as one of its markets runs it; ``on_demand_usd`` is the price of an instance-hour there.

    A job without times of its instances restarts in the share of a slot that M2.4 takes, and boots at once.
    """
    restart = (1.0 - job.mu_up) * slot_hours * 3600.0
    times = job.times or InstanceTimes(boot=0.0, restart=restart, checkpoint=0.0)
    hours = enumerate(rates(job.throughput, job.n_max).tolist())
    return WorldTerms(
        rates=tuple(h if n >= job.n_min else 0.0 for n, h in hours),
        workload=job.workload,
        on_demand_usd=on_demand_usd,
        boot=times.boot,
        restart=times.restart,
        checkpoint=times.checkpoint,
        notice_saves=times.notice_saves,
        on_demand_wait=times.on_demand_wait,
    )
