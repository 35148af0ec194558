"""AHANP, the policy without forecasts (M4.4, paper A)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from slackwater.optimization.job.definition import Job, check_job
from slackwater.optimization.policies.contract import NameForm, View
from slackwater.optimization.policies.pace import (
    HOLD_NOTHING,
    WORK_TOLERANCE,
    all_spot,
    cheapest_split,
    expected_progress,
    is_done,
    least_net,
    least_size,
    narrate,
    slot_gain,
)
from slackwater.optimization.window.plan import Allocation
from slackwater.warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahanp:
    """AHANP(sigma): spot below sigma p_o while ahead of Zexp, the least size that catches up while behind (M4.4).

    When behind, spot comes first, and all of it is used at p_s <= sigma p_o. The size of the
    previous slot is retained if the change would be a single instance, progress stays at or above
    Zexp(t + 1), and, when ahead, spot alone suffices. In a gap only the safety net acts; the net
    adds the least size that keeps d within reach (ours). The policy has no state. Raises
    `SettingsError` for sigma outside (0, 1].
    """

    name_form: ClassVar = NameForm(numbers={"sigma": float})
    sigma: float
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.sigma <= 1.0:
            raise SettingsError(
                f"AHANP threshold sigma {self.sigma}", expected="a share of on-demand in (0, 1]"
            )
        object.__setattr__(self, "name", f"AHANP({self.sigma:g})")

    def start(self, job: Job) -> None:
        """Return no state; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)

    def decide(self, state: None, view: View) -> tuple[Allocation, None]:
        """Return the allocation of M4.4, subject to the safety net."""
        if is_done(view):
            return HOLD_NOTHING, None
        return least_net(view, self._wish(view) if view.observed else HOLD_NOTHING), None

    def explain(self, state: None, view: View, allocation: Allocation) -> str:
        """Describe pace, slack and spot of the slot, and the price threshold."""
        return narrate(view, allocation, rule=f"spot is used up to {self.sigma:g} of on-demand")

    def choice(self, view: View) -> bool:
        """Return whether spot is cheap enough: members of the family differ in nothing else."""
        return view.price <= self.sigma * view.on_demand_usd

    def _wish(self, view: View) -> Allocation:
        job = view.job
        spot = all_spot(view) if self.choice(view) else HOLD_NOTHING
        behind = (
            view.progress.done
            < expected_progress(job, view.slot + view.elapsed) - WORK_TOLERANCE * job.workload
        )
        if not behind:
            return self._keep(view, spot, spot_only=True) if spot.total else spot
        need = least_size(view, expected_progress(job, view.slot + 1))
        wish = spot if need <= spot.total else cheapest_split(view, need)
        return self._keep(view, wish, spot_only=False)

    @staticmethod
    def _keep(view: View, wish: Allocation, *, spot_only: bool) -> Allocation:
        """Return the previous size if it differs from ``wish`` by one instance and stays on schedule, else ``wish``."""
        job, before = view.job, view.progress.n_previous
        if abs(wish.total - before) != 1 or not job.n_min <= before <= job.n_max:
            return wish
        after = view.progress.done + slot_gain(view, before)
        if after < expected_progress(job, view.slot + 1) - WORK_TOLERANCE * job.workload:
            return wish
        kept = cheapest_split(view, before)
        return wish if spot_only and kept.on_demand else kept
