"""Decisions of all open jobs in one slot, as a turn issues them (M3.7)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from slackwater.flows.plans.decisions import decisions_as_of
from slackwater.flows.show.formats import utc
from slackwater.flows.turn.context import Turn
from slackwater.flows.turn.markets.places import placed_in
from slackwater.optimization.job.request import JobRequest, read_request
from slackwater.warehouse.errors import JobError


def fleet_answer(turn: Turn, requests: Sequence[JobRequest]) -> dict[str, Any]:
    """Return the decisions of the open jobs, and of ``requests`` as if they started in this slot.

    Raises `JobError` if no job is open, `MarketError` for a request without a market. Stores nothing.
    """
    left_out: list[str] = []
    placed = [request for one in requests if (request := _place_request(turn, one, left_out)) is not None]
    decided = decisions_as_of(turn, placed)
    notes = [*left_out, *decided.left_out]
    if not decided.rows:
        raise JobError(
            f"no job is open at {utc(turn.at)}" + (f" ({notes[0]})" if notes else ""),
            expected="a job whose start is past and whose deadline is not",
            remedy="`slackwater job list` lists them; give --at TIME or --job FILE --market MARKET",
        )
    return {
        "slot": turn.at.isoformat(),
        "step_minutes": turn.settings.step_minutes,
        "decisions": list(decided.rows),
        "notes": list(dict.fromkeys(notes)),
    }


def _place_request(turn: Turn, request: JobRequest, left_out: list[str]) -> JobRequest | None:
    """Return the request with its market and start, or None with a note if it starts later."""
    if request.start is not None and pd.Timestamp(request.start) > turn.at:
        left_out.append(f"job {request.name} is left out: it starts at {request.start}")
        return None
    return placed_in(turn, request)[0]


def request_on(path: Path, market: str | None) -> JobRequest:
    """Return the request of a job file, on ``market`` if given."""
    request = read_request(path)
    return request.model_copy(update={"market": market}) if market is not None else request
