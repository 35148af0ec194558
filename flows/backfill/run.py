"""Backfill of past slots with the stages of a live turn: the plan (slots and stages) and its execution."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, cast, get_args

import pandas as pd

from slackwater.flows.clock import now
from slackwater.flows.command import progress, say
from slackwater.flows.config import Settings
from slackwater.flows.executor import chosen_executor, executor_fan, give_memory_back, process_fan
from slackwater.flows.histories import Reads
from slackwater.flows.ledger.stages import BACKFILL, STAGES, reason_of, save_failure
from slackwater.flows.turn.context import Turn, run_id_of
from slackwater.flows.turn.estimates import NO_ESTIMATES, Estimates, timetable_of
from slackwater.flows.turn.forecast import PlannedForecasts, forecast_market, joined_forecasts
from slackwater.flows.turn.pool import Pool, read_pool
from slackwater.flows.turn.stages import (
    TurnProgress,
    decide_jobs,
    estimate_turns,
    forecast_turns,
    ingest,
    score_jobs,
)
from slackwater.flows.turn.work import Work, find_work, require_markets
from slackwater.optimization.fan import Fan, in_turn
from slackwater.optimization.replay.decision import RECORD_SPAN
from slackwater.warehouse.amounts import duration
from slackwater.warehouse.asof import Span
from slackwater.warehouse.documents import read_object
from slackwater.warehouse.errors import SettingsError, SlackwaterError
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import Store, open_store

# ---
# Which slots and stages a backfill runs: read from the ledger of runs before anything is done, and
# printed by the dry run.

Reprocess = Literal["missing", "failed", "all"]
MOST_SLOTS = 100_000  # Maximum number of slots per backfill, to catch a mistyped year


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRange:
    """Slots from ``start`` to ``end`` (both included) at distance ``step``, with the stages to run and their order.

    ``reprocess``: "missing" runs the stages that were never tried, "failed" also those that failed,
    "all" every stage. ``backwards`` runs the newest slots first, except for stages that depend on
    the previous slot (decisions and scores).
    """

    start: pd.Timestamp
    end: pd.Timestamp
    step: pd.Timedelta
    stages: tuple[str, ...] = STAGES
    reprocess: Reprocess = "missing"
    backwards: bool = False

    def slots(self) -> pd.DatetimeIndex:
        """Return the slots, ascending."""
        return pd.date_range(self.start, self.end, freq=self.step)


def slots_between(
    start: pd.Timestamp,
    end: pd.Timestamp,
    *,
    slot: pd.Timedelta,
    step: pd.Timedelta | None = None,
    stages: Sequence[str] = (),
    reprocess: str = "missing",
    backwards: bool = False,
) -> SlotRange:
    """Return the range on the grid of ``slot``: from the first slot at or after ``start`` to the last at or before ``end``.

    Raises `SettingsError` for a range without slots or with more than `MOST_SLOTS`, a step that is
    no multiple of the slot, or an unknown stage or value of ``reprocess``.
    """
    step = slot if step is None else step
    if step < slot or step % slot:
        raise SettingsError(
            f"--step {duration(step)}", expected=f"a multiple of the slot length {duration(slot)}"
        )
    if reprocess not in get_args(Reprocess):
        raise SettingsError(f"--reprocess {reprocess!r}", expected=f"one of {', '.join(get_args(Reprocess))}")
    for stage in stages:
        if stage not in STAGES:
            raise SettingsError(f"--stage {stage!r}", expected=f"one of {', '.join(STAGES)}")
    first, last = start.ceil(slot), end.floor(slot)
    if last < first:
        raise SettingsError(f"no slot from {start} to {end}", expected="--from at or before --to")
    if (last - first) // step >= MOST_SLOTS:
        raise SettingsError(
            f"{(last - first) // step + 1} slots", expected=f"at most {MOST_SLOTS} in one backfill"
        )
    return SlotRange(
        start=first,
        end=first + (last - first) // step * step,
        step=step,
        stages=tuple(stage for stage in STAGES if stage in stages) or STAGES,
        reprocess=cast("Reprocess", reprocess),
        backwards=backwards,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """Plan of a backfill for a slot.

    ``todo``: stages to run, in order. ``standing``: state of each requested stage (missing, failed
    or done). ``reasons``: why earlier tries failed, per stage.
    """

    at: pd.Timestamp
    todo: tuple[str, ...]
    standing: dict[str, str]
    reasons: dict[str, str]

    @property
    def run(self) -> str:
        """The run id of the slot's turn."""
        return run_id_of(self.at)

    def row(self) -> dict[str, Any]:
        """Return the plan as a flat dictionary."""
        return {
            "slot": self.at,
            "run": self.run,
            **{stage: _words(stage, self) for stage in STAGES if stage in self.standing},
        }


