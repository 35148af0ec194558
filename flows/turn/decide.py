"""Decide the next slot of every open job: live solves by the MILP, expected cost and lateness by sampled futures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from flows.config import Settings
from flows.jobs.record import PeerReader, market_record, record_start
from flows.jobs.reports import Report, as_reported, counting, every_report
from flows.ledger.records import (
    Rounds,
    StoredJob,
    allocations_of,
    decisions_of,
    planned_forecasts,
    save_decisions,
    stored_rounds,
)
from flows.ledger.runs import RunRow, save_runs
from flows.turn.context import Calls, Staged, Turn
from flows.turn.markets import Followed, turn_history
from flows.turn.work import Work, pool_names
from forecasting.quantiles import Forecast
from optimization.job.definition import Job, Progress
from optimization.job.progress import finished
from optimization.job.request import JobRequest, first_slot, slot_job
from optimization.job.termination import infeasible_by
from optimization.market.belief import Belief
from optimization.market.window import market_window, point_forecast
from optimization.policies import OnDemandOnly
from optimization.policies.contract import Policy, View, belief_of
from optimization.policies.pool import policy_named
from optimization.replay.risk import Expected, look_ahead
from optimization.replay.run import Planning, Seen, catch_up, see
from optimization.replay.standing import held_so_far
from optimization.selection.contract import weigh
from optimization.selection.learners import learner_named
from optimization.selection.weights import Weights, leader
from optimization.window.live import LiveSolver
from optimization.window.plan import Allocation
from warehouse.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJob:
    """A job that is running: its market slot by slot (later slots are gaps), what was decided so far, by slot, and ``reports`` of
    what was really done and held."""

    request: JobRequest
    job: Job
    start: pd.Timestamp
    slot: int
    history: History
    seen: Seen
    decided: Mapping[int, Allocation]
    forecast: Forecast | None
    reports: Sequence[Report] = ()

    @property
    def now(self) -> pd.Timestamp:
        """Start of the slot to decide."""
        return self.start + self.slot * self.history.step

    @property
    def deadline(self) -> pd.Timestamp:
        """End of the last slot before the deadline."""
        return self.start + self.job.deadline_slots * self.history.step

    def standing(
        self, slots: int | None = None, reports: Sequence[Report] | None = None
    ) -> tuple[Progress, list[View]]:
        """Where the job stands after its first ``slots`` slots (None: at the slot to decide), and the view of each of them.

        It held what was decided for it, from the newest of ``reports`` (None: its own) on (M2.4).
        """
        said = as_reported(
            self.reports if reports is None else reports,
            self.request,
            self.job,
            start=self.start,
            step=self.history.step,
        )
        slots = self.slot if slots is None else slots
        return held_so_far(self.job, self.seen, self.decided, slots=slots, reported=said)

    def progress(self) -> Progress:
        """Where the job stands at the slot to decide."""
        return self.standing()[0]

    @property
    def progress_report(self) -> Report | None:
        """The report its progress goes back to, None if it is reckoned from the decisions alone."""
        said = [one for one in self.reports if one.finished or one.progress is not None]
        return said[-1] if said else None


def open_job(
    request: JobRequest,
    history: History,
    *,
    decided: Mapping[pd.Timestamp, Allocation],
    forecasts: Sequence[Forecast],
    peers: Sequence[History] = (),
    reports: Sequence[Report] = (),
) -> OpenJob:
    """Line a placed request up with its market's history; the slot to decide is the history's last.

    ``forecasts`` are the planner's vintages in the job's slots so far; nothing later than the present slot is kept. What the
    history holds from before the job, and ``peers`` beside it, become the record, which ends at the present slot. Of ``reports``
    those count that are about the present slot's start or before and were known by then.
    """
    step = history.step
    job = slot_job(request, step=step, on_demand_usd=history.on_demand_usd)
    start = first_slot(request, step)
    grid = pd.date_range(start, periods=job.deadline_slots, freq=step)
    rows = history.frame.reindex(grid)
    window = market_window(
        rows["price_usd"].to_numpy(dtype=float),
        rows["available"].to_numpy(dtype=float),
        on_demand_usd=history.on_demand_usd,
        slot_hours=history.slot_hours,
    )
    now = history.known_at.floor(step)
    issued = {forecast.issued_at: forecast for forecast in forecasts if forecast.issued_at <= now}
    points = [point_forecast(issued[slot]) if slot in issued else None for slot in grid]
    record = market_record(history, peers, first=start, last=now, known_by=now)
    return OpenJob(
        request=request,
        job=job,
        start=start,
        slot=round((now - start) / step),
        history=history,
        seen=see(job, window, points, record),
        decided={round((slot - start) / step): allocation for slot, allocation in decided.items()},
        forecast=issued.get(now),
        reports=tuple(counting(reports, known_at=now)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The next slot of one job, who decided it, why, and what to expect."""

    running: OpenJob
    allocation: Allocation
    policy: str
    reason: str
    expected: Expected
    solver: str
    progress: Progress
    planned: tuple[Allocation, ...] | None

    def row(self) -> dict[str, Any]:
        """The decision as plain values, the form of ``decisions`` in the JSON answer."""
        running, forecast = self.running, self.running.forecast
        finish = running.start + self.expected.finish_slots * running.history.step
        return {
            "job": running.job.name,
            "market": running.history.market.key,
            "slot": running.now.isoformat(),
            "on_demand": self.allocation.on_demand,
            "spot": self.allocation.spot,
            "policy": self.policy,
            "reason": self.reason,
            "expected_cost_usd": round(self.expected.cost_usd, 4),
            "expected_finish": finish.floor("s").isoformat(),
            "late_probability": round(self.expected.late_probability, 4),
            "deadline": running.deadline.isoformat(),
            "source": running.history.source,
            "must_finish": running.job.must_finish,
            "forecaster": forecast.predictor if forecast else None,
            "fallback": forecast.fallback if forecast else "no forecast",
            "solver": self.solver,
            "synthetic": list(running.history.assumptions),
            "slot_end": (running.now + running.history.step).isoformat(),
            "step_minutes": running.history.step / pd.Timedelta(minutes=1),
            "on_demand_usd_per_hour": running.history.on_demand_usd,
            "expected_cost_p10_usd": round(self.expected.cost_p10_usd, 4),
            "expected_cost_p90_usd": round(self.expected.cost_p90_usd, 4),
            **self._progress(),
            "planned": self._planned(),
        }

    def _progress(self) -> dict[str, Any]:
        """The progress it was decided at, and where that figure comes from."""
        running, report = self.running, self.running.progress_report
        workload = running.request.workload
        share = self.progress.done / running.job.workload
        return {
            "progress": round(share * workload.amount, 6),
            "progress_share": round(share, 6),
            "workload": workload.amount,
            "workload_unit": workload.unit,
            "progress_from": "reported" if report else "decided",
            "progress_reported_at": report.reported_at.isoformat() if report else None,
            "held_before": self.progress.n_previous,
        }

    def _planned(self) -> list[dict[str, Any]] | None:
        """What the plan behind the decision holds in the slots after it; None where the policy makes no plan."""
        if self.planned is None:
            return None
        step = self.running.history.step
        return [
            {
                "slot": (self.running.now + (k + 1) * step).isoformat(),
                "on_demand": allocation.on_demand,
                "spot": allocation.spot,
            }
            for k, allocation in enumerate(self.planned)
        ]


