"""Stored jobs, reports on their progress, and the throughput measured from reports (M1.2, M2.4, M9.4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pandas as pd
from pydantic import ValidationError

from slackwater.optimization.job.request import JobRequest, check_bounds, first_slot, term_changes
from slackwater.warehouse.errors import JobError, unknown_job
from slackwater.warehouse.issued import write_rows
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import microseconds, moment, utc_index


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A placed request as stored, with its ``origin`` "user" or "example"; added at ``created_at``.

    Older warehouses also have the origin "practice": synthetic jobs for learning that ended before
    they were added.

    ``start`` is the start of the job's first slot, ``deadline`` the end of the last whole slot
    before its deadline. ``changed_at`` is when these terms became known, None for the terms with
    which it was added (M2.9).
    """

    request: JobRequest
    origin: str
    step: pd.Timedelta
    created_at: pd.Timestamp
    changed_at: pd.Timestamp | None = None
    # Stored instead of computed on access: every turn sorts all jobs.
    start: pd.Timestamp = field(init=False)
    deadline: pd.Timestamp = field(init=False)

    def __post_init__(self) -> None:
        """Raise `JobError` if the request is not placed."""
        object.__setattr__(self, "start", first_slot(self.request, self.step))
        object.__setattr__(self, "deadline", self.request.ends.floor(self.step))

    @property
    def known_at(self) -> pd.Timestamp:
        """Time at which the terms became known."""
        return self.created_at if self.changed_at is None else self.changed_at

    @property
    def changed_under_way(self) -> bool:
        """Whether its terms changed after its first slot began, so that no replay can reproduce it (M2.9)."""
        return self.changed_at is not None and self.changed_at > self.start