def _words(stage: str, plan: SlotPlan) -> str:
    standing = plan.standing[stage]
    if stage in plan.todo:
        return "make" if standing == "missing" else f"make again ({standing})"
    return f"keep ({standing})"


def plan_backfill(store: Store | None, slot_range: SlotRange) -> list[SlotPlan]:
    """Plan a backfill slot by slot, ascending; without a warehouse every stage is missing."""
    standing: dict[tuple[str, str], tuple[str, str]] = {}
    if store is not None:
        runs = read_rows(
            store,
            "runs",
            where={"logical_at": slice(slot_range.start, slot_range.end + pd.Timedelta(microseconds=1))},
        )
        for run, stage, status, details in runs[["run", "stage", "status", "details"]].itertuples(
            index=False
        ):
            if standing.get((run, stage), ("", ""))[0] != "done":
                reason = str((read_object(details) or {}).get("reason", "")) if status == "failed" else ""
                standing[run, stage] = (status, reason)
    return [_slot_plan(at, slot_range, standing) for at in slot_range.slots()]


def _slot_plan(
    at: pd.Timestamp, slot_range: SlotRange, known: dict[tuple[str, str], tuple[str, str]]
) -> SlotPlan:
    own = {stage: known.get((run_id_of(at), stage), ("missing", "")) for stage in slot_range.stages}
    wanted = {"missing": ("missing",), "failed": ("missing", "failed"), "all": ("missing", "failed", "done")}
    return SlotPlan(
        at=at,
        todo=tuple(stage for stage, (state, _) in own.items() if state in wanted[slot_range.reprocess]),
        standing={stage: state for stage, (state, _) in own.items()},
        reasons={stage: why for stage, (_, why) in own.items() if why},
    )


# ---
# Backfill: run the stages of live turns for many past slots at once.
#
# The resulting tables equal those of turns that ran at their own time, slot by slot: each turn reads only
# data known at its slot (M1.2), and its rows are marked as backfilled. The range is processed in pieces. The
# results of a piece are committed at once, so a backfill that was killed resumes where it stopped. As soon as
# another process waits to write, the backfill finishes the current piece and releases the warehouse. While a
# piece is forecast, the decisions of the previous piece run (only later decisions read them) and the
# estimates of the next piece are computed.

TOGETHER = (forecast_market,)  # Functions whose calls share large arguments
CHUNK = 96  # Maximum number of slots per chunk, for which observations are ingested and read together
#: Maximum number of slots per piece: limits the work lost by a kill, the wait of a live turn, and memory.
PIECE = 48
#: Maximum number of pieces until the warehouse is reopened, which publishes the results to readers.
#: A waiting writer has the same effect.
OPENING = 16
#: Errors of a slot that do not stop the other slots; they are stored with their reason.
#: `TimeoutError`, although an `OSError`, is always raised again: the engine raises it at any point
#: when the time limit of the run is over.
FAILURES = (SlackwaterError, ValueError, ArithmeticError, LookupError, TypeError, OSError, RuntimeError)
#: A turn and its markets and jobs.
_Pair = tuple[Turn, Work]
_NO_WORK = Work(markets=(), running=(), ended=())
Maker = Callable[[list[Turn], list[Work]], Any]  # Function that runs a stage for ascending turns
IN_ORDER = ("allocate", "score")  # Stages that depend on the previous slot: always run in ascending order


#: Runs a part of the work; parameters: its name, its slots and the work.
Part = Callable[[str, str, Callable[[], None]], None]


