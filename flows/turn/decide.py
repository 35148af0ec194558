"""Decisions of a turn or of many turns at once: the next slot of every running job, given its state and its policy (M2.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.ledger.decisions import JobLedger, Row, read_ledger
from slackwater.flows.ledger.fields import decision_row
from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.ledger.open_job import OpenJob
from slackwater.flows.places import PlacedJob
from slackwater.flows.turn.context import Turn, TurnValues
from slackwater.flows.turn.forecast import PlannedForecasts, planned_forecasts
from slackwater.flows.turn.opening import JobForecasts, open_jobs
from slackwater.flows.turn.pool import Pool
from slackwater.flows.turn.results import Results
from slackwater.flows.turn.work import Work
from slackwater.optimization.fan import Fan
from slackwater.optimization.fleet.competition import Trajectory, decide_all
from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.replay.decision import Decision, Effort, UndecidedJob
from slackwater.warehouse.errors import why_raised
from slackwater.warehouse.history import History


def effort_of(settings: Settings) -> Effort:
    """Return the effort limits of a decision."""
    return Effort(solver_seconds=settings.solver_seconds, risk_paths=settings.risk_paths, seed=settings.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDecisions:
    """The decisions of a turn, sorted by job, and messages on running jobs without a decision."""

    rows: tuple[Row, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionFacts:
    """Facts for the decisions of ascending turns, and by turn the names of the running jobs.

    By turn: ``issued`` are the decisions issued before, and ``unread`` messages on jobs whose state
    cannot be computed. ``opened`` are the states of the jobs without a decision, each with its
    policy and the index of its turn.
    """

    turns: tuple[TurnValues, ...]
    names: tuple[tuple[str, ...], ...]
    issued: tuple[tuple[Row, ...], ...]
    unread: tuple[tuple[str, ...], ...]
    opened: tuple[tuple[int, OpenJob], ...]


def read_decision_facts(
    turns: Sequence[Turn], works: Sequence[Work], pool: Pool, planned: PlannedForecasts | None = None
) -> DecisionFacts:
    """Return the facts for the decisions of every running job in each of ascending turns (M2.4).

    ``planned`` are the forecasts that the forecast stage returned for these turns; None: they must
    be stored, and are read. ``pool`` must have the rounds learned before each turn.
    """
    names = tuple(tuple(job.request.name for job, _ in work.running) for work in works)
    ledger = turns[-1].read(read_ledger, [name for job_names in names for name in job_names])
    issued: list[list[Row]] = [[] for _ in turns]
    lacking: list[tuple[int, PlacedJob]] = []
    for place, work in enumerate(works):
        for job, followed in work.running:
            name = job.request.name
            old = [row for row in ledger.decisions[name] if pd.Timestamp(row["slot"]) == followed.at]
            issued[place] += old
            if not old:
                lacking.append((place, (job, work.places.get(name, (followed,)))))
    opened: list[tuple[int, OpenJob]] = []
    unread: list[list[str]] = [[] for _ in turns]
    states = _open_states(turns, lacking, ledger, pool, planned)
    for (place, (job, _)), state in zip(lacking, states, strict=True):
        if isinstance(state, Exception):
            unread[place].append(message_without_decision(job, state))
        else:
            opened.append((place, state))
    return DecisionFacts(
        turns=tuple(turns),
        names=names,
        issued=tuple(map(tuple, issued)),
        unread=tuple(map(tuple, unread)),
        opened=tuple(opened),
    )


def decide_slots(facts: DecisionFacts) -> tuple[Results, list[TurnDecisions]]:
    """Decide the slot of every running job without a decision; returns the rows to store and the decisions of each turn.

    The decisions of a job use its earlier decisions (M2.4), and jobs are never given more spot in
    total than is available (M3.7).
    """
    turns = facts.turns
    fresh = decide_together(facts.opened, facts.issued, effort_of(turns[-1].settings), turns[-1].fan)
    decided: list[TurnDecisions] = []
    runs, decisions = [], []
    for turn, names, old, unread, row_or_reason in zip(
        turns, facts.names, facts.issued, facts.unread, fresh, strict=True
    ):
        texts = [*unread, *(text for text in row_or_reason.values() if isinstance(text, str))]
        for text in texts:
            turn.say(text)
        # In the order of the turn's jobs, whatever the order of the decisions.
        new = [row for name in names if isinstance(row := row_or_reason.get(name), dict)]
        decisions += [(turn.run_id, row) for row in new]
        runs.append(turn.done("allocate", {"decisions": len(new)} | ({"left_out": texts} if texts else {})))
        rows = sorted([*old, *new], key=lambda row: str(row["job"]))
        decided.append(TurnDecisions(rows=tuple(rows), left_out=tuple(texts)))
    return Results(decisions=tuple(decisions), runs=tuple(runs)), decided


def decide_together(
    running: Sequence[tuple[int, OpenJob]], issued: Sequence[Sequence[Row]], effort: Effort, fan: Fan
) -> list[dict[str, Row | str]]:
    """Return for each of ascending turns the new decision by job, or a message why a job has none (M3.7).

    Finished jobs are left out. ``running`` are job states with the index of their turn and
    ``issued`` the decisions issued before, whose spot is not available any more.
    """
    opened: dict[str, list[tuple[int, OpenJob]]] = {}
    for place, state in running:
        opened.setdefault(state.request.name, []).append((place, state))
    promised: Counter[tuple[pd.Timestamp, str]] = Counter()
    for row in (row for rows in issued for row in rows):
        promised[pd.Timestamp(row["slot"]), f"{row['market']}@{row['source']}"] += int(row["spot"])
    trajectories = [_trajectory([state for _, state in states]) for states in opened.values()]
    result = decide_all(trajectories, effort, promised=promised, fan=fan)
    fresh: list[dict[str, Row | str]] = [{} for _ in issued]
    for (name, states), decisions in zip(opened.items(), result, strict=True):
        before: dict[int, tuple[str | None, Allocation]] = {}
        for (place, state), decision in zip(states, decisions, strict=True):
            if isinstance(decision, UndecidedJob):
                fresh[place][name] = f"job {name} is not decided: {decision.why}"
            elif decision is not None:
                row = row_of(state.after(before), decision)
                before[decision.slot] = (
                    row["market"] if decision.allocation.total else None,
                    decision.allocation,
                )
                fresh[place][name] = row
    return fresh


def _trajectory(states: Sequence[OpenJob]) -> Trajectory:
    """Return the trajectory of a job over the turns in which it lacks a decision."""
    return Trajectory(
        slots=tuple(state.live for state in states),
        policies=tuple(state.policy for state in states),
        keys=tuple(state.places for state in states),
        markets=tuple(tuple(map(_shared_count_key, state.histories)) for state in states),
    )


def _shared_count_key(history: History) -> str:
    """Return the name of the market and source whose count jobs share."""
    return f"{history.market.key}@{history.source}"


def message_without_decision(job: StoredJob, why: Exception) -> str:
    """Return the message that a running job has no decision, and why."""
    return f"job {job.request.name} is not decided: {why_raised(why)}"


def _with_forecasts(job: PlacedJob, forecasts: JobForecasts) -> PlacedJob:
    """Return a job with only those of its markets that have a forecast; with all of them if its home has none.

    A market that could not be forecast is left out: the forecast stage has reported the reason. If
    no market has a forecast, all are returned, and the decision notes that it has no forecast.
    """
    stored, markets = job
    name = stored.request.name
    known = tuple(
        market
        for market in markets
        if any(result.issued_at == market.at for result in forecasts.get((name, market.key), ()))
    )
    homeless = stored.request.may_move and stored.request.market is None
    return (stored, known) if known and (homeless or markets[0] in known) else job


def _open_states(
    turns: Sequence[Turn],
    lacking: Sequence[tuple[int, PlacedJob]],
    ledger: JobLedger,
    pool: Pool,
    planned: PlannedForecasts | None,
) -> list[OpenJob | Exception]:
    """Return the state of each job that lacks a decision, as known at its turn's time, or the error; turns ascend."""
    if not lacking:
        return []
    newest = {
        (job.request.name, market.key): (job, market) for _, (job, markets) in lacking for market in markets
    }
    forecasts = planned_forecasts(turns[-1], list(newest.values()), planned)
    deciding = pool.deciders([turn.at for turn in turns])
    opened: list[OpenJob | Exception] = []
    for place, group in groupby(lacking, key=lambda pair: pair[0]):
        jobs = [_with_forecasts(job, forecasts) for _, job in group]
        opened += open_jobs(turns[place], jobs, ledger=ledger, forecasts=forecasts, by=deciding[place])
    return opened


def row_of(running: OpenJob, decision: Decision) -> Row:
    """Return a decision as plain values, with the reason for its policy."""
    return decision_row(running, decision) | {"chosen_because": running.chosen_because}
