"""Jobs with hard deadlines in the world between decisions (M12), as ``experiment world`` runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from slackwater.optimization.job.definition import Amdahl, InstanceTimes, Job, Linear, Throughput
from slackwater.optimization.job.request import must_finish_value

#: Times of instances in seconds; checkpoints are rare where restarts are long.
TIMES: Final = {
    "short": InstanceTimes(boot=120.0, restart=240.0, checkpoint=600.0),
    "long": InstanceTimes(boot=120.0, restart=900.0, checkpoint=3600.0),
}
FORMS: Final[Mapping[str, Throughput]] = {"linear": Linear(), "Amdahl 0.95": Amdahl(parallel=0.95)}
LOADS: Final = (0.3, 0.5, 0.7, 0.9)
#: Deadlines in half-hour slots, in turn.
DEADLINES: Final = (20, 48)
#: Slots of record before a job.
RECORD_SLOTS: Final = 480


def hard_job(
    form: str, times: str, *, load: float, slots: int, n_max: int, hours: float, on_demand_usd: float
) -> Job:
    """Return a job of up to ``n_max`` instances whose load is a share of their work by the deadline, by names of form and times."""
    taken, throughput = TIMES[times], FORMS[form]
    job = Job(
        name=form,
        workload=load * slots * throughput.rate(n_max) * hours,
        deadline_slots=slots,
        n_min=1,
        n_max=n_max,
        throughput=throughput,
        mu_up=1.0 - (taken.boot + taken.restart) / (hours * 3600.0),
        mu_down=1.0 - taken.restart / (hours * 3600.0),
        value=0.0,
        must_finish=True,
        times=taken,
    )
    return replace(job, value=must_finish_value(job, on_demand_usd=on_demand_usd, slot_hours=hours))
