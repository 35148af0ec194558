"""Backfill: the turns of many past slots, made afterwards by the stages that live turns are made of, many slots at once.

The tables end as if each slot's turn had been run in its own time, slot by slot: what is made sees only what was known then (M1.2),
and is marked as made afterwards. A stretch is made in chunks on one opening of the warehouse each, and a chunk in pieces; what a
piece has made is kept at once, so a backfill that was killed goes on where it was. Between chunks the warehouse is free for live
turns. The decisions of a piece, which nothing but later decisions reads, are made while the next piece is forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from flows.backfill_plan import SlotPlan, Stretch, plan_backfill
from flows.config import Settings
from flows.deciding_turns import decide_turns
from flows.failures import reason_of
from flows.fans import Later, process_fan, side_by_side
from flows.fitting import timetable_of
from flows.forecasting_turns import forecast_turns
from flows.known_past import RECORD_SPAN
from flows.reads import Reads
from flows.runs import BACKFILL, save_failure
from flows.scoring_turns import score_turns
from flows.stages import ingest_stage
from flows.turn import Staged, Turn, in_turn, run_id_of, staged
from flows.work import Work, require_markets, scored_jobs, work_stage
from warehouse.errors import SlackwaterError
from warehouse.moving import Span
from warehouse.store import Store, open_store

#: Slots of one chunk at most: how long a live turn may have to wait.
CHUNK = 96
#: Slots of one piece of a chunk at most: what a kill can cost, and what is held in memory.
PIECE = 48
#: DuckDB's share of the memory that a backfill may take beside its worker processes.
MEMORY_LIMIT = "256MB"
#: What may go wrong in one slot without stopping the others: it is recorded with its reason. Not a time-out, which the engine
#: raises wherever the run stands when its own time is up.
FAILURES = (SlackwaterError, ValueError, ArithmeticError, LookupError, TypeError, OSError, RuntimeError)
#: Makes a stage of ascending turns.
Maker = Callable[[list[Turn], list[Work]], Staged[Any]]
#: Stages that go on from the slot before: always made in ascending order.
IN_ORDER = ("allocate", "score")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """What a backfill is given: the warehouse file, the stretch, the settings, where to ingest from, and how many processes."""

    db: Path
    stretch: Stretch
    settings: Settings
    data: Path | None = None
    workers: int = 2
    say: Callable[[str], None] = field(default=lambda _: None)
    #: Told after every chunk how many (slot, stage) of the plan are done with.
    progress: Callable[[int], None] = field(default=lambda _: None)
    #: Called between two chunks, when the warehouse is free.
    pause: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of the stages of a slot: "made", "kept", "failed" or "waiting" (for a stage before it), and why."""

    plan: SlotPlan
    became: Mapping[str, str]
    reasons: Mapping[str, str]

    def row(self) -> dict[str, Any]:
        """The outcome as plain values."""
        why = "; ".join(f"{stage}: {reason}" for stage, reason in self.reasons.items())
        return {"slot": self.plan.at, "run": self.plan.run, **self.became, "why": why}


def backfill(asked: Backfill) -> list[Outcome]:
    """Make what is asked for and return what became of every slot, ascending; no failure of a slot stops the others."""
    with ExitStack() as opened:
        store = opened.enter_context(open_store(asked.db, memory_limit=MEMORY_LIMIT))
        plans = plan_backfill(store, asked.stretch)
        log = _Log(plans, asked.stretch.stages)
        busy = [plan for plan in plans if plan.todo]
        # Processes are worth their start only where there is enough to do.
        later = opened.enter_context(process_fan(asked.workers if len(busy) >= PIECE else 1))
        for number, (stages, chunk) in enumerate(_passes(busy, asked.stretch)):
            # The first chunk is made on the opening it was planned on: after a kill, closing between the two would show readers
            # the half of a chunk that was kept.
            with store if number == 0 else open_store(asked.db, memory_limit=MEMORY_LIMIT) as own:
                _Chunk(asked, own, later, log).make(chunk, stages)
            asked.progress(sum(len([s for s in plan.todo if s in stages]) for plan in chunk))
            asked.pause()
    return log.outcomes()


def _passes(busy: Sequence[SlotPlan], stretch: Stretch) -> Iterator[tuple[tuple[str, ...], list[SlotPlan]]]:
    """Chunks of slots in the order they are made, each with the stages that are made then."""
    chunks = [list(busy[i : i + CHUNK]) for i in range(0, len(busy), CHUNK)]
    if not stretch.backwards:
        yield from ((stretch.stages, chunk) for chunk in chunks)
        return
    free = tuple(stage for stage in stretch.stages if stage not in IN_ORDER)
    bound = tuple(stage for stage in stretch.stages if stage in IN_ORDER)
    if free:
        yield from ((free, chunk) for chunk in reversed(chunks))
    if bound:
        yield from ((bound, chunk) for chunk in chunks)


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

    def stands(self, at: pd.Timestamp, stage: str) -> bool:
        """Whether a stage is there that another builds on: made or done before; one that was not asked for is taken as it is."""
        became = self._became[at].get(stage)
        return became in (None, "made") or (became == "kept" and self._standing[at][stage] == "done")

    def outcomes(self) -> list[Outcome]:
        return [
            Outcome(plan=plan, became=self._became[plan.at], reasons=self._reasons[plan.at])
            for plan in self._plans
        ]


