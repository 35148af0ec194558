"""Past slots made afterwards by the stages of a live turn: which slots and stages, and the run over them."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd

from flows.config import Settings
from flows.ledger.records import BACKFILL, STAGES, reason_of, save_failure
from flows.turn.context import Pool, Reads, Turn, Work, find_work, read_pool, require_markets, run_id_of
from flows.turn.forecast import (
    NO_ESTIMATES,
    Estimates,
    estimate_turns,
    forecast_market,
    forecast_turns,
    timetable_of,
)
from flows.turn.stages import Found, decide_jobs, ingest, score_jobs
from optimization.replay.decision import RECORD_SPAN, Fan, in_turn
from warehouse.asof import Span
from warehouse.documents import read_object
from warehouse.errors import SettingsError, SlackwaterError
from warehouse.issued import read_rows
from warehouse.store.connection import Store, open_store

# ---
# Which slots and stages a backfill makes: read off the ledger of runs before anything is done, and printed by the dry run.

Reprocess = Literal["missing", "failed", "all"]
#: The most slots of one backfill: a mistyped year should not begin.
MOST_SLOTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRange:
    """The slots from ``start`` to ``end``, both included, ``step`` apart; and which stages of each, in which order of slots.

    ``reprocess``: "missing" makes the stages that were never done nor tried, "failed" those that failed too, "all" every one.
    ``backwards`` makes the newest slots first, as far as a slot does not go on from the one before (decisions and scores do).
    """

    start: pd.Timestamp
    end: pd.Timestamp
    step: pd.Timedelta
    stages: tuple[str, ...] = STAGES
    reprocess: Reprocess = "missing"
    backwards: bool = False

    def slots(self) -> pd.DatetimeIndex:
        """The slots, ascending."""
        return pd.date_range(self.start, self.end, freq=self.step)


def stretch_of(
    start: pd.Timestamp,
    end: pd.Timestamp,
    *,
    slot: pd.Timedelta,
    step: pd.Timedelta | None = None,
    stages: Sequence[str] = (),
    reprocess: str = "missing",
    backwards: bool = False,
) -> SlotRange:
    """A stretch on the grid of ``slot``: from the first slot at or after ``start`` to the last at or before ``end``.

    Raises `SettingsError` for an empty or endless range, a step that is not whole slots, an unknown stage or rule.
    """
    step = slot if step is None else step
    if step < slot or step % slot:
        raise SettingsError(f"--step {step}", expected=f"a multiple of the slot length {slot}")
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
        reprocess=_rule(reprocess),
        backwards=backwards,
    )


def _rule(text: str) -> Reprocess:
    return "all" if text == "all" else "failed" if text == "failed" else "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """What a backfill does in one slot: ``todo``, in order; and of each stage asked for how it stands and why it failed."""

    at: pd.Timestamp
    todo: tuple[str, ...]
    standing: dict[str, str]
    reasons: dict[str, str]

    @property
    def run(self) -> str:
        """The name of the slot's turn."""
        return run_id_of(self.at)

    def row(self) -> dict[str, Any]:
        """The plan as plain values."""
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


def plan_backfill(store: Store | None, stretch: SlotRange) -> list[SlotPlan]:
    """What a backfill of the stretch does, slot by slot in ascending order; without a warehouse everything is missing."""
    standing: dict[tuple[str, str], tuple[str, str]] = {}
    if store is not None:
        runs = read_rows(
            store,
            "runs",
            where={"logical_at": slice(stretch.start, stretch.end + pd.Timedelta(microseconds=1))},
        )
        for run, stage, status, details in runs[["run", "stage", "status", "details"]].itertuples(
            index=False
        ):
            if standing.get((run, stage), ("", ""))[0] != "done":
                reason = str((read_object(details) or {}).get("reason", "")) if status == "failed" else ""
                standing[run, stage] = (status, reason)
    return [_slot_plan(at, stretch, standing) for at in stretch.slots()]


def _slot_plan(
    at: pd.Timestamp, stretch: SlotRange, known: dict[tuple[str, str], tuple[str, str]]
) -> SlotPlan:
    own = {stage: known.get((run_id_of(at), stage), ("missing", "")) for stage in stretch.stages}
    wanted = {"missing": ("missing",), "failed": ("missing", "failed"), "all": ("missing", "failed", "done")}
    return SlotPlan(
        at=at,
        todo=tuple(stage for stage, (state, _) in own.items() if state in wanted[stretch.reprocess]),
        standing={stage: state for stage, (state, _) in own.items()},
        reasons={stage: why for stage, (_, why) in own.items() if why},
    )


