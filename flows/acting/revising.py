"""A decision for the rest of a slot after a loss of spot: that of the slot's policy, from the data known at that time (M12.15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from slackwater.flows.acting.contract import count_by_kind, staying
from slackwater.flows.acting.ledger import JobLaunches
from slackwater.flows.acting.targets import ActiveJob
from slackwater.flows.config import Settings
from slackwater.flows.ledger.decisions import Row, decisions_of
from slackwater.flows.ledger.jobs import find_job
from slackwater.flows.ledger.open_job import OpenJob
from slackwater.flows.ledger.reports import Report, reports_of
from slackwater.flows.places import markets_of
from slackwater.flows.turn.context import Turn, run_id_of
from slackwater.flows.turn.decide import effort_of, row_of
from slackwater.flows.turn.opening import forecasts_in_force, open_placed_job
from slackwater.flows.turn.pool import policies_named
from slackwater.optimization.moving.definition import IDLE, placement
from slackwater.optimization.replay.decision import Moment, Revision, decide
from slackwater.optimization.window.plan import Allocation
from slackwater.warehouse.store.connection import Store


def revision_of(
    store: Store, settings: Settings, job: ActiveJob, launches: JobLaunches, now: pd.Timestamp
) -> Row | str:
    """Return the decision for the rest of the slot of ``job.decision`` as plain values, or why there is none.

    The policy is that of the slot's decision, the forecasts and terms those known at the start of the
    slot; a decision without a forecast is revised without a forecast. Raises `RAISED` errors of the job and its markets.
    """
    current = job.decision
    loss = None if current is None else launches.losses.get(current.key)
    if current is None or loss is None:
        return "no spot was lost"
    slot, lost_at = pd.Timestamp(current.slot), pd.Timestamp(loss.at)
    before = next(row for row in decisions_of(store, job.name) if pd.Timestamp(row["slot"]) == slot)
    turn = Turn(store=store, at=slot, settings=settings, run_id=run_id_of(slot, "act"))
    stored = find_job(store, job.name, known_at=slot)
    placed = (stored, markets_of(turn, stored.request))
    issued = forecasts_in_force(turn, [placed]) if before["forecaster"] else {}
    running = open_placed_job(turn, placed, forecasts=issued)
    held = count_by_kind(staying(launches.held))
    live = running.live.at_moment(
        Moment(
            seconds=(now - slot).total_seconds(),
            held=Allocation(held["on_demand"], held["spot"]),
            lost=((lost_at - slot).total_seconds(), running.places.index(loss.market), loss.left),
            work=_work(running, reports_of(store, job.name, known_at=now), slot),
        ),
        _targets(running, launches, slot),
    )
    if live.is_finished:
        return "by its computed progress the job is done"
    (policy,) = policies_named(turn, stored.request, [str(before["policy"])])
    after = replace(running, live=live, policy=policy, because="the policy of the slot's decision")
    row = row_of(after, decide(live, policy, effort_of(settings)))
    return row | {"revised_at": now.isoformat(), "lost_at": lost_at.isoformat(), "spot_left": loss.left}


def _targets(running: OpenJob, launches: JobLaunches, slot: pd.Timestamp) -> list[Revision]:
    """Return the targets that were ordered within the slot."""
    return [
        Revision(
            seconds=(pd.Timestamp(entry.at) - slot).total_seconds(),
            target=placement(
                running.places.index(entry.order.market), Allocation(entry.order.on_demand, entry.order.spot)
            )
            if entry.order.total
            else IDLE,
        )
        for entry in launches.ordered
        if entry.at > slot
    ]


def _work(running: OpenJob, reports: Sequence[Report], slot: pd.Timestamp) -> tuple[float, float] | None:
    """Return the newest work reported within the slot: the second in the slot, and the work in work units."""
    reported = [report for report in reports if report.progress is not None and report.reported_at > slot]
    if not reported or reported[-1].progress is None:
        return None
    done = reported[-1].progress / running.request.workload.amount * running.live.run.workload
    return (reported[-1].reported_at - slot).total_seconds(), done
