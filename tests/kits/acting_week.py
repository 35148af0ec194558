"""Simulated clouds of a warehouse, turns that decide in them without forecasts, and passes of `act` on it."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from command_kit import call

from slackwater.flows.acting.drivers import DRIVERS, Place
from slackwater.flows.acting.warehouse import ActedWarehouse
from slackwater.flows.ledger.decisions import decisions_by_job, save_decisions
from slackwater.flows.ledger.jobs import stored_jobs
from slackwater.flows.ledger.reports import Report, reports_of, save_report
from slackwater.flows.turn.context import Turn, run_id_of
from slackwater.flows.turn.decide import decide_together, effort_of
from slackwater.flows.turn.markets import markets_of
from slackwater.flows.turn.opening import open_jobs
from slackwater.flows.turn.pool import read_pool
from slackwater.warehouse.store.connection import open_store


def simulated(db, settings):
    """Return a warehouse as it is acted on, and its simulated cloud."""
    world = ActedWarehouse(db, settings)
    return world, DRIVERS["simulated"]({}, Place(name="simulated", db=db, world_of=world.world_of))


def act_at(db, at, *more):
    """Return the answer of a pass of `slackwater act` at a time, with the simulated driver."""
    return call("act", "--driver", "simulated", "--db", db, "--at", at.isoformat(), *more, "--json").value


def simulated_turn(db, settings, cloud, at, *, policy=None):
    """Report the progress of the open jobs of a simulated cloud and decide their slots; a repeat changes nothing.

    Without a ``policy`` the leading policies of the warehouse decide.
    """
    with open_store(db) as store, store.transaction():
        turn = Turn(store=store, at=at, settings=settings, run_id=run_id_of(at))
        jobs = [job for job in stored_jobs(store, known_at=at) if job.start <= at < job.deadline]
        rows = decisions_by_job(store, [job.request.name for job in jobs])
        issued = [row for own in rows.values() for row in own if pd.Timestamp(row["slot"]) == at]
        decided = {row["job"] for row in issued}
        lacking = [
            (job, markets_of(turn, job.request))
            for job in jobs
            if job.request.name not in decided and not _report(store, job, cloud, at)
        ]
        if not lacking:
            return
        by = read_pool(turn).deciders([at])[0]
        if policy is not None:
            by = replace(by, in_one_market=(policy, "asked for"))
        opened = open_jobs(turn, lacking, forecasts={}, by=by)
        states = [(0, job) for job in opened if not isinstance(job, Exception)]
        (result,) = decide_together(states, [issued], effort_of(settings), turn.fan)
        save_decisions(store, [(turn.run_id, row) for row in result.values() if not isinstance(row, str)])


def _report(store, job, cloud, at):
    """Report the progress of a simulated job; return whether it has ended."""
    name = job.request.name
    run = cloud.run(name, at.to_pydatetime())
    known = reports_of(store, name)
    if any(earlier.ends for earlier in known):
        return True
    progress = run.work / run.terms.workload * job.request.workload.amount
    newest = max((earlier.progress or 0.0 for earlier in known), default=0.0)
    same = next((earlier for earlier in known if earlier.reported_at == at), None)
    if same is None or same.progress is None:
        report = Report(job=name, reported_at=at, known_at=at) if same is None else same
        said = {"finished": run.is_finished, "progress": max(progress, newest)}
        save_report(store, replace(report, **said), job)
    return run.is_finished
