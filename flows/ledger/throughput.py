"""Throughput of jobs with a configuration, computed from the reports known at a time (M9.4, M1.2), never stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.ledger.reports import Report
from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.job.request import FilledConfiguration

SOURCE = "reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Tokens per second of a job with a configuration, between two reports with a constant number of ``instances``."""

    job: str
    filled: FilledConfiguration
    instances: int
    since: pd.Timestamp
    reported_at: pd.Timestamp
    tokens_per_second: float

    @property
    def predicted(self) -> float:
        """The median predicted when the configuration was chosen, tokens per second."""
        return self.filled.tokens_per_second[self.instances - 1]

    @property
    def interval(self) -> tuple[float, float]:
        """The predicted 90 % interval, tokens per second."""
        return self.filled.low[self.instances - 1], self.filled.high[self.instances - 1]

    @property
    def inside(self) -> bool:
        """Whether the measurement is inside the interval."""
        low, high = self.interval
        return low <= self.tokens_per_second <= high

    def row(self) -> dict[str, Any]:
        """Return the run as plain values; ``error`` is measured over predicted, minus 1."""
        low, high = self.interval
        return {
            "since": self.since,
            "instances": self.instances,
            "number_gpus": self.instances * self.filled.gpus_per_instance,
            "tokens_per_second": self.tokens_per_second,
            "predicted": self.predicted,
            "low": low,
            "high": high,
            "inside": self.inside,
            "error": self.tokens_per_second / self.predicted - 1.0,
            "why_not": "",
        }

    def run(self) -> dict[str, Any]:
        """Return the run as a row of measured runs; the batch size is that of a round of whole batches per GPU."""
        place = self.instances - 1
        samples = self.filled.round_samples[place]
        return {
            "model_name": self.filled.model_name,
            "method": self.filled.method,
            "gpu_model": self.filled.gpu_model,
            "number_nodes": self.instances,
            "number_gpus": self.instances * self.filled.gpus_per_instance,
            "tokens_per_sample": self.filled.tokens_per_sample,
            "batch_size": samples,
            "torch_dtype": self.filled.torch_dtype,
            "tokens_per_second": self.tokens_per_second
            * self.filled.rounds[place]
            * samples
            / self.filled.batch_size,
            "source": SOURCE,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedStretch:
    """A report with the last report of progress before it (None: the job's start), and the reports between."""

    report: Report
    before: Report | None
    between: tuple[Report, ...]


def measured_run(
    stored: StoredJob, decided: Mapping[pd.Timestamp, Allocation], stretch: ReportedStretch
) -> MeasuredRun | str:
    """Return the throughput measured by a report, or why there is none (ours).

    The number of instances must be constant since the report before: by both reports, or by the report and
    every decision between. The overhead of a change of size at the beginning is subtracted from the time.
    """
    filled, report, before = stored.request.configuration, stretch.report, stretch.before
    if filled is None:
        return "the job was not filled"
    if report.finished:
        return "when it finished is not known, only that it had by then"
    if report.progress is None:
        return "no progress was reported"
    since = before.reported_at if before else stored.start
    done = report.progress - ((before.progress or 0.0) if before else 0.0)
    sizes = _sizes(stored, decided, stretch, since)
    if len(sizes) != 1:
        sizes_text = " and ".join(str(size) for size in sorted(sizes))
        return (
            f"{sizes_text} instances were held in between"
            if sizes
            else "the instances that ran were not reported"
        )
    instances = sizes.pop()
    if not 1 <= instances <= len(filled.tokens_per_second) or filled.tokens_per_second[instances - 1] <= 0:
        return f"nothing was predicted for {instances} instances"
    seconds = (report.reported_at - since).total_seconds() - 60.0 * _overhead(
        stored, decided, stretch, instances
    )
    if seconds <= 0 or done <= 0:
        return "no time beyond the change of size went by" if seconds <= 0 else "no progress was made"
    return MeasuredRun(
        job=report.job,
        filled=filled,
        instances=instances,
        since=since,
        reported_at=report.reported_at,
        tokens_per_second=done / seconds,
    )


def _sizes(
    stored: StoredJob,
    decided: Mapping[pd.Timestamp, Allocation],
    stretch: ReportedStretch,
    since: pd.Timestamp,
) -> set[int]:
    """Return the different sizes that ran from ``since`` to the report, as far as known."""
    reported = {report.held.total for report in (*stretch.between, stretch.report) if report.held is not None}
    before = stretch.before.held if stretch.before else None
    if before is not None and stretch.report.held is not None and reported == {before.total}:
        return reported  # reported at both ends: overrides the decisions in between
    slots = pd.date_range(
        since.floor(stored.step), stretch.report.reported_at, freq=stored.step, inclusive="left"
    )
    inside = [decided[slot].total for slot in slots if slot in decided]
    if stretch.report.held is None and len(inside) < len(slots):
        return set()  # neither reported nor decided
    if before is not None and not inside:
        reported.add(before.total)
    return reported | set(inside)


def _overhead(
    stored: StoredJob, decided: Mapping[pd.Timestamp, Allocation], stretch: ReportedStretch, instances: int
) -> float:
    """Return the minutes taken by a change of size at the beginning."""
    point = stored.request.checkpoint
    if stretch.before is None:
        return point.overhead_minutes  # first launch
    held = stretch.before.held
    earlier = held.total if held is not None else None
    if earlier is None:
        slot = (stretch.before.reported_at - pd.Timedelta(microseconds=1)).floor(stored.step)
        advised = decided.get(slot)
        earlier = advised.total if advised is not None else instances
    if earlier == instances:
        return 0.0
    shrink = point.shrink_overhead_minutes
    return point.overhead_minutes if instances > earlier or shrink is None else shrink


def stretches(reports: Sequence[Report]) -> list[ReportedStretch]:
    """Return the reports in force, ascending, each with the reports before it."""
    found: list[ReportedStretch] = []
    before: Report | None = None
    between: list[Report] = []
    for report in reports:
        found.append(ReportedStretch(report=report, before=before, between=tuple(between)))
        if report.progress is not None:
            before, between = report, []
        else:
            between.append(report)
    return found


def measured_rows(
    stored: StoredJob, decided: Mapping[pd.Timestamp, Allocation], reports: Sequence[Report]
) -> list[dict[str, Any] | None]:
    """Return the measurement of every report in force, or ``why_not``; None for jobs without a configuration."""
    if stored.request.configuration is None:
        return [None for _ in reports]
    rows: list[dict[str, Any] | None] = []
    for stretch in stretches(reports):
        found = measured_run(stored, decided, stretch)
        rows.append({"why_not": found} if isinstance(found, str) else found.row())
    return rows


def throughput_words(row: Mapping[str, Any]) -> str:
    """Return a row of `measured_rows` as a sentence."""
    if row["why_not"]:
        return f"the throughput was not measured: {row['why_not']}"
    place = "inside" if row["inside"] else "outside"
    return (
        f"{row['tokens_per_second']:.0f} tokens/s on {row['instances']} instances, predicted {row['predicted']:.0f} "
        f"({row['error']:+.1%}), {place} the 90 % interval {row['low']:.0f} to {row['high']:.0f}"
    )
