"""Own launches of a job, from its reports: evidence of the availability of spot (M13.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from slackwater.flows.ledger.decisions import in_force
from slackwater.flows.ledger.reports import MOMENT, Report
from slackwater.optimization.belief.archetypes import ALL, NONE, PART
from slackwater.optimization.belief.launches import Launch, launch_state
from slackwater.optimization.window.plan import Allocation


def launches_of(
    reports: Sequence[Report],
    decided: Mapping[pd.Timestamp, tuple[str | None, Allocation]],
    market: str | None,
    *,
    start: pd.Timestamp,
    step: pd.Timedelta,
    revisions: Sequence[Mapping[str, Any]] = (),
) -> list[Launch]:
    """Return the own launches in a market (None: the only one) by slot of the job whose slot 0 begins at ``start``.

    Each counts for the first slot that starts at or after its report. ``decided`` has the market
    and the allocation of each slot, ``revisions`` those of the rest of a slot, by time. Spot that was
    decided in one market is no request in another where none runs. Instances that were lost were held in the slot
    before.
    """
    found = []
    for report in reports:
        slot = max(start, (report.reported_at - MOMENT).floor(step))
        place, advised = in_force(decided, revisions, slot, report.reported_at)
        is_request = report.market in (None, place) or bool(report.spot)
        state = _state(report, advised.spot if is_request else 0)
        if state is None or market not in (None, report.market or place):
            continue
        held = round((report.held_minutes or 0.0) / (step / pd.Timedelta(minutes=1)))
        index = math.ceil((report.reported_at - start) / step - 1e-9)
        found.append(Launch(slot=index, state=state, held=max(held, 1 if report.lost else 0)))
    return found


def _state(report: Report, advised: int) -> int | None:
    """Return the state of the request of a report, None if it says nothing of one; ``advised`` is the spot decided."""
    asked = report.asked or advised
    if report.granted is not None and asked:
        return launch_state(report.granted, asked)
    if report.lost:
        return PART if report.spot else NONE
    if report.spot is not None and asked:
        return launch_state(report.spot, asked)
    return ALL if report.held_minutes else None