def run_part(_name: str, _slots: str, work: Callable[[], None]) -> None:
    """Run a part of the work by calling it: the `Part` without a workflow engine."""
    work()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """Parameters of a backfill: warehouse file, slot range, settings, folder to ingest from, number of processes and callbacks."""

    db: Path
    slot_range: SlotRange
    settings: Settings
    data: Path | None = None
    workers: int = 2
    say: Callable[[str], None] = field(default=lambda _: None)
    #: Called after every piece with the number of (slot, stage) pairs of the plan that are finished.
    progress: Callable[[int], None] = field(default=lambda _: None)
    part: Part = run_part
    pause: Callable[[], None] = field(default=lambda: None)  # Called each time the warehouse has been closed
    #: The present time, relative to which observations from the future are rejected.
    clock: pd.Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutcome:
    """Outcome of the stages of a slot: "made", "kept", "failed" or "waiting" (for an earlier stage), with reasons."""

    plan: SlotPlan
    became: dict[str, str]
    reasons: dict[str, str]

    def row(self) -> dict[str, Any]:
        """Return the outcome as a flat dictionary."""
        why = "; ".join(f"{stage}: {reason}" for stage, reason in self.reasons.items())
        return {"slot": self.plan.at, "run": self.plan.run, **self.became, "why": why}


def backfill(request: Backfill) -> list[StageOutcome]:
    """Run a backfill and return the outcome of every slot, ascending; a failed slot does not stop the others."""
    memory = f"{request.settings.backfill_memory_mb}MB"
    open_db = partial(open_store, request.db, say=request.say, memory_limit=memory)
    with ExitStack() as opened:
        store = opened.enter_context(open_db())
        plans = plan_backfill(store, request.slot_range)
        log = _Log(plans, request.slot_range.stages)
        busy = [plan for plan in plans if plan.todo]
        # Starting processes pays off only for enough slots.
        workers = request.workers if len(busy) >= PIECE else 1
        executor = chosen_executor()
        if executor.kind == "dask":
            fan = opened.enter_context(executor_fan(executor, together=TOGETHER))
        else:
            fan = opened.enter_context(process_fan(workers, together=TOGETHER))
        threads = opened.enter_context(ThreadPoolExecutor(2)) if workers > 1 else None
        first = True
        for stages, chunks in _passes(busy, request.slot_range):
            pieces = deque(_pieces(chunks))
            while pieces:
                # The first pieces use the connection that planned them. Closing it after a kill
                # would publish the half piece that was committed.
                with store if first else open_db() as own:
                    _Opening(request, own, log, stages, fan, threads).make(pieces)
                first = False
                request.pause()
    return list(log.outcomes.values())


def _passes(
    busy: Sequence[SlotPlan], slot_range: SlotRange
) -> Iterator[tuple[tuple[str, ...], list[Sequence[SlotPlan]]]]:
    """Yield the stages to run together with their chunks of slots, in the order of execution."""
    chunks = [busy[i : i + CHUNK] for i in range(0, len(busy), CHUNK)]
    bound = IN_ORDER if slot_range.backwards else STAGES
    if free := tuple(stage for stage in slot_range.stages if stage not in bound):
        yield free, chunks[::-1]
    if rest := tuple(stage for stage in slot_range.stages if stage in bound):
        yield rest, chunks


@dataclass(slots=True, kw_only=True)
class _Piece:
    """Neighbouring slots that are processed together, with the inputs of their turns.

    ``left``: the slots of the chunk from this piece on. ``begins``: whether this is the first piece
    of its chunk. ``planned``: the forecasts for its decisions and scores, by slot.
    """

    plans: Sequence[SlotPlan]
    left: Sequence[SlotPlan]
    begins: bool
    pairs: list[_Pair] = field(default_factory=list)
    estimates: Estimates = field(default_factory=dict)
    planned: dict[pd.Timestamp, PlannedForecasts | None] = field(default_factory=dict)

    def planned_at(self, turns: Sequence[Turn]) -> PlannedForecasts | None:
        """Return the forecasts of some turns; None if an earlier process issued the forecasts of any of them."""
        own = [self.planned.get(turn.at) for turn in turns]
        known = [time for time in own if time is not None]
        return joined_forecasts(known) if len(known) == len(own) else None

    def __str__(self) -> str:
        first, last = (f"{plan.at:%Y-%m-%dT%H:%MZ}" for plan in (self.plans[0], self.plans[-1]))
        return f"{first} to {last}"


def _pieces(chunks: Sequence[Sequence[SlotPlan]]) -> Iterator[_Piece]:
    for chunk in chunks:
        for i in range(0, len(chunk), PIECE):
            yield _Piece(plans=chunk[i : i + PIECE], left=chunk[i:], begins=i == 0)