#: Stage -> the stage that must stand before it in the same slot.
NEEDS = {"forecast": "ingest", "allocate": "forecast", "score": "forecast"}


class _Chunk:
    """The stages of some neighbouring slots, made on one opening of the warehouse."""

    def __init__(self, asked: Backfill, store: Store, later: Later, log: _Log) -> None:
        self._asked = asked
        self._store = store
        self._later = later
        self._log = log

    def make(self, plans: Sequence[SlotPlan], stages: Sequence[str]) -> None:
        """Make the stages that the plans say, piece after piece; a slot in which one failed goes no further."""
        if "ingest" in stages:
            for plan in plans:
                if "ingest" in plan.todo:
                    self._ingest(self._turn(plan.at, None))
        rest = [stage for stage in stages if stage != "ingest"]
        wanted = [plan for plan in plans if any(stage in plan.todo for stage in rest)]
        wanted = [plan for plan in wanted if self._log.stands(plan.at, "ingest")]
        if not wanted:
            return
        reads = self._reads([plan.at for plan in wanted])
        decisions: list[Staged[None]] = []
        for piece in (wanted[i : i + PIECE] for i in range(0, len(wanted), PIECE)):
            pairs: list[tuple[Turn, Work]] = []
            side_by_side([self._learned(piece, rest, reads, pairs), *decisions], self._later)
            decisions = [self._stage("allocate", piece, pairs, decide_turns)] if "allocate" in rest else []
        side_by_side(decisions, self._later)

    def _learned(
        self,
        plans: Sequence[SlotPlan],
        stages: Sequence[str],
        reads: Reads,
        pairs: list[tuple[Turn, Work]],
    ) -> Staged[None]:
        """What each slot's turn is about, into ``pairs``; its forecasts; and its scores.

        Scores are learned from the market alone, so they may come before the decisions: those read only rounds before their slot.
        """
        pairs += self._works(plans, reads)
        makers: tuple[tuple[str, Maker], ...] = (("forecast", forecast_turns), ("score", score_turns))
        for stage, maker in makers:
            if stage in stages:
                yield from self._stage(stage, plans, pairs, maker)

    def _stage(
        self, stage: str, plans: Sequence[SlotPlan], pairs: Sequence[tuple[Turn, Work]], maker: Maker
    ) -> Staged[None]:
        """A stage of those slots that lack it and have what it needs."""
        todo = {plan.at for plan in plans if stage in plan.todo}
        own = [pair for pair in pairs if pair[0].at in todo and self._log.stands(pair[0].at, NEEDS[stage])]
        yield from self._together(stage, own, maker)

    def _turn(self, at: pd.Timestamp, reads: Reads | None) -> Turn:
        return Turn(
            store=self._store, at=at, settings=self._asked.settings, run_id=run_id_of(at), made=BACKFILL,
            reads=reads,
        )  # fmt: skip

    def _ingest(self, turn: Turn) -> None:
        try:
            ingest_stage(turn, self._asked.data)
        except TimeoutError:
            raise
        except FAILURES as error:
            self._failed(turn, "ingest", error)
        else:
            self._log.made(turn.at, "ingest")

    def _reads(self, slots: Sequence[pd.Timestamp]) -> Reads:
        step, settings = self._asked.stretch.step, self._asked.settings
        back = max(RECORD_SPAN + pd.Timedelta(days=7), timetable_of(settings).lookback + pd.Timedelta(days=3))
        return Reads(self._store, Span(first=min(slots), last=max(slots), step=step, since=min(slots) - back))

    def _works(self, plans: Sequence[SlotPlan], reads: Reads) -> list[tuple[Turn, Work]]:
        """What each slot's turn is about, knowing what those before it will have scored."""
        pairs: list[tuple[Turn, Work]] = []
        scored = scored_jobs(self._turn(plans[0].at, reads))
        for plan in plans:
            turn = self._turn(plan.at, reads)
            try:
                work = work_stage(turn, [], scored=scored)
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

    def _together(self, stage: str, pairs: Sequence[tuple[Turn, Work]], maker: Maker) -> Staged[None]:
        """Make a stage of many slots at once; if that fails, slot by slot, so that only the one that fails is lost."""
        if not pairs:
            return
        try:
            yield from maker([turn for turn, _ in pairs], [work for _, work in pairs])
        except TimeoutError:
            raise
        except FAILURES as error:
            if len(pairs) == 1:
                self._failed(pairs[0][0], stage, error)
                return
            self._asked.say(f"{stage} of {len(pairs)} slots together failed ({error!r}); slot by slot")
            for pair in pairs:
                staged(self._together(stage, [pair], maker), in_turn)
        else:
            for turn, _ in pairs:
                self._log.made(turn.at, stage)

    def _failed(self, turn: Turn, stage: str, error: BaseException) -> None:
        reason = reason_of(error)
        save_failure(self._store, turn.run_id, at=turn.at, stage=stage, reason=reason, made=BACKFILL)
        self._log.failed(turn.at, stage, reason)
        self._asked.say(f"{turn.at:%Y-%m-%d %H:%M} {stage} failed: {reason}")
