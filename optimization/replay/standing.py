"""What a market and its peers had shown, slot by slot, for policies that learn from it: the record of a job (M4.6, M1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from forecasting.quantiles import Forecast
from optimization.job.definition import Job, Progress, finished
from optimization.market.belief import Forgetting
from optimization.market.window import Record, market_window, point_forecast, record_of
from optimization.policies.contract import View
from optimization.policies.pace import slot_gain, step
from optimization.replay.run import Seen, see
from optimization.window.plan import Allocation
from warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT, History

#: How far before a job its record reaches: as far back as chains read.
RECORD_SPAN = pd.Timedelta(days=Forgetting().price_days)


def record_start(first: pd.Timestamp) -> pd.Timestamp:
    """The earliest slot of the record of a job whose first slot is ``first``."""
    return first - RECORD_SPAN


def market_record(
    history: History,
    peers: Sequence[History],
    *,
    first: pd.Timestamp,
    last: pd.Timestamp,
    known_by: pd.Timestamp,
) -> Record:
    """The record of a job on the market of ``history``, from `record_start` (or where the history begins) to slot ``last``.

    ``first`` is the job's slot 0 and ``known_by`` when its policy began to look: the job's first slot in a replay, the present
    one for a live decision. A row that was learned after both its own slot and ``known_by`` is a gap here, as a view of its
    slot could not have read it; a value that was revised later is one too, because a history keeps the newest version only.
    ``peers`` are histories of other markets; each counts where it was known by the same rule and is NaN elsewhere.
    """
    before = (first - history.slots[0]) // history.step if len(history.slots) else 0
    before = max(0, min(before, RECORD_SPAN // history.step))
    grid = pd.date_range(first - before * history.step, last, freq=history.step)
    return record_of(
        _known(history, PRICE, grid, known_by),
        _known(history, AVAILABLE, grid, known_by),
        first=before,
        slot_hours=history.slot_hours,
        peers=np.array([_known(peer, AVAILABLE, grid, known_by) for peer in peers]).reshape(-1, len(grid)),
        hour=(grid[0] - grid[0].floor("D")) / pd.Timedelta(hours=1) if history.real_clock else None,
    )


def _known(history: History, column: str, grid: pd.DatetimeIndex, known_by: pd.Timestamp) -> np.ndarray:
    """A column on ``grid``, NaN in gaps and where the row was learned later than its slot and ``known_by``."""
    slots, frame = history.slots, history.frame
    found = np.full(len(grid), np.nan)
    if not len(slots) or not len(grid):
        return found
    if (grid[0] - slots[0]) % history.step:  # no slot of the one is one of the other
        return found
    # Both grids are regular: what they have in common is a slice of each.
    offset = (grid[0] - slots[0]) // history.step
    first, end = max(0, -offset), min(len(grid), len(slots) - offset)
    if end <= first:
        return found
    own = slice(first + offset, end + offset)
    values = frame[column].to_numpy(dtype=float)[own]
    if history.known_at > known_by:  # else nothing in it was learned later
        at = grid[first:end]
        late = frame[ROW_KNOWN_AT].array[own] > at.where(at > known_by, known_by)
        values = np.where(late, np.nan, values)
    found[first:end] = values
    return found


# ---
# Where a running job stands, from what was decided for it, what the market then gave, and what was reported of it (M2.4).

NOTHING = Allocation(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What somebody saw of a running job: it counts from the start of ``slot`` on (ours).

    ``done`` is the work done, in work units (None: not said), ``size`` the number of instances held (None: not said). Both were
    true a share ``early`` of a slot before the start of ``slot``, in [0, 1).
    """

    slot: int
    done: float | None = None
    size: int | None = None
    early: float = 0.0


def held(job: Job, decided: Allocation, available: int) -> Allocation:
    """What could be held of a decision: no more spot than there is, and nothing at all below ``n_min``.

    >>> from optimization.job.definition import Linear
    >>> job = Job(name="j", workload=9, deadline_slots=9, n_min=1, n_max=8, throughput=Linear(), value=1)
    >>> held(job, Allocation(1, 4), 2)
    Allocation(on_demand=1, spot=2)
    """
    kept = Allocation(decided.on_demand, min(decided.spot, available))
    return kept if kept.total >= job.n_min else NOTHING


def held_so_far(
    job: Job,
    seen: Seen,
    decided: Mapping[int, Allocation],
    *,
    slots: int,
    reported: Sequence[Reported] = (),
) -> tuple[Progress, list[View]]:
    """Progress after the job's first ``slots`` slots if each held what was decided for it, and the view of each slot (ours).

    A slot without a decision held nothing. Spot that was not there, or that a gap leaves unknown, was not held and
    is not paid for. Nothing is paid after the finish, and no later view is given. ``reported``, ascending in time, sets the
    progress and the size at the start of its slots (those after ``slots`` are not looked at); what is paid stays that of
    the decisions.
    """
    progress = Progress()
    views: list[View] = []
    for slot in range(slots):
        progress = _corrected(job, seen, progress, slot, reported)
        if finished(progress.done, job.workload):
            continue
        view = seen.view(job, progress, slot)
        views.append(view)
        progress = step(progress, held(job, decided.get(slot, NOTHING), view.available), view)
    return _corrected(job, seen, progress, slots, reported), views


