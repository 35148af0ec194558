"""What a page is made from: the warehouse as published, the settings, and two times: the newest turn's and the clock's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import pandas as pd

from flows.config import Settings
from flows.turn.context import Turn
from warehouse.issued import read_rows
from warehouse.store.connection import Store, open_reader

#: Pages that are kept until the warehouse changes.
KEPT_PAGES = 128
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at the warehouse.

    ``at`` is the logical time of the newest turn and ``run`` its name, both None before the first; ``now`` is what the
    server's clock says, which only ages are told by.
    """

    store: Store
    settings: Settings
    db: Path
    now: pd.Timestamp
    at: pd.Timestamp | None
    run: str | None

    @property
    def turn(self) -> Turn:
        """The newest turn, for the functions that take one; nothing is written through it."""
        return Turn(
            store=self.store,
            at=self.at or pd.Timestamp(0, tz="UTC"),
            settings=self.settings,
            run_id=self.run or "ui",
        )

    @property
    def has_own_jobs(self) -> bool:
        """Whether a user has added a job, so that examples are set aside."""
        (count,) = self.store.execute(
            "SELECT count(*) FROM jobs WHERE origin = 'user' AND deadline_at > created_at"
        )[0]
        return bool(count)

    @property
    def step(self) -> pd.Timedelta:
        """Slot length."""
        return pd.Timedelta(minutes=self.settings.step_minutes)


def newest_turn(store: Store) -> tuple[pd.Timestamp | None, str | None]:
    """Logical time and name of the newest turn in the ledger, None before the first."""
    runs = read_rows(store, "runs", order_by=["logical_at", "run"])
    if runs.empty:
        return None, None
    return pd.Timestamp(runs["logical_at"].iloc[-1]), str(runs["run"].iloc[-1])


def fingerprint(db: Path) -> tuple[Hashable, ...]:
    """Changes when the warehouse does: name, size and time of its file and of those published beside it."""
    found = []
    for path in sorted(db.parent.glob(f"{_literal(db.name)}*")):
        try:
            facts = path.stat()
        except OSError:  # gone since it was listed: the next look will see what took its place
            continue
        found.append((path.name, facts.st_size, facts.st_mtime_ns, facts.st_ino))
    return tuple(found)


def _literal(name: str) -> str:
    """A file name with nothing in it that a glob would read as a pattern."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


class Snapshots:
    """Opens the warehouse for one page at a time and keeps what was made until the warehouse changes.

    One at a time, so that two who ask for the same page do not both make it; what is kept waits for nobody.
    """

    def __init__(self, db: Path, settings: Settings, clock: Callable[[], pd.Timestamp]) -> None:
        self.db = db
        self.settings = settings
        self.clock = clock
        self._building = Lock()
        self._pages: OrderedDict[Hashable, Any] = OrderedDict()

    def made(self, key: Hashable, make: Callable[[Reading], T], *, timed: bool = False) -> T:
        """What ``make`` gives for the warehouse as it is; the same ``key`` is not made twice of the same state.

        With ``timed`` it tells ages, so it is made again after a minute. Raises what `open_reader` raises.
        """
        now = self.clock()
        state = (fingerprint(self.db), now.floor("min") if timed else None, key)
        kept: T | None = self._pages.get(state)
        if kept is not None:
            return kept
        with self._building:
            again: T | None = self._pages.get(state)  # another request may have made it while this one waited
            if again is not None:
                return again
            with open_reader(self.db) as store:
                at, run = newest_turn(store)
                made = make(Reading(store=store, settings=self.settings, db=self.db, now=now, at=at, run=run))
            self._pages[state] = made
            while len(self._pages) > KEPT_PAGES:
                self._pages.popitem(last=False)
        return made
