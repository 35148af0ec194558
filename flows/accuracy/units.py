"""The work of a backtest, unit by unit: forecast or read what is kept, and score at once; over processes or in this
one (M6.5)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from flows.accuracy.kept import kept_path, read_blocks, writer
from forecasting.accuracy.tables import Accuracy, Tally, accuracy_of, tally
from forecasting.origins import Block, Rolling, Unit, forecast_blocks, units_of
from optimization.replay.run import spread
from warehouse.errors import DamagedStoreError

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A backtest to run: whose forecasts are drawn as examples (``default``), and the folder they are kept in, if any."""

    rolling: Rolling
    default: str
    keep: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """The tallies of one unit, and what there is to say about it ("" = nothing)."""

    tallies: tuple[Tally, ...]
    note: str = ""


def score_unit(unit: Unit, course: Course) -> Scored:
    """Forecast a unit, unless that is kept already, and score it; only one series' forecasts are held at a time."""
    note = ""
    if course.keep is None:
        return Scored(tallies=_tallies(forecast_blocks(unit, course.rolling), unit, course))
    path = kept_path(course.keep, unit, course.rolling)
    if path.exists():
        try:
            return Scored(tallies=_tallies(read_blocks(path, unit, course.rolling), unit, course))
        except DamagedStoreError:
            note = f"{path.name} in {path.parent} was damaged and is made again"
    with writer(path, course.rolling) as write:
        return Scored(tallies=_tallies(_written(unit, course, write), unit, course), note=note)


def _tallies(blocks: Iterable[Block], unit: Unit, course: Course) -> tuple[Tally, ...]:
    fans = unit.model == course.default
    return tuple(tally(block, course.rolling, fans=fans) for block in blocks)


def _written(unit: Unit, course: Course, write: Callable[[Block], None]) -> Iterator[Block]:
    for block in forecast_blocks(unit, course.rolling):
        write(block)
        yield block


def cores() -> int:
    """Cores that this process may use: the default number of processes."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_course(
    course: Course, *, processes: int = 1, progress: Progress | None = None, notes: tuple[str, ...] = ()
) -> Accuracy:
    """All units of a backtest over ``processes``: the same tables however many, scored as they come in."""
    units = units_of(course.rolling)
    scored = spread(score_unit, units, course, processes=processes, progress=progress)
    return accuracy_from(course, scored, notes=notes)


def accuracy_from(course: Course, scored: Iterator[Scored], *, notes: tuple[str, ...] = ()) -> Accuracy:
    """The tables from the scored units in the order of `units_of`."""
    said: list[str] = []

    def tallies() -> Iterator[Tally]:
        for one in scored:
            if one.note:
                said.append(one.note)
            yield from one.tallies

    made = accuracy_of(course.rolling, tallies(), default=course.default, notes=notes)
    return replace(made, notes=(*made.notes, *said))