def save_jobs(
    store: Store, requests: Iterable[JobRequest], *, origin: str, at: pd.Timestamp, step: pd.Timedelta
) -> int:
    """Store placed requests and return the number of new jobs.

    A request with terms that a stored job has had adds nothing. Raises `JobError` if the name
    belongs to a job with other terms.
    """
    requests = list(requests)
    if not requests:
        return 0
    known = {job.request.name: job for job in stored_jobs(store)}
    rows = []
    for request in requests:
        check_bounds(request)
        before = known.get(request.name)
        if before is not None and all(
            version.request != request for version in [before, *terms_of(store, before)]
        ):
            others = [change.term for change in term_changes(before.request, request)]
            raise JobError(
                f"job {request.name!r} is known with other terms ({', '.join(others)})",
                remedy="`slackwater job change` changes the terms of a job; another job needs another name (--name)",
            )
        rows.append(
            {
                "name": request.name,
                "market": request.market or "",
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


def stored_jobs(store: Store, *, known_at: pd.Timestamp | None = None) -> list[StoredJob]:
    """Return every readable job, also later ones, with the terms known at a time (None: now), by start and name (M2.9)."""
    return list(_in_order(_job_rows(store, known_at))[0])


def unreadable_jobs(store: Store, *, known_at: pd.Timestamp | None = None) -> list[str]:
    """Return messages on stored jobs whose terms cannot be read: an older version accepted them."""
    return list(_in_order(_job_rows(store, known_at))[1])


_JobRow = tuple[str, str, str, int, int, int | None]  # Arguments of `_stored_job`
#: The terms in force of every job: those of its last change, else those with which it was added.
_IN_FORCE = """
    SELECT name, coalesce(changed.spec, jobs.spec), origin, step_seconds, epoch_us(created_at), epoch_us(changed.known_at)
    FROM jobs LEFT JOIN (
        SELECT job, spec, known_at FROM terms WHERE $known_at IS NULL OR known_at <= $known_at
        QUALIFY row_number() OVER (PARTITION BY job ORDER BY known_at DESC, revision DESC) = 1
    ) AS changed ON changed.job = jobs.name
"""


def _job_rows(store: Store, known_at: pd.Timestamp | None) -> tuple[_JobRow, ...]:
    parameters = {"known_at": None if known_at is None else moment(known_at, "known_at")}
    return tuple(store.execute(_IN_FORCE, parameters))


@lru_cache(maxsize=2)
def _in_order(rows: tuple[_JobRow, ...]) -> tuple[tuple[StoredJob, ...], tuple[str, ...]]:
    """Return jobs by start and name, and messages on unreadable jobs; cached because every turn calls it."""
    jobs = [_stored_job(*row) for row in rows]
    readable = [job for job in jobs if isinstance(job, StoredJob)]
    return (
        tuple(sorted(readable, key=lambda job: (job.start, job.request.name))),
        tuple(job for job in jobs if isinstance(job, str)),
    )


@lru_cache(maxsize=16_384)
def _stored_job(
    name: str, spec: str, origin: str, step_seconds: int, created_us: int, changed_us: int | None
) -> StoredJob | str:
    """Return a stored job, or why it cannot be read; cached because every turn reads all jobs and rows never change."""
    try:
        return StoredJob(
            request=_request_of(spec, name),
            origin=origin,
            step=pd.Timedelta(seconds=int(step_seconds)),
            created_at=_time(created_us),
            changed_at=None if changed_us is None else _time(changed_us),
        )
    except JobError as error:
        return f"job {name} is left out: {error}"


def _request_of(spec: str, name: str) -> JobRequest:
    """Return the placed request of a stored text; raises `JobError` if it cannot be read or has another name."""
    try:
        request = JobRequest.model_validate_json(spec)
        _ = request.starts, request.ends
    except ValidationError as error:
        raise JobError(f"its stored {_invalid(error, ' cannot be read')}") from error
    except (ValueError, OverflowError) as error:  # times outside the range of pandas, or without a zone
        raise JobError(f"its stored times cannot be read: {error}") from error
    if request.name != name:
        raise JobError(f"its stored text is of job {request.name!r}")
    return request


def _invalid(error: ValidationError, words: str = "") -> str:
    """Return the first invalid key of a stored text, with ``words`` after it, and why it is invalid."""
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'text'}{words}: {first['msg']}"


def unusable_spec(spec: str) -> str:
    """Return why a stored text of a job cannot be used, "" if it can."""
    try:
        request = JobRequest.model_validate_json(spec)
        _request_of(spec, request.name)
        check_bounds(request)
    except ValidationError as error:
        return _invalid(error)
    except JobError as error:
        return str(error)
    return ""


def _time(us: int) -> pd.Timestamp:
    return utc_index(np.array([us], dtype=np.int64))[0]


def find_job(store: Store, name: str, *, known_at: pd.Timestamp | None = None) -> StoredJob:
    """Return a job by name, with the terms known at a time (None: now); raises `JobError` with the known names."""
    jobs = stored_jobs(store, known_at=known_at)
    for job in jobs:
        if job.request.name == name:
            return job
    raise unknown_job(name, [job.request.name for job in jobs])


# ---
# Changes of a job's terms: a row each, known from a time on; earlier decisions do not use it (M1.2, M2.9).


def terms_of(store: Store, stored: StoredJob) -> list[StoredJob]:
    """Return the job with each of its terms in turn, the original terms first; unreadable terms are left out."""
    rows = store.execute(
        "SELECT spec, NULL AS known_us, -1 AS revision FROM jobs WHERE name = $job UNION ALL "
        "SELECT spec, epoch_us(known_at), revision FROM terms WHERE job = $job ORDER BY known_us NULLS FIRST, revision",
        {"job": stored.request.name},
    )
    step, created = int(stored.step / pd.Timedelta(seconds=1)), microseconds(stored.created_at, "created_at")
    name = stored.request.name
    found = [_stored_job(name, spec, stored.origin, step, created, known_us) for spec, known_us, _ in rows]
    return [version for version in found if isinstance(version, StoredJob)]
