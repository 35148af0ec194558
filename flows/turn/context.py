"""What every stage of a turn is given: the warehouse, the logical time, the settings, and a way to spread work out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import pandas as pd

from flows.config import Settings
from flows.ledger.runs import LIVE
from flows.show.table import rows_of
from flows.turn.reads import Reads
from warehouse.observations.listing import list_markets
from warehouse.store.connection import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls of one function that a stage wants made before it goes on, perhaps side by side; values in, values out."""

    function: Callable[..., Any]
    calls: Sequence[dict[str, Any]]
    label: str


#: Where to ask for the results of calls, in their order: it waits for them, and raises what a call has raised.
Results = Callable[[], list[Any]]
#: A stage that hands out its `Calls`, is sent where to ask for their results, and returns what it made.
Staged = Generator[Calls, Results, T]


class Fan(Protocol):
    """Calls one function for many arguments, perhaps side by side; results come back in the order of the calls."""

    def __call__(
        self, function: Callable[..., Any], calls: Sequence[dict[str, Any]], *, label: str
    ) -> list[Any]:
        """Results of ``function(**call)`` for every call, in order."""
        ...


def in_turn(function: Callable[..., Any], calls: Sequence[dict[str, Any]], *, label: str) -> list[Any]:
    """The plain `Fan`: one call after the other."""
    return [function(**call) for call in calls]


def staged(stage: Staged[T], fan: Fan) -> T:
    """Run a stage to its end, each of its `Calls` through ``fan``."""
    results: Results | None = None
    while True:
        try:
            asked = next(stage) if results is None else stage.send(results)
        except StopIteration as ended:
            made: T = ended.value
            return made
        results = partial(fan, asked.function, asked.calls, label=asked.label)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of the loop.

    ``at`` is the logical time, a slot's start. With ``own_end`` every market is taken at the end of its own record
    instead, if that is earlier. ``run_id`` names the turn; the same one again writes nothing new. Only the process
    that holds ``store`` writes: what `fan` calls gets values and returns values. ``made`` says whether the turn is made in its own
    slot or afterwards; then ``reads`` may answer for many turns.
    """

    store: Store
    at: pd.Timestamp
    settings: Settings
    run_id: str
    own_end: bool = False
    fan: Fan = field(default=in_turn)
    say: Callable[[str], None] = field(default=lambda _: None)
    made: str = LIVE
    reads: Reads | None = None

    def listing(self) -> pd.DataFrame:
        """The markets known at the turn's time."""
        if self.reads is not None:
            return self.reads.listing(self.at)
        return list_markets(self.store, known_at=self.at)

    def listed(self) -> list[dict[str, Any]]:
        """The rows of `listing`."""
        return self.reads.listed(self.at) if self.reads is not None else rows_of(self.listing())


def run_id_of(at: pd.Timestamp, what: str = "run") -> str:
    """The name of the turn at a logical time: the same time gives the same name."""
    return f"{what}-{at:%Y%m%dT%H%M%SZ}"
