"""What ``job report`` does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flows.clock import now, parse_time
from flows.job_report import Report, counting, differences, every_report, report_row, save_report
from flows.jobfile import JobRequest
from flows.measured_runs import measured_rows, throughput_told
from flows.printing import print_json, print_table
from flows.records import decisions_of, find_job
from warehouse.errors import JobError
from warehouse.store import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The options of ``job report`` that say something of the job."""

    progress: float | None
    progress_share: float | None
    tokens: float | None
    on_demand: int | None
    spot: int | None
    finished: bool
    note: str

    def work(self, request: JobRequest) -> float | None:
        """The progress in the unit of the job's workload; raises `JobError` if it is said twice or in a unit it does not have."""
        given = [name for name in ("progress", "progress_share", "tokens") if getattr(self, name) is not None]
        if len(given) > 1:
            options = " and ".join("--" + name.replace("_", "-") for name in given)
            raise JobError(f"progress given as {options}", expected="one of them")
        if self.tokens is not None and request.workload.unit != "tokens":
            raise JobError(
                f"job {request.name!r} counts its work in {request.workload.unit}, not in tokens",
                remedy="use --progress or --progress-share",
            )
        if self.progress_share is None:
            return self.progress if self.tokens is None else self.tokens
        if not 0.0 <= self.progress_share <= 1.0:
            raise JobError(f"a progress share of {self.progress_share:g}", expected="0 to 1")
        return self.progress_share * request.workload.amount


def job_report_command(
    name: str, said: Said, *, at: str | None, known_at: str | None, db: Path, as_json: bool
) -> None:
    """``slackwater job report``: keep what was done and held up to a time; the next plan starts from it."""
    when = parse_time(at, "--at") if at else now().floor("s")
    with open_store(db) as store:
        stored = find_job(store, name)
        report = Report(
            job=name,
            reported_at=when,
            known_at=parse_time(known_at, "--known-at") if known_at else when,
            progress=said.work(stored.request),
            on_demand=said.on_demand,
            spot=said.spot,
            finished=said.finished,
            note=said.note,
        )
        kept, added = save_report(store, report, stored)
        decisions = decisions_of(store, name)
        warnings = differences(kept, stored, decisions)
        reports = counting(every_report(store, [name]))
    answer = report_row(kept, stored) | {"added": added, "warnings": warnings}
    told = measured_rows(stored, decisions, reports)[reports.index(kept)] if kept in reports else None
    if told is not None:
        answer["throughput"] = told
    if as_json:
        print_json(answer)
        return
    shown = (
        "job",
        "reported_at",
        "progress",
        "progress_share",
        "on_demand",
        "spot",
        "finished",
        "counts_from",
    )
    print_table(
        "Report" if added else "Report (known already)",
        [answer],
        {key: key.replace("_", " ") for key in shown},
    )
    for warning in warnings:
        print(f"* {warning}")
    if told is not None:
        print(f"* {throughput_told(told)}")