def _corrected(job: Job, seen: Seen, progress: Progress, slot: int, reported: Sequence[Reported]) -> Progress:
    """``progress`` at the start of ``slot`` with what was reported for it in the place of what was reckoned."""
    for one in reported:
        if one.slot != slot:
            continue
        size = progress.n_previous if one.size is None else held_size(job, one.size)
        done = progress.done
        if one.done is not None:
            done = min(job.workload, one.done + _rest_of_slot(job, seen, one, size))
            done = job.workload if finished(done, job.workload) else done
        progress = replace(progress, done=done, n_previous=size)
    return progress


def held_size(job: Job, reported: int) -> int:
    """The size a policy is told of: nothing below ``n_min`` makes progress, and none reckons with more than ``n_max``."""
    return min(reported, job.n_max) if reported >= job.n_min else 0


def _rest_of_slot(job: Job, seen: Seen, report: Reported, size: int) -> float:
    """Work done from the report to the end of its slot, at the size then held and without another change."""
    if not report.early or not size:
        return 0.0
    view = seen.view(job, Progress(n_previous=size), report.slot - 1)
    return report.early * slot_gain(view, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob:
    """A job that is running, at the slot to decide.

    Its slot k begins at ``start`` + k ``step``. Of its market the slots up to ``slot`` are known, later ones are gaps.
    ``decided`` is what was decided so far, by slot, ``reported`` what was said of it, ascending, and ``forecast`` the one issued
    in the slot to decide (None: there is none).
    """

    job: Job
    start: pd.Timestamp
    step: pd.Timedelta
    slot: int
    seen: Seen
    decided: Mapping[int, Allocation]
    forecast: Forecast | None = None
    reported: tuple[Reported, ...] = ()

    @property
    def now(self) -> pd.Timestamp:
        """Start of the slot to decide."""
        return self.start + self.slot * self.step

    @property
    def deadline(self) -> pd.Timestamp:
        """End of the last slot before the deadline."""
        return self.start + self.job.deadline_slots * self.step

    def standing(
        self, slots: int | None = None, reported: Sequence[Reported] | None = None
    ) -> tuple[Progress, list[View]]:
        """Where the job stands after its first ``slots`` slots (None: at the slot to decide), and the view of each of them.

        It held what was decided for it, from the newest of ``reported`` (None: its own) on (M2.4).
        """
        return held_so_far(
            self.job,
            self.seen,
            self.decided,
            slots=self.slot if slots is None else slots,
            reported=self.reported if reported is None else reported,
        )

    def progress(self) -> Progress:
        """Where the job stands at the slot to decide."""
        return self.standing()[0]

    @property
    def is_finished(self) -> bool:
        """Whether the job has done its work before the slot to decide."""
        return finished(self.progress().done, self.job.workload)

    def work_by(self, at: pd.Timestamp, reported: Sequence[Reported]) -> float | None:
        """Work units done by ``at`` as reckoned from the decisions and ``reported``; None beyond the market's record.

        Within a slot the work grows evenly.
        """
        place = (at - self.start) / self.step
        slot = min(int(place + 1e-9), self.job.deadline_slots)
        share = max(0.0, place - slot)
        if slot > self.slot + (share == 0.0):
            return None
        progress, _ = self.standing(slot, reported)
        if not share:
            return min(self.job.workload, progress.done)
        view = self.seen.view(self.job, progress, slot)
        gain = slot_gain(view, held(self.job, self.decided.get(slot, NOTHING), view.available).total)
        return min(self.job.workload, progress.done + share * gain)


def live_job(
    job: Job,
    start: pd.Timestamp,
    history: History,
    *,
    decided: Mapping[pd.Timestamp, Allocation],
    forecasts: Sequence[Forecast] = (),
    peers: Sequence[History] = (),
    reported: Sequence[Reported] = (),
) -> LiveJob:
    """Line a job whose slot 0 begins at ``start`` up with its market's history; the slot to decide is the history's last.

    ``decided`` is by the start of the slot. ``forecasts`` are the planner's vintages in the job's slots so far; nothing later than
    the present slot is kept. What the history holds from before the job, and ``peers`` beside it, become the record, which ends at
    the present slot.
    """
    step = history.step
    grid = pd.date_range(start, periods=job.deadline_slots, freq=step)
    rows = history.frame.reindex(grid)
    window = market_window(
        rows[PRICE].to_numpy(dtype=float),
        rows[AVAILABLE].to_numpy(dtype=float),
        on_demand_usd=history.on_demand_usd,
        slot_hours=history.slot_hours,
    )
    now = history.known_at.floor(step)
    issued = {forecast.issued_at: forecast for forecast in forecasts if forecast.issued_at <= now}
    points = [point_forecast(issued[slot]) if slot in issued else None for slot in grid]
    record = market_record(history, peers, first=start, last=now, known_by=now)
    return LiveJob(
        job=job,
        start=start,
        step=step,
        slot=round((now - start) / step),
        seen=see(job, window, points, record),
        decided={round((slot - start) / step): allocation for slot, allocation in decided.items()},
        forecast=issued.get(now),
        reported=tuple(reported),
    )
