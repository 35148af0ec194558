"""What is kept of a stage that failed, so that `slackwater status` can tell why, and which failures are worth another try."""

from __future__ import annotations

from types import TracebackType

from flows.ledger.runs import LIVE, save_failure
from flows.turn.context import Turn
from warehouse.errors import DamagedStoreError, InputError, SchemaError, StoreError

#: Characters of a reason that are kept.
LONGEST_REASON = 2000


class failure_kept:
    """Record in the ledger why a stage failed, in a transaction of its own, and let the error go on.

    The stage's own rows are gone by then, as it keeps all of them or none. A run that succeeds later takes the record's place.
    If the warehouse cannot take the record either, the first error still is the one that is raised.
    """

    def __init__(self, turn: Turn, stage: str, *, made: str = LIVE) -> None:
        self.turn = turn
        self.stage = stage
        self.made = made

    def __enter__(self) -> None:
        """Nothing to do before the stage."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep the reason of an error; a killed process keeps nothing, so its stage stays missing."""
        if not isinstance(error, Exception):
            return
        turn = self.turn
        try:
            save_failure(
                turn.store, turn.run_id, at=turn.at, stage=self.stage, reason=reason_of(error), made=self.made
            )
        except StoreError as second:
            turn.say(f"why {self.stage} failed could not be kept: {second}")


def reason_of(error: BaseException) -> str:
    """One sentence of an error: the project's own speak for themselves, others with their kind."""
    text = str(error).strip()
    named = text if isinstance(error, (InputError, StoreError)) else f"{type(error).__name__}: {text}"
    return named[:LONGEST_REASON]


def worth_another_try(error: BaseException | None) -> bool:
    """Whether the same work may succeed a little later: not with the same wrong input, nor after the time it was given."""
    return error is not None and not isinstance(
        error, (InputError, SchemaError, DamagedStoreError, TimeoutError)
    )
