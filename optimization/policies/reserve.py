"""Reserve: wait for spot while there is slack, and keep the last hour of it (M4.10) (ours)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from slackwater.optimization.job.definition import Job, check_job
from slackwater.optimization.kernels.rules import after_growing
from slackwater.optimization.policies.contract import NameForm, View
from slackwater.optimization.policies.pace import (
    HOLD_NOTHING,
    all_spot,
    is_done,
    narrate,
    pace,
    rush,
    safety_net,
    work_left,
)
from slackwater.optimization.window.plan import Allocation
from slackwater.warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Reserve(minutes): all spot and no on-demand while the slack is longer than the reserve; then full speed (M4.10).

    The slack is the time to the deadline less the time that the fastest on-demand size needs for
    the rest, a restart included. Running instances are not restarted for more spot that does not
    make up for it within a slot. At full speed spot comes first and on-demand fills up, so that the
    job returns to spot as it returns. The policy reads no forecast and has no state.

    Raises `SettingsError` for a reserve below 0.
    """

    name_form: ClassVar = NameForm(optional={"minutes": float})
    minutes: float = 60.0
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.minutes >= 0.0:
            raise SettingsError(f"reserve of {self.minutes} minutes", expected="0 or more")
        object.__setattr__(self, "name", f"Reserve({self.minutes:g})")

    def start(self, job: Job) -> None:
        """Return no state; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)

    def decide(self, state: None, view: View) -> tuple[Allocation, None]:
        """Return all spot, or the fastest size where the slack is down to the reserve."""
        if is_done(view):
            return HOLD_NOTHING, None
        waits = slack_hours(view) > self.minutes / 60.0
        return safety_net(view, steady_spot(view)) if waits else rush(view), None

    def explain(self, state: None, view: View, allocation: Allocation) -> str:
        """Describe pace, slack and spot of the slot, and whether the reserve is reached."""
        spent = not is_done(view) and slack_hours(view) <= self.minutes / 60.0
        return narrate(
            view, allocation, rule=f"the last {self.minutes:g} minutes of slack are kept" if spent else ""
        )


def steady_spot(view: View) -> Allocation:
    """Return all spot, or the present size where a slot on the larger number does less work for its restart."""
    spot, before = all_spot(view), view.progress.n_previous
    if not view.job.n_min <= before < spot.total:
        return spot
    work = pace(view.job, view.slot_hours).work[before]
    return spot if work[spot.total] > work[before] else Allocation(0, before)


def slack_hours(view: View) -> float:
    """Return the hours to the deadline less those of the fastest on-demand size for the rest, with a restart."""
    job, gain = view.job, pace(view.job, view.slot_hours).gain
    fastest = max(gain)
    restart = max(0.0, 1.0 - after_growing(job.restart, gain.index(fastest)))
    return view.hours_left - (restart + work_left(view) / fastest) * view.slot_hours
