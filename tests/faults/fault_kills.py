"""Kill a stage repeatedly, run it to its end, and compare every table with that of an undisturbed run."""

import importlib
import os
import random
import select
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fault_moments import FILE_OPERATIONS, Child, Ended, done
from fault_stages import AT, CHUNK, DB, OPTIONS, SLOT, Stage, copied, preview
from fault_tables import TABLES, checked, contents, differences, digest_of, doubled_keys, imported

from slackwater.flows.ledger.stages import STAGES as STAGE_NAMES
from slackwater.warehouse.sources import SOURCES
from slackwater.warehouse.sources.contract import SourceOptions
from slackwater.warehouse.store.connection import Store, open_reader, open_store

#: Largest number of kills between two complete runs, which cost as much as several kills.
IN_A_ROW = 3
#: Seconds between two looks of a reader.
PAUSE = 0.1


@dataclass(slots=True)
class Tally:
    """Results of a killed stage; ``shortest``: seconds of the fastest complete run, ``again``: kills by `kill_again`."""

    shortest: float
    kills: int = 0
    at_a_moment: int = 0
    after_a_time: int = 0
    again: int = 0
    reruns: int = 0
    rounds: int = 0
    lost: int = 0
    doubled: int = 0
    written: int = 0
    reads: int = 0
    half_seen: int = 0
    reads_failed: int = 0
    slowest_read: float = 0.0
    rows: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """An undisturbed run of a stage: its tables, its digest before, after each commit and at the end, and its moments."""

    base: Path
    tables: dict[str, Counter[str]]
    before: dict[str, list[str]]
    after: dict[str, list[str]]
    states: tuple[dict[str, list[str]], ...]
    answer: object
    ended: Ended


def warm(stages: tuple[Stage, ...], folder: Path) -> dict[str, Path]:
    """Prepare every stage's folder, and import the modules of the stages here, so that no child has to."""
    bases: dict[str, Path] = {}
    wanted: dict[str, None] = {}

    def prepared(stage: Stage) -> list[str]:
        stage.prepare(Path())
        return list(sys.modules)

    for stage in stages:
        base = folder / f"{stage.name}-base"
        base.mkdir(parents=True)
        wanted |= dict.fromkeys(done(base, lambda stage=stage: prepared(stage)).answer)
        bases[stage.name] = base
    for name in wanted:
        if name.split(".")[0] in ("slackwater", "scipy", "numba", "altair", "jinja2", "statsmodels"):
            importlib.import_module(name)
    return bases


def undisturbed(stage: Stage, base: Path, folder: Path) -> Undisturbed:
    """Run a stage to its end, then again: the second run must change nothing."""
    copied(base, folder)
    before = done(folder, lambda: checked(DB, stage.without)).answer["digest"]
    ended = done(folder, stage.work)
    states = done(copied(base, folder.with_name(f"{folder.name}-states")), lambda: states_of(stage)).answer
    found = done(folder, lambda: _found(stage)).answer
    return Undisturbed(
        base=base,
        tables={table: Counter(rows) for table, rows in found["tables"].items()},
        before=before,
        after=found["digest"],
        states=(before, *states, found["digest"]),
        answer=ended.answer,
        ended=ended,
    )


def states_of(stage: Stage) -> list[dict[str, list[str]]]:
    """Run a stage; return the digests after its commits."""
    states: list[dict[str, list[str]]] = []
    commit = Store.execute

    def committed(store: Store, sql: str, *parameters: object) -> object:
        rows = commit(store, sql, *parameters)
        if sql == "COMMIT" and store.name.endswith(DB.name):
            states.append(digest_of(store, stage.without))
        return rows

    Store.execute = committed
    stage.work()
    return states


def _found(stage: Stage) -> dict[str, object]:
    tables = contents(DB, stage.without, stage.tables or TABLES)
    return {"tables": tables, **checked(DB, stage.without)}


