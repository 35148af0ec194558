"""Alarms about jobs: deadlines at risk or missed, budgets, undelivered decisions, overdue reports, and unobserved markets."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from slackwater.flows.config import AlarmSettings, Settings
from slackwater.flows.ledger.costs import costs_of_jobs
from slackwater.flows.ledger.decisions import decisions_by_job
from slackwater.flows.ledger.endings import ending_of
from slackwater.flows.ledger.jobs import StoredJob, stored_jobs
from slackwater.flows.ledger.reports import Report, reports_by_job
from slackwater.flows.show.formats import percent, plural, rows_of, usd, utc
from slackwater.warehouse.amounts import duration
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import moment

BUDGET_SHARES = (50, 80, 100)  # Shares of a budget, in percent, that raise an alarm


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Facts about a job at ``at``: its decisions by slot, its valid reports, and the failed deliveries.

    ``newest`` is the time of the newest observation of its current market, None if there is none.
    ``costs`` are the slots of a job with a budget and the cost of each, USD.
    """

    job: StoredJob
    at: pd.Timestamp
    rules: AlarmSettings
    decisions: Sequence[Mapping[str, Any]]
    reports: Sequence[Report]
    undelivered: Sequence[Mapping[str, Any]]
    newest: pd.Timestamp | None
    costs: Sequence[tuple[pd.Timestamp, float]] = ()

    @property
    def is_open(self) -> bool:
        """Whether the job is running."""
        return self.job.start <= self.at < self.job.deadline and not any(
            report.ends for report in self.reports
        )

    @property
    def last(self) -> Mapping[str, Any] | None:
        """Newest decision of the job."""
        return self.decisions[-1] if self.decisions else None


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem: its start, a sentence with found, expected and remedy, and its subject ("": the whole job)."""

    since: pd.Timestamp
    text: str
    subject: str = ""


def at_risk(facts: JobFacts) -> Iterator[Finding]:
    """Yield a finding if the newest decision predicts a high probability of missing the deadline."""
    row = facts.last
    if not facts.is_open or row is None or row.get("late_probability") is None:
        return
    if row["late_probability"] < facts.rules.risk or row.get("shortfall"):
        return
    yield Finding(
        pd.Timestamp(row["slot"]),
        f"risk of missing the deadline {utc(facts.job.deadline)} is {percent(row['late_probability'])}; "
        "consider a later deadline, more instances or another market",
    )


def infeasible(facts: JobFacts) -> Iterator[Finding]:
    """Yield a finding if on-demand alone cannot finish the job in time."""
    row = facts.last
    if not facts.is_open or row is None or not row.get("shortfall"):
        return
    yield Finding(pd.Timestamp(row["slot"]), str(row["shortfall"]))


def missed_deadlines(facts: JobFacts) -> Iterator[Finding]:
    """Yield a finding if the deadline has passed recently and the work was not done."""
    passed = facts.at - facts.job.deadline
    if not pd.Timedelta(0) <= passed <= pd.Timedelta(hours=facts.rules.recent_hours):
        return
    ending = ending_of(facts.job, facts.decisions, facts.reports)
    if ending.state != "missed":
        return
    yield Finding(
        facts.job.deadline,
        f"{ending.words()}; use `slackwater job add` to continue from its checkpoint, or "
        f"`slackwater job report {shlex.quote(facts.job.request.name)} --finished` to report that it was done",
    )


def jobs_without_reports(facts: JobFacts) -> Iterator[Finding]:
    """Yield a finding if a job with earlier reports has had no report for several slots."""
    if not facts.is_open or not facts.reports or not facts.rules.report_slots:
        return
    newest = max(report.reported_at for report in facts.reports)
    silent = facts.at - newest
    if silent <= facts.rules.report_slots * facts.job.step:
        return
    yield Finding(
        newest + facts.rules.report_slots * facts.job.step,
        f"the newest report is of {utc(newest)}, {duration(silent)} ago; decisions assume that the decided instances ran; "
        "check whether the job still runs",
    )


def not_delivered(facts: JobFacts) -> Iterator[Finding]:
    """Yield the sinks that failed to receive decisions of recent slots."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in facts.undelivered:
        found.setdefault(str(row["sink"]), []).append(row)
    for sink, rows in found.items():
        text = f"{plural(len(rows), 'decision')} not delivered to {sink}: {rows[-1]['reason']}"
        yield Finding(pd.Timestamp(rows[0]["slot"]), text, sink)


def budget_spent(facts: JobFacts) -> Iterator[Finding]:
    """Yield the largest of `BUDGET_SHARES` that is spent, if any."""
    budget = facts.job.request.budget_usd
    if not facts.is_open or budget is None:
        return
    paid, crossed = 0.0, dict[int, pd.Timestamp]()
    for slot, usd_paid in facts.costs:
        paid += usd_paid
        for percentage in BUDGET_SHARES:
            if 100.0 * paid >= percentage * budget:
                crossed.setdefault(percentage, slot)
    if not crossed:
        return
    share = max(crossed)
    text = (
        f"${usd(paid)} of the budget of ${usd(budget)} is spent, {percent(paid / budget)}; "
        "`slackwater job change` changes the budget"
    )
    yield Finding(crossed[share], text, f"{share} %")