def decide(running: OpenJob, policy: Policy[Any], *, settings: Settings) -> Decision:
    """Ask a policy for the slot at hand and look ahead over sampled futures.

    A job that cannot resume from a checkpoint may not use spot: OD-only decides for it, and the reason says so (M2.7).
    """
    refused = ""
    if not running.job.resumable:
        policy, refused = OnDemandOnly(), "cannot resume from a checkpoint, so no spot; "
    live = LiveSolver(seconds=settings.solver_seconds)
    asked = policy.with_solver(live) if isinstance(policy, Planning) else policy
    progress, views = running.standing()
    state = catch_up(policy, running.job, views)
    view = running.seen.view(running.job, progress, running.slot)
    allocation, _ = asked.decide(state, view)
    short = infeasible_by(running.job, slot_hours=running.seen.slot_hours)
    hopeless = (
        f"best effort: on-demand alone is {short} slots too slow to finish while it is worth anything; "
    )
    reason = refused + (hopeless if short else "") + policy.explain(state, view, allocation)
    return Decision(
        running=running,
        allocation=allocation,
        policy=policy.name,
        reason=_with_chance(reason, belief_of(policy, view), allocation),
        expected=look_ahead(
            policy, state, view, paths=settings.risk_paths, rng=np.random.default_rng(settings.seed)
        ),
        solver=live.summary(),
        progress=progress,
        planned=live.plans[-1].allocations[1:] if live.plans else None,
    )


