"""Several processes that write one warehouse at the same time: they wait for each other, and a killed writer stops nobody."""

import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from fault_moments import Child, done
from fault_samples import tidy_prices
from fault_stages import AT, DB, SLOT, copied, next_turn
from fault_tables import checked, contents, differences

from slackwater.flows.ledger.jobs import save_jobs
from slackwater.optimization.job.request import parse_request
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.store.connection import open_store
from slackwater.warehouse.store.files import WAIT_VARIABLE

#: The order of two writers decides the ids, never the rows.
WITHOUT_IDS = ("sid", "mid", "vid", "batch")
_LATER = AT + pd.Timedelta(days=10)


@dataclass(slots=True)
class Written:
    """Results of concurrent writers."""

    rounds: int = 0
    writers: int = 0
    killed_holding_the_lock: int = 0
    lost: int = 0
    doubled: int = 0
    failures: list[str] = field(default_factory=list)


def writer(number: int) -> None:
    """Ingest a separate file, add a separate job, and run the turn that the others run too; each in a separate opening."""
    with open_store(DB) as store:
        ingest(store, "tabular", Path(f"own-{number}.csv"), imported_at=AT)
    with open_store(DB) as store:
        terms = {
            "name": f"job-{number}", "deadline_in": "6h", "n_min": 1, "n_max": 4,
            "workload": {"amount": 8, "unit": "instance_hours"}, "throughput": {"form": "linear"},
            "checkpoint": {"resumable": True, "overhead_minutes": 2},
        }  # fmt: skip
        request = parse_request(terms, "test").with_place(at=_LATER, market="aws/r/z/x", source=None)
        save_jobs(store, [request], origin="user", at=_LATER, step=SLOT)
    next_turn()


def writers_at_once(base: Path, folder: Path, *, rounds: list[int], rng: random.Random) -> Written:
    """Run rounds of so many writers each, killing one in every second round; rows must equal those of sequential writers."""
    os.environ[WAIT_VARIABLE] = "600"  # on a busy machine a turn may take long
    written = Written()
    for number, count in enumerate(rounds):
        wanted = _one_after_the_other(base, folder / f"writers-{number}-wanted", count)
        here = _prepared(base, folder / f"writers-{number}", count)
        kill = rng.randint(30, 250) if number % 2 else None
        victim = rng.randrange(count)
        children = [
            Child(here, lambda i=i: writer(i), kill_at=kill if i == victim else None) for i in range(count)
        ]
        for i, ended in enumerate([child.wait() for child in children]):
            if ended.killed:
                written.killed_holding_the_lock += 1  # statements are run by the holder of the lock
                again = Child(here, lambda i=i: writer(i)).wait()
                ended = again
            if ended.error:
                written.failures.append(f"writer {i} of {count}: {ended.error}")
        written.rounds += 1
        written.writers += count
        _compare(written, here, wanted)
    return written


def _prepared(base: Path, folder: Path, count: int) -> Path:
    copied(base, folder)
    for i in range(count):
        (folder / f"own-{i}.csv").write_text(
            tidy_prices(50 + i).replace("us-east-1a", f"us-east-1{'abcdef'[i]}")
        )
    return folder


def _one_after_the_other(base: Path, folder: Path, count: int) -> dict[str, Counter[str]]:
    _prepared(base, folder, count)
    for i in range(count):
        done(folder, lambda i=i: writer(i))
    found = done(folder, lambda: contents(DB, WITHOUT_IDS)).answer
    return {table: Counter(rows) for table, rows in found.items()}


def _compare(written: Written, folder: Path, wanted: dict[str, Counter[str]]) -> None:
    found = done(folder, lambda: contents(DB, WITHOUT_IDS)).answer
    lost, doubled = differences(wanted, {table: Counter(rows) for table, rows in found.items()})
    keys = int(done(folder, lambda: checked(DB)).answer["doubled"])
    written.lost += lost
    written.doubled += doubled + keys
    if lost or doubled or keys:
        written.failures.append(f"{lost} rows lost, {doubled} doubled, {keys} keys twice")