def market_gone(facts: JobFacts) -> Iterator[Finding]:
    """Yield a finding if the market of an open job has not been observed for long: it may be closed, renamed or no longer read."""
    row = facts.last
    if not facts.is_open or row is None:
        return
    limit = pd.Timedelta(hours=facts.rules.gone_hours)
    if facts.newest is not None and facts.at - facts.newest <= limit:
        return
    how_long = "never" if facts.newest is None else f"for {duration(facts.at - facts.newest)}"
    since = facts.job.start if facts.newest is None else facts.newest + limit
    yield Finding(
        since,
        f"its market {row['market']} has not been observed {how_long}; check whether it is still offered and its source "
        "is still read, or run the job in another market",
    )


#: Checks by kind of alarm; `slackwater.flows.config.ALARM_KINDS` has meaning and severity of each.
CHECKS: Mapping[str, Callable[[JobFacts], Iterator[Finding]]] = {
    "job at risk": at_risk,
    "job infeasible": infeasible,
    "job missed": missed_deadlines,
    "budget": budget_spent,
    "no report": jobs_without_reports,
    "decision not delivered": not_delivered,
    "market gone": market_gone,
}


def job_findings(store: Store, settings: Settings, *, at: pd.Timestamp) -> Iterator[tuple[str, Finding]]:
    """Yield kind and finding of the problems of jobs at ``at``; the subject is ``job NAME``, optionally with a part."""
    for facts in read_job_facts(store, settings, at=at):
        for kind, check in CHECKS.items():
            for finding in check(facts):
                subject = f"job {facts.job.request.name} {finding.subject}".rstrip()
                yield kind, replace(finding, subject=subject)


def read_job_facts(store: Store, settings: Settings, *, at: pd.Timestamp) -> list[JobFacts]:
    """Return the facts of every user job open at ``at`` or ended within the recent hours, using only data known at ``at``."""
    recent = at - pd.Timedelta(hours=settings.alarms.recent_hours)
    jobs = [
        job
        for job in stored_jobs(store, known_at=at)
        if job.origin == "user" and job.start <= at and job.deadline >= recent and job.created_at <= at
    ]
    names = [job.request.name for job in jobs]
    decisions, reports = decisions_by_job(store, names), reports_by_job(store, names, known_at=at)
    failed = read_rows(
        store,
        "deliveries",
        where={"job": names, "status": ["failed", "given_up"], "slot": slice(recent, at)},
        order_by=["slot"],
    )
    past = {
        name: [row for row in rows if pd.Timestamp(row["slot"]) <= at] for name, rows in decisions.items()
    }
    places = {name: (str(rows[-1]["market"]), str(rows[-1]["source"])) for name, rows in past.items() if rows}
    newest = _newest_observed(store, places.values(), at)
    costs = _costs(store, [job for job in jobs if job.request.budget_usd is not None], at)
    return [
        JobFacts(
            job=job,
            at=at,
            rules=settings.alarms,
            decisions=past[name],
            reports=reports[name],
            undelivered=rows_of(failed[failed["job"] == name]),
            newest=newest.get(places.get(name, ("", ""))),
            costs=costs.get(name, ()),
        )
        for name, job in zip(names, jobs, strict=True)
    ]


def _costs(
    store: Store, jobs: Sequence[StoredJob], at: pd.Timestamp
) -> dict[str, list[tuple[pd.Timestamp, float]]]:
    """Return the slots of some jobs up to a time with the cost of each, by job."""
    found: dict[str, list[tuple[pd.Timestamp, float]]] = {}
    if jobs:
        rows = store.execute(
            f"{costs_of_jobs(store)}SELECT job, epoch_us(slot), paid_usd FROM job_costs WHERE slot <= $at "
            "AND paid_usd IS NOT NULL ORDER BY job, slot",
            {"jobs": [job.request.name for job in jobs], "at": moment(at, "at")},
        )
        for job, slot, paid in rows:
            found.setdefault(str(job), []).append((pd.Timestamp(int(slot), unit="us", tz="UTC"), float(paid)))
    return found


def _newest_observed(
    store: Store, places: Iterable[tuple[str, str]], at: pd.Timestamp
) -> dict[tuple[str, str], pd.Timestamp]:
    """Return the time of the newest observation known at ``at`` of some markets, by market and source."""
    markets = dict.fromkeys(places)
    if not markets:
        return {}
    rows = store.execute(
        "WITH own AS (SELECT sid, source, concat_ws('/', provider, region, zone, instance_type) AS market FROM series JOIN "
        "markets USING (mid) JOIN (SELECT unnest($markets) AS market, unnest($sources) AS source) AS asked USING (source) "
        "WHERE concat_ws('/', provider, region, zone, instance_type) = asked.market) SELECT market, source, "
        "epoch_us(max(observed_at)) FROM (SELECT sid, observed_at FROM price SEMI JOIN own USING (sid) WHERE known_at <= $at "
        "AND observed_at <= $at UNION ALL SELECT sid, observed_at FROM availability SEMI JOIN own USING (sid) WHERE known_at "
        "<= $at AND observed_at <= $at) JOIN own USING (sid) GROUP BY market, source",
        {
            "markets": [market for market, _ in markets],
            "sources": [source for _, source in markets],
            "at": moment(at, "at"),
        },
    )
    return {(str(m), str(s)): pd.Timestamp(int(us), unit="us", tz="UTC") for m, s, us in rows}
