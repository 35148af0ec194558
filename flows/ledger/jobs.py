"""Jobs as the warehouse keeps them: placed requests, each with where it came from and when it was added."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pandas as pd

from optimization.job.request import JobRequest, first_slot
from warehouse.errors import JobError
from warehouse.issued import write_rows
from warehouse.store.connection import Store
from warehouse.times import utc_index


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A placed request as kept: ``origin`` is "user", "example" or "practice"; it was added at ``created_at``.

    ``start`` is the start of the job's first slot, ``deadline`` the end of the last whole slot before its deadline.
    """

    request: JobRequest
    origin: str
    step: pd.Timedelta
    created_at: pd.Timestamp
    # Kept, not asked for each time: every turn sorts all jobs there ever were.
    start: pd.Timestamp = field(init=False)
    deadline: pd.Timestamp = field(init=False)

    def __post_init__(self) -> None:
        """Raise `JobError` if the request is not placed."""
        object.__setattr__(self, "start", first_slot(self.request, self.step))
        object.__setattr__(self, "deadline", self.request.ends.floor(self.step))


def save_jobs(
    store: Store, requests: Iterable[JobRequest], *, origin: str, at: pd.Timestamp, step: pd.Timedelta
) -> int:
    """Keep placed requests; the same again adds nothing. Raises `JobError` if a name is taken by another job."""
    requests = list(requests)
    if not requests:
        return 0
    known = {job.request.name: job for job in stored_jobs(store)}
    rows = []
    for request in requests:
        before = known.get(request.name)
        if before is not None and before.request != request:
            raise JobError(
                f"job {request.name!r} is known with other terms",
                remedy="give it another name with --name, or another deadline in its file",
            )
        rows.append(
            {
                "name": request.name,
                "market": request.market,
                "source": request.source or "",
                "spec": request.model_dump_json(),
                "origin": origin,
                "created_at": at,
                "start_at": first_slot(request, step),
                "deadline_at": request.ends,
                "step_seconds": int(step / pd.Timedelta(seconds=1)),
            }
        )
    return write_rows(store, "jobs", pd.DataFrame(rows)).added if rows else 0


def stored_jobs(store: Store) -> list[StoredJob]:
    """Every job, by start and name."""
    rows = store.execute("SELECT spec, origin, step_seconds, epoch_us(created_at) FROM jobs")
    return list(_in_order(tuple(rows)))


@lru_cache(maxsize=2)
def _in_order(rows: tuple[tuple[str, str, int, int], ...]) -> tuple[StoredJob, ...]:
    """Jobs by start and name: every turn asks, and seldom is there a new one."""
    jobs = [_stored_job(*row) for row in rows]
    return tuple(sorted(jobs, key=lambda job: (job.start, job.request.name)))


@lru_cache(maxsize=16_384)
def _stored_job(spec: str, origin: str, step_seconds: int, created_us: int) -> StoredJob:
    """A job as it is stored; it never changes, and every turn reads all of them."""
    return StoredJob(
        request=JobRequest.model_validate_json(spec),
        origin=origin,
        step=pd.Timedelta(seconds=int(step_seconds)),
        created_at=utc_index(np.array([created_us], dtype=np.int64))[0],
    )


def find_job(store: Store, name: str) -> StoredJob:
    """The job of that name; raises `JobError` with the known names."""
    jobs = stored_jobs(store)
    for job in jobs:
        if job.request.name == name:
            return job
    names = ", ".join(job.request.name for job in jobs[:5]) or "none"
    raise JobError(
        f"no job {name!r} in the warehouse", expected=f"a known job ({names})", remedy="`slackwater job list`"
    )
