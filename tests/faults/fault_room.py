"""Disk full in the middle of a turn: a clear error, readers that see complete states, and with room the same tables."""

import os
import random
import resource
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fault_kills import Undisturbed, undisturbed
from fault_moments import Child, done
from fault_stages import DB, Stage, copied
from fault_tables import checked, read_digest

from slackwater.warehouse.errors import SlackwaterError


@dataclass(slots=True)
class Full:
    """Results of work on a full disk."""

    rounds: int = 0
    refused: int = 0
    fitted: int = 0
    lost_or_doubled: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def full_disk(stage: Stage, base: Path, folder: Path, *, rounds: int, rng: random.Random) -> Full:
    """Run a stage with a limit on file size between the first and the last size of an undisturbed run."""
    whole, full = undisturbed(stage, base, folder / f"{stage.name}-roomy"), Full()
    first, last = ((where / DB).stat().st_size for where in (base, folder / f"{stage.name}-roomy"))
    for number in range(rounds):
        here = copied(base, folder / f"{stage.name}-full-{number}")
        _one_round(stage, whole, here, full, rng.randint(first // 2, max(first, last * 3 // 4)))
        full.rounds += 1
    return full


def _one_round(stage: Stage, whole: Undisturbed, folder: Path, full: Full, bytes_at_most: int) -> None:
    ended = Child(folder, lambda: _limited(stage, bytes_at_most)).wait()
    if ended.error:
        full.failures.append(f"{stage.name} with files of {bytes_at_most} bytes at most: {ended.error}")
    elif ended.answer is None:
        full.fitted += 1
    else:
        full.refused += 1
        full.errors[str(ended.answer)] += 1
    seen = done(folder, lambda: read_digest(DB)).answer
    if seen not in (whole.before, whole.after):
        full.failures.append(f"{stage.name}: a reader saw half of it")
    done(folder, stage.work)
    found = done(folder, lambda: checked(DB)).answer
    if found["digest"] != whole.after or found["doubled"]:
        full.lost_or_doubled += 1
        full.failures.append(f"{stage.name}: with room again other tables than undisturbed")


def _limited(stage: Stage, bytes_at_most: int) -> str | None:
    """Return the name of the error, checking that it has a message; None if there was enough room."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_at_most, bytes_at_most))
    try:
        stage.work()
    except SlackwaterError as error:
        return type(error).__name__ if len(str(error)) > 20 else f"an error that says nothing: {error}"
    return None


#: Bytes by which a file may take more on a disk than its size.
PAGE = 4096


def full_tmpfs(stage: Stage, base: Path, folder: Path, *, megabytes: int) -> Full | None:
    """Run a stage on a file system with ``megabytes`` free, which fills up; None if mounting is not permitted."""
    disk = folder / f"disk-{megabytes}"
    disk.mkdir()
    used = sum(file.stat().st_size + PAGE for file in base.rglob("*") if file.is_file())
    mount = ["mount", "-t", "tmpfs", "-o", f"size={used + megabytes * 2**20}", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        return None
    try:
        whole, full = undisturbed(stage, base, folder / f"{stage.name}-disk-{megabytes}"), Full(rounds=1)
        here = copied(base, disk / "here")
        ended = Child(here, lambda: _limited(stage, resource.RLIM_INFINITY)).wait()
        if ended.error:
            full.failures.append(f"{stage.name} with {megabytes} MB free: {ended.error}")
        full.refused += ended.answer is not None
        full.fitted += ended.answer is None and not ended.error
        subprocess.run(["mount", "-o", "remount,size=400m", str(disk)], check=True)
        done(here, stage.work)
        found = done(here, lambda: checked(DB)).answer
        if found["digest"] != whole.after or found["doubled"]:
            full.lost_or_doubled += 1
            full.failures.append(f"{stage.name} with {megabytes} MB free: other tables than undisturbed")
        return full
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
