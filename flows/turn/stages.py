"""A turn of the loop: what it reads once, its stages in order, and its result. The same with and without an engine.

A stage is a plain function from what the turn has found out so far to that and more. It reads values, computes, and writes its rows
and its record of having run together or not at all, so a turn that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from flows.delivery.deliver import deliver as hand_over
from flows.feeds.fetch import fetch_due
from flows.ledger.runs import LIVE, save_runs
from flows.turn.context import Reads, Turn
from flows.turn.decide import Row, competing, decide_jobs
from flows.turn.forecast import Measured, forecast_turns
from flows.turn.ingest import Counts, ingest_paths, ingest_simulated, simulated_label
from flows.turn.page import write_report
from flows.turn.report import accuracy_rows, learned, panel, report_data
from flows.turn.score import score_jobs
from flows.turn.work import Pool, Work, find_work, read_pool, require_markets
from optimization.job.request import JobRequest
from warehouse.observations import observed_sources

if TYPE_CHECKING:
    from flows.schemas.forms import Ingested, TurnAnswer, TurnError


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a turn reads once, when its observations are in: what it is about, and the pool with what was learned of it."""

    work: Work
    pool: Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a turn was given and has found out so far; each stage adds its own.

    ``data``: a folder to ingest (None: the live feeds, without any the simulated market); ``page``: where the report goes.
    """

    data: Path | None = None
    requests: tuple[JobRequest, ...] = ()
    page: Path = Path("reports/report.html")
    ingested: Counts = field(default_factory=dict)
    known: Known | None = None
    measured: Measured = field(default_factory=Measured)
    decisions: tuple[Row, ...] = ()
    scored: tuple[str, ...] = ()
    leaderboard: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


Stage = Callable[[Turn, Found], Found]


def ingest(turn: Turn, found: Found) -> Found:
    """Bring in what is new: the tidy tables of a folder, the live feeds that are due, or without any the simulated market.

    Each page of a feed is kept at once, so that nothing is fetched twice; all other rows together.
    """
    turn.say("ingest")
    settings, fetched = turn.settings, None
    if found.data is None and settings.feeds and turn.made == LIVE:
        fetched = fetch_due(turn.store, settings.feeds, at=turn.at, seed=settings.seed, say=turn.say)
    with turn.store.transaction():
        if found.data is not None:
            counts = ingest_paths(
                turn.store,
                "tabular",
                [found.data],
                options={},
                known_at=None,
                imported_at=turn.at,
                progress=turn.say,
            )
        elif settings.feeds:
            counts = {} if fetched is None else fetched
        elif turn.made == LIVE:
            counts = ingest_simulated(turn)
        else:
            # Afterwards the market is simulated where it was before, and never beside observations of a real one.
            simulated = set(observed_sources(turn.store)) <= {simulated_label(settings)}
            counts = ingest_simulated(turn) if simulated else {}
        save_runs(turn.store, [turn.done("ingest", counts)])
    return replace(found, ingested=counts)


def know(turn: Turn, found: Found) -> Known:
    """What the turn is about; it is read once."""
    if found.known is not None:
        return found.known
    pool = read_pool(turn)
    return Known(work=find_work(turn, found.requests, scored=pool.rounds.settled()), pool=pool)


def forecast(turn: Turn, found: Found) -> Found:
    """Issue the forecasts of this turn, fill in those that past slots lack, and measure all of them."""
    known = know(turn, found)
    require_markets(known.work)
    turn.say(f"forecast {len(known.work.markets)} markets")
    return replace(found, known=known, measured=forecast_turns([turn], [known.work])[0])


def decide(turn: Turn, found: Found) -> Found:
    """Decide the next slot of every running job; a decision issued before is read back, not made again."""
    known = know(turn, found)
    turn.say(f"decide for {len(known.work.running)} jobs")
    made = decide_jobs([turn], [known.work], known.pool)[0]
    return replace(found, known=known, decisions=tuple(made))


def deliver(turn: Turn, found: Found) -> Found:
    """Hand the decisions over; a turn that is made afterwards hands nothing over: nobody can act on it any more."""
    if turn.made == LIVE:
        hand_over(turn.store, turn.settings.sinks, found.decisions, at=turn.at, say=turn.say)
    return found


def score(turn: Turn, found: Found) -> Found:
    """Replay the pool on every job that ended and add a round for each."""
    known = know(turn, found)
    turn.say(f"replay the pool on {len(known.work.ended)} ended jobs")
    names, pool = score_jobs([turn], [known.work], known.pool)
    return replace(found, known=replace(known, pool=pool), scored=tuple(names[0]))


def report(turn: Turn, found: Found) -> Found:
    """Tell what the jobs that ended have taught, and write the page."""
    turn.say("report")
    known, measured = know(turn, found), found.measured
    data = report_data(
        turn,
        learned=learned(turn, known.pool),
        decisions=list(found.decisions),
        left_out=[*known.work.left_out, *competing(found.decisions)],
        accuracy=measured.accuracy,
        ingested=found.ingested,
        drawn=[panel(history, measured.forecasts.get(one)) for one, history in measured.histories.items()],
        simulated=found.data is None and not turn.settings.feeds,
    )
    return replace(
        found,
        known=known,
        leaderboard=tuple(data.leaderboard),
        notes=tuple(data.notes),
        page=write_report(data, found.page),
    )


#: A turn in order.
STAGES: tuple[Stage, ...] = (ingest, forecast, decide, deliver, score, report)
#: The very first turn scores before it decides, so that its decisions have something to go by (decision 3).
FIRST_STAGES: tuple[Stage, ...] = (ingest, forecast, score, decide, deliver, report)
#: What the ledger of runs calls the stages it keeps.
RECORDED: dict[Stage, str] = {
    ingest: "ingest",
    forecast: "forecast",
    decide: "allocate",
    score: "score",
}


def run_stage(stage: Stage, turn: Turn, found: Found) -> Found:
    """Run one stage; why it fails is recorded if the ledger keeps it."""
    name = RECORDED.get(stage)
    if name is None:
        return stage(turn, found)
    with turn.failure_kept(name):
        return stage(turn, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """Everything a turn found out, as plain values."""

    run_id: str
    at: pd.Timestamp
    ingested: Counts
    accuracy: list[dict[str, Any]]
    decisions: list[Row]
    leaderboard: list[dict[str, Any]]
    notes: list[str]
    report: Path

    def answer(self) -> TurnAnswer:
        """The object that ``slackwater run --json`` prints."""
        return {
            "at": self.at.isoformat(),
            "run": self.run_id,
            "ingested": cast("dict[str, Ingested]", self.ingested),
            "accuracy": cast("list[TurnError]", self.accuracy),
            "decisions": self.decisions,
            "leaderboard": self.leaderboard,
            "notes": self.notes,
            "report": str(self.report),
        }


def whole_turn(turn: Turn, *, data: Path | None, requests: Sequence[JobRequest], report: Path) -> TurnResult:
    """Every stage of a turn in order."""
    found = run_stage(ingest, turn, Found(data=data, requests=tuple(requests), page=report))
    # What is in by now is read once, however many stages ask.
    turn = replace(turn, reads=Reads(turn.store))
    found = run_stage(forecast, turn, found)
    stages = STAGES if know(turn, found).pool.has_learned(turn.at) else FIRST_STAGES
    for stage in stages[2:]:
        found = run_stage(stage, turn, found)
    return TurnResult(
        run_id=turn.run_id,
        at=turn.at,
        ingested=found.ingested,
        accuracy=accuracy_rows(found.measured.accuracy),
        decisions=list(found.decisions),
        leaderboard=list(found.leaderboard),
        notes=list(found.notes),
        report=found.page,
    )