class _Log:
    """Outcome of every slot and stage so far."""

    def __init__(self, plans: Sequence[SlotPlan], stages: Sequence[str]) -> None:
        self.outcomes = {
            plan.at: StageOutcome(
                plan=plan,
                became={stage: "waiting" if stage in plan.todo else "kept" for stage in stages},
                reasons={},
            )
            for plan in plans
        }

    def note(self, at: pd.Timestamp, stage: str, became: str, reason: str = "") -> None:
        self.outcomes[at].became[stage] = became
        if reason:
            self.outcomes[at].reasons[stage] = reason

    def waits(self, at: pd.Timestamp, stage: str) -> bool:
        """Return whether a stage is planned and was not tried yet."""
        return self.outcomes[at].became.get(stage) == "waiting"

    def has_result(self, at: pd.Timestamp, stage: str) -> bool:
        """Return whether the result of a stage exists: made now, done before, or not requested (then assumed to exist)."""
        own = self.outcomes[at]
        state = own.became.get(stage)
        return state in (None, "made") or (state == "kept" and own.plan.standing[stage] == "done")


#: Stage -> the stage of the same slot that it requires.
NEEDS = {"forecast": "ingest", "allocate": "forecast", "score": "forecast"}


def _nothing() -> None:
    """Do nothing: no background work is pending."""


