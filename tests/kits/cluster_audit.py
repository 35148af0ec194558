"""Invariants of every run of a cluster, recomputed from its segments, in the manner of M3.5."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from slackwater.studies.cluster.simulation import ClusterRun, Segment
from slackwater.warehouse.errors import AuditError

#: Permitted relative error of floating-point sums.
ROUNDING = 1e-6


def audit_run(run: ClusterRun) -> None:
    """Raise `AuditError` unless the run adds up.

    No node was ever over-allocated, no job was in two places or ran before it arrived, every job did exactly
    its work, and every failure was an attempt that does not run.
    """
    for node in range(run.cluster.nodes):
        most = peak_gpus([s for s in run.segments if s.node == node])
        if most > run.cluster.gpus_per_node:
            raise AuditError(f"node {node} held {most} GPUs", expected=f"at most {run.cluster.gpus_per_node}")
    stays: list[list[Segment]] = [[] for _ in run.jobs]
    for segment in run.segments:
        stays[segment.job].append(segment)
    for number, segments in enumerate(stays):
        _audit_job(run, number, sorted(segments, key=lambda s: s.start_s))


def peak_gpus(segments: list[Segment]) -> int:
    """Return the most GPUs in use at a time; a segment that begins when another ends does not overlap it."""
    moves = sorted([(s.start_s, 1, s.gpus) for s in segments] + [(s.end_s, 0, -s.gpus) for s in segments])
    return int(np.cumsum([gpus for *_, gpus in moves]).max()) if moves else 0


def _audit_job(run: ClusterRun, number: int, segments: list[Segment]) -> None:
    job = run.jobs[number]
    done = sum(s.work for s in segments)
    if abs(done - job.work) > ROUNDING * job.work:
        raise AuditError(f"job {job.name!r} did {done:g} units of work", expected=f"its {job.work:g}")
    if segments[0].start_s < job.arrival_s - ROUNDING:
        raise AuditError(f"job {job.name!r} began before it arrived", expected="a start from its arrival on")
    for before, after in pairwise(segments):
        if after.start_s < before.end_s - ROUNDING:
            raise AuditError(
                f"job {job.name!r} ran twice at {after.start_s:g} s", expected="one stay at a time"
            )
    for s in segments:
        if s.gpus != job.attempts[s.attempt].gpus or s.failed != (
            s.failed and job.attempts[s.attempt].rate <= 0
        ):
            raise AuditError(
                f"a stay of job {job.name!r} is not its attempt {s.attempt}", expected="its own GPUs"
            )
    if abs(segments[-1].end_s - run.finished_s[number]) > ROUNDING * max(1.0, run.finished_s[number]):
        raise AuditError(
            f"job {job.name!r} ended at another time than its last stay", expected="the same time"
        )