# ---
# Backfill: the turns of many past slots, made afterwards by the stages that live turns are made of, many slots at once.
#
# The tables end as if each slot's turn had been run in its own time, slot by slot: what is made sees only what was known then
# (M1.2), and is marked as made afterwards. A stretch is made in pieces; what a piece has made is kept at once, so a backfill
# that was killed goes on where it was. As soon as another process waits to write, the piece at hand is ended and the warehouse
# set free for it. While a piece is forecast, the one before it is decided, which nothing but later decisions reads, and the one
# after it is estimated for.

#: Work whose calls have much in common, and parcels of it for each process: more even out, fewer cross more cheaply.
TOGETHER, PARCELS = (forecast_market,), 2
#: The C library that this process runs on.
_C_LIBRARY = ctypes.CDLL(None)
#: Seconds between two looks at whether the parent is still there.
_LOOK_EVERY = 1.0


@contextmanager
def process_fan(workers: int) -> Iterator[Fan]:
    """A `Fan` over ``workers`` processes, started when first asked; values in, values out. One worker is this process itself.

    Several threads may use it at once. The processes end with this one, however it ends.
    """
    if workers <= 1:
        yield in_turn
        return
    # Memory that threads gave back would otherwise stay in an arena for each of them.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    pool = ProcessPoolExecutor(
        max_workers=workers, mp_context=get_context("spawn"), initializer=_end_with, initargs=(os.getpid(),)
    )

    def fan(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
        # Calls that go over together share what they have in common: an estimation on many markets crosses once, not once a market.
        size = len(calls)
        many = PARCELS * workers if function in TOGETHER else max(1, size)
        parcels = [list(calls[i::many]) for i in range(min(many, size))]
        sent: list[Future[list[Any]]] = [pool.submit(_parcel, function, parcel) for parcel in parcels]
        done = [one.result() for one in sent]
        return [done[i % many][i // many] for i in range(size)]

    try:
        yield fan
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _parcel(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
    """`in_turn` in a worker, which then gives back the memory it does not need: an estimation takes far more than it leaves."""
    made = in_turn(function, calls)
    give_memory_back()
    return made


def give_memory_back() -> None:
    """Return to the system what this process has freed, where the C library can be asked to (glibc)."""
    trim = getattr(_C_LIBRARY, "malloc_trim", None)
    if trim is not None:
        trim(0)


def _end_with(parent: int) -> None:
    """Let this process end soon after ``parent``: one that was killed cannot say so."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    ended = threading.Event()

    def watch() -> None:
        while os.getppid() == parent:
            ended.wait(_LOOK_EVERY)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


#: Slots of one chunk at most: for so many observations are ingested and read together.
CHUNK = 96
#: Slots of one piece of a chunk at most: what a kill can cost, how long a live turn may have to wait, what is held in memory.
PIECE = 48
#: Pieces made on one opening at most: then readers are shown what has been made, as they are when another process waits to write.
OPENING = 16
#: DuckDB's share of the memory that a backfill may take beside its worker processes.
MEMORY_LIMIT = "160MB"
#: What may go wrong in one slot without stopping the others: it is recorded with its reason. Not a time-out, which the engine
#: raises wherever the run stands when its own time is up.
FAILURES = (SlackwaterError, ValueError, ArithmeticError, LookupError, TypeError, OSError, RuntimeError)
#: A turn and what it is about.
_Pair = tuple[Turn, Work]
#: Makes a stage of ascending turns.
Maker = Callable[[list[Turn], list[Work]], Any]
#: Stages that go on from the slot before: always made in ascending order.
IN_ORDER = ("allocate", "score")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """What a backfill is given: the warehouse file, the stretch, the settings, where to ingest from, and how many processes."""

    db: Path
    stretch: SlotRange
    settings: Settings
    data: Path | None = None
    workers: int = 2
    say: Callable[[str], None] = field(default=lambda _: None)
    #: Told after every piece how many (slot, stage) of the plan are done with.
    progress: Callable[[int], None] = field(default=lambda _: None)
    #: Runs one part of the work, given its name, the slots that it is of, and the work.
    part: Callable[[str, str, Callable[[], None]], None] = field(default=lambda _name, _slots, work: work())
    #: Called between two openings, when the warehouse is free.
    pause: Callable[[], None] = field(default=lambda: None)
    #: The present time, beside which rows of the future are told.
    clock: pd.Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutcome:
    """What became of the stages of a slot: "made", "kept", "failed" or "waiting" (for a stage before it), and why."""

    plan: SlotPlan
    became: Mapping[str, str]
    reasons: Mapping[str, str]

    def row(self) -> dict[str, Any]:
        """The outcome as plain values."""
        why = "; ".join(f"{stage}: {reason}" for stage, reason in self.reasons.items())
        return {"slot": self.plan.at, "run": self.plan.run, **self.became, "why": why}


def backfill(asked: Backfill) -> list[StageOutcome]:
    """Make what is asked for and return what became of every slot, ascending; no failure of a slot stops the others."""
    with ExitStack() as opened:
        store = opened.enter_context(open_store(asked.db, say=asked.say, memory_limit=MEMORY_LIMIT))
        plans = plan_backfill(store, asked.stretch)
        log = _Log(plans, asked.stretch.stages)
        busy = [plan for plan in plans if plan.todo]
        # Processes are worth their start only where there is enough to do.
        workers = asked.workers if len(busy) >= PIECE else 1
        fan = opened.enter_context(process_fan(workers))
        beside = opened.enter_context(ThreadPoolExecutor(2)) if workers > 1 else None
        first = True
        for stages, chunks in _passes(busy, asked.stretch):
            pieces = deque(_pieces(chunks))
            while pieces:
                # The first pieces are made on the opening they were planned on: after a kill, closing between the two would show
                # readers the half of a piece that was kept.
                with (
                    store if first else open_store(asked.db, say=asked.say, memory_limit=MEMORY_LIMIT) as own
                ):
                    _Opening(asked, own, log, stages, fan, beside).make(pieces)
                first = False
                asked.pause()
    return log.outcomes()


def _passes(
    busy: Sequence[SlotPlan], stretch: SlotRange
) -> Iterator[tuple[tuple[str, ...], list[Sequence[SlotPlan]]]]:
    """Chunks of slots in the order they are made, with the stages that are made then."""
    chunks = [busy[i : i + CHUNK] for i in range(0, len(busy), CHUNK)]
    if not stretch.backwards:
        yield stretch.stages, chunks
        return
    free = tuple(stage for stage in stretch.stages if stage not in IN_ORDER)
    bound = tuple(stage for stage in stretch.stages if stage in IN_ORDER)
    if free:
        yield free, chunks[::-1]
    if bound:
        yield bound, chunks


@dataclass(slots=True, kw_only=True)
class _Piece:
    """Some neighbouring slots, the first of those ``left`` of their chunk, and what the turns of them are about."""

    plans: Sequence[SlotPlan]
    left: Sequence[SlotPlan]
    begins: bool
    pairs: list[_Pair] = field(default_factory=list)
    estimates: Estimates = field(default_factory=dict)

    def __str__(self) -> str:
        first, last = (f"{plan.at:%Y-%m-%dT%H:%MZ}" for plan in (self.plans[0], self.plans[-1]))
        return f"{first} to {last}"


def _pieces(chunks: Sequence[Sequence[SlotPlan]]) -> Iterator[_Piece]:
    for chunk in chunks:
        for i in range(0, len(chunk), PIECE):
            yield _Piece(plans=chunk[i : i + PIECE], left=chunk[i:], begins=i == 0)


class _Log:
    """What became of every slot and stage so far."""

    def __init__(self, plans: Sequence[SlotPlan], stages: Sequence[str]) -> None:
        self._plans = plans
        self._became = {
            plan.at: {stage: "waiting" if stage in plan.todo else "kept" for stage in stages}
            for plan in plans
        }
        self._reasons: dict[pd.Timestamp, dict[str, str]] = {plan.at: {} for plan in plans}
        self._standing = {plan.at: plan.standing for plan in plans}

    def made(self, at: pd.Timestamp, stage: str) -> None:
        self._became[at][stage] = "made"

    def failed(self, at: pd.Timestamp, stage: str, reason: str) -> None:
        self._became[at][stage] = "failed"
        self._reasons[at][stage] = reason

    def waits(self, at: pd.Timestamp, stage: str) -> bool:
        """Whether a stage is to be made and has not been tried."""
        return self._became[at].get(stage) == "waiting"

    def stands(self, at: pd.Timestamp, stage: str) -> bool:
        """Whether a stage is there that another builds on: made or done before; one that was not asked for is taken as it is."""
        became = self._became[at].get(stage)
        return became in (None, "made") or (became == "kept" and self._standing[at][stage] == "done")

    def outcomes(self) -> list[StageOutcome]:
        return [
            StageOutcome(plan=plan, became=self._became[plan.at], reasons=self._reasons[plan.at])
            for plan in self._plans
        ]


#: Stage -> the stage that must stand before it in the same slot.
NEEDS = {"forecast": "ingest", "allocate": "forecast", "score": "forecast"}


def _nothing() -> None:
    """Nothing is under way."""


class _Opening:
    """Pieces made on one opening of the warehouse."""

    def __init__(
        self,
        asked: Backfill,
        store: Store,
        log: _Log,
        stages: Sequence[str],
        fan: Fan,
        beside: Executor | None,
    ) -> None:
        self._asked = asked
        self._store = store
        self._log = log
        self._stages = stages
        self._fan = fan
        self._beside = beside
        #: What the turns of the chunk at hand read of the observations.
        self._reads: Reads | None = None
        #: The pool with what was learned by now, None if the warehouse has to be asked.
        self._pool: Pool | None = None
        #: The jobs that will have been scored by the slots that come next; None if the warehouse has to be asked.
        self._scored: set[str] | None = None
        #: A job was counted on as scored, and that has failed.
        self._recount = False

    def make(self, pieces: deque[_Piece]) -> None:
        """Make the stages that the plans say, piece after piece, as far as one opening goes; a slot in which one failed goes no
        further.

        While a piece is forecast, the one before is decided and the one after got ready, which have no part in one another.
        """
        piece = pieces.popleft()
        self._part("prepare", piece, partial(self._ahead, piece, NO_ESTIMATES))()
        decided: Callable[[], None] = _nothing
        for number in count(1):
            if self._recount:
                self._recount, self._scored = False, None
                piece.pairs = self._works(piece)
            go_on = pieces and number < OPENING and not self._store.is_waited_for()
            following = pieces.popleft() if go_on else None
            ahead = _nothing
            if following is not None:
                prepare = partial(self._ahead, following, piece.estimates)
                ahead = self._start(self._part("prepare", following, prepare))
            self._part(self._named("forecast", "score"), piece, partial(self._learned, piece))()
            decided()
            ahead()
            pool = self._pool
            decide = partial(self._decided, piece, pool)
            decided = self._start(self._part(self._named("allocate"), piece, decide))
            give_memory_back()
            if following is None:
                break
            piece = following
        decided()

    def _part(self, name: str, piece: _Piece, work: Callable[[], None]) -> Callable[[], None]:
        """The work of a piece as a part that has a name; just the work if there is none."""
        return partial(self._asked.part, name, str(piece), work) if name else work

    def _named(self, *stages: str) -> str:
        """Those of the stages that are made now."""
        return " and ".join(stage for stage in stages if stage in self._stages)

    def _start(self, work: Callable[[], None]) -> Callable[[], None]:
        """Begin work beside what comes next; what is returned waits until it is done, and raises what it raised."""
        if self._beside is None:
            work()
            return _nothing
        # In a context like this one's, in which an engine finds the run that the work is part of.
        future: Future[None] = self._beside.submit(copy_context().run, work)
        return future.result

    def _ahead(self, piece: _Piece, before: Estimates) -> None:
        """Ready a chunk that begins, find out what the turns of a piece are about, and estimate what their forecasts need."""
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
        except FAILURES as error:  # the forecasts will meet it again, and know whose it is
            self._asked.say(f"estimation for {len(pairs)} slots failed ({error!r})")

    def _ready(self, plans: Sequence[SlotPlan]) -> None:
        """Ingest what slots lack, and get what their turns will read of the observations."""
        if "ingest" in self._stages:
            self._ingest([self._turn(plan.at) for plan in plans if self._log.waits(plan.at, "ingest")])
        slots = [plan.at for plan in self._wanted(plans)]
        if not slots:
            return
        step, settings = self._asked.stretch.step, self._asked.settings
        back = max(RECORD_SPAN + pd.Timedelta(days=7), timetable_of(settings).lookback + pd.Timedelta(days=3))
        span = Span(first=min(slots), last=max(slots), step=step, since=min(slots) - back)
        self._reads = Reads(self._store, span)

    def _wanted(self, plans: Sequence[SlotPlan]) -> list[SlotPlan]:
        """Slots in which there is more to do than to ingest, and that can be."""
        rest = [stage for stage in self._stages if stage != "ingest"]
        wanted = [plan for plan in plans if any(stage in plan.todo for stage in rest)]
        return [plan for plan in wanted if self._log.stands(plan.at, "ingest")]

    def _learned(self, piece: _Piece) -> None:
        """The forecasts of some slots, and their scores.

        Scores are learned from the market alone, so they may come before the decisions: those read only rounds before their slot.
        """
        self._stage("forecast", piece, partial(forecast_turns, ahead=piece.estimates))
        self._stage("score", piece, self._score)

    def _score(self, turns: list[Turn], works: list[Work]) -> None:
        _, self._pool = score_jobs(turns, works, self._known_pool(turns[0]))

    def _known_pool(self, turn: Turn) -> Pool:
        """The pool with what was learned by now, read once."""
        if self._pool is None:
            self._pool = read_pool(turn)
        return self._pool

    def _decided(self, piece: _Piece, pool: Pool | None) -> None:
        """The decisions of some slots; then nothing is left to be done for them."""

        def decide(turns: list[Turn], works: list[Work]) -> None:
            decide_jobs(turns, works, read_pool(turns[0]) if pool is None else pool)

        self._stage("allocate", piece, decide)
        self._asked.progress(sum(stage in plan.todo for plan in piece.plans for stage in self._stages))

    def _stage(self, stage: str, piece: _Piece, maker: Maker) -> None:
        """A stage, if it is asked for, of those slots that lack it and have what it needs."""
        self._together(stage, self._lacking(stage, piece), maker)

    def _lacking(self, stage: str, piece: _Piece) -> list[_Pair]:
        """The turns of a piece that lack a stage and have what it needs."""
        if stage not in self._stages:
            return []
        todo = {plan.at for plan in piece.plans if stage in plan.todo}
        return [
            pair for pair in piece.pairs if pair[0].at in todo and self._log.stands(pair[0].at, NEEDS[stage])
        ]

    def _turn(self, at: pd.Timestamp) -> Turn:
        return Turn(
            store=self._store, at=at, settings=self._asked.settings, run_id=run_id_of(at), made=BACKFILL,
            reads=self._reads, fan=self._fan, clock=self._asked.clock,
        )  # fmt: skip

    def _ingest(self, turns: Sequence[Turn]) -> None:
        """The ingests of some slots: kept all at once, unless one fails or feeds are asked, whose pages are kept as they come."""
        asked = self._asked
        if len(turns) > 1 and (asked.data is not None or not asked.settings.feeds):
            try:
                with self._store.transaction():
                    for turn in turns:
                        ingest(turn, Found(data=asked.data))
            except TimeoutError:
                raise
            except FAILURES as error:
                asked.say(f"ingest of {len(turns)} slots together failed ({error!r}); slot by slot")
            else:
                for turn in turns:
                    self._log.made(turn.at, "ingest")
                return
        for turn in turns:
            try:
                ingest(turn, Found(data=asked.data))
            except TimeoutError:
                raise
            except FAILURES as error:
                self._failed(turn, "ingest", error)
            else:
                self._log.made(turn.at, "ingest")

    def _works(self, piece: _Piece) -> list[_Pair]:
        """What each slot's turn is about, knowing what those before it will have scored."""
        pairs: list[_Pair] = []
        plans = self._wanted(piece.plans)
        if plans and (self._scored is None or "score" not in self._stages):
            self._scored = read_pool(self._turn(plans[0].at)).settled()
        scored = set() if self._scored is None else self._scored
        for plan in plans:
            turn = self._turn(plan.at)
            try:
                work = find_work(turn, [], scored=scored)
                require_markets(work)
            except TimeoutError:
                raise
            except FAILURES as error:
                stage = next((one for one in plan.todo if one != "ingest"), "forecast")
                self._failed(turn, stage, error)
                continue
            if "score" in plan.todo:
                scored |= {job.request.name for job, _ in work.ended}
            pairs.append((turn, work))
        return pairs

    def _together(self, stage: str, pairs: Sequence[_Pair], maker: Maker) -> None:
        """Make a stage of many slots at once; if that fails, slot by slot, so that only the one that fails is lost."""
        if not pairs:
            return
        try:
            maker([turn for turn, _ in pairs], [work for _, work in pairs])
        except TimeoutError:
            raise
        except FAILURES as error:
            if len(pairs) == 1:
                self._failed(pairs[0][0], stage, error)
                return
            self._asked.say(f"{stage} of {len(pairs)} slots together failed ({error!r}); slot by slot")
            for turn, work in pairs:
                self._together(stage, [(replace(turn, fan=in_turn), work)], maker)
        else:
            for turn, _ in pairs:
                self._log.made(turn.at, stage)

    def _failed(self, turn: Turn, stage: str, error: BaseException) -> None:
        reason = reason_of(error)
        save_failure(self._store, turn.run_id, at=turn.at, stage=stage, reason=reason, made=BACKFILL)
        self._log.failed(turn.at, stage, reason)
        if stage == "score":
            self._recount = True
        self._asked.say(f"{turn.at:%Y-%m-%d %H:%M} {stage} failed: {reason}")
