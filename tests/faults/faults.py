"""Inject faults and count losses: ``python tests/faults/faults.py [--kills N] [--files N] [--only PART ...] [--keep FILE]``.

Prints one JSON object; exit code 1 if anything was lost, doubled or partially visible. Runs as a separate
process: its children are forked, so this process never opens a warehouse.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kits"), str(HERE.parents[1])]

from fault_hostile import fuzz_form, samples  # noqa: E402
from fault_kills import IN_A_ROW, Tally, kill_stage, preview_is_what_is_done, warm  # noqa: E402
from fault_network import FeedServer, soak  # noqa: E402
from fault_room import full_disk, full_tmpfs  # noqa: E402
from fault_stages import STAGES, Stage, feed_stage  # noqa: E402
from fault_writers import writers_at_once  # noqa: E402

#: Kills of each stage out of 210.
SHARES = {"ingest": 45, "feed": 30, "forecast": 30, "score": 25, "allocate": 25, "turn": 30, "backfill": 25}
SUMMED = (
    "kills",
    "again",
    "at_a_moment",
    "after_a_time",
    "reruns",
    "rounds",
    "lost",
    "doubled",
    "written",
    "reads",
    "half_seen",
)
ROWS = ("added", "repeated", "rejected")
#: Of a full run: concurrent writers in each round; fetches; rounds without room; free megabytes of small disks.
WRITERS, FETCHES, ROOMLESS, DISKS = [2, 2, 2, 5, 5, 5], 50, 8, (1, 5, 13)


#: Mutated files of every form of file.
FILES = 200


def say(text: str) -> None:
    """Print a progress line on standard error."""
    print(text, file=sys.stderr, flush=True)


def plain(tally: Any) -> dict[str, Any]:
    """Return the fields of a tally as plain values; `dataclasses.asdict` cannot copy a Counter."""
    values = {field.name: getattr(tally, field.name) for field in fields(tally)}
    return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The tallies of killed stages in a file, by which a stopped run continues; without a file nothing is stored."""

    file: Path | None

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the stored tallies by stage."""
        if self.file is None or not self.file.exists():
            return {}
        found: dict[str, dict[str, Any]] = json.loads(self.file.read_text())
        return found

    def tally(self, stage: str) -> Tally | None:
        """Return the stored tally of a stage."""
        found = self.read().get(stage)
        return None if found is None else Tally(**found | {"rows": Counter(found["rows"])})

    def store(self, stage: str, tally: Tally) -> None:
        """Store the tally of a stage."""
        if self.file is None:
            return
        part = self.file.with_name(f"{self.file.name}.part")
        part.write_text(json.dumps(self.read() | {stage: plain(tally)}))
        part.replace(self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """One run of the harness: folder, number of kills and files, seed, and the stages with their prepared folders."""

    folder: Path
    kills: int
    seed: int
    stages: tuple[Stage, ...]
    bases: dict[str, Path]
    files: int
    forms: tuple[str, ...]
    in_a_row: int
    kept: Kept

    @property
    def share(self) -> float:
        """Return the size of this run as a share of a full run."""
        return min(self.kills / sum(SHARES.values()), 1.0)

    def rng(self, part: str) -> random.Random:
        """Return a random generator for one part, independent of the other parts that run."""
        return random.Random(f"{self.seed} {part}")

    def of_full(self, number: int) -> int:
        """Return a share of a full run's number, at least 1."""
        return max(1, round(number * self.share))


def killed(run: Harness) -> dict[str, Any]:
    """Kill every stage, and compare the dry run of a backfill with its run."""
    told: dict[str, Any] = {}
    total: Counter[str] = Counter()
    for stage in run.stages:
        number = round(run.kills * SHARES[stage.name] / sum(SHARES[one.name] for one in run.stages))
        base = run.bases[stage.name]
        again = stage.whole and (run.share == 1.0 or stage.name == "feed")
        found = kill_stage(
            stage, base, run.folder, kills=max(number, 1), again=again, seed=str(run.seed), say=say,
            in_a_row=run.in_a_row, tally=run.kept.tally(stage.name), keep=partial(run.kept.store, stage.name),
        )  # fmt: skip
        tally = plain(found)
        if stage.name == "backfill":
            tally["failures"] += preview_is_what_is_done(base, run.folder / "preview", stage.work)
        total += Counter({name: tally[name] for name in SUMMED}) + Counter(tally["rows"])
        told[stage.name] = tally
    return {**{name: total[name] for name in (*SUMMED, *ROWS)}, "stages": told}


