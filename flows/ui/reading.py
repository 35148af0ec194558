"""Input of a page: the published warehouse, the settings, the time of the newest turn and the current time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import pandas as pd

from slackwater.flows.command import Answer
from slackwater.flows.config import Settings
from slackwater.flows.following import present_of
from slackwater.flows.turn.context import Turn
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import Store, open_reader

#: Number of cached pages; all are dropped when the warehouse changes.
KEPT_PAGES = 128
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Snapshot of the warehouse: time ``at`` and name ``run`` of its newest turn (or None); server time ``now``, for ages."""

    store: Store
    settings: Settings
    db: Path
    now: pd.Timestamp
    at: pd.Timestamp | None
    run: str | None

    @property
    def present(self) -> pd.Timestamp:
        """Time at which states of jobs and slots are shown: the present, or in an archive the newest turn."""
        return present_of(self.store, self.settings, clock=self.now)

    @property
    def turn(self) -> Turn:
        """The newest turn, for functions with a turn as argument; only for reading."""
        return Turn(
            store=self.store,
            at=self.at or pd.Timestamp(0, tz="UTC"),
            settings=self.settings,
            run_id=self.run or "ui",
        )

    @property
    def step(self) -> pd.Timedelta:
        """Slot length."""
        return pd.Timedelta(minutes=self.settings.step_minutes)


@dataclass(frozen=True, slots=True, kw_only=True)
class UiPage:
    """A page of the UI: its data, which ``/api`` serves, and further values for its template."""

    data: dict[str, Any]
    values: Callable[[], dict[str, Any]] = dict


def page_of_answer(answer: Answer, *, empty: bool = False, **more: Any) -> UiPage:
    """Return the answer of a command as a page, ``more`` for the template; ``empty``: nothing to show yet but a sentence."""
    return UiPage(data=answer.value, values=lambda: {"page": answer.as_page(), "empty": empty, **more})


def newest_turn(store: Store) -> tuple[pd.Timestamp | None, str | None]:
    """Return logical time and name of the newest turn in the ledger, None before the first turn."""
    runs = read_rows(store, "runs", order_by=["logical_at", "run"])
    if runs.empty:
        return None, None
    return pd.Timestamp(runs["logical_at"].iloc[-1]), str(runs["run"].iloc[-1])


def fingerprint(db: Path) -> tuple[Hashable, ...]:
    """Return a key that changes with the warehouse: name, size, time and inode of its file and of the published copies."""
    found = []
    for path in sorted(db.parent.glob(f"{escape(db.name)}*")):
        try:
            facts = path.stat()
        except OSError:  # deleted since it was listed: the next fingerprint sees its replacement
            continue
        found.append((path.name, facts.st_size, facts.st_mtime_ns, facts.st_ino))
    return tuple(found)


class Snapshots:
    """Cache of pages, valid until the warehouse changes.

    Pages are built one at a time, so that simultaneous requests do not build the same page twice.
    Cached pages are returned without waiting.
    """

    def __init__(self, db: Path, settings: Settings, clock: Callable[[], pd.Timestamp]) -> None:
        self.db = db
        self.settings = settings
        self.clock = clock
        self._building = Lock()
        self._pages: OrderedDict[Hashable, Any] = OrderedDict()

    def result_of(self, key: Hashable, make: Callable[[Reading], T], *, timed: bool = False) -> T:
        """Return ``make`` of the current warehouse, cached by ``key``, for a minute if ``timed``; errors as of `open_reader`."""
        now = self.clock()
        state = (fingerprint(self.db), now.floor("min") if timed else None, key)
        kept: T | None = self._pages.get(state)
        if kept is not None:
            return kept
        with self._building:
            again: T | None = self._pages.get(state)  # another request may have built it in the meantime
            if again is not None:
                return again
            with open_reader(self.db) as store:
                at, run = newest_turn(store)
                result = make(
                    Reading(store=store, settings=self.settings, db=self.db, now=now, at=at, run=run)
                )
            self._pages[state] = result
            while len(self._pages) > KEPT_PAGES:
                self._pages.popitem(last=False)
        return result
