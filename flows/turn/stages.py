"""The stages of a turn and their order: ingest, forecast, decide, deliver, score, report (M1.4, M2.4, M5).

A stage reads facts, computes results from them, and writes its results together with its row in the ledger of
runs, or nothing: an interrupted turn continues with the first missing stage. Only the functions of this
module hand the warehouse to a reader or to `write`; what is between them takes and returns values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from slackwater.flows.delivery import deliver as hand_over
from slackwater.flows.ledger.decisions import Row
from slackwater.flows.ledger.stages import LIVE
from slackwater.flows.turn.context import Counts, Turn
from slackwater.flows.turn.decide import TurnDecisions, decide_slots, read_decision_facts
from slackwater.flows.turn.estimates import NO_ESTIMATES, Estimates, new_estimates, read_estimations
from slackwater.flows.turn.forecast import (
    MeasuredErrors,
    PlannedForecasts,
    forecast_group,
    lacking_groups,
    missing_origins,
    read_forecast_facts,
)
from slackwater.flows.turn.ingest import ingest_observations, simulates
from slackwater.flows.turn.pool import Pool, read_pool
from slackwater.flows.turn.report.recent_errors import STEPS, accuracy_rows, errors_of
from slackwater.flows.turn.results import write
from slackwater.flows.turn.score import read_score_facts, score_slots
from slackwater.flows.turn.work import Work, find_work, require_markets
from slackwater.optimization.job.request import JobRequest
from slackwater.warehouse.amounts import duration, percent, plural
from slackwater.warehouse.times import steady_seconds

SCORED_TOGETHER = 24  # Number of ended jobs whose outcomes are stored together: half a minute of work


def forecast_turns(
    turns: Sequence[Turn], works: Sequence[Work], *, ahead: Estimates = NO_ESTIMATES
) -> list[MeasuredErrors]:
    """Issue the forecasts of turns, fill in missing forecasts of past slots, and measure all.

    New estimates are stored in the same transaction as the forecasts that use them. Estimates in
    ``ahead`` are not computed again.
    """
    done: list[MeasuredErrors] = []
    for group in lacking_groups(turns, works):
        last = turns[len(done) + len(group) - 1]
        results, measured = forecast_group(read_forecast_facts(last, group), ahead)
        write(last.store, results)
        done += measured
    return done


def estimate_turns(turns: Sequence[Turn], works: Sequence[Work], *, before: Estimates) -> Estimates:
    """Return the estimates that `forecast_turns` needs from the first of the turns on, from ``before`` or new.

    Earlier slots are left out: another call may be issuing their forecasts at the same time. If it does not,
    `forecast_turns` computes the missing estimates. Nothing is stored before a forecast uses it.
    """
    found: Estimates = {}
    place = 0
    for group in lacking_groups(turns, works):
        place += len(group)
        missing = {
            followed: {
                model: [slot for slot in slots if slot >= turns[0].at] for model, slots in models.items()
            }
            for followed, models in missing_origins(group).items()
        }
        estimations = read_estimations(turns[place - 1], group[-1].histories, missing)
        found = {**found, **new_estimates(turns[place - 1], estimations, {**before, **found})}
    return found


def decide_jobs(
    turns: Sequence[Turn], works: Sequence[Work], pool: Pool, planned: PlannedForecasts | None = None
) -> list[TurnDecisions]:
    """Decide the slot of every running job in each turn; a decision issued before is read back.

    ``planned`` are the forecasts that `forecast_turns` returned for these turns; None: they must be
    stored, and are read. ``pool`` must have the rounds learned before each turn.
    """
    results, decided = decide_slots(read_decision_facts(turns, works, pool, planned))
    write(turns[-1].store, results)
    return decided


def score_jobs(
    turns: Sequence[Turn], works: Sequence[Work], pool: Pool, planned: PlannedForecasts | None = None
) -> tuple[tuple[tuple[str, ...], ...], Pool]:
    """Replay the pool on every ended job and add a round for each; returns the names of the jobs by turn, and the pool.

    The jobs are scored and stored in batches: a turn that was stopped continues with the next batch.
    A job that cannot be replayed is reported and left out. ``planned`` as for `decide_jobs`.
    """
    facts = read_score_facts(turns, works, pool, planned)
    total, start = len(facts.ended), steady_seconds()
    while True:
        results, facts = score_slots(facts, SCORED_TOGETHER)
        write(turns[-1].store, results)
        if not facts.ended:
            return facts.names, facts.pool
        done = total - len(facts.ended)
        left = pd.Timedelta(seconds=(steady_seconds() - start) / done * len(facts.ended))
        turns[-1].say(
            f"{done} of {total} ended jobs scored ({percent(done / total)}), about {duration(left)} left"
        )


# ---
# A turn of the loop: the stages in order, and the result, with or without a workflow engine.


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnData:
    """Data that a turn reads once, after its observations are ingested: its work, and the pool with its rounds."""

    work: Work
    pool: Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnProgress:
    """Inputs and results of a turn so far; each stage adds its results.

    ``data``: a folder to ingest (None: the live feeds, or without feeds the simulated market);
    ``page``: path of the report, None for a turn without a page.
    """

    data: Path | None = None
    requests: tuple[JobRequest, ...] = ()
    page: Path | None = None
    ingested: Counts = field(default_factory=dict)
    known: TurnData | None = None
    measured: MeasuredErrors = field(default_factory=MeasuredErrors)
    decisions: tuple[Row, ...] = ()
    undecided: tuple[str, ...] = ()
    scored: tuple[str, ...] = ()
    leaderboard: tuple[dict[str, Any], ...] = ()
    movers: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    errors: tuple[dict[str, Any], ...] = ()


Stage = Callable[[Turn, TurnProgress], TurnProgress]


def ingest(turn: Turn, found: TurnProgress) -> TurnProgress:
    """Ingest new observations: the tidy tables of a folder, the live feeds that are due, or else the simulated market."""
    turn.say("ingest")
    return replace(found, ingested=ingest_observations(turn, found.data))


def know(turn: Turn, found: TurnProgress) -> TurnData:
    """Return the work and the pool of the turn, read once."""
    if found.known is not None:
        return found.known
    pool = read_pool(turn)
    return TurnData(work=find_work(turn, found.requests, scored=pool.settled_jobs()), pool=pool)


def forecast(turn: Turn, found: TurnProgress) -> TurnProgress:
    """Issue the forecasts of this turn, fill in missing forecasts of past slots, and measure all of them."""
    known = know(turn, found)
    require_markets(known.work)
    turn.say(f"forecast {plural(len(known.work.markets), 'market')}")
    return replace(found, known=known, measured=forecast_turns([turn], [known.work])[0])


def decide(turn: Turn, found: TurnProgress) -> TurnProgress:
    """Decide the next slot of every running job; a decision issued before is read back."""
    known = know(turn, found)
    turn.say(f"decide for {plural(len(known.work.running), 'job')}")
    result = decide_jobs([turn], [known.work], known.pool, found.measured.planned)[0]
    turn.show(result.rows)
    return replace(found, known=known, decisions=result.rows, undecided=result.left_out)


def deliver(turn: Turn, found: TurnProgress) -> TurnProgress:
    """Deliver the decisions to the sinks; a backfilled turn delivers nothing, as its slot is over."""
    if turn.made == LIVE:
        hand_over(turn.store, turn.settings.sinks, found.decisions, at=turn.at, say=turn.say)
    return found


def score(turn: Turn, found: TurnProgress) -> TurnProgress:
    """Replay the pool on every ended job and add a round for each."""
    known = know(turn, found)
    if known.work.ended:
        turn.say(f"replay the pool on {plural(len(known.work.ended), 'ended job')}")
    names, pool = score_jobs([turn], [known.work], known.pool, found.measured.planned)
    return replace(found, known=replace(known, pool=pool), scored=names[0])


def report(turn: Turn, found: TurnProgress) -> TurnProgress:
    """Summarise the results over ended jobs, and write the page if its path is given."""
    # Imported here because the drawing modules load slowly and other stages do not need them.
    from slackwater.flows.turn.report.leaderboard import policy_results, read_board_facts
    from slackwater.flows.turn.report.page import read_report, write_report
    from slackwater.flows.turn.report.panels import panel

    turn.say("report")
    known, measured = know(turn, found), found.measured
    panels = [
        panel(history, measured.forecasts.get(followed)) for followed, history in measured.histories.items()
    ]
    data = read_report(
        turn,
        learned=policy_results(turn, read_board_facts(turn, known.pool)),
        decisions=list(found.decisions),
        left_out=[*known.work.left_out, *measured.left_out, *found.undecided],
        ingested=found.ingested,
        drawn=panels,
        simulated=found.data is None and not turn.settings.feeds and turn.read(simulates, turn.settings),
    )
    return replace(
        found,
        known=known,
        leaderboard=tuple(data.learned.leaderboard),
        movers=tuple(data.learned.movers),
        notes=tuple(data.notes),
        errors=tuple(errors_of(data.accuracy, steps=STEPS)),
        page=found.page and write_report(data, found.page),
    )


#: The stages of a turn in order.
STAGES: tuple[Stage, ...] = (ingest, forecast, decide, deliver, score, report)
#: Names of the stages that the ledger of runs records.
STAGE_NAMES: dict[Stage, str] = {ingest: "ingest", forecast: "forecast", decide: "allocate", score: "score"}


def run_stage(stage: Stage, turn: Turn, found: TurnProgress) -> TurnProgress:
    """Run a stage; if the ledger records it, the reason of a failure is stored."""
    name = STAGE_NAMES.get(stage)
    if name is None:
        return stage(turn, found)
    with turn.recorded_failure(name):
        return stage(turn, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult(TurnProgress):
    """Results of a turn: those of its stages, its name and time, and the measured errors as plain values."""

    run_id: str
    at: pd.Timestamp
    accuracy: list[dict[str, Any]]

    def answer(self) -> dict[str, Any]:
        """Return the object that ``slackwater run --json`` prints."""
        answer: dict[str, Any] = {
            "at": self.at.isoformat(),
            "run": self.run_id,
            "ingested": self.ingested,
            "accuracy": self.accuracy,
            "forecast_errors": list(self.errors),
            "decisions": list(self.decisions),
            "leaderboard": list(self.leaderboard),
            "notes": list(self.notes),
            "report": str(self.page or ""),
        }
        if self.movers:
            answer["movers"] = list(self.movers)
        return answer


def whole_turn(
    turn: Turn,
    *,
    data: Path | None,
    requests: Sequence[JobRequest],
    report: Path | None,
    run: Callable[[Stage, Turn, TurnProgress], TurnProgress] = run_stage,
) -> TurnResult:
    """Run every stage of a turn in order by ``run``, an interface like `run_stage`; ``report``: path of the page, if any."""
    found = run(ingest, turn, TurnProgress(data=data, requests=tuple(requests), page=report))
    # All later stages share a cache of the ingested observations.
    turn = replace(turn, reads=None)
    for stage in STAGES[1:]:
        found = run(stage, turn, found)
    values = {field.name: getattr(found, field.name) for field in fields(TurnProgress)}
    return TurnResult(
        **values, run_id=turn.run_id, at=turn.at, accuracy=accuracy_rows(found.measured.accuracy)
    )