def kill_stage(
    stage: Stage,
    base: Path,
    folder: Path,
    *,
    kills: int,
    again: bool,
    seed: str,
    say: Callable[[str], None],
    in_a_row: int = IN_A_ROW,
    tally: Tally | None = None,
    keep: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Kill a stage at least ``kills`` times, in rounds of one to ``in_a_row``, with a complete run and comparison after each.

    `kill_again` runs first. ``tally``: results of earlier rounds, which are not repeated; ``keep`` receives the results after
    each round.
    """
    if tally is not None and tally.kills >= kills:
        return tally
    whole = undisturbed(stage, base, folder / f"{stage.name}-whole")
    again = again and tally is None
    tally = tally or Tally(shortest=whole.ended.seconds)
    if stage.files:
        tally.failures += done(folder / f"{stage.name}-whole", unaccounted).answer
    if again:
        kill_again(stage, whole, folder, tally)
    while tally.kills < kills and tally.rounds < 3 * kills:
        work = copied(base, folder / f"{stage.name}-{tally.rounds}")
        rng = random.Random(f"{seed} {stage.name} {tally.rounds}")
        _one_round(stage, whole, work, tally, rng, min(rng.randint(1, in_a_row), kills - tally.kills))
        shutil.rmtree(work)
        tally.rounds += 1
        keep(tally)
    say(
        f"{stage.name}: {tally.kills} kills, {tally.rounds} rounds, {tally.reads} reads, {len(tally.failures)} failures"
    )
    return tally


def kill_again(stage: Stage, whole: Undisturbed, folder: Path, tally: Tally) -> None:
    """Kill a stage halfway, and its next run at every file operation: readers must never see the partial state."""
    commits = [at for at, name in enumerate(whole.ended.moments, 1) if name == "after COMMIT"]
    if len(commits) < 2:  # a single commit has no halfway state
        return
    half = copied(whole.base, folder / f"{stage.name}-half")
    Child(half, stage.work, kill_at=commits[(len(commits) - 1) // 2]).wait()
    moments = done(copied(half, folder / f"{stage.name}-next"), stage.work).moments
    for at, name in enumerate(moments, 1):
        if name.removeprefix("after ") in FILE_OPERATIONS:
            work = copied(half, folder / f"{stage.name}-{at}")
            tally.again += Child(work, stage.work, kill_at=at).wait().killed
            wrong = done(work, seen_whole(whole.before, whole.after, stage=stage)).answer
            tally.reads += 1
            if wrong:
                tally.half_seen += 1
                tally.failures.append(f"{stage.name}: killed halfway, then {name}, a reader saw {wrong}")
            shutil.rmtree(work)


def _one_round(
    stage: Stage, whole: Undisturbed, folder: Path, tally: Tally, rng: random.Random, kills: int
) -> None:
    # A second writer publishes the finished stages of a killed turn: in every second round.
    shared = tally.rounds % 2
    if shared:
        look = seen_whole(*whole.states, stage=stage) if stage.whole else seen_whole_stages
    else:
        look = seen_whole(whole.before, whole.after, stage=stage) if stage.whole else seen_whole_slots
    watch = Watch(folder, look)
    writer = SecondWriter(folder) if shared else None  # stopped first: it has the reader's pipe open
    for before in range(kills):
        ended = _kill_once(stage, whole, folder, rng, tally)
        # Other work may slow the timed run, so a run may end before its kill: its time then replaces the shortest.
        if not before and not ended.killed:
            tally.shortest = min(tally.shortest, ended.seconds)
        if ended.error and not ended.killed:
            tally.failures.append(f"{stage.name}: a run after a kill failed: {ended.error}")
    last = Child(folder, stage.work).wait()
    tally.reruns += 1
    if writer is not None:
        writer.stop(tally)
    watch.stop(tally)
    if last.error:
        tally.failures.append(f"{stage.name}: the last run failed: {last.error}")
    if not stage.whole:
        tally.failures += _not_as_planned(last.answer)
    _compare(stage, whole, folder, tally)


def _kill_once(stage: Stage, whole: Undisturbed, folder: Path, rng: random.Random, tally: Tally) -> Ended:
    """Kill once, before or after a statement or file operation, or after a share of a complete run's time."""
    if rng.random() < 0.5:
        ended = Child(folder, stage.work, kill_at=rng.randint(1, len(whole.ended.moments))).wait()
        tally.at_a_moment += ended.killed
    else:
        ended = Child(folder, stage.work).wait(kill_after=rng.random() * tally.shortest)
        tally.after_a_time += ended.killed
    tally.kills += ended.killed
    tally.reruns += not ended.killed
    return ended


def _compare(stage: Stage, whole: Undisturbed, folder: Path, tally: Tally) -> None:
    found = done(folder, lambda: _found(stage)).answer
    tally.rows += Counter(found["imported"])
    tally.doubled += int(found["doubled"])
    if found["imported"]["added"] != found["imported"]["held"] or found["imported"]["unkept"]:
        tally.failures.append(f"{stage.name}: imports do not add up: {found['imported']}")
    if found["digest"] == whole.after:
        return
    lost, doubled = differences(
        whole.tables, {table: Counter(rows) for table, rows in found["tables"].items()}
    )
    tally.lost += lost
    tally.doubled += doubled
    if lost or doubled:
        tally.failures.append(f"{stage.name}: {lost} rows lost, {doubled} doubled")


def _not_as_planned(answer: object) -> list[str]:
    """Return errors: a planned stage of a slot must have been made, a stage not planned must be unchanged."""
    wrong = []
    for row in answer if isinstance(answer, list) else []:
        for stage, became in row["became"].items():
            if became != ("made" if stage in row["planned"] else "kept"):
                wrong.append(f"backfill: {stage} of {row['slot']} became {became}, planned {row['planned']}")
    return wrong


Look = Callable[[], str]


def seen_whole(*states: dict[str, list[str]], stage: Stage) -> Look:
    """Return a check that a reader sees the tables in one of these states, and nothing between."""

    def look() -> str:
        with open_reader(DB) as store:
            digest = digest_of(store, stage.without)
            doubled = doubled_keys(store)
        if doubled:
            return f"{doubled} keys twice"
        if digest in states:
            return ""
        near = min(states, key=lambda state: sum(digest[name] != state[name] for name in digest))
        return "half of it: " + ", ".join(name for name in digest if digest[name] != near[name])

    return look


def seen_whole_stages() -> str:
    """Return an error unless the forecasts and decisions that a reader sees are those of the recorded stages."""
    with open_reader(DB) as store:
        doubled = doubled_keys(store)
        (apart,) = store.execute(
            "SELECT (SELECT list(DISTINCT issued_at ORDER BY issued_at) FROM vintages WHERE issued_at > $at) IS DISTINCT FROM "
            "(SELECT list(DISTINCT logical_at ORDER BY logical_at) FROM runs WHERE stage = 'forecast' AND logical_at > $at), "
            "(SELECT count(*) FROM decisions AS d WHERE slot > $at AND NOT EXISTS "
            "(SELECT 1 FROM runs AS r WHERE r.stage = 'allocate' AND r.logical_at = d.slot))",
            {"at": AT.to_pydatetime()},
        )
    if doubled:
        return f"{doubled} keys twice"
    return f"half a stage: {apart}" if any(apart) else ""


def seen_whole_slots() -> str:
    """Return an error unless every slot that a reader of a backfill sees has all its stages or none."""
    with open_reader(DB) as store:
        rows = store.execute(
            "SELECT logical_at, count(DISTINCT stage) FROM runs WHERE logical_at > ? GROUP BY logical_at",
            [AT.to_pydatetime()],
        )
        doubled = doubled_keys(store)
        half = [str(at) for at, stages in rows if stages != len(STAGE_NAMES)]
        issued = store.execute(
            "SELECT count(DISTINCT issued_at) FROM vintages WHERE issued_at > ?", [AT.to_pydatetime()]
        )[0][0]
    if doubled:
        return f"{doubled} keys twice"
    if half:
        return f"half a slot: {half}"
    return "" if issued == len(rows) else f"forecasts of {issued} slots, runs of {len(rows)}"


class SecondWriter:
    """A process that opens and closes the warehouse for writing repeatedly, and so publishes the committed state."""

    def __init__(self, folder: Path) -> None:
        stopped, self._stop = os.pipe()
        self._child = Child(folder, lambda: self._write(stopped))
        os.close(stopped)

    def _write(self, stopped: int) -> int:
        os.close(self._stop)
        opened = 0
        while not select.select([stopped], [], [], PAUSE)[0]:
            with open_store(DB, wait=600.0):
                opened += 1
        return opened

    def stop(self, tally: Tally) -> None:
        """End the process and add its results to the tally."""
        os.close(self._stop)
        ended = self._child.wait()
        tally.written += 0 if ended.error else int(ended.answer)
        if ended.error:
            tally.failures.append(f"the second writer failed: {ended.error}")


class Watch:
    """A process that reads the warehouse repeatedly while stages are killed and run."""

    def __init__(self, folder: Path, look: Look) -> None:
        stopped, self._stop = os.pipe()
        self._child = Child(folder, lambda: self._read(stopped, look))
        os.close(stopped)

    def _read(self, stopped: int, look: Look) -> dict[str, object]:
        os.close(self._stop)
        told: dict[str, object] = {"reads": 0, "half": [], "failed": [], "slowest": 0.0}
        while not select.select([stopped], [], [], PAUSE)[0]:
            began = time.monotonic()
            try:
                wrong = look()
            except Exception as error:
                told["failed"].append(repr(error))
                continue
            if wrong:
                told["half"].append(wrong)
            told["reads"] += 1
            told["slowest"] = max(told["slowest"], time.monotonic() - began)
        return told

    def stop(self, tally: Tally) -> None:
        """End the process and add its results to the tally."""
        os.close(self._stop)
        ended = self._child.wait()
        if ended.killed or ended.error:
            tally.failures.append(f"the reader died: {ended.error}")
            return
        told = ended.answer
        tally.reads += told["reads"]
        tally.half_seen += len(told["half"])
        tally.reads_failed += len(told["failed"])
        tally.slowest_read = max(tally.slowest_read, told["slowest"])
        tally.failures += [f"a reader saw {text}" for text in told["half"][:3]]
        tally.failures += [f"a reader failed: {text}" for text in told["failed"][:3]]


def unaccounted() -> list[str]:
    """Return files of which added + repeated + rejected differs from the number of rows that their source reads."""
    wrong = []
    with open_store(DB) as store:
        rows = store.execute("SELECT file, added + repeated + rejected FROM imports WHERE file <> ''")
    counted = dict(rows)
    for name, options in OPTIONS.items():
        source = SOURCES[name]
        for path in source.files([Path("files") / name]):
            read = sum(batch.table.num_rows for batch in source.read(path, SourceOptions(values=options)))
            if counted.get(path.as_posix()) != read:
                wrong.append(f"{path}: {read} rows read, {counted.get(path.as_posix())} accounted for")
    return wrong


def preview_is_what_is_done(base: Path, folder: Path, work: Callable[[], object]) -> list[str]:
    """Check that the dry run of a backfill names exactly the slots and stages that it then makes."""
    copied(base, folder)
    planned = done(folder, preview).answer
    made = done(folder, work).answer
    wrong = _not_as_planned(made)
    told = [{"slot": row["slot"], "planned": row["planned"]} for row in made]
    if planned != told or not planned:
        wrong.append(f"backfill: the dry run said {planned}, it did {told}")
    return wrong


__all__ = ["CHUNK", "SLOT", "Tally", "imported", "kill_stage", "preview_is_what_is_done", "warm"]