def at_once(run: Harness) -> dict[str, Any]:
    """Run concurrent writers."""
    rounds = WRITERS if run.share == 1.0 else [2, 2]
    return plain(writers_at_once(run.bases["turn"], run.folder, rounds=rounds, rng=run.rng("writers")))


def soaked(run: Harness) -> dict[str, Any]:
    """Run a feed through faults."""
    return plain(soak(run.folder / "soak", fetches=max(run.of_full(FETCHES), 10), seed=run.seed))


def roomless(run: Harness) -> dict[str, Any]:
    """Run turns on a full disk."""
    told: dict[str, Any] = {}
    for name in ("ingest", "turn"):
        stage = next(one for one in STAGES if one.name == name)
        rounds = run.of_full(ROOMLESS)
        full = full_disk(stage, run.bases[name], run.folder, rounds=rounds, rng=run.rng(f"room {name}"))
        told[name] = plain(full)
    turn = next(one for one in STAGES if one.name == "turn")
    for megabytes in DISKS if run.share == 1.0 else ():
        disk = full_tmpfs(turn, run.bases["turn"], run.folder, megabytes=megabytes)
        told[f"disk with {megabytes} MB free"] = "may not mount" if disk is None else plain(disk)
    return told


def spoiled(run: Harness) -> dict[str, Any]:
    """Ingest mutated files of every form of every source."""
    told: dict[str, Any] = {}
    for sample in samples():
        if not run.forms or any(word in sample.form for word in run.forms):
            told[sample.form] = plain(fuzz_form(run.folder, sample, files=run.files, seed=run.seed))
            say(f"{sample.form}: {told[sample.form]['rows']}, {len(told[sample.form]['failures'])} failures")
    total: Counter[str] = Counter()
    for one in told.values():
        total += Counter({name: one[name] for name in ("files", "refused", "kept", "read")}) + Counter(
            one["rows"]
        )
    return {**total, "forms": told}


PARTS: dict[str, Callable[[Harness], dict[str, Any]]] = {
    "kills": killed, "writers": at_once, "network": soaked, "room": roomless, "files": spoiled,
}  # fmt: skip


def failures_in(answer: object) -> list[str]:
    """Return every failure reported by any part."""
    if not isinstance(answer, dict):
        return []
    own = [*answer.get("failures", [])]
    own += [
        f"{name}: {answer[name]}" for name in ("lost", "doubled", "misread", "half_seen") if answer.get(name)
    ]
    return own + [text for part in answer.values() for text in failures_in(part)]


def run_all(words: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Prepare every stage, run the requested parts, and report losses."""
    server = FeedServer(folder)
    answer: dict[str, Any] = {"seed": words.seed}
    try:
        every = (*STAGES, feed_stage(server.url))
        asked = tuple(stage for stage in every if stage.name in words.stage)
        needed = {stage.name for stage in asked} if "kills" in words.only else set()
        needed |= {"turn"} if {"writers", "room"} & {*words.only} else set()
        needed |= {"ingest"} if "room" in words.only else set()
        bases = warm(tuple(stage for stage in every if stage.name in needed), folder)
        run = Harness(
            folder=folder,
            kills=words.kills,
            seed=words.seed,
            stages=asked,
            bases=bases,
            files=words.files,
            forms=tuple(words.form),
            in_a_row=words.in_a_row,
            kept=Kept(file=words.keep),
        )
        say(f"{len(bases)} folders prepared")
        for part in words.only:
            began = time.monotonic()
            answer[part] = PARTS[part](run)
            answer[part]["seconds"] = round(time.monotonic() - began, 1)
            say(f"{part}: {answer[part]['seconds']} s")
    finally:
        server.stop()
    return {**answer, "failures": failures_in(answer)}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=sum(SHARES.values()))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--in-a-row", type=int, default=IN_A_ROW, help="most kills before a stage runs to its end"
    )
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--stage", nargs="+", choices=tuple(SHARES), default=list(SHARES))
    parser.add_argument("--files", type=int, default=FILES, help="mutated files of every form of file")
    parser.add_argument("--form", nargs="+", default=[], help="of the forms whose name holds one of these")
    parser.add_argument(
        "--keep", type=Path, help="file of the kills made so far: a stopped run continues with it"
    )
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        answer = run_all(words, Path(folder))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    answer["cpu_seconds"] = round(sum(one.ru_utime + one.ru_stime for one in used), 1)
    print(json.dumps(answer, indent=2))
    return 1 if answer["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