def is_finished(running: OpenJob) -> bool:
    """True if the job has done its work before the slot to decide."""
    return finished(running.progress().done, running.job.workload)


def _with_chance(reason: str, belief: Belief, allocation: Allocation) -> str:
    """The policy's reason, with the chance of spot in the next slot that a person would want to know."""
    wanted = max(allocation.total, 1)
    return f"{reason}; P(spot >= {wanted} in the next slot) = {belief.chance_of_spot(wanted):.2f}"


# ---
# The allocate stage of one turn or of many at once: each job slot by slot, each decision after those before it (M2.4).

#: A decision as plain values.
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    """A job at a slot that lacks a decision, the turn it belongs to (by place), and who decides and why."""

    place: int
    running: OpenJob
    policy: Policy[Any]
    why: str


def decide_turns(turns: Sequence[Turn], works: Sequence[Work]) -> Staged[list[list[Row]]]:
    """Decide the slot of every running job in each of ascending turns; a decision issued before is read back, not made again.

    The decisions of each turn, by job. The forecasts of the turns must be there, and the rounds learned before each.
    """
    reader = _Reader(turns, works)
    openings: dict[str, list[_Opening]] = {}
    rows: list[list[Row]] = [[] for _ in turns]
    for place, (turn, work) in enumerate(zip(turns, works, strict=True)):
        policy, why = reader.policy(turn)
        peers = _peers(turn, work)
        for job, followed in work.running:
            name = job.request.name
            issued = [row for row in reader.decisions(job) if pd.Timestamp(row["slot"]) == followed.at]
            if issued:
                rows[place] += issued
                continue
            running = reader.opened(turn, job, followed, peers)
            opening = _Opening(place=place, running=running, policy=policy, why=why)
            openings.setdefault(name, []).append(opening)
    calls = [
        {
            "running": [one.running for one in own],
            "policies": [one.policy for one in own],
            "settings": turns[-1].settings,
        }
        for own in openings.values()
    ]
    made: list[list[tuple[str, Row]]] = [[] for _ in turns]
    answers = yield Calls(function=decide_in_order, calls=calls, label="decide")
    for own, decided in zip(openings.values(), answers(), strict=True):
        for opening, row in zip(own, decided, strict=True):
            if row is not None:
                made[opening.place].append((opening.running.job.name, row | {"chosen_because": opening.why}))
    fresh = [_in_order(work, own) for work, own in zip(works, made, strict=True)]
    _save(turns, fresh)
    return [sorted(old + new, key=lambda row: str(row["job"])) for old, new in zip(rows, fresh, strict=True)]


def _in_order(work: Work, made: Sequence[tuple[str, Row]]) -> list[Row]:
    """A turn's new decisions in the order of its jobs."""
    by_name = dict(made)
    return [by_name[job.request.name] for job, _ in work.running if job.request.name in by_name]


def _save(turns: Sequence[Turn], made: Sequence[Sequence[Row]]) -> None:
    store = turns[-1].store
    with store.transaction():
        save_decisions(
            store, [(turn.run_id, row) for turn, own in zip(turns, made, strict=True) for row in own]
        )
        save_runs(
            store,
            [
                RunRow(
                    run=turn.run_id,
                    at=turn.at,
                    stage="allocate",
                    made=turn.made,
                    details={"decisions": len(own)},
                )
                for turn, own in zip(turns, made, strict=True)
            ],
        )