@dataclass(slots=True)
class _Opening:
    """Pieces processed while the warehouse is open once."""

    _backfill: Backfill
    _store: Store
    _log: _Log
    _stages: Sequence[str]
    _fan: Fan
    _background: Executor | None
    _reads: Reads | None = None  # Cached observations for the turns of the current chunk
    #: The policy pool after the scores so far; None if it must be read from the warehouse.
    _pool: Pool | None = None
    #: Names of the jobs that are scored before the next slots; None if they must be read from the warehouse.
    _scored: set[str] | None = None
    _recount: bool = False  # Whether scoring failed for a job that was assumed to be scored

    def make(self, pieces: deque[_Piece]) -> None:
        """Run the planned stages piece by piece until the warehouse must be released; a failed stage ends its slot.

        While a piece is forecast, the previous piece is decided and the next piece is prepared;
        they are independent.
        """
        piece = pieces.popleft()
        self._run("prepare", self._ahead, piece, NO_ESTIMATES)
        wait_for_decisions: Callable[[], None] = _nothing
        for number in count(1):
            if self._recount:
                self._recount, self._scored = False, None
                piece.pairs = self._works(piece)
            go_on = pieces and number < OPENING and not self._store.is_waited_for()
            following = pieces.popleft() if go_on else None
            wait_for_following: Callable[[], None] = _nothing
            if following is not None:
                wait_for_following = self._start("prepare", self._ahead, following, piece.estimates)
            self._run(self._stages_to_run("forecast", "score"), self._forecast_and_score, piece)
            wait_for_decisions()
            wait_for_following()
            wait_for_decisions = self._start(
                self._stages_to_run("allocate"), self._decide_slots, piece, self._pool
            )
            give_memory_back()
            if following is None:
                break
            piece = following
        wait_for_decisions()

    def _run(self, name: str, work: Callable[..., None], piece: _Piece, *given: Any) -> None:
        """Do some work on a piece, as a part with a name that the workflow engine shows; without a name just do it."""
        if name:
            self._backfill.part(name, str(piece), partial(work, piece, *given))
        else:
            work(piece, *given)

    def _start(self, name: str, work: Callable[..., None], piece: _Piece, *given: Any) -> Callable[[], None]:
        """Start work as in `_run` in the background; return a function that waits for its end and raises its error."""
        if self._background is None:
            self._run(name, work, piece, *given)
            return _nothing
        # In a copy of this context, in which Prefect finds the flow run of the work.
        future: Future[None] = self._background.submit(
            copy_context().run, self._run, name, work, piece, *given
        )
        return future.result

    def _stages_to_run(self, *stages: str) -> str:
        """Return the names of those stages that this pass runs."""
        return " and ".join(stage for stage in stages if stage in self._stages)

    def _ahead(self, piece: _Piece, before: Estimates) -> None:
        """Prepare a piece: the chunk if it is the first piece, the inputs of its turns, and the estimates for its forecasts."""
        if piece.begins or self._reads is None:
            self._ready(piece.left)
        piece.pairs = self._works(piece)
        pairs = self._lacking("forecast", piece)
        if not pairs:
            return
        try:
            turns, works = [turn for turn, _ in pairs], [work for _, work in pairs]
            piece.estimates = estimate_turns(turns, works, before=before)
        except TimeoutError:
            raise
        except FAILURES as error:  # the forecast stage raises it again, for the slot that caused it
            self._backfill.say(f"estimation for {len(pairs)} slots failed ({error!r})")

    def _ready(self, plans: Sequence[SlotPlan]) -> None:
        """Ingest missing data of the slots and cache the observations that their turns read."""
        if "ingest" in self._stages:
            self._ingest([self._turn(plan.at) for plan in plans if self._log.waits(plan.at, "ingest")])
        slots = [plan.at for plan in self._slots_to_run(plans)]
        if not slots:
            return
        step, settings = self._backfill.slot_range.step, self._backfill.settings
        back = max(RECORD_SPAN + pd.Timedelta(days=7), timetable_of(settings).lookback + pd.Timedelta(days=3))
        span = Span(first=min(slots), last=max(slots), step=step, since=min(slots) - back)
        self._reads = Reads(self._store, span)

    def _slots_to_run(self, plans: Sequence[SlotPlan]) -> list[SlotPlan]:
        """Return the slots that have stages after ingest to run and whose ingest succeeded."""
        rest = [stage for stage in self._stages if stage != "ingest"]
        wanted = [plan for plan in plans if any(stage in plan.todo for stage in rest)]
        return [plan for plan in wanted if self._log.has_result(plan.at, "ingest")]

    def _forecast_and_score(self, piece: _Piece) -> None:
        """Forecast the slots of a piece and score their ended jobs, which needs no decision of these slots."""
        self._stage("forecast", piece, partial(self._forecast, piece))
        self._stage("score", piece, partial(self._score, piece))

    def _forecast(self, piece: _Piece, turns: list[Turn], works: list[Work]) -> None:
        measured = forecast_turns(turns, works, ahead=piece.estimates)
        piece.planned |= {turn.at: result.planned for turn, result in zip(turns, measured, strict=True)}

    def _score(self, piece: _Piece, turns: list[Turn], works: list[Work]) -> None:
        _, self._pool = score_jobs(turns, works, self._known_pool(turns[0]), piece.planned_at(turns))

    def _known_pool(self, turn: Turn) -> Pool:
        """Return the policy pool after the scores so far; reads it once."""
        if self._pool is None:
            self._pool = read_pool(turn)
        return self._pool

    def _decide_slots(self, piece: _Piece, pool: Pool | None) -> None:
        """Decide the slots of a piece and report its progress."""

        def decide(turns: list[Turn], works: list[Work]) -> None:
            known = read_pool(turns[0]) if pool is None else pool
            decide_jobs(turns, works, known, piece.planned_at(turns))

        self._stage("allocate", piece, decide)
        self._backfill.progress(sum(stage in plan.todo for plan in piece.plans for stage in self._stages))

    def _stage(self, stage: str, piece: _Piece, maker: Maker) -> None:
        """Run a stage, if requested, for the slots that lack it and have its required stage."""
        self._together(stage, self._lacking(stage, piece), maker)

    def _lacking(self, stage: str, piece: _Piece) -> list[_Pair]:
        """Return the turns of a piece that lack a stage and have its required stage."""
        if stage not in self._stages:
            return []
        todo = {plan.at for plan in piece.plans if stage in plan.todo}
        return [
            pair
            for pair in piece.pairs
            if pair[0].at in todo and self._log.has_result(pair[0].at, NEEDS[stage])
        ]

    def _turn(self, at: pd.Timestamp) -> Turn:
        return Turn(
            store=self._store, at=at, settings=self._backfill.settings, run_id=run_id_of(at), made=BACKFILL,
            reads=self._reads, fan=self._fan, clock=self._backfill.clock,
        )  # fmt: skip

    def _ingest(self, turns: Sequence[Turn]) -> None:
        """Ingest several slots in a single transaction; slot by slot if that fails, or if feeds commit each page."""
        request = self._backfill

        def read(turns: list[Turn], _: list[Work]) -> None:
            with self._store.transaction() if len(turns) > 1 else nullcontext():
                for turn in turns:
                    ingest(turn, TurnProgress(data=request.data))

        pairs = [(turn, _NO_WORK) for turn in turns]
        for own in [[pair] for pair in pairs] if request.data is None and request.settings.feeds else [pairs]:
            self._together("ingest", own, read)

    def _works(self, piece: _Piece) -> list[_Pair]:
        """Find the markets and jobs of each slot's turn, given the jobs that earlier slots score."""
        pairs: list[_Pair] = []
        plans = self._slots_to_run(piece.plans)
        if plans and (self._scored is None or "score" not in self._stages):
            self._scored = read_pool(self._turn(plans[0].at)).settled_jobs()
        scored = set() if self._scored is None else self._scored
        for plan in plans:
            turn = self._turn(plan.at)
            try:
                work = find_work(turn, [], scored=scored)
                require_markets(work)
            except TimeoutError:
                raise
            except FAILURES as error:
                stage = next((name for name in plan.todo if name != "ingest"), "forecast")
                self._note_failure(turn, stage, error)
                continue
            if "score" in plan.todo:
                scored |= {job.request.name for job, _ in work.ended}
            pairs.append((turn, work))
        return pairs

    def _together(self, stage: str, pairs: Sequence[_Pair], maker: Maker) -> None:
        """Run a stage for many slots at once; if that fails, slot by slot, so that only the failing slots are lost."""
        if not pairs:
            return
        try:
            maker([turn for turn, _ in pairs], [work for _, work in pairs])
        except TimeoutError:
            raise
        except FAILURES as error:
            if len(pairs) == 1:
                self._note_failure(pairs[0][0], stage, error)
                return
            self._backfill.say(f"{stage} of {len(pairs)} slots together failed ({error!r}); slot by slot")
            for turn, work in pairs:
                self._together(stage, [(replace(turn, fan=in_turn), work)], maker)
        else:
            for turn, _ in pairs:
                self._log.note(turn.at, stage, "made")

    def _note_failure(self, turn: Turn, stage: str, error: BaseException) -> None:
        reason = reason_of(error)
        save_failure(self._store, turn.run_id, at=turn.at, stage=stage, reason=reason, made=BACKFILL)
        self._log.note(turn.at, stage, "failed", reason)
        if stage == "score":
            self._recount = True
        self._backfill.say(f"{turn.at:%Y-%m-%d %H:%M} {stage} failed: {reason}")