def decide_in_order(
    running: Sequence[OpenJob], policies: Sequence[Policy[Any]], settings: Settings
) -> list[Row | None]:
    """Decide a job's slots one after the other, each knowing those before it; None where it has finished its work."""
    decided: dict[int, Allocation] = {}
    rows: list[Row | None] = []
    for opened, policy in zip(running, policies, strict=True):
        one = replace(opened, decided={**opened.decided, **decided})
        if is_finished(one):
            rows.append(None)
            continue
        decision = decide(one, policy, settings=settings)
        decided[one.slot] = decision.allocation
        rows.append(decision.row())
    return rows


class _Reader:
    """What the turns of one call share: the rounds, and each job's decisions and forecasts as they were before it."""

    def __init__(self, turns: Sequence[Turn], works: Sequence[Work]) -> None:
        self._store = turns[-1].store
        self.rounds = stored_rounds(self._store, pool_names(turns[-1]))
        self._decisions: dict[str, list[Row]] = {}
        self._allocations: dict[str, Mapping[pd.Timestamp, Allocation]] = {}
        self._forecasts: dict[str, list[Forecast]] = {}
        self._reports: dict[str, list[Report]] = {}
        self._weights: list[Weights] = []
        self._first = 0
        self._last = {
            job.request.name: (turn, followed)
            for turn, work in zip(turns, works, strict=True)
            for job, followed in work.running
        }

    def policy(self, turn: Turn) -> tuple[Policy[Any], str]:
        """`policy_at`; the weights of turns that have learned from the first rounds are made in one pass over them."""
        known = self.rounds.before(turn.at)
        seen = len(known.jobs)
        if not seen or known.jobs != self.rounds.jobs[:seen]:
            return policy_at(turn, self.rounds)
        if not self._weights:
            learner = learner_named(turn.settings.learner)
            rounds, self._first = self.rounds, seen
            self._weights = weigh(learner, rounds.names, rounds.utilities, after=seen)
        if seen < self._first:
            return policy_at(turn, self.rounds)
        return _leading(self._weights[seen - self._first], seen)

    def decisions(self, job: StoredJob) -> list[Row]:
        """What was decided for a job before this call."""
        name = job.request.name
        if name not in self._decisions:
            self._decisions[name] = decisions_of(self._store, name)
            self._allocations[name] = allocations_of(self._decisions[name])
        return self._decisions[name]

    def opened(self, turn: Turn, job: StoredJob, followed: Followed, peers: PeerReader) -> OpenJob:
        """A running job at the slot to decide; of forecasts and reports only what was known by then is taken."""
        name = job.request.name
        if name not in self._forecasts:
            self._forecasts[name] = planned_forecasts(*self._last[name], job)
            self._reports[name] = every_report(self._store, [name])
        return open_job(
            job.request,
            turn_history(turn, followed, start=record_start(job.start)),
            decided=self._allocations[name],
            forecasts=self._forecasts[name],
            peers=peers.peers_of(followed),
            reports=self._reports[name],
        )


def _peers(turn: Turn, work: Work) -> PeerReader:
    first = min((job.start for job, _ in work.running), default=turn.at)
    return PeerReader(turn=turn, start=record_start(first))


def policy_at(turn: Turn, rounds: Rounds) -> tuple[Policy[Any], str]:
    """The policy that decides at the turn's time, and why: the leader of the rounds learned before (decision 3)."""
    known = rounds.before(turn.at)
    if not known.jobs:
        return policy_named(turn.settings.practice_policy), "no job has ended yet"
    return _leading(known.newest(learner_named(turn.settings.learner)), len(known.jobs))


def _leading(weights: Weights, jobs: int) -> tuple[Policy[Any], str]:
    """The policy that leads by weights learned from so many jobs, and why."""
    name = leader(weights)
    weight = float(weights.probability[list(weights.names).index(name)])
    return policy_named(name), f"leads after {jobs} jobs, weight {weight:.3f}"