# ---
# A backfill of a command or a flow: its progress is shown, and live turns may write between its chunks.

#: Pause in seconds between two chunks, with the warehouse released: longer than the retry interval
#: of a waiting writer.
BREATH = 0.6


def run_backfill(
    db: Path, slot_range: SlotRange, settings: Settings, *, data: Path | None, part: Part = run_part
) -> list[StageOutcome]:
    """Run a backfill with at most two processes and pause between chunks for live turns."""
    done = 0
    with progress("stages", len(slot_range.slots()) * len(slot_range.stages), lines=True) as tell:

        def count_stages(pieces: int) -> None:
            nonlocal done
            done += pieces
            tell(done)

        return backfill(
            Backfill(
                db=db,
                slot_range=slot_range,
                settings=settings,
                data=data,
                workers=min(2, os.cpu_count() or 1),
                say=say,
                progress=count_stages,
                pause=lambda: time.sleep(BREATH),
                part=part,
                clock=now(),
            )
        )


def backfill_answer(slot_range: SlotRange, outcomes: Sequence[StageOutcome]) -> dict[str, Any]:
    """Count the outcomes of a backfill by state."""
    became = [state for outcome in outcomes for state in outcome.became.values()]
    return {
        "from": slot_range.start,
        "to": slot_range.end,
        "step_minutes": slot_range.step / pd.Timedelta(minutes=1),
        "stages": list(slot_range.stages),
        "reprocess": slot_range.reprocess,
        "slots": len(outcomes),
        **{state: became.count(state) for state in ("made", "kept", "failed", "waiting")},
    }


def changed_slots(outcomes: Sequence[StageOutcome]) -> list[dict[str, Any]]:
    """Return a row for each slot that had stages to run."""
    return [outcome.row() for outcome in outcomes if outcome.plan.todo]
